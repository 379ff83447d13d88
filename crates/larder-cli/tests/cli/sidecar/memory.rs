//! Memory: within a limit, as that of a container, and without one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use http::Request;
use larder_e2e::figures::Usage;
use rustix::process::Signal;
use serde_json::json;

use super::{
    Sidecar, World,
    application::{Application, reply},
};
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

impl World {
    async fn create_dashboards(&self, count: usize, bytes: usize) {
        let dashboard = "x".repeat(bytes);
        for number in 0..count {
            let object = json!({
                "metadata": {"name": format!("d{number}"), "labels": {"l": "1"}},
                "data": {format!("d{number}.json"): &dashboard},
            });
            self.create("ConfigMap", object).await;
        }
    }
}

/// A loose guard of the budgets of section 13: the rest of resident memory is code, which differs by build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_memory_budget_is_enough_for_what_is_not_code() {
    let world = World::new().await;
    world.create_dashboards(50, 20 << 10).await;
    let sidecar = Sidecar::start(world.sidecar(&[], &[("LABEL", "l")]));
    sidecar.until_ok("/healthz").await;
    let usage = Usage::of(sidecar.child.id()).unwrap();
    assert!(usage.anonymous < 5 << 20, "{usage:?}");
}

#[test]
fn executable_has_less_code_than_the_command() {
    let bytes = |path: &str| fs::metadata(path).unwrap().len();
    let command = bytes(env!("CARGO_BIN_EXE_larder"));
    assert!(bytes(env!("CARGO_BIN_EXE_larder-sidecar")) < command / 4 * 3);
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
    world.create_dashboards(300, 50 << 10).await;
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

// Of each object, 256 KiB of paths are kept; of the twenty, far less than an index that is read at the next start has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_objects_with_long_paths_cost_little_and_are_removed_after_a_restart() {
    let world = World::new().await;
    let long = format!("{}/", "d".repeat(250)).repeat(15);
    let keys: serde_json::Map<_, _> = (0..1000)
        .map(|key| (format!("k{key}"), json!("")))
        .collect();
    for number in 0..20 {
        let annotations = json!({"k8s-sidecar-target-directory": format!("{number}/{long}")});
        let labels = json!({"l": "1"});
        let name = format!("c{number}");
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        let object = json!({"metadata": metadata, "data": keys});
        world.create("ConfigMap", object).await;
    }
    let variables = [("LABEL", "l"), ("LOG_LEVEL", "ERROR")];
    let mut sidecar = Sidecar::start(world.sidecar(&[], &variables));
    sidecar.until_ok("/healthz").await;
    let usage = Usage::of(sidecar.child.id()).unwrap();
    assert!(usage.anonymous < 20 << 20, "{usage:?}");
    sidecar.signal(Signal::TERM);
    let files = || fs::read_dir(world.path().join("folder")).unwrap().count();
    assert_eq!(files(), 20);
    world
        .client
        .request::<serde_json::Value>(
            Request::delete("/api/v1/namespaces/default/configmaps")
                .body(Vec::new())
                .unwrap(),
        )
        .await
        .unwrap();
    let sidecar = Sidecar::start(world.sidecar(&[], &variables));
    sidecar.until_ok("/healthz").await;
    assert_eq!(files(), 0, "what the earlier start wrote is known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_a_url_is_written_while_it_is_read() {
    let world = World::new().await;
    let application = Application::start().await;
    application.answers(|_| Some(reply(200, &[], &vec![b'x'; 16 << 20])));
    let object = json!({
        "metadata": {"name": "u", "labels": {"l": "1"}},
        "data": {"large.url": application.url("/large")},
    });
    world.create("ConfigMap", object).await;
    let variables = [("LABEL", "l"), ("LARDER_URL_CREDENTIALS", "always")];
    let sidecar = Sidecar::start(world.sidecar(&[], &variables));
    let file = world.path().join("folder/large");
    until("the file", || file.exists()).await;
    assert_eq!(fs::metadata(file).unwrap().len(), 16 << 20);
    let status = fs::read_to_string(format!("/proc/{}/status", sidecar.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak
        .unwrap()
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .unwrap();
    let resident = Usage::of(sidecar.child.id()).unwrap().resident;
    assert!(
        peak * 1024 < resident + (4 << 20),
        "{peak} KiB of {resident}"
    );
}
