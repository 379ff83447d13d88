//! One start of a container: what larder has delivered becomes a plan, and the plan a process.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Seek as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, Volume};
use larder_agent::status::{Phase, ServedPod};
use larder_objects::SecretBytes;
use larder_projection::{
    ContainerKind, ContainerView, Environment, RuntimeFeatures, VolumeKind,
    disk::{empty_dir_path, read_environment},
    fs_group, mounts,
};
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, ResolveFlags, memfd_create, mkdirat, openat2},
    io::Errno,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use tokio::process::{Child, Command};

use crate::{
    image::{Image, short_name},
    node::Node,
    stage::{Identity, Place, Plan, PlannedMount, STAGE},
};

/// Where commands are looked up if neither image nor pod say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a container leaves its last words if it does not say.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Why a container cannot start yet: reason and message, as its status shows them.
pub(crate) type Blocked = (&'static str, String);

/// The specification asks for something that does not exist, or is wrong.
fn invalid(error: impl ToString) -> Blocked {
    ("CreateContainerConfigError", error.to_string())
}

/// In the directory of a run: its output.
pub(crate) const LOG: &str = "log";
/// In the directory of a run: its last words.
pub(crate) const LAST_WORDS: &str = "termination";

/// Makes the plan of one run of a container, whose new directory is `directory`.
///
/// # Errors
///
/// The container cannot start yet: the next change of the pod may change that.
pub(crate) fn plan(
    node: &Node,
    served: &ServedPod,
    container: &Container,
    directory: &Path,
) -> Result<Plan, Blocked> {
    let ServedPod { status, pod } = served;
    let view = ContainerView::new(container, ContainerKind::Regular);
    // Each container waits for its own parts only.
    let creating = |reason: &str| ("ContainerCreating", reason.to_owned());
    for name in view.volumes() {
        let volume = status.volumes.iter().find(|volume| volume.name == name);
        if let Some(volume) = volume.filter(|volume| volume.delivery.phase != Phase::Delivered) {
            return Err(creating(&volume.delivery.reason));
        }
    }
    let environment = status
        .containers
        .iter()
        .find(|part| part.name == container.name);
    let environment = environment.ok_or_else(|| creating(""))?;
    match environment.delivery.phase {
        Phase::Delivered => {}
        Phase::Failing => return Err(invalid(&environment.delivery.reason)),
        _ => return Err(creating(&environment.delivery.reason)),
    }
    let reference = container.image.as_deref().unwrap_or_default();
    let image = node.images.get(short_name(reference));
    let image =
        image.ok_or_else(|| ("ErrImageNeverPull", format!("no archive for {reference}")))?;
    let text = fs::read(&environment.path).map_err(invalid)?;
    let delivered = read_environment(&text).map_err(invalid)?;
    let variables = Environment::of_values(
        delivered
            .iter()
            .map(|(name, value)| (name.as_str(), &**value)),
    );

    let mut planned = Vec::new();
    for mount in mounts(pod, view, &variables, RuntimeFeatures::default()).map_err(invalid)? {
        let source = volume_source(served, mount.volume)?;
        let sub_path = mount.sub_path.map(Cow::into_owned);
        if let Some(path) = sub_path
            .as_deref()
            .filter(|_| mount.volume.empty_dir.is_some())
        {
            create_beneath(&source, path).map_err(invalid)?;
        }
        planned.push(PlannedMount {
            source,
            sub_path,
            target: mount.mount_path,
            read_only: mount.read_only,
        });
    }
    let (scratch, last_words) = (directory.join("scratch"), directory.join(LAST_WORDS));
    fs::create_dir_all(&scratch).map_err(invalid)?;
    let file = File::create(&last_words).map_err(invalid)?;
    file.set_permissions(Permissions::from_mode(0o666))
        .map_err(invalid)?;
    let termination = container
        .termination_message_path
        .as_deref()
        .filter(|path| !path.is_empty());
    planned.push(PlannedMount {
        source: last_words,
        sub_path: None,
        target: termination.unwrap_or(TERMINATION_LOG).to_owned(),
        read_only: false,
    });

    let mut command = Vec::new();
    for word in container.command.iter().chain(&container.args).flatten() {
        command.push(variables.expand(word).map_err(invalid)?.to_vec());
    }
    let hostname = hostname(node, pod);
    let identity = identity(pod, container, image, &hostname, &delivered);
    Ok(Plan {
        place: Place::New {
            image: image.root.clone(),
            scratch,
            hostname,
            mounts: planned,
        },
        identity: identity.map_err(|error| invalid(format!("{error:#}")))?,
        command: with_image(command, container, image),
    })
}

/// The command with what the image adds: its entry point if the container has no command, its arguments if the container
/// has neither.
fn with_image(own: Vec<Vec<u8>>, container: &Container, image: &Image) -> Vec<Vec<u8>> {
    let words = |words: &Option<Vec<String>>| -> Vec<Vec<u8>> {
        words
            .iter()
            .flatten()
            .map(|word| word.clone().into_bytes())
            .collect()
    };
    let is_set =
        |words: &Option<Vec<String>>| words.as_ref().is_some_and(|words| !words.is_empty());
    if is_set(&container.command) {
        return own;
    }
    let mut all = words(&image.config.entrypoint);
    all.extend(if is_set(&container.args) {
        own
    } else {
        words(&image.config.cmd)
    });
    all
}

fn hostname(node: &Node, pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    if spec.and_then(|spec| spec.host_network) == Some(true) {
        return node.name.clone();
    }
    let stated = spec.and_then(|spec| spec.hostname.as_ref());
    // As many bytes as the kernel takes.
    let mut name = stated
        .or(pod.metadata.name.as_ref())
        .cloned()
        .unwrap_or_default();
    name.truncate(63);
    name.trim_end_matches(['-', '.']).to_owned()
}

/// User, groups, directory and variables: those of the container, then the pod's, then the image's.
fn identity(
    pod: &Pod,
    container: &Container,
    image: &Image,
    hostname: &str,
    delivered: &BTreeMap<String, SecretBytes>,
) -> anyhow::Result<Identity> {
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.clone());
    let of_pod: PodSecurityContext = of_pod.unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let (user, group) = image
        .config
        .user
        .split_once(':')
        .unwrap_or((&image.config.user, ""));
    let id = |stated: Option<i64>, of_image: &str| match (stated, of_image) {
        (Some(id), _) => u32::try_from(id).context("an ID is out of range"),
        (None, "" | "root") => Ok(0),
        (None, name) => name
            .parse()
            .with_context(|| format!("the image's user {name} is no number")),
    };
    let user = id(own.run_as_user.or(of_pod.run_as_user), user)?;
    let non_root = own.run_as_non_root.or(of_pod.run_as_non_root);
    anyhow::ensure!(
        user != 0 || non_root != Some(true),
        "container has runAsNonRoot and would run as root"
    );
    let supplemental = of_pod
        .supplemental_groups
        .iter()
        .flatten()
        .copied()
        .map(u32::try_from);
    let mut groups = supplemental.collect::<Result<Vec<_>, _>>()?;
    groups.extend(fs_group(pod));

    let mut environment = BTreeMap::from([("PATH".to_owned(), PATH.into())]);
    for variable in image.config.env.iter().flatten() {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        environment.insert(name.to_owned(), value.into());
    }
    environment.insert("HOSTNAME".to_owned(), hostname.into());
    let home = if user == 0 { "/root" } else { "/" };
    environment
        .entry("HOME".to_owned())
        .or_insert_with(|| home.into());
    environment.extend(
        delivered
            .iter()
            .map(|(name, value)| (name.clone(), value.to_vec())),
    );
    let directory = container
        .working_dir
        .as_deref()
        .filter(|directory| !directory.is_empty());
    Ok(Identity {
        user,
        group: id(own.run_as_group.or(of_pod.run_as_group), group)?,
        groups,
        working_dir: format!(
            "/{}",
            directory
                .unwrap_or(&image.config.working_dir)
                .trim_start_matches('/')
        ),
        environment,
    })
}

/// The directory of a volume on this machine; that of an `emptyDir` is created, whatever its medium.
fn volume_source(served: &ServedPod, volume: &Volume) -> Result<PathBuf, Blocked> {
    let status = &served.status;
    if VolumeKind::of(volume).is_some() {
        let found = status
            .volumes
            .iter()
            .find(|found| found.name == volume.name);
        return found
            .map(|found| found.path.clone().into())
            .ok_or_else(|| invalid("the volume is unknown"));
    }
    if volume.empty_dir.is_none() {
        return Err(invalid(format!(
            "the type of volume {} is not supported here",
            volume.name
        )));
    }
    let path = empty_dir_path(Path::new(&status.path), &volume.name);
    if !path.exists() {
        let group = fs_group(&served.pod);
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        fs::create_dir_all(&path)
            .and_then(|()| chown(&path, None, group))
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .map_err(invalid)?;
    }
    Ok(path)
}

/// Creates the directories of `path` in `volume`. A link that a container has put there is not followed.
fn create_beneath(volume: &Path, path: &str) -> io::Result<()> {
    let mut directory = OwnedFd::from(File::open(volume)?);
    for name in Path::new(path).components() {
        let open = || {
            let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::BENEATH);
            openat2(&directory, name.as_os_str(), flags, Mode::empty(), resolve)
        };
        let next = match open() {
            Err(Errno::NOENT) => {
                mkdirat(&directory, name.as_os_str(), Mode::from_raw_mode(0o777))?;
                open()?
            }
            opened => opened?,
        };
        directory = next;
    }
    Ok(())
}

/// Starts the first process of a container, with its output in the log of the run's directory.
///
/// # Errors
///
/// No process can be created.
pub(crate) fn start(plan: &Plan, directory: &Path) -> io::Result<Child> {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(directory.join(LOG))?;
    let outputs = [Stdio::from(log.try_clone()?), Stdio::from(log)];
    launch(plan, None, outputs)
}

/// Starts a command in the running container whose first process is `process`.
///
/// # Errors
///
/// The container has ended, or no process can be created.
pub(crate) fn exec(process: u32, identity: Identity, command: Vec<Vec<u8>>) -> io::Result<Child> {
    let namespace = File::open(format!("/proc/{process}/ns/pid"))?;
    let plan = Plan {
        place: Place::Of(process),
        identity,
        command,
    };
    launch(
        &plan,
        Some(namespace.into()),
        [Stdio::piped(), Stdio::piped()],
    )
}

/// Starts a stage in the PID namespace `namespace`, or in a new one.
fn launch(
    plan: &Plan,
    namespace: Option<OwnedFd>,
    [stdout, stderr]: [Stdio; 2],
) -> io::Result<Child> {
    // In memory: it holds the values of Secrets.
    let mut text = File::from(memfd_create(c"plan", MemfdFlags::CLOEXEC)?);
    text.write_all(&serde_json::to_vec(plan)?)?;
    text.rewind()?;
    let runtime = tokio::runtime::Handle::current();
    // A thread can choose the PID namespace of its children only once.
    let launch = move || {
        let _entered = runtime.enter();
        match &namespace {
            Some(namespace) => {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
            }
            #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
            None => rustix::thread::unshare(UnshareFlags::NEWPID)?,
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(STAGE)
            .env_clear()
            .stdin(text)
            .stdout(stdout)
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
    };
    std::thread::scope(|scope| scope.spawn(launch).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
