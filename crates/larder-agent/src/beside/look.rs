//! One look at the parts of a pod: computes each, and compares it with the kubelet's files. Synchronous and whole; runs
//! on a blocking thread.
//!
//! Invariant: no bytes of objects are kept after the look, only keyed fingerprints. The key exists in memory only.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_objects::{Kind, SecretBytes, chain};
use larder_on_change::{ContentDigest, Digester};
use larder_projection::{
    ContainerView, Environment, Inputs, Mount, Needs, Origin, PodCertificate, Projection,
    RuntimeFeatures, Unavailable, VolumeKind, containers, environment, mounts, project,
};
use smol_str::SmolStr;

use super::{
    hooked::SeenContent,
    kubelet_dir::{
        Comparison, DifferenceKind, Differences, SetName, SubPathId, TouchReason, UnknownContent,
        VolumeId, VolumeIdentity, comparable,
    },
    outdated::{ObjectVersions, Variables},
    pod_view::{has_expression, has_sub_path},
    rules::PartObservation,
    shared::Beside,
};
use crate::{
    on_change::{ContentTagger, OnChange, PartKey, PartTags, PodHooks},
    reconcile::plan::{PartKind, PodPlan},
};

/// Placeholder for tokens and certificates, which are not compared.
const PLACEHOLDER: &str = "placeholder";

/// A look at some parts of a pod.
pub(super) struct LookJob {
    pub(super) beside: Arc<Beside>,
    pub(super) plan: Arc<PodPlan>,
    pub(super) inputs: Inputs,
    /// The parts, by their index in the plan.
    pub(super) parts: Vec<usize>,
    /// Whether any container has started: before that, a volume without files is being set up.
    pub(super) has_started: bool,
    /// For a pod whose hooks run.
    pub(super) hooks: Option<HookedLook>,
}

/// What a look for hooks needs.
pub(super) struct HookedLook {
    pub(super) on_change: OnChange,
    pub(super) hooks: Arc<PodHooks>,
    /// Whether what is on disk counts even where it is not as computed.
    pub(super) wants_disk: bool,
}

/// The same, for the pod that is decoded.
struct HookTags {
    tagger: ContentTagger,
    wants_disk: bool,
}

/// The result of a look at a part.
pub(super) enum SeenPart {
    Volume(SeenVolume),
    Environment(Result<SeenEnvironment, String>),
}

/// The result of a look at a volume.
pub(super) struct SeenVolume {
    pub(super) observation: PartObservation,
    /// Fingerprint of its computed files that come from objects.
    pub(super) payload: Option<ContentDigest>,
    /// Its directory and set, if they could be seen.
    pub(super) place: Option<(VolumeIdentity, SetName)>,
    /// Number of computed files.
    pub(super) files: usize,
    pub(super) sub_paths: Vec<SeenSubPath>,
    /// Of the objects of its files.
    pub(super) versions: ObjectVersions,
    /// For hooks.
    pub(super) content: SeenContent,
}

/// A mount with `subPath` of a container.
pub(super) struct SeenSubPath {
    pub(super) container: SmolStr,
    pub(super) mount_path: String,
    /// Whether the container sees content that differs from the computed one.
    pub(super) is_outdated: bool,
    /// The objects that the volume is made of, if it is out of date.
    pub(super) objects: SmolStr,
}

/// The computed variables of a container.
pub(super) struct SeenEnvironment {
    pub(super) digest: ContentDigest,
    /// For each variable from an object: the fingerprint of its value, and the object.
    pub(super) variables: Variables,
    /// Of the objects of its variables.
    pub(super) versions: ObjectVersions,
    /// For hooks: the variables that come from objects.
    pub(super) content: SeenContent,
}

impl LookJob {
    /// Looks at the parts; the result has their order.
    pub(super) fn run(mut self) -> Vec<SeenPart> {
        let pod = self.plan.pod.decode();
        add_placeholders(&pod, &mut self.inputs);
        self.read_env_files(&pod);
        let tags = self.hooks.take().map(|found| HookTags {
            tagger: ContentTagger::new(found.on_change, found.hooks, &pod),
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
                SeenPart::Volume(self.volume(&pod, volume, *kind, &mounts, tags))
            }
            PartKind::Environment(name, _) => {
                let container = by_name.get(name.as_str());
                let container = container.expect("the plan was made from the same specification");
                SeenPart::Environment(self.environment(&pod, *container, tags))
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
    ) -> SeenVolume {
        let projection = match project(pod, volume, &self.inputs) {
            Ok(projection) => projection,
            Err(error) => {
                return SeenVolume {
                    observation: PartObservation::Uncomputable(chain(&error)),
                    payload: None,
                    place: None,
                    files: 0,
                    sub_paths: Vec::new(),
                    versions: ObjectVersions::new(),
                    content: SeenContent::Unknown,
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
            (Err(_), _) => SeenContent::Absent,
            (_, None) => SeenContent::Unknown,
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
        SeenVolume {
            observation,
            payload: Some(self.fingerprint(&volume.name, &projection)),
            place,
            files: projection.payload.len(),
            sub_paths: self.sub_paths(id, volume, &projection, mounts),
            versions: versions_of(projection.origins.values()),
            content,
        }
    }

    fn observation(&self, differences: &Differences) -> PartObservation {
        if differences.is_none() {
            return PartObservation::Same;
        }
        let text = shown(differences);
        match differences.reason() {
            Some(TouchReason::Object) => PartObservation::Outdated(text),
            Some(TouchReason::ClusterAuthority) if self.beside.config.refresh_cluster_cas => {
                PartObservation::Outdated(text)
            }
            Some(TouchReason::ClusterAuthority) | None => PartObservation::LeftToKubelet(text),
        }
    }

    /// Fingerprint of the files that can be a reason to touch.
    fn fingerprint(&self, volume: &str, projection: &Projection<'_>) -> ContentDigest {
        let mut digester = Digester::new(&self.beside.key);
        for (path, file) in &projection.payload {
            let origin = projection.origins.get(path);
            if matches!(origin, Some(Origin::Key { .. } | Origin::TrustBundle)) {
                digester.file(volume, path.as_str(), &file.data);
            }
        }
        digester.finish()
    }

    /// The mounts of the volume with `subPath`, as containers see them (section 7).
    fn sub_paths(
        &self,
        id: VolumeId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
        mounts: &SubPathMounts<'_>,
    ) -> Vec<SeenSubPath> {
        let mut seen = Vec::new();
        let mut objects = None;
        for (container, mount) in mounts.of_volume(&volume.name) {
            let id = SubPathId {
                volume: id,
                container,
                index: mount.index,
                sub_path: mount.sub_path.as_deref().unwrap_or_default(),
            };
            let compared = self
                .beside
                .directory
                .compare_subpath(&id, volume, projection);
            let Ok(differences) = compared else { continue };
            let is_outdated = differences.reason().is_some();
            let objects = if is_outdated {
                let objects = objects.get_or_insert_with(|| objects_of(projection));
                objects.clone()
            } else {
                SmolStr::default()
            };
            seen.push(SeenSubPath {
                container: (*container).into(),
                mount_path: mount.mount_path.clone(),
                is_outdated,
                objects,
            });
        }
        seen
    }

    fn environment(
        &self,
        pod: &Pod,
        container: ContainerView<'_>,
        tags: Option<&HookTags>,
    ) -> Result<SeenEnvironment, String> {
        let environment =
            environment(pod, container, &self.inputs).map_err(|error| chain(&error))?;
        let mut digester = Digester::new(&self.beside.key);
        let mut variables = BTreeMap::new();
        for (name, variable) in environment.iter() {
            let object = match &variable.origin {
                Origin::Key { kind, name, .. } => Some(object_name(*kind, name)),
                // A file is no object, but a container may wait for what it says (R6).
                Origin::EnvFile { .. } => None,
                _ => continue,
            };
            let tag = self.beside.key.tag(&variable.value);
            digester.variable_tag(container.name, name, tag);
            if let Some(object) = object {
                variables.insert(SmolStr::new(name), (tag, object));
            }
        }
        let content = tags.map_or(SeenContent::Unknown, |tags| {
            let part = PartKey::Environment(container.name.into());
            let of_objects = environment.iter().filter_map(|(name, variable)| {
                matches!(variable.origin, Origin::Key { .. }).then_some((name, &*variable.value))
            });
            SeenContent::Verified(tags.tagger.tags(&part, of_objects))
        });
        Ok(SeenEnvironment {
            digest: digester.finish(),
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
) -> SeenContent {
    let part = PartKey::Volume(id.name.into(), id.kind);
    if is_same {
        let files = projection.payload.iter().map(|(path, file)| {
            let origin = projection.origins.get(path);
            (path.as_str(), comparable(origin, &file.data))
        });
        return SeenContent::Verified(tags.tagger.tags(&part, files));
    }
    if !tags.wants_disk {
        return SeenContent::OnDisk(None);
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
        return SeenContent::Unknown;
    }
    SeenContent::OnDisk(PartTags::joined(found))
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The objects that files of a projection come from, as `ConfigMap app`; sorted, each once.
fn objects_of(projection: &Projection<'_>) -> SmolStr {
    let origins = projection.origins.values();
    let objects = origins.filter_map(|origin| match origin {
        Origin::Key { kind, name, .. } => Some((*kind, *name)),
        _ => None,
    });
    let objects: BTreeSet<(Kind, &str)> = objects.collect();
    let shown = objects.iter().map(|(kind, name)| object_name(*kind, name));
    shown.collect::<Vec<_>>().join(", ").into()
}

/// The versions of the objects among `origins`.
fn versions_of<'o>(origins: impl Iterator<Item = &'o Origin<'o>>) -> ObjectVersions {
    let objects = origins.filter_map(|origin| match origin {
        Origin::Key {
            kind,
            name,
            resource_version,
            ..
        } => Some((
            object_name(*kind, name),
            SmolStr::new(resource_version.as_str()),
        )),
        _ => None,
    });
    objects.collect()
}

fn object_name(kind: Kind, name: &str) -> SmolStr {
    SmolStr::new(format!("{kind} {name}"))
}

/// The mounts with `subPath` of a pod, by volume. The environment and the mounts of a container are computed once for
/// all volumes of a look.
#[derive(Default)]
struct SubPathMounts<'a> {
    by_volume: HashMap<&'a str, Vec<(&'a str, Mount<'a>)>>,
    #[cfg(test)]
    computed: usize,
}

impl<'a> SubPathMounts<'a> {
    /// The mounts of `volumes`. Containers whose mounts are wrong have not started, and are left out.
    fn of(pod: &'a Pod, inputs: &Inputs, volumes: &HashSet<&str>) -> Self {
        let mut found = Self::default();
        for container in containers(pod) {
            let mut entries = container.volume_mounts.iter();
            if !entries.any(|entry| has_sub_path(entry) && volumes.contains(entry.name.as_str())) {
                continue;
            }
            #[cfg(test)]
            {
                found.computed += 1;
            }
            // Other mounts are known even if an object of the environment was not read, or is gone.
            let environment = if has_expression(&container) {
                environment(pod, container, inputs)
            } else {
                Ok(Environment::of_values([]))
            };
            let Ok(environment) = environment else {
                continue;
            };
            let Ok(table) = mounts(pod, container, &environment, RuntimeFeatures::default()) else {
                continue;
            };
            for mount in table {
                let volume: &'a Volume = mount.volume;
                if mount.sub_path.is_some() && volumes.contains(volume.name.as_str()) {
                    let of_volume = found.by_volume.entry(volume.name.as_str()).or_default();
                    of_volume.push((container.name, mount));
                }
            }
        }
        found
    }

    /// The mounts of `volume`, each with the name of its container.
    fn of_volume(&self, volume: &str) -> &[(&'a str, Mount<'a>)] {
        self.by_volume.get(volume).map_or(&[], Vec::as_slice)
    }
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

/// The first differences, as text.
fn shown(differences: &Differences) -> String {
    let named = differences.named().iter().map(|(path, kind)| match kind {
        DifferenceKind::Missing => format!("{path} is missing"),
        DifferenceKind::Changed => format!("{path} differs"),
        DifferenceKind::Extra => format!("{path} is left over"),
    });
    let mut texts: Vec<_> = named.collect();
    let others = differences.count().saturating_sub(texts.len());
    if others > 0 {
        texts.push(format!("{others} more"));
    }
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_of_a_container_are_computed_once_for_all_its_volumes() {
        let names: Vec<_> = (0..50).map(|number| format!("v{number}")).collect();
        let volumes: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "configMap": {"name": "app"}}))
            .collect();
        let mounts = |sub_path: &str| -> Vec<_> {
            let mount =
                |name| json!({"name": name, "mountPath": format!("/{name}"), "subPath": sub_path});
            names.iter().map(mount).collect()
        };
        let pod = json!({
            "metadata": {"namespace": "n", "name": "web", "uid": "u"},
            "spec": {"enableServiceLinks": true, "volumes": volumes, "containers": [
                // A look at volumes has not read what its variables come from.
                {"name": "a", "image": "i", "volumeMounts": mounts("key"),
                    "envFrom": [{"secretRef": {"name": "unread"}}]},
                {"name": "b", "image": "i", "volumeMounts": mounts("other")},
                {"name": "whole", "image": "i", "volumeMounts": mounts("")},
            ]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let inputs = Inputs {
            services: Some([].into()),
            ..Inputs::default()
        };
        let due = names.iter().map(String::as_str);
        let found = SubPathMounts::of(&pod, &inputs, &due.collect());
        assert_eq!(found.computed, 2);
        for name in &names {
            let containers: Vec<_> = found
                .of_volume(name)
                .iter()
                .map(|(name, _)| *name)
                .collect();
            assert_eq!(containers, ["a", "b"]);
        }
        // Volumes that are not looked at cost nothing.
        let found = SubPathMounts::of(&pod, &inputs, &HashSet::new());
        assert_eq!((found.computed, found.by_volume.len()), (0, 0));
    }
}
