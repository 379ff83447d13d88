//! The content that a container sees through a `subPath` mount: that of its start (beside-kubelet 7.2).

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Volume;
use larder_files::{beneath, operation_error::failed, sys};
use larder_projection::{Projection, VolumePath};
use rustix::fs::{FileType, Stat};

use super::{
    Differences, KubeletDir, Mounts, UnknownContent, VolumeId, compare::Comparer, unknown_content,
};

/// Directory of these mounts, in that of the pod.
const SUBPATHS: &str = "volume-subpaths";

/// One mount with `subPath`.
#[derive(Clone, Copy, Debug)]
pub struct SubPathId<'a> {
    /// The volume.
    pub volume: VolumeId<'a>,
    /// Name of the container.
    pub container: &'a str,
    /// Index of the mount in the container's `volumeMounts`, from 0.
    pub index: usize,
    /// `subPath`, or the expanded `subPathExpr`.
    pub sub_path: &'a str,
}

impl KubeletDir {
    /// Compares what the container sees with `projection`, which was computed for `volume`, a volume of the pod.
    ///
    /// # Errors
    ///
    /// The kubelet has not mounted it, or this process cannot see it.
    pub fn compare_subpath(
        &self,
        id: &SubPathId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
    ) -> Result<Differences, UnknownContent> {
        // Through `..data` it is the same file.
        let sub_path = id.sub_path.strip_prefix("..data/").unwrap_or(id.sub_path);
        let Ok(sub_path) = VolumePath::parse(sub_path) else {
            // The volume itself: a mount like any other, never out of date.
            return Ok(Differences::default());
        };
        let prefix = format!("{sub_path}/");
        let path = self.subpath_path(id);
        let mut comparer = Comparer::new(volume, projection, &prefix, path.clone());
        loop {
            match self.open_subpath(id, &path)? {
                Target::Directory(directory) => {
                    if comparer.advance(&directory, self.open_budget)? {
                        break;
                    }
                }
                Target::File(file, stat) => {
                    let computed = projection.payload.get_key_value(sub_path.as_str());
                    match computed {
                        Some((path, computed)) => {
                            comparer.check(Ok((file, stat)), path, computed)?;
                        }
                        None => comparer.not_computed(sub_path.as_str()),
                    }
                    break;
                }
            }
        }
        Ok(comparer.finish())
    }

    fn open_subpath(&self, id: &SubPathId<'_>, path: &Path) -> Result<Target, UnknownContent> {
        let volume = &id.volume;
        let elements = ["pods", volume.pod_uid, SUBPATHS, volume.name, id.container];
        let parent = self
            .descend(&elements, path)?
            .ok_or(UnknownContent::NotSetUp)?;
        let index = id.index.to_string();
        let stat = sys::stat_entry(parent.as_fd(), &*index)
            .map_err(|errno| unknown_content(errno, "examine", path))?;
        let opened = if sys::file_type(&stat) == FileType::Directory {
            sys::open_place(parent.as_fd(), &*index).map(Target::Directory)
        } else {
            sys::open_regular(parent.as_fd(), &*index).map(|(file, stat)| Target::File(file, stat))
        };
        let opened = opened.map_err(|errno| unknown_content(errno, "open", path))?;
        if self.mounts == Mounts::Required {
            // The kubelet mounts on an empty file or directory.
            let is_mount_point = beneath::is_mount_point(parent.as_fd(), opened.handle().as_fd());
            if !is_mount_point.map_err(failed("examine", path))? {
                return Err(UnknownContent::NotVisible);
            }
        }
        Ok(opened)
    }

    /// The path of the mount, for errors only: it is never resolved.
    fn subpath_path(&self, id: &SubPathId<'_>) -> PathBuf {
        let pod = self.path.join("pods").join(id.volume.pod_uid);
        let mounts = pod.join(SUBPATHS).join(id.volume.name);
        mounts.join(id.container).join(id.index.to_string())
    }
}

/// What a mount with `subPath` shows.
enum Target {
    Directory(OwnedFd),
    File(OwnedFd, Stat),
}

impl Target {
    fn handle(&self) -> &OwnedFd {
        match self {
            Self::Directory(handle) | Self::File(handle, _) => handle,
        }
    }
}
