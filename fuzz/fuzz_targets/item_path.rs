//! Paths of items: what passes is clean, relative, and stays below the volume.

#![no_main]

use std::path::{Component, Path};

use larder_projection::VolumePath;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(path) = VolumePath::parse(text) else {
        return;
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
});
