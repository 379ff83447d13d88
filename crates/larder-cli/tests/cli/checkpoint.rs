//! `larder checkpoint` on the root directory of a real agent: while it runs, after it, and with whatever may be wrong.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use larder_e2e::{Identity, NODE, Server};
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};

use crate::{
    Desk, Run,
    run::{Agent, until},
};

/// The default value of a Secret here.
const VALUE: &str = "hunter2-canary";
/// The copies of [`Cluster::fill`]: a pod, three objects, the facts about the Node and the Services.
const COPIES: usize = 6;

/// An API server, and a desk for an agent with a checkpoint that is its node.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    client: Client,
    pub(crate) desk: Desk,
}

impl Cluster {
    /// With a Node and nothing else.
    pub(crate) async fn start() -> Self {
        let server = Server::start().await.unwrap();
        let client = server.client().await.unwrap();
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
        // The embedded server may know it already.
        let _ = nodes.create(&PostParams::default(), &node).await;
        let desk = Desk::with([(
            "agent.yaml",
            "checkpoint: {key: 'file:key', after: 200ms}\n",
        )]);
        fs::copy(
            server.kubeconfig(Identity::Node).unwrap(),
            desk.path().join("kubeconfig"),
        )
        .unwrap();
        Self {
            server,
            client,
            desk,
        }
    }

    /// A pod that reads a ConfigMap, a Secret with `value`, and a Secret that does not exist.
    pub(crate) async fn fill(&self, value: &str) {
        let map = json!({"metadata": {"name": "app"}, "data": {"a": "1"}});
        let secret = json!({"metadata": {"name": "tls"}, "stringData": {"key": value}});
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        let mounts = ["app", "tls", "both", "extra"].map(mount);
        let pod = json!({
            "metadata": {"name": "web"},
            "spec": {
                "nodeName": NODE,
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "i",
                    "volumeMounts": mounts,
                    "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "tls", "key": "key"}}}],
                }],
                "volumes": [
                    {"name": "app", "configMap": {"name": "app"}},
                    {"name": "tls", "secret": {"secretName": "tls"}},
                    {"name": "both", "projected": {"sources": [{"secret": {"name": "tls"}}]}},
                    {"name": "extra", "secret": {"secretName": "extra", "optional": true}},
                ],
            },
        });
        let api: Api<ConfigMap> = self.api();
        let map = serde_json::from_value(map).unwrap();
        api.create(&PostParams::default(), &map).await.unwrap();
        let api: Api<Secret> = self.api();
        let secret = serde_json::from_value(secret).unwrap();
        api.create(&PostParams::default(), &secret).await.unwrap();
        let api: Api<Pod> = self.api();
        let pod = serde_json::from_value(pod).unwrap();
        api.create(&PostParams::default(), &pod).await.unwrap();
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::default_namespaced(self.client.clone())
    }

    /// Deletes the pod.
    pub(crate) async fn delete_pod(&self) {
        let now = DeleteParams::default().grace_period(0);
        self.api::<Pod>().delete("web", &now).await.unwrap();
    }

    async fn change_config_map(&self, value: &str) {
        let api: Api<ConfigMap> = self.api();
        let (fields, patch) = (PatchParams::default(), json!({"data": {"a": value}}));
        let patched = api.patch("app", &fields, &Patch::Merge(&patch)).await;
        patched.unwrap();
    }

    /// Waits until the checkpoint has this number of copies.
    pub(crate) async fn recorded(&self, copies: usize) {
        until("the checkpoint", || {
            let checkpoint = &self.status()["checkpoint"];
            checkpoint["entries"] == copies && checkpoint["written"].is_string()
        })
        .await;
    }

    pub(crate) fn status(&self) -> Value {
        let run = self.desk.run("status -o json --root-dir root");
        serde_json::from_str(&run.stdout).unwrap_or_default()
    }

    /// Has an agent write a checkpoint of [`Self::fill`], and stops it.
    async fn with_checkpoint() -> Self {
        let cluster = Self::start().await;
        cluster.fill(VALUE).await;
        let mut agent = start_agent(&cluster.desk);
        agent.collect_log();
        cluster.recorded(COPIES).await;
        assert_eq!(agent.signal(Signal::TERM), Some(0));
        drop(agent);
        cluster
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.desk.path().join("root/checkpoint")
    }

    /// `larder checkpoint` with the agent's configuration.
    #[track_caller]
    pub(crate) fn run(&self, action: &str) -> Run {
        let run = self.desk.run(&format!(
            "checkpoint {action} --root-dir root --config agent.yaml --kubeconfig kubeconfig --node-name {NODE}"
        ));
        assert!(
            !run.stdout.contains(VALUE) && !run.stderr.contains(VALUE),
            "{run:?}"
        );
        run
    }
}

/// Starts the agent of a [`Cluster`], which logs everything.
pub(crate) fn start_agent(desk: &Desk) -> Agent<'_> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear().env("LARDER_LOG", "trace");
    let origin = format!("--kubeconfig kubeconfig --node-name {NODE} --config agent.yaml");
    Agent::spawn(desk, command, &origin)
}

/// The files of a directory with their content, those in directories below it included.
pub(crate) fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path));
        } else if let Ok(content) = fs::read(&path) {
            found.push((path, content));
        }
    }
    found.sort();
    found
}

/// The copies of a list in JSON: kind, name, and whether it is absent.
fn copies(json: &str) -> Vec<(String, String, bool)> {
    let list: Value = serde_json::from_str(json).unwrap();
    let text = |copy: &Value, field: &str| copy[field].as_str().unwrap().to_owned();
    let copies = list["copies"].as_array().unwrap().iter().map(|copy| {
        assert!(
            copy["lastConfirmed"].as_str().unwrap().ends_with('Z'),
            "{copy}"
        );
        let is_absent = copy["absent"].as_bool().unwrap();
        assert_eq!(copy["bytes"].as_u64().unwrap() == 0, is_absent, "{copy}");
        (text(copy, "kind"), text(copy, "name"), is_absent)
    });
    copies.collect()
}

fn expected() -> Vec<(String, String, bool)> {
    let expected = [
        ("Pod", "web", false),
        ("ConfigMap", "app", false),
        ("Secret", "extra", true),
        ("Secret", "tls", false),
        ("Node", "", false),
        ("Services", "", false),
    ];
    let expected = expected.into_iter();
    expected
        .map(|(kind, name, absent)| (kind.to_owned(), name.to_owned(), absent))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_listed_and_verified_while_the_agent_runs_and_after_it() {
    let cluster = Cluster::start().await;
    cluster.fill(VALUE).await;
    let mut agent = start_agent(&cluster.desk);
    agent.collect_log();
    cluster.recorded(COPIES).await;
    for is_running in [true, false] {
        let run = cluster.run("");
        assert_eq!((run.code, &*run.stderr), (0, ""), "running: {is_running}");
        let mut lines = run.stdout.lines();
        let heading: Vec<_> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(
            heading,
            ["KIND", "NAME", "STATE", "CONFIRMED", "AGE", "BYTES"]
        );
        let rows: Vec<Vec<_>> = lines
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[0][..3], ["Pod", "default/web", "present"]);
        assert_eq!(rows[2][..3], ["Secret", "default/extra", "absent"]);
        assert_eq!(rows.len(), COPIES);

        let run = cluster.run("list -o json");
        assert_eq!((run.code, &*run.stderr), (0, ""));
        assert_eq!(copies(&run.stdout), expected());
        assert!(
            run.stdout.contains(r#""rejected":[]"#) || run.stdout.contains("\"rejected\": []"),
            "{}",
            run.stdout
        );

        let run = cluster.run("verify");
        assert_eq!(
            (run.code, &*run.stdout, &*run.stderr),
            (0, "6 copies opened\n", "")
        );
        let run = cluster.run("verify -o json");
        assert_eq!((run.code, copies(&run.stdout)), (0, expected()));
        if is_running {
            assert_eq!(agent.signal(Signal::TERM), Some(0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_damaged_file_is_named_and_the_others_open() {
    // offline 14
    let cluster = Cluster::with_checkpoint().await;
    let all = files(&cluster.path());
    assert!(all.len() >= COPIES, "{all:?}");
    for (path, content) in &all {
        let mut damaged = content.clone();
        damaged[100] ^= 1;
        fs::write(path, &damaged).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let run = cluster.run("verify");
        assert_eq!(run.code, 1, "{name}: {run:?}");
        assert!(
            run.stderr.starts_with(&format!("larder: {name}")),
            "{run:?}"
        );
        assert!(run.stderr.contains("damaged"), "{run:?}");
        let run = cluster.run("list -o json");
        assert_eq!(run.code, 1);
        let found: Value = serde_json::from_str(&run.stdout).unwrap();
        let first = found["rejected"][0].as_str().unwrap();
        assert!(first.starts_with(name), "{first}");
        let lost = COPIES - found["copies"].as_array().unwrap().len();
        assert!(name == "index" || lost == 1, "{name}: {lost} copies lost");
        // Looking changes nothing.
        assert_eq!(fs::read(path).unwrap(), damaged);
        fs::write(path, content).unwrap();
    }
    assert_eq!(files(&cluster.path()), all);
    assert_eq!(cluster.run("verify").code, 0);
    // A file that is gone, or that is not a file.
    let (path, content) = all
        .iter()
        .find(|(path, _)| !path.ends_with("index"))
        .unwrap();
    fs::remove_file(path).unwrap();
    let run = cluster.run("verify");
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("missing"), "{run:?}");
    fs::create_dir(path).unwrap();
    assert_eq!(cluster.run("verify").code, 1);
    fs::remove_dir(path).unwrap();
    fs::write(path, content).unwrap();
    let run = cluster.run("verify");
    assert_eq!(run.code, 1, "the file has another mode now");
    assert!(
        run.stderr.contains("not a file of the agent's user"),
        "{run:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_opens_nothing_and_no_key_is_unreadable_input() {
    // offline 11, 12
    let cluster = Cluster::with_checkpoint().await;
    let key = cluster.desk.path().join("key");
    let good = fs::read(&key).unwrap();
    let before = files(&cluster.path());

    fs::write(&key, [7; 32]).unwrap();
    let run = cluster.run("verify");
    assert_eq!((run.code, &*run.stdout), (1, "0 copies opened\n"));
    assert!(
        run.stderr
            .starts_with("larder: index: sealed with a key that is not configured\n"),
        "{run:?}"
    );

    let unreadable = |what: &str, words: &str| {
        for action in ["", "verify", "list -o json"] {
            let run = cluster.run(action);
            assert_eq!((run.code, &*run.stdout), (2, ""), "{what}: {run:?}");
            assert!(run.stderr.contains(words), "{what}: {run:?}");
            assert_eq!(run.stderr.lines().count(), 1, "{what}: {run:?}");
        }
    };
    fs::write(&key, &good[..31]).unwrap();
    unreadable("a short key", "is not a file of 32 bytes");
    fs::remove_file(&key).unwrap();
    unreadable("no key", "is missing, so the checkpoint stays as it is");
    assert!(!key.exists(), "looking creates no key");
    fs::write(&key, &good).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    unreadable("an exposed key", "has mode 0644");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();

    let config = cluster.desk.path().join("agent.yaml");
    let text = fs::read(&config).unwrap();
    fs::write(&config, "{}").unwrap();
    unreadable("no checkpoint configured", "no checkpoint is configured");
    fs::write(&config, "checkpoint: {key: 'tpm:0'}").unwrap();
    unreadable("an unknown source", "expected credential:NAME or file:PATH");
    fs::write(&config, "checkpoint: {key: 'credential:larder'}").unwrap();
    unreadable("no credentials", "$CREDENTIALS_DIRECTORY is not set");
    fs::write(&config, text).unwrap();
    let kubeconfig = cluster.desk.path().join("kubeconfig");
    let text = fs::read(&kubeconfig).unwrap();
    fs::write(&kubeconfig, "clusters: 7").unwrap();
    unreadable("a broken kubeconfig", "kubeconfig");
    fs::write(&kubeconfig, text).unwrap();
    assert_eq!(cluster.desk.run("checkpoint frobnicate").code, 2);

    // Another node's identity opens nothing.
    let run = cluster.desk.run(
        "checkpoint verify --root-dir root --config agent.yaml --kubeconfig kubeconfig --node-name n7",
    );
    assert_eq!((run.code, &*run.stdout), (1, "0 copies opened\n"));
    assert!(
        run.stderr
            .contains("damaged, or sealed for another path, node or cluster"),
        "{run:?}"
    );
    assert_eq!(files(&cluster.path()), before);
    assert_eq!(cluster.run("verify").code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_user_is_left_alone() {
    let root = geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "CI must be root");
    if !root {
        return;
    }
    let cluster = Cluster::with_checkpoint().await;
    let before = files(&cluster.path());
    chown(cluster.path(), Some(65534), Some(65534)).unwrap();
    for (action, code) in [("", 2), ("verify", 2), ("erase", 1)] {
        let run = cluster.run(action);
        assert_eq!((run.code, &*run.stdout), (code, ""), "{action}: {run:?}");
        assert!(
            run.stderr
                .contains("belongs to user 65534, expected user 0"),
            "{action}: {run:?}"
        );
    }
    assert_eq!(files(&cluster.path()), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erased_checkpoint_is_written_again_by_a_running_agent() {
    // offline 32
    let cluster = Cluster::start().await;
    let run = cluster.run("verify");
    assert_eq!(run.code, 2, "there is none yet: {run:?}");
    assert!(run.stderr.contains("there is no checkpoint at "), "{run:?}");
    let run = cluster.run("erase");
    assert_eq!((run.code, &*run.stderr), (0, "larder: 0 files removed\n"));

    cluster.fill(VALUE).await;
    let mut agent = start_agent(&cluster.desk);
    agent.collect_log();
    cluster.recorded(COPIES).await;
    let sealed = files(&cluster.path()).len();
    let run = cluster.run("erase");
    assert_eq!(
        (run.code, run.stderr),
        (0, format!("larder: {sealed} files removed\n"))
    );
    assert_eq!(files(&cluster.path()), []);
    let run = cluster.run("verify");
    assert_eq!((run.code, &*run.stdout), (0, "0 copies opened\n"));
    cluster.change_config_map("2").await;
    until("the next write", || cluster.path().join("index").exists()).await;
    until("all copies", || {
        cluster.run("verify").stdout == "6 copies opened\n"
    })
    .await;

    assert_eq!(agent.signal(Signal::TERM), Some(0));
    assert_eq!(cluster.run("erase").code, 0);
    assert_eq!(files(&cluster.path()), []);
}

#[tokio::test]
async fn empty_checkpoint_is_not_said_to_be_served() {
    let away = "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.77.66.55:9'}}], \
        users: [{name: u, user: {}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}";
    let config = "checkpoint: {key: 'file:key', after: 200ms}\n";
    let desk = Desk::with([("agent.yaml", config), ("kubeconfig", away)]);
    let key = desk.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let mut agent = start_agent(&desk);
    let log = agent.collect_log();
    until("the end of the wait", || {
        log.lock()
            .contains("API server has not answered, and the checkpoint is empty")
    })
    .await;
    let run = desk.run("status -o json --root-dir root");
    let status: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(status["checkpoint"]["serving"], Value::Null, "{run:?}");
    assert_eq!(agent.signal(Signal::TERM), Some(0));
}
