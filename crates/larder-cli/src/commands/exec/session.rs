//! State that outlasts the starts of the command: its volumes, and how they are kept up to date.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Volume;
use larder_projection::{
    Inputs, NestedMountPoints, VolumeKind, VolumePath,
    disk::{PodVolume, SubPath, VolumeHost, bind_subpath, make_empty_dir},
    fs_group, nested_mount_points, project,
};
use smol_str::SmolStr;

use super::{
    content::{content, filled},
    hooks::CommandHooks,
    origin::Origin,
    security::{identity, unsupported},
    start::{MountSource, MountedVolume, Start, mode_for_only_user},
    subpaths::SubPaths,
    target::{Contents, ExecTarget},
};
use crate::{
    args::ExecArgs,
    outcome::Failure,
    output,
    sandbox::{self, Follower, Inside, Plan, PlannedMount, Processes, Sandbox, StagePlan},
};

/// The effect of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Update {
    /// Names of the command's volumes that have other content.
    pub(super) volumes: Vec<String>,
    /// What the next start of the command would have otherwise than the present content: names of variables, never
    /// values.
    pub(super) start: Vec<String>,
}

/// One start of the command.
pub(super) struct Started {
    pub(super) inside: Rc<Inside>,
    /// The number of the content that it has started with.
    pub(super) content: u64,
    /// What it has started with.
    pub(super) start: Start,
    /// Where each volume is mounted as a whole.
    pub(super) mount_paths: BTreeMap<SmolStr, PathBuf>,
}

/// One `larder exec`.
pub(super) struct Session<'a> {
    pub(super) args: &'a ExecArgs,
    pub(super) origin: Arc<Origin>,
    pub(super) sandbox: &'a Sandbox,
    host: VolumeHost,
    target: RefCell<ExecTarget>,
    /// The target of `..data` in each volume of an agent, when last read.
    sets: RefCell<BTreeMap<PathBuf, PathBuf>>,
    /// The start that runs.
    started: RefCell<Option<Rc<Started>>>,
    /// Counts the changes.
    content: Cell<u64>,
    /// The mounts by subPath, unless they keep their content.
    subpaths: Option<SubPaths>,
    /// The volumes of which it was printed that the command keeps their old files.
    stale: RefCell<BTreeSet<String>>,
    /// The container has read a Secret or a token at some time. What commands of hooks print may hold it.
    has_read_secrets: Cell<bool>,
}

impl<'a> Session<'a> {
    /// Sets up all volumes, before the first start, and prints what the command will lack.
    pub(super) fn new(
        args: &'a ExecArgs,
        origin: Arc<Origin>,
        sandbox: &'a Sandbox,
        target: ExecTarget,
    ) -> anyhow::Result<Self> {
        let session = Self {
            args,
            origin,
            sandbox,
            host: VolumeHost::open(&sandbox.volumes())?,
            target: RefCell::new(target),
            sets: RefCell::default(),
            started: RefCell::default(),
            content: Cell::new(0),
            subpaths: args
                .subpath_updates
                .then(|| SubPaths::new(sandbox.staging())),
            stale: RefCell::default(),
            has_read_secrets: Cell::new(false),
        };
        let target = session.target.borrow();
        // A user that the pod forbids is an error of the container, not of a volume, for root and other callers alike.
        identity(&target.pod, target.container(), sandbox.mapped())?;
        session.note_secrets(&target);
        target.note_unknown();
        let mount_points = nested_mount_points(&target.pod);
        for volume in target.volumes() {
            session
                .refresh(&target, volume, &mount_points)
                .with_context(|| format!("cannot set up volume {}", volume.name))?;
            if MountSource::of(volume, &target.contents).is_none() {
                output::note(format_args!(
                    "volume {} is of an unsupported type, ignored: its path stays as it is",
                    volume.name
                ));
            }
        }
        let unsupported = unsupported(&target.pod, target.container());
        if !unsupported.is_empty() {
            output::note(format_args!(
                "securityContext: {} cannot be applied here, ignored",
                unsupported.join(", ")
            ));
        }
        drop(target);
        Ok(session)
    }

    /// Brings a volume up to date; returns whether it changed.
    fn refresh(
        &self,
        target: &ExecTarget,
        volume: &Volume,
        mount_points: &HashMap<&str, NestedMountPoints>,
    ) -> anyhow::Result<bool> {
        match (MountSource::of(volume, &target.contents), &target.contents) {
            (Some(MountSource::Objects(kind)), Contents::Inputs(inputs)) => {
                let mount_points = match mount_points.get(volume.name.as_str()) {
                    None => &[],
                    Some(points) => points.as_deref().map_err(Clone::clone)?,
                };
                self.set_up(target, volume, kind, inputs, mount_points)
            }
            // The agent writes this volume; here its changes are noticed.
            (Some(MountSource::Agent(directory)), _) if VolumeKind::of(volume).is_some() => {
                let set = current_set(&directory);
                let before = self.sets.borrow_mut().insert(directory, set.clone());
                Ok(before != Some(set))
            }
            _ => Ok(false),
        }
    }

    fn set_up(
        &self,
        target: &ExecTarget,
        volume: &Volume,
        kind: VolumeKind,
        inputs: &Inputs,
        mount_points: &[VolumePath],
    ) -> anyhow::Result<bool> {
        let pod = &target.pod;
        let fs_group = fs_group(pod);
        let mut payload = project(pod, volume, inputs)?.payload;
        if let mapped @ Some(_) = self.sandbox.mapped() {
            let identity = identity(pod, target.container(), mapped)?;
            for file in payload.values_mut() {
                file.mode = mode_for_only_user(&identity, file.owner, fs_group, file.mode);
            }
        }
        let volume = PodVolume {
            pod_uid: target.uid(),
            name: &volume.name,
            kind,
            fs_group,
            size_limit: None,
            mount_points,
        };
        let set_up = self.host.set_up(&volume, &payload, output::now())?;
        Ok(set_up.written.swapped)
    }

    /// Starts the command: writes the plan for the stage.
    pub(super) fn start(&self) -> anyhow::Result<Processes> {
        let target = self.target.borrow();
        let start = self.start_of(&target)?;
        let mut mounts: Vec<_> = start
            .mounts
            .iter()
            .map(|mount| {
                let source = self
                    .source(&target, mount)
                    .and_then(|source| match &self.subpaths {
                        Some(subpaths) if mount.follows_subpath() => {
                            Ok(subpaths.first(mount, source)?)
                        }
                        _ => Ok(source),
                    });
                Ok(PlannedMount {
                    source: source
                        .with_context(|| format!("cannot prepare the mount on {}", mount.target))?,
                    target: mount.target.clone(),
                    read_only: mount.read_only,
                    options: mount.options,
                })
            })
            .collect::<anyhow::Result<_>>()?;
        // Outer mounts first; of two on one path, the later one is visible.
        mounts.sort_by(|a, b| Path::new(&a.target).cmp(Path::new(&b.target)));
        let plan = Plan {
            staging: self.sandbox.staging().to_owned(),
            mounts,
            environment: start.environment.clone(),
            settings: start.settings.clone(),
        };
        let staging = self.sandbox.staging();
        sandbox::clear(staging).context("cannot clear the private tmpfs")?;
        let path = staging.join("plan");
        write_plan(&path, &StagePlan::Command(plan)).context("cannot write the plan")?;
        let processes = Processes::start(&path, staging)?;
        let whole = start.mounts.iter();
        let whole = whole.filter(|mount| mount.sub_path.is_none());
        let mount_paths = whole.map(|mount| (mount.volume.as_str().into(), (&mount.target).into()));
        let started = Started {
            inside: Rc::clone(processes.inside()),
            content: self.content.get(),
            mount_paths: mount_paths.collect(),
            start,
        };
        self.started.replace(Some(Rc::new(started)));
        Ok(processes)
    }

    /// The start that runs.
    pub(super) fn started(&self) -> Rc<Started> {
        let started = self.started.borrow();
        Rc::clone(started.as_ref().expect("rounds run beside a command"))
    }

    /// What the next start would have otherwise than the command that runs: names of variables, never values.
    pub(super) fn outdated(&self) -> Vec<String> {
        let next = self.start_of(&self.target.borrow());
        next.map_or_else(
            |_| Vec::new(),
            |next| self.started().start.differences(&next),
        )
    }

    /// The number of the present content.
    pub(super) fn content(&self) -> u64 {
        self.content.get()
    }

    /// The directories of the volumes that larder fills, as this process sees them.
    pub(super) fn directories(&self) -> BTreeMap<SmolStr, PathBuf> {
        let target = self.target.borrow();
        let directories = self.directories_of(&target).into_iter();
        directories
            .map(|(volume, directory)| (volume.name.as_str().into(), directory))
            .collect()
    }

    fn directories_of<'t>(&self, target: &'t ExecTarget) -> Vec<(&'t Volume, PathBuf)> {
        let volumes = filled(target.volumes());
        let found = volumes.filter_map(|volume| {
            let source = MountSource::of(volume, &target.contents)?;
            Some((volume, self.directory_of(target, &source, &volume.name)?))
        });
        found.collect()
    }

    fn note_secrets(&self, target: &ExecTarget) {
        let reads = target.outline().reads_secrets();
        self.has_read_secrets
            .set(self.has_read_secrets.get() || reads);
    }

    /// Whether commands of hooks may print a Secret or a token.
    pub(super) fn has_read_secrets(&self) -> bool {
        self.has_read_secrets.get()
    }

    /// Name of the container.
    pub(super) fn container(&self) -> String {
        self.target.borrow().container.clone()
    }

    /// Passes the present content to the hooks: everything that has changed together is in place (rule F1). The first
    /// time, the command is about to start with it (rule P7).
    pub(super) fn observe(&self, hooks: &mut CommandHooks) -> anyhow::Result<()> {
        if hooks.is_empty() {
            return Ok(());
        }
        let target = self.target.borrow();
        let start = self.start_of(&target)?.fingerprint();
        let directories = self.directories_of(&target);
        let content = content(&target, &directories, &start, hooks.selected())?;
        // The agent may have swapped a volume since it was last looked at. Then the files are newer than the number of the
        // content, and a round must not take them for those that the command has started with.
        let is_newer = |(directory, set): (&PathBuf, &PathBuf)| current_set(directory) != *set;
        if self.sets.borrow().iter().any(is_newer) {
            self.content.set(self.content.get() + 1);
        }
        hooks.observe(content);
        Ok(())
    }

    /// Replaces what is mounted by subPath in the running command, where the volume has another file or directory now.
    pub(super) fn update_subpaths(&self) {
        let Some(subpaths) = &self.subpaths else {
            return;
        };
        let target = self.target.borrow();
        let started = self.started();
        let (Ok(start), Some(mounts)) = (self.start_of(&target), started.inside.mounts()) else {
            return;
        };
        for mount in start.mounts.iter().filter(|mount| mount.follows_subpath()) {
            if let Some(root) = self.directory_of(&target, &mount.source, &mount.volume) {
                subpaths.update(mount, &root, mounts);
            }
        }
    }

    /// Prints once for which of the volumes `changed` the command keeps the old files (rule F7).
    pub(super) fn note_stale_subpaths(&self, changed: &[String]) {
        let target = self.target.borrow();
        let Ok(start) = self.start_of(&target) else {
            return;
        };
        if self.subpaths.is_some() {
            return;
        }
        for volume in changed {
            let mut mounts = start.mounts.iter().filter(|mount| mount.volume == *volume);
            let is_stale = mounts.any(MountedVolume::follows_subpath);
            if is_stale && self.stale.borrow_mut().insert(volume.clone()) {
                let container = &target.container;
                output::note(format_args!(
                    "container {container} mounts {volume} by subPath: only a restart shows it the new file"
                ));
            }
        }
    }

    /// The directory of a volume that larder or its agent swaps.
    fn directory_of(
        &self,
        target: &ExecTarget,
        source: &MountSource,
        volume: &str,
    ) -> Option<PathBuf> {
        match source {
            MountSource::Objects(kind) => Some(self.host.volume_path(target.uid(), *kind, volume)),
            MountSource::Agent(path) => Some(path.clone()),
            MountSource::EmptyDir(_) | MountSource::HostPath(_) => None,
        }
    }

    fn start_of(&self, target: &ExecTarget) -> anyhow::Result<Start> {
        Start::of(target, &self.args.command, self.sandbox.mapped())
    }

    /// The file or directory to bind-mount.
    fn source(&self, target: &ExecTarget, mount: &MountedVolume) -> anyhow::Result<PathBuf> {
        let root = match &mount.source {
            MountSource::Objects(kind) => {
                let Some(path) = &mount.sub_path else {
                    return Ok(self.host.volume_path(target.uid(), *kind, &mount.volume));
                };
                return Ok(self.host.prepare_subpath(&SubPath {
                    pod_uid: target.uid(),
                    kind: *kind,
                    volume: &mount.volume,
                    container: &target.container,
                    index: mount.index,
                    path,
                })?);
            }
            MountSource::EmptyDir(source) => {
                let path = self.sandbox.staging().join("empty").join(&mount.volume);
                let points = nested_mount_points(&target.pod).remove(&*mount.volume);
                let points = points.transpose()?.unwrap_or_default();
                make_empty_dir(&path, source, fs_group(&target.pod), &points)?;
                path
            }
            MountSource::Agent(path) | MountSource::HostPath(path) => path.clone(),
        };
        let Some(sub_path) = &mount.sub_path else {
            return Ok(root);
        };
        let targets = self.directory("subpaths")?;
        let create = matches!(mount.source, MountSource::EmptyDir(_)).then_some(0o777);
        let name = mount.index.to_string();
        if let Some(bound) = bind_subpath(&root, sub_path, &targets, &name, create)? {
            return Ok(bound);
        }
        // The kubelet creates a directory in the volume. This volume must not be changed, so an empty one is mounted
        // instead.
        output::note(format_args!(
            "volume {} has no {sub_path}: {} is an empty directory",
            mount.volume, mount.target
        ));
        Ok(self.directory(&format!("missing/{}", mount.index))?)
    }

    /// A directory that is private to this command and open to any user in it. Like an emptyDir it survives restarts.
    fn directory(&self, path: &str) -> io::Result<PathBuf> {
        let path = self.sandbox.staging().join(path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Brings everything up to date with what was `read`. A failed part is reported and keeps its last good copy.
    pub(super) fn update(
        &self,
        read: Result<(ExecTarget, bool), Failure>,
        follower: Option<&mut Follower>,
    ) -> Update {
        let next = match read {
            Ok((target, true)) => target,
            incomplete => {
                if let Err(failure) = incomplete {
                    output::error(&failure);
                }
                output::note("keeping the last good state");
                return Update::default();
            }
        };
        if let Some(follower) = follower {
            follower.follow(&self.origin.followed(&next));
        }
        self.note_secrets(&next);
        let mut update = Update::default();
        let mount_points = nested_mount_points(&next.pod);
        for volume in next.volumes() {
            match self.refresh(&next, volume, &mount_points) {
                Ok(true) => update.volumes.push(volume.name.clone()),
                Ok(false) => {}
                Err(error) => {
                    let what = format!(
                        "cannot update volume {}, keeping its last good copy",
                        volume.name
                    );
                    output::error(error.context(what).as_ref());
                }
            }
        }
        let before = self.start_of(&self.target.borrow());
        match (before, self.start_of(&next)) {
            (Ok(before), Ok(now)) => update.start = before.differences(&now),
            (Err(_), Ok(_)) => update.start.push("variables and mounts".to_owned()),
            (_, Err(error)) => {
                let error = error.context("cannot compute the next start, keeping the current one");
                output::error(error.as_ref());
                return update;
            }
        }
        drop(mount_points);
        self.target.replace(next);
        if update != Update::default() {
            self.content.set(self.content.get() + 1);
        }
        update
    }
}

/// The target of `..data` in a volume; empty if it has none.
fn current_set(directory: &Path) -> PathBuf {
    fs::read_link(directory.join("..data")).unwrap_or_default()
}

/// Writes a plan that only this user can read.
pub(super) fn write_plan(path: &Path, plan: &StagePlan) -> io::Result<()> {
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    Ok(serde_json::to_writer(file, plan)?)
}
