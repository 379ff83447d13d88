//! Starts commands on this machine, as larder's own user or as another.

use std::{
    io::{self, Write as _},
    os::unix::fs::fchown,
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::{
    fs::{Gid, Uid},
    process::geteuid,
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
        set_thread_gid, set_thread_groups, set_thread_uid,
    },
};
use tempfile::TempPath;
use tokio::{
    process::{Child, Command},
    runtime::Handle,
};

use super::{
    CHANGES, Launch, LaunchError, Launched, PATH,
    users::{self, User},
};
use larder_containers::namespaces::in_thread;

/// Starts commands on this machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// A directory in memory for files of changes. The users of all hooks must be able to enter it.
    pub memory: PathBuf,
    /// `LANG` and `TZ` of this process, and `HOME` of its user. A command gets no other variable of it (rule X2).
    pub base: Vec<(String, String)>,
}

impl Machine {
    /// With the base variables of this process.
    pub fn new(memory: PathBuf) -> Self {
        let base = ["HOME", "LANG", "TZ"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
        Self {
            memory,
            base: base.collect(),
        }
    }

    /// Starts a command.
    ///
    /// # Errors
    ///
    /// The command or its user is unknown, or may not be used, or the system has no room for a process.
    pub fn launch(&self, launch: Launch<'_>) -> Result<Launched, LaunchError> {
        let user = launch.command.user.as_deref().map(user).transpose()?;
        let changes = self.changes(&launch.changes, user.as_ref())?;
        let mut words = launch.command.words.iter();
        let program = words.next().ok_or(LaunchError::NotFound)?;
        let [stdout, stderr] = launch.output;
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/")
            .envs(self.base.iter().map(|(name, value)| (name, value)))
            .envs(user.iter().map(|user| ("HOME", &user.home)))
            .envs(launch.variables)
            .env(CHANGES, &changes)
            .current_dir(&launch.command.working_directory)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        let child = match user {
            None => command.spawn(),
            Some(user) => spawn_as(&mut command, &user),
        };
        let directory = Path::new(&launch.command.working_directory);
        let child = child.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if directory.is_dir() => LaunchError::NotFound,
            io::ErrorKind::NotFound => LaunchError::prepare("enter the working directory")(source),
            _ => LaunchError::prepare("start the command")(source),
        })?;
        Ok(Launched {
            child,
            changes: Some(changes),
        })
    }

    /// Writes the file of changes, which only the command's user can read.
    fn changes(&self, content: &[u8], user: Option<&User>) -> Result<TempPath, LaunchError> {
        let write = || {
            let mut file = tempfile::Builder::new()
                .prefix("changes-")
                .suffix(".json")
                .tempfile_in(&self.memory)?;
            file.write_all(content)?;
            if let Some(user) = user {
                fchown(file.as_file(), Some(user.uid), Some(user.gid))?;
            }
            Ok(file.into_temp_path())
        };
        write().map_err(LaunchError::prepare("write the file of changes"))
    }
}

/// The user of this name, if this process may become it.
fn user(name: &str) -> Result<User, LaunchError> {
    let failed = LaunchError::prepare("read the users of this machine");
    let found = users::find(name)
        .map_err(failed)?
        .ok_or_else(|| LaunchError::UnknownUser {
            user: name.to_owned(),
        })?;
    if geteuid().is_root() || geteuid().as_raw() == found.uid {
        Ok(found)
    } else {
        Err(LaunchError::NotPermitted {
            user: name.to_owned(),
        })
    }
}

/// Starts a command as another user, without capabilities.
///
/// The kernel keeps users and capabilities for each thread, and a process gets those of the thread that starts it. So a
/// separate thread becomes the user, starts the command, and ends.
fn spawn_as(command: &mut Command, user: &User) -> io::Result<Child> {
    if !geteuid().is_root() {
        return command.spawn();
    }
    let runtime = Handle::current();
    in_thread(|| {
        let _entered = runtime.enter();
        become_user(user)?;
        command.spawn()
    })
}

fn become_user(user: &User) -> rustix::io::Result<()> {
    let groups: Vec<_> = user.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    set_thread_gid(Gid::from_raw(user.gid))?;
    if user.uid != 0 {
        set_thread_uid(Uid::from_raw(user.uid))?;
        clear_ambient_capability_set()?;
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none)?;
    }
    Ok(())
}
