//! The life of a pod: one worker for each.
//!
//! 1. Report the addresses. Environments that read them wait for that.
//! 2. Start the init containers one after the other, then the others, each as soon as its own parts are delivered.
//! 3. Start a container that has ended again, as the restart policy says.
//! 4. Once deletion is requested, stop the containers within the grace period, and delete the pod. larder removes its
//!    volumes then.

use std::{
    fs, io::Read as _, os::unix::process::ExitStatusExt as _, path::Path, sync::Arc, time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use larder_agent::status::ServedPod;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    process::Child,
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::JoinMap;
use tracing::{info, warn};

use crate::{
    container::{self, LAST_WORDS, LOG},
    node::{ContainerEntry, ContainerKey, Node},
    stage::NOT_STARTED,
    status::{ContainerSummary, now, pod_status},
};

/// Pause before a request to the API server is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Delays of restarts: the first one is immediate, each further one is longer by this, up to the most. The kubelet
/// doubles them.
const BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// Longest termination message (kubelet 1.36, `pkg/kubelet/kuberuntime`).
const MAX_MESSAGE: u64 = 4096;

/// Runs a worker for each pod that larder serves. Ends only when dropped; the containers end with it.
pub(crate) async fn run_all(node: Arc<Node>) {
    let mut changes = node.agent.pod_changes();
    let mut workers = JoinMap::new();
    loop {
        changes.borrow_and_update();
        for pod in node.agent.status().pods {
            // Pods of files would need a mirror pod for their status.
            if pod.source == "api"
                && !workers.contains_key(&pod.uid)
                && let Some(served) = node.served(&pod.namespace, &pod.name, &pod.uid)
                && !has_ended(&served.pod)
            {
                let worker = Worker::new(Arc::clone(&node), served);
                workers.spawn(pod.uid, worker.run());
            }
        }
        // Both arms are cancel-safe.
        tokio::select! {
            Ok(()) = changes.changed() => {}
            Some((uid, ended)) = workers.join_next() => if let Err(error) = ended {
                warn!(uid, %error, "worker failed, pod is started again");
            },
            else => return,
        }
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

struct Worker {
    node: Arc<Node>,
    namespace: String,
    name: String,
    uid: String,
    /// `restartPolicy`.
    policy: String,
    /// Those that initialize first.
    containers: Vec<Container>,
    /// How many of them initialize.
    init: usize,
    started: Timestamp,
    /// Of each container.
    summaries: watch::Sender<Vec<ContainerSummary>>,
    /// How many seconds the containers have to end: set once deletion is requested.
    grace: watch::Sender<Option<u64>>,
}

impl Worker {
    fn new(node: Arc<Node>, ServedPod { status, pod }: ServedPod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        let mut containers = spec.init_containers.unwrap_or_default();
        let init = containers.len();
        containers.extend(spec.containers);
        let summary = |(index, container)| ContainerSummary::new(container, index < init);
        let summaries = containers.iter().enumerate().map(summary).collect();
        Self {
            node,
            namespace: status.namespace,
            name: status.name,
            uid: status.uid,
            policy: spec.restart_policy.unwrap_or_default(),
            containers,
            init,
            started: now(),
            summaries: watch::Sender::new(summaries),
            grace: watch::Sender::new(None),
        }
    }

    async fn run(self) {
        let life = async {
            self.run_containers().await;
            self.deletion_requested().await;
            self.delete().await;
        };
        // The others end only with the agent.
        tokio::select! {
            () = life => {}
            () = self.follow_deletion() => {}
            () = self.publish() => {}
        }
        for container in &self.containers {
            self.node.entries.lock().remove(&self.key(container));
        }
        let _ = fs::remove_dir_all(self.node.directory.join(&self.uid));
    }

    fn key(&self, container: &Container) -> ContainerKey {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        (namespace, name, container.name.clone())
    }

    fn served(&self) -> Option<ServedPod> {
        self.node.served(&self.namespace, &self.name, &self.uid)
    }

    /// Step 2. Returns when no container runs, and none will.
    async fn run_containers(&self) {
        for index in 0..self.init {
            if !self.run_container(index).await {
                return;
            }
        }
        let regular = self.init..self.containers.len();
        join_all(regular.map(|index| self.run_container(index))).await;
    }

    /// Steps 2 and 3, for one container: whether it is over and has succeeded.
    async fn run_container(&self, index: usize) -> bool {
        let container = &self.containers[index];
        let path = self.node.directory.join(&self.uid).join(&container.name);
        for number in 0_u32.. {
            let directory = path.join(number.to_string());
            let Some(child) = self.start(index, &directory).await else {
                return false;
            };
            let id = format!("{}/{}/{number}", self.uid, container.name);
            self.summarize(index, |summary| summary.run(number, &id, now()));
            let code = self.end(child).await;
            if let Some(entry) = self.node.entries.lock().get_mut(&self.key(container)) {
                entry.process = None;
            }
            info!(id, code, "container ended");
            let message = last_words(&directory).unwrap_or_default();
            self.summarize(index, |summary| summary.end(code, &message, now()));
            let again = match self.policy.as_str() {
                "Never" => false,
                "OnFailure" => code != 0,
                _ => index >= self.init || code != 0,
            };
            if !again || self.grace.borrow().is_some() {
                return code == 0;
            }
            let delay = (BACKOFF * number).min(MAX_BACKOFF);
            let message = format!("back-off {delay:?} restarting failed container");
            self.summarize(index, |summary| summary.wait("CrashLoopBackOff", &message));
            tokio::select! {
                () = sleep(delay) => {}
                () = self.deletion_requested() => return false,
            }
        }
        false
    }

    fn summarize(&self, index: usize, change: impl FnOnce(&mut ContainerSummary)) {
        self.summaries.send_modify(|all| change(&mut all[index]));
    }

    /// Starts a container as soon as everything that it needs is there, and says what it waits for. `None` if the pod
    /// is deleted first.
    async fn start(&self, index: usize, directory: &Path) -> Option<Child> {
        let container = &self.containers[index];
        let mut changes = self.node.agent.pod_changes();
        while self.grace.borrow().is_none() {
            changes.borrow_and_update();
            match container::start(&self.node, &self.served()?, container, directory) {
                Ok((child, identity)) => {
                    let log = directory.join(LOG);
                    let process = child.id().map(|id| (id, identity));
                    let entry = ContainerEntry { log, process };
                    self.node.entries.lock().insert(self.key(container), entry);
                    return Some(child);
                }
                Err((reason, message)) => self.summarize(index, |one| one.wait(reason, &message)),
            }
            tokio::select! {
                alive = changes.changed() => alive.ok()?,
                () = self.deletion_requested() => {}
            }
        }
        None
    }

    /// The exit code of a container, which is stopped if the pod is deleted.
    async fn end(&self, mut child: Child) -> i32 {
        let process = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let ended = tokio::select! {
            ended = child.wait() => ended,
            () = self.stop(process) => {
                // One that has ended needs no signal.
                let _ = child.start_kill();
                child.wait().await
            }
        };
        let Ok(ended) = ended else {
            return NOT_STARTED.into();
        };
        let of_signal = || 128 + ended.signal().unwrap_or_default();
        ended.code().unwrap_or_else(of_signal)
    }

    /// Step 4: asks a process that is not reaped yet to end. Returns when its time is over.
    async fn stop(&self, process: Option<Pid>) {
        let mut grace = self.grace.subscribe();
        self.deletion_requested().await;
        // One that has ended needs no signal.
        let _ = process.map(|process| kill_process(process, Signal::TERM));
        let asked = Instant::now();
        loop {
            let seconds = grace.borrow_and_update().unwrap_or_default();
            // A second request may shorten the time.
            tokio::select! {
                () = sleep_until(asked + Duration::from_secs(seconds)) => return,
                _ = grace.changed() => {}
            }
        }
    }

    async fn deletion_requested(&self) {
        // The sender is there as long as `self`.
        let _ = self.grace.subscribe().wait_for(Option::is_some).await;
    }

    /// Step 4: follows the grace period.
    async fn follow_deletion(&self) {
        let mut changes = self.node.agent.pod_changes();
        loop {
            changes.borrow_and_update();
            // None is left if it was deleted without.
            let metadata = self.served().map(|served| served.pod.metadata);
            let grace = metadata.map_or(Some(0), |metadata| {
                let seconds = metadata.deletion_grace_period_seconds.unwrap_or(30);
                let seconds = seconds.unsigned_abs().min(3600);
                metadata.deletion_timestamp.map(|_| seconds)
            });
            self.grace.send_replace(grace);
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Step 1, and then each change: writes the status.
    async fn publish(&self) {
        let mut changes = self.summaries.subscribe();
        loop {
            changes.borrow_and_update();
            let written = self.write_status().await;
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep(RETRY), if !written => {}
            }
        }
    }

    /// Whether the status is written, or need not be.
    async fn write_status(&self) -> bool {
        let status = pod_status(&self.summaries.borrow(), self.node.ip, self.started);
        let patch = Patch::Merge(json!({"metadata": {"uid": self.uid}, "status": status}));
        let (pods, parameters) = (self.pods(), PatchParams::default());
        let written = pods.patch_status(&self.name, &parameters, &patch).await;
        self.is_done(written)
    }

    /// Step 4: deletes this pod, and no other one of its name, and waits until larder knows.
    async fn delete(&self) {
        self.write_status().await;
        let mut parameters = DeleteParams::default().grace_period(0);
        parameters.preconditions.get_or_insert_default().uid = Some(self.uid.clone());
        while !self.is_done(self.pods().delete(&self.name, &parameters).await) {
            sleep(RETRY).await;
        }
        let mut changes = self.node.agent.pod_changes();
        while self.served().is_some() && changes.changed().await.is_ok() {}
    }

    /// Whether a request succeeded, or the pod is gone: another one may have its name.
    fn is_done<T>(&self, result: kube::Result<T>) -> bool {
        let Err(error) = result else { return true };
        let is_gone =
            matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code));
        if !is_gone {
            warn!(pod = self.name, %error, "failed to write or delete pod, will retry");
        }
        is_gone
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.node.client.clone(), &self.namespace)
    }
}

/// The beginning of what the container has left as its last words.
fn last_words(directory: &Path) -> std::io::Result<String> {
    let file = fs::File::open(directory.join(LAST_WORDS))?;
    let mut bytes = Vec::new();
    file.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
