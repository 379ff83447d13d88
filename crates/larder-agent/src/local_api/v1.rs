//! The API for other programs, on the socket only: pods, their changes, and projections of given manifests.
//! `docs/api.md` and `docs/openapi.json` describe it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Query, State, rejection::QueryRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::{future::OptionFuture, stream};
use larder_transport::blocking::blocking;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{json, problem::Problem, program::Program, written};
use crate::{agent::AgentHandle, delivery::journal::JournalEntry, status::PodStatus};

/// Largest body of a projection: a full node's manifests are a tenth of it.
const MAX_MANIFEST_BYTES: usize = 16 << 20;
/// Longest time in which the body of a projection arrives, so that slow clients do not use up the connections.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a stream without changes sends its number.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);

pub(super) fn router(agent: AgentHandle, program: Program) -> Router {
    let pods = Router::new()
        .route("/v1/pods", get(pods))
        .route("/v1/pods/{namespace}/{name}", get(super::pod))
        .with_state(agent.clone());
    let changes = Router::new()
        .route("/v1/changes", get(changes))
        .with_state((agent, program.shutdown.clone()));
    // One at a time: each may take some memory, and none is urgent.
    let project = Router::new()
        .route("/v1/project", post(project))
        .with_state((program, Arc::new(Semaphore::new(1))));
    pods.merge(changes).merge(project)
}

/// The document behind `/v1/pods`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PodList {
    /// Changes after this number may be missing in the list: follow them from here.
    sequence: u64,
    pods: Vec<PodStatus>,
}

async fn pods(State(agent): State<AgentHandle>) -> Response {
    // Read before the pods, so that no change is missed.
    let sequence = agent.journal().newest();
    let pods = agent.pod_statuses().collect();
    json(written(&PodList { sequence, pods }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Since {
    since: Option<u64>,
    /// For clients that read a response as a whole. The connection's own limit comes first.
    timeout_seconds: Option<u32>,
}

/// A line of the stream of changes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Change"))]
#[serde(tag = "type")]
pub(super) enum ChangeLine<'a> {
    Changed {
        sequence: u64,
        namespace: &'a str,
        name: &'a str,
        uid: &'a str,
        pod: &'a PodStatus,
    },
    Removed {
        sequence: u64,
        namespace: &'a str,
        name: &'a str,
        uid: &'a str,
    },
    /// Nothing else has changed up to this number.
    Bookmark { sequence: u64 },
}

async fn changes(
    State((agent, shutdown)): State<(AgentHandle, CancellationToken)>,
    query: Result<Query<Since>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let since = query.since.unwrap_or_else(|| agent.journal().newest());
    if agent.journal().since(since).is_none() {
        let text = "changes after this number are no longer known: list the pods again";
        return Err(Problem::new(StatusCode::GONE, text));
    }
    let newest = agent.journal().subscribe();
    let end = query
        .timeout_seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let start = StreamPosition {
        end,
        is_over: false,
        agent,
        shutdown,
        newest,
        since,
    };
    let lines = stream::unfold(start, async |mut position| {
        let text = position.next().await?;
        Some((Ok::<_, Infallible>(text), position))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

/// The place of a client in the stream.
struct StreamPosition {
    /// When the stream ends, if the client says so.
    end: Option<Instant>,
    /// It has passed: no more lines follow.
    is_over: bool,
    agent: AgentHandle,
    shutdown: CancellationToken,
    newest: watch::Receiver<u64>,
    since: u64,
}

impl StreamPosition {
    /// The next lines; `None` at shutdown, at the end that the client has set, and for a client that has fallen behind,
    /// which will then see 410.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.is_over {
                return None;
            }
            self.is_over = self.end.is_some_and(|end| Instant::now() >= end);
            self.newest.borrow_and_update();
            let entries = self.agent.journal().since(self.since)?;
            if let Some(last) = entries.last() {
                self.since = last.sequence;
                return Some(lines(&self.agent, &entries));
            }
            // All arms are cancel-safe.
            let end = OptionFuture::from(self.end.map(sleep_until));
            let changed = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return None,
                Some(()) = end => return None,
                changed = timeout(BOOKMARK_INTERVAL, self.newest.changed()) => changed,
            };
            if changed.is_err() {
                let sequence = self.since;
                return Some(line(&ChangeLine::Bookmark { sequence }));
            }
        }
    }
}

fn lines(agent: &AgentHandle, entries: &[JournalEntry]) -> String {
    let statuses = agent.statuses_of(entries.iter().map(|entry| &entry.uid));
    let lines = entries.iter().zip(statuses).filter_map(|(entry, status)| {
        let (sequence, uid) = (entry.sequence, entry.uid.as_str());
        let pod;
        Some(line(&match &entry.removed {
            None => {
                pod = status?;
                ChangeLine::Changed {
                    sequence,
                    namespace: &pod.namespace,
                    name: &pod.name,
                    uid,
                    pod: &pod,
                }
            }
            Some(key) => ChangeLine::Removed {
                sequence,
                namespace: &key.namespace,
                name: &key.name,
                uid,
            },
        }))
    });
    lines.collect()
}

fn line(change: &ChangeLine<'_>) -> String {
    serde_json::to_string(change).expect("names and numbers are JSON") + "\n"
}

async fn project(
    State((program, slots)): State<(Program, Arc<Semaphore>)>,
    body: Body,
) -> Result<impl IntoResponse, Problem> {
    let body = timeout(BODY_TIMEOUT, to_bytes(body, MAX_MANIFEST_BYTES)).await;
    let late = "the body did not arrive in time";
    let body = body.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, late))?;
    let long = "the body is too large, or was cut";
    let body = body.map_err(|_| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, long))?;
    let none = "this program computes no projections";
    let projector = program
        .projector
        .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, none))?;
    let _slot = slots.acquire().await.expect("it is never closed");
    let projected = blocking(move || {
        let projected = projector(&body);
        // Both may hold Secrets. The body is the client's own.
        drop(body);
        projected
    });
    match projected.await {
        Ok(json) => Ok(([(header::CONTENT_TYPE, "application/json")], json)),
        Err(text) => Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text)),
    }
}

#[cfg(test)]
mod tests;
