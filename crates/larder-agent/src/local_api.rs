//! The agent's local API: health, readiness, metrics and status, over HTTP and over a socket in the root directory.
//!
//! | path | answers |
//! | --- | --- |
//! | `/healthz` | 200 while the agent runs |
//! | `/readyz` | 200 when all sources have reported and every pod has been looked at; 503 before |
//! | `/metrics` | Prometheus' text format |
//! | `/status` | [`AgentStatus`](crate::status::AgentStatus) as JSON |
//! | `/pods/NAMESPACE/NAME` | [`ServedPod`](crate::status::ServedPod) as JSON, or 404; only over the socket |
//!
//! Read only, and no value of any object: whoever can reach it over HTTP learns names and states. The socket, which is for the agent's
//! user and for root, shows pods as well, with the values that stand in them.

mod serve;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::serve::Limits;
use crate::agent::AgentHandle;

/// The API of `agent` for whoever may open its socket.
pub fn socket_router(agent: AgentHandle) -> Router {
    let pods = Router::new().route("/pods/{namespace}/{name}", get(pod));
    pods.with_state(agent.clone()).merge(router(agent))
}

/// The API of `agent` for everybody.
pub fn router(agent: AgentHandle) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(agent)
}

async fn readyz(State(agent): State<AgentHandle>) -> impl IntoResponse {
    if agent.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not every pod has been looked at yet\n",
        )
    }
}

async fn metrics(State(agent): State<AgentHandle>) -> impl IntoResponse {
    let text = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, text)], agent.metrics())
}

async fn status(State(agent): State<AgentHandle>) -> impl IntoResponse {
    Json(agent.status())
}

async fn pod(
    State(agent): State<AgentHandle>,
    Path((namespace, name)): Path<(String, String)>,
) -> impl IntoResponse {
    match agent.served_pod(&namespace, &name) {
        Some(pod) => Json(pod).into_response(),
        None => (StatusCode::NOT_FOUND, "no such pod\n").into_response(),
    }
}

/// Serves `router` on `listener` within `limits` until `shutdown`.
pub async fn serve_tcp(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    serve::serve(listener, router, limits, shutdown).await;
}

/// Serves `router` on a Unix socket within `limits` until `shutdown`.
pub async fn serve_unix(
    listener: UnixListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    serve::serve(listener, router, limits, shutdown).await;
}

/// Raises this process's soft limit of open files to its hard limit, and returns what may be open then.
///
/// Every watched directory, volume under way and connection takes descriptors, and the usual soft limit is 1024.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum.map(|maximum| maximum.min(DESCRIPTORS)),
        maximum: limit.maximum,
    };
    // `None` is no limit.
    let current = limit.current.unwrap_or(u64::MAX);
    match raised.current.unwrap_or(DESCRIPTORS) {
        wanted if wanted <= current => current,
        wanted => match setrlimit(Resource::Nofile, raised) {
            Ok(()) => wanted,
            Err(error) => {
                warn!(%error, limit = current, "failed to raise the limit of open files, keeping it");
                current
            }
        },
    }
}

/// More descriptors than any node needs: beyond this the limit is not raised.
const DESCRIPTORS: u64 = 1 << 20;
