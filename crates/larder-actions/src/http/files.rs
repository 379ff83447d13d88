//! The files that a request reads: credentials, and authorities.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

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
            .and_then(|file| content(file, MAX_CREDENTIAL));
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
        let open = || {
            if self.any_authorities && path.starts_with('/') {
                return File::open(path);
            }
            let (volume, path) = path.split_once('/').ok_or(io::ErrorKind::NotFound)?;
            self.open(volume, path)
        };
        let read = open().and_then(|file| content(file, MAX_AUTHORITIES));
        read.map_err(|source| HttpError::CaCertificates {
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

fn content(file: File, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut content = Zeroizing::new(Vec::new());
    if file.take(limit + 1).read_to_end(&mut content)? as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}
