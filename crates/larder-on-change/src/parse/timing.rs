//! The fields for the timing of a hook.

use super::{
    error::{HookError, MIN_ABOVE_MAX},
    fields::{Field, Fields},
};
use crate::hook::{Debounce, Retry, Timing};

pub(super) fn timing(fields: &mut Fields<'_>, default: Timing) -> Result<Timing, HookError> {
    let debounce = fields.read("debounce", debounce)?;
    let splay = fields.read("splay", Field::duration)?;
    let timeout = fields.read("timeout", Field::duration)?;
    let retry = fields.read("retry", retry)?;
    Ok(Timing {
        debounce: debounce.unwrap_or(default.debounce),
        splay: splay.unwrap_or(default.splay),
        timeout: timeout.or(default.timeout),
        retry: retry.unwrap_or(default.retry),
    })
}

fn debounce(field: &Field<'_>) -> Result<Debounce, HookError> {
    if field.value.is_string() {
        let min = field.duration()?;
        let max = min.saturating_mul(4);
        return Ok(Debounce { min, max });
    }
    let mut fields = field.fields("a duration, or the fields min and max")?;
    let min = fields.read("min", Field::duration)?;
    let min = min.ok_or_else(|| field.expected("the field min"))?;
    let max = fields.read("max", Field::duration)?;
    fields.finish()?;
    let max = max.unwrap_or(min.saturating_mul(4));
    if min > max {
        Err(field.error(MIN_ABOVE_MAX))
    } else {
        Ok(Debounce { min, max })
    }
}

fn retry(field: &Field<'_>) -> Result<Retry, HookError> {
    let mut fields = field.fields("the fields min, max and attempts")?;
    let default = Retry::default();
    let min = fields.read("min", Field::duration)?.unwrap_or(default.min);
    let max = fields.read("max", Field::duration)?;
    let max = max.unwrap_or(default.max.max(min));
    let attempts = fields.read("attempts", |attempts| {
        let number = attempts.value.as_u64();
        let number = number.and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| attempts.expected("a number, 0 for no limit"))
    })?;
    fields.finish()?;
    if min > max {
        return Err(field.error(MIN_ABOVE_MAX));
    }
    Ok(Retry {
        min,
        max,
        attempts: attempts.unwrap_or(default.attempts),
    })
}
