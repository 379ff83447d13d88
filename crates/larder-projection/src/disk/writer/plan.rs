//! The directories and links that a payload needs on disk besides its files.

use std::collections::{BTreeMap, BTreeSet};

use larder_files::pause;

use crate::{Payload, disk::DiskError};

/// A payload whose files can exist side by side.
pub(super) struct Plan<'p> {
    pub(super) payload: &'p Payload<'p>,
    /// Directories inside the set, parents before children.
    pub(super) directories: BTreeSet<&'p str>,
    /// First elements of all paths, each with the owner of its first file: as many links in the root.
    pub(super) links: BTreeMap<&'p str, Option<u32>>,
}

impl<'p> Plan<'p> {
    /// # Errors
    ///
    /// A path is file and directory at once. (The kubelet fails in the middle of writing.)
    pub(super) fn of(payload: &'p Payload<'p>) -> Result<Self, DiskError> {
        let mut directories = BTreeSet::new();
        let mut links = BTreeMap::new();
        for (path, file) in payload {
            pause::point();
            links.entry(path.first()).or_insert(file.owner);
            let mut below = path.as_str();
            while let Some((directory, _)) = below.rsplit_once('/') {
                if payload.contains_key(directory) {
                    return Err(DiskError::Conflict {
                        directory: directory.to_owned(),
                        file: path.to_string(),
                    });
                }
                if !directories.insert(directory) {
                    // Its parents are there as well.
                    break;
                }
                below = directory;
            }
        }
        Ok(Self {
            payload,
            directories,
            links,
        })
    }
}
