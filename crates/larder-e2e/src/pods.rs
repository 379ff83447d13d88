//! Pods for tests, as JSON.

use serde_json::{Value, json};

/// A pod with one container, `main`, which mounts each volume at `/NAME`.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PodBuilder(Value);

impl PodBuilder {
    /// A pod that is bound to `node`.
    pub fn new(node: &str, name: &str) -> Self {
        Self(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "volumes": [],
                "containers": [{"name": "main", "image": "i", "volumeMounts": [], "env": [], "envFrom": []}],
            },
        }))
    }

    /// Mounts a volume with this source.
    pub fn volume(mut self, name: &str, source: Value) -> Self {
        let mut volume = source;
        volume["name"] = json!(name);
        self.push("/spec/volumes", volume);
        let mount = json!({"name": name, "mountPath": format!("/{name}")});
        self.push("/spec/containers/0/volumeMounts", mount);
        self
    }

    /// Mounts the volume `volume` of the ConfigMap `name`.
    pub fn config_map(self, volume: &str, name: &str) -> Self {
        self.volume(volume, json!({"configMap": {"name": name}}))
    }

    /// Mounts the volume `volume` of the Secret `name`.
    pub fn secret(self, volume: &str, name: &str) -> Self {
        self.volume(volume, json!({"secret": {"secretName": name}}))
    }

    /// Adds a source of variables.
    pub fn env_from(mut self, source: Value) -> Self {
        self.push("/spec/containers/0/envFrom", source);
        self
    }

    /// Adds a variable.
    pub fn env(mut self, variable: Value) -> Self {
        self.push("/spec/containers/0/env", variable);
        self
    }

    /// Adds an annotation.
    pub fn annotation(mut self, key: &str, text: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(text);
        self
    }

    /// Sets what `pointer` leads to.
    ///
    /// # Panics
    ///
    /// The pod does not have the parent of `pointer`.
    pub fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
        let parent = self.0.pointer_mut(parent).expect("the pod has the parent");
        parent[field.replace("~1", "/")] = value;
        self
    }

    /// The pod.
    pub fn build(self) -> Value {
        self.0
    }

    fn push(&mut self, pointer: &str, value: Value) {
        let list = self.0.pointer_mut(pointer).and_then(Value::as_array_mut);
        list.expect("the pod has the list").push(value);
    }
}
