//! Random changes in the cluster while the agent runs: of objects, pods and static pods.
//!
//! Every value names its object and a number that only grows: `c-07@1234;`. So a reader can tell torn and outdated
//! sets.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fastrand::Rng;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use larder_e2e::NODE;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::time::timeout;

pub(crate) const NAMESPACE: &str = "soak";
/// ConfigMaps, and as many Secrets.
const OBJECTS: usize = 40;
/// Most pods at once, static ones aside.
const PODS: usize = 30;
/// Most static pods at once.
const STATIC_PODS: usize = 4;
/// Longest that a request may take before it counts as failed, which is no failure of the test while the server is
/// down.
const REQUEST: Duration = Duration::from_secs(5);

/// The cluster, and what has been done to it.
pub(crate) struct World {
    client: Client,
    pub(crate) rng: Rng,
    /// Of the next write.
    generation: u64,
    next_pod: usize,
    /// Names of pods that may be there.
    pods: Vec<String>,
    static_pods: PathBuf,
    /// Number of each kind of action.
    pub(crate) done: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(client: Client, static_pods: PathBuf, seed: u64) -> Self {
        Self {
            client,
            rng: Rng::with_seed(seed),
            generation: 0,
            next_pod: 0,
            pods: Vec::new(),
            static_pods,
            done: BTreeMap::new(),
        }
    }

    /// The first content.
    pub(crate) async fn begin(&mut self) -> kube::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        create(&namespaces, json!({"metadata": {"name": NAMESPACE}})).await?;
        let accounts = self.api::<ServiceAccount>();
        match create(&accounts, json!({"metadata": {"name": "default"}})).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => other?,
        }
        self.complete().await?;
        for _ in 0..PODS / 2 {
            self.create_pod().await?;
        }
        self.write_static_pod();
        Ok(())
    }

    /// Does one thing at random. While the server is unreachable, it may fail.
    pub(crate) async fn step(&mut self) {
        let roll = self.rng.u8(..100);
        let (what, done) = match roll {
            0..55 => (
                "objects written",
                timeout(REQUEST, self.write_some_object()).await,
            ),
            55..62 => (
                "objects deleted",
                timeout(REQUEST, self.delete_some_object()).await,
            ),
            62..72 => (
                "pods labelled",
                timeout(REQUEST, self.label_some_pod()).await,
            ),
            72..84 => ("pods created", timeout(REQUEST, self.create_pod()).await),
            84..95 => (
                "pods deleted",
                timeout(REQUEST, self.delete_some_pod()).await,
            ),
            95..98 => {
                self.write_static_pod();
                ("static pods written", Ok(Ok(())))
            }
            _ => {
                self.remove_static_pod();
                ("static pods removed", Ok(Ok(())))
            }
        };
        let what = if matches!(done, Ok(Ok(()))) {
            what
        } else {
            "requests failed"
        };
        *self.done.entry(what).or_default() += 1;
    }

    /// Ends what hangs in the air: required objects exist, no pod is terminating, and immutable objects that were
    /// recreated are noticed, since new pods refer to them.
    pub(crate) async fn settle(&mut self) -> kube::Result<()> {
        self.complete().await?;
        for pod in self.api::<Pod>().list(&ListParams::default()).await? {
            if pod.metadata.deletion_timestamp.is_some() {
                self.finish_pod(&pod.name_any()).await?;
            }
        }
        let volumes = (0..OBJECTS).flat_map(|index| {
            let (map, secret) = (format!("c-{index:02}"), format!("s-{index:02}"));
            let optional = is_optional(index);
            [
                json!({"name": map, "configMap": {"name": map, "optional": optional}}),
                json!({"name": secret, "secret": {"secretName": secret, "optional": optional}}),
            ]
        });
        let volumes: Vec<_> = volumes.collect();
        self.submit_pod(json!(volumes), json!([])).await
    }

    /// Removes every pod, static ones too.
    pub(crate) async fn clear(&mut self) -> kube::Result<()> {
        for path in self.manifests() {
            fs::remove_file(path).unwrap();
        }
        for name in std::mem::take(&mut self.pods) {
            self.finish_pod(&name).await?;
        }
        Ok(())
    }

    /// Number of static pods that should run.
    pub(crate) fn static_pods(&self) -> usize {
        self.manifests().len()
    }

    /// Creates required objects that are not there.
    async fn complete(&mut self) -> kube::Result<()> {
        for index in (0..OBJECTS).filter(|index| !is_optional(*index)) {
            let (map, secret) = (format!("c-{index:02}"), format!("s-{index:02}"));
            if self.api::<ConfigMap>().get_opt(&map).await?.is_none() {
                self.write_object(&map).await?;
            }
            if self.api::<Secret>().get_opt(&secret).await?.is_none() {
                self.write_object(&secret).await?;
            }
        }
        Ok(())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn some_object(&mut self) -> String {
        let kind = if self.rng.bool() { 'c' } else { 's' };
        format!("{kind}-{:02}", self.rng.usize(..OBJECTS))
    }

    async fn write_some_object(&mut self) -> kube::Result<()> {
        let name = self.some_object();
        self.write_object(&name).await
    }

    /// Creates or replaces; what is immutable is deleted first.
    async fn write_object(&mut self, name: &str) -> kube::Result<()> {
        self.generation += 1;
        let mut data = BTreeMap::new();
        let prefix = &name[..1];
        let mut put = |rng: &mut Rng, key: &str, longest: usize| {
            let filler = "x".repeat(rng.usize(..longest));
            data.insert(
                format!("{prefix}_{key}"),
                format!("{name}@{};{filler}", self.generation),
            );
        };
        put(&mut self.rng, "always", 20);
        for index in 0..self.rng.usize(..5) {
            put(&mut self.rng, &index.to_string(), 300);
        }
        if self.rng.u8(..20) == 0 {
            put(&mut self.rng, "long", 60_000);
        }
        let immutable = (self.rng.u8(..20) == 0).then_some(true);
        let metadata = json!({"name": name});
        if prefix == "c" {
            let binary = format!("{name}@{};\0", self.generation);
            let binary = k8s_openapi::ByteString(binary.into_bytes());
            let binary = json!({"c_binary": binary});
            let map = json!({"metadata": metadata, "data": data, "binaryData": binary, "immutable": immutable});
            write(&self.api::<ConfigMap>(), name, map).await
        } else {
            let secret = json!({"metadata": metadata, "stringData": data, "immutable": immutable});
            // What is in `data` and not replaced would stay: a PUT replaces all of it.
            write(&self.api::<Secret>(), name, secret).await
        }
    }

    async fn delete_some_object(&mut self) -> kube::Result<()> {
        let name = self.some_object();
        if name.starts_with('c') {
            delete(&self.api::<ConfigMap>(), &name, &DeleteParams::default()).await
        } else {
            delete(&self.api::<Secret>(), &name, &DeleteParams::default()).await
        }
    }

    async fn label_some_pod(&mut self) -> kube::Result<()> {
        let Some(name) = self.rng.choice(&self.pods).cloned() else {
            return Ok(());
        };
        self.generation += 1;
        let labels = json!({"metadata": {"labels": {"generation": self.generation.to_string()}}});
        let patched = self
            .api::<Pod>()
            .patch(&name, &PatchParams::default(), &Patch::Merge(labels))
            .await;
        unless_gone(patched.map(|_| ()))
    }

    /// A pod that refers to some of the objects.
    pub(crate) async fn create_pod(&mut self) -> kube::Result<()> {
        if self.pods.len() >= PODS {
            return self.delete_some_pod().await;
        }
        let mut volumes = Vec::new();
        for index in 0..self.rng.usize(1..5) {
            volumes.push(self.some_volume(index));
        }
        let index = self.rng.usize(..OBJECTS);
        let (map, secret) = (format!("c-{index:02}"), format!("s-{index:02}"));
        let optional = is_optional(index);
        let environment = json!([
            {"name": "LITERAL", "value": "1"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": map, "key": "c_always", "optional": optional}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": secret, "key": "s_always", "optional": optional}}},
        ]);
        self.submit_pod(json!(volumes), environment).await
    }

    fn some_volume(&mut self, index: usize) -> Value {
        let object = self.rng.usize(..OBJECTS);
        let optional = is_optional(object);
        let (map, secret) = (format!("c-{object:02}"), format!("s-{object:02}"));
        let name = format!("v{index}");
        let labels = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
        match self.rng.u8(..7) {
            0 => json!({"name": name, "configMap": {"name": map, "optional": optional}}),
            1 => {
                let items = json!([{"key": "c_always", "path": "dir/always", "mode": 0o400}]);
                json!({"name": name, "configMap": {"name": map, "optional": optional, "items": items}})
            }
            2 => {
                json!({"name": name, "secret": {"secretName": secret, "optional": optional, "defaultMode": 0o440}})
            }
            3 => {
                let items = json!([{"key": "s_always", "path": "a/b/always"}]);
                json!({"name": name, "secret": {"secretName": secret, "optional": optional, "items": items}})
            }
            4 => json!({"name": name, "downwardAPI": {"items": labels}}),
            5 => json!({"name": name, "projected": {"sources": [
                {"configMap": {"name": map, "optional": optional}},
                {"secret": {"name": secret, "optional": optional}},
                {"downwardAPI": {"items": labels}},
            ]}}),
            _ => json!({"name": name, "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": map, "optional": optional}},
            ]}}),
        }
    }

    async fn submit_pod(&mut self, volumes: Value, environment: Value) -> kube::Result<()> {
        let name = format!("p-{}", self.next_pod);
        self.next_pod += 1;
        // Before the request: it may be done although its answer is lost.
        self.pods.push(name.clone());
        let pods = self.api();
        create::<Pod>(&pods, pod(&name, "0", volumes, environment)).await
    }

    /// At once, or first marked and ended by a later deletion, as a kubelet does.
    async fn delete_some_pod(&mut self) -> kube::Result<()> {
        if self.pods.is_empty() {
            return Ok(());
        }
        let index = self.rng.usize(..self.pods.len());
        let name = self.pods[index].clone();
        if self.rng.bool() {
            return delete(&self.api::<Pod>(), &name, &DeleteParams::default()).await;
        }
        self.finish_pod(&name).await?;
        self.pods.swap_remove(index);
        Ok(())
    }

    async fn finish_pod(&self, name: &str) -> kube::Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        delete(&self.api::<Pod>(), name, &at_once).await
    }

    fn manifests(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.static_pods).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    /// Adds a static pod or changes one.
    fn write_static_pod(&mut self) {
        self.generation += 1;
        let name = format!("static-{}", self.rng.usize(..STATIC_PODS));
        let labels = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
        let volumes = json!([
            {"name": "v0", "downwardAPI": {"items": labels}},
            {"name": "v1", "projected": {"sources": [{"downwardAPI": {"items": labels}}]}},
        ]);
        let environment =
            json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
        let mut pod = pod(&name, &self.generation.to_string(), volumes, environment);
        pod["metadata"]["namespace"] = NAMESPACE.into();
        // A static pod may refer to nothing of the API server.
        pod["spec"]
            .as_object_mut()
            .unwrap()
            .remove("serviceAccountName");
        replace_file(&self.static_pods.join(format!("{name}.json")), &pod);
    }

    fn remove_static_pod(&mut self) {
        let manifests = self.manifests();
        if let Some(path) = self.rng.choice(&manifests) {
            fs::remove_file(path).unwrap();
        }
    }
}

/// Whether pods refer to the objects of this number as optional ones only, so that they may be missing in the end.
fn is_optional(index: usize) -> bool {
    index.is_multiple_of(5)
}

fn pod(name: &str, generation: &str, volumes: Value, environment: Value) -> Value {
    let mounts: Vec<_> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| {
            let name = volume["name"].as_str().unwrap();
            json!({"name": name, "mountPath": format!("/{name}")})
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "soak", "generation": generation}},
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": "default",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "volumes": volumes,
            "containers": [{"name": "main", "image": "i", "volumeMounts": mounts, "env": environment}],
        },
    })
}

/// Whole or not at all, as an editor does it.
fn replace_file(path: &Path, content: &Value) {
    let folder = path.parent().unwrap().parent().unwrap();
    let file = NamedTempFile::new_in(folder).unwrap();
    fs::write(file.path(), content.to_string()).unwrap();
    file.persist(path).unwrap();
}

async fn create<K>(api: &Api<K>, value: Value) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let object = serde_json::from_value(value).unwrap();
    api.create(&PostParams::default(), &object)
        .await
        .map(|_| ())
}

async fn write<K>(api: &Api<K>, name: &str, value: Value) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let object: K = serde_json::from_value(value.clone()).unwrap();
    match api.replace(name, &PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 404 => create(api, value).await,
        Err(kube::Error::Api(status)) if status.code == 422 => {
            delete(api, name, &DeleteParams::default()).await?;
            create(api, value).await
        }
        other => other.map(|_| ()),
    }
}

async fn delete<K>(api: &Api<K>, name: &str, params: &DeleteParams) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    unless_gone(api.delete(name, params).await.map(|_| ()))
}

fn unless_gone(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}
