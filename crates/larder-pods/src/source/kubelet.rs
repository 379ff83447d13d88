//! The pods of a node as its kubelet has them: the kubelet's Pods API.
//!
//! Kubernetes 1.37 (KEP-4188, beta): gRPC on the socket `pods-api/pods-api.sock` below the kubelet's root directory,
//! service `v1alpha1.Pods`. `WatchPods` sends each pod as `ADDED`, then `INITIAL_SYNC_COMPLETE`, then every change. Until
//! the kubelet knows its pods, and if the API is off, the call fails.
//!
//! gRPC is a request of HTTP/2 whose body is messages with a length. That is made here by hand over `h2`, which the
//! client of the API server uses as well: one call without parameters does not justify a framework, a code generator,
//! and a second stack of HTTP.
//!
//! Invariants:
//! 1. The peer of the socket runs as root or as this user; others are not listened to.
//! 2. A message, the number of pods, and the time until all are known are bounded.
//! 3. What is not understood is an error, and nothing of it is quoted: a pod may hold credentials in its variables. The
//!    caller then follows the pods at the API server.
//! 4. Only pods of the API server are passed on: static pods belong to the kubelet, and refer to no objects.
//! 5. No task is spawned: reading drives the connection.

mod schema;

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{RecvStream, client};
use http::{HeaderMap, Request, StatusCode, header};
use k8s_openapi::api::core::v1::Pod;
use larder_files::ownership::user;
use larder_objects::{
    ApiJson as _, ObjectMeta,
    protobuf::{WireValue, fields},
};
use larder_watch::collection::{CollectionEvent, Found};
use tokio::{net::UnixStream, time::timeout};

use self::schema::SCHEMA;
use crate::{identity::is_static_pod, stored::StoredPod};

/// The socket, below the kubelet's root directory.
pub(super) const SOCKET: &str = "pods-api/pods-api.sock";

const WATCH: &str = "http://kubelet/v1alpha1.Pods/WatchPods";
/// Largest message: gRPC's own default. A pod has at most 1.5 MiB in etcd.
const MESSAGE_LIMIT: usize = 4 << 20;
/// Length of what precedes a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Most pods. A kubelet runs 110 by default.
const MAX_PODS: usize = 10_000;
/// Longest wait for the complete set of pods.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that the kubelet may send ahead.
const WINDOW: u32 = 1 << 20;
/// Longest text of the kubelet that an error repeats.
const MAX_TEXT: usize = 200;

/// Why the pods of the kubelet are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PodsApiError {
    /// No process listens on the socket.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A process of another user listens on it.
    #[error("user {uid} listens on {}, expected root or the user of this process", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// That user.
        uid: u32,
    },
    /// The connection failed.
    #[error("connection to the kubelet failed")]
    Connection(#[source] h2::Error),
    /// The kubelet refused the call, or ended it.
    #[error("the kubelet answered with status {code}: {message:?}")]
    Status {
        /// Code of gRPC; 9 while the kubelet starts.
        code: u32,
        /// What it says.
        message: String,
    },
    /// It sent something else.
    #[error("the kubelet sent {0}")]
    Unexpected(&'static str),
    /// Not all pods came in time.
    #[error("the kubelet did not send all pods within {SYNC_TIMEOUT:?}")]
    Timeout,
}

impl PodsApiError {
    /// Whether no such socket exists: the kubelet has no Pods API.
    pub fn is_not_served(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

type Connection = Pin<Box<dyn Future<Output = Result<(), h2::Error>> + Send>>;

/// An open watch.
pub(super) struct PodsApi {
    connection: Connection,
    body: RecvStream,
    buffer: BytesMut,
}

/// What a message of the watch says.
enum WatchEvent {
    Pod(Box<StoredPod>),
    Gone(ObjectMeta),
    Synced,
    /// About a static pod, or of an unknown type.
    Other,
}

impl PodsApi {
    /// Begins a watch, and waits for all pods.
    ///
    /// # Errors
    ///
    /// The API is not served, or not understood.
    pub(super) async fn open(
        socket: &Path,
    ) -> Result<(Self, CollectionEvent<StoredPod>), PodsApiError> {
        let opened = timeout(SYNC_TIMEOUT, async {
            let mut api = Self::connect(socket).await?;
            let pods = api.initial().await?;
            Ok((api, CollectionEvent::All(pods)))
        });
        opened.await.unwrap_or(Err(PodsApiError::Timeout))
    }

    async fn connect(socket: &Path) -> Result<Self, PodsApiError> {
        let path = || socket.to_owned();
        let failed = |source| PodsApiError::Connect {
            path: path(),
            source,
        };
        let stream = UnixStream::connect(socket).await.map_err(failed)?;
        let uid = stream.peer_cred().map_err(failed)?.uid();
        if !may_answer(uid, user()) {
            return Err(PodsApiError::Stranger { path: path(), uid });
        }
        let mut builder = client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(16 << 10);
        let (mut requests, connection) = builder
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(PodsApiError::Connection)?;
        let mut connection: Connection = Box::pin(connection);
        let request = Request::post(WATCH)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(
                header::USER_AGENT,
                concat!("larder/", env!("CARGO_PKG_VERSION")),
            )
            .body(())
            .expect("the constants are a URL and values of headers");
        let (response, mut send) = requests
            .send_request(request, false)
            .map_err(PodsApiError::Connection)?;
        // The parameters: a message without fields.
        send.send_data(Bytes::from_static(&[0; PREFIX]), true)
            .map_err(PodsApiError::Connection)?;
        let (head, body) = driven(&mut connection, response).await?.into_parts();
        if head.status != StatusCode::OK {
            return Err(PodsApiError::Unexpected("a status of HTTP other than 200"));
        }
        if head.headers.contains_key("grpc-status") {
            return Err(status(&head.headers));
        }
        Ok(Self {
            connection,
            body,
            buffer: BytesMut::new(),
        })
    }

    async fn initial(&mut self) -> Result<Vec<Found<StoredPod>>, PodsApiError> {
        let mut pods = Vec::new();
        loop {
            match self.event().await? {
                WatchEvent::Pod(pod) => pods.push(found(*pod)),
                WatchEvent::Synced => return Ok(pods),
                // Not before the end of the initial pods; they are replaced by what comes later.
                WatchEvent::Gone(_) | WatchEvent::Other => {}
            }
            if pods.len() > MAX_PODS {
                return Err(PodsApiError::Unexpected("too many pods"));
            }
        }
    }

    /// The next change.
    ///
    /// # Errors
    ///
    /// The watch has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<CollectionEvent<StoredPod>, PodsApiError> {
        loop {
            match self.event().await? {
                WatchEvent::Pod(pod) => return Ok(CollectionEvent::One(found(*pod))),
                WatchEvent::Gone(metadata) => return Ok(CollectionEvent::Gone(metadata)),
                WatchEvent::Synced | WatchEvent::Other => {}
            }
        }
    }

    async fn event(&mut self) -> Result<WatchEvent, PodsApiError> {
        loop {
            if let Some(message) = take_message(&mut self.buffer)? {
                return parse(&message).ok_or(PodsApiError::Unexpected("a malformed pod"));
            }
            let body = &mut self.body;
            let next = async { body.data().await.transpose() };
            let Some(data) = driven(&mut self.connection, next).await? else {
                let trailers = driven(&mut self.connection, self.body.trailers()).await?;
                return Err(status(&trailers.unwrap_or_default()));
            };
            // The window is a bound on what waits here, besides a message that is not whole yet.
            self.body
                .flow_control()
                .release_capacity(data.len())
                .map_err(PodsApiError::Connection)?;
            self.buffer.extend_from_slice(&data);
        }
    }
}

/// Whether a peer of user `uid` may be the kubelet, for a process of user `own`.
fn may_answer(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

/// Waits for `wanted` and drives the connection meanwhile.
async fn driven<T>(
    connection: &mut Connection,
    wanted: impl Future<Output = Result<T, h2::Error>>,
) -> Result<T, PodsApiError> {
    tokio::select! {
        biased;
        result = wanted => result.map_err(PodsApiError::Connection),
        ended = connection => Err(match ended {
            Err(error) => PodsApiError::Connection(error),
            Ok(()) => PodsApiError::Unexpected("an end of the connection"),
        }),
    }
}

/// The first whole message in `buffer`.
fn take_message(buffer: &mut BytesMut) -> Result<Option<Bytes>, PodsApiError> {
    let Some((&[compressed, ref length @ ..], _)) = buffer.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if compressed != 0 {
        return Err(PodsApiError::Unexpected("a compressed message"));
    }
    if length > MESSAGE_LIMIT {
        return Err(PodsApiError::Unexpected("a message of more than 4 MiB"));
    }
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Reads a `WatchPodsEvent`. `None` if it, or the pod in it, is malformed.
fn parse(message: &[u8]) -> Option<WatchEvent> {
    let (mut kind, mut pod) = (0, &[][..]);
    for field in fields(message) {
        match field? {
            (1, WireValue::Number(number)) => kind = number,
            (2, WireValue::Bytes(bytes)) => pod = bytes,
            _ => {}
        }
    }
    // UNSPECIFIED 0, ADDED 1, MODIFIED 2, DELETED 3, INITIAL_SYNC_COMPLETE 4
    if kind == 4 {
        return Some(WatchEvent::Synced);
    }
    if !(1..=3).contains(&kind) {
        return Some(WatchEvent::Other);
    }
    let pod = SCHEMA.decode("Pod", pod)?;
    let pod = serde_json::to_vec(&pod).ok()?;
    let pod = StoredPod::new(Pod::from_json(&pod).ok()?).ok()?;
    let metadata = pod.identity();
    if metadata.name.is_empty() || pod.uid().is_empty() {
        return None;
    }
    if kind == 3 {
        return Some(WatchEvent::Gone(metadata));
    }
    if is_static_pod(&pod.metadata) {
        return Some(WatchEvent::Other);
    }
    Some(WatchEvent::Pod(Box::new(pod)))
}

fn found(pod: StoredPod) -> Found<StoredPod> {
    Found {
        metadata: pod.identity(),
        object: Ok(pod),
    }
}

/// The status at the end of a call.
fn status(headers: &HeaderMap) -> PodsApiError {
    let text = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(value.chars().take(MAX_TEXT).collect::<String>())
    };
    let Some(code) = text("grpc-status").and_then(|code| code.parse().ok()) else {
        return PodsApiError::Unexpected("no status at the end");
    };
    PodsApiError::Status {
        code,
        message: text("grpc-message").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
