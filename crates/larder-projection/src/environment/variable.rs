//! One variable: its value, its origin, and whether it may be shown.

use std::{fmt, ops::Deref};

use larder_objects::SecretBytes;

use crate::{Origin, Unknown};

/// The value of a variable and where it came from.
#[derive(Clone)]
#[non_exhaustive]
pub struct Variable<'a> {
    /// The value; not necessarily UTF-8 when it came from a Secret.
    pub value: Value<'a>,
    /// The source that set it.
    pub origin: Origin<'a>,
    /// Whether it holds anything that must not be shown.
    pub secret: bool,
}

/// Bytes of a value: borrowed from pod or object, or made for the variable.
#[derive(Clone)]
pub enum Value<'a> {
    /// As pod or object have them.
    Borrowed(&'a [u8]),
    /// Computed.
    Owned(Vec<u8>),
    /// Computed from something secret; zeroized on drop.
    Secret(SecretBytes),
    /// Not known yet; no bytes.
    Unknown(Box<Unknown>),
}

impl Value<'_> {
    /// What it is made of, if it is unknown.
    pub fn unknown(&self) -> Option<&Unknown> {
        match self {
            Self::Unknown(unknown) => Some(unknown),
            _ => None,
        }
    }

    /// The length in memory, of an unknown value also.
    pub(super) fn size(&self) -> usize {
        self.unknown().map_or(self.len(), Unknown::len)
    }
}

/// The same bytes, or unknown and made of the same.
impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other && self.unknown() == other.unknown()
    }
}

impl Eq for Value<'_> {}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Secret(bytes) => bytes,
            Self::Unknown(_) => &[],
        }
    }
}

/// Shows the length; whether the bytes are secret is known to the [`Variable`] only.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.len())
    }
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
