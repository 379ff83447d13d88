//! The targets of actions, and the shell loops that act in place of larder: processes that end with their owner.

use std::{
    env,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

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
        let script = format!(
            "mount --bind '{}' '{}' && mount -t tmpfs none '{}' && exec '{}' --receive {tag} '{}'",
            volume.display(),
            at.display(),
            agent_directory(volume)?.display(),
            program.display(),
            self.socket.display()
        );
        Group::spawn(Command::new("unshare").args(["-m", "sh", "-c", &script]))
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

/// Processes that have nothing to do with it, every tenth in a mount namespace of its own.
pub(super) fn bystanders(count: usize) -> anyhow::Result<Vec<Group>> {
    let one = |number: usize| {
        if number.is_multiple_of(10) {
            Group::spawn(Command::new("unshare").args(["-m", "sleep", "infinity"]))
        } else {
            Group::spawn(Command::new("sleep").arg("infinity"))
        }
    };
    (0..count).map(one).collect()
}

/// The directory of the agent that has this volume, without links. No container shows it.
fn agent_directory(volume: &Path) -> anyhow::Result<PathBuf> {
    let volume = volume.canonicalize()?;
    let pods = volume.ancestors().find(|path| path.ends_with("pods"));
    let directory = pods
        .and_then(Path::parent)
        .context("not a volume of an agent")?;
    Ok(directory.to_owned())
}
