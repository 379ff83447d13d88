//! Which keys of a ConfigMap or Secret a change is about, for logs.
//!
//! Invariant: it has names of keys, and nothing of their values. It costs one pass over both versions, and little memory.

use std::{cmp::Ordering, fmt};

use smol_str::SmolStr;

/// Number of keys that are named; the others are counted.
const NAMED_KEYS: usize = 10;

/// Keys whose values differ between two versions of an object. Displays as `a, b (added), c (removed) and 3 more`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChanges {
    named: Vec<(SmolStr, KeyChange)>,
    others: usize,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyChange {
    Added,
    Changed,
    Removed,
}

impl KeyChanges {
    /// The keys whose values differ. Both versions are sorted by key.
    ///
    /// ```
    /// use larder_objects::KeyChanges;
    ///
    /// let changes = KeyChanges::between([("a", 1), ("c", 1)], [("a", 2), ("b", 1), ("c", 1)]);
    /// assert_eq!(changes.to_string(), "a, b (added)");
    /// ```
    pub fn between<'a, V: PartialEq>(
        before: impl IntoIterator<Item = (&'a str, V)>,
        after: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Self {
        let mut changes = Self::default();
        let mut before = before.into_iter().peekable();
        let mut after = after.into_iter().peekable();
        loop {
            let order = match (before.peek(), after.peek()) {
                (Some((old, _)), Some((new, _))) => old.cmp(new),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return changes,
            };
            let old = before.next_if(|_| order != Ordering::Greater);
            let new = after.next_if(|_| order != Ordering::Less);
            match (old, new) {
                (Some((key, old)), Some((_, new))) if old != new => {
                    changes.add(key, KeyChange::Changed);
                }
                (Some((key, _)), None) => changes.add(key, KeyChange::Removed),
                (None, Some((key, _))) => changes.add(key, KeyChange::Added),
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
    }

    fn add(&mut self, key: &str, change: KeyChange) {
        if self.named.len() < NAMED_KEYS {
            self.named.push((key.into(), change));
        } else {
            self.others += 1;
        }
    }

    /// Whether no key differs.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

impl fmt::Display for KeyChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, change)) in self.named.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(key)?;
            f.write_str(match change {
                KeyChange::Added => " (added)",
                KeyChange::Changed => "",
                KeyChange::Removed => " (removed)",
            })?;
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ConfigMap, Object as _, Secret};

    #[test]
    fn keys_are_named_by_what_happened_to_them_without_their_values() {
        let read = |object| -> ConfigMap { serde_json::from_value(object).unwrap() };
        let before = read(json!({
            "data": {"same": "s1", "edited": "s2", "gone": "s3", "moved": "s4"},
            "binaryData": {"binary": "AAA="},
        }));
        let after = read(json!({
            "data": {"same": "s1", "edited": "s5", "new": "s6"},
            "binaryData": {"binary": "AAE=", "moved": "czQ="},
        }));
        let text = after.key_changes(&before).to_string();
        assert_eq!(text, "binary, edited, gone (removed), moved, new (added)");
        assert!(before.key_changes(&before).is_empty());
        let read =
            |value| -> Secret { serde_json::from_value(json!({"data": {"key": value}})).unwrap() };
        let changes = read("AAE=").key_changes(&read("AAA="));
        assert_eq!(changes.to_string(), "key");
    }

    #[test]
    fn many_keys_are_counted() {
        let keys: Vec<_> = (0..13).map(|index| format!("k{index:02}")).collect();
        let after = keys.iter().map(|key| (key.as_str(), 1));
        let text = KeyChanges::between([], after).to_string();
        assert!(text.ends_with("k09 (added) and 3 more"), "{text}");
    }
}
