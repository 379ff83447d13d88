//! The content of a URL on its way into a file: it is written while it is read, and has no name yet.

use std::{io, os::fd::OwnedFd};

use larder_files::new_file::NewFile;
use larder_on_change::{ContentTag, DigestKey, Tagger};
use rustix::io::Result as SystemResult;

/// A file that is being written. Dropped, it leaves nothing.
#[derive(Debug)]
pub(crate) struct FetchedFile {
    file: NewFile<OwnedFd>,
    tagger: Tagger,
    pub(crate) length: usize,
}

impl FetchedFile {
    pub(crate) fn create(directory: OwnedFd, aside: String, key: &DigestKey) -> SystemResult<Self> {
        Ok(Self {
            file: NewFile::create(directory, aside)?,
            tagger: key.tagger(),
            length: 0,
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes)?;
        self.tagger.update(bytes);
        self.length += bytes.len();
        Ok(())
    }

    /// The whole file, and what stands for its content.
    pub(crate) fn finish(self) -> (NewFile<OwnedFd>, ContentTag) {
        (self.file, self.tagger.finish())
    }
}
