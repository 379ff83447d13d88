//! The manifests of `deploy/beside` on a real API server and a real kubelet.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, Namespace, Pod, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use larder_e2e::{Identity, NODE, deploy::documents};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::sub_paths::{ASKS, by_sub_path};
use crate::{
    bed::{Bed, code, config_map_volume, patch_status, pod, secret_volume, until, until_content},
    node::{Container, IMAGE, MountView},
};

pub(super) async fn client_of(kubeconfig: Kubeconfig) -> Client {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.default_retry = false;
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

/// Applies the roles and the policy of `deploy/beside`.
pub(super) async fn apply(bed: &Bed) {
    let namespaces: Api<Namespace> = Api::all(bed.admin.clone());
    if namespaces.get_opt("larder").await.unwrap().is_some() {
        return;
    }
    for document in documents("beside/rbac.yaml")
        .into_iter()
        .chain(documents("beside/policy.yaml"))
    {
        bed.create(&document).await;
    }
}

/// A kubeconfig with a token of service account `name`, bound to `pod` if given.
pub(super) async fn kubeconfig_of_account(bed: &Bed, name: &str, pod: Option<&Pod>) -> Value {
    let accounts: Api<ServiceAccount> = Api::namespaced(bed.admin.clone(), "larder");
    let bound = pod.map(|pod| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    });
    let spec = TokenRequestSpec {
        bound_object_ref: bound,
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest {
        spec: Some(spec),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .unwrap();
    let kubeconfig = fs::read(bed.server.kubeconfig(Identity::Admin).unwrap()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": answer.status.unwrap().token});
    kubeconfig
}

pub(super) async fn account(bed: &Bed, pod: Option<&Pod>) -> Client {
    client_of(serde_json::from_value(kubeconfig_of_account(bed, "larder", pod).await).unwrap())
        .await
}

/// A pod of the DaemonSet, on the node.
pub(super) async fn larder_pod(bed: &Bed) -> Pod {
    let mut larder = pod("larder", json!([]));
    larder["spec"]["serviceAccountName"] = "larder".into();
    bed.create_pod("larder", &larder).await
}

pub(super) fn labels() -> Value {
    // A different value each time: with the present one, the policy would see no change.
    json!({"metadata": {"labels": {"x": fastrand::u32(..).to_string()}}})
}

/// Waits until the policy rejects: the API server compiles it some moments after its creation.
pub(super) async fn until_policy(client: &Client, pod: &Pod) {
    until("the policy is in effect", async || {
        code(patch_status(client, pod, &labels()).await) == 422
    })
    .await;
}

/// The permissions that the roles of `deploy/beside` grant.
fn granted() -> BTreeSet<(String, String)> {
    let documents = documents("beside/rbac.yaml");
    let rules = documents
        .iter()
        .filter_map(|document| document["rules"].as_array())
        .flatten();
    let strings = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_str().unwrap().to_owned())
            .collect()
    };
    let of_rule = |rule: &Value| {
        let group = match &strings(&rule["apiGroups"])[..] {
            [group] if group.is_empty() => String::new(),
            [group] => format!(".{group}"),
            groups => panic!("a rule is for one group: {groups:?}"),
        };
        let resources = strings(&rule["resources"]).into_iter();
        let verbs = strings(&rule["verbs"]);
        let of_resource = move |resource: String| {
            let (group, verbs) = (group.clone(), verbs.clone());
            verbs
                .into_iter()
                .map(move |verb| (verb, format!("{resource}{group}")))
        };
        resources.flat_map(of_resource).collect::<Vec<_>>()
    };
    rules.flat_map(of_rule).collect()
}

/// The account of the manifests can do everything with the permissions that they grant, under their policy.
pub(crate) async fn account_as_deployed_delivers(bed: &mut Bed) {
    let ns = bed.namespace().await;
    apply(bed).await;
    bed.create_config_map(&ns, "app", "1").await;
    bed.create_secret(&ns, "login", "1").await;
    let anchors = include_str!("../../../../larder-objects/src/x509/root.pem");
    bed.create(&json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": ns}, "spec": {"trustBundle": anchors},
    }))
    .await;
    let trust = json!({"name": "trust", "projected": {"sources": [{"clusterTrustBundle": {"name": ns, "path": "ca"}}]}});
    let mut web = pod(
        "web",
        json!([config_map_volume("app"), secret_volume("login"), trust]),
    );
    web["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "login"}}]);
    let web = bed.create_pod(&ns, &web).await;
    let larder = larder_pod(bed).await;
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(
        &kubeconfig,
        kubeconfig_of_account(bed, "larder", Some(&larder))
            .await
            .to_string(),
    )
    .unwrap();
    until_policy(&account(bed, Some(&larder)).await, &web).await;
    bed.start_larder_as(&kubeconfig, MountView::HostToContainer)
        .await;
    bed.ready(&ns, "web").await;
    bed.until_phase(&web, "login", "Delivered").await;
    bed.set_secret(&ns, "login", "2").await;
    bed.set_config_map(&ns, "app", "2").await;
    for (plugin, volume) in [
        ("kubernetes.io~secret", "login"),
        ("kubernetes.io~configmap", "app"),
    ] {
        until_content(&bed.volume(&web, plugin, volume).join("k"), "2").await;
        bed.until_phase(&web, volume, "Delivered").await;
    }
    bed.until_phase(&web, "trust", "Delivered").await;
    // An object is missing for a while, which is reported twice.
    bed.delete_config_map(&ns, "app").await;
    bed.until_phase(&web, "app", "Failing").await;
    let status = bed.larder().status().unwrap().unwrap_or_default();
    let rights = status["beside"]["rights"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert!(
        !rights.is_empty() && rights.iter().all(|right| right["granted"] == true),
        "{rights:?}"
    );
    let done: BTreeSet<_> = bed.real().deeds_of_account().unwrap();
    let reviews = |deed: &(String, String)| deed.1.contains("reviews.auth");
    let (done, granted) = (
        done.into_iter()
            .filter(|deed| !reviews(deed))
            .collect::<BTreeSet<_>>(),
        granted(),
    );
    let more: Vec<_> = done.difference(&granted).collect();
    assert!(
        more.is_empty(),
        "it requests permissions that it is not granted: {more:?}"
    );
    let unused = granted
        .difference(&done)
        .map(|(verb, resource)| format!("{verb} {resource}"));
    // Lists if the API server does not stream them, fresh reads if a watch lags, and events.
    let expected = |unused: &str| {
        unused.starts_with("list ")
            || unused.starts_with("get configmaps")
            || unused.starts_with("get secrets")
            || unused.ends_with(" events")
    };
    let unused: Vec<_> = unused.filter(|unused| !expected(unused)).collect();
    assert!(unused.is_empty(), "it does not need {unused:?}");
}

/// The pod that the DaemonSet's controller and the admission of service accounts would create: its template, with the
/// kubelet's root directory of this node, and with the command and the libraries of this machine in place of an image.
fn pod_of_daemon_set(bed: &Bed) -> Value {
    let daemon_set = documents("beside/daemonset.yaml").remove(0);
    let root = bed.node.kubelet.root_dir().display().to_string();
    let template = daemon_set["spec"]["template"]
        .to_string()
        .replace("/var/lib/kubelet", &root);
    let mut pod: Value = serde_json::from_str(&template).unwrap();
    pod["metadata"]["name"] = "larder-daemon".into();
    let command = fs::canonicalize(bed.larder_command()).unwrap();
    let spec = &mut pod["spec"];
    spec["nodeName"] = NODE.into();
    spec["hostNetwork"] = true.into();
    spec["terminationGracePeriodSeconds"] = 1.into();
    let host = |name: &str, path: &Path| json!({"name": name, "hostPath": {"path": path}});
    let token = json!({"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]}});
    let more = [token, host("command", command.parent().unwrap())];
    let libraries = ["/usr", "/lib", "/lib64"]
        .map(Path::new)
        .into_iter()
        .filter(|path| path.is_dir());
    let libraries: Vec<_> = libraries.collect();
    let library_name = |path: &Path| path.display().to_string().replace('/', "host-");
    let volumes = spec["volumes"].as_array_mut().unwrap();
    volumes.extend(more);
    volumes.extend(
        libraries
            .iter()
            .map(|path| host(&library_name(path), &fs::canonicalize(path).unwrap())),
    );
    let container = &mut spec["containers"][0];
    container["image"] = IMAGE.into();
    container["imagePullPolicy"] = "Never".into();
    container["command"] = json!([Path::new("/command").join(command.file_name().unwrap())]);
    let address = bed.server.address();
    container["env"].as_array_mut().unwrap().extend([
        json!({"name": "KUBERNETES_SERVICE_HOST", "value": address.ip().to_string()}),
        json!({"name": "KUBERNETES_SERVICE_PORT", "value": address.port().to_string()}),
        // For the probes.
        json!({"name": "PATH", "value": "/command:/bin"}),
    ]);
    let mounts = container["volumeMounts"].as_array_mut().unwrap();
    let mount =
        |name: &str, path: &Path| json!({"name": name, "mountPath": path, "readOnly": true});
    mounts.push(mount(
        "token",
        Path::new("/var/run/secrets/kubernetes.io/serviceaccount"),
    ));
    mounts.push(mount("command", Path::new("/command")));
    mounts.extend(
        libraries
            .iter()
            .map(|path| mount(&library_name(path), path)),
    );
    pod
}

/// The agent's answer on the port of the manifest, in the container.
fn status() -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", 10290)).ok()?;
    stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

fn is_delivered(pod: &Pod, volume: &str) -> bool {
    let status = status().unwrap_or_default();
    let mut pods = status["pods"].as_array().into_iter().flatten();
    let found = pods.find(|found| found["uid"].as_str() == pod.metadata.uid.as_deref());
    let mut volumes = found
        .and_then(|pod| pod["volumes"].as_array())
        .into_iter()
        .flatten();
    volumes.any(|found| found["name"] == volume && found["phase"] == "Delivered")
}

/// What the pod of the DaemonSet mounts.
async fn configure(bed: &Bed) {
    apply(bed).await;
    let root = bed.node.kubelet.root_dir().display().to_string();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/beside/agent.yaml");
    let config = fs::read_to_string(path)
        .unwrap()
        .replace("/var/lib/kubelet", &root);
    let kubeconfig = fs::read(bed.server.kubeconfig(Identity::Admin).unwrap()).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    let authority = kubeconfig["clusters"][0]["cluster"]["certificate-authority"]
        .as_str()
        .unwrap();
    for (name, key, value) in [
        ("larder-config", "agent.yaml", config),
        (
            "kube-root-ca.crt",
            "ca.crt",
            fs::read_to_string(authority).unwrap(),
        ),
    ] {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "larder", "name": name}, "data": {key: value},
        });
        let maps: Api<ConfigMap> = Api::namespaced(bed.admin.clone(), "larder");
        if maps.get_opt(name).await.unwrap().is_none() {
            bed.create(&object).await;
        }
    }
}

/// With `beside/subpaths`, larder may do in its container what mounts by `subPath` need.
pub(crate) async fn daemon_set_with_the_component_replaces_mounts_by_sub_path(bed: &mut Bed) {
    let ns = bed.namespace().await;
    configure(bed).await;
    let mut larder = pod_of_daemon_set(bed);
    let component = documents("beside/subpaths/daemonset.yaml").remove(0);
    let patch = &component["spec"]["template"]["spec"];
    let spec = &mut larder["spec"];
    spec["hostPID"] = patch["hostPID"].clone();
    let more = patch["containers"][0]["securityContext"]
        .as_object()
        .unwrap();
    let context = spec["containers"][0]["securityContext"]
        .as_object_mut()
        .unwrap();
    for (name, value) in more {
        context.insert(name.clone(), value.clone());
    }
    let larder = bed.run_pod("larder", &larder).await;
    bed.create_secret(&ns, "login", "1").await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut secret = secret_volume("login");
    secret["secret"]["defaultMode"] = 0o400.into();
    let mut web = pod("web", json!([secret, config_map_volume("app")]));
    web["metadata"]["annotations"] = json!({ASKS: "true"});
    web["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 1000});
    web["spec"]["containers"][0]["volumeMounts"] = json!([
        by_sub_path("login", "/login"),
        {"name": "app", "mountPath": "/app.conf", "subPath": "k"},
    ]);
    let web = bed.run_pod(&ns, &web).await;
    for volume in ["login", "app"] {
        until("the volume is verified", async || {
            is_delivered(&web, volume)
        })
        .await;
    }
    let process = Container::of(&web, "c").unwrap();
    for value in ["2", "3"] {
        bed.set_secret(&ns, "login", value).await;
        bed.set_config_map(&ns, "app", value).await;
        for path in ["/login", "/app.conf"] {
            until_content(&process.path(path), value).await;
        }
    }
    end(bed, &larder).await;
}

/// Until its process has ended, it would touch the pods of the next scenario.
async fn end(bed: &Bed, larder: &Pod) {
    let statuses = larder.status.as_ref().unwrap().container_statuses.as_ref();
    let id = statuses.unwrap()[0].container_id.as_deref().unwrap();
    let mut process = Container {
        id: id.split_once("://").unwrap().1.to_owned(),
        pid: 0,
    };
    process.pid = bed.node.first_process(&process).unwrap();
    bed.delete_pod_now(larder).await.unwrap();
    until("it has ended", async || !process.path("/").exists()).await;
}

/// Without it, the status has the reason.
pub(crate) async fn daemon_set_without_the_component_says_what_is_missing(bed: &mut Bed) {
    let ns = bed.namespace().await;
    configure(bed).await;
    let larder = bed.run_pod("larder", &pod_of_daemon_set(bed)).await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = pod("web", json!([config_map_volume("app")]));
    web["metadata"]["annotations"] = json!({ASKS: "true"});
    web["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "app", "mountPath": "/app.conf", "subPath": "k"}]);
    let web = bed.run_pod(&ns, &web).await;
    until("the volume is verified", async || is_delivered(&web, "app")).await;
    bed.set_config_map(&ns, "app", "2").await;
    let reason = async || {
        let status = status().unwrap_or_default().to_string();
        status.contains("larder needs the PID namespace of the host")
    };
    until("the reason is shown", reason).await;
    let process = Container::of(&web, "c").unwrap();
    assert_eq!(fs::read_to_string(process.path("/app.conf")).unwrap(), "1");
    end(bed, &larder).await;
}

/// In its container, larder sees later mounts, can read all files, and can touch under the policy.
pub(crate) async fn daemon_set_delivers_from_its_container(bed: &mut Bed) {
    let ns = bed.namespace().await;
    configure(bed).await;
    let larder = bed.run_pod("larder", &pod_of_daemon_set(bed)).await;
    // Its files belong to another user, and no one else may read them.
    bed.create_secret(&ns, "login", "1").await;
    let mut secret = secret_volume("login");
    secret["secret"]["defaultMode"] = 0o400.into();
    let mut web = pod("web", json!([secret]));
    web["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 1000});
    let web = bed.run_pod(&ns, &web).await;
    until("the volume is verified", async || {
        is_delivered(&web, "login")
    })
    .await;
    bed.change_login(&ns, &web, "2").await;
    until("the change is verified", async || {
        is_delivered(&web, "login")
    })
    .await;
    let touches = bed.touches(&web);
    let [touch] = &touches[..] else {
        panic!("{touches:?}")
    };
    assert_eq!(
        (touch.user.as_str(), touch.code),
        ("system:serviceaccount:larder:larder", 200)
    );
    assert_eq!(bed.touches(&larder).len(), 0, "not its own pod");
    end(bed, &larder).await;
}

// beside-kubelet 22: a permission is missing
pub(crate) async fn missing_right_is_named_and_not_asked_for_again(bed: &mut Bed) {
    let ns = bed.namespace().await;
    apply(bed).await;
    let metadata = json!({"namespace": "larder", "name": "limited"});
    bed.create(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}))
        .await;
    let api = "rbac.authorization.k8s.io/v1";
    let documents = documents("beside/rbac.yaml");
    let role = documents
        .into_iter()
        .find(|document| document["kind"] == "ClusterRole")
        .unwrap();
    let rules = role["rules"].as_array().unwrap().iter();
    let rules: Vec<_> = rules
        .filter(|rule| rule["resources"] != json!(["pods/status"]))
        .collect();
    let metadata = json!({"name": "limited"});
    bed.create(
        &json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": rules}),
    )
    .await;
    bed.create(&json!({
        "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "limited"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "larder", "name": "limited"}],
    }))
    .await;
    bed.create_config_map(&ns, "app", "1").await;
    let web = bed
        .run_pod(&ns, &pod("web", json!([config_map_volume("app")])))
        .await;
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(
        &kubeconfig,
        kubeconfig_of_account(bed, "limited", None)
            .await
            .to_string(),
    )
    .unwrap();
    bed.start_larder_as(&kubeconfig, MountView::Host).await;
    bed.until_phase(&web, "app", "Delivered").await;
    for change in ["2", "3"] {
        bed.set_config_map(&ns, "app", change).await;
        bed.until_phase(&web, "app", "Waiting").await;
    }
    until("the permission is named", async || {
        let status = bed.larder().status().unwrap().unwrap_or_default();
        let rights = status["beside"]["rights"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        rights.contains(&json!({"right": "patch pods/status", "granted": false}))
    })
    .await;
    let touches = bed.touches(&web);
    assert!(
        touches.len() <= 1 && touches.iter().all(|touch| touch.code == 403),
        "{touches:?}"
    );
}
