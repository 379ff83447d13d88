//! How old a copy of the checkpoint may be.
//!
//! Invariant: the age is asked when the copy is used, by the clock of then. A clock that was wrong at the start decides
//! nothing for later.

use std::time::Duration;

use jiff::Timestamp;
use larder_objects::Kind;

/// The limits for the copies of one checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MaxAges {
    /// No freshness check of a copy happened after this time.
    pub(crate) newest: Timestamp,
    /// `None`: without an end.
    pub(crate) secrets: Option<Duration>,
    /// `None`: without an end.
    pub(crate) config_maps: Option<Duration>,
}

impl MaxAges {
    /// Whether a copy that was last known to be current at `as_of` is too old at `now`. While the clock is earlier than
    /// the checkpoint, ages are unknown and count as zero.
    pub(crate) fn is_expired(&self, kind: Kind, as_of: Timestamp, now: Timestamp) -> bool {
        let limit = match kind {
            Kind::Secret => self.secrets,
            Kind::ConfigMap => self.config_maps,
        };
        let age = Duration::try_from(now.duration_since(as_of)).unwrap_or_default();
        now >= self.newest && limit.is_some_and(|limit| age > limit)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_772_366_400).unwrap() + SignedDuration::from_hours(hours)
    }

    fn weekly() -> MaxAges {
        MaxAges {
            newest: at(100),
            secrets: Some(Duration::from_hours(168)),
            config_maps: None,
        }
    }

    #[test]
    fn secrets_expire_after_a_week_and_config_maps_never() {
        // offline 9
        let ages = weekly();
        assert!(!ages.is_expired(Kind::Secret, at(0), at(168)));
        let later = at(168) + SignedDuration::from_secs(1);
        assert!(ages.is_expired(Kind::Secret, at(0), later));
        assert!(!ages.is_expired(Kind::Secret, at(100), later));
        assert!(!ages.is_expired(Kind::ConfigMap, at(0), at(10_000)));
        let config_maps = Some(Duration::from_mins(1));
        let ages = MaxAges {
            config_maps,
            ..ages
        };
        assert!(ages.is_expired(Kind::ConfigMap, at(100), at(101)));
    }

    #[test]
    fn ages_count_as_zero_while_the_clock_is_earlier_than_the_checkpoint() {
        // offline 10
        let ages = weekly();
        for now in [Timestamp::UNIX_EPOCH, at(99)] {
            assert!(!ages.is_expired(Kind::Secret, at(-1000), now));
        }
        assert!(ages.is_expired(Kind::Secret, at(-1000), at(100)));
    }
}
