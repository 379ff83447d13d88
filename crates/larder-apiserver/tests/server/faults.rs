//! Injected faults, and the audit records of such requests.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use larder_apiserver::{ApiServer, AuditLog, Fault, Options, Verb};
use serde_json::json;

fn server() -> ApiServer {
    ApiServer::new(Options::default().audit(AuditLog::in_memory()))
}

fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::default_namespaced(Client::new(server.service(), "default"))
}

fn put(server: &ApiServer, name: &str, value: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}});
    server.apply(&map).unwrap();
}

fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> u16 {
    match result.unwrap_err() {
        kube::Error::Api(status) => status.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_fault_strikes_selected_requests_a_given_number_of_times() {
    let server = server();
    let secrets: Api<Secret> = Api::default_namespaced(Client::new(server.service(), "default"));
    let fault = Fault::on(Verb::Watch)
        .resource("secrets")
        .name("s1")
        .times(2)
        .status(403);
    let injected = server.faults().inject(fault);
    let named = |name: &str| WatchParams::default().fields(&format!("metadata.name={name}"));
    assert!(secrets.watch(&named("s2"), "0").await.is_ok());
    assert!(
        secrets
            .list(&ListParams::default().fields("metadata.name=s1"))
            .await
            .is_ok()
    );
    for _ in 0..2 {
        assert_eq!(
            code(secrets.watch(&named("s1"), "0").await.map(|_| ())),
            403
        );
    }
    assert!(secrets.watch(&named("s1"), "0").await.is_ok());
    assert_eq!(injected.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn faults_strike_until_they_are_lifted() {
    let server = server();
    let injected = server
        .faults()
        .inject(Fault::on(Verb::List).retry_after(429, 7));
    let request = http::Request::get("/api/v1/configmaps")
        .body(String::new())
        .unwrap();
    let mut service = server.service();
    let response = tower_service::Service::call(&mut service, request)
        .await
        .unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "7");
    assert_eq!(code(maps(&server).list(&ListParams::default()).await), 429);
    injected.lift();
    assert!(maps(&server).list(&ListParams::default()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_streaming_lists_can_be_rejected() {
    // managers 40
    let server = server();
    server
        .faults()
        .inject(Fault::on(Verb::Watch).streaming_list().status(422));
    let streaming = WatchParams::default().initial_events();
    assert_eq!(
        code(maps(&server).watch(&streaming, "").await.map(|_| ())),
        422
    );
    assert!(
        maps(&server)
            .watch(&WatchParams::default(), "0")
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn answers_are_delayed_withheld_or_replaced_by_a_broken_connection() {
    let server = server();
    let faults = server.faults();
    faults.inject(Fault::on(Verb::List).times(1).delay(Duration::from_mins(2)));
    let begun = tokio::time::Instant::now();
    maps(&server).list(&ListParams::default()).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_mins(2));

    faults.inject(Fault::on(Verb::List).times(1).never_answer());
    let api = maps(&server);
    let params = ListParams::default();
    let silent = tokio::time::timeout(Duration::from_hours(1), api.list(&params));
    assert!(silent.await.is_err());

    faults.inject(Fault::on(Verb::List).times(1).drop_connection());
    let error = maps(&server)
        .list(&ListParams::default())
        .await
        .unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn streams_break_between_and_amid_events() {
    let server = server();
    for name in ["a", "b", "c"] {
        put(&server, name, "1");
    }
    let params = WatchParams::default();
    let events = async |fault: Fault| {
        let injected = server.faults().inject(fault);
        let stream = maps(&server).watch(&params, "0").await.unwrap();
        let events = stream.collect::<Vec<_>>().await;
        injected.lift();
        let whole = events
            .iter()
            .filter(|event| matches!(event, Ok(WatchEvent::Added(_))))
            .count();
        let end = events.into_iter().skip(whole).map(|event| match event {
            Ok(WatchEvent::Error(status)) => format!("error {}", status.code),
            Ok(other) => panic!("{other:?}"),
            Err(_) => "broken".to_owned(),
        });
        format!("{whole} {}", end.collect::<Vec<_>>().join(" "))
    };
    let watch = || Fault::on(Verb::Watch).resource("configmaps");
    assert_eq!(events(watch().cut_after_events(2)).await, "2 broken");
    assert_eq!(events(watch().cut_after_bytes(20)).await, "0 broken");
    assert_eq!(
        events(watch().error_after_events(1, 410)).await,
        "1 error 410"
    );
    assert_eq!(events(watch().end_after_events(3)).await, "3 ");
}

#[tokio::test(start_paused = true)]
async fn delivery_is_held_back_and_open_watches_are_cut() {
    let server = server();
    let stream = maps(&server)
        .watch(&WatchParams::default().disable_bookmarks(), "0")
        .await
        .unwrap();
    let mut stream = stream.boxed();
    let paused = server.faults().pause_delivery();
    put(&server, "a", "1");
    let held = tokio::time::timeout(Duration::from_mins(1), stream.try_next());
    assert!(held.await.is_err());
    drop(paused);
    assert!(matches!(
        stream.try_next().await.unwrap(),
        Some(WatchEvent::Added(_))
    ));
    server.faults().cut_watches();
    assert!(stream.try_next().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn every_request_is_recorded_and_a_watch_while_it_runs() {
    let server = server();
    put(&server, "a", "hunter2");
    let api = maps(&server);
    api.get("a").await.unwrap();
    let _running = api
        .watch(&WatchParams::default().fields("metadata.name=a"), "0")
        .await
        .unwrap();
    let _ = api.get("missing").await;
    let records = server.audit().take();
    let lines: Vec<_> = records
        .iter()
        .map(|record| format!("{} {} {}", record.verb, record.path, record.status))
        .collect();
    assert_eq!(
        lines,
        [
            "get /api/v1/namespaces/default/configmaps/a 200",
            "watch /api/v1/namespaces/default/configmaps 200",
            "get /api/v1/namespaces/default/configmaps/missing 404",
        ]
    );
    assert!(
        records[1].query.contains("fieldSelector=metadata.name%3Da"),
        "{}",
        records[1].query
    );
    assert!(!format!("{records:?}").contains("hunter2"));
}

#[derive(Clone, Default)]
struct Lines(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_is_one_json_object_per_line() {
    let lines = Lines::default();
    let server = ApiServer::new(Options::default().audit(AuditLog::to_writer(lines.clone())));
    maps(&server).list(&ListParams::default()).await.unwrap();
    maps(&server)
        .list(&ListParams::default().limit(1))
        .await
        .unwrap();
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let records: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.len(), 2);
    for field in ["time", "verb", "path", "query", "user_agent", "status"] {
        assert!(records[0].get(field).is_some(), "{field}");
    }
    assert_eq!(records[1]["verb"], "list");
}
