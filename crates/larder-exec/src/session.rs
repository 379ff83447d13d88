//! State that outlasts the starts of the command: its volumes, and how they are kept up to date.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use anyhow::Context as _;
use larder_console as console;
use smol_str::SmolStr;
use tokio::sync::watch;

use crate::{
    hooks::CommandHooks,
    origin::{ExecSettings, Origin, OriginRead},
    sandbox::{self, Follower, Inside, Plan, PlannedMount, Processes, Sandbox, StagePlan},
    security::{identity, unsupported, unsupported_fields},
    start::{MountSource, MountedVolume, Start},
    subpaths::SubPaths,
    target::ExecTarget,
    volumes::Volumes,
};

/// The effect of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    /// Names of the command's volumes that have other content.
    pub(crate) volumes: Vec<String>,
    /// Whether the next start of the command would have something otherwise than the present content.
    pub(crate) start: bool,
}

/// One start of the command.
pub(crate) struct Started {
    pub(crate) inside: Rc<Inside>,
    /// The number of the content that it has started with.
    pub(crate) content: u64,
    /// What it has started with.
    pub(crate) start: Start,
}

/// What rounds learn of the command while they run.
#[derive(Default)]
pub(crate) struct CommandState {
    /// The start that runs.
    started: Option<Rc<Started>>,
    /// Counts the changes.
    pub(crate) content: u64,
    /// The container has read a Secret or a token at some time. What commands of hooks print may hold it.
    pub(crate) has_read_secrets: bool,
}

impl CommandState {
    /// The start that runs.
    pub(crate) fn started(&self) -> Rc<Started> {
        Rc::clone(self.started.as_ref().expect("rounds run beside a command"))
    }

    fn note_secrets(&mut self, target: &ExecTarget) {
        self.has_read_secrets |= target.outline().reads_secrets();
    }
}

/// One `larder exec`.
pub(crate) struct Session<'a> {
    pub(crate) origin: Arc<dyn Origin>,
    pub(crate) settings: ExecSettings,
    sandbox: &'a Sandbox,
    volumes: Volumes<'a>,
    pub(crate) target: ExecTarget,
    /// The state of the command.
    pub(crate) state: watch::Sender<CommandState>,
    /// The mounts by subPath, unless they keep their content.
    subpaths: Option<SubPaths>,
    /// The volumes of which it was printed that the command keeps their old files.
    stale: BTreeSet<String>,
}

impl<'a> Session<'a> {
    /// Sets up all volumes, before the first start, and prints what the command will lack.
    pub(crate) fn new(
        origin: Arc<dyn Origin>,
        settings: ExecSettings,
        sandbox: &'a Sandbox,
        target: ExecTarget,
    ) -> anyhow::Result<Self> {
        let mut volumes = Volumes::open(sandbox)?;
        // A user that the pod forbids is an error of the container, not of a volume, for root and other callers alike.
        identity(&target.pod, target.container(), sandbox.mapped)?;
        let mut state = CommandState::default();
        state.note_secrets(&target);
        target.note_unknown();
        target.note_unfilled();
        for volume in target.volumes() {
            volumes
                .refresh(&target, volume)
                .with_context(|| format!("cannot set up volume {}", volume.name))?;
            if MountSource::of(volume, &target.contents).is_none() {
                console::note(format_args!(
                    "volume {} is of an unsupported type, ignored: its path stays as it is",
                    volume.name
                ));
            }
        }
        let unsupported = unsupported(&target.pod, target.container());
        if !unsupported.is_empty() {
            console::note(format_args!(
                "securityContext: {} cannot be applied here, ignored",
                unsupported.join(", ")
            ));
        }
        let fields = unsupported_fields(&target.pod, target.container(), sandbox.mapped);
        if !fields.is_empty() {
            console::note(format_args!(
                "{} cannot be carried out here, ignored",
                fields.join(", ")
            ));
        }
        let follows_subpaths = settings.subpath_updates;
        Ok(Self {
            subpaths: follows_subpaths.then(|| SubPaths::new(&sandbox.staging)),
            origin,
            settings,
            sandbox,
            volumes,
            target,
            state: watch::Sender::new(state),
            stale: BTreeSet::new(),
        })
    }

    /// Starts the command: writes the plan for the stage.
    pub(crate) fn start(&mut self) -> anyhow::Result<Processes> {
        let start = self.next_start()?;
        let mut mounts = Vec::new();
        for mount in &start.mounts {
            let what = || format!("cannot prepare the mount on {}", mount.target);
            mounts.push(PlannedMount {
                source: self.source(mount).with_context(what)?,
                target: mount.target.clone(),
                read_only: mount.read_only,
                options: mount.options,
            });
        }
        // Outer mounts first; of two on one path, the later one is visible.
        mounts.sort_by(|a, b| Path::new(&a.target).cmp(Path::new(&b.target)));
        let plan = Plan {
            staging: self.sandbox.staging.clone(),
            mounts,
            environment: start.environment.clone(),
            settings: start.settings.clone(),
        };
        let staging = &self.sandbox.staging;
        sandbox::clear(staging).context("cannot clear the private tmpfs")?;
        let path = staging.join("plan");
        write_plan(&path, &StagePlan::Command(plan)).context("cannot write the plan")?;
        let processes = Processes::start(&path, staging)?;
        self.state.send_modify(|state| {
            state.started = Some(Rc::new(Started {
                inside: Rc::clone(&processes.inside),
                content: state.content,
                start,
            }));
        });
        Ok(processes)
    }

    /// The file or directory to mount at a start.
    fn source(&mut self, mount: &MountedVolume) -> anyhow::Result<PathBuf> {
        let source = self.volumes.source(&self.target, mount)?;
        match &mut self.subpaths {
            Some(subpaths) if mount.follows_subpath() => Ok(subpaths.first(mount, source)?),
            _ => Ok(source),
        }
    }

    /// What the next start would have otherwise than the command that runs: names of variables, never values.
    pub(crate) fn outdated(&self) -> Vec<String> {
        let started = self.state.borrow().started();
        self.next_start()
            .map_or_else(|_| Vec::new(), |next| started.start.differences(&next))
    }

    /// Whether the command has started before the present content was there.
    pub(crate) fn has_missed_changes(&self) -> bool {
        let state = self.state.borrow();
        state.started().content != state.content
    }

    /// The directories of the volumes that larder fills, as this process sees them.
    pub(crate) fn directories(&self) -> BTreeMap<SmolStr, PathBuf> {
        let directories = self.volumes.directories(&self.target).into_iter();
        directories
            .map(|(volume, directory)| (volume.name.as_str().into(), directory))
            .collect()
    }

    /// Passes the present content to the hooks: everything that has changed together is in place (rule F1). The first
    /// time, the command is about to start with it (rule P7).
    pub(crate) fn observe(&self, hooks: &mut CommandHooks) -> anyhow::Result<()> {
        if hooks.is_empty() {
            return Ok(());
        }
        let start = self.next_start()?.fingerprint();
        let directories = self.volumes.directories(&self.target);
        hooks.observe(&self.target, &directories, &start)?;
        // The agent may have swapped a volume since it was last looked at. Then the files are newer than the number of the
        // content, and a round must not take them for those that the command has started with.
        if self.volumes.are_newer() {
            self.state.send_modify(|state| state.content += 1);
        }
        Ok(())
    }

    /// Replaces what is mounted by subPath in the running command, where the volume has another file or directory now.
    pub(crate) fn update_subpaths(&mut self) {
        let start = self.next_start();
        let Some(subpaths) = &mut self.subpaths else {
            return;
        };
        let started = self.state.borrow().started();
        let (Ok(start), Some(mounts)) = (start, started.inside.mounts.get()) else {
            return;
        };
        for mount in start.mounts.iter().filter(|mount| mount.follows_subpath()) {
            let root = self
                .volumes
                .directory_of(&self.target, &mount.source, &mount.volume);
            if let Some(root) = root {
                subpaths.update(mount, &root, mounts);
            }
        }
    }

    /// Prints once for which of the volumes `changed` the command keeps the old files (rule F7).
    pub(crate) fn note_stale_subpaths(&mut self, changed: &[String]) {
        let (None, Ok(start)) = (&self.subpaths, self.next_start()) else {
            return;
        };
        for volume in changed {
            let mut mounts = start.mounts.iter().filter(|mount| mount.volume == *volume);
            let is_stale = mounts.any(MountedVolume::follows_subpath);
            if is_stale && self.stale.insert(volume.clone()) {
                let container = &self.target.container;
                console::note(format_args!(
                    "container {container} mounts {volume} by subPath: only a restart shows it the new file"
                ));
            }
        }
    }

    fn next_start(&self) -> anyhow::Result<Start> {
        self.start_of(&self.target)
    }

    fn start_of(&self, target: &ExecTarget) -> anyhow::Result<Start> {
        Start::of(target, &self.settings.command, self.sandbox.mapped)
    }

    /// Brings everything up to date with what was `read`. A failed part is reported and keeps its last good copy.
    pub(crate) fn update(
        &mut self,
        read: anyhow::Result<OriginRead>,
        follower: Option<&mut Follower>,
    ) -> Update {
        let next = match read {
            Ok(OriginRead::Whole(target)) => *target,
            incomplete => {
                if let Err(error) = incomplete {
                    console::error(error.as_ref());
                }
                console::note("keeping the last good state");
                return Update::default();
            }
        };
        if let Some(follower) = follower {
            follower.follow(&self.origin.followed(&next));
        }
        self.state.send_modify(|state| state.note_secrets(&next));
        let mut update = Update::default();
        for volume in next.volumes() {
            match self.volumes.refresh(&next, volume) {
                Ok(true) => update.volumes.push(volume.name.clone()),
                Ok(false) => {}
                Err(error) => {
                    let volume = &volume.name;
                    let what = format!("cannot update volume {volume}, keeping its last good copy");
                    console::error(error.context(what).as_ref());
                }
            }
        }
        match self.start_of(&next) {
            Ok(now) => {
                let before = self.next_start();
                update.start = before.map_or(true, |before| !before.differences(&now).is_empty());
            }
            Err(error) => {
                let error = error.context("cannot compute the next start, keeping the current one");
                console::error(error.as_ref());
                return update;
            }
        }
        self.target = next;
        if update != Update::default() {
            self.state.send_modify(|state| state.content += 1);
        }
        update
    }
}

/// Writes a plan that only this user can read.
pub(crate) fn write_plan(path: &Path, plan: &StagePlan) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    Ok(serde_json::to_writer(options.open(path)?, plan)?)
}
