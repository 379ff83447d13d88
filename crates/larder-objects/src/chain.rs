//! Errors with their causes, in one line for people.

use std::error::Error;

/// `error` and its causes: `a: b: c`, as `{:#}` of `anyhow` writes them. A cause that the text before it ends with is
/// not said again, since errors of other crates may repeat their cause.
///
/// ```
/// # use larder_objects::chain;
/// let error = std::io::Error::other("disk full");
/// assert_eq!(chain(&error), "disk full");
/// ```
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read: {0}")]
    struct Repeating(#[source] std::io::Error);

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = Repeating(std::io::Error::other("disk full"));
        assert_eq!(chain(&error), "cannot read: disk full");
    }
}
