//! The targets of actions, and the shell loops that act in place of larder: processes that end with their owner.

use std::{
    env,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

/// Builds a root in memory, moves into it, and becomes the command after `--`.
const CONTAINER: &str = r#"
mount -t tmpfs none /mnt; cd /mnt
mkdir dev etc mnt proc sys usr; mount --bind /usr usr
for name in bin lib lib64 sbin; do if [ -L "/$name" ]; then ln -s "usr/$name" "$name"; fi; done
mount -t proc none proc; mount -t sysfs none sys; mount -t tmpfs none dev
mkdir dev/pts dev/shm; mount -t devpts none dev/pts; mount -t tmpfs none dev/shm
for name in dev/full dev/null dev/random dev/tty dev/urandom dev/zero etc/hosts etc/hostname etc/resolv.conf; do
    touch "$name"; mount --bind "/$name" "$name"
done
for name in bus fs irq sys; do mount --bind "proc/$name" "proc/$name"; done
for name in kcore keys sysrq-trigger timer_list; do
    if [ -e "proc/$name" ]; then mount --bind /dev/null "proc/$name"; fi
done
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p ".$2"; else mkdir -p ".${2%/*}"; touch ".$2"; fi
    mount --bind "$1" ".$2"; shift 2
done
shift; pivot_root . mnt; umount -l /mnt; exec "$@"
"#;

/// Processes in a group of their own.
pub(super) struct Group(Child);

impl Group {
    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self(child))
    }

    /// Number of its first process.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// The directory of the processes' mount points, socket and program.
pub(super) struct Stage {
    pub(super) folder: PathBuf,
    pub(super) socket: PathBuf,
}

impl Stage {
    /// The mount point of the volume in the container with this tag.
    pub(super) fn mount_point(&self, tag: &str) -> PathBuf {
        self.folder.join(format!("at-{tag}"))
    }

    /// The program of this benchmark under another name, which is also the name of its process.
    pub(super) fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            symlink(env::current_exe()?, &path)?;
        }
        Ok(path)
    }

    /// A container with the volume mounted, whose main process says when it gets HUP.
    pub(super) fn receiver(&self, tag: &str, volume: &Path) -> anyhow::Result<Group> {
        let (program, at) = (self.program(tag)?, self.mount_point(tag));
        let mut command = Self::container(&[
            [&self.folder, &self.folder],
            [&env::current_exe()?, &env::current_exe()?],
            [volume, &at],
        ]);
        Group::spawn(
            command
                .arg(program)
                .args(["--receive", tag])
                .arg(&self.socket),
        )
    }

    /// Runs what is added to it in a mount namespace as runtimes make them: its own root, and some 25 mounts. `mounts` are
    /// further ones: what, and where.
    fn container(mounts: &[[&Path; 2]]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-euc", CONTAINER, "sh"]);
        command.args(mounts.as_flattened()).arg("--");
        command
    }

    /// Processes that have nothing to do with it, every tenth in a container of its own.
    pub(super) fn bystanders(count: usize) -> anyhow::Result<Vec<Group>> {
        let one = |number: usize| {
            let mut command = if number.is_multiple_of(10) {
                Self::container(&[])
            } else {
                Command::new("env")
            };
            Group::spawn(command.args(["sleep", "infinity"]))
        };
        (0..count).map(one).collect()
    }

    /// The usual loop: `action` at each swap of the volume.
    pub(super) fn shell_loop(volume: &Path, action: &str) -> anyhow::Result<Group> {
        let script = format!(
            "inotifywait -m -q -e moved_to --format %f '{}' | while read -r name; do
                if [ \"$name\" = ..data ]; then {action}; fi
            done",
            volume.display()
        );
        Group::spawn(Command::new("bash").args(["-c", &script]))
    }
}
