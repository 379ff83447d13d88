//! The node that is served: 110 pods, a kubelet's default limit, that reference 500 objects of their own.

use std::{convert::Infallible, time::Duration};

use anyhow::{Context as _, bail};
use http::{Method, Request, StatusCode};
use kube::{Client, client::Body};
use larder_e2e::NODE;
use larder_objects::Kind;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

pub(crate) const NAMESPACE: &str = "larder-bench";
pub(crate) const PODS: usize = 110;
const OBJECTS: usize = 500;
/// One in this many objects is a Secret, the others are ConfigMaps.
const SECRETS: usize = 5;
/// Name of an object's one value.
pub(crate) const KEY: &str = "value";
/// Length of that value, in bytes.
const VALUE: usize = 1024;
/// Number of objects of each kind that are timed, the first ones. They belong to many pods, because a rate limit
/// applies to the writes of one pod.
const TIMED: usize = 40;
/// Changes per second of objects that are not timed.
const BACKGROUND: u32 = 50;

pub(crate) struct Node {
    client: Client,
}

/// One of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) usize);

impl Object {
    pub(crate) fn kind(self) -> Kind {
        if self.0.is_multiple_of(SECRETS) {
            Kind::Secret
        } else {
            Kind::ConfigMap
        }
    }

    /// Whether its updates are timed. The other objects change in the background.
    pub(crate) fn is_timed(self) -> bool {
        match self.kind() {
            Kind::Secret => self.0 / SECRETS < TIMED,
            Kind::ConfigMap => self.0 - self.0 / SECRETS <= TIMED,
        }
    }

    pub(crate) fn name(self) -> String {
        format!("object-{}", self.0)
    }

    /// The pod whose volume of this object's name it fills.
    pub(crate) fn pod(self) -> String {
        format!("pod-{}", self.0 % PODS)
    }

    fn plural(self) -> &'static str {
        match self.kind() {
            Kind::Secret => "secrets",
            Kind::ConfigMap => "configmaps",
        }
    }

    pub(crate) fn path(self) -> String {
        format!("/api/v1/namespaces/{NAMESPACE}/{}", self.plural())
    }

    /// The object with a value that it never had before, and that value.
    pub(crate) fn fresh(self) -> (Value, String) {
        let value = format!("{:0VALUE$}", fastrand::u128(..));
        let (kind, data) = match self.kind() {
            Kind::Secret => ("Secret", "stringData"),
            Kind::ConfigMap => ("ConfigMap", "data"),
        };
        let object = json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": {"namespace": NAMESPACE, "name": self.name()},
            data: {KEY: value},
        });
        (object, value)
    }

    /// The volume that it fills.
    fn volume(self) -> Value {
        let name = self.name();
        match self.kind() {
            Kind::Secret => json!({"name": name, "secret": {"secretName": name}}),
            Kind::ConfigMap => json!({"name": name, "configMap": {"name": name}}),
        }
    }
}

impl Node {
    pub(crate) fn objects() -> impl Iterator<Item = Object> + Clone {
        (0..OBJECTS).map(Object)
    }

    /// Creates everything.
    pub(crate) async fn fill(client: Client, pods: PodForm) -> anyhow::Result<Self> {
        let node = Self::empty(client).await?;
        for object in Self::objects() {
            node.create(&object.path(), &object.fresh().0).await?;
        }
        for index in 0..PODS {
            node.create(&namespaced("pods"), &pod(index, pods)).await?;
        }
        Ok(node)
    }

    /// Creates the Node and the namespace only, and what controllers would make in it.
    pub(crate) async fn empty(client: Client) -> anyhow::Result<Self> {
        let node = Self { client };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        node.create("/api/v1/namespaces", &namespace).await?;
        let this = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        node.create("/api/v1/nodes", &this).await?;
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        node.create(&namespaced("serviceaccounts"), &account)
            .await?;
        let authority = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "x".repeat(1100)},
        });
        node.create(&namespaced("configmaps"), &authority).await?;
        Ok(node)
    }

    /// Gives `object` a new value. Returns when that was answered.
    pub(crate) async fn replace(&self, object: Object, new: &Value) -> anyhow::Result<()> {
        let path = format!("{}/{}", object.path(), object.name());
        self.send(Method::PUT, &path, new).await
    }

    /// Changes the objects that are not timed, one after the other, forever.
    pub(crate) async fn change_others(&self) -> anyhow::Result<Infallible> {
        let mut ticks = interval(Duration::from_secs(1) / BACKGROUND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut others = Self::objects().filter(|object| !object.is_timed()).cycle();
        loop {
            ticks.tick().await;
            let other = others.next().context("a cycle has no end")?;
            self.replace(other, &other.fresh().0).await?;
        }
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> anyhow::Result<()> {
        self.send(Method::POST, path, object).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        object: &Value,
    ) -> anyhow::Result<()> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(object)?))?;
        let response = self.client.send(request).await?;
        let status = response.status();
        let body = response.into_body().collect_bytes().await?;
        // A real server makes some of it by itself.
        if !status.is_success() && status != StatusCode::CONFLICT {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }
}

/// A path in the namespace.
pub(crate) fn namespaced(path: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{path}")
}

/// The volumes that the pods have besides those of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodForm {
    /// The volume that the API server's admission adds for the service account.
    WithToken,
    /// Nothing: the checkpoint keeps no tokens.
    WithoutToken,
}

/// A pod as the API server hands it out.
fn pod(index: usize, form: PodForm) -> Value {
    let objects = Node::objects().filter(|object| object.0 % PODS == index);
    let mut volumes: Vec<_> = objects.map(Object::volume).collect();
    let mut mounts: Vec<_> = volumes
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/etc/{}", volume["name"].as_str().unwrap_or_default())}))
        .collect();
    if form == PodForm::WithToken {
        volumes.push(json!({"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}}));
        mounts.push(json!({"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}));
    }
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1});
    let first = format!("object-{index}");
    let reference = if Object(index).kind() == Kind::Secret {
        "secretKeyRef"
    } else {
        "configMapKeyRef"
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": NAMESPACE, "name": format!("pod-{index}"),
            "labels": {"app.kubernetes.io/name": "bench", "app.kubernetes.io/instance": format!("bench-{index}"), "pod-template-hash": "6b7f9c5d8d"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "checksum/config": "0123456789abcdef0123456789abcdef0123456789abcdef"},
        },
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": "default",
            "automountServiceAccountToken": false,
            "securityContext": {"fsGroup": 1000, "runAsUser": 1000},
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "containers": [
                {
                    "name": "app", "image": "registry.example.com/team/app:1.2.3", "args": ["--listen=:8080", "--config=/etc/app"],
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
                    "livenessProbe": probe("/healthz"), "readinessProbe": probe("/readyz"),
                    "env": [
                        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                        {"name": "GOMEMLIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
                        {"name": "FIRST", "valueFrom": {reference: {"name": first, "key": KEY}}},
                        {"name": "URL", "value": "http://$(POD_NAME):8080/"},
                    ],
                    "volumeMounts": mounts,
                },
                {
                    "name": "sidecar", "image": "registry.example.com/team/proxy:4.5.6",
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                    "env": [{"name": "LEVEL", "value": "info"}],
                },
            ],
            "volumes": volumes,
        },
    })
}
