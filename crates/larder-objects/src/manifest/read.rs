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

use super::{
    Document, Loader, ManifestError, Origin, Problem, RawObject,
    decode::{Completion, Recognized, recognize},
    error::Subject,
    json::Strict,
    kind::ObjectKind,
    typed::wrong_type,
    unknown::UnknownField,
};
use crate::{
    FieldPath, PathSegment,
    yaml::{self, Chunk, Limits, Node},
};

/// Number of errors, and of warnings, that are reported of one file. The others are counted.
const MAX_REPORTED: usize = 100;

/// One document of a file.
struct Source<'a> {
    file: &'a Arc<str>,
    /// Number in the file, from 1.
    document: usize,
    /// Line on which it begins.
    line: usize,
    lines: Lines<'a>,
}

/// The lines of a document's fields.
enum Lines<'a> {
    Yaml(Node),
    /// JSON is decoded without lines. It is parsed again as YAML, once, if a line is needed.
    Json(Chunk<'a>, OnceCell<Option<Node>>),
}

impl Source<'_> {
    /// Line of the innermost field that exists on the way along `path`.
    fn line_of(&self, path: &FieldPath) -> usize {
        if path.segments().is_empty() {
            return self.line;
        }
        let node = match &self.lines {
            Lines::Yaml(node) => Some(node),
            Lines::Json(chunk, node) => node
                .get_or_init(|| {
                    // It is JSON, whose escape `\/` Kubernetes' YAML lacks.
                    let mut limits = limits(chunk.text);
                    limits.as_kubernetes = false;
                    yaml::parse(*chunk, &mut limits).ok()?.into_iter().next()
                })
                .as_ref(),
        };
        node.map_or(self.line, |node| node.line_of(path.segments()))
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

/// Runs `read`; a panic becomes an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, Problem>) -> Result<T, Problem> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(Problem::Internal))
}

impl Loader {
    /// Reads the documents of `text`, YAML or JSON; in errors it is called `name`.
    pub fn text(&mut self, name: &str, text: &str) {
        let file: Arc<str> = name.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut limits = limits(text);
        let mut document = 0;
        for chunk in yaml::chunks(text) {
            let read = guarded(|| {
                self.chunk(&file, chunk, &mut document, &mut limits);
                Ok(())
            });
            if let Err(problem) = read {
                self.document_error(&file, document.max(1), chunk.line, problem);
            }
        }
        self.errors.move_to(&mut self.manifests.errors, &file);
        self.warnings.move_to(&mut self.manifests.warnings, &file);
    }

    /// Reads the documents of `chunk`. `document` counts those of the file.
    fn chunk(
        &mut self,
        file: &Arc<str>,
        chunk: Chunk<'_>,
        document: &mut usize,
        limits: &mut Limits,
    ) {
        let body = chunk.without_separator();
        // kubectl reads a file as JSON if it begins so. Below a separator, it reads all as YAML.
        let is_json = body == chunk && body.text.trim_start().starts_with('{');
        if !(is_json && self.json(file, body, document)) {
            self.yaml(file, body, document, limits);
        }
    }

    fn yaml(
        &mut self,
        file: &Arc<str>,
        chunk: Chunk<'_>,
        document: &mut usize,
        limits: &mut Limits,
    ) {
        if let Some(line) = chunk.invalid_separator() {
            *document += 1;
            let problem = "nothing but a comment may follow --- on its line";
            let problem = Problem::Syntax(problem.to_owned());
            return self.document_error(file, *document, line, problem);
        }
        let nodes = match yaml::parse(chunk, limits) {
            Ok(nodes) => nodes,
            Err(error) => {
                *document += 1;
                let problem = hinted(error.problem, chunk.text);
                return self.document_error(file, *document, error.line, problem);
            }
        };
        let nodes = nodes.into_iter().filter(|node| !node.is_null());
        for (index, mut node) in nodes.enumerate() {
            *document += 1;
            if index > 0 {
                let problem = "kubectl reads no document below `...`: begin it with ---";
                let problem = Problem::Syntax(problem.to_owned());
                self.document_error(file, *document, node.line, problem);
                continue;
            }
            let value = node.take_value();
            let source = Source {
                file,
                document: *document,
                line: node.line,
                lines: Lines::Yaml(node),
            };
            self.document(&source, value);
        }
    }

    /// Reads the JSON documents of `chunk`, one after the other; `false` if it is YAML that begins with a brace.
    fn json(&mut self, file: &Arc<str>, chunk: Chunk<'_>, document: &mut usize) -> bool {
        let text = chunk.text;
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Strict>();
        let (mut start, mut start_line) = (0, chunk.line);
        while let Some(next) = stream.next() {
            match next {
                Ok(Strict(value)) => {
                    *document += 1;
                    let text = &text[start..stream.byte_offset()];
                    let space = text.len() - text.trim_start().len();
                    let line = start_line + text[..space].matches('\n').count();
                    let own = Chunk {
                        text,
                        line: start_line,
                    };
                    let source = Source {
                        file,
                        document: *document,
                        line,
                        lines: Lines::Json(own, OnceCell::new()),
                    };
                    self.document(&source, value);
                    start_line = line + text[space..].matches('\n').count();
                }
                Err(error) => {
                    let limits = &mut limits(text);
                    if start == 0 && !error.is_data() && yaml::parse(chunk, limits).is_ok() {
                        return false;
                    }
                    *document += 1;
                    let problem = error.to_string();
                    let problem = problem.split(" at line ").next().unwrap_or_default();
                    let problem = hinted(problem.to_owned(), text);
                    let line = chunk.line - 1 + error.line();
                    self.document_error(file, *document, line, problem);
                    return true;
                }
            }
            start = stream.byte_offset();
        }
        true
    }

    /// Notes the error of a document that is not read at all.
    fn document_error(&mut self, file: &Arc<str>, document: usize, line: usize, problem: Problem) {
        self.errors.push(|| ManifestError::Document {
            origin: Origin {
                file: Arc::clone(file),
                document,
                item: None,
                line,
            },
            subject: Subject::default(),
            problem,
        });
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
                _ => object.get("items").is_some(),
            };
        if is_list {
            self.list(source, place, object);
        } else {
            self.object(source, place, object);
        }
    }

    fn list(&mut self, source: &Source<'_>, place: &FieldPath, list: RawObject) {
        let api_version = list.text("/apiVersion").to_owned();
        let item_kind = list.text("/kind").strip_suffix("List");
        let item_kind = item_kind.unwrap_or("").to_owned();
        let mut list = list.into_value();
        let items = match list.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                let subject = Subject {
                    kind: Some(format!("{item_kind}List")),
                    ..Subject::default()
                };
                let problem = wrong_type("items", "a sequence", &other);
                return self.failed(source, place, subject, problem);
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
        if self.manifests.documents.len() >= self.most {
            let problem = Problem::TooMany { most: self.most };
            return self.failed(source, place, Subject::default(), problem);
        }
        let mut unknown = Vec::new();
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
                namespace: text("/metadata/namespace").or_else(|| Some(self.namespace.to_string())),
                name: text("/metadata/name"),
            };
            let completion = Completion {
                origin: &|| source.origin(place, &FieldPath::root()),
                namespace: &self.namespace,
                uids: self.uids,
            };
            recognize(object, completion, &mut unknown)
        });
        let mut warn = |problem| {
            self.warnings
                .push(|| source.error(place, subject.clone(), problem));
        };
        for UnknownField { field, suggestion } in unknown {
            warn(Problem::UnknownField { field, suggestion });
        }
        match recognized {
            Ok(Recognized::Object(document, rejected)) => {
                let rejected = rejected.iter().cloned();
                rejected.map(Problem::Rejected).for_each(warn);
                self.keep(source, place, subject, *document);
            }
            Ok(Recognized::Skipped(kind)) => *self.manifests.skipped.entry(kind).or_default() += 1,
            Err(problem) => self.failed(source, place, subject, problem),
        }
    }

    fn failed(
        &mut self,
        source: &Source<'_>,
        place: &FieldPath,
        subject: Subject,
        problem: Problem,
    ) {
        self.errors.push(|| source.error(place, subject, problem));
    }

    /// Adds an object, unless another one of that name is there.
    fn keep(
        &mut self,
        source: &Source<'_>,
        place: &FieldPath,
        subject: Subject,
        document: Document,
    ) {
        let kind = document.object.text("/kind").to_owned();
        let pod = document.object.key();
        let next = self.manifests.documents.len();
        let first = *self.seen.entry((kind.clone(), pod.clone())).or_insert(next);
        let Some(known) = self.manifests.documents.get(first) else {
            return self.manifests.documents.push(document);
        };
        let (first, other) = (known.origin.clone(), known.workload.clone());
        let problem = if other == document.workload {
            Problem::Duplicate { first }
        } else {
            let other = other.unwrap_or_else(|| format!("{kind} {}", pod.name));
            Problem::SamePod { pod, other, first }
        };
        self.failed(source, place, subject, problem);
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
