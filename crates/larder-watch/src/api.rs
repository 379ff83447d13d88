//! The requests of the engine: get of one name, list and watch of a [`Target`].
//!
//! Invariants:
//! 1. Only the target determines the requests of a list or watch.
//! 2. A list is held one item at a time.
//! 3. Dropping the future or the stream ends the request.
//! 4. Every answer is read up to its [bound](crate::bounds).

pub mod fuzzing;
mod list;
mod stream;

use std::time::Duration;

use larder_objects::ResourceVersion;
use larder_transport::path::{Query, field_selector};

use self::list::{ListMeta, Splitter};
pub(crate) use self::stream::{EventStream, WatchEvent};
use crate::{
    bounds::{ListBounds, ListMeter, MAX_PAGES},
    error::RequestError,
    request::{data, get, open, within},
    target::Target,
};

/// Objects per page (client-go 1.36, `tools/pager`: default page size 500).
const PAGE_LIMIT: &str = "500";

/// Client of the requests. Cloning is cheap.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct Api {
    pub(crate) client: kube::Client,
    bounds: ListBounds,
}

/// The result of a list.
#[derive(Debug)]
pub struct Listed<T: Target> {
    /// Every object that could be decoded.
    pub state: T::State,
    /// Version of the whole list, from which to watch on.
    pub version: ResourceVersion,
    /// An item could not be attributed to an object.
    pub incomplete: Option<RequestError>,
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

impl Api {
    /// Requests through `client`.
    pub fn new(client: kube::Client) -> Self {
        let bounds = ListBounds::default();
        Self { client, bounds }
    }

    /// Reads a single object. Without `version` the response is the most recent state; with `0` whatever a cache holds.
    ///
    /// # Errors
    ///
    /// The request failed, or its response is not that object.
    pub async fn get<T: Target>(
        &self,
        target: &T,
        version: Option<&str>,
    ) -> Result<T::Item, RequestError> {
        let mut query = Query::new();
        if let Some(version) = version {
            query.add("resourceVersion", version);
        }
        let uri = target
            .path()?
            .object(target.name().unwrap_or_default())?
            .uri(&query)?;
        let body = get(&self.client, uri, T::SECRET).await?;
        target
            .read(&body)?
            .ok_or(RequestError::Unexpected("another object"))
    }

    /// Lists the target, following pages. Without `version` the response is the most recent state, else not older than
    /// it. For callers that do not watch.
    ///
    /// # Errors
    ///
    /// A request failed, or its response is not a list.
    pub async fn list<T: Target>(
        &self,
        target: &T,
        version: Option<&ResourceVersion>,
    ) -> Result<Listed<T>, RequestError> {
        let mut page = String::new();
        let (mut state, mut incomplete) = (T::State::default(), None);
        let mut found = false;
        let mut paged = version.is_none();
        let mut meter = ListMeter::new(self.bounds);
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
            match self.list_page(target, &query, &mut meter, take).await {
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
        meter: &mut ListMeter,
        mut take: impl FnMut(Result<T::Item, RequestError>),
    ) -> Result<ListMeta, RequestError> {
        let uri = target.path()?.uri(query)?;
        let mut body = open(&self.client, uri).await?.body;
        let mut splitter = Splitter::new(T::SECRET);
        while let Some(data) = within(data(&mut body)).await? {
            meter.received(data.len())?;
            splitter.push(&data, |bytes| {
                let item = target.read(bytes).transpose();
                meter.item(bytes.len(), item.is_some())?;
                if let Some(item) = item {
                    take(item);
                }
                Ok(())
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
        let opened = open(&self.client, uri).await?;
        let initial = watch.initial_events.then(|| ListMeter::new(self.bounds));
        Ok(EventStream::new(opened, target, initial))
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
    if let Some(selector) = target.label_selector() {
        query.add("labelSelector", selector);
    }
    query
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use bytes::Bytes;
    use futures::{
        StreamExt as _,
        stream::{self, BoxStream},
    };
    use http::Request;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use kube::client::Body;
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

    /// Requests whose answer is `head`, and then `rest` without an end. Small bounds stand in for those of a node.
    fn endless(head: &'static str, rest: &'static str) -> Api {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let chunks = stream::once(async move { head }).chain(stream::repeat(rest));
            let frames = chunks.map(|text| Ok::<_, Infallible>(Frame::data(text.into())));
            let frames: StreamBody<BoxStream<'_, Result<Frame<Bytes>, _>>> =
                StreamBody::new(frames.boxed());
            Ok::<_, Infallible>(http::Response::new(frames))
        });
        let bounds = ListBounds {
            items: 1000,
            bytes: 100_000,
            kept_bytes: 10_000,
        };
        Api {
            bounds,
            ..Api::new(kube::Client::new(service, "default"))
        }
    }

    /// The items of a list that does not end: objects that the target covers, others, and none.
    const ENDLESS: [(&str, &str); 4] = [
        (
            r#"{"metadata":{"name":"a"},"data":{"k":"some text"}},"#,
            "longer than 10000 bytes",
        ),
        (r#"{"metadata":{"name":"b"}},"#, "more than 1000 items"),
        ("7,", "longer than 100000 bytes"),
        ("        ,", "longer than 100000 bytes"),
    ];

    fn target() -> ByName<ConfigMap> {
        ByName::new(ObjectKey::new("n", "a"))
    }

    // managers 84
    #[tokio::test]
    async fn an_endless_page_of_a_list_is_an_error() {
        for (items, expected) in ENDLESS {
            let head = r#"{"metadata":{"resourceVersion":"5"},"items":["#;
            let error = endless(head, items)
                .list(&target(), None)
                .await
                .unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    // managers 84
    #[tokio::test]
    async fn endless_pages_of_a_list_are_an_error() {
        let pages = AtomicUsize::new(0);
        let pages = Arc::new(pages);
        let service = tower::service_fn(move |_: Request<Body>| {
            let page = pages.fetch_add(1, Ordering::Relaxed);
            let item = r#"{"metadata":{"name":"b"}}"#;
            let page = format!(r#"{{"metadata":{{"continue":"{page}"}},"items":[{item},{item}]}}"#);
            async move { Ok::<_, Infallible>(http::Response::new(Body::from(page.into_bytes()))) }
        });
        let mut api = Api::new(kube::Client::new(service, "default"));
        api.bounds.items = 1000;
        let error = api.list(&target(), None).await.unwrap_err();
        assert_eq!(error.to_string(), "the list has more than 1000 items");
    }

    // managers 84
    #[tokio::test]
    async fn endless_initial_events_are_an_error_and_later_ones_are_not() {
        let watch = Watch {
            initial_events: true,
            version: None,
            timeout: Duration::from_mins(30),
        };
        let added = concat!(
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"data":{"k":"some text"}}}"#,
            "\n"
        );
        let synced = concat!(
            r#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            "\n"
        );
        for (head, rest, expected) in [
            ("", added, Some("the response is longer than 10000 bytes")),
            ("", "\n", Some("the list has more than 1000 items")),
            ("", "7\n", Some("the list has more than 1000 items")),
            ("", "x", Some("the response is longer than 3145728 bytes")),
            (
                synced,
                "x",
                Some("the response is longer than 3145728 bytes"),
            ),
            (synced, added, None),
        ] {
            let mut events = endless(head, rest).watch(target(), &watch).await.unwrap();
            let mut failure = None;
            for _ in 0..5000 {
                if let Some(Err(error)) = poll_fn(|context| events.poll_next(context)).await {
                    failure = Some(error.to_string());
                    break;
                }
            }
            assert_eq!(failure.as_deref(), expected, "{head}{rest}");
        }
    }

    // managers 84
    #[tokio::test]
    async fn an_endless_object_is_an_error() {
        let api = endless(
            r#"{"metadata":{"name":"a"},"data":{"k":""#,
            "some text of a value",
        );
        let error = api.get(&target(), None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the response is longer than 3145728 bytes"
        );
    }

    #[tokio::test]
    async fn a_list_that_repeats_its_page_is_an_error() {
        let page = r#"{"metadata":{"resourceVersion":"5","continue":"again"},"items":[]}"#;
        let service = tower::service_fn(move |_: Request<Body>| async move {
            Ok::<_, Infallible>(http::Response::new(Body::from(page.as_bytes().to_vec())))
        });
        let api = Api::new(kube::Client::new(service, "default"));
        let error = api.list(&target(), None).await.unwrap_err();
        assert!(matches!(error, RequestError::Unexpected(_)), "{error}");
    }
}
