//! Events about pods of which a part cannot be delivered, so that `kubectl describe pod` tells why.
//!
//! Reasons and messages are the kubelet's (kubelet 1.36, `pkg/kubelet/events/event.go`, `pkg/volume/util/operationexecutor`,
//! `pkg/kubelet/kuberuntime/kuberuntime_container.go`), its rates and what it takes for similar those of client-go
//! (`tools/record/events_cache.go`). The source is `larder` on this node.
//!
//! Invariants:
//! 1. Nobody waits for an event: a failure is noted, and one task posts what is noted.
//! 2. The same failure again, in the same words, counts its event up, whatever failed in between. From the [`SIMILAR`](of_pod::SIMILAR)th text for a
//!    reason on, without [`SIMILAR_WITHIN`](of_pod::SIMILAR_WITHIN) of rest, all others share one event.
//! 3. A pod costs [`BURST`](of_pod::BURST) requests, then one in [`REFILL`](of_pod::REFILL); what is counted meanwhile is told with the next.
//! 4. A namespace that forbids events is asked again after [`FORBIDDEN`], and then gets what was kept for it. The log tells of it when
//!    it happens, once in that time. Nothing else depends on events.
//! 5. A message is a reason of the status: it names objects, keys and paths, and holds no value (P5).

mod event;
mod of_pod;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt, time::Duration};

use http::{Method, Request, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use larder_transport::path::{PathError, Resource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, warn};

pub(crate) use self::event::About;
use self::{
    event::{Event, seconds},
    of_pod::OfPod,
};
use crate::metrics::{EventOutcome, Metrics};

const EVENTS: Resource = Resource::core("events");

/// How long no event is posted to a namespace after that was forbidden.
const FORBIDDEN: Duration = Duration::from_mins(10);
/// Time between two attempts at an API server that is away or busy.
const RETRY: Duration = Duration::from_secs(10);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(30);

/// The events of a node's pods.
pub(crate) struct Events {
    client: Client,
    node: String,
    metrics: Metrics,
    noted: Mutex<Noted>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Noted {
    pods: HashMap<SmolStr, OfPod>,
    /// Namespaces that take no events, and until when they are not asked.
    forbidden: HashMap<String, Instant>,
    /// When the log told of it.
    told: Option<Instant>,
    /// What the name of the last event ends in: nanoseconds since 1970, or a bit more where two events fall into the same.
    last_suffix: i128,
}

/// Why an event was not posted.
enum Refusal {
    /// This identity may not.
    Forbidden(String),
    /// Perhaps the next attempt succeeds.
    Later(String),
    /// It never will.
    Never(String),
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// To be posted by `client` for the pods of `node`.
    pub(crate) fn new(client: Client, node: &str, metrics: Metrics) -> Self {
        Self {
            client,
            node: node.to_owned(),
            metrics,
            noted: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// A part of `pod` cannot be delivered, because of `why`: at first, or still.
    pub(crate) fn failed(&self, pod: &Pod, about: About<'_>, why: &str, now: Timestamp) {
        let uid = SmolStr::new(pod.metadata.uid.as_deref().unwrap_or_default());
        let mut noted = self.noted.lock();
        let suffix = now.as_nanosecond().max(noted.last_suffix + 1);
        noted.last_suffix = suffix;
        let event = Event::new(pod, about, why, now, suffix);
        let of_pod = noted.pods.entry(uid).or_insert_with(OfPod::new);
        of_pod.note(event);
        drop(noted);
        self.wake.notify_one();
    }

    /// Nothing more is posted of the pod with `uid`.
    pub(crate) fn forget(&self, uid: &str) {
        self.noted.lock().pods.remove(uid);
    }

    /// Posts what is noted. Ends only when dropped.
    pub(crate) async fn run(&self) {
        loop {
            let next = self.noted.lock().next();
            let (uid, event) = match next {
                Next::Post(uid, event) => (uid, event),
                Next::Nothing => {
                    self.wake.notified().await;
                    continue;
                }
                Next::After(time) => {
                    // Cancelled or not, both only wait.
                    let _ = timeout_at(time, self.wake.notified()).await;
                    continue;
                }
            };
            let posted = timeout(ANSWER, self.post(&event)).await;
            let posted = posted.unwrap_or_else(|_| Err(Refusal::Later("no answer".to_owned())));
            let wait = self.posted(&uid, &event, posted);
            sleep(wait).await;
        }
    }

    /// Notes what came of posting `event`; how long to wait before the next.
    fn posted(&self, uid: &str, event: &Event, outcome: Result<(), Refusal>) -> Duration {
        let mut noted = self.noted.lock();
        // The pod may be gone by now.
        let of_pod = noted.pods.get_mut(uid);
        let mut events = of_pod.into_iter().flat_map(|of_pod| &mut of_pod.events);
        let same = events.find(|noted| noted.name == event.name);
        let pod = event.involved["name"].as_str().unwrap_or_default();
        match outcome {
            Ok(()) => {
                self.metrics.event(EventOutcome::Posted);
                if let Some(same) = same {
                    same.posted = true;
                }
                Duration::ZERO
            }
            Err(Refusal::Later(why)) => {
                debug!(error = why, "event not posted, will be tried again");
                if let Some(same) = same {
                    same.due = true;
                }
                RETRY
            }
            Err(Refusal::Forbidden(why)) => {
                self.metrics.event(EventOutcome::Forbidden);
                if let Some(same) = same {
                    same.due = true;
                }
                let now = Instant::now();
                let was_told = noted.told.is_some_and(|told| now - told < FORBIDDEN);
                let (namespace, reason, message) =
                    (event.namespace(), event.reason, &*event.message);
                if was_told {
                    debug!(
                        error = why,
                        namespace, pod, reason, message, "event forbidden"
                    );
                } else {
                    noted.told = Some(now);
                    warn!(
                        error = why,
                        namespace,
                        pod,
                        reason,
                        message,
                        "event forbidden, will be tried again; `larder status` tells the same"
                    );
                }
                let until = now + FORBIDDEN;
                noted.forbidden.insert(namespace.to_owned(), until);
                Duration::ZERO
            }
            Err(Refusal::Never(why)) => {
                self.metrics.event(EventOutcome::Refused);
                debug!(error = why, pod, "event not posted");
                Duration::ZERO
            }
        }
    }

    async fn post(&self, event: &Event) -> Result<(), Refusal> {
        let invalid = |error: PathError| Refusal::Never(error.to_string());
        let collection = EVENTS.in_namespace(event.namespace()).map_err(invalid)?;
        if event.posted {
            let count = json!({
                "count": event.count,
                "lastTimestamp": seconds(event.last),
                "message": event.message,
            });
            let path = collection.object(&event.name).map_err(invalid)?;
            match self.send(Method::PATCH, path.as_str(), &count).await {
                // The API server keeps events for an hour.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                answer => return answer.map_err(refusal),
            }
        }
        let created = self
            .send(Method::POST, collection.as_str(), &event.object(&self.node))
            .await;
        match created {
            // The answer to the last attempt was lost.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            answer => answer.map_err(refusal),
        }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> kube::Result<()> {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content)
            .body(body.to_string().into_bytes())
            .expect("the path is percent-encoded");
        self.client.request_text(request).await.map(drop)
    }
}

/// What there is to post.
enum Next {
    /// This event of the pod with this uid.
    Post(SmolStr, Event),
    /// Something that may be posted at that time.
    After(Instant),
    Nothing,
}

impl Noted {
    /// An event to post now; it is no longer due, and its pod has paid for it.
    fn next(&mut self) -> Next {
        let now = Instant::now();
        self.forbidden.retain(|_, until| *until > now);
        let mut after: Option<Instant> = None;
        for (uid, of_pod) in &mut self.pods {
            let Some(due) = of_pod.events.iter().position(|event| event.due) else {
                continue;
            };
            if let Some(until) = self.forbidden.get(of_pod.events[due].namespace()) {
                after = Some(after.map_or(*until, |after| after.min(*until)));
                continue;
            }
            if of_pod.pays(now) {
                let event = &mut of_pod.events[due];
                event.due = false;
                return Next::Post(uid.clone(), event.clone());
            }
        }
        after.map_or(Next::Nothing, Next::After)
    }
}

fn is_ending(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.reason == "NamespaceTerminating")
}

fn refusal(error: kube::Error) -> Refusal {
    match error {
        // A namespace that ends takes nothing new, whoever asks.
        kube::Error::Api(status) if is_ending(&status) => Refusal::Never(status.message),
        kube::Error::Api(status) if status.code == 403 => Refusal::Forbidden(status.message),
        kube::Error::Api(status)
            if status.code >= 500 || [401, 408, 429].contains(&status.code) =>
        {
            Refusal::Later(status.message)
        }
        kube::Error::Api(status) => Refusal::Never(status.message),
        error => Refusal::Later(larder_objects::chain(&error)),
    }
}
