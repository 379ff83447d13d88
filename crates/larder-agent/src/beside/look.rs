//! One look at the parts of a pod: computes each, and compares it with the kubelet's files. Synchronous: a step of the
//! pod at the disk, which gives way at pause points.
//!
//! Invariant: no bytes of objects are kept after the look, only keyed fingerprints. The key exists in memory only.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use larder_containers::subpaths::WantedMount;
use larder_files::pause;
use larder_hooks::{FoundContent, OnChange};
use larder_kubelet::{
    fingerprint::Fingerprint,
    kubelet_dir::{
        Differences, SetName, TouchReason, UnknownContent, VolumeId, VolumeIdentity, comparable,
    },
    outdated::{ObjectVersions, OutdatedMount, SourceObject, Variables, versions_of},
    rules::PartObservation,
    sub_path_mounts::SubPathMounts,
};
use larder_objects::{SecretBytes, chain};
use larder_on_change::{ItemObjects, LeftOut, ObjectTag, PartKey, PartTags, PodHooks};
use larder_projection::{
    ContainerView, Inputs, Need, Origin, PodCertificate, Projection, VolumeKind, containers,
    env_files, environment, project,
};

use super::shared::Beside;
use crate::delivery::{
    plan::{PartKind, PodPlan},
    pod_parts::PodParts,
    sub_paths::wanted,
};

/// Placeholder for tokens and certificates, which are not compared.
const PLACEHOLDER: &str = "placeholder";

/// A look at some parts of a pod.
pub(super) struct CompareJob {
    pub(super) beside: Arc<Beside>,
    pub(super) plan: Arc<PodPlan>,
    pub(super) inputs: Inputs,
    /// The parts, by their index in the plan.
    pub(super) parts: Vec<usize>,
    /// Whether any container has started: before that, a volume without files is being set up.
    pub(super) has_started: bool,
    /// For a pod whose hooks run.
    pub(super) hooks: Option<HookInputs>,
}

/// What the comparison for a pod with hooks needs in addition.
pub(super) struct HookInputs {
    pub(super) on_change: OnChange,
    pub(super) hooks: Arc<PodHooks>,
    /// Whether what is on disk counts even where it is not as computed.
    pub(super) wants_disk: bool,
    /// The objects that the hooks do not react to.
    pub(super) left_out: LeftOut,
}

/// The result of a look at a part.
#[derive(Default)]
pub(super) struct PartComparison {
    pub(super) observation: PartObservation,
    /// Fingerprint of what comes from objects: computed files, or the variables that a container may wait for.
    pub(super) payload: Option<Fingerprint>,
    /// The versions of the objects that its content comes from.
    pub(super) versions: ObjectVersions,
    /// For hooks: all of a volume, and the variables that come from objects.
    pub(super) content: FoundContent,
    /// Directory and set of a volume, if they could be seen.
    pub(super) place: Option<(VolumeIdentity, SetName)>,
    /// Number of computed files.
    pub(super) files: usize,
    /// The mounts with `subPath` through which containers see other content than the volume has.
    pub(super) outdated: Vec<OutdatedMount>,
    /// All mounts with `subPath`.
    pub(super) sub_paths: Vec<WantedMount>,
    /// The computed variables of a container.
    pub(super) variables: Option<Variables>,
}

impl PartComparison {
    fn uncomputable(error: &dyn std::error::Error) -> Self {
        Self {
            observation: PartObservation::Uncomputable(chain(error)),
            ..Self::default()
        }
    }
}

impl CompareJob {
    /// Looks at the parts; the result has their order.
    pub(super) fn run(mut self) -> Vec<PartComparison> {
        let pod = self.plan.pod.decode();
        add_placeholders(&pod, &mut self.inputs);
        let parts = PodParts::new(&pod);
        let (volumes, env_files) = (&self.beside.volumes, env_files(containers(&pod)));
        volumes.read_env_files(parts.uid, env_files, &mut self.inputs);
        let kinds = self.parts.iter().map(|&index| &self.plan.parts[index].kind);
        let due = kinds.clone().filter_map(PartKind::volume);
        let mounts = SubPathMounts::of(&pod, &self.inputs, &due.collect());
        let seen = kinds.map(|kind| {
            pause::point();
            match kind {
                PartKind::Volume(name, kind) => self.volume(&parts, name, *kind, &mounts),
                PartKind::Environment(name, _) => self.environment(&pod, parts.container(name)),
            }
        });
        seen.collect()
    }

    fn volume(
        &self,
        parts: &PodParts<'_>,
        name: &str,
        kind: VolumeKind,
        mounts: &SubPathMounts<'_>,
    ) -> PartComparison {
        let volume = parts.volume(name);
        let projection = match project(parts.pod, volume, &self.inputs) {
            Ok(projection) => projection,
            Err(error) => return PartComparison::uncomputable(&error),
        };
        let id = VolumeId {
            pod_uid: parts.uid,
            kind,
            name,
        };
        let compared = self.beside.directory.compare(&id, volume, &projection);
        if kind.wants_memory() {
            // Other failures say nothing about the mounts that this process sees.
            let mut is_visible = self.beside.disk_visible.lock();
            match &compared {
                Ok(_) => *is_visible = Some(true),
                Err(UnknownContent::NotVisible) => *is_visible = Some(false),
                Err(_) => {}
            }
        }
        let content = match (&compared, &self.hooks) {
            (Ok(compared), Some(hooks)) => {
                self.seen_content(hooks, &id, &projection, compared.differences.is_none())
            }
            (Err(_), _) => FoundContent::OnDisk(None),
            (_, None) => FoundContent::Unknown,
        };
        let (observation, place) = match compared {
            Ok(found) => {
                let place = (found.identity, found.set);
                (self.observation(&found.differences), Some(place))
            }
            Err(UnknownContent::NotSetUp) => (PartObservation::NotMounted, None),
            Err(_) if !self.has_started => (PartObservation::NotMounted, None),
            Err(unknown) => (PartObservation::Invisible(chain(&unknown)), None),
        };
        PartComparison {
            observation,
            payload: Some(self.fingerprint(&projection)),
            place,
            files: projection.payload.len(),
            outdated: mounts.outdated(&self.beside.directory, id, volume, &projection),
            sub_paths: wanted(mounts, name),
            versions: versions_of(projection.origins.values()),
            content,
            variables: None,
        }
    }

    fn observation(&self, differences: &Differences) -> PartObservation {
        if differences.is_none() {
            return PartObservation::Same;
        }
        let text = differences.to_string();
        match differences.reason() {
            Some(TouchReason::Object) => PartObservation::Outdated(text),
            Some(TouchReason::ClusterAuthority) if self.beside.config.refresh_cluster_cas => {
                PartObservation::Outdated(text)
            }
            Some(TouchReason::ClusterAuthority) | None => PartObservation::LeftToKubelet(text),
        }
    }

    /// Fingerprint of the files that can be a reason to touch.
    fn fingerprint(&self, projection: &Projection<'_>) -> Fingerprint {
        let files = projection
            .payload
            .iter()
            .filter(|(path, _)| {
                let origin = projection.origins.get(*path);
                origin.and_then(TouchReason::of).is_some()
            })
            .map(|(path, file)| {
                pause::point();
                (path.as_str(), &*file.data)
            });
        self.beside.key.of(files)
    }

    fn environment(&self, pod: &Pod, container: ContainerView<'_>) -> PartComparison {
        let environment = match environment(pod, container, &self.inputs) {
            Ok(environment) => environment,
            Err(error) => return PartComparison::uncomputable(&error),
        };
        let key = &self.beside.key;
        // A file is no object, but a container may wait for what it says (R6).
        let awaited = environment.iter().filter(|(_, variable)| {
            matches!(variable.origin, Origin::Key { .. } | Origin::EnvFile { .. })
        });
        let payload = key.of(awaited.map(|(name, variable)| (name, &*variable.value)));
        let variables = environment.iter().filter_map(|(name, variable)| {
            let object = SourceObject::of(&variable.origin)?;
            Some((name.into(), (key.of([&*variable.value]), object)))
        });
        let content = self.hooks.as_ref().map(|hooks| {
            let part = PartKey::Environment(container.name.into());
            let of_objects = environment.iter().filter_map(|(name, variable)| {
                matches!(variable.origin, Origin::Key { .. }).then_some((name, &*variable.value))
            });
            let of = |name: &str| Some(ObjectTag::of(environment.get(name)?.origin.object()?));
            FoundContent::Verified(hooks.tags(&part, of_objects, &of))
        });
        PartComparison {
            observation: PartObservation::Outdated(
                "the container waits for its environment".to_owned(),
            ),
            payload: Some(payload),
            variables: Some(variables.collect()),
            versions: versions_of(environment.iter().map(|(_, variable)| &variable.origin)),
            content: content.unwrap_or_default(),
            ..PartComparison::default()
        }
    }

    /// The tags of a volume: of its computed files if the kubelet has written them, else of those that are there if
    /// they count.
    fn seen_content(
        &self,
        hooks: &HookInputs,
        id: &VolumeId<'_>,
        projection: &Projection<'_>,
        is_same: bool,
    ) -> FoundContent {
        let part = PartKey::Volume(id.name.into(), id.kind);
        let of = |path: &str| Some(ObjectTag::of(projection.origins.get(path)?.object()?));
        if is_same {
            let files = projection.payload.iter().map(|(path, file)| {
                pause::point();
                let origin = projection.origins.get(path);
                (path.as_str(), comparable(origin, &file.data))
            });
            return FoundContent::Verified(hooks.tags(&part, files, &of));
        }
        if !hooks.wants_disk {
            return FoundContent::OnDisk(None);
        }
        let no_files = std::iter::empty::<(&str, &[u8])>();
        let mut found = Vec::from_iter(hooks.tags(&part, no_files, &of));
        let visit = |path: &str, bytes: &[u8]| {
            let bytes = comparable(projection.origins.get(path), bytes);
            found.extend(hooks.tags(&part, std::iter::once((path, bytes)), &of));
        };
        let volumes = &self.beside.volumes;
        // What is being replaced is seen by the look that follows.
        if volumes
            .read_set(id.pod_uid, id.kind, id.name, visit)
            .is_none()
        {
            return FoundContent::Unknown;
        }
        FoundContent::OnDisk(PartTags::joined(found))
    }
}

impl HookInputs {
    /// Tags files or variables of a part, whose objects `of` knows; `None` if no hook selects it.
    fn tags<N: AsRef<str>, B: AsRef<[u8]>>(
        &self,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
        of: &dyn Fn(&str) -> Option<ObjectTag>,
    ) -> Option<PartTags> {
        let left_out = &self.left_out;
        let tags = PartTags::of(&self.hooks, part, items, self.on_change.key())?;
        Some(tags.with_objects(&ItemObjects { left_out, of }))
    }
}

/// Provides placeholders for inputs that this mode does not read: tokens and certificates, whose files must only exist.
fn add_placeholders(pod: &Pod, inputs: &mut Inputs) {
    let placeholder = || SecretBytes::new(PLACEHOLDER.into());
    for need in Need::of_pod(pod) {
        match need {
            Need::Token(request) => {
                inputs.tokens.insert(request, Ok(Arc::new(placeholder())));
            }
            Need::PodCertificate(key) => {
                let certificate = PodCertificate {
                    private_key_pem: placeholder(),
                    chain_pem: String::new(),
                };
                let certificate = Ok(Arc::new(certificate));
                inputs.pod_certificates.insert(key, certificate);
            }
            Need::Object(..) | Need::Services | Need::Node | Need::TrustBundles => {}
        }
    }
}
