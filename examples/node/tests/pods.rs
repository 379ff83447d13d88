//! The node on the embedded API server: real processes, in namespaces, with an image of this machine's shell.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use larder_apiserver::{ApiKind, ApiServer, Options, Protocol, User};
use larder_e2e::ScratchDir;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    process::{Child, Command as TokioCommand},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Longest wait for a pod, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A node and its API server; dropped, both end.
struct Cluster {
    server: ApiServer,
    _serving: JoinSet<()>,
    _node: Child,
    _folder: ScratchDir,
}

impl Cluster {
    /// `None` where mounting is not permitted; CI must permit it.
    async fn start() -> Option<Self> {
        let probe = Command::new("unshare").args(["-m", "true"]).output();
        let may = probe.is_ok_and(|output| output.status.success());
        assert!(
            may || std::env::var_os("CI").is_none(),
            "CI must be able to mount"
        );
        if !may {
            return None;
        }
        let folder = ScratchDir::with_prefix("larder-node-").unwrap();
        let (images, kubeconfig) = (
            folder.path().join("images"),
            folder.path().join("kubeconfig"),
        );
        fs::create_dir(&images).unwrap();
        pack(folder.path(), &images.join("shell.tar"));

        let server = ApiServer::try_new(Options::default()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        fs::write(
            &kubeconfig,
            server.kubeconfig(address, User::admin()).unwrap(),
        )
        .unwrap();
        let (mut serving, api) = (JoinSet::new(), server.clone());
        serving.spawn(async move {
            let end = api.serve(listener, Protocol::Tls, CancellationToken::new());
            end.await.unwrap();
        });
        let node = TokioCommand::new(env!("CARGO_BIN_EXE_larder-node"))
            .args(["--node-name", "here", "--kubeconfig"])
            .arg(&kubeconfig)
            .arg("--root-dir")
            .arg(folder.path().join("node"))
            .arg("--images")
            .arg(&images)
            .args(certificate(folder.path()))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Some(Self {
            server,
            _serving: serving,
            _node: node,
            _folder: folder,
        })
    }

    fn apply(&self, object: &Value) {
        self.server.apply(object).unwrap();
    }

    /// A pod of this node that runs `script`.
    fn pod(&self, name: &str, script: &str, container: Value, spec: Value) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": "here", "restartPolicy": "Never", "enableServiceLinks": false,
            "containers": [{"name": "main", "image": "registry/shell:1", "command": ["sh", "-ec", script]}],
        }});
        merge(&mut pod["spec"]["containers"][0], container);
        merge(&mut pod["spec"], spec);
        self.apply(&pod);
    }

    /// Waits until `look` finds something in the pod.
    async fn wait<T>(&self, pod: &str, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.server.get(ApiKind::Pod, "default", pod);
            if let Some(found) = found.as_ref().and_then(&look) {
                return found;
            }
            let status = found.map(|pod| pod["status"].clone());
            assert!(Instant::now() < end, "{pod} has no {what}: {status:#?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the pod has ended; its phase, and the termination message of the container.
    async fn end(&self, pod: &str) -> (String, String) {
        self.wait(pod, "end", |pod| {
            let phase = pod["status"]["phase"].as_str()?;
            let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
            let message = ended["message"].as_str().unwrap_or_default();
            matches!(phase, "Succeeded" | "Failed").then(|| (phase.to_owned(), message.to_owned()))
        })
        .await
    }
}

/// Flags with a certificate that is its own authority.
fn certificate(folder: &Path) -> Vec<std::ffi::OsString> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("node.crt"), folder.join("node.key"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = [
        ("--tls-cert-file", &certificate),
        ("--tls-private-key-file", &key),
        ("--client-ca-file", &certificate),
    ];
    let flags = flags
        .into_iter()
        .flat_map(|(flag, file)| [flag.into(), file.into()]);
    flags.collect()
}

fn merge(target: &mut Value, more: Value) {
    for (name, value) in more.as_object().unwrap() {
        target[name] = value.clone();
    }
}

/// Packs an image with the shell of this machine, and a few tools, as `docker save` does.
fn pack(folder: &Path, archive: &Path) {
    let (layer, parts) = (folder.join("layer"), folder.join("parts"));
    fs::create_dir(&parts).unwrap();
    let script = r#"
        mkdir -p "$1/bin" "$1/tmp"
        for tool in sh cat sleep id hostname; do
            path=$(command -v "$tool")
            cp -L "$path" "$1/bin/$tool"
            for library in $(ldd "$path" | grep -o '/[^ ]*'); do
                mkdir -p "$1$(dirname "$library")"
                cp -L "$library" "$1$library"
            done
        done
        tar -C "$1" -cf "$2/layer.tar" .
        echo '{"config": {"Env": ["FROM_IMAGE=yes"], "Cmd": ["sh"]}}' > "$2/config.json"
        echo '[{"Config": "config.json", "Layers": ["layer.tar"]}]' > "$2/manifest.json"
        tar -C "$2" -cf "$3" .
    "#;
    let paths: [&PathBuf; 2] = [&layer, &parts];
    let packed = Command::new("sh")
        .args(["-ec", script, "pack"])
        .args(paths)
        .arg(archive)
        .status();
    assert!(packed.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_runs_pods_with_what_larder_delivers() {
    let Some(cluster) = Cluster::start().await else {
        return;
    };
    cluster
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"key": "one"}}));

    // Variables, a volume, a volume by subPathExpr that another container has filled, user and host name.
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let scratch = json!({"name": "scratch", "mountPath": "/scratch"});
    cluster.pod(
        "first",
        r#"echo "$(cat /etc/app/key) $POD_IP $FROM_IMAGE $(cat /mine) $(id -u):$(id -g):$(id -G) $(hostname) $0" > /dev/termination-log"#,
        json!({
            "args": ["$(POD)"],
            "env": [field("POD", "metadata.name"), field("POD_IP", "status.podIP")],
            "volumeMounts": [
                {"name": "app", "mountPath": "/etc/app"},
                {"name": "scratch", "mountPath": "/mine", "subPathExpr": "of-$(POD)"},
            ],
        }),
        json!({
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 1002},
            "initContainers": [{"name": "fill", "image": "shell", "command": ["sh", "-c", "echo filled > /scratch/of-first"],
                "volumeMounts": [scratch]}],
            "volumes": [{"name": "app", "configMap": {"name": "app"}}, {"name": "scratch", "emptyDir": {}}],
        }),
    );
    let (phase, message) = cluster.end("first").await;
    assert_eq!(
        (phase.as_str(), message.trim()),
        (
            "Succeeded",
            "one 127.0.0.1 yes filled 1000:1001:1001 1002 first first"
        )
    );

    // A container waits for its own parts, with the reason, and sees updates while it runs.
    let secret =
        json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}});
    cluster.pod(
        "second",
        "until [ \"$(cat /etc/app/key)\" = two ]; do sleep 0.1; done; echo $TOKEN > /dev/termination-log; exit 3",
        json!({
            "env": [secret],
            "volumeMounts": [{"name": "app", "mountPath": "/etc/app"}],
        }),
        json!({"volumes": [{"name": "app", "configMap": {"name": "app"}}]}),
    );
    let waiting = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        let is_blocked = waiting["reason"] == "CreateContainerConfigError";
        is_blocked.then(|| waiting["message"].as_str().unwrap_or_default().to_owned())
    };
    let reason = cluster.wait("second", "reason", waiting).await;
    assert_eq!(reason, "secret \"late\" not found");
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"token": "t0"}}),
    );
    let running = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["running"]
            .is_object()
            .then_some(())
    };
    cluster.wait("second", "process", running).await;
    cluster
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"key": "two"}}));
    let (phase, message) = cluster.end("second").await;
    assert_eq!((phase.as_str(), message.trim()), ("Failed", "t0"));

    // A deleted pod is stopped, and goes; a container that fails is started again.
    let container = json!({"env": []});
    cluster.pod(
        "third",
        "sleep 1000",
        container.clone(),
        json!({"terminationGracePeriodSeconds": 1}),
    );
    cluster.wait("third", "process", running).await;
    let client = kube::Client::new(cluster.server.service(), "default");
    let pods: Api<Pod> = Api::default_namespaced(client);
    let deleted = pods.delete("third", &DeleteParams::default()).await;
    deleted.unwrap();
    cluster.pod(
        "fourth",
        "exit 1",
        container,
        json!({"restartPolicy": "OnFailure"}),
    );
    cluster
        .wait("fourth", "restart", |pod| {
            (pod["status"]["containerStatuses"][0]["restartCount"] == 1).then_some(())
        })
        .await;
    let end = Instant::now() + PATIENCE;
    while cluster
        .server
        .get(ApiKind::Pod, "default", "third")
        .is_some()
    {
        assert!(Instant::now() < end, "the deleted pod stays");
        sleep(Duration::from_millis(20)).await;
    }
}
