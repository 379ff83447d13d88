//! The requests to the API server: get of one name, list and watch of a [`Target`], and what this identity may do.
//!
//! Built by hand over [`kube::Client::send`], because the typed methods of `kube` log the body of an answer that they
//! cannot decode, and that body may be a Secret.
//!
//! Invariants:
//! 1. What a list or watch may ask for is in its target alone.
//! 2. An answer is held in a [`Buffer`]: bounded, and wiped when it held a Secret. Of a list, one item at a time is held.
//! 3. Dropping the future or the stream ends the request.

mod buffer;
mod list;
mod stream;
mod target;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use larder_objects::{Kind, Object, ObjectKey, ResourceVersion};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use smol_str::SmolStr;
use tokio::time::timeout;

use self::{
    buffer::Buffer,
    list::{ListMeta, Splitter},
};
pub use self::{
    stream::{EventStream, WatchEvent},
    target::{ByName, Named, Target, metadata},
};
use crate::error::RequestError;

/// Longest object, event or error that is read. The API server stores objects of up to about 1.5 MiB in etcd; a Secret's base64 in JSON
/// and its managed fields stay below twice that.
const ANSWER_LIMIT: usize = 3 << 20;

/// Longest wait for the answer to a get, for the head of another answer, and for the next bytes of a list (API server's own
/// limit: 60 s).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Objects per page (client-go 1.36, `tools/pager`: default page size 500).
const PAGE_LIMIT: &str = "500";

/// Client of the requests. Cloning is cheap.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
}

/// Makes one request for an object that is no Secret, with `body` as JSON; the answer is read as `T`. `path` is percent-encoded.
///
/// For objects that larder does not follow. Neither the answer nor the body is logged, whatever goes wrong.
///
/// # Errors
///
/// The API server refused or did not answer, or its answer is no `T`.
pub async fn request<T: DeserializeOwned>(
    client: &kube::Client,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, RequestError> {
    Api::new(client.clone()).request(method, path, body).await
}

/// What a list found.
#[derive(Debug)]
pub struct Listed<T: Target> {
    /// Everything.
    pub state: T::State,
    /// Version of the whole list, from which to watch on.
    pub version: ResourceVersion,
}

/// Which watch to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Ask for the current state first ("streaming list"), ended by a bookmark that says so.
    pub initial_events: bool,
    /// Where to start; `None` is the most recent state, read consistently.
    pub version: Option<ResourceVersion>,
    /// How long the API server shall keep the watch open.
    pub timeout: Duration,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Reads one object. Without `version` the answer is the most recent state; with `0` whatever a cache holds.
    pub async fn get<K: Object>(
        &self,
        key: &ObjectKey,
        version: Option<&str>,
    ) -> Result<Arc<K>, RequestError> {
        let mut query = Query::default();
        query.add_some("resourceVersion", version);
        let collection = collection_path(K::KIND, &key.namespace)?;
        let path = format!("{collection}/{}", segment(&key.name)?);
        within(async {
            let body = self.send(&path, &query, false).await?;
            let body = read_answer(body, K::KIND == Kind::Secret).await?;
            let object = K::from_json(&body)?;
            if object.metadata().name != key.name {
                return Err(RequestError::Unexpected("another object"));
            }
            Ok(Arc::new(object))
        })
        .await
    }

    /// Lists the target, following pages. Without `version` the answer is the most recent state, else not older than it.
    pub async fn list<T: Target>(
        &self,
        target: &T,
        version: Option<&ResourceVersion>,
    ) -> Result<Listed<T>, RequestError> {
        let mut page = String::new();
        let mut state = T::State::default();
        let mut found = false;
        let mut paged = version.is_none();
        loop {
            let mut query = Query::of(target);
            // With a version, a limit would lead past the API server's cache.
            if paged {
                query.add("limit", PAGE_LIMIT);
            }
            if page.is_empty() {
                query.add_some("resourceVersion", version.map(ResourceVersion::as_str));
            } else {
                query.add("continue", &page);
            }
            let take = |item| {
                found = true;
                T::add(&mut state, item);
            };
            match self.list_page(target, &query, take).await {
                Ok(meta) if meta.r#continue.is_empty() || (found && target.is_one()) => {
                    let version = meta.resource_version;
                    return Ok(Listed { state, version });
                }
                Ok(meta) => page = meta.r#continue,
                // The rest of the pages is gone: once more, in one piece.
                Err(error) if error.is_expired() && !page.is_empty() => {
                    page.clear();
                    state = T::State::default();
                    paged = false;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn list_page<T: Target>(
        &self,
        target: &T,
        query: &Query,
        mut take: impl FnMut(T::Item),
    ) -> Result<ListMeta, RequestError> {
        let mut body = within(self.send(&target.path()?, query, false)).await?;
        let mut splitter = Splitter::new(T::SECRET);
        while let Some(data) = within(data(&mut body)).await? {
            splitter.push(&data, |item| {
                target.read(item)?.into_iter().for_each(&mut take);
                Ok(())
            })?;
        }
        splitter.finish()
    }

    /// Opens a watch on the target.
    pub async fn watch<T: Target>(
        &self,
        target: T,
        watch: &Watch,
    ) -> Result<EventStream<T>, RequestError> {
        let mut query = Query::of(&target);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        if watch.initial_events {
            query.add("sendInitialEvents", "true");
            query.add("resourceVersionMatch", "NotOlderThan");
        }
        let version = watch.version.as_ref().map(ResourceVersion::as_str);
        query.add_some("resourceVersion", version);
        query.add("timeoutSeconds", &watch.timeout.as_secs().to_string());
        let body = within(self.send(&target.path()?, &query, true)).await?;
        Ok(EventStream::new(body, target))
    }

    /// Whether this identity may do `verb` to all `resource` of `namespace`: a self subject access review.
    pub async fn may(
        &self,
        verb: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<bool, RequestError> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb, "group": "", "version": "v1", "resource": resource, "namespace": namespace,
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let review: Review = self.request(Method::POST, path, Some(&review)).await?;
        Ok(review.status.allowed)
    }

    /// Makes one request for an object that is no Secret, with `body` as JSON; the answer is read as `T`.
    pub async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, RequestError> {
        let body =
            body.map(|body| serde_json::to_vec(body).expect("objects of the API have a JSON form"));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.map_or_else(Body::empty, Body::from))
            .expect("names in a path are percent-encoded");
        within(async {
            let body = self.exchange(request).await?;
            let answer = read_answer(body, false).await?;
            serde_json::from_slice(&answer)
                .map_err(|_| RequestError::Unexpected("no usable object"))
        })
        .await
    }

    /// Sends a GET; an answer other than 2xx becomes an error.
    async fn send(&self, path: &str, query: &Query, stream: bool) -> Result<Body, RequestError> {
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(format!("{path}{}", query.0))
            .header(header::ACCEPT, "application/json");
        if stream {
            // Since Kubernetes 1.37 a watch may be compressed event by event, which delays and complicates everything.
            request = request.header(header::ACCEPT_ENCODING, "identity");
        }
        let request = request
            .body(Body::empty())
            .expect("path and query are percent-encoded");
        self.exchange(request).await
    }

    /// Sends a request; an answer other than 2xx becomes an error.
    async fn exchange(&self, request: Request<Body>) -> Result<Body, RequestError> {
        let answer = self
            .client
            .send(request)
            .await
            .map_err(RequestError::unanswered)?;
        let (head, body) = answer.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let retry_after = head
            .headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        // What answers in the API server's place may repeat anything: wiped like a Secret.
        let body = read_answer(body, true).await?;
        Err(refusal(head.status, retry_after, &body))
    }
}

/// Not an async function, which would hold the request twice: as it was given and as it is awaited.
fn within<T>(
    request: impl Future<Output = Result<T, RequestError>>,
) -> impl Future<Output = Result<T, RequestError>> {
    timeout(REQUEST_TIMEOUT, request)
        .map(|answer| answer.unwrap_or(Err(RequestError::Timeout(REQUEST_TIMEOUT))))
}

async fn read_answer(mut body: Body, secret: bool) -> Result<Buffer, RequestError> {
    let mut buffer = Buffer::new(secret, ANSWER_LIMIT);
    while let Some(data) = data(&mut body).await? {
        buffer.push(&data)?;
    }
    Ok(buffer)
}

/// The next bytes of a body.
async fn data(body: &mut Body) -> Result<Option<Bytes>, RequestError> {
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

/// The answer to a self subject access review.
#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    allowed: bool,
}

/// The `Status` of a failed request, as far as anybody here looks at it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
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
}

/// The error that the body of a failure describes, or what the head alone says when the body is something else.
fn refusal(code: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> RequestError {
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    of_status(code, retry_after, status)
}

fn of_status(code: StatusCode, retry_after: Option<Duration>, status: Status) -> RequestError {
    let details = status.details.unwrap_or_default();
    let retry_after_details =
        (details.retry_after_seconds > 0).then(|| Duration::from_secs(details.retry_after_seconds));
    let mut causes = details.causes.iter().flatten();
    RequestError::Status {
        code: code.as_u16(),
        version_too_large: causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
            || status.message.contains("Too large resource version"),
        reason: status.reason,
        message: if status.message.is_empty() {
            format!("the API server answered {code}")
        } else {
            status.message
        },
        retry_after: retry_after.or(retry_after_details),
        names_object: !details.name.is_empty(),
    }
}

/// The path of all objects of `kind` in `namespace`.
pub fn collection_path(kind: Kind, namespace: &str) -> Result<String, RequestError> {
    let (namespace, resource) = (segment(namespace)?, kind.resource());
    Ok(format!("/api/v1/namespaces/{namespace}/{resource}"))
}

/// `name` as one segment of a path.
///
/// # Errors
///
/// [`RequestError::NotAName`]: empty, `.` or `..`.
pub fn segment(name: &str) -> Result<String, RequestError> {
    match name {
        "" | "." | ".." => Err(RequestError::NotAName),
        _ => Ok(percent_encoded(name)),
    }
}

fn percent_encoded(text: &str) -> String {
    use fmt::Write as _;

    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a String does not fail");
        }
    }
    encoded
}

/// `value` in a field selector, where `\`, `,` and `=` have a meaning.
pub fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// A query string, percent-encoded, with its `?`.
#[derive(Default)]
struct Query(String);

impl Query {
    fn of(target: &impl Target) -> Self {
        let mut query = Self::default();
        query.add_some("fieldSelector", target.field_selector().as_deref());
        query
    }

    fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&percent_encoded(value));
    }

    fn add_some(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::ConfigMap;

    use super::*;

    #[test]
    fn a_hostile_name_stays_one_segment_and_one_term() {
        assert_eq!(segment("a/../b?x").unwrap(), "a%2F..%2Fb%3Fx");
        assert!(segment("..").is_err());
        let target = ByName::<ConfigMap>::new(Arc::new(ObjectKey::new("n", "a,b=c&d")));
        let query = Query::of(&target);
        assert_eq!(
            query.0,
            "?fieldSelector=metadata.name%3Da%5C%2Cb%5C%3Dc%26d"
        );
    }

    #[test]
    fn a_refusal_tells_code_reason_and_patience() {
        let body = br#"{"kind":"Status","code":504,"reason":"Timeout","message":"Too large resource version: 9, current: 5",
            "details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        let error = refusal(StatusCode::GATEWAY_TIMEOUT, None, body);
        assert!(error.is_version_too_large());
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
        assert_eq!(
            error.to_string(),
            "Too large resource version: 9, current: 5"
        );
    }

    #[test]
    fn a_refusal_without_a_status_tells_the_code() {
        assert!(refusal(StatusCode::NOT_FOUND, None, b"404 page not found").is_not_served());
        let of_an_object = br#"{"kind":"Status","code":404,"details":{"name":"a","kind":"pods"}}"#;
        assert!(!refusal(StatusCode::NOT_FOUND, None, of_an_object).is_not_served());
        let error = refusal(
            StatusCode::BAD_GATEWAY,
            Some(Duration::from_secs(3)),
            b"<html>",
        );
        assert_eq!(error.to_string(), "the API server answered 502 Bad Gateway");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    }
}
