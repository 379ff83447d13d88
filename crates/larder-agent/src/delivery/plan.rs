//! The plan of a pod: its parts, and the inputs of each. Pure.
//!
//! Invariant: a plan is made once for each specification of a pod. A pod whose metadata or status changes keeps its
//! plan.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodCertificateProjection};
use larder_objects::{Kind, ObjectKey, SourceKind};
use larder_on_change::{PartKey, PodHooks};
use larder_pods::StoredPod;
use larder_pods::events::EventSubject;
use larder_projection::{
    ContainerKind, Need, SourceKey, VolumeKind, containers, pod_volumes, used_volumes,
};

use super::inputs::Registration;

/// The kind of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// The volume of this name.
    Volume(String, VolumeKind),
    /// The environment of the container of this name.
    Environment(String, ContainerKind),
}

impl PartKind {
    /// `volume` or `environment`, a label of metrics.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Volume(..) => "volume",
            Self::Environment(..) => "environment",
        }
    }

    /// The subject of an event about the part.
    pub(crate) fn event_subject(&self) -> EventSubject<'_> {
        match self {
            Self::Volume(name, _) => EventSubject::Volume(name),
            Self::Environment(name, kind) => {
                let list = match kind {
                    ContainerKind::Init => "initContainers",
                    ContainerKind::Ephemeral => "ephemeralContainers",
                    ContainerKind::Regular => "containers",
                };
                EventSubject::Container(name, list)
            }
        }
    }

    /// The name of the volume, if it is one.
    pub(crate) fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(name, _) => Some(name),
            Self::Environment(..) => None,
        }
    }

    /// The part's identity for hooks.
    pub(crate) fn observed(&self) -> PartKey {
        match self {
            Self::Volume(name, kind) => PartKey::Volume(name.as_str().into(), *kind),
            Self::Environment(name, _) => PartKey::Environment(name.as_str().into()),
        }
    }

    /// Identifies the part within its pod.
    pub(crate) fn key(&self) -> (&'static str, &str) {
        match self {
            Self::Volume(name, _) | Self::Environment(name, _) => (self.label(), name),
        }
    }
}

impl fmt::Display for PartKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name, _) => write!(f, "volume {name}"),
            Self::Environment(name, _) => write!(f, "environment of {name}"),
        }
    }
}

/// One part of a pod. It is delivered, waits or fails independently of the other parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kind: PartKind,
    /// Each once. A boxed slice, since a node has some hundred parts.
    pub(crate) reads: Box<[Need]>,
}

/// A pod with everything that the agent derives from its specification. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct PodPlan {
    pub(crate) pod: Arc<StoredPod>,
    /// Namespace and name of the pod.
    pub(crate) key: ObjectKey,
    /// Volumes in the order of the pod, then environments: init, regular, ephemeral containers.
    pub(crate) parts: Arc<[Part]>,
    /// The sources of projected volumes that certificates are issued for.
    pub(crate) certificates: Arc<BTreeMap<SourceKey, PodCertificateProjection>>,
    /// The hooks of the pod, if it has any; set by the reconciler.
    pub(crate) hooks: Option<Arc<PodHooks>>,
    /// Through which objects are read; set by the reconciler if the plan has parts.
    pub(crate) registration: Option<Arc<Registration>>,
}

impl PodPlan {
    /// The plan of `pod`, which is `decoded`.
    pub(crate) fn new(pod: Arc<StoredPod>, decoded: &Pod) -> Self {
        Self {
            parts: parts(decoded).into(),
            certificates: Arc::new(certificates(decoded)),
            ..Self::without_parts(pod)
        }
    }

    /// The plan of a pod of which nothing is computed.
    pub(crate) fn without_parts(pod: Arc<StoredPod>) -> Self {
        Self {
            key: pod.key(),
            pod,
            parts: Arc::default(),
            certificates: Arc::default(),
            hooks: None,
            registration: None,
        }
    }

    /// The plan of `pod` if it is the same pod with the same specification.
    pub(crate) fn updated(&self, pod: &Arc<StoredPod>) -> Option<Self> {
        let is_same =
            self.pod.uid() == pod.uid() && self.key == pod.key() && self.pod.same_spec(pod);
        is_same.then(|| Self {
            pod: Arc::clone(pod),
            hooks: None,
            ..self.clone()
        })
    }

    /// A state for each part, in their order: the one of the same part in the plan `before`, whose parts have `states`,
    /// or else a new one.
    pub(crate) fn carry_over<S>(
        &self,
        before: Option<&Self>,
        states: Vec<S>,
        new: impl Fn() -> S,
    ) -> Vec<S> {
        let parts = before.iter().flat_map(|plan| plan.parts.iter());
        let mut known: HashMap<_, _> = parts
            .zip(states)
            .map(|(part, state)| (part.kind.key(), (&part.kind, state)))
            .collect();
        let states = self.parts.iter().map(|part| {
            known
                .remove(&part.kind.key())
                .filter(|(kind, _)| **kind == part.kind)
                .map_or_else(&new, |(_, state)| state)
        });
        states.collect()
    }

    /// Everything that the parts read.
    pub(crate) fn reads(&self) -> BTreeSet<&Need> {
        self.parts.iter().flat_map(|part| &part.reads).collect()
    }

    /// The objects that the parts read.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Kind, ObjectKey)> {
        self.reads()
            .into_iter()
            .filter_map(|need| self.object(need))
    }

    /// The object that `need` is.
    pub(crate) fn object(&self, need: &Need) -> Option<(Kind, ObjectKey)> {
        let (kind, name) = need.object()?;
        let namespace = self.key.namespace.clone();
        Some((kind, ObjectKey::new(namespace, name.clone())))
    }
}

fn parts(pod: &Pod) -> Vec<Part> {
    let used = used_volumes(pod);
    let volumes = pod_volumes(pod)
        // A volume that no container mounts is not set up, so an object that it misses blocks nothing.
        .filter(|volume| used.contains(volume.name.as_str()))
        .filter_map(|volume| {
            let kind = VolumeKind::of(volume)?;
            Some(Part {
                kind: PartKind::Volume(volume.name.clone(), kind),
                reads: Need::of_volume(volume).into_iter().collect(),
            })
        });
    let environments = containers(pod).map(|container| Part {
        kind: PartKind::Environment(container.name.to_owned(), container.kind),
        reads: Need::of_container(container).into_iter().collect(),
    });
    // No API server admits a name twice. If one does, the first part of a name counts, or two would write one
    // directory.
    let mut seen = HashSet::new();
    let parts = volumes.chain(environments).filter(|part| {
        let (label, name) = part.kind.key();
        seen.insert((label, name.to_owned()))
    });
    parts.collect()
}

/// The sources of volumes in use that certificates are issued for.
fn certificates(pod: &Pod) -> BTreeMap<SourceKey, PodCertificateProjection> {
    let used = used_volumes(pod);
    let volumes = pod_volumes(pod).filter(|volume| used.contains(volume.name.as_str()));
    let certificates = volumes.flat_map(|volume| {
        SourceKind::of_volume(volume).filter_map(|(index, source)| match source {
            SourceKind::PodCertificate(source) => {
                let volume = volume.name.clone();
                Some((SourceKey { volume, index }, source.clone()))
            }
            _ => None,
        })
    });
    certificates.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn plan(spec: Value) -> PodPlan {
        let pod = json!({"metadata": {"namespace": "n", "name": "web", "uid": "u"}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        PodPlan::new(Arc::new(StoredPod::new(pod.clone()).unwrap()), &pod)
    }

    #[test]
    fn part_keeps_its_state_in_the_next_plan() {
        let mounts = |names: &[&str]| -> Vec<_> {
            let mounts = names.iter();
            mounts
                .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
                .collect()
        };
        let before = plan(json!({
            "volumes": [
                {"name": "a", "configMap": {"name": "o"}},
                {"name": "b", "configMap": {"name": "o"}},
                {"name": "gone", "configMap": {"name": "o"}},
            ],
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts(&["a", "b", "gone"])}],
        }));
        // Another order and another object, one volume of another type, and one that is new.
        let after = plan(json!({
            "volumes": [
                {"name": "new", "configMap": {"name": "o"}},
                {"name": "b", "secret": {"secretName": "o"}},
                {"name": "a", "configMap": {"name": "other"}},
            ],
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts(&["a", "b", "new"])}],
        }));
        let first = before.carry_over(None, Vec::new(), || "new");
        assert_eq!(first, ["new"; 4]);
        let states = vec!["a", "b", "gone", "c"];
        let states = after.carry_over(Some(&before), states, || "new");
        assert_eq!(states, ["new", "new", "a", "c"]);
    }

    #[test]
    fn first_part_of_a_name_counts() {
        let mount = json!({"name": "v", "mountPath": "/v"});
        let plan = plan(json!({
            "volumes": [{"name": "v", "configMap": {"name": "a"}}, {"name": "v", "secret": {"secretName": "b"}}],
            "initContainers": [{"name": "c", "image": "i"}],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [mount]}],
        }));
        let kinds: Vec<_> = plan.parts.iter().map(|part| part.kind.clone()).collect();
        let expected = [
            PartKind::Volume("v".to_owned(), VolumeKind::ConfigMap),
            PartKind::Environment("c".to_owned(), ContainerKind::Init),
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn plan_is_kept_while_the_specification_is_the_same() {
        let plan = plan(json!({"containers": [{"name": "c", "image": "i"}]}));
        let mut pod = plan.pod.decode();
        pod.metadata.labels = Some([("a".to_owned(), "1".to_owned())].into());
        let relabeled = Arc::new(StoredPod::new(pod.clone()).unwrap());
        let updated = plan.updated(&relabeled).unwrap();
        assert!(Arc::ptr_eq(&updated.parts, &plan.parts));
        pod.metadata.uid = Some("other".to_owned());
        assert!(
            plan.updated(&Arc::new(StoredPod::new(pod).unwrap()))
                .is_none()
        );
    }
}
