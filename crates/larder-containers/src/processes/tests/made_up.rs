//! In fake process directories.

use std::{cell::Cell, fs, os::unix::fs::symlink, time::Duration};

use tempfile::TempDir;

use super::{
    super::allowance::{Allowance, MAX_USER_LINES, OF_ANYONE, OF_PRIVILEGED, Refusals},
    *,
};
use crate::targets::{TargetError, TargetQuery};

const SECRET: &str = "/agent/pods/1/volumes/kubernetes.io~secret/s";
const CONFIG: &str = "/agent/pods/1/volumes/kubernetes.io~configmap/c";
/// The machine's file system.
const MACHINE: &str = "20 1 8:1 / / rw - ext4 /dev/vda rw\n";
/// The root of a container.
const IMAGE: &str = "20 1 0:9 / / rw - overlay overlay rw\n";

/// A directory as `/proc` is.
struct MadeUpProc(TempDir);

impl MadeUpProc {
    /// With this process, in whose namespace two pods have a Secret and one has a ConfigMap.
    fn new() -> Self {
        let proc = Self(tempfile::tempdir().unwrap());
        let other = SECRET.replace("/1/", "/2/");
        let table = format!(
            "1 0 8:1 / / rw\n2 1 0:50 / {SECRET} rw\n3 1 0:51 / {other} rw\n4 1 0:7 / /tmp rw\n"
        );
        proc.write("self", "mountinfo", table.as_bytes());
        proc.link("self", "ns/mnt", "mnt:[1]");
        proc.process(100, 3, 1);
        fs::rename(
            proc.0.path().join("100/stat"),
            proc.0.path().join("self/stat"),
        )
        .unwrap();
        proc
    }

    fn write(&self, process: &str, file: &str, text: &[u8]) {
        let directory = self.0.path().join(process);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(file), text).unwrap();
    }

    fn link(&self, process: &str, name: &str, target: &str) {
        let path = self.0.path().join(process).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // It may not be there yet.
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    fn process(&self, pid: i32, parent: i32, start: u64) {
        let name = pid.to_string();
        let line = format!("{name} (web) S {parent} 1 1 0 -1{}", " 0".repeat(13));
        let line = format!("{line} {start} 1 1 1 1 1 1 1 1 0 0 0 0");
        self.write(&name, "stat", line.as_bytes());
        self.link(&name, "exe", "/usr/bin/runc");
    }

    /// Process 10 in a namespace with these mounts.
    fn with(table: &str) -> Self {
        let proc = Self::new();
        proc.process(10, 3, 1);
        proc.enter(10, 7, table);
        proc
    }

    fn enter(&self, pid: i32, namespace: u64, table: &str) {
        let name = pid.to_string();
        self.link(&name, "ns/mnt", &format!("mnt:[{namespace}]"));
        self.write(&name, "mountinfo", table.as_bytes());
    }

    fn processes(&self) -> Processes {
        Processes::new(self.0.path(), "/agent")
    }
}

/// Pod 1, which mounts its Secret and its ConfigMap at these paths.
fn pod(secret: &str, config: &str) -> PodMounts {
    PodMounts {
        volumes: [("s".into(), SECRET.into()), ("c".into(), CONFIG.into())].into(),
        containers: vec![ContainerMounts {
            name: "web".into(),
            mounts: vec![("s".into(), secret.into()), ("c".into(), config.into())],
        }],
    }
}

#[track_caller]
fn check(mounts: &PodMounts, tables: &[&str], expected: &[i32]) {
    let proc = MadeUpProc::with(&tables.concat());
    assert_eq!(mains(&proc.processes(), mounts), expected, "{tables:?}");
}

const IN_CONTAINER: &str = "21 20 0:50 / /etc/s ro - tmpfs tmpfs rw\n";

#[test]
fn container_is_found_by_volumes_in_memory_and_on_disk() {
    let mounts = pod("/etc/s/.", "/etc/c");
    check(&mounts, &[IMAGE, IN_CONTAINER], &[10]);
    let on_disk = format!("21 20 8:1 {CONFIG} /etc/c ro\n");
    check(&mounts, &[IMAGE, &on_disk], &[10]);
    // By subPath.
    let file = format!("21 20 8:1 {CONFIG}/..2026/f /etc/c ro\n");
    check(&mounts, &[IMAGE, &file], &[10]);
    // The volume of another pod, a directory that only begins alike, and another mount point.
    check(&mounts, &[IMAGE, &on_disk.replace("/1/", "/2/")], &[]);
    check(
        &mounts,
        &[IMAGE, &on_disk.replace(CONFIG, &format!("{CONFIG}2"))],
        &[],
    );
    check(&mounts, &[IMAGE, &on_disk.replace("/etc/c", "/etc/d")], &[]);
    check(&mounts, &[IMAGE], &[]);
}

/// A pod whose mount path is the path of its volume on the machine.
#[test]
fn annotation_does_not_signal_services_that_receive_the_mounts_of_the_machine() {
    let received = format!("30 20 0:50 / {SECRET} rw shared:9 - tmpfs tmpfs rw\n");
    check(&pod(SECRET, "/etc/c"), &[MACHINE, &received], &[]);
    // A service with a private /tmp, which the pod mounts its volume at as well.
    let private = "31 20 8:1 /tmp/systemd-private /tmp rw\n";
    check(&pod(SECRET, "/etc/c"), &[MACHINE, private, &received], &[]);
    // A service from which the agent's directory is hidden. The mount is still made, beneath the hiding one.
    let hidden = "32 20 0:60 / /agent rw - tmpfs tmpfs rw\n";
    check(&pod(SECRET, "/etc/c"), &[MACHINE, hidden, &received], &[]);
    let above = hidden.replace("/agent", "/");
    check(&pod(SECRET, "/etc/c"), &[MACHINE, &above, &received], &[]);
}

#[test]
fn annotation_does_not_signal_containers_that_receive_the_mounts_of_the_machine() {
    for (host, at) in [
        ("/", "/host"),
        ("/agent", "/larder"),
        ("/agent/pods", "/pods"),
    ] {
        let volume = SECRET.strip_prefix(host.trim_end_matches('/')).unwrap();
        let path = format!("{at}/{}", volume.trim_start_matches('/'));
        let shown = format!("22 20 8:1 {host} {at} rw master:1 - ext4 /dev/vda rw\n");
        let received = format!("23 22 0:50 / {path} rw master:9 - tmpfs tmpfs rw\n");
        check(&pod(&path, "/etc/c"), &[IMAGE, &shown, &received], &[]);
    }
    // The volumes of all pods, one by one.
    let other = "22 20 0:51 / /etc/other ro - tmpfs tmpfs rw\n";
    check(&pod("/etc/s", "/etc/c"), &[IMAGE, IN_CONTAINER, other], &[]);
    check(&pod("/etc/s", "/etc/c"), &[IMAGE, other, IN_CONTAINER], &[]);
    // So many that no pod has them.
    let many: Vec<_> = (0..2000)
        .map(|number| format!("{number} 20 0:50 / /{number} ro\n"))
        .collect();
    check(
        &pod("/etc/s", "/etc/c"),
        &[IMAGE, IN_CONTAINER, &many.concat()],
        &[],
    );
}

#[test]
fn copy_of_the_machine_without_the_directory_of_the_agent_is_a_container() {
    let covered = "32 20 0:60 / /agent rw - tmpfs tmpfs rw\n";
    check(&pod("/etc/s", "/etc/c"), &[MACHINE, IN_CONTAINER], &[]);
    check(
        &pod("/etc/s", "/etc/c"),
        &[MACHINE, IN_CONTAINER, covered],
        &[10],
    );
    check(
        &pod("/etc/s", "/etc/c"),
        &[MACHINE, covered, IN_CONTAINER],
        &[10],
    );
    // The volumes of the machine are still mounted, beneath the mount that covers them.
    let other = SECRET.replace("/1/", "/2/");
    let received = format!("33 20 0:50 / {SECRET} rw\n34 20 0:51 / {other} rw\n");
    check(
        &pod("/etc/s", "/etc/c"),
        &[MACHINE, &received, IN_CONTAINER, covered],
        &[10],
    );
    // A mount elsewhere covers nothing.
    let elsewhere = covered.replace("32 20", "32 21");
    check(
        &pod("/etc/s", "/etc/c"),
        &[MACHINE, IN_CONTAINER, &elsewhere],
        &[],
    );
}

#[tokio::test]
async fn annotation_does_not_signal_what_mounts_a_volume_in_or_above_the_directory_of_the_agent() {
    let proc = MadeUpProc::with(IMAGE);
    let processes = proc.processes();
    for path in [SECRET, "/agent", "/", "/agent/../agent/x"] {
        let query = TargetQuery {
            mounts: pod(path, "/etc/c"),
            ..TargetQuery::default()
        };
        let error = query.find(&processes, false).await.unwrap_err();
        assert!(
            matches!(error, TargetError::AgentDirectory { .. }),
            "{path}: {error}"
        );
    }
}

#[test]
fn annotation_does_not_signal_process_1_the_agent_or_its_ancestors() {
    // This process is 100, a child of 3, a child of 2.
    let proc = MadeUpProc::with(IMAGE);
    let processes = proc.processes();
    for (pid, parent) in [(1, 0), (2, 1), (3, 2), (100, 3)] {
        proc.process(pid, parent, 1);
    }
    for pid in [1, 2, 3, 100] {
        let found = processes.processes(&[pid], &Owner::Mounts(Namespace::Mount(1)));
        let error = processes.open(&found[0]).unwrap_err();
        assert!(
            matches!(error, SignalProcessError::Protected { .. }),
            "{pid}: {error}"
        );
    }
    // A process that only has the same parent.
    proc.process(4, 3, 1);
    let found = processes.processes(&[4], &Owner::Mounts(Namespace::Mount(1)));
    let error = processes.open(&found[0]).err();
    assert!(
        !matches!(error, Some(SignalProcessError::Protected { .. })),
        "{error:?}"
    );
}

#[test]
fn process_that_has_left_a_container_is_none_of_its_processes() {
    let table = [IMAGE, IN_CONTAINER].concat();
    let proc = MadeUpProc::with(&table);
    proc.process(11, 3, 2);
    proc.enter(11, 7, &table);
    let (processes, mounts) = (proc.processes(), pod("/etc/s", "/etc/c"));
    assert_eq!(search(&processes, &mounts)[0].processes.len(), 2);
    proc.enter(10, 8, IMAGE);
    assert_eq!(mains(&processes, &mounts), [11]);
    // A zombie.
    for file in ["ns/mnt", "mountinfo"] {
        fs::remove_file(proc.0.path().join("10").join(file)).unwrap();
    }
    assert_eq!(mains(&processes, &mounts), [11]);
}

#[test]
fn process_with_another_root_hides_no_container() {
    let proc = MadeUpProc::with("22 20 0:9 /jail /proc rw\n");
    proc.process(11, 3, 2);
    proc.enter(11, 7, &[IMAGE, IN_CONTAINER].concat());
    let found = search(&proc.processes(), &pod("/etc/s", "/etc/c"));
    let pids: Vec<_> = found[0]
        .processes
        .iter()
        .map(|process| process.pid)
        .collect();
    assert_eq!(pids, [10, 11]);
}

#[test]
fn hostile_content_of_processes_does_no_harm() {
    let proc = MadeUpProc::with(&[IMAGE, IN_CONTAINER].concat());
    let deep = format!("{} 1 8:1 {} /etc/s rw\n", u64::MAX, "/a".repeat(1 << 20));
    let texts: [&[u8]; 8] = [
        b"",
        b"\0",
        b"\xff\xfe \n ) \n",
        b") 1 2 3",
        b"11 (a) S 99999999999999999999 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 -5 1 1 1 1 1 1 1 1 0 0 0 0",
        b"99999999999999999999 1 8:1 /agent/pods/1 /etc/s rw\n",
        b"1 1 8:1 \\777 \\ rw\n1 1 8:1 / \\00\n",
        deep.as_bytes(),
    ];
    let links = [
        "",
        "mnt:[",
        "mnt:[]",
        "mnt:[-1]",
        "mnt:[99999999999999999999]",
    ];
    let long = "x".repeat(4095);
    for (number, text) in texts.iter().enumerate() {
        let name = (11 + number).to_string();
        for file in ["stat", "status", "mountinfo", "cgroup", "comm"] {
            proc.write(&name, file, text);
        }
        let link = links.get(number).filter(|link| !link.is_empty());
        proc.link(&name, "ns/mnt", link.unwrap_or(&"mnt:[8]"));
        proc.link(&name, "exe", &long);
    }
    // Names that are no numbers of processes.
    for name in ["99999999999999999999", "1x", "-5", "sys"] {
        proc.write(name, "stat", b"");
    }
    let (processes, mounts) = (proc.processes(), pod("/etc/s", "/etc/c"));
    let found = search(&processes, &mounts);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].main.pid, 10);
    let main = &found[0].main;
    assert_eq!(processes.executable(main).as_deref(), Some("runc"));
}

#[test]
fn names_of_commands_do_not_confuse() {
    let text = b"4711 (a) R 7 (b) S 42 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 \
        1 2 3 4 5 6 7 8 256 16384 4096 1 0 0 0 17 1 0 0 0 0 0";
    let expected = Stat {
        pid: 4711,
        parent: 42,
        start: 98765,
        // Blocked and caught; not pending or ignored.
        handled: 16384 | 1,
    };
    assert_eq!(Stat::parse(text), Some(expected));
}

#[test]
fn process_that_has_ended_and_waits_for_its_parent_is_none() {
    let stat = |state: &str, threads: u32| {
        let text = format!(
            "7 (web) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5 1 1 1 1 1 1 1 1 0 0 0 0"
        );
        Stat::parse(text.as_bytes()).is_some()
    };
    assert_eq!((stat("S", 1), stat("Z", 1)), (true, false));
    // Only its first thread has ended.
    assert!(stat("Z", 2));
}

/// The `uid_map` of the machine's user namespace.
const ALL_USERS: &str = "         0          0 4294967295\n";

/// A table with so many mounts over each other.
fn stack(lines: usize) -> String {
    IMAGE.to_owned() + &"22 20 0:9 /d /d rw\n".repeat(lines)
}

/// Process 10 is the container; from 20 on, there is one process for each of these user namespaces and tables.
fn with_stacks(stacks: &[(&str, usize)]) -> MadeUpProc {
    let proc = MadeUpProc::with(&[IMAGE, IN_CONTAINER].concat());
    for name in ["self", "10"] {
        proc.write(name, "uid_map", ALL_USERS.as_bytes());
    }
    for ((users, lines), pid) in stacks.iter().zip(20..) {
        proc.process(pid, 3, 1);
        proc.enter(pid, u64::try_from(pid).unwrap(), &stack(*lines));
        proc.write(&pid.to_string(), "uid_map", users.as_bytes());
    }
    proc
}

#[test]
fn user_with_a_user_namespace_does_not_delay_the_search_by_stacked_mounts() {
    let stacks = [("0 1234 1\n", 50_000); 20];
    let proc = with_stacks(&stacks);
    let processes = proc.processes();
    let mut allowance = Allowance::default();
    let found = processes.search_within(&mut allowance).unwrap();
    assert_eq!(
        found.iter().map(|found| &*found.pids).collect::<Vec<_>>(),
        [[10]]
    );
    assert!(
        allowance.lines <= MAX_USER_LINES + 2,
        "{} lines",
        allowance.lines
    );
    assert_eq!(allowance.refused, stacks.len());
}

/// Every look at the clock is 10 ms after the one before.
fn slow_clock() -> Duration {
    thread_local!(static RUN: Cell<Duration> = const { Cell::new(Duration::ZERO) });
    RUN.set(RUN.get() + Duration::from_millis(10));
    RUN.get()
}

/// Mounts on top of a deep stack: the kernel takes long for each line.
#[test]
fn user_with_a_user_namespace_does_not_delay_the_search_by_deep_mounts() {
    let stacks = [("0 1234 1\n", 4000); 20];
    let proc = with_stacks(&stacks);
    proc.write("10", "uid_map", b"0 1235 1\n");
    let mut allowance = Allowance::default();
    allowance.clock = slow_clock;
    let found = proc.processes().search_within(&mut allowance).unwrap();
    assert_eq!(
        found.iter().map(|found| &*found.pids).collect::<Vec<_>>(),
        [[10]]
    );
    assert!(allowance.lines < 400, "{} lines", allowance.lines);
    assert_eq!(allowance.refused, stacks.len());
}

/// In a container without a user namespace, which its control groups name.
#[test]
fn container_does_not_delay_the_search_by_deep_mounts_and_hides_no_other() {
    let proc = with_stacks(&[(ALL_USERS, 4000); 20]);
    for pid in 20..40 {
        let group = format!("0::/pods/{}/{pid}\n", "a".repeat(64));
        proc.write(&pid.to_string(), "cgroup", group.as_bytes());
    }
    let mut allowance = Allowance::default();
    allowance.clock = slow_clock;
    let found = proc.processes().search_within(&mut allowance).unwrap();
    let found: Vec<_> = found.iter().map(|found| &*found.pids).collect();
    assert_eq!(found, [[10]]);
    assert!(allowance.lines < 2000, "{} lines", allowance.lines);
    assert_eq!(allowance.refused, 20);
}

/// A container of the pod may make any number that look like another one of it.
#[test]
fn of_a_pod_with_very_many_namespaces_none_is_taken_for_a_container() {
    let proc = MadeUpProc::with(&[IMAGE, IN_CONTAINER].concat());
    for pid in 20..83 {
        proc.process(pid, 3, 1);
        proc.enter(
            pid,
            u64::try_from(pid).unwrap(),
            &[IMAGE, IN_CONTAINER].concat(),
        );
    }
    let pod = pod("/etc/s", "/etc/c");
    assert_eq!(mains(&proc.processes(), &pod).len(), 64);
    proc.process(83, 3, 1);
    proc.enter(83, 83, &[IMAGE, IN_CONTAINER].concat());
    assert_eq!(mains(&proc.processes(), &pod), [0; 0]);
}

/// With CAP_SETUID, a container can map all users in a namespace that it makes.
#[test]
fn user_namespace_of_all_users_is_not_that_of_the_machine() {
    let stacks = [(ALL_USERS, OF_ANYONE.lines + 1); 3];
    let proc = with_stacks(&stacks);
    for (pid, number) in [("self", 1), ("10", 1), ("20", 2), ("21", 3), ("22", 4)] {
        proc.link(pid, "ns/user", &format!("user:[{number}]"));
    }
    let processes = proc.processes();
    let mut allowance = Allowance::default();
    let found = processes.search_within(&mut allowance).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(allowance.refused, stacks.len());
}

/// A pod's `subPath` of a `hostPath` above the agent's directory.
#[test]
fn mount_of_a_directory_above_the_agents_makes_nothing_that_pods() {
    let proc = MadeUpProc::with(&[IMAGE, IN_CONTAINER].concat());
    let table = fs::read_to_string(proc.0.path().join("self/mountinfo")).unwrap();
    let above = "5 1 8:1 / /agent/pods/2/volume-subpaths/host/web/0 rw\n";
    proc.write("self", "mountinfo", (table + above).as_bytes());
    assert_eq!(mains(&proc.processes(), &pod("/etc/s", "/etc/c")), [10]);
}

#[test]
fn storage_that_two_pods_share_is_no_other_pods() {
    let shared = "6 1 0:70 / /data rw\n7 1 0:70 /sub /sub rw\n";
    let proc = MadeUpProc::with(&[IMAGE, IN_CONTAINER, shared].concat());
    let table = fs::read_to_string(proc.0.path().join("self/mountinfo")).unwrap();
    let of_pod = |pod: u8| {
        format!(
            "8 1 0:70 / /agent/pods/{pod}/volumes/kubernetes.io~nfs/pv rw\n\
             9 1 0:70 /sub /agent/pods/{pod}/volume-subpaths/pv/web/0 rw\n"
        )
    };
    proc.write(
        "self",
        "mountinfo",
        (table + &of_pod(2) + &of_pod(1)).as_bytes(),
    );
    assert_eq!(mains(&proc.processes(), &pod("/etc/s", "/etc/c")), [10]);
}

/// A pod with a `hostPath` to the files of another one.
#[test]
fn volume_that_another_pod_mounts_by_sub_path_stays_its_pods() {
    let proc = MadeUpProc::with(&[IMAGE, IN_CONTAINER].concat());
    let table = fs::read_to_string(proc.0.path().join("self/mountinfo")).unwrap();
    let spied = "8 1 0:50 / /agent/pods/2/volume-subpaths/host/web/0 rw\n";
    proc.write("self", "mountinfo", (spied.to_owned() + &table).as_bytes());
    assert_eq!(mains(&proc.processes(), &pod("/etc/s", "/etc/c")), [10]);
}

#[test]
fn mounts_of_one_user_hide_no_container_of_another() {
    // Ten of an ordinary user, of the range of a pod, of the privileged.
    for (users, of_container) in [
        ("0 1234 1\n", "0 1235 1\n"),
        ("0 131072 65536\n", "0 196608 65536\n"),
        ("0 131072 1\n", "0 1 1\n"),
        ("", "0 0 1\n"),
        (ALL_USERS, "0 1 1\n"),
    ] {
        let proc = with_stacks(&[(users, OF_ANYONE.lines + 1); 10]);
        proc.write("10", "uid_map", of_container.as_bytes());
        assert_eq!(
            mains(&proc.processes(), &pod("/etc/s", "/etc/c")),
            [10],
            "{users}"
        );
    }
}

#[test]
fn namespace_with_too_many_mounts_or_bytes_of_them_is_no_container() {
    let deep = format!("22 20 0:9 / {} rw\n", "/d".repeat(8 << 10));
    for (users, limit) in [("0 1234 1\n", OF_ANYONE), (ALL_USERS, OF_PRIVILEGED)] {
        let proc = with_stacks(&[]);
        proc.write("10", "uid_map", users.as_bytes());
        let fitting = usize::try_from(limit.bytes).unwrap() / deep.len();
        for (more, expected) in [
            (stack(limit.lines - 3), &[10][..]),
            (stack(limit.lines - 2), &[]),
            (deep.repeat(fitting - 1), &[10]),
            (deep.repeat(fitting + 1), &[]),
        ] {
            proc.enter(10, 7, &[IN_CONTAINER, IMAGE, &more].concat());
            assert_eq!(mains(&proc.processes(), &pod("/etc/s", "/etc/c")), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn namespaces_over_the_bounds_are_logged_every_ten_minutes_at_most() {
    let (refusals, start) = (Refusals::default(), tokio::time::Instant::now());
    let logged = |seconds| refusals.may_be_logged(start + Duration::from_secs(seconds));
    assert_eq!(
        [0, 1, 599, 600, 1199, 1200].map(logged),
        [true, false, false, true, false, true]
    );
}
