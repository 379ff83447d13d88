//! Events about pods of which a part cannot be delivered, so that `kubectl describe pod` tells why.
//!
//! Reasons and messages are the kubelet's (kubelet 1.36, `pkg/kubelet/events/event.go`, `pkg/volume/util/operationexecutor`,
//! `pkg/kubelet/kuberuntime/kuberuntime_container.go`), its rates those of client-go (`tools/record/events_cache.go`). The source is
//! `larder` on this node.
//!
//! Invariants:
//! 1. Nobody waits for an event: a failure is noted, and one task posts what is noted.
//! 2. A part of a pod has one event at a time. The same failure again counts it up; other words make a new one.
//! 3. A pod costs [`BURST`] requests, then one in [`REFILL`]; what is counted meanwhile is told with the next.
//! 4. An API server that forbids events is told of once, and asked again after [`FORBIDDEN`]. Nothing else depends on events.
//! 5. A message is a reason of the status: it names objects, keys and paths, and holds no value (P5).

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use http::{Method, Request, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use larder_projection::{ContainerKind, containers};
use parking_lot::Mutex;
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

/// Requests that a pod may cost at once.
const BURST: u32 = 25;
/// How long until it may cost one more.
const REFILL: Duration = Duration::from_mins(5);
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
    noted: Mutex<Noted>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Noted {
    pods: HashMap<SmolStr, OfPod>,
    /// Namespaces that take no events, and until when they are not asked.
    forbidden: HashMap<String, Instant>,
    told: bool,
    /// What the name of the last event ends in: nanoseconds since 1970, or a bit more where two events fall into the same.
    last_suffix: i128,
}

/// What is noted of one pod.
#[derive(Debug)]
struct OfPod {
    /// By the part.
    events: BTreeMap<String, Event>,
    budget: u32,
    refilled: Instant,
}

/// A failure that repeats in the same words.
#[derive(Clone, Debug)]
struct Event {
    /// Name of its object.
    name: String,
    /// The object it is about, as a reference.
    involved: Value,
    reason: &'static str,
    message: String,
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
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self {
            client,
            node: node.to_owned(),
            noted: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// A part of `pod` cannot be delivered, because of `why`: at first, or still.
    pub(crate) fn failed(&self, pod: &Pod, about: About<'_>, why: &str, now: Timestamp) {
        let uid = SmolStr::new(pod.metadata.uid.as_deref().unwrap_or_default());
        let part = match about {
            About::Volume(name) => format!("volume {name}"),
            About::Container(name) => format!("container {name}"),
        };
        let mut noted = self.noted.lock();
        let suffix = now.as_nanosecond().max(noted.last_suffix + 1);
        noted.last_suffix = suffix;
        let event = Event::new(pod, about, why, now, suffix);
        let of_pod = noted.pods.entry(uid).or_insert_with(|| OfPod {
            events: BTreeMap::new(),
            budget: BURST,
            refilled: Instant::now(),
        });
        match of_pod.events.get_mut(&part) {
            Some(before) if before.message == event.message => {
                before.count += 1;
                before.last = now;
                before.due = true;
            }
            _ => drop(of_pod.events.insert(part, event)),
        }
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
            let Some((uid, part, event)) = next else {
                self.wake.notified().await;
                continue;
            };
            let posted = timeout(ANSWER, self.post(&event)).await;
            let posted = posted.unwrap_or_else(|_| Err(Refusal::Later("no answer".to_owned())));
            let wait = self.posted(&uid, &part, &event, posted);
            sleep(wait).await;
        }
    }

    /// Notes what came of posting `event`; how long to wait before the next.
    fn posted(
        &self,
        uid: &str,
        part: &str,
        event: &Event,
        outcome: Result<(), Refusal>,
    ) -> Duration {
        let mut noted = self.noted.lock();
        // It may be another one by now, or the pod is gone.
        let of_pod = noted.pods.get_mut(uid);
        let noted_event = of_pod.and_then(|of_pod| of_pod.events.get_mut(part));
        let same = noted_event.filter(|noted| noted.name == event.name);
        match outcome {
            Ok(()) => {
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
                if std::mem::replace(&mut noted.told, true) {
                    debug!(error = why, "event not posted");
                } else {
                    warn!(
                        error = why,
                        "events are not posted; `larder status` tells the same"
                    );
                }
                let until = Instant::now() + FORBIDDEN;
                noted.forbidden.insert(event.namespace().to_owned(), until);
                Duration::ZERO
            }
            Err(Refusal::Never(why)) => {
                debug!(error = why, "event not posted");
                Duration::ZERO
            }
        }
    }

    async fn post(&self, event: &Event) -> Result<(), Refusal> {
        let collection = format!("/api/v1/namespaces/{}/events", event.namespace());
        if event.posted {
            let count = json!({"count": event.count, "lastTimestamp": seconds(event.last)});
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

impl Noted {
    /// An event to post now; it is no longer due, and its pod has paid for it.
    fn next(&mut self) -> Option<(SmolStr, String, Event)> {
        let now = Instant::now();
        self.forbidden.retain(|_, until| *until > now);
        self.pods.iter_mut().find_map(|(uid, of_pod)| {
            let forbidden = &self.forbidden;
            let (part, event) = of_pod.events.iter_mut().find(|(_, event)| event.due)?;
            if forbidden.contains_key(event.namespace()) {
                return None;
            }
            let refill = u32::try_from((now - of_pod.refilled).as_secs() / REFILL.as_secs());
            let refill = refill.unwrap_or(BURST).min(BURST);
            of_pod.refilled += refill * REFILL;
            of_pod.budget = (of_pod.budget + refill).min(BURST);
            of_pod.budget = of_pod.budget.checked_sub(1)?;
            event.due = false;
            Some((uid.clone(), part.clone(), event.clone()))
        })
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
            count: 1,
            first: now,
            last: now,
            posted: false,
            due: true,
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

fn refusal(error: kube::Error) -> Refusal {
    match error {
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
    use tower::service_fn;

    use super::*;

    /// Events whose requests are answered with the code that stands there at that time; and the requests, in words.
    struct Fixture {
        events: Events,
        code: Arc<Mutex<u16>>,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl Fixture {
        fn new() -> Self {
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
                events: Events::new(Client::new(service, "default"), "node-1"),
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
        assert_eq!(fixture.within(SECOND).await, ["PATCH 3 "]);
        fixture.failed("b");
        assert_eq!(fixture.within(SECOND).await, ["POST 1 Error: b"]);
        // The API server has forgotten it after an hour.
        *fixture.code.lock() = 404;
        fixture.failed("b");
        assert_eq!(
            fixture.within(SECOND).await,
            ["PATCH 2 ", "POST 2 Error: b"]
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
        *fixture.code.lock() = 201;
        tokio::time::advance(FORBIDDEN).await;
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await, ["POST 12 Error: a"]);
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
