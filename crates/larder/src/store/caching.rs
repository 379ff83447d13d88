//! Strategy `Cache`: a response is valid for a time to live, then the next read repeats the request.
//!
//! Rules T1–T15 of the kubelet's TTL store (1.36, `pkg/kubelet/util/manager/cache_based_manager.go`), with these
//! intentional differences:
//!
//! - Readers of one object share one request, also with a time to live of 0, where upstream lets each queue for its
//!   own.
//! - After a failure, requests are spaced by a growing delay; meanwhile reads return the known state, or the cause. A
//!   pod that registered since the failure makes a request at once.
//! - The real cause is returned where upstream repeats a remembered "not found".
//! - An answer older than the known state is requested again without a version, and accepted if it stays the same: the
//!   API server was restored. Upstream keeps the newer object until the next registration.
//! - A request that the last unregistration overtook answers no read: its result may be older than the state that its
//!   readers have seen (I3), and they may no longer read.
//! - A new reference does not invalidate the known state for running pods; it only makes reads of the new pod, and
//!   reads without a pod, request the most recent state.
//!
//! Invariants:
//! 1. The cell's lock is held for plans and results, never across a request (I5), and by no read that need not wait.
//! 2. A request ends with the last reader that waits for it.
//! 3. Events are published under the lock of the state, so that none follows the removal.

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use larder_objects::{Object, ResourceVersion};
use larder_watch::{
    Api, ByName, Proof, Recency, RegistrationSeq, RequestBackoff, RequestError, RequestFailure,
    RequestPhase, RestoreDetector,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Cell, Entries, Entry, Reference, waiting::wait};
use crate::{
    changes::ChangeKind,
    config::ManagerConfig,
    error::{Error, ErrorKind},
    metrics::Metrics,
    status::{ObjectState, ObjectStatus},
};

/// A request that any number of readers wait for.
type Flight<K> = Shared<BoxFuture<'static, Result<Arc<K>, Error>>>;

/// What the store knows about one object.
#[derive(Debug)]
pub(crate) struct CachedState<K> {
    config: Arc<ManagerConfig>,
    state: Mutex<CachedAnswer<K>>,
}

#[derive(Debug)]
struct CachedAnswer<K> {
    answer: Answer<K>,
    /// The answer is as fresh as this registration, so references up to it may read it.
    fresh_as_of: RegistrationSeq,
    /// The newest registration when the last request was made.
    tried: RegistrationSeq,
    /// The request under way, and the seq up to which references may read its answer.
    flight: Option<(RegistrationSeq, WeakFlight<K>)>,
    /// The failures since the last answer.
    failing: Option<Failing>,
    hits: u64,
}

type WeakFlight<K> = WeakShared<BoxFuture<'static, Result<Arc<K>, Error>>>;

#[derive(Debug)]
enum Answer<K> {
    /// None yet.
    Unknown,
    Found(FoundObject<K>),
    /// Remembered for status, since this time; every read asks again.
    NotFound(Instant),
    /// The last reference is gone. Final.
    Removed,
}

#[derive(Debug)]
struct FoundObject<K> {
    object: Arc<K>,
    /// When the API server gave the answer.
    answered: Instant,
    /// A later answer, perhaps of one of the API server's caches, was older: the next request is for the most recent
    /// state.
    doubt: Option<RestoreDetector>,
}

#[derive(Debug)]
struct Failing {
    last: RequestFailure,
    backoff: RequestBackoff,
    /// No request before this time.
    not_before: Instant,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consistency {
    /// The most recent state.
    MostRecent,
    /// Any, also one of the API server's caches.
    Any,
}

impl<K: Object> CachedState<K> {
    fn new(config: Arc<ManagerConfig>) -> Self {
        let state = Mutex::new(CachedAnswer {
            answer: Answer::Unknown,
            fresh_as_of: RegistrationSeq::default(),
            tried: RegistrationSeq::default(),
            flight: None,
            failing: None,
            hits: 0,
        });
        Self { config, state }
    }
}

impl<K: Object> Cell for CachedState<K> {
    type Object = K;

    fn read_now(&self, required: RegistrationSeq) -> Option<Arc<K>> {
        self.state.lock().read_now(required, &self.config)
    }

    fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    fn describe(&self, status: &mut ObjectStatus, now: Instant) {
        let known = self.state.lock();
        let answered = match &known.answer {
            Answer::Unknown | Answer::Removed => now,
            Answer::NotFound(answered) => {
                status.state = ObjectState::Absent;
                *answered
            }
            Answer::Found(found) => {
                status.state = ObjectState::Synced;
                status.version = found.version().clone();
                found.answered
            }
        };
        status.failure = known.failing.as_ref().map(|failing| failing.last.clone());
        status.proof = match &status.failure {
            None => Proof::At(answered),
            Some(failure) => Proof::Lost {
                since: answered,
                failure: Some(failure.clone()),
            },
        };
        status.age = status.proof.age(now);
    }

    fn remove(&self) {
        self.state.lock().answer = Answer::Removed;
    }
}

impl<K: Object> FoundObject<K> {
    fn version(&self) -> &ResourceVersion {
        &self.object.metadata().resource_version
    }

    /// Whether an answer of this version replaces the object. If not, the object is in doubt.
    fn yields_to(&mut self, version: &ResourceVersion, consistency: Consistency) -> bool {
        let mut doubt = self.doubt.take().unwrap_or_default();
        let yields = match consistency {
            Consistency::MostRecent => {
                let recency = doubt.judge(version, self.version());
                matches!(recency, Recency::Current | Recency::Restored)
            }
            Consistency::Any => !version.is_older_than(self.version()),
        };
        self.doubt = (!yields).then_some(doubt);
        yields
    }
}

impl<K: Object> CachedAnswer<K> {
    /// The object, if the answer is still good (T6), not in doubt, and new enough for the reader.
    fn read_now(&mut self, required: RegistrationSeq, config: &ManagerConfig) -> Option<Arc<K>> {
        let found = self.found_for(required)?;
        if found.doubt.is_some() || found.answered.elapsed() >= config.current_ttl() {
            return None;
        }
        let object = Arc::clone(&found.object);
        self.hits += 1;
        Some(object)
    }

    /// What was found, if it is new enough for the reader.
    fn found_for(&self, required: RegistrationSeq) -> Option<&FoundObject<K>> {
        match &self.answer {
            Answer::Found(found) if self.fresh_as_of >= required => Some(found),
            _ => None,
        }
    }

    /// The object that stands in for one that cannot be had, if it is new enough for the reader and not too old.
    fn serve_stale(
        &self,
        required: RegistrationSeq,
        max_stale: Option<Duration>,
        now: Instant,
    ) -> Option<Arc<K>> {
        let found = self.found_for(required)?;
        let age = now.saturating_duration_since(found.answered);
        let is_too_old = max_stale.is_some_and(|limit| age > limit);
        (!is_too_old).then(|| Arc::clone(&found.object))
    }

    /// Takes over the answer to a request that was made at `seq` (T8); returns an event if it is news.
    fn found(
        &mut self,
        object: Arc<K>,
        consistency: Consistency,
        seq: RegistrationSeq,
        now: Instant,
    ) -> Option<ChangeKind> {
        let version = &object.metadata().resource_version;
        let recovered = self.failing.take().is_some();
        let is_other = if let Answer::Found(known) = &mut self.answer {
            if !known.yields_to(version, consistency) {
                return recovered.then_some(ChangeKind::Updated);
            }
            version != known.version()
        } else {
            true
        };
        self.keep(object, consistency, seq, now);
        (recovered || is_other).then_some(ChangeKind::Updated)
    }

    /// Keeps the object as the answer. A doubt stays.
    fn keep(
        &mut self,
        object: Arc<K>,
        consistency: Consistency,
        seq: RegistrationSeq,
        answered: Instant,
    ) {
        let doubt = match &mut self.answer {
            Answer::Found(known) => known.doubt.take(),
            Answer::Unknown | Answer::NotFound(_) | Answer::Removed => None,
        };
        self.answer = Answer::Found(FoundObject {
            object,
            answered,
            doubt,
        });
        if consistency == Consistency::MostRecent {
            self.fresh_as_of = self.fresh_as_of.max(seq);
        }
    }

    /// Takes over the answer to a request that was made at `seq` and that a newer request has overtaken, if it is news
    /// all the same: the API server may have answered this one later, and its reader must not read older data next
    /// (I3).
    fn found_late(
        &mut self,
        object: &Arc<K>,
        consistency: Consistency,
        seq: RegistrationSeq,
        now: Instant,
    ) -> Option<ChangeKind> {
        let is_news = match &self.answer {
            Answer::Unknown => true,
            Answer::Found(known) => {
                let version = &object.metadata().resource_version;
                known.version().is_older_than(version)
            }
            // Versions do not show what came after it.
            Answer::NotFound(_) | Answer::Removed => false,
        };
        is_news.then(|| {
            self.keep(Arc::clone(object), consistency, seq, now);
            ChangeKind::Updated
        })
    }

    fn not_found(&mut self, seq: RegistrationSeq, now: Instant) -> Option<ChangeKind> {
        let recovered = self.failing.take().is_some();
        let is_news = !matches!(self.answer, Answer::NotFound(_));
        self.answer = Answer::NotFound(now);
        self.fresh_as_of = self.fresh_as_of.max(seq);
        (recovered || is_news).then_some(ChangeKind::Deleted)
    }

    /// `random` is uniform in `[0, 1)`.
    fn failed(
        &mut self,
        failure: &RequestFailure,
        now: Instant,
        random: f64,
    ) -> Option<ChangeKind> {
        let error = &failure.error;
        let before = self.failing.take();
        let is_news = before
            .as_ref()
            .is_none_or(|before| before.last.error.label() != error.label());
        let mut backoff = before.map(|before| before.backoff).unwrap_or_default();
        self.failing = Some(Failing {
            last: failure.clone(),
            not_before: now + backoff.delay_after(error, now, random),
            backoff,
        });
        is_news.then(|| ChangeKind::Failed(failure.clone()))
    }
}

/// The store of strategy `Cache`. It runs nothing of its own: requests are driven by their readers.
pub(crate) struct CachingStore<K: Object> {
    pub(super) inner: Arc<CachingStoreInner<K>>,
}

/// What requests under way share with the store.
pub(super) struct CachingStoreInner<K: Object> {
    pub(super) entries: Entries<CachedState<K>>,
    metrics: Arc<dyn Metrics>,
    api: Api,
    config: Arc<ManagerConfig>,
    /// For the delays after failures. Locked after a state.
    random: Mutex<fastrand::Rng>,
}

/// What a read has to do.
enum Plan<K> {
    Answer(Result<Arc<K>, Error>),
    Wait(Flight<K>),
}

impl<K: Object> CachingStore<K> {
    pub(crate) fn new(
        api: Api,
        config: &ManagerConfig,
        metrics: Arc<dyn Metrics>,
        random: fastrand::Rng,
    ) -> Self {
        Self {
            inner: Arc::new(CachingStoreInner {
                entries: Entries::default(),
                metrics,
                api,
                config: Arc::new(config.clone()),
                random: Mutex::new(random),
            }),
        }
    }

    pub(crate) fn add_reference(&self, namespace: &str, name: &str) -> Reference<K> {
        let make = || CachedState::new(Arc::clone(&self.inner.config));
        self.inner.entries.add(namespace, name, make).reference()
    }

    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        required: Option<RegistrationSeq>,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let entry = self.inner.entries.require(namespace, name)?;
        let required = required.unwrap_or_else(|| entry.newest_reference());
        let flight = match self.plan(&entry, required) {
            Plan::Answer(result) => return result,
            Plan::Wait(flight) => flight,
        };
        let failure = || {
            let state = entry.cell.state.lock();
            state.failing.as_ref().map(|failing| failing.last.clone())
        };
        let result = wait(&entry.key, within, &*self.inner.metrics, flight, failure).await;
        match result {
            Err(error) if !error.is_not_found() => {
                let state = entry.cell.state.lock();
                let last_good =
                    state.serve_stale(required, self.inner.config.max_stale, Instant::now());
                last_good.ok_or(error)
            }
            result => result,
        }
    }

    fn plan(&self, entry: &Arc<Entry<CachedState<K>>>, required: RegistrationSeq) -> Plan<K> {
        let now = Instant::now();
        let mut state = entry.cell.state.lock();
        if let Some(object) = state.read_now(required, &entry.cell.config) {
            return Plan::Answer(Ok(object));
        }
        let under_way = state.flight.as_ref();
        if let Some((seq, flight)) = under_way
            && *seq >= required
            && let Some(flight) = flight.upgrade()
            // One that has ended left its result in the state.
            && flight.peek().is_none()
        {
            return Plan::Wait(flight);
        }
        if let Some(failing) = &state.failing
            && state.tried >= required
            && now < failing.not_before
        {
            let failure = failing.last.clone();
            let last_good = state.serve_stale(required, self.inner.config.max_stale, now);
            state.hits += u64::from(last_good.is_some());
            return Plan::Answer(
                last_good.ok_or_else(|| Error::of_failure(K::TYPE, entry.key.clone(), failure)),
            );
        }
        let seq = self.inner.entries.seqs.current();
        state.tried = seq;
        // T7: a cache of the API server will do for a refresh, and for nothing else. It confirms nothing.
        let (consistency, fresh_as_of) = match state.found_for(required) {
            Some(found) if found.doubt.is_none() => (Consistency::Any, state.fresh_as_of),
            _ => (Consistency::MostRecent, seq),
        };
        let flight = Arc::clone(&self.inner)
            .fetch(Arc::clone(entry), seq, consistency)
            .boxed()
            .shared();
        state.flight = flight.downgrade().map(|weak| (fresh_as_of, weak));
        Plan::Wait(flight)
    }
}

impl<K: Object> CachingStoreInner<K> {
    /// Asks for the object and records the outcome.
    async fn fetch(
        self: Arc<Self>,
        entry: Arc<Entry<CachedState<K>>>,
        seq: RegistrationSeq,
        consistency: Consistency,
    ) -> Result<Arc<K>, Error> {
        let version = match consistency {
            Consistency::MostRecent => None,
            Consistency::Any => Some("0"),
        };
        let target = ByName::<K>::new(entry.key.clone());
        let result = self.api.get(&target, version).await;
        let outcome = result.as_ref().err().map_or("ok", RequestError::label);
        self.metrics.requested("get", outcome);
        let now = Instant::now();
        let mut state = entry.cell.state.lock();
        // Nothing is known any more to compare the answer with.
        if let Answer::Removed = state.answer {
            let key = entry.key.clone();
            return Err(ErrorKind::NotRegistered { key }.into());
        }
        // T15: a request that a newer one overtook brings at most a newer version.
        let overtaken = state.fresh_as_of > seq || state.tried > seq;
        let result = result.map_err(|error| RequestFailure::new(RequestPhase::Get, error));
        let failed = |failure| Err(Error::of_failure(K::TYPE, entry.key.clone(), failure));
        let (event, answer) = match result {
            Err(failure) if overtaken => return failed(failure),
            Ok(object) => {
                let before = match &state.answer {
                    Answer::Found(known) => Some(Arc::clone(&known.object)),
                    Answer::Unknown | Answer::NotFound(_) | Answer::Removed => None,
                };
                let event = if overtaken {
                    state.found_late(&object, consistency, seq, now)
                } else {
                    state.found(Arc::clone(&object), consistency, seq, now)
                };
                // Perhaps a newer one that was known before.
                let known = match &state.answer {
                    Answer::Found(known) => Arc::clone(&known.object),
                    Answer::Unknown | Answer::NotFound(_) | Answer::Removed => object,
                };
                if let (Some(ChangeKind::Updated), Some(before)) = (&event, before) {
                    entry
                        .cell
                        .config
                        .change_log
                        .record(&entry.key, &*before, &*known);
                }
                (event, Ok(known))
            }
            Err(failure) if failure.error.is_not_found() => {
                let event = state.not_found(seq, now);
                (event, failed(failure))
            }
            Err(failure) => {
                let random = self.random.lock().f64();
                (state.failed(&failure, now, random), failed(failure))
            }
        };
        if let Some(event) = event {
            self.entries.changes.publish(&entry.key, &event);
        }
        answer
    }
}
