//! The core: from pod events and object events to delivered volumes and environments.
//!
//! ```text
//!  pods ───► serve, remove ─┐                       ┌─► worker of pod A ─► disk
//!  objects ─► changed ──────┼─► who reads it? ─inbox┼─► worker of pod B ─► disk
//!  facts ───► changed ──────┘                       └─► …
//! ```
//!
//! The [`Reconciler`] only routes: it never waits, for a network or for a disk. All waiting is in the workers, one for each pod.

mod backoff;
mod board;
mod deliver;
mod fetch;
mod inbox;
mod pace;
mod plan;
mod pod;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use larder::{
    ConfigMapManager, SecretManager,
    pods::{PodUid, ResolvedPodUid},
};
use larder_objects::{Kind, ObjectKey};
use larder_projection::disk::VolumeHost;
use smol_str::SmolStr;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span};

pub(crate) use self::board::Board;
use self::{
    board::Place,
    inbox::{Inbox, Wanted},
    plan::{Need, parts},
    pod::Worker,
};
use crate::{facts::Facts, metrics::Metrics, tokens::Tokens};

/// What all workers use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config_maps: ConfigMapManager,
    pub(crate) secrets: SecretManager,
    pub(crate) tokens: Tokens,
    pub(crate) facts: watch::Receiver<Facts>,
    pub(crate) host: Arc<VolumeHost>,
    pub(crate) metrics: Metrics,
    pub(crate) board: Board,
    /// Time between two repairing passes, before jitter.
    pub(crate) sync_frequency: Duration,
}

impl Shared {
    fn register(&self, pod: &Pod) {
        self.config_maps.register_pod(pod);
        self.secrets.register_pod(pod);
    }

    fn unregister(&self, pod: &Pod) {
        self.config_maps.unregister_pod(pod);
        self.secrets.unregister_pod(pod);
        self.tokens
            .forget(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    /// The next period: the kubelet's, 1 to 1.5 times the sync frequency (kubelet 1.36, `pkg/kubelet/pod_workers.go`).
    fn repair_period(&self) -> Duration {
        self.sync_frequency.mul_f64(1.0 + 0.5 * fastrand::f64())
    }
}

/// One pod that has a worker.
#[derive(Debug)]
struct Served {
    inbox: Arc<Inbox>,
    namespace: SmolStr,
    reads: BTreeSet<Need>,
}

/// Routes what happens to the workers of the pods that it concerns.
#[derive(Debug)]
pub(crate) struct Reconciler {
    shared: Arc<Shared>,
    pods: HashMap<ResolvedPodUid, Served>,
    /// The pods that read an object.
    readers: HashMap<(Kind, ObjectKey), HashSet<ResolvedPodUid>>,
    workers: JoinSet<ResolvedPodUid>,
    shutdown: CancellationToken,
}

impl Reconciler {
    pub(crate) fn new(shared: Arc<Shared>, shutdown: CancellationToken) -> Self {
        Self {
            shared,
            pods: HashMap::new(),
            readers: HashMap::new(),
            workers: JoinSet::new(),
            shutdown,
        }
    }

    /// `pod` is there, or has changed.
    pub(crate) fn serve(&mut self, pod: &Arc<Pod>) {
        let uid = ResolvedPodUid::new(PodUid::of(pod).as_str());
        let (wanted, reads) = if has_ended(pod) {
            (Wanted::Ended(pod.clone()), BTreeSet::new())
        } else {
            let reads = parts(pod).into_iter().flat_map(|part| part.reads).collect();
            (Wanted::Serve(pod.clone()), reads)
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default().into();
        self.want(&uid, Some(pod), wanted);
        self.index(&uid, namespace, reads);
    }

    /// The pod with this UID is gone.
    pub(crate) fn remove(&mut self, uid: &ResolvedPodUid) {
        self.want(uid, None, Wanted::Remove);
        self.index(uid, SmolStr::default(), BTreeSet::new());
    }

    /// The pods that have a worker.
    pub(crate) fn served(&self) -> Vec<ResolvedPodUid> {
        self.pods.keys().cloned().collect()
    }

    /// An object has changed, for better or worse.
    pub(crate) fn object_changed(&self, kind: Kind, key: &ObjectKey) {
        let Some(readers) = self.readers.get(&(kind, key.clone())) else {
            return;
        };
        for served in readers.iter().filter_map(|uid| self.pods.get(uid)) {
            served.inbox.changed(Need::Object(kind, key.name.clone()));
        }
    }

    /// The Node or the Services have changed.
    pub(crate) fn facts_changed(&self) {
        for served in self.pods.values() {
            for need in [Need::Node, Need::Services] {
                if served.reads.contains(&need) {
                    served.inbox.changed(need);
                }
            }
        }
    }

    /// Waits until a worker has left, and forgets its pod. Never resolves while there is none. Cancel-safe.
    pub(crate) async fn worker_left(&mut self) {
        match self.workers.join_next().await {
            None => std::future::pending().await,
            Some(Ok(uid)) => {
                // Unless the pod has come back, and with it another worker.
                if self
                    .pods
                    .get(&uid)
                    .is_some_and(|served| served.inbox.has_left())
                {
                    self.pods.remove(&uid);
                    self.shared.board.take_away(&uid);
                }
            }
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Waits until every worker has ended. To be called after the shutdown was asked for.
    pub(crate) async fn drain(mut self) {
        while let Some(ended) = self.workers.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    fn want(&mut self, uid: &ResolvedPodUid, pod: Option<&Pod>, wanted: Wanted) {
        if let Some(served) = self.pods.get(uid)
            && served.inbox.want(wanted.clone()).is_ok()
        {
            return;
        }
        let inbox = Arc::new(Inbox::new(wanted));
        let place = Arc::new(Place::new(uid.clone(), pod, self.shared.host.path()));
        self.shared.board.put(place.clone());
        let worker = Worker::new(self.shared.clone(), inbox.clone(), place);
        let (shutdown, left) = (self.shutdown.clone(), uid.clone());
        self.workers.spawn(
            async move {
                worker.run(shutdown).await;
                left
            }
            .instrument(info_span!("pod", uid = %uid)),
        );
        let served = Served {
            inbox,
            namespace: SmolStr::default(),
            reads: BTreeSet::new(),
        };
        self.pods.insert(uid.clone(), served);
    }

    /// Notes what a pod reads from now on.
    fn index(&mut self, uid: &ResolvedPodUid, namespace: SmolStr, reads: BTreeSet<Need>) {
        let Some(served) = self.pods.get_mut(uid) else {
            return;
        };
        for key in object_keys(&served.namespace, &served.reads) {
            if let Some(readers) = self.readers.get_mut(&key) {
                readers.remove(uid);
                if readers.is_empty() {
                    self.readers.remove(&key);
                }
            }
        }
        for key in object_keys(&namespace, &reads) {
            self.readers.entry(key).or_default().insert(uid.clone());
        }
        served.namespace = namespace;
        served.reads = reads;
    }
}

fn object_keys<'a>(
    namespace: &'a SmolStr,
    reads: &'a BTreeSet<Need>,
) -> impl Iterator<Item = (Kind, ObjectKey)> + 'a {
    reads.iter().filter_map(|need| match need {
        Need::Object(kind, name) => Some((*kind, ObjectKey::new(namespace.clone(), name.clone()))),
        Need::Token(_) | Need::Services | Need::Node => None,
    })
}

/// Whether the containers of `pod` have ended for good.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
