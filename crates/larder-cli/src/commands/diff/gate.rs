//! The exit code of a comparison: whether a change may pass.

use std::process::ExitCode;

use super::{compare::Comparison, container::Verdict};
use crate::args::FailOn;

/// 2 if something was not read, which was reported; 1 if there is a difference of `fail_on`.
pub(super) fn exit_code(comparison: &Comparison<'_>, fail_on: &[FailOn]) -> ExitCode {
    if !comparison.left_out.not_read.is_empty() {
        ExitCode::from(2)
    } else if fail_on.iter().any(|on| is_there(comparison, *on)) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn is_there(comparison: &Comparison<'_>, on: FailOn) -> bool {
    let mut containers = comparison.pods.iter().flat_map(|pod| &pod.containers);
    match on {
        FailOn::Any => !comparison.is_empty(),
        FailOn::Unless => containers.any(|one| !one.unless.is_empty()),
        FailOn::Fails => containers.any(|one| matches!(one.verdict, Verdict::Fails(_))),
        FailOn::Unknown => containers.any(|one| matches!(one.verdict, Verdict::Unknown { .. })),
        // The other containers of a pod that loses one start again, too.
        FailOn::Restart => {
            containers.any(|one| matches!(one.verdict, Verdict::Restart | Verdict::Removed))
        }
    }
}
