//! `larder run --manifests`, from outside: what a newcomer does, and what goes wrong.

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{Desk, Run};

/// Longest that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// An agent that is ended with the test, on the directory `m` of a desk, with the root directory `root`.
pub(crate) struct Agent<'a> {
    desk: &'a Desk,
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// `None` once a thread collects it.
    log: Option<Lines<BufReader<ChildStderr>>>,
}

impl<'a> Agent<'a> {
    pub(crate) fn start(desk: &'a Desk) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.env_clear();
        Self::spawn(desk, command, "--manifests m --node-name n1")
    }

    /// Starts `command`, which is or becomes `larder`, with the API server that `origin` names.
    pub(crate) fn spawn(desk: &'a Desk, command: Command, origin: &str) -> Self {
        Self::spawn_silent(desk, command, &format!("{origin} --listen 127.0.0.1:0"))
    }

    /// The same without an HTTP API.
    pub(crate) fn spawn_silent(desk: &'a Desk, mut command: Command, origin: &str) -> Self {
        let mut child = command
            .args(["run", "--root-dir", "root", "--log-format", "json"])
            .args(origin.split(' '))
            .current_dir(desk.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            desk,
            stdout: BufReader::new(child.stdout.take().unwrap()),
            log: Some(BufReader::new(child.stderr.take().unwrap()).lines()),
            child,
        }
    }

    /// The first line that it prints: JSON, as the log.
    pub(crate) fn first_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        // It ended without one.
        if line.is_empty() {
            return line;
        }
        let event: Value = serde_json::from_str(&line).unwrap();
        event["message"].as_str().unwrap().to_owned()
    }

    /// The same, after the first pass: on a busy machine, the line comes before.
    pub(crate) fn summary(&mut self) -> String {
        let line = self.first_line();
        let deadline = Instant::now() + PATIENCE;
        while ask(self.desk, "GET /readyz HTTP/1.0\r\n\r\n").0 != "200" {
            assert!(Instant::now() < deadline, "not ready: {line}");
        }
        line
    }

    /// Reads the log up to an event with this message.
    pub(crate) fn event(&mut self, message: &str) -> Value {
        self.events_to(message).pop().unwrap()
    }

    /// The log up to an event with this message.
    fn events_to(&mut self, message: &str) -> Vec<Value> {
        let log = self.log.as_mut().unwrap();
        let mut events = Vec::new();
        while events
            .last()
            .is_none_or(|event: &Value| event["message"] != message)
        {
            let line = log.next().expect("the log has ended").unwrap();
            events.push(serde_json::from_str(&line).unwrap());
        }
        events
    }

    /// The log from now on; it grows until the agent ends.
    pub(crate) fn collect_log(&mut self) -> Arc<Mutex<String>> {
        let (lines, text) = (self.log.take().unwrap(), Arc::<Mutex<String>>::default());
        let collected = Arc::clone(&text);
        thread::spawn(move || {
            for line in lines {
                let mut text = collected.lock();
                text.push_str(&line.unwrap());
                text.push('\n');
            }
        });
        text
    }

    /// Reads the next event of the log.
    pub(crate) fn any_event(&mut self) -> Value {
        let line = self.log.as_mut().unwrap().next().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(self.pid(), signal).unwrap();
        self.child.wait().unwrap().code()
    }

    /// The exit code of one that has ended; `Some(-1)` if a signal ended it.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let status = self.child.try_wait().unwrap()?;
        Some(status.code().unwrap_or(-1))
    }

    /// Waits until it has ended by itself: its exit code, and the rest of its log.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let lines = self.log.take().unwrap().map(Result::unwrap);
        let log = lines.collect::<Vec<_>>().join("\n");
        (self.child.wait().unwrap().code(), log)
    }

    /// Asks for a reload.
    pub(crate) fn hang_up(&self) {
        kill_process(self.pid(), Signal::HUP).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id()).ok();
        pid.and_then(Pid::from_raw).unwrap()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.desk.dir.unmount_all();
    }
}

pub(crate) fn config_map(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n")
}

pub(crate) fn pod(name: &str, config_map: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  volumes: [{{name: cfg, configMap: {{name: {config_map}}}}}]
  containers: [{{name: main, image: i, volumeMounts: [{{name: cfg, mountPath: /cfg}}]}}]
"
    )
}

pub(crate) fn desk() -> Desk {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    put(&desk, "app.yaml", &config_map("app", "a: '1', b: '1'"));
    put(&desk, "web.yaml", &pod("web", "app"));
    desk
}

pub(crate) fn put(desk: &Desk, manifest: &str, text: &str) {
    fs::write(desk.path().join("m").join(manifest), text).unwrap();
}

pub(crate) fn volume(desk: &Desk, pod: &str) -> PathBuf {
    desk.path()
        .join("root/by-name/default")
        .join(pod)
        .join("volumes/kubernetes.io~configmap/cfg")
}

pub(crate) fn key(desk: &Desk, pod: &str, key: &str) -> Option<String> {
    fs::read_to_string(volume(desk, pod).join(key)).ok()
}

pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Sends a request to the agent's socket.
pub(crate) fn send(desk: &Desk, request: &str) -> UnixStream {
    let mut stream = UnixStream::connect(desk.path().join("root/agent.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Status and body of the answer.
pub(crate) fn ask(desk: &Desk, request: &str) -> (String, String) {
    let mut answer = String::new();
    send(desk, request).read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.to_owned(), body.to_owned())
}

pub(crate) fn status(desk: &Desk) -> Value {
    let run = desk.run("status -o json --root-dir root");
    serde_json::from_str(&run.stdout).unwrap_or_default()
}

// Attack: a manifest that is read first after a restart states the UID of another pod.
#[tokio::test]
async fn pod_keeps_its_volumes_when_a_manifest_takes_its_uid_over_a_restart() {
    let desk = desk();
    put(&desk, "prod.yaml", &pod("prod", "app"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    until("the volume", || key(&desk, "prod", "a").is_some()).await;
    let pods = status(&desk)["pods"].clone();
    let mut pods = pods.as_array().unwrap().iter();
    let prod = pods.find(|pod| pod["name"] == "prod").unwrap();
    let uid = prod["uid"].as_str().unwrap();
    agent.signal(Signal::TERM);

    put(
        &desk,
        "aaa.yaml",
        &format!(
            "{}---\n{}",
            config_map("own", "a: mine"),
            pod("aaa", "own").replace("{name: aaa}", &format!("{{name: aaa, uid: {uid}}}"))
        ),
    );
    for _ in 0..2 {
        let mut agent = Agent::start(&desk);
        let warning = agent.event("pod rejected, not served");
        assert_eq!(warning["level"], "WARN");
        let reason = "ignoring pod aaa_default of source api: pod prod_default of source api already has its UID";
        until("the reason", || {
            let problems = status(&desk)["problems"].clone();
            problems
                .as_array()
                .is_some_and(|problems| problems.iter().any(|problem| problem == reason))
        })
        .await;
        assert_eq!(key(&desk, "prod", "a").as_deref(), Some("1"));
        assert_eq!(key(&desk, "aaa", "a"), None);
        agent.signal(Signal::KILL);
    }
}

#[tokio::test]
async fn first_steps_of_the_readme_work() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    let summary = agent.summary();
    assert!(
        summary.starts_with("node n1 serves 1 pod and 1 volume under "),
        "{summary}"
    );
    assert_eq!(key(&desk, "web", "a").as_deref(), Some("1"));

    // Edits, and deletes a key.
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    until("the edit", || {
        key(&desk, "web", "a").as_deref() == Some("2")
    })
    .await;
    until("the key to go", || key(&desk, "web", "b").is_none()).await;
    // Adds a pod, and removes it.
    put(&desk, "two.yaml", &pod("two", "app"));
    until("the second pod", || key(&desk, "two", "a").is_some()).await;
    fs::remove_file(desk.path().join("m/two.yaml")).unwrap();
    until("the second pod to go", || {
        !desk.path().join("root/by-name/default/two").exists()
    })
    .await;
    // Breaks the YAML, and mends it.
    put(
        &desk,
        "app.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {a: 3}\n",
    );
    let event = agent.event("manifest rejected, keeping its last good content");
    let problem = event["problem"].as_str().unwrap();
    assert!(
        problem.contains(r#"app.yaml: document 1, line 4: ConfigMap "app": data[a]"#),
        "{problem}"
    );
    assert_eq!(key(&desk, "web", "a").as_deref(), Some("2"));
    // The log has it first.
    until("the problem in the status", || {
        status(&desk)["problems"][0] == *problem
    })
    .await;
    put(&desk, "app.yaml", &config_map("app", "a: '4'"));
    until("the mended file", || {
        key(&desk, "web", "a").as_deref() == Some("4")
    })
    .await;

    assert_eq!(agent.signal(Signal::INT), Some(0));
    assert_eq!(key(&desk, "web", "a").as_deref(), Some("4"), "volumes stay");
}

#[tokio::test]
async fn restarted_agent_continues_after_a_kill() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    // Killed while it writes: again and again, at whatever step it is.
    for round in 0..10 {
        put(
            &desk,
            "app.yaml",
            &config_map("app", &format!("a: '{round}'")),
        );
        agent.signal(Signal::KILL);
        agent = Agent::start(&desk);
        until("the new content", || {
            key(&desk, "web", "a") == Some(round.to_string())
        })
        .await;
    }
    agent.summary();
    let names = fs::read_dir(volume(&desk, "web"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (hidden, keys): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with(".."));
    assert_eq!(keys, ["a"]);
    assert_eq!(hidden.len(), 2, "one set and the link to it: {hidden:?}");
    // And what left meanwhile is cleaned up.
    agent.signal(Signal::KILL);
    fs::remove_file(desk.path().join("m/web.yaml")).unwrap();
    let _agent = Agent::start(&desk);
    until("the pod to go", || {
        !desk.path().join("root/by-name/default/web").exists()
    })
    .await;
}

#[tokio::test]
async fn agent_started_with_a_broken_manifest_keeps_its_pods() {
    const BROKEN: &str = "kind: ConfigMap\nmetadata: {";
    const KEPT: &str =
        "no manifest has this pod, but not all can be read: its volumes stay as they are";
    let desk = desk();
    let optional = pod("opt", "extra").replace("{name: extra}", "{name: extra, optional: true}");
    put(&desk, "opt.yaml", &optional);
    put(&desk, "extra.yaml", &config_map("extra", "k: v"));
    let mut agent = Agent::start(&desk);
    until("the optional object", || key(&desk, "opt", "k").is_some()).await;
    let phase = |pod: &str| {
        let status = status(&desk);
        let mut pods = status["pods"].as_array().cloned().unwrap_or_default();
        pods.retain(|found| found["name"] == pod);
        let field = |name: &str| pods.first().map(|pod| pod[name].clone());
        (field("phase"), field("reason"))
    };
    until("both pods", || {
        ["web", "opt"]
            .iter()
            .all(|pod| phase(pod).0 == Some("Delivered".into()))
    })
    .await;
    let sets =
        || ["web", "opt"].map(|pod| fs::read_link(volume(&desk, pod).join("..data")).unwrap());
    let before = sets();

    // Twice, since the second agent has not seen the good files at all.
    agent.signal(Signal::TERM);
    for manifest in ["web.yaml", "extra.yaml"] {
        put(&desk, manifest, BROKEN);
    }
    for _ in 0..2 {
        let mut agent = Agent::start(&desk);
        agent.summary();
        until("the pods to be printed", || {
            let (kept, waits) = (phase("web"), phase("opt"));
            let reason = r#"volume cfg: configmap "extra" not found, or is in a manifest that cannot be read"#;
            (kept.1, waits.1) == (Some(KEPT.into()), Some(reason.into()))
        })
        .await;
        let run = desk.run("exec --root-dir root --pod default/web -- true");
        let why = format!("the pod is Failing, its specification unknown: {KEPT}\n");
        assert_eq!(run.code, 125);
        assert!(run.stderr.ends_with(&why), "{run:?}");
        let problems = status(&desk)["problems"].to_string();
        assert!(
            problems.contains("m/web.yaml") && problems.contains("m/extra.yaml"),
            "{problems}"
        );
        assert_eq!(key(&desk, "web", "a").as_deref(), Some("1"));
        assert_eq!(sets(), before, "nothing is rewritten");
        agent.signal(Signal::TERM);
    }

    // One file is mended, the other one goes: what it held is gone now.
    let _agent = Agent::start(&desk);
    until("the pod to be printed", || {
        phase("web").1 == Some(KEPT.into())
    })
    .await;
    put(&desk, "extra.yaml", &config_map("extra", "k: w"));
    until("the mended file", || {
        key(&desk, "opt", "k").as_deref() == Some("w")
    })
    .await;
    assert_eq!(key(&desk, "web", "a").as_deref(), Some("1"));
    fs::remove_file(desk.path().join("m/web.yaml")).unwrap();
    until("the pod to go", || {
        !desk.path().join("root/by-name/default/web").exists()
    })
    .await;
    assert_eq!(key(&desk, "opt", "k").as_deref(), Some("w"));
    until("the status", || phase("web") == (None, None)).await;
}

#[tokio::test]
async fn a_rejected_document_casts_doubt_only_on_what_it_could_hold() {
    let desk = desk();
    let optional = pod("opt", "extra").replace("{name: extra}", "{name: extra, optional: true}");
    put(&desk, "opt.yaml", &optional);
    let doubtful = pod("doubt", "other").replace("{name: other}", "{name: other, optional: true}");
    put(&desk, "doubt.yaml", &doubtful);
    put(
        &desk,
        "rejected.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {namespace: elsewhere, name: p}\nspec: 5\n---\n\
         apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: 5\n",
    );
    let _agent = Agent::start(&desk);
    let pod = |name: &str| {
        let status = status(&desk);
        let pods = status["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.into_iter().find(|found| found["name"] == name);
        let found = found.unwrap_or_default();
        (found["phase"].clone(), found["reason"].clone())
    };
    until("the pods", || pod("opt").0 == "Delivered").await;
    let reason =
        r#"volume cfg: configmap "other" not found, or is in a manifest that cannot be read"#;
    until("the doubt", || pod("doubt").1 == reason).await;
}

#[tokio::test]
async fn repaired_manifest_restores_its_pod_untouched() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let set = || fs::read_link(volume(&desk, "web").join("..data")).unwrap();
    let before = set();
    agent.signal(Signal::TERM);
    put(&desk, "web.yaml", "kind: Pod\nmetadata: {");
    let mut agent = Agent::start(&desk);
    agent.event("manifest rejected, keeping its last good content");
    put(&desk, "web.yaml", &pod("web", "app"));
    agent.event("every manifest is readable or was removed, resuming removals");
    until("the pod", || {
        status(&desk)["pods"][0]["phase"] == "Delivered"
    })
    .await;
    assert_eq!(set(), before);
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    until("the edit", || {
        key(&desk, "web", "a").as_deref() == Some("2")
    })
    .await;
}

#[tokio::test]
async fn edit_of_immutable_data_is_rejected() {
    let desk = desk();
    let map = |value: &str| config_map("app", &format!("a: '{value}'")) + "immutable: true\n";
    put(&desk, "app.yaml", &map("1"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    put(&desk, "app.yaml", &map("2"));
    let event = agent.event("object rejected, keeping its last good version");
    let rule = "data: Forbidden: field is immutable when `immutable` is set";
    assert!(event["error"].as_str().unwrap().contains(rule), "{event}");
    until("the problem in the status", || {
        let problem = status(&desk)["problems"][0].to_string();
        problem.contains("ConfigMap default/app") && problem.contains(rule)
    })
    .await;
    assert_eq!(key(&desk, "web", "a").as_deref(), Some("1"));
    // A recreated object is another one.
    fs::remove_file(desk.path().join("m/app.yaml")).unwrap();
    until("the problem to go", || {
        status(&desk)["problems"] == json!([])
    })
    .await;
    put(&desk, "app.yaml", &map("2"));
    put(&desk, "new.yaml", &pod("new", "app"));
    until("the new object", || {
        key(&desk, "new", "a").as_deref() == Some("2")
    })
    .await;
}

#[tokio::test]
async fn second_agent_on_a_root_directory_is_rejected() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let Run { code, stderr, .. } = desk.run("run --manifests m --root-dir root");
    assert_eq!(code, 1);
    let process = format!(
        "is in use by another larder agent (process {})",
        agent.child.id()
    );
    assert!(stderr.contains(&process), "{stderr}");
}

#[tokio::test]
async fn status_reports_a_missing_object_until_it_appears() {
    let desk = desk();
    put(&desk, "late.yaml", &pod("late", "missing"));
    let mut agent = Agent::start(&desk);
    assert!(agent.summary().starts_with("node n1 serves 2 pods"));
    until("the failure", || {
        status(&desk)["pods"][0]["reason"] == r#"volume cfg: configmap "missing" not found"#
    })
    .await;
    let table = desk.run("status --root-dir root").stdout;
    assert!(
        table.contains(r#"configmap "missing" not found"#),
        "{table}"
    );
    put(&desk, "missing.yaml", &config_map("missing", "k: v"));
    until("the volume", || key(&desk, "late", "k").is_some()).await;
    until("the phase", || {
        status(&desk)["pods"][0]["phase"] == "Delivered"
    })
    .await;
}

#[tokio::test]
async fn pod_and_its_objects_are_removed_together_without_warnings() {
    let desk = desk();
    let both = config_map("own", "k: v") + "---\n" + &pod("both", "own");
    put(&desk, "both.yaml", &both);
    let mut agent = Agent::start(&desk);
    agent.summary();
    fs::remove_file(desk.path().join("m/both.yaml")).unwrap();
    until("the pod to go", || {
        !desk.path().join("root/by-name/default/both").exists()
    })
    .await;
    // The output so far is exactly what was done.
    let mut told = Vec::new();
    while !told
        .iter()
        .any(|message| message == "deleted: ConfigMap default/own")
    {
        let line = agent.log.as_mut().unwrap().next().unwrap().unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        let message = event["message"].as_str().unwrap();
        // An ordinary user may not mount.
        let is_of_user = message.starts_with("Secrets are kept on disk") && !geteuid().is_root();
        assert!(event["level"] == "INFO" || is_of_user, "{event}");
        told.push(format!(
            "{message}: {}",
            event["object"].as_str().unwrap_or_default()
        ));
    }
    assert_eq!(agent.signal(Signal::INT), Some(0));
    let after = agent.log.as_mut().unwrap().by_ref().map(Result::unwrap);
    assert!(after.into_iter().all(|line| !line.contains("not found")));
}

#[test]
fn bad_usage_and_unreadable_input_end_with_2() {
    let desk = Desk::with([
        ("bad.yaml", "syncFrequency: 0s\n"),
        ("typo.yaml", "\nrootdir: x\n"),
    ]);
    for (args, message) in [
        (
            "run --manifests missing --root-dir root",
            "cannot read the manifests of missing",
        ),
        (
            "run --manifests . --config bad.yaml",
            "bad.yaml: line 1: syncFrequency: must be more than zero",
        ),
        (
            "run --manifests . --config typo.yaml",
            r#"typo.yaml: line 2: unknown field "rootdir""#,
        ),
        (
            "run --manifests . --change-detection watch",
            "unknown configmap and secret manager mode: watch",
        ),
        (
            "run --manifests . --watch-scope namespace",
            "unknown watch scope: namespace; expected one of Object, Namespace, Auto",
        ),
        (
            "run --manifests . --node-name A_b",
            r#"node name "A_b" is not a lower-case DNS name"#,
        ),
        ("run --root-dir root", "use --manifests DIR"),
        (
            "run --manifests . --dry-run",
            "--dry-run needs --beside-kubelet or mode: Beside",
        ),
        (
            "run --manifests . --kubelet-root-dir .",
            "--kubelet-root-dir needs --beside-kubelet or mode: Beside",
        ),
        (
            "run --beside-kubelet --kubeconfig k --kubelet-root-dir kubelet --root-dir kubelet/larder",
            "kubelet/larder and the kubelet's root directory kubelet overlap",
        ),
    ] {
        let Run { code, stderr, .. } = desk.run(args);
        assert_eq!(code, 2, "{args}: {stderr}");
        assert!(stderr.contains(message), "{args}: {stderr}");
    }
    assert!(!desk.path().join("kubelet").exists());
}

// beside-kubelet 29
#[test]
fn writes_are_denied_beside_a_kubelet_also_where_mounts_are_replaced() {
    for updates in ["Never", "Annotated", "Always"] {
        let config = format!(
            "subPathUpdates: {updates}\nbeside: {{kubeletRootDir: kubelet, lockDir: locks}}\n"
        );
        let kubeconfig = "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                          contexts: [{name: c, context: {cluster: c}}], current-context: c}";
        let desk = Desk::with([("agent.yaml", &*config), ("kubeconfig", kubeconfig)]);
        fs::create_dir(desk.path().join("kubelet")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.env_clear();
        let origin = "--kubeconfig kubeconfig --node-name n1 --config agent.yaml --beside-kubelet";
        let mut agent = Agent::spawn(&desk, command, origin);
        let events = agent.events_to("listening");
        let messages = events.iter().filter_map(|event| event["message"].as_str());
        let failed: Vec<_> = messages
            .filter(|message| message.starts_with("failed to deny writes"))
            .collect();
        assert!(failed.is_empty(), "{updates}: {failed:?}");
    }
}

#[test]
fn status_without_an_agent_is_an_error() {
    let desk = Desk::with([]);
    let Run { code, stderr, .. } = desk.run("status --root-dir root");
    assert_eq!(code, 1);
    assert!(
        stderr.contains("no agent is listening on root/agent.sock"),
        "{stderr}"
    );
}

#[tokio::test]
async fn misspelled_field_of_a_manifest_is_logged_with_the_likely_one() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i, envs: []}]}}";
    fs::write(desk.path().join("m/app.yaml"), pod).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
    let event = agent.event("manifest has something that the API server would reject");
    let problem = event["problem"].as_str().unwrap();
    for part in ["m/app.yaml: document 1", "envs", "did you mean \"env\"?"] {
        assert!(problem.contains(part), "{problem}");
    }
}
