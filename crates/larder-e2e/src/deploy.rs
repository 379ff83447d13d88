//! The files of `deploy/`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use larder_objects::yaml::YamlDocument;
use serde_json::Value;

/// The folder of the bases and components.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The documents of a file.
///
/// # Panics
///
/// The file cannot be read, or is not YAML.
pub fn documents(path: impl AsRef<Path>) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(path)).expect("a readable file");
    documents_of(&text)
}

/// The documents of a text, without anchors.
///
/// # Panics
///
/// The text is not YAML.
pub fn documents_of(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .map(|document| {
            YamlDocument::parse(document, 0)
                .expect("YAML")
                .value()
                .clone()
        })
        .collect()
}
