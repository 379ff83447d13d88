//! What may be wrong where something is missing, after the kubelet's text.

use std::collections::BTreeSet;

use larder_objects::{ConfigMap, Kind, Secret, chain};
use larder_projection::{
    EnvironmentError, Inputs, Keyed, MountError, ObjectError, PayloadError, SourceError,
    UnknownSource, pod_volumes,
};

use super::{
    pod::{RenderedPod, StartError},
    words::WRITTEN_LATER,
};
use crate::offline::{did_you_mean, with_hint};

impl RenderedPod<'_> {
    /// Why a container does not start, with the hint.
    pub(crate) fn start_error(&self, error: &StartError) -> String {
        with_hint(chain(error), &self.start_hint(error))
    }

    /// Why a volume cannot be filled, with the hint.
    pub(crate) fn volume_error(&self, error: &PayloadError) -> String {
        with_hint(error.to_string(), &self.volume_hint(error))
    }

    /// What the kubelet's message leaves open; empty if nothing.
    pub(crate) fn start_hint(&self, error: &StartError) -> String {
        match error {
            StartError::Environment(EnvironmentError::Object(error)) => self.object_hint(error),
            StartError::Environment(EnvironmentError::MissingKey { kind, object, key }) => {
                did_you_mean(key, keys(self.inputs, *kind, &object.name))
            }
            StartError::Environment(EnvironmentError::UnreadableEnvFile(_)) => {
                WRITTEN_LATER.to_owned()
            }
            StartError::Environment(EnvironmentError::NoVolume(volume))
            | StartError::Mounts(MountError::NoVolume { volume, .. }) => {
                did_you_mean(volume, pod_volumes(self.pod).map(|known| &*known.name))
            }
            StartError::Mounts(MountError::MissingValue(_)) => {
                "a subPathExpr refers to it".to_owned()
            }
            _ => String::new(),
        }
    }

    /// What a key that an object lacks may be instead.
    pub(crate) fn key_hint(&self, source: &UnknownSource) -> Option<String> {
        let (kind, (name, key)) = (source.object?, source.lacking.as_ref()?);
        let hint = did_you_mean(key, keys(self.inputs, kind, name));
        (!hint.is_empty()).then_some(hint)
    }

    /// The same for a volume.
    pub(crate) fn volume_hint(&self, error: &PayloadError) -> String {
        let hints = error.errors().iter().map(|error| match error {
            SourceError::Object(error) => self.object_hint(error),
            SourceError::MissingKey { kind, name, key } => {
                did_you_mean(key, keys(self.inputs, *kind, name))
            }
            _ => String::new(),
        });
        let hints: BTreeSet<_> = hints.filter(|hint| !hint.is_empty()).collect();
        hints.into_iter().collect::<Vec<_>>().join("; ")
    }

    fn object_hint(&self, error: &ObjectError) -> String {
        match error {
            ObjectError::NotFound { kind, name } => {
                self.offline.why_missing(*kind, self.namespace(), name)
            }
            _ => String::new(),
        }
    }
}

/// The keys that variables can have of the object.
pub(crate) fn keys<'a>(inputs: &'a Inputs, kind: Kind, name: &str) -> Vec<&'a str> {
    fn of<'a, K: Keyed>(inputs: &'a Inputs, name: &str) -> Vec<&'a str> {
        let object = K::all(inputs).get(name).into_iter().flatten();
        let keys = object.flat_map(|object| object.variables());
        keys.map(|(key, _)| key).collect()
    }
    match kind {
        Kind::ConfigMap => of::<ConfigMap>(inputs, name),
        Kind::Secret => of::<Secret>(inputs, name),
    }
}
