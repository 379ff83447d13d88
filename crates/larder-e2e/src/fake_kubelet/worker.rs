//! The worker of one pod: its syncs, one after the other, and its end.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use larder_projection::{Need, containers, environment};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{KubeletContext, Stage, desired::Desired};

/// `syncFrequency`; half of it is added at random.
const SYNC_PERIOD: Duration = Duration::from_mins(1);
/// Wait after a sync that failed; half of it is added at random.
const RETRY_PERIOD: Duration = Duration::from_secs(10);
/// Longest wait of a sync for first mounts, and between its looks (`pkg/kubelet/volumemanager/volume_manager.go`).
const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);
const MOUNT_POLL: Duration = Duration::from_millis(300);

/// The state that a worker keeps from one sync to the next.
struct Worker {
    kubelet: Arc<KubeletContext>,
    uid: String,
    /// The containers that run.
    started: BTreeSet<String>,
    last_sync: Option<Instant>,
    /// How often the containers were restarted.
    restarts: u32,
    status: Value,
}

/// The outcome of a sync.
enum Synced {
    /// It succeeded: with new containers, which the next listing shows, or without.
    Done { has_started: bool },
    /// It needs another attempt.
    Failed,
}

/// Follows the pod until it is gone.
pub(super) async fn run(
    kubelet: Arc<KubeletContext>,
    uid: String,
    mut slot: watch::Receiver<Desired>,
) {
    let pod = Arc::clone(&slot.borrow().pod);
    let mut worker = Worker {
        kubelet,
        uid,
        started: running_containers(&pod),
        last_sync: None,
        restarts: 0,
        status: Value::Null,
    };
    loop {
        let desired = slot.borrow_and_update().clone();
        if desired.ends() {
            break;
        }
        worker.restarts = desired.restarts;
        let mut watching = slot.clone();
        let synced = tokio::select! {
            biased;
            // The sender is dropped with the process only.
            _ = watching.wait_for(Desired::ends) => break,
            synced = worker.sync(&desired.pod) => synced,
        };
        let now = Instant::now();
        worker.last_sync = Some(now);
        let kubelet = &worker.kubelet;
        let due = now
            + match synced {
                Synced::Done { has_started: true } => super::LISTING_PERIOD,
                Synced::Done { has_started: false } => kubelet.jittered(SYNC_PERIOD),
                Synced::Failed => kubelet.jittered(RETRY_PERIOD),
            };
        tokio::select! {
            _ = slot.changed() => {}
            () = sleep_until(due) => {}
        }
        worker.kubelet.runs().await;
    }
    let desired = slot.borrow().clone();
    worker.end(&desired, slot).await;
}

impl Worker {
    async fn sync(&mut self, pod: &Arc<Pod>) -> Synced {
        if let Some(last_sync) = self.last_sync {
            let mut listed = self.kubelet.listed.subscribe();
            let is_newer = |began: &Option<Instant>| began.is_some_and(|began| began > last_sync);
            // The sender lives as long as the kubelet.
            let _ = listed.wait_for(is_newer).await;
            self.kubelet.runs().await;
        }
        let kubelet = Arc::clone(&self.kubelet);
        kubelet.note(pod, Stage::Sync);
        kubelet.volumes.mark(&self.uid, pod);
        let worked = kubelet.random_micros(300..600);
        kubelet.sleep(worked).await;
        if !self.are_mounted().await {
            return Synced::Failed;
        }
        let (has_started, waiting) = self.start_containers(pod).await;
        self.report(pod, &waiting).await;
        if waiting.is_empty() {
            Synced::Done { has_started }
        } else {
            Synced::Failed
        }
    }

    /// Waits for first mounts. Returns at once for a pod whose volumes are mounted.
    async fn are_mounted(&self) -> bool {
        let kubelet = &self.kubelet;
        let mounted = async {
            while !kubelet.volumes.are_mounted(&self.uid) {
                kubelet.sleep(MOUNT_POLL).await;
            }
        };
        timeout(MOUNT_TIMEOUT, mounted).await.is_ok()
    }

    /// Starts the containers that do not run yet. Returns whether there were any, and those whose environment cannot be
    /// computed.
    async fn start_containers(&mut self, pod: &Pod) -> (bool, BTreeSet<String>) {
        let inputs = self.kubelet.inputs(pod, &Need::of_pod(pod));
        let (mut new, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        for container in containers(pod) {
            if self.started.contains(container.name) {
                continue;
            }
            let has_environment = environment(pod, container, &inputs).is_ok();
            let list = if has_environment {
                &mut new
            } else {
                &mut waiting
            };
            list.insert(container.name.to_owned());
        }
        let spec = pod.spec.iter().flat_map(|spec| &spec.containers);
        for container in spec.filter(|container| new.contains(&container.name)) {
            self.kubelet
                .sleep(hook(container, |hooks| hooks.post_start.as_ref()))
                .await;
        }
        let has_started = !new.is_empty();
        if has_started {
            self.kubelet.note(pod, Stage::Started);
        }
        self.started.append(&mut new);
        (has_started, waiting)
    }

    /// Writes the status if it differs from the last one.
    async fn report(&mut self, pod: &Pod, waiting: &BTreeSet<String>) {
        let runs = waiting.is_empty();
        let spec = pod.spec.iter().flat_map(|spec| &spec.containers);
        let statuses = spec.map(|container| {
            let name = &container.name;
            let is_started = self.started.contains(name);
            let state = if is_started {
                json!({"running": {}})
            } else {
                json!({"waiting": {"reason": "CreateContainerConfigError"}})
            };
            let id = is_started.then(|| {
                let id = super::container_id(&self.uid, name, self.restarts);
                format!("containerd://{id}")
            });
            json!({
                "name": name,
                "image": container.image,
                "imageID": "",
                "containerID": id,
                "ready": is_started,
                "started": is_started,
                "restartCount": self.restarts,
                "state": state,
            })
        });
        let status = json!({
            "phase": if runs { "Running" } else { "Pending" },
            "conditions": [{"type": "Ready", "status": if runs { "True" } else { "False" }}],
            "containerStatuses": statuses.collect::<Vec<_>>(),
        });
        self.patch_status(pod, status).await;
    }

    async fn patch_status(&mut self, pod: &Pod, status: Value) {
        if self.status == status {
            return;
        }
        let patch = Patch::Merge(json!({"status": &status}));
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let (pods, params) = (self.pods(pod), PatchParams::default());
        let patched = pods.patch_status(name, &params, &patch).await;
        // A pod that was removed meanwhile needs no status; the next sync writes one that failed.
        if patched.is_ok() {
            self.status = status;
        }
    }

    fn pods(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.kubelet.client.clone(), namespace)
    }

    /// Ends the containers, then the volumes, then the pod at the API server. A pod that has finished by itself stays
    /// there until it is deleted.
    async fn end(mut self, desired: &Desired, mut slot: watch::Receiver<Desired>) {
        let (kubelet, pod) = (Arc::clone(&self.kubelet), &desired.pod);
        kubelet.volumes.remove(&self.uid);
        let spec = pod.spec.iter().flat_map(|spec| &spec.containers);
        let stopping = spec.map(|container| hook(container, |hooks| hooks.pre_stop.as_ref()));
        kubelet.sleep(stopping.max().unwrap_or_default()).await;
        if desired.finished && !desired.gone {
            self.patch_status(pod, json!({"phase": "Succeeded"})).await;
        }
        // The directory may contain files of others.
        let _ = kubelet.host.remove_pod(&self.uid);
        kubelet.note(pod, Stage::TornDown);
        let is_deleted =
            |desired: &Desired| desired.gone || desired.pod.metadata.deletion_timestamp.is_some();
        let deleted = slot.wait_for(is_deleted).await;
        let is_gone = deleted.is_ok_and(|desired| desired.gone);
        if !is_gone {
            let params = DeleteParams::default().grace_period(0);
            let params = params.preconditions(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            });
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            // The pod may be removed already.
            let _ = self.pods(pod).delete(name, &params).await;
        }
        kubelet.workers.remove(&kubelet, &self.uid);
    }
}

/// The containers of a pod that ran before this process began.
fn running_containers(pod: &Pod) -> BTreeSet<String> {
    let status = pod.status.iter();
    let statuses = status.flat_map(|status| status.container_statuses.iter().flatten());
    let running = statuses.filter(|status| status.started == Some(true));
    running.map(|status| status.name.clone()).collect()
}

/// How long a hook of a container sleeps.
fn hook(
    container: &Container,
    select: impl Fn(&k8s_openapi::api::core::v1::Lifecycle) -> Option<&LifecycleHandler>,
) -> Duration {
    let handler = container.lifecycle.as_ref().and_then(select);
    let seconds = handler.and_then(|handler| Some(handler.sleep.as_ref()?.seconds));
    Duration::from_secs(seconds.unwrap_or_default().try_into().unwrap_or_default())
}
