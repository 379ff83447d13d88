//! Patches: changes to an object without sending the whole object.

mod json;
#[cfg(test)]
mod tests;

use larder_objects::patch::{merge, strategic_merge, without_directives};
use serde_json::Value;

use crate::status::ApiError;

/// The forms of patches that the server takes, by the media type of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Merge patch that knows keys of lists.
    StrategicMerge,
}

impl PatchType {
    pub(crate) fn of_media_type(media_type: &str) -> Option<Self> {
        match media_type {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::StrategicMerge),
            _ => None,
        }
    }

    /// The object that `patch` makes of `old`.
    ///
    /// # Errors
    ///
    /// 400 for what is no patch, 413 for one that is too long, 422 for one that does not fit the object.
    pub(crate) fn apply(self, old: &Value, patch: &Value) -> Result<Value, ApiError> {
        match self {
            Self::Json => json::apply(old.clone(), patch),
            Self::Merge => Ok(merge(old.clone(), patch)),
            Self::StrategicMerge => {
                let patched = strategic_merge(old.clone(), patch)
                    .map_err(|error| malformed(&error.to_string()))?;
                Ok(without_directives(patched))
            }
        }
    }
}

/// 400: it is not a patch of its type.
fn malformed(why: &str) -> ApiError {
    ApiError::bad_request(format!("error decoding patch: {why}"))
}
