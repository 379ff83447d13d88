//! The volumes of the command: those that larder writes for it, and those of an agent.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_console as console;
use larder_projection::{
    Inputs, VolumeKind, VolumePath,
    disk::{PodVolume, VolumeHost, bind_subpath, make_empty_dir, share_empty_dir},
    fs_group, nested_mount_points, project,
};

use crate::{
    sandbox::Sandbox,
    security::identity,
    start::{MountSource, MountedVolume, mode_for_only_user},
    target::{Contents, ExecTarget, filled},
};

/// The volumes of all starts of the command.
pub(crate) struct Volumes<'a> {
    sandbox: &'a Sandbox,
    host: VolumeHost,
    /// The target of `..data` in each volume of an agent, when last read.
    sets: BTreeMap<PathBuf, PathBuf>,
}

impl<'a> Volumes<'a> {
    pub(crate) fn open(sandbox: &'a Sandbox) -> anyhow::Result<Self> {
        Ok(Self {
            sandbox,
            host: VolumeHost::open(&sandbox.volumes())?,
            sets: BTreeMap::new(),
        })
    }

    /// Brings a volume up to date; returns whether it changed.
    pub(crate) fn refresh(&mut self, target: &ExecTarget, volume: &Volume) -> anyhow::Result<bool> {
        match (MountSource::of(volume, &target.contents), &target.contents) {
            (Some(MountSource::Objects(kind)), Contents::Inputs(inputs)) => {
                self.set_up(target, volume, kind, inputs)
            }
            // The agent writes this volume; here its changes are noticed.
            (Some(MountSource::Agent(directory)), _) if VolumeKind::of(volume).is_some() => {
                let set = current_set(&directory);
                let before = self.sets.insert(directory, set.clone());
                Ok(before != Some(set))
            }
            _ => Ok(false),
        }
    }

    fn set_up(
        &self,
        target: &ExecTarget,
        volume: &Volume,
        kind: VolumeKind,
        inputs: &Inputs,
    ) -> anyhow::Result<bool> {
        let pod = &target.pod;
        let mount_points = mount_points(pod, &volume.name)?;
        let fs_group = fs_group(pod);
        let mut payload = project(pod, volume, inputs)?.payload;
        if let mapped @ Some(_) = self.sandbox.mapped {
            let identity = identity(pod, target.container(), mapped)?;
            for file in payload.values_mut() {
                file.mode = mode_for_only_user(&identity, file.owner, fs_group, file.mode);
            }
        }
        let volume = PodVolume {
            pod_uid: target.uid(),
            name: &volume.name,
            kind,
            fs_group,
            size_limit: None,
            mount_points: &mount_points,
        };
        let set_up = self.host.set_up(&volume, &payload, crate::now())?;
        Ok(set_up.written.swapped)
    }

    /// Whether an agent has swapped one of its volumes since it was last read.
    pub(crate) fn are_newer(&self) -> bool {
        let mut sets = self.sets.iter();
        sets.any(|(directory, set)| current_set(directory) != *set)
    }

    /// The volumes that larder fills, with their directories.
    pub(crate) fn directories<'t>(&self, target: &'t ExecTarget) -> Vec<(&'t Volume, PathBuf)> {
        let found = filled(target.volumes()).filter_map(|volume| {
            let source = MountSource::of(volume, &target.contents)?;
            Some((volume, self.directory_of(target, &source, &volume.name)?))
        });
        found.collect()
    }

    /// The directory of a volume that larder or its agent swaps.
    pub(crate) fn directory_of(
        &self,
        target: &ExecTarget,
        source: &MountSource,
        volume: &str,
    ) -> Option<PathBuf> {
        match source {
            MountSource::Objects(kind) => Some(self.host.volume_path(target.uid(), *kind, volume)),
            MountSource::Agent(path) => Some(path.clone()),
            MountSource::EmptyDir(..) | MountSource::HostPath(_) => None,
        }
    }

    /// The file or directory to bind-mount.
    pub(crate) fn source(
        &self,
        target: &ExecTarget,
        mount: &MountedVolume,
    ) -> anyhow::Result<PathBuf> {
        let root = match &mount.source {
            MountSource::Objects(kind) => self.host.volume_path(target.uid(), *kind, &mount.volume),
            MountSource::EmptyDir(source, pod) => {
                let points = mount_points(&target.pod, &mount.volume)?;
                let group = fs_group(&target.pod);
                if let Some(pod) = pod {
                    share_empty_dir(pod, &mount.volume, source, group, &points)?
                } else {
                    let path = self.sandbox.staging.join("empty").join(&mount.volume);
                    make_empty_dir(&path, source, group, &points)?;
                    path
                }
            }
            MountSource::Agent(path) | MountSource::HostPath(path) => path.clone(),
        };
        let Some(sub_path) = &mount.sub_path else {
            return Ok(root);
        };
        let targets = self.directory("subpaths")?;
        let create = match &mount.source {
            // A missing directory gets the mode of the volume's, as by the kubelet.
            MountSource::Objects(_) | MountSource::EmptyDir(..) => {
                Some(fs::metadata(&root)?.permissions().mode() & 0o7777)
            }
            MountSource::Agent(_) | MountSource::HostPath(_) => None,
        };
        let name = mount.index.to_string();
        if let Some(bound) = bind_subpath(&root, sub_path, &targets, &name, create)? {
            return Ok(bound);
        }
        // Of the agent or the host: the volume must not be changed, so an empty directory is mounted instead.
        console::note(format_args!(
            "volume {} has no {sub_path}: {} is an empty directory",
            mount.volume, mount.target
        ));
        Ok(self.directory(&format!("missing/{}", mount.index))?)
    }

    /// A directory that is private to this command and open to any user in it. Like an emptyDir it survives restarts.
    fn directory(&self, path: &str) -> io::Result<PathBuf> {
        let path = self.sandbox.staging.join(path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }
}

/// Where in the volume containers mount other volumes.
fn mount_points(pod: &Pod, volume: &str) -> anyhow::Result<Vec<VolumePath>> {
    let points = nested_mount_points(pod).remove(volume);
    Ok(points.transpose()?.unwrap_or_default())
}

/// The target of `..data` in a volume; empty if it has none.
fn current_set(directory: &Path) -> PathBuf {
    fs::read_link(directory.join("..data")).unwrap_or_default()
}
