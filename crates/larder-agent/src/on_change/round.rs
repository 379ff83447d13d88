//! One attempt to notify an application of a change: runs the steps of a hook in order, until one fails (rule T6).

mod facts;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use larder_actions::{
    Redactor, StepContext, StepOutcome, exec, http, restart, signal, targets::TargetQuery,
};
use larder_objects::{ObjectKey, SecretBytes};
use larder_on_change::{
    Action, Attempt, AttemptEnd, Changes, Content, HookId, Place, PodHook, PodIdentity, Restart,
    RoundId, parse::ConfiguredHook,
};
use larder_projection::VolumeKind;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{info, warn};

use self::facts::RoundFacts;
use super::{OnChange, hooked_pod::HookedPod};
use crate::blocking::blocking;

/// A callback of the program that embeds the agent.
pub(crate) type Handler =
    Arc<dyn Fn(PodChange) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A hook of the program that embeds the agent.
#[derive(Clone)]
pub(crate) struct ProgramHook {
    pub(crate) selected: ConfiguredHook,
    pub(crate) handler: Handler,
}

/// A delivered change of a pod's content.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PodChange {
    /// The pod.
    pub pod: PodIdentity,
    /// Name of the hook.
    pub hook: String,
    /// The same in all attempts of a round.
    pub round: RoundId,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The differences from the content of the last success, with the directories of volumes.
    pub changes: Changes,
}

/// Runs one attempt of a round.
pub(super) struct AttemptRun {
    attempt: Attempt<HookedPod>,
    on_change: OnChange,
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) struct AttemptReport {
    pub(super) id: HookId,
    pub(super) uid: SmolStr,
    pub(super) end: AttemptEnd,
    /// The containers whose main process was ended.
    pub(super) restarted: Vec<SmolStr>,
    /// The change, as text.
    pub(super) summary: String,
    pub(super) took: Duration,
}

/// Input that the steps of an attempt share.
struct Scene {
    of_pod: RoundFacts,
    changes: Changes,
    /// The changed volumes; `None` if the content of the last notification is unknown.
    volumes: Option<BTreeSet<SmolStr>>,
    variables: BTreeSet<SmolStr>,
    swapped: Option<Duration>,
    redactor: Redactor,
}

impl AttemptRun {
    pub(super) fn new(attempt: Attempt<HookedPod>, on_change: OnChange) -> Self {
        Self { attempt, on_change }
    }

    /// Runs the steps.
    pub(super) async fn run(self) -> AttemptReport {
        let began = Instant::now();
        let mut restarted = Vec::new();
        let mut summary = String::new();
        let end = tokio::select! {
            biased;
            () = self.attempt.control.cancelled() => AttemptEnd::Interrupted,
            end = self.steps(&mut restarted, &mut summary) => end,
        };
        AttemptReport {
            id: self.attempt.id,
            uid: self.attempt.uid,
            end,
            restarted,
            summary,
            took: began.elapsed(),
        }
    }

    /// Stores that the outcome of the attempt is uncertain: a crash during it must not be taken for a success of the
    /// previous content (rule P4).
    pub(super) async fn record(&self) {
        let (on_change, uid) = (self.on_change.clone(), self.attempt.uid.clone());
        blocking(move || on_change.write_record(&uid)).await;
    }

    fn hook(&self) -> &PodHook {
        self.attempt.hook()
    }

    async fn steps(&self, restarted: &mut Vec<SmolStr>, summary: &mut String) -> AttemptEnd {
        self.record().await;
        let scene = self.scene().await;
        *summary = scene.changes.summary();
        let (id, hook, on_change) = (self.attempt.id, &self.hook().hook, &self.on_change);
        if hook.restarts() || on_change.restarts_after_failure(id) {
            let names = self.query(&scene).names();
            if let Some((until, reason)) = on_change.restart_limit(&self.attempt.uid, &names) {
                return AttemptEnd::Deferred(until, reason);
            }
        }
        if self.attempt.number == 1
            && let Some(changed_at) = self.attempt.changed_at
        {
            on_change.metrics().delayed(changed_at.elapsed());
        }
        if let Place::Program(index) = self.hook().place {
            return self.call(on_change.handler(index), &scene).await;
        }
        let mut has_place = true;
        let mut end = AttemptEnd::Succeeded;
        for step in &hook.steps {
            if matches!(step, Action::Restart(_)) {
                on_change.yield_place(id);
                has_place = false;
            } else if !std::mem::replace(&mut has_place, true) {
                on_change.regain_place(id, &self.attempt.control).await;
            }
            let outcome = self.step(step, &scene, restarted).await;
            if !outcome.is_success() {
                end = AttemptEnd::Failed(outcome.reason().to_owned());
                break;
            }
        }
        if let AttemptEnd::Failed(reason) = &end
            && on_change.restarts_after_failure(id)
        {
            warn!(pod = %self.name(), hook = hook.name, error = reason, "all attempts failed, restarting the container");
            on_change.yield_place(id);
            let restart = Action::Restart(Restart::default());
            let outcome = self.step(&restart, &scene, restarted).await;
            if outcome.is_success() {
                end = AttemptEnd::Succeeded;
            }
        }
        end
    }

    fn name(&self) -> ObjectKey {
        self.attempt.pod.pod.key()
    }

    fn identity(&self) -> PodIdentity {
        let key = self.name();
        PodIdentity {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: self.attempt.uid.to_string(),
        }
    }

    async fn call(&self, handler: &Handler, scene: &Scene) -> AttemptEnd {
        let change = PodChange {
            pod: self.identity(),
            hook: self.hook().hook.name.clone(),
            round: self.attempt.round,
            attempt: self.attempt.number,
            changes: scene.changes.clone(),
        };
        let timeout = self.hook().hook.timing.timeout;
        let began = Instant::now();
        let called = handler(change);
        let outcome = match timeout {
            None => Some(called.await),
            Some(timeout) => tokio::time::timeout(timeout, called).await.ok(),
        };
        let outcome = match outcome {
            Some(Ok(())) => StepOutcome::Succeeded,
            Some(Err(reason)) => StepOutcome::Failed(reason),
            None => StepOutcome::timed_out(timeout.unwrap_or_default()),
        };
        let metrics = self.on_change.metrics();
        metrics.ran("program", outcome.name(), began.elapsed());
        if outcome.is_success() {
            AttemptEnd::Succeeded
        } else {
            AttemptEnd::Failed(outcome.reason().to_owned())
        }
    }

    async fn step(
        &self,
        step: &Action,
        scene: &Scene,
        restarted: &mut Vec<SmolStr>,
    ) -> StepOutcome {
        let (hook, on_change) = (self.hook(), &self.on_change);
        let context = StepContext {
            hook: hook.hook.name.clone(),
            round: self.attempt.round,
            attempt: self.attempt.number,
            pod: self.identity(),
            changes: scene.changes.clone(),
            redactor: scene.redactor.clone(),
            timeout: hook.hook.timing.timeout_of(step, scene.of_pod.grace),
        };
        let processes = on_change.processes();
        let began = Instant::now();
        let outcome = match step {
            Action::Signal(target) => {
                signal::run(target, &context, &self.query(scene), processes).await
            }
            Action::Restart(restart) => {
                let query = self.query(scene);
                let report =
                    restart::run(restart, scene.of_pod.grace, &context, &query, processes).await;
                on_change.restarted(&self.attempt.uid, &report.ended);
                restarted.extend(report.ended);
                report.outcome
            }
            Action::Http(call) => {
                let request = http::RequestContext {
                    hosts: http::Hosts::Pod(&scene.of_pod.ips),
                    facts: &scene.of_pod.facts,
                    files: http::Files {
                        volumes: &scene.of_pod.mounts.volumes,
                        any_authorities: hook.place == Place::Configuration,
                    },
                };
                http::run(call, &context, request).await
            }
            Action::Exec(command) => {
                let machine = on_change.machine();
                let report = exec::run(command, &context, |launch| machine.launch(launch)).await;
                if let Some(output) = report.output {
                    info!(
                        pod = %self.name(),
                        hook = context.hook,
                        output,
                        "output of a hook's command"
                    );
                }
                report.outcome
            }
        };
        let took = began.elapsed();
        on_change.metrics().ran(step.word(), outcome.name(), took);
        outcome
    }

    fn query<'a>(&'a self, scene: &'a Scene) -> TargetQuery<'a> {
        TargetQuery {
            mounts: &scene.of_pod.mounts,
            ids: scene.of_pod.ids.as_ref(),
            container: self.hook().hook.container.as_ref(),
            volumes: scene.volumes.as_ref(),
            variables: &scene.variables,
            swapped: scene.swapped,
            known: &self.attempt.pod.known_containers,
        }
    }

    /// Gathers the input of the steps.
    async fn scene(&self) -> Scene {
        let (hook, attempt, on_change) = (self.hook(), &self.attempt, &self.on_change);
        let pod = Box::new(attempt.pod.pod.decode());
        let redactor = if hook.hook.runs_commands() {
            self.redactor(&pod).await
        } else {
            Redactor::default()
        };
        let of_pod = RoundFacts::of(on_change, &attempt.uid, &pod, hook);
        drop(pod);
        let empty = Content::default();
        let before = attempt.notified.as_deref();
        let earlier = before.unwrap_or(&empty);
        let content = &attempt.content;
        let mut changes = content.changes_since(earlier, hook, on_change.key());
        for volume in &mut changes.volumes {
            if let Some(directory) = of_pod.mounts.volumes.get(&volume.name) {
                volume.directory.clone_from(directory);
            }
        }
        let volumes = before.is_some().then(|| {
            let names = changes.volumes.iter().map(|volume| volume.name.clone());
            names.collect()
        });
        let variables = content.changed_environments(earlier, hook);
        let swapped = content.swapped_since(earlier, hook);
        Scene {
            of_pod,
            changes,
            volumes,
            variables,
            swapped,
            redactor,
        }
    }

    /// Finds the values of Secrets that a command could print: the present files of volumes that may contain some.
    async fn redactor(&self, pod: &Pod) -> Redactor {
        let volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let secret: Vec<_> = volumes
            .filter_map(|volume| Some((volume.name.clone(), VolumeKind::of(volume)?)))
            .filter(|(_, kind)| matches!(kind, VolumeKind::Secret | VolumeKind::Projected))
            .collect();
        let (on_change, uid) = (self.on_change.clone(), self.attempt.uid.clone());
        blocking(move || {
            let mut values = Vec::new();
            for (name, kind) in secret {
                on_change.volumes().read_set(&uid, kind, &name, |_, bytes| {
                    values.push(SecretBytes::new(bytes.to_vec()));
                });
            }
            Redactor::new(values.iter().map(|value| &**value))
        })
        .await
    }
}
