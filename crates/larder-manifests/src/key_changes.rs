//! Which keys of a ConfigMap or Secret an edit changes, for the log.
//!
//! Invariant: it shows names of keys, which the API server has accepted, and nothing of their values.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

/// Number of keys that a line names; the others are counted.
const NAMED_KEYS: usize = 10;

/// Keys by what happened to them. Displays as `a, b (added), c (removed)`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyChanges<'a>(BTreeMap<&'a str, Change>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Changed,
    Removed,
}

impl<'a> KeyChanges<'a> {
    /// The keys whose values differ between two versions of an object.
    pub(crate) fn between(before: &'a Value, after: &'a Value) -> Self {
        let (before, after) = (values(before), values(after));
        let gone = before.keys().filter(|key| !after.contains_key(*key));
        let gone = gone.map(|key| (*key, Change::Removed));
        let other = after.iter().filter_map(|(key, value)| {
            let change = match before.get(key) {
                None => Change::Added,
                Some(before) if before != value => Change::Changed,
                Some(_) => return None,
            };
            Some((*key, change))
        });
        Self(gone.chain(other).collect())
    }
}

/// Each key with the field and the text that it has there.
fn values(object: &Value) -> BTreeMap<&str, (&str, &Value)> {
    let fields = ["data", "binaryData"].into_iter();
    let entries = fields.flat_map(|field| {
        let entries = object[field].as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), (field, value)))
    });
    entries.collect()
}

impl fmt::Display for KeyChanges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, change)) in self.0.iter().take(NAMED_KEYS).enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(key)?;
            f.write_str(match change {
                Change::Added => " (added)",
                Change::Changed => "",
                Change::Removed => " (removed)",
            })?;
        }
        match self.0.len().saturating_sub(NAMED_KEYS) {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_named_by_what_happened_to_them_without_their_values() {
        let before = json!({"data": {"same": "s1", "edited": "s2", "gone": "s3", "moved": "s4"}});
        let after = json!({
            "data": {"same": "s1", "edited": "s5", "new": "s6"}, "binaryData": {"moved": "s4"},
        });
        let text = KeyChanges::between(&before, &after).to_string();
        assert_eq!(text, "edited, gone (removed), moved, new (added)");
        let same = KeyChanges::between(&before, &before).to_string();
        assert_eq!(same, "");
    }

    #[test]
    fn many_keys_are_counted() {
        let keys = (0..13).map(|index| (format!("k{index:02}"), json!("v")));
        let after = json!({"data": keys.collect::<serde_json::Map<_, _>>()});
        let text = KeyChanges::between(&json!({}), &after).to_string();
        assert!(text.ends_with("k09 (added) and 3 more"), "{text}");
    }
}
