//! The manifests of `deploy/` grant exactly the permissions that the agent uses.
//!
//! The test makes an agent send every kind of request, and records them. On a real server the agent has the service
//! account of the manifests, so that a missing rule is a 403. On the embedded one, which has no RBAC, only the requests
//! are compared with the rules.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    certificates::v1beta1::PodCertificateRequest,
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
    client::Body,
};
use larder::WatchScope;
use larder_agent::{
    TaskError,
    agent::{Agent, AgentHandle},
    config::{Config, Flags, Host},
    root_dir::RootDir,
    status::Phase,
};
use larder_e2e::{Identity, NODE, Server, deploy::documents};
use larder_projection::disk::VolumeHost;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::connect::connect;

const CERTIFICATES: &str = "certificates.k8s.io";

const PATIENCE: Duration = Duration::from_mins(1);

/// A request or a permission: verb and resource.
type Deed = (String, String);

/// The requests of a client.
#[derive(Clone, Default)]
struct Log {
    deeds: Arc<Mutex<BTreeSet<Deed>>>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl Log {
    /// `client` with its requests recorded; optionally without streaming lists.
    fn of(&self, client: Client, streaming_lists: bool) -> Client {
        let log = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, log) = (client.clone(), log.clone());
            async move {
                let target = request.uri().to_string();
                if !streaming_lists && target.contains("sendInitialEvents") {
                    let mut answer = Response::new(Body::from(b"{}".to_vec()));
                    *answer.status_mut() = http::StatusCode::UNPROCESSABLE_ENTITY;
                    return Ok::<_, kube::Error>(answer);
                }
                log.deeds.lock().extend(deed(request.method(), &target));
                let answer = client.send(request).await?;
                if answer.status() == http::StatusCode::FORBIDDEN {
                    log.refused.lock().push(target);
                }
                Ok(answer)
            }
        });
        Client::new(service, "default")
    }
}

/// The permission that a request needs; `None` if every user has it.
fn deed(method: &Method, target: &str) -> Option<Deed> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let of_certificates = path
        .strip_prefix("/apis/certificates.k8s.io/")
        .and_then(|path| Some(path.split_once('/')?.1));
    let group = if of_certificates.is_some() {
        CERTIFICATES
    } else {
        ""
    };
    let path = of_certificates.or(path.strip_prefix("/api/v1/"))?;
    let segments: Vec<_> = path.split('/').collect();
    let segments = match &*segments {
        ["namespaces", _, rest @ ..] => rest,
        all => all,
    };
    let resource = match segments {
        [resource, _, subresource] => format!("{resource}/{subresource}"),
        [resource, ..] => (*resource).to_owned(),
        [] => return None,
    };
    let verb = match *method {
        Method::GET if query.contains("watch=true") => "watch",
        Method::GET if segments.len() == 1 => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::DELETE => "delete",
        Method::PATCH => "patch",
        _ => "something else",
    };
    Some((verb.to_owned(), qualified(&resource, group)))
}

/// `pods`, or `clustertrustbundles.certificates.k8s.io`.
fn qualified(resource: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{resource}{dot}{group}")
}

/// The permissions that the roles among the documents grant.
fn granted(documents: &[Value]) -> BTreeSet<Deed> {
    let strings = |value: &Value| -> Vec<String> {
        let values = value.as_array().unwrap().iter();
        values
            .map(|value| value.as_str().unwrap().to_owned())
            .collect()
    };
    let rules = documents
        .iter()
        .filter_map(|document| document["rules"].as_array())
        .flatten();
    let of_rule = |rule: &Value| {
        let groups = strings(&rule["apiGroups"]);
        let [group] = &groups[..] else {
            panic!("a rule is for one group: {rule}")
        };
        assert!(["", CERTIFICATES].contains(&group.as_str()), "{group}");
        let verbs = strings(&rule["verbs"]);
        strings(&rule["resources"])
            .into_iter()
            .flat_map(move |resource| {
                let resource = qualified(&resource, group);
                let deed = move |verb: &String| (verb.clone(), resource.clone());
                verbs.iter().map(deed).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    rules.flat_map(of_rule).collect()
}

async fn create(admin: &Client, object: &Value) {
    let (kind, namespace) = (
        object["kind"].as_str().unwrap(),
        object["metadata"]["namespace"].as_str(),
    );
    let group = match object["apiVersion"].as_str().unwrap() {
        "v1" => "/api/v1".to_owned(),
        group => format!("/apis/{group}"),
    };
    let namespace = namespace
        .map(|namespace| format!("/namespaces/{namespace}"))
        .unwrap_or_default();
    let path = format!("{group}{namespace}/{}s", kind.to_lowercase());
    let request = Request::post(path)
        .body(object.to_string().into_bytes())
        .unwrap();
    admin.request::<Value>(request).await.unwrap();
}

/// A client with the service account of the manifests, once these are applied; the embedded server has no RBAC.
async fn service_account(
    server: &Server,
    admin: &Client,
    documents: &[Value],
    folder: &Path,
) -> Client {
    let kubeconfig = server.kubeconfig(Identity::Admin).unwrap();
    if !matches!(server, Server::Real(_)) {
        return connect(kubeconfig).await;
    }
    for document in documents {
        create(admin, document).await;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "larder");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec::default()),
        ..TokenRequest::default()
    };
    let token = accounts
        .create_token_request("larder", &PostParams::default(), &request)
        .await
        .unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(kubeconfig).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": token.status.unwrap().token});
    let path = folder.join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    connect(path).await
}

/// A pod of the node that needs an object of every kind.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": "default",
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": "i",
                "envFrom": [{"secretRef": {"name": "login"}}],
                "volumeMounts": [
                    {"name": "config", "mountPath": "/config"},
                    {"name": "login", "mountPath": "/login"},
                    {"name": "token", "mountPath": "/token"},
                ],
            }],
            "volumes": [
                {"name": "config", "configMap": {"name": "config"}},
                {"name": "login", "secret": {"secretName": "login"}},
                {"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                    {"clusterTrustBundle": {"name": "anchors", "path": "ca.pem"}},
                ]}},
            ],
        },
    })
}

/// A pod of the node with a certificate that no signer issues.
fn applicant() -> Value {
    let source = json!({"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "key"}});
    let mut pod = pod("applicant");
    pod["spec"]["volumes"] = json!([{"name": "id", "projected": {"sources": [source]}}]);
    pod["spec"]["containers"] = json!([
        {"name": "c", "image": "i", "volumeMounts": [{"name": "id", "mountPath": "/id"}]},
    ]);
    pod
}

const STATIC_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: fixed}
spec:
  containers:
  - {name: c, image: i}
";

/// A running agent.
struct Running {
    handle: AgentHandle,
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), TaskError>>,
}

impl Running {
    fn start(client: Client, root: &Path, static_pods: &Path, scope: WatchScope) -> Self {
        let flags = Flags {
            node_name: Some(NODE.to_owned()),
            root_dir: Some(root.to_owned()),
            watch_scope: Some(scope),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &Host::current()).unwrap();
        config.static_pod_path = Some(static_pods.to_owned());
        config.file_check_frequency = Duration::from_millis(100);
        config.register_node = true;
        let root = RootDir::lock(&config.root_dir).unwrap();
        let volumes = VolumeHost::open_without_mounts(root.path()).unwrap();
        let agent = Agent::builder(config, root, volumes, client)
            .build()
            .unwrap();
        let (handle, shutdown) = (agent.handle(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run(shutdown.clone()));
        Self {
            handle,
            shutdown,
            tasks,
        }
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }

    /// Waits until these pods are delivered and there are no problems.
    async fn deliver(&self, names: &[&str]) {
        let delivered = || {
            let status = self.handle.status();
            let delivered = |name: &&str| {
                let mut pods = status.pods.iter();
                pods.any(|pod| pod.name == *name && pod.delivery.phase == Phase::Delivered)
            };
            status.problems.is_empty() && names.iter().all(delivered)
        };
        assert!(
            until(async || delivered()).await,
            "{:#?}",
            self.handle.status()
        );
    }
}

async fn until(holds: impl AsyncFn() -> bool) -> bool {
    let wait = async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.is_ok()
}

/// The objects that the pods reference.
async fn create_objects(admin: &Client) {
    let meta = |name: &str| json!({"namespace": "default", "name": name});
    create(
        admin,
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("default")}),
    )
    .await;
    create(admin, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("config"), "data": {"k": "v"}})).await;
    create(admin, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("login"), "stringData": {"k": "v"}})).await;
    let anchors = include_str!("../../../larder-objects/src/x509/root.pem");
    let bundle = json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": "anchors"}, "spec": {"trustBundle": anchors},
    });
    create(admin, &bundle).await;
}

/// Makes agents send every kind of request; returns the requests.
async fn all_deeds(manifests: &[&str]) -> (BTreeSet<Deed>, BTreeSet<Deed>) {
    let roles = manifests.iter().map(|name| format!("{name}/rbac.yaml"));
    let documents: Vec<_> = roles.flat_map(documents).collect();
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let (root, static_pods) = (folder.path().join("root"), folder.path().join("pods"));
    fs::create_dir(&static_pods).unwrap();
    let client = service_account(&server, &admin, &documents, folder.path()).await;
    create_objects(&admin).await;
    create(&admin, &pod("web")).await;

    let log = Log::default();
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(admin.clone(), "default");
    // Watched by name; a second pod needs a freshness check. The static pod's name is taken at first.
    let mirror = format!("fixed-{NODE}");
    let mut taken = pod(&mirror);
    taken["spec"]["nodeName"] = "another".into();
    create(&admin, &taken).await;
    fs::write(static_pods.join("fixed.yaml"), STATIC_POD).unwrap();
    let agent = Running::start(
        log.of(client.clone(), true),
        &root,
        &static_pods,
        WatchScope::Object,
    );
    let complains = async || !agent.handle.status().problems.is_empty();
    assert!(until(complains).await, "{:#?}", agent.handle.status());
    let now = kube::api::DeleteParams::default().grace_period(0);
    pods.delete(&mirror, &now).await.unwrap();
    agent.deliver(&["web", &mirror]).await;
    create(&admin, &pod("web-2")).await;
    agent.deliver(&["web", "web-2", &mirror]).await;
    // An object is missing for a while, which is reported twice.
    let mut late = pod("late");
    late["spec"]["volumes"][0]["configMap"]["name"] = "late".into();
    create(&admin, &late).await;
    // On a slow machine the first post already counts two failures, and the patch comes with the third.
    let patch = ("patch".to_owned(), "events".to_owned());
    let is_counted_up = async || log.deeds.lock().contains(&patch);
    assert!(until(is_counted_up).await, "no event counts");
    create(
        &admin,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "late"}}),
    )
    .await;
    agent.deliver(&["late"]).await;
    assert!(
        until(async || pods.get_opt(&mirror).await.unwrap().is_some()).await,
        "mirror pod"
    );
    create(&admin, &applicant()).await;
    let requests: Api<PodCertificateRequest> = Api::namespaced(admin.clone(), "default");
    let has_applied = async || {
        let all = requests.list(&ListParams::default()).await.unwrap();
        !all.items.is_empty()
    };
    assert!(until(has_applied).await, "request for a certificate");
    fs::remove_file(static_pods.join("fixed.yaml")).unwrap();
    assert!(
        until(async || pods.get_opt(&mirror).await.unwrap().is_none()).await,
        "no mirror pod"
    );
    agent.stop().await;
    // The other ways to the same objects.
    for (scope, streaming_lists) in [
        (WatchScope::Object, false),
        (WatchScope::Namespace, true),
        (WatchScope::Auto, true),
    ] {
        let client = log.of(client.clone(), streaming_lists);
        let agent = Running::start(client, &root, &static_pods, scope);
        agent.deliver(&["web", "web-2"]).await;
        if scope == WatchScope::Auto {
            let choices = agent.handle.status().watch_scopes;
            assert_eq!(choices.len(), 2, "{choices:?}");
            assert!(
                choices.iter().all(|choice| choice.scope == "Namespace"),
                "{choices:?}"
            );
        }
        agent.stop().await;
    }
    assert_eq!(*log.refused.lock(), Vec::<String>::new());
    let deeds = log.deeds.lock().clone();
    (deeds, granted(&documents))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_for_a_node_grant_exactly_what_the_agent_uses() {
    let (done, granted) = all_deeds(&["node", "static-pods", "certificates"]).await;
    assert_eq!(done, granted);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_for_a_namespace_grant_exactly_what_the_agent_uses() {
    let (done, granted) = all_deeds(&["namespace", "static-pods", "certificates"]).await;
    assert_eq!(done, granted);
}
