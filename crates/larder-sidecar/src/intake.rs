//! What is known of the objects that are followed, between the requests and the sink that makes files of them.
//!
//! Invariants:
//! 1. No version of an object goes backward, unless the API server was restored.
//! 2. An object that the sink calls stale is taken again, whatever its version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use larder_objects::ResourceVersion;
use larder_on_change::{ContentDigest, Hook, Items};
use parking_lot::Mutex;

use crate::{
    index::Index,
    metrics::Metrics,
    selection::{ObjectRef, Selection},
};

/// Takes objects over, and puts them into files.
pub(crate) trait Sink: fmt::Debug + Send {
    /// An object as it is now, in JSON.
    fn take(&mut self, object: &ObjectRef, json: &[u8]);

    /// An object is gone, or was never there.
    fn gone(&mut self, object: &ObjectRef);

    /// Every selection has been listed.
    fn complete(&mut self) {}

    /// The objects that are to be read again; whether because of a failure.
    fn take_stale(&mut self) -> Vec<(ObjectRef, bool)> {
        Vec::new()
    }

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

/// The sink, and what is known of its objects.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) sink: Box<dyn Sink>,
    /// The objects that are there.
    versions: BTreeMap<ObjectRef, ResourceVersion>,
    /// The objects to be read again; whether that is because of a failure.
    pub(crate) stale: BTreeMap<ObjectRef, bool>,
    metrics: Metrics,
}

/// An intake that requests, fetches and the loop of the sidecar share.
pub(crate) type SharedIntake = Arc<Mutex<Intake>>;

impl Intake {
    pub(crate) fn new(sink: Box<dyn Sink>, metrics: &Metrics) -> SharedIntake {
        metrics.objects.clear();
        Arc::new(Mutex::new(Self {
            sink,
            versions: BTreeMap::new(),
            stale: BTreeMap::new(),
            metrics: metrics.clone(),
        }))
    }

    /// An object was read. With `only_stale`, what comes too late is not taken.
    pub(crate) fn take(
        &mut self,
        object: &ObjectRef,
        version: &ResourceVersion,
        json: &[u8],
        only_stale: bool,
    ) {
        let seen = self.versions.get(object);
        let is_seen = |seen: &ResourceVersion| seen == version || version.is_older_than(seen);
        if only_stale && !self.stale.contains_key(object)
            || !version.is_empty() && seen.is_some_and(is_seen)
        {
            return;
        }
        self.stale.remove(object);
        if self
            .versions
            .insert(object.clone(), version.clone())
            .is_none()
        {
            self.metrics.objects(object.kind, 1);
        }
        self.sink.take(object, json);
        self.note_stale();
    }

    pub(crate) fn gone(&mut self, object: &ObjectRef) {
        self.stale.remove(object);
        if self.versions.remove(object).is_some() {
            self.metrics.objects(object.kind, -1);
        }
        self.sink.gone(object);
        self.note_stale();
    }

    /// These are all objects of a selection.
    pub(crate) fn listed(&mut self, selection: &Selection, present: &BTreeSet<ObjectRef>) {
        let known = self
            .versions
            .keys()
            .filter(|object| selection.covers(object));
        let wanted: BTreeSet<_> = known.cloned().chain(selection.object()).collect();
        for object in wanted.difference(present) {
            self.gone(object);
        }
    }

    /// Every selection has been listed once.
    pub(crate) fn complete(&mut self) {
        self.sink.complete();
        self.note_stale();
    }

    /// The API server was restored: versions may be lower from now on.
    pub(crate) fn forget_versions(&mut self, selection: &Selection) {
        for (object, version) in &mut self.versions {
            if selection.covers(object) {
                *version = ResourceVersion::default();
            }
        }
    }

    pub(crate) fn settle(&mut self) -> Settled {
        let settled = self.sink.settle();
        self.note_stale();
        settled
    }

    fn note_stale(&mut self) {
        for (object, failed) in self.sink.take_stale() {
            if let Some(version) = self.versions.get_mut(&object) {
                *version = ResourceVersion::default();
                *self.stale.entry(object).or_default() |= failed;
            }
        }
    }
}
