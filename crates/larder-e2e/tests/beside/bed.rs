//! The test bed that all scenarios share: the API server, the node, and larder on it.

mod web;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use larder_e2e::{Binaries, Identity, NODE, RealServer, Server, StatusPatch};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::node::{
    Container, IMAGE, KubeletNode, KubeletSettings, Larder, MountView, isolation::Isolated,
};

/// Longest wait for an expected event. No test judges speed by it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// Pause between two checks of another process.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// The whole test bed. Dropping it ends everything.
pub(crate) struct Bed {
    pub(crate) admin: Client,
    pub(crate) node: KubeletNode,
    pub(crate) server: Server,
    larder_command: PathBuf,
    larder: Option<Larder>,
    namespaces: u32,
}

impl Bed {
    pub(crate) async fn start(
        isolated: &Isolated,
        binaries: &Binaries,
        larder: PathBuf,
    ) -> anyhow::Result<Self> {
        let server = Server::start().await?;
        let admin = server.client().await?;
        let kubeconfig = server.kubeconfig(Identity::Node)?;
        let node = KubeletNode::start(
            isolated,
            binaries,
            kubeconfig,
            &admin,
            KubeletSettings::default(),
        )
        .await?;
        Ok(Self {
            admin,
            node,
            server,
            larder_command: larder,
            larder: None,
            namespaces: 0,
        })
    }

    /// Cleans up after a scenario.
    pub(crate) async fn clear(&mut self) -> anyhow::Result<()> {
        self.larder = None;
        let pods: Api<Pod> = Api::all(self.admin.clone());
        for pod in pods.list(&ListParams::default()).await? {
            self.delete_pod_now(&pod).await?;
        }
        Ok(())
    }

    /// Deletes a pod without a grace period, if it is there. Its processes may run a little longer.
    pub(crate) async fn delete_pod_now(&self, pod: &Pod) -> anyhow::Result<()> {
        let (namespace, name) = (
            pod.metadata.namespace.as_deref(),
            pod.metadata.name.as_deref(),
        );
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), namespace.unwrap_or_default());
        match pods
            .delete(
                name.unwrap_or_default(),
                &DeleteParams::default().grace_period(0),
            )
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    /// Prints diagnostics after a failure.
    pub(crate) fn explain(&mut self) {
        let last = |text: String| {
            let lines = text.lines().rev().take(20).map(str::to_owned);
            lines.collect::<Vec<_>>()
        };
        println!(
            "the kubelet's log, latest first: {:#?}",
            last(self.node.kubelet.log())
        );
        if let Some(larder) = &mut self.larder {
            let status = larder.status().ok().flatten().unwrap_or_default();
            println!("larder's log, latest first: {:#?}", last(larder.log()));
            let pods = status["pods"].as_array().into_iter().flatten();
            let pods: Vec<_> = pods.filter(|pod| pod["phase"] != "Delivered").collect();
            println!(
                "its status: {}; pods that are not delivered: {pods:?}",
                status["beside"]
            );
        }
    }

    pub(crate) fn real(&self) -> &RealServer {
        match &self.server {
            Server::Real(server) => server,
            Server::Embedded(_) => unreachable!("KUBEBUILDER_ASSETS is set"),
        }
    }

    /// Starts larder with the node's identity, as a process of the host.
    pub(crate) async fn start_larder(&mut self) {
        self.start_larder_with(MountView::Host).await;
    }

    /// Starts larder with the node's identity and this view of the host's mounts.
    pub(crate) async fn start_larder_with(&mut self, view: MountView) {
        let kubeconfig = self.server.kubeconfig(Identity::Node).unwrap();
        self.start_larder_as(&kubeconfig, view).await;
    }

    pub(crate) async fn start_larder_as(&mut self, kubeconfig: &Path, view: MountView) {
        let root = self.node.kubelet.root_dir();
        self.larder = Some(Larder::start(&self.larder_command, kubeconfig, &root, view).unwrap());
        let larder = self.larder.as_mut().unwrap();
        until("larder's socket answers", async || {
            larder.status().unwrap().is_some()
        })
        .await;
    }

    pub(crate) fn stop_larder(&mut self) {
        self.larder = None;
    }

    pub(crate) fn larder_command(&self) -> &Path {
        &self.larder_command
    }

    pub(crate) fn larder(&mut self) -> &mut Larder {
        self.larder.as_mut().expect("larder runs")
    }

    /// A new namespace. Without a service account: no controller makes one, and no pod here has its token.
    pub(crate) async fn namespace(&mut self) -> String {
        self.namespaces += 1;
        let name = format!("n{}", self.namespaces);
        self.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
            .await;
        name
    }

    /// Creates an object of any kind.
    pub(crate) async fn create(&self, object: &Value) {
        self.send(http::Request::post(collection(object)), object)
            .await;
    }

    /// Replaces an object of any kind.
    pub(crate) async fn replace(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.send(
            http::Request::put(format!("{}/{name}", collection(object))),
            object,
        )
        .await;
    }

    async fn send(&self, request: http::request::Builder, object: &Value) {
        let request = request.body(object.to_string().into_bytes()).unwrap();
        self.admin.request::<Value>(request).await.unwrap();
    }

    pub(crate) async fn create_config_map(&self, namespace: &str, name: &str, value: &str) {
        self.create(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": name}, "data": {"k": value},
        }))
        .await;
    }

    pub(crate) async fn create_secret(&self, namespace: &str, name: &str, value: &str) {
        self.create(&json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": namespace, "name": name}, "stringData": {"k": value},
        }))
        .await;
    }

    /// Gives key `k` of a ConfigMap another value. Returns when the server has answered.
    pub(crate) async fn set_config_map(&self, namespace: &str, name: &str, value: &str) {
        self.set_key(namespace, name, "k", value).await;
    }

    /// The same for another key.
    pub(crate) async fn set_key(&self, namespace: &str, name: &str, key: &str, value: &str) {
        let patch = Patch::Merge(json!({"data": {key: value}}));
        self.config_maps(namespace)
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    fn config_maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// Follows the ConfigMaps of a namespace, for less than five minutes.
    pub(crate) async fn watch_config_maps(&self, namespace: &str) -> ConfigMapWatch {
        let config_maps = self.config_maps(namespace);
        // A watch from no version needs etcd 3.5.
        let listed = config_maps.list(&ListParams::default()).await.unwrap();
        let version = listed.metadata.resource_version.unwrap();
        let events = config_maps.watch(&WatchParams::default(), &version).await;
        ConfigMapWatch(events.unwrap().boxed())
    }

    pub(crate) async fn set_secret(&self, namespace: &str, name: &str, value: &str) {
        let objects: Api<Secret> = Api::namespaced(self.admin.clone(), namespace);
        let patch = Patch::Merge(json!({"stringData": {"k": value}}));
        objects
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn delete_config_map(&self, namespace: &str, name: &str) {
        self.config_maps(namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Sets an annotation of a pod.
    pub(crate) async fn annotate(&self, namespace: &str, pod: &str, name: &str, value: &str) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {name: value}}}));
        self.pods(namespace)
            .patch(pod, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    pub(crate) async fn create_pod(&self, namespace: &str, pod: &Value) -> Pod {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.pods(namespace)
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    /// Creates a pod and waits until it is ready.
    pub(crate) async fn run_pod(&self, namespace: &str, pod: &Value) -> Pod {
        let pod = self.create_pod(namespace, pod).await;
        self.ready(namespace, pod.metadata.name.as_deref().unwrap())
            .await
    }

    pub(crate) async fn ready(&self, namespace: &str, name: &str) -> Pod {
        let pods = self.pods(namespace);
        let is_ready = async || {
            pods.get(name)
                .await
                .is_ok_and(|pod| condition(&pod, "Ready"))
        };
        until(&format!("pod {name} is ready"), is_ready).await;
        pods.get(name).await.unwrap()
    }

    /// A volume's directory.
    pub(crate) fn volume(&self, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
        let uid = pod.metadata.uid.as_deref().unwrap();
        self.node
            .kubelet
            .root_dir()
            .join("pods")
            .join(uid)
            .join("volumes")
            .join(plugin)
            .join(volume)
    }

    /// The patches of `pod` by larder so far.
    pub(crate) fn touches(&self, pod: &Pod) -> Vec<StatusPatch> {
        let mut patches = self.larder_patches();
        patches.retain(|patch| {
            Some(&patch.pod) == pod.metadata.name.as_ref()
                && Some(&patch.namespace) == pod.metadata.namespace.as_ref()
        });
        patches
    }

    pub(crate) fn larder_patches(&self) -> Vec<StatusPatch> {
        let mut patches = self.real().status_patches().unwrap();
        patches.retain(|patch| patch.user_agent.starts_with("larder/"));
        patches
    }

    /// Sends a touch like larder's, as the user of `client`.
    pub(crate) async fn touch(&self, client: &Client, pod: &Pod) -> Result<Pod, kube::Error> {
        // It only has to differ.
        let value = fastrand::u64(..).to_string();
        let patch = json!({
            "metadata": {"uid": pod.metadata.uid, "annotations": {"larder.dev/refresh": value}},
        });
        patch_status(client, pod, &patch).await
    }

    /// Phase and reason of a volume in larder's status; empty if missing.
    pub(crate) fn phase(&mut self, pod: &Pod, volume: &str) -> (String, String) {
        let status = self.larder().status().unwrap().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pods = status["pods"].as_array().cloned().unwrap_or_default();
        let pod = pods
            .into_iter()
            .find(|found| found["uid"].as_str() == pod.metadata.uid.as_deref());
        let volumes = pod
            .and_then(|pod| pod["volumes"].as_array().cloned())
            .unwrap_or_default();
        let found = volumes
            .into_iter()
            .find(|found| found["name"] == volume)
            .unwrap_or_default();
        (text(&found["phase"]), text(&found["reason"]))
    }

    /// The kinds of outdated content in the containers of a pod.
    pub(crate) fn outdated(&mut self, pod: &Pod) -> Vec<String> {
        let status = self.larder().status().unwrap().unwrap_or_default();
        let pods = status["pods"].as_array().cloned().unwrap_or_default();
        let pod = pods
            .into_iter()
            .find(|found| found["uid"].as_str() == pod.metadata.uid.as_deref());
        let containers = pod
            .and_then(|pod| pod["containers"].as_array().cloned())
            .unwrap_or_default();
        let outdated = containers
            .iter()
            .filter_map(|container| container["outdated"].as_array())
            .flatten();
        let mut kinds: Vec<_> = outdated
            .filter_map(|item| Some(item["kind"].as_str()?.to_owned()))
            .collect();
        kinds.sort();
        kinds
    }

    pub(crate) async fn until_phase(&mut self, pod: &Pod, volume: &str, phase: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.phase(pod, volume);
            if found.0 == phase {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{volume} is {found:?} and not {phase}"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The events of ConfigMaps.
pub(crate) struct ConfigMapWatch(BoxStream<'static, kube::Result<WatchEvent<ConfigMap>>>);

impl ConfigMapWatch {
    /// Waits for the event by which key `k` of a ConfigMap has this value. Returns the time of its arrival.
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the times of the audit log"
    )]
    pub(crate) async fn until_event(&mut self, name: &str, value: &str) -> Timestamp {
        loop {
            let event = self.0.next().await.expect("the watch is open").unwrap();
            let at = Timestamp::now();
            if let WatchEvent::Modified(object) = event
                && object.metadata.name.as_deref() == Some(name)
                && object
                    .data
                    .is_some_and(|data| data.get("k").is_some_and(|k| k == value))
            {
                return at;
            }
        }
    }
}

/// The path of an object's collection.
fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let plural = match text(&object["kind"]).to_lowercase() {
        kind if kind.ends_with('y') => format!("{}ies", kind.trim_end_matches('y')),
        kind => format!("{kind}s"),
    };
    let group = match text(&object["apiVersion"]).as_str() {
        "v1" => "/api/v1".to_owned(),
        group => format!("/apis/{group}"),
    };
    let namespace = match text(&object["metadata"]["namespace"]) {
        name if name.is_empty() => name,
        name => format!("/namespaces/{name}"),
    };
    format!("{group}{namespace}/{plural}")
}

/// A pod of the node that runs until it is deleted, with `volumes` mounted at `/NAME` in its one container `c`.
pub(crate) fn pod(name: &str, volumes: Value) -> Value {
    let names = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| volume["name"].as_str().unwrap());
    let mounts: Vec<_> = names
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .collect();
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE,
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

pub(crate) fn config_map_volume(name: &str) -> Value {
    json!({"name": name, "configMap": {"name": name}})
}

pub(crate) fn secret_volume(name: &str) -> Value {
    json!({"name": name, "secret": {"secretName": name}})
}

pub(crate) fn condition(pod: &Pod, name: &str) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|one| one.type_ == name && one.status == "True")
    })
}

/// A merge patch of the pod's status, as larder sends it.
pub(crate) async fn patch_status(
    client: &Client,
    pod: &Pod,
    patch: &Value,
) -> Result<Pod, kube::Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = PatchParams {
        field_manager: Some("larder".to_owned()),
        ..PatchParams::default()
    };
    pods.patch_status(
        pod.metadata.name.as_deref().unwrap(),
        &parameters,
        &Patch::Merge(patch),
    )
    .await
}

/// The content of a file; `None` if it does not exist.
pub(crate) fn content(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Waits until the file has this content. Returns the time that it took.
pub(crate) async fn until_content(path: &Path, expected: &str) -> Duration {
    let started = Instant::now();
    until(&format!("{} is {expected:?}", path.display()), async || {
        content(path).as_deref() == Some(expected)
    })
    .await;
    started.elapsed()
}

pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(POLL_INTERVAL).await;
    }
}

/// The reason for which the container `c` waits.
pub(crate) fn waits_for(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let state = statuses
        .iter()
        .find(|status| status.name == "c")?
        .state
        .as_ref()?;
    state.waiting.as_ref()?.reason.clone()
}

/// The container `c` of a running pod.
pub(crate) fn container(pod: &Pod) -> Container {
    Container::of(pod, "c").unwrap()
}

pub(crate) fn code(answer: Result<Pod, kube::Error>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}
