//! Numbers at the start of a text.

/// Whether `text` begins with a minus sign, and what follows its sign.
pub(crate) fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// The digits at the start, those after a point that follows, and the rest.
pub(crate) fn split_number(text: &str) -> (&str, &str, &str) {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    (whole, fraction, rest)
}

/// The number that `digits` denote; one too great for the type counts as the greatest.
pub(crate) fn number(digits: impl IntoIterator<Item = u8>) -> i128 {
    digits.into_iter().fold(0_i128, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(i128::from(digit - b'0'))
    })
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|char: char| !char.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}
