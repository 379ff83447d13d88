//! Errors: the `Status` objects that reject a request.
//!
//! Reasons, codes and texts are those of kube-apiserver 1.36 (`apimachinery/pkg/api/errors`), because clients match on
//! them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    fmt,
};

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use crate::resource::{ApiKind, qualified};

/// A request that was rejected, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ApiError(Box<StatusJson>);

/// The `Status` object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusJson {
    kind: &'static str,
    api_version: &'static str,
    metadata: BTreeMap<&'static str, String>,
    status: &'static str,
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    code: u16,
}

/// The subject of the rejection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: Cow<'static, str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

/// One field that is wrong, of the list in `details.causes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, `ResourceVersionTooLarge`, ...
    pub reason: String,
    /// For people.
    pub message: String,
    /// Path of the field; empty when the cause is not a field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl Cause {
    fn new(reason: &str, message: String, field: &str) -> Self {
        Self {
            reason: reason.to_owned(),
            message,
            field: field.to_owned(),
        }
    }

    /// The value breaks a rule, which `why` states; before it stands the value, if it may be quoted.
    pub(crate) fn invalid(field: &str, why: impl fmt::Display) -> Self {
        Self::new("FieldValueInvalid", format!("Invalid value: {why}"), field)
    }

    /// The field must not be set.
    pub(crate) fn forbidden(field: &str, why: impl fmt::Display) -> Self {
        Self::new("FieldValueForbidden", format!("Forbidden: {why}"), field)
    }

    /// The field must be set; `why` may be empty.
    pub(crate) fn required(field: &str, why: &str) -> Self {
        let colon = if why.is_empty() { "" } else { ": " };
        let message = format!("Required value{colon}{why}");
        Self::new("FieldValueRequired", message, field)
    }

    /// The value is none of those `supported`.
    pub(crate) fn unsupported(field: &str, value: impl fmt::Debug, supported: &[&str]) -> Self {
        let supported = supported
            .iter()
            .map(|word| format!("{word:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        let message = format!("Unsupported value: {value:?}: supported values: {supported}");
        Self::new("FieldValueNotSupported", message, field)
    }
}

impl ApiError {
    /// A rejection with `code`, a `reason` of the API's list, and a text for people.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(StatusJson {
            kind: "Status",
            api_version: "v1",
            metadata: BTreeMap::new(),
            status: "Failure",
            message: message.into(),
            reason,
            details: None,
            code: code.as_u16(),
        }))
    }

    /// A rejection with `code` and the reason that belongs to it.
    pub(crate) fn of(code: StatusCode, message: impl Into<String>) -> Self {
        let reason = match code.as_u16() {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            409 => "Conflict",
            410 => "Expired",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self::new(code, reason, message)
    }

    fn with(mut self, details: Details) -> Self {
        self.0.details = Some(details);
        self
    }

    fn about(self, kind: ApiKind, shown: impl Into<Cow<'static, str>>, name: &str) -> Self {
        self.with(Details {
            name: name.to_owned(),
            group: kind.resource().group,
            kind: shown.into(),
            ..Details::default()
        })
    }

    /// Says that there are no details, which kube-apiserver does where the rejection is not about an object.
    fn generic(self) -> Self {
        self.with(Details::default())
    }

    /// 404: the object does not exist.
    pub(crate) fn not_found(kind: ApiKind, name: &str) -> Self {
        let resource = kind.resource();
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::of(StatusCode::NOT_FOUND, message).about(kind, resource.plural, name)
    }

    /// 404: the path leads nowhere.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::of(StatusCode::NOT_FOUND, message).generic()
    }

    /// 409: the name is taken.
    pub(crate) fn already_exists(kind: ApiKind, name: &str) -> Self {
        let resource = kind.resource();
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(kind, resource.plural, name)
    }

    /// 409: a precondition does not hold.
    pub(crate) fn conflict(kind: ApiKind, name: &str, why: &str) -> Self {
        Self::conflict_on(kind, kind.resource().plural.into(), name, why)
    }

    /// 409: a precondition of a deletion or of a token does not hold. kube-apiserver names the kind here, where it
    /// names the resource elsewhere.
    pub(crate) fn kind_conflict(kind: ApiKind, name: &str, why: &str) -> Self {
        Self::conflict_on(kind, kind.resource().name.into(), name, why)
    }

    /// 409: a precondition does not hold. The subject is `shown` as a kind, a resource or a subresource, with the group
    /// of `kind`.
    pub(crate) fn conflict_on(
        kind: ApiKind,
        shown: Cow<'static, str>,
        name: &str,
        why: &str,
    ) -> Self {
        let subject = qualified(&shown, kind.resource().group);
        let message = format!("Operation cannot be fulfilled on {subject} \"{name}\": {why}");
        Self::of(StatusCode::CONFLICT, message).about(kind, shown, name)
    }

    /// 409: the writer had not seen the last version.
    pub(crate) fn modified(kind: ApiKind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// 400: the request makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, message)
    }

    /// 422: the object, or a parameter of the request, breaks rules.
    pub(crate) fn invalid(kind: &'static str, name: &str, causes: Vec<Cause>) -> Self {
        let (mut shown, mut known) = (Vec::new(), HashSet::new());
        for cause in &causes {
            let text = match cause.field.as_str() {
                "" => cause.message.clone(),
                field => format!("{field}: {}", cause.message),
            };
            // The text shows each once.
            if known.insert(text.clone()) {
                shown.push(text);
            }
        }
        let list = match shown.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let group = match kind {
            // Parameters of a request belong to a group of their own.
            "ListOptions" | "CreateOptions" | "UpdateOptions" | "PatchOptions"
            | "DeleteOptions" => "meta.k8s.io",
            "TokenRequest" => "authentication.k8s.io",
            kind => ApiKind::of_name(kind).map_or("", |kind| kind.resource().group),
        };
        let message = format!("{} \"{name}\" is invalid: {list}", qualified(kind, group));
        Self::of(StatusCode::UNPROCESSABLE_ENTITY, message).with(Details {
            name: name.to_owned(),
            group,
            kind: kind.into(),
            causes,
            ..Details::default()
        })
    }

    /// 422: a review asks nothing, and kube-apiserver forgets to say of which kind it is. Or what a patch makes of the
    /// object is no object of its kind: kube-apiserver names no object, and quotes all of it, which this server does not
    /// do, because it may be a Secret.
    pub(crate) fn invalid_unnamed(subject: &str, group: &'static str, cause: Cause) -> Self {
        let (field, why) = (&cause.field, &cause.message);
        let message = format!("{subject} \"\" is invalid: {field}: {why}");
        Self::of(StatusCode::UNPROCESSABLE_ENTITY, message).with(Details {
            group,
            causes: vec![cause],
            ..Details::default()
        })
    }

    /// 422: a patch that does not fit the object.
    pub(crate) fn unfit_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::of(StatusCode::UNPROCESSABLE_ENTITY, message).generic()
    }

    /// 403: understood and rejected.
    pub fn forbidden(kind: ApiKind, name: &str, why: &str) -> Self {
        let resource = kind.resource();
        let subject = match name {
            "" => resource.qualified(),
            name => format!("{} \"{name}\"", resource.qualified()),
        };
        let message = format!("{subject} is forbidden: {why}");
        Self::of(StatusCode::FORBIDDEN, message).about(kind, resource.plural, name)
    }

    /// 401: the client is not authenticated.
    pub(crate) fn unauthorized() -> Self {
        Self::of(StatusCode::UNAUTHORIZED, "Unauthorized")
    }

    /// 405: the resource exists and cannot do this.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::of(StatusCode::METHOD_NOT_ALLOWED, message).generic()
    }

    /// 406: no answer in a form that the client takes.
    pub(crate) fn not_acceptable() -> Self {
        let message = "406: Not Acceptable\n\nAvailable representations: application/json";
        Self::of(StatusCode::NOT_ACCEPTABLE, message).generic()
    }

    /// 415: the body is in a form that this server does not read.
    pub(crate) fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include: application/json";
        Self::of(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// 415: the patch is of a type that this server does not know.
    pub(crate) fn unsupported_patch() -> Self {
        let message = "415: Unsupported Media Type";
        Self::of(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).generic()
    }

    /// 413: the body is longer than the server reads.
    pub(crate) fn too_large(why: impl fmt::Display) -> Self {
        let message = format!("Request entity too large: {why}");
        Self::of(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// 410: the version lies before the history that the server still has.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::of(StatusCode::GONE, message)
    }

    /// 504: the version is one that this server has not reached.
    pub(crate) fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let why = "Too large resource version".to_owned();
        Self::of(StatusCode::GATEWAY_TIMEOUT, message).with(Details {
            causes: vec![Cause::new("ResourceVersionTooLarge", why, "")],
            retry_after_seconds: Some(1),
            ..Details::default()
        })
    }

    /// 504: the request takes too long. Source: kube-apiserver 1.36,
    /// `staging/src/k8s.io/apiserver/pkg/server/filters/timeout.go`.
    pub(crate) fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self::of(StatusCode::GATEWAY_TIMEOUT, message).generic()
    }

    /// 500 without a reason: what kube-apiserver did not expect, though it is the client's fault.
    pub fn unexpected(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// 500: the server's own fault.
    pub(crate) fn internal(what: &str) -> Self {
        let message = format!("Internal error occurred: {what}");
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Adds the token with which a client may continue a list whose snapshot is gone.
    pub(crate) fn with_continue(mut self, token: String) -> Self {
        self.0.metadata.insert("continue", token);
        self
    }

    /// Asks the client to come back after `seconds`; sent as `Retry-After` as well.
    pub(crate) fn with_retry_after(mut self, seconds: u32) -> Self {
        self.0.details.get_or_insert_default().retry_after_seconds = Some(seconds);
        self
    }

    /// The HTTP status.
    pub fn code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.code).expect("made from a StatusCode")
    }

    /// The reason, one word of the API's list: `NotFound`, `Conflict`, ...
    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    /// When to come back, in seconds, if the server says so.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        self.0.details.as_ref()?.retry_after_seconds
    }

    /// The ERROR event of a watch.
    pub(crate) fn to_event(&self) -> Bytes {
        let mut frame = br#"{"type":"ERROR","object":"#.to_vec();
        frame.extend_from_slice(&self.to_json());
        frame.extend_from_slice(b"}\n");
        frame.into()
    }

    /// The `Status` object.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers always serialize")
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for ApiError {}
