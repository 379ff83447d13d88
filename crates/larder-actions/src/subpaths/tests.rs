//! Mounts of containers that are made by hand.

mod container;
mod tables;

use std::{fs, sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_transport::Backoff;
use prometheus_client::registry::Registry;
use rustix::fs::inotify;

use self::container::{Container, KEY, Node, may_contain};
use super::{
    find::{WantedMount, volume_mounts},
    replace::Inside,
    updates::{MountState, MountStatus, PodSubPaths, SubPathNode},
};
use crate::targets::TargetQuery;

/// The updates of a pod whose container `web` mounts the key of `v`.
struct Updates {
    shared: Arc<SubPathNode>,
    pod: PodSubPaths,
    query: TargetQuery,
}

impl Updates {
    fn new(node: &Node) -> Self {
        Self::of(node, &[("/etc/app.conf", "key")], &[])
    }

    /// With these paths of `v`, and further mounts.
    fn of(node: &Node, wanted: &[(&str, &str)], others: &[(&str, &str)]) -> Self {
        let own = wanted
            .iter()
            .map(|(at, _)| ("v", *at))
            .chain(others.iter().copied());
        let query = TargetQuery {
            mounts: node.mounts(&own.collect::<Vec<_>>()),
            ..TargetQuery::default()
        };
        let wanted = wanted
            .iter()
            .map(|(at, path)| WantedMount::new("web", at, "v", path).unwrap());
        let mut pod =
            PodSubPaths::new(Backoff::new(Duration::from_secs(1), Duration::from_secs(8)));
        pod.add_mounts("v", wanted.collect());
        Self {
            shared: Arc::new(SubPathNode::new(node.processes(), &mut Registry::default())),
            pod,
            query,
        }
    }

    /// Updates all; the mounts of which an event says that they were not updated.
    async fn update(&mut self) -> Vec<MountStatus> {
        self.pod.all_due();
        self.pod
            .update(&self.shared, self.query.clone(), Timestamp::UNIX_EPOCH)
            .await
    }

    /// The state of the only mount after another update.
    async fn state(&mut self) -> MountState {
        self.update().await;
        self.pod.statuses()[0].state.clone()
    }

    async fn reason(&mut self) -> String {
        match self.state().await {
            MountState::Pinned(reason) => reason,
            state => format!("{state:?}"),
        }
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
    if !may_contain() {
        return;
    }
    let text = |word: &str| format!("{word} ").repeat(2000);
    let node = Node::new();
    node.write("v", 1, &[("key", &text("first"))]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    let early = web.run(READER);
    let first = if early.is_empty() { web.line() } else { early };
    assert_eq!(first, "first");
    for number in 2..=11 {
        let word = if number == 11 {
            "end".to_owned()
        } else {
            format!("n{number}")
        };
        node.write("v", number, &[("key", &text(&word))]);
        assert_eq!(updates.state().await, MountState::Live);
        assert_eq!(web.line(), word);
    }
    assert_eq!(web.mounts_at("/etc/app.conf").len(), 1);
}

// subpath 3
#[tokio::test]
async fn secret_in_memory_is_updated() {
    if !may_contain() {
        return;
    }
    let node = Node::with_tmpfs();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(web.run("cat /etc/app.conf"), "one");
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/app.conf"), "two");
}

// subpath 4
#[tokio::test]
async fn directory_is_updated() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("d/a", "one")]);
    let mut web = Container::start(
        &node,
        "mkdir root/etc/d; mount -o ro --bind agent/pods/1/volumes/v/d root/etc/d",
    );
    let mut updates = Updates::of(&node, &[("/etc/d", "..data/d/")], &[]);
    node.write("v", 2, &[("d/a", "two"), ("d/b", "new")]);
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/d/a /etc/d/b"), "twonew");
    // A file in its place: neither takes the place of the other.
    fs::remove_file(node.volume("v").join("d")).unwrap();
    node.write("v", 3, &[("d", "file")]);
    assert_eq!(updates.reason().await, "it is of another type now");
}

// subpath 8
// subpath 9
#[tokio::test]
async fn mount_point_below_a_link_or_another_volume_is_found() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mounts = "mkdir -p root/w root/run/x; touch root/run/x/app.conf
        mount --bind agent/pods/1/volumes/w root/w; touch agent/pods/1/volumes/w/own
        mount --bind agent/pods/1/volumes/v/key root/w/own
        mount --bind agent/pods/1/volumes/v/key root/run/x/app.conf";
    let mut web = Container::start(&node, mounts);
    let wanted = [("/var/run/x/app.conf", "key"), ("/w/own", "key")];
    let mut updates = Updates::of(&node, &wanted, &[("w", "/w")]);
    for number in 2..4 {
        let text = number.to_string();
        node.write("v", number, &[("key", &text)]);
        assert!(updates.update().await.is_empty());
        let states = updates.pod.statuses().iter().map(|status| &status.state);
        assert!(
            states.into_iter().all(|state| *state == MountState::Live),
            "{:?}",
            updates.pod
        );
        assert_eq!(web.run("cat /run/x/app.conf /w/own"), text.repeat(2));
        assert_eq!(web.run("cat /w/whole"), "w");
    }
}

// subpath 10
#[tokio::test]
async fn key_that_is_gone_keeps_its_content_until_it_is_back() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    node.write("v", 2, &[("other", "")]);
    assert_eq!(updates.reason().await, "key key is gone");
    assert_eq!(updates.pod.retry_at(), None);
    assert_eq!(web.run("cat /etc/app.conf"), "one");
    node.write("v", 3, &[("key", "three")]);
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/app.conf"), "three");
}

// subpath 11
#[tokio::test]
async fn directory_of_a_missing_key_is_replaced_by_a_directory_only() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("other", "")]);
    // The kubelet makes a directory beside the sets.
    fs::create_dir(node.volume("v").join("d")).unwrap();
    let mut web = Container::start(
        &node,
        "mkdir root/etc/d; mount --bind agent/pods/1/volumes/v/d root/etc/d",
    );
    let mut updates = Updates::of(&node, &[("/etc/d", "d")], &[]);
    assert_eq!(updates.reason().await, "key d is gone");
    node.write("v", 2, &[("d", "file")]);
    assert_eq!(updates.reason().await, "it is of another type now");
    node.write("v", 3, &[("d/a", "there")]);
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/d/a"), "there");
}

// subpath 12
#[tokio::test]
async fn what_a_container_covers_moves_or_doubles_is_left_alone() {
    if !may_contain() {
        return;
    }
    let cases = [
        (
            "mount -t tmpfs none /etc; echo own > /etc/app.conf",
            "/etc/app.conf",
            "the mount point has changed",
        ),
        (
            "mount --bind /etc/app.conf /etc/own",
            "/etc/own",
            "the container has mounted the file more than once",
        ),
        (
            "mount --move /etc/app.conf /etc/own",
            "/etc/own",
            "the container has moved the mount",
        ),
        (
            "mount --make-rshared /",
            "/etc/app.conf",
            "it lies in a mount that is shared with other namespaces",
        ),
        (
            "umount /etc/app.conf",
            "/etc/app.conf",
            "the container has no such mount: it has unmounted or covered it",
        ),
    ];
    for (command, path, reason) in cases {
        let node = Node::new();
        node.write("v", 1, &[("key", "one")]);
        let whole = "mkdir root/w; mount --bind agent/pods/1/volumes/w root/w";
        let mut web = Container::start(&node, &format!("{KEY}\n{whole}"));
        let mut updates = Updates::of(&node, &[("/etc/app.conf", "key")], &[("w", "/w")]);
        assert_eq!(updates.state().await, MountState::Live);
        assert_eq!(web.run("echo own > /etc/own; mount --make-rprivate /"), "");
        assert_eq!(web.run(command), "", "{command}");
        let (before, text) = (web.mounts_at(path), web.run(&format!("cat {path}")));
        node.write("v", 2, &[("key", "two")]);
        let mut events = Vec::new();
        for _ in 0..4 {
            events.push(updates.update().await.len());
        }
        assert_eq!(updates.reason().await, reason, "{command}");
        // The third failure with this reason is reported, once.
        assert_eq!(events, [0, 0, 1, 0]);
        let after = web.mounts_at(path);
        assert_eq!(before.len(), after.len(), "{command}: {after:?}");
        assert_eq!(web.run(&format!("cat {path}")), text, "{command}");
        assert!(updates.pod.retry_at().is_some());
    }
}

// subpath 12
#[tokio::test]
async fn mount_over_it_is_a_reason_until_the_old_file_goes_and_takes_it_along() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    assert_eq!(updates.state().await, MountState::Live);
    let over = "echo own > /etc/own; mount --bind /etc/own /etc/app.conf";
    assert_eq!(web.run(over), "");
    let reason = "the container has mounted something over it";
    assert_eq!(updates.reason().await, reason);
    assert_eq!(web.run("cat /etc/app.conf"), "own");
    // Linux unmounts what is mounted on a file that is removed.
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/app.conf; cat /etc/own"), "twoown");
    assert_eq!(web.mounts_at("/etc/app.conf").len(), 1);
}

/// Replaces the parent of the mount point by a link and back, in a loop, and lists what is below the directory that the
/// link leads to.
const RACE: &str = r#"mkdir -p /etc/a /other; echo mine > /other/app.conf; mount --bind /other/app.conf /other/app.conf;
perl -e 'symlink("/other", "/etc/link"); while (! -e "/stop") { rename("/etc/a", "/etc/b"); rename("/etc/link", "/etc/a");
    rename("/etc/a", "/etc/link"); rename("/etc/b", "/etc/a") } print "stopped\n"' &"#;

// subpath 13
#[tokio::test]
async fn parent_that_is_replaced_by_a_link_leads_nowhere_else() {
    if !may_contain() {
        return;
    }
    let rounds = 1000;
    let node = Node::new();
    node.write("v", 1, &[("key", "1")]);
    let mounts = "mkdir -p root/etc/a root/w; touch root/etc/a/app.conf
        mount --bind agent/pods/1/volumes/w root/w
        mount --bind agent/pods/1/volumes/v/key root/etc/a/app.conf";
    let mut web = Container::start(&node, mounts);
    let mut updates = Updates::of(&node, &[("/etc/a/app.conf", "key")], &[("w", "/w")]);
    let whole = |web: &Container| {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", web.pid())).unwrap();
        table.lines().count()
    };
    assert_eq!(updates.state().await, MountState::Live);
    web.run(RACE);
    let before = whole(&web);
    for number in 2..rounds + 2 {
        node.write("v", number, &[("key", &number.to_string())]);
        let state = updates.state().await;
        assert_ne!(state, MountState::Unknown, "after {number}");
        assert_eq!(whole(&web), before, "after {number}");
    }
    assert!(web.run("touch /stop; wait").contains("stopped"));
    assert_eq!(web.run("cat /other/app.conf"), "mine");
    assert_eq!(web.mounts_at("/other/app.conf").len(), 1);
    // It is live again when the container leaves the directory alone.
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/a/app.conf"), (rounds + 1).to_string());
    // The machine has no mount of it. It has others, which come and go.
    let host = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let folder = node.folder.path().canonicalize().unwrap();
    assert!(!host.contains(folder.to_str().unwrap()), "{host}");
}

// subpath 14
#[tokio::test]
async fn container_that_has_ended_is_not_entered() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    assert_eq!(updates.state().await, MountState::Live);
    let processes = node.processes();
    let found = processes
        .containers(&updates.query.mounts, None)
        .await
        .unwrap();
    assert!(processes.mount_namespace(&found[0].main).is_ok());
    web.end();
    assert!(processes.mount_namespace(&found[0].main).is_err());
    // The number belongs to another process: this one, whose start is another.
    let mut reused = found[0].main.clone();
    reused.pid = std::process::id().cast_signed();
    assert!(processes.mount_namespace(&reused).is_err());
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(updates.state().await, MountState::Unknown);
}

// subpath 14
#[tokio::test]
async fn number_of_a_container_that_is_used_again_leads_into_no_other() {
    if !may_contain() {
        return;
    }
    let (node, other) = (Node::new(), Node::new());
    for node in [&node, &other] {
        node.write("v", 1, &[("key", "one")]);
    }
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    assert_eq!(updates.state().await, MountState::Live);
    let processes = node.processes();
    let found = processes.containers(&updates.query.mounts, None).await;
    let main = found.unwrap().remove(0).main;
    let pid = web.pid();
    web.end();
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
    assert!(processes.mount_namespace(&main).is_err());
    let before = reused.mounts_at("/etc/app.conf");
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(updates.state().await, MountState::Unknown);
    assert_eq!(reused.mounts_at("/etc/app.conf"), before);
    assert_eq!(reused.run("cat /etc/app.conf"), "one");
}

#[tokio::test]
async fn pass_that_is_dropped_is_made_again() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    node.write("v", 2, &[("key", "two")]);
    let (query, now) = (updates.query.clone(), Timestamp::UNIX_EPOCH);
    tokio::select! {
        biased;
        _ = updates.pod.update(&updates.shared, query.clone(), now) => panic!("it waits for a search"),
        () = std::future::ready(()) => {}
    }
    assert!(updates.pod.is_due());
    updates.pod.update(&updates.shared, query, now).await;
    assert!(!updates.pod.is_due());
    assert_eq!(updates.pod.statuses()[0].state, MountState::Live);
    assert_eq!(web.run("cat /etc/app.conf"), "two");
}

// subpath 18
#[tokio::test]
async fn mounts_of_the_kubelet_stay_as_they_are_and_nothing_is_left_of_a_pod() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "1")]);
    // The kubelet binds the file, and the runtime what the kubelet has bound.
    let bound = node.root().join("pods/1/volume-subpaths/v/web/0");
    fs::create_dir_all(bound.parent().unwrap()).unwrap();
    fs::write(&bound, "").unwrap();
    let bind = || {
        let source = node.volume("v").join("key").canonicalize().unwrap();
        container::run(
            "mount",
            &["--bind", source.to_str().unwrap(), bound.to_str().unwrap()],
        );
    };
    let unbind = || container::run("umount", &[bound.to_str().unwrap()]);
    let of_machine = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let folder = node.root();
        let lines = table
            .lines()
            .filter(|line| line.contains(folder.to_str().unwrap()));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let mounts = KEY.replace("volumes/v/key", "volume-subpaths/v/web/0");
    bind();
    let mut updates = Updates::new(&node);
    for (number, content) in [(1, "2"), (3, "4")] {
        let mut web = Container::start(&node, &mounts);
        let before = of_machine();
        assert_eq!(before.len(), 1, "{before:?}");
        assert_eq!(web.run("cat /etc/app.conf"), number.to_string());
        node.write("v", number + 1, &[("key", content)]);
        assert_eq!(updates.state().await, MountState::Live);
        assert_eq!(web.run("cat /etc/app.conf"), content);
        // The old file is no longer there, but bound.
        let after: Vec<_> = of_machine()
            .iter()
            .map(|line| line.replace("//deleted", ""))
            .collect();
        assert_eq!(after, before);
        // The container is started again, with what is there by then.
        drop(web);
        unbind();
        node.write("v", number + 2, &[("key", &(number + 2).to_string())]);
        bind();
    }
    unbind();
    assert_eq!(of_machine(), Vec::<String>::new());
    // Nothing is mounted below it anywhere, or it would be busy.
    fs::remove_dir_all(node.root().join("pods/1")).unwrap();
}

#[tokio::test]
async fn failure_that_was_reported_is_not_reported_again_when_the_container_has_ended() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    assert_eq!(web.run("mount --make-rshared /"), "");
    node.write("v", 2, &[("key", "two")]);
    let mut events = Vec::new();
    for _ in 0..3 {
        events.push(updates.update().await.len());
    }
    web.end();
    for _ in 0..2 {
        events.push(updates.update().await.len());
    }
    assert_eq!(events, [0, 0, 1, 0, 0]);
    assert_eq!(updates.pod.statuses()[0].state, MountState::Unknown);
}

// subpath 16
#[tokio::test]
async fn without_the_capabilities_the_reason_names_them() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    node.write("v", 2, &[("key", "two")]);
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
            runtime.block_on(updates.reason())
        });
        unprivileged.join().unwrap()
    });
    let expected = "larder is not permitted to enter the container's mount namespace: this needs CAP_SYS_ADMIN, \
                    CAP_SYS_CHROOT and CAP_SYS_PTRACE, and the PID namespace of the host";
    assert_eq!(reason, expected);
    assert_eq!(web.run("cat /etc/app.conf"), "one");
    assert_eq!(updates.state().await, MountState::Live);
}

// subpath 17
#[tokio::test]
async fn attempt_that_ended_halfway_leaves_one_mount_with_the_newest_content() {
    if !may_contain() {
        return;
    }
    for edits in [1, 2] {
        let node = Node::new();
        node.write("v", 1, &[("key", "1")]);
        let mut web = Container::start(&node, KEY);
        let mut updates = Updates::new(&node);
        node.write("v", 2, &[("key", "2")]);
        let processes = node.processes();
        let found = processes
            .containers(&updates.query.mounts, None)
            .await
            .unwrap();
        let namespace = processes.mount_namespace(&found[0].main).unwrap();
        let (places, pod) = (processes.places().unwrap(), &updates.query.mounts);
        let source =
            super::source::Source::of(&node.volume("v"), std::path::Path::new("key")).unwrap();
        let stage = super::Stage::default();
        let new = stage
            .mount_of(&source.file.unwrap(), rustix::mount::MountFlags::RDONLY)
            .unwrap();
        Inside::run(std::os::fd::AsFd::as_fd(&namespace), u64::MAX, |inside| {
            let mounts = volume_mounts(|| inside.table(), &places, pod)
                .unwrap()
                .unwrap();
            inside.attach(&mounts[0].record, &new, false)
        })
        .unwrap();
        drop(new);
        assert_eq!(web.mounts_at("/etc/app.conf").len(), 2);
        // The old one stays visible.
        assert_eq!(web.run("cat /etc/app.conf"), "1");
        if edits == 2 {
            node.write("v", 3, &[("key", "3")]);
        }
        assert_eq!(updates.state().await, MountState::Live);
        assert_eq!(web.run("cat /etc/app.conf"), (edits + 1).to_string());
        assert_eq!(web.mounts_at("/etc/app.conf").len(), 1);
    }
}

// subpath 12
#[tokio::test]
async fn mount_that_the_container_puts_over_it_at_the_last_moment_is_a_failure() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "1")]);
    let mut web = Container::start(&node, KEY);
    let updates = Updates::new(&node);
    let processes = node.processes();
    let mounts = &updates.query.mounts;
    let found = processes.containers(mounts, None).await.unwrap();
    let namespace = processes.mount_namespace(&found[0].main).unwrap();
    let places = processes.places().unwrap();
    // The old file is still there: on one that was removed, nothing can be mounted.
    let path = std::path::Path::new("whole");
    let source = super::source::Source::of(&node.volume("w"), path).unwrap();
    let (stage, flags) = (super::Stage::default(), rustix::mount::MountFlags::RDONLY);
    let new = stage.mount_of(&source.file.unwrap(), flags).unwrap();
    let done = Inside::run(std::os::fd::AsFd::as_fd(&namespace), u64::MAX, |inside| {
        let found = volume_mounts(|| inside.table(), &places, mounts).unwrap();
        let old = &found.unwrap()[0].record;
        let target = inside.attach(old, &new, false)?.unwrap();
        let over = "echo own > /etc/own; mount --bind /etc/own /etc/app.conf 2>&1";
        assert_eq!(web.run(over), "");
        inside.unmount(old, &target)
    });
    assert!(
        matches!(done, Err(super::ReplaceError::Changed)),
        "{done:?}"
    );
    assert_eq!(web.run("cat /etc/app.conf"), "1");
}

// subpath 19
#[tokio::test]
async fn open_file_keeps_the_old_bytes_and_a_watch_learns_of_its_end() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    web.run("exec 5< /etc/app.conf");
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let flags = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::DELETE_SELF;
    inotify::add_watch(&watch, web.path("/etc/app.conf"), flags).unwrap();
    let events = || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watch, &mut buffer);
        let mut seen = inotify::ReadFlags::empty();
        while let Ok(event) = reader.next() {
            seen |= event.events();
        }
        seen
    };
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(events(), inotify::ReadFlags::ATTRIB);
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(events(), inotify::ReadFlags::empty());
    assert_eq!(web.run("cat <&5; cat /etc/app.conf; exec 5<&-"), "onetwo");
    assert!(events().contains(inotify::ReadFlags::DELETE_SELF));
}

// subpath 21
#[tokio::test]
async fn container_with_users_of_its_own_is_updated() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let mut web = Container::start_with(&node, KEY, &["--user", "--map-root-user", "--mount"]);
    let mut updates = Updates::new(&node);
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(updates.state().await, MountState::Live);
    assert_eq!(web.run("cat /etc/app.conf"), "two");
}

// subpath 22
#[tokio::test]
async fn new_mount_is_read_only_private_and_has_the_flags_of_the_old_one() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let options = |web: &Container| {
        let lines = web.mounts_at("/etc/app.conf");
        assert_eq!(lines.len(), 1, "{lines:?}");
        let fields: Vec<_> = lines[0].split(' ').collect();
        let flags: std::collections::BTreeSet<_> =
            fields[5].split(',').map(str::to_owned).collect();
        // No optional field: it is neither shared nor anyone's follower.
        (flags, fields[6].to_owned())
    };
    let restricted = KEY.replace("noexec", "noexec,nosymfollow");
    let mut web = Container::start(&node, &restricted);
    let mut updates = Updates::new(&node);
    node.write("v", 2, &[("key", "two")]);
    assert_eq!(updates.state().await, MountState::Live);
    let (flags, tags) = options(&web);
    for flag in ["ro", "nosuid", "nodev", "noexec", "nosymfollow"] {
        assert!(flags.contains(flag), "{flags:?}");
    }
    assert_eq!(tags, "-");
    assert_ne!(web.run("echo x > /etc/app.conf || echo refused"), "");
    drop(web);
    // Also where the old one was writable.
    let writable = KEY.lines().next().unwrap();
    let mut web = Container::start(&node, writable);
    let mut updates = Updates::new(&node);
    node.write("v", 3, &[("key", "three")]);
    assert_eq!(updates.state().await, MountState::Live);
    assert!(options(&web).0.contains("ro"));
    assert_eq!(web.run("cat /etc/app.conf"), "three");
}

// subpath 25
#[tokio::test]
async fn file_with_another_label_is_not_shown_where_labels_are_enforced() {
    if !may_contain() {
        return;
    }
    let node = Node::with_tmpfs();
    let label = |text: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        let path = node.volume("v").join("..data/key");
        rustix::fs::setxattr(path, "security.selinux", text.as_bytes(), flags)
    };
    node.write("v", 1, &[("key", "one")]);
    if label("system_u:object_r:a:s0").is_err() {
        // A file system without labels.
        return;
    }
    let mut web = Container::start(&node, KEY);
    let mut updates = Updates::new(&node);
    for (number, text, enforces, expected) in [
        (
            2,
            "b",
            true,
            MountState::Pinned("the new file has another SELinux label".to_owned()),
        ),
        (3, "a", true, MountState::Live),
        (4, "b", false, MountState::Live),
    ] {
        Arc::get_mut(&mut updates.shared).unwrap().enforces_labels =
            if enforces { || true } else { || false };
        let before = web.run("cat /etc/app.conf");
        node.write("v", number, &[("key", &number.to_string())]);
        label(&format!("system_u:object_r:{text}:s0")).unwrap();
        assert_eq!(updates.state().await, expected);
        let after = if expected == MountState::Live {
            number.to_string()
        } else {
            before
        };
        assert_eq!(web.run("cat /etc/app.conf"), after);
    }
}

// subpath 7
#[tokio::test]
async fn of_two_containers_the_one_that_was_restarted_is_left_as_its_runtime_mounted_it() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let side = KEY.replace("app.conf", "side.conf");
    let mut updates = Updates::of(&node, &[("/etc/app.conf", "key")], &[]);
    updates
        .query
        .mounts
        .containers
        .push(crate::processes::ContainerMounts {
            name: "side".into(),
            mounts: vec![("v".into(), "/etc/side.conf".into())],
        });
    let wanted = WantedMount::new("side", "/etc/side.conf", "v", "key").unwrap();
    updates.pod.add_mounts("v", vec![wanted]);
    let mut web = Container::start(&node, KEY);
    let beside = Container::start(&node, &side);
    node.write("v", 2, &[("key", "two")]);
    drop(beside);
    let mut beside = Container::start(&node, &side);
    let before = beside.mounts_at("/etc/side.conf");
    assert!(updates.update().await.is_empty());
    let states = updates.pod.statuses().iter();
    let states: Vec<_> = states
        .map(|status| (&status.state, status.replaced.is_some()))
        .collect();
    // The runtime has mounted the present file.
    assert_eq!(
        states,
        [(&MountState::Live, true), (&MountState::Live, false)]
    );
    assert_eq!(beside.mounts_at("/etc/side.conf"), before);
    assert_eq!(web.run("cat /etc/app.conf"), "two");
    node.write("v", 3, &[("key", "three")]);
    updates.update().await;
    assert_eq!(
        (
            web.run("cat /etc/app.conf"),
            beside.run("cat /etc/side.conf")
        ),
        ("three".into(), "three".into())
    );
}

#[tokio::test]
async fn more_mounts_than_may_be_read_are_a_reason_and_not_a_wait() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", 1, &[("key", "one")]);
    let web = Container::start(&node, KEY);
    let updates = Updates::new(&node);
    let processes = node.processes();
    let found = processes
        .containers(&updates.query.mounts, None)
        .await
        .unwrap();
    let namespace = processes.mount_namespace(&found[0].main).unwrap();
    let places = processes.places().unwrap();
    let look = |most_bytes: u64| {
        Inside::run(std::os::fd::AsFd::as_fd(&namespace), most_bytes, |inside| {
            Ok(volume_mounts(
                || inside.table(),
                &places,
                &updates.query.mounts,
            ))
        })
        .unwrap()
    };
    assert_eq!(look(100).unwrap_err().to_string(), "it has too many mounts");
    assert_eq!(look(1 << 20).unwrap().unwrap().len(), 1);
    drop(web);
}
