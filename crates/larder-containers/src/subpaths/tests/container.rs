//! A container that a test makes: a mount namespace with its own root, and a shell that runs the test's commands.

use std::{
    cell::Cell,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use tempfile::TempDir;

use crate::processes::{ContainerMounts, PodMounts, Processes};

/// Makes the root of the container `$0/root`, by `$2` if it is given, with the programs of this machine, runs `$1` in `$0`,
/// and moves there.
const START: &str = r#"
set -e
cd "$0"
mkdir -p root
eval "${2:-mount -t tmpfs none root}"
for d in bin sbin lib lib64; do [ -e "/$d" ] && cp -a "/$d" root/; done
mkdir -p root/usr root/dev root/proc root/etc root/run root/var root/old
ln -s ../run root/var/run
mount --rbind /usr root/usr
mount --rbind /dev root/dev
mount --rbind /proc root/proc
eval "$1"
cd root
pivot_root . old
cd /
umount -l /old
echo ready
set +e
while read -r line; do eval "$line"; echo; echo .; done
"#;

/// A pod's directory and volumes: `v`, and `w`, which the container mounts as a whole.
pub(super) struct Node {
    folder: TempDir,
    /// What is mounted on the machine, the first one first.
    mounted: Vec<PathBuf>,
    /// The number of sets that were written.
    sets: Cell<u32>,
}

impl Node {
    pub(super) fn new() -> Self {
        let node = Self {
            folder: tempfile::tempdir().unwrap(),
            mounted: Vec::new(),
            sets: Cell::new(0),
        };
        for volume in ["v", "w"] {
            fs::create_dir_all(node.volume(volume)).unwrap();
        }
        node.write("w", &[("whole", "w")]);
        node
    }

    /// With the volume `v` in memory, as a Secret.
    pub(super) fn with_tmpfs() -> Self {
        let mut node = Self::new();
        let path = node.volume("v");
        run("mount", &["-t", "tmpfs", "none", path.to_str().unwrap()]);
        node.mounted.push(path);
        node
    }

    /// With an overlay as the root of the container, which the machine mounts as a runtime does.
    pub(super) fn with_overlay() -> Self {
        let mut node = Self::new();
        let folder = node.folder.path().canonicalize().unwrap();
        let (layers, root) = (folder.join("layers"), folder.join("root"));
        for path in [&layers, &root] {
            fs::create_dir(path).unwrap();
        }
        let script = format!("cd {} && {OVERLAY}", folder.display());
        run("bash", &["-c", &script]);
        node.mounted.extend([layers, root]);
        node
    }

    /// Where `agent` and the root of the container are.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder().join("agent")
    }

    pub(super) fn volume(&self, name: &str) -> PathBuf {
        self.root().join("pods/1/volumes").join(name)
    }

    /// Swaps the volume's set for one with these files, as the kubelet does.
    pub(super) fn write(&self, volume: &str, files: &[(&str, &str)]) {
        let number = self.sets.get();
        self.sets.set(number + 1);
        let volume = self.volume(volume);
        let set = volume.join(format!("..{number}"));
        fs::create_dir(&set).unwrap();
        for (path, text) in files {
            let file = set.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
            let name = path.split('/').next().unwrap();
            let link = volume.join(name);
            if fs::symlink_metadata(&link).is_err() {
                std::os::unix::fs::symlink(format!("..data/{name}"), link).unwrap();
            }
        }
        let before = fs::read_link(volume.join("..data"));
        std::os::unix::fs::symlink(format!("..{number}"), volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        if let Ok(before) = before {
            fs::remove_dir_all(volume.join(before)).unwrap();
        }
    }

    /// The lines of the machine's `mountinfo` about it.
    pub(super) fn mounts_of_machine(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let folder = self.folder.path().canonicalize().unwrap();
        let lines = table
            .lines()
            .filter(|line| line.contains(folder.to_str().unwrap()));
        lines.map(str::to_owned).collect()
    }

    pub(super) fn processes(&self) -> Processes {
        Processes::new("/proc", self.root())
    }

    /// The pod's volumes, and its container with these mounts.
    pub(super) fn mounts(&self, mounts: &[(&str, &str)]) -> PodMounts {
        let volumes = ["v", "w"].map(|name| (name.into(), self.volume(name)));
        let mounts = mounts
            .iter()
            .map(|(name, path)| ((*name).into(), (*path).into()));
        PodMounts {
            volumes: volumes.into(),
            containers: vec![ContainerMounts {
                name: "web".into(),
                mounts: mounts.collect(),
            }],
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for path in self.mounted.iter().rev() {
            run("umount", &["-l", path.to_str().unwrap()]);
        }
    }
}

pub(super) fn run(program: &str, args: &[&str]) {
    assert!(Command::new(program).args(args).status().unwrap().success());
}

/// Whether this process may make containers, which CI must be able to.
pub(super) fn may_contain() -> bool {
    let made = Command::new("unshare")
        .args(["-m", "true"])
        .stderr(Stdio::null())
        .status();
    let may = made.is_ok_and(|status| status.success());
    assert!(
        may || std::env::var_os("CI").is_none(),
        "CI must be able to make mount namespaces"
    );
    may
}

/// Mounts an overlay on `root`.
pub(super) const OVERLAY: &str =
    "mkdir -p layers; mount -t tmpfs none layers; mkdir layers/l layers/u layers/w
    mount -t overlay none -o lowerdir=layers/l,upperdir=layers/u,workdir=layers/w root";

/// Dropped, it is killed.
pub(super) struct Container {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// Mounts the key of `v`, as a runtime does.
pub(super) const KEY: &str =
    "touch root/etc/app.conf; mount --bind agent/pods/1/volumes/v/key root/etc/app.conf
    mount -o remount,bind,ro,nosuid,nodev,noexec root/etc/app.conf";

impl Container {
    /// With these mounts, made in the directory that has `agent` and `root`.
    pub(super) fn start(node: &Node, mounts: &str) -> Self {
        Self::start_with(node, mounts, &["-m"])
    }

    pub(super) fn start_with(node: &Node, mounts: &str, namespaces: &[&str]) -> Self {
        Self::start_on(node, mounts, namespaces, "")
    }

    /// With a root that `root` mounts.
    pub(super) fn start_on(node: &Node, mounts: &str, namespaces: &[&str], root: &str) -> Self {
        let mut child = Command::new("unshare")
            .args(namespaces)
            .args(["bash", "-c", START])
            .arg(node.folder.path().canonicalize().unwrap())
            .arg(mounts)
            .arg(root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut container = Self { child, output };
        assert_eq!(container.line(), "ready");
        container
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Runs a command of the shell; returns its output.
    pub(super) fn run(&mut self, command: &str) -> String {
        let command = command.replace('\n', " ");
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut output = String::new();
        loop {
            let line = self.line();
            if line == "." {
                return output.trim().to_owned();
            }
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "the shell has ended"
            );
            output.push_str(&line);
            output.push('\n');
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A path in the container, as this process reaches it.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.pid())).join(path.trim_start_matches('/'))
    }

    /// The lines of its `mountinfo` with this mount point.
    pub(super) fn mounts_at(&self, mount_point: &str) -> Vec<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).unwrap();
        let lines = table
            .lines()
            .filter(|line| line.split(' ').nth(4) == Some(mount_point));
        lines.map(str::to_owned).collect()
    }

    pub(super) fn end(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}
