//! Quantities: the sign is that of the text, and the roundings agree.

use larder_objects::Quantity;

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    let text = str::from_utf8(input).ok()?;
    let quantity = text.parse::<Quantity>().ok()?;
    assert_eq!(quantity.is_zero(), quantity.value() == 0);
    assert_eq!(quantity.is_zero(), quantity.milli_value() == 0);
    let is_negative = text.trim_matches(' ').starts_with('-');
    assert!(quantity.is_zero() || (quantity.value() < 0) == is_negative);
    assert!(quantity.milli_value().unsigned_abs() >= quantity.value().unsigned_abs());
    let _ = larder_objects::canonical_quantity(text);
    Some(())
}
