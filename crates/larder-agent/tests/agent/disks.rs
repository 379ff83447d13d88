//! Disks that take nothing: a volume says so, keeps what it has, and heals.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use larder_agent::status::Phase;
use rustix::{
    mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount},
    process::geteuid,
};

use crate::harness::{Node, config_map, pod};

/// A small disk for the directories of a node's pods.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// A disk of 256 KiB and 64 files and directories; `None` where mounting is not permitted.
    pub(crate) fn mount(path: &Path) -> Option<Self> {
        let options = c"size=256k,nr_inodes=64,mode=0755";
        if let Err(error) = mount("tmpfs", path, "tmpfs", MountFlags::empty(), Some(options)) {
            let is_ci = std::env::var_os("CI").is_some();
            assert!(
                !(is_ci && geteuid().is_root()),
                "CI must be able to mount: {error}"
            );
            let said = format!(
                "SKIPPED: no disk of its own, as this process may not mount a tmpfs ({error})\n"
            );
            // Straight to the stream, which no test runner holds back.
            io::stderr().write_all(said.as_bytes()).unwrap();
            return None;
        }
        Some(Self(path.to_owned()))
    }

    fn set_read_only(&self, read_only: bool) {
        let flags = if read_only {
            MountFlags::RDONLY
        } else {
            MountFlags::empty()
        };
        mount_remount(&self.0, flags, c"").unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

async fn until_disk_fails(node: &Node, words: &str) -> String {
    node.wait("the volume to fail", |node| {
        let delivery = node.volume("web", "cfg")?.delivery;
        let fails = delivery.phase == Phase::Failing;
        (fails && delivery.reason.contains(words)).then_some(delivery.reason)
    })
    .await
}

/// A node whose pods are on a disk of their own, with a volume that holds `a`: `1`.
async fn node_on_disk() -> Option<(Node, Disk)> {
    let mut node = Node::prepare();
    let pods = node.path().join("pods");
    fs::create_dir(&pods).unwrap();
    let disk = Disk::mount(&pods)?;
    // Attempts are many in a test, whose time is not to be spent in pauses.
    node.sync_frequency = Some(Duration::from_millis(200));
    node.run();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "1")]).await;
    until_pass_is_over(&node).await;
    Some((node, disk))
}

/// Waits until the pass that has swapped the volume is over: a reader sees the new set before that, while the agent still
/// writes to the disk. Then exactly one set is left.
async fn until_pass_is_over(node: &Node) {
    node.wait("the pod to be delivered, with one set", |node| {
        let pod = node.pod("web")?;
        (pod.delivery.phase == Phase::Delivered && sets(node) == 1).then_some(())
    })
    .await;
}

/// The content of the volume's directory besides its links: one set.
fn sets(node: &Node) -> usize {
    let path = node.volume_path("web", "cfg").unwrap();
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .count()
}

#[tokio::test]
async fn a_read_only_disk_leaves_the_old_files_and_heals() {
    let Some((mut node, disk)) = node_on_disk().await else {
        return;
    };
    disk.set_read_only(true);
    node.apply(&config_map("app", &[("a", "2"), ("b", "2")]));
    let reason = until_disk_fails(&node, "Read-only file system").await;
    // The step and the path are named.
    let path = node.volume_path("web", "cfg").unwrap();
    assert!(reason.contains(path.to_str().unwrap()), "{reason}");
    node.until("web", "cfg", &[("a", "1")]).await;
    disk.set_read_only(false);
    node.until("web", "cfg", &[("a", "2"), ("b", "2")]).await;
    until_pass_is_over(&node).await;
    node.stop().await;
}

#[tokio::test]
async fn a_full_disk_leaves_the_old_files_and_heals() {
    let Some((mut node, disk)) = node_on_disk().await else {
        return;
    };
    let big = "x".repeat(300 << 10);
    node.apply(&config_map("app", &[("a", "2"), ("big", &big)]));
    until_disk_fails(&node, "No space left on device").await;
    node.until("web", "cfg", &[("a", "1")]).await;
    // What was begun is not left behind, but a later attempt may be under way.
    node.wait("the old set alone", |node| (sets(node) == 1).then_some(()))
        .await;
    // The object shrinks, so the disk has room for it.
    node.apply(&config_map("app", &[("a", "3")]));
    node.until("web", "cfg", &[("a", "3")]).await;
    // Nothing is removed later, which would make room again.
    until_pass_is_over(&node).await;
    // Full to the last byte: not even a small file finds its place.
    let filler = disk.0.join("filler");
    let mut size = 256 << 10;
    while size > 0 && fs::write(&filler, vec![0; size]).is_err() {
        size -= 4096;
    }
    let some = "y".repeat(20 << 10);
    node.apply(&config_map("app", &[("a", "4"), ("b", &some)]));
    until_disk_fails(&node, "No space left on device").await;
    node.until("web", "cfg", &[("a", "3")]).await;
    fs::remove_file(filler).unwrap();
    node.until("web", "cfg", &[("a", "4"), ("b", &some)]).await;
    until_pass_is_over(&node).await;
    node.stop().await;
}

// Attack: many empty files take the disk's last inodes, while it has room for bytes.
#[tokio::test]
async fn a_disk_without_inodes_leaves_the_old_files_and_heals() {
    let Some((mut node, disk)) = node_on_disk().await else {
        return;
    };
    let fillers = (0..).map(|number| disk.0.join(format!("filler-{number}")));
    let fillers: Vec<_> = fillers
        .take_while(|filler| fs::write(filler, "").is_ok())
        .collect();
    node.apply(&config_map("app", &[("a", "2"), ("b", "2")]));
    let reason = until_disk_fails(&node, "No space left on device").await;
    let path = node.volume_path("web", "cfg").unwrap();
    assert!(reason.contains(path.to_str().unwrap()), "{reason}");
    node.until("web", "cfg", &[("a", "1")]).await;
    // With a few more, a set is begun, and taken back.
    for filler in &fillers[..2] {
        fs::remove_file(filler).unwrap();
    }
    until_disk_fails(&node, "No space left on device").await;
    node.until("web", "cfg", &[("a", "1")]).await;
    node.wait("the old set alone", |node| (sets(node) == 1).then_some(()))
        .await;
    for filler in &fillers[2..] {
        fs::remove_file(filler).unwrap();
    }
    node.until("web", "cfg", &[("a", "2"), ("b", "2")]).await;
    until_pass_is_over(&node).await;
    node.stop().await;
}
