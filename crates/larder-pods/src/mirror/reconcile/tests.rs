//! The requests of one pass to an API server that answers from a script.

use std::convert::Infallible;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::{
    PodManager,
    identity::{CONFIG_HASH, CONFIG_MIRROR},
    testing::{PodBuilder, mirror_pod, pod, static_pod},
};

fn node() -> Value {
    json!({"metadata": {"name": "n1", "uid": "node-uid"}})
}

/// The state and the answers of the server.
#[derive(Debug)]
struct Script {
    node: Option<Value>,
    /// Code of the answer to every delete.
    delete_code: u16,
    /// Code of the answer to every create.
    create_code: u16,
    /// Pods that are there when asked for by name.
    pods: BTreeMap<String, Value>,
    /// Creates and deletes, in words.
    writes: Vec<String>,
}

/// A node with one reconciler, and a server.
struct ReconcilerFixture {
    script: Arc<Mutex<Script>>,
    manager: PodManager,
    reconciler: MirrorReconciler,
    scope: MirrorScope,
    /// Keeps the channel open.
    scope_sender: watch::Sender<MirrorScope>,
}

impl ReconcilerFixture {
    fn new(pods: impl IntoIterator<Item = PodBuilder>) -> Self {
        let script = Arc::new(Mutex::new(Script {
            node: Some(node()),
            delete_code: 200,
            create_code: 201,
            pods: BTreeMap::new(),
            writes: Vec::new(),
        }));
        let server = Arc::clone(&script);
        let service = service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(answer(&server, request).await) }
        });
        let mut manager = PodManager::default();
        for pod in pods {
            manager.add_pod(pod.shared());
        }
        let client = MirrorClient::new(Client::new(service, "default"), "n1");
        let scope = MirrorScope {
            all_sources_seen: true,
            terminating: TerminatingPods::default(),
            epoch: 0,
        };
        let (scope_sender, receiver) = watch::channel(scope.clone());
        let reconciler = MirrorReconciler::new(client, manager.reader(), receiver);
        Self {
            script,
            manager,
            reconciler,
            scope,
            scope_sender,
        }
    }

    /// Runs a pass; what it wrote.
    async fn pass(&mut self) -> Vec<String> {
        self.reconciler.pass(&self.scope.clone()).await;
        std::mem::take(&mut self.script.lock().writes)
    }

    #[track_caller]
    fn check_problem(&self, expected: &str) {
        let problems = self.reconciler.problems();
        let problems = problems.borrow();
        let texts: Vec<_> = problems.values().map(ToString::to_string).collect();
        assert_eq!(texts.join("; "), expected);
    }
}

async fn answer(script: &Mutex<Script>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = head.uri.path().rsplit('/').next().unwrap().to_owned();
    let mut script = script.lock();
    let (code, answer) = match head.method {
        Method::GET if head.uri.path().starts_with("/api/v1/nodes/") => script
            .node
            .clone()
            .map_or((404, Value::Null), |node| (200, node)),
        Method::GET => {
            let pod = script.pods.get(&name).cloned();
            pod.map_or((404, Value::Null), |pod| (200, pod))
        }
        Method::POST => {
            assert_eq!(head.uri.path(), "/api/v1/namespaces/default/pods");
            let metadata = &body["metadata"];
            let name = metadata["name"].as_str().unwrap();
            let hash = metadata["annotations"][CONFIG_MIRROR].as_str().unwrap();
            let owner = &metadata["ownerReferences"][0]["uid"];
            assert_eq!(owner, "node-uid");
            script.writes.push(format!("create {name} {hash}"));
            (script.create_code, body)
        }
        Method::DELETE => {
            let uid = body["preconditions"]["uid"].as_str().unwrap();
            let grace = &body["gracePeriodSeconds"];
            script.writes.push(format!("delete {name} {uid} {grace}"));
            (
                script.delete_code,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
            )
        }
        method => panic!("{method} {}", head.uri),
    };
    let answer = if code < 300 {
        answer
    } else {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "message": "no", "reason": if code == 404 { "NotFound" } else { "" }})
    };
    let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

#[tokio::test(start_paused = true)]
async fn without_a_node_uid_no_mirror_pod_is_created() {
    // managers 52
    let mut fixture = ReconcilerFixture::new([static_pod("web")]);
    fixture.script.lock().node = None;
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.check_problem("node n1 does not exist");

    tokio::time::advance(RETRY).await;
    fixture.script.lock().node = Some(json!({"metadata": {"name": "n1", "uid": ""}}));
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.check_problem("node n1 has no UID");

    tokio::time::advance(RETRY * 2).await;
    fixture.script.lock().node = Some(node());
    assert_eq!(fixture.pass().await, ["create web hash"]);
    fixture.check_problem("");
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_gets_exactly_one_mirror_pod() {
    // managers 53
    let mut fixture = ReconcilerFixture::new([static_pod("web"), pod("ordinary")]);
    assert_eq!(fixture.pass().await, ["create web hash"]);
    // The watch has not shown it yet, and there are other changes meanwhile.
    fixture
        .manager
        .add_pod(static_pod("web").label("l", "1").shared());
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.manager.add_pod(mirror_pod("web").shared());
    tokio::time::advance(SETTLE * 2).await;
    assert_eq!(fixture.pass().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_current_pair_is_compared_again_after_a_change() {
    let mut fixture = ReconcilerFixture::new([static_pod("web"), mirror_pod("web")]);
    for _ in 0..2 {
        assert_eq!(fixture.pass().await, [""; 0]);
    }
    fixture
        .manager
        .add_pod(static_pod("web").annotation(CONFIG_HASH, "new").shared());
    assert_eq!(
        fixture.pass().await,
        ["delete web web-mirror-uid 0", "create web new"]
    );
    fixture.manager.remove_pod(&mirror_pod("web").stored());
    let mirror = mirror_pod("web")
        .uid("second")
        .annotation(CONFIG_MIRROR, "new");
    fixture.manager.add_pod(mirror.clone().shared());
    tokio::time::advance(SETTLE).await;
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.manager.add_pod(mirror.deleted().shared());
    assert_eq!(
        fixture.pass().await,
        ["delete web second 0", "create web new"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_outdated_or_terminating_mirror_pod_is_replaced() {
    // managers 54
    for outdated in [
        mirror_pod("web").annotation(CONFIG_MIRROR, "other"),
        mirror_pod("web").deleted(),
        mirror_pod("web").annotation("larder.dev/static-pod-content", "other"),
    ] {
        let mut fixture = ReconcilerFixture::new([static_pod("web"), outdated]);
        assert_eq!(
            fixture.pass().await,
            ["delete web web-mirror-uid 0", "create web hash"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_delete_nothing_is_created() {
    // managers 55
    for (code, problem) in [
        (404, ""),
        (409, ""),
        (500, "failed to delete mirror pod web_default"),
    ] {
        let mut fixture = ReconcilerFixture::new([static_pod("web"), mirror_pod("web").deleted()]);
        fixture.script.lock().delete_code = code;
        assert_eq!(fixture.pass().await, ["delete web web-mirror-uid 0"]);
        fixture.check_problem(problem);
        // It is gone, or its deletion succeeds: then it is made again.
        fixture.manager.remove_pod(&mirror_pod("web").stored());
        tokio::time::advance(SETTLE).await;
        assert_eq!(fixture.pass().await, ["create web hash"]);
        fixture.check_problem("");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_being_deleted_gets_no_mirror_pods() {
    // managers 56
    let mut fixture = ReconcilerFixture::new([static_pod("web")]);
    let mut deleted = node();
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    fixture.script.lock().node = Some(deleted);
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.check_problem("node n1 is being deleted");
}

#[tokio::test(start_paused = true)]
async fn orphans_are_deleted_by_uid_after_their_static_pod() {
    // managers 57
    let mut fixture = ReconcilerFixture::new(["a", "b", "c"].map(mirror_pod));
    fixture.scope.all_sources_seen = false;
    assert_eq!(fixture.pass().await, [""; 0]);

    fixture.scope.all_sources_seen = true;
    fixture.scope.terminating = ["b_default".parse().unwrap()].into_iter().collect();
    let mut writes = fixture.pass().await;
    writes.sort();
    assert_eq!(
        writes,
        ["delete a a-mirror-uid 0", "delete c c-mirror-uid 0"]
    );

    fixture.scope.terminating = TerminatingPods::default();
    assert_eq!(fixture.pass().await, ["delete b b-mirror-uid 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_conflicting_pod_is_read_before_it_is_deleted() {
    let taken = |pod: PodBuilder| {
        let fixture = ReconcilerFixture::new([static_pod("web")]);
        let mut script = fixture.script.lock();
        script.create_code = 409;
        script.pods.insert("web".to_owned(), json!(pod.build()));
        drop(script);
        fixture
    };
    // The mirror pod exists, only the watch is late.
    let mut fixture = taken(mirror_pod("web"));
    assert_eq!(fixture.pass().await, ["create web hash"]);
    fixture.check_problem("");
    // A user's pod.
    let mut fixture = taken(pod("web"));
    assert_eq!(fixture.pass().await, ["create web hash"]);
    fixture.check_problem("the name web_default belongs to a pod that is not a mirror pod");
    // An old mirror pod that the watch has not shown, and that a finalizer keeps.
    let mut fixture = taken(mirror_pod("web").annotation(CONFIG_MIRROR, "old"));
    assert_eq!(
        fixture.pass().await,
        [
            "create web hash",
            "delete web web-mirror-uid 0",
            "create web hash"
        ]
    );
    let in_the_way = "outdated mirror pod web_default still exists after its deletion";
    fixture.check_problem(in_the_way);
    let mirror = mirror_pod("web").annotation(CONFIG_MIRROR, "old").deleted();
    fixture.manager.add_pod(mirror.shared());
    tokio::time::advance(RETRY).await;
    assert_eq!(fixture.pass().await, ["create web hash"]);
    fixture.check_problem(in_the_way);
    // It is deleted at last, which ends the wait.
    fixture.manager.remove_pod(&mirror_pod("web").stored());
    fixture.script.lock().create_code = 201;
    assert_eq!(fixture.pass().await, ["create web hash"]);
    fixture.check_problem("");
}

#[tokio::test(start_paused = true)]
async fn a_gone_mirror_pod_is_deleted_only_once() {
    let ended = static_pod("web").annotation(CONFIG_HASH, "new");
    let mut fixture = ReconcilerFixture::new([ended, mirror_pod("web"), mirror_pod("orphan")]);
    fixture.script.lock().delete_code = 404;
    let mut writes = fixture.pass().await;
    writes.sort();
    assert_eq!(
        writes,
        [
            "delete orphan orphan-mirror-uid 0",
            "delete web web-mirror-uid 0"
        ]
    );
    // There is no reason to wait for what is missing then.
    assert_eq!(fixture.pass().await, ["create web new"]);
    for _ in 0..10 {
        tokio::time::advance(MAX_DELAY).await;
        let writes = fixture.pass().await;
        assert!(!writes.concat().contains("delete"), "{writes:?}");
    }
    // What is known of one API server says nothing of the next, and the old pods may be there.
    fixture.script.lock().delete_code = 200;
    fixture.scope.epoch += 1;
    tokio::time::advance(MAX_DELAY).await;
    let mut writes = fixture.pass().await;
    writes.sort();
    assert_eq!(
        writes,
        [
            "create web new",
            "delete orphan orphan-mirror-uid 0",
            "delete web web-mirror-uid 0"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_deleted_repeatedly_returns_with_growing_delays() {
    let mut fixture = ReconcilerFixture::new([static_pod("web")]);
    let mut number = 0;
    // It exists, and a user force-deletes it.
    let mut shown = |fixture: &mut ReconcilerFixture| {
        number += 1;
        let mirror = mirror_pod("web").uid(&number.to_string());
        fixture.manager.add_pod(mirror.clone().shared());
        mirror
    };
    let mut wait = SETTLE;
    for round in 0..UNDELAYED + 9 {
        assert_eq!(fixture.pass().await, ["create web hash"]);
        let mirror = shown(&mut fixture);
        assert_eq!(fixture.pass().await, [""; 0]);
        fixture.manager.remove_pod(&mirror.stored());
        let due = fixture.reconciler.pass(&fixture.scope.clone()).await;
        assert_eq!(due, Some(Instant::now() + wait));
        tokio::time::advance(wait).await;
        if round >= UNDELAYED {
            wait = (wait * 2).min(MAX_DELAY);
        }
    }
    assert_eq!(wait, MAX_DELAY);
    assert_eq!(fixture.pass().await, ["create web hash"]);
    // It stays for a while, and then all is forgotten: back at once.
    for _ in 0..2 {
        let mirror = shown(&mut fixture);
        tokio::time::advance(2 * MAX_DELAY + RETRY).await;
        assert_eq!(fixture.pass().await, [""; 0]);
        fixture.manager.remove_pod(&mirror.stored());
        assert_eq!(fixture.pass().await, ["create web hash"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_manifest_or_api_server_resets_failures() {
    let mut fixture = ReconcilerFixture::new([static_pod("web")]);
    fixture.script.lock().create_code = 500;
    for _ in 0..10 {
        assert_eq!(fixture.pass().await, ["create web hash"]);
        tokio::time::advance(MAX_DELAY).await;
    }
    assert_eq!(fixture.pass().await, ["create web hash"]);
    // Others wait, but not these.
    assert_eq!(fixture.pass().await, [""; 0]);
    let edited = static_pod("web")
        .image("i:2")
        .annotation(CONFIG_HASH, "new");
    fixture.manager.add_pod(edited.shared());
    assert_eq!(fixture.pass().await, ["create web new"]);
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.scope.epoch += 1;
    fixture.script.lock().create_code = 201;
    assert_eq!(fixture.pass().await, ["create web new"]);
    fixture.check_problem("");
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_growing_delays() {
    let mut fixture = ReconcilerFixture::new([static_pod("web")]);
    fixture.script.lock().create_code = 500;
    let mut delay = RETRY;
    for _ in 0..10 {
        assert_eq!(fixture.pass().await, ["create web hash"]);
        // Another change does not make it sooner.
        assert_eq!(fixture.pass().await, [""; 0]);
        let due = fixture.reconciler.pass(&fixture.scope.clone()).await;
        assert_eq!(due, Some(Instant::now() + delay));
        tokio::time::advance(delay).await;
        delay = (delay * 2).min(MAX_DELAY);
    }
    fixture.check_problem("failed to create mirror pod web_default");
    // The static pod goes, and its problem with it.
    fixture.manager.remove_pod(&static_pod("web").stored());
    assert_eq!(fixture.pass().await, [""; 0]);
    fixture.check_problem("");
    assert!(fixture.reconciler.attempts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_loop_ends_with_its_scope() {
    let fixture = ReconcilerFixture::new([static_pod("web")]);
    drop(fixture.scope_sender);
    fixture.reconciler.run().await;
}
