//! `$(VAR)` expansion: one pass; without `$$` and without known names a text stays as it is.

use super::{Reader::OfText, Target};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target::new("expand", OfText(run), Structure::Bytes, 4 << 10);

fn run(text: &str) -> Outcome {
    let unknown = larder_projection::expand(text, |_| None);
    assert!(unknown.len() <= text.len());
    if !text.contains("$$") {
        assert_eq!(unknown, text.as_bytes());
    }
    let mut names = Vec::new();
    let emptied = larder_projection::expand(text, |name| {
        names.push(name.to_owned());
        Some(b"")
    });
    assert!(emptied.len() <= unknown.len());
    assert!(names.iter().all(|name| !name.contains(')')));
    Outcome::new(!names.is_empty())
        .with_size(names.len())
        .with_size(text.len() - unknown.len())
}
