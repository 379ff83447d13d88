//! The examples of the repository hold what their comments promise.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::{Value, json};

use crate::{
    Desk,
    run::{Agent, status, until},
};

#[test]
fn examples_render_as_their_comments_say() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let run = Desk::with([]).run(&format!("render -f {examples} -o json"));
    // One pod waits for its Secret.
    assert_eq!((run.code, &*run.stderr), (1, ""));
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let pods = report["pods"].as_array().unwrap();
    let pod = |name: &str| pods.iter().find(|pod| pod["name"] == name).unwrap();

    let web = &pod("web")["containers"]["web"]["env"];
    assert_eq!(web["GREETING"], "hello ada, the log level is info");
    assert_eq!(
        pod("web")["volumes"]["login"]["files"]["user"]["mode"],
        "0400"
    );
    let worker = pod("worker");
    let container = &worker["containers"]["worker"];
    assert_eq!(container["env"], json!({"POD": "", "MEMORY_MIB": "64"}));
    // The pods of a Deployment get their names in the cluster.
    assert_eq!(container["unknown"], json!({"POD": "metadata.name"}));
    let files: Vec<_> = worker["volumes"]["all"]["files"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        files,
        [
            "features/beta.json",
            "features/search",
            "labels",
            "password"
        ]
    );
    assert_eq!(
        pod("waiting")["containers"]["app"],
        json!({"error": "secret \"api\" not found"})
    );
}

#[test]
fn waiting_example_starts_with_the_secret_in_its_comments() {
    let text = include_str!("../../../../examples/03-waiting.yaml");
    let (pod, secret) = text.split_once("# ---\n").unwrap();
    let secret = secret.replace("\n# ", "\n").replacen("# ", "", 1);
    let run =
        Desk::with([("a.yaml", &format!("{pod}---\n{secret}"))]).run("render -f a.yaml -o json");
    assert_eq!((run.code, &*run.stderr), (0, ""), "{}", run.stdout);
}

/// A pod as a cluster exports it: with the account and the volume of its service account token.
const EXPORTED: &str = "
apiVersion: v1
kind: Pod
metadata: {namespace: exported, name: app}
spec:
  serviceAccountName: app
  containers:
  - name: app
    image: app:1
    volumeMounts:
    - {name: kube-api-access-x2v4q, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
  volumes:
  - name: kube-api-access-x2v4q
    projected:
      sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}
";

/// The same pod, bound to another node.
const ELSEWHERE: &str = "
apiVersion: v1
kind: Pod
metadata: {namespace: exported, name: elsewhere}
spec: {nodeName: worker-7, containers: [{name: app, image: app:1}]}
";

#[tokio::test]
async fn what_render_calls_ready_run_delivers() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    let put = |name: &str, text: &str| fs::write(desk.path().join("m").join(name), text).unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let name = path.file_name().unwrap().to_str().unwrap();
            put(name, &fs::read_to_string(&path).unwrap());
        }
    }
    put("charts.yaml", include_str!("charts.yaml"));
    put("exported.yaml", EXPORTED);
    let rendered = desk.run("render -f m").stdout;
    let is_ready = |block: &&str| {
        ["ready to start", "every "]
            .iter()
            .any(|ready| block.contains(&format!("\n├─ {ready}")))
    };
    let name = |block: &str| block.split_whitespace().next().unwrap().to_owned();
    let ready: BTreeSet<_> = rendered.split("\n\n").filter(is_ready).map(name).collect();
    assert!(ready.len() >= 10, "{ready:?}");

    put("elsewhere.yaml", ELSEWHERE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let flags = "--manifests m --node-name n1 --pod-address 10.1.2.3";
    let mut agent = Agent::spawn(&desk, command, flags);
    agent.summary();
    let delivered = |status: &Value| {
        let pods = status["pods"].as_array().cloned().unwrap_or_default();
        let delivered = pods.iter().filter(|pod| pod["phase"] == "Delivered");
        let text = |pod: &Value, field: &str| pod[field].as_str().unwrap().to_owned();
        let name = |pod| format!("{}/{}", text(pod, "namespace"), text(pod, "name"));
        delivered.map(name).collect::<BTreeSet<_>>()
    };
    until("what is ready, and nothing else", || {
        delivered(&status(&desk)) == ready
    })
    .await;
    let status = status(&desk);
    assert_eq!(status["problems"], json!([]));
    let note = r#"this node is "n1", so it does not serve pods of other nodes: exported/elsewhere ("worker-7")"#;
    assert_eq!(status["notes"], json!([note]));
    let text = desk.run("status --root-dir root").stdout;
    assert!(text.contains(&format!("note: {note}\n")), "{text}");
    let volume = "root/by-name/exported/app/volumes/kubernetes.io~projected/kube-api-access-x2v4q";
    let authority = fs::read_to_string(desk.path().join(volume).join("ca.crt")).unwrap();
    assert!(
        authority.starts_with("-----BEGIN CERTIFICATE-----"),
        "{authority}"
    );
}
