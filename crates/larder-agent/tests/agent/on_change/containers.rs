//! Containers under test: real processes in mount and PID namespaces of their own, with the volumes of a pod where it
//! says.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use tempfile::TempDir;

/// Longest wait for what a container does by itself.
const PATIENCE: Duration = Duration::from_mins(1);

/// Whether containers can be made here. CI must be able to.
pub(super) fn permitted() -> bool {
    let probe = Command::new("unshare")
        .args(["-m", "-p", "-f", "true"])
        .output();
    let permitted = probe.is_ok_and(|output| output.status.success());
    if !permitted {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must be able to make mount and PID namespaces");
        // Straight to the stream, which no test runner captures.
        let note = b"not tested: no permission to make mount and PID namespaces\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), note);
    }
    permitted
}

/// A running container. Dropped, it is killed.
pub(super) struct Container {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// Mount points, which are the same in every container.
    _folder: TempDir,
}

/// The mount point of volumes in containers: a directory of the machine, which they cover.
pub(super) struct MountPoints(TempDir);

impl MountPoints {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The mount point `name`, which exists.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Container {
    /// Starts a container with these mounts of directories at mount points. `script` is run by a shell, and says
    /// `ready` when it is.
    pub(super) fn start(mounts: &[(&Path, &Path)], script: &str) -> Self {
        Self::start_with(
            &["-p", "-f", "--kill-child", "unshare", "-m"],
            mounts,
            script,
        )
    }

    /// The same with options of `unshare`.
    pub(super) fn start_with(options: &[&str], mounts: &[(&Path, &Path)], script: &str) -> Self {
        let binds: Vec<_> = mounts
            .iter()
            .map(|(from, to)| format!("mount --bind '{}' '{}'; ", from.display(), to.display()))
            .collect();
        let mut binds = binds.concat();
        if let Some((volume, _)) = mounts.first() {
            let directory = agent_directory(volume);
            let _ = write!(binds, "mount -t tmpfs none '{}'; ", directory.display());
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        fs::write(&file, format!("set -e; {binds}{script}")).unwrap();
        // A shell cannot handle a signal that was ignored when it started, as `nohup` does.
        let mut child = Command::new("env")
            .args(["--default-signal", "unshare"])
            .args(options)
            .arg("bash")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || read(output, &sender));
        let container = Self {
            child,
            lines,
            _folder: folder,
        };
        container.says("ready");
        container
    }

    /// Waits until the container says exactly this, next.
    #[track_caller]
    pub(super) fn says(&self, expected: &str) {
        let line = self.lines.recv_timeout(PATIENCE);
        assert_eq!(line.as_deref(), Ok(expected));
    }

    /// What it says next, if it has by now.
    pub(super) fn said(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Waits until it ends.
    pub(super) fn ended(&mut self) {
        self.child.wait().unwrap();
    }
}

/// The directory of the agent that has this volume, without links. No container shows it.
fn agent_directory(volume: &Path) -> PathBuf {
    let volume = volume.canonicalize().unwrap();
    let pods = volume.ancestors().find(|path| path.ends_with("pods"));
    pods.unwrap().parent().unwrap().to_owned()
}

fn read(output: BufReader<ChildStdout>, lines: &mpsc::Sender<String>) {
    for line in output.lines().map_while(Result::ok) {
        if lines.send(line).is_err() {
            return;
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended already. Its first process ends with `unshare`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A script of a process that says what it reads of `file` when it gets HUP.
pub(super) fn rereads(file: &Path) -> String {
    let file = file.display();
    format!("trap 'cat {file}; echo' HUP; echo ready; while :; do sleep 1000 & wait $! || :; done")
}
