//! Which pods ask for mounts with `subPath` that follow their volume (subpath S1).

use std::sync::Arc;

use larder_containers::subpaths::{ANNOTATION, SubPathNode};
use larder_pods::StoredPod;

use crate::config::SubPathUpdates;

/// What the pods of the node share.
pub(crate) struct SubPathSettings {
    pub(crate) updates: SubPathUpdates,
    pub(crate) node: Arc<SubPathNode>,
}

impl SubPathSettings {
    /// Why the mounts of the pod keep their content; `None` if they are updated (S1).
    pub(crate) fn pins(&self, pod: &StoredPod) -> Option<&'static str> {
        let asked = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(ANNOTATION));
        match (self.updates, asked.map(String::as_str)) {
            (SubPathUpdates::Never, _) => Some(
                "as at the start of the container: subPathUpdates is Never in larder's configuration",
            ),
            (_, Some("false")) => Some(
                "as at the start of the container: the annotation larder.dev/subpath-updates is \"false\"",
            ),
            (SubPathUpdates::Always, _) | (_, Some("true")) => None,
            _ => Some(
                "as at the start of the container: annotate the pod with larder.dev/subpath-updates: \"true\" to have it \
                 updated",
            ),
        }
    }
}
