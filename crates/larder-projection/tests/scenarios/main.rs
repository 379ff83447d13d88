//! Scenarios of the kubelet's behavior, from a pod and objects to what a container sees.
//!
//! A comment `projection N` gives the number of the scenario.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod completions;
mod downward;
mod empty_dirs;
mod environment;
mod kubelet_texts;
mod large_pods;
mod mounts;
mod special_sources;
mod vectors;
mod volumes;

// The examples, as a part of this executable.
#[path = "../../examples/render_pod.rs"]
mod render_pod;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use larder_objects::{ConfigMap, Kind, Object, Secret, SecretBytes};
use larder_projection::{
    ContainerView, EnvFile, EnvFileRef, Environment, EnvironmentError, Inputs, NodeFacts,
    PayloadError, Projection, ServiceFacts, Unavailable, containers, environment, project,
};
use serde_json::{Value, json};

/// A pod of namespace `ns` and all that it can refer to.
struct World {
    pod: Pod,
    inputs: Inputs,
}

impl World {
    /// A pod with these fields of `spec`, and no Services.
    fn new(spec: Value) -> Self {
        let mut pod = json!({
            "metadata": {"namespace": "ns", "name": "web", "uid": "u1"},
            "spec": {"enableServiceLinks": true, "containers": [{"name": "c"}]},
        });
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        Self {
            pod: serde_json::from_value(pod).unwrap(),
            inputs: Inputs {
                services: Some(Arc::new([])),
                ..Inputs::default()
            },
        }
    }

    /// A pod whose only container `c` has these fields.
    fn with_container(mut container: Value) -> Self {
        container["name"] = json!("c");
        Self::new(json!({ "containers": [container] }))
    }

    /// A pod whose only container has this `env`.
    fn with_env(env: Value) -> Self {
        Self::with_container(json!({ "env": env }))
    }

    /// A pod with the one volume `v`.
    fn with_volume(mut volume: Value) -> Self {
        volume["name"] = json!("v");
        Self::new(json!({ "volumes": [volume] }))
    }

    fn config_map(mut self, name: &str, data: Value) -> Self {
        let json = json!({"metadata": {"namespace": "ns", "name": name, "resourceVersion": "7"}, "data": data});
        let object = ConfigMap::from_json(json.to_string().as_bytes()).unwrap();
        self.inputs
            .config_maps
            .insert(name.to_owned(), Ok(Arc::new(object)));
        self
    }

    fn binary(mut self, name: &str, key: &str, bytes: &[u8]) -> Self {
        let object = self
            .inputs
            .config_maps
            .get_mut(name)
            .unwrap()
            .as_mut()
            .unwrap();
        let object = Arc::get_mut(object).unwrap();
        object.binary_data = [(key, bytes.to_vec())].into();
        self
    }

    fn secret(mut self, name: &str, data: &[(&str, &[u8])]) -> Self {
        let mut object = Secret::default();
        object.metadata.name = name.into();
        let value = |(key, value): &(_, &[u8])| (*key, SecretBytes::new(value.to_vec()));
        object.data = data.iter().map(value).collect();
        self.inputs
            .secrets
            .insert(name.to_owned(), Ok(Arc::new(object)));
        self
    }

    fn unavailable(mut self, kind: Kind, name: &str, reason: Unavailable) -> Self {
        match kind {
            Kind::ConfigMap => {
                self.inputs.config_maps.insert(name.to_owned(), Err(reason));
            }
            Kind::Secret => {
                self.inputs.secrets.insert(name.to_owned(), Err(reason));
            }
        }
        self
    }

    fn missing(self, kind: Kind, name: &str) -> Self {
        self.unavailable(kind, name, Unavailable::NotFound)
    }

    fn node(mut self, allocatable: Value, addresses: &[(&str, &str)]) -> Self {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|(type_, address)| json!({"type": type_, "address": address}))
            .collect();
        let node = json!({"metadata": {"name": "node-1"}, "status": {"allocatable": allocatable, "addresses": addresses}});
        let node: Node = serde_json::from_value(node).unwrap();
        self.inputs.node = Some(Arc::new(NodeFacts::new(&node)));
        self
    }

    fn services(mut self, services: &[(&str, &str, &str)]) -> Self {
        let facts = services.iter().filter_map(|(namespace, name, ip)| {
            let service: Service = serde_json::from_value(json!({
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
            }))
            .unwrap();
            ServiceFacts::new(&service)
        });
        self.inputs.services = Some(facts.collect());
        self
    }

    fn env_file(mut self, volume: &str, path: &str, content: &str) -> Self {
        let reference = EnvFileRef {
            volume: volume.to_owned(),
            path: path.to_owned(),
        };
        let file = EnvFile {
            host_path: format!("/host/{path}"),
            content: SecretBytes::new(content.as_bytes().to_vec()),
        };
        self.inputs.env_files.insert(reference, Ok(Arc::new(file)));
        self
    }

    fn container(&self, name: &str) -> ContainerView<'_> {
        containers(&self.pod)
            .find(|container| container.name == name)
            .unwrap()
    }

    fn environment_of(&self, name: &str) -> Result<Environment<'_>, EnvironmentError> {
        environment(&self.pod, self.container(name), &self.inputs)
    }

    /// The variables of `c` as text.
    #[track_caller]
    fn variables(&self) -> BTreeMap<String, String> {
        let environment = self.environment_of("c").unwrap();
        let variables = environment.iter();
        variables
            .map(|(name, variable)| {
                let value = String::from_utf8(variable.value.to_vec()).unwrap();
                (name.to_owned(), value)
            })
            .collect()
    }

    #[track_caller]
    fn check_variables(&self, expected: &[(&str, &str)]) {
        let expected = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        assert_eq!(self.variables(), expected.collect());
    }

    #[track_caller]
    fn check_environment_fails(&self, text: &str) {
        assert_eq!(self.environment_of("c").unwrap_err().to_string(), text);
    }

    /// The projection of the first volume.
    fn projection(&self) -> Result<Projection<'_>, PayloadError> {
        let volumes = self.pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
        project(&self.pod, &volumes[0], &self.inputs)
    }

    /// Checks path, mode and content of all files of the first volume.
    #[track_caller]
    fn check_files(&self, expected: &[(&str, u32, &str)]) {
        let projection = self.projection().unwrap();
        let files: Vec<_> = projection
            .payload
            .iter()
            .map(|(path, file)| {
                (
                    path.as_str(),
                    file.mode,
                    std::str::from_utf8(&file.data).unwrap(),
                )
            })
            .collect();
        assert_eq!(files, expected);
        assert!(projection.payload.keys().eq(projection.origins.keys()));
    }

    #[track_caller]
    fn check_volume_fails(&self, text: &str) {
        assert_eq!(self.projection().unwrap_err().to_string(), text);
    }
}
