//! From text to documents.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Document, Loader, ManifestError, Origin, Problem, RawObject,
    decode::{Decoded, Recognized, recognize, wrong_type},
    error::Subject,
    json::Strict,
    kind::ObjectKind,
};
use crate::{
    ObjectKey,
    yaml::{self, Chunk, Step},
};

/// One document of a file, before anything is known of it.
struct Source<'a> {
    file: &'a Arc<str>,
    /// Number in the file, from 1.
    document: usize,
    /// The text that holds it, and possibly others after it.
    chunk: Chunk<'a>,
    /// Which of the documents of `chunk` it is, from 0.
    index: usize,
    /// Line on which it begins.
    line: usize,
}

impl Source<'_> {
    /// Line of the field at `path`. Reads the text again: lines are needed for errors only.
    fn line_of(&self, path: &[Step]) -> usize {
        yaml::parse(self.chunk)
            .ok()
            .and_then(|documents| Some(documents.get(self.index)?.line_of(path)))
            .unwrap_or(self.line)
    }

    fn origin(&self, item: Option<usize>, path: &[Step]) -> Origin {
        Origin {
            file: Arc::clone(self.file),
            document: self.document,
            item: item.map(|index| index + 1),
            line: self.line_of(path),
        }
    }
}

impl Loader {
    /// Reads the documents of `text`, YAML or JSON; in errors it is called `name`.
    pub fn text(&mut self, name: &str, text: &str) {
        let file: Arc<str> = name.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut document = 0;
        for chunk in yaml::chunks(text) {
            let body = chunk.without_separator();
            let is_json = body.text.trim_start().starts_with('{');
            if !(is_json && self.json(&file, body, &mut document)) {
                self.yaml(&file, chunk, &mut document);
            }
        }
    }

    /// Reads the YAML documents of `chunk`. `document` counts those of the file.
    fn yaml(&mut self, file: &Arc<str>, chunk: Chunk<'_>, document: &mut usize) {
        let nodes = match yaml::parse(chunk) {
            Ok(nodes) => nodes,
            Err(error) => {
                *document += 1;
                return self.syntax_error(file, *document, error.line, error.problem);
            }
        };
        for (index, node) in nodes
            .into_iter()
            .enumerate()
            .filter(|(_, node)| !node.is_null())
        {
            *document += 1;
            let source = Source {
                file,
                document: *document,
                chunk,
                index,
                line: node.line,
            };
            self.document(&source, node.into_value());
        }
    }

    /// Reads the JSON documents of `chunk`, one after the other; `false` when it is no JSON but YAML that begins with a brace.
    fn json(&mut self, file: &Arc<str>, chunk: Chunk<'_>, document: &mut usize) -> bool {
        let Chunk { text, line } = chunk;
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Strict>();
        let mut start = 0;
        while let Some(next) = stream.next() {
            match next {
                Ok(Strict(value)) => {
                    *document += 1;
                    let source = Source {
                        file,
                        document: *document,
                        chunk: Chunk {
                            text: &text[start..stream.byte_offset()],
                            line: line + text[..start].matches('\n').count(),
                        },
                        index: 0,
                        line: line - 1 + line_at(text, start),
                    };
                    self.document(&source, value);
                }
                Err(error) => {
                    if start == 0 && !error.is_data() && yaml::parse(chunk).is_ok() {
                        return false;
                    }
                    *document += 1;
                    let problem = error.to_string();
                    let problem = problem.split(" at line ").next().unwrap_or_default();
                    self.syntax_error(file, *document, line - 1 + error.line(), problem.to_owned());
                    return true;
                }
            }
            start = stream.byte_offset();
        }
        true
    }

    fn syntax_error(&mut self, file: &Arc<str>, document: usize, line: usize, problem: String) {
        let origin = Origin {
            file: Arc::clone(file),
            document,
            item: None,
            line,
        };
        self.manifests.errors.push(ManifestError::Document {
            origin,
            subject: Subject::default(),
            problem: Problem::Syntax(problem),
        });
    }

    fn document(&mut self, source: &Source<'_>, value: Value) {
        self.manifests.documents_read += 1;
        let object = RawObject::new(value);
        let (api_version, kind) = (object.text("/apiVersion"), object.text("/kind"));
        let is_list = ObjectKind::of(api_version, kind) == ObjectKind::List
            && (kind == "List" || object.get("items").is_some());
        if is_list {
            self.list(source, object);
        } else {
            self.object(source, None, object);
        }
    }

    fn list(&mut self, source: &Source<'_>, list: RawObject) {
        let api_version = list.text("/apiVersion").to_owned();
        let item_kind = list
            .text("/kind")
            .strip_suffix("List")
            .unwrap_or("")
            .to_owned();
        let mut list = list.into_value();
        let items = match list.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                let subject = Subject {
                    kind: Some(format!("{item_kind}List")),
                    name: None,
                };
                let problem = wrong_type("items", "a sequence", &other);
                return self.failed(source, None, subject, problem);
            }
        };
        for (index, mut item) in items.into_iter().enumerate() {
            // The items of a ConfigMapList need not say that they are ConfigMaps.
            if let (Value::Object(item), false) = (&mut item, item_kind.is_empty()) {
                item.entry("apiVersion")
                    .or_insert_with(|| (&*api_version).into());
                item.entry("kind").or_insert_with(|| (&*item_kind).into());
            }
            self.object(source, Some(index), RawObject::new(item));
        }
    }

    fn object(&mut self, source: &Source<'_>, item: Option<usize>, object: RawObject) {
        let object = if self.uids {
            self.generated.name(source.file, &self.namespace, object)
        } else {
            object
        };
        let text = |pointer| Some(object.text(pointer).to_owned()).filter(|text| !text.is_empty());
        let subject = Subject {
            kind: text("/kind"),
            name: text("/metadata/name"),
        };
        match recognize(object, &self.namespace, self.uids) {
            Ok(Recognized::Object(decoded)) => self.keep(source, item, subject, *decoded),
            Ok(Recognized::Useless(kind)) => *self.manifests.skipped.entry(kind).or_default() += 1,
            Err(problem) => self.failed(source, item, subject, problem),
        }
    }

    fn failed(
        &mut self,
        source: &Source<'_>,
        item: Option<usize>,
        subject: Subject,
        problem: Problem,
    ) {
        let error = Self::error(source, item, subject, problem);
        self.manifests.errors.push(error);
    }

    fn error(
        source: &Source<'_>,
        item: Option<usize>,
        subject: Subject,
        problem: Problem,
    ) -> ManifestError {
        let mut path = Vec::new();
        if let Some(index) = item {
            path.extend([Step::Key("items".to_owned()), Step::Index(index)]);
        }
        path.extend(steps(problem.field()));
        ManifestError::Document {
            origin: source.origin(item, &path),
            subject,
            problem,
        }
    }

    /// Adds an object, unless another one of that name is there.
    fn keep(
        &mut self,
        source: &Source<'_>,
        item: Option<usize>,
        subject: Subject,
        decoded: Decoded,
    ) {
        let Decoded {
            kind,
            workload,
            object,
            manifest,
            unknown,
        } = decoded;
        let key = ObjectKey::new(
            object.text("/metadata/namespace"),
            object.text("/metadata/name"),
        );
        if let Some((first, maker)) = self.seen.get(&(kind, key.clone())) {
            let first = first.clone();
            let problem = if *maker == workload {
                Problem::Duplicate { first }
            } else {
                let other = maker.clone();
                Problem::SamePod {
                    other: other.unwrap_or_else(|| format!("{kind} {}", key.name)),
                    pod: key,
                    first,
                }
            };
            return self.failed(source, item, subject, problem);
        }
        let origin = Origin {
            file: Arc::clone(source.file),
            document: source.document,
            item: item.map(|index| index + 1),
            line: source.line,
        };
        for field in unknown {
            let problem = Problem::UnknownField { field };
            let warning = Self::error(source, item, subject.clone(), problem);
            self.manifests.warnings.push(warning);
        }
        self.seen
            .insert((kind, key), (origin.clone(), workload.clone()));
        self.manifests.documents.push(Document {
            origin,
            workload,
            object,
            manifest,
        });
    }
}

/// Line of the first character at or after `offset` that is not white space.
fn line_at(text: &str, offset: usize) -> usize {
    let rest = &text[offset..];
    let end = offset + rest.len() - rest.trim_start().len();
    1 + text[..end].matches('\n').count()
}

/// The steps of a field path: `spec.volumes[0].name`, `data[tls.crt]`.
fn steps(field: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = field;
    while !rest.is_empty() {
        let bracketed = rest
            .strip_prefix('[')
            .and_then(|inside| inside.split_once(']'));
        if let Some((name, after)) = bracketed {
            let step = name
                .parse()
                .map_or_else(|_| Step::Key(name.to_owned()), Step::Index);
            steps.push(step);
            rest = after;
        } else {
            let rest_of_path = rest.strip_prefix('.').unwrap_or(rest);
            let end = rest_of_path.find(['.', '[']).unwrap_or(rest_of_path.len());
            steps.push(Step::Key(rest_of_path[..end].to_owned()));
            rest = &rest_of_path[end..];
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_path_falls_into_its_steps() {
        let key = |name: &str| Step::Key(name.to_owned());
        assert_eq!(
            steps("spec.volumes[10].secret"),
            [key("spec"), key("volumes"), Step::Index(10), key("secret")]
        );
        assert_eq!(steps("data[tls.crt]"), [key("data"), key("tls.crt")]);
        assert_eq!(steps(""), []);
    }
}
