//! The steps of hooks in a sidecar: where they act.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Error,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use larder_actions::{
    StepEnvironment, StepOutcome,
    exec::{ExecReport, Launch, LaunchError, Launched, Machine},
    http::{Files, Hosts, RequestContext},
};
use larder_containers::processes::{FoundContainer, Processes};
use larder_objects::PodIdentity;
use larder_on_change::{Action, Hook, OnFailure, PodChange, PodOutline};
use smol_str::SmolStr;
use tracing::info;

use crate::metrics::Metrics;

/// Why a hook cannot restart.
const NO_RESTART: &str = "a sidecar cannot restart containers; send a signal to a process";
/// Why a signal needs the name of a process.
const NO_PROCESS: &str = "a signal takes shareProcessNamespace in the pod, and the name of a process: \
    {signal: SIGHUP, process: nginx}";

/// Where the steps of a sidecar act: its own container, and the network that the pod's containers share.
#[derive(Debug)]
pub(crate) struct StepContext {
    pub(crate) pod: PodIdentity,
    /// It knows no ports by name.
    outline: PodOutline,
    processes: Processes,
    machine: Machine,
    pub(crate) volumes: BTreeMap<SmolStr, PathBuf>,
    pub(crate) metrics: Metrics,
}

impl StepContext {
    /// Scripts of the label form have the whole environment of this process.
    pub(crate) fn new(
        pod: PodIdentity,
        state_dir: &Path,
        volumes: BTreeMap<SmolStr, PathBuf>,
        metrics: &Metrics,
        whole_environment: bool,
    ) -> Self {
        let memory = Some(state_dir).filter(|path| path.is_dir());
        let mut machine = Machine::new(memory.map_or_else(env::temp_dir, Path::to_owned));
        if whole_environment {
            let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            };
            machine.base = env::vars_os().filter_map(text).collect();
        }
        Self {
            pod,
            outline: PodOutline::default(),
            processes: Processes::new("/proc", "/nonexistent"),
            machine,
            volumes,
            metrics: metrics.clone(),
        }
    }
}

/// Whether a sidecar can carry out the hook.
///
/// # Errors
///
/// What it cannot do, and what can be done instead.
pub fn check_hook(hook: &Hook) -> Result<(), &'static str> {
    if hook.on_failure == OnFailure::Restart {
        return Err(NO_RESTART);
    }
    hook.steps.iter().try_for_each(|step| match step {
        Action::Restart(_) => Err(NO_RESTART),
        Action::Signal(target) if target.process.is_none() => Err(NO_PROCESS),
        Action::Signal(_) | Action::Http(_) | Action::Exec(_) => Ok(()),
    })
}

impl StepEnvironment for StepContext {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn target_names(&self) -> Vec<SmolStr> {
        vec![SmolStr::new_static("of this pod")]
    }

    async fn signal_targets(
        &self,
        all_processes: bool,
    ) -> Result<Vec<FoundContainer>, StepOutcome> {
        let failed = |error: Error| StepOutcome::Failed(format!("cannot find processes: {error}"));
        let namespace = fs::metadata("/proc/self/ns/pid").map_err(failed)?.ino();
        let own = i32::try_from(process::id()).unwrap_or_default();
        let found = self
            .processes
            .in_pid_namespace("pod".into(), own, namespace, all_processes);
        Ok(found.map_err(failed)?.into_iter().collect())
    }

    fn request(&self) -> RequestContext<'_> {
        RequestContext {
            hosts: Hosts::ThisMachine,
            outline: &self.outline,
            files: Files {
                volumes: &self.volumes,
                any_authorities: true,
            },
        }
    }

    fn launch(&self, launch: Launch<'_>, _: &PodChange) -> Result<Launched, LaunchError> {
        self.machine.launch(launch)
    }

    fn withholds(&self) -> Option<&'static str> {
        Some("this container holds a token of the API server")
    }

    fn command_ended(&self, report: ExecReport, change: &PodChange) -> StepOutcome {
        if let Some(output) = report.unshown() {
            let hook = &change.hook;
            info!(hook, output, "command has printed");
        }
        report.outcome
    }

    fn step_ended(&self, action: &Action, outcome: &StepOutcome, took: Duration) {
        self.metrics
            .on_change
            .ran(action.word(), outcome.name(), took);
    }
}
