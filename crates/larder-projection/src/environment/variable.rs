//! One variable: its value, its origin, and whether it may be shown.

use std::fmt;

use crate::{Origin, Value};

/// The value of a variable and where it came from.
#[derive(Clone)]
#[non_exhaustive]
pub struct Variable<'a> {
    /// The value; not necessarily UTF-8 when it came from a Secret.
    pub value: Value<'a>,
    /// The source that set it.
    pub origin: Origin<'a>,
    /// If it is not known whether `origin` sets it: the known source whose value counts otherwise.
    pub fallback: Option<Box<Origin<'a>>>,
    /// Whether it holds anything that must not be shown.
    pub secret: bool,
}

impl fmt::Debug for Variable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Variable");
        if self.secret {
            shown.field("value", &self.value);
        } else {
            shown.field("value", &String::from_utf8_lossy(&self.value));
        }
        shown.field("origin", &self.origin).finish_non_exhaustive()
    }
}
