//! The events of one watch: lines of JSON, decoded one by one.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::StatusCode;
use http_body::Body as _;
use kube::client::Body;
use larder_objects::ResourceVersion;
use larder_transport::Link;
use memchr::memchr;
use serde::Deserialize;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use crate::{
    bounds::{ListMeter, OBJECT_BYTES},
    buffer::Buffer,
    error::RequestError,
    request::{Opened, Status},
    target::{Head, Target},
};

/// One event of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent<T: Target> {
    /// `ADDED` or `MODIFIED`.
    Changed(T::Item),
    /// `DELETED`, at this version.
    Deleted(T::Tombstone, ResourceVersion),
    /// `BOOKMARK`: nothing happened up to this version.
    Bookmark {
        version: ResourceVersion,
        /// The bookmark ends the initial events of a streaming list.
        initial_events_end: bool,
    },
    /// `ERROR`: the API server ends the watch for this reason.
    Error(RequestError),
    /// An object without a readable name.
    UnreadableItem(RequestError),
    /// A line that is not an event.
    UnreadableFrame(RequestError),
}

/// An open watch. Its memory between two events is the connection's and a few words.
pub(crate) struct EventStream<T> {
    body: Body,
    /// Its connection, if that is known.
    link: Option<Link>,
    target: T,
    buffer: Buffer,
    /// Bytes of `buffer` known to hold no line end.
    scanned: usize,
    /// Until the end of the initial events of a streaming list.
    initial: Option<Box<ListMeter>>,
}

impl<T: Target> EventStream<T> {
    /// `initial` measures the initial events, if the stream begins with a complete state.
    pub(super) fn new(opened: Opened, target: T, initial: Option<ListMeter>) -> Self {
        Self {
            body: opened.body,
            link: opened.link,
            target,
            buffer: Buffer::new(T::SECRET, OBJECT_BYTES),
            scanned: 0,
            initial: initial.map(Box::new),
        }
    }

    /// The connection, if it is known.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// The next event; `None` when the stream ended between two events.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<WatchEvent<T>, RequestError>>> {
        loop {
            while let Some(end) = self.line_end() {
                let event = decode(&self.buffer[..end], &self.target);
                self.buffer.consume(end + 1);
                self.scanned = 0;
                self.measure(end, event.as_ref())?;
                if event.is_some() {
                    return Poll::Ready(event.map(Ok));
                }
            }
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
                return Poll::Ready(None);
            };
            let frame = frame.map_err(|error| RequestError::Transport(Box::new(error)))?;
            if let Some(data) = frame.data_ref() {
                self.buffer.push(data)?;
            }
        }
    }

    /// Counts a line of the initial events.
    fn measure(&mut self, bytes: usize, event: Option<&WatchEvent<T>>) -> Result<(), RequestError> {
        let Some(initial) = &mut self.initial else {
            return Ok(());
        };
        if let Some(WatchEvent::Bookmark {
            initial_events_end: true,
            ..
        }) = event
        {
            self.initial = None;
            return Ok(());
        }
        initial.received(bytes)?;
        initial.item(bytes, matches!(event, Some(WatchEvent::Changed(_))))
    }

    fn line_end(&mut self) -> Option<usize> {
        let found = memchr(b'\n', &self.buffer[self.scanned..]);
        if found.is_none() {
            self.scanned = self.buffer.len();
        }
        Some(self.scanned + found?)
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    r#type: SmolStr,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BookmarkMeta {
    resource_version: ResourceVersion,
    annotations: Option<BookmarkAnnotations>,
}

#[derive(Default, Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end", default)]
    initial_events_end: SmolStr,
}

/// The event in `line`; `None` for a blank line, an unknown type, or an object that the target does not cover.
fn decode<T: Target>(line: &[u8], target: &T) -> Option<WatchEvent<T>> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let unreadable = |text| Some(WatchEvent::UnreadableFrame(RequestError::Unexpected(text)));
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(line) else {
        return unreadable("no watch event");
    };
    let object = envelope.object.get();
    match envelope.r#type.as_str() {
        "ADDED" | "MODIFIED" => match target.read(object.as_bytes()) {
            Ok(item) => item.map(WatchEvent::Changed),
            Err(error) => Some(WatchEvent::UnreadableItem(error)),
        },
        "DELETED" => {
            let head = Head::of(object.as_bytes());
            let version = head.metadata.resource_version.clone();
            let gone = target.gone(head)?;
            Some(WatchEvent::Deleted(gone, version))
        }
        "BOOKMARK" => match serde_json::from_str(object) {
            Ok(Bookmark { metadata }) => Some(WatchEvent::Bookmark {
                version: metadata.resource_version,
                initial_events_end: metadata
                    .annotations
                    .is_some_and(|annotations| annotations.initial_events_end == "true"),
            }),
            Err(_) => unreadable("no bookmark"),
        },
        "ERROR" => {
            let status: Status = serde_json::from_str(object).unwrap_or_default();
            let code =
                StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Some(WatchEvent::Error(status.error(code, None)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn};

    use bytes::Bytes;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use kube::client::Body;
    use larder_objects::{ObjectKey, Secret};
    use tower::service_fn;

    use super::*;
    use crate::target::ByName;

    /// A watch of Secret `a` whose body arrives in `chunks`.
    async fn watch(chunks: &'static [&'static str]) -> EventStream<ByName<Secret>> {
        let service = service_fn(move |_: http::Request<Body>| async move {
            let frames = chunks.iter().map(|chunk| {
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(chunk.as_bytes())))
            });
            Ok::<_, Infallible>(http::Response::new(StreamBody::new(stream::iter(frames))))
        });
        let client = kube::Client::new(service, "default");
        let response = client
            .send(http::Request::new(Body::empty()))
            .await
            .unwrap();
        let target = ByName::new(ObjectKey::new("n", "a"));
        let opened = Opened {
            body: response.into_body(),
            link: None,
        };
        EventStream::new(opened, target, None)
    }

    async fn next(
        watch: &mut EventStream<ByName<Secret>>,
    ) -> Option<Result<WatchEvent<ByName<Secret>>, RequestError>> {
        poll_fn(|context| watch.poll_next(context)).await
    }

    #[tokio::test]
    async fn events_come_line_by_line_whatever_the_chunks() {
        let mut watch = watch(&[
            r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"5"},"da"#,
            "ta\":{\"k\":\"dg==\"}}}\n\n{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\",",
            "\"resourceVersion\":\"6\"}}}\n",
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"other\"}}}\n",
            "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\",",
            "\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n",
            "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}}\n{\"ty",
        ])
        .await;
        assert!(
            matches!(next(&mut watch).await, Some(Ok(WatchEvent::Changed(secret))) if &*secret.data["k"] == b"v")
        );
        assert!(
            matches!(next(&mut watch).await, Some(Ok(WatchEvent::Deleted((), version))) if version.as_str() == "6")
        );
        assert!(matches!(
            next(&mut watch).await,
            Some(Ok(WatchEvent::Bookmark {
                initial_events_end: true,
                ..
            }))
        ));
        assert!(
            matches!(next(&mut watch).await, Some(Ok(WatchEvent::Error(error))) if error.is_expired())
        );
        // The truncated line at the end is no event: the stream just ended.
        assert!(next(&mut watch).await.is_none());
    }

    #[tokio::test]
    async fn unreadable_lines_are_reported_without_content_and_skipped() {
        let mut watch = watch(&[
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":\"hunter2!\"}}}\n",
            "hunter2\n\u{0}\n{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":\"hunter2\"}}\n",
            "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"6\"}}}\n",
        ])
        .await;
        let mut unreadable = Vec::new();
        loop {
            match next(&mut watch).await.unwrap().unwrap() {
                WatchEvent::UnreadableItem(error) => unreadable.push(("item", error)),
                WatchEvent::UnreadableFrame(error) => unreadable.push(("frame", error)),
                event => {
                    assert!(matches!(event, WatchEvent::Deleted((), _)), "{event:?}");
                    break;
                }
            }
        }
        let kinds: Vec<_> = unreadable.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, ["item", "frame", "frame", "frame"]);
        assert!(!format!("{unreadable:?}").contains("hunter2"));
    }
}
