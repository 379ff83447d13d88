//! The steps of hooks in a sidecar: where they act.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use larder_actions::{
    StepEnvironment, StepInputs, StepOutcome,
    exec::{ExecReport, Launch, LaunchError, Launched, Machine, Redactor},
    http::{Files, Hosts, RequestContext},
    processes::{FoundContainer, Processes},
    run_steps,
};
use larder_on_change::{Action, Hook, PodFacts, PodIdentity, Restart};
use smol_str::SmolStr;
use tracing::info;

use crate::metrics::Metrics;

/// What all steps share.
#[derive(Debug)]
pub(crate) struct StepContext {
    pub(crate) pod: PodIdentity,
    pub(crate) processes: Processes,
    pub(crate) machine: Machine,
    pub(crate) volumes: BTreeMap<SmolStr, PathBuf>,
    pub(crate) metrics: Metrics,
}

/// Runs steps until one fails.
pub(crate) async fn steps(
    steps: &[Action],
    hook: &Hook,
    mut inputs: StepInputs,
    environment: &SidecarEnvironment<'_>,
) -> StepOutcome {
    run_steps(steps, hook, Duration::ZERO, &mut inputs, environment).await
}

/// Where the steps of a sidecar act: its own container, and the network that the pod's containers share.
pub(crate) struct SidecarEnvironment<'a> {
    pub(crate) context: &'a StepContext,
}

static FACTS: PodFacts = PodFacts {
    volumes: Vec::new(),
    containers: Vec::new(),
    restart_policy: SmolStr::new_static(""),
};

impl StepEnvironment for SidecarEnvironment<'_> {
    fn processes(&self) -> &Processes {
        &self.context.processes
    }

    fn target_names(&self) -> Vec<SmolStr> {
        vec![SmolStr::new_static("of this pod")]
    }

    async fn signal_targets(
        &self,
        all_processes: bool,
    ) -> Result<Vec<FoundContainer>, StepOutcome> {
        let failed = |error| StepOutcome::Failed(format!("cannot find processes: {error}"));
        let namespace = std::fs::metadata("/proc/self/ns/pid")
            .map_err(failed)?
            .ino();
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let processes = &self.context.processes;
        let found = processes.in_pid_namespace("pod".into(), own, namespace, all_processes);
        Ok(found.map_err(failed)?.into_iter().collect())
    }

    fn swapped(&self) -> Option<Duration> {
        None
    }

    async fn restart(&self, _: &Restart, _: &StepInputs) -> StepOutcome {
        StepOutcome::Failed("a sidecar cannot restart containers".to_owned())
    }

    fn request(&self) -> RequestContext<'_> {
        RequestContext {
            hosts: Hosts::ThisMachine,
            facts: &FACTS,
            files: Files {
                volumes: &self.context.volumes,
                any_authorities: true,
            },
        }
    }

    fn launch(&self, launch: Launch<'_>, _: &StepInputs) -> Result<Launched, LaunchError> {
        self.context.machine.launch(launch)
    }

    async fn redactor(&self, _: &StepInputs) -> Redactor {
        // Which values are secret is not kept.
        Redactor::all()
    }

    fn command_ended(&self, report: ExecReport, inputs: &StepInputs) -> StepOutcome {
        if report.bytes > 0 {
            info!(
                hook = inputs.hook,
                bytes = report.bytes,
                "command has printed"
            );
        }
        report.outcome
    }

    fn step_ended(&self, action: &Action, outcome: &StepOutcome, _: Duration) {
        self.context.metrics.ran(action.word(), outcome);
    }
}
