//! The volumes of the own form: objects projected into directories, as the kubelet does (rules E1 to E4).
//!
//! Invariants:
//! 1. A directory is written only when all of its objects have been listed once.
//! 2. A missing required object or key, or a failed write, keeps the old set.
//! 3. A volume is one swap: its sources are merged, and a later one wins.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, KeyToPath, Pod, SecretVolumeSource, Volume,
};
use larder_objects::{ConfigMap, Kind, ResourceVersion, Secret, chain};
use larder_on_change::{ContentDigest, ContentTag, DigestKey, Digester, Hook, Items};
use larder_projection::{Inputs, Payload, Unavailable, disk::AtomicWriter, project};
use smol_str::SmolStr;
use tracing::{info, warn};

use crate::{
    follow::Sink,
    metrics::{Metrics, WriteOutcome},
    object::DecodedObject,
    selection::{ObjectRef, Selection},
};

/// One directory.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnVolume {
    /// The name that hooks select it by.
    pub name: SmolStr,
    /// The directory.
    pub path: PathBuf,
    /// Its objects; a later one wins.
    pub sources: Vec<VolumeSource>,
}

/// An object in a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeSource {
    /// The object.
    pub object: ObjectRef,
    /// Whether it may be missing.
    pub optional: bool,
    /// Mode of its files; `None` for the kubelet's 0644.
    pub mode: Option<i32>,
    /// Its keys and their paths; empty for all keys.
    pub items: Vec<KeyToPath>,
}

impl VolumeSource {
    fn to_volume(&self, alias: &str) -> Volume {
        let items = (!self.items.is_empty()).then(|| self.items.clone());
        let (mode, optional) = (Some(self.mode.unwrap_or(0o644)), Some(self.optional));
        let mut volume = Volume {
            name: alias.to_owned(),
            ..Volume::default()
        };
        match self.object.kind {
            Kind::ConfigMap => {
                volume.config_map = Some(ConfigMapVolumeSource {
                    name: alias.to_owned(),
                    default_mode: mode,
                    optional,
                    items,
                    ..ConfigMapVolumeSource::default()
                });
            }
            Kind::Secret => {
                volume.secret = Some(SecretVolumeSource {
                    secret_name: Some(alias.to_owned()),
                    default_mode: mode,
                    optional,
                    items,
                    ..SecretVolumeSource::default()
                });
            }
        }
        volume
    }
}

/// The state of all volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    states: Vec<VolumeState>,
    objects: BTreeMap<ObjectRef, KnownObject>,
    key: DigestKey,
    is_changed: bool,
    random: fastrand::Rng,
    metrics: Metrics,
}

#[derive(Debug)]
struct VolumeState {
    volume: OwnVolume,
    /// What is in place; `None` before the first success.
    tags: Option<Vec<(String, ContentTag)>>,
    error: Option<String>,
    is_due: bool,
}

#[derive(Debug, Default)]
struct KnownObject {
    version: ResourceVersion,
    is_listed: bool,
    object: Option<Object>,
}

#[derive(Clone, Debug)]
enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl Volumes {
    pub(crate) fn new(volumes: Vec<OwnVolume>, key: DigestKey, metrics: Metrics) -> Self {
        let sources = volumes.iter().flat_map(|volume| &volume.sources);
        let objects = sources.map(|source| (source.object.clone(), KnownObject::default()));
        Self {
            objects: objects.collect(),
            states: volumes
                .into_iter()
                .map(|volume| VolumeState {
                    volume,
                    tags: None,
                    error: None,
                    is_due: true,
                })
                .collect(),
            key,
            is_changed: false,
            random: fastrand::Rng::new(),
            metrics,
        }
    }

    /// The watches that the volumes take: each object by its name (rule E3).
    pub(crate) fn selections(&self) -> BTreeSet<Selection> {
        self.objects.keys().map(Selection::of).collect()
    }

    /// Whether a volume has a set of an earlier start.
    pub(crate) fn has_sets(&self) -> bool {
        let mut volumes = self.states.iter();
        volumes.any(|state| fs::symlink_metadata(state.volume.path.join("..data")).is_ok())
    }

    /// Why a volume was never written in full.
    pub(crate) fn unwritten(&self) -> Option<String> {
        let mut missing = self.states.iter().filter(|state| state.tags.is_none());
        let state = missing.next()?;
        let path = state.volume.path.display();
        let reason = state
            .error
            .as_deref()
            .unwrap_or("its objects are not listed yet");
        Some(format!("{path}: {reason}"))
    }

    /// Whether the last write of a volume has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.states.iter().any(|state| state.error.is_some())
    }

    /// Whether files differ from those at the last call.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Writes the volumes whose objects have changed.
    pub(crate) fn write(&mut self, now: Timestamp) {
        for index in 0..self.states.len() {
            let state = &self.states[index];
            let sources = &state.volume.sources;
            let is_known = |source: &VolumeSource| self.objects[&source.object].is_listed;
            if !state.is_due || !sources.iter().all(is_known) {
                continue;
            }
            let written = self.try_write(index, now);
            let state = &mut self.states[index];
            match written {
                Ok((tags, swapped)) => {
                    state.is_due = false;
                    state.error = None;
                    let outcome = if swapped {
                        info!(path = %state.volume.path.display(), "volume written");
                        WriteOutcome::Written
                    } else {
                        WriteOutcome::Unchanged
                    };
                    self.is_changed |= swapped || state.tags.is_none();
                    state.tags = Some(tags);
                    self.metrics.wrote(outcome);
                }
                Err(error) => {
                    // A missing object comes as an event; a disk that fails is tried again with the next one.
                    if state.error.as_ref() != Some(&error) {
                        let path = state.volume.path.display();
                        warn!(%path, error, "volume not written, keeping the old set");
                    }
                    state.error = Some(error);
                    self.metrics.wrote(WriteOutcome::Failed);
                }
            }
        }
    }

    fn try_write(
        &mut self,
        index: usize,
        now: Timestamp,
    ) -> Result<(Vec<(String, ContentTag)>, bool), String> {
        let volume = &self.states[index].volume;
        let pod = Pod::default();
        let parts: Vec<_> = volume
            .sources
            .iter()
            .map(|source| {
                let key = &source.object;
                let alias = format!("{}/{}", key.namespace, key.name);
                (source.to_volume(&alias), self.inputs(source, alias))
            })
            .collect();
        let mut payload = Payload::new();
        for (part, inputs) in &parts {
            let projection = project(&pod, part, inputs).map_err(|error| error.to_string())?;
            payload.extend(projection.payload);
        }
        let path = &volume.path;
        fs::create_dir_all(path).map_err(|error| format!("cannot make the directory: {error}"))?;
        let writer = AtomicWriter::open(path).map_err(|error| chain(&error))?;
        let written = writer.write(&payload, now, &mut self.random);
        let written = written.map_err(|error| chain(&error))?;
        let tag = |(path, file): (&larder_projection::VolumePath, &larder_projection::File<'_>)| {
            (path.to_string(), self.key.tag(&file.data))
        };
        Ok((payload.iter().map(tag).collect(), written.swapped))
    }

    fn inputs(&self, source: &VolumeSource, alias: String) -> Inputs {
        let mut inputs = Inputs::default();
        let known = self.objects[&source.object].object.clone();
        match (source.object.kind, known) {
            (_, Some(Object::ConfigMap(map))) => {
                inputs.config_maps.insert(alias, Ok(map));
            }
            (_, Some(Object::Secret(secret))) => {
                inputs.secrets.insert(alias, Ok(secret));
            }
            (Kind::ConfigMap, None) => {
                let absent = Err(Unavailable::NotFound);
                inputs.config_maps.insert(alias, absent);
            }
            (Kind::Secret, None) => {
                let absent = Err(Unavailable::NotFound);
                inputs.secrets.insert(alias, absent);
            }
        }
        inputs
    }

    /// The digest of what a hook selects.
    pub(crate) fn digest(&self, hook: &Hook) -> (ContentDigest, Items) {
        let mut digester = Digester::new(&self.key);
        for state in &self.states {
            let name = &state.volume.name;
            for (path, tag) in state.tags.iter().flatten() {
                if hook.selects_file(name, path, false) {
                    digester.file_tag(name, path, *tag);
                }
            }
        }
        digester.finish_with_items()
    }

    fn changed(&mut self, object: &ObjectRef) {
        for state in &mut self.states {
            let mut sources = state.volume.sources.iter();
            state.is_due |= sources.any(|source| source.object == *object);
        }
    }

    fn set(&mut self, object: &ObjectRef, version: ResourceVersion, content: Option<Object>) {
        let Some(known) = self.objects.get_mut(object) else {
            return;
        };
        let change = i64::from(content.is_some()) - i64::from(known.object.is_some());
        self.metrics.objects(object.kind, change);
        known.version = version;
        known.object = content;
        self.changed(object);
    }
}

/// Empties the directories that a reload has dropped.
pub(crate) fn clear(path: &Path, now: Timestamp) {
    let cleared = AtomicWriter::open(path)
        .and_then(|writer| writer.write(&Payload::new(), now, &mut fastrand::Rng::new()));
    if let Err(error) = cleared {
        warn!(path = %path.display(), error = chain(&error), "cannot empty a volume that is no longer wanted");
    }
}

impl Sink for Volumes {
    fn take(&mut self, object: &ObjectRef, version: &ResourceVersion, json: &[u8]) {
        let Some(known) = self.objects.get(object) else {
            return;
        };
        if known.object.is_some()
            && (known.version == *version || version.is_older_than(&known.version))
        {
            return;
        }
        match DecodedObject::from_json(object.kind, json) {
            Ok(DecodedObject::ConfigMap(map)) => {
                self.set(
                    object,
                    version.clone(),
                    Some(Object::ConfigMap(Arc::new(map))),
                );
            }
            Ok(DecodedObject::Secret(secret)) => {
                self.set(
                    object,
                    version.clone(),
                    Some(Object::Secret(Arc::new(secret))),
                );
            }
            Err(error) => {
                warn!(%object, error = chain(&error), "unreadable object, keeping the old one");
            }
        }
    }

    fn keep(&mut self, _: &ObjectRef) {}

    fn gone(&mut self, object: &ObjectRef) {
        self.set(object, ResourceVersion::default(), None);
    }

    fn listed(&mut self, selection: &Selection, present: &BTreeSet<ObjectRef>) {
        let covered = self
            .objects
            .keys()
            .filter(|object| selection.covers(object));
        let covered: Vec<_> = covered.cloned().collect();
        for object in covered {
            let known = self.objects.entry(object.clone()).or_default();
            // An unreadable one is there, and nothing is known of it.
            let is_unread = present.contains(&object) && known.object.is_none();
            known.is_listed |= !is_unread;
            let is_gone = !present.contains(&object) && known.object.is_some();
            if is_gone {
                self.gone(&object);
            }
            self.changed(&object);
        }
    }

    fn complete(&mut self) {}

    fn forget_versions(&mut self, _: &Selection) {
        for known in self.objects.values_mut() {
            known.version = ResourceVersion::default();
        }
    }

    fn make_stale(&mut self, _: &ObjectRef) {}

    fn is_stale(&self, _: &ObjectRef) -> bool {
        false
    }

    fn take_stale(&mut self) -> BTreeMap<ObjectRef, bool> {
        BTreeMap::new()
    }
}
