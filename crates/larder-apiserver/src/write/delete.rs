//! Deletes objects: at once, gracefully for pods that a node runs, and only after the last finalizer is removed.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use larder_objects::{ObjectKey, is_terminal_phase};
use serde_json::Value;
use smol_str::SmolStr;

use super::{Writer, metadata, options::DeleteOptions};
use crate::{
    clock::rfc3339,
    json::text,
    object::{EventType, Object},
    resource::ApiKind,
    status::ApiError,
};

/// The result of a deletion.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object is gone; this was its last state.
    Gone(Arc<Object>),
    /// The object stays until its node or its finalizers let it go.
    Marked(Arc<Object>),
}

/// How long a pod has to stop when neither the request nor the pod says.
const DEFAULT_GRACE_SECS: i64 = 30;

impl Writer {
    /// Deletes the object `key`.
    pub(crate) fn delete(
        &self,
        kind: ApiKind,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        loop {
            let current = self.store.require(kind, key)?;
            check_preconditions(&current, options)?;
            let mut value = current.value();
            let grace = match kind {
                ApiKind::Pod => grace(&value, options),
                _ => 0,
            };
            mark(&mut value["metadata"], grace, self.clock.now());
            if kind == ApiKind::Namespace {
                value["status"]["phase"] = "Terminating".into();
            }
            let finished = metadata::is_finished(&value);
            // The answer shows a pod without time left, which no watch does.
            let last = |object: Arc<Object>, value| match kind {
                ApiKind::Pod => {
                    Arc::new(Object::new(kind, value, object.version, EventType::Deleted))
                }
                _ => object,
            };
            if options.dry {
                return Ok(if finished {
                    Deleted::Gone(last(current, value))
                } else {
                    Deleted::Marked(current)
                });
            }
            if finished {
                if let Ok(object) = self.store.delete(&current) {
                    self.finish_namespace(&object.key.namespace);
                    return Ok(Deleted::Gone(last(object, value)));
                }
            } else if value == current.value() {
                return Ok(Deleted::Marked(current));
            } else if let Ok(object) = self.store.replace(&current, value) {
                if kind == ApiKind::Namespace {
                    self.empty_namespace(&key.name);
                }
                return Ok(Deleted::Marked(object));
            }
        }
    }
}

/// Marks an object as being deleted, with so many seconds left, unless it is marked and has fewer left.
fn mark(meta: &mut Value, grace: i64, now: Timestamp) {
    let is_marked = !meta["deletionTimestamp"].is_null();
    let left = meta["deletionGracePeriodSeconds"].as_i64();
    if is_marked && left.is_some_and(|left| grace >= left) {
        return;
    }
    let period = SignedDuration::from_secs(grace);
    let at = now.checked_add(period).unwrap_or(Timestamp::MAX);
    meta["deletionTimestamp"] = rfc3339(at).into();
    meta["deletionGracePeriodSeconds"] = grace.into();
    // Termination is a change of the desired state. (kube-apiserver 1.36, `registry/rest/delete.go`.)
    if !is_marked && let Some(generation) = meta["generation"].as_i64() {
        meta["generation"] = (generation + 1).into();
    }
}

/// How long the pod has to stop. A pod without a node, or one that has ended, needs no time.
fn grace(pod: &Value, options: &DeleteOptions) -> i64 {
    let unbound = text(pod, "/spec/nodeName").is_empty();
    let ended = is_terminal_phase(text(pod, "/status/phase"));
    if unbound || ended {
        return 0;
    }
    options
        .grace_period_seconds
        .or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(DEFAULT_GRACE_SECS)
}

fn check_preconditions(current: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
    let Some(wanted) = &options.preconditions else {
        return Ok(());
    };
    let check = |what: &str, wanted: &Option<SmolStr>, held: &str, happened: &str| match wanted {
        Some(wanted) if wanted != held => {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({held}). The object might have been {happened}"
            );
            let name = &current.key.name;
            Err(ApiError::kind_conflict(current.kind, name, &why))
        }
        _ => Ok(()),
    };
    let version = current.version.to_string();
    let (uid, wanted_version) = (&wanted.uid, &wanted.resource_version);
    check("UID", uid, &current.uid, "deleted and then recreated")?;
    check("ResourceVersion", wanted_version, &version, "modified")
}
