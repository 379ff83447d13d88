//! Quantities: the sign is that of the text, and the roundings agree.

use larder_objects::{Quantity, canonical_quantity};

use super::{Reader::OfText, Target};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target::new("quantity", OfText(run), Structure::Bytes, 1 << 10);

fn run(text: &str) -> Outcome {
    let quantity = match text.parse::<Quantity>() {
        Ok(quantity) => quantity,
        Err(error) => return Outcome::rejected(&error),
    };
    assert_eq!(quantity.is_zero(), quantity.value() == 0);
    assert_eq!(quantity.is_zero(), quantity.milli_value() == 0);
    let is_negative = text.trim_matches(' ').starts_with('-');
    assert!(quantity.is_zero() || (quantity.value() < 0) == is_negative);
    assert!(quantity.milli_value().unsigned_abs() >= quantity.value().unsigned_abs());
    let suffix: String = text.chars().filter(|char| char.is_alphabetic()).collect();
    let written = canonical_quantity(text);
    Outcome::accepted()
        .with(&suffix)
        .with(&format!("{written:?}").trim_matches('"'))
        .with_size(usize::try_from(quantity.value().unsigned_abs()).unwrap_or(usize::MAX))
}
