//! Stages 6 and 7: the volume manager, with its two loops.
//!
//! A volume is flagged by the populator and set up by the reconciler. A failed set-up keeps the flag and doubles the
//! wait before the next attempt. A new flag does not shorten the wait. A write that fails tears the volume down.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::chain;
use larder_projection::{
    Need, VolumeKind, disk::PodVolume, fs_group, pod_volumes, project, used_volumes,
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use super::{KubeletContext, Stage};

/// Pause between two passes of each loop (kubelet 1.36, `pkg/kubelet/volumemanager/volume_manager.go`).
const LOOP_PERIOD: Duration = Duration::from_millis(100);
/// Bounds of the wait after a failed set-up (`pkg/util/goroutinemap/exponentialbackoff`).
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LAST_BACKOFF: Duration = Duration::from_secs(122);

/// The pods whose volumes are wanted, by UID.
#[derive(Default)]
pub(super) struct Volumes(Mutex<BTreeMap<String, PodVolumes>>);

struct PodVolumes {
    pod: Arc<Pod>,
    /// Whether the populator must process the pod.
    is_marked: bool,
    by_name: BTreeMap<String, VolumeState>,
}

struct VolumeState {
    kind: VolumeKind,
    is_mounted: bool,
    is_flagged: bool,
    is_running: bool,
    /// After a failed set-up: when the next one may begin, and the wait that led to that.
    backoff: Option<(Instant, Duration)>,
}

impl VolumeState {
    fn is_due(&self, now: Instant) -> bool {
        let is_wanted = self.is_flagged || !self.is_mounted;
        is_wanted && !self.is_running && self.backoff.is_none_or(|(until, _)| until <= now)
    }
}

impl Volumes {
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Stage 5: a sync has begun with this state of the pod.
    pub(super) fn mark(&self, uid: &str, pod: &Arc<Pod>) {
        let mut pods = self.0.lock();
        let volumes = pods.entry(uid.to_owned()).or_insert_with(|| PodVolumes {
            pod: Arc::clone(pod),
            is_marked: false,
            by_name: states(pod),
        });
        volumes.pod = Arc::clone(pod);
        volumes.is_marked = true;
    }

    pub(super) fn are_mounted(&self, uid: &str) -> bool {
        let pods = self.0.lock();
        let volumes = pods.get(uid).map(|pod| pod.by_name.values());
        let mut volumes = volumes.into_iter().flatten();
        volumes.all(|volume| volume.is_mounted)
    }

    /// The volumes of the pod are no longer wanted: nothing is written any more.
    pub(super) fn remove(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Flags the volumes of marked pods.
    fn populate(&self, kubelet: &KubeletContext) {
        for volumes in self.0.lock().values_mut() {
            let is_lost = || mem::take(&mut kubelet.faults.lock().loses_flags);
            if !mem::take(&mut volumes.is_marked) || is_lost() {
                continue;
            }
            kubelet.note(&volumes.pod, Stage::Flagged);
            for volume in volumes.by_name.values_mut() {
                volume.is_flagged |= volume.is_mounted;
            }
        }
    }

    /// The volumes whose set-up is due; they are running from now on.
    fn begin(&self) -> Vec<SetUp> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (uid, volumes) in self.0.lock().iter_mut() {
            for (name, volume) in &mut volumes.by_name {
                if volume.is_due(now) {
                    volume.is_running = true;
                    due.push(SetUp {
                        uid: uid.clone(),
                        pod: Arc::clone(&volumes.pod),
                        name: name.clone(),
                        kind: volume.kind,
                    });
                }
            }
        }
        due
    }

    /// A set-up has ended; a success clears the flag, even if it was set meanwhile.
    fn end(&self, set_up: &SetUp, succeeded: bool) {
        let mut pods = self.0.lock();
        let Some(volumes) = pods.get_mut(&set_up.uid) else {
            return;
        };
        let volume = volumes.by_name.get_mut(&set_up.name);
        let volume = volume.expect("a pod keeps its volumes");
        volume.is_running = false;
        if succeeded {
            volume.is_mounted = true;
            volume.is_flagged = false;
            volume.backoff = None;
        } else {
            let wait = volume.backoff.map_or(FIRST_BACKOFF, |(_, wait)| {
                wait.saturating_mul(2).min(LAST_BACKOFF)
            });
            volume.backoff = Some((Instant::now() + wait, wait));
        }
    }

    fn contains(&self, uid: &str) -> bool {
        self.0.lock().contains_key(uid)
    }
}

/// The volumes that the kubelet sets up for `pod`.
fn states(pod: &Pod) -> BTreeMap<String, VolumeState> {
    let used = used_volumes(pod);
    let served = pod_volumes(pod).filter(|volume| used.contains(volume.name.as_str()));
    let served = served.filter_map(|volume| {
        let kind = VolumeKind::of(volume)?;
        let state = VolumeState {
            kind,
            is_mounted: false,
            is_flagged: false,
            is_running: false,
            backoff: None,
        };
        Some((volume.name.clone(), state))
    });
    served.collect()
}

pub(super) async fn populate(kubelet: Arc<KubeletContext>) {
    let phase = kubelet.random_micros(0..100_000);
    kubelet.sleep(phase).await;
    loop {
        kubelet.volumes.populate(&kubelet);
        let worked = kubelet.random_micros(50..1_000);
        kubelet.sleep(LOOP_PERIOD + worked).await;
    }
}

pub(super) async fn reconcile(kubelet: Arc<KubeletContext>) {
    let mut running = JoinSet::new();
    let phase = kubelet.random_micros(0..100_000);
    kubelet.sleep(phase).await;
    loop {
        for set_up in kubelet.volumes.begin() {
            running.spawn(set_up.run(Arc::clone(&kubelet)));
        }
        while let Some(ended) = running.try_join_next() {
            ended.expect("a set-up does not panic");
        }
        let worked = kubelet.random_micros(50..1_000);
        kubelet.sleep(LOOP_PERIOD + worked).await;
    }
}

/// One set-up of a volume.
struct SetUp {
    uid: String,
    pod: Arc<Pod>,
    name: String,
    kind: VolumeKind,
}

impl SetUp {
    async fn run(self, kubelet: Arc<KubeletContext>) {
        let prepared = kubelet.random_micros(200..1_500);
        kubelet.sleep(prepared).await;
        if !kubelet.volumes.contains(&self.uid) {
            return;
        }
        let result = self.write(&kubelet);
        let succeeded = result.is_ok();
        let volume = self.name.clone();
        let stage = match result {
            Ok(swapped) => Stage::SetUp { volume, swapped },
            Err(reason) => Stage::SetUpFailed { volume, reason },
        };
        kubelet.note(&self.pod, stage);
        let cleaned_up = kubelet.random_micros(200..1_500);
        kubelet.sleep(cleaned_up).await;
        kubelet.volumes.end(&self, succeeded);
    }

    /// Reads the objects, computes the files and writes them; returns whether they differ from before.
    fn write(&self, kubelet: &KubeletContext) -> Result<bool, String> {
        let volume = pod_volumes(&self.pod).find(|volume| volume.name == self.name);
        let volume = volume.expect("the pod has the volume");
        let inputs = kubelet.inputs(&self.pod, &Need::of_volume(volume));
        let projection = project(&self.pod, volume, &inputs).map_err(|error| chain(&error))?;
        if self.fails(kubelet) {
            let torn_down = kubelet.host.tear_down(&self.uid, self.kind, &self.name);
            torn_down.map_err(|error| chain(&error))?;
            return Err("failed to write the payload".to_owned());
        }
        let volume = PodVolume {
            fs_group: fs_group(&self.pod),
            ..PodVolume::new(&self.uid, &self.name, self.kind)
        };
        let set_up = kubelet
            .host
            .set_up(&volume, &projection.payload, kubelet.now());
        let set_up = set_up.map_err(|error| chain(&error))?;
        Ok(set_up.written.swapped)
    }

    /// Whether a test makes this write fail.
    fn fails(&self, kubelet: &KubeletContext) -> bool {
        let failing = &mut kubelet.faults.lock().failing_writes;
        let pod = self.pod.metadata.name.as_deref();
        let at = failing
            .iter()
            .position(|(of, volume)| Some(of.as_str()) == pod && *volume == self.name);
        at.map(|at| failing.swap_remove(at)).is_some()
    }
}
