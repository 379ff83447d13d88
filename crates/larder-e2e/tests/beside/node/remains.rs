//! Removes the remains of a killed containerd: running containers, their mounts and their control groups.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use larder_e2e::ScratchDir;

/// The directory of control groups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Number of attempts, and their pause, to remove a control group whose processes have just been killed.
const ATTEMPTS: (u32, Duration) = (100, Duration::from_millis(20));

/// The folder of a node whose kubelet and containerd have ended. Dropping it removes it and all containers.
#[derive(Debug)]
pub(super) struct Remains(pub(super) ScratchDir);

impl Drop for Remains {
    fn drop(&mut self) {
        let Ok(folder) = fs::canonicalize(self.0.path()) else {
            return;
        };
        let containers =
            entries(&folder.join("containerd/state/io.containerd.runtime.v2.task/k8s.io"));
        let ids: Vec<_> = containers
            .iter()
            .filter_map(|path| path.file_name()?.to_str())
            .collect();
        kill_all_of(&ids);
        self.0.unmount_all();
        let hierarchies = entries(Path::new(CGROUPS))
            .into_iter()
            .chain([PathBuf::from(CGROUPS)]);
        for parent in hierarchies.map(|hierarchy| hierarchy.join("k8s.io")) {
            for id in &ids {
                remove_cgroup(&parent.join(id));
            }
            // Fails when another node has containers.
            let _ = fs::remove_dir(&parent);
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// Kills the processes of these containers.
fn kill_all_of(ids: &[&str]) {
    for process in entries(Path::new("/proc")) {
        let cgroup = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        let id = process
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw)
            && ids.iter().any(|container| cgroup.contains(container))
        {
            // It may have ended by itself.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a drop cannot await, and the kernel notifies of no process that has left"
)]
fn remove_cgroup(path: &Path) {
    for _ in 0..ATTEMPTS.0 {
        if !path.exists() || fs::remove_dir(path).is_ok() {
            return;
        }
        thread::sleep(ATTEMPTS.1);
    }
}
