//! Events about pods that have an undeliverable part, so that `kubectl describe pod` shows the reason.
//!
//! Reasons and messages are those of kubelet 1.36:
//!
//! | failure | reason | message | kubelet source |
//! | --- | --- | --- | --- |
//! | volume | `FailedMount` | `MountVolume.SetUp failed for volume "NAME" : CAUSE` | `pkg/volume/util/operationexecutor/operation_generator.go` |
//! | environment | `Failed` | `Error: CAUSE` | `pkg/kubelet/kuberuntime/kuberuntime_container.go` |
//!
//! The reasons are constants of `pkg/kubelet/events/event.go`, the field path of a container is that of
//! `pkg/kubelet/container/ref.go`. Rates and similarity are those of client-go (`tools/record/events_cache.go`). On
//! purpose different: the source is `larder`, a message that has joined the event of similar failures stays there, and
//! there is no summary event (`Unable to attach or mount volumes: …`), which adds no cause.
//!
//! Invariants:
//! 1. Posting events never blocks a worker: a failure is noted, and one task posts it.
//! 2. The same failure with the same message counts its event up, whatever failed in between. From the
//!    `SIMILAR`th message for a reason on, all further ones share one event, until a rest of
//!    `SIMILAR_WITHIN`.
//! 3. A pod causes `BURST` requests, then one per `REFILL`. The next request
//!    includes what was counted meanwhile, and follows without another failure.
//! 4. After a namespace forbids events, the next attempt follows after `FORBIDDEN` and includes the events noted
//!    meanwhile. The log reports that once in this time. Nothing else depends on events.
//! 5. The events of a pod are kept until it is forgotten, or until they are as old as `FORGOTTEN`: a pod that is not
//!    served may go without a word.
//! 6. A message is a reason of the status: it names objects, keys and paths, and holds no value (P5).

mod event;
mod pod_events;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use larder_objects::{PodIdentity, chain};
use larder_transport::path::{PathError, Resource};
use larder_watch::{RequestError, request};
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, warn};

pub use self::event::{EventSubject, PodReason};
use self::{
    event::{PodEvent, seconds},
    pod_events::PodEvents,
};

const EVENTS: Resource = Resource::core("events");

/// Pause after a namespace has forbidden events.
const FORBIDDEN: Duration = Duration::from_mins(10);
/// Time between two attempts during an outage, or when the API server throttles.
const RETRY: Duration = Duration::from_secs(10);

/// The events about the pods of a node.
pub struct Events {
    client: Client,
    node: String,
    /// Called with each outcome.
    counted: Box<dyn Fn(PostOutcome) + Send + Sync>,
    noted: Mutex<NotedEvents>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct NotedEvents {
    pods: BTreeMap<SmolStr, PodEvents>,
    /// Namespaces that forbid events, and when the next attempt follows.
    forbidden: HashMap<String, Instant>,
    /// When the log reported that last.
    warned_at: Option<Instant>,
    /// Suffix of the last event's name: nanoseconds since 1970, or one more than the previous suffix.
    last_suffix: i128,
}

/// Why an event was not posted.
enum PostError {
    /// This identity is not permitted to.
    Forbidden(String),
    /// The next attempt may succeed.
    Later(String),
    /// No attempt will succeed.
    Never(String),
}

/// What has become of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostOutcome {
    /// The API server has it.
    Posted,
    /// The namespace forbids events. It will be posted again.
    Forbidden,
    /// The API server has rejected it for good.
    Refused,
}

impl PostOutcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Posted, Self::Forbidden, Self::Refused];

    /// The outcome as the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Forbidden => "forbidden",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// Events about the pods of `node`, posted by `client`. Calls `counted` with the outcome of each post.
    pub fn new(
        client: Client,
        node: &str,
        counted: impl Fn(PostOutcome) + Send + Sync + 'static,
    ) -> Self {
        Self {
            client,
            node: node.to_owned(),
            counted: Box::new(counted),
            noted: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Notes that a part of the pod with `metadata` was not delivered because of `reason`, for the first time or again.
    pub fn failed(
        &self,
        metadata: &ObjectMeta,
        subject: EventSubject<'_>,
        reason: &str,
        now: Timestamp,
    ) {
        let pod = PodIdentity::from(metadata);
        let version = metadata.resource_version.as_deref().map(SmolStr::new);
        let mut noted = self.noted.lock();
        let suffix = now.as_nanosecond().max(noted.last_suffix + 1);
        noted.last_suffix = suffix;
        let noted_at = Instant::now();
        let pod_events = noted
            .pods
            .entry(pod.uid.clone())
            .or_insert_with(|| PodEvents::new(noted_at));
        let pod = pod_events.share(pod);
        let event = PodEvent::new(pod, version, subject, reason, now, suffix);
        pod_events.note(event, noted_at);
        drop(noted);
        self.wake.notify_one();
    }

    /// Drops the events of the pod with `uid`.
    pub fn forget(&self, uid: &str) {
        self.noted.lock().pods.remove(uid);
    }

    /// Posts the noted events. Ends only when dropped.
    pub async fn run(&self) {
        loop {
            let next = self.noted.lock().next();
            let event = match next {
                Ok(event) => event,
                Err(time) => {
                    let woken = self.wake.notified();
                    // A timeout and a new event both start another round.
                    match time {
                        Some(time) => drop(timeout_at(time, woken).await),
                        None => woken.await,
                    }
                    continue;
                }
            };
            let posted = self.post(&event).await;
            let wait = self.posted(&event, posted);
            sleep(wait).await;
        }
    }

    /// Records the outcome of posting `event`; returns the pause before the next.
    fn posted(&self, event: &PodEvent, outcome: Result<(), PostError>) -> Duration {
        let mut noted = self.noted.lock();
        // The pod may be gone.
        let mut events = noted
            .pods
            .get_mut(&event.pod.uid)
            .into_iter()
            .flat_map(|pod| &mut pod.events);
        if let Some(same) = events.find(|noted| noted.suffix == event.suffix) {
            same.posted |= outcome.is_ok();
            same.due |= matches!(outcome, Err(PostError::Later(_) | PostError::Forbidden(_)));
        }
        let pod = event.pod.name.as_str();
        match outcome {
            Ok(()) => {
                (self.counted)(PostOutcome::Posted);
                Duration::ZERO
            }
            Err(PostError::Later(why)) => {
                debug!(error = why, "failed to post event, will retry");
                RETRY
            }
            Err(PostError::Forbidden(why)) => {
                (self.counted)(PostOutcome::Forbidden);
                let now = Instant::now();
                let has_warned = noted.warned_at.is_some_and(|at| now - at < FORBIDDEN);
                let (namespace, reason, message) =
                    (event.pod.namespace.as_str(), event.reason, &*event.message);
                if has_warned {
                    debug!(
                        error = why,
                        namespace, pod, reason, message, "not permitted to post event, will retry"
                    );
                } else {
                    noted.warned_at = Some(now);
                    warn!(
                        error = why,
                        namespace,
                        pod,
                        reason,
                        message,
                        "not permitted to post event, will retry; `larder status` shows the reason too"
                    );
                }
                let until = now + FORBIDDEN;
                noted.forbidden.insert(namespace.to_owned(), until);
                Duration::ZERO
            }
            Err(PostError::Never(why)) => {
                (self.counted)(PostOutcome::Refused);
                debug!(error = why, pod, "API server rejected event, dropped");
                Duration::ZERO
            }
        }
    }

    async fn post(&self, event: &PodEvent) -> Result<(), PostError> {
        let invalid = |error: PathError| PostError::Never(error.to_string());
        let collection = EVENTS
            .in_namespace(event.pod.namespace.as_str())
            .map_err(invalid)?;
        if event.posted {
            let count = json!({
                "count": event.count,
                "lastTimestamp": seconds(event.last),
                "message": *event.message,
            });
            let path = collection.object(&event.name()).map_err(invalid)?;
            match self.send(Method::PATCH, path.as_str(), &count).await {
                // The API server keeps events for an hour only.
                Err(error) if error.is_not_found() => {}
                answer => return answer.map_err(post_error),
            }
        }
        let event = event.object(&self.node);
        match self.send(Method::POST, collection.as_str(), &event).await {
            // The answer to the previous attempt was lost.
            Err(error) if error.is_conflict() => Ok(()),
            answer => answer.map_err(post_error),
        }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<(), RequestError> {
        let IgnoredAny = request(&self.client, method, path, Some(body)).await?;
        Ok(())
    }
}

impl NotedEvents {
    /// An event to post now. It is no longer due, and its pod has spent a token for it. Without one: when to look again at
    /// the latest.
    fn next(&mut self) -> Result<PodEvent, Option<Instant>> {
        let now = Instant::now();
        self.forbidden.retain(|_, until| *until > now);
        self.pods.retain(|_, pod| !pod.is_forgotten(now));
        let mut first: Option<Instant> = None;
        for pod in self.pods.values_mut() {
            let Some(due) = pod.events.iter().position(|event| event.due) else {
                continue;
            };
            let forbidden = self.forbidden.get(pod.events[due].pod.namespace.as_str());
            let at = forbidden.map_or_else(|| pod.next_request(now), |until| *until);
            if at <= now {
                return Ok(pod.request(due, now));
            }
            first = Some(first.map_or(at, |first| first.min(at)));
        }
        Err(first)
    }
}

fn post_error(error: RequestError) -> PostError {
    let text = chain(&error);
    match error.code() {
        // A namespace that is being deleted accepts nothing new.
        _ if error.is_namespace_terminating() => PostError::Never(text),
        Some(403) => PostError::Forbidden(text),
        Some(401 | 408 | 429 | 500..) | None => PostError::Later(text),
        Some(_) => PostError::Never(text),
    }
}
