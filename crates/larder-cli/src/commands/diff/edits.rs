//! Differences between two sets, by key.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// Differences by key.
pub(super) type Edits<K, T> = BTreeMap<K, Edit<T>>;

/// One difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit<T> {
    Added(T),
    Removed(T),
    Changed(T, T),
}

impl<T> Edit<T> {
    /// `None` if neither side has a value.
    pub(super) fn of(from: Option<T>, to: Option<T>) -> Option<Self> {
        match (from, to) {
            (None, None) => None,
            (None, Some(to)) => Some(Self::Added(to)),
            (Some(from), None) => Some(Self::Removed(from)),
            (Some(from), Some(to)) => Some(Self::Changed(from, to)),
        }
    }

    /// The value of each side.
    pub(super) fn sides(&self) -> (Option<&T>, Option<&T>) {
        match self {
            Self::Added(to) => (None, Some(to)),
            Self::Removed(from) => (Some(from), None),
            Self::Changed(from, to) => (Some(from), Some(to)),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        let (from, to) = self.sides();
        from.into_iter().chain(to)
    }
}

/// The differences between two sets, by key.
pub(super) fn edits<K: Ord + Hash, T>(
    from: impl Iterator<Item = (K, T)>,
    to: impl Iterator<Item = (K, T)>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Edits<K, T> {
    let mut before: HashMap<K, T> = from.collect();
    let mut found = Edits::new();
    for (key, to) in to {
        let edit = match before.remove(&key) {
            None => Edit::Added(to),
            Some(from) if is_same(&from, &to) => continue,
            Some(from) => Edit::Changed(from, to),
        };
        found.insert(key, edit);
    }
    let removed = before.into_iter();
    found.extend(removed.map(|(key, from)| (key, Edit::Removed(from))));
    found
}
