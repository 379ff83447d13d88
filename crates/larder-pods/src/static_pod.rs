//! Static pods: turns the text of a manifest into the pod that the node runs.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/{common,file,http}.go`. The steps, in order:
//! 1. The text is decoded and gets the API server's defaults; errors name line and field.
//! 2. The UID is the manifest's own, or is derived from content, node and place.
//! 3. Name, namespace, node, the hash annotation, the phase, and for files one toleration are set.
//! 4. The result is validated like a pod that is created at the API server.
//! 5. A pod that references API objects is rejected, unless the user allows it.
//!
//! # The UID, version 1
//!
//! FNV-1a with 128 bits, 32 lower-case hexadecimal digits, over these bytes without separators:
//! - `larder/static-pod/1`;
//! - the manifest as JSON without white space and nulls, with the keys of every mapping in byte order, with its
//!   namespace filled in, before any default;
//! - for a file `host:<node name>` and `file:<path>`, for a URL `url:<url>`.
//!
//! So comments, order and layout do not matter; any value, the node and the place do. The kubelet hashes a debug print
//! of its own Go types, which only the same build of the kubelet can repeat.
//!
//! A change of this format changes the identity of running pods; it needs a new version.
//!
//! Invariant: no manifest ends the process. A panic in a parser is an error of the manifest.

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    path::Path,
};

use http::Uri;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use larder_net::url::without_credentials;
use larder_objects::{
    StableHash, escaped,
    manifest::{Document, Loader, Manifest, ManifestError, Manifests, Problem},
    validation::{self, FieldErrors},
};
use serde_json::Value;

use super::{
    identity::{CONFIG_HASH, CONFIG_MIRROR, annotation, set_annotation},
    stored::{StoredPod, StoredPodError},
};

pub use larder_objects::api_reference;

/// The place of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestPlace<'a> {
    /// A file, by its full path.
    File(&'a Path),
    /// A URL.
    Url(&'a str),
}

/// Whether static pods may refer to ConfigMaps, Secrets and other objects of the API server: `staticPodAPIReferences`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiReferences {
    /// Such pods are rejected, as in the kubelet since 1.34. The default, and right for every node of a cluster.
    #[default]
    Refuse,
    /// Such pods are served with larder's own identity. For hosts that are not cluster nodes. Resource claims stay
    /// rejected: no controller allocates them for a static pod.
    Allow,
}

/// Why a manifest is not a static pod.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StaticPodError {
    /// It cannot be decoded.
    #[error(transparent)]
    Manifest(Box<ManifestError>),
    /// It is decoded, and no pod that this node can run.
    #[error("{place}: {problem}")]
    Unusable {
        /// File or URL, and the place in it as far as it is known.
        place: String,
        /// Why.
        problem: StaticPodProblem,
    },
}

/// Why a manifest that can be decoded is not a static pod.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StaticPodProblem {
    /// It is empty.
    #[error("no pod found")]
    Empty,
    /// It is another object than a pod, of this kind.
    #[error("expected a Pod, found {0}")]
    NotAPod(String),
    /// A file holds one pod. The first one is used; the place is that of the second.
    #[error("only the first document of a static pod's file is read")]
    MoreThanOne,
    /// A file holds a pod, not a list of them.
    #[error("a static pod's file cannot hold a list")]
    List,
    /// It has the annotation of a mirror pod. Such a pod would never run, and its mirror pod would count as an orphan.
    #[error("a static pod must not have the annotation {CONFIG_MIRROR}")]
    Mirror,
    /// The API server would reject it.
    #[error("invalid pod: {0}")]
    Invalid(FieldErrors),
    /// It references an object that only the API server has, as the kubelet names it.
    #[error("static pods may not reference {0}")]
    ApiReference(&'static str),
    /// The parser panicked on it.
    #[error("the parser failed, which is a bug in larder")]
    Panic,
    /// It has a value that cannot be stored.
    #[error("cannot store the pod: {0}")]
    Store(StoredPodError),
}

impl StaticPodProblem {
    fn at(self, place: impl ToString) -> StaticPodError {
        StaticPodError::Unusable {
            place: place.to_string(),
            problem: self,
        }
    }
}

impl From<ManifestError> for StaticPodError {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(Box::new(error))
    }
}

/// The static pod of a file, and what else is wrong with the file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FilePod {
    /// The pod of the first document.
    pub pod: StoredPod,
    /// The first field of that document that a pod does not have. The kubelet ignores it; the API server would reject
    /// the pod.
    pub unknown_field: Option<StaticPodError>,
    /// A second document, which is not read.
    pub more: Option<StaticPodError>,
}

/// A static pod of a URL.
#[derive(Debug)]
#[non_exhaustive]
pub struct UrlPod {
    /// The pod.
    pub pod: StoredPod,
    /// The first field of it that a pod does not have. The kubelet ignores it; the API server would reject the pod.
    pub unknown_field: Option<StaticPodError>,
}

/// Most pods behind a URL. A kubelet runs 110 by default.
const MAX_PODS: usize = 10_000;

/// Makes static pods from manifests, for one node.
#[derive(Clone, Debug)]
pub struct StaticPods {
    node_name: String,
    api_references: ApiReferences,
}

impl StaticPods {
    /// A maker of static pods for the node `node_name`.
    pub fn new(node_name: impl Into<String>, api_references: ApiReferences) -> Self {
        Self {
            node_name: node_name.into(),
            api_references,
        }
    }

    /// The pod in the file at `path`: its first document.
    ///
    /// # Errors
    ///
    /// The first document is not a static pod.
    pub fn from_file(&self, path: &Path, text: &str) -> Result<FilePod, StaticPodError> {
        let name = shown_path(path);
        guarded(&name, || self.first_of_file(path, &name, text))
    }

    fn first_of_file(
        &self,
        path: &Path,
        name: &str,
        text: &str,
    ) -> Result<FilePod, StaticPodError> {
        let Manifests {
            documents,
            errors,
            warnings,
            skipped,
            ..
        } = load(name, text, 2);
        let first_error = errors.into_iter().next();
        let mut documents = documents.into_iter();
        let first = match (documents.next(), first_error) {
            (Some(document), Some(error)) if is_before(&error, &document) => {
                return Err(error.into());
            }
            (None, Some(error)) => return Err(error.into()),
            (Some(document), _) => document,
            (None, None) => {
                let problem = skipped
                    .into_keys()
                    .next()
                    .map_or(StaticPodProblem::Empty, StaticPodProblem::NotAPod);
                return Err(problem.at(name));
            }
        };
        if first.origin.item.is_some() {
            return Err(StaticPodProblem::List.at(first.origin));
        }
        let place = (first.origin.document, first.origin.item);
        let unknown_field = unknown_fields(warnings).remove(&place);
        let pod = self.pod(ManifestPlace::File(path), first)?;
        let more = documents
            .next()
            .map(|document| StaticPodProblem::MoreThanOne.at(document.origin));
        Ok(FilePod {
            pod,
            unknown_field,
            more,
        })
    }

    /// The pods in a response of `url`: one, or a list of them.
    ///
    /// # Errors
    ///
    /// One of them is not a static pod; then none is used.
    pub fn from_url(&self, url: &str, text: &str) -> Result<Vec<UrlPod>, StaticPodError> {
        let name = shown_url(url);
        guarded(&name, || self.all_of_url(url, &name, text))
    }

    fn all_of_url(&self, url: &str, name: &str, text: &str) -> Result<Vec<UrlPod>, StaticPodError> {
        let manifests = load(name, text, MAX_PODS);
        if let Some(error) = manifests.errors.into_iter().next() {
            return Err(error.into());
        }
        let mut documents = manifests.documents.iter();
        if let Some(second) = documents.find(|document| document.origin.document > 1) {
            return Err(StaticPodProblem::MoreThanOne.at(&second.origin));
        }
        if let Some(kind) = manifests.skipped.into_keys().next() {
            return Err(StaticPodProblem::NotAPod(kind).at(name));
        }
        // An empty list is a document without pods.
        if manifests.documents_read == 0 {
            return Err(StaticPodProblem::Empty.at(name));
        }
        let mut unknown_fields = unknown_fields(manifests.warnings);
        let pods = manifests.documents.into_iter().map(|document| {
            let place = (document.origin.document, document.origin.item);
            Ok(UrlPod {
                pod: self.pod(ManifestPlace::Url(url), document)?,
                unknown_field: unknown_fields.remove(&place),
            })
        });
        pods.collect()
    }

    fn pod(
        &self,
        place: ManifestPlace<'_>,
        document: Document,
    ) -> Result<StoredPod, StaticPodError> {
        let origin = document.origin;
        let mut pod = match (document.manifest, document.workload) {
            (Manifest::Pod(pod), None) => *pod,
            (_, workload) => {
                let kind = document.object["kind"].as_str().unwrap_or_default();
                let kind =
                    workload.map_or_else(|| kind.to_owned(), |workload| workload.to_string());
                return Err(StaticPodProblem::NotAPod(kind).at(origin));
            }
        };
        if annotation(&pod.metadata, CONFIG_MIRROR).is_some() {
            return Err(StaticPodProblem::Mirror.at(origin));
        }
        self.derive(place, &document.object, &mut pod);
        let errors = validation::pod(&pod);
        if !errors.is_empty() {
            return Err(StaticPodProblem::Invalid(errors).at(origin));
        }
        match (api_reference(&pod), self.api_references) {
            (Some(resource), ApiReferences::Refuse)
            | (Some(resource @ "resourceclaims"), ApiReferences::Allow) => {
                Err(StaticPodProblem::ApiReference(resource).at(origin))
            }
            _ => StoredPod::new(pod).map_err(|error| StaticPodProblem::Store(error).at(origin)),
        }
    }

    /// Steps 2 and 3.
    fn derive(&self, place: ManifestPlace<'_>, manifest: &Value, pod: &mut Pod) {
        let metadata = &mut pod.metadata;
        let uid = metadata
            .uid
            .take()
            .filter(|uid| !uid.is_empty())
            .unwrap_or_else(|| self.uid(place, manifest));
        let name = metadata.name.take().unwrap_or_default();
        metadata.name = Some(format!("{name}-{}", self.node_name.to_lowercase()));
        metadata.uid = Some(uid.clone());
        set_annotation(&mut pod.metadata, CONFIG_HASH, Some(uid));
        let spec = pod.spec.get_or_insert_default();
        spec.node_name = Some(self.node_name.clone());
        if let ManifestPlace::File(_) = place {
            tolerate_no_execute(spec.tolerations.get_or_insert_default());
        }
        pod.status.get_or_insert_default().phase = Some("Pending".to_owned());
    }

    /// The UID of a manifest without one.
    fn uid(&self, place: ManifestPlace<'_>, manifest: &Value) -> String {
        let hash = StableHash::EMPTY
            .with("larder/static-pod/1")
            .with(canonical_json(manifest));
        let hash = match place {
            ManifestPlace::File(path) => hash
                .with("host:")
                .with(&self.node_name)
                .with("file:")
                .with(path.as_os_str().as_encoded_bytes()),
            ManifestPlace::Url(url) => hash.with("url:").with(url),
        };
        hash.to_string()
    }
}

/// `path` as text in one line, escaped, so that a file's name cannot forge lines of a log.
pub(super) fn shown_path(path: &Path) -> String {
    escaped(&path.to_string_lossy()).into_owned()
}

/// `url` without what may hold credentials: user, password, query and fragment.
pub fn shown_url(url: &str) -> String {
    match url.parse::<Uri>() {
        Ok(url) if url.authority().is_some() => without_credentials(&url) + url.path(),
        // The kubelet's word in `/configz`.
        _ => "<masked>".to_owned(),
    }
}

/// Runs a parser of the manifest at `place`, and makes an error of its panic. A manifest comes from outside: whatever
/// it holds, it must not end the agent.
fn guarded<T>(
    place: &str,
    parse: impl FnOnce() -> Result<T, StaticPodError>,
) -> Result<T, StaticPodError> {
    #[cfg(test)]
    crate::testing::assert_off_runtime();
    // What the parser was building is dropped with the panic, and nothing else is shared with it.
    panic::catch_unwind(AssertUnwindSafe(parse))
        .unwrap_or_else(|_| Err(StaticPodProblem::Panic.at(place)))
}

fn load(name: &str, text: &str, most: usize) -> Manifests {
    let mut loader = Loader::new("default").without_uids().at_most(most);
    loader.text(name, text);
    loader.finish()
}

/// Whether `error` stands before `document` in the file of both.
fn is_before(error: &ManifestError, document: &Document) -> bool {
    match error {
        ManifestError::Document { origin, .. } => {
            (origin.document, origin.item) < (document.origin.document, document.origin.item)
        }
        _ => true,
    }
}

/// Of each document and item of it, the first warning of a field that its object does not have.
fn unknown_fields(
    warnings: Vec<ManifestError>,
) -> BTreeMap<(usize, Option<usize>), StaticPodError> {
    let mut fields = BTreeMap::new();
    for warning in warnings {
        if let ManifestError::Document {
            origin,
            problem: Problem::UnknownField { .. },
            ..
        } = &warning
        {
            let place = (origin.document, origin.item);
            fields.entry(place).or_insert_with(|| warning.into());
        }
    }
    fields
}

/// Makes a static pod from a file tolerate every NoExecute taint.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let same = |other: &&mut Toleration| {
        other.operator == wanted.operator
            && other.effect == wanted.effect
            && text(&other.key).is_empty()
            && text(&other.value).is_empty()
    };
    match tolerations.iter_mut().find(same) {
        Some(equal) => *equal = wanted,
        None => tolerations.push(wanted),
    }
}

/// `value` in the canonical form behind the UID. It depends on no feature of serde_json that another crate may enable.
pub(super) fn canonical_json(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            let sorted: BTreeMap<_, _> = set.collect();
            let fields = sorted.into_iter().map(|(key, value)| {
                let key = Value::from(key.as_str());
                format!("{key}:{}", canonical_json(value))
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(canonical_json).collect();
            format!("[{}]", items.join(","))
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests;
