//! A node that handles reports as an agent does.

use std::{hint::black_box, sync::Arc};

use jiff::Timestamp;
use larder_pods::{
    Operation, PodManager, PodMerge, PodSource, PodUid, ResolvedPodUid, SourcePods,
    lifecycle::{LifecycleAction, PodLifecycle},
};

pub(crate) struct Node {
    source: PodSource,
    merge: PodMerge,
    pub(crate) manager: PodManager,
    lifecycle: PodLifecycle,
}

impl Node {
    /// A node without pods, whose only source has reported.
    pub(crate) fn new(source: PodSource) -> Self {
        let mut lifecycle = PodLifecycle::new(true);
        lifecycle.all_sources_seen();
        Self {
            source,
            merge: PodMerge::new([source]),
            manager: PodManager::default(),
            lifecycle,
        }
    }

    /// Handles a report. Volumes are torn down at once.
    pub(crate) fn take(&mut self, pods: SourcePods) {
        let merged = self.merge.merge(self.source, pods, Timestamp::UNIX_EPOCH);
        for update in merged.updates {
            for pod in update.pods {
                match update.operation {
                    Operation::Remove => self.manager.remove_pod(&pod),
                    _ => self.manager.add_pod(Arc::clone(&pod)),
                }
                for action in self.lifecycle.handle(update.operation, &pod) {
                    if let LifecycleAction::Retire(pod) = action {
                        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
                        black_box(self.lifecycle.volumes_gone(&uid));
                    }
                }
            }
        }
        // For the metrics and the mirror pods, after every report.
        black_box((
            self.lifecycle.working(),
            self.lifecycle.terminating_static_pods(),
            self.manager.mirror_overview(),
        ));
    }
}
