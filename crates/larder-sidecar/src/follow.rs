//! Follows the objects of selections: by watches, by lists from time to time, or by one list.
//!
//! Whatever comes is passed to the [`Intake`](crate::intake::Intake) as it is read, so neither a list nor an event is held
//! here.
//!
//! Invariants:
//! 1. A sink learns that an object is gone from an event, or from a complete state without it.
//! 2. It learns that all is complete once every selection has had a complete state (rule A1).
//! 3. A stale object is listed again by its name, with growing pauses after failures, until it was taken or is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use larder_objects::{ConfigMap, Kind, ResourceVersion, Secret, chain};
use larder_transport::path::{CollectionPath, Resource, field_selector};
use larder_watch::{
    Api, Engine, Head, Limits, NodeContext, Report, RequestError, RequestFailure, RequestPhase,
    Target, TargetId,
};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    health::Health,
    intake::SharedIntake,
    selection::{ObjectRef, Selection},
    settings::{Method, WatchTiming},
};

/// Requests that wait for their response at the same time. Each holds an object while it is read.
const LIMITS: Limits = Limits {
    max_requests_in_flight: 4,
    max_watches: usize::MAX,
};

/// A selection as the target of requests.
#[derive(Clone)]
struct Watched {
    selection: Selection,
    timing: WatchTiming,
    is_only_listed: bool,
    intake: SharedIntake,
    /// Where its proofs go, and its number there; `None` for an object that is read again.
    health: Option<(Arc<Health>, usize)>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.selection)
    }
}

/// An object that was read, and taken in.
#[derive(Debug)]
struct Taken {
    object: ObjectRef,
    version: ResourceVersion,
}

impl Watched {
    fn object(&self, head: &Head) -> Result<Option<ObjectRef>, RequestError> {
        let (selection, meta) = (&self.selection, &head.metadata);
        if meta.name.is_empty() {
            return Err(RequestError::Unexpected("an object without a name"));
        }
        let namespace = selection.namespace.as_ref().unwrap_or(&meta.namespace);
        let object = ObjectRef::new(selection.kind, namespace, &meta.name);
        if !selection.covers(&object) {
            return Ok(None);
        }
        match selection.kind {
            Kind::ConfigMap => head.check::<ConfigMap>(namespace)?,
            Kind::Secret => head.check::<Secret>(namespace)?,
        }
        Ok(Some(object))
    }
}

impl Target for Watched {
    type Item = Taken;
    type Tombstone = ObjectRef;
    type State = BTreeSet<ObjectRef>;

    const KIND: &'static str = "ConfigMap or Secret";
    const SECRET: bool = true;

    fn path(&self) -> Result<CollectionPath, RequestError> {
        let resource = Resource::core(self.selection.kind.object_type().resource);
        Ok(match &self.selection.namespace {
            Some(namespace) => resource.in_namespace(namespace)?,
            None => resource.collection(),
        })
    }

    fn name(&self) -> Option<&str> {
        // In all namespaces, a name may be there several times.
        let selection = &self.selection;
        selection.namespace.as_ref().and(selection.name.as_deref())
    }

    fn field_selector(&self) -> Option<String> {
        let name = self.selection.name.as_ref()?;
        Some(field_selector("metadata.name", name))
    }

    fn label_selector(&self) -> Option<&str> {
        self.selection.labels.as_deref()
    }

    fn is_only_listed(&self) -> bool {
        self.is_only_listed
    }

    fn watch_timeout(&self) -> Option<Duration> {
        self.timing.timeout
    }

    fn max_silence(&self) -> Option<Duration> {
        Some(self.timing.max_silence)
    }

    fn min_pause(&self) -> Duration {
        self.timing.min_pause
    }

    fn verified(&self, version: Option<&ResourceVersion>) {
        if let Some((health, number)) = &self.health {
            health.proven(*number, version);
        }
    }

    fn read(&self, json: &[u8]) -> Result<Option<Taken>, RequestError> {
        let head = Head::of(json);
        let Some(object) = self.object(&head)? else {
            return Ok(None);
        };
        let version = head.metadata.resource_version;
        let only_stale = self.health.is_none();
        let mut intake = self.intake.lock();
        intake.take(&object, &version, json, only_stale);
        drop(intake);
        Ok(Some(Taken { object, version }))
    }

    fn gone(&self, head: Head) -> Option<ObjectRef> {
        self.object(&head).ok()?
    }

    fn version(item: &Taken) -> &ResourceVersion {
        &item.version
    }

    fn add(state: &mut BTreeSet<ObjectRef>, item: Taken) {
        state.insert(item.object);
    }

    fn remove(state: &mut BTreeSet<ObjectRef>, gone: &ObjectRef) {
        state.remove(gone);
    }

    fn into_item(mut state: BTreeSet<ObjectRef>) -> Option<Taken> {
        Some(Taken {
            object: state.pop_first()?,
            version: ResourceVersion::default(),
        })
    }
}

/// Follows selections.
pub(crate) struct Follower {
    engine: Box<Engine<Watched>>,
    intake: SharedIntake,
    health: Arc<Health>,
    method: Method,
    timing: WatchTiming,
    /// The selections, whose numbers are those of their targets.
    selections: Vec<Selection>,
    /// Those without a complete state so far.
    missing: BTreeSet<u64>,
    /// The objects that are being read again; and by the numbers of their targets, with the failures so far.
    reading: BTreeSet<ObjectRef>,
    rereads: BTreeMap<u64, (ObjectRef, u32)>,
    /// How many targets there were.
    targets: u64,
    /// The targets that are listed at a time.
    due: BTreeSet<(Instant, u64)>,
}

/// A failed request of a selection, which is repeated.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What, why, and the missing right: `cannot list configmaps in namespace prod: …`.
    pub(crate) text: String,
    /// Repeating it will not help: the right or the path is missing.
    pub(crate) is_final: bool,
}

impl Failure {
    fn of(selection: &Selection, RequestFailure { phase, error }: &RequestFailure) -> Self {
        let text = chain(error);
        // A list may be the beginning of a watch, which takes that right.
        let verb = match phase {
            _ if error.is_forbidden() && text.contains("cannot watch") => "watch",
            RequestPhase::Watch => "watch",
            _ => "list",
        };
        Self {
            text: format!("cannot {verb} {selection}: {text}"),
            is_final: error.is_forbidden() || error.is_not_found(),
        }
    }
}

impl Follower {
    pub(crate) fn new(
        client: kube::Client,
        selections: BTreeSet<Selection>,
        method: Method,
        timing: WatchTiming,
        (intake, health): (&SharedIntake, &Arc<Health>),
    ) -> Self {
        let (api, context, random) = (
            Api::new(client),
            NodeContext::default(),
            fastrand::Rng::new(),
        );
        let mut follower = Self {
            engine: Box::new(Engine::new(api, LIMITS, Arc::default(), &context, random)),
            intake: Arc::clone(intake),
            health: Arc::clone(health),
            method,
            timing,
            selections: selections.iter().cloned().collect(),
            missing: BTreeSet::new(),
            reading: BTreeSet::new(),
            rereads: BTreeMap::new(),
            targets: 0,
            due: BTreeSet::new(),
        };
        health.follow(&follower.selections, timing.max_silence);
        for (number, selection) in selections.into_iter().enumerate() {
            let health = Some((Arc::clone(health), number));
            let target = follower.add(selection, health, Duration::ZERO);
            follower.missing.insert(target);
        }
        follower
    }

    /// Adds a target that is listed after a pause, and returns its number.
    fn add(
        &mut self,
        selection: Selection,
        health: Option<(Arc<Health>, usize)>,
        pause: Duration,
    ) -> u64 {
        let target = self.targets;
        self.targets += 1;
        let watched = Watched {
            selection,
            timing: self.timing,
            is_only_listed: health.is_none() || self.method != Method::Watch,
            intake: Arc::clone(&self.intake),
            health,
        };
        self.engine.add(TargetId::Collection(target), watched);
        self.due.insert((Instant::now() + pause, target));
        target
    }

    /// Whether every selection has had a complete state, and what came of it was taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.intake.lock().stale.values().all(|failed| *failed)
    }

    /// Waits until files may have changed, or a request has failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<(), Failure> {
        if self.selections.is_empty() {
            self.intake.lock().complete();
        }
        loop {
            self.read_again();
            let due = self.due.first().copied();
            let at = due.map_or_else(Instant::now, |(at, _)| at);
            // Both arms are cancel-safe: what is under way is kept here.
            let (target, report) = tokio::select! {
                biased;
                () = sleep_until(at), if due.is_some() => {
                    if let Some((_, target)) = self.due.pop_first() {
                        // Collections need no slot.
                        let _ = self.engine.start(TargetId::Collection(target), true);
                    }
                    continue;
                }
                (TargetId::Collection(target), report) = self.engine.next() => (target, report),
            };
            if let Some(news) = self.reported(target, report) {
                return news;
            }
        }
    }

    fn reported(&mut self, target: u64, report: Report<Watched>) -> Option<Result<(), Failure>> {
        let number = usize::try_from(target).unwrap_or(usize::MAX);
        let Some(selection) = self.selections.get(number) else {
            match report {
                Report::Synced(_) => self.was_read(target),
                Report::Failed(failure) => {
                    let error = chain(&failure.error);
                    warn!(error, "cannot read an object again, will retry");
                    return None;
                }
                _ => return None,
            }
            return Some(Ok(()));
        };
        match report {
            Report::Synced(all) if all.reset => {
                self.intake.lock().forget_versions(selection);
                self.due.insert((Instant::now(), target));
                return None;
            }
            Report::Synced(all) => {
                self.health.listed(number);
                let mut intake = self.intake.lock();
                // Otherwise others may be there, too.
                if all.incomplete.is_none() {
                    intake.listed(selection, &all.state);
                }
                if self.missing.remove(&target) && self.missing.is_empty() {
                    intake.complete();
                }
                if let Method::Sleep(pause) = self.method {
                    self.due.insert((Instant::now() + pause, target));
                }
            }
            Report::Changed(_) => {}
            Report::Deleted(object, _) => self.intake.lock().gone(&object),
            Report::Failed(failure) => {
                let failure = Failure::of(selection, &failure);
                self.health.failed(number, &failure.text);
                return Some(Err(failure));
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Lists the stale objects.
    fn read_again(&mut self) {
        let intake = self.intake.lock();
        let stale = intake.stale.iter();
        let new = stale.filter(|(object, _)| !self.reading.contains(object));
        let new: Vec<_> = new
            .map(|(object, failed)| (object.clone(), *failed))
            .collect();
        drop(intake);
        for (object, failed) in new {
            self.reading.insert(object.clone());
            self.reread(object, u32::from(failed));
        }
    }

    fn reread(&mut self, object: ObjectRef, failures: u32) {
        // Up to a minute.
        let pause = Duration::from_secs((1 << failures.min(6)) - 1);
        let target = self.add(Selection::of(&object), None, pause);
        self.rereads.insert(target, (object, failures));
    }

    /// An object was read again. If it is still stale, it could not be written.
    fn was_read(&mut self, target: u64) {
        self.engine.remove(TargetId::Collection(target));
        let Some((object, failures)) = self.rereads.remove(&target) else {
            return;
        };
        let mut intake = self.intake.lock();
        if let Some(failed) = intake.stale.get_mut(&object) {
            *failed = true;
            drop(intake);
            self.reread(object, failures + 1);
        } else {
            self.reading.remove(&object);
        }
    }
}
