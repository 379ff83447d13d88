//! In made-up directories of processes.

use std::{fs, os::unix::fs::symlink};

use rustix::process::Signal;
use tempfile::TempDir;

use super::*;

/// A directory as `/proc` is.
struct MadeUpProc(TempDir);

/// A made-up process. Its number is 10 unless a test says otherwise.
#[derive(Clone, Copy)]
struct MadeUpProcess {
    pid: i32,
    namespace: u64,
    start: u64,
    executable: Option<&'static str>,
    /// Whether the volume is mounted in its namespace.
    has_mount: bool,
}

const PROCESS: MadeUpProcess = MadeUpProcess {
    pid: 10,
    namespace: 7,
    start: 500,
    executable: Some("/usr/bin/runc"),
    has_mount: false,
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
        self.end(process.pid);
        let stat = format!("{name} (web) S 3 1 1 0 -1{}", " 0".repeat(13));
        let stat = format!("{stat} {} 1 1", process.start);
        self.write(&name, "stat", stat.as_bytes());
        self.link(&name, "ns/mnt", &format!("mnt:[{}]", process.namespace));
        if let Some(executable) = process.executable {
            self.link(&name, "exe", executable);
        }
        let mut table = "20 1 0:9 / / rw - overlay overlay rw\n".to_owned();
        if process.has_mount {
            table += "21 20 8:1 /pods/1/v/..data /etc/web ro - ext4 /dev/vda rw\n";
        }
        self.write(&name, "mountinfo", table.as_bytes());
    }

    fn end(&self, pid: i32) {
        // It may not have run.
        let _ = fs::remove_dir_all(self.0.path().join(pid.to_string()));
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
    for process in before {
        proc.end(process.pid);
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
    let mounted = MadeUpProcess {
        has_mount: true,
        ..PROCESS
    };
    let before_expiry = EXPIRY.checked_sub(Duration::from_millis(1)).unwrap();
    check(&[PROCESS], &[mounted], Duration::ZERO, &[]);
    check(&[PROCESS], &[mounted], before_expiry, &[]);
    // Whichever of its processes comes first.
    let younger = MadeUpProcess {
        pid: 9,
        start: 600,
        ..mounted
    };
    let after = [mounted, younger];
    check(&[PROCESS], &after, Duration::ZERO, &[]);
}

#[test]
fn namespace_is_read_again_when_its_witness_cannot_vouch_for_it() {
    let mounted = MadeUpProcess {
        has_mount: true,
        ..PROCESS
    };
    let at_once = Duration::ZERO;
    // It has expired.
    check(&[PROCESS], &[mounted], EXPIRY, &[10]);
    // The number of the witness, and that of the namespace, were used again.
    let reused = MadeUpProcess {
        start: 501,
        ..mounted
    };
    check(&[PROCESS], &[reused], at_once, &[10]);
    // The witness was a runtime that has made the mounts since, and has executed the program of the container.
    let executed = MadeUpProcess {
        executable: Some("/usr/bin/web"),
        ..mounted
    };
    check(&[PROCESS], &[executed], at_once, &[10]);
    // It has ended, and the namespace lives on, or its number was used again.
    let other = MadeUpProcess { pid: 11, ..mounted };
    check(&[PROCESS], &[other], at_once, &[11]);
    // It has left the namespace.
    let left = MadeUpProcess {
        namespace: 8,
        ..PROCESS
    };
    check(&[PROCESS], &[left, other], at_once, &[11]);
    // It may not be examined.
    let hidden = |process: &MadeUpProcess| MadeUpProcess {
        executable: None,
        ..*process
    };
    check(&[hidden(&PROCESS)], &[hidden(&mounted)], at_once, &[10]);
    check(&[PROCESS], &[hidden(&mounted)], at_once, &[10]);
}

#[test]
fn search_for_another_pod_reads_what_the_first_has_not_looked_for() {
    let mounted = MadeUpProcess {
        has_mount: true,
        ..PROCESS
    };
    let proc = MadeUpProc::new(&[mounted]);
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
        let known = processes.state.namespaces.lock().get(7, now);
        known.is_some()
    };
    trusting(&processes, &mounts, now);
    assert!(is_known(now));
    let later = now + Duration::from_secs(1);
    trusting(&processes, &mounts, later);
    assert!(is_known(later));
    proc.end(10);
    trusting(&processes, &mounts, later + Duration::from_secs(1));
    assert!(!is_known(later));
}

#[test]
fn hostile_content_of_processes_does_no_harm() {
    let mounted = MadeUpProcess {
        has_mount: true,
        ..PROCESS
    };
    let proc = MadeUpProc::new(&[mounted]);
    let deep = format!("{} 1 8:1 {} /etc/web rw\n", u64::MAX, "/a".repeat(1 << 20));
    let texts: [&[u8]; 8] = [
        b"",
        b"\0",
        b"\xff\xfe \n ) \n",
        b") 1 2 3",
        b"11 (a) S 99999999999999999999 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 -5 1 1",
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
        proc.write("10", "status", b"SigCgt:\txyz\nSigBlk:\t\xff\nSigCgt:\n");
        assert_eq!(processes.handles(main, Signal::HUP), Some(false));
        assert_eq!(processes.executable(main).as_deref(), Some("runc"));
    }
}

#[test]
fn names_of_commands_do_not_confuse() {
    let text = b"4711 (a) R 7 (b) S 42 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1";
    assert_eq!(parent_and_start(text), Some((42, 98765)));
}
