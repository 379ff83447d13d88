//! The facts that hooks are checked against: the volumes, containers and ports of a pod.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use serde_json::Value;
use smol_str::SmolStr;

/// The facts about a pod that its hooks may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// The volumes, in order.
    pub volumes: Vec<VolumeFacts>,
    /// Init and regular containers, in order.
    pub containers: Vec<ContainerFacts>,
    /// `spec.restartPolicy`, `Always` if absent.
    pub restart_policy: SmolStr,
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Its name.
    pub name: SmolStr,
    /// Its type, as the field of the specification: `configMap`, `emptyDir`.
    pub kind: SmolStr,
}

impl VolumeFacts {
    /// Whether larder delivers volumes of this type.
    pub fn is_delivered(&self) -> bool {
        matches!(
            &*self.kind,
            "configMap" | "secret" | "projected" | "downwardAPI"
        )
    }
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Its name.
    pub name: SmolStr,
    /// Whether it is an init container that does not keep running, and so not a target of a hook (rule F9).
    pub is_init: bool,
    /// Whether it is an init container with `restartPolicy: Always`, a native sidecar.
    pub is_sidecar: bool,
    /// Names of its ports, with their numbers.
    pub ports: Vec<(SmolStr, u16)>,
}

impl PodFacts {
    /// The facts of `pod`.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::default();
        };
        let init = spec.init_containers.iter().flatten().map(|container| {
            let is_sidecar = container.restart_policy.as_deref() == Some("Always");
            ContainerFacts::of(container, !is_sidecar, is_sidecar)
        });
        let regular = spec
            .containers
            .iter()
            .map(|container| ContainerFacts::of(container, false, false));
        Self {
            volumes: spec.volumes.iter().flatten().map(VolumeFacts::of).collect(),
            containers: init.chain(regular).collect(),
            restart_policy: spec.restart_policy.as_deref().unwrap_or("Always").into(),
        }
    }

    /// The number of the port that a container calls `name`.
    pub fn port(&self, name: &str) -> Option<u16> {
        let mut ports = self
            .containers
            .iter()
            .flat_map(|container| &container.ports);
        ports
            .find(|(port, _)| port == name)
            .map(|(_, number)| *number)
    }
}

impl VolumeFacts {
    fn of(volume: &Volume) -> Self {
        let fields = serde_json::to_value(volume).unwrap_or_default();
        let kind = match &fields {
            Value::Object(fields) => fields.keys().find(|field| *field != "name").cloned(),
            _ => None,
        };
        Self {
            name: volume.name.as_str().into(),
            // The API server's default.
            kind: kind.unwrap_or_else(|| "emptyDir".to_owned()).into(),
        }
    }
}

impl ContainerFacts {
    fn of(container: &Container, is_init: bool, is_sidecar: bool) -> Self {
        let ports = container.ports.iter().flatten();
        let named = ports.filter_map(|port| {
            Some((
                port.name.as_deref()?.into(),
                u16::try_from(port.container_port).ok()?,
            ))
        });
        Self {
            name: container.name.as_str().into(),
            is_init,
            is_sidecar,
            ports: named.collect(),
        }
    }
}
