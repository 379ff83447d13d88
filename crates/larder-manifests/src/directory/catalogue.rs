//! The content of the directory's files, and the part of it that is served.
//!
//! Invariants:
//! 1. Of an object in two files, the one that is served already counts, else the one in the first file by name. The other
//!    is reported. So no file takes over an object of a running service.
//! 2. A file with an error keeps the objects of its last good content: which of them the error hides is unknown.
//! 3. An object with an unknown field, which the API server would reject, never replaces one without: that is the last
//!    good version. One that is new is served. The field is a problem in either case.
//! 4. Only fingerprints are kept, so no Secret stays in memory here.
//! 5. An object that an earlier run has accepted is known from the start, without its content: 1 to 3 hold for it, too,
//!    and so does that immutable data stays. While its present document is not taken, it is hidden.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    mem,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use larder_objects::manifest::{HiddenObjects, KeptObjects, KeptVersion, RawObject, Workload};
use serde_json::Value;

use super::files::{Reading, SubjectKey};
use crate::{
    object_id::ObjectId,
    record::{Accepted, Digester, Record},
};

/// Why an object is not taken whose immutable data differs from what an earlier run accepted.
const IMMUTABLE: &str = "field is immutable when `immutable` is set, and an earlier run has accepted other data (to \
    replace the object, remove it first, while the agent runs)";

/// Objects of one reading of one file.
pub(super) type FileObjects = BTreeMap<ObjectId, RawObject>;

/// Equal for equal objects; different for different ones except in one case of 2^64.
fn fingerprint(object: &Value) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(object)
}

/// The files and their objects.
#[derive(Debug)]
pub(crate) struct Catalogue {
    files: BTreeMap<PathBuf, FileState>,
    served: BTreeMap<ObjectId, Served>,
    digester: Digester,
}

/// An object that is served.
#[derive(Debug)]
struct Served {
    /// `None` for an object of an earlier run.
    fingerprint: Option<u64>,
    /// The file that it comes from.
    file: PathBuf,
}

#[derive(Debug, Default)]
struct FileState {
    objects: BTreeMap<ObjectId, Held>,
    problems: Vec<String>,
    /// What the parts with problems may hold.
    hidden: HiddenObjects,
    /// Problems of objects that are served all the same, or whose last good version is.
    of_objects: Vec<String>,
    /// Whether some of the objects are of its last good content.
    keeps_last_good: bool,
    /// Objects of its last good content whose present document is rejected, or may be among those that are.
    kept: BTreeMap<ObjectId, KeptVersion>,
}

/// One object of a file.
#[derive(Debug)]
struct Held {
    /// `None` if an earlier run had it: its content is not known any more.
    fingerprint: Option<u64>,
    /// The workload that the pod is made from, as `Deployment web`.
    workload: Option<String>,
    has_unknown_fields: bool,
    /// Of immutable data.
    digest: Option<String>,
}

impl Held {
    /// Whether `newer` changes immutable data of an earlier run. That of this one is compared by the server.
    fn forbids(&self, newer: &Self) -> bool {
        self.fingerprint.is_none() && self.digest.is_some() && self.digest != newer.digest
    }
}

impl Catalogue {
    /// That of `directory`, of which an earlier run has accepted what is in `record`.
    pub(crate) fn after(record: &Record, directory: &Path) -> Self {
        let mut this = Self {
            files: BTreeMap::new(),
            served: BTreeMap::new(),
            digester: record.digester(),
        };
        for (id, accepted) in record.objects() {
            let file = directory.join(&accepted.file);
            let held = Held {
                fingerprint: None,
                workload: None,
                has_unknown_fields: accepted.has_unknown_fields,
                digest: accepted.digest.clone(),
            };
            let state = this.files.entry(file.clone()).or_default();
            state.objects.insert(id.clone(), held);
            let fingerprint = None;
            this.served.insert(id.clone(), Served { fingerprint, file });
        }
        this
    }

    /// What has been accepted so far.
    pub(super) fn accepted(&self) -> BTreeMap<ObjectId, Accepted> {
        let accepted = |(id, served): (&ObjectId, &Served)| {
            let held = self.files.get(&served.file)?.objects.get(id)?;
            let accepted = Accepted {
                file: served.file.file_name()?.to_str()?.to_owned(),
                has_unknown_fields: held.has_unknown_fields,
                digest: held.digest.clone(),
            };
            Some((id.clone(), accepted))
        };
        self.served.iter().filter_map(accepted).collect()
    }

    /// The file that an object which is served comes from.
    pub(super) fn file_of(&self, id: &ObjectId) -> Option<&Path> {
        self.served.get(id).map(|served| &*served.file)
    }

    /// Notes what a file holds now: what could be read of it, and what was wrong with the rest.
    ///
    /// Returns the objects, for those that the next [`Self::plan`] asks for.
    pub(super) fn read(&mut self, reading: Reading, now: Timestamp) -> FileObjects {
        let Reading {
            path,
            documents,
            mut problems,
            mut hidden,
            unknown_fields,
            ..
        } = reading;
        let shown = path.clone();
        let state = self.files.entry(path).or_default();
        let mut before = mem::take(&mut state.objects);
        let mut objects = FileObjects::new();
        let mut keeps_last_good = false;
        let is_empty = documents.is_empty();
        let kept_before = mem::take(&mut state.kept);
        let keep = |id: &ObjectId, why: &str| KeptVersion {
            since: kept_before.get(id).map_or(now, |known| known.since),
            why: why.to_owned(),
        };
        let mut inexact = BTreeMap::new();
        for field in &unknown_fields {
            inexact.entry(&field.subject).or_insert(field);
        }
        let (mut rejected, mut immutable) = (BTreeSet::new(), Vec::new());
        for document in documents {
            let id = ObjectId::of(&document.object);
            let subject = subject(&id, document.workload.as_ref());
            let unknown = inexact.get(&subject);
            let held = Held {
                fingerprint: Some(fingerprint(&document.object)),
                has_unknown_fields: unknown.is_some(),
                workload: document.workload.map(|workload| workload.to_string()),
                digest: self.digester.digest(&document.object),
            };
            let known = before.remove(&id);
            // Invariants 3 and 5.
            let refused = match (&known, unknown) {
                (Some(known), Some(field)) if !known.has_unknown_fields => {
                    rejected.insert(subject);
                    Some(field.rejected.clone())
                }
                (Some(known), _) if known.forbids(&held) => {
                    immutable.push(format!("{}: {id}: {IMMUTABLE}", shown.display()));
                    immutable.last().cloned()
                }
                _ => None,
            };
            if let (Some(last_good), Some(why)) = (known, refused) {
                keeps_last_good = true;
                state.kept.insert(id.clone(), keep(&id, &why));
                state.objects.insert(id, last_good);
            } else {
                state.objects.insert(id.clone(), held);
                objects.insert(id, document.object);
            }
        }
        if is_empty && problems.is_empty() && !before.is_empty() {
            problems.push(format!(
                "{}: has no objects (remove the file to remove those that it had)",
                shown.display()
            ));
            // What could not be read of it before is not there now, either.
            hidden.extend(&state.hidden);
            for id in before.keys() {
                hidden.insert(&id.kind, &id.key);
            }
        }
        if let Some(problem) = problems.first() {
            keeps_last_good |= !before.is_empty();
            let kept = before
                .keys()
                .filter(|id| hidden.may_hold(&id.kind, &id.key))
                .map(|id| (id.clone(), keep(id, problem)));
            state.kept.extend(kept);
            state.objects.extend(before);
        }
        let lost = state
            .objects
            .iter()
            .filter(|(_, held)| held.fingerprint.is_none());
        for (id, _) in lost {
            hidden.insert(&id.kind, &id.key);
        }
        let unknown_fields = unknown_fields.into_iter().map(|field| {
            if rejected.contains(&field.subject) {
                field.rejected
            } else {
                field.ignored
            }
        });
        state.of_objects = unknown_fields.chain(immutable).collect();
        state.problems = problems;
        state.hidden = hidden;
        state.keeps_last_good = keeps_last_good;
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

    /// What could not be read of the files may hold these; only files with problems are named.
    pub(super) fn hidden_objects(&self) -> impl Iterator<Item = (&Path, &HiddenObjects)> {
        self.files
            .iter()
            .filter(|(_, state)| !state.hidden.is_empty())
            .map(|(file, state)| (file.as_path(), &state.hidden))
    }

    /// What could not be read of `file` may hold these.
    pub(super) fn hidden_in(&self, file: &Path) -> Option<&HiddenObjects> {
        let state = self.files.get(file)?;
        Some(&state.hidden).filter(|hidden| !hidden.is_empty())
    }

    /// The objects that are served although their newest document is rejected.
    pub(super) fn kept(&self) -> KeptObjects {
        let mut all = KeptObjects::default();
        for (file, state) in &self.files {
            let is_held = |id: &ObjectId| state.objects[id].fingerprint.is_some();
            let served = state
                .kept
                .iter()
                .filter(|(id, _)| self.file_of(id) == Some(file) && is_held(id));
            for (id, version) in served {
                all.insert(&id.kind, id.key.clone(), version.clone());
            }
        }
        all
    }

    /// The problems of files that keep objects of their last good content.
    pub(super) fn problems_of_kept(&self) -> impl Iterator<Item = &String> {
        self.files
            .values()
            .filter(|state| state.keeps_last_good)
            .flat_map(|state| state.problems.iter().chain(&state.of_objects))
    }

    /// The unknown fields of files whose objects are served with them.
    pub(super) fn unknown_fields(&self) -> impl Iterator<Item = &String> {
        self.files
            .values()
            .filter(|state| !state.keeps_last_good)
            .flat_map(|state| &state.of_objects)
    }

    /// The problems of all files, in their order.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let owners = self.owners();
        for (file, state) in &self.files {
            problems.extend(state.problems.iter().cloned());
            problems.extend(state.of_objects.iter().cloned());
            for (id, held) in &state.objects {
                let owner = owners[id];
                if owner != file {
                    problems.push(format!(
                        "{}: {id}{} is already defined in {}{}",
                        file.display(),
                        made_from(held),
                        owner.display(),
                        made_from(&self.files[owner].objects[id]),
                    ));
                }
            }
        }
        problems
    }

    /// The file that each object is taken from.
    fn owners(&self) -> BTreeMap<&ObjectId, &PathBuf> {
        let mut owners = BTreeMap::new();
        for (file, state) in &self.files {
            for id in state.objects.keys() {
                let is_served = || {
                    self.served
                        .get(id)
                        .is_some_and(|served| served.file == *file)
                };
                match owners.entry(id) {
                    Entry::Vacant(entry) => {
                        entry.insert(file);
                    }
                    Entry::Occupied(mut entry) if is_served() => {
                        entry.insert(file);
                    }
                    Entry::Occupied(_) => {}
                }
            }
        }
        owners
    }

    /// Compares what is served with what should be, and takes the plan for done: the new and changed objects, with the file
    /// to take each from, and the objects that are in no file any more.
    pub(super) fn plan(&mut self) -> (BTreeMap<ObjectId, PathBuf>, Vec<ObjectId>) {
        let (mut upserts, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        for (id, file) in self.owners() {
            let fingerprint = self.files[file].objects[id].fingerprint;
            let served = self.served.get(id).and_then(|served| served.fingerprint);
            if fingerprint.is_some() && served != fingerprint {
                upserts.insert(id.clone(), file.clone());
            }
            let file = file.clone();
            wanted.insert(id.clone(), Served { fingerprint, file });
        }
        let served = mem::replace(&mut self.served, wanted).into_iter();
        let deletes = served
            .filter(|(id, served)| served.fingerprint.is_some() && !self.served.contains_key(id))
            .map(|(id, _)| id);
        (upserts, deletes.collect())
    }
}

/// What errors call the object, or the workload that makes it.
fn subject(id: &ObjectId, workload: Option<&Workload>) -> SubjectKey {
    let itself = (&*id.kind, &*id.key.name);
    let (kind, name) = workload.map_or(itself, |made_by| (&made_by.kind, &made_by.name));
    (
        kind.to_owned(),
        id.key.namespace.to_string(),
        name.to_owned(),
    )
}

/// Names the workload that a pod is made from.
fn made_from(held: &Held) -> String {
    held.workload
        .as_deref()
        .map_or(String::new(), |workload| format!(" (of {workload})"))
}

#[cfg(test)]
mod tests {
    use larder_objects::{ObjectKey, manifest::Loader};

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
        catalogue.read(
            Reading::new(file.into(), loader.finish()),
            Timestamp::UNIX_EPOCH,
        );
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

    /// That of a first start.
    fn fresh() -> Catalogue {
        after(&Record::default())
    }

    fn after(record: &Record) -> Catalogue {
        Catalogue::after(record, Path::new(""))
    }

    /// Why an earlier version of this object is served.
    fn kept(catalogue: &Catalogue, kind: &str, name: &str) -> Option<String> {
        let kept = catalogue.kept();
        let version = kept.get(kind, &ObjectKey::new("n", name))?;
        Some(version.why.clone())
    }

    #[test]
    fn only_what_changed_is_planned() {
        let mut catalogue = fresh();
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
        let mut catalogue = fresh();
        edit(&mut catalogue, "f", &["a=x", "b=x"]);
        assert_eq!(
            edit(&mut catalogue, "f", &["a=y", "broken"]),
            changes(&["a from f"], &[])
        );
        assert_eq!(catalogue.problems().len(), 1);
        // The broken document may be `b`.
        assert_eq!(kept(&catalogue, "ConfigMap", "a"), None);
        let problem = catalogue.problems().first().cloned();
        assert_eq!(kept(&catalogue, "ConfigMap", "b"), problem);
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
        let mut catalogue = fresh();
        edit(&mut catalogue, "f", &["a=x"]);
        edit(&mut catalogue, "g", &["b=x"]);
        catalogue.removed(Path::new("f"));
        assert_eq!(plan(&mut catalogue), changes(&[], &["a"]));
    }

    #[test]
    fn no_file_takes_over_an_object_that_another_one_serves() {
        let mut catalogue = fresh();
        edit(&mut catalogue, "g", &["a=first"]);
        assert_eq!(edit(&mut catalogue, "f", &["a=late"]), changes(&[], &[]));
        assert_eq!(
            catalogue.problems(),
            ["f: ConfigMap n/a is already defined in g"]
        );
        // Nor does an edit of either.
        assert_eq!(edit(&mut catalogue, "f", &["a=later"]), changes(&[], &[]));
        assert_eq!(
            edit(&mut catalogue, "g", &["a=edited"]),
            changes(&["a from g"], &[])
        );
        catalogue.removed(Path::new("g"));
        assert_eq!(plan(&mut catalogue), changes(&["a from f"], &[]));
        assert_eq!(catalogue.problems(), [""; 0]);
    }

    /// A Secret whose field is spelled so.
    fn secret(catalogue: &mut Catalogue, field: &str, value: &str) -> (Vec<String>, Vec<String>) {
        let mut loader = Loader::new("n");
        let text = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{field}: {{k: '{value}'}}\n"
        );
        loader.text("f", &text);
        catalogue.read(
            Reading::new("f".into(), loader.finish()),
            Timestamp::UNIX_EPOCH,
        );
        plan(catalogue)
    }

    #[test]
    fn an_unknown_field_never_replaces_an_object_without_one() {
        let mut catalogue = fresh();
        assert_eq!(
            secret(&mut catalogue, "stringData", "x"),
            changes(&["s from f"], &[])
        );
        assert_eq!(secret(&mut catalogue, "stringDat", "x"), changes(&[], &[]));
        let problems = catalogue.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("stringDat"), "{problems:?}");
        assert_eq!(catalogue.problems_of_kept().count(), 1);
        assert_eq!(kept(&catalogue, "Secret", "s").as_ref(), problems.first());
        assert_eq!(catalogue.hidden_in(Path::new("f")), None);
        assert_eq!(
            secret(&mut catalogue, "stringData", "y"),
            changes(&["s from f"], &[])
        );
        assert_eq!(catalogue.problems(), [""; 0]);
        assert!(catalogue.kept().is_empty());
        // At the start it is served, with the problem.
        let mut catalogue = fresh();
        assert_eq!(
            secret(&mut catalogue, "dta", "x"),
            changes(&["s from f"], &[])
        );
        assert!(catalogue.kept().is_empty());
        assert_eq!(catalogue.unknown_fields().count(), 1);
        assert_eq!(catalogue.problems().len(), 1);
        // One that had such a field may be replaced by another one.
        let changed = secret(&mut catalogue, "dta: {}\nstringData", "z");
        assert_eq!(changed, changes(&["s from f"], &[]));
        assert_eq!(catalogue.problems().len(), 1);
    }

    #[test]
    fn a_list_whose_items_are_misspelled_keeps_those_that_it_had() {
        let list = |catalogue: &mut Catalogue, field: &str| {
            let mut loader = Loader::new("n");
            let item = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
            let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n";
            let text = format!("{other}---\napiVersion: v1\nkind: List\n{field}: [{item}]\n");
            loader.text("f", &text);
            let reading = Reading::new("f".into(), loader.finish());
            catalogue.read(reading, Timestamp::UNIX_EPOCH);
            plan(catalogue)
        };
        let (mut first, mut record) = (fresh(), Record::default());
        let both = changes(&["a from f", "b from f"], &[]);
        assert_eq!(list(&mut first, "items"), both);
        assert_eq!(list(&mut first, "itms"), changes(&[], &[]));
        assert_eq!(first.problems().len(), 1);
        assert!(kept(&first, "ConfigMap", "a").is_some_and(|why| why.contains("itms")));
        let mut next = restarted(&first, &mut record);
        assert_eq!(list(&mut next, "itms"), changes(&["b from f"], &[]));
        assert!(hidden(&next, "ConfigMap", "a"));
        assert_eq!(list(&mut next, "items"), changes(&["a from f"], &[]));
        // Nothing else in a list is an object.
        let mut other = fresh();
        list(&mut other, "items: []\nmetadta");
        assert!(other.problems().len() == 1 && !hidden(&other, "ConfigMap", "a"));
    }

    #[test]
    fn of_two_workloads_with_one_pod_both_are_named() {
        let mut catalogue = fresh();
        for (file, kind) in [("f", "Deployment"), ("g", "DaemonSet")] {
            let mut loader = Loader::new("n");
            loader.text(file, &format!("apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}\n"));
            catalogue.read(
                Reading::new(file.into(), loader.finish()),
                Timestamp::UNIX_EPOCH,
            );
        }
        assert_eq!(
            catalogue.problems(),
            ["g: Pod n/web (of DaemonSet web) is already defined in f (of Deployment web)"]
        );
    }

    /// The next run, which knows what this one accepted.
    fn restarted(catalogue: &Catalogue, record: &mut Record) -> Catalogue {
        record.take_up(catalogue.accepted(), |_| false);
        after(record)
    }

    fn hidden(catalogue: &Catalogue, kind: &str, name: &str) -> bool {
        let key = ObjectKey::new("n", name);
        let mut all = catalogue.hidden_objects();
        all.any(|(_, hidden)| hidden.may_hold(kind, &key))
    }

    #[test]
    fn an_unknown_field_does_not_replace_what_an_earlier_run_accepted() {
        let (mut first, mut record) = (fresh(), Record::default());
        secret(&mut first, "stringData", "x");
        // The edit came while it ran, or while nothing did; and any number of restarts before.
        for edited_before in [true, false] {
            if edited_before {
                secret(&mut first, "stringDat", "x");
            }
            let mut next = restarted(&first, &mut record);
            for _ in 0..2 {
                assert_eq!(secret(&mut next, "stringDat", "x"), changes(&[], &[]));
                let problems = next.problems();
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].contains("so its last good version stays"));
                assert!(hidden(&next, "Secret", "s") && !hidden(&next, "Secret", "t"));
                // The server does not have it.
                assert!(next.kept().is_empty());
                next = restarted(&next, &mut record);
            }
            let mended = secret(&mut next, "stringData", "y");
            assert_eq!(mended, changes(&["s from f"], &[]));
            assert!(next.problems().is_empty() && !hidden(&next, "Secret", "s"));
            first = next;
        }
        // One that had such a field is served as before.
        let mut first = fresh();
        secret(&mut first, "dta", "x");
        let mut next = restarted(&first, &mut record);
        assert_eq!(secret(&mut next, "dta", "y"), changes(&["s from f"], &[]));
        assert!(!hidden(&next, "Secret", "s"));
    }

    #[test]
    fn a_file_that_is_empty_at_the_start_hides_what_it_had() {
        let (mut first, mut record) = (fresh(), Record::default());
        edit(&mut first, "f", &["a=x"]);
        edit(&mut first, "g", &["b=x"]);
        let mut next = restarted(&first, &mut record);
        assert_eq!(edit(&mut next, "g", &["b=x"]), changes(&["b from g"], &[]));
        assert_eq!(edit(&mut next, "f", &[]), changes(&[], &[]));
        assert!(next.problems()[0].contains("has no objects"));
        let hides = |name| hidden(&next, "ConfigMap", name);
        assert!(hides("a") && !hides("b") && !hides("c"));
        // A file that is gone, or has other objects, has given up those that it had.
        let mut next = restarted(&next, &mut record);
        assert_eq!(edit(&mut next, "g", &["c=x"]), changes(&["c from g"], &[]));
        next.removed(Path::new("f"));
        assert_eq!(plan(&mut next), changes(&[], &[]));
        assert!(next.problems().is_empty() && next.hidden_objects().next().is_none());
        assert_eq!(next.accepted().len(), 1);
    }

    #[test]
    fn the_file_that_had_an_object_in_an_earlier_run_has_it() {
        let (mut first, mut record) = (fresh(), Record::default());
        edit(&mut first, "g", &["a=first"]);
        let problem = "f: ConfigMap n/a is already defined in g";
        for content in [&["a=first"][..], &["broken"], &[]] {
            let mut next = restarted(&first, &mut record);
            edit(&mut next, "f", &["a=late"]);
            edit(&mut next, "g", content);
            assert!(next.problems().contains(&problem.to_owned()), "{content:?}");
            let is_readable = content.contains(&"a=first");
            assert_ne!(hidden(&next, "ConfigMap", "a"), is_readable, "{content:?}");
        }
        let mut next = restarted(&first, &mut record);
        next.removed(Path::new("g"));
        assert_eq!(
            edit(&mut next, "f", &["a=late"]),
            changes(&["a from f"], &[])
        );
    }

    #[test]
    fn immutable_data_stays_what_an_earlier_run_accepted() {
        let mut record = Record::default();
        let mut first = after(&record);
        let immutable = "immutable: true\nstringData";
        secret(&mut first, immutable, "x");
        let mut next = restarted(&first, &mut record);
        for (field, value) in [(immutable, "y"), ("stringData", "x"), ("stringData", "z")] {
            assert_eq!(secret(&mut next, field, value), changes(&[], &[]));
            let problems = next.problems();
            assert_eq!(problems, [format!("f: Secret n/s: {IMMUTABLE}")], "{field}");
            assert!(hidden(&next, "Secret", "s"));
            next = restarted(&next, &mut record);
        }
        let same = secret(&mut next, immutable, "x");
        assert_eq!(same, changes(&["s from f"], &[]));
        assert!(next.problems().is_empty() && !hidden(&next, "Secret", "s"));
        // Another object of that name.
        next.removed(Path::new("f"));
        plan(&mut next);
        let mut next = restarted(&next, &mut record);
        let other = secret(&mut next, immutable, "y");
        assert_eq!(other, changes(&["s from f"], &[]));
    }

    #[test]
    fn an_object_that_moves_to_another_file_is_not_touched() {
        let mut catalogue = fresh();
        edit(&mut catalogue, "f", &["a=x"]);
        catalogue.removed(Path::new("f"));
        assert_eq!(edit(&mut catalogue, "g", &["a=x"]), changes(&[], &[]));
    }
}
