//! Passes the verified parts of one pod to its hooks (beside-kubelet R29).
//!
//! larder does not write these files. So the hooks of a pod learn of a part after it was read from disk. Content from
//! before the first look counts as an earlier delivery (rule P3).
//!
//! Invariants:
//! 1. A part is handed over when a look has found the computed bytes on the kubelet's disk, under containers that see
//!    them. So no hook fires for content that is `Unverified` or `Detached`.
//! 2. Nothing is handed over until every part that the hooks select has been seen once: the record of an earlier run
//!    has the digest of all parts together.
//! 3. The same content is handed over once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use larder_objects::chain;
use larder_on_change::{PartContent, PartKey, PartTags, PodHooks};
use larder_pods::StoredPod;
use tracing::warn;

use super::{OnChange, observer::since_boot};

/// What a look found of a part that a hook looks at.
#[derive(Clone, Debug, Default)]
pub enum FoundContent {
    /// It cannot be computed, or not yet.
    #[default]
    Unknown,
    /// It is not as computed, or containers may see something else. `None` if it is not there, or cannot be read.
    OnDisk(Option<PartTags>),
    /// It is as computed.
    Verified(Option<PartTags>),
}

/// The parts of one pod that its hooks look at.
#[derive(Debug, Default)]
pub struct HookedParts {
    /// `None` for a pod whose hooks do not run.
    hooks: Option<Arc<PodHooks>>,
    /// Something was handed over to these hooks.
    has_begun: bool,
    parts: BTreeMap<PartKey, HookedPart>,
}

/// One part.
#[derive(Debug, Default)]
struct HookedPart {
    is_known: bool,
    /// As it was at the first look.
    at_first: Option<Arc<PartContent>>,
    /// Verified, and not handed over yet.
    verified: Option<Arc<PartContent>>,
    /// As it was handed over last.
    handed_over: Option<PartTags>,
    /// When its last swap was seen.
    swapped: Option<Duration>,
}

/// What is handed over.
#[derive(Debug)]
pub struct HandOver {
    /// The hooks.
    pub hooks: Arc<PodHooks>,
    /// The parts as they were at the first look, if the hooks are new.
    pub on_disk: Option<Vec<(PartKey, Arc<PartContent>)>>,
    /// The parts that were verified since.
    pub parts: Vec<(PartKey, Arc<PartContent>)>,
}

impl HookedParts {
    /// Sets the hooks, and the parts of the pod that they look at. Returns whether all parts are to be looked at.
    pub fn set_hooks(
        &mut self,
        hooks: Option<Arc<PodHooks>>,
        parts: impl Iterator<Item = PartKey>,
    ) -> bool {
        let is_new = self.hooks.as_ref().map(Arc::as_ptr) != hooks.as_ref().map(Arc::as_ptr);
        if is_new {
            *self = Self::default();
        }
        self.hooks = hooks;
        let Some(hooks) = &self.hooks else {
            return false;
        };
        let mut known = std::mem::take(&mut self.parts);
        let with_state = parts.filter(|part| hooks.selects_part(part)).map(|part| {
            let known = known.remove(&part).unwrap_or_default();
            (part, known)
        });
        self.parts = with_state.collect();
        is_new
    }

    /// The hooks, if they run.
    pub fn hooks(&self) -> Option<&Arc<PodHooks>> {
        self.hooks.as_ref()
    }

    /// Whether what is on disk counts even where it is not as computed.
    pub fn wants_disk(&self) -> bool {
        self.hooks.is_some() && !self.has_begun
    }

    /// Notes that a part was swapped since the last look, before this one is taken in.
    pub fn swapped(&mut self, part: &PartKey) {
        if let Some(state) = self.parts.get_mut(part) {
            state.swapped = Some(since_boot());
        }
    }

    /// Takes in a look at a part.
    pub fn seen(&mut self, part: &PartKey, seen: FoundContent) {
        let Some(state) = self.parts.get_mut(part) else {
            return;
        };
        let (tags, is_verified) = match seen {
            FoundContent::Unknown => return,
            FoundContent::OnDisk(tags) => (tags, false),
            FoundContent::Verified(tags) => (tags, true),
        };
        state.is_known = true;
        let Some(tags) = tags else { return };
        if state.at_first.is_none() && !self.has_begun {
            let (tags, swapped) = (tags.clone(), None);
            state.at_first = Some(Arc::new(PartContent { tags, swapped }));
        }
        if !is_verified {
            return;
        }
        let swapped = state.swapped;
        let is_new = state.handed_over.as_ref() != Some(&tags) || !self.has_begun;
        state.verified = is_new.then(|| Arc::new(PartContent { tags, swapped }));
    }

    /// What is to be handed over now, without the parts that are held back: others of the same container are still to
    /// come.
    pub fn take(&mut self, is_held: impl Fn(&PartKey) -> bool) -> Option<HandOver> {
        let hooks = self.hooks.clone()?;
        if !self.has_begun && !self.parts.values().all(|part| part.is_known) {
            return None;
        }
        let mut parts = Vec::new();
        for (key, state) in &mut self.parts {
            if !is_held(key)
                && let Some(verified) = state.verified.take()
            {
                state.handed_over = Some(verified.tags.clone());
                parts.push((key.clone(), verified));
            }
        }
        let on_disk = (!std::mem::replace(&mut self.has_begun, true)).then(|| {
            let parts = self.parts.iter_mut();
            let at_first =
                parts.filter_map(|(key, part)| Some((key.clone(), part.at_first.take()?)));
            at_first.collect()
        });
        (on_disk.is_some() || !parts.is_empty()).then_some(HandOver {
            hooks,
            on_disk,
            parts,
        })
    }
}

impl OnChange {
    /// Hands verified parts of a pod over to its hooks. Waits for the disk.
    pub fn hand_over(&self, pod: &Arc<StoredPod>, handed: HandOver) {
        let uid = pod.uid();
        if let Some(on_disk) = handed.on_disk {
            if let Err(error) = self.node().host.ensure_pod_directory(uid) {
                warn!(
                    pod.uid = uid,
                    error = chain(&error),
                    "failed to make room for the record of hooks, a restart of the agent may repeat a round"
                );
            }
            self.adopt(pod, &handed.hooks, on_disk);
        }
        self.passed(uid, handed.parts);
    }
}
