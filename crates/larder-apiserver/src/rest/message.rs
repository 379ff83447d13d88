//! Bodies of requests, read within limits, and the few forms of a response.

use std::{pin::pin, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{body::Body, protobuf};
use crate::{
    ApiError, BoxError, json,
    object::Object,
    resource::ApiKind,
    unread::{Unread, held},
    write::{Deleted, Written},
};

/// Longest body that is read, in bytes; as kube-apiserver's limit for JSON.
const MAX_BODY_BYTES: usize = 3 << 20;

/// How long a body may take. Source: kube-apiserver 1.36, `--request-timeout`.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// The whole body of a request, which counts among the unfinished ones until it is dropped.
///
/// # Errors
///
/// 413: it is longer than [`MAX_BODY_BYTES`]; 400: it broke off; 504: it takes longer than [`BODY_TIMEOUT`]; 429: bodies
/// that are not finished take too much.
pub(super) async fn read_body<B>(body: B, unfinished: &Unread) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send,
{
    let read = async {
        let mut body = pin!(Limited::new(body, MAX_BODY_BYTES));
        let mut share = unfinished.share(0)?;
        // One buffer: kept as they come, many short frames would take more than their bytes.
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| not_read(&*error))?;
            if let Ok(data) = frame.into_data() {
                share.merge(unfinished.share(data.remaining())?);
                read.put(data);
            }
        }
        Ok(held(read.freeze(), share))
    };
    timeout(BODY_TIMEOUT, read)
        .await
        .unwrap_or_else(|_| Err(ApiError::timeout()))
}

fn not_read(error: &(dyn std::error::Error + 'static)) -> ApiError {
    if error.is::<LengthLimitError>() {
        ApiError::too_large(format_args!("limit is {MAX_BODY_BYTES}"))
    } else {
        ApiError::bad_request(format!("cannot read the body: {error}"))
    }
}

/// The body, which must be an object: JSON, or what little is read of protobuf.
pub(super) fn object_body(headers: &HeaderMap, body: &[u8]) -> Result<Value, ApiError> {
    const JSON: &str = "application/json";
    let body = match media_type(headers) {
        None | Some(JSON) => parse_json(body)?,
        Some(protobuf::MEDIA_TYPE) => {
            protobuf::decode(body).ok_or_else(ApiError::unsupported_media_type)?
        }
        Some(_) => return Err(ApiError::unsupported_media_type()),
    };
    if !body.is_object() {
        return Err(ApiError::bad_request("the body is not a JSON object"));
    }
    Ok(body)
}

/// The body as JSON.
pub(super) fn parse_json(body: &[u8]) -> Result<Value, ApiError> {
    json::parse(body)
        .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
}

/// `Content-Type` without its parameters.
pub(super) fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim())
}

/// What a deletion answers: the object where it stays, or where clients want to see how it ended; else plain success.
pub(super) fn deleted_json(kind: ApiKind, deleted: &Deleted) -> Bytes {
    let shown = [ApiKind::Pod, ApiKind::Service, ApiKind::ServiceAccount];
    match deleted {
        Deleted::Marked(object) => object.json(),
        Deleted::Gone(object) if shown.contains(&kind) => object.json(),
        Deleted::Gone(object) => success(object).to_string().into(),
    }
}

fn success(object: &Object) -> Value {
    let resource = object.kind.resource();
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.key.name,
            "kind": resource.plural,
            "uid": object.uid,
        },
    });
    if !resource.group.is_empty() {
        status["details"]["group"] = resource.group.into();
    }
    status
}

/// 200 with JSON.
pub(super) fn ok(json: Bytes) -> Response<Body> {
    json_response(StatusCode::OK, json.into())
}

/// Plain text.
pub(super) fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = json_response(status, Bytes::from_static(text.as_bytes()).into());
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// 201 with what was created.
pub(super) fn created(value: &Value) -> Response<Body> {
    json_response(StatusCode::CREATED, Bytes::from(value.to_string()).into())
}

/// 201 with a plain success.
pub(super) fn done() -> Response<Body> {
    created(
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    )
}

/// A response that no client may cache.
pub(super) fn json_response(status: StatusCode, body: Body) -> Response<Body> {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CACHE_CONTROL, "no-cache, private")
        .body(body)
        .expect("these are headers")
}

/// The result of a write, with its warnings.
pub(super) fn written_response(status: StatusCode, written: &Written) -> Response<Body> {
    let mut response = json_response(status, written.object.json().into());
    for warning in &written.warnings {
        // RFC 9110 leaves 299 and `-` for a warning without code and agent.
        let text = warning.replace('\\', r"\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// The `Status` of an error, and when to come back.
pub(super) fn error_response(error: &ApiError) -> Response<Body> {
    let mut response = json_response(error.code(), Bytes::from(error.to_json()).into());
    if let Some(seconds) = error.retry_after() {
        let value = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}
