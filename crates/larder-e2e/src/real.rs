//! A real kube-apiserver with its etcd, as child processes on loopback.

mod certificate;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use jiff::Timestamp;
use rcgen::KeyPair;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use self::certificate::ClientAuthority;
use crate::{
    Identity, NODE, NodeRequest, busy::BusyServer, client::client, figures::Usage,
    process::Process, reserved_port,
};

/// The two processes; dropped, they are killed and their folder is removed.
#[derive(Debug)]
pub struct RealServer {
    // Dropped first, in this order.
    apiserver: Option<Process>,
    etcd: Option<Process>,
    assets: PathBuf,
    folder: TempDir,
    etcd_port: u16,
    port: u16,
    /// Counts the bearer tokens that the node has had.
    node_token: u32,
    /// Issues certificates of the node.
    clients: ClientAuthority,
    /// Servers that have answered in place of the API server.
    busy: Vec<BusyServer>,
}

impl RealServer {
    /// Prepares keys and tokens, starts both processes and waits until the API answers.
    ///
    /// # Errors
    ///
    /// A process did not start or ended, with the end of its log.
    pub(crate) async fn start(assets: &Path) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("larder-e2e-")?;
        let key = KeyPair::generate()?;
        fs::write(folder.path().join("sa.key"), key.serialize_pem())?;
        fs::write(folder.path().join("sa.pub"), key.public_key_pem())?;
        fs::write(folder.path().join("audit.json"), audit_policy().to_string())?;
        let clients = ClientAuthority::generate()?;
        fs::write(folder.path().join("clients.crt"), clients.certificate())?;
        let mut server = Self {
            apiserver: None,
            etcd: None,
            assets: assets.to_owned(),
            folder,
            etcd_port: reserved_port()?,
            port: reserved_port()?,
            node_token: 0,
            clients,
            busy: Vec::new(),
        };
        server.write_tokens()?;
        server.renew_credentials()?;
        server.start_etcd()?;
        server.start_apiserver().await?;
        Ok(server)
    }

    /// Number of the API server's process; `None` while it is killed.
    pub fn process(&self) -> Option<u32> {
        self.apiserver.as_ref().map(Process::id)
    }

    /// Memory and CPU time of the API server's process.
    ///
    /// # Errors
    ///
    /// It is killed.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.process().context("the API server is killed")?)
    }

    /// Memory and CPU time of etcd's process.
    ///
    /// # Errors
    ///
    /// It is killed.
    pub fn etcd_usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.etcd.as_ref().context("etcd is killed")?.id())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn kubeconfig(
        &self,
        identity: Identity,
        address: SocketAddr,
    ) -> anyhow::Result<PathBuf> {
        let name = format!("{identity:?}-{}.kubeconfig", address.port());
        let path = self.folder.path().join(name);
        let user = match identity {
            Identity::Admin => json!({"token": ADMIN}),
            Identity::Node => json!({"tokenFile": self.folder.path().join(NODE_TOKEN)}),
        };
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority": self.folder.path().join("certs/apiserver.crt"),
            }}],
            "users": [{"name": "u", "user": user}],
        });
        fs::write(&path, content.to_string())?;
        Ok(path)
    }

    /// Puts a new client certificate of the node into `folder`, as a kubelet does: the link to the last one is missing
    /// for a moment. Returns a kubeconfig that names this link.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub async fn rotate_certificate(&self, folder: &Path) -> anyhow::Result<Value> {
        let link = self.clients.rotate(folder).await?;
        let mut kubeconfig: Value =
            serde_json::from_slice(&fs::read(self.kubeconfig(Identity::Node, self.address())?)?)?;
        kubeconfig["users"][0]["user"] = json!({"client-certificate": link, "client-key": link});
        Ok(kubeconfig)
    }

    /// How many watches `user_agent` has begun so far.
    ///
    /// # Errors
    ///
    /// The audit log cannot be read.
    pub fn watches_of(&self, user_agent: &str) -> anyhow::Result<usize> {
        let events = self.audit_events()?.into_iter();
        let watches = events.filter(|event| event.text("/verb") == "watch");
        let own = watches.filter(|event| event.text("/userAgent").starts_with(user_agent));
        Ok(own.count())
    }

    /// Sets the tokens that the API server accepts from its next start on.
    fn write_tokens(&self) -> std::io::Result<()> {
        let tokens = format!(
            "{ADMIN},admin,admin,\"system:masters\"\n{},system:node:{NODE},{NODE},\"system:nodes\"\n",
            self.node_token(),
        );
        fs::write(self.folder.path().join("tokens.csv"), tokens)
    }

    fn node_token(&self) -> String {
        format!("node-{}", self.node_token)
    }

    pub(crate) async fn expire_credentials(&mut self) -> anyhow::Result<()> {
        self.kill_apiserver();
        self.node_token += 1;
        self.write_tokens()?;
        self.start_apiserver().await
    }

    pub(crate) fn renew_credentials(&self) -> anyhow::Result<()> {
        fs::write(self.folder.path().join(NODE_TOKEN), self.node_token())?;
        Ok(())
    }

    /// Kills the API server and leaves etcd running.
    pub(crate) fn kill_apiserver(&mut self) {
        self.apiserver = None;
    }

    /// Replaces etcd by an empty one.
    pub(crate) fn forget(&mut self) -> anyhow::Result<()> {
        self.etcd = None;
        fs::remove_dir_all(self.folder.path().join("etcd"))?;
        self.start_etcd()
    }

    /// Makes etcd forget all versions but the current ones.
    pub(crate) async fn compact(&self) -> anyhow::Result<()> {
        let config = kube::Config::new(format!("http://127.0.0.1:{}", self.etcd_port).parse()?);
        let etcd = kube::Client::try_from(config)?;
        let ask = async |path: &str, body: Value| -> anyhow::Result<Value> {
            let request = http::Request::post(path).body(serde_json::to_vec(&body)?)?;
            let answer = etcd.request_text(request).await;
            Ok(serde_json::from_str(&answer.context("etcd refused")?)?)
        };
        // The key is a zero byte: no object has it, but the answer contains the current revision.
        let found = ask("/v3/kv/range", json!({"key": "AA=="})).await?;
        let compact = json!({"revision": found["header"]["revision"], "physical": true});
        ask("/v3/kv/compaction", compact).await?;
        Ok(())
    }

    /// Starts a server that answers with 429 in place of this one. Returns its address.
    pub(crate) async fn start_busy(&mut self) -> anyhow::Result<SocketAddr> {
        let certs = self.folder.path().join("certs");
        let (certificate, key) = (certs.join("apiserver.crt"), certs.join("apiserver.key"));
        let busy = BusyServer::start(&certificate, &key).await?;
        let address = busy.address;
        self.busy.push(busy);
        Ok(address)
    }

    pub(crate) fn node_requests(&self) -> anyhow::Result<Vec<NodeRequest>> {
        let events = self.audit_events()?.into_iter();
        let of_node = events.filter(|event| event.text(USER) == node_user());
        let served = of_node.map(|event| NodeRequest {
            at: event.at(),
            verb: event.text("/verb"),
            uri: event.text("/requestURI"),
        });
        let mut requests: Vec<_> = served.collect();
        for busy in &self.busy {
            requests.extend(busy.refused()?);
        }
        requests.sort_by_key(|request| request.at);
        Ok(requests)
    }

    /// The patches of pods' statuses so far, by all clients, oldest first.
    ///
    /// # Errors
    ///
    /// The audit log cannot be read.
    pub fn status_patches(&self) -> anyhow::Result<Vec<StatusPatch>> {
        let events = self.audit_events()?;
        let mut patches: Vec<_> = events.iter().filter_map(AuditEvent::status_patch).collect();
        patches.sort_by_key(|patch| patch.at);
        Ok(patches)
    }

    /// The requests of larder's service account so far: verbs, and resources as in `pods/status` and
    /// `leases.coordination.k8s.io`.
    ///
    /// # Errors
    ///
    /// The audit log cannot be read.
    pub fn deeds_of_account(&self) -> anyhow::Result<BTreeSet<(String, String)>> {
        let events = self.audit_events()?.into_iter();
        let of_account = events.filter(|event| event.text(USER) == ACCOUNT);
        let of_objects = of_account.filter(|event| event.0.get("objectRef").is_some());
        Ok(of_objects
            .map(|event| (event.text("/verb"), event.resource()))
            .collect())
    }

    fn audit_events(&self) -> anyhow::Result<Vec<AuditEvent>> {
        let log = fs::read_to_string(self.folder.path().join("audit.log"))?;
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let events = whole.lines().map(serde_json::from_str);
        Ok(events.collect::<Result<_, _>>()?)
    }

    /// Starts the API server on the port that it had before.
    ///
    /// # Errors
    ///
    /// The process did not start or ended, with the end of its log.
    pub(crate) async fn start_apiserver(&mut self) -> anyhow::Result<()> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();

        let child = self.spawn(
            "kube-apiserver",
            &[
                &format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
                &format!("--secure-port={}", self.port),
                "--bind-address=127.0.0.1",
                // Without it the server looks for a default route, which a machine for tests need not have.
                "--advertise-address=127.0.0.1",
                &format!("--cert-dir={}", path("certs")),
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-account-key-file={}", path("sa.pub")),
                &format!("--service-account-signing-key-file={}", path("sa.key")),
                &format!("--token-auth-file={}", path("tokens.csv")),
                &format!("--client-ca-file={}", path("clients.crt")),
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                // No controller makes service accounts here, so a pod could not be created with this one.
                "--disable-admission-plugins=ServiceAccount",
                "--service-cluster-ip-range=10.96.0.0/16",
                // Beta and off by default, like everything in it that is not yet v1.
                "--runtime-config=certificates.k8s.io/v1beta1=true",
                "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true",
                &format!("--audit-policy-file={}", path("audit.json")),
                &format!("--audit-log-path={}", path("audit.log")),
            ],
        )?;
        self.apiserver = Some(child);
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            self.check_alive()?;
            // A process of its own: there is nothing to be notified by.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let ask = async {
                let client = client(self.kubeconfig(Identity::Admin, self.address())?).await?;
                let request = http::Request::get("/readyz").body(Vec::new())?;
                anyhow::Ok(client.request_text(request).await?)
            };
            match ask.await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error.context("the API server did not become ready"));
                }
                Err(_) => {}
            }
        }
    }

    /// Fails when a process has ended.
    fn check_alive(&mut self) -> anyhow::Result<()> {
        let processes = [&mut self.etcd, &mut self.apiserver];
        let mut processes = processes.into_iter().flatten();
        processes.try_for_each(Process::check_alive)
    }

    fn start_etcd(&mut self) -> anyhow::Result<()> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", reserved_port()?);
        let child = self.spawn(
            "etcd",
            &[
                &format!("--data-dir={}", self.folder.path().join("etcd").display()),
                "--unsafe-no-fsync",
                &format!("--listen-client-urls={client}"),
                &format!("--advertise-client-urls={client}"),
                &format!("--listen-peer-urls={peer}"),
                &format!("--initial-advertise-peer-urls={peer}"),
                &format!("--initial-cluster=default={peer}"),
            ],
        )?;
        self.etcd = Some(child);
        Ok(())
    }

    fn spawn(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        let log = self.folder.path().join(format!("{name}.log"));
        let mut command = Command::new(self.assets.join(name));
        Process::start(name, command.args(arguments), &log)
    }
}

/// Records each request of the node once, when it arrives. A patch of a pod's status, by any client, is recorded with
/// its body, when it has been answered.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["ResponseStarted", "Panic"],
        "rules": [
            {
                "level": "Request",
                "verbs": ["patch"],
                "resources": [{"group": "", "resources": ["pods/status"]}],
                "omitStages": ["RequestReceived"],
            },
            {
                "level": "Metadata",
                "users": [node_user(), ACCOUNT],
                "omitStages": ["ResponseComplete"],
            },
            {"level": "None"},
        ],
    })
}

/// The service account of the manifests.
const ACCOUNT: &str = "system:serviceaccount:larder:larder";

fn node_user() -> String {
    format!("system:node:{NODE}")
}

/// Where an audit event names the user that made the request.
const USER: &str = "/user/username";

/// An event of `audit.k8s.io/v1`.
#[derive(Deserialize)]
struct AuditEvent(Value);

impl AuditEvent {
    /// What the pointer leads to; empty if there is no such text.
    fn text(&self, pointer: &str) -> String {
        let text = self.0.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    }

    fn at(&self) -> Timestamp {
        let time = self.text("/requestReceivedTimestamp").parse();
        time.expect("every event has its time")
    }

    /// As in `pods/status` and `leases.coordination.k8s.io`.
    fn resource(&self) -> String {
        let mut name = self.text("/objectRef/resource");
        for (mark, field) in [("/", "subresource"), (".", "apiGroup")] {
            let part = self.text(&format!("/objectRef/{field}"));
            if !part.is_empty() {
                name = format!("{name}{mark}{part}");
            }
        }
        name
    }

    fn status_patch(&self) -> Option<StatusPatch> {
        let is_one = self.text("/verb") == "patch" && self.resource() == "pods/status";
        let body = self.0.get("requestObject").filter(|_| is_one)?;
        Some(StatusPatch {
            at: self.at(),
            user: self.text(USER),
            user_agent: self.text("/userAgent"),
            namespace: self.text("/objectRef/namespace"),
            pod: self.text("/objectRef/name"),
            body: body.clone(),
            code: self.0["responseStatus"]["code"].as_u64()?,
        })
    }
}

/// An answered patch of the status of a pod.
#[derive(Clone, Debug)]
pub struct StatusPatch {
    /// When the server received the patch.
    pub at: Timestamp,
    /// Authenticated user of the request.
    pub user: String,
    /// User agent of the sender.
    pub user_agent: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The patch.
    pub body: Value,
    /// HTTP status of the answer.
    pub code: u64,
}

/// How long a start may take; a real server needs some seconds for its bootstrap hooks.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// The administrator's bearer token; the server listens on loopback and lives as long as a test.
const ADMIN: &str = "admin";
/// File of the node's bearer token.
const NODE_TOKEN: &str = "node.token";
