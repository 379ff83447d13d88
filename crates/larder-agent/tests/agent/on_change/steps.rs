//! Real commands and requests: from the change of an object to the running process, and to the listener.

use std::fs;

use larder_agent::agent::PodDeletion;
use larder_e2e::{own_address, reserved_port};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
};

use super::harness::configured;
use crate::{
    api::get,
    harness::{Node, config_map, pod},
};

const RELOAD: &str = "reload";
/// Retries that a test can wait for.
const RETRY: &str = "debounce: 0s, retry: {min: 10ms, max: 20ms}";

fn edit(node: &Node, text: &str) {
    node.apply(&config_map("a", &[("f", text)]));
}

/// Creates the pod, and waits for its volume and its hook.
async fn created(node: &Node, pod: &Value) {
    edit(node, "0");
    node.apply(pod);
    node.until("web", "a", &[("f", "0")]).await;
    node.wait("the hook", |node| node.hook("web", RELOAD)).await;
}

/// Waits until the hook has succeeded for the present content.
async fn until_notified(node: &Node, text: &str) {
    node.until("web", "a", &[("f", text)]).await;
    node.wait("the hook to succeed", |node| {
        let hook = node.hook("web", RELOAD)?;
        (hook.state == "Idle" && hook.last_success.is_some()).then_some(())
    })
    .await;
}

/// Waits until the hook has failed for this reason.
async fn failed(node: &Node, reason: &str) {
    node.wait(&format!("the failure {reason:?}"), |node| {
        let hook = node.hook("web", RELOAD)?;
        (hook.attempts > 0 && hook.reason == reason).then_some(())
    })
    .await;
}

// on-change 32, 42
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_commands_run_in_order_and_get_the_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (go, log) = (folder.path().join("go"), folder.path().join("log"));
    let script = "{ echo $LARDER_NAMESPACE/$LARDER_POD $LARDER_HOOK $LARDER_VOLUMES $LARDER_REASON
        cat $LARDER_CHANGES; echo; echo $LARDER_ATTEMPT; echo ${CARGO_PKG_NAME-none} $OWN; } >> $1";
    let steps = json!([
        {"exec": ["test", "-e", go]},
        {"exec": {"command": ["sh", "-c", script, "sh", log], "env": {"OWN": "own"}}},
    ]);
    let mut node = Node::prepare();
    let hook = format!("[{{name: {RELOAD}, steps: {steps}, {RETRY}}}]");
    node.on_change.hooks = vec![configured(&hook)];
    node.run();
    created(&node, &pod("web").config_map("a", "a").build()).await;
    edit(&node, "1");
    failed(&node, "exit status 1").await;
    assert!(!log.exists(), "the second step ran");
    fs::write(&go, "").unwrap();
    until_notified(&node, "1").await;
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let [what, changes, attempt, own] = lines.as_slice() else {
        panic!("it ran more than once: {text}");
    };
    assert_eq!(*what, "default/web reload a volumes");
    let changes: Value = serde_json::from_str(changes).unwrap();
    let directory = node.volume_path("web", "a").unwrap();
    let expected = json!([{"name": "a", "directory": directory, "added": [], "changed": ["f"], "removed": []}]);
    assert_eq!(changes["volumes"], expected);
    assert!(attempt.parse::<u32>().unwrap() > 1, "{attempt}");
    assert_eq!(*own, "none own", "a variable of the agent's own");
    let metrics = node.metrics();
    for line in [
        "on_change_runs_total{action=\"exec\",outcome=\"succeeded\"} 2",
        "on_change_last_failed 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

// on-change 9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_of_a_command_are_not_expanded() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let words = json!([
        "sh",
        "-c",
        "printf '%s\n' \"$@\" \"$LARDER_VOLUMES\" > $0",
        log,
        "$LARDER_POD",
        "*"
    ]);
    let hook = format!("[{{name: {RELOAD}, exec: {words}, {RETRY}}}]");
    let mut node = Node::prepare();
    node.on_change.hooks = vec![configured(&hook)];
    node.run();
    created(&node, &pod("web").config_map("a", "a").build()).await;
    edit(&node, "1");
    until_notified(&node, "1").await;
    assert_eq!(fs::read_to_string(&log).unwrap(), "$LARDER_POD\n*\na\n");
}

// on-change 30
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_change_is_tried_at_once_after_a_command_has_failed() {
    let mut node = Node::prepare();
    node.on_change.key_dirs = vec![node.memory().to_owned()];
    // Its next retry would be due in half an hour at the earliest.
    let hook = |volume: &str| {
        let script = "grep -q good $0 || { echo no good; exit 1; }";
        let words = json!(["sh", "-c", script, format!("{volume}/f")]);
        format!(
            "[{{name: {RELOAD}, exec: {{command: {words}, logOutput: true}}, debounce: 0s, retry: {{min: 1h, max: 1h}}}}]"
        )
    };
    node.run();
    edit(&node, "0");
    node.apply(&pod("web").config_map("a", "a").build());
    node.until("web", "a", &[("f", "0")]).await;
    let volume = node.volume_path("web", "a").unwrap();
    node.on_change.hooks = vec![configured(&hook(volume.to_str().unwrap()))];
    node.reload();
    node.wait("the hook", |node| node.hook("web", RELOAD)).await;
    edit(&node, "bad");
    failed(&node, "exit status 1").await;
    let output = || node.hook("web", RELOAD).unwrap().output;
    assert_eq!(output(), "no good");
    // Clients that need no permission do not see it.
    assert!(
        get(node.socket_api(), "/status")
            .await
            .1
            .contains("no good")
    );
    let (_, shown) = get(node.http_api(), "/status").await;
    assert!(
        shown.contains(RELOAD) && !shown.contains("no good"),
        "{shown}"
    );
    edit(&node, "good");
    until_notified(&node, "good").await;
    assert_eq!(output(), "");
    // The newer content is recorded: a restart fires nothing.
    node.stop().await;
    node.run();
    node.wait("the hook", |node| node.hook("web", RELOAD)).await;
    let hook = node.hook("web", RELOAD).unwrap();
    assert_eq!((hook.state.as_str(), hook.attempts), ("Idle", 0));
}

/// A pod with this address and the port `metrics`, whose annotation requests a POST.
fn asked(ip: &str, port: u16) -> Value {
    let hook =
        format!("[{{name: {RELOAD}, http: {{port: metrics, path: /-/reload}}, debounce: 0s}}]");
    let mut web = pod("web")
        .config_map("a", "a")
        .annotation("larder.dev/on-change", &hook)
        .build();
    web["spec"]["containers"][0]["ports"] = json!([{"name": "metrics", "containerPort": port}]);
    web["spec"]["hostNetwork"] = json!(true);
    web["status"] = json!({"podIPs": [{"ip": ip}]});
    web
}

/// Answers one request with `status`; the head of the request.
async fn answer(listener: &TcpListener, status: &str) -> Vec<String> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut head = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.is_empty() {
            break;
        }
        head.push(line);
    }
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
    let mut stream = lines.into_inner();
    stream.write_all(answer.as_bytes()).await.unwrap();
    head
}

fn round(head: &[String]) -> &str {
    let mut rounds = head.iter().filter_map(|line| line.split_once(": "));
    let found = rounds.find(|(name, _)| name.eq_ignore_ascii_case("larder-round"));
    found.expect("a request names its round").1
}

fn external() -> Node {
    let mut node = Node::prepare();
    node.pod_deletion = PodDeletion::External;
    node
}

// on-change 29, 48
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_goes_to_the_pods_own_address_until_it_succeeds() {
    let Some(ip) = own_address() else { return };
    let port = reserved_port().unwrap();
    let listener = TcpListener::bind((ip.as_str(), port)).await.unwrap();
    let mut node = external();
    node.run();
    created(&node, &asked(&ip, port)).await;
    edit(&node, "1");
    let first = answer(&listener, "503 Not Yet").await;
    assert_eq!(first[0], "POST /-/reload HTTP/1.1");
    let second = answer(&listener, "200 OK").await;
    assert_eq!(first, second, "a retry has the same round");
    until_notified(&node, "1").await;
    // Nothing listens for a while. Deliveries continue, and the pod is notified of the last content in the end.
    drop(listener);
    edit(&node, "2");
    node.wait("a failure", |node| {
        let hook = node.hook("web", RELOAD)?;
        (hook.attempts > 1).then_some(())
    })
    .await;
    edit(&node, "3");
    node.until("web", "a", &[("f", "3")]).await;
    let listener = TcpListener::bind((ip.as_str(), port)).await.unwrap();
    let third = answer(&listener, "204 No Content").await;
    assert_ne!(round(&first), round(&third), "another round");
    // If that one began before the agent had taken in the last content, a further one follows.
    let others = async {
        loop {
            answer(&listener, "204 No Content").await;
        }
    };
    tokio::select! {
        () = until_notified(&node, "3") => {}
        () = others => {}
    }
}

// on-change 12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirect_is_a_failure_and_is_not_followed() {
    let Some(ip) = own_address() else { return };
    let listener = TcpListener::bind((ip.as_str(), 0)).await.unwrap();
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut node = external();
    node.run();
    created(&node, &asked(&ip, port)).await;
    edit(&node, "1");
    let to = elsewhere.local_addr().unwrap();
    let redirect = format!("307 Temporary Redirect\r\nlocation: http://{to}/");
    answer(&listener, &redirect).await;
    node.wait("the failure", |node| {
        let reason = node.hook("web", RELOAD)?.reason;
        reason
            .ends_with("answered 307; redirects are not followed")
            .then_some(())
    })
    .await;
    answer(&listener, "200 OK").await;
    until_notified(&node, "1").await;
    elsewhere.into_std().unwrap().accept().unwrap_err();
}

// on-change 11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_that_claims_a_loopback_address_gets_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut node = external();
    node.run();
    created(&node, &asked("127.0.0.1", port)).await;
    edit(&node, "1");
    node.wait("two failures", |node| {
        let hook = node.hook("web", RELOAD)?;
        (hook.attempts > 1 && hook.reason.contains("127.0.0.1")).then_some(())
    })
    .await;
    listener.into_std().unwrap().accept().unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_with_a_network_of_its_own_does_not_reach_the_machine() {
    let Some(ip) = own_address() else { return };
    let mut node = external();
    node.run();
    let mut web = asked(&ip, 1);
    web["spec"]["hostNetwork"] = json!(false);
    created(&node, &web).await;
    edit(&node, "1");
    let reason = format!("{ip} is an address of this machine, whose network the pod does not use");
    node.wait("the failure", |node| {
        let hook = node.hook("web", RELOAD)?;
        hook.reason.contains(&reason).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_request_goes_to_its_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://{}/hook?token=hunter2",
        listener.local_addr().unwrap()
    );
    let hook = format!("[{{name: {RELOAD}, http: {{url: '{url}', method: PUT}}, {RETRY}}}]");
    let mut node = external();
    node.on_change.hooks = vec![configured(&hook)];
    node.run();
    created(&node, &pod("web").config_map("a", "a").build()).await;
    edit(&node, "1");
    let head = answer(&listener, "500 Broken").await;
    assert_eq!(head[0], "PUT /hook?token=hunter2 HTTP/1.1");
    // on-change 53
    let reason = node.wait("the failure", |node| {
        let hook = node.hook("web", RELOAD)?;
        hook.reason.ends_with("answered 500").then_some(hook.reason)
    });
    let reason = reason.await;
    assert!(!reason.contains("hunter2"), "{reason}");
    answer(&listener, "200 OK").await;
    until_notified(&node, "1").await;
    let status = format!("{:?}", node.status());
    assert!(!status.contains("hunter2"), "{status}");
}
