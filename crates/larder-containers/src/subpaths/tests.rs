//! Mounts of containers that are made by hand.

mod container;
mod fuse;
mod last_moment;
mod left_alone;
mod of_kubelet;
mod tables;

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use larder_transport::Backoff;
use prometheus_client::registry::Registry;
use rustix::mount::MountFlags;

use self::{
    container::{Container, KEY, Node, OVERLAY, may_contain},
    fuse::SilentFs,
};
use super::{
    NotReplaced, Stage,
    find::{UNKNOWN_LINK, VolumeMount, WantedMount, volume_mounts},
    node::SubPathNode,
    replace::{Inside, OTHER_MOUNT, deadline},
    source::Source,
    updates::{MountState, MountStatus, PodSubPaths},
};
use crate::{
    processes::{ContainerMounts, FoundProcess},
    targets::TargetQuery,
};

/// A pod with the container `web`, and its updates.
struct Pod {
    node: Node,
    web: Container,
    shared: Arc<SubPathNode>,
    sub_paths: PodSubPaths,
    query: TargetQuery,
}

/// Why a mount is left alone that the path in the specification does not lead to.
const ELSEWHERE: &str =
    "the container has no such mount there: it has unmounted, moved or covered it";

/// Mounts of `w` as a whole.
const WHOLE: &str = "mkdir -p root/w; mount --bind agent/pods/1/volumes/w root/w";

impl Pod {
    /// Its container mounts the key of `v`, which is `one`. `None` where this process may not make containers.
    fn new() -> Option<Self> {
        Self::with(KEY, &[("/etc/app.conf", "key")])
    }

    /// Its container has `mounts`, among them these paths of `v`.
    fn with(mounts: &str, wanted: &[(&str, &str)]) -> Option<Self> {
        let node = may_contain().then(Node::new)?;
        node.write("v", &[("key", "one")]);
        Some(Self::of(node, mounts, wanted))
    }

    fn of(node: Node, mounts: &str, wanted: &[(&str, &str)]) -> Self {
        let mut own: Vec<_> = wanted.iter().map(|(at, _)| ("v", *at)).collect();
        own.extend(mounts.contains(WHOLE).then_some(("w", "/w")));
        let query = TargetQuery {
            mounts: node.mounts(&own),
            ..TargetQuery::default()
        };
        let second = Duration::from_secs(1);
        let mut sub_paths = PodSubPaths::new("n", Backoff::new(second, 8 * second));
        let wanted = wanted.iter();
        let wanted =
            wanted.map(|(at, path)| WantedMount::new("web", at, "v", path, false).unwrap());
        sub_paths.add_mounts("v", wanted.collect());
        Self {
            web: Container::start(&node, mounts),
            shared: Arc::new(SubPathNode::new(node.processes(), &mut Registry::default())),
            sub_paths,
            query,
            node,
        }
    }

    /// The volume gets another set, with this key.
    fn write(&self, text: &str) {
        self.node.write("v", &[("key", text)]);
    }

    /// What the container sees.
    fn sees(&mut self) -> String {
        self.web.run("cat /etc/app.conf")
    }

    /// Updates all; the mounts of which an event says that they were not updated.
    async fn update(&mut self) -> Vec<MountStatus> {
        self.sub_paths.all_due();
        let (query, now) = (self.query.clone(), Timestamp::UNIX_EPOCH);
        let mut said = self.sub_paths.update(&self.shared, query, now).await;
        said.retain(|status| status.state != MountState::Live);
        said
    }

    /// The numbers of mounts that so many updates report.
    async fn reported(&mut self, updates: usize) -> Vec<usize> {
        let mut events = Vec::new();
        for _ in 0..updates {
            events.push(self.update().await.len());
        }
        events
    }

    /// The state of the first mount after another update.
    async fn state(&mut self) -> MountState {
        self.update().await;
        self.sub_paths.statuses()[0].state.clone()
    }

    async fn reason(&mut self) -> String {
        match self.state().await {
            MountState::Pinned(reason) => reason,
            state => format!("{state:?}"),
        }
    }

    /// After another update, the container sees the present content.
    async fn check_live(&mut self, text: &str) {
        assert_eq!(self.state().await, MountState::Live);
        assert_eq!(self.sees(), text);
    }

    /// The main process of the container.
    async fn main(&self) -> FoundProcess {
        let processes = self.node.processes();
        let found = processes.containers(&self.query.mounts, None).await;
        found.unwrap().remove(0).main
    }

    async fn namespace(&self) -> OwnedFd {
        let main = self.main().await;
        self.node.processes().mount_namespace(&main).unwrap()
    }

    /// Runs `work` in the container, with the mount of the key and a new one of this file.
    async fn inside<T: Send>(
        &mut self,
        (volume, path): (&str, &str),
        work: impl FnOnce(&Inside, &VolumeMount, &OwnedFd, &mut Container) -> Result<T, NotReplaced>
        + Send,
    ) -> Result<T, NotReplaced> {
        let namespace = self.namespace().await;
        let places = self.node.processes().places().unwrap();
        let source = Source::of(&self.node.volume(volume), Path::new(path)).unwrap();
        let new = Stage::default().mount_of(&source.file.unwrap(), MountFlags::RDONLY)?;
        let (mounts, web) = (&self.query.mounts, &mut self.web);
        Inside::run(namespace.as_fd(), deadline(), |inside| {
            let found = volume_mounts(|| inside.table(), &places, mounts).unwrap();
            let of_key = |mount: &&VolumeMount| mount.record.mount_point.ends_with("app.conf");
            work(
                inside,
                found.unwrap().iter().find(of_key).unwrap(),
                &new,
                web,
            )
        })
    }
}

/// Opens the file in a loop until it has the text `end`. Prints each content that it sees for the first time.
const READER: &str = r#"perl -e '$| = 1; my $last = "";
    while ($last ne "end") {
        open(my $file, "<", "/etc/app.conf") or die "absent: $!\n"; my $text = do { local $/; <$file> };
        my ($number) = $text =~ /^(\w+)/ or die "empty\n";
        die "torn\n" if $text ne "$number " x 2000;
        print "$number\n" if $number ne $last; $last = $number
    }' 2>&1 &"#;

// subpath 1
#[tokio::test]
async fn reader_sees_each_content_whole_and_at_every_moment() {
    let Some(mut pod) = Pod::new() else { return };
    let text = |word: &str| format!("{word} ").repeat(2000);
    pod.write(&text("first"));
    assert_eq!(pod.state().await, MountState::Live);
    let early = pod.web.run(READER);
    let first = if early.is_empty() {
        pod.web.line()
    } else {
        early
    };
    assert_eq!(first, "first");
    let words = (2..11).map(|number| format!("n{number}"));
    for word in words.chain(["end".to_owned()]) {
        pod.write(&text(&word));
        assert_eq!(pod.state().await, MountState::Live);
        assert_eq!(pod.web.line(), word);
    }
    assert_eq!(pod.web.mounts_at("/etc/app.conf").len(), 1);
}

// subpath 3
#[tokio::test]
async fn secret_in_memory_is_updated() {
    if !may_contain() {
        return;
    }
    let node = Node::with_tmpfs();
    node.write("v", &[("key", "one")]);
    let mut pod = Pod::of(node, KEY, &[("/etc/app.conf", "key")]);
    pod.write("two");
    assert_eq!(pod.sees(), "one");
    pod.check_live("two").await;
}

const DIRECTORY: &str = "mkdir root/etc/d; mount -o ro --bind agent/pods/1/volumes/v/d root/etc/d";

// subpath 4
#[tokio::test]
async fn directory_is_updated() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", &[("d/a", "one")]);
    let mut pod = Pod::of(node, DIRECTORY, &[("/etc/d", "..data/d/")]);
    pod.node.write("v", &[("d/a", "two"), ("d/b", "new")]);
    assert_eq!(pod.state().await, MountState::Live);
    assert_eq!(pod.web.run("cat /etc/d/a /etc/d/b"), "twonew");
    // A file in its place: neither takes the place of the other.
    fs::remove_file(pod.node.volume("v").join("d")).unwrap();
    pod.node.write("v", &[("d", "file")]);
    assert_eq!(pod.reason().await, "it is of another type now");
}

// subpath 4: the set itself, of which a program sees plain files
#[tokio::test]
async fn set_itself_is_updated_as_a_directory() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", &[("a", "one")]);
    let mounts = DIRECTORY.replace("v/d", "v/..data");
    let mut pod = Pod::of(node, &mounts, &[("/etc/d", "..data")]);
    for (number, text) in ["two", "three"].into_iter().enumerate() {
        let other = format!("other-{number}");
        pod.node.write("v", &[("a", text), (&other, "")]);
        assert_eq!(pod.state().await, MountState::Live);
        assert_eq!(pod.web.run("cat /etc/d/a"), text);
        assert_eq!(pod.web.run("ls /etc/d"), format!("a\n{other}"));
    }
}

/// A mount of the key whose path in the specification is `/var/run/app.conf`, with `/var/run` a link to `/run`.
const BELOW_LINK: &str =
    "touch root/run/app.conf; mount --bind agent/pods/1/volumes/v/key root/run/app.conf
    mkdir -p root/w; mount --bind agent/pods/1/volumes/w root/w";

// subpath 8
#[tokio::test]
async fn link_in_the_overlay_that_a_runtime_has_mounted_is_followed_and_in_an_own_one_not() {
    if !may_contain() {
        return;
    }
    let node = Node::with_overlay();
    node.write("v", &[("key", "one")]);
    let mut pod = Pod::of(node, BELOW_LINK, &[("/var/run/app.conf", "key")]);
    for (root, expected) in [("true", None), (OVERLAY, Some(UNKNOWN_LINK))] {
        pod.web = Container::start_on(&pod.node, BELOW_LINK, &["-m"], root);
        let at_start = pod.web.run("cat /var/run/app.conf");
        pod.write("next");
        let (state, sees) = match expected {
            None => (MountState::Live, "next"),
            Some(kept) => (MountState::Pinned(kept.to_string()), &*at_start),
        };
        assert_eq!(pod.state().await, state);
        assert_eq!(pod.web.run("cat /run/app.conf"), sees);
        pod.write("one");
    }
}

// subpath 12: with a file system over FUSE that nobody serves, on the way to the mount
#[tokio::test]
async fn file_system_that_never_answers_is_not_asked() {
    for (at, expected) in [("/etc", Some(UNKNOWN_LINK)), ("/var", None)] {
        let Some(mut pod) = Pod::new() else { return };
        let silent = format!(
            "exec 9<>/dev/fuse && mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 none {at} 2>&1"
        );
        let refused = pod.web.run(&silent);
        if !refused.is_empty() {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must have FUSE: {refused}"
            );
            return;
        }
        pod.write("two");
        // It would be told that the look does not end, after ten seconds.
        let expected = expected.map_or(MountState::Live, |kept| {
            MountState::Pinned(kept.to_string())
        });
        assert_eq!(pod.state().await, expected);
    }
}

/// Mounts the key of `v` on a file of the file system `data`, which is also at another place.
const ON_FUSE: &str =
    "mkdir root/data root/other; mount --bind data root/data; mount --bind data root/other
    mount --bind agent/pods/1/volumes/v/key root/data/app.conf
    mount -o remount,bind,ro root/data/app.conf";

// subpath 12: the container holds the lock of the file that the key is mounted on, by a file system over FUSE that never
// answers. Neither a thread nor a process that waits for it can be ended.
#[tokio::test]
async fn look_that_waits_for_a_lock_is_its_pods_alone_and_is_named_when_that_goes() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", &[("key", "one")]);
    let Some(silent) = SilentFs::mount(&node.folder().join("data")) else {
        return;
    };
    let mut pod = Pod::of(node, ON_FUSE, &[("/data/app.conf", "key")]);
    assert_eq!(pod.state().await, MountState::Live);
    pod.web.run("chmod 600 /other/app.conf &");
    silent.until_changed();
    pod.write("two");
    // No look ends later: the time that it may take passes at once.
    tokio::time::pause();
    let reason = pod.reason().await;
    tokio::time::resume();
    let expected = "a look at the mounts of the container does not end, since 1970-01-01T00:00:00Z";
    assert!(reason.starts_with(expected), "{reason}");
    // The pod has one such look.
    assert_eq!(pod.reason().await, reason);
    let looks = &pod.shared.looks;
    assert_eq!(
        looks.run("n", Duration::from_mins(1), || 1).await.unwrap(),
        1
    );
    assert_eq!(pod.shared.problem(), None);
    // The pod goes.
    let second = Duration::from_secs(1);
    pod.sub_paths = PodSubPaths::new("n", Backoff::new(second, second));
    let problem = pod.shared.problem().unwrap();
    assert!(problem.contains("(1 in namespace n)"), "{problem}");
    drop(silent);
    while pod.shared.problem().is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn mount_waits_from_a_change_until_its_container_was_looked_at() {
    let Some(mut pod) = Pod::new() else { return };
    assert_eq!(pod.state().await, MountState::Live);
    let at = |second| Timestamp::from_second(second).unwrap();
    pod.write("two");
    pod.sub_paths.written("w", None, Some(at(1)));
    let state = |pod: &Pod| pod.sub_paths.statuses()[0].state.clone();
    assert_eq!(state(&pod), MountState::Live);
    for second in [2, 3] {
        pod.sub_paths.written("v", None, Some(at(second)));
        assert_eq!(state(&pod), MountState::Waiting(at(2)));
    }
    assert!(!pod.sub_paths.is_live("web", "/etc/app.conf"));
    pod.check_live("two").await;
    // Another container runs.
    pod.sub_paths.running(["id".into()].into_iter(), at(4));
    assert_eq!(state(&pod), MountState::Waiting(at(4)));
    pod.check_live("two").await;
}

#[tokio::test]
async fn change_that_removed_the_key_is_over_when_the_next_one_comes() {
    let Some(mut pod) = Pod::new() else { return };
    let minute = Duration::from_mins(1);
    let now = tokio::time::Instant::now();
    pod.sub_paths.changed("v", now.checked_sub(minute).unwrap());
    pod.node.write("v", &[("other", "")]);
    assert_eq!(pod.reason().await, "key key is gone");
    pod.sub_paths.changed("v", tokio::time::Instant::now());
    pod.write("two");
    pod.check_live("two").await;
    let took = pod.sub_paths.statuses()[0].took.unwrap();
    assert!(took < minute, "{took:?}");
}

#[tokio::test]
async fn reason_is_reported_once_whatever_fails_in_between() {
    let Some(mut pod) = Pod::new() else { return };
    fs::remove_file(pod.node.volume("v").join("key")).unwrap();
    pod.node.write("v", &[("key/d", "")]);
    assert_eq!(pod.reported(4).await, [0, 0, 1, 0]);
    for _ in 0..2 {
        pod.sub_paths.written("v", Some("..other"), None);
        assert_eq!(pod.reason().await, "the volume has changed meanwhile");
        let set = fs::read_link(pod.node.volume("v").join("..data")).unwrap();
        pod.sub_paths.written("v", set.to_str(), None);
        assert_eq!(pod.reported(4).await, [0; 4]);
    }
}

// subpath 8
// subpath 9
#[tokio::test]
async fn mount_point_below_a_link_or_another_volume_is_found() {
    let mounts = format!(
        "{WHOLE}; mkdir -p root/run/x; touch root/run/x/app.conf agent/pods/1/volumes/w/own
        mount --bind agent/pods/1/volumes/v/key root/w/own
        mount --bind agent/pods/1/volumes/v/key root/run/x/app.conf"
    );
    let wanted = [("/var/run/x/app.conf", "key"), ("/w/own", "key")];
    let Some(mut pod) = Pod::with(&mounts, &wanted) else {
        return;
    };
    for text in ["2", "3"] {
        pod.write(text);
        assert!(pod.update().await.is_empty());
        let mut states = pod.sub_paths.statuses().iter();
        let is_live = states.all(|status| status.state == MountState::Live);
        assert!(is_live, "{:?}", pod.sub_paths);
        let both = pod.web.run("cat /run/x/app.conf /w/own");
        assert_eq!(both, text.repeat(2));
        assert_eq!(pod.web.run("cat /w/whole"), "w");
    }
}

// subpath 10
#[tokio::test]
async fn key_that_is_gone_keeps_its_content_until_it_is_back() {
    let Some(mut pod) = Pod::new() else { return };
    pod.node.write("v", &[("other", "")]);
    assert_eq!(pod.reason().await, "key key is gone");
    assert_eq!(pod.sub_paths.retry_at(), None);
    assert_eq!(pod.sees(), "one");
    pod.write("three");
    pod.check_live("three").await;
    // One that a Secret has chosen is not named.
    let second = Duration::from_secs(1);
    pod.sub_paths = PodSubPaths::new("n", Backoff::new(second, second));
    let chosen = WantedMount::new("web", "/etc/app.conf", "v", "key", true);
    pod.sub_paths.add_mounts("v", vec![chosen.unwrap()]);
    pod.node.write("v", &[("other", "")]);
    assert_eq!(pod.reason().await, "its key is gone");
}

// subpath 11
#[tokio::test]
async fn directory_of_a_missing_key_is_replaced_by_a_directory_only() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", &[("other", "")]);
    // The kubelet makes a directory beside the sets.
    fs::create_dir(node.volume("v").join("d")).unwrap();
    let mounts = DIRECTORY.replace("-o ro ", "");
    let mut pod = Pod::of(node, &mounts, &[("/etc/d", "d")]);
    assert_eq!(pod.reason().await, "key d is gone");
    pod.node.write("v", &[("d", "file")]);
    assert_eq!(pod.reason().await, "it is of another type now");
    pod.node.write("v", &[("d/a", "there")]);
    assert_eq!(pod.state().await, MountState::Live);
    assert_eq!(pod.web.run("cat /etc/d/a"), "there");
}

// subpath 14
#[tokio::test]
async fn container_that_has_ended_is_not_entered() {
    let Some(mut pod) = Pod::new() else { return };
    assert_eq!(pod.state().await, MountState::Live);
    let (processes, main) = (pod.node.processes(), pod.main().await);
    assert!(processes.mount_namespace(&main).is_ok());
    pod.web.end();
    assert!(processes.mount_namespace(&main).is_err());
    // The number belongs to another process: this one, whose start is another.
    let mut reused = main.clone();
    reused.pid = std::process::id().cast_signed();
    assert!(processes.mount_namespace(&reused).is_err());
    pod.write("two");
    assert_eq!(pod.state().await, MountState::Unknown);
}

// subpath 14
#[tokio::test]
async fn number_of_a_container_that_is_used_again_leads_into_no_other() {
    let Some(mut pod) = Pod::new() else { return };
    let other = Node::new();
    other.write("v", &[("key", "one")]);
    assert_eq!(pod.state().await, MountState::Live);
    let (main, pid) = (pod.main().await, pod.web.pid());
    pod.web.end();
    let set_next = || fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string());
    if set_next().is_err() {
        // Not allowed here, or in a container.
        return;
    }
    // Other processes start meanwhile.
    let reused = (0..1000).find_map(|_| {
        set_next().ok()?;
        let next = Container::start(&other, KEY);
        (next.pid() == pid).then_some(next)
    });
    let mut reused = reused.unwrap();
    assert!(pod.node.processes().mount_namespace(&main).is_err());
    let before = reused.mounts_at("/etc/app.conf");
    pod.write("two");
    assert_eq!(pod.state().await, MountState::Unknown);
    assert_eq!(reused.mounts_at("/etc/app.conf"), before);
    assert_eq!(reused.run("cat /etc/app.conf"), "one");
}

#[tokio::test]
async fn pass_that_is_dropped_is_made_again() {
    let Some(mut pod) = Pod::new() else { return };
    pod.write("two");
    tokio::select! {
        biased;
        _ = pod.update() => panic!("it waits for a search"),
        () = std::future::ready(()) => {}
    }
    assert!(pod.sub_paths.is_due());
    let (query, now) = (pod.query.clone(), Timestamp::UNIX_EPOCH);
    pod.sub_paths.update(&pod.shared, query, now).await;
    assert!(!pod.sub_paths.is_due());
    assert_eq!(pod.sub_paths.statuses()[0].state, MountState::Live);
    assert_eq!(pod.sees(), "two");
}

// subpath 16
#[tokio::test]
async fn without_the_capabilities_the_reason_names_them() {
    let Some(mut pod) = Pod::new() else { return };
    pod.write("two");
    // The threads that a thread starts have its capabilities.
    let reason = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective
                .remove(rustix::thread::CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(pod.reason())
        });
        unprivileged.join().unwrap()
    });
    let expected = "larder is not permitted to enter the container's mount namespace: this needs CAP_SYS_ADMIN, \
                    CAP_SYS_CHROOT and CAP_SYS_PTRACE, and the PID namespace of the host";
    assert_eq!(reason, expected);
    assert_eq!(pod.sees(), "one");
    assert_eq!(pod.state().await, MountState::Live);
}

// subpath 21: a new mount could be made writable there, which those that came with the namespace cannot
#[tokio::test]
async fn container_with_users_of_its_own_keeps_its_mount() {
    let Some(mut pod) = Pod::new() else { return };
    let namespaces = ["--user", "--map-root-user", "--mount"];
    pod.web = Container::start_with(&pod.node, KEY, &namespaces);
    pod.write("two");
    let reason = pod.reason().await;
    assert!(reason.contains("user namespace of its own"), "{reason}");
    assert_eq!(pod.sees(), "one");
}

// subpath 22
#[tokio::test]
async fn new_mount_is_read_only_private_and_has_the_flags_of_the_old_one() {
    let options = |web: &Container| {
        let lines = web.mounts_at("/etc/app.conf");
        assert_eq!(lines.len(), 1, "{lines:?}");
        let fields: Vec<_> = lines[0].split(' ').collect();
        let flags: BTreeSet<_> = fields[5].split(',').map(str::to_owned).collect();
        // No optional field: it is neither shared nor anyone's follower.
        (flags, fields[6].to_owned())
    };
    let restricted = KEY.replace("noexec", "noexec,nosymfollow");
    let Some(mut pod) = Pod::with(&restricted, &[("/etc/app.conf", "key")]) else {
        return;
    };
    pod.write("two");
    assert_eq!(pod.state().await, MountState::Live);
    let (flags, tags) = options(&pod.web);
    for flag in ["ro", "nosuid", "nodev", "noexec", "nosymfollow"] {
        assert!(flags.contains(flag), "{flags:?}");
    }
    assert_eq!(tags, "-");
    let written = pod.web.run("echo x > /etc/app.conf || echo refused");
    assert_ne!(written, "");
    // Also where the old one was writable.
    let writable = KEY.lines().next().unwrap();
    pod.web = Container::start(&pod.node, writable);
    pod.write("three");
    assert_eq!(pod.state().await, MountState::Live);
    assert!(options(&pod.web).0.contains("ro"));
    assert_eq!(pod.sees(), "three");
}

// subpath 25
#[tokio::test]
async fn file_with_another_label_is_not_shown_where_labels_are_enforced() {
    if !may_contain() {
        return;
    }
    let node = Node::with_tmpfs();
    let label = |node: &Node, text: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        let path = node.volume("v").join("..data/key");
        let label = format!("system_u:object_r:{text}:s0");
        rustix::fs::setxattr(path, "security.selinux", label.as_bytes(), flags)
    };
    node.write("v", &[("key", "one")]);
    if label(&node, "a").is_err() {
        // A file system without labels.
        return;
    }
    let mut pod = Pod::of(node, KEY, &[("/etc/app.conf", "key")]);
    let other = MountState::Pinned("the new file has another SELinux label".to_owned());
    let live = MountState::Live;
    for (content, text, enforces, state, sees) in [
        ("two", "b", true, other, "one"),
        ("three", "a", true, live.clone(), "three"),
        ("four", "b", false, live, "four"),
    ] {
        let shared = Arc::get_mut(&mut pod.shared).unwrap();
        shared.enforces_labels = if enforces { || true } else { || false };
        pod.write(content);
        label(&pod.node, text).unwrap();
        assert_eq!(pod.state().await, state);
        assert_eq!(pod.sees(), sees);
    }
}

// subpath 7
#[tokio::test]
async fn of_two_containers_the_one_that_was_restarted_is_left_as_its_runtime_mounted_it() {
    let Some(mut pod) = Pod::new() else { return };
    let side = KEY.replace("app.conf", "side.conf");
    let containers = &mut pod.query.mounts.containers;
    containers.push(ContainerMounts {
        name: "side".into(),
        mounts: vec![("v".into(), "/etc/side.conf".into())],
    });
    let wanted = WantedMount::new("side", "/etc/side.conf", "v", "key", false).unwrap();
    pod.sub_paths.add_mounts("v", vec![wanted]);
    let beside = Container::start(&pod.node, &side);
    pod.write("two");
    drop(beside);
    let mut beside = Container::start(&pod.node, &side);
    let before = beside.mounts_at("/etc/side.conf");
    assert!(pod.update().await.is_empty());
    let states = pod.sub_paths.statuses().iter();
    let states: Vec<_> = states
        .map(|status| (&status.state, status.replaced.is_some()))
        .collect();
    // The runtime has mounted the present file.
    let expected = [(&MountState::Live, true), (&MountState::Live, false)];
    assert_eq!(states, expected);
    assert_eq!(beside.mounts_at("/etc/side.conf"), before);
    assert_eq!(pod.sees(), "two");
    pod.write("three");
    pod.update().await;
    assert_eq!(pod.sees(), "three");
    assert_eq!(beside.run("cat /etc/side.conf"), "three");
}

#[tokio::test]
async fn mounts_that_take_too_much_to_read_are_a_reason_and_not_a_wait() {
    let Some(pod) = Pod::new() else { return };
    let namespace = pod.namespace().await;
    let places = pod.node.processes().places().unwrap();
    let mounts = &pod.query.mounts;
    let look = |until| {
        let look = |inside: &Inside| Ok(volume_mounts(|| inside.table(), &places, mounts));
        Inside::run(namespace.as_fd(), until, look).unwrap()
    };
    let late = look(tokio::time::Instant::now());
    assert_eq!(late.unwrap_err().to_string(), "that takes too long");
    assert_eq!(look(deadline()).unwrap().unwrap().len(), 1);
}

#[test]
fn mounts_of_this_process_that_come_and_go_are_noticed() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    let processes = node.processes();
    let volume = node.volume("v");
    let volume = volume.to_str().unwrap();
    let is_place = || format!("{:?}", processes.places().unwrap()).contains(volume);
    assert!(!is_place());
    container::run("mount", &["-t", "tmpfs", "none", volume]);
    assert!(is_place() && is_place());
    container::run("umount", &[volume]);
    assert!(!is_place());
}
