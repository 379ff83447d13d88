//! Errors of manifests.

use std::{fmt, io, sync::Arc};

use super::{Origin, kind::KINDS};
use crate::{
    FieldPath, ObjectKey, chain,
    similar::most_similar,
    validation::{FieldError, FieldErrors},
};

/// Why a file or a document was not taken.
///
/// The text says where, which object, which field and what: `app.yaml: document 2, line 14: ConfigMap "app":
/// data[PORT]: …`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "most errors are of documents")]
pub enum ManifestError {
    /// A file or directory cannot be read.
    #[error("cannot {step} {path}")]
    Read {
        /// The attempted operation: `open`, `read`, `list`.
        step: &'static str,
        /// The path, as the user named it.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is not text.
    #[error("{path}: line {line}: not UTF-8 text")]
    NotText {
        /// The path, as the user named it.
        path: String,
        /// Line of the first bad byte, from 1.
        line: usize,
    },
    /// A document is not an object that larder can take.
    #[error("{origin}: {subject}{problem}{}", Beside(.beside))]
    Document {
        /// The place.
        origin: Origin,
        /// The object, as far as it is known.
        subject: Subject,
        /// The problem.
        problem: Problem,
        /// Unknown fields of a rejected object, which may be why: what it lacks may be there.
        beside: Vec<Problem>,
    },
    /// A file has more problems than are reported.
    #[error("{file}: {count} more problems not shown")]
    Omitted {
        /// The file, as the user named it.
        file: Arc<str>,
        /// Number of the problems.
        count: usize,
    },
}

impl ManifestError {
    /// The file or directory, as the user named it.
    pub fn path(&self) -> &str {
        match self {
            Self::Read { path, .. } | Self::NotText { path, .. } => path,
            Self::Document { origin, .. } => &origin.file,
            Self::Omitted { file, .. } => file,
        }
    }

    /// The same error with what may explain it.
    pub(super) fn explained_by(mut self, explanations: Vec<Problem>) -> Self {
        if let Self::Document { beside, .. } = &mut self {
            *beside = explanations;
        }
        self
    }

    /// The same of the document at `origin`, for one that was made of it.
    #[must_use]
    pub fn at(mut self, place: &Origin) -> Self {
        if let Self::Document { origin, .. } = &mut self {
            origin.clone_from(place);
        }
        self
    }

    /// The text where an unknown field is no warning but a rejection: the last good version of the object stays.
    pub fn as_rejection(&self) -> String {
        match self {
            Self::Document {
                origin,
                subject,
                problem: Problem::UnknownField { field, suggestion },
                ..
            } => {
                let effect = "so its last good version stays";
                let field = UnknownFieldText {
                    field,
                    effect,
                    suggestion: suggestion.as_ref(),
                };
                format!("{origin}: {subject}{field}")
            }
            other => chain(other),
        }
    }

    /// Whether the input could not be read at all, as opposed to being wrong.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::NotText { .. })
    }
}

/// Displays as `unknown field "dta", ignored; did you mean "data"?`.
struct UnknownFieldText<'a> {
    field: &'a FieldPath,
    /// What follows from it.
    effect: &'static str,
    suggestion: Option<&'a Suggestion>,
}

impl fmt::Display for UnknownFieldText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown field {:?}, {}",
            self.field.to_string(),
            self.effect
        )?;
        self.suggestion
            .map_or(Ok(()), |meant| write!(f, "; {meant}"))
    }
}

/// Displays as `; unknown field …`.
struct Beside<'a>(&'a [Problem]);

impl fmt::Display for Beside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|problem| write!(f, "; {problem}"))
    }
}

/// The object that an error is about. Displays as `ConfigMap "app": `, or as nothing while nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject {
    /// Its kind, if it has one.
    pub kind: Option<String>,
    /// Its namespace, or the default one; `None` while it is not known, or not a text.
    pub namespace: Option<String>,
    /// Its name, if it has one.
    pub name: Option<String>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.name) {
            (Some(kind), Some(name)) => write!(f, "{kind} {name:?}: "),
            (Some(kind), None) => write!(f, "{kind}: "),
            (None, Some(name)) => write!(f, "{name:?}: "),
            (None, None) => Ok(()),
        }
    }
}

/// The problem of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The text is neither YAML nor JSON, or a mapping has a key twice.
    Syntax(String),
    /// The document is something else than a mapping.
    NotAnObject,
    /// The reader takes no more objects; see [`Loader::at_most`](super::Loader::at_most).
    TooMany {
        /// The number that it takes.
        most: usize,
    },
    /// A field without which nothing can be done is absent: `apiVersion`, `kind`, `metadata.name`.
    Missing {
        /// The field.
        field: FieldPath,
    },
    /// A kind that does not exist in an API group that Kubernetes defines.
    UnknownKind {
        /// As in the document.
        kind: String,
        /// As in the document.
        api_version: String,
    },
    /// A field has another type than the API gives it.
    Type {
        /// The field.
        field: FieldPath,
        /// The expected and the present form; no value.
        problem: String,
    },
    /// The kind has no such field. A warning: larder uses the object without it.
    UnknownField {
        /// The field.
        field: FieldPath,
        /// What may be meant, if that is known.
        suggestion: Option<Suggestion>,
    },
    /// The API server would reject the object.
    Invalid(FieldErrors),
    /// The API server would reject the workload. A warning: larder uses its pod template all the same.
    Rejected(FieldError),
    /// Its values are encrypted, so there is nothing to deliver.
    Encrypted,
    /// The object is there already.
    Duplicate {
        /// The place where it was seen first.
        first: Origin,
    },
    /// The pod of a workload has the name of another one.
    SamePod {
        /// Namespace and name of both.
        pod: ObjectKey,
        /// The origin of the other one, as `Deployment web`, or `Pod web` for a pod that the manifest contains itself.
        other: String,
        /// The place where it was seen first.
        first: Origin,
    },
    /// The decoder panicked, which is a bug of larder.
    Internal,
}

/// What an unknown field may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// A field that the kind has at this place, with a similar name.
    Name(&'static str),
    /// The same field at another place.
    Place(FieldPath),
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "did you mean {name:?}?"),
            Self::Place(place) => write!(f, "it belongs in {place}"),
        }
    }
}

impl Problem {
    /// The field in question, the first one if there are several; the root for the whole document.
    pub fn field(&self) -> FieldPath {
        match self {
            Self::Missing { field }
            | Self::Type { field, .. }
            | Self::UnknownField { field, .. } => field.clone(),
            Self::UnknownKind { .. } => FieldPath::fields("kind"),
            Self::Rejected(error) => error.field.clone(),
            Self::Invalid(errors) => errors
                .first()
                .map_or_else(FieldPath::root, |error| error.field.clone()),
            Self::Syntax(_)
            | Self::NotAnObject
            | Self::TooMany { .. }
            | Self::Encrypted
            | Self::Duplicate { .. }
            | Self::SamePod { .. }
            | Self::Internal => FieldPath::root(),
        }
    }

    /// The same problem of an object that is the part `prefix` of another one.
    pub(super) fn within(self, prefix: &FieldPath) -> Self {
        let join = |field: FieldPath| prefix.join(&field);
        match self {
            Self::Missing { field } => Self::Missing { field: join(field) },
            Self::Type { field, problem } => Self::Type {
                field: join(field),
                problem,
            },
            Self::Invalid(errors) => Self::Invalid(errors.within(prefix)),
            other => other,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(problem) => f.write_str(problem),
            Self::NotAnObject => {
                f.write_str("a document must be a mapping with apiVersion, kind and metadata")
            }
            Self::TooMany { most } => write!(f, "expected at most {most} objects"),
            Self::Missing { field } => write!(f, "{field}: Required value"),
            Self::UnknownKind { kind, api_version } => {
                write!(f, "no matches for kind {kind:?} in version {api_version:?}")?;
                let near = most_similar(kind, KINDS.iter().map(|(_, kind, _)| *kind));
                let near = KINDS.iter().find(|(_, known, _)| Some(*known) == near);
                near.map_or(Ok(()), |(version, kind, _)| {
                    write!(f, "; did you mean {kind} of {version}?")
                })
            }
            Self::UnknownField { field, suggestion } => {
                let suggestion = suggestion.as_ref();
                let effect = "ignored";
                UnknownFieldText {
                    field,
                    effect,
                    suggestion,
                }
                .fmt(f)
            }
            Self::Type { field, problem } if field.segments().is_empty() => f.write_str(problem),
            Self::Type { field, problem } => write!(f, "{field}: {problem}"),
            Self::Invalid(errors) => write!(f, "{errors}"),
            Self::Rejected(error) => write!(f, "{error}; the API server rejects it"),
            Self::Encrypted => f.write_str("encrypted by sops; decrypt it first: sops -d"),
            Self::Duplicate { first } => write!(f, "already defined in {first}"),
            Self::Internal => f.write_str("internal error in the decoder, please report it"),
            Self::SamePod { pod, other, first } => write!(
                f,
                "the pod {pod} is already made from {other} in {first}; give one of the two another name"
            ),
        }
    }
}
