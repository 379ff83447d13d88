//! What status shows of a hook.
//!
//! The comments on the fields are also their description in `docs/openapi.json`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One hook of a pod, or an annotation that has none because of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HookStatus {
    /// Its name; empty for an annotation with an error.
    pub name: String,
    /// Its action, as in `signal:SIGHUP`.
    pub action: String,
    /// The annotation, or `configuration`.
    pub place: String,
    /// `Idle`, `Waiting`, `Running`, `Retrying` or `Failing`; `Invalid` for an annotation with an error.
    pub state: String,
    /// Since when it is so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<Timestamp>,
    /// Why the last attempt failed, what the hook waits for, or the error of the annotation.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// The end of what the command of the last failed attempt printed, if the hook sets `logOutput` and the pod reads no
    /// Secret; otherwise what would show it. Only the socket shows it.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub output: String,
    /// Number of failed attempts in a row.
    pub attempts: u32,
    /// When a round succeeded last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_success: Option<Timestamp>,
}

/// The state of an annotation with an error.
pub(crate) const INVALID: &str = "Invalid";

impl HookStatus {
    /// Whether this is an annotation with an error.
    pub fn is_invalid(&self) -> bool {
        self.state == INVALID
    }
}
