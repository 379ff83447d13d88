//! Resource quantities (`1.5Gi`, `100m`, `123e6`), in integers.
//!
//! Grammar and limits are those of `pkg/api/resource/quantity.go` of k8s.io/apimachinery 0.36:
//! 1. sign, digits with an optional fraction, suffix; missing digits mean 0; blanks around it are dropped;
//! 2. suffixes: `n u m k M G T P E`, `Ki Mi Gi Ti Pi Ei`, or an exponent, `e3`, `E-3`;
//! 3. fractions below a billionth are rounded away from zero;
//! 4. a quantity with a binary suffix is capped at 2^63-1.
//!
//! Intentionally different: sizes that do not fit are capped at the type's bounds, where the original lets them
//! overflow; and no result goes through floating point, so that it stays exact above 2^53.

mod text;

use std::str::FromStr;

pub(crate) use text::Amount;
pub use text::canonical;

use crate::digits::{number, split_number, split_sign};

/// An exact amount, in billionths. The greatest is about 1.7e29.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Why a text is not a quantity. The texts are those of k8s.io/apimachinery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// Not number and suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The suffix is none of the known ones.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// The greatest quantity with a binary suffix.
const MOST_BINARY: i128 = i64::MAX as i128 * NANO;

/// The suffixes of the powers of 1000, from a billionth.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// The suffixes of the powers of 1024, from one.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// The quantity 1.
    pub const ONE: Self = Self { nanos: NANO };

    /// Whether it is exactly 0.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whole units; fractions are rounded away from zero.
    pub fn value(self) -> i64 {
        self.in_units_of(NANO)
    }

    /// Thousandths; finer fractions are rounded away from zero.
    pub fn milli_value(self) -> i64 {
        self.in_units_of(MILLI)
    }

    /// The sum, capped.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
        }
    }

    fn in_units_of(self, nanos: i128) -> i64 {
        let away = self.nanos.signum() * i128::from(self.nanos % nanos != 0);
        clamp(self.nanos / nanos + away)
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// The unit that a suffix stands for.
enum Unit {
    /// A power of 10.
    Decimal(i64),
    /// A power of 2.
    Binary(u32),
}

impl Unit {
    fn parse(suffix: &str) -> Result<Self, QuantityError> {
        let mut decimal = DECIMAL.into_iter().zip((-9..).step_by(3));
        if let Some((_, exponent)) = decimal.find(|(known, _)| *known == suffix) {
            return Ok(Self::Decimal(exponent));
        }
        let mut binary = BINARY.into_iter().zip((0..).step_by(10));
        if let Some((_, exponent)) = binary.find(|(known, _)| *known == suffix) {
            return Ok(Self::Binary(exponent));
        }
        suffix
            .strip_prefix(['e', 'E'])
            .and_then(parse_exponent)
            .map(Self::Decimal)
            .ok_or(QuantityError::Suffix)
    }
}

/// A signed decimal number; one too great for the type counts as the greatest.
fn parse_exponent(text: &str) -> Option<i64> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let magnitude = clamp(number(digits.bytes()));
    Some(if negative { -magnitude } else { magnitude })
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let text = text.trim_matches(' ');
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let (negative, rest) = split_sign(text);
        let (whole, fraction, suffix) = split_number(rest);
        check_suffix_form(suffix)?;
        let digits = [whole, fraction].concat().into_bytes();
        let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let magnitude = match Unit::parse(suffix)? {
            Unit::Decimal(exponent) => scale(&digits, exponent.saturating_sub(places)),
            Unit::Binary(exponent) => scale(&doubled(digits, exponent), -places).min(MOST_BINARY),
        };
        Ok(Self {
            nanos: if negative { -magnitude } else { magnitude },
        })
    }
}

/// A suffix is letters of the known ones, a sign, digits. What is not has a different error.
fn check_suffix_form(suffix: &str) -> Result<(), QuantityError> {
    let rest = suffix.trim_start_matches(|char| "eEinumkKMGTP".contains(char));
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    if rest.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(())
    } else {
        Err(QuantityError::Format)
    }
}

/// `digits × 10^exponent` in billionths, rounded up, capped.
fn scale(digits: &[u8], exponent: i64) -> i128 {
    // Leading zeros have no weight; without them the number of digits determines the size.
    let significant = digits.iter().copied().skip_while(|&digit| digit == b'0');
    let count = i64::try_from(significant.clone().count()).unwrap_or(i64::MAX);
    if count == 0 {
        return 0;
    }
    // The digits that are billionths or more; the rest only decides about rounding up.
    let kept = count.saturating_add(exponent).saturating_add(9);
    if kept > 39 {
        return i128::MAX;
    }
    let kept = usize::try_from(kept).unwrap_or(0);
    let with_zeros = significant.clone().chain(std::iter::repeat(b'0'));
    let rounds_up = significant.skip(kept).any(|digit| digit != b'0');
    number(with_zeros.take(kept)).saturating_add(i128::from(rounds_up))
}

/// `digits × 2^times`: digit by digit, so exact, however many there are.
fn doubled(mut digits: Vec<u8>, times: u32) -> Vec<u8> {
    for _ in 0..times {
        let carry = digits.iter_mut().rev().fold(0, |carry, digit| {
            let doubled = (*digit - b'0') * 2 + carry;
            *digit = b'0' + doubled % 10;
            doubled / 10
        });
        if carry > 0 {
            digits.insert(0, b'0' + carry);
        }
    }
    digits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn nanos(text: &str) -> i128 {
        text.parse::<Quantity>()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .nanos
    }

    #[test]
    fn every_suffix_has_its_size() {
        for (text, units) in [
            ("0", 0),
            ("12", 12),
            ("1k", 1_000),
            ("1M", 1_000_000),
            ("1G", 1_000_000_000),
            ("1T", 1_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ki", 1 << 10),
            ("1Mi", 1 << 20),
            ("1Gi", 1 << 30),
            ("1Ti", 1 << 40),
            ("1Pi", 1 << 50),
            ("1Ei", 1 << 60),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1e+3", 1_000),
            ("123e6", 123_000_000),
            ("1500e-2", 15),
            ("1.5Gi", 3 << 29),
            ("0.5Ki", 512),
            ("+3k", 3_000),
            ("-3k", -3_000),
            ("007", 7),
            ("1.", 1),
            ("1.k", 1_000),
            (".5k", 500),
        ] {
            assert_eq!(nanos(text), units * NANO, "{text}");
        }
        assert_eq!(nanos("100m"), NANO / 10);
        assert_eq!(nanos("100u"), NANO / 10_000);
        assert_eq!(nanos("100n"), 100);
        assert_eq!(nanos("1.5"), 3 * NANO / 2);
    }

    #[test]
    fn blanks_around_it_are_dropped() {
        assert_eq!(nanos(" 1k "), 1_000 * NANO);
    }

    #[test]
    fn digits_may_be_missing_and_then_stand_for_zero() {
        for text in ["-", "+", ".", "Mi", "e5", "-.", "000", "0.000Ki"] {
            assert_eq!(nanos(text), 0, "{text}");
        }
    }

    #[test]
    fn fractions_below_a_billionth_are_rounded_away_from_zero() {
        for (text, expected) in [
            ("0.1n", 1),
            ("1.1n", 2),
            ("-0.1n", -1),
            ("0.0000000001", 1),
            ("1e-100", 1),
            ("1e-99999999999999999999", 1),
            ("0.00000000001Ki", 11),
            ("0e-100", 0),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
        }
    }

    #[test]
    fn too_much_is_capped() {
        let max = i128::from(i64::MAX) * NANO;
        for text in [
            "8Ei",
            "9223372036854775807Ki",
            "99999999999999999999999999999999999999999Ei",
            "7.99999999999999999999Ei",
        ] {
            assert_eq!(nanos(text), max, "{text}");
        }
        assert_eq!(nanos("-8Ei"), -max);
        // Decimal ones are not capped as quantities, only as numbers.
        for text in [
            "9223372036854775808",
            "100E",
            "1e30",
            "1e999999999999999999999",
        ] {
            assert!(nanos(text) > max, "{text}");
            assert_eq!(
                text.parse::<Quantity>().unwrap().value(),
                i64::MAX,
                "{text}"
            );
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let format = [
            "", " ", "\t1", "1 Gi", "1.1.M", "1+1.0M", "0.1am", "aoeu", "1,5", "1e3.5", "1Mi1x",
            "é",
        ];
        for text in format {
            assert_eq!(
                text.parse::<Quantity>(),
                Err(QuantityError::Format),
                "{text:?}"
            );
        }
        for text in [
            "0.1mi", ".5i", "1i", "1K", "-3.01i", "-3.01e-", "1e", "1Kim", "1E+", "1k3", "1ee3",
        ] {
            assert_eq!(
                text.parse::<Quantity>(),
                Err(QuantityError::Suffix),
                "{text:?}"
            );
        }
    }

    #[test]
    fn values_are_rounded_away_from_zero() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(quantity("1n").value(), 1);
        assert_eq!(quantity("-1n").value(), -1);
        assert_eq!(quantity("100m").milli_value(), 100);
        assert_eq!(quantity("100100u").milli_value(), 101);
        assert_eq!(quantity("1.5Gi").value(), 1_610_612_736);
    }

    fn suffix() -> impl Strategy<Value = (String, i32, i32)> {
        // Text, power of 10, power of 2.
        let decimal = prop::sample::select(vec![
            ("n", -9),
            ("u", -6),
            ("m", -3),
            ("", 0),
            ("k", 3),
            ("M", 6),
            ("G", 9),
        ]);
        let binary = prop::sample::select(vec![("Ki", 10), ("Mi", 20), ("Gi", 30)]);
        let exponent = (prop::sample::select(vec!["e", "E", "e+"]), 0..10_i32)
            .prop_map(|(letter, size)| (format!("{letter}{size}"), size, 0));
        let negative = (1..10_i32).prop_map(|size| (format!("e-{size}"), -size, 0));
        prop_oneof![
            decimal.prop_map(|(text, power)| (text.to_owned(), power, 0)),
            binary.prop_map(|(text, power)| (text.to_owned(), 0, power)),
            exponent,
            negative,
        ]
    }

    proptest! {
        #[test]
        fn amounts_agree_with_plain_fractions(
            negative: bool,
            whole in "[0-9]{1,8}",
            fraction in "[0-9]{0,8}",
            (suffix, tens, twos) in suffix(),
        ) {
            let digits: i128 = format!("{whole}{fraction}").parse().unwrap();
            // digits × 2^twos × 10^(tens + 9 - places), as a fraction in whole billionths, rounded up.
            let places = i32::try_from(fraction.len()).unwrap();
            let power = tens + 9 - places;
            let numerator = digits * (1 << twos) * 10_i128.pow(u32::try_from(power.max(0)).unwrap());
            let denominator = 10_i128.pow(u32::try_from((-power).max(0)).unwrap());
            let expected = (numerator + denominator - 1) / denominator;
            let point = if fraction.is_empty() { "" } else { "." };
            let sign = if negative { "-" } else { "" };
            let text = format!("{sign}{whole}{point}{fraction}{suffix}");
            prop_assert_eq!(nanos(&text), if negative { -expected } else { expected }, "{}", text);
        }

        #[test]
        fn no_text_panics(text in "[-+.0-9eEinumkKMGTPx]{0,40}") {
            let _ = text.parse::<Quantity>().map(|quantity| (quantity.value(), quantity.milli_value()));
        }
    }
}
