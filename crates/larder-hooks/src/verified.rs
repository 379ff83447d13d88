//! Content that a kubelet has written: hands it over once it is verified (beside-kubelet R29).
//!
//! larder does not write these files. So the hooks of a pod learn of a part after it was read from disk. Content from
//! before the first look counts as an earlier delivery (rule P3).

use std::sync::Arc;

use larder_objects::chain;
use larder_on_change::{Content, PartContent, PartKey, Past, PodHooks};
use larder_pods::StoredPod;
use tracing::warn;

use super::OnChange;

impl OnChange {
    /// Hands verified parts of a pod over to its hooks. `on_disk` is given if the hooks are new: the parts as they were
    /// at the first look. Waits for the disk.
    pub fn hand_over(
        &self,
        pod: &Arc<StoredPod>,
        hooks: &Arc<PodHooks>,
        on_disk: Option<Vec<(PartKey, Arc<PartContent>)>>,
        parts: Vec<(PartKey, Arc<PartContent>)>,
    ) {
        let uid = pod.uid();
        if let Some(on_disk) = on_disk {
            if let Err(error) = self.node().host.ensure_pod_directory(uid) {
                warn!(
                    pod.uid = uid,
                    error = chain(&error),
                    "failed to make room for the record of hooks, a restart of the agent may repeat a round"
                );
            }
            let past = Past {
                content: Content::default().with(on_disk),
                record: self.read_record(uid),
            };
            self.adopt(pod, hooks, &past);
        }
        self.passed(uid, parts);
    }
}
