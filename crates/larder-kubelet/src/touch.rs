//! The touch: one annotation of a pod, patched through `pods/status`, which makes the kubelet sync the pod at once
//! (beside-kubelet 4, R9, R17, R18).
//!
//! Invariants:
//! 1. The body is `metadata.uid` and the annotation, nothing else. With the UID, a touch never reaches another pod of
//!    the same name.
//! 2. The value is a time: it reveals nothing about any payload.
//! 3. One call is one request. The caller repeats it if the answer says so, since each request counts for the limiter.
//! 4. Texts of the API server are passed on with limited length and without control characters.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use larder_objects::{ObjectMeta, ResourceVersion, chain, escaped};
use larder_transport::path::{Query, Resource};
use larder_watch::{RequestError, merge_patch};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::debug;

use crate::permissions::{Permission, may_touch_in};

/// The annotation that a touch sets.
pub const REFRESH: &str = "larder.dev/refresh";

/// The owner of the annotation in `metadata.managedFields`.
const FIELD_MANAGER: &str = "larder";

/// Longest wait for the answer to a touch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Wait after a 429 without `Retry-After`.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a touch failed that was not answered.
const NO_ANSWER: &str = "the API server does not answer";

/// Longest text of the API server that is shown, in bytes.
const MAX_TEXT: usize = 512;

/// Precision of the annotation.
const MILLISECOND: SignedDuration = SignedDuration::from_millis(1);

/// The value of the annotation for a touch at `now`: `2026-11-22T04:34:06.987Z`. Whatever the clock shows, it differs from
/// `previous`, the pod's value or the one sent last: the kubelet does not sync a pod whose value stays the same.
pub fn next_value(now: Timestamp, previous: Option<&str>) -> String {
    let text = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
    let value = text(now);
    if previous != Some(value.as_str()) {
        return value;
    }
    // At the end of time there is no later one.
    let later = now.checked_add(MILLISECOND);
    text(later.unwrap_or_else(|_| now - MILLISECOND))
}

/// The answer to a touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TouchAnswer {
    /// The pod has the annotation, and this version.
    Touched {
        /// `metadata.resourceVersion`.
        resource_version: ResourceVersion,
    },
    /// The pod had the value before, so nothing happened: send a later one (R9).
    NoOp,
    /// Another client has changed the pod meanwhile: send it again (R17).
    Conflict,
    /// The pod was deleted, or another pod has its name (R17).
    Gone {
        /// The text of the API server.
        message: String,
    },
    /// The API server has too many requests (R17).
    Throttled {
        /// How long the node sends no touch.
        retry_after: Duration,
    },
    /// This identity may not touch any pod (R18).
    Forbidden {
        /// The permission that is missing, and where.
        permission: String,
    },
    /// Admission rejects the touch of this pod (R18).
    Refused {
        /// The text of the policy or webhook.
        message: String,
    },
    /// No usable answer, or the API server's own failure.
    Failed {
        /// Completes "failed to touch the pod:", and quotes nothing.
        why: &'static str,
    },
}

impl TouchAnswer {
    /// The answer as the label `result` of a metric.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Touched { .. } => "ok",
            Self::NoOp => "noop",
            Self::Forbidden { .. } => "forbidden",
            Self::Refused { .. } => "refused",
            Self::Throttled { .. } => "throttled",
            Self::Conflict | Self::Gone { .. } | Self::Failed { .. } => "error",
        }
    }
}

/// The part of the answer that is read.
#[derive(Deserialize)]
struct PatchedPod {
    metadata: ObjectMeta,
}

/// Sets the annotation of `pod`, as last seen, to `value`: one request. Touches have a rate limit of their own,
/// [`crate::touch_limiter`] (R19).
pub async fn send(client: &Client, pod: &ObjectMeta, value: &str) -> TouchAnswer {
    match timeout(TIMEOUT, patch(client, pod, value)).await {
        Ok(Ok(version)) if version == pod.resource_version => TouchAnswer::NoOp,
        Ok(Ok(resource_version)) => TouchAnswer::Touched { resource_version },
        Ok(Err(error)) => answer_of(client, &error, pod).await,
        Err(_) => TouchAnswer::Failed { why: NO_ANSWER },
    }
}

async fn patch(
    client: &Client,
    pod: &ObjectMeta,
    value: &str,
) -> Result<ResourceVersion, RequestError> {
    let path = Resource::PODS
        .in_namespace(&pod.namespace)?
        .object(&pod.name)?;
    let query = Query::new().with("fieldManager", FIELD_MANAGER);
    let uri = path.subresource("status").uri(&query)?;
    let patched: PatchedPod = merge_patch(client, uri, &body(pod, value)).await?;
    Ok(patched.metadata.resource_version)
}

fn body(pod: &ObjectMeta, value: &str) -> Value {
    json!({"metadata": {"uid": pod.uid.to_string(), "annotations": {REFRESH: value}}})
}

/// A touch is rejected by the authorizer or by admission. Their answers have the same form, so a review of the permission
/// decides. Without one, the authorizer is taken for it: the next check of the permission lets touches go on.
async fn answer_of(client: &Client, error: &RequestError, pod: &ObjectMeta) -> TouchAnswer {
    let RequestError::Status { code, message, .. } = error else {
        return failed(error, pod);
    };
    let message = shown(message);
    match code {
        404 => TouchAnswer::Gone { message },
        // A status update checks the UID as an immutable field.
        422 if error.is_of_another_object() => TouchAnswer::Gone { message },
        409 => TouchAnswer::Conflict,
        429 => TouchAnswer::Throttled {
            retry_after: error.retry_after().unwrap_or(DEFAULT_RETRY_AFTER),
        },
        403 => {
            let namespace = &*pod.namespace;
            let permission = Permission::TouchPods.as_str();
            let permission = format!("{permission} in the namespace {namespace:?}");
            match may_touch_in(client, namespace).await {
                Some(true) => TouchAnswer::Refused { message },
                Some(false) => TouchAnswer::Forbidden { permission },
                None => TouchAnswer::Forbidden {
                    permission: format!("{permission} (not reviewed: {message})"),
                },
            }
        }
        400..=499 if *code != 401 => TouchAnswer::Refused { message },
        _ => failed(error, pod),
    }
}

fn failed(error: &RequestError, pod: &ObjectMeta) -> TouchAnswer {
    let text = chain(error);
    debug!(namespace = %pod.namespace, pod = %pod.name, error = text, "failed to touch the pod, will retry");
    let why = if error.is_unauthorized() {
        "the API server does not accept the credentials"
    } else if error.is_transport() {
        NO_ANSWER
    } else if error.is_unreadable() {
        "the API server's answer cannot be read"
    } else {
        "the API server has an error of its own"
    };
    TouchAnswer::Failed { why }
}

/// The first [`MAX_TEXT`] bytes of `message`, escaped.
fn shown(message: &str) -> String {
    let mut shown = escaped(message).into_owned();
    if shown.len() > MAX_TEXT {
        shown.truncate(shown.floor_char_boundary(MAX_TEXT));
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
