//! The places where this process sees the volumes of pods; they identify volumes among the mounts of other namespaces.
//!
//! Device numbers and roots of mounts are the same in every namespace (proc(5)), unlike paths. So the mounts of this
//! process show which file or directory below the agent's directory a mount elsewhere is.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fs::File,
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    mount_table::{MountLine, below, each_mount},
    proc_directory::ProcDirectory,
};

/// The agent's directory, by device.
#[derive(Debug)]
pub(crate) struct VolumePlaces {
    root: PathBuf,
    pods: PathBuf,
    /// For each device, its directories below [`root`](Self::root) and where this process sees them. The first one of
    /// the device that the root is on is the root itself.
    places: HashMap<Box<[u8]>, Vec<(PathBuf, PathBuf)>>,
}

/// The places as of the last change of this process's mounts. A node with many pods has many of them.
#[derive(Debug, Default)]
pub(super) struct KnownPlaces(Mutex<Option<(File, Arc<VolumePlaces>)>>);

impl KnownPlaces {
    pub(super) fn get(&self, proc: &ProcDirectory, root: &Path) -> io::Result<Arc<VolumePlaces>> {
        let mut known = self.0.lock();
        if let Some((table, places)) = &*known
            && !has_changed(table)?
        {
            return Ok(Arc::clone(places));
        }
        // Opened first, so that the next call notices what changes meanwhile.
        let table = proc.open("self", "mountinfo")?;
        let places = Arc::new(VolumePlaces::read(proc, root)?);
        *known = Some((table, Arc::clone(&places)));
        Ok(places)
    }
}

/// Whether the mounts that `table` lists are others than when it was opened (proc(5)).
fn has_changed(table: &File) -> io::Result<bool> {
    let mut polled = [PollFd::new(table, PollFlags::PRI)];
    poll(&mut polled, Some(&Timespec::default()))?;
    Ok(polled[0].revents().contains(PollFlags::PRI))
}

/// What a mount shows of the agent's directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Other things.
    Nothing,
    /// All of it, at this path if no other mount covers it, or parts that belong to no pod.
    Root(PathBuf),
    /// A file or directory of the pod with this UID, which this process sees at `path`.
    Pod { uid: String, path: PathBuf },
}

impl VolumePlaces {
    /// Of the directory `root`, an absolute path without links, which has the volumes of a pod in `pods/UID`.
    ///
    /// # Errors
    ///
    /// The mounts of this process cannot be read.
    pub(super) fn read(proc: &ProcDirectory, root: &Path) -> io::Result<Self> {
        let mut places: HashMap<Box<[u8]>, Vec<_>> = HashMap::new();
        let mut covering: Option<(Box<[u8]>, PathBuf, PathBuf)> = None;
        each_mount(proc.open("self", "mountinfo")?, |line| {
            let mount_point = line.mount_point();
            if mount_point != root && mount_point.starts_with(root) {
                let place = (line.root().into_owned(), mount_point.into_owned());
                places.entry(line.device.into()).or_default().push(place);
            } else if root.starts_with(&mount_point)
                // Of mounts over each other the last one counts.
                && covering.as_ref().is_none_or(|(_, _, other)| mount_point.starts_with(other))
            {
                let place = (line.root().into_owned(), mount_point.into_owned());
                covering = Some((line.device.into(), place.0, place.1));
            }
            ControlFlow::Continue(())
        })?;
        if let Some((device, mounted, mount_point)) = covering {
            let below = root.strip_prefix(&mount_point).unwrap_or(Path::new(""));
            let own = joined(&mounted, below);
            let of_device = places.entry(device).or_default();
            // A pod that mounts a directory above this one does not own what other pods have in it.
            of_device.retain(|(place, _)| !own.starts_with(place));
            of_device.insert(0, (own, root.to_owned()));
        }
        let pods = root.join("pods");
        places.retain(|_, of_device| {
            drop_shared(of_device, &pods);
            !of_device.is_empty()
        });
        Ok(Self {
            root: root.to_owned(),
            pods,
            places,
        })
    }

    /// What a mount shows.
    pub(crate) fn shown(&self, line: &MountLine<'_>) -> Shown {
        let Some(places) = self.places.get(line.device) else {
            return Shown::Nothing;
        };
        let (root, mount_point) = (line.root(), line.mount_point());
        // The shortest place is the directory itself; what is mounted from it elsewhere, such as for a subPath, has a longer
        // one.
        let containing = places
            .iter()
            .filter_map(|(place, path)| Some((below(&root, place)?, path)));
        let Some((inside, path)) =
            containing.min_by_key(|(inside, _)| Reverse(inside.as_os_str().len()))
        else {
            let (place, path) = &places[0];
            return match below(place, &root) {
                Some(inside) if *path == self.root => Shown::Root(joined(&mount_point, inside)),
                _ => Shown::Nothing,
            };
        };
        let path = joined(path, inside);
        let mut names = below(&path, &self.pods).into_iter().flat_map(Path::iter);
        match (names.next(), names.next()) {
            (Some(uid), Some(_)) => Shown::Pod {
                uid: uid.to_string_lossy().into_owned(),
                path,
            },
            _ => Shown::Root(mount_point.into_owned()),
        }
    }
}

/// Storage that several pods mount, such as an NFS share, belongs to none of them. If one has it as a volume and the others
/// only mount it by `subPath`, it belongs to that one: they mount the directory of its volume.
fn drop_shared(places: &mut Vec<(PathBuf, PathBuf)>, pods: &Path) {
    let owner = |path: &Path| {
        let mut names = below(path, pods)?.iter();
        Some((names.next()?.to_owned(), names.next()? == "volumes"))
    };
    let mut owners: HashMap<PathBuf, BTreeSet<(OsString, bool)>> = HashMap::new();
    for (place, path) in &*places {
        owners.entry(place.clone()).or_default().extend(owner(path));
    }
    places.retain(|(place, path)| {
        owner(path).is_none_or(|(uid, has_volume)| {
            let mut others = owners[place].iter().filter(|(other, _)| *other != uid);
            others.all(|(_, other_has_volume)| has_volume && !other_has_volume)
        })
    });
}

/// Without a slash at the end.
fn joined(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        path.to_owned()
    } else {
        path.join(below)
    }
}
