//! Limits of the system, and what a start meets before the agent is there.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

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

/// A configuration in this directory, with a hook that runs a program: the arguments with it.
fn with_hook(directory: &Path) -> String {
    let config = directory.join("agent.yaml");
    let hook = "onChange: [{name: h, pods: [default/web], exec: [/bin/true], debounce: 0s, retry: {min: 1s, max: 1s}}]\n";
    fs::write(&config, hook).unwrap();
    format!("--manifests m --node-name n1 --config {}", config.display())
}

/// Once the agent has nothing to do, `limit` sets that no process and no thread may be started, or that they may. What
/// needs none goes on; what does says why it fails, until it may.
async fn goes_on_without_threads(desk: &Desk, mut agent: Agent<'_>, limit: impl Fn(bool)) {
    agent.summary();
    until("the volume", || key(desk, "web", "a").is_some()).await;
    let log = agent.collect_log();
    if rounds(1) > 1 {
        sleep(IDLE).await;
    }
    limit(true);
    let names: Vec<_> = (0..6).map(|number| format!("more-{number}")).collect();
    for name in &names {
        put(desk, &format!("{name}.yaml"), &pod(name, "app"));
    }
    put(desk, "app.yaml", &config_map("app", "a: '2'"));
    let all = || names.iter().map(String::as_str).chain(["web"]);
    let is_new = |name: &str| key(desk, name, "a").as_deref() == Some("2");
    until("the edit and the pods", || all().all(is_new)).await;
    let reason = || text_of(desk, "web", "/onChange/0/reason");
    let refused = "Resource temporarily unavailable";
    until("the reason", || reason().contains(refused)).await;
    limit(false);
    until("the hook", || reason().is_empty()).await;
    assert_eq!(ask(desk, "GET /healthz HTTP/1.0\r\n\r\n").0, "200");
    assert!(!log.lock().contains("panicked"), "{}", log.lock());
}

// Attack: the user may start no more processes and threads.
#[tokio::test]
async fn agent_of_a_user_that_may_start_no_thread_goes_on() {
    if !is_root() {
        return;
    }
    let desk = desk();
    let agent = Agent::spawn(&desk, larder_of_user(&desk, ""), &with_hook(desk.path()));
    let pid = agent.pid();
    let limit = |none: bool| limit_threads(pid, if none { "1" } else { "65536" });
    goes_on_without_threads(&desk, agent, limit).await;
}

// Attack: the user may start no more processes and threads.
#[test]
fn comparison_of_a_user_that_may_start_no_thread_is_complete() {
    if !is_root() {
        return;
    }
    let pod = pod("web", "app");
    let desk = Desk::with([
        (
            "a.yaml",
            &*format!("{pod}---\n{}", config_map("app", "a: '1'")),
        ),
        (
            "b.yaml",
            &format!("{pod}---\n{}", config_map("app", "a: '2'")),
        ),
    ]);
    let larder = larder_for_everybody(&desk);
    let output = of_user()
        .args(["prlimit", "--nproc=1"])
        .arg(larder)
        .args(["diff", "--from-file", "a.yaml", "--to-file", "b.yaml"])
        .current_dir(desk.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("default/web"), "{text}");
    assert!(output.stderr.is_empty(), "{text}");
}

/// A control group that bounds the number of threads.
struct ThreadGroup(PathBuf);

impl ThreadGroup {
    /// `None` where none can be made.
    fn new() -> Option<Self> {
        // Of the first version; in the second one, the root may have the controller.
        let hierarchies = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let hierarchy = hierarchies.into_iter().find(|path| path.exists())?;
        let group = Self(hierarchy.join(format!("larder-test-{}", std::process::id())));
        let made = fs::create_dir(&group.0).is_ok() && group.0.join("pids.max").exists();
        if !made {
            // Straight to the stream, which no test runner holds back.
            let _ = io::stderr().write_all(b"SKIPPED: no control group that bounds threads\n");
        }
        made.then_some(group)
    }

    fn set(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        // It has no process any more.
        let _ = fs::remove_dir(&self.0);
    }
}

// Attack: the control group of an agent of root, which no limit of users holds, is full.
#[tokio::test]
async fn agent_in_a_full_control_group_goes_on() {
    if !is_root() {
        return;
    }
    let Some(group) = ThreadGroup::new() else {
        return;
    };
    let desk = desk();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    // Only root can write to it, and to the directories above.
    let config = tempfile::tempdir_in("/run").unwrap();
    let agent = Agent::spawn(&desk, command, &with_hook(config.path()));
    group.set("cgroup.procs", &agent.pid().as_raw_nonzero().to_string());
    let limit = |none: bool| group.set("pids.max", if none { "1" } else { "max" });
    goes_on_without_threads(&desk, agent, limit).await;
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
