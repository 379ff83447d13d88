//! Why a mount keeps its content. All reasons are for people; for a metric, they are of a few kinds.

use std::{borrow::Cow, io};

use rustix::io::Errno;

/// The kinds of results, as the metric has them: a replacement, or why there was none.
pub(super) const RESULTS: [&str; 6] = [REPLACED, GONE, CHANGED, UNSUPPORTED, NOT_PERMITTED, FAILED];
pub(super) const REPLACED: &str = "replaced";
pub(super) const GONE: &str = "gone";
pub(super) const CHANGED: &str = "changed";
pub(super) const UNSUPPORTED: &str = "unsupported";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
pub(super) const FAILED: &str = "failed";

/// The mount keeps its content, which stays visible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NotReplaced {
    /// One of [`RESULTS`].
    pub(super) kind: &'static str,
    pub(super) reason: Cow<'static, str>,
}

impl NotReplaced {
    pub(super) const fn new(kind: &'static str, reason: &'static str) -> Self {
        let reason = Cow::Borrowed(reason);
        Self { kind, reason }
    }

    /// Whether another attempt may succeed before the volume changes again.
    pub(super) fn may_pass(&self) -> bool {
        !matches!(self.kind, GONE | UNSUPPORTED)
    }
}

/// Adds the operation to an error of the system.
pub(super) fn failed<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> NotReplaced {
    move |error| {
        let error = error.into();
        let (kind, reason) = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM | Errno::ACCESS) => (
                NOT_PERMITTED,
                format!(
                    "larder is not permitted to {operation}: this needs CAP_SYS_ADMIN, CAP_SYS_CHROOT and \
                     CAP_SYS_PTRACE, and the PID namespace of the host"
                ),
            ),
            _ => (FAILED, format!("cannot {operation}: {error}")),
        };
        let reason = Cow::Owned(reason);
        NotReplaced { kind, reason }
    }
}
