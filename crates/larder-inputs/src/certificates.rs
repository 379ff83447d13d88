//! Certificates of pods: a local key, a PodCertificateRequest, the signer's answer, and a renewal in time.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/podcertificate`. Each source of a projected volume has a task, owned by the
//! `Issuer`:
//!
//! ```text
//!  make a key ─► create a request ─► wait for its end ─┬ issued ─► published ─► sleep until its refresh is due ─┐
//!       ▲                                 │            └ denied, failed ─► published; that is final             │
//!       └──────── it vanished ────────────┴─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Two differences from the kubelet are intended: a request that vanished is replaced as soon as the watch shows it,
//! not after ten minutes, and the error says why a request could not be made.
//!
//! Invariants:
//! 1. A key leaves this process only in the pod's volume; a restart makes new keys.
//! 2. An issued certificate is served until its successor is issued, or until the pod is removed. A rejection is final
//!    for the pod.
//! 3. One watch follows the requests, and only while a pod has such a source.
//! 4. A key serves all attempts until its certificate is issued. Pods take turns for RSA keys, however many one of them
//!    asks for: see `rsa_turns`.

mod key;
mod request;
mod rsa_turns;

use std::{collections::HashMap, sync::Arc, time::Duration};

use fastrand::Rng;
use k8s_openapi::api::{
    certificates::v1::PodCertificateRequestSpec, core::v1::PodCertificateProjection,
};
use kube::Client;
use larder_objects::{ObjectKey, chain};
use larder_pods::StoredPod;
use larder_projection::{PodCertificate, SourceKey, Unavailable};
use larder_transport::{Backoff, blocking::blocking};
use larder_watch::NodeContext;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::JoinMap;
use tracing::{Instrument as _, info, info_span, warn};

use self::{
    key::{PodKey, PodKeyError},
    request::{CertificateRequestError, Ending, Requests, Validity, ending},
    rsa_turns::{MAX_RSA_SOURCES, PodTurn, RsaTurns},
};
use crate::{clock::Clock, served_version::ServedResource};

/// Longest random delay of a refresh after the time that the signer asks for, so that many do not coincide. As the
/// kubelet.
const REFRESH_JITTER: Duration = Duration::from_mins(5);
/// Shortest time for which a certificate is used, whatever a wrong clock here or at the signer shows.
const MIN_USE: Duration = Duration::from_mins(1);
/// Time after which a request that the watch has not shown is abandoned, plus up to 50 % at random. As the kubelet.
const UNSEEN: Duration = Duration::from_mins(10);

/// One source of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    /// UID of the pod.
    pub pod_uid: SmolStr,
    /// The source among those of the pod.
    pub key: SourceKey,
}

/// The state of one source.
#[derive(Debug)]
struct IssuedSource {
    source: PodCertificateProjection,
    /// What its volume gets.
    served: Result<Arc<PodCertificate>, Unavailable>,
}

/// The certificates of all pods, for readers.
#[derive(Debug)]
pub struct Certificates {
    held: Arc<Mutex<HashMap<SourceId, IssuedSource>>>,
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Debug)]
enum Command {
    /// Request certificates for this source of this pod.
    Issue(SourceId, Arc<StoredPod>, Box<PodCertificateProjection>),
    /// The pod's volumes are gone.
    Forget(SmolStr),
}

impl Certificates {
    /// The certificates of the pods of `node_name`, the issuer that requests them, and the sources whose certificate has
    /// changed. `backoff` has the delays between attempts to request one.
    pub fn new(
        client: Client,
        clock: Clock,
        node_name: &str,
        backoff: Backoff,
        rng: Rng,
        context: &NodeContext,
    ) -> (Self, Issuer, mpsc::UnboundedReceiver<SourceId>) {
        // Unbounded, so that no worker of a pod waits: one entry for each source that is asked for the first time, and for
        // each pod that ends.
        let (commands, inbox) = mpsc::unbounded_channel();
        // One entry for each answer of a signer.
        let (changes, receiver) = mpsc::unbounded_channel();
        let held = Arc::default();
        let certificates = Self {
            held: Arc::clone(&held),
            commands,
        };
        let shared = Arc::new(Shared {
            client,
            context: context.clone(),
            clock,
            backoff,
            name: node_name.to_owned(),
            requests: watch::Sender::default(),
            served: ServedResource::of::<PodCertificateRequestSpec>(),
            held,
            changes,
        });
        let issuer = Issuer {
            shared,
            rng,
            inbox,
            rsa_turns: RsaTurns::default(),
        };
        (certificates, issuer, receiver)
    }

    /// The certificate of the `source` that has `key` in `pod`. The first call requests it. Without a source it is an
    /// error.
    ///
    /// # Errors
    ///
    /// None is issued, or not yet. The text is the kubelet's.
    pub fn get(
        &self,
        pod: &Arc<StoredPod>,
        key: &SourceKey,
        source: Option<&PodCertificateProjection>,
    ) -> Result<Arc<PodCertificate>, Unavailable> {
        let none = not_issued("");
        let Some(source) = source else {
            return Err(none);
        };
        let id = SourceId {
            pod_uid: pod.uid().into(),
            key: key.clone(),
        };
        let mut held = self.held.lock();
        if let Some(held) = held.get(&id)
            && held.source == *source
        {
            return held.served.clone();
        }
        let new = IssuedSource {
            source: source.clone(),
            served: Err(none.clone()),
        };
        held.insert(id.clone(), new);
        // Without an issuer the agent is shutting down.
        let command = Command::Issue(id, Arc::clone(pod), Box::new(source.clone()));
        let _ = self.commands.send(command);
        Err(none)
    }

    /// Forgets the certificates of a pod whose volumes are gone.
    pub fn forget(&self, pod_uid: &str) {
        let mut held = self.held.lock();
        let before = held.len();
        held.retain(|id, _| id.pod_uid != pod_uid);
        if held.len() < before {
            let _ = self.commands.send(Command::Forget(pod_uid.into()));
        }
    }
}

/// The kubelet's text, followed by the reason if one is known.
fn not_issued(why: &str) -> Unavailable {
    let text = "credential bundle is not issued yet";
    Unavailable::failed(match why {
        "" => text.to_owned(),
        why => format!("{text}: {why}"),
    })
}

/// Owns the tasks that request certificates.
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct Issuer {
    shared: Arc<Shared>,
    /// Each task gets a fork.
    rng: Rng,
    inbox: mpsc::UnboundedReceiver<Command>,
    rsa_turns: RsaTurns,
}

/// What all tasks share.
struct Shared {
    client: Client,
    /// Shared with all watches of this node.
    context: NodeContext,
    clock: Clock,
    backoff: Backoff,
    name: String,
    /// The last known requests of this node.
    requests: watch::Sender<Requests>,
    served: ServedResource,
    held: Arc<Mutex<HashMap<SourceId, IssuedSource>>>,
    changes: mpsc::UnboundedSender<SourceId>,
}

impl Issuer {
    /// Requests certificates until dropped.
    pub async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut tasks: JoinMap<SourceId, ()> = JoinMap::new();
        loop {
            let follows = !tasks.is_empty();
            let following = shared.follow_requests();
            tokio::pin!(following);
            // Until the first source is added or the last one removed.
            while tasks.is_empty() != follows {
                tokio::select! {
                    biased;
                    command = self.inbox.recv() => match command {
                        Some(command) => self.handle(&mut tasks, command),
                        None => std::future::pending().await,
                    },
                    Some((_, Err(error))) = tasks.join_next() => if error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    },
                    () = &mut following, if follows => {}
                }
            }
        }
    }

    fn handle(&mut self, tasks: &mut JoinMap<SourceId, ()>, command: Command) {
        match command {
            Command::Issue(id, pod, source) => {
                let mut turn = None;
                if source.key_type.starts_with("RSA") {
                    turn = self.rsa_turns.of(&id);
                    if turn.is_none() {
                        tasks.abort(&id);
                        let text = format!("more than {MAX_RSA_SOURCES} RSA keys of one pod");
                        return self.shared.publish(&id, Err(Unavailable::failed(text)));
                    }
                }
                let span = info_span!("certificate", pod.uid = %id.pod_uid, volume = id.key.volume);
                let shared = Arc::clone(&self.shared);
                let rng = self.rng.fork();
                let task = shared.keep_issued(id.clone(), pod, source, turn, rng);
                // Replaces the task of a source that has changed.
                tasks.spawn(id, task.instrument(span));
            }
            Command::Forget(pod_uid) => {
                self.rsa_turns.forget(&pod_uid);
                tasks.abort_matching(|id| id.pod_uid == pod_uid);
            }
        }
    }
}

impl Shared {
    /// Keeps a valid certificate for one source. Ends when a signer rejects it.
    async fn keep_issued(
        self: Arc<Self>,
        id: SourceId,
        pod: Arc<StoredPod>,
        source: Box<PodCertificateProjection>,
        turn: Option<PodTurn>,
        mut rng: Rng,
    ) {
        let mut backoff = self.backoff;
        let mut key = None;
        loop {
            let attempt = async {
                if key.is_none() {
                    key = Some(generate(&source.key_type, turn.as_ref()).await?);
                }
                let key = key.as_ref().expect("it was just made");
                self.issue(&pod, &source, key, &mut rng).await
            };
            match attempt.await {
                Ok((certificate, validity)) => {
                    backoff = self.backoff;
                    key = None;
                    info!(until = %validity.not_after, "certificate issued");
                    self.publish(&id, Ok(Arc::new(certificate)));
                    let jitter = REFRESH_JITTER.mul_f64(rng.f64());
                    self.until_due(validity, jitter).await;
                }
                Err(NotIssued::Refused(reason)) => {
                    warn!(error = reason, "certificate rejected, not retrying");
                    self.publish(&id, Err(Unavailable::failed(reason)));
                    return;
                }
                Err(NotIssued::Vanished) => {
                    warn!("request for a certificate vanished, will make another");
                    sleep(backoff.next_delay()).await;
                }
                Err(NotIssued::Failed(error)) => {
                    let text = chain(&error);
                    warn!(error = text, "failed to request a certificate, will retry");
                    let served = match error {
                        // The kubelet's text where the feature is off.
                        CertificateRequestError::NotServed => Unavailable::failed("unimplemented"),
                        _ => not_issued(&text),
                    };
                    self.explain(&id, served);
                    sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Waits until a certificate that has just arrived is due: at the wall clock's time, or after the span between the
    /// API server's times. A clock that already shows a later time is wrong and is ignored.
    async fn until_due(&self, validity: Validity, jitter: Duration) {
        let refresh_at = validity
            .begin_refresh_at
            .saturating_add(jitter)
            .unwrap_or(validity.begin_refresh_at);
        let age = refresh_at.duration_since(validity.not_before);
        let age = Duration::try_from(age).unwrap_or_default();
        let old = sleep(age.max(MIN_USE));
        if self.clock.now() >= refresh_at {
            return old.await;
        }
        tokio::select! {
            biased;
            () = self.clock.sleep_until(refresh_at) => {}
            () = old => {}
        }
    }

    async fn issue(
        &self,
        pod: &StoredPod,
        source: &PodCertificateProjection,
        key: &PodKey,
        rng: &mut Rng,
    ) -> Result<(PodCertificate, Validity), NotIssued> {
        let private_key_pem = key.private_key_pem().map_err(NotIssued::of_key)?;
        let mut requests = self.requests.subscribe();
        let name = self
            .create(pod, source, key)
            .await
            .map_err(NotIssued::Failed)?;
        let id = ObjectKey::new(pod.key().namespace, name);
        let unseen = Instant::now() + UNSEEN.mul_f64(1.0 + 0.5 * rng.f64());
        let mut seen = false;
        loop {
            let found = requests.borrow_and_update().get(&id).cloned();
            match found.as_deref() {
                Some(request) => match ending(request) {
                    Some(Ending::Issued(chain_pem, validity)) => {
                        let certificate = PodCertificate {
                            private_key_pem,
                            chain_pem,
                        };
                        return Ok((certificate, validity));
                    }
                    Some(Ending::Refused(reason)) => return Err(NotIssued::Refused(reason)),
                    None => seen = true,
                },
                None if seen => return Err(NotIssued::Vanished),
                None => {}
            }
            tokio::select! {
                biased;
                changed = requests.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = sleep_until(unseen), if !seen => return Err(NotIssued::Vanished),
            }
        }
    }

    fn publish(&self, id: &SourceId, served: Result<Arc<PodCertificate>, Unavailable>) {
        if let Some(held) = self.held.lock().get_mut(id) {
            held.served = served;
        }
        // Without a reader the agent is shutting down.
        let _ = self.changes.send(id.clone());
    }

    /// Publishes why no certificate exists yet. One issued before stays served.
    fn explain(&self, id: &SourceId, why: Unavailable) {
        let held = self.held.lock();
        let news = held
            .get(id)
            .is_some_and(|held| matches!(&held.served, Err(known) if *known != why));
        drop(held);
        if news {
            self.publish(id, Err(why));
        }
    }
}

/// A new key, made on a blocking thread; one of RSA in the pod's `turn`.
async fn generate(key_type: &str, turn: Option<&PodTurn>) -> Result<PodKey, NotIssued> {
    let key_type = key_type.to_owned();
    let make = move || PodKey::generate(&key_type);
    let key = match turn {
        Some(turn) => turn.take(make).await,
        None => blocking(make).await,
    };
    key.map_err(NotIssued::of_key)
}

/// Why no certificate was issued.
enum NotIssued {
    /// The signer rejected it, or the key cannot be made: another attempt would fail too.
    Refused(String),
    /// The request is gone, or the watch never showed it.
    Vanished,
    /// The request could not be made.
    Failed(CertificateRequestError),
}

impl NotIssued {
    #[expect(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
    fn of_key(error: PodKeyError) -> Self {
        Self::Refused(chain(&error))
    }
}
