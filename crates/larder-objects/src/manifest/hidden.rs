//! What rejected documents may hold. Such an object must not count as absent.
//!
//! Invariants:
//! 1. A rejected document hides what it could hold, by as much of kind, namespace and name as was read, and nothing else.
//! 2. What was not read may be anything: a file that is not text may hold every object.

use std::collections::BTreeSet;

use smol_str::SmolStr;

use super::{
    ManifestError, Problem, Subject,
    kind::{KINDS, ObjectKind},
};
use crate::{FieldPath, ObjectKey, PathSegment};

/// The objects that rejected documents may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenObjects(BTreeSet<Pattern>);

/// Objects of this kind, namespace and name; `None` stands for any.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern {
    kind: Option<SmolStr>,
    namespace: Option<SmolStr>,
    name: Option<SmolStr>,
}

impl HiddenObjects {
    /// Any object.
    pub fn anything() -> Self {
        Self(BTreeSet::from([Pattern::default()]))
    }

    /// What the documents of `errors` may hold.
    pub fn of_errors<'e>(errors: impl IntoIterator<Item = &'e ManifestError>) -> Self {
        Self(errors.into_iter().map(Pattern::of).collect())
    }

    /// Adds one object.
    pub fn insert(&mut self, kind: &str, key: &ObjectKey) {
        self.0.insert(Pattern::exact(kind, key));
    }

    /// Adds those of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Whether nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this object may be among them.
    pub fn may_hold(&self, kind: &str, key: &ObjectKey) -> bool {
        self.covers(&Pattern::exact(kind, key))
    }

    /// Whether an object of this kind may be among them, whatever its name is.
    pub fn may_hold_any(&self, kind: &str) -> bool {
        let is_kind = |pattern: &Pattern| pattern.kind.as_ref().is_none_or(|known| known == kind);
        self.0.iter().any(is_kind)
    }

    /// Whether all objects of `other` are among them.
    pub fn contains_all(&self, other: &Self) -> bool {
        other.0.iter().all(|pattern| self.covers(pattern))
    }

    /// Whether one pattern covers `wanted`. It takes eight look-ups, however many patterns there are.
    fn covers(&self, wanted: &Pattern) -> bool {
        (0..8).any(|any| {
            let field = |bit: u8, field: &Option<SmolStr>| field.clone().filter(|_| any & bit == 0);
            self.0.contains(&Pattern {
                kind: field(1, &wanted.kind),
                namespace: field(2, &wanted.namespace),
                name: field(4, &wanted.name),
            })
        })
    }
}

impl Pattern {
    fn exact(kind: &str, key: &ObjectKey) -> Self {
        Self {
            kind: Some(kind.into()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
        }
    }

    fn of(error: &ManifestError) -> Self {
        match error {
            ManifestError::Document {
                problem: Problem::SamePod { pod, .. },
                ..
            } => Self::exact("Pod", pod),
            ManifestError::Document {
                subject, problem, ..
            } => Self::of_document(subject, problem),
            ManifestError::Read { .. }
            | ManifestError::NotText { .. }
            | ManifestError::Omitted { .. } => Self::default(),
        }
    }

    fn of_document(subject: &Subject, problem: &Problem) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(SmolStr::from);
        let (namespace, name) = if rejects_metadata(problem) {
            (None, None)
        } else {
            (text(&subject.namespace), text(&subject.name))
        };
        let kind = subject.kind.as_deref().unwrap_or_default();
        match handling(kind) {
            Some(ObjectKind::List) => Self::default(),
            // What its pods are called is up to its controller.
            Some(ObjectKind::Workload(_)) => Self {
                kind: Some("Pod".into()),
                namespace,
                name: None,
            },
            Some(_) => Self {
                kind: Some(kind.into()),
                namespace,
                name,
            },
            // A misspelled kind, a workload perhaps; but a list has no name.
            None if name.is_some() && !kind.ends_with("List") => Self {
                kind: None,
                namespace,
                name: None,
            },
            None => Self::default(),
        }
    }
}

/// What larder does with objects of this kind, in any version; `None` if there is no such kind.
fn handling(kind: &str) -> Option<ObjectKind> {
    if kind == "ClusterTrustBundle" {
        return Some(ObjectKind::ClusterTrustBundle);
    }
    KINDS
        .into_iter()
        .find(|(_, known, _)| *known == kind)
        .map(|(.., handling)| handling)
}

/// Whether the object may have another namespace or name than its document says.
fn rejects_metadata(problem: &Problem) -> bool {
    let is_metadata = |path: &FieldPath| matches!(path.segments().first(), Some(PathSegment::Field(field)) if field == "metadata");
    match problem {
        Problem::Invalid(errors) => errors.iter().any(|error| is_metadata(&error.field)),
        other => is_metadata(&other.field()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Loader;

    /// What the rejected documents of `text` may hold, of these objects.
    fn hidden(text: &str) -> Vec<&'static str> {
        let mut loader = Loader::new("default");
        loader.text("f.yaml", text);
        let errors = loader.finish().errors;
        assert!(!errors.is_empty(), "{text} is valid");
        let hidden = HiddenObjects::of_errors(&errors);
        let objects = [
            "Pod a/x",
            "Pod a/y",
            "ConfigMap a/x",
            "Pod b/x",
            "Secret b/y",
        ];
        let may_hold = |object: &&str| {
            let (kind, key) = object.split_once(' ').unwrap();
            let (namespace, name) = key.split_once('/').unwrap();
            hidden.may_hold(kind, &ObjectKey::new(namespace, name))
        };
        objects.into_iter().filter(may_hold).collect()
    }

    const ANYTHING: [&str; 5] = [
        "Pod a/x",
        "Pod a/y",
        "ConfigMap a/x",
        "Pod b/x",
        "Secret b/y",
    ];

    #[test]
    fn a_document_hides_what_it_could_hold_and_nothing_else() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {namespace: a, name: x}\nspec: 5\n";
        assert_eq!(hidden(pod), ["Pod a/x"]);
        let of_namespace = ["Pod a/x", "Pod a/y", "ConfigMap a/x"];
        for (from, to, expected) in [
            (
                "kind: Pod",
                "kind: ConfigMap\ndata: 5",
                &["ConfigMap a/x"][..],
            ),
            ("kind: Pod", "kind: Service", &[]),
            // The default namespace.
            ("namespace: a, ", "", &[]),
            // Pods of a workload may have any name.
            (
                "v1\nkind: Pod",
                "apps/v1\nkind: Deployment",
                &["Pod a/x", "Pod a/y"],
            ),
            (
                "v1\nkind: Pod",
                "batch/v1\nkind: CronJob",
                &["Pod a/x", "Pod a/y"],
            ),
            ("apiVersion: v1\n", "", &["Pod a/x"]),
            ("apiVersion: v1", "apiVersion: v2", &["Pod a/x"]),
            (", name: x", "", &["Pod a/x", "Pod a/y", "Pod b/x"]),
            ("name: x", "name: 5", &["Pod a/x", "Pod a/y", "Pod b/x"]),
            (
                "namespace: a",
                "namespace: 5",
                &["Pod a/x", "Pod a/y", "Pod b/x"],
            ),
            ("metadata: {", "metadata: [", &ANYTHING),
            ("kind: Pod", "kind: Podd", &of_namespace),
            ("kind: Pod", "kind: 5", &of_namespace),
            ("kind: Pod\n", "", &of_namespace),
            // A list.
            ("kind: Pod", "kind: List\nitems: 5", &ANYTHING),
            ("kind: Pod", "kind: PodList\nitems: 5", &ANYTHING),
            ("kind: Pod", "kind: PoddList", &ANYTHING),
            (pod, "}", &ANYTHING),
            (pod, "5", &ANYTHING),
            (pod, "apiVersion: v1\nkind: List\nitems: [5]", &ANYTHING),
            (
                pod,
                "apiVersion: v1\nkind: PodList\nitems: [{metadata: {namespace: a, name: x}, spec: 5}]",
                &["Pod a/x"],
            ),
        ] {
            assert!(pod.contains(from), "{from}");
            let text = pod.replace(from, to);
            assert_eq!(hidden(&text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_shown_or_not_text_hides_anything() {
        let omitted = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: 5\n---\n".repeat(101);
        assert_eq!(hidden(&omitted), ANYTHING);
        let mut loader = Loader::new("default");
        loader.file(std::path::Path::new("/nonexistent"));
        let hidden = HiddenObjects::of_errors(&loader.finish().errors);
        assert_eq!(hidden, HiddenObjects::anything());
    }

    #[test]
    fn sets_are_compared_by_what_they_may_hold() {
        let key = ObjectKey::new("a", "x");
        let mut hidden = HiddenObjects::default();
        assert!(hidden.is_empty() && !hidden.may_hold_any("Pod"));
        hidden.insert("Pod", &key);
        assert!(hidden.may_hold("Pod", &key) && hidden.may_hold_any("Pod"));
        assert!(!hidden.may_hold_any("Secret"));
        assert!(HiddenObjects::anything().contains_all(&hidden));
        assert!(!hidden.contains_all(&HiddenObjects::anything()));
        assert!(hidden.contains_all(&HiddenObjects::default()));
        hidden.extend(&HiddenObjects::anything());
        assert!(hidden.may_hold("Secret", &ObjectKey::new("b", "y")));
    }
}
