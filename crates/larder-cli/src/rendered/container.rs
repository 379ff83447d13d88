//! Everything that one container sees: variables, and files at their paths in the container.
//!
//! Invariants:
//! 1. A mount hides what outer mounts show at its path and below it.
//! 2. What is there only perhaps is a [`PathTerm`], and [`ContainerContent::look_up`] answers for each path, also for one
//!    that only an object that is not known may have.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use larder_projection::{
    ANY_KEY, AnyFiles, ContainerView, Environment, File, Mount, MountTable, Origin, Payload,
    Projection, Question, Unknown, UnknownSource, Value, Variable, VolumePath, fs_group,
};

use super::{pod::RenderedPod, token::ShownMount};

/// What a container sees.
pub(crate) struct ContainerContent<'r> {
    pub(crate) environment: &'r Environment<'r>,
    pub(crate) mounts: &'r MountTable<'r>,
    /// With the one that the API server adds.
    pub(crate) all_mounts: Vec<ShownMount<'r>>,
    container: ContainerView<'r>,
    pod: &'r RenderedPod<'r>,
    /// The mount at each path; of several, the last one.
    by_path: HashMap<&'r str, &'r Mount<'r>>,
}

/// A volume that is filled from objects, where all or a part of it is mounted.
#[derive(Clone, Copy)]
pub(crate) struct MountedVolume<'r> {
    pub(crate) mount: &'r Mount<'r>,
    projection: &'r Projection<'r>,
    /// The pod's `fsGroup`.
    group: Option<u32>,
}

/// What is at a path in a container.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathTerm<'r> {
    /// The file that is there if none of the layers is.
    pub(crate) below: Option<MountedFile<'r>>,
    /// The last one whose question is answered with yes counts.
    pub(crate) layers: Vec<(Question, MountedFile<'r>)>,
}

/// A file as a container sees it.
#[derive(Clone, Debug)]
pub(crate) struct MountedFile<'r> {
    pub(crate) file: Cow<'r, File<'r>>,
    pub(crate) origin: Option<Cow<'r, Origin<'r>>>,
    /// The origin of the file that is there if this one is not.
    pub(crate) fallback: Option<Cow<'r, Origin<'r>>>,
    /// Whether its content must not be shown.
    pub(crate) secret: bool,
    /// The pod's `fsGroup`, to which the file belongs and which may read it.
    pub(crate) group: Option<u32>,
    /// Its mount, if that has a `subPath`: a running container keeps the old file, unless larder replaces it.
    pub(crate) sub_mount: Option<&'r Mount<'r>>,
}

impl<'r> PathTerm<'r> {
    /// What is there if each question is answered so.
    pub(crate) fn settled(&self, is_true: &dyn Fn(&Question) -> bool) -> Option<&MountedFile<'r>> {
        let mut layers = self.layers.iter().rev();
        layers
            .find(|(question, _)| is_true(question))
            .map(|(_, file)| file)
            .or(self.below.as_ref())
    }

    /// All files that may be there.
    pub(crate) fn files(&self) -> impl Iterator<Item = &MountedFile<'r>> {
        self.layers
            .iter()
            .rev()
            .map(|(_, file)| file)
            .chain(&self.below)
    }

    /// What is left open in what they are made of.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &UnknownSource> {
        let unknown = self.files().filter_map(|file| file.file.data.unknown());
        unknown.flat_map(Unknown::sources)
    }

    /// All of it as one file, to show it.
    pub(crate) fn shown(&self) -> Option<MountedFile<'r>> {
        let Some((_, top)) = self.layers.last() else {
            return self.below.clone();
        };
        let term = |one: &MountedFile<'_>| one.file.data.clone().into_term();
        let layers = self.layers.iter();
        let data = layers.fold(self.below.as_ref().map(term), |below, (question, file)| {
            Some(Unknown::layered(below, question.clone(), term(file)))
        });
        let mut shown = top.clone();
        shown.file.to_mut().data = Value::Unknown(Box::new(data?));
        shown.fallback = self.below.as_ref().and_then(|below| below.origin.clone());
        shown.secret = self.files().any(|file| file.secret);
        Some(shown)
    }
}

impl MountedFile<'_> {
    /// Whether both are tokens of different accounts, or for different readers.
    pub(crate) fn is_other_token(&self, other: &Self) -> bool {
        match (self.origin.as_deref(), other.origin.as_deref()) {
            (Some(one @ Origin::Token { .. }), Some(other @ Origin::Token { .. })) => one != other,
            _ => false,
        }
    }

    /// Whether its place in the volume must not be shown: something of a Secret selects it.
    pub(crate) fn has_secret_place(&self) -> bool {
        self.sub_mount.is_some_and(|mount| mount.secret_sub_path)
    }
}

impl<'r> ContainerContent<'r> {
    pub(super) fn new(
        container: &ContainerView<'r>,
        environment: &'r Environment<'r>,
        mounts: &'r MountTable<'r>,
        pod: &'r RenderedPod<'r>,
    ) -> Self {
        let by_path = mounts.iter().map(|mount| (root(mount), mount)).collect();
        Self {
            environment,
            mounts,
            all_mounts: pod.all_mounts(container, mounts),
            container: *container,
            pod,
            by_path,
        }
    }

    /// Whether its command line has the value of this variable.
    pub(crate) fn command_refers_to(&self, variable: &str) -> bool {
        self.container.command_refers_to(variable)
    }

    /// Whether it has variables of the Services of its namespace.
    pub(crate) fn has_service_links(&self) -> bool {
        let spec = self.pod.pod.spec.as_ref();
        spec.is_none_or(|spec| spec.enable_service_links != Some(false))
    }

    /// The innermost mount that shows `path`, and the path below its own.
    pub(crate) fn mount_of<'p>(&self, path: &'p str) -> Option<(&'r Mount<'r>, &'p str)> {
        let mut at = path;
        loop {
            if let Some(mount) = self.by_path.get(at) {
                return Some((mount, path[at.len()..].trim_start_matches('/')));
            }
            (at, _) = at.rsplit_once('/')?;
        }
    }

    /// The volume of a mount, if it is filled from objects.
    fn projection(&self, mount: &Mount<'_>) -> Option<&'r Projection<'r>> {
        self.pod.projection(&mount.volume.name)?.as_ref().ok()
    }

    /// What is at `path`, unless it depends on a `subPath` that is not known.
    pub(crate) fn look_up(&self, path: &str) -> PathTerm<'r> {
        let found = self.mount_of(path);
        let found = found.filter(|(mount, _)| mount.unknown_sub_path.is_none());
        let Some((volume, below)) =
            found.and_then(|(mount, below)| Some((self.volume(mount)?, below)))
        else {
            return PathTerm::default();
        };
        let part = path_in_volume(volume.mount.sub_path.as_deref().unwrap_or_default());
        let in_volume = [part.as_str(), below]
            .into_iter()
            .filter(|text| !text.is_empty());
        volume.look_up(&in_volume.collect::<Vec<_>>().join("/"))
    }

    /// Whether it depends on a `subPath` that is not known what is at `path`.
    pub(crate) fn is_in_unknown_part(&self, path: &str) -> bool {
        let found = self.mount_of(path);
        found.is_some_and(|(mount, _)| mount.unknown_sub_path.is_some())
    }

    fn volume(&self, mount: &'r Mount<'r>) -> Option<MountedVolume<'r>> {
        Some(MountedVolume {
            mount,
            projection: self.projection(mount)?,
            group: fs_group(self.pod.pod),
        })
    }

    /// The volume of which something is mounted at the path `root`, if it is filled from objects.
    pub(crate) fn volume_at(&self, root: &str) -> Option<MountedVolume<'r>> {
        self.volume(self.by_path.get(root)?)
    }

    /// The paths that it sees or perhaps sees, as far as they are known by name.
    pub(crate) fn paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        for (root, mount) in &self.by_path {
            if mount.unknown_sub_path.is_some() {
                continue;
            }
            let sub_path = mount.sub_path.as_deref().unwrap_or("");
            let in_volume = self
                .projection(mount)
                .into_iter()
                .flat_map(Projection::paths);
            let wanted = path_in_volume(sub_path);
            for path in in_volume {
                let Some(below) = below(path.as_str(), &wanted) else {
                    continue;
                };
                let slash = if below.is_empty() { "" } else { "/" };
                let path = format!("{root}{slash}{below}");
                let shows = self.mount_of(&path).map(|(found, _)| found.index);
                if shows == Some(mount.index) {
                    paths.insert(path);
                }
            }
            // A file of this name may be there, unless it is a directory.
            let is_name = !wanted.is_empty() && !wanted.contains('/');
            let any_keys = self.projection(mount).map_or(&[][..], Projection::any_keys);
            let mut named = self
                .projection(mount)
                .into_iter()
                .flat_map(Projection::paths);
            let is_directory = named.any(|path| below(path.as_str(), &wanted).is_some());
            if is_name && !any_keys.is_empty() && !is_directory {
                paths.insert((*root).to_owned());
            }
        }
        paths
    }

    /// All keys of objects whose keys are not known, by the path where they are.
    pub(crate) fn any_files(&self) -> BTreeMap<&'r str, &'r [AnyFiles<'r>]> {
        let mounts = self.by_path.iter();
        let whole = mounts.filter(|(_, mount)| {
            path_in_volume(mount.sub_path.as_deref().unwrap_or_default()).is_empty()
        });
        let found = whole.filter_map(|(root, mount)| {
            let keys = self.projection(mount)?.any_keys();
            (!keys.is_empty()).then_some((*root, keys))
        });
        found.collect()
    }

    /// The paths of mounts of a part of a filled volume that is not known: any part may be what the container sees.
    pub(crate) fn unknown_parts(&self) -> impl Iterator<Item = &'r str> {
        let mounts = self.by_path.iter();
        let unknown = mounts.filter(|(_, mount)| mount.unknown_sub_path.is_some());
        unknown.map(|(root, _)| *root)
    }

    /// The variables that something other than a Service sets.
    pub(crate) fn own_variables(&self) -> impl Iterator<Item = (&'r str, &'r Variable<'r>)> {
        self.environment
            .iter()
            .filter(|(_, one)| !matches!(one.origin, Origin::Service { .. }))
    }

    /// What is not known of it: `secret shop-tls`, `status.podIP`. Without what only Services set.
    pub(crate) fn unknown(&self) -> BTreeSet<String> {
        let sources = self
            .own_variables()
            .filter_map(|(_, one)| one.value.unknown())
            .flat_map(Unknown::sources);
        let mut unknown: BTreeSet<_> = sources.map(|source| source.what.to_string()).collect();
        let any_keys = self.environment.any_keys().iter();
        unknown.extend(any_keys.map(|all| all.object.to_string()));
        for mount in self.by_path.values() {
            let part = mount.unknown_sub_path.iter().flat_map(Unknown::sources);
            unknown.extend(part.map(|source| source.what.to_string()));
        }
        let any = self.any_files();
        let any = any.values().flat_map(|keys| keys.iter());
        unknown.extend(any.map(|all| all.keys.object.to_string()));
        let mut of_file = |file: &File<'_>| {
            let sources = file.data.unknown().into_iter().flat_map(Unknown::sources);
            unknown.extend(sources.map(|source| source.what.to_string()));
        };
        for path in self.paths() {
            self.look_up(&path)
                .files()
                .for_each(|found| of_file(&found.file));
        }
        for volume in self.unknown_parts().filter_map(|root| self.volume_at(root)) {
            volume.projection.payload.values().for_each(&mut of_file);
        }
        unknown
    }
}

impl<'r> MountedVolume<'r> {
    /// The paths in it, as far as they are known by name, and the one that stands for all others.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        let paths = self.projection.paths();
        let others = self
            .projection
            .any_keys()
            .first()
            .map(|_| ANY_KEY.to_owned());
        paths.map(|path| path.as_str().to_owned()).chain(others)
    }

    /// What is at a path in it.
    pub(crate) fn look_up(&self, path: &str) -> PathTerm<'r> {
        let view = self.projection.look_up(path);
        let mounted = |file: Cow<'r, File<'r>>, origin: Option<Cow<'r, Origin<'r>>>| MountedFile {
            file,
            secret: origin.as_ref().is_none_or(|origin| origin.is_secret()),
            origin,
            fallback: None,
            group: self.group,
            sub_mount: self.mount.sub_path.is_some().then_some(self.mount),
        };
        let layers = match view.layers {
            Cow::Borrowed(layers) => layers
                .iter()
                .map(|layer| {
                    let (file, origin) = (Cow::Borrowed(&layer.file), Cow::Borrowed(&layer.origin));
                    (layer.question.clone(), mounted(file, Some(origin)))
                })
                .collect(),
            Cow::Owned(layers) => layers
                .into_iter()
                .map(|layer| {
                    let (file, origin) = (Cow::Owned(layer.file), Cow::Owned(layer.origin));
                    (layer.question, mounted(file, Some(origin)))
                })
                .collect(),
        };
        let below = view.below;
        let below =
            below.map(|(file, origin)| mounted(Cow::Borrowed(file), origin.map(Cow::Borrowed)));
        PathTerm { below, layers }
    }
}

impl RenderedPod<'_> {
    /// What the container at `index` sees, or would see; of one that does not start, as far as it can be computed.
    pub(crate) fn content(&self, index: usize) -> Option<ContainerContent<'_>> {
        let (container, _) = &self.containers[index];
        let view = self.view(index)?;
        Some(ContainerContent::new(
            container,
            &view.environment,
            &view.mounts,
            self,
        ))
    }
}

/// The path of a mount, as it is before a slash.
fn root<'r>(mount: &'r Mount<'_>) -> &'r str {
    mount.mount_path.trim_end_matches('/')
}

/// The path in a volume that a `subPath` names, without empty elements. `..data` is the set, of which a container sees
/// plain files.
pub(crate) fn path_in_volume(sub_path: &str) -> String {
    let elements: Vec<_> = sub_path
        .split('/')
        .filter(|e| !matches!(*e, "" | "."))
        .collect();
    let below = elements.strip_prefix(&["..data"]).unwrap_or(&elements);
    below.join("/")
}

/// The part of `path` below `wanted`, if it is there or below.
fn below<'p>(path: &'p str, wanted: &str) -> Option<&'p str> {
    let below = path.strip_prefix(wanted)?;
    let is_inside = wanted.is_empty() || below.is_empty() || below.starts_with('/');
    is_inside.then(|| below.trim_start_matches('/'))
}

/// The files of a volume at or below `sub_path`, each with its path below `sub_path` and its path in the volume.
pub(crate) fn files_below<'p, 'a>(
    payload: &'p Payload<'a>,
    sub_path: &str,
) -> impl Iterator<Item = (&'p str, &'p VolumePath, &'p File<'a>)> {
    let wanted = path_in_volume(sub_path);
    let from = (Bound::Included(wanted.as_str()), Bound::Unbounded);
    let prefix = wanted.clone();
    payload
        .range::<str, _>(from)
        .take_while(move |(path, _)| path.as_str().starts_with(&prefix))
        .filter_map(move |(path, file)| Some((below(path.as_str(), &wanted)?, path, file)))
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
        // The set, and what is in it.
        assert_eq!(below("..data/."), below("."));
        assert_eq!(below("./..data/d/y"), ["z"]);
        assert_eq!(below("d/..data"), [""; 0]);
        assert_eq!(below("."), ["a", "a-b", "d.conf", "d/x", "d/y/z"]);
    }
}
