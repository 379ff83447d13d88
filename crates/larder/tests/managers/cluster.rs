//! The embedded API server behind a wire that records requests and can be cut.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use larder_apiserver::{ApiServer, Kind, Options};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tower::ServiceExt;

/// An API server and its wire.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    wire: Arc<Wire>,
}

struct Wire {
    down: AtomicBool,
    /// Changes whenever open answers are cut off.
    cuts: watch::Sender<u64>,
    log: Mutex<Vec<String>>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let server = ApiServer::new(Options {
            first_version: Some(100),
            ..Options::default()
        });
        let wire = Arc::new(Wire {
            down: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            log: Mutex::default(),
        });
        let cluster = Self { server, wire };
        cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}));
        cluster
    }

    pub(crate) fn client(&self) -> kube::Client {
        let (wire, service) = (Arc::clone(&self.wire), self.server.service());
        let service = tower::service_fn(move |request: Request<Body>| {
            wire.log.lock().push(request.uri().to_string());
            let (wire, service) = (Arc::clone(&wire), service.clone());
            async move {
                if wire.down.load(Ordering::Relaxed) {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                let mut cuts = wire.cuts.subscribe();
                let answer = service.oneshot(request).await.unwrap_or_else(never);
                let cut = async move {
                    // The sender lives as long as the wire does.
                    cuts.changed().await.unwrap_or_default();
                };
                Ok(
                    answer.map(|body| -> UnsyncBoxBody<Bytes, larder_apiserver::Cut> {
                        let frames = BodyStream::new(body).take_until(Box::pin(cut));
                        StreamBody::new(frames).boxed_unsync()
                    }),
                )
            }
        });
        kube::Client::new(service, "default")
    }

    /// Refuses connections from now on and cuts those that are open, or lets them through again.
    pub(crate) fn set_down(&self, down: bool) {
        self.wire.down.store(down, Ordering::Relaxed);
        if down {
            self.cut();
        }
    }

    /// Cuts all open watches.
    pub(crate) fn cut(&self) {
        self.wire.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.wire.log.lock())
    }

    fn apply(&self, object: &serde_json::Value) {
        self.server.apply(object).unwrap();
    }

    /// Creates ConfigMap `n/<name>` with that value, or replaces it.
    pub(crate) fn set(&self, name: &str, value: &str, immutable: bool) {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "n", "name": name},
            "data": {"k": value},
            "immutable": immutable.then_some(true),
        }));
    }

    /// Deletes ConfigMap `n/<name>`, if it exists.
    pub(crate) fn delete(&self, name: &str) {
        if self.server.get(Kind::ConfigMap, "n", name).is_some() {
            self.server.delete(Kind::ConfigMap, "n", name).unwrap();
        }
    }
}

fn never<T>(error: Infallible) -> T {
    match error {}
}
