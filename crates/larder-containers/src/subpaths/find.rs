//! Where a mount with `subPath` is, by the lines of a `mountinfo`. Pure.
//!
//! The root of such a mount is a file or directory in a set of its volume, `VOLUME/..SET/PATH`, or with `subPath: ..data`
//! the set itself, with `//deleted` at the end once the set is gone. So device and root tell which mounts show something of a volume, wherever the image or the
//! container has put them.
//!
//! Invariants:
//! 1. Nothing is found in a namespace that shows the agent's directory, or files of another pod.
//! 2. A mount that its path in the specification does not lead to, that something is mounted on, that appears elsewhere,
//!    or of which there are more than the pod asks for, is left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
    ops::ControlFlow,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use rustix::mount::MountFlags;
use smol_str::SmolStr;

use super::reason::{CHANGED, FAILED, NotReplaced, UNSUPPORTED};
use crate::processes::{
    MountLine, NamespaceMounts, PodMounts, Shown, VolumePlaces, below, each_mount, normalized,
};

/// At the end of the root of a mount whose file was removed.
const DELETED: &[u8] = b"//deleted";

/// A mount, as its namespace lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountRecord {
    /// Its number.
    pub(super) id: u64,
    /// That of the mount that it is on.
    pub(super) parent: u64,
    device: Box<[u8]>,
    /// Without the note that it was removed.
    pub(super) root: PathBuf,
    /// Where it is mounted.
    pub(super) mount_point: PathBuf,
    /// What may not be done there.
    pub(super) flags: MountFlags,
}

impl MountRecord {
    fn of(line: &MountLine<'_>) -> Self {
        let flags = line
            .options
            .split(|&byte| byte == b',')
            .filter_map(|option| match option {
                b"ro" => Some(MountFlags::RDONLY),
                b"nosuid" => Some(MountFlags::NOSUID),
                b"nodev" => Some(MountFlags::NODEV),
                b"noexec" => Some(MountFlags::NOEXEC),
                b"nosymfollow" => Some(MountFlags::NOSYMFOLLOW),
                _ => None,
            });
        Self {
            id: line.id,
            parent: line.parent,
            device: line.device.into(),
            root: without_deleted(&line.root()).0.to_owned(),
            mount_point: line.mount_point().into_owned(),
            flags: flags.collect(),
        }
    }
}

/// The path of a root, and whether it was removed.
fn without_deleted(root: &Path) -> (&Path, bool) {
    let bytes = root.as_os_str().as_bytes();
    match bytes.strip_suffix(DELETED) {
        Some(path) if !path.is_empty() => (Path::new(std::ffi::OsStr::from_bytes(path)), true),
        _ => (root, false),
    }
}

/// The mount with this number, and whether something is mounted on it, or it lies in one that is shared with other
/// namespaces.
pub(super) fn with_id(table: impl Read, id: u64) -> io::Result<(Option<MountRecord>, bool)> {
    let (mut found, mut is_covered) = (None, false);
    let mut shared = BTreeSet::new();
    each_mount(table, |line| {
        if line.id == id {
            found = Some(MountRecord::of(line));
        }
        is_covered |= line.parent == id;
        if line.is_shared {
            shared.insert(line.id);
        }
        ControlFlow::Continue(())
    })?;
    let is_shared = found
        .as_ref()
        .is_some_and(|found: &MountRecord| shared.contains(&found.parent));
    Ok((found, is_covered || is_shared))
}

/// A mount with `subPath` in the specification of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMount {
    /// Name of the container.
    pub container: SmolStr,
    /// Its `mountPath`.
    pub mount_path: SmolStr,
    /// Name of the volume.
    pub volume: SmolStr,
    /// The file or directory in a set of the volume: `subPath`, or the expanded `subPathExpr`. Empty for the set itself.
    pub path: PathBuf,
    /// Whether that has something of a Secret in it, so that no text may name it.
    pub is_secret: bool,
}

impl WantedMount {
    /// `None` for the volume itself, which follows by itself.
    pub fn new(
        container: &str,
        mount_path: &str,
        volume: &str,
        sub_path: &str,
        is_secret: bool,
    ) -> Option<Self> {
        let path = normalized(Path::new(sub_path));
        let path = path.strip_prefix("/").unwrap_or(&path);
        if path.as_os_str().is_empty() {
            return None;
        }
        Some(Self {
            container: container.into(),
            mount_path: mount_path.into(),
            volume: volume.into(),
            path: path.strip_prefix("..data").unwrap_or(path).to_owned(),
            is_secret,
        })
    }

    /// Volume and path of what is mounted.
    fn file(&self) -> (&str, &Path) {
        (&self.volume, &self.path)
    }
}

/// The namespace is not that of a container of this pod alone.
pub(super) const FOREIGN: NotReplaced = NotReplaced::new(
    CHANGED,
    "the container sees the directory of larder's volumes, or those of other pods",
);
pub(super) const MISSING: NotReplaced = NotReplaced::new(
    CHANGED,
    "the container has no such mount there: it has unmounted, moved or covered it",
);
/// The container, or who serves its file systems, would decide how long the answer takes.
pub(super) const UNKNOWN_LINK: NotReplaced = NotReplaced::new(
    FAILED,
    "a link or directory on the way to it lies in a file system that larder does not ask, because it may never answer: \
     use the mountPath that it leads to",
);
pub(super) const SEVERAL: NotReplaced =
    NotReplaced::new(CHANGED, "the container has mounted the file more than once");
pub(super) const COVERED: NotReplaced =
    NotReplaced::new(CHANGED, "the container has mounted something over it");
/// The mount of an earlier attempt is still on the new one.
pub(super) const LEFT_OVER: NotReplaced =
    NotReplaced::new(CHANGED, "the earlier mount could not be removed from it");
/// A new mount would appear in other namespaces.
pub(super) const SHARED: NotReplaced = NotReplaced::new(
    CHANGED,
    "it lies in a mount that is shared with other namespaces",
);
/// A new mount would show the owners on the node, as whom the container may not read.
pub(super) const MAPS_USERS: NotReplaced =
    NotReplaced::new(UNSUPPORTED, "it maps users, which a new mount would not");

/// A mount of a file or directory of one of a pod's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeMount {
    pub(super) record: MountRecord,
    volume: SmolStr,
    /// The set that it is in; `None` for a directory that the kubelet has made for a missing key.
    pub(super) set: Option<SmolStr>,
    path: PathBuf,
    pub(super) is_deleted: bool,
    /// Why it is left alone.
    pub(super) obstacle: Option<NotReplaced>,
}

impl VolumeMount {
    fn of(line: &MountLine<'_>, volume: &SmolStr, inside: &Path) -> Option<Self> {
        let (inside, is_deleted) = without_deleted(inside);
        let first = inside.iter().next()?;
        let set = first
            .as_bytes()
            .starts_with(b"..")
            .then(|| first.to_string_lossy().into());
        let path = match set {
            Some(_) => inside.strip_prefix(first).ok()?,
            None => inside,
        };
        (set.is_some() || !path.as_os_str().is_empty()).then(|| Self {
            record: MountRecord::of(line),
            volume: volume.clone(),
            set,
            path: path.to_owned(),
            is_deleted,
            obstacle: line.options.ends_with(b",idmapped").then_some(MAPS_USERS),
        })
    }

    /// Volume and path of what is mounted.
    fn file(&self) -> (&str, &Path) {
        (&self.volume, &self.path)
    }

    pub(super) fn is_alike(&self, wanted: &WantedMount) -> bool {
        self.file() == wanted.file()
    }

    /// Whether it is of the same path of another set as `lower`, in the same place.
    fn is_other_set_of(&self, lower: &Self) -> bool {
        self.record.mount_point == lower.record.mount_point
            && self.file() == lower.file()
            && self.record.root != lower.record.root
    }
}

/// The mounts of files and directories of the pod's volumes in a namespace, whose table `open` opens.
///
/// # Errors
///
/// The table cannot be read, or the namespace is none of this pod alone.
pub(super) fn volume_mounts<R: Read>(
    open: impl Fn() -> io::Result<R>,
    places: &VolumePlaces,
    pod: &PodMounts,
) -> io::Result<Result<Vec<VolumeMount>, NotReplaced>> {
    let mut namespace = NamespaceMounts::new();
    let mut found: BTreeMap<u64, VolumeMount> = BTreeMap::new();
    each_mount(open()?, |line| {
        namespace.add(line, places)?;
        if let Shown::Pod { path, .. } = places.shown(line)
            && !namespace.is_in_root(&line.mount_point())
        {
            let mut volumes = pod.volumes.iter();
            let mount = volumes.find_map(|(name, directory)| {
                VolumeMount::of(line, name, below(&path, directory)?)
            });
            found.extend(mount.map(|mount| (line.id, mount)));
        }
        ControlFlow::Continue(())
    })?;
    if namespace.is_foreign() {
        return Ok(Err(FOREIGN));
    }
    let parents: BTreeSet<_> = found.values().map(|mount| mount.record.parent).collect();
    let (mut children, mut shared) = (BTreeMap::new(), BTreeSet::new());
    each_mount(open()?, |line| {
        if found.contains_key(&line.parent) {
            *children.entry(line.parent).or_insert(0) += 1;
        }
        if line.is_shared && parents.contains(&line.id) {
            shared.insert(line.id);
        }
        ControlFlow::Continue(())
    })?;
    // An earlier attempt has ended before it had unmounted the upper one.
    let stacked = found.values().filter_map(|upper| {
        let (id, lower) = (upper.record.parent, found.get(&upper.record.parent)?);
        (children[&id] == 1 && upper.is_other_set_of(lower)).then_some((upper.record.id, id))
    });
    let (upper, lower): (BTreeSet<_>, BTreeSet<_>) = stacked.unzip();
    found.retain(|id, _| !lower.contains(id));
    for (id, mount) in &mut found {
        let covered = children.contains_key(id).then_some(COVERED);
        let left_over = upper.contains(id).then_some(LEFT_OVER);
        let is_shared = shared.contains(&mount.record.parent);
        let shared = is_shared.then_some(SHARED);
        mount.obstacle = covered.or(left_over).or(shared).or(mount.obstacle.take());
    }
    Ok(Ok(found.into_values().collect()))
}

/// Where the path of a mount in the specification leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadsTo {
    /// To the mount with this number.
    Mount(u64),
    /// To nothing.
    Nowhere,
    /// That would have to be asked of a file system that may never answer.
    Unknown,
}

/// Picks the mounts of a container: for each of `wanted`, in their order, the one that it is, or why none is touched.
/// With each goes where its path leads.
pub(super) fn pick(
    mounts: &[VolumeMount],
    wanted: &[(&WantedMount, LeadsTo)],
) -> Vec<Result<VolumeMount, NotReplaced>> {
    let mut files: BTreeMap<_, (BTreeSet<&str>, Vec<&VolumeMount>)> = BTreeMap::new();
    for (one, _) in wanted {
        let (asked, _) = files.entry(one.file()).or_default();
        asked.insert(&one.mount_path);
    }
    for mount in mounts {
        if let Some((_, shown)) = files.get_mut(&mount.file()) {
            shown.push(mount);
        }
    }
    let picked = wanted.iter().map(|(one, leads_to)| {
        let (asked, shown) = &files[&one.file()];
        if shown.len() > asked.len() {
            return Err(SEVERAL);
        }
        let is_there = |mount: &&&VolumeMount| LeadsTo::Mount(mount.record.id) == *leads_to;
        let is_covered = |mount: &&VolumeMount| mount.obstacle == Some(COVERED);
        match shown.iter().find(is_there) {
            Some(mount) => mount
                .obstacle
                .clone()
                .map_or_else(|| Ok((*mount).clone()), Err),
            None if shown.iter().any(is_covered) => Err(COVERED),
            None if *leads_to == LeadsTo::Unknown && !shown.is_empty() => Err(UNKNOWN_LINK),
            None => Err(MISSING),
        }
    });
    picked.collect()
}
