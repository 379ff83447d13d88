//! Follows the objects of selections: by watches, by lists from time to time, or by one list.
//!
//! Whatever comes is passed to a [`Sink`] as it is read, so neither a list nor an event is held here.
//!
//! Invariants:
//! 1. A sink learns that an object is gone from an event, or from a complete state without it.
//! 2. [`Sink::complete`] is called once every selection has had a complete state (rule A1).
//! 3. An object that the sink calls stale is listed again by its name, with growing pauses after failures, until it was
//!    taken or is gone. What comes too late for that is not taken.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_objects::{ConfigMap, Kind, ResourceVersion, Secret, chain};
use larder_on_change::{ContentDigest, Hook, Items};
use larder_transport::path::{CollectionPath, Resource, field_selector};
use larder_watch::{
    Api, Engine, Head, Limits, Listed, NodeContext, Report, RequestBackoff, RequestError,
    RequestPhase, Target, TargetId,
};
use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::warn;

use crate::{
    health::WatchHealth,
    index::Index,
    selection::{ObjectRef, Selection},
    settings::{Method, WatchTiming},
};

/// Lists and watches that are opened at the same time. Each holds an object while it is read.
const REQUESTS: usize = 4;
/// The longest pause before an object is read again.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Takes objects over, and puts them into files.
pub(crate) trait Sink: fmt::Debug + Send + 'static {
    /// An object as it is now, in JSON.
    fn take(&mut self, object: &ObjectRef, version: &ResourceVersion, json: &[u8]);

    /// An object is gone.
    fn gone(&mut self, object: &ObjectRef);

    /// These are all objects of a selection.
    fn listed(&mut self, selection: &Selection, present: &BTreeSet<ObjectRef>);

    /// Every selection has been listed.
    fn complete(&mut self) {}

    /// The API server was restored: versions may be lower from now on.
    fn forget_versions(&mut self, selection: &Selection);

    /// The objects that are to be read again; whether because of a failure.
    fn stale(&mut self) -> &mut BTreeMap<ObjectRef, bool>;

    /// Something may have changed: brings files up to date.
    fn settle(&mut self) -> Settled;

    /// What is ours across restarts.
    fn index(&mut self) -> &mut Index;

    /// The digest of what a hook selects, and what changes are computed from.
    fn digest(&mut self, hook: &Hook) -> (ContentDigest, Items);

    /// The files whose content is to be fetched now.
    fn take_fetches(&mut self) -> Vec<UrlFile> {
        Vec::new()
    }

    /// Whether this file is still to have the content of this URL.
    fn wants(&self, _: &UrlFile) -> bool {
        false
    }

    /// Takes over the content that was fetched, if it is still wanted.
    fn take_fetched(&mut self, _: &UrlFile, _content: &[u8]) {}
}

/// The state of files.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Files differ from those at the last call.
    pub(crate) is_changed: bool,
    /// Why something was never written.
    pub(crate) unwritten: Option<String>,
    /// Whether to settle again after a while.
    pub(crate) retries: bool,
}

/// A file whose content is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlFile {
    pub(crate) path: Arc<str>,
    pub(crate) object: ObjectRef,
    pub(crate) url: Arc<str>,
}

/// A selection as the target of a watch.
pub(crate) struct Watched<S>(Arc<WatchedSelection<S>>);

struct WatchedSelection<S> {
    selection: Selection,
    timing: WatchTiming,
    sink: Arc<Mutex<S>>,
    /// `None` for an object that is read again.
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
        let other = selection.name.as_ref().filter(|name| **name != meta.name);
        if other.is_some() {
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

    fn verified(&self, version: Option<&ResourceVersion>) {
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
        let mut sink = self.0.sink.lock();
        if self.0.health.is_some() || sink.stale().contains_key(&object) {
            sink.take(&object, &version, json);
        }
        drop(sink);
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

/// What is listed.
enum Listing {
    /// A selection, by its number.
    Selection(usize),
    /// An object that is read again.
    Object(ObjectRef),
}

type ListResult<S> = Result<Listed<Watched<S>>, RequestError>;

/// Follows selections.
pub(crate) struct Follower<S: Sink> {
    api: Api,
    watched: Vec<Watched<S>>,
    sink: Arc<Mutex<S>>,
    /// Selections without a complete state so far.
    missing: BTreeSet<usize>,
    /// `None` if selections are listed.
    engine: Option<Box<Engine<Watched<S>>>>,
    /// Time between two lists of a selection.
    pause: Option<Duration>,
    lists: FuturesUnordered<BoxFuture<'static, (Listing, ListResult<S>)>>,
    permits: Arc<Semaphore>,
    backoff: RequestBackoff,
    random: fastrand::Rng,
    /// The objects that are being read again, and the attempts before.
    rereads: BTreeMap<ObjectRef, u32>,
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
    fn of(selection: &Selection, phase: RequestPhase, error: &RequestError) -> Self {
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
        let mut follower = Self {
            missing: (0..watched.len()).collect(),
            engine: None,
            pause: match method {
                Method::Sleep(pause) => Some(pause),
                Method::List | Method::Watch => None,
            },
            lists: FuturesUnordered::new(),
            permits: Arc::new(Semaphore::new(REQUESTS)),
            backoff: RequestBackoff::default(),
            random: fastrand::Rng::new(),
            rereads: BTreeMap::new(),
            api,
            watched,
            sink,
        };
        if method == Method::Watch {
            follower.watch();
        } else {
            for index in 0..follower.watched.len() {
                follower.list(Listing::Selection(index), Duration::ZERO);
            }
        }
        follower
    }

    fn watch(&mut self) {
        let limits = Limits {
            max_requests_in_flight: REQUESTS,
            max_watches: usize::MAX,
        };
        let (api, random) = (self.api.clone(), self.random.fork());
        let mut engine = Engine::new(api, limits, Arc::default(), &NodeContext::default(), random);
        for (index, target) in (0..).zip(&self.watched) {
            let id = TargetId::Collection(index);
            engine.add(id, target.clone());
            // Collections need no slot.
            let _ = engine.start(id, true);
        }
        self.engine = Some(Box::new(engine));
    }

    /// Whether every selection has had a complete state, and what came of it was taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.sink.lock().stale().values().all(|failed| *failed)
    }

    /// Waits until the sink may have changed, or a request has failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<(), Failure> {
        if self.watched.is_empty() {
            self.sink.lock().complete();
        }
        loop {
            self.read_again();
            // Both arms are cancel-safe: what is under way is kept here.
            let news = tokio::select! {
                biased;
                Some((listing, result)) = self.lists.next() => Some(self.listed(listing, result)),
                (index, report) = next_report(self.engine.as_deref_mut()) => {
                    self.reported(index, report)
                }
            };
            if let Some(news) = news {
                return news;
            }
        }
    }

    fn listed(&mut self, listing: Listing, result: ListResult<S>) -> Result<(), Failure> {
        let index = match listing {
            Listing::Selection(index) => index,
            Listing::Object(object) => {
                self.read(object, result.err());
                return Ok(());
            }
        };
        match result {
            Ok(all) => {
                self.backoff.reset();
                self.synced(index, &all.state, all.incomplete.is_none());
                if let Some(pause) = self.pause {
                    self.list(Listing::Selection(index), pause);
                }
                Ok(())
            }
            Err(error) => {
                let random = self.random.f64();
                let delay = self.backoff.delay_after(&error, Instant::now(), random);
                let delay = delay.min(self.pause.unwrap_or(delay));
                let least = self.watched[index].0.timing.min_pause;
                self.list(Listing::Selection(index), delay.max(least));
                Err(self.failed(index, RequestPhase::List, &error))
            }
        }
    }

    fn reported(
        &mut self,
        index: usize,
        report: Report<Watched<S>>,
    ) -> Option<Result<(), Failure>> {
        match report {
            Report::Synced(all) if all.reset => {
                let selection = &self.watched[index].0.selection;
                self.sink.lock().forget_versions(selection);
                if let Some(engine) = &mut self.engine {
                    let _ = engine.start(TargetId::Collection(index as u64), true);
                }
                return None;
            }
            Report::Synced(all) => self.synced(index, &all.state, all.incomplete.is_none()),
            Report::Changed(_) => {}
            Report::Deleted(object, _) => self.sink.lock().gone(&object),
            Report::Failed(failure) => {
                return Some(Err(self.failed(index, failure.phase, &failure.error)));
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// A selection has had a complete state; unless it `is_whole`, others may be there, too.
    fn synced(&mut self, index: usize, state: &BTreeSet<ObjectRef>, is_whole: bool) {
        let watched = &self.watched[index].0;
        if let Some(health) = &watched.health {
            health.listed(Instant::now());
        }
        let mut sink = self.sink.lock();
        if is_whole {
            sink.listed(&watched.selection, state);
        }
        if self.missing.remove(&index) && self.missing.is_empty() {
            sink.complete();
        }
    }

    fn failed(&self, index: usize, phase: RequestPhase, error: &RequestError) -> Failure {
        let watched = &self.watched[index].0;
        let failure = Failure::of(&watched.selection, phase, error);
        if let Some(health) = &watched.health {
            health.failed(&failure.text, Instant::now());
        }
        failure
    }

    /// Lists the stale objects.
    fn read_again(&mut self) {
        let mut sink = self.sink.lock();
        let stale = sink.stale().iter();
        let new = stale.filter(|(object, _)| !self.rereads.contains_key(object));
        let new: Vec<_> = new
            .map(|(object, failed)| (object.clone(), *failed))
            .collect();
        drop(sink);
        for (object, failed) in new {
            self.rereads.insert(object.clone(), u32::from(failed));
            let pause = Duration::from_secs(2 * u64::from(failed));
            self.list(Listing::Object(object), pause);
        }
    }

    /// An object was read again. If it is still stale, that has failed.
    fn read(&mut self, object: ObjectRef, error: Option<RequestError>) {
        if let Some(error) = error {
            warn!(%object, error = chain(&error), "cannot read object again, will retry");
        }
        let attempts = self.rereads.remove(&object).unwrap_or_default() + 1;
        if let Some(failed) = self.sink.lock().stale().get_mut(&object) {
            *failed = true;
        } else {
            return;
        }
        self.rereads.insert(object.clone(), attempts);
        let pause = Duration::from_secs(1 << attempts.min(6)).min(MAX_PAUSE);
        self.list(Listing::Object(object), pause);
    }

    fn list(&mut self, listing: Listing, pause: Duration) {
        let target = match &listing {
            Listing::Selection(index) => self.watched[*index].clone(),
            Listing::Object(object) => Watched(Arc::new(WatchedSelection {
                selection: Selection::of(object),
                timing: WatchTiming::default(),
                sink: Arc::clone(&self.sink),
                health: None,
            })),
        };
        let (api, permits) = (self.api.clone(), Arc::clone(&self.permits));
        let at = Instant::now() + pause;
        let list = async move {
            sleep_until(at).await;
            let _permit = permits.acquire().await;
            let result = api.list(&target, None).await;
            (listing, result)
        };
        self.lists.push(list.boxed());
    }
}

/// The next report on a selection, and its number. Cancel-safe.
async fn next_report<S: Sink>(
    engine: Option<&mut Engine<Watched<S>>>,
) -> (usize, Report<Watched<S>>) {
    let Some(engine) = engine else {
        return std::future::pending().await;
    };
    loop {
        if let (TargetId::Collection(index), report) = engine.next().await {
            return (usize::try_from(index).unwrap_or_default(), report);
        }
    }
}
