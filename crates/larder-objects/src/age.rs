//! Ages as kubectl shows them.

/// `secs` in at most two units, as kubectl shows an age (kubernetes v1.36, `apimachinery/pkg/util/duration`).
pub fn age(secs: i64) -> String {
    // Clocks may differ by a second.
    if secs < -1 {
        return "<invalid>".to_owned();
    }
    let secs = secs.max(0);
    let (minutes, hours) = (secs / 60, secs / 3600);
    let days = hours / 24;
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match hours {
        _ if secs < 120 => format!("{secs}s"),
        _ if minutes < 10 => two(minutes, "m", secs % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        3..8 => two(hours, "h", minutes % 60, "m"),
        8..48 => format!("{hours}h"),
        48..192 => two(days, "d", hours % 24, "h"),
        192..17_520 => format!("{days}d"),
        17_520..70_080 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_kubectls_units() {
        let (minute, hour, day) = (60, 3600, 86_400);
        for (secs, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (5, "5s"),
            (119, "119s"),
            (2 * minute, "2m"),
            (2 * minute + 5, "2m5s"),
            (9 * minute + 59, "9m59s"),
            (10 * minute + 1, "10m"),
            (179 * minute, "179m"),
            (3 * hour, "3h"),
            (7 * hour + 59 * minute, "7h59m"),
            (47 * hour, "47h"),
            (2 * day + hour, "2d1h"),
            (7 * day, "7d"),
            (8 * day + hour, "8d"),
            (729 * day, "729d"),
            (731 * day, "2y1d"),
            (8 * 365 * day, "8y"),
        ] {
            assert_eq!(age(secs), expected, "{secs} s");
        }
    }
}
