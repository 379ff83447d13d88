//! Durations as Go and Kubernetes write them: `1m30s`, `500ms`, `1.5h`.
//!
//! Rule: Go 1.25, `time.ParseDuration`. They are read in whole nanoseconds, so that `0.1s` is exact.

use std::time::Duration;

use crate::digits::{number, split_number, split_sign};

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// Not of the form `1m30s`.
    #[error("not a duration such as 20s, 1m30s or 500ms")]
    Malformed,
    /// Below zero.
    #[error("must not be negative")]
    Negative,
    /// More than 2^63 ns (292 years).
    #[error("is too long")]
    TooLong,
}

/// The duration that `text` denotes.
///
/// # Errors
///
/// The text is malformed, negative or out of range.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let (negative, unsigned) = split_sign(text);
    if unsigned.is_empty() {
        return Err(DurationError::Malformed);
    }
    let nanos = if unsigned == "0" {
        0
    } else {
        nanoseconds(unsigned)?
    };
    if negative && nanos > 0 {
        return Err(DurationError::Negative);
    }
    Ok(Duration::from_nanos(nanos))
}

fn nanoseconds(mut rest: &str) -> Result<u64, DurationError> {
    let mut total = 0_i128;
    while !rest.is_empty() {
        let (whole, fraction, after) = split_number(rest);
        if whole.is_empty() && fraction.is_empty() {
            return Err(DurationError::Malformed);
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        rest = after;
        let unit = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000_i128,
            _ => return Err(DurationError::Malformed),
        };
        total = total.saturating_add(number(whole.bytes()).saturating_mul(unit));
        let mut weight = unit;
        for digit in fraction.bytes().map(|digit| i128::from(digit - b'0')) {
            weight /= 10;
            total = total.saturating_add(digit * weight);
        }
        if total > i128::from(i64::MAX) {
            return Err(DurationError::TooLong);
        }
    }
    u64::try_from(total).map_err(|_| DurationError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("-0s", 0),
            ("20s", 20_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("+100ms", 100_000_000),
            ("0.1s", 100_000_000),
            ("3us", 3_000),
            ("3µs", 3_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "", "-", "60", "s", ".s", "1 m", "1d", "1m 30s", "soon", "1s2",
        ] {
            assert_eq!(parse(text), Err(DurationError::Malformed), "{text}");
        }
        assert_eq!(parse("-1m"), Err(DurationError::Negative));
        for text in ["300000000h", "99999999999999999999999h"] {
            assert_eq!(parse(text), Err(DurationError::TooLong), "{text}");
        }
    }
}
