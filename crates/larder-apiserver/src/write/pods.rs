//! The subresources of a pod that are requests about it: `binding` and `eviction`.

use larder_objects::ObjectKey;
use serde_json::{Value, json};

use super::{Writer, options::DeleteOptions};
use crate::{json::text, resource::ApiKind, status::ApiError};

impl Writer {
    /// Gives the pod `key` to the node that `binding` names.
    ///
    /// # Errors
    ///
    /// 500 for a binding that names no node (kube-apiserver does not expect that), 404, 409 for a pod that has a node.
    pub(crate) fn bind(&self, key: &ObjectKey, binding: &Value) -> Result<(), ApiError> {
        let (kind, node) = (text(binding, "/target/kind"), text(binding, "/target/name"));
        if !matches!(kind, "" | "Node") {
            return Err(ApiError::unexpected(format!(
                "target.kind: Unsupported value: \"{kind}\": supported values: \"Node\", \"<empty>\""
            )));
        }
        if node.is_empty() {
            return Err(ApiError::unexpected("target.name: Required value"));
        }
        loop {
            let current = self.store.require(ApiKind::Pod, key)?;
            let held = current.field("spec.nodeName");
            if !held.is_empty() {
                let why = format!("pod {} is already assigned to node \"{held}\"", key.name);
                let kind = ApiKind::Pod;
                let shown = "pods/binding".into();
                return Err(ApiError::conflict_on(kind, shown, &key.name, &why));
            }
            let mut value = current.value();
            value["spec"]["nodeName"] = node.into();
            let scheduled = json!({
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": null,
                "lastTransitionTime": self.clock.rfc3339(),
            });
            match value["status"]["conditions"].as_array_mut() {
                Some(conditions) => {
                    conditions.retain(|condition| condition["type"] != "PodScheduled");
                    conditions.push(scheduled);
                }
                None => value["status"]["conditions"] = json!([scheduled]),
            }
            if self.store.replace(&current, value).is_ok() {
                return Ok(());
            }
        }
    }

    /// Deletes the pod `key` as `eviction` asks. This server has no budgets that could be in the way.
    ///
    /// # Errors
    ///
    /// 400 for an eviction of another pod, and what a deletion may answer.
    pub(crate) fn evict(&self, key: &ObjectKey, eviction: &Value) -> Result<(), ApiError> {
        if text(eviction, "/metadata/name") != key.name {
            let why = "name in URL does not match name in Eviction object";
            return Err(ApiError::bad_request(why));
        }
        let options = match &eviction["deleteOptions"] {
            Value::Null => DeleteOptions::default(),
            options => DeleteOptions::of_body(options)?,
        };
        self.delete(ApiKind::Pod, key, &options).map(drop)
    }
}
