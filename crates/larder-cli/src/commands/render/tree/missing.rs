//! Every missing object and key that the variables of a container need. The kubelet reports only the first, so each
//! attempt finds one more.

use larder_objects::Kind;
use larder_projection::ContainerView;

use crate::{
    output::tree::Branch,
    rendered::{RenderedPod, keys},
};

/// One line for each variable or `envFrom` entry whose required object or key is missing.
pub(super) fn missing_references(
    pod: &RenderedPod<'_>,
    container: &ContainerView<'_>,
) -> Vec<Branch> {
    let sources = container.env_from.iter().flat_map(|source| {
        let map = source
            .config_map_ref
            .iter()
            .map(|map| (Kind::ConfigMap, &map.name, map.optional));
        let secret = source
            .secret_ref
            .iter()
            .map(|secret| (Kind::Secret, &secret.name, secret.optional));
        let both = map.chain(secret);
        both.map(|(kind, name, optional)| ("envFrom", kind, name, None, optional))
    });
    let variables = container.env.iter().flat_map(|variable| {
        let user = variable.name.as_str();
        let source = variable.value_from.as_ref();
        let map = source
            .and_then(|source| source.config_map_key_ref.as_ref())
            .map(|key| (Kind::ConfigMap, &key.name, &key.key, key.optional));
        let secret = source
            .and_then(|source| source.secret_key_ref.as_ref())
            .map(|key| (Kind::Secret, &key.name, &key.key, key.optional));
        let references = map.into_iter().chain(secret);
        references.map(move |(kind, name, key, optional)| (user, kind, name, Some(key), optional))
    });
    let required = sources
        .chain(variables)
        .filter(|(.., optional)| *optional != Some(true));
    let objects = required.filter_map(|(user, kind, name, key, _)| {
        let (problem, hint) = match (keys(pod.inputs, kind, name), key) {
            _ if pod.is_unknown(kind, name) => return None,
            (Some(keys), Some(key)) if !keys.contains(&key.as_str()) => (
                format!("{kind} {name} has no key {key}"),
                pod.similar_key(kind, name, key),
            ),
            (Some(_), _) => return None,
            (None, _) => (
                format!("{kind} {name} not found"),
                pod.why_missing(kind, name),
            ),
        };
        Some(Branch::new().plain(user).red(problem).dim(hint))
    });
    objects.collect()
}
