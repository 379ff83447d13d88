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

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_objects::{Kind, Object, chain};
use larder_on_change::{DigestKey, LeftOut, ObjectTag, PodHooks};
use larder_projection::{
    Inputs, Need, Origin, Payload, Unavailable,
    disk::{AtomicWriter, DiskError},
    project,
};
use smol_str::SmolStr;
use tracing::{info, warn};

use crate::{
    clock,
    index::Index,
    intake::{DeliveredPart, FileTag, Settled, Sink, delivered},
    metrics::Metrics,
    selection::{ObjectRef, Selection},
};

/// One directory.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnVolume {
    /// The name that hooks select it by.
    pub name: SmolStr,
    /// The directory, absolute. [`join_volumes`] checks it against the others.
    pub path: PathBuf,
    /// Volumes of a pod, `configMap`, `secret` or a projection of these, with their `defaultMode`; a later one wins. The
    /// name of each object is `NAMESPACE/NAME`.
    pub sources: Vec<Volume>,
}

impl OwnVolume {
    /// Whether it has a set of an earlier start.
    pub(crate) fn has_set(&self) -> bool {
        fs::symlink_metadata(self.path.join("..data")).is_ok()
    }

    /// Its objects.
    pub(crate) fn objects(&self) -> BTreeSet<ObjectRef> {
        let objects = self
            .sources
            .iter()
            .flat_map(Need::of_volume)
            .filter_map(|need| {
                let (kind, name) = need.object()?;
                let (namespace, name) = name.split_once('/')?;
                Some(ObjectRef::new(kind, namespace, name))
            });
        objects.collect()
    }
}

/// Joins volumes with the same directory, in order.
///
/// # Errors
///
/// A directory is inside another one.
pub fn join_volumes(volumes: Vec<OwnVolume>) -> Result<Vec<OwnVolume>, String> {
    let mut joined: Vec<OwnVolume> = Vec::new();
    for volume in volumes {
        match joined.iter_mut().find(|known| known.path == volume.path) {
            Some(known) => known.sources.extend(volume.sources),
            None => joined.push(volume),
        }
    }
    for one in &joined {
        let mut others = joined.iter().filter(|other| other.path != one.path);
        if let Some(other) = others.find(|other| one.path.starts_with(&other.path)) {
            let (one, other) = (one.path.display(), other.path.display());
            return Err(format!("{one} is inside {other}"));
        }
    }
    Ok(joined)
}

/// The state of all volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    states: Vec<VolumeState>,
    /// The objects that have not been listed yet.
    unlisted: BTreeSet<ObjectRef>,
    /// The others.
    inputs: Inputs,
    /// The objects that hooks do not react to.
    left_out: LeftOut,
    index: Index,
    metrics: Metrics,
}

#[derive(Debug)]
struct VolumeState {
    volume: OwnVolume,
    objects: BTreeSet<ObjectRef>,
    /// What is in place; `None` before the first success.
    tags: Option<Vec<(String, FileTag)>>,
    error: Option<String>,
    is_due: bool,
}

impl Volumes {
    pub(crate) fn new(volumes: Vec<OwnVolume>, state_dir: &Path, metrics: Metrics) -> Self {
        let paths = volumes.iter().map(|volume| volume.path.clone());
        let index = Index::open(state_dir, &paths.collect::<BTreeSet<_>>());
        let states: Vec<_> = volumes
            .into_iter()
            .map(|volume| VolumeState {
                objects: volume.objects(),
                volume,
                tags: None,
                error: None,
                is_due: true,
            })
            .collect();
        let objects = states.iter().flat_map(|state| &state.objects);
        Self {
            unlisted: objects.cloned().collect(),
            states,
            inputs: Inputs::default(),
            left_out: LeftOut::default(),
            index,
            metrics,
        }
    }

    /// The watches that the volumes take before anything is listed: each object by its name (rule E3).
    pub(crate) fn selections(&self) -> BTreeSet<Selection> {
        self.unlisted.iter().map(Selection::of).collect()
    }
}

/// Writes a volume, and returns the tags of its files and whether they were swapped.
fn write(
    volume: &OwnVolume,
    inputs: &Inputs,
    key: &DigestKey,
) -> Result<(Vec<(String, FileTag)>, bool), String> {
    let pod = Pod::default();
    let (mut payload, mut origins) = (Payload::new(), BTreeMap::new());
    for source in &volume.sources {
        let projected = project(&pod, source, inputs).map_err(|error| error.to_string())?;
        payload.extend(projected.payload);
        origins.extend(projected.origins);
    }
    fs::create_dir_all(&volume.path)
        .map_err(|error| format!("cannot make the directory: {error}"))?;
    let swapped = replace(&volume.path, &payload)?;
    let tags = payload.iter().map(|(path, file)| {
        let object = origins.get(path).and_then(Origin::object);
        let tag = (key.tag(&file.data), object.map(ObjectTag::of));
        (path.to_string(), tag)
    });
    Ok((tags.collect(), swapped))
}

fn put<K: Object>(
    known: &mut BTreeMap<String, Result<Arc<K>, Unavailable>>,
    object: &ObjectRef,
    json: Option<&[u8]>,
) {
    let name = format!("{}/{}", object.namespace, object.name);
    let found = match json.map(K::from_json) {
        None => Err(Unavailable::NotFound),
        Some(Ok(found)) => Ok(Arc::new(found)),
        Some(Err(error)) => {
            let error = chain(&error);
            warn!(%object, error, "unreadable object, keeping the old one");
            if known.contains_key(&name) {
                return;
            }
            Err(Unavailable::failed(format!("unreadable: {error}")))
        }
    };
    known.insert(name, found);
}

/// Makes a directory hold this payload, and returns whether it was swapped. A foreign file in the way is replaced (A3).
fn replace(path: &Path, payload: &Payload<'_>) -> Result<bool, String> {
    let disk = |error: DiskError| chain(&error);
    let (writer, mut random) = (
        AtomicWriter::open(path).map_err(disk)?,
        fastrand::Rng::new(),
    );
    let mut write = || {
        writer
            .write(payload, clock::now(), &mut random)
            .map_err(disk)
    };
    let written = write()?;
    if written.shadowed.is_empty() {
        return Ok(written.swapped);
    }
    for name in &written.shadowed {
        fs::remove_file(path.join(name))
            .map_err(|error| format!("cannot replace {name}: {error}"))?;
    }
    write().map(|_| true)
}

impl Sink for Volumes {
    fn take(&mut self, object: &ObjectRef, json: Option<&[u8]>) {
        match object.kind() {
            Kind::ConfigMap => put(&mut self.inputs.config_maps, object, json),
            Kind::Secret => put(&mut self.inputs.secrets, object, json),
        }
        self.unlisted.remove(object);
        for state in &mut self.states {
            state.is_due |= state.objects.contains(object);
        }
    }

    /// Writes the volumes whose objects have changed.
    fn settle(&mut self, _: bool) -> Settled {
        let mut settled = Settled {
            retries: !self.index.mend(),
            ..Settled::default()
        };
        let left_out = self.inputs.left_out().map(ObjectTag::of).collect();
        settled.is_changed |= left_out != self.left_out;
        self.left_out = left_out;
        for state in &mut self.states {
            let path = state.volume.path.display();
            if state.is_due && state.objects.is_disjoint(&self.unlisted) {
                let key = self.index.key();
                match write(&state.volume, &self.inputs, key) {
                    Ok((tags, swapped)) => {
                        if swapped {
                            info!(%path, "volume written");
                        }
                        settled.is_changed |= swapped || state.tags.is_none();
                        state.tags = Some(tags);
                        state.is_due = false;
                        state.error = None;
                        self.metrics
                            .wrote(if swapped { "written" } else { "unchanged" });
                    }
                    Err(error) => {
                        if state.error.as_ref() != Some(&error) {
                            warn!(%path, error, "volume not written, keeping the old set");
                        }
                        state.error = Some(error);
                        self.metrics.wrote("failed");
                    }
                }
            }
            settled.retries |= state.error.is_some();
            if state.tags.is_none() {
                let reason = state
                    .error
                    .as_deref()
                    .unwrap_or("its objects are not listed yet");
                settled.unwritten.get_or_insert(format!("{path}: {reason}"));
            }
        }
        settled
    }

    fn index(&mut self) -> &mut Index {
        &mut self.index
    }

    fn content(&mut self, hooks: &PodHooks) -> Vec<DeliveredPart> {
        let written = self.states.iter().filter_map(|state| {
            let tags = state.tags.iter().flatten().map(|(path, tag)| (path, *tag));
            state.tags.as_ref()?;
            delivered(&state.volume.name, hooks, tags, &self.left_out)
        });
        written.collect()
    }
}

#[cfg(test)]
mod tests {
    use larder_projection::{File, Value, VolumePath};

    use super::*;

    #[test]
    fn directories_are_joined_and_none_is_inside_another() {
        let volume = |name: &str, path: &str| OwnVolume {
            name: name.into(),
            path: path.into(),
            sources: vec![Volume::default()],
        };
        let all = [("a", "/d"), ("b", "/e"), ("c", "/d/.")];
        let all = all.map(|(name, path)| volume(name, path)).into();
        let joined = join_volumes(all).unwrap();
        assert_eq!(joined.len(), 2);
        assert_eq!(joined[0].sources.len(), 2);
        let inside = join_volumes(vec![volume("a", "/d/x"), volume("b", "/d")]);
        assert_eq!(inside, Err("/d/x is inside /d".to_owned()));
    }

    // A3
    #[test]
    fn foreign_file_in_the_way_is_replaced_and_a_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let file = File {
            data: Value::Borrowed(b"1"),
            mode: 0o644,
            owner: None,
        };
        let payload = [(VolumePath::parse("a").unwrap(), file)].into();
        fs::write(path("a"), "foreign").unwrap();
        fs::write(path("b"), "foreign").unwrap();
        assert_eq!(replace(directory.path(), &payload), Ok(true));
        assert_eq!(fs::read_to_string(path("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(path("b")).unwrap(), "foreign");
        assert_eq!(replace(directory.path(), &payload), Ok(false));
        fs::remove_file(path("a")).unwrap();
        fs::create_dir(path("a")).unwrap();
        let error = replace(directory.path(), &payload).unwrap_err();
        assert!(error.contains("cannot replace a"), "{error}");
    }
}
