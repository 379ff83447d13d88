//! What may be wrong where something is missing, after the kubelet's text.

use std::collections::BTreeSet;

use larder_objects::{ConfigMap, Kind, Secret, chain, references::secrets_of_volume};
use larder_projection::{
    Absent, ContainerView, EnvironmentError, Inputs, Keyed, MountError, ObjectError, PayloadError,
    SourceError, VolumeKind, pod_volumes,
};

use super::{
    pod::{RenderedPod, StartError},
    words,
};
use crate::offline::{did_you_mean, likely_name, with_hint};

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
                self.similar_key(*kind, &object.name, key)
            }
            StartError::Environment(EnvironmentError::NoVolume(volume))
            | StartError::Mounts(MountError::NoVolume { volume, .. }) => {
                let known: Vec<_> = pod_volumes(self.pod).map(|known| &*known.name).collect();
                if known.contains(&&**volume) {
                    return "no container mounts it".to_owned();
                }
                did_you_mean(volume, known)
            }
            StartError::Mounts(MountError::MissingValue(_)) => {
                "a subPathExpr refers to it".to_owned()
            }
            _ => String::new(),
        }
    }

    /// What the `key` that an object lacks may be instead; empty if nothing is known.
    pub(crate) fn similar_key(&self, kind: Kind, name: &str, key: &str) -> String {
        did_you_mean(key, keys(self.inputs, kind, name).unwrap_or_default())
    }

    /// The name of an object of the manifests that is likely to be meant.
    pub(crate) fn similar_object(&self, kind: Kind, name: &str) -> Option<String> {
        let objects = self.offline.objects();
        let near = objects.filter(|(of, key)| *of == kind && *key.namespace == *self.namespace());
        let names: Vec<_> = near.map(|(_, key)| &*key.name).collect();
        likely_name(name, names.iter().copied()).map(str::to_owned)
    }

    /// The optional objects and keys among `all`, each line with what may be meant instead; empty if that is not known.
    pub(crate) fn absent(&self, all: &[Absent<'_>]) -> Vec<(String, String)> {
        words::absent(all, |absent| match absent.key {
            Some(key) => self.similar_key(absent.kind, absent.name, key),
            None => self.why_missing(absent.kind, absent.name),
        })
    }

    /// The Secrets that drivers of volumes need, those that the container mounts, and that the manifests lack.
    pub(crate) fn missing_secrets(&self, container: &ContainerView<'_>) -> Vec<String> {
        let mounted: Vec<_> = container.volumes().collect();
        let volumes = pod_volumes(self.pod)
            .filter(|volume| VolumeKind::of(volume).is_none() && mounted.contains(&&*volume.name));
        let missing = volumes.flat_map(|volume| {
            secrets_of_volume(volume)
                .into_iter()
                .filter_map(|name| self.missing_secret(&name))
                .map(|text| format!("volume {}: {text}", volume.name))
        });
        missing.collect()
    }

    /// The Secrets for image registries that the manifests lack.
    pub(crate) fn missing_pull_secrets(&self) -> impl Iterator<Item = String> {
        self.pod
            .spec
            .iter()
            .flat_map(|spec| spec.image_pull_secrets.iter().flatten())
            .filter(|secret| !secret.name.is_empty())
            .filter_map(|secret| self.missing_secret(&secret.name))
    }

    /// That a Secret that larder does not read is missing, with the hint.
    fn missing_secret(&self, name: &str) -> Option<String> {
        if self.offline.has_secret(self.namespace(), name) {
            return None;
        }
        let problem = format!("{} {name} is not among the manifests", Kind::Secret);
        Some(with_hint(problem, &self.why_missing(Kind::Secret, name)))
    }

    /// The hints for what a volume lacks, empty without any.
    pub(crate) fn volume_hint(&self, error: &PayloadError) -> String {
        let hints: BTreeSet<_> = error
            .errors()
            .iter()
            .map(|error| match error {
                SourceError::Object(error) => self.object_hint(error),
                SourceError::MissingKey { kind, name, key } => self.similar_key(*kind, name, key),
                _ => String::new(),
            })
            .filter(|hint| !hint.is_empty())
            .collect();
        hints.into_iter().collect::<Vec<_>>().join("; ")
    }

    fn object_hint(&self, error: &ObjectError) -> String {
        match error {
            ObjectError::NotFound { kind, name } => self.why_missing(*kind, name),
            _ => String::new(),
        }
    }

    /// What may be wrong with a reference to an object that is missing; empty if nothing is known.
    pub(crate) fn why_missing(&self, kind: Kind, name: &str) -> String {
        self.offline.why_missing(kind, self.namespace(), name)
    }
}

/// The keys that variables can have of the object; `None` if it is not there.
pub(crate) fn keys<'a>(inputs: &'a Inputs, kind: Kind, name: &str) -> Option<Vec<&'a str>> {
    fn of<'a, K: Keyed>(inputs: &'a Inputs, name: &str) -> Option<Vec<&'a str>> {
        let object = K::all(inputs).get(name)?.as_ref().ok()?;
        Some(object.variables().map(|(key, _)| key).collect())
    }
    match kind {
        Kind::ConfigMap => of::<ConfigMap>(inputs, name),
        Kind::Secret => of::<Secret>(inputs, name),
    }
}
