//! The requests of one watch, and their times.

use std::{ops::Range, time::Duration};

use larder::ConfigMapManager;
use tokio::time::Instant;

use crate::scripted::{Exchange, Script, Stream, object, pod, pod_with};

const LIST: &str = "sendInitialEvents=true resourceVersionMatch=NotOlderThan watch=true";
const WATCH: &str = "watch=true allowWatchBookmarks=true !sendInitialEvents !resourceVersionMatch";
const PLAIN: &str = "fieldSelector=metadata.name%3Da !watch";

/// A manager with pod `p1` registered, and the first request.
async fn started() -> (ConfigMapManager, Script, Exchange) {
    let (client, mut script) = Script::new();
    let manager = ConfigMapManager::watching(client);
    manager.register_pod(&pod("p1"));
    let request = script.next().await;
    (manager, script, request)
}

/// A manager whose object is synced at version 5.
async fn synced() -> (ConfigMapManager, Script, Stream) {
    let (manager, script, request) = started().await;
    let stream = request.synced(5, Some(&object(5, "one")));
    manager.get("n", "a").await.unwrap();
    (manager, script, stream)
}

/// The next request, which has to come within that range of seconds.
async fn next_after(script: &mut Script, seconds: Range<f64>) -> Exchange {
    let start = Instant::now();
    let request = script.next().await;
    let waited = start.elapsed().as_secs_f64();
    // Timers tick in milliseconds.
    assert!(
        waited >= seconds.start - 0.002 && waited < seconds.end + 0.002,
        "{waited} s, not {seconds:?}: {}",
        request.path_and_query
    );
    request
}

const AT_ONCE: Range<f64> = 0.0..0.001;
const FIRST_DELAY: Range<f64> = 0.8..1.6;

// managers 39
#[tokio::test(start_paused = true)]
async fn a_streaming_list_is_the_watch_as_well() {
    let (manager, mut script, request) = started().await;
    request.check(LIST).check("!resourceVersion !limit");
    let stream = request.synced(5, None);
    assert!(manager.get("n", "a").await.unwrap_err().is_not_found());
    script.silence(Duration::from_mins(1)).await;
    assert!(!stream.is_dropped());
}

// managers 39, 40
#[tokio::test(start_paused = true)]
async fn without_streaming_lists_a_plain_list_comes_before_the_watch() {
    let (manager, mut script, request) = started().await;
    request.refuse(422);
    // Upstream lists at version 0, which may be stale; B6: a new pod reads nothing older than its registration.
    let request = next_after(&mut script, AT_ONCE).await;
    request.check(PLAIN).check("limit=500 !resourceVersion");
    request.list(7, Some(&object(5, "one")));
    let stream = script.next().await;
    stream.check(WATCH).check("resourceVersion=7");
    let stream = stream.stream();
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "one");

    // The rejection is remembered: the next cycle begins with a plain list.
    stream.error(410);
    let request = next_after(&mut script, FIRST_DELAY).await;
    request.check(PLAIN).check("resourceVersion=7 !limit");
    request.list(8, Some(&object(5, "one")));
    let stream = script.next().await.stream();
    // But not forever. Reads keep the watch from idling meanwhile.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        manager.get("n", "a").await.unwrap();
    }
    stream.error(410);
    script.next().await.check(LIST);
}

#[tokio::test(start_paused = true)]
async fn streaming_list_that_fails_after_acceptance_becomes_a_plain_list() {
    let (manager, mut script, request) = started().await;
    let stream = request.stream();
    // kube-apiserver 1.36 over an etcd without progress reports.
    stream.error(500);
    let request = next_after(&mut script, AT_ONCE).await;
    request.check(PLAIN);
    request.list(7, Some(&object(5, "one")));
    script.next().await.check(WATCH);
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "one");
}

/// Answers a plain list, and the watch after it.
async fn listed(script: &mut Script) -> Stream {
    let list = script.next().await;
    list.check("!watch");
    list.list(7, None);
    let watch = script.next().await;
    watch.check(WATCH);
    watch.stream()
}

/// Has object `name` watched, which begins with a streaming list; if that `fails`, a plain one is answered.
async fn one_more(
    manager: &ConfigMapManager,
    script: &mut Script,
    name: &str,
    fails: bool,
) -> Stream {
    manager.register_pod(&pod_with(name, &[name]));
    let request = script.next().await;
    request.check(LIST);
    let watch = if fails {
        request.stream().error(500);
        listed(script).await
    } else {
        request.synced(7, None)
    };
    assert!(manager.get("n", name).await.unwrap_err().is_not_found());
    watch
}

#[tokio::test(start_paused = true)]
async fn one_failed_streaming_list_disables_no_others() {
    let (client, mut script) = Script::new();
    let manager = ConfigMapManager::watching(client);
    let mut watches = Vec::new();
    // One that succeeds shows that the others failed for reasons of their own; three in a row do not.
    for (name, fails) in [
        ("a", true),
        ("b", true),
        ("c", false),
        ("d", true),
        ("e", true),
        ("f", true),
    ] {
        watches.push(one_more(&manager, &mut script, name, fails).await);
    }
    manager.register_pod(&pod_with("g", &["g"]));
    watches.push(listed(&mut script).await);

    // After ten minutes a single one counts, until one succeeds.
    tokio::time::sleep(Duration::from_mins(10)).await;
    watches.push(one_more(&manager, &mut script, "h", true).await);
    manager.register_pod(&pod_with("i", &["i"]));
    watches.push(listed(&mut script).await);
    tokio::time::sleep(Duration::from_mins(10)).await;
    watches.push(one_more(&manager, &mut script, "j", false).await);
    watches.push(one_more(&manager, &mut script, "k", true).await);
    watches.push(one_more(&manager, &mut script, "l", false).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_initial_events_is_listed() {
    let (manager, mut script, request) = started().await;
    let _never_ending = request.stream();
    let request = next_after(&mut script, 10.0..10.01).await;
    request.check(PLAIN);
    request.list(7, Some(&object(5, "one")));
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "one");
}

// managers 41
#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_resumed_from_the_last_version() {
    let (_manager, mut script, stream) = synced().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stream.event("MODIFIED", &object(9, "two"));
    drop(stream);
    let request = next_after(&mut script, AT_ONCE).await;
    request.check(WATCH).check("resourceVersion=9");

    let stream = request.stream();
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(stream);
    let request = next_after(&mut script, FIRST_DELAY).await;
    request.check(LIST).check("resourceVersion=9");
}

#[tokio::test(start_paused = true)]
async fn streams_that_end_after_one_event_back_off() {
    let (_manager, mut script, stream) = synced().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(stream);
    let start = Instant::now();
    for version in 10..30 {
        let request = script.next().await;
        if request.path_and_query.contains("sendInitialEvents") {
            request.synced(version, None);
        } else {
            request.stream().bookmark(version);
        }
    }
    assert!(start.elapsed() > Duration::from_secs(5));
}

// managers 42
#[tokio::test(start_paused = true)]
async fn expired_watch_relists_from_its_version_then_from_any() {
    let (manager, mut script, stream) = synced().await;
    stream.error(410);
    let request = next_after(&mut script, FIRST_DELAY).await;
    request.check(LIST).check("resourceVersion=5");
    request.refuse(410);
    let request = next_after(&mut script, AT_ONCE).await;
    request.check(LIST).check("!resourceVersion");
    let mut changes = manager.subscribe();
    let _stream = request.synced(20, Some(&object(19, "two")));
    changes.next().await.unwrap();
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "two");
}

// managers 42
#[tokio::test(start_paused = true)]
async fn both_forms_of_an_expired_watch_are_handled_alike() {
    let (_manager, mut script, stream) = synced().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(stream);
    next_after(&mut script, AT_ONCE).await.refuse(410);
    let request = next_after(&mut script, FIRST_DELAY).await;
    request.check(LIST).check("resourceVersion=5");
}

// managers 43
#[tokio::test(start_paused = true)]
async fn a_bookmark_moves_the_version_to_resume_from() {
    let (_manager, mut script, stream) = synced().await;
    stream.bookmark(500);
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(stream);
    let request = next_after(&mut script, AT_ONCE).await;
    request.check(WATCH).check("resourceVersion=500");
}

// managers 44
#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_retried_with_growing_delays() {
    let (manager, mut script, stream) = synced().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(stream);
    // The exchange is dropped: connection refused.
    drop(next_after(&mut script, AT_ONCE).await);
    for delay in [0.8..1.6, 1.6..3.2, 3.2..6.4] {
        let request = next_after(&mut script, delay).await;
        // Upstream tries to resume the watch, but the server that comes back may be another one.
        request.check(LIST).check("!resourceVersion");
    }
    // The known state stays readable, and status shows how old it may be.
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "one");
    let status = &manager.objects()[0];
    assert!(status.age > Duration::from_secs(5) && status.failure.is_some());
}

/// Managed objects `a` and `b`, both synced at version 5 for a while.
async fn two() -> (ConfigMapManager, Script, [Stream; 2]) {
    let (client, mut script) = Script::new();
    let manager = ConfigMapManager::watching(client);
    let mut streams = Vec::new();
    for name in ["a", "b"] {
        manager.register_pod(&pod_with(name, &[name]));
        streams.push(script.next().await.synced(5, None));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    (manager, script, streams.try_into().ok().unwrap())
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_during_an_outage_relist() {
    let (_manager, mut script, [a, b]) = two().await;
    drop(a);
    drop(next_after(&mut script, AT_ONCE).await);
    let request = next_after(&mut script, FIRST_DELAY).await;
    let a = request.synced(5, None);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Its connection broke later than the other one, when another server was back.
    drop(b);
    let request = next_after(&mut script, AT_ONCE).await;
    request.check("fieldSelector=metadata.name%3Db");
    // What the first proved will do.
    request.check(LIST).check("resourceVersion=5");
    let _b = request.synced(5, None);
    // And then no more.
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(a);
    script.next().await.check(WATCH).check("resourceVersion=5");
}

#[tokio::test(start_paused = true)]
async fn first_success_after_an_outage_brings_other_retries_forward() {
    let (_manager, mut script, streams) = two().await;
    drop(streams);
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(5) {
        let last = Instant::now();
        drop(script.next().await);
        // One of them tries.
        assert!(last.elapsed() <= Duration::from_secs(10));
    }
    // As does a server in trouble that answers.
    script.next().await.refuse(503);
    let _first = script.next().await.synced(5, None);
    let second = next_after(&mut script, 0.0..0.01).await;
    let _second = second.synced(5, None);
    script.silence(Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn recovery_of_one_watch_does_not_shorten_anothers_retry_after() {
    for code in [429, 503] {
        let refusal =
            format!(r#"{{"kind":"Status","code":{code},"details":{{"retryAfterSeconds":100}}}}"#);
        let (_manager, mut script, [a, b]) = two().await;
        drop(b);
        next_after(&mut script, AT_ONCE)
            .await
            .answer(code, &refusal);
        drop(a);
        drop(next_after(&mut script, AT_ONCE).await);
        let request = next_after(&mut script, FIRST_DELAY).await;
        let _a = request.synced(5, None);
        script.silence(Duration::from_secs(95)).await;
        let request = script.next().await;
        request.check("fieldSelector=metadata.name%3Db");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_given_the_time_it_asks_for() {
    let (_manager, mut script, request) = started().await;
    request.answer(
        429,
        r#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":7}}"#,
    );
    // And up to half as much again, so that clients rejected together do not return together.
    next_after(&mut script, 7.0..10.5).await.check(LIST);
}

// managers 45
#[tokio::test(start_paused = true)]
async fn watches_last_between_thirty_and_sixty_minutes() {
    let (_manager, mut script, request) = started().await;
    let mut seen = vec![request.timeout_seconds()];
    let mut stream = request.synced(5, None);
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(stream);
        let request = script.next().await;
        seen.push(request.timeout_seconds());
        stream = request.stream();
    }
    assert!(
        seen.iter().all(|seconds| (1800..3600).contains(seconds)),
        "{seen:?}"
    );
    assert!(seen.iter().any(|seconds| *seconds != seen[0]));
}

#[tokio::test(start_paused = true)]
async fn the_client_ends_and_reopens_an_overdue_watch() {
    let (manager, mut script, request) = started().await;
    let _stream = request.synced(5, None);
    // Reads keep it from being stopped as idle meanwhile.
    let read = async {
        loop {
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert!(manager.get("n", "a").await.unwrap_err().is_not_found());
        }
    };
    tokio::select! {
        () = read => {}
        request = next_after(&mut script, 1830.0..3630.0) => {
            request.check(WATCH).check("resourceVersion=5");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn server_behind_the_version_is_asked_for_the_newest() {
    let (_manager, mut script, stream) = synced().await;
    stream.event(
        "ERROR",
        r#"{"kind":"Status","code":504,"message":"Too large","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#,
    );
    let request = next_after(&mut script, AT_ONCE).await;
    request.check(LIST).check("!resourceVersion");
}

// B14
#[tokio::test(start_paused = true)]
async fn a_restored_server_is_believed_the_second_time() {
    let (manager, mut script, stream) = synced().await;
    stream.event(
        "ERROR",
        r#"{"kind":"Status","code":504,"message":"Too large","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#,
    );
    let _first = script.next().await.synced(3, Some(&object(2, "restored")));
    let request = next_after(&mut script, FIRST_DELAY).await;
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "one");
    let mut changes = manager.subscribe();
    let _second = request.synced(3, Some(&object(2, "restored")));
    changes.next().await.unwrap();
    assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "restored");
}

// managers 35
#[tokio::test(start_paused = true)]
async fn a_rejection_is_the_cause_of_the_failed_read() {
    let (manager, mut script, request) = started().await;
    request.refuse(403);
    let refuse = async {
        loop {
            script.next().await.refuse(403);
        }
    };
    let start = Instant::now();
    let error = tokio::select! {
        () = refuse => unreachable!("rejects forever"),
        read = manager.get("n", "a") => read.unwrap_err(),
    };
    assert_eq!(start.elapsed().as_secs(), 1);
    assert_eq!(
        error.to_string(),
        "failed to sync configmap cache: timed out waiting for the condition"
    );
    // Upstream hides the cause; B2: it is kept.
    assert!(error.is_forbidden());
    assert_eq!(error.request().unwrap().to_string(), "refused with 403");
}

#[tokio::test(start_paused = true)]
async fn permission_that_arrives_after_binding_costs_no_failed_read() {
    let (manager, mut script, request) = started().await;
    request.refuse(403);
    let (read, ()) = tokio::join!(manager.get("n", "a"), async {
        next_after(&mut script, 0.1..0.2).await.refuse(403);
        next_after(&mut script, 0.2..0.4)
            .await
            .synced(5, Some(&object(5, "one")));
    });
    assert_eq!(read.unwrap().data["k"], "one");
}
