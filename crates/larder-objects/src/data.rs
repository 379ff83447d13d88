//! The values of a ConfigMap or a Secret by key.

use std::{collections::BTreeMap, fmt, ops::Index};

use serde::{Deserialize, Deserializer};
use smol_str::SmolStr;

/// Values by key, sorted by key, each key once.
///
/// In one piece: a node holds thousands of objects, most of them with a key or two, and reads them far more often than
/// it makes one.
///
/// ```
/// use larder_objects::Data;
///
/// let data = Data::from([("b", 1), ("a", 2), ("b", 3)]);
/// assert_eq!(data.get("b"), Some(&3));
/// assert!(data.keys().eq(["a", "b"]));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Data<V>(Box<[(SmolStr, V)]>);

impl<V> Data<V> {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&V> {
        let at = self
            .0
            .binary_search_by(|(known, _)| known.as_str().cmp(key));
        Some(&self.0[at.ok()?].1)
    }

    /// Whether there is a value of `key`.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// The values, sorted by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<V> Default for Data<V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<V: fmt::Debug> fmt::Debug for Data<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// # Panics
///
/// There is no such key.
impl<V> Index<&str> for Data<V> {
    type Output = V;

    fn index(&self, key: &str) -> &V {
        self.get(key).expect("the key is there")
    }
}

/// Of several values of a key the last one counts.
impl<K: Into<SmolStr>, V> FromIterator<(K, V)> for Data<V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        let sorted: BTreeMap<_, _> = pairs
            .into_iter()
            .map(|(key, value)| (key.into(), value))
            .collect();
        Self(sorted.into_iter().collect())
    }
}

impl<K: Into<SmolStr>, V, const N: usize> From<[(K, V); N]> for Data<V> {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Data<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sorted = BTreeMap::<SmolStr, V>::deserialize(deserializer)?;
        Ok(Self(sorted.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn holds_what_a_map_would_hold(pairs in proptest::collection::vec(("[a-d]{0,2}", 0..9_u8), 0..12)) {
            let model: BTreeMap<String, u8> = pairs.iter().cloned().collect();
            let data: Data<u8> = pairs.iter().cloned().collect();
            prop_assert!(data.iter().eq(model.iter().map(|(key, value)| (key.as_str(), value))));
            prop_assert_eq!(data.len(), model.len());
            for key in ["", "a", "bb", "dd", "e"] {
                prop_assert_eq!(data.get(key), model.get(key));
            }

            let json: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            let decoded: Data<u8> = serde_json::from_str(&format!("{{{}}}", json.join(","))).unwrap();
            prop_assert_eq!(decoded, data);
        }
    }
}
