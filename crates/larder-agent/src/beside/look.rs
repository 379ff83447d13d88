//! One look at the parts of a pod: computes each, and compares it with the kubelet's files. Synchronous, and never
//! interrupted; runs on a blocking thread.
//!
//! Invariant: no bytes of objects are kept after the look, only keyed fingerprints. The key exists in memory only.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_kubelet::{
    fingerprint::Fingerprint,
    kubelet_dir::{
        Comparison, Differences, SetName, TouchReason, UnknownContent, VolumeId, VolumeIdentity,
        comparable,
    },
    outdated::{ObjectVersions, OutdatedMount, SourceObject, Variables, versions_of},
    rules::PartObservation,
    sub_path_mounts::SubPathMounts,
};
use larder_objects::{SecretBytes, chain};
use larder_on_change::{PartKey, PartTags, PodHooks};
use larder_projection::{
    ContainerView, Inputs, Needs, Origin, PodCertificate, Projection, Unavailable, VolumeKind,
    containers, environment, project,
};

use super::{hooked::FoundContent, shared::Beside};
use crate::{
    delivery::plan::{PartKind, PodPlan},
    on_change::{ContentTagger, OnChange},
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
}

/// What becomes of [`HookInputs`] once the pod is decoded.
struct HookTags {
    tagger: ContentTagger,
    wants_disk: bool,
}

/// The result of a look at a part.
pub(super) enum PartComparison {
    Volume(VolumeComparison),
    Environment(Result<EnvironmentComparison, String>),
}

/// The result of a look at a volume.
pub(super) struct VolumeComparison {
    pub(super) observation: PartObservation,
    /// Fingerprint of its computed files that come from objects.
    pub(super) payload: Option<Fingerprint>,
    /// Its directory and set, if they could be seen.
    pub(super) place: Option<(VolumeIdentity, SetName)>,
    /// Number of computed files.
    pub(super) files: usize,
    /// The mounts with `subPath` through which containers see other content.
    pub(super) outdated: Vec<OutdatedMount>,
    /// The versions of the objects that its files come from.
    pub(super) versions: ObjectVersions,
    /// For hooks.
    pub(super) content: FoundContent,
}

/// The computed variables of a container.
pub(super) struct EnvironmentComparison {
    /// Fingerprint of the variables that a container may wait for.
    pub(super) payload: Fingerprint,
    pub(super) variables: Variables,
    /// The versions of the objects that its variables come from.
    pub(super) versions: ObjectVersions,
    /// For hooks: the variables that come from objects.
    pub(super) content: FoundContent,
}

impl CompareJob {
    /// Looks at the parts; the result has their order.
    pub(super) fn run(mut self) -> Vec<PartComparison> {
        let pod = self.plan.pod.decode();
        add_placeholders(&pod, &mut self.inputs);
        self.read_env_files(&pod);
        let tags = self.hooks.take().map(|found| HookTags {
            tagger: ContentTagger::new(found.on_change, found.hooks),
            wants_disk: found.wants_disk,
        });
        let tags = tags.as_ref();
        let spec = pod.spec.as_ref();
        let mut volumes: HashMap<&str, &Volume> = HashMap::new();
        for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            // The first of a name counts, as in the plan.
            if VolumeKind::of(volume).is_some() {
                volumes.entry(&volume.name).or_insert(volume);
            }
        }
        let mut by_name: HashMap<&str, ContainerView<'_>> = HashMap::new();
        for container in containers(&pod) {
            by_name.entry(container.name).or_insert(container);
        }
        let kinds = self.parts.iter().map(|&index| &self.plan.parts[index].kind);
        let due = kinds.clone().filter_map(|kind| match kind {
            PartKind::Volume(name, _) => Some(name.as_str()),
            PartKind::Environment(..) => None,
        });
        let mounts = SubPathMounts::of(&pod, &self.inputs, &due.collect());
        let seen = kinds.map(|kind| match kind {
            PartKind::Volume(name, kind) => {
                let volume = volumes.get(name.as_str());
                let volume = volume.expect("the plan was made from the same specification");
                PartComparison::Volume(self.volume(&pod, volume, *kind, &mounts, tags))
            }
            PartKind::Environment(name, _) => {
                let container = by_name.get(name.as_str());
                let container = container.expect("the plan was made from the same specification");
                PartComparison::Environment(self.environment(&pod, *container, tags))
            }
        });
        seen.collect()
    }

    /// Reads the files that variables come from: in every look, since other containers write them at any time.
    fn read_env_files(&mut self, pod: &Pod) {
        for file in Needs::of_pod(pod).env_files {
            let found = match self.beside.volumes().read_env_file(uid(pod), &file) {
                Ok(Some(found)) => Ok(Arc::new(found)),
                Ok(None) => Err(Unavailable::NotFound),
                Err(error) => Err(Unavailable::failed(chain(&error))),
            };
            self.inputs.env_files.insert(file, found);
        }
    }

    fn volume(
        &self,
        pod: &Pod,
        volume: &Volume,
        kind: VolumeKind,
        mounts: &SubPathMounts<'_>,
        tags: Option<&HookTags>,
    ) -> VolumeComparison {
        let projection = match project(pod, volume, &self.inputs) {
            Ok(projection) => projection,
            Err(error) => {
                return VolumeComparison {
                    observation: PartObservation::Uncomputable(chain(&error)),
                    payload: None,
                    place: None,
                    files: 0,
                    outdated: Vec::new(),
                    versions: ObjectVersions::new(),
                    content: FoundContent::Unknown,
                };
            }
        };
        let id = VolumeId {
            pod_uid: uid(pod),
            kind,
            name: &volume.name,
        };
        let compared = self.beside.directory.compare(&id, volume, &projection);
        if kind.wants_memory() {
            // Other failures say nothing about the mounts that this process sees.
            match &compared {
                Ok(_) => self.beside.note_visibility(true),
                Err(UnknownContent::NotVisible) => self.beside.note_visibility(false),
                Err(_) => {}
            }
        }
        let content = match (&compared, tags) {
            (Ok(compared), Some(tags)) => {
                seen_content(tags, &id, &projection, compared.differences.is_none())
            }
            (Err(_), _) => FoundContent::Absent,
            (_, None) => FoundContent::Unknown,
        };
        let (observation, place) = match compared {
            Ok(Comparison {
                identity,
                set,
                differences,
            }) => (self.observation(&differences), Some((identity, set))),
            Err(UnknownContent::NotSetUp) => (PartObservation::NotMounted, None),
            Err(_) if !self.has_started => (PartObservation::NotMounted, None),
            Err(unknown) => (PartObservation::Invisible(chain(&unknown)), None),
        };
        VolumeComparison {
            observation,
            payload: Some(self.fingerprint(&projection)),
            place,
            files: projection.payload.len(),
            outdated: mounts.outdated(&self.beside.directory, id, volume, &projection),
            versions: versions_of(projection.origins.values()),
            content,
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
        let files = projection.payload.iter().filter(|(path, _)| {
            let origin = projection.origins.get(*path);
            matches!(origin, Some(Origin::Key { .. } | Origin::TrustBundle))
        });
        let files = files.map(|(path, file)| (path.as_str(), &*file.data));
        self.beside.key.of(files)
    }

    fn environment(
        &self,
        pod: &Pod,
        container: ContainerView<'_>,
        tags: Option<&HookTags>,
    ) -> Result<EnvironmentComparison, String> {
        let environment =
            environment(pod, container, &self.inputs).map_err(|error| chain(&error))?;
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
        let variables = variables.collect();
        let content = tags.map_or(FoundContent::Unknown, |tags| {
            let part = PartKey::Environment(container.name.into());
            let of_objects = environment.iter().filter_map(|(name, variable)| {
                matches!(variable.origin, Origin::Key { .. }).then_some((name, &*variable.value))
            });
            FoundContent::Verified(tags.tagger.tags(&part, of_objects))
        });
        Ok(EnvironmentComparison {
            payload,
            variables,
            versions: versions_of(environment.iter().map(|(_, variable)| &variable.origin)),
            content,
        })
    }
}

/// The tags of a volume: of its computed files if the kubelet has written them, else of those that are there if they
/// count.
fn seen_content(
    tags: &HookTags,
    id: &VolumeId<'_>,
    projection: &Projection<'_>,
    is_same: bool,
) -> FoundContent {
    let part = PartKey::Volume(id.name.into(), id.kind);
    if is_same {
        let files = projection.payload.iter().map(|(path, file)| {
            let origin = projection.origins.get(path);
            (path.as_str(), comparable(origin, &file.data))
        });
        return FoundContent::Verified(tags.tagger.tags(&part, files));
    }
    if !tags.wants_disk {
        return FoundContent::OnDisk(None);
    }
    let no_files = std::iter::empty::<(&str, &[u8])>();
    let mut found = Vec::from_iter(tags.tagger.tags(&part, no_files));
    let is_read = tags
        .tagger
        .read_set(id.pod_uid, id.kind, id.name, |path, bytes| {
            let origin = projection.origins.get(path);
            let bytes = comparable(origin, bytes);
            found.extend(tags.tagger.tags(&part, std::iter::once((path, bytes))));
        });
    // It is being replaced; the look that follows sees it.
    if !is_read {
        return FoundContent::Unknown;
    }
    FoundContent::OnDisk(PartTags::joined(found))
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Provides placeholders for inputs that this mode does not read: tokens and certificates, whose files must only exist.
fn add_placeholders(pod: &Pod, inputs: &mut Inputs) {
    let needs = Needs::of_pod(pod);
    for request in needs.tokens {
        let token = SecretBytes::new(PLACEHOLDER.into());
        inputs.tokens.insert(request, Ok(Arc::new(token)));
    }
    for (key, _) in needs.pod_certificates {
        let certificate = PodCertificate {
            private_key_pem: SecretBytes::new(PLACEHOLDER.into()),
            chain_pem: String::new(),
        };
        inputs
            .pod_certificates
            .insert(key, Ok(Arc::new(certificate)));
    }
}
