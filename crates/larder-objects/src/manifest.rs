//! Manifests: parses text into objects, each with its place in the text.
//!
//! ```text
//! files ─► text ─► YAML or JSON documents ─► items of lists ─► pod of a workload ─► typed object, defaulted and validated
//! ```
//!
//! Invariants:
//! 1. An error affects only its own document; it is in [`Manifests::errors`] with file, document, line and field.
//! 2. No error quotes a value of a Secret.
//! 3. Of two documents with the same kind, namespace and name, the first counts. This includes the pods of two workloads
//!    with the same name, because here they have it too, unless [`Loader::by_workload`] tells them apart.
//!
//! # Examples
//!
//! ```
//! use larder_objects::manifest::{Loader, Manifest};
//!
//! let mut loader = Loader::new("default");
//! loader.text("app.yaml", "
//! apiVersion: v1
//! kind: ConfigMap
//! metadata: {name: app}
//! data: {PORT: '8080'}
//! ---
//! apiVersion: v1
//! kind: ConfigMap
//! metadata: {name: bad}
//! data: {PORT: 8080}
//! ");
//! let manifests = loader.finish();
//! assert!(matches!(&manifests.documents[0].manifest, Manifest::ConfigMap(map) if map.data["PORT"] == "8080"));
//! assert_eq!(
//!     manifests.errors[0].to_string(),
//!     r#"app.yaml: document 2, line 10: ConfigMap "bad": data[PORT]: expected a string, found a number (quote it)"#,
//! );
//! ```

mod controllers;
mod custom;
mod decode;
mod error;
mod exclude;
mod files;
mod generated;
mod hidden;
mod json;
mod kept;
mod kind;
mod makers;
mod misplaced;
mod normalize;
mod raw;
mod read;
mod template;
pub(crate) mod typed;
mod unknown;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    path::PathBuf,
    sync::Arc,
};

use k8s_openapi::api::{
    certificates::v1beta1::ClusterTrustBundle,
    core::v1::{Namespace, Node, Pod, Service, ServiceAccount},
};
use smol_str::SmolStr;

pub use self::{
    controllers::{Rollout, SetFields, Workload},
    error::{ManifestError, Problem, Subject, Suggestion},
    exclude::{Exclusion, InvalidExclusion},
    files::{LEAVES, MAX_MANIFEST_BYTES, has_manifest_extension, is_manifest_name, read_manifest},
    generated::generated_name,
    hidden::HiddenObjects,
    kept::{KeptObjects, KeptVersion},
    makers::{MadeObject, Maker, Ownership, Recipe},
    normalize::{drop_nulls, encode_bytes, fold_string_data},
    raw::RawObject,
};
use self::{generated::GeneratedNames, read::Reported};
pub use crate::similar::most_similar;
use crate::{ConfigMap, FieldPath, ObjectKey, Secret};

/// The content of a set of files.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Manifests {
    /// The objects, in the order of the files.
    pub documents: Vec<Document>,
    /// Objects without values in the documents: controllers make them, or they are encrypted.
    pub made: Vec<MadeObject>,
    /// The rejected parts, in the same order.
    pub errors: Vec<ManifestError>,
    /// Fields that do not exist, mostly misspelt: [`Problem::UnknownField`], which are not looked for outside the pod
    /// template of a workload; and workloads that the API server rejects: [`Problem::Rejected`]. Their objects are
    /// taken all the same.
    pub warnings: Vec<ManifestError>,
    /// Number of files and other inputs, readable or not.
    pub files: usize,
    /// The files and directories of the inputs that [`Loader::exclude`] left out.
    pub excluded: BTreeSet<PathBuf>,
    /// Number of documents that were YAML or JSON. A list is one, also an empty one.
    pub documents_read: usize,
    /// The directories of which subdirectories have manifests that were not looked for.
    pub unsearched: BTreeSet<PathBuf>,
    /// The PersistentVolumeClaims, of which only the names count.
    pub claims: BTreeSet<ObjectKey>,
    /// Number of objects of kinds that larder has no use for, by kind and group
    /// (`ClusterRole.rbac.authorization.k8s.io`).
    pub skipped: BTreeMap<String, usize>,
}

impl Manifests {
    /// Whether no input could be read at all.
    pub fn nothing_read(&self) -> bool {
        self.documents.is_empty()
            && self.made.is_empty()
            && self.skipped.is_empty()
            && !self.errors.is_empty()
            && self.errors.iter().all(ManifestError::is_unreadable)
    }

    /// The pods, those of workloads included.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.documents
            .iter()
            .filter_map(|document| match &document.manifest {
                Manifest::Pod(pod) => Some(&**pod),
                _ => None,
            })
    }
}

/// One object of a manifest.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Document {
    /// Its place.
    pub origin: Origin,
    /// The workload whose template this pod is; `None` for an object that the manifest contains itself.
    pub workload: Option<Workload>,
    /// What the workload's controller sets in the pod, which neither `object` nor `manifest` has.
    pub set_fields: SetFields,
    /// The object as JSON: as written, but with namespace, with `stringData` folded into `data`, and for a pod with its
    /// UID. Defaults are not in it.
    pub object: RawObject,
    /// The object as larder uses it, with the API server's defaults.
    pub manifest: Manifest,
    /// The object, or the workload, as written; `None` unless [`Loader::keeping_written`] was called.
    pub written: Option<RawObject>,
}

impl Document {
    /// An error of this document as a whole.
    pub fn error(&self, problem: impl Into<String>) -> ManifestError {
        let key = self.object.key();
        let kind = match &self.workload {
            Some(workload) => &workload.kind,
            None => self.object.text("/kind"),
        };
        ManifestError::Document {
            origin: self.origin.clone(),
            subject: Subject {
                kind: Some(kind.to_owned()),
                namespace: Some(key.namespace.to_string()),
                name: Some(key.name.to_string()),
            },
            problem: Problem::Type {
                field: FieldPath::root(),
                problem: problem.into(),
            },
            beside: Vec::new(),
        }
    }
}

/// An object as larder uses it.
#[derive(Clone, Debug)]
pub enum Manifest {
    /// A pod, also one made of a workload's template.
    Pod(Box<Pod>),
    /// A ConfigMap.
    ConfigMap(ConfigMap),
    /// A Secret.
    Secret(Secret),
    /// A Service.
    Service(Box<Service>),
    /// A Node.
    Node(Box<Node>),
    /// A Namespace.
    Namespace(Box<Namespace>),
    /// A ServiceAccount.
    ServiceAccount(Box<ServiceAccount>),
    /// A ClusterTrustBundle.
    ClusterTrustBundle(Box<ClusterTrustBundle>),
}

/// The place of a document. Displays as `app.yaml: document 2, line 14`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The file, as the user named it.
    pub file: Arc<str>,
    /// Number of the document in its file, from 1; empty documents do not count.
    pub document: usize,
    /// Number of the item in its list, from 1; `None` outside of lists.
    pub item: Option<usize>,
    /// Line on which it, or the field in question, begins; from 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file, self.document)?;
        if let Some(item) = self.item {
            write!(f, ", item {item}")?;
        }
        write!(f, ", line {}", self.line)
    }
}

/// The workloads whose pods are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workloads {
    /// Those of Kubernetes; two of one name are an error.
    ByName,
    /// The same; a pod is the kind and name of its workload.
    ByKind,
    /// The same, and custom resources with a pod template.
    AnyKind,
}

/// Reads manifests, one source after the other.
#[derive(Debug)]
pub struct Loader {
    namespace: SmolStr,
    /// Whether pods without UID get one.
    uids: bool,
    /// Whether subdirectories are read.
    recursive: bool,
    exclusions: Vec<Exclusion>,
    workloads: Workloads,
    /// Whether objects are kept as they are written, too.
    keeps_written: bool,
    /// Most objects that are kept.
    most: usize,
    manifests: Manifests,
    /// The place of each object in `manifests.documents`.
    seen: HashMap<(String, ObjectKey), usize>,
    generated: GeneratedNames,
    /// Those of the file that is being read.
    errors: Reported,
    warnings: Reported,
}

impl Loader {
    /// A loader that puts objects without namespace into `namespace`.
    pub fn new(namespace: impl Into<SmolStr>) -> Self {
        Self {
            namespace: namespace.into(),
            uids: true,
            recursive: false,
            exclusions: Vec::new(),
            workloads: Workloads::ByName,
            keeps_written: false,
            most: usize::MAX,
            manifests: Manifests::default(),
            seen: HashMap::new(),
            generated: GeneratedNames::default(),
            errors: Reported::default(),
            warnings: Reported::default(),
        }
    }

    /// Leaves pods without UID as they are, for a caller that has another way to name them, and rejects objects with no
    /// name but a `generateName`.
    #[must_use]
    pub fn without_uids(mut self) -> Self {
        self.uids = false;
        self
    }

    /// Reads the subdirectories of directories, too. Links to directories are not followed, as by kubectl.
    #[must_use]
    pub fn recursive(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// Leaves out these files and subdirectories of directories. A file that is named itself is read.
    #[must_use]
    pub fn exclude(mut self, exclusions: Vec<Exclusion>) -> Self {
        self.exclusions = exclusions;
        self
    }

    /// Takes the pods of two workloads of different kinds for two, even if they have one name. In a cluster, each has a name
    /// of its own.
    #[must_use]
    pub fn by_workload(mut self) -> Self {
        self.workloads = Workloads::ByKind;
        self
    }

    /// Takes the pods of custom resources that have a pod template at `spec.template`, such as an Argo Rollout, a CloneSet
    /// or a Service of Knative, besides those of [`Self::by_workload`]. Their workload's kind is followed by its group:
    /// `Rollout.argoproj.io`.
    #[must_use]
    pub fn any_template(mut self) -> Self {
        self.workloads = Workloads::AnyKind;
        self
    }

    /// Keeps each object as it is written besides what larder makes of it: [`Document::written`].
    #[must_use]
    pub fn keeping_written(mut self) -> Self {
        self.keeps_written = true;
        self
    }

    /// Rejects each object after the first `objects`. Decoded, an object may take fifty times the bytes of its text.
    #[must_use]
    pub fn at_most(mut self, objects: usize) -> Self {
        self.most = objects;
        self
    }

    /// Everything that was read.
    pub fn finish(self) -> Manifests {
        self.manifests
    }
}
