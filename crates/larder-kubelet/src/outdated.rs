//! Content that a container sees only after a restart: variables, and mounts with `subPath` (section 7).
//!
//! Mounts are known exactly, since their content is on disk. Variables are known only for a container whose start
//! larder has seen: they were computed before the status showed the container, and were still the same when it did.
//!
//! Invariant: values are held as keyed fingerprints.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
};

use jiff::Timestamp;
use larder_objects::Kind;
use larder_projection::Origin;
use smol_str::SmolStr;

use crate::{fingerprint::Fingerprint, rules::RunningContainer};

/// A ConfigMap or Secret in the namespace of the pod, shown as in `ConfigMap app`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceObject {
    kind: Kind,
    name: SmolStr,
}

impl SourceObject {
    /// The object that content of this origin comes from.
    pub fn of(origin: &Origin<'_>) -> Option<Self> {
        let (kind, name) = origin.object()?;
        let name = SmolStr::new(name);
        Some(Self { kind, name })
    }
}

impl fmt::Display for SourceObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Variables that come from objects, by name: the fingerprint of the value, and the object.
pub type Variables = BTreeMap<SmolStr, (Fingerprint, SourceObject)>;

/// The versions of objects that a comparison has read.
pub type ObjectVersions = BTreeMap<SourceObject, SmolStr>;

/// The versions of the objects among `origins`.
pub fn versions_of<'o>(origins: impl Iterator<Item = &'o Origin<'o>>) -> ObjectVersions {
    origins
        .filter_map(|origin| match origin {
            Origin::Key {
                resource_version, ..
            } => Some((
                SourceObject::of(origin)?,
                SmolStr::new(resource_version.as_str()),
            )),
            _ => None,
        })
        .collect()
}

/// A mount with `subPath` through which a container sees content that differs from the computed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutdatedMount {
    /// Name of the container.
    pub container: SmolStr,
    /// Its `mountPath`.
    pub mount_path: String,
    /// The objects that the volume is made of.
    pub objects: BTreeSet<SourceObject>,
}

/// What a container sees only after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutdatedKind {
    /// A variable.
    Variable,
    /// A mount with `subPath`.
    SubPath,
}

impl OutdatedKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Variable, Self::SubPath];

    /// The kind in the status, and as the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Variable => "env",
            Self::SubPath => "subPath",
        }
    }
}

/// A variable or mount of a container that is out of date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutdatedContent {
    /// Which of both.
    pub kind: OutdatedKind,
    /// Name of the variable, or path of the mount.
    pub name: String,
    /// The object of the variable, or the objects that the volume is made of.
    pub objects: BTreeSet<SourceObject>,
    /// Since when it is out of date.
    pub since: Timestamp,
}

/// The containers of one pod.
#[derive(Debug, Default)]
pub struct Outdated {
    /// Of all objects that were read.
    versions: ObjectVersions,
    containers: BTreeMap<SmolStr, ContainerContent>,
    /// Whether the pod's status was seen before.
    is_known: bool,
    /// The containers with a mount of the volume that was out of date.
    mounted_in: BTreeMap<SmolStr, BTreeSet<SmolStr>>,
}

#[derive(Debug, Default)]
struct ContainerContent {
    /// ID of the running container.
    id: Option<SmolStr>,
    computed: Option<Variables>,
    /// Whether they have changed since the status was last seen.
    has_changed: bool,
    /// The variables that the container was started with, if known.
    at_start: Option<Variables>,
    /// The objects of mounts that are out of date, by volume and mount path.
    sub_paths: BTreeMap<SmolStr, BTreeMap<String, BTreeSet<SourceObject>>>,
    /// When each entry became out of date, by kind and name.
    since: BTreeMap<(OutdatedKind, String), Timestamp>,
    /// The objects that were announced, each at the version of that time.
    announced: BTreeMap<SourceObject, Option<SmolStr>>,
}

impl Outdated {
    /// Takes in the containers that run by the status of the pod.
    pub fn running(&mut self, containers: &[RunningContainer]) {
        for container in containers {
            let content = self.containers.entry(container.name.clone()).or_default();
            if content.id.as_ref() != Some(&container.id) {
                let saw_start = self.is_known && !content.has_changed;
                content.at_start = content.computed.clone().filter(|_| saw_start);
                content.id = Some(container.id.clone());
                content.sub_paths.clear();
                content.since.clear();
                content.announced.clear();
            }
        }
        for content in self.containers.values_mut() {
            content.has_changed = false;
        }
        self.is_known = true;
    }

    /// Takes in the versions of the objects that a look has read.
    pub fn read(&mut self, versions: ObjectVersions) {
        self.versions.extend(versions);
    }

    /// The objects of `outdated`, which `container` does not see, that were not returned before at their version.
    pub fn announce(
        &mut self,
        container: &str,
        outdated: &[OutdatedContent],
    ) -> BTreeSet<SourceObject> {
        let Some(content) = self.containers.get_mut(container) else {
            return BTreeSet::new();
        };
        let objects = outdated.iter().flat_map(|found| &found.objects);
        let is_new = |object: &&SourceObject| {
            let version = self.versions.get(*object).cloned();
            let before = content.announced.insert((*object).clone(), version.clone());
            before != Some(version)
        };
        objects.filter(is_new).cloned().collect()
    }

    /// Takes in the variables as computed now.
    pub fn computed(&mut self, container: &str, variables: Variables) {
        let content = self.containers.entry(container.into()).or_default();
        if content.computed.as_ref() != Some(&variables) {
            content.has_changed = content.computed.is_some();
            content.computed = Some(variables);
        }
    }

    /// Takes in all mounts with `subPath` of a volume that are out of date.
    pub fn sub_paths(&mut self, volume: &SmolStr, mounts: Vec<OutdatedMount>) {
        for container in self.mounted_in.remove(volume).unwrap_or_default() {
            if let Some(content) = self.containers.get_mut(&container) {
                content.sub_paths.remove(volume);
            }
        }
        for mount in mounts {
            self.mounted_in
                .entry(volume.clone())
                .or_default()
                .insert(mount.container.clone());
            let content = self.containers.entry(mount.container).or_default();
            let mounts = content.sub_paths.entry(volume.clone()).or_default();
            mounts.insert(mount.mount_path, mount.objects);
        }
    }

    /// The variables and mounts of `container` that are out of date at `now`.
    pub fn of(&mut self, container: &str, now: Timestamp) -> Vec<OutdatedContent> {
        let Some(content) = self.containers.get_mut(container) else {
            return Vec::new();
        };
        if content.id.is_none() {
            return Vec::new();
        }
        let mut found = Vec::new();
        if let (Some(before), Some(computed)) = (&content.at_start, &content.computed) {
            let names: BTreeSet<_> = before.keys().chain(computed.keys()).collect();
            for name in names {
                let (old, new) = (before.get(name), computed.get(name));
                if old.map(|(tag, _)| tag) != new.map(|(tag, _)| tag)
                    && let Some((_, object)) = new.or(old)
                {
                    let objects = [object.clone()].into();
                    found.push((OutdatedKind::Variable, name.to_string(), objects));
                }
            }
        }
        let mounts = content.sub_paths.values().flatten();
        found.extend(
            mounts.map(|(path, objects)| (OutdatedKind::SubPath, path.clone(), objects.clone())),
        );
        let before = mem::take(&mut content.since);
        let outdated = found.into_iter().map(|(kind, name, objects)| {
            let key = (kind, name.clone());
            let since = *before.get(&key).unwrap_or(&now);
            content.since.insert(key, since);
            OutdatedContent {
                kind,
                name,
                objects,
                since,
            }
        });
        outdated.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::fingerprint::FingerprintKey;

    static KEY: LazyLock<FingerprintKey> = LazyLock::new(FingerprintKey::default);

    fn app() -> SourceObject {
        SourceObject {
            kind: Kind::ConfigMap,
            name: "app".into(),
        }
    }

    fn variables(value: &str) -> Variables {
        [("LEVEL".into(), (KEY.of([value]), app()))].into()
    }

    fn mount() -> OutdatedMount {
        OutdatedMount {
            container: "main".into(),
            mount_path: "/etc/app.conf".to_owned(),
            objects: [app()].into(),
        }
    }

    fn container(id: &str) -> Vec<RunningContainer> {
        vec![RunningContainer {
            name: "main".into(),
            id: id.into(),
            volumes: std::collections::BTreeSet::new(),
        }]
    }

    fn names(outdated: &mut Outdated, at: i64) -> Vec<(String, i64)> {
        let now = Timestamp::from_second(at).unwrap();
        let found = outdated.of("main", now).into_iter();
        found
            .map(|entry| {
                (
                    format!("{} {}", entry.kind.as_str(), entry.name),
                    entry.since.as_second(),
                )
            })
            .collect()
    }

    // beside-kubelet 32
    #[test]
    fn variables_of_a_container_whose_start_was_seen_are_out_of_date_until_its_restart() {
        let mut outdated = Outdated::default();
        outdated.running(&[]);
        outdated.computed("main", variables("info"));
        outdated.running(&container("1"));
        assert_eq!(names(&mut outdated, 1), []);
        outdated.computed("main", variables("debug"));
        assert_eq!(names(&mut outdated, 2), [("env LEVEL".to_owned(), 2)]);
        assert_eq!(names(&mut outdated, 9), [("env LEVEL".to_owned(), 2)]);
        outdated.running(&container("1"));
        outdated.running(&container("2"));
        assert_eq!(names(&mut outdated, 10), []);
    }

    #[test]
    fn variables_of_a_container_that_ran_before_larder_are_unknown() {
        let mut outdated = Outdated::default();
        outdated.computed("main", variables("info"));
        outdated.running(&container("1"));
        outdated.computed("main", variables("debug"));
        assert_eq!(names(&mut outdated, 2), []);
    }

    #[test]
    fn variables_that_change_while_the_container_starts_are_unknown() {
        let mut outdated = Outdated::default();
        outdated.running(&[]);
        outdated.computed("main", variables("info"));
        outdated.computed("main", variables("debug"));
        outdated.running(&container("1"));
        outdated.computed("main", variables("info"));
        assert_eq!(names(&mut outdated, 2), []);
    }

    #[test]
    fn object_is_announced_once_for_each_container_and_version() {
        let mut outdated = Outdated::default();
        let announce = |outdated: &mut Outdated, version: &str| {
            outdated.read([(app(), version.into())].into());
            let found = outdated.of("main", Timestamp::UNIX_EPOCH);
            outdated.announce("main", &found).len()
        };
        let two = |value: &str| {
            let mut two = variables(value);
            two.insert("OTHER".into(), two["LEVEL"].clone());
            two
        };
        outdated.running(&[]);
        outdated.computed("main", two("info"));
        outdated.running(&container("1"));
        assert_eq!(announce(&mut outdated, "1"), 0);
        // Two variables and, in a later look, a mount of the same version.
        outdated.computed("main", two("debug"));
        assert_eq!(announce(&mut outdated, "2"), 1);
        outdated.sub_paths(&"config".into(), vec![mount()]);
        assert_eq!(announce(&mut outdated, "2"), 0);
        outdated.computed("main", two("trace"));
        assert_eq!(announce(&mut outdated, "3"), 1);
        outdated.running(&container("2"));
        assert_eq!(announce(&mut outdated, "3"), 0);
    }

    // beside-kubelet 32
    #[test]
    fn a_mount_is_out_of_date_as_long_as_it_differs() {
        let mut outdated = Outdated::default();
        outdated.running(&container("1"));
        outdated.sub_paths(&"config".into(), vec![mount()]);
        let expected = [("subPath /etc/app.conf".to_owned(), 3)];
        assert_eq!(names(&mut outdated, 3), expected);
        outdated.sub_paths(&"other".into(), vec![mount()]);
        outdated.sub_paths(&"other".into(), Vec::new());
        assert_eq!(names(&mut outdated, 4), expected);
        outdated.sub_paths(&"config".into(), Vec::new());
        assert_eq!(names(&mut outdated, 4), []);
    }
}
