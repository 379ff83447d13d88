//! Volumes in the kubelet's layout: set-up, tear-down, and the volumes left by an earlier run.
//!
//! The order of a set-up is the kubelet's (kubelet 1.36, `pkg/volume/configmap/configmap.go` and its siblings), with
//! one difference: a failed set-up tears down only what it has set up itself (P2). The kubelet tears the whole volume
//! down.
//!
//! Calls for one pod must not overlap; calls for different pods may.

use std::{
    collections::HashSet,
    fs::DirBuilder,
    os::{fd::AsFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use larder_files::sys;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    AtomicWriter, DiskError, Written,
    directory::Directory,
    empty_dir::remove_empty_dirs,
    layout::{self, element},
    ownership::{self, Group},
    subpath,
    tmpfs::{self, Memory},
    tree,
};
use crate::{Payload, VolumeKind, VolumePath};

/// Mode of the root of a volume, beside what its kind asks for, when the pod has an `fsGroup`: what is created there
/// inherits it.
const GROUP_ROOT: u32 = 0o2770;

/// A root directory with volumes of pods.
#[derive(Debug)]
pub struct VolumeHost {
    root: Directory,
    memory: Memory,
    /// Files of the caller in the directories of pods.
    pod_files: &'static [&'static str],
    /// Held while `by-name` is changed, which all pods share.
    pub(super) names: Mutex<()>,
}

/// A volume of a pod.
#[derive(Clone, Copy, Debug)]
pub struct PodVolume<'a> {
    /// UID of the pod, as its directory is named.
    pub pod_uid: &'a str,
    /// Name of the volume in the pod.
    pub name: &'a str,
    /// Type of the volume.
    pub kind: VolumeKind,
    /// `securityContext.fsGroup` of the pod.
    pub fs_group: Option<u32>,
    /// Upper limit of a tmpfs, in bytes: the node's allocatable memory or the pod's limit. `None` and 0 leave it to the
    /// kernel, which takes half of the memory.
    pub size_limit: Option<u64>,
    /// Mount points of other volumes inside this one, relative to it; directories, created if missing.
    pub mount_points: &'a [VolumePath],
}

/// A volume that is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SetUp {
    /// Directory of the volume.
    pub path: PathBuf,
    /// The content that was written.
    pub written: Written,
    /// The name of the set with this content. Anyone with write access to the volume can point `..data` at another set.
    pub set: String,
}

/// A pod that has volumes on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodOnDisk {
    /// UID of the pod.
    pub uid: String,
    /// Its namespace and name, if a link by name leads to it.
    pub name: Option<(String, String)>,
    /// Its volumes.
    pub volumes: Vec<(VolumeKind, String)>,
    /// Whether larder has written them, and no kubelet runs the pod: a link by name leads to it, or it has an
    /// environment.
    pub is_own: bool,
}

impl<'a> PodVolume<'a> {
    /// The volume `name` of the pod `pod_uid`: without group, size limit and mount points.
    pub fn new(pod_uid: &'a str, name: &'a str, kind: VolumeKind) -> Self {
        Self {
            pod_uid,
            name,
            kind,
            fs_group: None,
            size_limit: None,
            mount_points: &[],
        }
    }
}

impl VolumeHost {
    /// Opens the root directory `root`, or creates it with mode 0711.
    ///
    /// Secrets go to tmpfs where this process may mount: see [`Self::memory`].
    ///
    /// # Errors
    ///
    /// The directory cannot be created or opened.
    pub fn open(root: &Path) -> Result<Self, DiskError> {
        Self::open_with(root, true)
    }

    /// Opens the root directory `root` as [`Self::open`] does, but mounts nothing: Secrets lie under it as everything
    /// else.
    ///
    /// # Errors
    ///
    /// The directory cannot be created or opened.
    pub fn open_without_mounts(root: &Path) -> Result<Self, DiskError> {
        Self::open_with(root, false)
    }

    fn open_with(root: &Path, may_mount: bool) -> Result<Self, DiskError> {
        let failed = |error| DiskError::new("create directory", root, error);
        DirBuilder::new()
            .recursive(true)
            .mode(layout::PASSAGE)
            .create(root)
            .map_err(failed)?;
        // Its own path is the user's, and may well lead over links.
        let root = root.canonicalize().map_err(failed)?;
        Self::over(Directory::open(&root)?, may_mount)
    }

    /// Opens the root directory of another writer, such as a kubelet, to read from it. Creates and mounts nothing.
    ///
    /// # Errors
    ///
    /// There is no such directory, or it cannot be opened.
    pub fn open_existing(root: &Path) -> Result<Self, DiskError> {
        Self::over(Directory::open(root)?, false)
    }

    /// Like [`Self::open`], for a root directory that is open already. `path` is its absolute path without links; it
    /// names the volumes and is not resolved. Nothing is mounted unless this process `may_mount`.
    ///
    /// # Errors
    ///
    /// The handle cannot be duplicated, or the system does not say what can be mounted.
    pub fn open_at(root: impl AsFd, path: &Path, may_mount: bool) -> Result<Self, DiskError> {
        let fd = root
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| DiskError::new("open directory", path, error))?;
        Self::over(Directory::new(fd, path.to_owned()), may_mount)
    }

    fn over(root: Directory, may_mount: bool) -> Result<Self, DiskError> {
        let memory = Memory::probe(root.as_fd(), may_mount)
            .map_err(|errno| DiskError::new("mount tmpfs on", root.path(), errno))?;
        Ok(Self {
            root,
            memory,
            pod_files: &[],
            names: Mutex::new(()),
        })
    }

    /// This host, for a caller that keeps files of these names in the directories of pods; see
    /// [`Self::write_pod_file`]. They are removed with the pod.
    #[must_use]
    pub fn with_pod_files(mut self, names: &'static [&'static str]) -> Self {
        self.pod_files = names;
        self
    }

    /// The medium of Secrets.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Path of the root directory, without links.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Directory of a volume, whether it is set up or not.
    pub fn volume_path(&self, pod_uid: &str, kind: VolumeKind, name: &str) -> PathBuf {
        let pod = self.root.path().join(layout::PODS).join(pod_uid);
        pod.join(layout::VOLUMES).join(kind.directory()).join(name)
    }

    /// The file of [`Self::write_environment`], whether it is written or not.
    pub fn environment_path(&self, pod_uid: &str, container: &str) -> PathBuf {
        let pod = self.root.path().join(layout::PODS).join(pod_uid);
        pod.join(layout::CONTAINERS)
            .join(container)
            .join(layout::ENVIRONMENT)
    }

    /// Sets a volume up, or refreshes it, so that it holds exactly `payload`. `now` names a new set.
    ///
    /// 1. The directory of the volume, and its tmpfs if it wants one. After a reboot the directory is there, the tmpfs
    ///    is not.
    /// 2. The marker, for readers of the kubelet's layout; a set-up itself does not rely on it.
    /// 3. Mode and group of the root; the mount points in it.
    /// 4. The payload.
    ///
    /// # Errors
    ///
    /// The first step that failed. A volume that was there before still holds its old set; one that was not is gone
    /// again.
    pub fn set_up(
        &self,
        volume: &PodVolume<'_>,
        payload: &Payload<'_>,
        now: Timestamp,
    ) -> Result<SetUp, DiskError> {
        let name = element(volume.name)?;
        let group = Group(volume.fs_group);
        let pod = self.ensure_pod_of(group, volume.pod_uid)?;
        // Step 1
        let volumes = pod.ensure_of(group, layout::VOLUMES, layout::PRIVATE)?;
        let plugin = volumes.ensure(volume.kind.directory(), layout::PLUGIN)?;
        let (directory, is_new) = self.ensure_root(&plugin, volume)?;
        // Steps 2 to 4
        let path = directory.path().to_owned();
        let filled = mark_ready(&pod, name).and_then(|()| fill(directory, volume, payload, now));
        if filled.is_err() && is_new {
            // The error names the failed operation; what cannot be removed now is set up again or torn down later.
            let _ = tear_down(&pod, volume.kind, name);
        }
        let (written, set) = filled?;
        Ok(SetUp { path, written, set })
    }

    /// Tears a volume down: unmounts it, and removes it with its marker. A missing volume is no error.
    ///
    /// A container that has the volume mounted keeps a tmpfs with its content; a directory on disk is emptied.
    ///
    /// # Errors
    ///
    /// The first step that failed; worth trying again.
    pub fn tear_down(&self, pod_uid: &str, kind: VolumeKind, name: &str) -> Result<(), DiskError> {
        let name = element(name)?;
        match self.pod(pod_uid)? {
            Some(pod) => tear_down(&pod, kind, name),
            None => Ok(()),
        }
    }

    /// Tears down all volumes of a pod and removes all else that is larder's: environments, markers, and `emptyDir` volumes
    /// unless a kubelet runs the pod. The link by name is [`Self::unlink_pod`]'s: on a node with ten thousand pods, the
    /// end of one must not search them all.
    ///
    /// The directory of the pod goes if nothing of others is left in it, such as volumes of other types.
    ///
    /// # Errors
    ///
    /// Every failure; the rest is done. Worth trying again.
    pub fn remove_pod(&self, pod_uid: &str) -> Result<(), Vec<DiskError>> {
        self.on_pod(pod_uid, |pod, errors| {
            tear_down_all(pod, errors, |_| false);
            let of_kubelet = is_of_kubelet(pod);
            if matches!(of_kubelet, Ok(false)) {
                errors.extend(remove_empty_dirs(pod).err());
            }
            errors.extend(of_kubelet.err());
            errors.extend(remove_rest(pod, self.pod_files).err());
            errors.extend(self.remove_if_empty(pod_uid).err());
        })
    }

    /// Takes down the volumes of a pod, and removes the environments of its containers, but for those that `volumes`
    /// and `containers` name: what a pod had before it was changed.
    ///
    /// # Errors
    ///
    /// Every failure; the rest is done. Worth trying again.
    pub fn retain(
        &self,
        pod_uid: &str,
        volumes: &[(VolumeKind, &str)],
        containers: &[&str],
    ) -> Result<(), Vec<DiskError>> {
        let volumes: HashSet<_> = volumes.iter().copied().collect();
        let containers: HashSet<_> = containers.iter().copied().collect();
        self.on_pod(pod_uid, |pod, errors| {
            tear_down_all(pod, errors, |volume| volumes.contains(&volume));
            errors.extend(retain_environments(pod, &containers).err());
        })
    }

    /// Runs `action` on the directory of a pod, if there is one. It adds what fails to the list.
    fn on_pod(
        &self,
        uid: &str,
        action: impl FnOnce(&Directory, &mut Vec<DiskError>),
    ) -> Result<(), Vec<DiskError>> {
        let mut errors = Vec::new();
        match self.pod(uid) {
            Ok(Some(pod)) => action(&pod, &mut errors),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    /// The pods that have volumes of ours on disk, sorted: after a restart, among them those that left in the meantime.
    ///
    /// # Errors
    ///
    /// A directory cannot be listed.
    pub fn scan(&self) -> Result<Vec<PodOnDisk>, DiskError> {
        let Some(pods) = self.root.child(layout::PODS)? else {
            return Ok(Vec::new());
        };
        let mut names = self.names_by_uid()?;
        let mut found = Vec::new();
        for child in pods.children()? {
            let (uid, pod) = child?;
            let name = names.remove(&uid);
            found.push(PodOnDisk {
                is_own: is_own(&pod, name.is_some())?,
                volumes: volumes_of(&pod)?,
                uid,
                name,
            });
        }
        Ok(found)
    }

    /// A volume that was set up in a tmpfs which this process does not see: it is gone with a reboot, or was mounted
    /// where this process does not look.
    ///
    /// # Errors
    ///
    /// A directory cannot be listed.
    pub fn unseen_memory(&self) -> Result<Option<PathBuf>, DiskError> {
        let Some(pods) = self.root.child(layout::PODS)? else {
            return Ok(None);
        };
        for child in pods.children()? {
            let (_, pod) = child?;
            let volumes = volumes_of(&pod)?.into_iter();
            for (kind, name) in volumes.filter(|(kind, _)| kind.wants_memory()) {
                let wrapped = layout::wrapped(&name);
                let marker = pod.descendant(&[layout::PLUGINS, layout::WRAPPER, &wrapped])?;
                let plugin = pod.descendant(&[layout::VOLUMES, kind.directory()])?;
                let (Some(_), Some(plugin)) = (marker, plugin) else {
                    continue;
                };
                if let Some(directory) = plugin.child(&name)? {
                    let is_seen = tmpfs::is_mounted(plugin.as_fd(), directory.as_fd());
                    if !is_seen.map_err(plugin.failed("examine", &name))? {
                        return Ok(Some(directory.path().to_owned()));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a kubelet uses the same root directory, and so has pods in it.
    ///
    /// # Errors
    ///
    /// The directory cannot be searched.
    pub fn has_kubelet(&self) -> Result<bool, DiskError> {
        let found: Result<Vec<_>, _> = layout::OF_KUBELET
            .map(|name| self.root.child(name))
            .into_iter()
            .collect();
        Ok(found?.iter().any(Option::is_some))
    }

    pub(super) fn root(&self) -> &Directory {
        &self.root
    }

    /// The directory of a pod, if there is one.
    pub(crate) fn pod(&self, uid: &str) -> Result<Option<Directory>, DiskError> {
        self.root.descendant(&[layout::PODS, element(uid)?])
    }

    /// The directory of a pod, created if missing.
    pub(crate) fn ensure_pod(&self, uid: &str) -> Result<Directory, DiskError> {
        self.ensure_pod_of(Group::default(), uid)
    }

    /// The directory of a pod, created if missing, and given to `group` where this process may.
    fn ensure_pod_of(&self, group: Group, uid: &str) -> Result<Directory, DiskError> {
        let uid = element(uid)?;
        let pods = self.root.ensure(layout::PODS, layout::PASSAGE)?;
        pods.ensure_of(group, uid, layout::PRIVATE)
    }

    /// Step 1 of a set-up: the root of a volume; and whether this call brought it up.
    fn ensure_root(
        &self,
        plugin: &Directory,
        volume: &PodVolume<'_>,
    ) -> Result<(Directory, bool), DiskError> {
        let (directory, created) = plugin.make(volume.name)?;
        if !volume.kind.wants_memory() || !self.mounts() {
            return Ok((directory, created));
        }
        match mount_memory(plugin, directory, volume.name, volume.size_limit) {
            Ok((directory, mounted)) => Ok((directory, created || mounted)),
            Err(error) => {
                if created {
                    // The error names the failed operation.
                    let _ = plugin.remove_if_empty(volume.name);
                }
                Err(error)
            }
        }
    }

    /// Whether tmpfs is used.
    pub(super) fn mounts(&self) -> bool {
        matches!(self.memory, Memory::Tmpfs { .. })
    }

    fn remove_if_empty(&self, pod_uid: &str) -> Result<(), DiskError> {
        if let Some(pods) = self.root.child(layout::PODS)? {
            pods.remove_if_empty(pod_uid)?;
        }
        Ok(())
    }
}

/// Mounts a tmpfs on the directory `name` of `parent` unless one is mounted; returns it, and whether it did.
pub(super) fn mount_memory(
    parent: &Directory,
    directory: Directory,
    name: &str,
    size_limit: Option<u64>,
) -> Result<(Directory, bool), DiskError> {
    let is_mounted = tmpfs::is_mounted(parent.as_fd(), directory.as_fd());
    if is_mounted.map_err(parent.failed("mount tmpfs on", name))? {
        return Ok((directory, false));
    }
    let size_limit = size_limit.filter(|&bytes| bytes > 0);
    tmpfs::mount(directory.as_fd(), size_limit).map_err(parent.failed("mount tmpfs on", name))?;
    // The handle is still the directory below: what a run without mounts left there must not stay on a disk.
    tree::remove_contents(&directory.into_fd()).map_err(parent.failed("remove", name))?;
    match parent.child(name)? {
        Some(mounted) => Ok((mounted, true)),
        None => Err(parent.failed("mount tmpfs on", name)(Errno::NOENT)),
    }
}

/// Step 2 of a set-up.
fn mark_ready(pod: &Directory, volume: &str) -> Result<(), DiskError> {
    let wrapper = pod
        .ensure(layout::PLUGINS, layout::PRIVATE)?
        .ensure(layout::WRAPPER, layout::PRIVATE)?
        .ensure(&layout::wrapped(volume), layout::PRIVATE)?;
    match sys::create_file(wrapper.as_fd(), layout::READY, 0o640) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(wrapper.failed("write file", layout::READY)(errno)),
    }
}

/// Steps 3 and 4 of a set-up.
fn fill(
    directory: Directory,
    volume: &PodVolume<'_>,
    payload: &Payload<'_>,
    now: Timestamp,
) -> Result<(Written, String), DiskError> {
    let group = Group(volume.fs_group);
    let mode = volume.kind.root_mode() | volume.fs_group.map_or(0, |_| GROUP_ROOT);
    // Step 3
    let owned = ownership::settle(&directory, None, group, mode)
        .map_err(|errno| DiskError::new("set mode of", directory.path(), errno))?;
    for path in volume.mount_points {
        subpath::make_directories(&directory, path.as_str(), group.directory_mode())?;
    }
    // Step 4
    let writer = AtomicWriter::over(directory, group);
    // The name of a set need not be secret, only rarely taken.
    let (mut written, set) = writer.write_set(payload, now, &mut fastrand::Rng::new())?;
    written.not_owned += usize::from(!owned);
    Ok((written, set))
}

fn tear_down(pod: &Directory, kind: VolumeKind, name: &str) -> Result<(), DiskError> {
    subpath::remove(pod, name)?;
    if let Some(wrapper) = pod.descendant(&[layout::PLUGINS, layout::WRAPPER])? {
        wrapper.remove(&layout::wrapped(name))?;
    }
    if let Some(plugin) = pod.descendant(&[layout::VOLUMES, kind.directory()])? {
        tmpfs::unmount(plugin.as_fd(), name).map_err(plugin.failed("unmount", name))?;
        plugin.remove(name)?;
    }
    Ok(())
}

/// Tears down the volumes of a pod, but for those that are `kept`.
fn tear_down_all(
    pod: &Directory,
    errors: &mut Vec<DiskError>,
    kept: impl Fn((VolumeKind, &str)) -> bool,
) {
    match volumes_of(pod) {
        Ok(volumes) => {
            let dropped = volumes.iter().filter(|(kind, name)| !kept((*kind, name)));
            errors.extend(dropped.filter_map(|(kind, name)| tear_down(pod, *kind, name).err()));
        }
        Err(error) => errors.push(error),
    }
}

/// The volumes of ours that a pod has on disk.
fn volumes_of(pod: &Directory) -> Result<Vec<(VolumeKind, String)>, DiskError> {
    let mut volumes = Vec::new();
    if let Some(plugins) = pod.child(layout::VOLUMES)? {
        for kind in VolumeKind::ALL {
            if let Some(plugin) = plugins.child(kind.directory())? {
                volumes.extend(plugin.directories()?.into_iter().map(|name| (kind, name)));
            }
        }
    }
    Ok(volumes)
}

/// Whether larder has written the volumes of a pod, which a link by name may lead to, and no kubelet runs it.
fn is_own(pod: &Directory, is_linked: bool) -> Result<bool, DiskError> {
    if is_of_kubelet(pod)? {
        return Ok(false);
    }
    let mut is_own = is_linked;
    if let Some(containers) = pod.child(layout::CONTAINERS)? {
        for child in containers.children()? {
            is_own |= has(&child?.1, layout::ENVIRONMENT);
        }
    }
    Ok(is_own)
}

/// Whether a kubelet runs the pod: it has written its `hosts` file, or termination logs of its containers.
fn is_of_kubelet(pod: &Directory) -> Result<bool, DiskError> {
    if has(pod, layout::HOSTS) {
        return Ok(true);
    }
    let Some(containers) = pod.child(layout::CONTAINERS)? else {
        return Ok(false);
    };
    for child in containers.children()? {
        let entries = child?.1.entries()?;
        let mut names = entries.iter().map(|(name, _)| name);
        if names.any(|name| layout::is_termination_log(name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has(directory: &Directory, name: &str) -> bool {
    sys::stat_entry(directory.as_fd(), name).is_ok()
}

/// Removes the environments of the containers that are not among `containers`. Other files of theirs stay.
fn retain_environments(pod: &Directory, containers: &HashSet<&str>) -> Result<(), DiskError> {
    let Some(directory) = pod.child(layout::CONTAINERS)? else {
        return Ok(());
    };
    for child in directory.children()? {
        let (name, container) = child?;
        if !containers.contains(name.as_str()) {
            container.remove(layout::ENVIRONMENT)?;
            directory.remove_if_empty(&name)?;
        }
    }
    Ok(())
}

/// Removes what a pod has besides volumes, and every directory that is empty then.
fn remove_rest(pod: &Directory, files: &[&str]) -> Result<(), DiskError> {
    tmpfs::unmount(pod.as_fd(), layout::CONTAINERS)
        .map_err(pod.failed("unmount", layout::CONTAINERS))?;
    pod.remove(layout::CONTAINERS)?;
    for name in files {
        pod.remove_replaceable(name)?;
    }
    if let Some(volumes) = pod.child(layout::VOLUMES)? {
        for kind in VolumeKind::ALL {
            volumes.remove_if_empty(kind.directory())?;
        }
        volumes.remove_if_empty(layout::EMPTY_DIR)?;
        pod.remove_if_empty(layout::VOLUMES)?;
    }
    if let Some(plugins) = pod.child(layout::PLUGINS)? {
        if let Some(wrappers) = plugins.child(layout::WRAPPER)? {
            let names = wrappers.directories()?;
            // Of volumes whose directory was gone already.
            for name in names.iter().filter(|name| layout::is_wrapped(name)) {
                wrappers.remove(name)?;
            }
            plugins.remove_if_empty(layout::WRAPPER)?;
        }
        pod.remove_if_empty(layout::PLUGINS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
