//! The mounts of a container, as data that any runtime can apply.
//!
//! Kubelet 1.36, `makeMounts` in `pkg/kubelet/kubelet_pods.go` and `pkg/volume/util/nested_volumes.go`. Nothing here
//! touches a disk: the caller that applies the table knows whether and where a volume is set up, and resolves sub paths
//! in it.

use std::{borrow::Cow, collections::HashMap};

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use serde::{Deserialize, Serialize};

use crate::{
    ContainerView, Environment, Unknown, Value, VolumeKind, VolumePath, VolumePathError,
    clean::{absolute, clean},
    container::{containers, pod_volumes},
    expand::{Piece, pieces},
};

/// The mounts of one container, in the order of its `volumeMounts`.
pub type MountTable<'a> = Vec<Mount<'a>>;

/// One mount.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Mount<'a> {
    /// Place in `volumeMounts`, from 0: the kubelet's name for the target of a sub path.
    pub index: usize,
    /// The volume, with its source.
    pub volume: &'a Volume,
    /// Its kind, if it is one that is filled from objects.
    pub kind: Option<VolumeKind>,
    /// The path in the container: absolute and clean.
    pub mount_path: String,
    /// The part of the volume that is mounted, relative; `None` for the whole. Has no `..`. The mounting side
    /// has to confine links in the volume.
    pub sub_path: Option<Cow<'a, str>>,
    /// What `sub_path` is, if it has parts that are not known; it shows their sources then.
    pub unknown_sub_path: Option<Unknown>,
    /// Values that are not known, and must be there and be part of a path for the mount to be made.
    pub needs: Vec<Unknown>,
    /// Whether `sub_path` contains something of a Secret.
    pub secret_sub_path: bool,
    /// Whether the container must not write: as asked for, and always for volumes that are filled from objects.
    pub read_only: bool,
    /// Whether mounts below it become read-only, too.
    pub recursive_read_only: bool,
    /// The propagation of later mounts.
    pub propagation: Propagation,
    /// What the mount does not allow besides writing (`bindMountOptions`, Kubernetes 1.37).
    pub options: BindOptions,
}

/// The options of a bind mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindOptions {
    /// No program in it is run.
    pub no_exec: bool,
    /// Its device files are no devices.
    pub no_dev: bool,
    /// Its set-user-ID and set-group-ID bits count for nothing.
    pub no_suid: bool,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// No way (`None`).
    #[default]
    Private,
    /// Into the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// The features of the runtime that will apply the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// Recursive read-only mounts. Off by default: `IfPossible` is then plain read-only and `Enabled` an error.
    pub recursive_read_only: bool,
}

/// Why a container has no mount table. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The pod has no such volume.
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    NoVolume {
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
    },
    /// A sub path begins with `/`.
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    /// A sub path leaves its volume.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Parent(String),
    /// A sub path refers to variables that are undefined or empty; sorted, joined by commas.
    #[error("missing value for {0}")]
    MissingValue(String),
    /// A sub path refers to a variable whose bytes cannot be part of this table's paths.
    #[error("value of {0} is not UTF-8")]
    NotUtf8(String),
    /// A sub path is longer than any path can be.
    #[error("expanded subPathExpr is longer than {MAX_PATH_BYTES} bytes")]
    TooLong,
    /// There is no such option of a bind mount. The API server rejects it.
    #[error("invalid bind mount option: \"{0}\"")]
    BindOption(String),
    /// There is no such propagation.
    #[error("invalid MountPropagation mode: \"{0}\"")]
    Propagation(String),
    /// Recursively read-only, and writable.
    #[error(
        "failed to resolve recursive read-only mode: volume \"{0}\" requested recursive read-only mode, but it is not read-only"
    )]
    NotReadOnly(String),
    /// Recursively read-only, and propagated.
    #[error(
        "failed to resolve recursive read-only mode: volume \"{volume}\" requested recursive read-only mode, but it is not compatible with propagation \"{propagation}\""
    )]
    ReadOnlyPropagation {
        /// Name of the volume.
        volume: String,
        /// The propagation that was requested.
        propagation: String,
    },
    /// Recursively read-only, and the runtime cannot do it.
    #[error(
        "failed to resolve recursive read-only mode: volume \"{0}\" requested recursive read-only mode, but it is not supported by the runtime"
    )]
    ReadOnlyUnsupported(String),
    /// There is no such recursive read-only mode.
    #[error("failed to resolve recursive read-only mode: unknown recursive read-only mode \"{0}\"")]
    ReadOnlyMode(String),
}

/// The mounts of `container`, which is one of `pod`. Sub paths are expanded with its final `environment`.
///
/// # Errors
///
/// The first mount that is wrong. One of a sub path may heal by itself, when a variable gets a value.
pub fn mounts<'a>(
    pod: &'a Pod,
    container: ContainerView<'a>,
    environment: &Environment<'_>,
    runtime: RuntimeFeatures,
) -> Result<MountTable<'a>, MountError> {
    let (table, errors) = partial_mounts(pod, container, environment, runtime);
    errors.into_iter().next().map_or(Ok(table), Err)
}

/// The mounts of `container` that can be made, and the errors of the others.
pub fn partial_mounts<'a>(
    pod: &'a Pod,
    container: ContainerView<'a>,
    environment: &Environment<'_>,
    runtime: RuntimeFeatures,
) -> (MountTable<'a>, Vec<MountError>) {
    // Of two with one name, which validation rejects, the first counts.
    let volumes: HashMap<_, _> = pod_volumes(pod)
        .rev()
        .map(|volume| (&*volume.name, volume))
        .collect();
    let (mut table, mut errors) = (MountTable::new(), Vec::new());
    for (index, entry) in container.volume_mounts.iter().enumerate() {
        let volume = volumes.get(entry.name.as_str()).copied();
        let volume = volume.ok_or_else(|| MountError::NoVolume {
            volume: entry.name.clone(),
            container: container.name.to_owned(),
        });
        match volume.and_then(|volume| mount(index, entry, volume, environment, runtime)) {
            Ok(mount) => table.push(mount),
            Err(error) => errors.push(error),
        }
    }
    (table, errors)
}

fn mount<'a>(
    index: usize,
    entry: &'a VolumeMount,
    volume: &'a Volume,
    environment: &Environment<'_>,
    runtime: RuntimeFeatures,
) -> Result<Mount<'a>, MountError> {
    let kind = VolumeKind::of(volume);
    let (propagation, recursive_read_only) = modes(entry, runtime)?;
    let part = sub_path(entry, environment)?;
    Ok(Mount {
        index,
        volume,
        kind,
        mount_path: absolute(&entry.mount_path),
        sub_path: part.path,
        unknown_sub_path: part.unknown,
        needs: part.needs,
        secret_sub_path: part.secret,
        read_only: kind.is_some() || entry.read_only == Some(true),
        recursive_read_only,
        propagation,
        options: bind_options(entry)?,
    })
}

fn bind_options(entry: &VolumeMount) -> Result<BindOptions, MountError> {
    let mut options = BindOptions::default();
    for option in entry.bind_mount_options.iter().flatten() {
        match option.as_str() {
            "noexec" => options.no_exec = true,
            "nodev" => options.no_dev = true,
            "nosuid" => options.no_suid = true,
            other => return Err(MountError::BindOption(other.to_owned())),
        }
    }
    Ok(options)
}

fn modes(entry: &VolumeMount, runtime: RuntimeFeatures) -> Result<(Propagation, bool), MountError> {
    let volume = || entry.name.clone();
    let propagation = match entry.mount_propagation.as_deref() {
        None | Some("None") => Propagation::Private,
        Some("HostToContainer") => Propagation::HostToContainer,
        Some("Bidirectional") => Propagation::Bidirectional,
        Some(other) => return Err(MountError::Propagation(other.to_owned())),
    };
    let mode = match entry.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok((propagation, false)),
        Some(mode) => mode,
    };
    if entry.read_only != Some(true) {
        return Err(MountError::NotReadOnly(volume()));
    }
    if propagation != Propagation::Private {
        return Err(MountError::ReadOnlyPropagation {
            volume: volume(),
            propagation: entry.mount_propagation.clone().unwrap_or_default(),
        });
    }
    match mode {
        "IfPossible" => Ok((propagation, runtime.recursive_read_only)),
        "Enabled" if runtime.recursive_read_only => Ok((propagation, true)),
        "Enabled" => Err(MountError::ReadOnlyUnsupported(volume())),
        other => Err(MountError::ReadOnlyMode(other.to_owned())),
    }
}

/// The part of a volume that is mounted.
#[derive(Default)]
struct MountedPart<'a> {
    path: Option<Cow<'a, str>>,
    unknown: Option<Unknown>,
    needs: Vec<Unknown>,
    secret: bool,
}

fn sub_path<'a>(
    entry: &'a VolumeMount,
    environment: &Environment<'_>,
) -> Result<MountedPart<'a>, MountError> {
    let expression = entry.sub_path_expr.as_deref().unwrap_or_default();
    let mut part = if expression.is_empty() {
        MountedPart {
            path: entry.sub_path.as_deref().map(Cow::Borrowed),
            ..MountedPart::default()
        }
    } else {
        expand_sub_path(expression, environment)?
    };
    part.path = part.path.filter(|path| !path.is_empty());
    if let Some(path) = &part.path {
        // Errors quote the path.
        check_sub_path(path).map_err(|error| match error {
            MountError::Absolute(_) if part.secret => MountError::Absolute(HIDDEN.to_owned()),
            MountError::Parent(_) if part.secret => MountError::Parent(HIDDEN.to_owned()),
            error => error,
        })?;
    }
    Ok(part)
}

/// In place of a path with something of a Secret in it.
const HIDDEN: &str = "<hidden>";

impl Mount<'_> {
    /// `sub_path` for people: without anything of a Secret.
    pub fn shown_sub_path(&self) -> Option<&str> {
        let path = self.sub_path.as_deref()?;
        Some(if self.secret_sub_path { HIDDEN } else { path })
    }
}

/// Checks a `subPath` as far as its text goes.
pub(crate) fn check_sub_path(path: &str) -> Result<(), MountError> {
    if path.starts_with('/') {
        return Err(MountError::Absolute(path.to_owned()));
    }
    if path.split('/').any(|element| element == "..") {
        return Err(MountError::Parent(path.to_owned()));
    }
    Ok(())
}

/// Longest path that Linux takes, in bytes.
const MAX_PATH_BYTES: usize = 4096;

/// Expands as everywhere, but a reference to a variable that is undefined or empty is an error.
fn expand_sub_path(
    text: &str,
    environment: &Environment<'_>,
) -> Result<MountedPart<'static>, MountError> {
    let mut expanded = String::with_capacity(text.len());
    let mut secret = false;
    let (mut missing, mut parts) = (Vec::new(), Vec::<Result<Cow<'_, [u8]>, Unknown>>::new());
    let mut needs = Vec::new();
    for piece in pieces(text) {
        let (name, variable) = match piece {
            Piece::Text(text) => {
                expanded.push_str(text);
                parts.push(Ok(Cow::Borrowed(text.as_bytes())));
                continue;
            }
            Piece::Reference { name, .. } => (name, environment.look_up(name)),
        };
        secret |= variable.as_ref().is_some_and(|variable| variable.secret);
        let value = variable.map(|variable| variable.into_owned().value);
        let value = match (value, environment.perhaps_service(name)) {
            (None, Some(service)) => Some(service.into()),
            (Some(Value::Unknown(own)), Some(service)) => Some(own.or(service).into()),
            (value, _) => value,
        };
        match value {
            Some(Value::Unknown(unknown)) => {
                expanded.push_str(&unknown.text().replace('/', "_"));
                let may_be_no_path = unknown.sources().any(|source| source.object.is_some());
                if unknown.may_be_absent() || may_be_no_path {
                    needs.push((*unknown).clone());
                }
                parts.push(Err(*unknown));
            }
            Some(value) if !value.is_empty() => {
                let value = std::str::from_utf8(&value)
                    .map_err(|_| MountError::NotUtf8(name.to_owned()))?;
                expanded.push_str(value);
                parts.push(Ok(Cow::Owned(value.as_bytes().to_vec())));
                if expanded.len() > MAX_PATH_BYTES {
                    return Err(MountError::TooLong);
                }
            }
            _ => missing.push(name),
        }
    }
    if missing.is_empty() {
        let is_known = parts.iter().all(Result::is_ok);
        let parts = parts.iter().map(|part| part.as_deref());
        let unknown = (!is_known).then(|| Unknown::joined(parts));
        return Ok(MountedPart {
            path: Some(expanded.into()),
            unknown,
            needs,
            secret,
        });
    }
    missing.sort_unstable();
    missing.dedup();
    Err(MountError::MissingValue(missing.join(", ")))
}

/// The mount points in a volume cannot be computed. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NestedMountError {
    /// A mount path leaves the root of the container.
    #[error("unable to create nested volume mountpoints: invalid container mount point {0}")]
    Outside(String),
    /// A directory for it would have a name that is reserved.
    #[error("unable to create nested volume mountpoints")]
    Path(#[from] VolumePathError),
}

/// The directories that a volume must have so that others can be mounted below it: sorted, each once.
pub type NestedMountPoints = Result<Vec<VolumePath>, NestedMountError>;

/// The directories that the volumes of `pod` must have so that others can be mounted below them, by name of the volume.
/// A volume that is not in the map needs none. The cost grows with the number of mounts and hardly faster.
///
/// A container cannot make them itself, because the volume is read-only there. Of mounts that lie in each other only
/// the outer one counts.
///
/// # Errors
///
/// Per volume: a mount path leaves the container's root, or would need a name that is reserved for the atomic writer.
pub fn nested_mount_points(pod: &Pod) -> HashMap<&str, NestedMountPoints> {
    let mut found: HashMap<&str, NestedMountPoints> = HashMap::new();
    for container in containers(pod) {
        let mut mounts: Vec<_> = container
            .volume_mounts
            .iter()
            .map(|mount| (clean(&mount.mount_path), &*mount.name))
            .collect();
        // What lies below a path follows it directly.
        mounts.sort_by(|(a, of_a), (b, of_b)| {
            a.split('/').cmp(b.split('/')).then_with(|| of_a.cmp(of_b))
        });
        mounts.dedup();
        // The mounts around the current ones, the innermost last.
        let mut around: Vec<&[(String, &str)]> = Vec::new();
        for same_path in mounts.chunk_by(|(a, _), (b, _)| a == b) {
            let (path, _) = &same_path[0];
            if path.starts_with("../") {
                for (_, volume) in same_path {
                    let outside = Err(NestedMountError::Outside(path.clone()));
                    found.insert(volume, outside);
                }
            }
            while around
                .pop_if(|outer| below(path, &outer[0].0).is_none())
                .is_some()
            {}
            if let Some(outer) = around.last()
                && let Some(nested) = below(path, &outer[0].0)
            {
                for (_, volume) in *outer {
                    add(
                        found.entry(volume).or_insert_with(|| Ok(Vec::new())),
                        nested,
                    );
                }
            }
            around.push(same_path);
        }
    }
    for points in found.values_mut().flatten() {
        points.sort();
        points.dedup();
    }
    found
}

/// The path of `path` below `outer`.
fn below<'a>(path: &'a str, outer: &str) -> Option<&'a str> {
    path.strip_prefix(outer)?.strip_prefix('/')
}

/// Adds a mount point, unless an error stands there already.
fn add(points: &mut NestedMountPoints, nested: &str) {
    let Ok(held) = points else { return };
    match VolumePath::parse(nested) {
        Ok(path) => held.push(path),
        Err(error) => *points = Err(error.into()),
    }
}
