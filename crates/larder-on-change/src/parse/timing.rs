//! The fields for the timing of a hook.

use super::{
    error::{HookError, Problem},
    fields::{Field, Fields},
};
use crate::hook::{Debounce, Retry, Timing};

pub(super) fn timing(fields: &mut Fields<'_>, default: Timing) -> Result<Timing, HookError> {
    let mut timing = default;
    if let Some(field) = fields.take("debounce") {
        timing.debounce = debounce(&field)?;
    }
    if let Some(field) = fields.take("splay") {
        timing.splay = field.duration()?;
    }
    if let Some(field) = fields.take("timeout") {
        timing.timeout = Some(field.duration()?);
    }
    if let Some(field) = fields.take("retry") {
        timing.retry = retry(&field)?;
    }
    Ok(timing)
}

fn debounce(field: &Field<'_>) -> Result<Debounce, HookError> {
    if field.value.is_string() {
        let min = field.duration()?;
        return Ok(Debounce {
            min,
            max: min.saturating_mul(4),
        });
    }
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "a duration, or the fields min and max",
    )?;
    let min = fields
        .take("min")
        .ok_or_else(|| field.error(Problem::Expected("the field min")))?
        .duration()?;
    let max = fields
        .take("max")
        .map(|field| field.duration())
        .transpose()?;
    fields.finish()?;
    let max = max.unwrap_or(min.saturating_mul(4));
    if min > max {
        Err(field.error(Problem::MinAboveMax))
    } else {
        Ok(Debounce { min, max })
    }
}

fn retry(field: &Field<'_>) -> Result<Retry, HookError> {
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "the fields min, max and attempts",
    )?;
    let default = Retry::default();
    let min = fields
        .take("min")
        .map(|field| field.duration())
        .transpose()?
        .unwrap_or(default.min);
    let max = fields
        .take("max")
        .map(|field| field.duration())
        .transpose()?
        .unwrap_or(default.max.max(min));
    let attempts = match fields.take("attempts") {
        None => default.attempts,
        Some(attempts) => {
            let number = attempts
                .value
                .as_u64()
                .and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| attempts.error(Problem::Expected("a number, 0 for no limit")))?
        }
    };
    fields.finish()?;
    if min > max {
        Err(field.error(Problem::MinAboveMax))
    } else {
        Ok(Retry { min, max, attempts })
    }
}
