//! One attempt to notify an application of a change: runs the steps of a hook in order, until one fails (rule T6).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::SecretBytes;
use larder_on_change::{
    Action, HookId, OnFailure, PodFacts, Restart,
    action::{
        Changes, PodIdentity, RoundId, StepContext, StepOutcome, Withheld,
        cgroups::ContainerId,
        exec, http,
        processes::{ContainerMounts, PodMounts},
        restart, signal,
        targets::TargetQuery,
    },
};
use larder_pods::StoredPod;
use larder_projection::VolumeKind;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    OnChange,
    content::{Content, PartKey},
    pod_hooks::{Place, PodHook, PodHooks},
};
use crate::blocking::blocking;

/// Grace period of a pod without its own: the API server's default.
const GRACE: Duration = Duration::from_secs(30);
/// Longest grace period that is taken from a pod. The API server admits any number of seconds, also one that no time
/// can be added to.
const LONGEST_GRACE: Duration = Duration::from_hours(24);

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
    facts: PodFacts,
    mounts: PodMounts,
    /// The IDs of the containers that run, where a kubelet runs them.
    ids: Option<BTreeMap<SmolStr, ContainerId>>,
    ips: Vec<IpAddr>,
    grace: Duration,
    changes: Changes,
    /// The changed volumes; `None` if the content of the last notification is unknown.
    volumes: Option<BTreeSet<SmolStr>>,
    variables: BTreeSet<SmolStr>,
    swapped: Option<Duration>,
    withheld: Withheld,
}

impl Attempt {
    /// Runs the steps.
    pub(super) async fn run(self, on_change: OnChange) -> AttemptReport {
        let began = Instant::now();
        let cancel = self.cancel.clone();
        let mut restarted = Vec::new();
        let mut summary = String::new();
        let end = tokio::select! {
            biased;
            () = cancel.cancelled() => AttemptEnd::Interrupted,
            end = self.steps(&on_change, &mut restarted, &mut summary) => end,
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

    fn hook(&self) -> &PodHook {
        &self.hooks.hooks[self.index]
    }

    async fn steps(
        &self,
        on_change: &OnChange,
        restarted: &mut Vec<SmolStr>,
        summary: &mut String,
    ) -> AttemptEnd {
        // A crash during the attempt must not be taken for a success of the previous content (invariant 4).
        if !self.is_recorded {
            let (recorder, uid) = (on_change.clone(), self.uid());
            blocking(move || recorder.write_record(&uid)).await;
        }
        let scene = self.scene(on_change).await;
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
            withheld: scene.withheld.clone(),
            timeout: hook.hook.timing.timeout_of(step, scene.grace),
        };
        let processes = on_change.processes();
        let began = Instant::now();
        let outcome = match step {
            Action::Signal(target) => {
                signal::run(target, &context, &self.query(scene), processes).await
            }
            Action::Restart(restart) => {
                let query = self.query(scene);
                let report = restart::run(restart, scene.grace, &context, &query, processes).await;
                on_change.restarted(&self.uid(), &report.ended);
                restarted.extend(report.ended);
                report.outcome
            }
            Action::Http(call) => {
                let around = http::Surroundings {
                    hosts: http::Hosts::Pod(&scene.ips),
                    facts: &scene.facts,
                    files: http::Files {
                        volumes: &scene.mounts.volumes,
                        any_authorities: hook.place == Place::Configuration,
                    },
                };
                http::run(call, &context, around).await
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
            mounts: &scene.mounts,
            ids: scene.ids.as_ref(),
            container: self.hook().hook.container.as_ref(),
            volumes: scene.volumes.as_ref(),
            variables: &scene.variables,
            swapped: scene.swapped,
            known: &self.hooks.known_containers,
        }
    }

    /// Gathers the input of the steps.
    async fn scene(&self, on_change: &OnChange) -> Scene {
        let pod = Box::new(self.pod.decode());
        let key = on_change.key();
        let hook = self.hook();
        let empty = Content::default();
        let before = self.notified.as_deref();
        let mut changes = self
            .content
            .changes_since(before.unwrap_or(&empty), hook, &key);
        let uid = self.uid();
        let directories = directories(on_change, &uid, &pod);
        for volume in &mut changes.volumes {
            if let Some(directory) = directories.get(&volume.name) {
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
        let withheld = if hook.hook.runs_commands() {
            self.withheld(on_change, &uid, &pod).await
        } else {
            Withheld::default()
        };
        Scene {
            facts: PodFacts::of(&pod),
            mounts: PodMounts {
                containers: containers(&pod),
                volumes: directories,
            },
            ids: on_change.has_kubelet().then(|| running(&pod)),
            ips: ips(&pod),
            grace: grace(&pod),
            changes,
            volumes,
            variables,
            swapped,
            withheld,
        }
    }

    /// The values of Secrets that a command could print: the present files of volumes that may contain some.
    async fn withheld(&self, on_change: &OnChange, uid: &SmolStr, pod: &Pod) -> Withheld {
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
            Withheld::new(values.iter().map(|value| &**value))
        })
        .await
    }
}

/// The directory of each volume that larder delivers.
fn directories(on_change: &OnChange, uid: &str, pod: &Pod) -> BTreeMap<SmolStr, PathBuf> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| {
            let kind = VolumeKind::of(volume)?;
            let path = on_change.volumes().volume_path(uid, kind, &volume.name);
            Some((volume.name.as_str().into(), path))
        })
        .collect()
}

/// How long the containers of `pod` may take to end.
fn grace(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(GRACE, |seconds| {
        Duration::from_secs(seconds).min(LONGEST_GRACE)
    })
}

/// Where the containers that may be the target of a hook mount volumes (rule F9).
fn containers(pod: &Pod) -> Vec<ContainerMounts> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars =
        sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let all = sidecars.chain(&spec.containers);
    all.map(|container| ContainerMounts {
        name: container.name.as_str().into(),
        mounts: container
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| (mount.name.as_str().into(), mount.mount_path.as_str().into()))
            .collect(),
    })
    .collect()
}

/// The IDs of the containers that run and may be the target of a hook, by the status of the pod.
fn running(pod: &Pod) -> BTreeMap<SmolStr, ContainerId> {
    let statuses = pod.status.iter().flat_map(|status| {
        let sidecars = status.init_container_statuses.iter().flatten();
        sidecars.chain(status.container_statuses.iter().flatten())
    });
    let running = statuses.filter_map(|status| {
        status.state.as_ref()?.running.as_ref()?;
        let id = ContainerId::of_status(status.container_id.as_deref()?)?;
        Some((SmolStr::new(&status.name), id))
    });
    running.collect()
}

/// `status.podIPs`, or `status.podIP`.
fn ips(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let ips: Vec<_> = all.filter_map(|ip| ip.parse().ok()).collect();
    if ips.is_empty() {
        let one = status.pod_ip.as_deref().and_then(|ip| ip.parse().ok());
        return one.into_iter().collect();
    }
    ips
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    #[test]
    fn a_grace_period_without_end_can_be_added_to_a_time() {
        let of = |termination_grace_period_seconds| {
            let spec = PodSpec {
                termination_grace_period_seconds,
                ..PodSpec::default()
            };
            grace(&Pod {
                spec: Some(spec),
                ..Pod::default()
            })
        };
        assert_eq!(of(None), GRACE);
        assert_eq!(of(Some(5)), Duration::from_secs(5));
        assert_eq!(of(Some(-5)), GRACE);
        assert_eq!(of(Some(i64::MAX)), LONGEST_GRACE);
    }
}
