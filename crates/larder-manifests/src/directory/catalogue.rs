//! The content of the directory's files, and the part of it that is served.
//!
//! Invariants:
//! 1. Of an object in two files, the one in the first file by name counts; the other is reported.
//! 2. A file with an error keeps the objects of its last good content: which of them the error hides is unknown.
//! 3. Only fingerprints are kept, so no Secret stays in memory here.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    mem,
    path::{Path, PathBuf},
};

use larder_objects::{
    ObjectKey,
    manifest::{Document, RawObject},
};
use serde_json::Value;
use smol_str::SmolStr;

use super::files::Reading;

/// Kind, namespace and name of an object. Displays as `ConfigMap prod/app`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId {
    /// `kind`, as in the manifest.
    pub(crate) kind: SmolStr,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
}

impl ObjectId {
    pub(crate) fn of(object: &RawObject) -> Self {
        Self {
            kind: object.text("/kind").into(),
            key: object.key(),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.key.name)
        } else {
            write!(f, "{} {}", self.kind, self.key)
        }
    }
}

/// Objects of one reading of one file.
pub(super) type FileObjects = BTreeMap<ObjectId, RawObject>;

/// Equal for equal objects; different for different ones except in one case of 2^64.
fn fingerprint(object: &Value) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(object)
}

/// The files and their objects.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    files: BTreeMap<PathBuf, FileState>,
    /// With their fingerprints.
    served: BTreeMap<ObjectId, u64>,
}

#[derive(Debug, Default)]
struct FileState {
    objects: BTreeMap<ObjectId, Held>,
    problems: Vec<String>,
    /// Whether some of the objects are of its last good content.
    keeps_last_good: bool,
}

/// One object of a file.
#[derive(Debug)]
struct Held {
    fingerprint: u64,
    /// The workload that the pod is made from, as `Deployment web`.
    workload: Option<String>,
}

impl Catalogue {
    /// Notes what `file` holds now: what could be read of it, and what was wrong with the rest.
    ///
    /// Returns the objects, for those that the next [`Self::plan`] asks for.
    pub(super) fn read(
        &mut self,
        file: &Path,
        documents: Vec<Document>,
        mut problems: Vec<String>,
    ) -> FileObjects {
        let state = self.files.entry(file.to_owned()).or_default();
        if documents.is_empty() && problems.is_empty() && !state.objects.is_empty() {
            problems.push(format!(
                "{}: has no objects (remove the file to remove those that it had)",
                file.display()
            ));
        }
        if problems.is_empty() {
            state.objects.clear();
        }
        state.problems = problems;
        let mut objects = FileObjects::new();
        for Document {
            object, workload, ..
        } in documents
        {
            let id = ObjectId::of(&object);
            let held = Held {
                fingerprint: fingerprint(&object),
                workload,
            };
            state.objects.insert(id.clone(), held);
            objects.insert(id, object);
        }
        state.keeps_last_good = state.objects.len() > objects.len();
        objects
    }

    /// Whether [`Self::read`] would take an object from its file.
    pub(super) fn would_lose(&self, reading: &Reading) -> bool {
        let Some(state) = self.files.get(&reading.path) else {
            return false;
        };
        let held: BTreeSet<_> = reading
            .documents
            .iter()
            .map(|document| ObjectId::of(&document.object))
            .collect();
        reading.problems.is_empty() && state.objects.keys().any(|id| !held.contains(id))
    }

    /// Notes that `file` is gone.
    pub(super) fn removed(&mut self, file: &Path) {
        self.files.remove(file);
    }

    /// The files that were read and are not gone.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Whether `file` has a problem.
    pub(super) fn is_broken(&self, file: &Path) -> bool {
        let state = self.files.get(file);
        state.is_some_and(|state| !state.problems.is_empty())
    }

    /// The problems of files that keep objects of their last good content.
    pub(super) fn problems_of_kept(&self) -> impl Iterator<Item = &String> {
        let keeping = self.files.values().filter(|state| state.keeps_last_good);
        keeping.flat_map(|state| &state.problems)
    }

    /// The problems of all files, in their order.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut owners = BTreeMap::new();
        let mut problems = Vec::new();
        for (file, state) in &self.files {
            problems.extend(state.problems.iter().cloned());
            for (id, held) in &state.objects {
                match owners.entry(id) {
                    Entry::Vacant(entry) => {
                        entry.insert((file, held));
                    }
                    Entry::Occupied(owner) => {
                        let (owner, first) = owner.get();
                        problems.push(format!(
                            "{}: {id}{} is already defined in {}{}",
                            file.display(),
                            made_from(held),
                            owner.display(),
                            made_from(first),
                        ));
                    }
                }
            }
        }
        problems
    }

    /// Compares what is served with what should be, and takes the plan for done: the new and changed objects, with the file
    /// to take each from, and the objects that are in no file any more.
    pub(super) fn plan(&mut self) -> (BTreeMap<ObjectId, PathBuf>, Vec<ObjectId>) {
        let (mut upserts, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        for (file, state) in &self.files {
            for (id, held) in &state.objects {
                if let Entry::Vacant(entry) = wanted.entry(id.clone()) {
                    entry.insert(held.fingerprint);
                    if self.served.get(id) != Some(&held.fingerprint) {
                        upserts.insert(id.clone(), file.clone());
                    }
                }
            }
        }
        let served = mem::replace(&mut self.served, wanted).into_keys();
        let deletes = served.filter(|id| !self.served.contains_key(id));
        (upserts, deletes.collect())
    }
}

/// Names the workload that a pod is made from.
fn made_from(held: &Held) -> String {
    let workload = held.workload.as_deref();
    workload.map_or(String::new(), |workload| format!(" (of {workload})"))
}

#[cfg(test)]
mod tests {
    use larder_objects::manifest::Loader;

    use super::*;

    /// Reads `text` as the content of `file`, a ConfigMap for each `name=value`, then plans.
    fn edit(catalogue: &mut Catalogue, file: &str, content: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut loader = Loader::new("n");
        let document = |entry: &&str| match entry.split_once('=') {
            Some((name, value)) => format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: '{value}'}}\n"
            ),
            None => "}".to_owned(),
        };
        let text: Vec<_> = content.iter().map(document).collect();
        loader.text(file, &text.join("---\n"));
        let manifests = loader.finish();
        let problems = manifests.errors.iter().map(ToString::to_string).collect();
        catalogue.read(Path::new(file), manifests.documents, problems);
        plan(catalogue)
    }

    fn plan(catalogue: &mut Catalogue) -> (Vec<String>, Vec<String>) {
        let (upserts, deletes) = catalogue.plan();
        let names = |id: &ObjectId| id.key.name.to_string();
        let upserts = upserts
            .iter()
            .map(|(id, file)| format!("{} from {}", id.key.name, file.display()));
        (upserts.collect(), deletes.iter().map(names).collect())
    }

    fn changes(upsert: &[&str], delete: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |texts: &[&str]| texts.iter().copied().map(str::to_owned).collect();
        (owned(upsert), owned(delete))
    }

    #[test]
    fn only_what_changed_is_planned() {
        let mut catalogue = Catalogue::default();
        let first = edit(&mut catalogue, "f", &["a=x", "b=x"]);
        assert_eq!(first, changes(&["a from f", "b from f"], &[]));
        let second = edit(&mut catalogue, "f", &["a=x", "b=y", "c=x"]);
        assert_eq!(second, changes(&["b from f", "c from f"], &[]));
        let third = edit(&mut catalogue, "f", &["a=x", "c=x"]);
        assert_eq!(third, changes(&[], &["b"]));
        assert_eq!(plan(&mut catalogue), changes(&[], &[]));
    }

    #[test]
    fn a_broken_file_keeps_what_it_held_and_takes_what_it_can() {
        let mut catalogue = Catalogue::default();
        edit(&mut catalogue, "f", &["a=x", "b=x"]);
        assert_eq!(
            edit(&mut catalogue, "f", &["a=y", "broken"]),
            changes(&["a from f"], &[])
        );
        assert_eq!(catalogue.problems().len(), 1);
        assert!(
            catalogue.problems()[0].starts_with("f: document 2, line "),
            "{:?}",
            catalogue.problems()
        );
        assert_eq!(edit(&mut catalogue, "f", &["a=y"]), changes(&[], &["b"]));
        assert_eq!(catalogue.problems(), [""; 0]);
    }

    #[test]
    fn a_removed_file_takes_its_objects_along() {
        let mut catalogue = Catalogue::default();
        edit(&mut catalogue, "f", &["a=x"]);
        edit(&mut catalogue, "g", &["b=x"]);
        catalogue.removed(Path::new("f"));
        assert_eq!(plan(&mut catalogue), changes(&[], &["a"]));
    }

    #[test]
    fn the_first_of_two_files_wins_and_the_other_takes_over() {
        let mut catalogue = Catalogue::default();
        edit(&mut catalogue, "g", &["a=late"]);
        assert_eq!(
            edit(&mut catalogue, "f", &["a=early"]),
            changes(&["a from f"], &[])
        );
        assert_eq!(
            catalogue.problems(),
            ["g: ConfigMap n/a is already defined in f"]
        );
        catalogue.removed(Path::new("f"));
        assert_eq!(plan(&mut catalogue), changes(&["a from g"], &[]));
        assert_eq!(catalogue.problems(), [""; 0]);
    }

    #[test]
    fn of_two_workloads_with_one_pod_both_are_named() {
        let mut catalogue = Catalogue::default();
        for (file, kind) in [("f", "Deployment"), ("g", "StatefulSet")] {
            let mut loader = Loader::new("n");
            loader.text(file, &format!("apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}\n"));
            catalogue.read(Path::new(file), loader.finish().documents, Vec::new());
        }
        assert_eq!(
            catalogue.problems(),
            ["g: Pod n/web (of StatefulSet web) is already defined in f (of Deployment web)"]
        );
    }

    #[test]
    fn an_object_that_moves_to_another_file_is_not_touched() {
        let mut catalogue = Catalogue::default();
        edit(&mut catalogue, "f", &["a=x"]);
        catalogue.removed(Path::new("f"));
        assert_eq!(edit(&mut catalogue, "g", &["a=x"]), changes(&[], &[]));
    }
}
