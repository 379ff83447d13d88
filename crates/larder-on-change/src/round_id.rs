//! The identifier of a round.

use std::fmt;

/// Identifies a round, so that a receiver recognizes its retries. Shown as a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoundId([u8; 16]);

impl RoundId {
    /// The identifier with these random bits.
    pub const fn from_random(random: u128) -> Self {
        // Version 4 and variant 1 of RFC 9562.
        let cleared = random & !(0xf << 76) & !(0b11 << 62);
        Self((cleared | 0x4 << 76 | 0b10 << 62).to_be_bytes())
    }
}

impl fmt::Display for RoundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
        write!(f, "{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
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
