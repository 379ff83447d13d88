//! Objects that hooks do not react to: their annotation `larder.dev/on-change` is `"false"`.
//!
//! While an object is left out, hooks see its files and variables as they were before. So nothing fires, and what has
//! changed meanwhile counts once the annotation is gone.

use std::num::NonZeroU32;

use larder_objects::Kind;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// Stands for an object among those of a pod. Two objects of one are a mistake that concerns their pod only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectTag(NonZeroU32);

impl ObjectTag {
    /// The tag of an object of the pod's namespace.
    pub fn of((kind, name): (Kind, &str)) -> Self {
        let text = format!("{kind}/{name}");
        let hash = digest(&SHA256, text.as_bytes());
        let [a, b, c, d, ..] = hash.as_ref() else {
            unreachable!("it has 32 bytes")
        };
        let number = NonZeroU32::new(u32::from_be_bytes([*a, *b, *c, *d]));
        Self(number.unwrap_or(NonZeroU32::MIN))
    }
}

/// The objects that are left out; sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<ObjectTag>")]
pub struct LeftOut(Box<[ObjectTag]>);

impl LeftOut {
    /// Whether there is none, as nearly always.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is the object of a file or variable.
    pub fn has(&self, object: Option<ObjectTag>) -> bool {
        object.is_some_and(|object| self.0.binary_search(&object).is_ok())
    }
}

impl From<Vec<ObjectTag>> for LeftOut {
    fn from(objects: Vec<ObjectTag>) -> Self {
        objects.into_iter().collect()
    }
}

impl FromIterator<ObjectTag> for LeftOut {
    fn from_iter<I: IntoIterator<Item = ObjectTag>>(objects: I) -> Self {
        let mut objects: Vec<_> = objects.into_iter().collect();
        objects.sort_unstable();
        Self(objects.into())
    }
}

/// Where the files or variables of a part come from.
#[expect(missing_debug_implementations, reason = "it has a function")]
pub struct ItemObjects<'a> {
    /// The objects that are left out.
    pub left_out: &'a LeftOut,
    /// The object that a file or variable is a key of, by its name.
    pub of: &'a dyn Fn(&str) -> Option<ObjectTag>,
}
