//! One event: its subject, its text, and its count.

use std::sync::Arc;

use jiff::Timestamp;
use larder_objects::PodIdentity;
use serde_json::{Value, json};
use smol_str::SmolStr;

/// Longest message in bytes that the API server accepts in every version of the kind.
pub(super) const MAX_MESSAGE: usize = 1024;
/// Longest name of an object in bytes.
pub(super) const MAX_NAME: usize = 253;
/// Prefix of the last message of similar events.
const COMBINED: &str = "(combined from similar events): ";

/// The part of a pod that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSubject<'a> {
    /// The volume of this name.
    Volume(&'a str),
    /// The environment of the container of this name, in this list of the specification, such as `initContainers`.
    Container(&'a str, &'static str),
    /// The pod itself.
    Pod(PodReason),
}

/// Why there is an event about a pod as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodReason {
    /// It is not served.
    Rejected,
    /// An annotation has an error.
    InvalidHook,
    /// An attempt to notify the application failed.
    HookFailed,
    /// An attempt succeeded after a failure.
    HookSucceeded,
    /// A hook has restarted a container.
    Restarted,
    /// An object that a part of it reads may have changed unnoticed.
    Stale,
    /// Beside a kubelet: a volume was torn down under running containers.
    VolumeDetached,
    /// Beside a kubelet: the kubelet does not refresh a volume.
    VolumeNotRefreshed,
    /// Beside a kubelet: a container sees a change only after a restart.
    RestartNeeded,
    /// A running container does not see a change through a mount with `subPath`, although the pod asks for it.
    SubPathNotUpdated,
}

impl PodReason {
    /// The first is the kubelet's, the others are larder's own.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "FailedValidation",
            Self::InvalidHook => "InvalidOnChange",
            Self::HookFailed => "OnChangeFailed",
            Self::HookSucceeded => "OnChangeSucceeded",
            Self::Restarted => "RestartedOnChange",
            Self::Stale => "ContentMayBeStale",
            Self::VolumeDetached => "VolumeDetached",
            Self::VolumeNotRefreshed => "VolumeNotRefreshed",
            Self::RestartNeeded => "RestartNeeded",
            Self::SubPathNotUpdated => "SubPathNotUpdated",
        }
    }

    const fn is_warning(self) -> bool {
        !matches!(
            self,
            Self::HookSucceeded | Self::Restarted | Self::RestartNeeded
        )
    }
}

/// Which failures an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failures {
    /// One, since the last rest of its reason.
    Recent,
    /// One, not since then.
    Earlier,
    /// All further ones of its reason.
    Combined,
}

/// A failure that repeats with the same message, or several similar ones.
#[derive(Clone, Debug)]
pub(super) struct PodEvent {
    pub(super) pod: Arc<PodIdentity>,
    /// The pod's version at the first failure.
    pod_version: Option<SmolStr>,
    /// The container that the event is about.
    pub(super) field_path: Option<Box<str>>,
    /// Makes the name of the Event object unique.
    pub(super) suffix: i128,
    pub(super) reason: &'static str,
    /// `Warning` or `Normal`.
    type_: &'static str,
    pub(super) message: Box<str>,
    pub(super) failures: Failures,
    pub(super) count: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// Whether the API server has the event, with some count.
    pub(super) posted: bool,
    /// Whether the API server does not have its count yet.
    pub(super) due: bool,
}

impl PodEvent {
    pub(super) fn new(
        pod: Arc<PodIdentity>,
        pod_version: Option<SmolStr>,
        subject: EventSubject<'_>,
        reason: &str,
        now: Timestamp,
        suffix: i128,
    ) -> Self {
        let (reason, message) = match subject {
            EventSubject::Volume(name) => (
                "FailedMount",
                format!("MountVolume.SetUp failed for volume {name:?} : {reason}"),
            ),
            EventSubject::Container(..) => ("Failed", format!("Error: {reason}")),
            EventSubject::Pod(of_pod) => (of_pod.as_str(), reason.to_owned()),
        };
        let is_warning = !matches!(subject, EventSubject::Pod(reason) if !reason.is_warning());
        let field_path = match subject {
            // Kubelet 1.36, `pkg/kubelet/container/ref.go`.
            EventSubject::Container(name, list) => Some(format!("spec.{list}{{{name}}}").into()),
            EventSubject::Volume(_) | EventSubject::Pod(_) => None,
        };
        Self {
            pod,
            pod_version,
            field_path,
            suffix,
            reason,
            type_: if is_warning { "Warning" } else { "Normal" },
            message: shortened(&message),
            failures: Failures::Recent,
            count: 1,
            first: now,
            last: now,
            posted: false,
            due: true,
        }
    }

    /// Turns the event into the one for all similar failures.
    pub(super) fn combine(&mut self) {
        self.message = shortened(&format!("{COMBINED}{}", self.message));
        self.failures = Failures::Combined;
        // The similar failures are about several parts.
        self.field_path = None;
    }

    /// Name of the Event object.
    pub(super) fn name(&self) -> String {
        let suffix = format!(".{:x}", self.suffix);
        let name = &self.pod.name;
        let name = &name[..name.floor_char_boundary(MAX_NAME - suffix.len())];
        format!("{}{suffix}", name.trim_end_matches(['.', '-']))
    }

    /// The Event object.
    pub(super) fn object(&self, node: &str) -> Value {
        let mut involved = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": *self.pod.namespace,
            "name": *self.pod.name,
            // For a static pod its own UID, which its mirror pod has as an annotation: kubectl looks there.
            "uid": *self.pod.uid,
        });
        if let Some(version) = &self.pod_version {
            involved["resourceVersion"] = version.as_str().into();
        }
        if let Some(path) = &self.field_path {
            involved["fieldPath"] = (**path).into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": *self.pod.namespace, "name": self.name()},
            "involvedObject": involved,
            "type": self.type_,
            "reason": self.reason,
            "message": *self.message,
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

/// What the API server accepts of `message`.
fn shortened(message: &str) -> Box<str> {
    message[..message.floor_char_boundary(MAX_MESSAGE)].into()
}

/// The source of the events.
const COMPONENT: &str = "larder";

pub(super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
