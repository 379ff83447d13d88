use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use jiff::SignedDuration;
use kube::client::Body;
use tokio::time::timeout;
use tower::service_fn;

use super::{
    event::{MAX_MESSAGE, MAX_NAME},
    pod_events::{BURST, FORGOTTEN, REFILL, SIMILAR, SIMILAR_WITHIN},
    *,
};

/// Events whose requests are answered with the code in the cell at that time; and the requests, as text.
struct Fixture {
    events: Events,
    code: Arc<Mutex<u16>>,
    requests: Arc<Mutex<Vec<String>>>,
    outcomes: Arc<Mutex<Vec<PostOutcome>>>,
}

impl Fixture {
    fn new() -> Self {
        let outcomes = Arc::<Mutex<Vec<_>>>::default();
        let counted = Arc::clone(&outcomes);
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
                assert!(path.starts_with("/api/v1/namespaces/"), "{path}");
                assert_eq!(path.split('/').nth(5), Some("events"), "{path}");
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
            events: Events::new(Client::new(service, "default"), "node-1", move |outcome| {
                counted.lock().push(outcome);
            }),
            outcomes,
            code,
            requests,
        }
    }

    fn failed(&self, why: &str) {
        self.failed_in("n", why, Timestamp::UNIX_EPOCH);
    }

    fn failed_in(&self, namespace: &str, why: &str, now: Timestamp) {
        let metadata = json!({"namespace": namespace, "name": "web", "uid": namespace});
        let metadata = serde_json::from_value(metadata).unwrap();
        let subject = EventSubject::Container("c", "initContainers");
        self.events.failed(&metadata, subject, why, now);
    }

    /// Whether so many requests had this outcome.
    fn counted(&self, outcome: PostOutcome, times: usize) -> bool {
        let outcomes = self.outcomes.lock();
        outcomes.iter().filter(|found| **found == outcome).count() == times
    }

    /// The requests within `time`.
    async fn within(&self, time: Duration) -> Vec<String> {
        let _ = timeout(time, self.events.run()).await;
        std::mem::take(&mut self.requests.lock())
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn same_failure_counts_up_another_one_is_another_event() {
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
    fixture.events.forget("n");
    assert_eq!(fixture.within(SECOND).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn pod_that_always_fails_causes_few_requests() {
    let fixture = Fixture::new();
    for round in 0..100 {
        fixture.failed(&format!("for reason {round}"));
        let count = fixture.within(Duration::from_millis(1)).await.len();
        assert_eq!(count, usize::from(round < BURST));
    }
    let mut count = 0;
    for _ in 0..31 {
        fixture.failed("still");
        count += fixture.within(REFILL / 10).await.len();
    }
    assert_eq!(count, 3);
}

#[tokio::test(start_paused = true)]
async fn the_last_failure_is_posted_when_a_request_is_free_without_another_one() {
    let fixture = Fixture::new();
    for round in 0..=BURST {
        fixture.failed("a");
        let count = fixture.within(Duration::from_millis(1)).await.len();
        assert_eq!(count, usize::from(round < BURST));
    }
    let last = format!("PATCH {} Error: a", BURST + 1);
    assert_eq!(fixture.within(REFILL).await, [last]);
}

#[tokio::test(start_paused = true)]
async fn the_events_of_a_pod_that_is_not_served_go_by_themselves() {
    let fixture = Fixture::new();
    *fixture.code.lock() = 403;
    fixture.failed_in("forbids", "a", Timestamp::UNIX_EPOCH);
    fixture.within(SECOND).await;
    *fixture.code.lock() = 201;
    for pod in ["x", "y", "z"] {
        fixture.failed_in(pod, "rejected", Timestamp::UNIX_EPOCH);
    }
    fixture.within(SECOND).await;
    assert_eq!(fixture.events.noted.lock().pods.len(), 4);
    tokio::time::advance(FORGOTTEN).await;
    // The one that is due is posted first.
    fixture.failed_in("new", "a", Timestamp::UNIX_EPOCH);
    assert_eq!(fixture.within(SECOND).await.len(), 2);
    fixture.failed_in("new", "b", Timestamp::UNIX_EPOCH);
    fixture.within(SECOND).await;
    let pods: Vec<_> = fixture.events.noted.lock().pods.keys().cloned().collect();
    assert_eq!(pods, ["new"]);
}

#[tokio::test(start_paused = true)]
async fn forbidden_events_pause_the_requests() {
    let fixture = Fixture::new();
    *fixture.code.lock() = 403;
    fixture.failed("a");
    assert_eq!(fixture.within(SECOND).await.len(), 1);
    for _ in 0..10 {
        fixture.failed("a");
        assert_eq!(fixture.within(SECOND).await, [""; 0]);
    }
    assert!(fixture.counted(PostOutcome::Forbidden, 1));
    *fixture.code.lock() = 201;
    // Without another failure.
    assert_eq!(fixture.within(FORBIDDEN).await, ["POST 11 Error: a"]);
    assert!(fixture.counted(PostOutcome::Posted, 1));
}

#[tokio::test(start_paused = true)]
async fn failures_with_ever_new_messages_share_an_event() {
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
    // Whether it has an event of its own or not.
    fixture.failed("reason 10");
    fixture.failed("reason 8");
    assert_eq!(
        fixture.within(SECOND).await,
        [
            "PATCH 2 Error: reason 8",
            "PATCH 5 (combined from similar events): Error: reason 10"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_rest_messages_have_events_of_their_own_again() {
    let fixture = Fixture::new();
    for round in 0..SIMILAR {
        fixture.failed(&format!("reason {round}"));
    }
    assert_eq!(fixture.within(SECOND).await.len(), SIMILAR);
    let mut now = Timestamp::UNIX_EPOCH + SIMILAR_WITHIN;
    fixture.failed_in("n", "too early", now);
    now += SIMILAR_WITHIN + SignedDuration::from_secs(1);
    fixture.failed_in("n", "rested", now);
    assert_eq!(
        fixture.within(SECOND).await,
        [
            "PATCH 2 (combined from similar events): Error: too early",
            "POST 1 Error: rested"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn hostile_namespace_blocks_no_other_event() {
    let fixture = Fixture::new();
    for namespace in ["a b", "../..", "a?b#c", "", "..", "\n", "n"] {
        fixture.failed_in(namespace, namespace, Timestamp::UNIX_EPOCH);
    }
    let mut requests = fixture.within(SECOND).await;
    requests.sort_unstable();
    // An empty namespace and `..` have no path; the others are one segment each.
    assert_eq!(requests.len(), 5, "{requests:?}");
    assert_eq!(requests[4], "POST 1 Error: n");
    assert!(fixture.counted(PostOutcome::Refused, 2));
}

fn event_of(metadata: &ObjectMeta, subject: EventSubject<'_>, why: &str) -> PodEvent {
    let pod = Arc::new(PodIdentity::from(metadata));
    let version = metadata.resource_version.as_deref().map(SmolStr::new);
    PodEvent::new(pod, version, subject, why, Timestamp::UNIX_EPOCH, 255)
}

#[test]
fn each_failure_has_the_kubelets_form() {
    let metadata = json!({"namespace": "n", "name": "web", "uid": "u", "resourceVersion": "7"});
    let metadata = serde_json::from_value(metadata).unwrap();
    let of = |subject, why: &str| {
        let event = event_of(&metadata, subject, why);
        let path = event.field_path.as_deref().unwrap_or("-");
        format!("{} {path} {}", event.reason, event.message)
    };
    assert_eq!(
        of(EventSubject::Volume("v"), "configmap \"m\" not found"),
        "FailedMount - MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found"
    );
    for (kind, path) in [
        ("containers", "spec.containers{c}"),
        ("initContainers", "spec.initContainers{c}"),
        ("ephemeralContainers", "spec.ephemeralContainers{c}"),
    ] {
        assert_eq!(
            of(EventSubject::Container("c", kind), "secret \"s\" not found"),
            format!("Failed {path} Error: secret \"s\" not found")
        );
    }
    let event = event_of(&metadata, EventSubject::Volume("v"), "x");
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

/// The outcome of posting one event to an API server that gives this answer.
async fn post_to<B>(answer: Response<B>) -> Result<(), PostError>
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<tower::BoxError>> + Send + 'static,
{
    let answer = Mutex::new(Some(answer));
    let answer = Arc::new(answer);
    let service = service_fn(move |_: Request<Body>| {
        let answer = answer.lock().take().unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let metrics = |_| {};
    let events = Events::new(Client::new(service, "default"), "node-1", metrics);
    let metadata = json!({"namespace": "n", "name": "web", "uid": "u"});
    let metadata = serde_json::from_value(metadata).unwrap();
    let subject = EventSubject::Volume("v");
    events.failed(&metadata, subject, "no", Timestamp::UNIX_EPOCH);
    let next = events.noted.lock().next();
    let Ok(event) = next else {
        panic!("an event is due");
    };
    events.post(&event).await
}

#[tokio::test]
async fn terminating_namespace_is_not_one_that_forbids() {
    let refused = async |reason: &str| {
        let status = json!({
            "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no",
            "details": {"causes": [{"reason": reason, "message": "", "field": ""}]},
        });
        let mut answer = Response::new(Body::from(status.to_string().into_bytes()));
        *answer.status_mut() = http::StatusCode::FORBIDDEN;
        post_to(answer).await
    };
    let terminating = refused("NamespaceTerminating").await;
    assert!(matches!(terminating, Err(PostError::Never(_))));
    let other = refused("Other").await;
    assert!(matches!(other, Err(PostError::Forbidden(_))));
}

#[tokio::test(start_paused = true)]
async fn last_count_is_posted_after_an_outage() {
    let fixture = Fixture::new();
    *fixture.code.lock() = 503;
    fixture.failed("a");
    assert_eq!(fixture.within(SECOND).await.len(), 1);
    fixture.failed("a");
    *fixture.code.lock() = 201;
    assert_eq!(fixture.within(RETRY).await, ["POST 2 Error: a"]);
}

#[test]
fn names_and_messages_are_cut_to_the_api_servers_limits() {
    let metadata = json!({"namespace": "n", "name": "a".repeat(MAX_NAME), "uid": "u"});
    let metadata = serde_json::from_value(metadata).unwrap();
    let why = "ü".repeat(MAX_MESSAGE);
    let event = event_of(&metadata, EventSubject::Volume("v"), &why);
    let name = event.name();
    assert!(name.len() <= MAX_NAME && name.starts_with("aaa"));
    assert!(event.message.len() <= MAX_MESSAGE && event.message.len() > MAX_MESSAGE - 4);
}

#[tokio::test(start_paused = true)]
async fn answer_without_an_end_is_cut_and_the_event_is_posted_later() {
    const CHUNK: usize = 1 << 16;
    let sent = Arc::new(AtomicUsize::new(0));
    let chunks = Arc::clone(&sent);
    let endless = futures::stream::repeat_with(move || {
        chunks.fetch_add(1, Ordering::Relaxed);
        let data = bytes::Bytes::from(vec![b' '; CHUNK]);
        Ok::<_, Infallible>(http_body::Frame::data(data))
    });
    let posted = post_to(Response::new(http_body_util::StreamBody::new(endless))).await;
    assert!(matches!(posted, Err(PostError::Later(_))));
    // 3 MiB, and what was under way.
    assert!(sent.load(Ordering::Relaxed) * CHUNK <= (3 << 20) + 2 * CHUNK);
}
