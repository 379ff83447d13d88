//! Every missing object and key that the variables of a container need. The kubelet reports only the first, so each
//! attempt finds one more.

use larder_objects::Kind;
use larder_projection::{ContainerView, Inputs};

use crate::{
    offline::did_you_mean,
    output::tree::Branch,
    rendered::{RenderedPod, keys},
};

/// One line for each variable or `envFrom` entry whose required object or key is missing.
pub(super) fn missing_references(
    pod: &RenderedPod<'_>,
    container: &ContainerView<'_>,
) -> Vec<Branch> {
    let sources = container.env_from.iter().flat_map(|source| {
        let map = source.config_map_ref.as_ref();
        let map = map.map(|source| (Kind::ConfigMap, &source.name, source.optional));
        let secret = source.secret_ref.as_ref();
        let secret = secret.map(|source| (Kind::Secret, &source.name, source.optional));
        let references = map.into_iter().chain(secret);
        references.map(|(kind, name, optional)| ("envFrom", kind, name, None, optional))
    });
    let variables = container.env.iter().flat_map(|variable| {
        let user = variable.name.as_str();
        let source = variable.value_from.as_ref();
        let map = source.and_then(|source| source.config_map_key_ref.as_ref());
        let map = map.map(|key| (Kind::ConfigMap, &key.name, &key.key, key.optional));
        let secret = source.and_then(|source| source.secret_key_ref.as_ref());
        let secret = secret.map(|key| (Kind::Secret, &key.name, &key.key, key.optional));
        let references = map.into_iter().chain(secret);
        references.map(move |(kind, name, key, optional)| (user, kind, name, Some(key), optional))
    });
    let required = sources
        .chain(variables)
        .filter(|(.., optional)| *optional != Some(true));
    let objects = required.filter_map(|(user, kind, name, key, _)| {
        let assumptions = &pod.inputs.assumptions;
        let assumed = assumptions.object(kind, name, key.map(String::as_str));
        let (problem, hint) = match has_key(pod.inputs, kind, name, key) {
            Some(true) => return None,
            _ if assumed.is_some() => return None,
            Some(false) => {
                let key = key?;
                let hint = did_you_mean(key, keys(pod.inputs, kind, name));
                (format!("{kind} {name} has no key {key}"), hint)
            }
            None => (
                format!("{kind} {name} not found"),
                pod.why_missing(kind, name),
            ),
        };
        Some(Branch::new().plain(user).red(problem).dim(hint))
    });
    objects.collect()
}

/// Whether the object has the key, or is there at all if no key is wanted; `None` if it does not exist.
fn has_key(inputs: &Inputs, kind: Kind, name: &str, key: Option<&String>) -> Option<bool> {
    let is_there = match kind {
        Kind::ConfigMap => inputs.config_maps.get(name)?.is_ok(),
        Kind::Secret => inputs.secrets.get(name)?.is_ok(),
    };
    is_there.then(|| key.is_none_or(|key| keys(inputs, kind, name).contains(&key.as_str())))
}
