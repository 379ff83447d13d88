//! Where the files of an object go, and opening these directories (rules L3, L4).
//!
//! Invariant: no annotation and no key leads out of the roots. Paths are checked as text, and opened beneath their root
//! by the kernel, which follows no link out of it.

use std::{
    fs,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use larder_files::{beneath, sys};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::{Errno, Result as SystemResult},
};

use crate::{selection::ObjectRef, settings::FileSettings};

/// The names of files that are being written begin so.
pub(crate) const ASIDE: &str = ".larder-";
/// The end of keys whose value is a URL.
const URL: &str = ".url";

/// Why an object or a key has no file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("annotation {annotation} leads out of {folder}; LARDER_FOLDER_ROOTS can allow it")]
    Outside { annotation: String, folder: String },
    #[error("key {key:?} is not a file name")]
    Key { key: String },
}

/// The name of a key's file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileName {
    pub(crate) name: String,
    /// The value is the URL of the content.
    pub(crate) is_url: bool,
}

/// The directories that files may be in.
#[derive(Debug)]
pub(crate) struct Places {
    settings: FileSettings,
    /// The folder first.
    roots: Vec<PathBuf>,
}

impl Places {
    pub(crate) fn new(settings: FileSettings) -> Self {
        let folder = std::path::absolute(&settings.folder);
        let folder = normalized(&folder.unwrap_or_else(|_| settings.folder.clone()));
        let others = settings.roots.iter().map(|root| normalized(root));
        Self {
            roots: std::iter::once(folder).chain(others).collect(),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &FileSettings {
        &self.settings
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.roots[0]
    }

    /// The directory of an object with this annotation.
    pub(crate) fn directory(&self, annotation: Option<&str>) -> Result<PathBuf, PlaceError> {
        let Some(annotation) = annotation else {
            return Ok(self.folder().to_owned());
        };
        let path = normalized(&self.folder().join(annotation));
        if self.split(&path).is_some() && !annotation.contains('\0') {
            Ok(path)
        } else {
            Err(PlaceError::Outside {
                annotation: annotation.to_owned(),
                folder: self.folder().display().to_string(),
            })
        }
    }

    /// The file of a key.
    pub(crate) fn file_name(&self, object: &ObjectRef, key: &str) -> Result<FileName, PlaceError> {
        let is_url = self.settings.fetch_urls && key.ends_with(URL);
        let own = key.strip_suffix(URL).filter(|_| is_url).unwrap_or(key);
        let is_name = !matches!(own, "" | "." | "..")
            && !own.contains(['/', '\0'])
            && !own.starts_with(ASIDE);
        if !is_name {
            return Err(PlaceError::Key {
                key: key.to_owned(),
            });
        }
        let name = if self.settings.unique_names {
            let (namespace, kind) = (&object.namespace, object.kind.singular());
            format!("namespace_{namespace}.{kind}_{}.{own}", object.name)
        } else {
            own.to_owned()
        };
        Ok(FileName { name, is_url })
    }

    /// The root of a path, and the rest of it.
    fn split<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let inside = |root: &'a PathBuf| Some((root.as_path(), path.strip_prefix(root).ok()?));
        self.roots.iter().find_map(inside)
    }

    /// Opens a directory. Missing ones are made if `made` is given, which is told of those below a root.
    pub(crate) fn open(
        &self,
        directory: &Path,
        made: Option<&mut dyn FnMut(&Path)>,
    ) -> SystemResult<OwnedFd> {
        let (root, rest) = self.split(directory).ok_or(Errno::XDEV)?;
        if made.is_some() && !root.exists() {
            fs::create_dir_all(root)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        let root_dir = sys::open_root(root)?;
        if rest.as_os_str().is_empty() {
            return Ok(root_dir);
        }
        let Some(made) = made else {
            return open_beneath(root_dir.as_fd(), rest);
        };
        match open_beneath(root_dir.as_fd(), rest) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let mut reached = PathBuf::new();
        for part in rest {
            let parent = if reached.as_os_str().is_empty() {
                None
            } else {
                Some(open_beneath(root_dir.as_fd(), &reached)?)
            };
            let parent = parent.as_ref().unwrap_or(&root_dir);
            reached.push(part);
            match sys::make_dir(parent.as_fd(), part, 0o777) {
                Ok(()) => made(&root.join(&reached)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        open_beneath(root_dir.as_fd(), rest)
    }

    /// Removes files that an earlier process was writing into `directory`.
    pub(crate) fn remove_leftovers(&self, directory: &Path) {
        let listed = self
            .open(directory, None)
            .and_then(|place| sys::open_dir(place.as_fd(), "."))
            .and_then(|open| Ok((sys::names(&open)?, open)));
        let Ok((names, open)) = listed else {
            return;
        };
        for name in names.iter().filter(|name| name.starts_with(ASIDE)) {
            // It takes space, and does no other harm.
            let _ = sys::remove_file(open.as_fd(), name.as_str());
        }
    }
}

/// A link may lead to another place beneath `root`, and nowhere else.
fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> SystemResult<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        // Linux before 5.6, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => {
            beneath::open_place(root, path.as_os_str().as_encoded_bytes())
        }
        opened => opened,
    }
}

/// Without `.` and `..`, as text.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            component => normal.push(component),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use larder_objects::Kind;

    use super::*;

    fn places(folder: &Path, roots: &[&Path], unique_names: bool) -> Places {
        Places::new(FileSettings {
            folder: folder.to_owned(),
            annotation: "a".to_owned(),
            roots: roots.iter().map(|root| root.to_path_buf()).collect(),
            unique_names,
            mode: None,
            fetch_urls: true,
        })
    }

    // sidecar 12
    #[test]
    fn annotation_stays_in_the_folder_or_an_allowed_root() {
        let places = places(Path::new("/f"), &[Path::new("/other")], false);
        let directory = |annotation| {
            let found = places.directory(Some(annotation));
            found.map(|path| path.display().to_string())
        };
        for (annotation, expected) in [
            ("sub", "/f/sub"),
            ("/f/sub/", "/f/sub"),
            ("a/../b", "/f/b"),
            ("", "/f"),
            ("/other/x", "/other/x"),
        ] {
            assert_eq!(
                directory(annotation).as_deref(),
                Ok(expected),
                "{annotation}"
            );
        }
        for annotation in ["../../etc", "/etc", "..", "/f2", "sub/../../g", "/f\0"] {
            let error = directory(annotation).unwrap_err().to_string();
            assert!(error.ends_with("leads out of /f; LARDER_FOLDER_ROOTS can allow it"));
        }
    }

    // sidecar 12
    #[test]
    fn link_that_leads_out_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (folder, outside) = (root.path().join("f"), root.path().join("outside"));
        fs::create_dir_all(folder.join("in")).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, folder.join("out")).unwrap();
        symlink("in", folder.join("link")).unwrap();
        let places = places(&folder, &[], false);
        let mut made = Vec::new();
        let mut note = |path: &Path| made.push(path.to_owned());
        for path in ["out", "out/x"] {
            let opened = places.open(&folder.join(path), Some(&mut note));
            assert_eq!(opened.unwrap_err(), Errno::XDEV);
        }
        places.open(&folder.join("link"), Some(&mut note)).unwrap();
        places.open(&folder.join("a/b"), Some(&mut note)).unwrap();
        assert_eq!(made, [folder.join("a"), folder.join("a/b")]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    // sidecar 11
    #[test]
    fn unique_names_have_namespace_kind_and_name() {
        let object = ObjectRef {
            kind: Kind::ConfigMap,
            namespace: "ns1".into(),
            name: "a".into(),
        };
        let unique = places(Path::new("/f"), &[], true);
        let file = unique.file_name(&object, "x.json").unwrap();
        assert_eq!(file.name, "namespace_ns1.configmap_a.x.json");
        let file = unique.file_name(&object, "x.json.url").unwrap();
        assert_eq!(file.name, "namespace_ns1.configmap_a.x.json");
        assert!(file.is_url);
        for key in [".url", "..", "", "a/b", "a\0", ".larder-1"] {
            assert!(unique.file_name(&object, key).is_err(), "{key:?}");
        }
    }
}
