//! The source against a server that answers from a script.

use std::{collections::VecDeque, convert::Infallible, future, sync::Arc};

use http::{Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::pods::{
    source::SourceEvent,
    testing::{PodBuilder, pod},
};

/// A client of a server that gives `answers` in turn, then none any more; and the queries that it was sent.
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
            let mut response = Response::new(Body::from(body.into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok::<_, Infallible>(response)
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

fn expired() -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410});
    (410, status)
}

/// What the source reports, one word per report.
struct Reports(mpsc::Receiver<SourceReport>);

impl Reports {
    fn of(client: Client) -> (Self, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(16);
        (Self(receiver), ApiSource::new(client, "n1").run(sender))
    }

    async fn next(&mut self) -> String {
        let report = self.0.recv().await.unwrap();
        assert_eq!(report.source, PodSource::Api);
        let name = |pod: &Pod| {
            let full_name = FullName::of(pod);
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
                let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
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

#[tokio::test(start_paused = true)]
async fn first_all_pods_then_each_change_by_itself() {
    // managers 69
    let (client, queries) = server(vec![
        list("5", [pod("p")]),
        watch([
            event("ADDED", "6", pod("q")),
            event("ADDED", "7", pod("p").namespace("other")),
            event("MODIFIED", "8", pod("p").image("i:2")),
            event("DELETED", "9", pod("p")),
            (
                "BOOKMARK",
                json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "12"}}),
            ),
        ]),
    ]);
    let (mut reports, source) = Reports::of(client);
    let expected = [
        "all [default/p]",
        "one default/q",
        "one other/p",
        "one default/p",
        "gone p_default p-uid",
    ];
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        () = async {
            reports.check(&expected).await;
            while queries.lock().len() < 3 {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    let queries = queries.lock();
    let selector = "fieldSelector=spec.nodeName%3Dn1";
    assert_eq!(queries[0], format!("{selector}&resourceVersion=0"));
    assert!(queries[1].contains("&resourceVersion=5&"), "{}", queries[1]);
    // The next watch goes on from the bookmark.
    assert!(
        queries[2].contains("&resourceVersion=12&"),
        "{}",
        queries[2]
    );
    assert!(queries.iter().all(|query| query.starts_with(selector)));
}

#[tokio::test(start_paused = true)]
async fn an_empty_first_list_is_reported() {
    // managers 69
    let (client, _) = server(vec![list("1", [])]);
    let (mut reports, source) = Reports::of(client);
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        () = reports.check(&["all []"]) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_lists_again_from_the_most_recent_state() {
    let (client, queries) = server(vec![
        list("5", [pod("p")]),
        watch([("ERROR", expired().1)]),
        list("9", [pod("q")]),
    ]);
    let (mut reports, source) = Reports::of(client);
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        () = reports.check(&["all [default/p]", "all [default/q]"]) => {}
    }
    assert!(!queries.lock()[2].contains("resourceVersion"));
}

#[tokio::test(start_paused = true)]
async fn a_server_in_trouble_is_told_once_and_recovery_too() {
    let refused = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "no", "reason": "Forbidden", "code": 403});
    let refused = (403, refused.to_string());
    let (client, _) = server(vec![
        refused.clone(),
        refused.clone(),
        refused,
        list("1", [pod("p")]),
    ]);
    let (mut reports, source) = Reports::of(client);
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        () = async {
            let problem = reports.next().await;
            assert!(problem.contains("API server: failed to list the pods of node n1"), "{problem}");
            reports.check(&["all [default/p]", "problems []"]).await;
        } => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_told_after_half_a_minute() {
    let (client, _) = server(vec![]);
    let (mut reports, source) = Reports::of(client);
    let start = Instant::now();
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        problem = reports.next() => assert!(problem.contains("did not answer within 30s"), "{problem}"),
    }
    assert_eq!(start.elapsed(), REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn the_source_ends_with_its_receiver() {
    let (client, _) = server(vec![]);
    let (reports, source) = Reports::of(client);
    drop(reports);
    source.await;
}
