//! The core: from pod events and object events to delivered volumes and environments.
//!
//! ```text
//!  pods ───► serve, retire ─┐                       ┌─► worker of pod A ─► disk
//!  objects ─► changed ──────┼─► who reads it? ─inbox┼─► worker of pod B ─► disk
//!  facts ───► changed ──────┘                       └─► …
//! ```
//!
//! The [`Reconciler`] only routes: it never waits, for a network or for a disk. All waiting is in the workers, one for each pod.

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
use larder::{ConfigMapManager, SecretManager};
use larder_objects::{Kind, ObjectKey};
use larder_pods::{PodUid, ResolvedPodUid, StoredPod};
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
use crate::{
    certificates::{Certificates, SourceId},
    clock::Clock,
    events::Events,
    facts::Facts,
    metrics::Metrics,
    status::Phase,
    tasks::TaskError,
    tokens::Tokens,
};

/// Name of the workers' tasks in errors.
const WORKER: &str = "pod worker";

/// What all workers use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config_maps: ConfigMapManager,
    pub(crate) secrets: SecretManager,
    pub(crate) tokens: Tokens,
    pub(crate) certificates: Certificates,
    /// Where somebody may look for them.
    pub(crate) events: Option<Arc<Events>>,
    pub(crate) facts: watch::Receiver<Facts>,
    /// Whether any pod reads ClusterTrustBundles; they are followed only then.
    pub(crate) wants_trust_bundles: watch::Sender<bool>,
    pub(crate) clock: Clock,
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

    fn unregister(&self, pod: &StoredPod) {
        // Managers know a pod by its metadata.
        let pod = Pod {
            metadata: pod.metadata.clone(),
            ..Pod::default()
        };
        self.config_maps.unregister_pod(&pod);
        self.secrets.unregister_pod(&pod);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.tokens.forget(uid);
        self.certificates.forget(uid);
        if let Some(events) = &self.events {
            events.forget(uid);
        }
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
    /// Number of pods that read ClusterTrustBundles.
    trust_bundle_readers: usize,
    workers: JoinSet<ResolvedPodUid>,
    shutdown: CancellationToken,
}

impl Reconciler {
    pub(crate) fn new(shared: Arc<Shared>, shutdown: CancellationToken) -> Self {
        Self {
            shared,
            pods: HashMap::new(),
            readers: HashMap::new(),
            trust_bundle_readers: 0,
            workers: JoinSet::new(),
            shutdown,
        }
    }

    /// Serves `pod`, which is new or has changed.
    pub(crate) fn serve(&mut self, pod: &Arc<StoredPod>) {
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
        let parts = parts(&pod.decode()).into_iter();
        let reads = parts.flat_map(|part| part.reads).collect();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default().into();
        let place = Place::of(pod, self.shared.host.path(), self.shared.clock.now());
        self.want(&uid, Wanted::Serve(pod.clone()), place);
        self.index(&uid, namespace, reads);
    }

    /// Takes down whatever there is of `pod`. [`Self::worker_ended`] returns when it is done.
    pub(crate) fn retire(&mut self, pod: &StoredPod) {
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
        let place = Place::of(pod, self.shared.host.path(), self.shared.clock.now());
        self.want(&uid, Wanted::Retire, place);
        self.index(&uid, SmolStr::default(), BTreeSet::new());
    }

    /// Takes down what an earlier agent left of a pod, of which the directory is known and perhaps the name.
    pub(crate) fn clean_up(&mut self, uid: &ResolvedPodUid, name: Option<ObjectKey>) {
        let place = Place::found(
            uid.clone(),
            name,
            self.shared.host.path(),
            self.shared.clock.now(),
        );
        self.want(uid, Wanted::Retire, place);
        self.index(uid, SmolStr::default(), BTreeSet::new());
    }

    /// Shows what an earlier agent left of a pod that may still be there; it stays as it is.
    pub(crate) fn keep(&self, uid: &ResolvedPodUid, name: Option<ObjectKey>, why: &str) {
        let now = self.shared.clock.now();
        let place = Place::found(uid.clone(), name, self.shared.host.path(), now);
        place.show(Phase::Failing, why, Vec::new(), now);
        self.shared.board.put(Arc::new(place));
    }

    /// Ends the registration of `pod` with the managers.
    pub(crate) fn unregister(&self, pod: &StoredPod) {
        self.shared.unregister(pod);
    }

    /// Shows a pod that is not served, and why.
    pub(crate) fn hold(&self, pod: &StoredPod, reason: &str) {
        let now = self.shared.clock.now();
        let place = Place::of(pod, self.shared.host.path(), now);
        place.show(Phase::Held, reason, Vec::new(), now);
        self.shared.board.put(Arc::new(place));
    }

    /// Shows a pod no longer.
    pub(crate) fn forget(&self, uid: &ResolvedPodUid) {
        self.shared.board.take_away(uid);
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

    /// Any object may be another one, or there is one where none was known.
    pub(crate) fn any_object_changed(&self) {
        for served in self.pods.values() {
            for need in &served.reads {
                if matches!(need, Need::Object(..)) {
                    served.inbox.changed(need.clone());
                }
            }
        }
    }

    /// The certificate of a source was issued or refused.
    pub(crate) fn certificate_changed(&self, source: SourceId) {
        if let Some(served) = self.pods.get(&ResolvedPodUid::new(&*source.pod_uid)) {
            served.inbox.changed(Need::PodCertificate(source.key));
        }
    }

    /// The wall clock shows another time than it would have shown by itself: tokens may be due.
    pub(crate) fn clock_jumped(&self) {
        for served in self.pods.values() {
            for need in &served.reads {
                if matches!(need, Need::Token(_)) {
                    served.inbox.changed(need.clone());
                }
            }
        }
    }

    /// The Node, the Services or the trust bundles have changed.
    pub(crate) fn facts_changed(&self) {
        for served in self.pods.values() {
            for need in [Need::Node, Need::Services, Need::TrustBundles] {
                if served.reads.contains(&need) {
                    served.inbox.changed(need);
                }
            }
        }
    }

    /// Waits until a worker has ended because the volumes of its pod are gone, see [`Self::retire`]. Cancel-safe.
    ///
    /// # Errors
    ///
    /// A worker panicked.
    pub(crate) async fn worker_ended(&mut self) -> Result<ResolvedPodUid, TaskError> {
        loop {
            let Some(ended) = self.workers.join_next().await else {
                return std::future::pending().await;
            };
            let Ok(uid) = ended else {
                return Err(TaskError::new(WORKER, &ended));
            };
            // Unless the pod has come back, and with it another worker.
            if self
                .pods
                .get(&uid)
                .is_some_and(|served| served.inbox.has_left())
            {
                self.pods.remove(&uid);
                return Ok(uid);
            }
        }
    }

    /// Waits until every worker has ended. To be called after the shutdown was asked for.
    ///
    /// # Errors
    ///
    /// A worker panicked.
    pub(crate) async fn drain(mut self) -> Result<(), TaskError> {
        let mut result = Ok(());
        while let Some(ended) = self.workers.join_next().await {
            if ended.is_err() {
                result = Err(TaskError::new(WORKER, &ended));
            }
        }
        result
    }

    /// Tells the worker of a pod; if there is none, a new one that shows itself in `place`.
    fn want(&mut self, uid: &ResolvedPodUid, wanted: Wanted, place: Place) {
        if let Some(served) = self.pods.get(uid)
            && served.inbox.want(wanted.clone()).is_ok()
        {
            return;
        }
        let inbox = Arc::new(Inbox::new(wanted));
        let place = Arc::new(place);
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
        let read = served.reads.contains(&Need::TrustBundles);
        if reads.contains(&Need::TrustBundles) != read {
            if read {
                self.trust_bundle_readers -= 1;
            } else {
                self.trust_bundle_readers += 1;
            }
            let wanted = self.trust_bundle_readers > 0;
            let wants = &self.shared.wants_trust_bundles;
            wants.send_if_modified(|wants| std::mem::replace(wants, wanted) != wanted);
        }
        served.reads = reads;
    }
}

fn object_keys<'a>(
    namespace: &'a SmolStr,
    reads: &'a BTreeSet<Need>,
) -> impl Iterator<Item = (Kind, ObjectKey)> + 'a {
    reads.iter().filter_map(|need| match need {
        Need::Object(kind, name) => Some((*kind, ObjectKey::new(namespace.clone(), name.clone()))),
        Need::Token(_)
        | Need::TrustBundles
        | Need::PodCertificate(_)
        | Need::Services
        | Need::Node => None,
    })
}
