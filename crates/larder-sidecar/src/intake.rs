//! What is known of the objects that are followed, between the requests and the sink that makes files of them.
//!
//! Whatever a request brings is passed to the sink as it is read, so neither a list nor an event is held here.
//!
//! Invariants:
//! 1. A sink learns that an object is gone from an event, or from a complete state without it.
//! 2. No version of an object goes backward, unless the API server was restored.
//! 3. An object that the sink calls stale is taken again, whatever its version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io, mem,
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use larder_files::new_file::NewFile;
use larder_objects::{ConfigMap, Kind, ResourceVersion, Secret, chain};
use larder_on_change::{
    ContentTag, DigestKey, LeftOut, ObjectTag, PartContent, PartKey, PartTags, PodHooks, Tagger,
};
use larder_projection::VolumeKind;
use larder_transport::path::{CollectionPath, Resource, field_selector};
use larder_watch::{Head, RequestError, RequestFailure, RequestPhase, RequestTiming, Target};
use parking_lot::Mutex;
use rustix::io::Result as SystemResult;
use tokio::time::Instant;

use crate::{
    health::Health,
    index::Index,
    metrics::Metrics,
    selection::{ObjectRef, Selection},
};

/// A volume with the tags of the files that hooks select.
pub(crate) type DeliveredPart = (PartKey, Arc<PartContent>);

/// What stands for the content of a file, and the object that it comes from.
pub(crate) type FileTag = (ContentTag, Option<ObjectTag>);

/// Takes objects over, and puts them into files.
pub(crate) trait Sink: fmt::Debug + Send {
    /// An object as it is now, in JSON; `None` if it is gone, or was never there.
    fn take(&mut self, object: &ObjectRef, json: Option<&[u8]>);

    /// Something may have changed: brings files up to date. From some call on, every selection has been listed.
    fn settle(&mut self, is_listed: bool) -> Settled;

    /// What is ours across restarts.
    fn index(&mut self) -> &mut Index;

    /// What is in place of what hooks select.
    fn content(&mut self, hooks: &PodHooks) -> Vec<DeliveredPart>;

    /// Whether this file is still to have the content of this URL.
    fn wants(&self, _: &UrlFile) -> bool {
        false
    }

    /// A file for content that is being fetched.
    fn begin_fetched(&mut self, _: &UrlFile) -> io::Result<FetchedFile> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes over the content that was fetched, if it is still wanted.
    fn take_fetched(&mut self, _: &UrlFile, _content: FetchedFile) {}

    /// Compares what is in place with the disk: what was removed by others is written again.
    fn look(&mut self) {}
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
    /// The objects that are to be read again, and when.
    pub(crate) stale: BTreeMap<ObjectRef, Reread>,
    /// The files whose content is to be fetched now.
    pub(crate) fetches: Vec<UrlFile>,
}

/// A file whose content is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlFile {
    pub(crate) path: Arc<str>,
    pub(crate) object: ObjectRef,
    pub(crate) url: Arc<str>,
}

/// The content of a URL on its way into a file: it is written while it is read, and has no name yet. Dropped, it leaves
/// nothing.
#[derive(Debug)]
pub(crate) struct FetchedFile {
    file: NewFile<OwnedFd>,
    tagger: Tagger,
    pub(crate) length: usize,
}

impl FetchedFile {
    pub(crate) fn create(directory: OwnedFd, aside: String, key: &DigestKey) -> SystemResult<Self> {
        Ok(Self {
            file: NewFile::create(directory, aside)?,
            tagger: key.tagger(),
            length: 0,
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes)?;
        self.tagger.update(bytes);
        self.length += bytes.len();
        Ok(())
    }

    /// The whole file, and what stands for its content.
    pub(crate) fn finish(self) -> (NewFile<OwnedFd>, ContentTag) {
        (self.file, self.tagger.finish())
    }
}

/// The sink, and what is known of its objects.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) sink: Box<dyn Sink>,
    /// The objects that are there.
    versions: BTreeMap<ObjectRef, ResourceVersion>,
    stale: BTreeMap<ObjectRef, Stale>,
    /// A version that is known is taken again: each poll compares it with the disk.
    pub(crate) takes_again: bool,
    metrics: Metrics,
}

/// When a stale object is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reread {
    AtOnce,
    /// Because of a failure: after a pause that doubles up to a minute.
    AfterPause,
}

/// An object that is to be read again.
#[derive(Debug, Default)]
struct Stale {
    failures: u32,
    /// When; `None` if it was taken since the sink was last settled.
    due: Option<Instant>,
}

impl Stale {
    fn read_again(&mut self, when: Reread) {
        let pause = match when {
            Reread::AtOnce => 0,
            Reread::AfterPause => {
                self.failures += 1;
                (1 << self.failures.min(6)) - 1
            }
        };
        self.due = Some(Instant::now() + Duration::from_secs(pause));
    }
}

/// An intake that requests, fetches and the loop of the sidecar share.
pub(crate) type SharedIntake = Arc<Mutex<Intake>>;

impl Intake {
    pub(crate) fn new(sink: impl Sink + 'static, metrics: &Metrics) -> SharedIntake {
        metrics.no_objects();
        Arc::new(Mutex::new(Self {
            sink: Box::new(sink),
            versions: BTreeMap::new(),
            stale: BTreeMap::new(),
            takes_again: false,
            metrics: metrics.clone(),
        }))
    }

    /// An object was read, perhaps because it is stale: then what comes too late is not taken.
    pub(crate) fn take(
        &mut self,
        object: &ObjectRef,
        version: &ResourceVersion,
        json: &[u8],
        is_reread: bool,
    ) {
        let seen = self.versions.get(object);
        let is_same = |seen: &ResourceVersion| seen == version && !self.takes_again;
        let is_seen = |seen: &ResourceVersion| is_same(seen) || version.is_older_than(seen);
        let is_known = !version.is_empty() && seen.is_some_and(is_seen);
        let stale = self.stale.get_mut(object);
        match stale.filter(|stale| stale.due.is_some()) {
            Some(stale) => stale.due = None,
            None if is_reread || is_known => return,
            None => {}
        }
        let before = self.versions.insert(object.clone(), version.clone());
        if before.is_none() {
            self.metrics.objects(object.kind(), 1);
        }
        self.sink.take(object, Some(json));
    }

    /// An object is gone, or was never there.
    pub(crate) fn gone(&mut self, object: &ObjectRef) {
        self.stale.remove(object);
        if self.versions.remove(object).is_some() {
            self.metrics.objects(object.kind(), -1);
        }
        self.sink.take(object, None);
    }

    /// These are all objects of a selection.
    pub(crate) fn listed(&mut self, selection: &Selection, present: &BTreeSet<ObjectRef>) {
        let wanted: BTreeSet<_> = self
            .versions
            .keys()
            .filter(|object| selection.covers(object))
            .cloned()
            .chain(selection.object())
            .collect();
        for object in wanted.difference(present) {
            self.gone(object);
        }
    }

    /// How many objects are there.
    pub(crate) fn count(&self) -> usize {
        self.versions.len()
    }

    /// The API server was restored: versions may be lower from now on.
    pub(crate) fn forget_versions(&mut self, selection: &Selection) {
        for (object, version) in &mut self.versions {
            if selection.covers(object) {
                *version = ResourceVersion::default();
            }
        }
    }

    /// The stale object that is due next.
    pub(crate) fn next_stale(&self) -> Option<(Instant, ObjectRef)> {
        self.stale
            .iter()
            .filter_map(|(object, stale)| Some((stale.due?, object)))
            .min()
            .map(|(due, object)| (due, object.clone()))
    }

    /// A stale object was listed. If it is still stale, it is not there, or could not be written.
    pub(crate) fn was_read(&mut self, object: &ObjectRef) {
        let stale = self.stale.get_mut(object);
        if let Some(stale) = stale.filter(|stale| stale.due.is_some()) {
            stale.read_again(Reread::AfterPause);
        }
    }

    /// The list of a stale object has failed.
    pub(crate) fn postpone(&mut self, object: &ObjectRef, pause: Duration) {
        let due = self.stale.get_mut(object).map(|stale| &mut stale.due);
        if let Some(due @ Some(_)) = due {
            *due = Some(Instant::now() + pause);
        }
    }

    /// Whether every stale object has been listed again once.
    pub(crate) fn has_reread(&self) -> bool {
        self.stale.values().all(|stale| stale.failures > 0)
    }

    pub(crate) fn settle(&mut self, is_listed: bool) -> Settled {
        let mut settled = self.sink.settle(is_listed);
        for (object, when) in mem::take(&mut settled.stale) {
            if self.versions.contains_key(&object) {
                self.stale.entry(object).or_default().read_again(when);
            }
        }
        self.stale.retain(|_, stale| stale.due.is_some());
        settled
    }
}

/// A selection as the target of requests.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) selection: Selection,
    pub(crate) timing: RequestTiming,
    pub(crate) intake: SharedIntake,
    /// Where its proofs go, and its number there; `None` for an object that is read again.
    pub(crate) health: Option<(Arc<Health>, usize)>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.selection)
    }
}

impl Watched {
    fn object(&self, head: &Head) -> Result<Option<ObjectRef>, RequestError> {
        let (selection, meta) = (&self.selection, &head.metadata);
        let namespace = selection.namespace.as_ref().unwrap_or(&meta.namespace);
        // They become parts of paths.
        let is_name = |text: &str| !text.is_empty() && !text.contains(['/', '\0']);
        if !is_name(&meta.name) || !is_name(namespace) {
            return Err(RequestError::Unexpected("an object without a valid name"));
        }
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
    /// An object that was read, and taken in.
    type Item = (ObjectRef, ResourceVersion);
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

    fn timing(&self) -> RequestTiming {
        self.timing
    }

    fn verified(&self, version: Option<&ResourceVersion>) {
        if let Some((health, number)) = &self.health {
            health.confirmed(*number, version);
        }
    }

    fn read(&self, json: &[u8]) -> Result<Option<Self::Item>, RequestError> {
        let head = Head::of(json);
        let Some(object) = self.object(&head)? else {
            return Ok(None);
        };
        let version = head.metadata.resource_version;
        let is_reread = self.health.is_none();
        if let Some((health, _)) = &self.health {
            health.comes_to(format!("write the files of {object}"));
        }
        self.intake.lock().take(&object, &version, json, is_reread);
        Ok(Some((object, version)))
    }

    fn gone(&self, head: Head) -> Option<ObjectRef> {
        self.object(&head).ok()?
    }

    fn version((_, version): &Self::Item) -> &ResourceVersion {
        version
    }

    fn add(state: &mut BTreeSet<ObjectRef>, (object, _): Self::Item) {
        state.insert(object);
    }

    fn remove(state: &mut BTreeSet<ObjectRef>, gone: &ObjectRef) {
        state.remove(gone);
    }

    fn into_item(mut state: BTreeSet<ObjectRef>) -> Option<Self::Item> {
        Some((state.pop_first()?, ResourceVersion::default()))
    }
}

/// The files of a volume; `None` if no hook selects it.
pub(crate) fn delivered<N: AsRef<str>>(
    volume: &str,
    hooks: &PodHooks,
    files: impl Iterator<Item = (N, FileTag)>,
    left_out: &LeftOut,
) -> Option<DeliveredPart> {
    let part = PartKey::Volume(volume.into(), VolumeKind::Projected);
    let tags = PartTags::of_items(hooks, &part, files, |file| file)?;
    let (tags, swapped) = (tags.leaving_out(left_out), None);
    Some((part, Arc::new(PartContent { tags, swapped })))
}

/// What has failed, why, and the missing right: `cannot list configmaps in namespace prod: …`.
pub(crate) fn failure_text(selection: &Selection, failure: &RequestFailure) -> String {
    let RequestFailure { phase, error } = failure;
    let verb = match phase {
        RequestPhase::StreamingList if error.is_forbidden() => RequestPhase::Watch,
        phase => *phase,
    };
    format!("cannot {} {selection}: {}", verb.as_str(), chain(error))
}
