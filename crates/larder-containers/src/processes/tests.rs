//! Searches in fake process directories, and among the processes of this machine.

mod machine;
mod made_up;

use super::*;

/// The containers that one search finds.
fn search(processes: &Processes, mounts: &PodMounts) -> Vec<FoundContainer> {
    processes.containers_mounting(&processes.search().unwrap(), mounts)
}

/// Their main processes.
fn mains(processes: &Processes, mounts: &PodMounts) -> Vec<i32> {
    let found = search(processes, mounts);
    found.iter().map(|container| container.main.pid).collect()
}
