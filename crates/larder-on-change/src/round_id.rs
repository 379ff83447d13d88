//! The identifier of a round.

use std::fmt;

use larder_objects::uuid;

/// Identifies a round, so that a receiver recognizes its retries. Shown as a random UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoundId(u128);

impl RoundId {
    /// The identifier with these random bits.
    pub const fn from_random(random: u128) -> Self {
        Self(random)
    }
}

impl fmt::Display for RoundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&uuid(self.0, 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_is_shown_as_a_random_uuid() {
        let shown = RoundId::from_random(u128::MAX).to_string();
        assert_eq!(shown, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        let shown = RoundId::from_random(0x1234).to_string();
        assert_eq!(shown, "00000000-0000-4000-8000-000000001234");
    }
}
