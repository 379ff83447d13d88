//! What is wrong with a directory of manifests, said before it is followed. Synchronous.

use std::{io, path::Path};

use jiff::Timestamp;
use larder_objects::manifest::Document;

use super::{
    catalogue::Catalogue,
    files::{paths, read},
};
use crate::record::RecordFile;

/// A directory of manifests that was read once.
#[derive(Debug)]
pub struct Checked {
    /// Its objects, those of several files included.
    pub documents: Vec<Document>,
    /// What is wrong, each with its place.
    pub problems: Vec<String>,
}

/// Reads the manifests of `directory` as a [`Feed`](crate::Feed) with this record would at its start. Writes nothing, and
/// waits for every disk that a link leads to.
///
/// # Errors
///
/// The directory cannot be listed.
pub fn check(directory: &Path, record: Option<&Path>) -> io::Result<Checked> {
    let paths = paths(directory)?;
    // One that cannot be read, the agent has none of either.
    let record = record.and_then(|path| Some(RecordFile::open(path).ok()?.1));
    let mut catalogue = Catalogue::after(&record.unwrap_or_default(), directory);
    let gone: Vec<_> = catalogue
        .files()
        .filter(|file| !paths.contains(*file))
        .map(Path::to_owned)
        .collect();
    for file in gone {
        catalogue.removed(&file);
    }
    let (mut documents, mut warnings) = (Vec::new(), Vec::new());
    for path in paths {
        let mut reading = read(path);
        documents.extend(reading.documents.iter().cloned());
        warnings.append(&mut reading.warnings);
        catalogue.read(reading, Timestamp::UNIX_EPOCH);
    }
    let mut problems = catalogue.problems();
    problems.append(&mut warnings);
    Ok(Checked {
        documents,
        problems,
    })
}
