//! Errors in one line, for places where people read them.

use std::error::Error;

/// `error` and its causes, joined as `{:#}` of `anyhow` does.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
