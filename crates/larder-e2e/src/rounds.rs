//! How often a randomized test repeats what it does.

/// `rounds`, times the number in `LARDER_ROUNDS`. The nightly workflow sets it.
///
/// # Panics
///
/// The variable is no number.
pub fn rounds(rounds: usize) -> usize {
    let factor = std::env::var("LARDER_ROUNDS").map_or(1, |factor| {
        factor.parse().expect("LARDER_ROUNDS is a number")
    });
    rounds * factor
}
