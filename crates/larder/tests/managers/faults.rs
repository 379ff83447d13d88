//! Faults of the API server: the view of readers meanwhile, and the recovery. On the embedded server, time paused.

use std::{fs, ops::Range, path::Path, sync::Arc, time::Duration};

use larder::{ChangeKind, ConfigMapManager, ErrorKind, ObjectState, RequestPhase, WatchScope};
use larder_apiserver::{ApiServer, Fault, User, Verb};
use larder_transport::{Connector, Metrics, Transport};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::SCOPE;
use crate::{
    cluster::Cluster,
    scripted::{kubeconfig, pod_with, watching},
};

async fn value(manager: &ConfigMapManager) -> String {
    manager.get("n", "a").await.unwrap().data["k"].to_string()
}

/// An object is known and its watch is lost; the next requests run into `fault`, and meanwhile the object changes.
/// Readers get the known state at once, and the new one within that range of seconds. `failures` lists the failures
/// that subscribers receive meanwhile.
async fn heals(fault: Fault, hits: u32, seconds: Range<f64>, failures: &[&str]) {
    let cluster = Cluster::new();
    cluster.set("a", "one", false);
    let manager = watching(SCOPE, cluster.client());
    manager.register_pod(&pod_with("p1", &["a"]));
    assert_eq!(value(&manager).await, "one");
    tokio::time::sleep(Duration::from_secs(5)).await;

    let mut changes = manager.subscribe();
    let injected = cluster.server.faults().inject(fault);
    let start = Instant::now();
    cluster.cut();
    cluster.set("a", "two", false);
    let mut heard = Vec::new();
    loop {
        assert_eq!(value(&manager).await, "one");
        let change = tokio::time::timeout(Duration::from_mins(5), changes.next()).await;
        match change.expect("it heals").unwrap().kind {
            ChangeKind::Failed(failure) => heard.push(failure.error.to_string()),
            _ => break,
        }
    }
    let waited = start.elapsed().as_secs_f64();
    assert!(
        waited >= seconds.start - 0.01 && waited < seconds.end + 0.01,
        "{waited} s, not {seconds:?}"
    );
    assert_eq!(heard, failures);
    assert_eq!(injected.hits(), hits);
    assert_eq!(value(&manager).await, "two");
    // The watch is back: the next change is reported at once, and nothing of the failure is left.
    cluster.set("a", "three", false);
    changes.next().await.unwrap();
    assert_eq!(value(&manager).await, "three");
    let status = &manager.objects()[0];
    assert_eq!(status.state, ObjectState::Synced);
    assert!(status.age.is_zero() && status.failure.is_none());
    assert_eq!(cluster.server.open_watches(), 1);
}

fn watches(times: u32) -> Fault {
    Fault::on(Verb::Watch).times(times)
}

const AT_ONCE: Range<f64> = 0.0..0.0;
const FIRST_DELAY: Range<f64> = 0.8..1.6;

const BUSY: &str = "fault injected: 429 Too Many Requests";

#[tokio::test(start_paused = true)]
async fn dropped_connections_are_retried_with_growing_delays() {
    let failures = &["failed to talk to the API server"];
    heals(watches(3).drop_connection(), 3, 5.6..11.2, failures).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_waited_for() {
    let late = watches(1).delay(Duration::from_secs(20));
    heals(late, 1, 20.0..20.0, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_given_up() {
    let failures = &["the API server did not answer within 30s"];
    heals(watches(1).never_answer(), 1, 30.8..31.6, failures).await;
}

// managers 42
#[tokio::test(start_paused = true)]
async fn expired_version_leads_to_a_relist_in_either_form() {
    heals(watches(1).status(410), 1, FIRST_DELAY, &[]).await;
    heals(watches(1).error_after_events(0, 410), 1, FIRST_DELAY, &[]).await;
    // The state from the last version on has expired as well: any state will do, at once.
    heals(watches(2).status(410), 2, FIRST_DELAY, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_waited_for_in_either_form() {
    let failures = &[BUSY];
    // Up to half as much again: not all at one moment.
    heals(watches(1).retry_after(429, 7), 1, 7.0..10.5, failures).await;
    heals(
        watches(1).error_after_events(0, 429),
        1,
        FIRST_DELAY,
        failures,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_breaks_off_is_not_an_event() {
    heals(watches(1).cut_after_bytes(100), 1, FIRST_DELAY, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_before_the_end_of_a_stream_counts() {
    heals(watches(1).end_after_events(1), 1, AT_ONCE, &[]).await;
    heals(watches(1).cut_after_events(1), 1, AT_ONCE, &[]).await;
}

/// Nothing is known when the faults begin, and they last: a read fails after a second, with that cause; once they are
/// over, it heals within the longest delay.
async fn failed_read_reports(fault: Fault, cause: &str) {
    let cluster = Cluster::new();
    cluster.set("a", "one", false);
    let manager = watching(SCOPE, cluster.client());
    let injected = cluster.server.faults().inject(fault);
    manager.register_pod(&pod_with("p1", &["a"]));
    let start = Instant::now();
    let error = manager.get("n", "a").await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert!(
        matches!(error.kind(), ErrorKind::NotSynced { .. }),
        "{error:?}"
    );
    let reported = error.request().map(ToString::to_string);
    assert_eq!(reported.unwrap_or_default(), cause);
    assert!(injected.hits() > 0);

    injected.lift();
    let read = manager.get_within("n", "a", Duration::from_mins(1)).await;
    assert_eq!(read.unwrap().data["k"], "one");
    assert!(manager.objects()[0].failure.is_none());
}

// B2
#[tokio::test(start_paused = true)]
async fn a_failed_first_failed_read_reports_the_cause() {
    let any = Fault::on_any;
    failed_read_reports(any().drop_connection(), "failed to talk to the API server").await;
    // There is no cause yet: the requests may still be answered.
    failed_read_reports(any().never_answer(), "").await;
    failed_read_reports(any().delay(Duration::from_secs(20)), "").await;
    failed_read_reports(any().status(410), "fault injected: 410 Gone").await;
    failed_read_reports(any().retry_after(429, 7), BUSY).await;
    failed_read_reports(any().error_after_events(0, 429), BUSY).await;
    failed_read_reports(
        any().cut_after_bytes(100),
        "failed to talk to the API server",
    )
    .await;
}

/// A manager on the transport, whose connections are pipes.
struct Piped {
    cluster: Cluster,
    manager: ConfigMapManager,
    transport: Transport,
    /// Has the kubeconfig.
    _directory: TempDir,
}

impl Piped {
    /// Object `a` is known.
    async fn new() -> Self {
        Self::with_token(None).await
    }

    /// The same, with the token in that file.
    async fn with_token(file: Option<&Path>) -> Self {
        let cluster = Cluster::new();
        cluster.set("a", "one", false);
        let config = larder_transport::Config::default()
            .connector(pipes(cluster.server.clone()))
            .http2_prior_knowledge(true);
        let (directory, source) = kubeconfig("http://localhost:6443", file);
        let connected = larder_transport::connect(source, config, Metrics::default());
        let (client, transport) = connected.await.unwrap();
        let manager = watching(SCOPE, client);
        manager.register_pod(&pod_with("p1", &["a"]));
        assert_eq!(value(&manager).await, "one");
        tokio::time::sleep(Duration::from_secs(5)).await;
        cluster.audit.take();
        Self {
            cluster,
            manager,
            transport,
            _directory: directory,
        }
    }

    fn requests(&self) -> Vec<String> {
        let records = self.cluster.audit.take();
        let request = |record: larder_apiserver::AuditRecord| {
            let initial = record.query.contains("sendInitialEvents");
            format!(
                "{}{}",
                record.verb,
                if initial { " from the start" } else { "" }
            )
        };
        records.into_iter().map(request).collect()
    }
}

fn pipes(server: ApiServer) -> Connector {
    let connections = Arc::new(Mutex::new(JoinSet::new()));
    Connector::new(move |_, _| {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (server, never) = (server.clone(), CancellationToken::new());
        let serve = server.serve_connection(theirs, Some(User::admin()), never);
        connections.lock().spawn(serve);
        async { Ok(ours) }
    })
}

#[tokio::test(start_paused = true)]
async fn goaway_interrupts_no_watch_and_sends_new_ones_elsewhere() {
    let node = Piped::new().await;
    let mut changes = node.manager.subscribe();
    node.cluster.server.faults().go_away();
    node.cluster.set("a", "two", false);
    changes.next().await.unwrap();
    assert_eq!(value(&node.manager).await, "two");
    assert_eq!(node.requests(), Vec::<String>::new());
    assert!(node.manager.objects()[0].age.is_zero());

    node.cluster.set("b", "one", false);
    node.manager.register_pod(&pod_with("p2", &["b"]));
    node.manager.get("n", "b").await.unwrap();
    let (request, streams) = match SCOPE {
        WatchScope::Object => ("watch from the start", 1),
        _ => ("list", 0),
    };
    assert_eq!(node.requests(), [request]);
    let connections = node.transport.connections();
    let leaving: Vec<_> = connections.iter().map(|c| (c.closing, c.streams)).collect();
    assert_eq!(leaving, [(true, 1), (false, streams)]);
}

#[tokio::test(start_paused = true)]
async fn watch_resumes_from_its_version_after_a_broken_connection() {
    let node = Piped::new().await;
    let mut changes = node.manager.subscribe();
    node.cluster.server.faults().close_connections();
    node.cluster.set("a", "two", false);
    assert_eq!(value(&node.manager).await, "one");
    changes.next().await.unwrap();
    assert_eq!(value(&node.manager).await, "two");
    assert_eq!(node.requests(), ["watch"]);
    assert_eq!(node.cluster.server.open_watches(), 1);
}

#[tokio::test(start_paused = true)]
async fn rejected_credentials_are_reported_until_they_are_replaced() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "hunter2").unwrap();
    let node = Piped::with_token(Some(&file)).await;
    let (manager, faults) = (&node.manager, node.cluster.server.faults());
    let mut changes = manager.subscribe();
    let refused = faults.inject(Fault::on_any().status(401));
    // A renewal that went wrong.
    fs::write(&file, "").unwrap();
    faults.close_connections();
    // One is rejected, and the others learn of it here.
    changes.next().await.unwrap();
    manager.register_pod(&pod_with("p2", &["b"]));
    let failed = loop {
        let change = changes.next().await.unwrap();
        match change.kind {
            ChangeKind::Failed(failure) if change.key.name == "b" => break failure,
            _ => {}
        }
    };
    assert_eq!(refused.hits(), 1);
    assert_eq!(failed.phase, RequestPhase::StreamingList);
    assert!(failed.error.is_unauthorized() && !failed.error.is_transport());
    let causes = std::iter::successors(Some(&failed as &dyn std::error::Error), |e| e.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    let path = file.display();
    let expected = [
        "failed to list".to_owned(),
        "the API server does not accept our credentials".to_owned(),
        format!("localhost:6443 does not accept the token in {path} (401)"),
        format!("failed to read the token from {path}"),
        "it is empty or has a control character".to_owned(),
    ];
    assert_eq!(causes, expected);
    assert!(!format!("{failed:?}").contains("hunter2"));

    tokio::time::sleep(Duration::from_mins(4)).await;
    fs::write(&file, "renewed").unwrap();
    refused.lift();
    let start = Instant::now();
    while manager
        .objects()
        .iter()
        .any(|object| object.failure.is_some())
    {
        tokio::time::timeout(Duration::from_mins(5), changes.next())
            .await
            .unwrap()
            .unwrap();
    }
    // Who asks every 10 s may come in the pause after the last 401, of 15 s.
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(26), "{waited:?}");
    assert_eq!(value(manager).await, "one");
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
}
