//! Content that a kubelet has written: tags it, and hands it over once it is verified (beside-kubelet R29).
//!
//! larder does not write these files. So the hooks of a pod learn of a part after it was read from disk. Content from
//! before the first look counts as an earlier delivery (rule P3).

use std::sync::Arc;

use larder_objects::chain;
use larder_on_change::{Content, PartContent, PartKey, PartTags, Past, PodHooks};
use larder_pods::StoredPod;
use larder_projection::VolumeKind;
use tracing::warn;

use super::OnChange;

/// Tags the content that the hooks of one pod select. Made for one look.
pub(crate) struct ContentTagger {
    on_change: OnChange,
    hooks: Arc<PodHooks>,
}

impl ContentTagger {
    pub(crate) fn new(on_change: OnChange, hooks: Arc<PodHooks>) -> Self {
        Self { on_change, hooks }
    }

    /// Tags files or variables of a part; `None` if no hook selects it.
    pub(crate) fn tags<N: AsRef<str>, B: AsRef<[u8]>>(
        &self,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
    ) -> Option<PartTags> {
        PartTags::of(&self.hooks, part, items, self.on_change.key())
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

impl OnChange {
    /// Hands verified parts of a pod over to its hooks. `on_disk` is given if the hooks are new: the parts as they were
    /// at the first look. Waits for the disk.
    pub(crate) fn hand_over(
        &self,
        pod: &Arc<StoredPod>,
        hooks: &Arc<PodHooks>,
        on_disk: Option<Vec<(PartKey, PartContent)>>,
        parts: Vec<(PartKey, PartContent)>,
    ) {
        let uid = pod.uid();
        if let Some(on_disk) = on_disk {
            if let Err(error) = self.host().ensure_pod_directory(uid) {
                warn!(
                    pod.uid = uid,
                    error = chain(&error),
                    "failed to make room for the record of hooks, a restart of the agent may repeat a round"
                );
            }
            let past = Past {
                content: Content::default().with(shared(on_disk)),
                record: self.read_record(uid),
            };
            self.adopt(pod, hooks, &past);
        }
        self.passed(uid, shared(parts).collect());
    }
}

fn shared(parts: Vec<(PartKey, PartContent)>) -> impl Iterator<Item = (PartKey, Arc<PartContent>)> {
    let parts = parts.into_iter();
    parts.map(|(key, part)| (key, Arc::new(part)))
}
