//! `larder exec`: from manifests to a running command.

use std::{
    cell::RefCell,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, Volume};
use larder_objects::manifest::Manifests;
use larder_projection::{
    ContainerKind, ContainerView, Environment, Mount, RuntimeFeatures, VolumeKind, containers,
    disk::{PodVolume, SubPath, VolumeHost},
    environment, fs_group, mounts, nested_mount_points, project,
};

use super::Failure;
use crate::{
    args::ExecArgs,
    exec::{
        Follower, Identity, OnChange, Plan, PlannedMount, STAGE, Sandbox, Stamps, Update,
        exit_code, supervise,
    },
    input,
    offline::Offline,
    output,
};

/// Variables that an image would set, and that the caller's stand for when the container does not set them.
const FROM_CALLER: [&str; 4] = ["PATH", "HOME", "TERM", "LANG"];
/// `terminationGracePeriodSeconds` of a pod that has none.
const GRACE: Duration = Duration::from_secs(30);

pub(super) fn run(args: &ExecArgs) -> Result<ExitCode, Failure> {
    let is_stdin = |path: &PathBuf| path == Path::new("-");
    let from_stdin = args.manifests.filenames.iter().any(is_stdin);
    if from_stdin && args.on_change != OnChange::Nothing {
        let why = "standard input cannot be followed: name files with -f";
        return Err(Failure::unreadable(why));
    }
    let paths = manifest_paths(args)?;
    let seen = Stamps::of(&paths);
    let first = Target::new(args, input::read(&args.manifests)?.manifests)?;
    // While this process has one thread.
    let sandbox = Sandbox::enter(&needed(&first, &paths))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let status = runtime.block_on(async {
        let follower = if from_stdin {
            None
        } else {
            Some(Follower::new(&paths, &seen)?)
        };
        let session = Session {
            args,
            host: VolumeHost::open(&sandbox.volumes())?,
            sandbox: &sandbox,
        };
        session.prepare(&first)?;
        let grace = first.grace();
        let target = RefCell::new(first);
        supervise(
            || session.start(&target.borrow()),
            || session.update(&target),
            follower,
            args.on_change,
            grace,
        )
        .await
    })?;
    Ok(ExitCode::from(exit_code(status)))
}

/// The paths of `-f`, wherever the command may be.
fn manifest_paths(args: &ExecArgs) -> anyhow::Result<Vec<PathBuf>> {
    let paths = args.manifests.filenames.iter();
    paths
        .filter(|path| *path != Path::new("-"))
        .map(|path| {
            std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
        })
        .collect()
}

/// The paths that the private tmpfs must not hide.
fn needed(target: &Target, manifests: &[PathBuf]) -> Vec<PathBuf> {
    let (pod, container) = (target.pod(), target.container());
    let mut needed = manifests.to_vec();
    // What a link leads to, as well.
    needed.extend(manifests.iter().flat_map(|path| path.canonicalize()));
    needed.extend(std::env::current_dir());
    needed.extend(std::env::current_exe());
    needed.extend(container.working_dir.map(PathBuf::from));
    let mounts = container.volume_mounts.iter();
    needed.extend(mounts.map(|mount| Path::new("/").join(&mount.mount_path)));
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let on_host = volumes.filter_map(|volume| volume.host_path.as_ref());
    needed.extend(on_host.map(|source| PathBuf::from(&source.path)));
    needed
}

/// The container whose view the command gets.
struct Target {
    offline: Offline,
    pod: usize,
    container: String,
}

impl Target {
    /// The container that the user named; without a name the first one, and the only pod.
    fn new(args: &ExecArgs, manifests: Manifests) -> Result<Self, Failure> {
        let offline = Offline::new(manifests);
        let namespace = args.manifests.namespace.as_str();
        let is_wanted = |pod: &Pod| {
            args.pod.as_ref().is_none_or(|wanted| {
                pod.metadata.namespace.as_deref() == Some(wanted.namespace(namespace))
                    && pod.metadata.name.as_deref() == Some(wanted.name())
            })
        };
        let mut wanted =
            (0..offline.pods.len()).filter(|&index| is_wanted(&offline.pods[index].pod));
        let pod = match (wanted.next(), wanted.next(), &args.pod) {
            (Some(pod), None, _) | (Some(pod), Some(_), Some(_)) => pod,
            (Some(_), Some(_), None) => {
                return Err(Failure::unreadable(
                    "the manifests hold several pods: name one with --pod",
                ));
            }
            (None, _, Some(wanted)) => {
                let (namespace, name) = (wanted.namespace(namespace), wanted.name());
                return Err(anyhow!("the manifests hold no pod {namespace}/{name}").into());
            }
            (None, _, None) => return Err(anyhow!("the manifests hold no pod").into()),
        };
        let container = container_name(&offline.pods[pod].pod, args.container.as_deref())?;
        Ok(Self {
            offline,
            pod,
            container,
        })
    }

    fn pod(&self) -> &Pod {
        &self.offline.pods[self.pod].pod
    }

    fn container(&self) -> ContainerView<'_> {
        containers(self.pod())
            .find(|container| container.name == self.container)
            .expect("the name is that of one of the pod's containers")
    }

    /// What a command has for ending before it is killed.
    fn grace(&self) -> Duration {
        let spec = self.pod().spec.as_ref();
        let secs = spec.and_then(|spec| spec.termination_grace_period_seconds);
        secs.and_then(|secs| u64::try_from(secs).ok())
            .map_or(GRACE, Duration::from_secs)
    }

    /// The volumes that the container mounts.
    fn volumes(&self) -> impl Iterator<Item = &Volume> {
        let used: Vec<_> = self.container().volumes().collect();
        let volumes = self
            .pod()
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        volumes.filter(move |volume| used.contains(&&*volume.name))
    }
}

fn container_name(pod: &Pod, wanted: Option<&str>) -> anyhow::Result<String> {
    let found = containers(pod).find(|container| match wanted {
        Some(name) => container.name == name,
        None => container.kind == ContainerKind::Regular,
    });
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match (found, wanted) {
        (Some(container), _) => Ok(container.name.to_owned()),
        (None, Some(wanted)) => Err(anyhow!("pod {name} has no container {wanted}")),
        (None, None) => Err(anyhow!("pod {name} has no container")),
    }
}

/// What a command is started with, besides the content of its volumes.
#[derive(PartialEq)]
struct Start {
    mounts: Vec<MountedVolume>,
    working_dir: Option<String>,
    identity: Identity,
    command: Vec<Vec<u8>>,
    environment: Vec<(String, Vec<u8>)>,
}

/// A mount of the container, without the pod that it comes from.
#[derive(PartialEq)]
struct MountedVolume {
    index: usize,
    volume: String,
    source: Source,
    target: String,
    sub_path: Option<String>,
    read_only: bool,
}

/// Where the content of a volume is.
#[derive(Clone, PartialEq)]
enum Source {
    Objects(VolumeKind),
    EmptyDir,
    HostPath(String),
}

impl Source {
    /// The source of a volume; `None` for types that are not provided here.
    fn of(volume: &Volume) -> Option<Self> {
        if let Some(kind) = VolumeKind::of(volume) {
            return Some(Self::Objects(kind));
        }
        if volume.empty_dir.is_some() {
            return Some(Self::EmptyDir);
        }
        let host_path = volume.host_path.as_ref()?;
        Some(Self::HostPath(host_path.path.clone()))
    }
}

/// Everything that lasts as long as the command does, over all its starts.
struct Session<'a> {
    args: &'a ExecArgs,
    host: VolumeHost,
    sandbox: &'a Sandbox,
}

impl Session<'_> {
    /// Sets all volumes up, before the first start, and says what the command will not have.
    fn prepare(&self, target: &Target) -> anyhow::Result<()> {
        for volume in target.volumes() {
            match Source::of(volume) {
                Some(Source::Objects(kind)) => {
                    self.set_up(target, volume, kind)
                        .with_context(|| format!("cannot set volume {} up", volume.name))?;
                }
                Some(Source::EmptyDir | Source::HostPath(_)) => {}
                None => output::note(format!(
                    "volume {} is of a type that is not provided here: its path stays as it is",
                    volume.name
                )),
            }
        }
        Ok(())
    }

    /// Makes a volume hold what its objects say; returns whether it did not.
    fn set_up(&self, target: &Target, volume: &Volume, kind: VolumeKind) -> anyhow::Result<bool> {
        let pod = target.pod();
        let inputs = target.offline.inputs(pod);
        let projection = project(pod, volume, &inputs)?;
        let volume = PodVolume {
            pod_uid: uid(pod),
            name: &volume.name,
            kind,
            fs_group: fs_group(pod),
            size_limit: None,
            mount_points: &nested_mount_points(pod, &volume.name)?,
        };
        let now = now();
        Ok(self
            .host
            .set_up(&volume, &projection.payload, now)?
            .written
            .swapped)
    }

    /// The directory of an emptyDir volume. It outlives restarts of the command, as it does those of a container.
    fn empty_dir(&self, volume: &str) -> io::Result<PathBuf> {
        let path = self.sandbox.staging().join("empty").join(volume);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Starts the command: hands the stage its plan.
    fn start(&self, target: &Target) -> anyhow::Result<tokio::process::Child> {
        let start = self.start_of(target)?;
        let mut mounts: Vec<_> = start
            .mounts
            .iter()
            .map(|mount| {
                Ok(PlannedMount {
                    source: self.source(target, mount)?,
                    target: mount.target.clone(),
                    read_only: mount.read_only,
                })
            })
            .collect::<anyhow::Result<_>>()?;
        // Outer ones first; of two on one path, the later one shows.
        mounts.sort_by(|a, b| Path::new(&a.target).cmp(Path::new(&b.target)));
        let plan = Plan {
            staging: self.sandbox.staging().to_owned(),
            mounts,
            working_dir: start.working_dir,
            identity: start.identity,
            command: start.command,
            environment: start.environment,
            supervisor: rustix::process::getpid().as_raw_nonzero().get(),
        };
        let path = self.sandbox.staging().join("plan");
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .context("cannot write the plan")?;
        serde_json::to_writer(file, &plan).context("cannot write the plan")?;
        tokio::process::Command::new("/proc/self/exe")
            .arg(STAGE)
            .arg(&path)
            .env_clear()
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the command")
    }

    /// What is bind-mounted.
    fn source(&self, target: &Target, mount: &MountedVolume) -> anyhow::Result<PathBuf> {
        let context = || format!("cannot prepare the mount on {}", mount.target);
        let uid = uid(target.pod());
        let root = match &mount.source {
            Source::Objects(kind) => {
                let volume = self.host.volume_path(uid, *kind, &mount.volume);
                let Some(path) = &mount.sub_path else {
                    return Ok(volume);
                };
                let sub_path = SubPath {
                    pod_uid: uid,
                    kind: *kind,
                    volume: &mount.volume,
                    container: &target.container,
                    index: mount.index,
                    path,
                };
                return self.host.prepare_subpath(&sub_path).with_context(context);
            }
            Source::EmptyDir => self.empty_dir(&mount.volume).with_context(context)?,
            Source::HostPath(path) => PathBuf::from(path),
        };
        let Some(sub_path) = &mount.sub_path else {
            return Ok(root);
        };
        let path = root.join(sub_path);
        if mount.source == Source::EmptyDir {
            fs::create_dir_all(&path).with_context(context)?;
        }
        // A link may lead anywhere: what it leads to has to lie in the volume.
        let found = path.canonicalize().with_context(context)?;
        if !found.starts_with(root.canonicalize().with_context(context)?) {
            bail!(
                "{}: subPath {sub_path} leads out of volume {}",
                context(),
                mount.volume
            );
        }
        Ok(found)
    }

    /// What the command would be started with now.
    fn start_of(&self, target: &Target) -> anyhow::Result<Start> {
        let (pod, container) = (target.pod(), target.container());
        let inputs = target.offline.inputs(pod);
        let variables = environment(pod, container, &inputs)?;
        let features = RuntimeFeatures::default();
        let mounts = mounts(pod, container, &variables, features)?;
        Ok(Start {
            mounts: mounts.into_iter().filter_map(MountedVolume::of).collect(),
            working_dir: container
                .working_dir
                .filter(|directory| !directory.is_empty())
                .map(|directory| format!("/{}", directory.trim_start_matches('/'))),
            identity: self.identity(pod, container)?,
            command: self.command(container, &variables)?,
            environment: with_caller(&variables),
        })
    }

    /// Who the command is, by the security contexts of container and pod.
    fn identity(&self, pod: &Pod, container: ContainerView<'_>) -> anyhow::Result<Identity> {
        let of_pod = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.security_context.as_ref());
        let own = container.security_context;
        let id = |id: Option<i64>| id.map(u32::try_from).transpose();
        let user = own.and_then(|own| own.run_as_user);
        let user = id(user.or(of_pod.and_then(|pod| pod.run_as_user)))?;
        let group = own.and_then(|own| own.run_as_group);
        let group = id(group.or(of_pod.and_then(|pod| pod.run_as_group)))?;
        let non_root = own.and_then(|own| own.run_as_non_root);
        let non_root = non_root.or(of_pod.and_then(|pod| pod.run_as_non_root));
        let root = user.unwrap_or_else(|| {
            let (outside, _) = self.sandbox.mapped().unwrap_or_default();
            outside
        }) == 0;
        if non_root == Some(true) && root {
            bail!("container has runAsNonRoot and would run as root");
        }
        Ok(Identity {
            user,
            group,
            groups: groups(of_pod, fs_group(pod)),
            mapped: self.sandbox.mapped(),
        })
    }

    /// The command that the user gave, or the container's.
    fn command(
        &self,
        container: ContainerView<'_>,
        variables: &Environment<'_>,
    ) -> anyhow::Result<Vec<Vec<u8>>> {
        let given = self.args.command.iter();
        let mut command: Vec<_> = given.map(|word| word.as_bytes().to_vec()).collect();
        if command.is_empty() {
            if container.command.is_empty() {
                bail!("the container has no command of its own: give one after --");
            }
            let words = container.command.iter().chain(container.args);
            command.extend(words.map(|word| variables.expand(word).to_vec()));
        }
        Ok(command)
    }

    /// Brings the volumes up to date with the manifests. What fails stays as it was and is reported.
    fn update(&self, current: &RefCell<Target>) -> Update {
        let Some(next) = self.read_again() else {
            return Update::default();
        };
        let mut update = Update::default();
        for volume in next.volumes() {
            let Some(Source::Objects(kind)) = Source::of(volume) else {
                continue;
            };
            match self.set_up(&next, volume, kind) {
                Ok(swapped) => update.volumes |= swapped,
                Err(error) => {
                    let what = format!("volume {} stays as it was", volume.name);
                    output::error(error.context(what).as_ref());
                }
            }
        }
        let before = self.start_of(&current.borrow());
        match (before, self.start_of(&next)) {
            (Ok(before), Ok(now)) => update.start = before != now,
            (Err(_), Ok(_)) => update.start = true,
            (_, Err(error)) => {
                output::error(
                    error
                        .context("the command keeps what it was started with")
                        .as_ref(),
                );
                return update;
            }
        }
        *current.borrow_mut() = next;
        update
    }

    /// The manifests as they are now; `None`, and a report, if anything about them is wrong.
    fn read_again(&self) -> Option<Target> {
        let kept = "everything stays as it was";
        match input::read(&self.args.manifests) {
            Ok(read) if read.had_errors => {
                output::note(kept);
                None
            }
            Ok(read) => match Target::new(self.args, read.manifests) {
                Ok(target) => Some(target),
                Err(failure) => {
                    output::error(&failure);
                    output::note(kept);
                    None
                }
            },
            Err(failure) => {
                output::error(&failure);
                output::note(kept);
                None
            }
        }
    }
}

impl MountedVolume {
    fn of(mount: Mount<'_>) -> Option<Self> {
        Some(Self {
            index: mount.index,
            source: Source::of(mount.volume)?,
            volume: mount.volume.name.clone(),
            target: mount.mount_path,
            sub_path: mount.sub_path.map(Into::into),
            read_only: mount.read_only,
        })
    }
}

fn groups(of_pod: Option<&PodSecurityContext>, fs_group: Option<u32>) -> Vec<u32> {
    let supplemental = of_pod.and_then(|pod| pod.supplemental_groups.as_deref());
    let supplemental = supplemental.unwrap_or_default().iter();
    let mut groups: Vec<_> = supplemental
        .filter_map(|&group| u32::try_from(group).ok())
        .chain(fs_group)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// The variables of the container, and those of the caller that stand for the image's.
fn with_caller(variables: &Environment<'_>) -> Vec<(String, Vec<u8>)> {
    let own = variables.iter();
    let mut all: Vec<_> = own
        .map(|(name, variable)| (name.to_owned(), variable.value.to_vec()))
        .collect();
    for name in FROM_CALLER {
        if variables.get(name).is_none()
            && let Some(value) = std::env::var_os(name)
        {
            all.push((name.to_owned(), value.as_bytes().to_vec()));
        }
    }
    all
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The wall clock, which names the sets of volumes.
fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "this command reads the clock here only"
    )]
    Timestamp::now()
}
