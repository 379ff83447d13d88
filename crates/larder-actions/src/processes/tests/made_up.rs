//! In made-up directories of processes.

use std::{fs, os::unix::fs::symlink};

use tempfile::TempDir;

use super::*;

/// A directory as `/proc` is.
struct MadeUpProc(TempDir);

/// A made-up process. Its number is 10 unless a test says otherwise.
#[derive(Clone, Copy)]
struct MadeUpProcess {
    pid: i32,
    /// `None` if it is a zombie.
    namespace: Option<u64>,
    /// Another one under the same number is another process.
    start: u64,
    /// Whether the volume is mounted in its namespace.
    has_mount: bool,
}

const PROCESS: MadeUpProcess = MadeUpProcess {
    pid: 10,
    namespace: Some(7),
    start: 1,
    has_mount: false,
};
const MOUNTED: MadeUpProcess = MadeUpProcess {
    has_mount: true,
    ..PROCESS
};

impl MadeUpProc {
    fn new(processes: &[MadeUpProcess]) -> Self {
        let proc = Self(tempfile::tempdir().unwrap());
        let table = "1 0 8:1 / / rw - ext4 /dev/vda rw\n";
        proc.write("self", "mountinfo", table.as_bytes());
        proc.link("self", "ns/mnt", "mnt:[1]");
        for process in processes {
            proc.set(process);
        }
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

    fn set(&self, process: &MadeUpProcess) {
        let name = process.pid.to_string();
        let stat = format!("{name} (web) S 3 1 1 0 -1{}", " 0".repeat(13));
        let stat = format!("{stat} {} 1 1 1 1 1 1 1 1 0 0 0 0", process.start);
        self.write(&name, "stat", stat.as_bytes());
        let Some(namespace) = process.namespace else {
            for file in ["ns/mnt", "mountinfo"] {
                // It may never have run.
                let _ = fs::remove_file(self.0.path().join(&name).join(file));
            }
            return;
        };
        self.link(&name, "ns/mnt", &format!("mnt:[{namespace}]"));
        self.link(&name, "exe", "/usr/bin/runc");
        let mut table = "20 1 0:9 / / rw - overlay overlay rw\n".to_owned();
        if process.has_mount {
            table += "21 20 8:1 /pods/1/v/..data /etc/web ro - ext4 /dev/vda rw\n";
        }
        self.write(&name, "mountinfo", table.as_bytes());
    }

    /// Its directory stays under a name that is no number, so that no other one has the same inode.
    fn end(&self, process: &MadeUpProcess) {
        let from = self.0.path().join(process.pid.to_string());
        let to = format!("ended-{}-{}", process.pid, process.start);
        fs::rename(from, self.0.path().join(to)).unwrap();
    }

    fn processes(&self) -> Processes {
        Processes::new(self.0.path())
    }
}

/// A pod whose volume is mounted at this mount point.
fn pod(mount_point: &str) -> PodMounts {
    PodMounts {
        volumes: [("v".into(), "/pods/1/v".into())].into(),
        containers: vec![ContainerMounts {
            name: "web".into(),
            mounts: vec![("v".into(), mount_point.into())],
        }],
    }
}

/// The main processes that a search finds which trusts an earlier one of `before`, once the processes are `after`.
#[track_caller]
fn check(before: &[MadeUpProcess], after: &[MadeUpProcess], waited: Duration, expected: &[i32]) {
    let (proc, now) = (MadeUpProc::new(before), Instant::now());
    let (processes, mounts) = (proc.processes(), pod("/etc/web"));
    assert_eq!(trusting(&processes, &mounts, now), NONE);
    let is_same = |one: &MadeUpProcess, other: &MadeUpProcess| {
        (one.pid, one.start) == (other.pid, other.start)
    };
    for process in before {
        if !after.iter().any(|later| is_same(process, later)) {
            proc.end(process);
        }
    }
    for process in after {
        proc.set(process);
    }
    assert_eq!(trusting(&processes, &mounts, now + waited), expected);
    // Whatever earlier searches have read, one that lacks the container finds it.
    let mut with_mount = after.iter().filter(|process| process.has_mount);
    let main = with_mount.next().map(|process| process.pid);
    let found = processes.targets(&mounts, &["web".into()], now).unwrap();
    let found = found.first().map(|container| container.main.pid);
    assert_eq!(found, main);
}

#[test]
fn known_namespace_is_not_read_again() {
    let before_expiry = EXPIRY.checked_sub(Duration::from_millis(1)).unwrap();
    check(&[PROCESS], &[MOUNTED], Duration::ZERO, &[]);
    check(&[PROCESS], &[MOUNTED], before_expiry, &[]);
    // Whichever of its processes comes first.
    let younger = MadeUpProcess {
        pid: 9,
        start: 2,
        ..MOUNTED
    };
    check(&[PROCESS], &[MOUNTED, younger], Duration::ZERO, &[]);
}

#[test]
fn namespace_is_read_again_when_no_known_process_is_in_it() {
    let at_once = Duration::ZERO;
    // It has expired.
    check(&[PROCESS], &[MOUNTED], EXPIRY, &[10]);
    // The number of the process, and that of the namespace, were used again.
    let reused = MadeUpProcess {
        start: 2,
        ..MOUNTED
    };
    check(&[PROCESS], &[reused], at_once, &[10]);
    // The process was young, such as a runtime that has made the mounts since.
    let young = |process| MadeUpProcess {
        start: u64::MAX,
        ..process
    };
    check(&[young(PROCESS)], &[young(MOUNTED)], at_once, &[10]);
    // It has ended, and the namespace lives on, or its number was used again.
    let other = MadeUpProcess { pid: 11, ..MOUNTED };
    check(&[PROCESS], &[other], at_once, &[11]);
    // It is not gone, but in the namespace no more.
    for namespace in [Some(8), None] {
        let left = MadeUpProcess {
            namespace,
            ..PROCESS
        };
        check(&[PROCESS], &[left, other], at_once, &[11]);
    }
}

#[test]
fn process_that_has_left_a_container_is_none_of_its_processes() {
    let other = MadeUpProcess {
        pid: 11,
        start: 2,
        ..MOUNTED
    };
    let proc = MadeUpProc::new(&[MOUNTED, other]);
    let (processes, mounts, now) = (proc.processes(), pod("/etc/web"), Instant::now());
    assert_eq!(trusting(&processes, &mounts, now), [10]);
    for namespace in [None, Some(8)] {
        proc.set(&MadeUpProcess {
            namespace,
            ..PROCESS
        });
        assert_eq!(trusting(&processes, &mounts, now), [11]);
    }
}

#[test]
fn search_for_another_pod_reads_what_the_first_has_not_looked_for() {
    let proc = MadeUpProc::new(&[MOUNTED]);
    let (processes, now) = (proc.processes(), Instant::now());
    assert_eq!(trusting(&processes, &pod("/etc/other"), now), NONE);
    assert_eq!(trusting(&processes, &pod("/etc/web"), now), [10]);
    assert_eq!(trusting(&processes, &pod("/etc/web"), now), [10]);
    let mut elsewhere = pod("/etc/web");
    elsewhere.volumes = [("v".into(), "/pods/2/v".into())].into();
    assert_eq!(trusting(&processes, &elsewhere, now), NONE);
}

#[test]
fn namespaces_without_processes_are_forgotten() {
    let proc = MadeUpProc::new(&[PROCESS]);
    let (processes, mounts, now) = (proc.processes(), pod("/etc/web"), Instant::now());
    let is_known = |now| {
        let known = processes.state.known.lock();
        known.namespace(7, now).is_some()
    };
    trusting(&processes, &mounts, now);
    assert!(is_known(now));
    let later = now + Duration::from_secs(1);
    trusting(&processes, &mounts, later);
    assert!(is_known(later));
    proc.end(&PROCESS);
    trusting(&processes, &mounts, later + Duration::from_secs(1));
    assert!(!is_known(later));
}

#[test]
fn hostile_content_of_processes_does_no_harm() {
    let proc = MadeUpProc::new(&[MOUNTED]);
    let deep = format!("{} 1 8:1 {} /etc/web rw\n", u64::MAX, "/a".repeat(1 << 20));
    let texts: [&[u8]; 8] = [
        b"",
        b"\0",
        b"\xff\xfe \n ) \n",
        b") 1 2 3",
        b"11 (a) S 99999999999999999999 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 -5 1 1 1 1 1 1 1 1 0 0 0 0",
        b"99999999999999999999 1 8:1 /pods/1/v /etc/web rw\n",
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
    for name in ["99999999999999999999", "1x", "-5", "sys", "self"] {
        proc.write(name, "stat", b"");
    }
    let (processes, mounts) = (proc.processes(), pod("/etc/web"));
    for _ in 0..2 {
        let found = processes.containers(&mounts).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].main.pid, 10);
        let main = &found[0].main;
        assert_eq!(processes.executable(main).as_deref(), Some("runc"));
    }
}

#[test]
fn names_of_commands_do_not_confuse() {
    let text = b"4711 (a) R 7 (b) S 42 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 \
        1 2 3 4 5 6 7 8 256 16384 4096 1 0 0 0 17 1 0 0 0 0 0";
    let expected = Stat {
        parent: 42,
        start: 98765,
        // Blocked and caught; not pending or ignored.
        handled: 16384 | 1,
    };
    assert_eq!(Stat::parse(text), Some(expected));
}
