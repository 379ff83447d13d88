//! One request and its bounded response; a failure has the API server's message.
//!
//! Built by hand over [`kube::Client::send`], because the typed methods of `kube` log the body of a response that they
//! cannot decode, and that body may be a Secret.
//!
//! Invariants:
//! 1. Neither a response nor the body of a request is logged, or quoted by an error, whatever goes wrong. Only the
//!    message of a `Status` is passed on.
//! 2. A response is held in a [`Buffer`]: bounded, and wiped where it may hold a Secret.
//! 3. Dropping the future ends the request.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use larder_objects::SecretBytes;
use larder_transport::{
    Link, OwnRateLimit,
    path::{PathError, Resource},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::time::timeout;

use crate::{
    backoff::LONGEST_OWN_DELAY,
    bounds::OBJECT_BYTES,
    buffer::Buffer,
    error::{KnownCause, RequestError, StatusFacts},
};

/// Longest wait for the response to a get, for the head of another response, and for the next bytes of a list (API
/// server's own limit: 60 s).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest `Retry-After` that is obeyed. A server that needs longer says so again; one that says an hour by mistake, or a
/// proxy in its place, does not silence this client for an hour.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);

const REVIEWS: Resource = Resource::new("authorization.k8s.io", "v1", "selfsubjectaccessreviews");

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// Makes one request, with `body` as JSON, or as a merge patch if the method is PATCH; the response is read as `T`.
/// `path` is percent-encoded, as [`larder_transport::path`] builds it.
///
/// For objects that larder does not watch and that are no Secrets. At most 3 MiB of the response are read, within
/// [`REQUEST_TIMEOUT`]. Use [`serde::de::IgnoredAny`] where only the success matters.
///
/// # Errors
///
/// The API server rejected the request or did not answer, or its response is not a `T`.
pub async fn request<T: DeserializeOwned>(
    client: &kube::Client,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, RequestError> {
    decoded(client, new_request(method, parsed(path)?, body)).await
}

/// As [`request`], for a response that holds a credential: its bytes, which are wiped when they are dropped.
///
/// # Errors
///
/// The API server rejected the request or did not answer.
pub async fn request_secret(
    client: &kube::Client,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<SecretBytes, RequestError> {
    let request = new_request(method, parsed(path)?, body);
    let response = read(client, request, true).await?;
    Ok(SecretBytes::new(response.into_bytes()))
}

/// Whether this identity may do what `attributes` say, as in a `SelfSubjectAccessReview`.
///
/// # Errors
///
/// As of [`request`].
pub async fn is_allowed(client: &kube::Client, attributes: &Value) -> Result<bool, RequestError> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    let path = REVIEWS.collection();
    let review: Value = request(client, Method::POST, path.as_str(), Some(&review)).await?;
    review["status"]["allowed"]
        .as_bool()
        .ok_or(RequestError::Unexpected("no review"))
}

/// Changes one object that is not a Secret by the merge patch `patch`; the response is read as `T`.
///
/// The request does not count for the client's rate limit: the caller limits it. Otherwise as [`request`].
///
/// # Errors
///
/// As of [`request`].
pub async fn merge_patch<T: DeserializeOwned>(
    client: &kube::Client,
    uri: Uri,
    patch: &impl Serialize,
) -> Result<T, RequestError> {
    let mut request = new_request(Method::PATCH, uri, Some(patch));
    request.extensions_mut().insert(OwnRateLimit);
    decoded(client, request).await
}

/// A response whose body is read as it comes.
pub(crate) struct Opened {
    pub(crate) body: Body,
    /// Its connection, where the client is one of [`larder_transport`].
    pub(crate) link: Option<Link>,
}

/// Sends a GET and returns the body of the response as it comes.
pub(crate) async fn open(client: &kube::Client, uri: Uri) -> Result<Opened, RequestError> {
    let request = new_request(Method::GET, uri, None::<&()>);
    within(exchange(client, request)).await
}

/// Sends a GET and reads the whole response.
pub(crate) async fn get(
    client: &kube::Client,
    uri: Uri,
    secret: bool,
) -> Result<Buffer, RequestError> {
    read(client, new_request(Method::GET, uri, None::<&()>), secret).await
}

async fn decoded<T: DeserializeOwned>(
    client: &kube::Client,
    request: Request<Body>,
) -> Result<T, RequestError> {
    let response = read(client, request, false).await?;
    serde_json::from_slice(&response).map_err(|_| RequestError::Unexpected("no usable object"))
}

/// Sends a request and reads the whole response.
async fn read(
    client: &kube::Client,
    request: Request<Body>,
    secret: bool,
) -> Result<Buffer, RequestError> {
    within(async { collect(exchange(client, request).await?.body, secret).await }).await
}

/// Sends a request; a status other than 2xx becomes an error.
async fn exchange(client: &kube::Client, request: Request<Body>) -> Result<Opened, RequestError> {
    let response = client
        .send(request)
        .await
        .map_err(RequestError::unanswered)?;
    let (mut head, body) = response.into_parts();
    if head.status.is_success() {
        let link = head.extensions.remove();
        return Ok(Opened { body, link });
    }
    let retry_after = head
        .headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    // A proxy in place of the API server may repeat anything: wiped like a Secret.
    let body = collect(body, true).await?;
    let status: Status = serde_json::from_slice(&body).unwrap_or_default();
    Err(status.error(head.status, retry_after))
}

fn parsed(path: &str) -> Result<Uri, RequestError> {
    Ok(path.parse().map_err(|_| PathError::InvalidName)?)
}

fn new_request(method: Method, uri: Uri, body: Option<&impl Serialize>) -> Request<Body> {
    let media_type = match method {
        Method::PATCH => MERGE_PATCH,
        _ => JSON,
    };
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static(JSON));
    // A client that decompresses would hold Secrets in memory that is not wiped.
    let identity = HeaderValue::from_static("identity");
    headers.insert(header::ACCEPT_ENCODING, identity);
    if let Some(body) = body {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        let body = serde_json::to_vec(body).expect("objects of the API have a JSON form");
        *request.body_mut() = Body::from(body);
    }
    request
}

/// Not an async function, which would hold the request twice: as it was given and as it is awaited.
pub(crate) fn within<T>(
    request: impl Future<Output = Result<T, RequestError>>,
) -> impl Future<Output = Result<T, RequestError>> {
    timeout(REQUEST_TIMEOUT, request)
        .map(|result| result.unwrap_or(Err(RequestError::Timeout(REQUEST_TIMEOUT))))
}

async fn collect(mut body: Body, secret: bool) -> Result<Buffer, RequestError> {
    let mut buffer = Buffer::new(secret, OBJECT_BYTES);
    while let Some(data) = data(&mut body).await? {
        buffer.push(&data)?;
    }
    Ok(buffer)
}

/// The next bytes of a body.
pub(crate) async fn data(body: &mut Body) -> Result<Option<Bytes>, RequestError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame
            .map_err(|error| RequestError::Transport(Box::new(error)))?
            .into_data()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The `Status` of a failed request, as far as it is used.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    reason: SmolStr,
    message: String,
    details: Option<StatusDetails>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusDetails {
    name: SmolStr,
    retry_after_seconds: u64,
    causes: Option<Vec<StatusCause>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusCause {
    reason: SmolStr,
    field: SmolStr,
}

impl StatusCause {
    fn known(&self) -> Option<KnownCause> {
        match (&*self.reason, &*self.field) {
            ("ResourceVersionTooLarge", _) => Some(KnownCause::VersionTooLarge),
            ("NamespaceTerminating", _) => Some(KnownCause::NamespaceTerminating),
            (_, "metadata.uid") => Some(KnownCause::OtherUid),
            _ => None,
        }
    }
}

impl Status {
    /// The error that this is with the code in the response's head; a body that is something else says nothing.
    pub(crate) fn error(self, code: StatusCode, retry_after: Option<Duration>) -> RequestError {
        let details = self.details.unwrap_or_default();
        let retry_after_details = (details.retry_after_seconds > 0)
            .then(|| Duration::from_secs(details.retry_after_seconds));
        let mut causes = details.causes.iter().flatten();
        let asked = retry_after.or(retry_after_details);
        let retry_after = asked.map(|asked| asked.min(RETRY_AFTER_MAX));
        let mut message = if self.message.is_empty() {
            format!("the API server answered {code}")
        } else {
            self.message
        };
        // A shorter wait is one that larder would take by itself.
        if let (Some(asked), Some(least)) = (asked, retry_after)
            && asked > LONGEST_OWN_DELAY
        {
            let (asked, least) = (asked.as_secs(), least.as_secs());
            let most = least + least / 2;
            let wait =
                format!(" ({code}, asks for {asked} s; asked again after {least} to {most} s)");
            message.push_str(&wait);
        }
        RequestError::Status {
            code: code.as_u16(),
            facts: StatusFacts {
                names_object: !details.name.is_empty(),
                cause: causes.find_map(StatusCause::known),
            },
            reason: self.reason,
            message,
            retry_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use parking_lot::Mutex;
    use serde::de::IgnoredAny;
    use tower::service_fn;

    use super::*;

    fn status_error(code: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> RequestError {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        status.error(code, retry_after)
    }

    /// A client whose requests all get this response, and their method, path and media type.
    fn answering(body: &'static [u8]) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&sent);
        let service = service_fn(move |request: Request<Body>| {
            let media_type = request.headers().get(header::CONTENT_TYPE);
            let media_type = media_type.map_or("-", |value| value.to_str().unwrap());
            let line = format!("{} {} {media_type}", request.method(), request.uri());
            log.lock().push(line);
            async move { Ok::<_, Infallible>(http::Response::new(Body::from(body.to_vec()))) }
        });
        (kube::Client::new(service, "default"), sent)
    }

    #[tokio::test]
    async fn the_method_decides_the_media_type() {
        let (client, sent) = answering(b"{}");
        for method in [Method::POST, Method::PATCH, Method::DELETE] {
            let body = Some(&json!({"a": 1}));
            let _: IgnoredAny = request(&client, method, "/x", body).await.unwrap();
        }
        let body = None::<&()>;
        let _: IgnoredAny = request(&client, Method::GET, "/x", body).await.unwrap();
        assert_eq!(
            *sent.lock(),
            [
                "POST /x application/json",
                "PATCH /x application/merge-patch+json",
                "DELETE /x application/json",
                "GET /x -",
            ]
        );
    }

    #[tokio::test]
    async fn an_endless_response_is_cut_off() {
        static ENDLESS: [u8; OBJECT_BYTES + 1] = [b' '; OBJECT_BYTES + 1];
        let (client, _) = answering(&ENDLESS);
        let body = None::<&()>;
        let error = request::<IgnoredAny>(&client, Method::POST, "/x", body).await;
        assert!(matches!(error, Err(RequestError::TooLong { .. })));
        let error = request_secret(&client, Method::POST, "/x", body).await;
        assert!(matches!(error, Err(RequestError::TooLong { .. })));
    }

    #[tokio::test]
    async fn a_secret_response_is_its_bytes() {
        let (client, _) = answering(b"hunter2");
        let secret = request_secret(&client, Method::GET, "/x", None::<&()>).await;
        assert_eq!(&**secret.as_ref().unwrap(), b"hunter2");
        assert!(!format!("{secret:?}").contains("hunter2"));
        let error = request::<IgnoredAny>(&client, Method::GET, "/x", None::<&()>).await;
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn a_status_has_code_reason_and_retry_after() {
        let body = br#"{"kind":"Status","code":504,"reason":"Timeout","message":"Too large resource version: 9, current: 5",
            "details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        let error = status_error(StatusCode::GATEWAY_TIMEOUT, None, body);
        assert!(error.is_version_too_large());
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
        assert_eq!(
            error.to_string(),
            "Too large resource version: 9, current: 5"
        );
        let body = br#"{"code":403,"details":{"causes":[{},{"reason":"NamespaceTerminating"}]}}"#;
        assert!(status_error(StatusCode::FORBIDDEN, None, body).is_namespace_terminating());
    }

    #[test]
    fn a_failure_without_a_status_has_the_code() {
        assert!(status_error(StatusCode::NOT_FOUND, None, b"404 page not found").is_not_served());
        let of_an_object = br#"{"kind":"Status","code":404,"details":{"name":"a","kind":"pods"}}"#;
        assert!(!status_error(StatusCode::NOT_FOUND, None, of_an_object).is_not_served());
        let error = status_error(
            StatusCode::BAD_GATEWAY,
            Some(Duration::from_secs(3)),
            b"<html>",
        );
        assert_eq!(error.to_string(), "the API server answered 502 Bad Gateway");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn an_absurd_retry_after_is_cut_to_minutes() {
        let body = br#"{"code":429,"details":{"retryAfterSeconds":18446744073709551615}}"#;
        for header in [None, Some(Duration::from_hours(1)), Some(Duration::MAX)] {
            let error = status_error(StatusCode::TOO_MANY_REQUESTS, header, body);
            assert_eq!(error.retry_after(), Some(RETRY_AFTER_MAX));
            assert!(RETRY_AFTER_MAX < Duration::from_mins(10));
        }
    }

    #[test]
    fn wait_that_the_api_server_asks_for_is_said() {
        let message = |seconds| {
            let status = Status {
                message: "slow down".to_owned(),
                ..Status::default()
            };
            let asked = Some(Duration::from_secs(seconds));
            let error = status.error(StatusCode::TOO_MANY_REQUESTS, asked);
            error.to_string()
        };
        assert_eq!(message(1), "slow down");
        assert_eq!(
            message(3600),
            "slow down (429 Too Many Requests, asks for 3600 s; asked again after 300 to 450 s)"
        );
    }
}
