//! Messages that are not results, on standard error.
//!
//! Invariants:
//! 1. No control character of a name, value or error reaches the terminal: [`escaped`].
//! 2. Printing never panics: a closed stream ends the output, not the process.

use std::{
    borrow::Borrow,
    error::Error,
    fmt,
    io::{self, Write as _},
};

use larder_objects::chain;
pub use larder_objects::escaped;

/// Prints an error with its causes, on one line.
pub fn error(error: &dyn Error) {
    note(chain(error));
}

/// Prints a message that is not a result.
pub fn note(text: impl fmt::Display) {
    let text = text.to_string();
    // Not `eprintln!`, which panics when standard error is a broken pipe.
    let _ = writeln!(io::stderr(), "larder: {}", escaped(&text));
}

/// The first `most` of these names, and the number of the others: `a, b and 3 more`.
pub fn first_names<N: Borrow<str>>(names: &[N], most: usize) -> String {
    let (first, others) = names.split_at(names.len().min(most));
    match others.len() {
        0 => first.join(", "),
        others => format!("{} and {others} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_printed_once_and_in_order() {
        let error = anyhow::anyhow!("disk full")
            .context("write a")
            .context("render web");
        assert_eq!(chain(error.as_ref()), "render web: write a: disk full");
    }

    #[test]
    fn further_names_are_counted() {
        assert_eq!(first_names(&["a", "b"], 2), "a, b");
        assert_eq!(first_names(&["a", "b", "c", "d"], 2), "a, b and 2 more");
    }
}
