//! The source against a server that answers from a script.

use std::{collections::VecDeque, future, io};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};
use tower::service_fn;

use super::*;
use crate::{
    source::SourceEvent,
    testing::{PodBuilder, pod},
};

/// A client of a server that gives `answers` in turn, then none any more; and the queries that it was sent. An answer
/// with code 0 is none: the server is not reached.
fn server(answers: Vec<(u16, String)>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    let queries = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&queries);
    let service = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        assert_eq!(request.uri().path(), "/api/v1/pods");
        queries.lock().push(query);
        let answer = answers.lock().pop_front();
        async move {
            let Some((code, body)) = answer else {
                return future::pending().await;
            };
            if code == 0 {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            }
            let mut response = Response::new(Body::from(body.into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok(response)
        }
    });
    (Client::new(service, "default"), seen)
}

fn list(version: &str, pods: impl IntoIterator<Item = PodBuilder>) -> (u16, String) {
    let items: Vec<_> = pods.into_iter().map(PodBuilder::build).collect();
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items});
    (200, list.to_string())
}

fn watch(events: impl IntoIterator<Item = (&'static str, Value)>) -> (u16, String) {
    let line = |(kind, object)| format!("{}\n", json!({"type": kind, "object": object}));
    (200, events.into_iter().map(line).collect())
}

fn event(kind: &'static str, version: &str, pod: PodBuilder) -> (&'static str, Value) {
    let mut pod = pod.build();
    pod.metadata.resource_version = Some(version.to_owned());
    (kind, json!(pod))
}

fn bookmark(version: &str) -> (&'static str, Value) {
    let metadata = json!({"resourceVersion": version});
    (
        "BOOKMARK",
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}),
    )
}

/// The end of the initial events of a streaming list.
fn all(version: &str) -> (&'static str, Value) {
    let (kind, mut bookmark) = bookmark(version);
    bookmark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    (kind, bookmark)
}

/// Pod `default/<name>` with a field of the wrong type.
fn unreadable(kind: &'static str, version: &str, name: &str) -> (&'static str, Value) {
    let (_, mut pod) = event(kind, version, pod(name));
    pod["spec"]["containers"] = "hunter2".into();
    (kind, pod)
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "no", "reason": reason, "code": code})
}

fn refused(code: u16, reason: &str) -> (u16, String) {
    (code, refusal(code, reason).to_string())
}

/// The reports of the source, one word each.
struct ApiReports(mpsc::Receiver<SourceReport>);

impl ApiReports {
    fn of(client: Client) -> (Self, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(16);
        let source = Box::pin(ApiSource::new(client, "n1").run(sender));
        (Self(receiver), source)
    }

    async fn next(&mut self) -> String {
        let report = self.0.recv().await.unwrap();
        assert_eq!(report.source, PodSource::Api);
        let name = |pod: &StoredPod| {
            let full_name = FullName::of(&pod.metadata);
            format!("{}/{}", full_name.namespace, full_name.name)
        };
        match report.event {
            SourceEvent::Pods(SourcePods::All(pods)) => {
                let names: Vec<_> = pods.iter().map(name).collect();
                format!("all [{}]", names.join(" "))
            }
            SourceEvent::Pods(SourcePods::One(pod)) => format!("one {}", name(&pod)),
            SourceEvent::Pods(SourcePods::Gone(full_name, uid)) => {
                format!("gone {full_name} {uid}")
            }
            SourceEvent::Problems(problems) => {
                let texts: Vec<_> = problems.iter().map(with_kept).collect();
                format!("problems [{}]", texts.join("; "))
            }
        }
    }

    async fn check(&mut self, expected: &[&str]) {
        for expected in expected {
            assert_eq!(self.next().await, *expected);
        }
    }
}

const SELECTOR: &str = "fieldSelector=spec.nodeName%3Dn1";

/// Runs the source until `reported` has seen what it wants.
async fn until(source: impl Future<Output = ()>, reported: impl Future<Output = ()>) {
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        () = reported => {}
    }
}

/// The problem, and the pods that it keeps.
fn with_kept(problem: &SourceProblem) -> String {
    let mut text = problem.to_string();
    for kept in &problem.kept {
        text = format!("{text}; keeps {kept}");
    }
    text
}

#[tokio::test(start_paused = true)]
async fn changes_are_reported_singly_after_the_first_set() {
    // managers 69
    let (client, queries) = server(vec![watch([
        event("ADDED", "4", pod("p")),
        all("5"),
        event("ADDED", "6", pod("q")),
        event("ADDED", "7", pod("p").namespace("other")),
        event("MODIFIED", "8", pod("p").image("i:2")),
        event("DELETED", "9", pod("p")),
        bookmark("12"),
    ])]);
    let (mut reports, source) = ApiReports::of(client);
    let expected = [
        "all [default/p]",
        "one default/q",
        "one other/p",
        "one default/p",
        "gone p_default p-uid",
    ];
    until(source, async {
        reports.check(&expected).await;
        while queries.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let queries = queries.lock();
    assert!(queries.iter().all(|query| query.starts_with(SELECTOR)));
    assert!(queries[0].contains("&sendInitialEvents=true"));
    // The next watch continues from the bookmark.
    assert!(
        queries[1].contains("&resourceVersion=12&") && !queries[1].contains("sendInitialEvents"),
        "{}",
        queries[1]
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_first_list_is_reported() {
    // managers 69
    let (client, _) = server(vec![watch([all("1")])]);
    let (mut reports, source) = ApiReports::of(client);
    until(source, reports.check(&["all []"])).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_without_streaming_lists_is_listed_page_by_page() {
    let (_, page) = list("5", [pod("p")]);
    let page = page.replace(
        r#""resourceVersion":"5""#,
        r#""resourceVersion":"5","continue":"c""#,
    );
    let (client, queries) = server(vec![
        refused(422, "Invalid"),
        (200, page),
        list("5", [pod("q")]),
        watch([event("ADDED", "6", pod("r"))]),
    ]);
    let (mut reports, source) = ApiReports::of(client);
    let expected = ["all [default/p default/q]", "one default/r"];
    until(source, reports.check(&expected)).await;
    let queries = queries.lock();
    assert_eq!(queries[1], format!("{SELECTOR}&limit=500"));
    assert_eq!(queries[2], format!("{SELECTOR}&limit=500&continue=c"));
    assert!(queries[3].contains("&resourceVersion=5&"), "{}", queries[3]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_relists() {
    let (client, queries) = server(vec![
        watch([
            event("ADDED", "4", pod("p")),
            all("5"),
            ("ERROR", refusal(410, "Expired")),
        ]),
        refused(410, "Expired"),
        watch([event("ADDED", "8", pod("q")), all("9")]),
    ]);
    let (mut reports, source) = ApiReports::of(client);
    // And nothing is said of the expiry, which is how long watches end.
    until(
        source,
        reports.check(&["all [default/p]", "all [default/q]"]),
    )
    .await;
    let queries = queries.lock();
    assert!(queries[1].contains("&resourceVersion=5&"), "{}", queries[1]);
    assert!(!queries[2].contains("&resourceVersion="), "{}", queries[2]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_and_its_end_are_reported_once() {
    let (client, _) = server(vec![
        refused(403, "Forbidden"),
        refused(403, "Forbidden"),
        refused(403, "Forbidden"),
        watch([event("ADDED", "4", pod("p")), all("5")]),
    ]);
    let (mut reports, source) = ApiReports::of(client);
    let problem = "problems [API server: failed to follow the pods of node n1: no]";
    until(
        source,
        reports.check(&[problem, "all [default/p]", "problems []"]),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_pods_are_relisted() {
    let away = || (0, String::new());
    let outage = 20;
    let mut answers = vec![watch([event("ADDED", "400", pod("p")), all("500")])];
    answers.extend(std::iter::repeat_with(away).take(outage));
    // From version 500 on it would be silent. A state older than the last seen one is requested twice.
    answers.extend([watch([all("2")]), watch([all("2")])]);
    let (client, queries) = server(answers);
    let (mut reports, source) = ApiReports::of(client);
    let start = Instant::now();
    until(source, async {
        reports.check(&["all [default/p]"]).await;
        let problem = reports.next().await;
        assert!(problem.contains("failed to follow"), "{problem}");
        reports.check(&["all []", "problems []"]).await;
    })
    .await;
    let longest = Duration::from_secs(10);
    assert!(start.elapsed() < longest * u32::try_from(outage).unwrap() + longest);
    let queries = queries.lock();
    for query in &queries[1 + outage..][..2] {
        let newest = query.contains("sendInitialEvents") && !query.contains("&resourceVersion=");
        assert!(newest, "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_a_problem_after_half_a_minute() {
    let (client, _) = server(vec![]);
    let (mut reports, source) = ApiReports::of(client);
    let start = Instant::now();
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        problem = reports.next() => assert!(problem.contains("did not answer within 30s"), "{problem}"),
    }
    assert_eq!(start.elapsed(), Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_pod_is_reported_and_keeps_its_last_copy() {
    let (client, _) = server(vec![watch([
        event("ADDED", "3", pod("p")),
        event("ADDED", "4", pod("q")),
        all("5"),
        unreadable("MODIFIED", "6", "p"),
        event("MODIFIED", "7", pod("q").image("i:2")),
        event("MODIFIED", "8", pod("p").image("i:2")),
    ])]);
    let (mut reports, source) = ApiReports::of(client);
    until(source, async {
        reports.check(&["all [default/p default/q]"]).await;
        let problem = reports.next().await;
        let expected = "problems [API server: failed to decode pod p_default, keeping its last good copy: cannot decode Pod: \
             a field has the wrong type or value at line 1 column ";
        assert!(problem.starts_with(expected), "{problem}");
        assert!(problem.ends_with("; keeps p_default]"), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
        let rest = ["one default/q", "one default/p", "problems []"];
        reports.check(&rest).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_removed_before_the_first_readable_list() {
    let (client, _) = server(vec![
        // A removed pod is not reported as gone either, because the list is incomplete.
        watch([
            event("ADDED", "3", pod("q")),
            unreadable("ADDED", "4", "p"),
            all("5"),
            event("MODIFIED", "6", pod("p")),
        ]),
        watch([
            event("ADDED", "3", pod("q")),
            event("ADDED", "6", pod("p")),
            all("7"),
        ]),
    ]);
    let (mut reports, source) = ApiReports::of(client);
    until(source, async {
        reports.check(&["one default/q"]).await;
        let problem = reports.next().await;
        assert!(problem.contains("pod p_default"), "{problem}");
        // Nothing of it has been reported.
        assert!(!problem.contains("; keeps "), "{problem}");
        let rest = ["one default/p", "problems []", "all [default/p default/q]"];
        reports.check(&rest).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_later_list_with_an_unreadable_pod_removes_missing_pods() {
    let (client, _) = server(vec![
        watch([
            event("ADDED", "2", pod("p")),
            event("ADDED", "3", pod("q")),
            event("ADDED", "4", pod("r")),
            all("5"),
            ("ERROR", refusal(410, "Expired")),
        ]),
        watch([
            unreadable("ADDED", "6", "p"),
            event("ADDED", "3", pod("q")),
            all("7"),
        ]),
    ]);
    let (mut reports, source) = ApiReports::of(client);
    let expected = [
        "all [default/p default/q default/r]",
        "one default/q",
        "gone r_default r-uid",
    ];
    until(source, reports.check(&expected)).await;
}

#[tokio::test(start_paused = true)]
async fn the_source_ends_with_its_receiver() {
    let (client, _) = server(vec![]);
    let (reports, source) = ApiReports::of(client);
    drop(reports);
    source.await;
}
