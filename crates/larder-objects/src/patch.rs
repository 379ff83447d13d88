//! Patches of objects: what an API server makes of them, and what `kubectl apply` makes of a manifest.
//!
//! | module | purpose |
//! | --- | --- |
//! | `merge` | JSON merge patch |
//! | `strategic` | merge patch that knows keys of lists |
//! | `applied` | `kubectl apply`: a patch of two manifests |

mod applied;
mod merge;
mod strategic;

pub use self::{
    applied::{ListRules, applied},
    merge::apply as merge,
    strategic::{apply as strategic_merge, without_directives},
};

/// Why something is no patch, or does not fit its object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatchError(String);

impl PatchError {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}
