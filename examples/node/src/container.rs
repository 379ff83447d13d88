//! One start of a container: what larder has delivered becomes a plan, and the plan a process.

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    io::{self, Seek as _},
    os::{fd::AsFd as _, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Container, Volume};
use larder_agent::status::{Phase, ServedPod};
use larder_objects::SecretBytes;
use larder_projection::{
    ContainerKind, ContainerView, Environment, Mount, RuntimeFeatures,
    disk::{empty_dir_path, make_empty_dir, read_environment},
    fs_group, mounts, nested_mount_points,
};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    mount::MountFlags,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use tokio::process::{Child, Command};

use crate::{
    image::{Image, short_name},
    node::Node,
    stage::{Identity, Place, Plan, PlannedMount, STAGE, Surroundings},
};

/// Where commands are looked up if neither image nor pod say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a container leaves its last words if it does not say.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Why a container cannot start yet: reason and message, as its status shows them.
pub(crate) type Blocked = (&'static str, String);
const CONFIG_ERROR: &str = "CreateContainerConfigError";
type Variables = BTreeMap<String, SecretBytes>;

/// In the directory of a run: its output.
pub(crate) const LOG: &str = "log";
/// In the directory of a run: its last words.
pub(crate) const LAST_WORDS: &str = "termination";

/// Starts a container in the new directory `directory`, with its output in the log there.
///
/// # Errors
///
/// The container cannot start yet: the next change of the pod may change that.
pub(crate) fn start(
    node: &Node,
    served: &ServedPod,
    container: &Container,
    directory: &Path,
) -> Result<(Child, Identity), Blocked> {
    let environment = served.delivered(container).map_err(|part| match part {
        Some(part) if part.phase == Phase::Failing => (CONFIG_ERROR, part.reason.clone()),
        Some(part) => ("ContainerCreating", part.reason.clone()),
        None => ("ContainerCreating", String::new()),
    })?;
    let reference = container.image.as_deref().unwrap_or_default();
    let Some(image) = node.images.get(short_name(reference)) else {
        return Err(("ErrImageNeverPull", format!("no archive for {reference}")));
    };
    let start = Start {
        served,
        container,
        image,
        directory,
    };
    let plan = start.plan(Path::new(&environment.path));
    let plan = plan.map_err(|error| (CONFIG_ERROR, format!("{error:#}")))?;
    let log = File::create(directory.join(LOG));
    let child = log.and_then(|log| launch(&plan, None, [log.try_clone()?.into(), log.into()]));
    let child = child.map_err(|error| ("RunContainerError", error.to_string()))?;
    Ok((child, plan.identity))
}

/// One start of a container.
struct Start<'a> {
    served: &'a ServedPod,
    container: &'a Container,
    image: &'a Image,
    directory: &'a Path,
}

impl Start<'_> {
    fn plan(&self, environment: &Path) -> anyhow::Result<Plan> {
        let (container, config) = (self.container, &self.image.config);
        let delivered = read_environment(&fs::read(environment)?)?;
        let values = delivered.iter().map(|(name, value)| (&**name, &**value));
        let variables = Environment::of_values(values);
        let view = ContainerView::new(container, ContainerKind::Regular);
        let mut planned = Vec::new();
        let (pod, runtime) = (&self.served.pod, RuntimeFeatures::default());
        for mount in mounts(pod, view, &variables, runtime)? {
            planned.push(self.mount(mount)?);
        }
        let scratch = self.directory.join("scratch");
        fs::create_dir_all(&scratch)?;
        let last_words = self.directory.join(LAST_WORDS);
        File::create(&last_words)?.set_permissions(Permissions::from_mode(0o666))?;
        let path = container.termination_message_path.as_deref();
        let path = path.unwrap_or(TERMINATION_LOG);
        planned.push(PlannedMount::new(last_words, path, MountFlags::empty()));

        // The image has an entry point for a container without a command, and arguments for one with neither.
        let mut command = Vec::new();
        for word in container.command.iter().chain(&container.args).flatten() {
            command.push(variables.expand(word)?.to_vec());
        }
        if container.command.is_none() {
            let mut of_image = config.entrypoint.clone().unwrap_or_default();
            if container.args.is_none() {
                of_image.extend(config.cmd.clone().unwrap_or_default());
            }
            command.splice(..0, of_image.into_iter().map(String::into_bytes));
        }
        let hostname = self.hostname();
        Ok(Plan {
            identity: self.identity(&hostname, &delivered)?,
            place: Place::New(Surroundings {
                image: self.image.root.clone(),
                scratch,
                hostname,
                mounts: planned,
            }),
            command,
        })
    }

    fn mount(&self, mount: Mount<'_>) -> anyhow::Result<PlannedMount> {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, mount.read_only);
        flags.set(MountFlags::NOEXEC, mount.options.no_exec);
        flags.set(MountFlags::NODEV, mount.options.no_dev);
        flags.set(MountFlags::NOSUID, mount.options.no_suid);
        let volume = self.volume(mount.volume)?;
        let mut planned = PlannedMount::new(volume, &mount.mount_path, flags);
        planned.sub_path = mount.sub_path.map(Into::into);
        planned.create = mount.volume.empty_dir.as_ref().map(|_| 0o777);
        Ok(planned)
    }

    /// The directory of a volume on this machine; that of an `emptyDir` is created, whatever its medium.
    fn volume(&self, volume: &Volume) -> anyhow::Result<PathBuf> {
        let status = &self.served.status;
        let mut delivered = status.volumes.iter();
        if let Some(found) = delivered.find(|found| found.name == volume.name) {
            return Ok(found.path.clone().into());
        }
        let empty_dir = volume.empty_dir.as_ref();
        let empty_dir = empty_dir.with_context(|| format!("cannot make volume {}", volume.name))?;
        let path = empty_dir_path(Path::new(&status.path), &volume.name);
        if !path.exists() {
            let points = nested_mount_points(&self.served.pod).remove(&*volume.name);
            let points = points.transpose()?.unwrap_or_default();
            make_empty_dir(&path, empty_dir, fs_group(&self.served.pod), &points)?;
        }
        Ok(path)
    }

    fn hostname(&self) -> String {
        let spec = self.served.pod.spec.as_ref();
        let stated = spec.and_then(|spec| spec.hostname.as_deref());
        let name = stated.unwrap_or(&self.served.status.name);
        // As many bytes as the kernel takes.
        name[..name.len().min(63)].to_owned()
    }

    /// User, groups, directory and variables: those of the container, then the pod's, then the image's.
    fn identity(&self, hostname: &str, delivered: &Variables) -> anyhow::Result<Identity> {
        let (pod, config) = (&self.served.pod, &self.image.config);
        let spec = pod.spec.clone().unwrap_or_default();
        let of_pod = spec.security_context.unwrap_or_default();
        let own = self.container.security_context.clone().unwrap_or_default();
        let of_image: Vec<_> = config.user.split(':').collect();
        let id = |stated: Option<i64>, place: usize| match (stated, of_image.get(place)) {
            (Some(id), _) => u32::try_from(id).context("an ID is out of range"),
            (None, None | Some(&("" | "root"))) => Ok(0),
            (None, Some(name)) => name.parse().context("the image's user is no number"),
        };
        let user = id(own.run_as_user.or(of_pod.run_as_user), 0)?;
        let non_root = own.run_as_non_root.or(of_pod.run_as_non_root);
        ensure!(user != 0 || non_root != Some(true), "must not run as root");
        let supplemental = of_pod.supplemental_groups.into_iter().flatten();
        let groups = supplemental.map(u32::try_from).chain(fs_group(pod).map(Ok));

        let home = if user == 0 { "/root" } else { "/" };
        let of_image = config.env.iter().flatten();
        let of_image = of_image.map(|text| text.split_once('=').unwrap_or((text, "")));
        let values = [("PATH", PATH), ("HOME", home)].into_iter();
        let values = values.chain(of_image).chain([("HOSTNAME", hostname)]);
        let values = values.map(|(name, value)| (name.to_owned(), value.into()));
        let mut environment: BTreeMap<_, Vec<u8>> = values.collect();
        let delivered = delivered.iter();
        environment.extend(delivered.map(|(name, value)| (name.clone(), value.to_vec())));
        let directory = self.container.working_dir.as_deref();
        let directory = directory.unwrap_or(&config.working_dir);
        Ok(Identity {
            user,
            group: id(own.run_as_group.or(of_pod.run_as_group), 1)?,
            groups: groups.collect::<Result<_, _>>()?,
            working_dir: format!("/{}", directory.trim_start_matches('/')),
            environment,
        })
    }
}

/// Starts a command in the running container whose first process is `process`.
///
/// # Errors
///
/// The container has ended, or no process can be created.
pub(crate) fn exec(process: u32, identity: Identity, command: Vec<Vec<u8>>) -> io::Result<Child> {
    let namespace = File::open(format!("/proc/{process}/ns/pid"))?;
    let place = Place::Of(process);
    let plan = Plan {
        place,
        identity,
        command,
    };
    launch(&plan, Some(namespace), [Stdio::piped(), Stdio::piped()])
}

/// Starts a stage in the PID namespace `pids`, or in a new one.
fn launch(plan: &Plan, pids: Option<File>, [stdout, stderr]: [Stdio; 2]) -> io::Result<Child> {
    // In memory: it holds the values of Secrets.
    let mut text = File::from(memfd_create(c"plan", MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&mut text, plan)?;
    text.rewind()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(STAGE)
        .env_clear()
        .stdin(text)
        .kill_on_drop(true);
    command.stdout(stdout).stderr(stderr);
    let runtime = tokio::runtime::Handle::current();
    // A thread can choose the PID namespace of its children only once.
    let launching = thread::spawn(move || {
        let _entered = runtime.enter();
        let kind = Some(LinkNameSpaceType::ProcessID);
        match pids {
            Some(pids) => move_into_link_name_space(pids.as_fd(), kind)?,
            #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
            None => rustix::thread::unshare(UnshareFlags::NEWPID)?,
        }
        command.spawn()
    });
    let launched = launching.join();
    launched.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
