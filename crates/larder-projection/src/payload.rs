//! The payload of a volume: its files.
//!
//! Invariant: a [`VolumePath`] is relative, clean, and neither leaves the volume nor touches the names that the atomic
//! writer reserves for itself. A caller that holds one need not check again (P4).

use std::{borrow::Borrow, collections::BTreeMap, fmt};

use crate::{Value, clean::clean};

/// All files of one volume. Sorted, so that every pass treats them in the same order.
pub type Payload<'a> = BTreeMap<VolumePath, File<'a>>;

/// One file of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// Content.
    pub data: Value<'a>,
    /// Permission bits, 0 to 0777, applied whatever the umask.
    pub mode: u32,
    /// User that owns the file and its link; `None` leaves the user of this process, usually root.
    pub owner: Option<u32>,
}

/// Path of a file relative to its volume, checked and clean: `a/b`, never `a//b`, `../a`, `/a` or `..data/a`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumePath(String);

/// Longest path that Linux takes, in bytes.
const MAX_PATH: usize = 4096;
/// Longest element of a path, in bytes.
const MAX_ELEMENT: usize = 255;

impl VolumePath {
    /// Checks `path` and cleans it.
    ///
    /// The rules and texts are those of kubelet 1.36, `pkg/volume/util/atomic_writer.go`. On purpose stricter in one
    /// point: the last two rules hold for the clean path as well, so that `./..data` does not slip through.
    ///
    /// # Errors
    ///
    /// The first rule that `path` breaks.
    pub fn parse(path: &str) -> Result<Self, VolumePathError> {
        if path.is_empty() {
            return Err(VolumePathError::Empty);
        }
        if path.starts_with('/') {
            return Err(VolumePathError::Absolute(path.to_owned()));
        }
        if path.len() > MAX_PATH {
            return Err(VolumePathError::TooLong);
        }
        for element in path.split('/') {
            if element == ".." {
                return Err(VolumePathError::Parent(path.to_owned()));
            }
            if element.len() > MAX_ELEMENT {
                return Err(VolumePathError::ElementTooLong);
            }
        }
        if path.contains('\0') {
            return Err(VolumePathError::Nul);
        }
        let clean = clean(path);
        if clean == "." {
            return Err(VolumePathError::Volume(path.to_owned()));
        }
        if path.starts_with("..") || clean.starts_with("..") {
            return Err(VolumePathError::Reserved(path.to_owned()));
        }
        Ok(Self(clean))
    }

    /// The clean path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The elements from the root of the volume down; never none.
    pub fn elements(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The nearest directory above the path that `payload` has as a file.
    pub(crate) fn parent_in(&self, payload: &Payload<'_>) -> Option<Self> {
        let mut path = self.as_str();
        while let Some((parent, _)) = path.rsplit_once('/') {
            if let Some((found, _)) = payload.get_key_value(parent) {
                return Some(found.clone());
            }
            path = parent;
        }
        None
    }

    /// The first element: the name of the link in the root of the volume.
    pub fn first(&self) -> &str {
        self.elements().next().expect("a checked path is not empty")
    }
}

/// Lets a [`Payload`] be asked for a clean path as it is; text and path have the same order.
impl Borrow<str> for VolumePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a path cannot be a file of a volume. The texts are the kubelet's where it has the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumePathError {
    /// Nothing there.
    #[error("invalid path: must not be empty: \"\"")]
    Empty,
    /// Begins with `/`.
    #[error("invalid path: must be relative path: {0}")]
    Absolute(String),
    /// More than 4096 bytes.
    #[error("invalid path: must be less than or equal to 4096 characters")]
    TooLong,
    /// An element is `..`.
    #[error("invalid path: must not contain '..': {0}")]
    Parent(String),
    /// An element has more than 255 bytes.
    #[error("invalid path: filenames must be less than or equal to 255 characters")]
    ElementTooLong,
    /// The first element begins with `..`, which is reserved for the atomic writer.
    #[error("invalid path: must not start with '..': {0}")]
    Reserved(String),
    /// Names the volume itself, not a file in it. (The kubelet fails later, when it opens the file.)
    #[error("invalid path: must name a file: {0}")]
    Volume(String),
    /// A NUL byte cannot be part of a file name.
    #[error("invalid path: must not contain a NUL byte")]
    Nul,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn well_behaved_paths_pass_and_hostile_ones_do_not() {
        // projection 2
        assert!(VolumePath::parse("i/am/well/behaved.txt").is_ok());
        assert_eq!(
            VolumePath::parse(&"a".repeat(4097)),
            Err(VolumePathError::TooLong)
        );
        assert_eq!(
            VolumePath::parse(&"a".repeat(256)),
            Err(VolumePathError::ElementTooLong)
        );
        for path in [
            "/dev/null",
            "..sneaky.txt",
            "hello/../etc/x",
            "",
            "...",
            ".",
            "a\0b",
        ] {
            assert!(VolumePath::parse(path).is_err(), "{path:?}");
        }
        for path in [".hidden", "a/..b"] {
            assert_eq!(VolumePath::parse(path).unwrap().as_str(), path);
        }
    }

    #[test]
    fn paths_are_cleaned() {
        // projection 3
        assert_eq!(VolumePath::parse("foo////bar").unwrap().as_str(), "foo/bar");
        assert_eq!(VolumePath::parse("./x").unwrap().as_str(), "x");
        assert_eq!(VolumePath::parse("a/").unwrap().as_str(), "a");
        assert_eq!(VolumePath::parse("foo/bar").unwrap().first(), "foo");
    }

    #[test]
    fn cleaning_does_not_uncover_a_reserved_name() {
        assert!(matches!(
            VolumePath::parse("./..data_tmp"),
            Err(VolumePathError::Reserved(_))
        ));
        assert!(matches!(
            VolumePath::parse(".//..x/y"),
            Err(VolumePathError::Reserved(_))
        ));
    }

    proptest! {
        #[test]
        fn paths_agree_with_a_walk(path in "(/|\\.|a|\\.\\.|b\0?){0,10}") {
            // The naive model: walk from the volume's root, and look where it ends.
            let mut walked = Vec::new();
            let mut is_bad = path.starts_with('/') || path.starts_with("..") || path.contains('\0');
            for element in path.split('/') {
                match element {
                    "" | "." => {}
                    ".." => is_bad = true,
                    element => walked.push(element),
                }
            }
            is_bad |= walked.first().is_none_or(|first| first.starts_with(".."));
            let parsed = VolumePath::parse(&path);
            prop_assert_eq!(parsed.is_err(), is_bad, "{:?}", path);
            if let Ok(parsed) = parsed {
                prop_assert_eq!(parsed.as_str(), walked.join("/"));
                prop_assert_eq!(VolumePath::parse(parsed.as_str()), Ok(parsed));
            }
        }
    }
}
