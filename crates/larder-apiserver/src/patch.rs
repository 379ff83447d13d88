//! Patches: changes to an object without sending the whole object.

mod json;
mod merge;
mod strategic;
#[cfg(test)]
mod tests;

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

/// Why a patch cannot be applied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatchError {
    /// It is not a patch of its type.
    #[error("{0}")]
    Malformed(String),
    /// It is longer than the server takes.
    #[error("{0}")]
    TooLarge(String),
    /// It does not fit the object, or would make too large an object of it.
    #[error("the patch does not fit")]
    Unfit,
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
        let patched = match self {
            Self::Json => json::apply(old.clone(), patch),
            Self::Merge => Ok(merge::apply(old.clone(), patch)),
            Self::StrategicMerge => {
                strategic::apply(old.clone(), patch).map(strategic::without_directives)
            }
        };
        patched.map_err(|error| match error {
            PatchError::Malformed(why) => {
                ApiError::bad_request(format!("error decoding patch: {why}"))
            }
            PatchError::TooLarge(why) => ApiError::too_large(why),
            PatchError::Unfit => ApiError::unfit_patch(),
        })
    }
}
