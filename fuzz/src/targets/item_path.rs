//! Paths of items: an accepted path is clean, relative, and below the volume.

use std::path::{Component, Path};

use larder_projection::VolumePath;

use super::{Reader::OfText, Target};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target::new("item_path", OfText(run), Structure::Bytes, 8 << 10);

fn run(text: &str) -> Outcome {
    let path = match VolumePath::parse(text) {
        Ok(path) => path,
        // Quoted strings do not count: the rule does, and not the path.
        Err(error) => return Outcome::rejected(&format!("{error:?}")),
    };
    let clean = path.as_str();
    let is_name = |component| matches!(component, Component::Normal(_));
    assert!(Path::new(clean).components().all(is_name));
    assert!(!clean.is_empty() && !clean.starts_with("..") && !clean.contains("//"));
    let elements = || path.elements();
    assert!(elements().all(|element| !matches!(element, "" | "." | "..")));
    assert_eq!(VolumePath::parse(clean).as_ref(), Ok(&path));
    let longest = elements().map(str::len).max();
    let has_dots = elements().any(|element| element.starts_with('.'));
    Outcome::accepted()
        .with(&has_dots)
        .with(&clean.is_ascii())
        .with_size(elements().count())
        .with_size(longest.unwrap_or_default())
        .with_size(text.len() - clean.len())
}
