//! The processes of a pod's containers, found by their mounts (rules G1 to G4).
//!
//! A container has a mount namespace of its own, in which the volumes of its pod are mounted at the paths in its
//! specification. So `/proc/PID/mountinfo` shows the container of a process, whatever runtime has started it.
//!
//! Invariants:
//! 1. A process belongs to a container only if a volume's directory (device and root) is mounted at a mount point that
//!    the pod gives to this container. A namespace that has the directory elsewhere, such as a copy of the machine's
//!    own mounts, is not a container.
//! 2. A signal goes to the process that was found, never to another one with a reused PID: it is sent through a pidfd,
//!    after a second check of start time, and of mount namespace or control groups.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use smol_str::SmolStr;

use super::cgroups::ContainerId;

/// The volumes of a pod on this machine, and the mount points in its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMounts {
    /// Directory of each volume that larder delivers, absolute and without links.
    pub volumes: BTreeMap<SmolStr, PathBuf>,
    /// The containers that may be the target of a hook.
    pub containers: Vec<ContainerMounts>,
}

/// The mount points of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMounts {
    /// Name of the container.
    pub name: SmolStr,
    /// Volumes and mount points.
    pub mounts: Vec<(SmolStr, PathBuf)>,
}

impl ContainerMounts {
    /// Whether the container mounts the volume.
    pub fn has(&self, volume: &str) -> bool {
        self.mounts.iter().any(|(name, _)| name == volume)
    }

    /// The mounts of volumes that larder delivers, sorted, each once.
    fn delivered(&self, volumes: &BTreeMap<SmolStr, PathBuf>) -> Mounts {
        let mounts = self.mounts.iter();
        let delivered = mounts.filter(|(name, _)| volumes.contains_key(name));
        delivered
            .map(|(name, path)| (name.clone(), normalized(path)))
            .collect()
    }
}

/// A mount namespace in which volumes of the pod are mounted as one of its containers mounts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContainer {
    /// Names of the containers that have exactly these mounts; several if they mount the same.
    pub fits: Vec<SmolStr>,
    /// The mounts that were found: volume and mount point.
    pub mounts: BTreeSet<(SmolStr, PathBuf)>,
    /// Its main process: the oldest whose parent is outside.
    pub main: FoundProcess,
    /// All its processes, the oldest first.
    pub processes: Vec<FoundProcess>,
}

/// A process that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundProcess {
    /// Its number.
    pub pid: i32,
    /// Its user.
    pub user: u32,
    /// When it started, in clock ticks since boot.
    pub(super) start: u64,
    pub(super) owner: Owner,
    parent: i32,
}

/// What makes a process one of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Its mount namespace.
    Mounts(Namespace),
    /// Its control groups.
    Container(ContainerId),
}

/// Identifies a mount namespace: by its inode, or, where that may not be read, by one of its mounts, which no other
/// namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Namespace {
    Inode(u64),
    Mount(u64),
}

impl FoundProcess {
    /// When it started, since boot. It may have been up to one clock tick (10 ms) later.
    pub fn started(&self) -> Duration {
        Duration::from_millis(
            self.start.saturating_mul(1000) / rustix::param::clock_ticks_per_second(),
        )
    }
}

/// The processes of this machine.
#[derive(Clone, Debug)]
pub struct Processes {
    pub(super) proc: PathBuf,
}

impl Default for Processes {
    fn default() -> Self {
        Self::new("/proc")
    }
}

/// A process cannot be signaled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalProcessError {
    /// It has ended.
    #[error("process {pid} has ended")]
    Ended {
        /// Its number.
        pid: i32,
    },
    /// It belongs to another user, or the like.
    #[error("not permitted to signal process {pid} of user {user}")]
    NotPermitted {
        /// Its number.
        pid: i32,
        /// Its user.
        user: u32,
    },
    /// The system refuses.
    #[error("cannot signal process {pid}: {source}")]
    System {
        /// Its number.
        pid: i32,
        /// Why.
        source: io::Error,
    },
}

/// The kernel fills a buffer of this size with one read.
const PAGE: usize = 4096;

/// Volumes with the mount points that they are mounted at.
type Mounts = BTreeSet<(SmolStr, PathBuf)>;

/// A mount, as a line of `mountinfo` has it.
struct MountLine {
    id: u64,
    device: Box<str>,
    root: PathBuf,
    mount_point: PathBuf,
}

impl Processes {
    /// The processes that the directory `proc` shows.
    pub fn new(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into() }
    }

    /// The containers of a pod that run, in the order of their main processes' starts.
    ///
    /// # Errors
    ///
    /// The directory of processes or the mounts of this one cannot be read.
    pub fn containers(&self, mounts: &PodMounts) -> io::Result<Vec<FoundContainer>> {
        let own = parse(&read(&self.proc.join("self/mountinfo"))?);
        let own_namespace = self.namespace("self").ok();
        let own_mounts: BTreeSet<u64> = own.iter().map(|mount| mount.id).collect();
        let wanted = Wanted::new(mounts, &own);
        let mut seen: HashMap<Namespace, Option<Mounts>> = HashMap::new();
        let mut found: BTreeMap<Namespace, Vec<FoundProcess>> = BTreeMap::new();
        for entry in fs::read_dir(&self.proc)? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let namespace = self.namespace(&pid.to_string());
            if namespace.is_ok() && namespace.as_ref().ok() == own_namespace.as_ref() {
                continue;
            }
            // A process that ends meanwhile is skipped.
            let Some(namespace) = self.look(pid, namespace.ok(), &wanted, &own_mounts, &mut seen)
            else {
                continue;
            };
            if let Some(process) = self.process(pid, Owner::Mounts(namespace)) {
                found.entry(namespace).or_default().push(process);
            }
        }
        let mut containers: Vec<_> = found
            .into_iter()
            .filter_map(|(namespace, processes)| {
                let visible = seen.get(&namespace)?.clone()?;
                container(mounts, visible, processes)
            })
            .collect();
        containers.sort_by_key(|container| (container.main.start, container.main.pid));
        Ok(containers)
    }

    /// The namespace of a process, if volumes of the pod are mounted in it as a container mounts them.
    fn look(
        &self,
        pid: i32,
        namespace: Option<Namespace>,
        wanted: &Wanted,
        own_mounts: &BTreeSet<u64>,
        seen: &mut HashMap<Namespace, Option<Mounts>>,
    ) -> Option<Namespace> {
        if let Some(namespace) = namespace
            && let Some(known) = seen.get(&namespace)
        {
            return known.as_ref().map(|_| namespace);
        }
        let text = read(&self.proc.join(format!("{pid}/mountinfo"))).ok()?;
        let lines = parse(&text);
        let matching: Vec<_> = lines
            .iter()
            .filter(|line| !own_mounts.contains(&line.id))
            .filter_map(|line| Some((line.id, wanted.volume(line)?)))
            .collect();
        let first = matching.iter().map(|(id, _)| *id).min();
        let mounts: BTreeSet<_> = matching.into_iter().map(|(_, mount)| mount).collect();
        let namespace = match (namespace, first) {
            (Some(namespace), _) => namespace,
            (None, Some(first)) => Namespace::Mount(first),
            (None, None) => return None,
        };
        let known = (!mounts.is_empty()).then_some(mounts);
        let is_container = known.is_some();
        seen.insert(namespace, known);
        is_container.then_some(namespace)
    }

    fn namespace(&self, process: &str) -> io::Result<Namespace> {
        let link = fs::read_link(self.proc.join(process).join("ns/mnt"))?;
        let inode = link.to_str().and_then(|text| {
            let digits = text.strip_prefix("mnt:[")?.strip_suffix(']')?;
            digits.parse().ok()
        });
        inode
            .map(Namespace::Inode)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn process(&self, pid: i32, owner: Owner) -> Option<FoundProcess> {
        let directory = self.proc.join(pid.to_string());
        let (parent, start) = parent_and_start(&read(&directory.join("stat")).ok()?)?;
        let user = fs::metadata(directory).ok()?.uid();
        Some(FoundProcess {
            pid,
            user,
            start,
            owner,
            parent,
        })
    }

    /// Whether the process is still the one that was found.
    pub fn is_same(&self, process: &FoundProcess) -> bool {
        let found = self.process(process.pid, process.owner.clone());
        let is_same = found.is_some_and(|found| found.start == process.start);
        let moved = match &process.owner {
            Owner::Mounts(namespace) => matches!(
                (self.namespace(&process.pid.to_string()), namespace),
                (Ok(Namespace::Inode(now)), Namespace::Inode(then)) if now != *then
            ),
            Owner::Container(id) => self.container_of(process.pid).as_ref() != Some(id),
        };
        is_same && !moved
    }

    /// The name of the process's executable.
    pub fn executable(&self, process: &FoundProcess) -> Option<String> {
        let directory = self.proc.join(process.pid.to_string());
        if let Ok(path) = fs::read_link(directory.join("exe")) {
            let name = path.file_name()?.to_str()?;
            return Some(name.trim_end_matches(" (deleted)").to_owned());
        }
        // Another user's executable cannot be read, but its first 15 bytes.
        let name = fs::read_to_string(directory.join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// Whether the process catches or blocks the signal of this number; `None` if it has ended.
    pub fn handles(&self, process: &FoundProcess, signal: rustix::process::Signal) -> Option<bool> {
        let path = self.proc.join(process.pid.to_string()).join("status");
        let status = read(&path).ok()?;
        // A process may give itself any name.
        let status = String::from_utf8_lossy(&status);
        let bit = 1_u64 << (signal.as_raw() - 1);
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        let caught = mask("SigCgt:").unwrap_or(0);
        let blocked = mask("SigBlk:").unwrap_or(0);
        Some((caught | blocked) & bit != 0)
    }

    /// Opens the process, if it is still the one that was found.
    ///
    /// # Errors
    ///
    /// It has ended, or the system refuses.
    pub fn open(&self, process: &FoundProcess) -> Result<OpenProcess, SignalProcessError> {
        let pid = process.pid;
        let ended = SignalProcessError::Ended { pid };
        let Some(number) = Pid::from_raw(pid) else {
            return Err(ended);
        };
        let fd = pidfd_open(number, PidfdFlags::NONBLOCK).or_else(|errno| match errno {
            // Linux before 5.10.
            rustix::io::Errno::INVAL => pidfd_open(number, PidfdFlags::empty()),
            errno => Err(errno),
        });
        let fd = match fd {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Err(ended),
            Err(errno) => {
                let source = errno.into();
                return Err(SignalProcessError::System { pid, source });
            }
        };
        // The PID may have been reused before the process was opened.
        if !self.is_same(process) {
            return Err(ended);
        }
        let user = process.user;
        Ok(OpenProcess { fd, pid, user })
    }
}

/// An open process: it refers to the same process even if the PID is reused.
#[derive(Debug)]
pub struct OpenProcess {
    fd: OwnedFd,
    pid: i32,
    user: u32,
}

impl OpenProcess {
    /// Sends the signal.
    ///
    /// # Errors
    ///
    /// The process has ended, or the system refuses.
    pub fn send(&self, signal: rustix::process::Signal) -> Result<(), SignalProcessError> {
        let (pid, user) = (self.pid, self.user);
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::SRCH) => Err(SignalProcessError::Ended { pid }),
            Err(rustix::io::Errno::PERM) => Err(SignalProcessError::NotPermitted { pid, user }),
            Err(errno) => {
                let source = errno.into();
                Err(SignalProcessError::System { pid, source })
            }
        }
    }
}

/// The descriptor is readable when the process has ended.
impl AsRawFd for OpenProcess {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The volumes to find in the mounts of processes.
struct Wanted {
    /// Volume, device and root.
    volumes: Vec<(SmolStr, Box<str>, PathBuf)>,
    /// The mount points of each volume in containers.
    mount_points: Mounts,
}

impl Wanted {
    fn new(mounts: &PodMounts, own: &[MountLine]) -> Self {
        let volumes = mounts.volumes.iter();
        let volumes = volumes.filter_map(|(name, path)| {
            let (device, root) = place(own, path)?;
            Some((name.clone(), device, root))
        });
        let containers = mounts.containers.iter();
        Self {
            volumes: volumes.collect(),
            mount_points: containers
                .flat_map(|container| container.delivered(&mounts.volumes))
                .collect(),
        }
    }

    /// The volume and mount point of a mount, if a container has it.
    fn volume(&self, line: &MountLine) -> Option<(SmolStr, PathBuf)> {
        let mut volumes = self.volumes.iter();
        volumes.find_map(|(name, device, root)| {
            let is_volume = *device == line.device && line.root.starts_with(root);
            let mount = (name.clone(), line.mount_point.clone());
            (is_volume && self.mount_points.contains(&mount)).then_some(mount)
        })
    }
}

/// Device and root of a path: of the mount that covers it.
fn place(own: &[MountLine], path: &Path) -> Option<(Box<str>, PathBuf)> {
    let covering = own
        .iter()
        .filter(|mount| path.starts_with(&mount.mount_point));
    // Of mounts over each other the last one counts.
    let mount = covering.max_by_key(|mount| mount.mount_point.components().count())?;
    let rest = path.strip_prefix(&mount.mount_point).ok()?;
    let root = if rest.as_os_str().is_empty() {
        mount.root.clone()
    } else {
        mount.root.join(rest)
    };
    Some((mount.device.clone(), root))
}

/// The container of a namespace with these processes.
fn container(
    mounts: &PodMounts,
    visible: Mounts,
    mut processes: Vec<FoundProcess>,
) -> Option<FoundContainer> {
    processes.sort_by_key(|process| (process.start, process.pid));
    let main = main_process(&processes)?.clone();
    let named = |fits: &dyn Fn(&Mounts) -> bool| -> Vec<SmolStr> {
        let containers = mounts.containers.iter();
        containers
            .filter(|container| fits(&container.delivered(&mounts.volumes)))
            .map(|container| container.name.clone())
            .collect()
    };
    let mut fits = named(&|delivered| *delivered == visible);
    if fits.is_empty() {
        // A container that has unmounted one, or that covers one by another.
        fits = named(&|delivered| visible.is_subset(delivered));
    }
    Some(FoundContainer {
        fits,
        mounts: visible,
        main,
        processes,
    })
}

/// Reads a file of `/proc`. Such files have no size, for which `fs::read` makes several small reads.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(PAGE);
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// The oldest of a container's processes whose parent is outside. `processes` begins with the oldest.
pub(super) fn main_process(processes: &[FoundProcess]) -> Option<&FoundProcess> {
    let inside: BTreeSet<i32> = processes.iter().map(|process| process.pid).collect();
    let is_main = |process: &&FoundProcess| !inside.contains(&process.parent);
    processes.iter().find(is_main).or(processes.first())
}

/// The lines of a `mountinfo` that can be read.
fn parse(text: &[u8]) -> Vec<MountLine> {
    let lines = text.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| {
            let mut fields = line.split(|&byte| byte == b' ');
            let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
            let device = std::str::from_utf8(fields.nth(1)?).ok()?.into();
            Some(MountLine {
                id,
                device,
                root: unescaped(fields.next()?),
                mount_point: unescaped(fields.next()?),
            })
        })
        .collect()
}

/// The path of a field, in which blanks, tabs, line ends and backslashes are octal numbers (proc(5)).
fn unescaped(field: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'\\').then(|| after.get(..3)).flatten();
        let number = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(number) = number {
            bytes.push(number);
            rest = &after[3..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// An absolute path without `.`, `..` and doubled slashes, as the kernel shows mount points.
fn normalized(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

/// Number of the parent, and start time, of `/proc/PID/stat`. The command's name may hold anything, parentheses as
/// well.
fn parent_and_start(text: &[u8]) -> Option<(i32, u64)> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some((parent, start))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use rustix::process::Signal;
    use tempfile::TempDir;

    use super::*;

    /// A process in a mount namespace of its own, with a directory of the machine mounted at another one. Dropped, it
    /// is killed.
    struct Container {
        child: Child,
        folder: TempDir,
    }

    impl Container {
        /// `None` without the permission to make one, which CI must have.
        fn start() -> Option<Self> {
            let folder = tempfile::tempdir().unwrap();
            for name in ["volume", "at"] {
                fs::create_dir(folder.path().join(name)).unwrap();
            }
            let mut child = Command::new("unshare")
                .args(["-m", "bash", "-c"])
                .arg("mount --bind \"$0/volume\" \"$0/at\" && echo ready && read -r _")
                .arg(folder.path())
                // Never written to: the container waits for a line, as the process that has said that it is ready.
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            output.read_line(&mut line).unwrap();
            let container = Self { child, folder };
            if line == "ready\n" {
                return Some(container);
            }
            let is_ci = std::env::var_os("CI").is_some();
            assert!(!is_ci, "CI must be able to make mount namespaces");
            None
        }

        fn mounts(&self) -> PodMounts {
            let folder = self.folder.path().canonicalize().unwrap();
            PodMounts {
                volumes: [("v".into(), folder.join("volume"))].into(),
                containers: vec![ContainerMounts {
                    name: "web".into(),
                    mounts: vec![("v".into(), folder.join("at/."))],
                }],
            }
        }
    }

    impl Drop for Container {
        fn drop(&mut self) {
            // It may have ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn container_is_found_by_its_mounts_and_its_mount_point() {
        let Some(container) = Container::start() else {
            return;
        };
        let (processes, mut mounts) = (Processes::default(), container.mounts());
        let found = processes.containers(&mounts).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].fits, ["web"]);
        assert_eq!(
            found[0].main.pid,
            i32::try_from(container.child.id()).unwrap()
        );
        assert_eq!(
            processes.executable(&found[0].main).as_deref(),
            Some("bash")
        );
        // A pod that mounts its volume elsewhere has no process here.
        mounts.containers[0].mounts[0].1 = "/elsewhere".into();
        assert_eq!(processes.containers(&mounts).unwrap(), []);
    }

    // on-change 38
    #[test]
    fn process_with_a_reused_pid_gets_no_signal() {
        let Some(mut container) = Container::start() else {
            return;
        };
        let processes = Processes::default();
        let mut found = processes.containers(&container.mounts()).unwrap();
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
        let Some(container) = Container::start() else {
            return;
        };
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI must run as root");
            return;
        }
        let mounts = container.mounts();
        let pid = container.child.id();
        // Only this thread becomes an ordinary user.
        let thread = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let processes = Processes::new("/proc");
            let found = processes.containers(&mounts).unwrap();
            let open = processes.open(&found[0].main).unwrap();
            open.send(Signal::HUP).unwrap_err().to_string()
        });
        let expected = format!("not permitted to signal process {pid} of user 0");
        assert_eq!(thread.join().unwrap(), expected);
    }

    #[test]
    fn escaped_mount_points_are_read() {
        let text = b"36 35 98:0 /a\\040b /mnt\\134x rw - ext4 /dev/vda rw\nmalformed\n";
        let lines = parse(text);
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].id, &*lines[0].device), (36, "98:0"));
        assert_eq!(lines[0].root, Path::new("/a b"));
        assert_eq!(lines[0].mount_point, Path::new("/mnt\\x"));
    }

    #[test]
    fn names_of_commands_do_not_confuse() {
        let text =
            b"4711 (a) R 7 (b) S 42 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1";
        assert_eq!(parent_and_start(text), Some((42, 98765)));
    }
}
