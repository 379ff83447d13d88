//! Files and directories of manifests.

use std::{
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use super::{Loader, ManifestError};

/// Name under which standard input appears in errors.
const STDIN: &str = "standard input";

impl Loader {
    /// Reads a file, or the `*.yaml`, `*.yml` and `*.json` files of a directory in the order of their names.
    ///
    /// Subdirectories, files whose name begins with a dot, and what is no file, are not read.
    pub fn path(&mut self, path: &Path) {
        match files(path) {
            Ok(Some(files)) => files.iter().for_each(|file| self.file(file)),
            Ok(None) => self.file(path),
            Err(source) => self.unreadable("list", path, source),
        }
    }

    /// Reads `input` to its end; in errors it is called standard input.
    pub fn stdin(&mut self, mut input: impl Read) {
        let mut bytes = Zeroizing::new(Vec::new());
        match input.read_to_end(&mut bytes) {
            Ok(_) => self.bytes(STDIN, &bytes),
            Err(source) => self.unreadable("read", Path::new(STDIN), source),
        }
    }

    /// Reads one file.
    pub fn file(&mut self, path: &Path) {
        match fs::read(path).map(Zeroizing::new) {
            Ok(bytes) => self.bytes(&path.display().to_string(), &bytes),
            Err(source) => self.unreadable("read", path, source),
        }
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        match str::from_utf8(bytes) {
            Ok(text) => self.text(name, text),
            Err(error) => {
                let good = &bytes[..error.valid_up_to()];
                self.manifests.errors.push(ManifestError::NotText {
                    path: name.to_owned(),
                    line: good.split(|byte| *byte == b'\n').count(),
                });
            }
        }
    }

    fn unreadable(&mut self, step: &'static str, path: &Path, source: io::Error) {
        self.manifests.errors.push(ManifestError::Read {
            step,
            path: path.display().to_string(),
            source,
        });
    }
}

/// Whether a file of this name in a directory of manifests is one.
pub fn is_manifest_name(name: &str) -> bool {
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    !name.starts_with('.') && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// The manifests of a directory, sorted; `None` when `path` is not a directory.
fn files(path: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    if !path.is_dir() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        // What is not there any more is a problem to be told; a pipe or a device would be waited for.
        let is_file = fs::metadata(&path).map_or(true, |metadata| metadata.is_file());
        if name.is_some_and(is_manifest_name) && is_file {
            files.push(path);
        }
    }
    files.sort();
    Ok(Some(files))
}
