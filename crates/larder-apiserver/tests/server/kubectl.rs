//! The server over TLS, as `kubectl` sees it: client-side validation and apply work without special flags.
//!
//! Without `kubectl` on the PATH these tests do nothing; in CI (`CI=true`) they fail then.

use std::process::Stdio;

use larder_apiserver::{ApiServer, AuditLog, Options, Protocol, User};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    process::Command,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// A served server and a kubeconfig for it.
struct Cluster {
    server: ApiServer,
    home: TempDir,
    shutdown: CancellationToken,
    serving: JoinSet<()>,
}

fn have_kubectl() -> bool {
    let found = std::process::Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    let found = found.is_ok_and(|output| output.status.success());
    assert!(
        found || std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "CI needs kubectl"
    );
    found
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::new(Options::default().audit(AuditLog::in_memory()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = server
            .kubeconfig(listener.local_addr().unwrap(), User::admin())
            .unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config"), kubeconfig).unwrap();
        let shutdown = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn({
            let (server, shutdown) = (server.clone(), shutdown.clone());
            async move {
                server
                    .serve(listener, Protocol::Tls, shutdown)
                    .await
                    .unwrap();
            }
        });
        Self {
            server,
            home,
            shutdown,
            serving,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.home.path().join("config"))
            .kill_on_drop(true);
        command
    }

    /// Runs `kubectl`, with `input` for `-f -`; what it prints, which must be all right.
    async fn run(&self, args: &[&str], input: &str) -> String {
        let (succeeded, stdout, stderr) = self.attempt(args, input).await;
        assert!(succeeded, "{args:?}: {stdout}{stderr}");
        stdout
    }

    async fn attempt(&self, args: &[&str], input: &str) -> (bool, String, String) {
        let mut command = self.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.serving.join_next().await {
            ended.unwrap();
        }
    }
}

const OBJECTS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: app, labels: {tier: web}}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: Secret
metadata: {name: tls}
stringData: {password: hunter2}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: n1
  containers:
  - {name: c, image: i, env: [{name: A, value: "1"}]}
  volumes:
  - {name: cfg, configMap: {name: app}}
"#;

#[tokio::test]
async fn objects_are_created_listed_described_and_deleted() {
    if !have_kubectl() {
        return;
    }
    let cluster = Cluster::start().await;
    let created = cluster.run(&["create", "-f", "-"], OBJECTS).await;
    assert_eq!(
        created,
        "configmap/app created\nsecret/tls created\npod/web created\n"
    );

    let maps = cluster.run(&["get", "cm", "-l", "tier=web"], "").await;
    let rows: Vec<Vec<_>> = maps
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "DATA", "AGE"]);
    assert_eq!(rows[1][..2], ["app", "2"]);
    let pods = cluster
        .run(
            &[
                "get",
                "pods",
                "-o",
                "wide",
                "--field-selector",
                "spec.nodeName=n1",
            ],
            "",
        )
        .await;
    assert!(
        pods.starts_with("NAME   READY   STATUS    RESTARTS   AGE"),
        "{pods}"
    );
    assert!(pods.contains("web    0/1     Pending   0"), "{pods}");
    let described = cluster.run(&["describe", "pod", "web"], "").await;
    let words: Vec<_> = described.split_whitespace().collect();
    for shown in [["Name:", "app"], ["Events:", "<none>"]] {
        assert!(words.windows(2).any(|pair| pair == shown), "{described}");
    }
    let password = cluster
        .run(
            &["get", "secret", "tls", "-o", "jsonpath={.data.password}"],
            "",
        )
        .await;
    assert_eq!(password, "aHVudGVyMg==");
    let all = cluster
        .run(&["get", "cm,secrets,pods,svc,sa,ns", "-A"], "")
        .await;
    assert!(all.contains("namespace/kube-system"), "{all}");

    cluster.run(&["delete", "cm", "app"], "").await;
    cluster
        .run(&["delete", "pod", "web", "--grace-period=0", "--force"], "")
        .await;
    let (found, _, error) = cluster.attempt(&["get", "pod", "web"], "").await;
    assert!(!found);
    assert_eq!(
        error,
        "Error from server (NotFound): pods \"web\" not found\n"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn objects_are_applied_patched_edited_and_replaced() {
    if !have_kubectl() {
        return;
    }
    let cluster = Cluster::start().await;
    let get = async |path: &str| {
        cluster
            .run(&["get", "cm", "app", "-o", &format!("jsonpath={path}")], "")
            .await
    };
    cluster.run(&["apply", "-f", "-"], OBJECTS).await;
    let again = cluster.run(&["apply", "-f", "-"], OBJECTS).await;
    assert_eq!(
        again,
        "configmap/app unchanged\nsecret/tls configured\npod/web unchanged\n"
    );
    // A key that the next manifest does not name goes away.
    let edited = OBJECTS.replace(r#"{a: "1", b: "2"}"#, r#"{a: "3", c: "4"}"#);
    cluster.run(&["apply", "-f", "-"], &edited).await;
    assert_eq!(get("{.data}").await, r#"{"a":"3","c":"4"}"#);
    // Strategic merge patch of a pod: containers are known by name.
    let image = OBJECTS.replace("image: i,", "image: j,");
    cluster.run(&["apply", "-f", "-"], &image).await;
    let image = cluster
        .run(
            &[
                "get",
                "pod",
                "web",
                "-o",
                "jsonpath={.spec.containers[*].image}",
            ],
            "",
        )
        .await;
    assert_eq!(image, "j");

    cluster
        .run(&["patch", "cm", "app", "-p", r#"{"data":{"x":"1"}}"#], "")
        .await;
    cluster
        .run(
            &[
                "patch",
                "cm",
                "app",
                "--type=merge",
                "-p",
                r#"{"data":{"x":"2"}}"#,
            ],
            "",
        )
        .await;
    let json = r#"[{"op":"add","path":"/data/y","value":"3"}]"#;
    cluster
        .run(&["patch", "cm", "app", "--type=json", "-p", json], "")
        .await;
    cluster.run(&["label", "cm", "app", "owner=me"], "").await;
    cluster
        .run(&["annotate", "cm", "app", "note=hello"], "")
        .await;
    assert_eq!(
        get("{.data.x} {.data.y} {.metadata.labels.owner}").await,
        "2 3 me"
    );

    let whole = cluster.run(&["get", "cm", "app", "-o", "json"], "").await;
    cluster
        .run(
            &["replace", "-f", "-"],
            &whole.replace("\"hello\"", "\"bye\""),
        )
        .await;
    let (replaced, _, error) = cluster.attempt(&["replace", "-f", "-"], &whole).await;
    assert!(!replaced && error.contains("(Conflict)"), "{error}");
    cluster.stop().await;
}

#[tokio::test]
async fn mistakes_are_named() {
    if !have_kubectl() {
        return;
    }
    let cluster = Cluster::start().await;
    let typo = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndta: {k: v}\n";
    let (created, _, error) = cluster.attempt(&["create", "-f", "-"], typo).await;
    assert!(!created);
    assert!(
        error.contains("strict decoding error: unknown field \"dta\""),
        "{error}"
    );
    let key = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {\"a/b\": v}\n";
    let (created, _, error) = cluster.attempt(&["create", "-f", "-"], key).await;
    assert!(!created);
    assert!(error.contains("data[a/b]: Invalid value"), "{error}");
    let (created, _, error) = cluster
        .attempt(&["create", "cm", "a", "-n", "nowhere"], "")
        .await;
    assert!(!created);
    assert!(
        error.contains("namespaces \"nowhere\" not found"),
        "{error}"
    );
    let server_side = ["apply", "--server-side", "-f", "-"];
    let (applied, _, error) = cluster.attempt(&server_side, OBJECTS).await;
    assert!(
        !applied && error.contains("Server-side apply not available"),
        "{error}"
    );
    let number = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {port: 80}\n";
    let (created, _, error) = cluster
        .attempt(&["create", "--validate=false", "-f", "-"], number)
        .await;
    let why = "cannot unmarshal number into Go struct field ConfigMap.data of type string";
    assert!(!created && error.contains(why), "{error}");
    let dry = cluster
        .run(&["create", "cm", "a", "--dry-run=server"], "")
        .await;
    assert_eq!(dry, "configmap/a created (server dry run)\n");
    assert!(!cluster.attempt(&["get", "cm", "a"], "").await.0);
    cluster.stop().await;
}

#[tokio::test]
async fn a_user_can_review_its_name_and_permissions() {
    if !have_kubectl() {
        return;
    }
    let cluster = Cluster::start().await;
    let who = cluster.run(&["auth", "whoami"], "").await;
    for line in ["system:admin", "system:masters", "system:authenticated"] {
        assert!(who.contains(line), "{who}");
    }
    let rules = cluster.run(&["auth", "can-i", "--list"], "").await;
    assert!(rules.contains("*.*") && rules.contains("[*]"), "{rules}");
    let may = cluster.run(&["auth", "can-i", "delete", "pods"], "").await;
    assert_eq!(may, "yes\n");
    cluster.stop().await;
}

#[tokio::test]
async fn changes_are_watched_until_the_server_ends() {
    if !have_kubectl() {
        return;
    }
    let cluster = Cluster::start().await;
    let mut command = cluster.command(&["get", "cm", "-w", "--output-watch-events"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The audit record shows that the watch is open.
    while !cluster
        .server
        .audit()
        .records()
        .iter()
        .any(|record| record.verb == "watch")
    {
        tokio::task::yield_now().await;
    }
    cluster
        .run(&["create", "cm", "app", "--from-literal=a=1"], "")
        .await;
    cluster.run(&["delete", "cm", "app"], "").await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let line = lines.next_line().await.unwrap().unwrap();
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        if words[1] == "app" {
            seen.push(words[..3].join(" "));
        }
    }
    assert_eq!(seen, ["ADDED app 1", "DELETED app 1"]);
    cluster.stop().await;
}

#[tokio::test]
async fn strangers_are_rejected() {
    if !have_kubectl() {
        return;
    }
    let cluster = Cluster::start().await;
    let config = std::fs::read_to_string(cluster.home.path().join("config")).unwrap();
    let anonymous: Vec<_> = config
        .lines()
        .filter(|line| !line.contains("client-"))
        .collect();
    let anonymous = anonymous
        .join("\n")
        .replace("  user:\n", "  user: {token: guess}\n");
    std::fs::write(cluster.home.path().join("config"), anonymous).unwrap();
    let (listed, _, error) = cluster.attempt(&["get", "cm"], "").await;
    assert!(!listed && error.contains("must be logged in"), "{error}");
    cluster.stop().await;
}
