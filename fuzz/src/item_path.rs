//! Paths of items: an accepted path is clean, relative, and below the volume.

use std::path::{Component, Path};

use larder_projection::VolumePath;

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    let text = str::from_utf8(input).ok()?;
    let path = VolumePath::parse(text).ok()?;
    let clean = path.as_str();
    let is_name = |component| matches!(component, Component::Normal(_));
    assert!(Path::new(clean).components().all(is_name));
    assert!(!clean.is_empty() && !clean.starts_with("..") && !clean.contains("//"));
    assert!(
        path.elements()
            .all(|element| !matches!(element, "" | "." | ".."))
    );
    assert_eq!(VolumePath::parse(clean).as_ref(), Ok(&path));
    Some(())
}
