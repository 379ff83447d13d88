//! Errors in one line, for places where people read them.

use std::error::Error;

/// `error` and its causes: `a: b: c`, as `{:#}` of `anyhow` writes them. For errors whose texts say their own part only.
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
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
