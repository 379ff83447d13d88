//! The files that a request reads: credentials, and authorities.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use larder_files::regular_file::{read_file, read_regular_file};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use smol_str::SmolStr;
use zeroize::Zeroizing;

use super::HttpError;

/// Most bytes of a credential.
const MAX_CREDENTIAL: u64 = 64 << 10;
/// Most bytes of a file with authorities.
const MAX_AUTHORITIES: u64 = 4 << 20;

/// The files that a hook may name.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// The directories of the pod's volumes.
    pub volumes: &'a BTreeMap<SmolStr, PathBuf>,
    /// Whether `tls.ca` may be any file of this machine, by an absolute path. A pod's hook may name files of its
    /// volumes only, as `VOLUME/PATH`.
    pub any_authorities: bool,
}

impl Files<'_> {
    /// The content of a file with a credential, without the end of its last line.
    pub(super) fn credential(
        &self,
        volume: &str,
        path: &str,
    ) -> Result<Zeroizing<Vec<u8>>, HttpError> {
        let read = self
            .open(volume, path)
            .and_then(|file| Ok(read_file(file, MAX_CREDENTIAL + 1)?));
        let mut text = read.map_err(|source| HttpError::File {
            volume: volume.to_owned(),
            path: path.to_owned(),
            source,
        })?;
        if text.ends_with(b"\n") {
            text.pop();
        }
        if text.ends_with(b"\r") {
            text.pop();
        }
        Ok(text)
    }

    /// The content of a file with authorities.
    pub(super) fn authorities(&self, path: &str) -> Result<Zeroizing<Vec<u8>>, HttpError> {
        let read = || -> io::Result<_> {
            let max_bytes = MAX_AUTHORITIES + 1;
            if self.any_authorities && path.starts_with('/') {
                return Ok(read_regular_file(Path::new(path), max_bytes)?);
            }
            let (volume, path) = path.split_once('/').ok_or(io::ErrorKind::NotFound)?;
            Ok(read_file(self.open(volume, path)?, max_bytes)?)
        };
        read().map_err(|source| HttpError::CaCertificates {
            path: path.to_owned(),
            source,
        })
    }

    /// Opens a file in a volume.
    fn open(&self, volume: &str, path: &str) -> io::Result<File> {
        let directory = self.volumes.get(volume).ok_or(io::ErrorKind::NotFound)?;
        let directory = File::open(directory)?;
        // The pod controls the content of its volumes: links may point anywhere, and files may be pipes.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&directory, Path::new(path), flags, Mode::empty(), beneath)?;
        Ok(file.into())
    }
}
