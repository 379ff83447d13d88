//! One event: whom it is about, in which words, and how often.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder_projection::{ContainerKind, containers};
use serde_json::{Value, json};

/// The longest message in bytes that the API server takes in every version of the kind.
pub(super) const MESSAGE: usize = 1024;
/// The longest name of an object.
pub(super) const NAME: usize = 253;
/// What stands before the last text of similar events.
const COMBINED: &str = "(combined from similar events): ";

/// What cannot be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About<'a> {
    /// The volume of this name.
    Volume(&'a str),
    /// The environment of the container of this name.
    Container(&'a str),
}

/// A failure that repeats in the same words, or several that are similar.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Name of its object.
    pub(super) name: String,
    /// The object it is about, as a reference.
    pub(super) involved: Value,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) combined: bool,
    pub(super) count: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// The API server has it, with some count.
    pub(super) posted: bool,
    /// It has a count that the API server does not have.
    pub(super) due: bool,
}

impl Event {
    pub(super) fn new(
        pod: &Pod,
        about: About<'_>,
        why: &str,
        now: Timestamp,
        suffix: i128,
    ) -> Self {
        let metadata = &pod.metadata;
        let (reason, message) = match about {
            About::Volume(name) => (
                "FailedMount",
                format!("MountVolume.SetUp failed for volume {name:?} : {why}"),
            ),
            About::Container(_) => ("Failed", format!("Error: {why}")),
        };
        let mut involved = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata.namespace.as_deref().unwrap_or_default(),
            "name": metadata.name.as_deref().unwrap_or_default(),
            // Of a static pod its own, which its mirror pod has as an annotation: that is where kubectl looks.
            "uid": metadata.uid,
        });
        if let Some(version) = &metadata.resource_version {
            involved["resourceVersion"] = version.as_str().into();
        }
        if let About::Container(name) = about {
            involved["fieldPath"] = field_path(pod, name).into();
        }
        let suffix = format!(".{suffix:x}");
        let name = metadata.name.as_deref().unwrap_or_default();
        let name = &name[..name.floor_char_boundary(NAME - suffix.len())];
        Self {
            name: format!("{}{suffix}", name.trim_end_matches(['.', '-'])),
            involved,
            reason,
            message: message[..message.floor_char_boundary(MESSAGE)].to_owned(),
            combined: false,
            count: 1,
            first: now,
            last: now,
            posted: false,
            due: true,
        }
    }

    /// Makes it stand for all that are similar.
    pub(super) fn combine(&mut self) {
        self.message.insert_str(0, COMBINED);
        let end = self.message.floor_char_boundary(MESSAGE);
        self.message.truncate(end);
        self.combined = true;
        // Of several parts.
        if let Some(involved) = self.involved.as_object_mut() {
            involved.remove("fieldPath");
        }
    }

    pub(super) fn namespace(&self) -> &str {
        self.involved["namespace"].as_str().unwrap_or_default()
    }

    /// The Event as a whole.
    pub(super) fn object(&self, node: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": self.namespace(), "name": self.name},
            "involvedObject": self.involved,
            "type": "Warning",
            "reason": self.reason,
            "message": self.message,
            "source": {"component": COMPONENT, "host": node},
            "reportingComponent": COMPONENT,
            "reportingInstance": node,
            "count": self.count,
            // Whole seconds, as `metav1.Time` has them.
            "firstTimestamp": seconds(self.first),
            "lastTimestamp": seconds(self.last),
        })
    }
}

/// Who posts.
const COMPONENT: &str = "larder";

pub(super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The container of this name as a field of the pod, as the kubelet writes it.
fn field_path(pod: &Pod, name: &str) -> String {
    let container = containers(pod).find(|container| container.name == name);
    let list = match container.map(|container| container.kind) {
        Some(ContainerKind::Init) => "initContainers",
        Some(ContainerKind::Ephemeral) => "ephemeralContainers",
        Some(ContainerKind::Regular) | None => "containers",
    };
    format!("spec.{list}{{{name}}}")
}
