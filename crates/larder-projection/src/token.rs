//! When a service account token is due for renewal, and which token is served meanwhile.
//!
//! Kubelet 1.36, `pkg/kubelet/token/token_manager.go`: at 80 % of its life or 24 hours after it was issued, whichever
//! comes first, less a few seconds of jitter. The kubelet checks when it happens to sync the pod; [`Token::refresh_at`]
//! and [`Token::refresh_age`] let a timer do it in time.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_objects::SecretBytes;

/// A token is renewed after this time, however long it would live.
const MAX_AGE: Duration = Duration::from_hours(24);

/// Renewal may begin up to this much earlier, so that many tokens are not renewed at once. Whole seconds.
pub const MAX_REFRESH_JITTER: Duration = Duration::from_secs(9);

/// A token as the API server issued it.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token itself, as it stands in its file.
    pub token: Arc<SecretBytes>,
    /// When it expires.
    pub expires_at: Timestamp,
    /// How long it lives: `spec.expirationSeconds` of the answer. Without it the token is not renewed by time.
    pub life_time: Option<Duration>,
}

impl Token {
    /// How old the token is when renewal is due, `jitter` early; `None` for a token without a lifetime.
    ///
    /// `jitter` is a random number of whole seconds from 0 to 9, drawn again for each token or check.
    pub fn refresh_age(&self, jitter: Duration) -> Option<Duration> {
        let life_time = self.life_time?.as_secs();
        let by_life_time = life_time - life_time.saturating_mul(20) / 100;
        Some(Duration::from_secs(by_life_time.min(MAX_AGE.as_secs())).saturating_sub(jitter))
    }

    /// When renewal is due by the wall clock of the API server; see [`Self::refresh_age`].
    pub fn refresh_at(&self, jitter: Duration) -> Option<Timestamp> {
        let issued_at = self.expires_at.checked_sub(self.life_time?).ok()?;
        issued_at.checked_add(self.refresh_age(jitter)?).ok()
    }

    /// Whether renewal is due at `now`.
    pub fn is_refresh_due(&self, now: Timestamp, jitter: Duration) -> bool {
        self.refresh_at(jitter).is_some_and(|due| now > due)
    }

    /// Whether the API server rejects the token at `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.expires_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ISSUED: i64 = 1_800_000_000;

    fn token(life_time_secs: u64) -> Token {
        Token {
            token: Arc::default(),
            expires_at: at(i64::try_from(life_time_secs).unwrap()),
            life_time: Some(Duration::from_secs(life_time_secs)),
        }
    }

    /// The time `seconds` after tokens are issued.
    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(ISSUED + seconds).unwrap()
    }

    #[test]
    fn tokens_are_renewed_at_80_percent_or_after_a_day() {
        // projection 71
        let hour = 3600;
        for (life_time, age, due) in [
            (3600, 10 * 60, false),
            (3600, 2880, false),
            (3600, 2881, true),
            (3600, 50 * 60, true),
            (3607, 2886, false),
            (3607, 2887, true),
            (40 * 3600, 24 * hour, false),
            (40 * 3600, 24 * hour + 1, true),
            (40 * 3600, 25 * hour, true),
        ] {
            let token = token(life_time);
            assert_eq!(
                token.is_refresh_due(at(age), Duration::ZERO),
                due,
                "{life_time} {age}"
            );
        }
    }

    #[test]
    fn jitter_makes_it_earlier() {
        let token = token(3600);
        assert!(!token.is_refresh_due(at(2871), MAX_REFRESH_JITTER));
        assert!(token.is_refresh_due(at(2872), MAX_REFRESH_JITTER));
        assert_eq!(token.refresh_at(MAX_REFRESH_JITTER), Some(at(2871)));
    }

    #[test]
    fn a_token_without_life_time_is_not_renewed() {
        // projection 71
        let token = Token {
            life_time: None,
            ..token(3600)
        };
        assert!(!token.is_refresh_due(at(1_000_000), Duration::ZERO));
    }

    proptest! {
        #[test]
        fn renewal_is_due_by_the_rule_as_it_is_written(
            life_time in 600_u64..(1 << 32),
            age in 0_i64..(1 << 32),
            jitter in 0_u64..10,
        ) {
            let (ttl, j) = (i64::try_from(life_time).unwrap(), i64::try_from(jitter).unwrap());
            let by_age = age > 24 * 3600 - j;
            let by_expiry = age > ttl - ttl * 20 / 100 - j;
            let due = token(life_time).is_refresh_due(at(age), Duration::from_secs(jitter));
            prop_assert_eq!(due, by_age || by_expiry);
        }
    }
}
