//! What the documents say of the keys of an object, and what decides those that they do not say.

use super::world::{CERTIFICATE_KEYS, Listing, Versions};

/// An object whose values no document has, of something that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unseen {
    /// Place in the list of objects.
    pub(super) object: usize,
    pub(super) made_of: MadeOf,
}

/// What decides the keys of an object, or the value of a key; with a version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MadeOf {
    Outside,
    Empty,
    Sealed(u8),
    Encrypted(u8),
    External(u8),
    Certificate(u8),
}

/// What the documents say of the keys of an object.
pub(super) enum Keys {
    /// They have the values, too.
    Data,
    /// Exactly these, each with what decides its value.
    Exactly(Vec<(&'static str, MadeOf)>),
    /// Nothing; this decides them.
    Any(MadeOf),
}

/// What they say of an object.
pub(super) fn keys_of(listing: &Listing) -> Keys {
    let versions = |versions: &Versions, made_of: fn(u8) -> MadeOf| {
        let keys = versions.iter();
        Keys::Exactly(
            keys.map(|(key, version)| (*key, made_of(*version)))
                .collect(),
        )
    };
    match listing {
        Listing::Data(_) | Listing::Immutable(_) => Keys::Data,
        Listing::Outside => Keys::Any(MadeOf::Outside),
        Listing::Empty => Keys::Any(MadeOf::Empty),
        Listing::External(version) => Keys::Any(MadeOf::External(*version)),
        Listing::Sealed(all) => versions(all, MadeOf::Sealed),
        Listing::Encrypted(all) => versions(all, MadeOf::Encrypted),
        Listing::Certificate(version) => {
            let made_of = MadeOf::Certificate(*version);
            Keys::Exactly(CERTIFICATE_KEYS.map(|key| (key, made_of)).into())
        }
    }
}

/// Whether no document has the keys of an object.
pub(super) fn has_unknown_keys(listing: &Listing) -> bool {
    matches!(keys_of(listing), Keys::Any(_))
}

/// Whether an object has the key in a completion, by what the documents of its side and of the other one say.
pub(super) fn may_have(key: &str, own: &Listing, other: &Listing) -> bool {
    match keys_of(own) {
        Keys::Data => own.data().is_some_and(|data| data.contains_key(key)),
        Keys::Exactly(keys) => keys.iter().any(|(name, _)| *name == key),
        Keys::Any(_) => *own != Listing::Outside || *other == Listing::Outside,
    }
}
