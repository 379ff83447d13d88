//! Where the files of an object go, and opening these directories (rules L3, L4).
//!
//! Invariant: no annotation and no key leads out of the roots. Paths are checked as text, and opened beneath their root
//! by the kernel, which follows no link out of it.

use std::{
    collections::BTreeMap,
    fs, iter,
    os::fd::{AsFd as _, OwnedFd},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use larder_files::sys;
use larder_projection::disk::resolve;
use rustix::io::{Errno, Result as SystemResult};
use serde::Deserialize;
use serde_json::Value;

use crate::{index::Index, selection::ObjectRef};

/// The names of files that are being written begin so.
pub(crate) const ASIDE: &str = ".larder-";
/// The end of keys whose value is a URL.
const URL: &str = ".url";
/// The longest URL.
const MAX_URL: usize = 8 << 10;
/// The longest path of a directory, as for the kernel (PATH_MAX, which includes a NUL).
const MAX_DIRECTORY: usize = 4095;

/// Where the files of objects go.
#[derive(Clone, Debug)]
pub struct Places {
    /// The folder, and the directories that annotations may also lead to: absolute, and [`normalized`].
    roots: Vec<PathBuf>,
    /// The annotation that names another directory (rule L4); `k8s-sidecar-target-directory` by default.
    pub annotation: String,
    /// Whether a file name has namespace, kind and name of its object (rule L3); off by default.
    pub unique_names: bool,
    /// The mode of files, of which the bits of 0777 count; `None`, the default, for the umask.
    pub mode: Option<u32>,
    /// Whether `*.url` keys are fetched (rule L7).
    pub(crate) fetch_urls: bool,
}

impl Places {
    /// Files in `folder`. Annotations may also lead to the directories `others`. `None` if a path is not absolute.
    pub fn new(folder: &Path, others: &[PathBuf]) -> Option<Self> {
        let roots = iter::once(folder)
            .chain(others.iter().map(PathBuf::as_path))
            .map(|root| root.is_absolute().then(|| normalized(root)));
        Some(Self {
            roots: roots.collect::<Option<_>>()?,
            annotation: "k8s-sidecar-target-directory".to_owned(),
            unique_names: false,
            mode: None,
            fetch_urls: true,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.roots[0]
    }

    /// The directory of an object with this annotation, in the folder or an allowed root.
    ///
    /// # Errors
    ///
    /// Why the object has none: the annotation leads out of them, or is too long.
    pub fn directory(&self, annotation: Option<&str>) -> Result<PathBuf, String> {
        let annotation = annotation.unwrap_or_default();
        let path = normalized(&self.folder().join(annotation));
        if path.as_os_str().len() > MAX_DIRECTORY {
            return Err(format!(
                "annotation {annotation:.200}… leads to a path of more than {MAX_DIRECTORY} bytes"
            ));
        }
        if self.split(&path).is_ok() && !annotation.contains('\0') {
            return Ok(path);
        }
        let folder = self.folder().display();
        Err(format!(
            "annotation {annotation:.200} leads out of {folder}; LARDER_FOLDER_ROOTS can allow it"
        ))
    }

    /// The name of a key's file, and the URL of its content, if that is the value; or why it has none.
    pub(crate) fn file_name(
        &self,
        object: &ObjectRef,
        key: &str,
        value: &[u8],
    ) -> Result<(String, Option<Arc<str>>), String> {
        let own = key.strip_suffix(URL).filter(|_| self.fetch_urls);
        let name = own.unwrap_or(key);
        if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) || name.starts_with(ASIDE)
        {
            return Err(format!("key {key:?} is not a file name"));
        }
        let url = own.map(|_| std::str::from_utf8(value).unwrap_or_default().trim());
        if url.is_some_and(|url| url.is_empty() || url.len() > MAX_URL) {
            return Err(format!("the value of key {key:?} is not a URL"));
        }
        let name = if self.unique_names {
            let (namespace, kind) = (&object.namespace, object.kind().singular());
            format!("namespace_{namespace}.{kind}_{}.{name}", object.name)
        } else {
            name.to_owned()
        };
        Ok((name, url.map(Arc::from)))
    }

    /// Whether objects may become files there.
    pub fn contains(&self, path: &Path) -> bool {
        self.split(&normalized(path)).is_ok()
    }

    /// The root of a path, and the rest of it.
    fn split<'a>(&'a self, path: &'a Path) -> SystemResult<(&'a Path, &'a Path)> {
        let inside = |root: &'a PathBuf| Some((root.as_path(), path.strip_prefix(root).ok()?));
        self.roots.iter().find_map(inside).ok_or(Errno::XDEV)
    }

    /// Opens a directory. A link may lead to another place beneath its root, and nowhere else.
    pub(crate) fn open(&self, directory: &Path) -> SystemResult<OwnedFd> {
        let (root, rest) = self.split(directory)?;
        let path = rest.join(".");
        let path = path.to_str().ok_or(Errno::INVAL)?;
        resolve(sys::open_root(root)?.as_fd(), path)
    }

    /// Whether an object can cause this error of its file, by its name and directory or together with other objects:
    /// a user who may create an object must not keep the sidecar from being ready. A full or broken disk is the
    /// operator's, and so is the folder itself.
    pub(crate) fn is_own_fault(&self, file: &Path, errno: Errno) -> bool {
        match errno {
            Errno::NAMETOOLONG | Errno::ISDIR | Errno::ILSEQ | Errno::INVAL => true,
            Errno::NOSPC
            | Errno::DQUOT
            | Errno::IO
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM => false,
            _ => file.parent() != Some(self.folder()),
        }
    }

    /// Opens a directory, and makes it if it is missing. The index has those that we made below a root.
    pub(crate) fn make(&self, directory: &Path, index: &mut Index) -> SystemResult<OwnedFd> {
        match self.open(directory) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let (_, rest) = self.split(directory)?;
        if let (Some(above), Some(name)) = (directory.parent(), rest.file_name()) {
            let above = self.make(above, index)?;
            match sys::make_dir(above.as_fd(), name, 0o777) {
                Ok(()) => index.add_directory(&directory.to_string_lossy()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        } else {
            fs::create_dir_all(directory)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        self.open(directory)
    }

    /// Removes a file of the index, and the directories above it that we made, if they are empty.
    pub(crate) fn remove(&self, file: &Path, index: &mut Index) -> SystemResult<()> {
        let (Some(mut directory), Some(name)) = (file.parent(), file.file_name()) else {
            return Err(Errno::INVAL);
        };
        match self.open(directory) {
            Ok(dir) => sys::may_be_missing(sys::remove_file(dir.as_fd(), name))?,
            // The roots have changed, or the directory was removed.
            Err(Errno::NOENT | Errno::XDEV | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
        index.remove(&file.to_string_lossy());
        while let Some(own) = directory.to_str()
            && index.has_made(own)
            && let (Some(above), Some(name)) = (directory.parent(), directory.file_name())
        {
            let removed = self
                .open(above)
                .and_then(|above| sys::remove_dir(above.as_fd(), name));
            if sys::may_be_missing(removed).is_err() {
                break;
            }
            index.remove(own);
            directory = above;
        }
        Ok(())
    }

    /// Removes files that an earlier process was writing into `directory`.
    pub(crate) fn remove_leftovers(&self, directory: &Path) {
        let place = self.open(directory);
        let Ok(open) = place.and_then(|place| sys::open_dir(place.as_fd(), ".")) else {
            return;
        };
        let names = sys::names(&open).unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(ASIDE)) {
            // It takes space, and does no other harm.
            let _ = sys::remove_file(open.as_fd(), name.as_str());
        }
    }
}

/// The value of an annotation.
pub(crate) fn annotation(json: &[u8], name: &str) -> Option<String> {
    // Nothing else of the metadata is decoded: `managedFields` may be large.
    #[derive(Deserialize)]
    struct Annotated {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        annotations: BTreeMap<String, Value>,
    }
    let annotated: Annotated = serde_json::from_slice(json).ok()?;
    let value = annotated.metadata.annotations.get(name)?;
    Some(value.as_str()?.to_owned())
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

    fn places(folder: &Path, others: &[PathBuf]) -> Places {
        Places::new(folder, others).unwrap()
    }

    #[test]
    fn roots_are_absolute_and_lead_nowhere_else() {
        let other = PathBuf::from("/f/a/../b/./");
        let places = places(Path::new("/"), &[other]);
        assert_eq!(places.roots, [Path::new("/"), Path::new("/f/b")]);
        for relative in ["", ".", "f"] {
            assert!(Places::new(Path::new(relative), &[]).is_none());
            assert!(Places::new(Path::new("/f"), &[relative.into()]).is_none());
        }
    }

    // sidecar 12
    #[test]
    fn annotation_stays_in_the_folder_or_an_allowed_root() {
        let places = places(Path::new("/f"), &["/other".into()]);
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
                directory(annotation),
                Ok(expected.to_owned()),
                "{annotation}"
            );
        }
        for annotation in ["../../etc", "/etc", "..", "/f2", "sub/../../g", "/f\0"] {
            let error = directory(annotation).unwrap_err();
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
        let places = places(&folder, &[]);
        let mut index = Index::open(&root.path().join("state"), &folder);
        for path in ["out", "out/x"] {
            let opened = places.make(&folder.join(path), &mut index);
            assert_eq!(opened.unwrap_err(), Errno::XDEV);
        }
        for path in ["link", "a/b"] {
            places.make(&folder.join(path), &mut index).unwrap();
        }
        for (path, is_ours) in [("in", false), ("link", false), ("a", true), ("a/b", true)] {
            let path = folder.join(path).display().to_string();
            assert_eq!(index.has_made(&path), is_ours, "{path}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn error_that_an_object_can_cause_is_its_own() {
        let places = places(Path::new("/f"), &[]);
        let is_own = |file: &str, errno| places.is_own_fault(Path::new(file), errno);
        for errno in [Errno::ISDIR, Errno::NAMETOOLONG] {
            assert!(is_own("/f/k", errno) && is_own("/f/a/k", errno));
        }
        for errno in [
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            Errno::NOTDIR,
            Errno::XDEV,
        ] {
            assert!(!is_own("/f/k", errno) && is_own("/f/a/k", errno));
        }
        assert!(!is_own("/f/a/k", Errno::NOSPC));
    }

    // sidecar 11
    #[test]
    fn unique_names_have_namespace_kind_and_name() {
        let object = ObjectRef::new(Kind::ConfigMap, "ns1", "a");
        let mut unique = places(Path::new("/f"), &[]);
        unique.unique_names = true;
        let url = "http://h/";
        for (key, expected_url) in [("x.json", None), ("x.json.url", Some(url.into()))] {
            let expected = "namespace_ns1.configmap_a.x.json".to_owned();
            let found = unique.file_name(&object, key, url.as_bytes());
            assert_eq!(found, Ok((expected, expected_url)));
        }
        for key in [".url", "..", "", "a/b", "a\0", ".larder-1"] {
            let found = unique.file_name(&object, key, url.as_bytes());
            assert!(found.is_err(), "{key:?}");
        }
    }
}
