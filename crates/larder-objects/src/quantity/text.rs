//! Formats a quantity as the API server does: in the largest unit of its sort that leaves no fraction.

use std::{fmt, str::FromStr};

use super::{BINARY, DECIMAL, NANO, Quantity, QuantityError};

/// The sort of suffix that a quantity was written with, and is written with again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AmountForm {
    /// `k`, `M`, and none.
    #[default]
    Decimal,
    /// `Ki`, `Mi`.
    Binary,
    /// `e3`.
    Exponent,
}

/// A quantity that remembers its sort of suffix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) quantity: Quantity,
    form: AmountForm,
}

/// `text` as the API server gives it back: `0.5` as `500m`, `1024Mi` as `1Gi`.
///
/// # Errors
///
/// It is no quantity.
pub fn canonical(text: &str) -> Result<String, QuantityError> {
    text.parse::<Amount>().map(|amount| amount.to_string())
}

impl Amount {
    /// The sum, in the form of the first that is not zero.
    pub(crate) fn plus(self, other: Self) -> Self {
        let first = if self.quantity.is_zero() { other } else { self };
        Self {
            quantity: self.quantity.plus(other.quantity),
            form: first.form,
        }
    }
}

impl FromStr for Amount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let quantity = text.parse()?;
        let text = text.trim_matches(' ');
        let number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
        let form = match text.trim_start_matches(number) {
            suffix if suffix.ends_with('i') => AmountForm::Binary,
            suffix if suffix.len() > 1 => AmountForm::Exponent,
            _ => AmountForm::Decimal,
        };
        Ok(Self { quantity, form })
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.quantity.nanos;
        let whole = nanos % NANO == 0;
        if nanos == 0 {
            return f.write_str("0");
        }
        if self.form == AmountForm::Binary && whole && nanos.abs() >= 1024 * NANO {
            let (number, power) = without_factors(nanos / NANO, 1024, BINARY.len() - 1);
            return write!(f, "{number}{}", BINARY[power]);
        }
        let (number, power) = without_factors(nanos, 1000, DECIMAL.len() - 1);
        match (self.form, power) {
            (AmountForm::Exponent, 3) => write!(f, "{number}"),
            (AmountForm::Exponent, power) => {
                let exponent = 3 * i64::try_from(power).unwrap_or_default() - 9;
                write!(f, "{number}e{exponent}")
            }
            (_, power) => write!(f, "{number}{}", DECIMAL[power]),
        }
    }
}

/// `number` divided by `factor` as often as it can be, and how often that was.
fn without_factors(mut number: i128, factor: i128, most: usize) -> (i128, usize) {
    let mut times = 0;
    while times < most && number % factor == 0 {
        number /= factor;
        times += 1;
    }
    (number, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_as_the_api_server_does() {
        for (text, written) in [
            ("1", "1"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("0", "0"),
            ("0Ki", "0"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("100Ki", "100Ki"),
            ("1e3", "1e3"),
            ("1E", "1E"),
            ("12e2", "1200"),
            ("123e6", "123e6"),
            ("-5Mi", "-5Mi"),
            ("-0.5", "-500m"),
            (" 1Gi ", "1Gi"),
        ] {
            assert_eq!(canonical(text).unwrap(), written, "{text}");
            assert_eq!(canonical(written).unwrap(), written, "{written}, again");
        }
        assert!(canonical("1x").is_err());
    }

    #[test]
    fn a_sum_keeps_the_form_of_its_first_part() {
        let of = |text: &str| text.parse::<Amount>().unwrap();
        assert_eq!(
            of("0").plus(of("10Mi")).plus(of("1Ki")).to_string(),
            "10241Ki"
        );
        assert_eq!(of("1").plus(of("500m")).to_string(), "1500m");
    }
}
