//! The name of an object within a kind.

use std::fmt;

use equivalent::Equivalent;
use smol_str::SmolStr;

/// Namespace and name of an object; the kind is known from the context.
///
/// Displays as `namespace/name`, or as the name alone without a namespace. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace; empty for objects of cluster scope.
    pub namespace: SmolStr,
    /// Name, never empty.
    pub name: SmolStr,
}

impl ObjectKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<SmolStr>, name: impl Into<SmolStr>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// A key to look up in a map of [`ObjectKey`]s, without making one. Both have the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKeyRef<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

impl Equivalent<ObjectKey> for ObjectKeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &ObjectKey) -> bool {
        self.namespace == key.namespace && self.name == key.name
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}
