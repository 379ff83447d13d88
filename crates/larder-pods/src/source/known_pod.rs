//! The last good version of a static pod.
//!
//! Invariant: a version with a field that does not exist never replaces one without: a misspelled field would restart the
//! pod without what it means. A pod that is new is taken with the field.

use crate::stored::StoredPod;

/// A pod that a source has given.
#[derive(Debug)]
pub(super) struct KnownPod {
    pub(super) pod: StoredPod,
    has_unknown_field: bool,
}

/// The version of a pod that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// The one that was read now.
    Read,
    /// The known one.
    Known,
}

impl KnownPod {
    /// Keeps the version of the pod that counts, of the `known` one and of `pod`, which was read now.
    pub(super) fn renew(
        known: &mut Option<Self>,
        pod: StoredPod,
        has_unknown_field: bool,
    ) -> Counts {
        let known_is_better = known.as_ref().is_some_and(|known| !known.has_unknown_field);
        if known_is_better && has_unknown_field {
            return Counts::Known;
        }
        *known = Some(Self {
            pod,
            has_unknown_field,
        });
        Counts::Read
    }
}
