//! Paths of items: an accepted path is clean, relative, and below the volume.

use std::path::{Component, Path};

use larder_projection::VolumePath;

/// Reads an input. Returns whether it was accepted.
pub fn run(input: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(input) else {
        return false;
    };
    let Ok(path) = VolumePath::parse(text) else {
        return false;
    };
    let clean = path.as_str();
    let is_name = |component| matches!(component, Component::Normal(_));
    assert!(Path::new(clean).components().all(is_name));
    assert!(!clean.is_empty() && !clean.starts_with("..") && !clean.contains("//"));
    assert!(
        path.elements()
            .all(|element| !matches!(element, "" | "." | ".."))
    );
    assert_eq!(VolumePath::parse(clean).as_ref(), Ok(&path));
    true
}
