//! Events about pods of which a part cannot be delivered, so that `kubectl describe pod` tells why.
//!
//! Reasons and messages are the kubelet's (kubelet 1.36, `pkg/kubelet/events/event.go`, `pkg/volume/util/operationexecutor`,
//! `pkg/kubelet/kuberuntime/kuberuntime_container.go`), its rates and what it takes for similar those of client-go
//! (`tools/record/events_cache.go`). The source is `larder` on this node.
//!
//! Invariants:
//! 1. Nobody waits for an event: a failure is noted, and one task posts what is noted.
//! 2. The same failure again, in the same words, counts its event up, whatever failed in between. From the [`SIMILAR`]th text for a
//!    reason on, without [`SIMILAR_WITHIN`] of rest, all others share one event.
//! 3. A pod costs [`BURST`] requests, then one in [`REFILL`]; what is counted meanwhile is told with the next.
//! 4. A namespace that forbids events is asked again after [`FORBIDDEN`], and then gets what was kept for it. The log tells of it when
//!    it happens, once in that time. Nothing else depends on events.
//! 5. A message is a reason of the status: it names objects, keys and paths, and holds no value (P5).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use http::{Method, Request, header};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use larder_projection::{ContainerKind, containers};
use parking_lot::Mutex;
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, warn};

use crate::metrics::{EventOutcome, Metrics};

/// Requests that a pod may cost at once.
const BURST: u32 = 25;
/// How long until it may cost one more.
const REFILL: Duration = Duration::from_mins(5);
/// How many different texts make events similar.
const SIMILAR: usize = 10;
/// How long no failure for a reason must have happened for its texts to be forgotten.
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// What stands before the last text of similar events.
const COMBINED: &str = "(combined from similar events): ";
/// How many events of a pod are remembered, so that they can be counted up.
const KEPT: usize = 32;
/// How long no event is posted to a namespace after that was forbidden.
const FORBIDDEN: Duration = Duration::from_mins(10);
/// Time between two attempts at an API server that is away or busy.
const RETRY: Duration = Duration::from_secs(10);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest message in bytes that the API server takes in every version of the kind.
const MESSAGE: usize = 1024;
/// The longest name of an object.
const NAME: usize = 253;

/// What cannot be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About<'a> {
    /// The volume of this name.
    Volume(&'a str),
    /// The environment of the container of this name.
    Container(&'a str),
}

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

/// What is noted of one pod.
#[derive(Debug)]
struct OfPod {
    /// The last ones, oldest first.
    events: Vec<Event>,
    /// By the reason.
    texts: BTreeMap<&'static str, Texts>,
    budget: u32,
    refilled: Instant,
}

/// What was told of a pod for one reason.
#[derive(Debug, Default)]
struct Texts {
    different: BTreeSet<String>,
    last: Timestamp,
}

/// A failure that repeats in the same words, or several that are similar.
#[derive(Clone, Debug)]
struct Event {
    /// Name of its object.
    name: String,
    /// The object it is about, as a reference.
    involved: Value,
    reason: &'static str,
    message: String,
    combined: bool,
    count: u32,
    first: Timestamp,
    last: Timestamp,
    /// The API server has it, with some count.
    posted: bool,
    /// It has a count that the API server does not have.
    due: bool,
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
        let of_pod = noted.pods.entry(uid).or_insert_with(|| OfPod {
            events: Vec::new(),
            texts: BTreeMap::new(),
            budget: BURST,
            refilled: Instant::now(),
        });
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
        let collection = format!("/api/v1/namespaces/{}/events", event.namespace());
        if event.posted {
            let count = json!({
                "count": event.count,
                "lastTimestamp": seconds(event.last),
                "message": event.message,
            });
            let path = format!("{collection}/{}", event.name);
            match self.send(Method::PATCH, path, &count).await {
                // The API server keeps events for an hour.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                answer => return answer.map_err(refusal),
            }
        }
        let created = self
            .send(Method::POST, collection, &event.object(&self.node))
            .await;
        match created {
            // The answer to the last attempt was lost.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            answer => answer.map_err(refusal),
        }
    }

    async fn send(&self, method: Method, path: String, body: &Value) -> kube::Result<()> {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content)
            .body(body.to_string().into_bytes())
            .expect("names of the API need no escaping in a path");
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
            let Some(event) = of_pod.events.iter_mut().find(|event| event.due) else {
                continue;
            };
            if let Some(until) = self.forbidden.get(event.namespace()) {
                after = Some(after.map_or(*until, |after| after.min(*until)));
                continue;
            }
            let refill = u32::try_from((now - of_pod.refilled).as_secs() / REFILL.as_secs());
            let refill = refill.unwrap_or(BURST).min(BURST);
            of_pod.refilled += refill * REFILL;
            of_pod.budget = (of_pod.budget + refill).min(BURST);
            if let Some(rest) = of_pod.budget.checked_sub(1) {
                of_pod.budget = rest;
                event.due = false;
                return Next::Post(uid.clone(), event.clone());
            }
        }
        after.map_or(Next::Nothing, Next::After)
    }
}

impl OfPod {
    /// Counts `event` up, or keeps it as a new one.
    fn note(&mut self, mut event: Event) {
        let texts = self.texts.entry(event.reason).or_default();
        if event.last.duration_since(texts.last) > SIMILAR_WITHIN {
            texts.different.clear();
        }
        texts.last = event.last;
        texts.different.insert(event.message.clone());
        if texts.different.len() >= SIMILAR {
            texts.different.pop_first();
            event.combine();
        }
        let same = self.events.iter_mut().find(|held| {
            held.reason == event.reason
                && held.combined == event.combined
                && (held.combined
                    || (held.message == event.message
                        && held.involved["fieldPath"] == event.involved["fieldPath"]))
        });
        if let Some(held) = same {
            held.count += 1;
            held.last = event.last;
            held.message = event.message;
            held.due = true;
            return;
        }
        if self.events.len() == KEPT {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}

impl Event {
    fn new(pod: &Pod, about: About<'_>, why: &str, now: Timestamp, suffix: i128) -> Self {
        let metadata = &pod.metadata;
        let (reason, message) = match about {
            About::Volume(name) => (
                "FailedMount",
                format!("MountVolume.SetUp failed for volume {name:?} : {why}"),
            ),
            About::Container(_) => ("Failed", format!("Error: {why}")),
        };
        let mut involved = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata.namespace.as_deref().unwrap_or_default(),
            "name": metadata.name.as_deref().unwrap_or_default(),
            // Of a static pod its own, which its mirror pod has as an annotation: that is where kubectl looks.
            "uid": metadata.uid,
        });
        if let Some(version) = &metadata.resource_version {
            involved["resourceVersion"] = version.as_str().into();
        }
        if let About::Container(name) = about {
            involved["fieldPath"] = field_path(pod, name).into();
        }
        let suffix = format!(".{suffix:x}");
        let name = metadata.name.as_deref().unwrap_or_default();
        let name = &name[..name.floor_char_boundary(NAME - suffix.len())];
        Self {
            name: format!("{}{suffix}", name.trim_end_matches(['.', '-'])),
            involved,
            reason,
            message: message[..message.floor_char_boundary(MESSAGE)].to_owned(),
            combined: false,
            count: 1,
            first: now,
            last: now,
            posted: false,
            due: true,
        }
    }

    /// Makes it stand for all that are similar.
    fn combine(&mut self) {
        self.message.insert_str(0, COMBINED);
        let end = self.message.floor_char_boundary(MESSAGE);
        self.message.truncate(end);
        self.combined = true;
        // Of several parts.
        if let Some(involved) = self.involved.as_object_mut() {
            involved.remove("fieldPath");
        }
    }

    fn namespace(&self) -> &str {
        self.involved["namespace"].as_str().unwrap_or_default()
    }

    /// The Event as a whole.
    fn object(&self, node: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": self.namespace(), "name": self.name},
            "involvedObject": self.involved,
            "type": "Warning",
            "reason": self.reason,
            "message": self.message,
            "source": {"component": COMPONENT, "host": node},
            "reportingComponent": COMPONENT,
            "reportingInstance": node,
            "count": self.count,
            // Whole seconds, as `metav1.Time` has them.
            "firstTimestamp": seconds(self.first),
            "lastTimestamp": seconds(self.last),
        })
    }
}

/// Who posts.
const COMPONENT: &str = "larder";

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The container of this name as a field of the pod, as the kubelet writes it.
fn field_path(pod: &Pod, name: &str) -> String {
    let container = containers(pod).find(|container| container.name == name);
    let list = match container.map(|container| container.kind) {
        Some(ContainerKind::Init) => "initContainers",
        Some(ContainerKind::Ephemeral) => "ephemeralContainers",
        Some(ContainerKind::Regular) | None => "containers",
    };
    format!("spec.{list}{{{name}}}")
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

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http::Response;
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use tower::service_fn;

    use super::*;

    /// Events whose requests are answered with the code that stands there at that time; and the requests, in words.
    struct Fixture {
        events: Events,
        code: Arc<Mutex<u16>>,
        requests: Arc<Mutex<Vec<String>>>,
        registry: Registry,
    }

    impl Fixture {
        fn new() -> Self {
            let mut registry = Registry::default();
            let code = Arc::new(Mutex::new(201));
            let requests = Arc::new(Mutex::new(Vec::new()));
            let (answers, log) = (Arc::clone(&code), Arc::clone(&requests));
            let service = service_fn(move |request: Request<Body>| {
                let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    let path = head.uri.path();
                    assert!(path.starts_with("/api/v1/namespaces/n/events"), "{path}");
                    let message = body["message"].as_str().unwrap_or_default();
                    log.lock()
                        .push(format!("{} {} {message}", head.method, body["count"]));
                    let code = *answers.lock();
                    let status = json!({"kind": "Status", "code": code, "message": "no", "reason": "", "status": "Failure"});
                    let mut answer = Response::new(Body::from(status.to_string().into_bytes()));
                    *answer.status_mut() = code.try_into().unwrap();
                    Ok::<_, Infallible>(answer)
                }
            });
            Self {
                events: Events::new(
                    Client::new(service, "default"),
                    "node-1",
                    Metrics::register(&mut registry),
                ),
                registry,
                code,
                requests,
            }
        }

        fn failed(&self, why: &str) {
            let pod = json!({"metadata": {"namespace": "n", "name": "web", "uid": "u"},
                "spec": {"containers": [], "initContainers": [{"name": "c", "image": "i"}]}});
            let pod = serde_json::from_value(pod).unwrap();
            let about = About::Container("c");
            self.events.failed(&pod, about, why, Timestamp::UNIX_EPOCH);
        }

        fn counters(&self) -> String {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
            text
        }

        /// Whether so many requests had this outcome.
        fn counted(&self, outcome: &str, times: u32) -> bool {
            let line = format!("events_total{{outcome=\"{outcome}\"}} {times}\n");
            self.counters().contains(&line)
        }

        /// The requests within `time`.
        async fn within(&self, time: Duration) -> Vec<String> {
            let _ = timeout(time, self.events.run()).await;
            std::mem::take(&mut self.requests.lock())
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_same_failure_counts_up_and_another_one_is_another_event() {
        let fixture = Fixture::new();
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await, ["POST 1 Error: a"]);
        fixture.failed("a");
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await, ["PATCH 3 Error: a"]);
        fixture.failed("b");
        assert_eq!(fixture.within(SECOND).await, ["POST 1 Error: b"]);
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await, ["PATCH 4 Error: a"]);
        // The API server has forgotten it after an hour.
        *fixture.code.lock() = 404;
        fixture.failed("b");
        assert_eq!(
            fixture.within(SECOND).await,
            ["PATCH 2 Error: b", "POST 2 Error: b"]
        );
        fixture.events.forget("u");
        assert_eq!(fixture.within(SECOND).await, [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_fails_all_the_time_costs_little() {
        let fixture = Fixture::new();
        for round in 0..100 {
            fixture.failed(&format!("for reason {round}"));
            let count = fixture.within(Duration::from_millis(1)).await.len();
            assert_eq!(count, usize::from(round < BURST));
        }
        for _ in 0..3 {
            for round in 0..10 {
                fixture.failed("still");
                let count = fixture.within(REFILL / 10).await.len();
                assert!(count == 0 || round == 9 || round == 0, "{round}: {count}");
            }
        }
        assert_eq!(fixture.events.noted.lock().pods["u"].budget, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_forbids_events_is_left_alone_for_a_while() {
        let fixture = Fixture::new();
        *fixture.code.lock() = 403;
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await.len(), 1);
        for _ in 0..10 {
            fixture.failed("a");
            assert_eq!(fixture.within(SECOND).await, [""; 0]);
        }
        assert!(fixture.counted("forbidden", 1), "{}", fixture.counters());
        *fixture.code.lock() = 201;
        // Without another failure.
        assert_eq!(fixture.within(FORBIDDEN).await, ["POST 11 Error: a"]);
        assert!(fixture.counted("posted", 1), "{}", fixture.counters());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_ever_new_words_share_an_event() {
        let fixture = Fixture::new();
        for round in 0..12 {
            fixture.failed(&format!("reason {round}"));
        }
        let requests = fixture.within(SECOND).await;
        assert_eq!(requests.len(), SIMILAR, "{requests:?}");
        assert_eq!(requests[8], "POST 1 Error: reason 8");
        assert_eq!(
            requests[9],
            "POST 3 (combined from similar events): Error: reason 11"
        );
        fixture.failed("reason 12");
        assert_eq!(
            fixture.within(SECOND).await,
            ["PATCH 4 (combined from similar events): Error: reason 12"]
        );
    }

    #[test]
    fn each_failure_has_the_form_of_the_kubelets() {
        let pod = json!({"metadata": {"namespace": "n", "name": "web", "uid": "u", "resourceVersion": "7"}, "spec": {
            "containers": [{"name": "c"}], "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}],
        }});
        let pod = serde_json::from_value(pod).unwrap();
        let of = |about, why: &str| {
            let event = Event::new(&pod, about, why, Timestamp::UNIX_EPOCH, 255);
            let path = event.involved["fieldPath"].as_str().unwrap_or("-");
            format!("{} {path} {}", event.reason, event.message)
        };
        assert_eq!(
            of(About::Volume("v"), "configmap \"m\" not found"),
            "FailedMount - MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found"
        );
        for (name, path) in [
            ("c", "spec.containers{c}"),
            ("i", "spec.initContainers{i}"),
            ("e", "spec.ephemeralContainers{e}"),
        ] {
            assert_eq!(
                of(About::Container(name), "secret \"s\" not found"),
                format!("Failed {path} Error: secret \"s\" not found")
            );
        }
        let event = Event::new(&pod, About::Volume("v"), "x", Timestamp::UNIX_EPOCH, 255);
        let expected = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "n", "name": "web.ff"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "n", "name": "web", "uid": "u", "resourceVersion": "7"},
            "type": "Warning", "reason": "FailedMount", "message": "MountVolume.SetUp failed for volume \"v\" : x", "count": 1,
            "source": {"component": "larder", "host": "node-1"},
            "reportingComponent": "larder", "reportingInstance": "node-1",
            "firstTimestamp": "1970-01-01T00:00:00Z", "lastTimestamp": "1970-01-01T00:00:00Z",
        });
        assert_eq!(event.object("node-1"), expected);
    }

    #[test]
    fn a_namespace_that_ends_is_not_one_that_forbids() {
        let refused = |reason: &str| {
            let status = json!({
                "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no",
                "details": {"causes": [{"reason": reason, "message": "", "field": ""}]},
            });
            refusal(kube::Error::Api(serde_json::from_value(status).unwrap()))
        };
        assert!(matches!(refused("NamespaceTerminating"), Refusal::Never(_)));
        assert!(matches!(refused("Other"), Refusal::Forbidden(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_away_gets_the_last_count_when_it_is_back() {
        let fixture = Fixture::new();
        *fixture.code.lock() = 503;
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await.len(), 1);
        fixture.failed("a");
        *fixture.code.lock() = 201;
        assert_eq!(fixture.within(RETRY).await, ["POST 2 Error: a"]);
    }

    #[test]
    fn names_and_messages_are_cut_to_what_the_api_server_takes() {
        let pod = json!({"metadata": {"namespace": "n", "name": "a".repeat(NAME), "uid": "u"}, "spec": {"containers": []}});
        let pod = serde_json::from_value(pod).unwrap();
        let why = "ü".repeat(MESSAGE);
        let event = Event::new(&pod, About::Volume("v"), &why, Timestamp::UNIX_EPOCH, 1);
        assert!(event.name.len() <= NAME && event.name.starts_with("aaa"));
        assert!(event.message.len() <= MESSAGE && event.message.len() > MESSAGE - 4);
    }
}
