//! Lists the files of a directory and reads them. Synchronous.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use larder_files::stamp::Stamp;
use larder_objects::{
    chain,
    manifest::{Document, Loader, is_manifest_name},
};

/// Namespace of objects that name none, as `kubectl`'s.
const DEFAULT_NAMESPACE: &str = "default";

/// The manifests of `directory`, by [`is_manifest_name`]. Subdirectories are skipped; reading reports what is not a
/// file.
pub(super) fn list(directory: &Path) -> io::Result<BTreeMap<PathBuf, Stamp>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(is_manifest_name) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_dir() => {
                files.insert(path, Stamp::from(&metadata));
            }
            // A directory, a file removed meanwhile, or a link that leads nowhere.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(files)
}

/// The content of one file.
pub(super) struct Reading {
    pub(super) path: PathBuf,
    pub(super) documents: Vec<Document>,
    pub(super) problems: Vec<String>,
    /// Fields that are unknown.
    pub(super) warnings: Vec<String>,
}

/// Reads one file; an unreadable part is a problem.
pub(super) fn read(path: PathBuf) -> Reading {
    let mut loader = Loader::new(DEFAULT_NAMESPACE);
    loader.file(&path);
    let manifests = loader.finish();
    Reading {
        path,
        documents: manifests.documents,
        problems: manifests.errors.iter().map(|error| chain(error)).collect(),
        warnings: manifests
            .warnings
            .iter()
            .map(|warning| chain(warning))
            .collect(),
    }
}
