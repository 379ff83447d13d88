//! The embedded API server behind a wire that records requests and can be cut.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use larder_apiserver::{ApiKind, ApiServer, AuditLog, AuditRecord, Options};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tower::ServiceExt;

type WireAnswer = Response<UnsyncBoxBody<Bytes, larder_apiserver::Cut>>;

/// An API server and its wire.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    /// What reached the server.
    pub(crate) audit: AuditLog,
    wire: Arc<Wire>,
}

struct Wire {
    /// Who answers at the other end.
    server: Mutex<ApiServer>,
    down: AtomicBool,
    /// Changes whenever open answers are cut off.
    cuts: watch::Sender<u64>,
    log: Mutex<Vec<String>>,
    /// The only names that may be asked for, if restricted.
    allowed: Mutex<Option<Vec<String>>>,
}

impl Wire {
    /// Decides as the node authorizer does: one name, which a pod of the node refers to.
    fn is_allowed(&self, target: &str) -> bool {
        let allowed = self.allowed.lock();
        let Some(allowed) = &*allowed else {
            return true;
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let selected = query
            .split('&')
            .find_map(|part| part.strip_prefix("fieldSelector=metadata.name%3D"));
        let name = selected.or_else(|| path.split_once("/configmaps/").map(|(_, name)| name));
        name.is_some_and(|name| allowed.iter().any(|allowed| allowed == name))
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let audit = AuditLog::in_memory();
        let server = ApiServer::new(Options::default().first_version(100).audit(audit.clone()));
        let wire = Arc::new(Wire {
            server: Mutex::new(server.clone()),
            down: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            log: Mutex::default(),
            allowed: Mutex::default(),
        });
        let cluster = Self {
            server,
            audit,
            wire,
        };
        cluster.make_namespace();
        cluster
    }

    /// Another server, which holds nothing and begins at the first version again, is in the place of this one from now
    /// on.
    pub(crate) fn replace(&mut self) {
        self.server = self.server.emptied().unwrap();
        *self.wire.server.lock() = self.server.clone();
        self.make_namespace();
    }

    fn make_namespace(&self) {
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}));
    }

    pub(crate) fn client(&self) -> kube::Client {
        let wire = Arc::clone(&self.wire);
        let service = tower::service_fn(move |request: Request<Body>| {
            wire.log.lock().push(request.uri().to_string());
            let (wire, service) = (Arc::clone(&wire), wire.server.lock().service());
            async move {
                if wire.down.load(Ordering::Relaxed) {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                let mut cuts = wire.cuts.subscribe();
                if !wire.is_allowed(&request.uri().to_string()) {
                    return Ok(refusal());
                }
                let asked = request.uri().to_string();
                let watches_on =
                    asked.contains("watch=true") && !asked.contains("sendInitialEvents");
                let answer = service
                    .oneshot(request)
                    .await
                    .map_err(std::io::Error::other)?;
                let cut = async move {
                    // The sender lives as long as the wire does.
                    cuts.changed().await.unwrap_or_default();
                };
                // The embedded server rejects a watch from a version that it has not come to. The real one is silent
                // until then.
                if answer.status() == StatusCode::GATEWAY_TIMEOUT && watches_on {
                    let silence = stream::pending().take_until(Box::pin(cut));
                    return Ok(Response::new(StreamBody::new(silence).boxed_unsync()));
                }
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

    /// Lets requests for these names through and denies all others with 403.
    pub(crate) fn authorize(&self, names: &[&str]) {
        *self.wire.allowed.lock() = Some(names.iter().map(ToString::to_string).collect());
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
        if self.server.get(ApiKind::ConfigMap, "n", name).is_some() {
            self.server.delete(ApiKind::ConfigMap, "n", name).unwrap();
        }
    }
}

/// A request, but not its time, which the wall clock decides.
pub(crate) fn request_trace(record: &AuditRecord) -> String {
    let AuditRecord {
        verb,
        path,
        query,
        status,
        ..
    } = record;
    format!("{verb} {path}?{query} {status}")
}

/// Number of rounds of a randomized test: that of the environment's `variable`, else `default`. Every run draws other
/// seeds, and the nightly workflow sets larger numbers.
pub(crate) fn rounds(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn refusal() -> WireAnswer {
    let status = json!({
        "kind": "Status", "code": 403, "reason": "Forbidden",
        "message": "no relationship found between node 'n0' and this object",
    });
    let body = Full::new(Bytes::from(status.to_string()));
    let body = body.map_err(never).boxed_unsync();
    Response::builder().status(403).body(body).unwrap()
}

fn never<T>(error: Infallible) -> T {
    match error {}
}
