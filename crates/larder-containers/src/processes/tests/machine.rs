//! Among the processes of this machine: containers are mount namespaces of their own.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use super::*;

/// A process in a mount namespace of its own, with a directory of the machine that may be mounted at another one. It
/// runs the commands that it is given. Dropped, it is killed.
struct MountingProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

/// Mounts the volume of the pod, and covers the directory of the agent.
const MOUNT: &str =
    "mount --bind \"$0/agent/pods/1/volumes/v\" \"$0/at\"; mount -t tmpfs none \"$0/agent\"";

impl MountingProcess {
    /// With the directory mounted. `None` without the permission to make one, which CI must have.
    fn start() -> Option<Self> {
        let mut container = Self::start_without_mount()?;
        assert_eq!(container.command(MOUNT), "");
        Some(container)
    }

    fn start_without_mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["agent/pods/1/volumes/v", "at"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let mut child = Command::new("unshare")
            .args(["-m", "bash", "-c"])
            .arg("echo ready; while read -r line; do eval \"$line\"; echo .; done")
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut container = Self {
            child,
            output,
            folder,
        };
        if container.line() == "ready\n" {
            return Some(container);
        }
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must be able to make mount namespaces");
        None
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn write(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }

    /// Runs a command of the shell; returns its output.
    fn command(&mut self, command: &str) -> String {
        self.write(command);
        let mut output = String::new();
        loop {
            let line = self.line();
            if line == ".\n" {
                return output;
            }
            assert!(!line.is_empty(), "the shell has ended");
            output.push_str(&line);
        }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn processes(&self) -> Processes {
        let folder = self.folder.path().canonicalize().unwrap();
        Processes::new("/proc", folder.join("agent"))
    }

    fn mounts(&self) -> PodMounts {
        let folder = self.folder.path().canonicalize().unwrap();
        PodMounts {
            volumes: [("v".into(), folder.join("agent/pods/1/volumes/v"))].into(),
            containers: vec![ContainerMounts {
                name: "web".into(),
                mounts: vec![("v".into(), folder.join("at/."))],
            }],
        }
    }
}

impl Drop for MountingProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn container_is_found_by_its_mounts_and_its_mount_point() {
    let Some(container) = MountingProcess::start() else {
        return;
    };
    let (processes, mut mounts) = (container.processes(), container.mounts());
    let found = search(&processes, &mounts);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].candidate_names, ["web"]);
    assert_eq!(found[0].main.pid, container.pid());
    assert_eq!(
        processes.executable(&found[0].main).as_deref(),
        Some("bash")
    );
    // A pod that mounts its volume elsewhere has no process here.
    mounts.containers[0].mounts[0].1 = "/elsewhere".into();
    assert_eq!(search(&processes, &mounts), []);
}

#[test]
fn mount_in_a_running_container_is_found() {
    let Some(mut container) = MountingProcess::start_without_mount() else {
        return;
    };
    let (processes, mounts) = (container.processes(), container.mounts());
    assert_eq!(search(&processes, &mounts), []);
    assert_eq!(container.command(MOUNT), "");
    assert_eq!(mains(&processes, &mounts), [container.pid()]);
}

#[test]
fn container_that_lives_on_without_its_first_process_is_found() {
    let Some(mut container) = MountingProcess::start_without_mount() else {
        return;
    };
    let (processes, mounts) = (container.processes(), container.mounts());
    let command = format!("{MOUNT}; sleep infinity & echo $!");
    let pid = container.command(&command).trim().parse().unwrap();
    container.child.kill().unwrap();
    // It is still listed, but has no namespace any more.
    let first = WaitId::Pid(Pid::from_raw(container.pid()).unwrap());
    waitid(first, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    let found = mains(&processes, &mounts);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(found, [pid]);
}

// on-change 38
#[test]
fn process_with_a_reused_pid_gets_no_signal() {
    let Some(mut container) = MountingProcess::start() else {
        return;
    };
    let processes = container.processes();
    let mut found = search(&processes, &container.mounts());
    // The process that was found under this PID started earlier than the present one.
    let main = &mut found[0].main;
    main.start -= 1;
    let error = processes.open(main).unwrap_err();
    assert!(matches!(error, SignalProcessError::Ended { .. }), "{error}");
    main.start += 1;
    let open = processes.open(main).unwrap();
    assert!(container.child.try_wait().unwrap().is_none());
    // A process that ends after it was opened is not mistaken for a later one either.
    container.child.kill().unwrap();
    container.child.wait().unwrap();
    let error = open.send(Signal::KILL).unwrap_err();
    assert!(matches!(error, SignalProcessError::Ended { .. }), "{error}");
    assert!(processes.open(main).is_err());
}

// on-change 41
#[test]
fn ordinary_user_may_not_signal_a_process_of_another() {
    let Some(container) = MountingProcess::start() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI must run as root");
        return;
    }
    let (processes, mounts) = (container.processes(), container.mounts());
    let pid = container.child.id();
    // Only this thread becomes an ordinary user.
    let thread = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        let found = search(&processes, &mounts);
        let open = processes.open(&found[0].main).unwrap();
        open.send(Signal::HUP).unwrap_err().to_string()
    });
    let expected = format!("not permitted to signal process {pid} of user 0");
    assert_eq!(thread.join().unwrap(), expected);
}
