//! Content that a kubelet has written: its tags, and how it is handed over once it was verified (beside-kubelet R29).
//!
//! larder does not write these files. So the hooks of a pod learn of a part after a look at the disk, and of what was
//! there before the first look as an earlier delivery (rule P3).

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::chain;
use larder_on_change::DigestKey;
use larder_pods::StoredPod;
use larder_projection::VolumeKind;
use tracing::warn;

use super::{
    OnChange,
    content::{Content, Item, PartContent, PartKey},
    observer::{Past, TokenPaths, item, since_boot},
    pod_hooks::PodHooks,
};

/// Tags the content that the hooks of one pod look at. Made for one look.
pub(crate) struct ContentTagger {
    on_change: OnChange,
    hooks: Arc<PodHooks>,
    key: DigestKey,
    tokens: TokenPaths,
}

/// The tags of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartTags(Box<[Item]>);

impl PartTags {
    /// The tags of one part that were taken file by file; `None` if there are none, because no hook looks at it.
    pub(crate) fn joined(tags: Vec<Self>) -> Option<Self> {
        let is_some = !tags.is_empty();
        let mut items: Vec<_> = tags.into_iter().flat_map(|tags| tags.0).collect();
        items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        is_some.then_some(Self(items.into()))
    }
}

impl ContentTagger {
    pub(crate) fn new(on_change: OnChange, hooks: Arc<PodHooks>, pod: &Pod) -> Self {
        Self {
            key: on_change.key(),
            tokens: TokenPaths::of(pod),
            on_change,
            hooks,
        }
    }

    /// Tags files or variables of a part; `None` if no hook looks at it.
    pub(crate) fn tags<N: AsRef<str>, B: AsRef<[u8]>>(
        &self,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
    ) -> Option<PartTags> {
        if !self.hooks.look_at_part(part) {
            return None;
        }
        let items = items.filter_map(|(name, bytes)| {
            let (name, bytes) = (name.as_ref(), bytes.as_ref());
            item(&self.hooks, &self.tokens, part, name, bytes, &self.key)
        });
        let mut items: Vec<_> = items.collect();
        items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Some(PartTags(items.into()))
    }

    /// Reads the files that a volume has now. What was read before a failure was visited.
    pub(crate) fn read_set(
        &self,
        uid: &str,
        kind: VolumeKind,
        volume: &str,
        visit: impl FnMut(&str, &[u8]),
    ) -> bool {
        self.on_change.volumes().read_set(uid, kind, volume, visit)
    }
}

/// A part as it is on the kubelet's disk.
#[derive(Clone, Debug)]
pub(crate) struct WrittenPart {
    pub(crate) tags: PartTags,
    /// When it was put in place, since boot; `None` if that was before larder looked first.
    pub(crate) swapped: Option<Duration>,
}

impl WrittenPart {
    /// The time that [`Self::swapped`] counts in.
    pub(crate) fn now() -> Duration {
        since_boot()
    }

    fn content(self) -> Arc<PartContent> {
        Arc::new(PartContent {
            items: self.tags.0,
            swapped: self.swapped,
        })
    }
}

impl OnChange {
    /// Hands verified parts of a pod over to its hooks. `on_disk` is given if the hooks are new: the parts as they were
    /// at the first look. Waits for the disk.
    pub(crate) fn hand_over(
        &self,
        pod: &Arc<StoredPod>,
        hooks: Arc<PodHooks>,
        on_disk: Option<Vec<(PartKey, WrittenPart)>>,
        parts: Vec<(PartKey, WrittenPart)>,
    ) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let past = on_disk.map(|on_disk| {
            if let Err(error) = self.host().ensure_pod_directory(uid) {
                warn!(
                    pod.uid = uid,
                    error = chain(&error),
                    "failed to make room for the record of hooks, a restart of the agent may repeat a round"
                );
            }
            let on_disk = on_disk.into_iter().map(|(key, part)| (key, part.content()));
            Past {
                content: Content::default().with(on_disk),
                record: self.read_record(uid),
            }
        });
        let parts = parts.into_iter().map(|(key, part)| (key, part.content()));
        self.passed(pod, None, hooks, past, parts.collect());
    }
}
