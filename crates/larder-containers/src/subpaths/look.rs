//! One look at one container: which of its mounts show old content, and their replacement.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::mount::MountFlags;
use smol_str::SmolStr;
use tokio::time::Instant;

use super::{
    find::{LEFT_OVER, VolumeMount, WantedMount, pick, volume_mounts},
    node::SubPathNode,
    reason::{CHANGED, GONE, NotReplaced, UNSUPPORTED, failed},
    replace::{Inside, deadline},
    source::Source,
};
use crate::processes::{FoundContainer, PodMounts};

/// Nothing is mounted in a user namespace.
const OWN_USERS: NotReplaced = NotReplaced::new(
    UNSUPPORTED,
    "the container has a user namespace of its own, in which it could make the mount writable",
);

/// What became of a mount: whether it was replaced.
pub(super) type Outcome = Result<bool, NotReplaced>;

/// The look at one container.
pub(super) struct ContainerLook {
    pub(super) node: Arc<SubPathNode>,
    pub(super) pod: PodMounts,
    pub(super) wanted: Vec<WantedMount>,
    /// The sets of the volumes that were written or verified.
    pub(super) sets: BTreeMap<SmolStr, SmolStr>,
    pub(super) container: FoundContainer,
}

impl ContainerLook {
    /// What became of each mount, in their order.
    pub(super) fn run(self) -> Vec<Outcome> {
        let until = deadline();
        let (namespace, picked) = match self.look(until) {
            Ok(looked) => looked,
            Err(kept) => return vec![Err(kept); self.wanted.len()],
        };
        // In serve mode, containers with the same mounts may be the same one.
        let mut done: BTreeMap<_, Outcome> = BTreeMap::new();
        let results = self.wanted.iter().zip(picked).map(|(mount, found)| {
            let place = (&mount.mount_path, &mount.volume, &mount.path);
            let update = || self.update(&namespace, until, &found?, mount);
            done.entry(place).or_insert_with(update).clone()
        });
        results.collect()
    }

    /// The mount namespace of the container, and what each mount is in it.
    fn look(
        &self,
        until: Instant,
    ) -> Result<(OwnedFd, Vec<Result<VolumeMount, NotReplaced>>), NotReplaced> {
        let processes = &self.node.processes;
        let namespace = processes
            .mount_namespace(&self.container.main)
            .map_err(failed("open the container's mount namespace"))?;
        // Checked after opening, so that the answer is about the namespace that is open. Root in a user namespace can make
        // a mount writable, unless the mount was copied into it from outside.
        if !processes.shares_users(self.container.main.pid) {
            return Err(OWN_USERS);
        }
        let places = processes
            .places()
            .map_err(failed::<io::Error>("read the mounts of this process"))?;
        let picked = Inside::run(namespace.as_fd(), until, |inside| {
            let look = || {
                volume_mounts(|| inside.table(), &places, &self.pod)
                    .map_err(failed("read the mounts of the container"))
            };
            let mut found = look()?;
            let mut uncovered = false;
            for mount in found.iter().flatten() {
                if mount.obstacle == Some(LEFT_OVER)
                    && self.wanted.iter().any(|wanted| mount.is_alike(wanted))
                {
                    // One that stays hinders this mount only.
                    uncovered |= inside.uncover(&mount.record).is_ok();
                }
            }
            if uncovered {
                found = look()?;
            }
            Ok(found.map(|mounts| {
                let wanted = self
                    .wanted
                    .iter()
                    .map(|mount| (mount, inside.leads_to(&mount.mount_path)));
                pick(&mounts, &wanted.collect::<Vec<_>>())
            }))
        })?;
        Ok((namespace, picked?))
    }

    /// Replaces the mount, if it does not show the present content; returns whether it was.
    fn update(
        &self,
        namespace: &OwnedFd,
        until: Instant,
        found: &VolumeMount,
        wanted: &WantedMount,
    ) -> Outcome {
        let directory = self
            .pod
            .volumes
            .get(&wanted.volume)
            .ok_or_else(|| NotReplaced::new(GONE, "the volume is gone"))?;
        let source = Source::of(directory, &wanted.path).map_err(failed("open the volume"))?;
        let verified = self.sets.get(&wanted.volume);
        if verified.is_some_and(|set| *set != source.set) {
            return Err(NotReplaced::new(
                CHANGED,
                "the volume has changed meanwhile",
            ));
        }
        let Some(file) = source.file else {
            let reason = match wanted.path.display() {
                _ if wanted.is_secret => "its key is gone".into(),
                path => format!("key {path} is gone").into(),
            };
            return Err(NotReplaced { kind: GONE, reason });
        };
        if found.set == Some(source.set) && !found.is_deleted {
            return Ok(false);
        }
        // It is never writable, whatever the old one is.
        let flags = found.record.flags | MountFlags::RDONLY;
        let new = self.node.stage.mount_of(&file, flags)?;
        if !self.node.processes.is_same(&self.container.main) {
            return Err(NotReplaced::new(CHANGED, "the container has ended"));
        }
        let enforces = (self.node.enforces_labels)();
        let replace = |inside: &Inside| inside.replace(&found.record, &new, enforces);
        Inside::run(namespace.as_fd(), until, replace)
    }
}
