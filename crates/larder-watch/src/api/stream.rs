//! The events of one watch: lines of JSON, decoded one by one.

use std::fmt;

use http::StatusCode;
use http_body_util::BodyExt;
use kube::client::Body;
use larder_objects::ResourceVersion;
use serde::Deserialize;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::{ANSWER_LIMIT, Buffer, Status, Target, of_status, target};
use crate::error::RequestError;

/// One event of a watch.
#[derive(Debug)]
pub enum WatchEvent<T: Target> {
    /// `ADDED` or `MODIFIED`.
    Changed(T::Item),
    /// `DELETED`, at this version.
    Deleted(T::Gone, ResourceVersion),
    /// `BOOKMARK`: nothing happened up to this version.
    Bookmark {
        version: ResourceVersion,
        /// The bookmark ends the initial events of a streaming list.
        initial_events_end: bool,
    },
    /// `ERROR`: the API server ends the watch for this reason.
    Error(RequestError),
}

/// An open watch. Its memory between two events is the connection's and a few words.
pub struct EventStream<T> {
    body: Body,
    target: T,
    buffer: Buffer,
    /// Bytes of `buffer` known to hold no line end.
    scanned: usize,
}

impl<T> fmt::Debug for EventStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventStream")
    }
}

impl<T: Target> EventStream<T> {
    pub(super) fn new(body: Body, target: T) -> Self {
        Self {
            body,
            target,
            buffer: Buffer::new(T::SECRET, ANSWER_LIMIT),
            scanned: 0,
        }
    }

    /// The next event; `None` when the stream ended between two events.
    pub async fn next(&mut self) -> Option<Result<WatchEvent<T>, RequestError>> {
        loop {
            while let Some(end) = self.line_end() {
                let event = decode(&self.buffer[..end], &self.target);
                self.buffer.consume(end + 1);
                self.scanned = 0;
                if let Some(event) = event.transpose() {
                    return Some(event);
                }
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref()
                        && let Err(error) = self.buffer.push(data)
                    {
                        return Some(Err(error));
                    }
                }
                Some(Err(error)) => return Some(Err(RequestError::Transport(Box::new(error)))),
                None => return None,
            }
        }
    }

    fn line_end(&mut self) -> Option<usize> {
        let found = self.buffer[self.scanned..]
            .iter()
            .position(|byte| *byte == b'\n');
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

/// The event in `line`; `None` if it is none of ours: a blank line, an unknown type, another object.
fn decode<T: Target>(line: &[u8], target: &T) -> Result<Option<WatchEvent<T>>, RequestError> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let envelope: Envelope<'_> =
        serde_json::from_slice(line).map_err(|_| RequestError::Unexpected("no watch event"))?;
    let object = envelope.object.get();
    match envelope.r#type.as_str() {
        "ADDED" | "MODIFIED" => {
            let item = target.read(object.as_bytes())?;
            Ok(item.map(WatchEvent::Changed))
        }
        "DELETED" => {
            let metadata = target::metadata(object.as_bytes())?;
            let version = metadata.resource_version.clone();
            let gone = target.gone(metadata);
            Ok(gone.map(|gone| WatchEvent::Deleted(gone, version)))
        }
        "BOOKMARK" => {
            let Bookmark { metadata } = serde_json::from_str(object)
                .map_err(|_| RequestError::Unexpected("no bookmark"))?;
            Ok(Some(WatchEvent::Bookmark {
                version: metadata.resource_version,
                initial_events_end: metadata
                    .annotations
                    .is_some_and(|annotations| annotations.initial_events_end == "true"),
            }))
        }
        "ERROR" => {
            let status: Status = serde_json::from_str(object).unwrap_or_default();
            let code =
                StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(Some(WatchEvent::Error(of_status(code, None, status))))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use bytes::Bytes;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use larder_objects::{ObjectKey, Secret};
    use tower::service_fn;

    use super::*;
    use crate::api::ByName;

    /// A watch of Secret `a` whose body arrives in `chunks`.
    async fn watch(chunks: &'static [&'static str]) -> EventStream<ByName<Secret>> {
        let answer = service_fn(move |_: http::Request<Body>| async move {
            let frames = chunks.iter().map(|chunk| {
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(chunk.as_bytes())))
            });
            Ok::<_, Infallible>(http::Response::new(StreamBody::new(stream::iter(frames))))
        });
        let client = kube::Client::new(answer, "default");
        let answer = client
            .send(http::Request::new(Body::empty()))
            .await
            .unwrap();
        EventStream::new(
            answer.into_body(),
            ByName::new(Arc::new(ObjectKey::new("n", "a"))),
        )
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
            matches!(watch.next().await, Some(Ok(WatchEvent::Changed(secret))) if &*secret.data["k"] == b"v")
        );
        assert!(
            matches!(watch.next().await, Some(Ok(WatchEvent::Deleted((), version))) if version.as_str() == "6")
        );
        assert!(matches!(
            watch.next().await,
            Some(Ok(WatchEvent::Bookmark {
                initial_events_end: true,
                ..
            }))
        ));
        assert!(
            matches!(watch.next().await, Some(Ok(WatchEvent::Error(error))) if error.is_expired())
        );
        // The truncated line at the end is no event: the stream just ended.
        assert!(watch.next().await.is_none());
    }

    #[tokio::test]
    async fn what_is_no_event_is_an_error_without_content() {
        let mut watch = watch(&[
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":\"hunter2!\"}}}\n",
            "hunter2\n",
        ])
        .await;
        for _ in 0..2 {
            let error = watch.next().await.unwrap().unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
