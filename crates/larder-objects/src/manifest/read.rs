//! Splits text into documents.
//!
//! Invariants:
//! 1. Every byte is parsed a bounded number of times, however many errors there are.
//! 2. A panic while a document or an item of a list is read is an error of that document or item; the others are read.

use std::{
    cell::OnceCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use serde_json::Value;
use zeroize::Zeroizing;

use super::{
    Document, Loader, ManifestError, Origin, Problem, RawObject, Workload, Workloads,
    decode::{Completion, Recognized, recognize},
    error::Subject,
    json::Strict,
    kind::{ObjectKind, is_known_in_full},
    typed::wrong_type,
    unknown::{UnknownField, unknown_keys},
};
use crate::{
    FieldPath, ObjectKey, PathSegment,
    yaml::{self, Chunk, Limits, Node},
};

/// Number of errors, and of warnings, that are reported of one file. The others are counted.
const MAX_REPORTED: usize = 100;

/// The fields of a list.
const LIST_FIELDS: [&str; 4] = ["apiVersion", "items", "kind", "metadata"];

/// Number of unknown fields that the error of a rejected object names.
const MAX_BESIDE: usize = 3;

/// One document of a file.
struct Source<'a> {
    file: &'a Arc<str>,
    /// Number in the file, from 1.
    document: usize,
    /// Line on which it begins.
    line: usize,
    chunk: Chunk<'a>,
    /// The lines of its fields. JSON is decoded without lines: it is parsed again as YAML, once, if a line is needed.
    lines: OnceCell<Option<Node>>,
}

impl Source<'_> {
    /// Line of the innermost field that exists on the way along `path`.
    fn line_of(&self, path: &FieldPath) -> usize {
        if path.segments().is_empty() {
            return self.line;
        }
        let lines = self.lines.get_or_init(|| {
            // It is JSON, whose escape `\/` Kubernetes' YAML lacks.
            let mut limits = limits(self.chunk.text);
            limits.as_kubernetes = false;
            yaml::parse(self.chunk, &mut limits)
                .ok()?
                .into_iter()
                .next()
        });
        lines
            .as_ref()
            .map_or(self.line, |node| node.line_of(path.segments()))
    }

    /// The place of the field at `path` of the object at `place`.
    fn origin(&self, place: &FieldPath, path: &FieldPath) -> Origin {
        let mut segments = place.segments().iter();
        let item = segments.find_map(|segment| match segment {
            PathSegment::Index(index) => Some(index + 1),
            _ => None,
        });
        Origin {
            file: Arc::clone(self.file),
            document: self.document,
            item,
            line: self.line_of(&place.join(path)),
        }
    }

    /// The error of the object at `place`: the root, or an item of a list.
    fn error(&self, place: &FieldPath, subject: Subject, problem: Problem) -> ManifestError {
        ManifestError::Document {
            origin: self.origin(place, &problem.field()),
            subject,
            problem,
            beside: Vec::new(),
        }
    }
}

/// How far a file was read.
struct Reading<'a> {
    file: &'a Arc<str>,
    limits: Limits,
    documents: usize,
}

impl<'a> Reading<'a> {
    /// The next document, which begins on `line`.
    fn next(&mut self, chunk: Chunk<'a>, line: usize) -> Source<'a> {
        self.documents += 1;
        Source {
            file: self.file,
            document: self.documents,
            line,
            chunk,
            lines: OnceCell::new(),
        }
    }
}

/// The errors or the warnings of one file, as many as are reported.
#[derive(Debug, Default)]
pub(super) struct Reported {
    errors: Vec<ManifestError>,
    omitted: usize,
}

impl Reported {
    fn push(&mut self, error: impl FnOnce() -> ManifestError) {
        if self.errors.len() < MAX_REPORTED {
            self.errors.push(error());
        } else {
            self.omitted += 1;
        }
    }

    fn move_to(&mut self, all: &mut Vec<ManifestError>, file: &Arc<str>) {
        all.append(&mut self.errors);
        let count = std::mem::take(&mut self.omitted);
        if count > 0 {
            let file = Arc::clone(file);
            all.push(ManifestError::Omitted { file, count });
        }
    }
}

/// The limits of a file: aliases may copy 4 MiB plus 16 times its size.
fn limits(text: &str) -> Limits {
    Limits {
        documents: usize::MAX,
        copied_bytes: (4 << 20) + text.len().saturating_mul(16),
        last_key_wins: false,
        as_kubernetes: true,
    }
}

/// The lines of a text as kubectl passes them on: each ends with a line feed, the last one too, and has one carriage
/// return less before it, so that a further one is a line break of its own. They may hold values of Secrets.
fn lines_of_kubectl(text: &str) -> Zeroizing<String> {
    let mut lines = Zeroizing::new(String::with_capacity(text.len() + 1));
    for line in text.lines() {
        lines.push_str(line);
        lines.push('\n');
    }
    lines
}

/// Runs `read`; a panic becomes an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, Problem>) -> Result<T, Problem> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(Problem::Internal))
}

impl Loader {
    /// Reads the documents of `text`, YAML or JSON; in errors it is called `name`.
    pub fn text(&mut self, name: &str, text: &str) {
        let file: Arc<str> = name.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // To the parser, most texts mean the same without a copy.
        let is_other = text.contains("\r\r\n") || !text.ends_with('\n');
        let lines = is_other.then(|| lines_of_kubectl(text));
        let text = lines.as_deref().map_or(text, String::as_str);
        let mut reading = Reading {
            file: &file,
            limits: limits(text),
            documents: 0,
        };
        for chunk in yaml::chunks(text) {
            let read = guarded(|| {
                self.chunk(&mut reading, chunk);
                Ok(())
            });
            if let Err(problem) = read {
                // That of the document at which it stopped.
                reading.documents = reading.documents.saturating_sub(1);
                self.unread(&reading.next(chunk, chunk.line), problem);
            }
        }
        self.errors.move_to(&mut self.manifests.errors, &file);
        self.warnings.move_to(&mut self.manifests.warnings, &file);
    }

    /// Reads the documents of `chunk`.
    fn chunk<'a>(&mut self, reading: &mut Reading<'a>, chunk: Chunk<'a>) {
        if chunk.is_hidden() {
            let problem = "kubectl reads no document here: end the line of --- with a line feed";
            let problem = Problem::Syntax(problem.to_owned());
            return self.unread(&reading.next(chunk, chunk.line), problem);
        }
        let body = chunk.without_separator();
        // kubectl reads a file as JSON if it begins so. Below a separator, it reads all as YAML.
        let is_json = body == chunk && body.text.trim_start().starts_with('{');
        if !(is_json && self.json(reading, body)) {
            self.yaml(reading, body);
        }
    }

    fn yaml<'a>(&mut self, reading: &mut Reading<'a>, chunk: Chunk<'a>) {
        if let Some(line) = chunk.invalid_separator() {
            let problem = "nothing but a comment may follow --- on its line";
            let problem = Problem::Syntax(problem.to_owned());
            return self.unread(&reading.next(chunk, line), problem);
        }
        let nodes = match yaml::parse(chunk, &mut reading.limits) {
            Ok(nodes) => nodes,
            Err(error) if chunk.is_directives() => {
                let problem = "kubectl reads a directive as a document: leave it out";
                let problem = Problem::Syntax(problem.to_owned());
                return self.unread(&reading.next(chunk, error.line), problem);
            }
            Err(error) => {
                let problem = hinted(error.problem, chunk.text);
                return self.unread(&reading.next(chunk, error.line), problem);
            }
        };
        let nodes = nodes.into_iter().filter(|node| !node.is_null());
        for (index, mut node) in nodes.enumerate() {
            let mut source = reading.next(chunk, node.line);
            if index > 0 || chunk.is_ended() {
                let problem = "kubectl reads no document below `...`: begin it with ---";
                self.unread(&source, Problem::Syntax(problem.to_owned()));
                continue;
            }
            let value = node.take_value();
            source.lines = Some(node).into();
            self.document(&source, value);
        }
    }

    /// Reads the JSON documents of `chunk`, one after the other; `false` if it is YAML that begins with a brace.
    fn json<'a>(&mut self, reading: &mut Reading<'a>, chunk: Chunk<'a>) -> bool {
        // What ends too soon does so on its last line.
        let text = chunk.text.trim_end_matches('\n');
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Strict>();
        let (mut start, mut start_line) = (0, chunk.line);
        while let Some(next) = stream.next() {
            match next {
                Ok(Strict(value)) => {
                    let text = &text[start..stream.byte_offset()];
                    let space = text.len() - text.trim_start().len();
                    let line = start_line + text[..space].matches('\n').count();
                    let own = Chunk {
                        text,
                        line: start_line,
                    };
                    self.document(&reading.next(own, line), value);
                    start_line = line + text[space..].matches('\n').count();
                }
                Err(error) => {
                    let limits = &mut limits(text);
                    if start == 0 && !error.is_data() && yaml::parse(chunk, limits).is_ok() {
                        return false;
                    }
                    let problem = error.to_string();
                    let problem = problem.split(" at line ").next().unwrap_or_default();
                    let problem = hinted(problem.to_owned(), text);
                    let line = chunk.line - 1 + error.line();
                    self.unread(&reading.next(chunk, line), problem);
                    return true;
                }
            }
            start = stream.byte_offset();
        }
        true
    }

    /// Notes the error of a document that is not read at all.
    fn unread(&mut self, source: &Source<'_>, problem: Problem) {
        let subject = Subject::default();
        let error = || source.error(&FieldPath::root(), subject, problem);
        self.errors.push(error);
    }

    fn document(&mut self, source: &Source<'_>, value: Value) {
        self.manifests.documents_read += 1;
        self.entry(source, &FieldPath::root(), RawObject::new(value));
    }

    /// Reads the document itself, or an item of a list: it may be a list of one kind.
    fn entry(&mut self, source: &Source<'_>, place: &FieldPath, object: RawObject) {
        let (api_version, kind) = (object.text("/apiVersion"), object.text("/kind"));
        let is_list = ObjectKind::of(api_version, kind) == ObjectKind::List
            && match kind {
                "List" => place.segments().is_empty(),
                _ => object.get("items").is_some() || is_known_in_full(api_version),
            };
        if is_list {
            self.list(source, place, object);
        } else {
            self.object(source, place, object);
        }
    }

    fn list(&mut self, source: &Source<'_>, place: &FieldPath, list: RawObject) {
        let api_version = list.text("/apiVersion").to_owned();
        let item_kind = list
            .text("/kind")
            .strip_suffix("List")
            .unwrap_or("")
            .to_owned();
        let kind = Some(list.text("/kind").to_owned());
        for UnknownField { field, suggestion } in unknown_keys(&list, &LIST_FIELDS) {
            let problem = Problem::UnknownField { field, suggestion };
            let subject = Subject {
                kind: kind.clone(),
                ..Subject::default()
            };
            self.warnings.push(|| source.error(place, subject, problem));
        }
        let mut list = list.into_value();
        let items = match list.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                let subject = Subject {
                    kind,
                    ..Subject::default()
                };
                let problem = wrong_type("items", "a sequence", &other);
                let error = || source.error(place, subject, problem);
                return self.errors.push(error);
            }
        };
        for (index, mut item) in items.into_iter().enumerate() {
            // The items of a ConfigMapList need not say that they are ConfigMaps.
            if let (Value::Object(item), false) = (&mut item, item_kind.is_empty()) {
                item.entry("apiVersion")
                    .or_insert_with(|| (&*api_version).into());
                item.entry("kind").or_insert_with(|| (&*item_kind).into());
            }
            let place = place.child("items").index(index);
            self.entry(source, &place, RawObject::new(item));
        }
    }

    fn object(&mut self, source: &Source<'_>, place: &FieldPath, object: RawObject) {
        if self.manifests.documents.len() + self.manifests.made.len() >= self.most {
            let problem = Problem::TooMany { most: self.most };
            let error = || source.error(place, Subject::default(), problem);
            return self.errors.push(error);
        }
        let mut unknown = Vec::new();
        let mut written = None;
        let mut subject = Subject::default();
        let recognized = guarded(|| {
            let object = if self.uids {
                self.generated.name(source.file, &self.namespace, object)
            } else {
                object
            };
            let text =
                |pointer| Some(object.text(pointer).to_owned()).filter(|text| !text.is_empty());
            subject = Subject {
                kind: text("/kind"),
                namespace: self.namespace_of(&object),
                name: text("/metadata/name"),
            };
            written = self.keeps_written.then(|| object.clone());
            let completion = Completion {
                origin: &|| source.origin(place, &FieldPath::root()),
                namespace: &self.namespace,
                uids: self.uids,
                any_template: self.workloads == Workloads::AnyKind,
            };
            recognize(object, completion, &mut unknown)
        });
        let mut warn = |problem| {
            self.warnings
                .push(|| source.error(place, subject.clone(), problem));
        };
        let is_rejected = recognized.is_err();
        let mut unknown = unknown
            .into_iter()
            .map(|UnknownField { field, suggestion }| Problem::UnknownField { field, suggestion });
        let explanations: Vec<_> = unknown
            .by_ref()
            .take(if is_rejected { MAX_BESIDE } else { 0 })
            .collect();
        unknown.for_each(&mut warn);
        let kept = match recognized {
            Ok(Recognized::Object(mut document, rejected)) => {
                document.written = written;
                rejected
                    .iter()
                    .cloned()
                    .map(Problem::Rejected)
                    .for_each(warn);
                self.keep(*document)
            }
            Ok(Recognized::Makes(made)) => {
                self.manifests.made.extend(made);
                Ok(())
            }
            Ok(Recognized::Skipped(kind)) => {
                self.skip(kind, &subject);
                Ok(())
            }
            Err(problem) => Err(problem),
        };
        if let Err(problem) = kept {
            let error = || {
                source
                    .error(place, subject, problem)
                    .explained_by(explanations)
            };
            self.errors.push(error);
        }
    }

    /// Counts an object of a kind that larder does not use.
    fn skip(&mut self, kind: String, subject: &Subject) {
        if kind == "PersistentVolumeClaim" {
            let namespace = subject.namespace.clone().unwrap_or_default();
            let name = subject.name.clone().unwrap_or_default();
            let claim = ObjectKey::new(namespace, name);
            self.manifests.claims.insert(claim);
        }
        *self.manifests.skipped.entry(kind).or_default() += 1;
    }

    /// The namespace of `object`, or the default one if it names none; `None` if what it names is not text.
    fn namespace_of(&self, object: &RawObject) -> Option<String> {
        match object.pointer("/metadata/namespace") {
            None | Some(Value::Null) => Some(self.namespace.to_string()),
            Some(Value::String(namespace)) if namespace.is_empty() => {
                Some(self.namespace.to_string())
            }
            Some(Value::String(namespace)) => Some(namespace.clone()),
            Some(_) => None,
        }
    }

    /// Adds an object, unless another one of that name is there.
    fn keep(&mut self, document: Document) -> Result<(), Problem> {
        let own = document.object.text("/kind");
        let workload = document
            .workload
            .as_ref()
            .filter(|_| self.workloads != Workloads::ByName);
        let kind = workload.map_or(own, |workload| &workload.kind).to_owned();
        let pod = document.object.key();
        let next = self.manifests.documents.len();
        let first = *self.seen.entry((kind.clone(), pod.clone())).or_insert(next);
        let Some(known) = self.manifests.documents.get(first) else {
            self.manifests.documents.push(document);
            return Ok(());
        };
        let name = |workload: &Option<Workload>| workload.as_ref().map(ToString::to_string);
        let (first, other) = (known.origin.clone(), name(&known.workload));
        if other == name(&document.workload) {
            return Err(Problem::Duplicate { first });
        }
        let other = other.unwrap_or_else(|| format!("{kind} {}", pod.name));
        Err(Problem::SamePod { pod, other, first })
    }
}

/// The problem of `text`, with what is the likely cause.
fn hinted(mut problem: String, text: &str) -> Problem {
    if text.contains("{{") {
        problem.push_str("; this looks like a Helm template: render it first");
    } else if problem.starts_with("tabs") {
        problem.push_str("; YAML is indented with spaces");
    }
    Problem::Syntax(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_what_was_read() {
        assert_eq!(guarded(|| Ok(1)), Ok(1));
        let panicking = guarded::<()>(|| panic!("as a bug would"));
        assert_eq!(panicking, Err(Problem::Internal));
    }
}
