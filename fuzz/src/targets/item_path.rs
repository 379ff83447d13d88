//! Paths of items: an accepted path is clean, relative, and below the volume.

use std::path::{Component, Path};

use larder_projection::VolumePath;

use super::{Target, on_text};
use crate::outcome::Outcome;

pub(super) const TARGET: Target = Target {
    name: "item_path",
    run: |input| on_text(input, run),
    seeds: &["a/b"],
    max_length: 8 << 10,
};

fn run(text: &str) -> Outcome {
    let path = match VolumePath::parse(text) {
        Ok(path) => path,
        Err(error) => return Outcome::rejected(&error),
    };
    let clean = path.as_str();
    let is_name = |component| matches!(component, Component::Normal(_));
    assert!(Path::new(clean).components().all(is_name));
    assert!(!clean.is_empty() && !clean.starts_with("..") && !clean.contains("//"));
    let elements = || path.elements();
    assert!(elements().all(|element| !matches!(element, "" | "." | "..")));
    assert_eq!(VolumePath::parse(clean).as_ref(), Ok(&path));
    Outcome::accepted()
        .with_size(elements().count())
        .with_size(text.len() - clean.len())
}
