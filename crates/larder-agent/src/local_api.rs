//! The agent's local API: over HTTP, and over a socket in the root directory. `docs/api.md` describes it for clients.
//!
//! | path | answers | where |
//! | --- | --- | --- |
//! | `/healthz` | 200 while the agent works; 503 with a line for each problem otherwise, see [`Health`]; also a line for each thing that waits for a disk | both |
//! | `/readyz` | 200 when all sources have reported and every pod has been tried; 503 before | both |
//! | `/metrics` | OpenMetrics' text format | both |
//! | `/status` | [`AgentStatus`](crate::status::AgentStatus) as JSON | both |
//! | `/statusz`, `/flagz`, `/configz` | Kubernetes' z-pages | both |
//! | `/pods/NAMESPACE/NAME` | [`ServedPod`](crate::status::ServedPod) as JSON, or 404; 503 if only its status is known | socket |
//! | `/log-level` | the log filter; PUT sets it | socket |
//! | `/v1/…` | pods, changes and projections, for other programs | socket |
//!
//! Invariants:
//! 1. No response contains a value of an object that the agent holds; `/v1/project` returns values of the manifests in
//!    its body. HTTP clients see names and states; socket clients also see pods, with the values in their
//!    specifications, and the output of failed hooks that the operator has logged.
//! 2. Clients speak HTTP/1.1, one request at a time. Responses that they do not read are shared and bounded.
//! 3. The socket serves only root and the agent's own user, enforced by its mode and by the credentials of each peer.

mod documents;
mod problem;
mod program;
mod starting;
mod v1;
mod zpages;

use std::{io, sync::Arc, time::Duration};

pub use axum::Router;
use axum::{
    extract::{DefaultBodyLimit, Path, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use larder_connections::{ConnectionLimits, Listener};
use larder_objects::exact_json;
use rustix::process::{Resource, geteuid, getrlimit};
use serde::Serialize;
use tokio::{net::UnixStream, sync::Semaphore};
use tracing::{debug, info};

use self::{
    documents::{Documents, budget},
    problem::Problem,
};
pub use self::{
    program::{LogControl, Program, Projector},
    starting::StartingApi,
};
use crate::{
    agent::{AgentHandle, Health},
    root_dir::AgentSocket,
    status::Delivery,
};

/// The API of `agent` for its socket.
pub fn socket_router(agent: AgentHandle, program: Program) -> Router {
    let pods = Router::new().route("/pods/{namespace}/{name}", get(pod));
    let log = Router::new()
        .route("/log-level", get(log_level).put(set_log_level))
        .layer(DefaultBodyLimit::max(MAX_FILTER_BYTES))
        .with_state(program.clone());
    pods.with_state(agent.clone())
        .route("/v1/openapi.json", get(async || json(OPENAPI.into())))
        .merge(log)
        .merge(v1::router(agent.clone(), program.clone()))
        .merge(pages(agent, program, &budget(), |agent| {
            written(&agent.status_document(|pod| pod))
        }))
}

/// The API of `agent` for every client.
pub fn router(agent: AgentHandle, program: Program) -> Router {
    let unread = Arc::clone(&program.unread);
    pages(agent, program, &unread, |agent| {
        written(&agent.status_document(|mut pod| {
            for hook in &mut pod.on_change {
                hook.output.clear();
            }
            pod
        }))
    })
}

fn pages(
    agent: AgentHandle,
    program: Program,
    unread: &Arc<Semaphore>,
    status: fn(&AgentHandle) -> Vec<u8>,
) -> Router {
    let documents = documents(&agent, unread, status);
    let pages = zpages::router(agent.clone(), program);
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(agent)
        .merge(documents)
        .merge(pages)
}

async fn healthz(State(agent): State<AgentHandle>) -> impl IntoResponse {
    let Health { problems, waiting } = agent.health();
    let (code, mut lines) = if problems.is_empty() {
        (StatusCode::OK, vec!["ok".to_owned()])
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, problems)
    };
    lines.extend(waiting.iter().map(|wait| format!("waiting: {wait}")));
    (code, lines.join("\n") + "\n")
}

async fn readyz(State(agent): State<AgentHandle>) -> impl IntoResponse {
    if agent.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        let text = "not every pod has been looked at yet\n";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

/// The response with this JSON.
fn json(text: Vec<u8>) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, text).into_response()
}

/// A document of names and states, as JSON.
fn written(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect(WRITABLE)
}

fn documents(
    agent: &AgentHandle,
    unread: &Arc<Semaphore>,
    status: fn(&AgentHandle) -> Vec<u8>,
) -> Router {
    let answer = |media_type, build: fn(&AgentHandle) -> Vec<u8>| {
        let (documents, agent) = (Documents::new(unread), agent.clone());
        get(async move || {
            let sequence = agent.journal().newest();
            documents.answer(sequence, media_type, || build(&agent))
        })
    };
    let text = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let metrics = answer(text, |agent| agent.metrics().into_bytes());
    Router::new()
        .route("/metrics", metrics)
        .route("/status", answer("application/json", status))
}

async fn pod(
    State(agent): State<AgentHandle>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let Path((namespace, name)) =
        path.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    match agent.served_pod(&namespace, &name) {
        // It may hold credentials.
        Some(pod) => Ok(json(exact_json(&pod).expect(WRITABLE))),
        None => match agent.status_of_named(&namespace, &name) {
            // Of an earlier start, while not every manifest can be read.
            Some(Delivery { phase, reason, .. }) => {
                let phase = phase.as_str();
                let text = format!("the pod is {phase}, its specification unknown: {reason}");
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, text))
            }
            None => Err(Problem::new(StatusCode::NOT_FOUND, "no such pod")),
        },
    }
}

async fn log_level(State(program): State<Program>) -> impl IntoResponse {
    match &program.log {
        Some(log) => (log.show)().into_response(),
        None => (StatusCode::NOT_FOUND, "this program has no log filter\n").into_response(),
    }
}

async fn set_log_level(State(program): State<Program>, filter: String) -> impl IntoResponse {
    let Some(log) = &program.log else {
        return (StatusCode::NOT_FOUND, "this program has no log filter\n").into_response();
    };
    match (log.set)(filter.trim()) {
        Ok(()) => {
            info!(filter = (log.show)(), "log level set");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(problem) => (StatusCode::BAD_REQUEST, problem).into_response(),
    }
}

/// The limits for clients of one listener: they take at most an eighth of the descriptors that this process may open,
/// and leave the rest to delivery.
pub fn limits() -> ConnectionLimits {
    let descriptors = getrlimit(Resource::Nofile).current;
    let share = descriptors.map_or(MAX_CONNECTIONS, |limit| limit / 8);
    let connections = usize::try_from(share.clamp(2, MAX_CONNECTIONS)).unwrap_or(2);
    ConnectionLimits::default()
        .max_connections(connections)
        .head_timeout(HEAD_TIMEOUT)
        .response_timeout(RESPONSE_TIMEOUT)
        .max_head_bytes(MAX_HEAD_BYTES)
        .http1_only()
}

/// The limits for clients of the socket. They are trusted, and may follow changes for a day.
pub fn socket_limits() -> ConnectionLimits {
    limits().response_timeout(FOLLOW_TIMEOUT)
}

/// Whether the process behind `stream` runs as root or as this process's user.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = geteuid().as_raw();
    let user = stream.peer_cred().map(|peer| peer.uid());
    user.is_ok_and(|user| user == 0 || user == own)
}

/// A socket for root and the agent's own user: connections of others are closed.
#[derive(Debug)]
pub struct OwnSocket(pub AgentSocket);

impl Listener for OwnSocket {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let stream = self.0.accept().await?;
            if is_trusted(&stream) {
                return Ok(stream);
            }
            debug!("closed a connection of another user");
        }
    }
}

/// The description of the socket's API in OpenAPI 3.1. A test generates it from the types of the answers.
const OPENAPI: &str = include_str!("local_api/openapi.json");
/// Why encoding does not fail.
const WRITABLE: &str = "keys of JSON are text, and memory takes it";
/// Connections to one listener, however many descriptors there are.
const MAX_CONNECTIONS: u64 = 64;
/// Time for the first request head. Clients are on this machine, or scrape metrics.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a connection may have requests in flight without a pause: no answer takes long, unless its client
/// does not read it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a client may follow changes without a new connection.
const FOLLOW_TIMEOUT: Duration = Duration::from_hours(24);
/// Longest log filter.
const MAX_FILTER_BYTES: usize = 4 << 10;
/// Longest request head.
const MAX_HEAD_BYTES: u32 = 16 << 10;

#[cfg(test)]
mod tests;
