//! The requests to the API server: get of one name, list and watch of a [`Target`], and what this identity may do.
//!
//! Built by hand over [`kube::Client::send`], because the typed methods of `kube` log the body of an answer that they
//! cannot decode, and that body may be a Secret.
//!
//! Invariants:
//! 1. Only the target decides what a list or watch may request.
//! 2. An answer is held in a [`Buffer`]: bounded, and wiped when it held a Secret. Of a list, one item at a time is
//!    held.
//! 3. Dropping the future or the stream ends the request.

mod buffer;
pub mod fuzzing;
mod list;
mod stream;

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::BodyExt;
use kube::client::Body;
use larder_objects::ResourceVersion;
use larder_transport::{
    OwnRateLimit,
    path::{PathError, Query, Resource, field_selector},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use smol_str::SmolStr;
use tokio::time::timeout;

pub(crate) use self::stream::{EventStream, WatchEvent};
use self::{
    buffer::Buffer,
    list::{ListMeta, Splitter},
};
use crate::{error::RequestError, target::Target};

/// Longest object, event or error that is read. The API server stores objects of up to about 1.5 MiB in etcd; a
/// Secret's base64 in JSON and its managed fields stay below twice that.
const ANSWER_LIMIT: usize = 3 << 20;

/// Longest wait for the answer to a get, for the head of another answer, and for the next bytes of a list (API server's
/// own limit: 60 s).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Most pages of a list, so that a server that never ends one is noticed: five million objects.
const MAX_PAGES: usize = 10_000;

/// Objects per page (client-go 1.36, `tools/pager`: default page size 500).
const PAGE_LIMIT: &str = "500";

/// Longest `Retry-After` that is taken seriously.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

const REVIEWS: Resource = Resource::new("authorization.k8s.io", "v1", "selfsubjectaccessreviews");

/// Client of the requests. Cloning is cheap.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
}

/// Makes one request for an object that is not a Secret, with `body` as JSON; the answer is read as `T`. `path` is
/// percent-encoded, as [`larder_transport::path`] builds it.
///
/// For objects that larder does not watch. Neither the answer nor the body is logged, whatever goes wrong.
///
/// # Errors
///
/// The API server rejected the request or did not answer, or its answer is not a `T`.
pub async fn request<T: DeserializeOwned>(
    client: &kube::Client,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, RequestError> {
    let uri = path.parse().map_err(|_| PathError::InvalidName)?;
    let body = body.map(|object| (JSON, json(object)));
    let api = Api::new(client.clone());
    api.request(new_request(method, uri, body)).await
}

/// Changes one object that is not a Secret by the merge patch `patch`; the answer is read as `T`.
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
    let mut request = new_request(Method::PATCH, uri, Some((MERGE_PATCH, json(patch))));
    request.extensions_mut().insert(OwnRateLimit);
    Api::new(client.clone()).request(request).await
}

/// The result of a list.
#[derive(Debug)]
pub(crate) struct Listed<T: Target> {
    /// Every object that could be decoded.
    pub(crate) state: T::State,
    /// Version of the whole list, from which to watch on.
    pub(crate) version: ResourceVersion,
    /// An item could not be attributed to an object.
    pub(crate) incomplete: Option<RequestError>,
}

/// The parameters of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    /// Request the current state first ("streaming list"), up to the bookmark at its end.
    pub(crate) initial_events: bool,
    /// The start version; `None` is the most recent state, read consistently.
    pub(crate) version: Option<ResourceVersion>,
    /// How long the API server keeps the watch open.
    pub(crate) timeout: Duration,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Requests through `client`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Reads a single object. Without `version` the answer is the most recent state; with `0` whatever a cache holds.
    ///
    /// # Errors
    ///
    /// The request failed, or its answer is not that object.
    pub async fn get<T: Target>(
        &self,
        target: &T,
        version: Option<&str>,
    ) -> Result<T::Item, RequestError> {
        let mut query = Query::new();
        if let Some(version) = version {
            query.add("resourceVersion", version);
        }
        let path = target.path()?.object(target.name().unwrap_or_default())?;
        let uri = path.uri(&query)?;
        within(async {
            let body = self.send(uri, false).await?;
            let body = read_answer(body, T::SECRET).await?;
            let item = target.read(&body)?;
            item.ok_or(RequestError::Unexpected("another object"))
        })
        .await
    }

    /// Lists the target, following pages. Without `version` the answer is the most recent state, else not older than
    /// it.
    pub(crate) async fn list<T: Target>(
        &self,
        target: &T,
        version: Option<&ResourceVersion>,
    ) -> Result<Listed<T>, RequestError> {
        let mut page = String::new();
        let (mut state, mut incomplete) = (T::State::default(), None);
        let mut found = false;
        let mut paged = version.is_none();
        for _ in 0..MAX_PAGES {
            let mut query = query_of(target);
            // With a version, a limit would lead past the API server's cache.
            if paged {
                query.add("limit", PAGE_LIMIT);
            }
            if !page.is_empty() {
                query.add("continue", &page);
            } else if let Some(version) = version {
                query.add("resourceVersion", version.as_str());
            }
            let take = |item| match item {
                Ok(item) => {
                    found = true;
                    T::add(&mut state, item);
                }
                Err(error) => incomplete = Some(error),
            };
            match self.list_page(target, &query, take).await {
                Ok(meta) if meta.r#continue.is_empty() || (found && target.name().is_some()) => {
                    return Ok(Listed {
                        state,
                        version: meta.resource_version,
                        incomplete,
                    });
                }
                // Tokens of an API server advance; a repeated one would be followed forever.
                Ok(meta) if meta.r#continue == page => break,
                Ok(meta) => page = meta.r#continue,
                // The rest of the pages is gone: once more, in one piece.
                Err(error) if error.is_expired() && !page.is_empty() => {
                    page.clear();
                    (state, incomplete) = Default::default();
                    paged = false;
                }
                Err(error) => return Err(error),
            }
        }
        Err(RequestError::Unexpected("a list without an end"))
    }

    async fn list_page<T: Target>(
        &self,
        target: &T,
        query: &Query,
        mut take: impl FnMut(Result<T::Item, RequestError>),
    ) -> Result<ListMeta, RequestError> {
        let uri = target.path()?.uri(query)?;
        let mut body = within(self.send(uri, false)).await?;
        let mut splitter = Splitter::new(T::SECRET);
        while let Some(data) = within(data(&mut body)).await? {
            splitter.push(&data, |item| {
                if let Some(item) = target.read(item).transpose() {
                    take(item);
                }
            })?;
        }
        splitter.finish()
    }

    /// Opens a watch on the target.
    pub(crate) async fn watch<T: Target>(
        &self,
        target: T,
        watch: &Watch,
    ) -> Result<EventStream<T>, RequestError> {
        let uri = target.path()?.uri(&watch.query(&target))?;
        let body = within(self.send(uri, true)).await?;
        Ok(EventStream::new(body, target))
    }

    /// Whether this identity may do `verb` to all `resource` of `namespace`: a self subject access review.
    pub(crate) async fn is_allowed(
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
        let uri = REVIEWS.collection().uri(&Query::new())?;
        let request = new_request(Method::POST, uri, Some((JSON, json(&review))));
        let review: Review = self.request(request).await?;
        Ok(review.status.allowed)
    }

    /// Makes one request for an object that is not a Secret; the answer is read as `T`.
    async fn request<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
    ) -> Result<T, RequestError> {
        within(async {
            let body = self.exchange(request).await?;
            let answer = read_answer(body, false).await?;
            serde_json::from_slice(&answer)
                .map_err(|_| RequestError::Unexpected("no usable object"))
        })
        .await
    }

    /// Sends a GET; an answer other than 2xx becomes an error.
    async fn send(&self, uri: Uri, stream: bool) -> Result<Body, RequestError> {
        let mut request = new_request(Method::GET, uri, None);
        if stream {
            // Since Kubernetes 1.37 a watch may be compressed event by event, which delays and complicates everything.
            let identity = HeaderValue::from_static("identity");
            request
                .headers_mut()
                .insert(header::ACCEPT_ENCODING, identity);
        }
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
        // A proxy in place of the API server may repeat anything: wiped like a Secret.
        let body = read_answer(body, true).await?;
        Err(status_error(head.status, retry_after, &body))
    }
}

/// A request with a body, which has its media type.
fn new_request(method: Method, uri: Uri, body: Option<(&'static str, Vec<u8>)>) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static(JSON));
    if let Some((media_type, body)) = body {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        *request.body_mut() = Body::from(body);
    }
    request
}

fn json(object: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(object).expect("objects of the API have a JSON form")
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

/// The `Status` of a failed request, as far as it is used.
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
fn status_error(code: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> RequestError {
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
        retry_after: retry_after
            .or(retry_after_details)
            .map(|asked| asked.min(RETRY_AFTER_MAX)),
        names_object: !details.name.is_empty(),
    }
}

impl Watch {
    fn query(&self, target: &impl Target) -> Query {
        let mut query = query_of(target)
            .with("watch", "true")
            .with("allowWatchBookmarks", "true");
        if self.initial_events {
            query.add("sendInitialEvents", "true");
            query.add("resourceVersionMatch", "NotOlderThan");
        }
        if let Some(version) = &self.version {
            query.add("resourceVersion", version.as_str());
        }
        query.with("timeoutSeconds", &self.timeout.as_secs().to_string())
    }
}

fn query_of(target: &impl Target) -> Query {
    let selector = match target.name() {
        Some(name) => Some(field_selector("metadata.name", name)),
        None => target.field_selector(),
    };
    let mut query = Query::new();
    if let Some(selector) = selector {
        query.add("fieldSelector", &selector);
    }
    query
}

#[cfg(test)]
mod tests {
    use larder_objects::{ConfigMap, ObjectKey};

    use super::*;
    use crate::target::ByName;

    #[test]
    fn a_hostile_name_is_one_term_of_the_selector() {
        let target = ByName::<ConfigMap>::new(ObjectKey::new("n", "a,b=c&d"));
        let query = query_of(&target);
        assert_eq!(
            query.to_string(),
            "?fieldSelector=metadata.name%3Da%5C%2Cb%5C%3Dc%26d"
        );
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

    #[tokio::test]
    async fn a_list_that_repeats_its_page_is_an_error() {
        let page = r#"{"metadata":{"resourceVersion":"5","continue":"again"},"items":[]}"#;
        let answer = tower::service_fn(move |_: Request<Body>| async move {
            Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(
                page.as_bytes().to_vec(),
            )))
        });
        let api = Api::new(kube::Client::new(answer, "default"));
        let target = ByName::<ConfigMap>::new(ObjectKey::new("n", "a"));
        let error = api.list(&target, None).await.unwrap_err();
        assert!(matches!(error, RequestError::Unexpected(_)), "{error}");
    }

    #[test]
    fn an_absurd_retry_after_is_cut_to_an_hour() {
        let body = br#"{"code":429,"details":{"retryAfterSeconds":18446744073709551615}}"#;
        for header in [None, Some(Duration::MAX)] {
            let error = status_error(StatusCode::TOO_MANY_REQUESTS, header, body);
            assert_eq!(error.retry_after(), Some(RETRY_AFTER_MAX));
        }
    }
}
