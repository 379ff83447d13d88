//! Everything that one container sees: variables, and files at their paths in the container.
//!
//! Invariants:
//! 1. A mount hides what outer mounts show at its path and below it.
//! 2. A container that would not start sees nothing.

use std::{collections::BTreeMap, ops::Bound};

use larder_projection::{
    Environment, File, Mount, MountTable, Origin, Payload, Unknown, UnknownSource, VolumePath,
    fs_group,
};

use super::pod::RenderedPod;

/// What a container sees.
#[derive(Debug)]
pub(crate) struct ContainerContent<'r> {
    pub(crate) environment: &'r Environment<'r>,
    pub(crate) mounts: &'r MountTable<'r>,
    /// By absolute path. Only volumes that are filled from objects have known files.
    pub(crate) files: BTreeMap<String, MountedFile<'r>>,
}

/// A file as a container sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountedFile<'r> {
    pub(crate) file: &'r File<'r>,
    pub(crate) origin: Option<&'r Origin<'r>>,
    /// The pod's `fsGroup`, to which the file belongs and which may read it.
    pub(crate) group: Option<u32>,
    /// Its mount, if that has a `subPath`: a running container keeps the old file, unless larder replaces it.
    pub(crate) sub_mount: Option<&'r Mount<'r>>,
}

impl ContainerContent<'_> {
    /// The sources of what is not known.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &UnknownSource> {
        let files = self.files.values();
        let files = files.filter_map(|mounted| mounted.file.data.unknown());
        let all = self.environment.unknown().chain(files);
        all.flat_map(Unknown::sources)
    }
}

impl MountedFile<'_> {
    /// Whether its content must not be shown.
    pub(crate) fn is_secret(&self) -> bool {
        self.origin.is_none_or(Origin::is_secret)
    }

    /// Whether its place in the volume must not be shown: something of a Secret selects it.
    pub(crate) fn has_secret_place(&self) -> bool {
        self.sub_mount.is_some_and(|mount| mount.secret_sub_path)
    }
}

impl RenderedPod<'_> {
    /// What the container at `index` sees.
    ///
    /// # Errors
    ///
    /// The reason why the container would not start.
    pub(crate) fn content(&self, index: usize) -> Result<ContainerContent<'_>, String> {
        let (container, view) = &self.containers[index];
        let view = view.as_ref().map_err(|error| self.start_error(error))?;
        for volume in container.volumes() {
            if let Some(Err(error)) = self.projection(volume) {
                return Err(format!("volume {volume}: {}", self.volume_error(error)));
            }
        }
        let mut outer_first: Vec<_> = view.mounts.iter().collect();
        outer_first.sort_by_key(|mount| mount.mount_path.len());
        let mut files = BTreeMap::new();
        let group = fs_group(self.pod);
        for mount in outer_first {
            hide(&mut files, &mount.mount_path);
            let Some(Ok(projection)) = self.projection(&mount.volume.name) else {
                continue;
            };
            let sub_path = mount.sub_path.as_deref();
            let sub_mount = sub_path.map(|_| mount);
            let root = mount.mount_path.trim_end_matches('/');
            let mounted = |file, origin| MountedFile {
                file,
                origin,
                group,
                sub_mount,
            };
            if let Some((file, origin)) = &projection.opaque {
                let all = if sub_path.is_some() { "" } else { "/*" };
                files.insert(format!("{root}{all}"), mounted(file, Some(origin)));
            }
            // Of one that is not known, any part of the volume may be what the container sees.
            let part = sub_path.filter(|_| mount.unknown_sub_path.is_none());
            for (below, path, file) in files_below(&projection.payload, part.unwrap_or("")) {
                let slash = if below.is_empty() { "" } else { "/" };
                let file = mounted(file, projection.origins.get(path));
                files.insert(format!("{root}{slash}{below}"), file);
            }
        }
        Ok(ContainerContent {
            environment: &view.environment,
            mounts: &view.mounts,
            files,
        })
    }
}

/// Removes the files at `path` and below it.
fn hide(files: &mut BTreeMap<String, MountedFile<'_>>, path: &str) {
    let root = path.trim_end_matches('/');
    let from = (Bound::Included(root), Bound::Unbounded);
    let near = files.range::<str, _>(from).map(|(path, _)| path);
    let near = near.take_while(|path| path.starts_with(root));
    let is_below = |path: &&String| matches!(path.as_bytes().get(root.len()), None | Some(b'/'));
    let hidden: Vec<_> = near.filter(is_below).cloned().collect();
    for path in hidden {
        files.remove(&path);
    }
}

/// The files of a volume at or below `sub_path`, each with its path below `sub_path` and its path in the volume.
pub(crate) fn files_below<'p, 'a>(
    payload: &'p Payload<'a>,
    sub_path: &str,
) -> impl Iterator<Item = (&'p str, &'p VolumePath, &'p File<'a>)> {
    let elements = sub_path.split('/');
    let elements: Vec<_> = elements.filter(|e| !matches!(*e, "" | ".")).collect();
    let wanted = elements.join("/");
    let from = (Bound::Included(wanted.as_str()), Bound::Unbounded);
    let prefix = wanted.clone();
    let near = payload.range::<str, _>(from);
    let near = near.take_while(move |(path, _)| path.as_str().starts_with(&prefix));
    near.filter_map(move |(path, file)| {
        let below = &path.as_str()[wanted.len()..];
        let is_inside = wanted.is_empty() || below.is_empty() || below.starts_with('/');
        is_inside.then(|| (below.trim_start_matches('/'), path, file))
    })
}

#[cfg(test)]
mod tests {
    use larder_projection::Value;

    use super::*;

    fn payload(paths: &[&str]) -> Payload<'static> {
        let file = File {
            data: Value::Borrowed(b""),
            mode: 0o644,
            owner: None,
        };
        let paths = paths.iter();
        paths
            .map(|path| (VolumePath::parse(path).unwrap(), file.clone()))
            .collect()
    }

    #[test]
    fn sub_path_selects_a_file_or_a_directory() {
        let payload = payload(&["a", "a-b", "d/x", "d/y/z", "d.conf"]);
        let below = |sub_path| -> Vec<_> {
            files_below(&payload, sub_path)
                .map(|(below, ..)| below)
                .collect()
        };
        assert_eq!(below("a"), [""]);
        assert_eq!(below("./d//"), ["x", "y/z"]);
        assert_eq!(below("d/y"), ["z"]);
        assert_eq!(below("missing"), [""; 0]);
        assert_eq!(below("."), ["a", "a-b", "d.conf", "d/x", "d/y/z"]);
    }

    #[test]
    fn inner_mount_hides_what_lies_below_it() {
        let payload = payload(&["x"]);
        let (_, _, file) = files_below(&payload, "").next().unwrap();
        let file = MountedFile {
            file,
            origin: None,
            group: None,
            sub_mount: None,
        };
        let paths = ["/a", "/a-b", "/a/b", "/a/b/c", "/ab"];
        let mut files: BTreeMap<_, _> = paths.map(|path| (path.to_owned(), file)).into();
        hide(&mut files, "/a/b");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["/a", "/a-b", "/ab"]);
        hide(&mut files, "/a");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["/a-b", "/ab"]);
        hide(&mut files, "/");
        assert!(files.is_empty());
    }
}
