//! The files of a volume, computed from the pod and its inputs.
//!
//! Kubelet 1.36: `MakePayload` in `pkg/volume/{configmap,secret}`, `CollectData` in `pkg/volume/downwardapi`,
//! `collectData` in `pkg/volume/projected`. Object bytes are borrowed, never copied.
//!
//! Intentionally different: paths are cleaned before they are compared, so that of `a//b` and `a/b` the later one wins
//! (in the kubelet the order is random); and a file that is also a directory, which cannot be written, is rejected
//! here.

mod perhaps;
mod sources;

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, Volume};
use larder_files::pause;
use larder_objects::{ConfigMap, Kind, Secret, SecretBytes, SourceKind};

use crate::{
    Absent, FieldRefError, File, Inputs, ObjectError, Origin, Payload, Question, ResourceError,
    TrustBundleError, Value, VolumePath, VolumePathError,
    container::containers,
    downward::{volume_field, volume_resource},
    inputs::{Found, Keyed},
};

pub use self::perhaps::{AnyFiles, FileLayer, PathView};

/// The four kinds of volume that larder fills.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum VolumeKind {
    /// `configMap`.
    ConfigMap,
    /// `secret`.
    Secret,
    /// `downwardAPI`.
    DownwardApi,
    /// `projected`.
    Projected,
}

impl VolumeKind {
    /// The kind of `volume`; `None` for all that larder does not fill.
    pub fn of(volume: &Volume) -> Option<Self> {
        if volume.config_map.is_some() {
            Some(Self::ConfigMap)
        } else if volume.secret.is_some() {
            Some(Self::Secret)
        } else if volume.downward_api.is_some() {
            Some(Self::DownwardApi)
        } else if volume.projected.is_some() {
            Some(Self::Projected)
        } else {
            None
        }
    }
}

/// The paths of the service account tokens in `volume`, as in its payload. A source whose path cannot be a file has none.
pub fn token_paths(volume: &Volume) -> impl Iterator<Item = VolumePath> {
    SourceKind::of_volume(volume).filter_map(|(_, source)| match source {
        SourceKind::Token(token) => VolumePath::parse(&token.path).ok(),
        _ => None,
    })
}

/// The files of a volume, where each came from, and what was absent.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Projection<'a> {
    /// The files.
    pub payload: Payload<'a>,
    /// The source of each file of `payload`.
    pub origins: BTreeMap<VolumePath, Origin<'a>>,
    /// Optional objects and keys that are not there, in the order in which they were looked for.
    pub absent: Vec<Absent<'a>>,
    /// Files that are perhaps there, above those of `payload`: the last one whose question is answered with yes counts.
    layers: BTreeMap<VolumePath, Vec<FileLayer<'a>>>,
    /// All keys of objects whose keys are not known, in the order of the sources.
    any_keys: Vec<AnyFiles<'a>>,
    /// What must be true for the volume to be filled, and is not known.
    pub needs: BTreeSet<Question>,
    /// Whether the volume names the owner of a file: `defaultUser`, or `user` of an item.
    pub names_owner: bool,
}

/// All that keeps a volume from being filled. Displays as the kubelet's aggregate: `[e1, e2]`, each text once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadError {
    errors: Vec<SourceError>,
    needs: BTreeSet<Question>,
}

impl PayloadError {
    /// The single errors, in the order of the sources; never none.
    pub fn errors(&self) -> &[SourceError] {
        &self.errors
    }

    /// What must be true besides for the volume to be filled, and is not known.
    pub fn needs(&self) -> &BTreeSet<Question> {
        &self.needs
    }

    /// Whether a required object or key that does not exist is among the causes.
    pub fn is_missing(&self) -> bool {
        self.errors.iter().any(|error| match error {
            SourceError::Object(error) => error.is_not_found(),
            SourceError::MissingKey { .. } => true,
            _ => false,
        })
    }
}

impl std::fmt::Display for PayloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: IndexSet<String> = self.errors.iter().map(ToString::to_string).collect();
        let texts: Vec<_> = texts.into_iter().collect();
        match texts.as_slice() {
            [text] => f.write_str(text),
            texts => write!(f, "[{}]", texts.join(", ")),
        }
    }
}

impl std::error::Error for PayloadError {}

/// Why one source of a volume gives no files. The texts are the kubelet's where it has the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Not one of the kinds of [`VolumeKind`].
    #[error("volume \"{0}\" is not of a kind that is filled from objects")]
    OtherKind(String),
    /// The API server's default for `defaultMode` is not in the pod.
    #[error("no defaultMode used, not even the default value for it")]
    NoDefaultMode,
    /// A ConfigMap or Secret could not be had.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object has no such key.
    #[error("{}: {key}", missing_key(*kind))]
    MissingKey {
        /// ConfigMap or Secret.
        kind: Kind,
        /// Name of the object.
        name: String,
        /// The key that it lacks.
        key: String,
    },
    /// The volume has too many files that any of several unknown objects may have.
    #[error("too many files of objects that are not known")]
    TooManyUnknown,
    /// `defaultUser` or `user` is no user. The API server rejects it.
    #[error("{0} is no user: must be between 0 and 2147483647, inclusive")]
    User(i64),
    /// A path cannot be a file of a volume.
    #[error(transparent)]
    Path(#[from] VolumePathError),
    /// A path is a file, and a directory for another file.
    #[error("invalid path: is both a file and a directory: {0}")]
    Conflict(VolumePath),
    /// A field of the pod has no text.
    #[error(transparent)]
    Field(#[from] FieldRefError),
    /// A resource has no number.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// A token could not be had.
    #[error("{0}")]
    Token(String),
    /// Trust anchors could not be had.
    #[error(transparent)]
    TrustBundle(#[from] TrustBundleError),
    /// A certificate could not be had.
    #[error("{0}")]
    PodCertificate(String),
}

fn missing_key(kind: Kind) -> &'static str {
    match kind {
        Kind::ConfigMap => "configmap references non-existent config key",
        Kind::Secret => "references non-existent secret key",
    }
}

/// Computes the files of `volume`, which is one of `pod`.
///
/// # Errors
///
/// All that is wrong, not only the first. Then no file of the volume may change.
pub fn project<'a>(
    pod: &'a Pod,
    volume: &'a Volume,
    inputs: &'a Inputs,
) -> Result<Projection<'a>, PayloadError> {
    let mut collector = Collector {
        pod,
        volume: &volume.name,
        inputs,
        defaults: FileDefaults::default(),
        projection: Projection::default(),
        errors: Vec::new(),
    };
    if let Err(error) = collector.volume(volume) {
        collector.errors.push(error);
    }
    collector.finish()
}

/// The user that owns tokens, trust anchors and certificates: the one that every container runs as, if they agree.
///
/// Kubelet 1.36, `FsUserFrom` in `pkg/volume/util`: a container's `runAsUser` goes before the pod's; 0 counts; without
/// a value somewhere there is no such user.
pub fn fs_user(pod: &Pod) -> Option<u32> {
    let mut spec = pod.spec.iter();
    let context = spec.find_map(|spec| spec.security_context.as_ref());
    let of_pod = context.and_then(|context| context.run_as_user);
    let mut users = containers(pod).map(|container| {
        container
            .security_context
            .and_then(|context| context.run_as_user)
            .or(of_pod)
    });
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

/// `securityContext.fsGroup` of the pod.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    u32::try_from(context.fs_group?).ok()
}

/// Gathers the files of one volume.
struct Collector<'a> {
    pod: &'a Pod,
    /// Name of the volume.
    volume: &'a str,
    inputs: &'a Inputs,
    defaults: FileDefaults,
    projection: Projection<'a>,
    errors: Vec<SourceError>,
}

impl<'a> Collector<'a> {
    fn volume(&mut self, volume: &'a Volume) -> Result<(), SourceError> {
        if let Some(source) = &volume.config_map {
            self.defaults = FileDefaults::new(source.default_mode, source.default_user)?;
            self.keys::<ConfigMap>(&source.name, source.items.as_deref(), source.optional)
        } else if let Some(source) = &volume.secret {
            self.defaults = FileDefaults::new(source.default_mode, source.default_user)?;
            let name = source.secret_name.as_deref().unwrap_or_default();
            self.keys::<Secret>(name, source.items.as_deref(), source.optional)
        } else if let Some(source) = &volume.downward_api {
            self.defaults = FileDefaults::new(source.default_mode, source.default_user)?;
            self.downward(source.items.as_deref());
            Ok(())
        } else if let Some(source) = &volume.projected {
            self.defaults = FileDefaults::new(source.default_mode, source.default_user)?;
            let sources = source.sources.as_deref().unwrap_or_default();
            for (index, source) in sources.iter().enumerate() {
                if let Err(error) = self.source(index, source) {
                    self.errors.push(error);
                }
            }
            Ok(())
        } else {
            Err(SourceError::OtherKind(volume.name.clone()))
        }
    }

    /// The keys of one object: all of them, or those that `items` lists.
    fn keys<K: Keyed>(
        &mut self,
        name: &'a str,
        items: Option<&'a [KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), SourceError> {
        let kind = K::KIND;
        let absent = |key| Absent { kind, name, key };
        let items = items.unwrap_or_default();
        let object = match self.inputs.object::<K>(name, optional)? {
            Found::Known(object) => object,
            Found::Absent => {
                self.projection.absent.push(absent(None));
                return Ok(());
            }
            Found::Unknown(part) => return self.unknown_keys(name, part, items, optional),
        };
        let origin = |key| Origin::Key {
            kind: K::KIND,
            name,
            key,
            resource_version: &object.metadata().resource_version,
        };
        if items.is_empty() {
            for (key, value) in object.files() {
                let file = self.file(Value::Borrowed(value), None, None)?;
                self.add(VolumePath::parse(key)?, file, origin(key));
            }
        }
        for item in items {
            let Some(value) = object.file(&item.key) else {
                if optional == Some(true) {
                    self.projection.absent.push(absent(Some(&item.key)));
                    continue;
                }
                return Err(SourceError::MissingKey {
                    kind: K::KIND,
                    name: name.to_owned(),
                    key: item.key.clone(),
                });
            };
            let file = self.file(Value::Borrowed(value), item.mode, item.user)?;
            self.add(VolumePath::parse(&item.path)?, file, origin(&item.key));
        }
        Ok(())
    }

    fn downward(&mut self, items: Option<&'a [DownwardAPIVolumeFile]>) {
        for item in items.unwrap_or_default() {
            if let Err(error) = self.downward_item(item) {
                self.errors.push(error);
            }
        }
    }

    fn downward_item(&mut self, item: &'a DownwardAPIVolumeFile) -> Result<(), SourceError> {
        let (node, assumptions) = (self.inputs.node.as_deref(), &self.inputs.assumptions);
        let (data, origin) = if let Some(field) = &item.field_ref {
            let path = &field.field_path;
            let data = match assumptions.field(self.pod, node, path) {
                Some(unknown) => unknown.into(),
                None => owned(match assumptions.set_field(path) {
                    Some(text) => text.into_bytes(),
                    None => volume_field(self.pod, path)?.into_bytes(),
                }),
            };
            (data, Origin::Field(path))
        } else if let Some(field) = &item.resource_field_ref {
            let origin = Origin::Resource {
                container: field.container_name.as_deref().unwrap_or_default(),
                resource: &field.resource,
            };
            let data = match volume_resource(self.pod, node, field) {
                Ok(text) => owned(text.into_bytes()),
                Err(error) => {
                    let unknown = assumptions
                        .resource(self.pod, None, field)
                        .filter(|_| error == ResourceError::NoNodeForVolume);
                    unknown.ok_or(error)?.into()
                }
            };
            (data, origin)
        } else {
            // The API rejects an item without a source; the kubelet ignores it.
            return Ok(());
        };
        let file = self.file(data, item.mode, item.user)?;
        self.add(VolumePath::parse(&item.path)?, file, origin);
        Ok(())
    }

    /// A file with the mode and the owner of its item, or else of the volume.
    fn file(
        &mut self,
        data: Value<'a>,
        mode: Option<i32>,
        user: Option<i64>,
    ) -> Result<File<'a>, SourceError> {
        let owner = user.map(owner).transpose()?.or(self.defaults.owner);
        self.projection.names_owner |= owner.is_some();
        let mode = mode.map_or(self.defaults.mode, permissions);
        Ok(File { data, mode, owner })
    }

    /// Adds one file; a later one replaces an earlier one.
    fn add(&mut self, path: VolumePath, file: File<'a>, origin: Origin<'a>) {
        pause::point();
        self.projection.layers.remove(&path);
        self.projection.origins.insert(path.clone(), origin);
        self.projection.payload.insert(path, file);
    }

    fn finish(self) -> Result<Projection<'a>, PayloadError> {
        let Self {
            projection,
            mut errors,
            ..
        } = self;
        if errors.is_empty() {
            let payload = &projection.payload;
            let conflicts = payload.keys().filter_map(|path| path.parent_in(payload));
            errors.extend(conflicts.map(SourceError::Conflict));
        }
        if errors.is_empty() {
            return Ok(projection);
        }
        let needs = projection.needs;
        Err(PayloadError { errors, needs })
    }
}

fn owned<'a>(data: Vec<u8>) -> Value<'a> {
    Value::Secret(SecretBytes::new(data))
}

/// What a volume says of files whose items do not: `defaultMode` and `defaultUser`.
#[derive(Clone, Copy, Default)]
struct FileDefaults {
    mode: u32,
    owner: Option<u32>,
}

impl FileDefaults {
    fn new(mode: Option<i32>, user: Option<i64>) -> Result<Self, SourceError> {
        Ok(Self {
            mode: mode.map(permissions).ok_or(SourceError::NoDefaultMode)?,
            owner: user.map(owner).transpose()?,
        })
    }
}

/// The API allows 0 to 2147483647. The largest number of a user means "no change" to the system call.
fn owner(user: i64) -> Result<u32, SourceError> {
    let user = i32::try_from(user).map_err(|_| SourceError::User(user))?;
    u32::try_from(user).map_err(|_| SourceError::User(user.into()))
}

/// The API allows 0 to 0777; the kubelet drops other bits when it writes.
fn permissions(mode: i32) -> u32 {
    mode.cast_unsigned() & 0o777
}
