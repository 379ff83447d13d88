//! A container of a pod that an agent serves: a process in mount and PID namespaces of its own, with the volumes of the
//! pod where the pod says.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use tempfile::TempDir;

/// Whether containers can be made here. CI must be able to.
pub(crate) fn permitted() -> bool {
    let probe = Command::new("unshare")
        .args(["-m", "-p", "-f", "true"])
        .output();
    let permitted = probe.is_ok_and(|output| output.status.success());
    assert!(
        permitted || std::env::var_os("CI").is_none(),
        "CI must be able to make mount and PID namespaces"
    );
    permitted
}

/// Lines of a script that give a namespace of its own an `/etc` of its own, whose changes are kept in `scratch`.
pub(crate) fn own_etc(scratch: &Path) -> String {
    let scratch = scratch.display();
    format!(
        "mount -t tmpfs none '{scratch}'; mkdir '{scratch}/upper' '{scratch}/work'
        mount -t overlay none -o 'lowerdir=/etc,upperdir={scratch}/upper,workdir={scratch}/work' /etc\n"
    )
}

/// A running container. Dropped, it is killed.
pub(crate) struct Container {
    child: Child,
    stdout: BufReader<ChildStdout>,
    _folder: TempDir,
}

impl Container {
    /// Starts a container with these directories at mount points below `/etc`, and these variables. It becomes
    /// `command`, given in the words of a shell.
    pub(crate) fn start(
        mounts: &[(&Path, &str)],
        variables: &BTreeMap<String, String>,
        command: &str,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scratch = folder.path().join("etc");
        fs::create_dir(&scratch).unwrap();
        let binds = mounts.iter().map(|(from, to)| {
            let from = from.display();
            format!("mkdir -p '{to}'; mount --bind '{from}' '{to}'\n")
        });
        let mut binds: String = binds.collect();
        if let Some((volume, _)) = mounts.first() {
            let directory = agent_directory(volume);
            let _ = writeln!(binds, "mount -t tmpfs none '{}'", directory.display());
        }
        let script = folder.path().join("script");
        let text = format!("set -e\n{}{binds}exec {command}\n", own_etc(&scratch));
        fs::write(&script, text).unwrap();
        let mut child = Command::new("unshare")
            .args(["-p", "-f", "--kill-child", "unshare", "-m", "sh"])
            .arg(script)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
            _folder: folder,
        }
    }

    /// Its exit code, once it has ended by itself.
    pub(crate) fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// The next line that it prints; empty when it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended already. Its first process ends with `unshare`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directory of the agent that has this volume, without links. No container shows it.
fn agent_directory(volume: &Path) -> PathBuf {
    let volume = volume.canonicalize().unwrap();
    let pods = volume.ancestors().find(|path| path.ends_with("pods"));
    pods.unwrap().parent().unwrap().to_owned()
}
