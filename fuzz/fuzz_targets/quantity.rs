//! Quantities: no text panics, and the sign is that of the text.

#![no_main]

use larder_objects::Quantity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(quantity) = text.parse::<Quantity>() else {
        return;
    };
    assert_eq!(quantity.is_zero(), quantity.value() == 0);
    assert_eq!(quantity.is_zero(), quantity.milli_value() == 0);
    assert!(quantity.is_zero() || (quantity.value() < 0) == text.trim_matches(' ').starts_with('-'));
    assert!(quantity.milli_value().unsigned_abs() >= quantity.value().unsigned_abs());
});
