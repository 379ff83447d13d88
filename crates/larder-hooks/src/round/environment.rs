//! The environment of an attempt's steps: the containers and addresses of a pod, and this machine.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use larder_actions::{
    StepEnvironment, StepOutcome,
    exec::{ExecReport, Launch, LaunchError, Launched, Redactor},
    http::{Files, Hosts, RequestContext},
    processes::{FoundContainer, Processes},
    restart,
};
use larder_on_change::{Action, Attempt, Changes, Content, Place, PodChange, Restart};
use larder_projection::{ContainerKind, VolumeKind, containers, pod_volumes};
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::info;

use super::targets::PodTargets;
use crate::{OnChange, hooked_pod::HookedPod};
use larder_transport::blocking::blocking;

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
    /// For an attempt, with the changes that it is about.
    pub(super) fn of(attempt: &'a Attempt<HookedPod>, on_change: &'a OnChange) -> (Self, Changes) {
        let hook = attempt.hook();
        let mut targets = PodTargets::of(on_change, attempt);
        let query = &mut targets.query;
        let empty = Content::default();
        let before = attempt.notified.as_deref();
        let earlier = before.unwrap_or(&empty);
        let content = &attempt.content;
        let mut changes = content.changes_since(earlier, hook, on_change.key());
        changes.locate(&query.mounts.volumes);
        query.volumes = before.is_some().then(|| {
            let names = changes.volumes.iter().map(|volume| volume.name.clone());
            names.collect()
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
        (environment, changes)
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
        let found = query.find(self.processes(), all_processes).await;
        found.map_err(|error| StepOutcome::Failed(error.to_string()))
    }

    fn swapped(&self) -> Option<Duration> {
        self.targets.query.swapped
    }

    async fn step_begins(&self, action: &Action) {
        let (id, on_change) = (self.attempt.id, self.on_change);
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

    async fn restart(&self, restart: &Restart, _: &PodChange, timeout: Duration) -> StepOutcome {
        let (targets, processes) = (&self.targets, self.processes());
        let (query, stop, mut ended) = (&targets.query, &targets.stop, Vec::new());
        let outcome = restart::run(restart, stop, timeout, query, processes, &mut ended).await;
        let (uid, now) = (&self.attempt.uid, Instant::now());
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

    async fn redactor(&self, change: &PodChange) -> Redactor {
        let pod = self.attempt.pod.pod.decode();
        let (on_change, uid) = (self.on_change.clone(), self.attempt.uid.clone());
        let changes = change.changes.clone();
        blocking(move || redactor(&on_change, &uid, &pod, &changes)).await
    }

    fn command_ended(&self, report: ExecReport, change: &PodChange) -> StepOutcome {
        let pod = format!("{}/{}", change.pod.namespace, change.pod.name);
        let (hook, bytes, outcome) = (&change.hook, report.bytes, report.outcome.reason());
        match &report.output {
            Some(output) => info!(
                pod,
                hook, outcome, bytes, output, "output of a hook's command"
            ),
            None if bytes > 0 => info!(
                pod,
                hook, outcome, bytes, "output of a hook's command, which logOutput would show"
            ),
            None => {}
        }
        if !report.outcome.is_success()
            && let Some(output) = &report.output
        {
            end_of(output).clone_into(&mut self.output.lock());
        }
        report.outcome
    }

    fn step_ended(&self, action: &Action, outcome: &StepOutcome, took: Duration) {
        let metrics = self.on_change.metrics();
        metrics.ran(action.word(), outcome.name(), took);
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

/// Finds the values of Secrets that a command could print: those of the pod's present files and variables. Everything is
/// withheld if they may have changed, since the command may print the values before.
fn redactor(on_change: &OnChange, uid: &str, pod: &Pod, changes: &Changes) -> Redactor {
    let secret: Vec<_> = pod_volumes(pod)
        .filter_map(|volume| Some((volume.name.as_str(), VolumeKind::of(volume)?)))
        .filter(|(_, kind)| matches!(kind, VolumeKind::Secret | VolumeKind::Projected))
        .collect();
    let containers = secret_variables(pod);
    let mut volumes = changes.volumes.iter();
    if volumes.any(|volume| secret.iter().any(|(name, _)| *name == volume.name))
        || !containers.is_empty()
            && (!changes.variables.is_empty() || on_change.node().kubelet.is_some())
    {
        return Redactor::all();
    }
    let mut redactor = Redactor::new();
    for (name, kind) in secret {
        let read = on_change
            .node()
            .volumes()
            .read_set(uid, kind, name, |_, bytes| {
                redactor.add(bytes);
            });
        let Some(set) = read else {
            return Redactor::all();
        };
        redactor.add_version(set);
    }
    let host = &on_change.node().host;
    for container in containers {
        // First the version: what is read after it is of this version or of a later one.
        let file = fs::metadata(host.environment_path(uid, container));
        let variables = host.read_back_environment(uid, container);
        let (Ok(file), Some(variables)) = (file, variables) else {
            return Redactor::all();
        };
        let changed_at = (file.ctime(), file.ctime_nsec());
        redactor.add_version(format!("{} {changed_at:?}", file.ino()));
        for value in variables.values() {
            redactor.add(value);
        }
    }
    redactor
}

/// The containers with variables of Secrets.
fn secret_variables(pod: &Pod) -> Vec<&str> {
    let delivered = containers(pod).filter(|container| container.kind != ContainerKind::Ephemeral);
    let of_secrets = delivered.filter(|container| {
        let mut sources = container.env_from.iter();
        let variables = container.env.iter();
        let mut values = variables.filter_map(|variable| variable.value_from.as_ref());
        sources.any(|source| source.secret_ref.is_some())
            || values.any(|source| source.secret_key_ref.is_some())
    });
    of_secrets.map(|container| container.name).collect()
}

#[cfg(test)]
mod tests {
    use larder_on_change::VolumeChange;
    use serde_json::json;

    use super::*;
    use crate::tests::on_change;

    #[test]
    fn values_before_a_change_and_variables_of_secrets_are_not_logged() {
        let root = tempfile::tempdir().unwrap();
        let on_change = on_change(root.path());
        let mut pod = json!({
            "metadata": {"namespace": "n", "name": "web", "uid": "u1"},
            "spec": {
                "containers": [{"name": "main"}],
                "volumes": [{"name": "config", "configMap": {"name": "c"}}],
            },
        });
        let check = |pod: &serde_json::Value, volume: &str, variables: &[&str], expected: &str| {
            let pod = serde_json::from_value(pod.clone()).unwrap();
            let changes = Changes {
                volumes: vec![VolumeChange {
                    name: volume.into(),
                    ..VolumeChange::default()
                }],
                variables: variables.iter().map(ToString::to_string).collect(),
            };
            let found = redactor(&on_change, "u1", &pod, &changes);
            assert_eq!(format!("{found:?}"), expected, "{volume} {variables:?}");
        };
        check(&pod, "config", &["A"], "Redactor(0)");
        // A Secret that is not in place cannot be searched for either.
        let secret = json!({"name": "tls", "secret": {"secretName": "s"}});
        pod["spec"]["volumes"].as_array_mut().unwrap().push(secret);
        check(&pod, "tls", &[], "Redactor(all)");
        check(&pod, "config", &[], "Redactor(all)");
        // Attack: a value that is in place only while a command runs.
        let path = root.path().join("pods/u1/volumes/kubernetes.io~secret/tls");
        let put = |set: &str, value: &str| {
            fs::create_dir_all(path.join(set)).unwrap();
            fs::write(path.join(set).join("key"), value).unwrap();
            let _ = fs::remove_file(path.join("..data"));
            std::os::unix::fs::symlink(set, path.join("..data")).unwrap();
            let pod = serde_json::from_value(pod.clone()).unwrap();
            redactor(&on_change, "u1", &pod, &Changes::default())
        };
        let before = put("..1", "hunter2");
        assert!(before == put("..1", "hunter2"));
        put("..2", "hunter3");
        assert!(before != put("..3", "hunter2"));
        pod["spec"]["volumes"].as_array_mut().unwrap().pop();
        pod["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "s"}}]);
        check(&pod, "config", &["A"], "Redactor(all)");
        let path = on_change.node().host.environment_path("u1", "main");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, r#"{"A": "hunter2"}"#).unwrap();
        check(&pod, "config", &["A"], "Redactor(all)");
        check(&pod, "config", &[], "Redactor(7)");
    }

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
