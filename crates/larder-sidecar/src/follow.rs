//! Follows the objects of selections: by watches, by lists from time to time, or by one list.
//!
//! Whatever comes is passed to a [`Sink`] as it is read, so neither a list nor an event is held here.
//!
//! Invariants:
//! 1. A sink learns that an object is gone from an event, or from a complete state without it.
//! 2. [`Sink::complete`] is called once every selection has had a complete state (rule A1).
//! 3. An object that the sink calls stale is listed again by its name, with growing pauses after failures.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_objects::{ConfigMap, Kind, ResourceVersion, Secret, chain};
use larder_transport::path::{CollectionPath, Resource, field_selector};
use larder_watch::{
    Api, Engine, Head, Limits, Listed, NodeContext, Report, RequestBackoff, RequestError,
    RequestFailure, RequestPhase, Target, TargetId,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    health::WatchHealth,
    selection::{ObjectRef, Selection},
    settings::{Method, WatchTiming},
};

/// Lists and watches that are opened at the same time. Each holds an object while it is read.
const REQUESTS: usize = 4;
/// The longest pause before an object is read again.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Takes objects over.
pub(crate) trait Sink: fmt::Debug + Send + 'static {
    /// An object as it is now, in JSON.
    fn take(&mut self, object: &ObjectRef, version: &ResourceVersion, json: &[u8]);

    /// An object exists, and nothing else is known of it.
    fn keep(&mut self, object: &ObjectRef);

    /// An object is gone.
    fn gone(&mut self, object: &ObjectRef);

    /// These are all objects of a selection.
    fn listed(&mut self, selection: &Selection, present: &BTreeSet<ObjectRef>);

    /// Every selection has been listed.
    fn complete(&mut self);

    /// The API server was restored: versions may be lower from now on.
    fn forget_versions(&mut self, selection: &Selection);

    /// An object must be read again, because that has failed.
    fn make_stale(&mut self, object: &ObjectRef);

    /// Whether an object must be read again.
    fn is_stale(&self, object: &ObjectRef) -> bool;

    /// The objects that are to be read again; whether because of a failure.
    fn take_stale(&mut self) -> BTreeMap<ObjectRef, bool>;
}

/// A selection as the target of a watch.
pub(crate) struct Watched<S>(Arc<WatchedSelection<S>>);

struct WatchedSelection<S> {
    selection: Selection,
    timing: WatchTiming,
    sink: Arc<Mutex<S>>,
    health: Option<Arc<WatchHealth>>,
}

impl<S> Clone for Watched<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Watched<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.selection)
    }
}

/// An object that was read, and taken by the sink.
#[derive(Debug)]
pub(crate) struct Taken {
    object: ObjectRef,
    version: ResourceVersion,
}

impl<S: Sink> Watched<S> {
    fn object(&self, head: &Head) -> Result<Option<ObjectRef>, RequestError> {
        let selection = &self.0.selection;
        let meta = &head.metadata;
        if meta.name.is_empty() {
            return Err(RequestError::Unexpected("an object without a name"));
        }
        if selection
            .name
            .as_ref()
            .is_some_and(|name| *name != meta.name)
        {
            return Ok(None);
        }
        let namespace = selection.namespace.as_ref().unwrap_or(&meta.namespace);
        match selection.kind {
            Kind::ConfigMap => head.check::<ConfigMap>(namespace)?,
            Kind::Secret => head.check::<Secret>(namespace)?,
        }
        Ok(Some(ObjectRef {
            kind: selection.kind,
            namespace: namespace.clone(),
            name: meta.name.clone(),
        }))
    }
}

impl<S: Sink> Target for Watched<S> {
    type Item = Taken;
    type Tombstone = ObjectRef;
    type State = BTreeSet<ObjectRef>;

    const KIND: &'static str = "ConfigMap or Secret";
    const SECRET: bool = true;

    fn path(&self) -> Result<CollectionPath, RequestError> {
        let resource = Resource::core(self.0.selection.kind.object_type().resource);
        Ok(match &self.0.selection.namespace {
            Some(namespace) => resource.in_namespace(namespace)?,
            None => resource.collection(),
        })
    }

    fn name(&self) -> Option<&str> {
        // In all namespaces, a name may be there several times.
        let selection = &self.0.selection;
        selection.namespace.as_ref().and(selection.name.as_deref())
    }

    fn field_selector(&self) -> Option<String> {
        let name = self.0.selection.name.as_ref()?;
        Some(field_selector("metadata.name", name))
    }

    fn label_selector(&self) -> Option<&str> {
        self.0.selection.labels.as_deref()
    }

    fn watch_timeout(&self) -> Option<Duration> {
        self.0.timing.timeout
    }

    fn max_silence(&self) -> Option<Duration> {
        Some(self.0.timing.max_silence)
    }

    fn min_pause(&self) -> Duration {
        self.0.timing.min_pause
    }

    fn proven(&self, version: Option<&ResourceVersion>) {
        if let Some(health) = &self.0.health {
            health.proven(version, Instant::now());
        }
    }

    fn read(&self, json: &[u8]) -> Result<Option<Taken>, RequestError> {
        let head = Head::of(json);
        let Some(object) = self.object(&head)? else {
            return Ok(None);
        };
        let version = head.metadata.resource_version;
        self.0.sink.lock().take(&object, &version, json);
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

type Listing<S> = Result<Listed<Watched<S>>, RequestError>;

/// Follows selections.
pub(crate) struct Follower<S: Sink> {
    api: Api,
    watched: Vec<Watched<S>>,
    sink: Arc<Mutex<S>>,
    /// Selections without a complete state so far.
    missing: BTreeSet<usize>,
    source: Source<S>,
    rereads: FuturesUnordered<BoxFuture<'static, (ObjectRef, Listing<S>)>>,
    /// How often objects were read again in a row.
    attempts: BTreeMap<ObjectRef, u32>,
}

enum Source<S: Sink> {
    Watches(Box<Engine<Watched<S>>>),
    Lists(Box<Lists<S>>),
}

/// Rounds of lists.
struct Lists<S: Sink> {
    /// Time between two rounds; `None` for one round that succeeds.
    pause: Option<Duration>,
    /// The next selection of this round.
    next: usize,
    at: Instant,
    listing: Option<BoxFuture<'static, Listing<S>>>,
    /// A list of this round has failed, and the pause that follows.
    failed: Option<Duration>,
    backoff: RequestBackoff,
    random: fastrand::Rng,
}

/// What a follower has learned.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The sink may have changed.
    Changed,
    /// A request has failed, and is repeated.
    Failed(Failure),
}

/// A failed request of a selection.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What, why, and the missing right: `cannot list configmaps in namespace prod: …`.
    pub(crate) text: String,
    /// Repeating it will not help: the right or the path is missing.
    pub(crate) is_final: bool,
}

impl Failure {
    fn of(selection: &Selection, failure: &RequestFailure) -> Self {
        let error = &failure.error;
        let text = chain(&**error);
        // A list may be the beginning of a watch, which takes that right.
        let verb = match failure.phase {
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

impl<S: Sink> Follower<S> {
    pub(crate) fn new(
        client: kube::Client,
        selections: Vec<(Selection, Arc<WatchHealth>)>,
        method: Method,
        timing: WatchTiming,
        sink: Arc<Mutex<S>>,
    ) -> Self {
        let api = Api::new(client);
        let watched = selections.into_iter().map(|(selection, health)| {
            Watched(Arc::new(WatchedSelection {
                selection,
                timing,
                sink: Arc::clone(&sink),
                health: Some(health),
            }))
        });
        let watched: Vec<_> = watched.collect();
        let source = match method {
            Method::Watch => {
                let limits = Limits {
                    max_requests_in_flight: REQUESTS,
                    max_watches: usize::MAX,
                };
                let random = fastrand::Rng::new();
                let context = NodeContext::default();
                let mut engine = Engine::new(api.clone(), limits, Arc::default(), &context, random);
                for (index, target) in (0..).zip(&watched) {
                    let id = TargetId::Collection(index);
                    engine.add(id, target.clone());
                    // Collections need no slot.
                    let _ = engine.start(id, true);
                }
                Source::Watches(Box::new(engine))
            }
            Method::List | Method::Sleep(_) => Source::Lists(Box::new(Lists {
                pause: match method {
                    Method::Sleep(pause) => Some(pause),
                    _ => None,
                },
                next: 0,
                at: Instant::now(),
                listing: None,
                failed: None,
                backoff: RequestBackoff::default(),
                random: fastrand::Rng::new(),
            })),
        };
        Self {
            api,
            missing: (0..watched.len()).collect(),
            watched,
            sink,
            source,
            rereads: FuturesUnordered::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// Whether every selection has had a complete state.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Whether objects are being read again.
    pub(crate) fn is_settled(&self) -> bool {
        self.rereads.is_empty()
    }

    /// The next thing that happens.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Progress {
        if self.watched.is_empty() {
            self.sink.lock().complete();
        }
        loop {
            self.read_again();
            // Both arms are cancel-safe: what is under way is kept here.
            let progress = tokio::select! {
                biased;
                Some((object, listing)) = self.rereads.next() => {
                    self.reread(object, listing);
                    Some(Progress::Changed)
                }
                event = self.source.next(&self.api, &self.watched) => self.took(event),
            };
            if let Some(progress) = progress {
                // Whoever asks next finds every read under way.
                self.read_again();
                return progress;
            }
        }
    }

    fn took(&mut self, (index, event): (usize, Event)) -> Option<Progress> {
        let watched = &self.watched[index];
        let (selection, health) = (&watched.0.selection, watched.0.health.as_ref());
        match event {
            Event::Listed(state, is_whole, was_reset) => {
                if was_reset {
                    self.sink.lock().forget_versions(selection);
                    if let Source::Watches(engine) = &mut self.source {
                        let _ = engine.start(TargetId::Collection(index as u64), true);
                    }
                    return None;
                }
                if let Some(health) = health {
                    health.listed(Instant::now());
                }
                let mut sink = self.sink.lock();
                if is_whole {
                    sink.listed(selection, &state);
                }
                if self.missing.remove(&index) && self.missing.is_empty() {
                    sink.complete();
                }
                Some(Progress::Changed)
            }
            Event::Changed => Some(Progress::Changed),
            Event::Gone(object) => {
                self.sink.lock().gone(&object);
                Some(Progress::Changed)
            }
            Event::Failed(failure) => {
                let failure = Failure::of(selection, &failure);
                if let Some(health) = health {
                    health.failed(&failure.text, Instant::now());
                }
                Some(Progress::Failed(failure))
            }
        }
    }

    /// Lists the stale objects.
    fn read_again(&mut self) {
        let stale = self.sink.lock().take_stale();
        for (object, failed) in stale {
            let attempts = self.attempts.entry(object.clone()).or_default();
            let pause = match *attempts {
                0 if !failed => Duration::ZERO,
                attempts => Duration::from_secs(1 << attempts.min(6)).min(MAX_PAUSE),
            };
            *attempts += 1;
            let target = Watched(Arc::new(WatchedSelection {
                selection: Selection::of(&object),
                timing: WatchTiming::default(),
                sink: Arc::clone(&self.sink),
                health: None,
            }));
            let (api, at) = (self.api.clone(), Instant::now() + pause);
            let list = async move {
                sleep_until(at).await;
                let listing = api.list(&target, None).await;
                (object, listing)
            };
            self.rereads.push(list.boxed());
        }
    }

    fn reread(&mut self, object: ObjectRef, listing: Listing<S>) {
        let mut sink = self.sink.lock();
        match listing {
            // Its content was taken, or it is gone, which its watch reports.
            Ok(_) if !sink.is_stale(&object) => {
                self.attempts.remove(&object);
            }
            Ok(_) => {}
            Err(error) => {
                warn!(%object, error = chain(&error), "cannot read object again, will retry");
                sink.make_stale(&object);
            }
        }
    }
}

/// News of a selection.
enum Event {
    /// All objects, whether no other one may be there, and whether the API server was restored.
    Listed(BTreeSet<ObjectRef>, bool, bool),
    Changed,
    Gone(ObjectRef),
    Failed(RequestFailure),
}

impl<S: Sink> Source<S> {
    /// The next event, and the number of its selection. Cancel-safe.
    async fn next(&mut self, api: &Api, watched: &[Watched<S>]) -> (usize, Event) {
        match self {
            Self::Watches(engine) => loop {
                let (id, report) = engine.next().await;
                let event = match report {
                    Report::Synced(all) => {
                        Event::Listed(all.state, all.incomplete.is_none(), all.reset)
                    }
                    Report::Changed(_) => Event::Changed,
                    Report::Deleted(object, _) => Event::Gone(object),
                    Report::Failed(failure) => Event::Failed(failure),
                    _ => continue,
                };
                if let TargetId::Collection(index) = id {
                    return (usize::try_from(index).unwrap_or_default(), event);
                }
            },
            Self::Lists(lists) => lists.next(api, watched).await,
        }
    }
}

impl<S: Sink> Lists<S> {
    async fn next(&mut self, api: &Api, watched: &[Watched<S>]) -> (usize, Event) {
        if self.next == watched.len() {
            let now = Instant::now();
            self.next = 0;
            self.at = match (self.failed.take(), self.pause) {
                (Some(delay), pause) => now + pause.map_or(delay, |pause| pause.min(delay)),
                (None, Some(pause)) => now + pause,
                // One round was all.
                (None, None) => std::future::pending().await,
            };
        }
        sleep_until(self.at).await;
        let index = self.next;
        let listing = self.listing.get_or_insert_with(|| {
            let (api, target) = (api.clone(), watched[index].clone());
            async move { api.list(&target, None).await }.boxed()
        });
        let listing_result = listing.await;
        self.listing = None;
        self.next += 1;
        let event = match listing_result {
            Ok(all) => {
                self.backoff.reset();
                Event::Listed(all.state, all.incomplete.is_none(), false)
            }
            Err(error) => {
                let random = self.random.f64();
                let delay = self.backoff.delay_after(&error, Instant::now(), random);
                self.failed = Some(delay.max(watched[index].0.timing.min_pause));
                Event::Failed(RequestFailure::new(RequestPhase::List, error))
            }
        };
        (index, event)
    }
}
