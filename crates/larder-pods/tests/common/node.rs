//! A node that handles reports as an agent does.

use std::hint::black_box;

use jiff::Timestamp;
use larder_pods::{
    PodAction, PodLoop, PodManager, PodMerge, PodSource, ResolvedPodUid, SourcePods,
    source::{SourceEvent, SourceReport},
};

pub(crate) struct Node {
    source: PodSource,
    pub(crate) pods: PodLoop,
}

impl Node {
    /// A node without pods.
    pub(crate) fn new(source: PodSource) -> Self {
        let pods = PodLoop::new(PodMerge::new([source]), PodManager::default());
        Self { source, pods }
    }

    /// Handles a report. Volumes are torn down at once.
    pub(crate) fn take(&mut self, pods: SourcePods) {
        let report = SourceReport {
            source: self.source,
            event: SourceEvent::Pods(pods),
        };
        for action in self.pods.report(report, Timestamp::UNIX_EPOCH) {
            if let PodAction::Retire(pod) = action {
                let uid = ResolvedPodUid::of(&pod.metadata);
                black_box(self.pods.volumes_gone(&uid, Timestamp::UNIX_EPOCH));
            }
        }
        // For the metrics and the mirror pods, after every report.
        black_box((
            self.pods.lifecycle().working(),
            self.pods.pods().mirror_overview(),
        ));
    }
}
