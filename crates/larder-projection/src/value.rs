//! The bytes of a variable or a file, or that they are not known.

use std::{fmt, ops::Deref};

use larder_objects::SecretBytes;

use crate::Unknown;

/// Bytes of a variable or a file: borrowed from pod or object, or made for it.
#[derive(Clone)]
pub enum Value<'a> {
    /// As pod or object have them.
    Borrowed(&'a [u8]),
    /// Computed.
    Owned(Vec<u8>),
    /// Computed from something that may be secret; zeroized on drop. So is all that is made for a file.
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

    /// Whether nothing may be there.
    pub fn may_be_absent(&self) -> bool {
        self.unknown().is_some_and(Unknown::may_be_absent)
    }

    /// The value as a term.
    pub fn into_term(self) -> Unknown {
        match self {
            Self::Unknown(unknown) => *unknown,
            known => Unknown::of_text(&known),
        }
    }

    /// The length in memory, of an unknown value also.
    pub(crate) fn size(&self) -> usize {
        self.unknown().map_or(self.len(), Unknown::len)
    }
}

impl From<Unknown> for Value<'_> {
    fn from(unknown: Unknown) -> Self {
        Self::Unknown(Box::new(unknown))
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

/// Shows the length; whether the bytes are secret is known to the [`Variable`](crate::Variable) only.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.len())
    }
}
