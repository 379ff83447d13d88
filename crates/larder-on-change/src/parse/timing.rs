//! The fields for the timing of a hook.

use super::{
    error::{HookError, MIN_ABOVE_MAX},
    place::FieldPlace,
    written::{DebounceFields, HookFields, Pause, RetryFields},
};
use crate::hook::{Debounce, Retry, Timing};
use larder_objects::yaml::ShortOr;

/// The timing of the hook at `place`.
pub(super) fn timing(
    hook: &HookFields,
    default: Timing,
    place: &FieldPlace<'_>,
) -> Result<Timing, HookError> {
    let debounce = hook.debounce.as_ref().map(|written| match written {
        ShortOr::Short(Pause(min)) => Ok(Debounce {
            min: *min,
            max: min.saturating_mul(4),
        }),
        ShortOr::Fields(fields) => debounce(fields, &place.child("debounce")),
    });
    let retry = hook
        .retry
        .as_ref()
        .map(|fields| retry_pauses(fields, &place.child("retry")));
    let pause = |written: Option<Pause>| written.map(|Pause(pause)| pause);
    Ok(Timing {
        debounce: debounce.transpose()?.unwrap_or(default.debounce),
        splay: pause(hook.splay).unwrap_or(default.splay),
        timeout: pause(hook.timeout).or(default.timeout),
        retry: retry.transpose()?.unwrap_or(default.retry),
    })
}

fn debounce(fields: &DebounceFields, place: &FieldPlace<'_>) -> Result<Debounce, HookError> {
    let Pause(min) = fields.min;
    let max = fields.max.map_or(min.saturating_mul(4), |Pause(max)| max);
    if min > max {
        return Err(place.error(MIN_ABOVE_MAX));
    }
    Ok(Debounce { min, max })
}

fn retry_pauses(fields: &RetryFields, place: &FieldPlace<'_>) -> Result<Retry, HookError> {
    let default = Retry::default();
    let min = fields.min.map_or(default.min, |Pause(min)| min);
    let max = fields.max.map_or(default.max.max(min), |Pause(max)| max);
    if min > max {
        return Err(place.error(MIN_ABOVE_MAX));
    }
    Ok(Retry {
        min,
        max,
        attempts: fields.attempts.unwrap_or(default.attempts),
    })
}
