//! The environment of an attempt's steps: the containers and addresses of a pod, and this machine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use larder_actions::{
    StepEnvironment, StepOutcome,
    exec::{CommandOutput, ExecReport, Launch, LaunchError, Launched},
    http::{Files, Hosts, RequestContext},
    restart,
};
use larder_containers::processes::{FoundContainer, Processes};
use larder_objects::PodIdentity;
use larder_on_change::{Action, Attempt, Content, Place, PodChange, PodOutline, Restart};
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{info, warn};

use super::targets::PodTargets;
use crate::{OnChange, hooked_pod::HookedPod};

/// Most bytes of the output of a failed command that are kept for status: one for each pod, if a hook selects all.
const SHOWN_OUTPUT: usize = 2 << 10;

/// Where the steps of an attempt act.
pub(super) struct PodEnvironment<'a> {
    attempt: &'a Attempt<HookedPod>,
    on_change: &'a OnChange,
    pub(super) targets: PodTargets,
    restarted: Mutex<Vec<SmolStr>>,
    /// The end of the output of the command that has failed.
    output: Mutex<String>,
    /// Whether the attempt counts among those that run at the same time.
    has_place: AtomicBool,
}

impl<'a> PodEnvironment<'a> {
    /// For an attempt, with the change that it is about.
    pub(super) fn of(
        attempt: &'a Attempt<HookedPod>,
        on_change: &'a OnChange,
    ) -> (Self, PodChange) {
        let hook = attempt.hook();
        let mut targets = PodTargets::of(on_change, attempt);
        let query = &mut targets.query;
        let empty = Content::default();
        let before = attempt.baseline.as_deref();
        let earlier = before.unwrap_or(&empty);
        let content = &attempt.content;
        let mut change = attempt.change(PodIdentity::from(&attempt.pod.pod.metadata));
        change.changes.locate(&query.mounts.volumes);
        query.volumes = before.is_some().then(|| {
            change
                .changes
                .volumes
                .iter()
                .map(|volume| volume.name.clone())
                .collect()
        });
        query.variables = content.changed_environments(earlier, hook);
        query.swapped = content.swapped_since(earlier, hook);
        let environment = Self {
            attempt,
            on_change,
            targets,
            restarted: Mutex::default(),
            output: Mutex::default(),
            has_place: AtomicBool::new(true),
        };
        (environment, change)
    }

    /// The containers that were restarted, and the end of the output of the command that has failed.
    pub(super) fn into_results(self) -> (Vec<SmolStr>, String) {
        (self.restarted.into_inner(), self.output.into_inner())
    }
}

impl StepEnvironment for PodEnvironment<'_> {
    fn processes(&self) -> &Processes {
        &self.on_change.node().processes
    }

    fn target_names(&self) -> Vec<SmolStr> {
        self.targets.query.names()
    }

    async fn signal_targets(
        &self,
        all_processes: bool,
    ) -> Result<Vec<FoundContainer>, StepOutcome> {
        let query = &self.targets.query;
        query
            .find(self.processes(), all_processes)
            .await
            .map_err(|error| StepOutcome::Failed(error.to_string()))
    }

    fn swapped(&self) -> Option<Duration> {
        self.targets.query.swapped
    }

    async fn step_begins(&self, action: &Action) {
        let id = self.attempt.id;
        let on_change = self.on_change;
        let needs_place = !matches!(action, Action::Restart(_));
        match (
            needs_place,
            self.has_place.swap(needs_place, Ordering::Relaxed),
        ) {
            (true, false) => on_change.regain_place(id, &self.attempt.control).await,
            (false, _) => on_change.yield_place(id),
            (true, true) => {}
        }
    }

    async fn restart(
        &self,
        restart: &Restart,
        failure: Option<&StepOutcome>,
        change: &PodChange,
        timeout: Duration,
    ) -> StepOutcome {
        if let Some(failure) = failure {
            let (pod, hook, error) = (&change.pod, &change.hook, failure.reason());
            warn!(
                pod = %format_args!("{}/{}", pod.namespace, pod.name),
                hook, error, "all attempts failed, restarting the container"
            );
        }
        let targets = &self.targets;
        let processes = self.processes();
        let query = &targets.query;
        let stop = &targets.stop;
        let mut ended = Vec::new();
        let outcome = restart::run(restart, stop, timeout, query, processes, &mut ended).await;
        let uid = &self.attempt.uid;
        let now = Instant::now();
        self.on_change.schedule().restarted(uid, &ended, now);
        self.restarted.lock().extend(ended);
        outcome.unwrap_or_else(StepOutcome::Failed)
    }

    fn request(&self) -> RequestContext<'_> {
        RequestContext {
            hosts: Hosts::Pod(&self.targets.addresses),
            outline: &self.targets.outline,
            files: Files {
                volumes: &self.targets.query.mounts.volumes,
                any_authorities: self.attempt.hook().place == Place::Configuration,
            },
        }
    }

    fn launch(&self, launch: Launch<'_>, _: &PodChange) -> Result<Launched, LaunchError> {
        self.on_change.machine().launch(launch)
    }

    fn withholds(&self) -> Option<&'static str> {
        // Also if it does so only since the attempt began.
        let mut schedule = self.on_change.schedule();
        let now = schedule
            .pod_mut(&self.attempt.uid)
            .map(|known| Arc::clone(&known.pod));
        drop(schedule);
        let reads_now = || now.is_some_and(|now| PodOutline::of(&now.decode()).reads_secrets());
        let reads = self.targets.outline.reads_secrets() || reads_now();
        reads.then_some("the pod reads Secrets, tokens or private keys")
    }

    fn command_ended(&self, report: ExecReport, change: &PodChange) -> StepOutcome {
        let pod = format!("{}/{}", change.pod.namespace, change.pod.name);
        let hook = &change.hook;
        let bytes = report.bytes;
        let outcome = report.outcome.reason();
        let kept = match &report.output {
            CommandOutput::Shown(output) => Some(end_of(output).to_owned()),
            _ => report.unshown(),
        };
        match (&report.output, &kept) {
            (CommandOutput::Shown(output), _) | (_, Some(output)) => info!(
                pod,
                hook, outcome, bytes, output, "output of a hook's command"
            ),
            (_, None) => {}
        }
        if !report.outcome.is_success() {
            *self.output.lock() = kept.unwrap_or_default();
        }
        report.outcome
    }

    fn step_ended(&self, action: &Action, outcome: &StepOutcome, took: Duration) {
        self.on_change
            .metrics()
            .ran(action.word(), outcome.name(), took);
    }
}

/// The last lines of `output`, as many as status shows.
fn end_of(output: &str) -> &str {
    let start = output.len().saturating_sub(SHOWN_OUTPUT);
    let end = &output[output.ceil_char_boundary(start)..];
    match end.split_once('\n') {
        Some((_, whole_lines)) if start > 0 => whole_lines,
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::on_change;

    #[test]
    fn status_keeps_the_last_lines_of_an_output() {
        assert_eq!(end_of("one\ntwo"), "one\ntwo");
        let long = format!("{}\nlast é", "é".repeat(SHOWN_OUTPUT));
        assert_eq!(end_of(&long), "last é");
        let line = long.lines().next().unwrap();
        assert_eq!(end_of(line).len(), SHOWN_OUTPUT);
    }

    #[test]
    fn addresses_of_static_pods_count_only_in_the_networks_of_the_operator() {
        let root = tempfile::tempdir().unwrap();
        let on_change = on_change(root.path());
        let networks = |source: &str| {
            let pod = json!({
                "metadata": {"annotations": {"kubernetes.io/config.source": source}},
                "spec": {"containers": []},
                "status": {"podIP": "10.0.0.1"},
            });
            let pod = serde_json::from_value(pod).unwrap();
            crate::round::targets::addresses(&on_change, &pod).networks
        };
        assert_eq!(networks("api"), None);
        assert_eq!(networks("file"), Some(Vec::new()));
        assert_eq!(networks("http"), Some(Vec::new()));
    }
}
