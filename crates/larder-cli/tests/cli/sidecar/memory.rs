//! A limit of memory, as that of a container.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::{Sidecar, World};
use crate::run::until;

const LIMIT: &str = "25165824";

/// A control group with a limit of memory; it goes with the test.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None` where none can be made, which takes root and a hierarchy with memory.
    fn create() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("larder-test-{}", std::process::id());
        let (parent, limit) = if root.join("memory").is_dir() {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            (root.to_owned(), "memory.max")
        };
        let group = Self(parent.join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(limit), LIMIT).ok()?;
        Some(group)
    }

    /// `command` as a process of the group from its first page on.
    fn run(&self, command: &Command) -> Command {
        let script = r#"echo $$ > "$0" && exec "$@""#;
        let mut inside = Command::new("/bin/sh");
        inside
            .args(["-c", script])
            .arg(self.0.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(command.get_current_dir().unwrap())
            .env_clear()
            .envs(
                command
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
        inside
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

// sidecar 60
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_dashboards_are_written_within_a_limit_of_24_mib() {
    let Some(group) = MemoryGroup::create() else {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must be able to limit memory");
        return;
    };
    let world = World::new().await;
    let dashboard = "x".repeat(50 << 10);
    for number in 0..300 {
        let object = json!({
            "metadata": {"name": format!("d{number}"), "labels": {"l": "1"}},
            "data": {format!("d{number}.json"): &dashboard},
        });
        world.create("ConfigMap", object).await;
    }
    let command = world.sidecar(&[], &[("LABEL", "l"), ("LOG_LEVEL", "ERROR")]);
    let mut sidecar = Sidecar::start(group.run(&command));
    until("readiness, or a kill", || {
        let has_ended = sidecar.child.try_wait().unwrap().is_some();
        has_ended
            || sidecar
                .ask("/healthz")
                .is_some_and(|(status, _)| status == "200")
    })
    .await;
    assert_eq!(sidecar.child.try_wait().unwrap(), None, "it is not killed");
    let files = fs::read_dir(world.path().join("folder")).unwrap();
    assert_eq!(files.count(), 300);
}
