//! One attempt to notify an application of a change: runs the steps of a hook in order, until one fails (rule T6).

mod facts;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use larder_actions::{
    Redactor, StepContext, StepOutcome, exec, http, restart, signal, targets::TargetQuery,
};
use larder_objects::SecretBytes;
use larder_on_change::{Action, Changes, HookId, OnFailure, PodIdentity, Restart, RoundId};
use larder_pods::StoredPod;
use larder_projection::VolumeKind;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{info, warn};

use self::facts::RoundFacts;
use super::{
    OnChange,
    content::{Content, PartKey},
    pod_hooks::{Place, PodHook, PodHooks},
};
use crate::blocking::blocking;

/// A callback of the program that embeds the agent.
pub(crate) type Handler =
    Arc<dyn Fn(PodChange) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

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

/// An attempt of a round.
pub(super) struct Attempt {
    pub(super) id: HookId,
    pub(super) pod: Arc<StoredPod>,
    pub(super) hooks: Arc<PodHooks>,
    /// Index of the hook in `hooks`.
    pub(super) index: usize,
    pub(super) round: RoundId,
    /// 1 for the first attempt of the round.
    pub(super) number: u32,
    /// The content that the application is notified of.
    pub(super) content: Arc<Content>,
    /// The content of the last success, if it is known.
    pub(super) notified: Option<Arc<Content>>,
    /// Arrival of the first change that the application was not yet notified of.
    pub(super) changed_at: Option<Instant>,
    /// The record on disk says already that the outcome of this attempt is uncertain.
    pub(super) is_recorded: bool,
    /// The facts about the pod, if they are known already.
    pub(super) pod_facts: Option<RoundFacts>,
    pub(super) cancel: tokio_util::sync::CancellationToken,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    Succeeded,
    Failed(String),
    /// It may not begin before this time, for this reason.
    Deferred(Instant, String),
    /// The pod was removed, or the agent shuts down.
    Interrupted,
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) struct AttemptReport {
    pub(super) id: HookId,
    pub(super) uid: SmolStr,
    pub(super) content: Arc<Content>,
    pub(super) end: AttemptEnd,
    /// The containers whose main process was ended.
    pub(super) restarted: Vec<SmolStr>,
    /// The change, as text.
    pub(super) summary: String,
    pub(super) took: Duration,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("id", &self.id)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
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

impl Attempt {
    /// Whether all that it does is to send signals. Then its first poll does everything, unless it has to search for
    /// processes or one does not handle the signal yet. It never waits for a disk.
    pub(super) fn only_signals(&self) -> bool {
        let hook = self.hook();
        let mut steps = hook.hook.steps.iter();
        self.is_recorded
            && hook.handler.is_none()
            && steps.all(|step| matches!(step, Action::Signal(_)))
    }

    /// Takes the facts from the pod, so that it need not be decoded again.
    pub(super) fn take_facts(&mut self, on_change: &OnChange, pod: &Pod) {
        self.pod_facts = Some(RoundFacts::of(on_change, &self.uid(), pod, self.hook()));
    }

    /// Runs the steps.
    pub(super) async fn run(mut self, on_change: OnChange) -> AttemptReport {
        let began = Instant::now();
        let cancel = self.cancel.clone();
        let mut restarted = Vec::new();
        let mut summary = String::new();
        let pod_facts = self.pod_facts.take();
        let end = tokio::select! {
            biased;
            () = cancel.cancelled() => AttemptEnd::Interrupted,
            end = self.steps(&on_change, pod_facts, &mut restarted, &mut summary) => end,
        };
        AttemptReport {
            id: self.id,
            uid: self.uid(),
            content: self.content,
            end,
            restarted,
            summary,
            took: began.elapsed(),
        }
    }

    pub(super) fn uid(&self) -> SmolStr {
        SmolStr::new(self.pod.metadata.uid.as_deref().unwrap_or_default())
    }

    pub(super) fn hook(&self) -> &PodHook {
        &self.hooks.hooks[self.index]
    }

    async fn steps(
        &self,
        on_change: &OnChange,
        pod_facts: Option<RoundFacts>,
        restarted: &mut Vec<SmolStr>,
        summary: &mut String,
    ) -> AttemptEnd {
        // A crash during the attempt must not be taken for a success of the previous content (invariant 4).
        if !self.is_recorded {
            let (recorder, uid) = (on_change.clone(), self.uid());
            blocking(move || recorder.write_record(&uid)).await;
        }
        let scene = self.scene(on_change, pod_facts).await;
        *summary = scene.changes.summary();
        let hook = Arc::clone(&self.hook().hook);
        if hook.restarts() || self.restarts_after_failure() {
            let names = self.query(&scene).names();
            if let Some((until, reason)) = on_change.restart_limit(&self.uid(), &names) {
                return AttemptEnd::Deferred(until, reason);
            }
        }
        if self.number == 1
            && let Some(changed_at) = self.changed_at
        {
            on_change.metrics().delayed(changed_at.elapsed());
        }
        if let Some(handler) = &self.hook().handler {
            return self.call(on_change, handler, &scene).await;
        }
        let mut end = AttemptEnd::Succeeded;
        for step in &hook.steps {
            let outcome = self.step(on_change, step, &scene, restarted).await;
            if !outcome.is_success() {
                end = AttemptEnd::Failed(outcome.reason().to_owned());
                break;
            }
        }
        if let AttemptEnd::Failed(reason) = &end
            && self.restarts_after_failure()
        {
            warn!(pod = %self.name(), hook = hook.name, error = reason, "all attempts failed, restarting the container");
            let restart = Action::Restart(Restart::default());
            let outcome = self.step(on_change, &restart, &scene, restarted).await;
            if outcome.is_success() {
                end = AttemptEnd::Succeeded;
            }
        }
        end
    }

    /// Whether a failure of this attempt is followed by a restart of the container.
    fn restarts_after_failure(&self) -> bool {
        let hook = &self.hook().hook;
        let attempts = hook.timing.retry.attempts;
        hook.on_failure == OnFailure::Restart && attempts > 0 && self.number >= attempts
    }

    fn name(&self) -> String {
        let metadata = &self.pod.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        format!("{}/{}", text(&metadata.namespace), text(&metadata.name))
    }

    fn identity(&self) -> PodIdentity {
        let metadata = &self.pod.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        PodIdentity {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
        }
    }

    async fn call(&self, on_change: &OnChange, handler: &Handler, scene: &Scene) -> AttemptEnd {
        let change = PodChange {
            pod: self.identity(),
            hook: self.hook().hook.name.clone(),
            round: self.round,
            attempt: self.number,
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
        let metrics = on_change.metrics();
        metrics.ran("program", outcome.name(), began.elapsed());
        if outcome.is_success() {
            AttemptEnd::Succeeded
        } else {
            AttemptEnd::Failed(outcome.reason().to_owned())
        }
    }

    async fn step(
        &self,
        on_change: &OnChange,
        step: &Action,
        scene: &Scene,
        restarted: &mut Vec<SmolStr>,
    ) -> StepOutcome {
        let hook = self.hook();
        let context = StepContext {
            hook: hook.hook.name.clone(),
            round: self.round,
            attempt: self.number,
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
                on_change.restarted(&self.uid(), &report.ended);
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
                    let pod = self.name();
                    info!(
                        pod,
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
            known: &self.hooks.known_containers,
        }
    }

    /// Gathers the input of the steps.
    async fn scene(&self, on_change: &OnChange, pod_facts: Option<RoundFacts>) -> Scene {
        let key = on_change.key();
        let hook = self.hook();
        let uid = self.uid();
        let mut redactor = Redactor::default();
        let of_pod = if let Some(known) = pod_facts {
            known
        } else {
            let pod = Box::new(self.pod.decode());
            if hook.hook.runs_commands() {
                redactor = self.redactor(on_change, &uid, &pod).await;
            }
            RoundFacts::of(on_change, &uid, &pod, hook)
        };
        let empty = Content::default();
        let before = self.notified.as_deref();
        let mut changes = self
            .content
            .changes_since(before.unwrap_or(&empty), hook, &key);
        for volume in &mut changes.volumes {
            if let Some(directory) = of_pod.mounts.volumes.get(&volume.name) {
                volume.directory.clone_from(directory);
            }
        }
        let volumes = before.is_some().then(|| {
            let names = changes.volumes.iter().map(|volume| volume.name.clone());
            names.collect()
        });
        let variables = self
            .content
            .changed_environments(before.unwrap_or(&empty), hook);
        let parts = self.content.changed_parts(before.unwrap_or(&empty), hook);
        let swapped = self.content.swapped(parts.into_iter());
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
    async fn redactor(&self, on_change: &OnChange, uid: &SmolStr, pod: &Pod) -> Redactor {
        let volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let secret: Vec<_> = volumes
            .filter_map(|volume| Some((volume.name.clone(), VolumeKind::of(volume)?)))
            .filter(|(_, kind)| matches!(kind, VolumeKind::Secret | VolumeKind::Projected))
            .collect();
        let (on_change, uid) = (on_change.clone(), uid.clone());
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

/// The note for a hook that depends on a `subPath` mount, which keeps the old file (rule F7).
pub(super) fn sub_path_note(pod: &Pod, hook: &PodHook) -> Option<String> {
    if hook.hook.restarts() {
        return None;
    }
    let spec = pod.spec.as_ref()?;
    let volumes = spec.volumes.iter().flatten();
    let looked_at: BTreeSet<&str> = volumes
        .filter_map(|volume| Some((VolumeKind::of(volume)?, volume.name.as_str())))
        .filter(|(kind, name)| hook.looks_at_part(&PartKey::Volume((*name).into(), *kind)))
        .map(|(_, name)| name)
        .collect();
    let mut containers = spec.containers.iter().filter(|container| {
        hook.hook
            .container
            .as_ref()
            .is_none_or(|name| *name == container.name)
    });
    containers.find_map(|container| {
        let mut mounts = container.volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| {
            let by_path =
                |path: &Option<String>| path.as_deref().is_some_and(|path| !path.is_empty());
            looked_at.contains(mount.name.as_str())
                && (by_path(&mount.sub_path) || by_path(&mount.sub_path_expr))
        })?;
        Some(format!(
            "container {} mounts {} by subPath: only a restart shows it the new file",
            container.name, mount.name
        ))
    })
}
