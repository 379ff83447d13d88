//! The life of a pod: one worker for each, which follows what larder says of it.
//!
//! 1. Report the addresses. Environments that read them wait for that.
//! 2. Start the init containers one after the other, then the others, each as soon as its own parts are delivered.
//! 3. Start a container that has ended again, as the restart policy says.
//! 4. Once deletion is requested, stop the containers within the grace period, and delete the pod. larder removes its
//!    volumes then.

use std::{
    fs,
    io::{Read as _, Seek as _, SeekFrom},
    ops::ControlFlow,
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use larder_agent::status::ServedPod;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::task::JoinMap;
use tracing::{info, warn};

use crate::{
    container::{self, LAST_WORDS, LOG},
    node::Node,
    registry::ContainerKey,
    stage::NOT_STARTED,
    status::{Slot, now, pod_status},
};

/// Pause before a request to the API server is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Delays of restarts: the first one is immediate, then they double (kubelet 1.36, `pkg/kubelet/kubelet.go`).
const BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// Longest termination message (kubelet 1.36, `pkg/kubelet/kuberuntime`), and what the log gives in place of one.
const MAX_MESSAGE: u64 = 4096;
const MAX_MESSAGE_FROM_LOG: u64 = 2048;

/// Runs a worker for each pod that larder serves. Ends only when dropped; the containers end with it.
pub(crate) async fn run_all(node: Arc<Node>) {
    let mut changes = node.agent.pod_changes();
    let mut workers = JoinMap::new();
    loop {
        changes.borrow_and_update();
        for pod in node.agent.status().pods {
            let is_served = || node.served(&pod.namespace, &pod.name, &pod.uid).is_some();
            // Pods of files would need a mirror pod for their status.
            if pod.source == "api" && !workers.contains_key(&pod.uid) && is_served() {
                let worker =
                    Worker::new(Arc::clone(&node), pod.namespace, pod.name, pod.uid.clone());
                workers.spawn(pod.uid, worker.run());
            }
        }
        // Both arms are cancel-safe.
        tokio::select! {
            alive = changes.changed() => if alive.is_err() {
                return;
            },
            Some((uid, ended)) = workers.join_next() => if let Err(error) = ended {
                warn!(uid, %error, "worker failed, pod is started again");
            },
        }
    }
}

/// What runs of a container.
#[derive(Default)]
struct Run {
    process: Option<OwnedFd>,
    directory: PathBuf,
    /// Number of the next run.
    number: i32,
    retry_at: Option<Instant>,
    /// Whether the end of the log is its termination message if it leaves none (`FallbackToLogsOnError`).
    falls_back: bool,
}

struct Worker {
    node: Arc<Node>,
    namespace: String,
    name: String,
    uid: String,
    /// The containers, those that initialize first, and what runs of each.
    slots: Vec<Slot>,
    runs: Vec<Run>,
    processes: JoinSet<(usize, std::io::Result<ExitStatus>)>,
    /// `restartPolicy`.
    policy: Option<String>,
    published: Option<PodStatus>,
    /// When what still runs is killed.
    kill_at: Option<Instant>,
    retry_at: Option<Instant>,
}

impl Worker {
    fn new(node: Arc<Node>, namespace: String, name: String, uid: String) -> Self {
        Self {
            node,
            namespace,
            name,
            uid,
            slots: Vec::new(),
            runs: Vec::new(),
            processes: JoinSet::new(),
            policy: None,
            published: None,
            kill_at: None,
            retry_at: None,
        }
    }

    async fn run(mut self) {
        let mut changes = self.node.agent.pod_changes();
        loop {
            changes.borrow_and_update();
            let served = self.node.served(&self.namespace, &self.name, &self.uid);
            if self.step(served).await.is_break() {
                break;
            }
            let times = self.runs.iter().filter_map(|run| run.retry_at);
            let wake = times.chain(self.kill_at).chain(self.retry_at).min();
            let wait = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Every arm is cancel-safe.
            tokio::select! {
                alive = changes.changed() => if alive.is_err() {
                    break;
                },
                Some(Ok((index, ended))) = self.processes.join_next() => self.ended(index, &ended),
                () = wait => {}
            }
        }
        self.node.registry.remove_pod(&self.namespace, &self.name);
        let _ = fs::remove_dir_all(self.node.containers.join(&self.uid));
    }

    /// Brings the pod closer to what is wanted. Breaks when nothing of it is left.
    async fn step(&mut self, served: Option<ServedPod>) -> ControlFlow<()> {
        self.retry_at = None;
        let Some(served) = served else {
            // It was deleted without grace.
            self.signal(Signal::KILL);
            return if self.processes.is_empty() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        };
        if self.slots.is_empty() {
            self.slots = containers(&served.pod)
                .map(|(container, is_init)| {
                    Slot::new(&container.name, container.image.as_deref(), is_init)
                })
                .collect();
            let runs = containers(&served.pod).map(|(container, _)| Run {
                falls_back: container.termination_message_policy.as_deref()
                    == Some("FallbackToLogsOnError"),
                ..Run::default()
            });
            self.runs = runs.collect();
            self.policy = served
                .pod
                .spec
                .as_ref()
                .and_then(|spec| spec.restart_policy.clone());
        }
        let phase = served
            .pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let is_over = self.published.is_none() && matches!(phase, Some("Succeeded" | "Failed"));
        let is_deleted = served.pod.metadata.deletion_timestamp.is_some();
        if is_deleted {
            self.stop(&served.pod);
        }
        if !is_over {
            // Step 1
            self.publish().await;
            if !is_deleted {
                self.start_due(&served);
                self.publish().await;
            }
        }
        if is_deleted && self.processes.is_empty() {
            self.delete().await;
        }
        ControlFlow::Continue(())
    }

    /// The containers to start now.
    fn due(&self) -> Vec<usize> {
        let now = Instant::now();
        let may_start = |index: &usize| {
            let (slot, run) = (&self.slots[*index], &self.runs[*index]);
            !slot.is_over && run.process.is_none() && run.retry_at.is_none_or(|at| at <= now)
        };
        let first = self
            .slots
            .iter()
            .position(|slot| slot.is_init && slot.exit_code() != Some(0));
        match first {
            Some(first) => vec![first].into_iter().filter(may_start).collect(),
            None => (0..self.slots.len())
                .filter(|&index| !self.slots[index].is_init)
                .filter(may_start)
                .collect(),
        }
    }

    /// Steps 2 and 3.
    fn start_due(&mut self, served: &ServedPod) {
        for index in self.due() {
            let (container, _) = containers(&served.pod)
                .nth(index)
                .expect("containers of a pod stay the same");
            let (slot, run) = (&mut self.slots[index], &mut self.runs[index]);
            let directory = self
                .node
                .containers
                .join(&self.uid)
                .join(&container.name)
                .join(run.number.to_string());
            run.retry_at = None;
            let started =
                container::plan(&self.node, served, container, &directory).and_then(|plan| {
                    let child = container::start(&plan, &directory);
                    Ok((
                        child.map_err(|error| ("RunContainerError", error.to_string()))?,
                        plan.identity,
                    ))
                });
            let (mut child, identity) = match started {
                Ok(started) => started,
                Err((reason, message)) => {
                    slot.wait(reason, &message);
                    continue;
                }
            };
            let pid = child.id().unwrap_or_default();
            let process = Pid::from_raw(pid.cast_signed());
            // It has not been reaped yet.
            run.process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let key = (
                self.namespace.clone(),
                self.name.clone(),
                slot.status.name.clone(),
            );
            self.node
                .registry
                .started(key, directory.join(LOG), (pid, identity));
            slot.run(
                format!("{}-{}-{}", self.uid, slot.status.name, run.number),
                now(),
            );
            info!(
                pod = self.name,
                container = slot.status.name,
                run = run.number,
                "container started"
            );
            (run.directory, run.number) = (directory, run.number + 1);
            self.processes
                .spawn(async move { (index, child.wait().await) });
        }
    }

    /// A container has ended.
    fn ended(&mut self, index: usize, ended: &std::io::Result<ExitStatus>) {
        let (slot, run) = (&mut self.slots[index], &mut self.runs[index]);
        run.process = None;
        let key: ContainerKey = (
            self.namespace.clone(),
            self.name.clone(),
            slot.status.name.clone(),
        );
        self.node.registry.ended(&key);
        let code = ended.as_ref().map_or(i32::from(NOT_STARTED), |status| {
            status
                .code()
                .or(status.signal().map(|signal| 128 + signal))
                .unwrap_or_default()
        });
        slot.end(
            code,
            last_words(&run.directory, code != 0 && run.falls_back),
            now(),
        );
        info!(
            pod = self.name,
            container = slot.status.name,
            code,
            "container ended"
        );
        let again = match self.policy.as_deref() {
            Some("Never") => false,
            Some("OnFailure") => code != 0,
            _ => !slot.is_init || code != 0,
        };
        slot.is_over = !again || self.kill_at.is_some();
        if !slot.is_over && slot.status.restart_count > 0 {
            let doubled =
                BACKOFF * 2u32.saturating_pow(slot.status.restart_count.unsigned_abs().min(8) - 1);
            let delay = doubled.min(MAX_BACKOFF);
            run.retry_at = Some(Instant::now() + delay);
            slot.wait(
                "CrashLoopBackOff",
                &format!("back-off {delay:?} restarting failed container"),
            );
        }
    }

    /// Sends `signal` to every container.
    fn signal(&self, signal: Signal) {
        for process in self.runs.iter().filter_map(|run| run.process.as_ref()) {
            // One that has ended needs none.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    /// Step 4: asks the containers to end, and kills them when their time is over.
    fn stop(&mut self, pod: &Pod) {
        let now = Instant::now();
        let seconds = pod.metadata.deletion_grace_period_seconds.unwrap_or(30);
        let deadline = now + Duration::from_secs(seconds.unsigned_abs().min(3600));
        let is_first = self.kill_at.is_none();
        // A second request may shorten the time.
        let kill_at = self.kill_at.map_or(deadline, |at| at.min(deadline));
        self.signal(if kill_at <= now {
            Signal::KILL
        } else if is_first {
            Signal::TERM
        } else {
            return;
        });
        self.kill_at = Some(kill_at.max(now + RETRY));
        for (slot, run) in self.slots.iter_mut().zip(&mut self.runs) {
            slot.is_over |= !slot.is_running();
            run.retry_at = None;
        }
    }

    /// Writes the status if it differs from the last one that was written.
    async fn publish(&mut self) {
        let status = pod_status(&self.slots, self.node.ip, self.published.as_ref(), now());
        if self.published.as_ref() == Some(&status) {
            return;
        }
        let patch = Patch::Merge(json!({"metadata": {"uid": self.uid}, "status": status}));
        match self
            .pods()
            .patch_status(&self.name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => self.published = Some(status),
            // Gone, or another pod has the name now. The next change tells.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                warn!(pod = self.name, %error, "failed to write status, will retry");
                self.retry_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Step 4: deletes this pod, and no other one of its name.
    async fn delete(&mut self) {
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(self.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        if let Err(error) = self.pods().delete(&self.name, &parameters).await
            && !matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
        {
            warn!(pod = self.name, %error, "failed to delete pod, will retry");
            self.retry_at = Some(Instant::now() + RETRY);
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.node.client.clone(), &self.namespace)
    }
}

/// The containers of a pod, those that initialize first.
fn containers(pod: &Pod) -> impl Iterator<Item = (&Container, bool)> {
    let spec = pod.spec.iter();
    let init = spec
        .clone()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    init.map(|container| (container, true)).chain(
        spec.flat_map(|spec| &spec.containers)
            .map(|container| (container, false)),
    )
}

/// The termination message: what the container has written, or else the end of its log.
fn last_words(directory: &Path, falls_back: bool) -> String {
    let end_of = |name, length: u64| -> std::io::Result<String> {
        let mut file = fs::File::open(directory.join(name))?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(length)))?;
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let message = end_of(LAST_WORDS, MAX_MESSAGE).unwrap_or_default();
    if message.is_empty() && falls_back {
        return end_of(LOG, MAX_MESSAGE_FROM_LOG).unwrap_or_default();
    }
    message
}
