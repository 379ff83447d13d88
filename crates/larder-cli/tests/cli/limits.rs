//! Limits of the system, and what a start meets before the agent is there.

use std::{fs, os::unix::fs::chown, process::Command, time::Duration};

use larder_e2e::rounds;
use rustix::process::{Pid, Resource, getrlimit, prlimit};
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    Desk,
    exec::larder_for_everybody,
    fake_agent::is_root,
    run::{Agent, ask, config_map, desk, key, pod, put, until},
};

/// A user that no program of the machine needs.
const USER: u32 = 65534;
/// More than a thread that has nothing to do is usually kept.
const IDLE: Duration = Duration::from_secs(16);

/// Sets the soft limit of files' sizes of another process; `None` is that of this one.
fn limit_files(process: Pid, bytes: Option<u64>) {
    let mut limit = getrlimit(Resource::Fsize);
    limit.current = bytes.or(limit.current);
    prlimit(Some(process), Resource::Fsize, limit).unwrap();
}

/// Sets the soft limit of processes and threads of [`USER`] for a process of that user.
fn limit_threads(process: Pid, to: &str) {
    let (pid, limit) = (
        process.as_raw_nonzero().to_string(),
        format!("--nproc={to}:"),
    );
    let mut prlimit = of_user();
    prlimit.args(["prlimit", "--pid", &pid, &limit]);
    assert!(prlimit.status().unwrap().success());
}

/// A command that [`USER`] runs. Not by the standard library's way, whose processes keep the groups of root.
fn of_user() -> Command {
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// `larder`, run by [`USER`], who has the directory `root` of the desk.
fn larder_of_user(desk: &Desk, before: &str) -> Command {
    let larder = larder_for_everybody(desk);
    fs::create_dir(desk.path().join("root")).unwrap();
    chown(desk.path().join("root"), Some(USER), Some(USER)).unwrap();
    let mut command = of_user();
    command
        .args(["sh", "-c", &format!("{before}exec \"$0\" \"$@\"")])
        .arg(larder);
    command
}

/// The agent's status.
fn status(desk: &Desk) -> Value {
    let (_, text) = ask(desk, "GET /status HTTP/1.0\r\n\r\n");
    serde_json::from_str(&text).unwrap()
}

/// The text at a path in the status of a pod.
fn text_of(desk: &Desk, pod: &str, path: &str) -> String {
    let status = status(desk);
    let pods = status["pods"].as_array().unwrap();
    let pod = pods.iter().find(|found| found["name"] == pod).unwrap();
    let text = pod.pointer(path).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

// Attack: the user may start no more processes and threads, once the agent has nothing to do.
#[tokio::test]
async fn agent_that_may_start_no_thread_goes_on_and_says_what_fails() {
    if !is_root() {
        return;
    }
    let desk = desk();
    let hook = "onChange: [{name: h, pods: [default/web], exec: [/bin/true], debounce: 0s, retry: {min: 1s, max: 1s}}]\n";
    fs::write(desk.path().join("agent.yaml"), hook).unwrap();
    let origin = "--manifests m --node-name n1 --config agent.yaml";
    let mut agent = Agent::spawn(&desk, larder_of_user(&desk, ""), origin);
    agent.summary();
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    let log = agent.collect_log();
    if rounds(1) > 1 {
        sleep(IDLE).await;
    }
    limit_threads(agent.pid(), "1");
    let names: Vec<_> = (0..6).map(|number| format!("more-{number}")).collect();
    for name in &names {
        put(&desk, &format!("{name}.yaml"), &pod(name, "app"));
    }
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    let all = || names.iter().map(String::as_str).chain(["web"]);
    let is_new = |name: &str| key(&desk, name, "a").as_deref() == Some("2");
    until("the edit and the pods", || all().all(is_new)).await;
    let reason = || text_of(&desk, "web", "/onChange/0/reason");
    let refused = "Resource temporarily unavailable";
    until("the reason", || reason().contains(refused)).await;
    limit_threads(agent.pid(), "65536");
    until("the hook", || reason().is_empty()).await;
    assert_eq!(ask(&desk, "GET /healthz HTTP/1.0\r\n\r\n").0, "200");
    assert!(!log.lock().contains("panicked"), "{}", log.lock());
}

// Attack: no file may grow beyond a limit, and one object does.
#[tokio::test]
async fn file_over_the_limit_fails_and_the_agent_goes_on() {
    let desk = desk();
    put(&desk, "large.yaml", &config_map("large", "a: '1'"));
    put(&desk, "two.yaml", &pod("two", "large"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    until("the volume", || key(&desk, "two", "a").is_some()).await;
    let log = agent.collect_log();
    limit_files(agent.pid(), Some(64 << 10));
    let large = format!("a: '{}'", "x".repeat(100 << 10));
    put(&desk, "large.yaml", &config_map("large", &large));
    let reason = || text_of(&desk, "two", "/reason");
    until("the reason", || reason().contains("File too large")).await;
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    until("the other edit", || {
        key(&desk, "web", "a").as_deref() == Some("2")
    })
    .await;
    assert_eq!(key(&desk, "two", "a").as_deref(), Some("1"));
    limit_files(agent.pid(), None);
    until("the large file", || {
        key(&desk, "two", "a").is_some_and(|text| text.len() == 100 << 10)
    })
    .await;
    assert_eq!(agent.ended(), None, "{}", log.lock());
}

// Attack: a umask that takes every right away, also from this user.
#[tokio::test]
async fn agent_enters_what_it_has_created_whatever_the_umask() {
    if !is_root() {
        return;
    }
    let desk = desk();
    let command = larder_of_user(&desk, "umask 0777; ");
    let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
    agent.summary();
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    until("the edit", || {
        key(&desk, "web", "a").as_deref() == Some("2")
    })
    .await;
}

/// A kubeconfig whose plugin says when it runs, and prints nothing before it may.
const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: Never
      command: sh
      args:
      - -c
      - 'touch started; until [ -e go ]; do sleep 0.01; done; echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}"'
"#;

// Attack: a credential plugin that hangs at the start; and a reload that is asked for meanwhile.
#[tokio::test]
async fn health_is_answered_and_a_hang_up_survived_while_credentials_are_awaited() {
    let desk = Desk::with([("kubeconfig", KUBECONFIG)]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear().env("PATH", "/usr/bin:/bin");
    let mut agent = Agent::spawn(&desk, command, "--kubeconfig kubeconfig --node-name n1");
    until("the plugin", || desk.path().join("started").exists()).await;
    assert_eq!(
        ask(&desk, "GET /healthz HTTP/1.0\r\n\r\n"),
        ("200".to_owned(), "ok\n".to_owned())
    );
    let (status, text) = ask(&desk, "GET /readyz HTTP/1.0\r\n\r\n");
    assert_eq!(status, "503");
    assert!(
        text.starts_with("the agent waits for its credentials"),
        "{text}"
    );
    agent.hang_up();
    fs::write(desk.path().join("go"), "").unwrap();
    // It waits for the agent.
    assert_eq!(ask(&desk, "GET /status HTTP/1.0\r\n\r\n").0, "200");
    assert_eq!(agent.signal(rustix::process::Signal::TERM), Some(0));
}
