//! What `render` and `diff` read from an API server: named objects, each once, and nothing that they do not need.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
    thread,
};

use larder_apiserver::{ApiServer, AuditLog, Fault, Options, Protocol, User, Verb};
use larder_objects::yaml::YamlDocument;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Desk, Run, exec::may_mount, run::until};

/// A server with some objects, and the kubeconfig of its administrator on the desk.
struct Cluster {
    desk: Desk,
    api: ApiServer,
    _serving: JoinSet<()>,
}

impl Cluster {
    async fn with(objects: &[Value]) -> Self {
        let api = ApiServer::new(Options::default().audit(AuditLog::in_memory()));
        for object in objects {
            api.apply(object).unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = api.kubeconfig(listener.local_addr().unwrap(), User::admin());
        let desk = Desk::with([("kubeconfig", &kubeconfig.unwrap())]);
        let (server, mut serving) = (api.clone(), JoinSet::new());
        serving.spawn(async move {
            let shutdown = CancellationToken::new();
            server
                .serve(listener, Protocol::Tls, shutdown)
                .await
                .unwrap();
        });
        Self {
            desk,
            api,
            _serving: serving,
        }
    }

    /// Answers requests for this object with 403.
    fn forbid(&self, resource: &str, name: &str) {
        let requests = Fault::on(Verb::Get).resource(resource).name(name);
        self.api
            .faults()
            .inject(requests.rejection(403, "not for you"));
    }

    /// Runs `command` for these manifests, and returns its JSON and the paths that it requested.
    #[track_caller]
    fn run(&self, command: &str, manifests: &[Value], code: i32) -> (Value, Run, Vec<String>) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
        fs::write(self.desk.path().join("app.yaml"), list.to_string()).unwrap();
        self.api.audit().take();
        let run = self.desk.run(&format!(
            "{command} -f app.yaml --kubeconfig kubeconfig -o json"
        ));
        assert_eq!(run.code, code, "{run:?}");
        let records = self.api.audit().take().into_iter();
        let mut paths: Vec<_> = records
            .inspect(|record| assert_eq!(record.verb, "get"))
            .map(|record| record.path.rsplit("/v1/").next().unwrap().to_owned())
            .collect();
        paths.sort();
        (serde_json::from_str(&run.stdout).unwrap(), run, paths)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_reads_what_the_manifests_lack_from_the_api_server() {
    if !may_mount() {
        return;
    }
    let cluster = Cluster::with(&[map("app", "of the cluster")]).await;
    let variable = |name: &str, kind: &str, of: &str| json!({"name": name, "valueFrom": {kind: {"name": of, "key": "k"}}});
    let pod = |env: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "web", "image": "i", "env": env}]}})
    };
    let write = |pod: Value| {
        fs::write(cluster.desk.path().join("app.yaml"), pod.to_string()).unwrap();
    };
    write(pod(json!([variable("K", "configMapKeyRef", "app")])));
    let run = cluster
        .desk
        .run("exec -f app.yaml --kubeconfig kubeconfig -- printenv K");
    assert_eq!((run.code, &*run.stdout), (0, "of the cluster\n"), "{run:?}");
    let run = cluster.desk.run("exec -f app.yaml -- printenv K");
    assert_eq!(run.code, 125, "{run:?}");
    write(pod(json!([variable("K", "secretKeyRef", "db")])));
    cluster.forbid("secrets", "db");
    let run = cluster
        .desk
        .run("exec -f app.yaml --kubeconfig kubeconfig -- printenv K");
    assert_eq!(run.code, 125, "{run:?}");
    assert!(
        run.stderr.contains("cannot read Secret default/db"),
        "{run:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_without_a_file_is_that_of_kubectl() {
    let cluster = Cluster::with(&[map("app", "1")]).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "web", "image": "i", "envFrom": [{"configMapRef": {"name": "app"}}]}]}});
    fs::write(cluster.desk.path().join("app.yaml"), pod.to_string()).unwrap();
    fs::create_dir(cluster.desk.path().join(".kube")).unwrap();
    let home = cluster.desk.path().to_str().unwrap();
    let larder = |args: &str, variables: &[(&str, &str)]| -> Run {
        let mut larder = Command::new(env!("CARGO_BIN_EXE_larder"));
        let larder = larder.args(args.split(' ')).current_dir(home).env_clear();
        larder
            .envs(variables.iter().copied())
            .output()
            .unwrap()
            .into()
    };
    let render = "render -f app.yaml --pod web -o env --kubeconfig";
    let of_variable = larder(render, &[("KUBECONFIG", "kubeconfig")]);
    assert_eq!(
        (of_variable.code, &*of_variable.stdout),
        (0, "k=1\n"),
        "{of_variable:?}"
    );
    fs::copy(
        cluster.desk.path().join("kubeconfig"),
        cluster.desk.path().join(".kube/config"),
    )
    .unwrap();
    assert_eq!(larder(render, &[("HOME", home)]).stdout, "k=1\n");
    for (variables, why) in [
        (&[][..], "neither KUBECONFIG nor HOME is set"),
        (&[("KUBECONFIG", "a:b")], "KUBECONFIG names several files"),
    ] {
        let run = larder(render, variables);
        assert_eq!((run.code, run.stderr.contains(why)), (2, true), "{run:?}");
    }
    // Without the flag no cluster is asked, which is said where something is missing.
    for (args, code) in [("render -f app.yaml", 1), ("diff -f app.yaml", 2)] {
        let run = larder(args, &[("KUBECONFIG", "kubeconfig")]);
        assert_eq!(run.code, code, "{run:?}");
        assert!(
            run.stderr
                .contains("KUBECONFIG is not read without --kubeconfig"),
            "{run:?}"
        );
    }
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
        "data": {"k": value}})
}

fn secret(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "stringData": {"k": value}})
}

fn node(address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {
        "allocatable": {"memory": "8Gi", "cpu": "4"}, "addresses": [{"type": "InternalIP", "address": address}]}})
}

fn pod(env: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "web", "image": "i", "env": env}]}})
}

fn on_node(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = "n1".into();
    pod
}

/// A variable of the key `k` of an object, called as that.
fn key(kind: &str, name: &str) -> Value {
    json!({"name": name, "valueFrom": {kind: {"name": name, "key": "k"}}})
}

fn node_facts() -> Value {
    json!([
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn render_reads_what_the_manifests_lack_and_nothing_else() {
    let objects = [
        map("a", "cluster"),
        map("b", "cluster"),
        map("c", "cluster"),
        secret("s", "cluster"),
    ];
    let cluster = Cluster::with(&objects).await;
    let env = json!([
        key("configMapKeyRef", "a"),
        key("configMapKeyRef", "b"),
        key("secretKeyRef", "s")
    ]);
    let mut web = pod(env);
    web["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    let (report, run, paths) = cluster.run("render", &[web, map("a", "given")], 0);
    let env = &report["pods"][0]["containers"]["web"]["env"];
    assert_eq!(*env, json!({"a": "given", "b": "cluster", "s": "cluster"}));
    assert_eq!(run.stderr, "");
    let expected = [
        "namespaces/default/configmaps/b",
        "namespaces/default/secrets/s",
    ];
    assert_eq!(paths, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_that_may_not_be_read_is_not_known_and_one_that_is_not_there_is_missing() {
    let cluster = Cluster::with(&[secret("s", "hunter2")]).await;
    cluster.forbid("secrets", "s");
    let manifests = [pod(json!([key("secretKeyRef", "s")]))];
    let (report, run, _) = cluster.run("render", &manifests, 1);
    let web = &report["pods"][0]["containers"]["web"];
    assert_eq!(web["env"], json!({"s": ""}));
    assert_eq!(web["unknown"], json!({"s": "secret s key k"}));
    let expected = "larder: cannot read Secret default/s: ";
    assert!(
        run.stderr.starts_with(expected) && run.stderr.contains("not for you"),
        "{run:?}"
    );
    // On both sides, so no difference, but an error.
    let (report, _, _) = cluster.run("diff", &manifests, 2);
    assert_eq!(report["notRead"][0]["path"], "Secret default/s");

    let missing = [pod(json!([key("secretKeyRef", "other")]))];
    let (report, _, _) = cluster.run("render", &missing, 1);
    let container = &report["pods"][0]["containers"]["web"];
    assert_eq!(*container, json!({"error": "secret \"other\" not found"}));
    // Not even in the API server, so it would not start.
    let from = Cluster::with(&[pod(json!([]))]).await;
    let (report, _, _) = from.run("diff", &missing, 1);
    assert_eq!(report["pods"][0]["containers"]["web"]["verdict"], "fails");
    let (report, _, _) = cluster.run("render --assume-missing", &missing, 0);
    let container = &report["pods"][0]["containers"]["web"];
    assert_eq!(container["unknown"]["other"], "secret other key k");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_for_image_pulls_is_not_read_since_no_container_sees_it() {
    let mut web = pod(json!([key("configMapKeyRef", "a")]));
    web["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    let cluster = Cluster::with(&[web.clone(), map("a", "1"), secret("pull", "x")]).await;
    cluster.forbid("secrets", "pull");
    let (report, run, _) = cluster.run("diff", &[web, secret("pull", "y")], 0);
    assert_eq!(report["pods"], json!([]));
    let note = "1 object of the manifests is not compared: no container in them sees it";
    assert!(run.stderr.contains(note), "{run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trust_bundle_that_was_not_read_is_not_known() {
    let bundle = |source: Value| json!({"name": "v", "projected": {"sources": [{"clusterTrustBundle": source}]}});
    let mut web = pod(json!([]));
    web["spec"]["volumes"] = json!([
        bundle(json!({"name": "ca", "path": "ca.crt"})),
        bundle(json!({"name": "none", "path": "ca.crt", "optional": true})),
        bundle(json!({"signerName": "example.com/s", "labelSelector": {}, "path": "ca.crt"})),
        bundle(json!({"signerName": "example.com/s", "path": "ca.crt", "optional": true})),
    ]);
    let volumes = web["spec"]["volumes"].as_array_mut().unwrap();
    for (number, volume) in volumes.iter_mut().enumerate() {
        volume["name"] = format!("v{number}").into();
    }
    let cluster = Cluster::with(&[]).await;
    let (report, _, _) = cluster.run("render", &[web], 0);
    let volumes = &report["pods"][0]["volumes"];
    let unknown = |volume: &str| volumes[volume]["unknown"]["ca.crt"].clone();
    assert_eq!(unknown("v0"), "ClusterTrustBundle ca");
    assert_eq!(unknown("v1"), "ClusterTrustBundle none");
    assert_eq!(unknown("v2"), "ClusterTrustBundle example.com/s");
    assert_eq!(
        volumes["v3"]["unknown"],
        Value::Null,
        "without a selector, none"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_side_that_may_not_be_read_is_not_taken_as_missing() {
    let manifests = [pod(json!([key("secretKeyRef", "s")])), secret("s", "x")];
    let cluster = Cluster::with(&manifests).await;
    cluster.forbid("secrets", "s");
    let (report, _, _) = cluster.run("diff", &manifests, 2);
    let web = &report["pods"][0]["containers"]["web"];
    // What it holds may be what the manifest has.
    assert_eq!(web["verdict"], "unknown", "not that it starts: {web}");
    assert_eq!(web["unknown"], json!(["secret s"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_that_may_not_be_read_is_not_added() {
    let manifests = [pod(json!([]))];
    let cluster = Cluster::with(&manifests).await;
    cluster.forbid("pods", "web");
    let (report, _, _) = cluster.run("diff", &manifests, 2);
    assert_eq!(report["pods"], json!([]));
    assert_eq!(report["notRead"][0]["path"], "Pod default/web");
}

/// The kubeconfig of a server that answers each request line so: for what the embedded API server does not have.
fn answering(answer: impl Fn(&str) -> (u16, Value) + Send + 'static) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = BufReader::new(&stream).lines().next().unwrap().unwrap();
            let (code, body) = answer(&request);
            let (body, close) = (body.to_string(), "connection: close");
            let length = body.len();
            let head = format!("HTTP/1.1 {code} -\r\ncontent-type: application/json\r\n{close}");
            write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        }
    });
    let kubeconfig = json!({"current-context": "c", "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}]});
    kubeconfig.to_string()
}

/// The answer for an object that cannot be had.
fn status(code: u16, reason: &str, name: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": reason, "details": {"name": name}});
    (code, status)
}

/// The differences between what a server answers and a manifest.
#[track_caller]
fn diff_with(
    manifest: &Value,
    code: i32,
    answer: impl Fn(&str) -> (u16, Value) + Send + 'static,
) -> Value {
    let desk = Desk::with([
        ("app.yaml", &manifest.to_string()),
        ("kubeconfig", &answering(answer)),
    ]);
    let run = desk.run("diff -f app.yaml --kubeconfig kubeconfig -o json");
    assert_eq!(run.code, code, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

fn deployment(spec: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}})
}

#[test]
fn workload_that_the_api_server_lacks_is_added_whatever_pod_has_its_name() {
    let live = pod(json!([]));
    let manifest = deployment(&live["spec"]);
    // The embedded API server serves no workloads.
    let report = diff_with(&manifest, 1, move |request| {
        if request.contains("/deployments/") {
            status(404, "NotFound", "web")
        } else {
            (200, live.clone())
        }
    });
    assert_eq!(report["pods"][0]["change"], "added");
}

#[test]
fn workload_that_may_not_be_read_is_called_by_its_kind() {
    let manifest = deployment(&pod(json!([]))["spec"]);
    let report = diff_with(&manifest, 2, |_| status(403, "Forbidden", "web"));
    assert_eq!(report["pods"], json!([]));
    assert_eq!(report["notRead"][0]["path"], "Deployment default/web");
}

#[test]
fn object_of_a_workload_that_may_not_be_read_is_compared() {
    let map = |value: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app", "namespace": "default"},
            "data": {"k": value}})
    };
    let env_from = json!([{"configMapRef": {"name": "app"}}]);
    let spec = json!({"containers": [{"name": "c", "image": "i", "envFrom": env_from}]});
    let manifest =
        json!({"apiVersion": "v1", "kind": "List", "items": [deployment(&spec), map("2")]});
    let report = diff_with(&manifest, 2, move |request| {
        if request.contains("/configmaps/") {
            (200, map("1"))
        } else {
            status(403, "Forbidden", "web")
        }
    });
    assert_eq!(report["pods"], json!([]));
    let app = json!({"kind": "ConfigMap", "namespace": "default", "name": "app"});
    assert_eq!(report["unseen"], json!([app]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_pod_is_known_on_both_sides() {
    let cluster = Cluster::with(&[node("10.0.0.7"), on_node(pod(node_facts()))]).await;
    let manifests = [pod(node_facts())];
    let (report, run, paths) = cluster.run("diff", &manifests, 0);
    assert_eq!(
        report,
        json!({"version": 1, "pods": [], "unreferenced": []})
    );
    assert_eq!(
        (run.stderr.as_str(), paths),
        (
            "",
            vec![
                "namespaces/default/pods/web".to_owned(),
                "nodes/n1".to_owned()
            ]
        )
    );
    let (report, _, paths) = cluster.run("render", &manifests, 0);
    let known = json!({"NODE": "n1", "IP": "10.0.0.7", "MEMORY": "8589934592"});
    let web = &report["pods"][0]["containers"]["web"];
    assert_eq!((&web["env"], &web["unknown"]), (&known, &Value::Null));
    assert_eq!(paths, ["namespaces/default/pods/web", "nodes/n1"]);
    // A Node of the manifests counts.
    let (report, _, paths) = cluster.run("render", &[manifests[0].clone(), node("10.9.9.9")], 0);
    assert_eq!(
        report["pods"][0]["containers"]["web"]["env"]["IP"],
        "10.9.9.9"
    );
    assert_eq!(paths, ["namespaces/default/pods/web"]);
    // A new limit is a difference to the known one of the node.
    let mut limited = pod(node_facts());
    limited["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "1Gi"}});
    let (report, _, _) = cluster.run("diff", &[limited], 1);
    let changed = json!({"MEMORY": {"from": "8589934592", "to": "1073741824"}});
    assert_eq!(
        report["pods"][0]["containers"]["web"]["env"]["changed"],
        changed
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_may_not_be_read_is_named_and_no_error() {
    let live = on_node(pod(node_facts()));
    let cluster = Cluster::with(&[node("10.0.0.7"), live]).await;
    cluster.forbid("nodes", "n1");
    let manifests = [pod(node_facts())];
    let (report, run, _) = cluster.run("diff", &manifests, 0);
    assert!(
        run.stderr.starts_with("larder: cannot read Node n1: "),
        "{run:?}"
    );
    let unknown = report["unknown"].as_array().unwrap().iter();
    let unknown: Vec<_> = unknown.map(|one| &one["what"]).collect();
    assert_eq!(unknown, ["limits.memory", "status.hostIP"]);
    let (report, _, _) = cluster.run("render", &manifests, 0);
    let web = &report["pods"][0]["containers"]["web"];
    assert_eq!(web["env"]["NODE"], "n1");
    let unknown = json!({"IP": "status.hostIP", "MEMORY": "limits.memory"});
    assert_eq!(web["unknown"], unknown);
    // The status of the pod has the address, too.
    let mut live = on_node(pod(node_facts()));
    live["status"] = json!({"hostIP": "10.0.0.8", "podIP": "10.1.0.1"});
    let cluster = Cluster::with(&[live]).await;
    let (report, run, _) = cluster.run("render", &manifests, 0);
    let web = &report["pods"][0]["containers"]["web"];
    assert_eq!(
        (&web["env"]["IP"], &web["unknown"]),
        (&json!("10.0.0.8"), &json!({"MEMORY": "limits.memory"}))
    );
    assert_eq!(run.stderr, "larder: cannot read Node n1: not found\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_workloads_have_no_node_and_those_without_need_ask_for_none() {
    let plain = pod(json!([{"name": "A", "value": "1"}]));
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"spec": pod(node_facts())["spec"]}}});
    let cluster = Cluster::with(&[node("10.0.0.7"), on_node(plain.clone())]).await;
    let (report, _, paths) = cluster.run("render", &[plain.clone(), deployment], 0);
    let pods = report["pods"].as_array().unwrap();
    assert_eq!(
        pods[1]["containers"]["web"]["unknown"]["NODE"],
        "spec.nodeName"
    );
    assert_eq!(paths, [""; 0]);
    let (_, _, paths) = cluster.run("diff", &[plain], 0);
    assert_eq!(paths, ["namespaces/default/pods/web"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_objects_is_requested_once() {
    let cluster = Cluster::with(&[map("shared", "1")]).await;
    let deployments = (0..100).map(|number| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("d{number}")},
            "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": {"metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "c", "image": "i", "env": [key("configMapKeyRef", "shared")]}]}}}})
    });
    let deployments: Vec<_> = deployments.collect();
    let (_, run, paths) = cluster.run("render", &deployments, 0);
    assert_eq!(paths, ["namespaces/default/configmaps/shared"]);
    // No progress in a pipe.
    assert_eq!(run.stderr, "");
    let (report, _, paths) = cluster.run("diff", &deployments, 1);
    assert_eq!(report["pods"].as_array().unwrap().len(), 100);
    // Each at the paths of the workload and of a pod of its name.
    assert_eq!(paths.len(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_shown_on_a_terminal_while_the_api_server_takes_its_time() {
    if Command::new("script").arg("--version").output().is_err() {
        return;
    }
    let cluster = Cluster::with(&[map("a", "1")]).await;
    let slow = Fault::on(Verb::Get).resource("configmaps").never_answer();
    cluster.api.faults().inject(slow);
    let path = |name: &str| cluster.desk.path().join(name);
    let web = pod(json!([key("configMapKeyRef", "a")]));
    fs::write(path("app.yaml"), web.to_string()).unwrap();
    let larder = env!("CARGO_BIN_EXE_larder");
    let render = format!("exec {larder} render -f app.yaml --kubeconfig kubeconfig");
    let mut terminal = Command::new("script")
        .args(["-qefc", &render, "typescript"])
        .current_dir(cluster.desk.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let shown = || fs::read_to_string(path("typescript")).unwrap_or_default();
    until("the progress", || {
        let text = shown();
        text.contains("reading 1 object from 127.0.0.1:") && text.contains(": 0 read")
    })
    .await;
    terminal.kill().unwrap();
    terminal.wait().unwrap();
}

#[test]
fn flags_of_kubectl_work_or_say_what_does() {
    let desk = Desk::with([
        ("app.yaml", &pod(json!([])).to_string()),
        ("kubeconfig", "{contexts: [{name: dev}, {name: prod}]}"),
    ]);
    for (args, expected) in [
        (
            "render -k overlays/prod",
            "kubectl kustomize overlays/prod | larder render -f -\n",
        ),
        ("refs -k .", "kubectl kustomize . | larder refs -f -\n"),
        (
            "diff -k .",
            "kubectl kustomize . | larder diff -f - --kubeconfig FILE\n",
        ),
        (
            "render -f app.yaml --kubeconfig kubeconfig --context nope",
            r#"no context "nope"; its contexts are ["dev", "prod"]"#,
        ),
    ] {
        let run = desk.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
    for command in [
        "render -f app.yaml",
        "refs -f app.yaml",
        "diff --from-file app.yaml --to-file app.yaml",
    ] {
        let plain = desk.run(command);
        assert_eq!(plain.code, 0, "{plain:?}");
        for flag in ["-A", "-o wide"] {
            let run = desk.run(&format!("{command} {flag}"));
            assert_eq!((run.code, &run.stdout), (0, &plain.stdout), "{run:?}");
        }
        let json = desk.run(&format!("{command} -o json"));
        let yaml = desk.run(&format!("{command} -o yaml"));
        let read = YamlDocument::parse(&yaml.stdout, 0).unwrap();
        let read: Value = read.decode().unwrap();
        assert_eq!(
            read,
            serde_json::from_str::<Value>(&json.stdout).unwrap(),
            "{yaml:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_of_the_context_is_that_of_objects_that_name_none() {
    let mut pod = pod(json!([key("configMapKeyRef", "app")]));
    let of_prod = |value: &str| {
        let mut map = map("app", value);
        map["metadata"]["namespace"] = "prod".into();
        map
    };
    pod["metadata"]["namespace"] = "prod".into();
    let cluster = Cluster::with(&[map("app", "theirs"), of_prod("old"), pod.clone()]).await;
    let path = cluster.desk.path().join("kubeconfig");
    let kubeconfig = fs::read_to_string(&path).unwrap();
    let of_context = kubeconfig.replace("namespace: default", "namespace: prod");
    assert_ne!(kubeconfig, of_context);
    fs::write(&path, of_context).unwrap();
    let without = |mut object: Value| {
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("namespace");
        object
    };
    let manifests = [without(of_prod("new")), without(pod)];
    let (report, ..) = cluster.run("diff", &manifests, 1);
    let changed = &report["pods"][0]["containers"]["web"]["env"]["changed"];
    assert_eq!(changed["app"], json!({"from": "old", "to": "new"}));
    assert_eq!(report["pods"][0]["namespace"], "prod");
    let (report, ..) = cluster.run("render", &manifests[1..], 0);
    assert_eq!(report["pods"][0]["containers"]["web"]["env"]["app"], "old");
    // A flag wins.
    let (report, ..) = cluster.run("render -n default", &manifests[1..], 0);
    assert_eq!(
        report["pods"][0]["containers"]["web"]["env"]["app"],
        "theirs"
    );
}

/// `live`, as `kubectl apply` left it when `original` was its manifest.
fn applied(mut live: Value, original: &Value) -> Value {
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    live["metadata"]["annotations"] = json!({annotation: original.to_string()});
    live
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_that_another_manager_added_stays_and_one_that_was_applied_goes() {
    let data = |data: Value| {
        let mut map = map("a", "1");
        map["data"] = data;
        map
    };
    let from_both =
        json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "theirs"}}}]);
    let web = pod(from_both);
    let original = data(json!({"k": "1", "old": "1"}));
    let live = data(json!({"k": "1", "old": "1", "theirs": "1"}));
    let cluster = Cluster::with(&[applied(live.clone(), &original), web.clone()]).await;
    let (report, ..) = cluster.run("diff", &[data(json!({"k": "1"})), web.clone()], 0);
    assert_eq!(report["pods"], json!([]), "the key is still there");

    let mut all = pod(json!([]));
    all["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "a"}}]);
    let cluster = Cluster::with(&[applied(live.clone(), &original), all.clone()]).await;
    let (report, ..) = cluster.run("diff", &[data(json!({"k": "2"})), all.clone()], 1);
    let env = &report["pods"][0]["containers"]["web"]["env"];
    assert_eq!(env["removed"], json!(["old"]));
    assert_eq!(env["changed"], json!({"k": {"from": "1", "to": "2"}}));
    // Nothing says what was applied, so nothing goes.
    let cluster = Cluster::with(&[live, all.clone()]).await;
    let (report, ..) = cluster.run("diff", &[data(json!({"k": "2"})), all], 1);
    let env = &report["pods"][0]["containers"]["web"]["env"];
    assert_eq!(env["removed"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn string_data_that_is_not_stated_any_more_stays_in_the_secret() {
    let mut all = pod(json!([]));
    all["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "s"}}]);
    let mut original = secret("s", "1");
    original["stringData"]["old"] = "1".into();
    let cluster = Cluster::with(&[applied(original.clone(), &original), all.clone()]).await;
    // As with kubectl, whose patch removes a field that the object does not have.
    let (report, ..) = cluster.run("diff", &[secret("s", "2"), all], 1);
    let env = &report["pods"][0]["containers"]["web"]["env"];
    assert_eq!(env["removed"], json!([]));
    assert_eq!(env["changed"], json!({"k": {"from": null, "to": null}}));
}

#[test]
fn what_others_added_to_a_workload_stays() {
    let own = json!({"containers": [{"name": "web", "image": "i", "env": [{"name": "A", "value": "1"}]}]});
    let manifest = deployment(&own);
    let mut live = applied(manifest.clone(), &manifest);
    let spec = &mut live["spec"]["template"]["spec"];
    spec["containers"][0]["env"] =
        json!([{"name": "SET", "value": "x"}, {"name": "A", "value": "1"}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    spec["containers"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"name": "sidecar", "image": "s"}));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    spec["dnsPolicy"] = "ClusterFirst".into();
    let answer = live.clone();
    let report = diff_with(&manifest, 0, move |_| (200, answer.clone()));
    assert_eq!(report["pods"], json!([]));
    // What was applied, and is not stated any more, goes.
    let mut next = manifest.clone();
    next["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "B", "value": "2"}]);
    let report = diff_with(&next, 1, move |_| (200, live.clone()));
    let containers = report["pods"][0]["containers"].as_object().unwrap();
    assert_eq!(
        containers["web"]["env"],
        json!({"added": {"B": "2"}, "removed": ["A"], "changed": {}})
    );
    assert_eq!(containers["sidecar"]["verdict"], "same", "{report:#}");
    assert_eq!(report["pods"][0]["rollsOut"], true);
}

#[test]
fn manifest_that_cannot_be_applied_is_named_and_no_difference() {
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let own = json!({"containers": [{"name": "web", "image": "i", "volumeMounts": mount}],
        "volumes": [{"name": "v", "emptyDir": {}}]});
    let manifest = deployment(&own);
    let mut live = applied(manifest.clone(), &manifest);
    let containers = &mut live["spec"]["template"]["spec"]["containers"];
    let sidecar = json!({"name": "sidecar", "image": "s", "volumeMounts": mount});
    containers.as_array_mut().unwrap().push(sidecar);
    // The container of another manager stays, without its volume.
    let invalid = deployment(&json!({"containers": [{"name": "web", "image": "i"}]}));
    let mut other_selector = manifest.clone();
    for labels in [
        "/spec/selector/matchLabels",
        "/spec/template/metadata/labels",
    ] {
        other_selector.pointer_mut(labels).unwrap()["c"] = "d".into();
    }
    for (next, why) in [
        (invalid, "volumeMounts[0].name: Not found: \"v\""),
        (other_selector, "spec.selector: field is immutable"),
    ] {
        let answer = live.clone();
        let report = diff_with(&next, 2, move |_| (200, answer.clone()));
        assert_eq!(report["pods"], json!([]), "{report:#}");
        let not_read = &report["notRead"][0];
        assert!(
            not_read["reason"].as_str().unwrap().contains(why),
            "{report:#}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_an_immutable_object_is_named() {
    let mut all = pod(json!([]));
    all["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "a"}}]);
    let mut live = map("a", "1");
    live["immutable"] = true.into();
    let cluster = Cluster::with(&[live.clone(), all.clone()]).await;
    let mut next = live.clone();
    next["data"]["k"] = "2".into();
    let (report, ..) = cluster.run("diff", &[next, all.clone()], 1);
    let container = &report["pods"][0]["containers"]["web"];
    assert_eq!(
        (&container["verdict"], &container["immutable"]),
        (&json!("restart"), &json!(["configmap a"])),
        "{report:#}"
    );
}

#[test]
fn custom_workload_is_read_and_its_lists_are_whole() {
    let rollout = |env: Value| {
        json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}}})
    };
    let live = rollout(json!([{"name": "A", "value": "1"}, {"name": "SET", "value": "x"}]));
    let manifest = rollout(json!([{"name": "A", "value": "1"}]));
    let report = diff_with(&manifest, 1, move |request| {
        assert!(request.contains("/apis/argoproj.io/v1alpha1/namespaces/default/rollouts/web"));
        (200, live.clone())
    });
    assert_eq!(
        report["pods"][0]["containers"]["c"]["env"]["removed"],
        json!(["SET"])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_of_one_object_leaves_its_values_unknown_and_the_rest_is_compared() {
    let web = pod(json!([
        key("configMapKeyRef", "a"),
        key("configMapKeyRef", "b")
    ]));
    let on_a = || Fault::on(Verb::Get).resource("configmaps").name("a");
    for fault in [
        on_a().rejection(500, "broken"),
        on_a().rejection(503, "busy"),
        on_a().drop_connection(),
    ] {
        let cluster = Cluster::with(&[map("a", "1"), map("b", "1"), web.clone()]).await;
        cluster.api.faults().inject(fault);
        let manifests = [map("a", "1"), map("b", "2"), web.clone()];
        let (report, ..) = cluster.run("diff", &manifests, 2);
        let container = &report["pods"][0]["containers"]["web"];
        assert_eq!(
            container["env"]["changed"]["b"],
            json!({"from": "1", "to": "2"}),
            "{report:#}"
        );
        assert_eq!(container["unknown"], json!(["configmap a"]));
        assert_eq!(report["notRead"][0]["path"], "ConfigMap default/a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn maker_gives_the_keys_that_the_api_server_lacks() {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "default"},
        "data": {"url": "eA=="}});
    let pod = |keys: &[&str]| {
        let env = keys.iter().map(
            |key| json!({"name": key, "valueFrom": {"secretKeyRef": {"name": "db", "key": key}}}),
        );
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i", "env": env.collect::<Vec<_>>(), "envFrom": [{"secretRef": {"name": "db"}}]}]}})
    };
    let cluster = Cluster::with(&[secret, pod(&["url"])]).await;
    let maker = |kind: &str, version: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "db", "namespace": "default"}, "spec": spec});
    let sealed = json!({"encryptedData": {"url": "AgA", "tok": "AgB"}});
    let taken = json!({"dataFrom": [{"extract": {"key": "k"}}]});
    let encrypted = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "default"},
        "data": {"url": "ENC[x]", "tok": "ENC[y]"}, "sops": {"mac": "m"}});
    for maker in [
        maker("SealedSecret", "bitnami.com/v1alpha1", sealed),
        maker("ExternalSecret", "external-secrets.io/v1", taken.clone()),
        encrypted,
    ] {
        let (found, ..) = cluster.run("diff", &[pod(&["url", "tok"]), maker], 1);
        let container = &found["pods"][0]["containers"]["c"];
        assert_eq!(container["verdict"], "restart", "{found:#}");
        assert_eq!(container["unknown"], json!(["secret db"]), "{found:#}");
    }
    // Its other values are those of the API server, which is said.
    let taken = maker("ExternalSecret", "external-secrets.io/v1", taken);
    let (found, run, _) = cluster.run("diff", &[pod(&["url"]), taken], 0);
    assert_eq!(found["pods"], json!([]));
    assert!(
        run.stderr.contains("ExternalSecret db is not compared"),
        "{run:?}"
    );
}
