//! Every missing object and key that the variables of a container need. The kubelet reports only the first, so each
//! attempt finds one more.

use larder_objects::Kind;
use larder_projection::{ContainerView, Inputs};

use crate::{
    output::tree::{Branch, TableCell},
    rendered::{RenderedPod, words::WRITTEN_LATER},
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
        references.map(|(kind, name, optional)| Reference {
            user: "envFrom",
            kind,
            name,
            key: None,
            optional,
        })
    });
    let variables = container.env.iter().flat_map(|variable| {
        let source = variable.value_from.as_ref();
        let map = source.and_then(|source| source.config_map_key_ref.as_ref());
        let map = map.map(|key| (Kind::ConfigMap, &key.name, &key.key, key.optional));
        let secret = source.and_then(|source| source.secret_key_ref.as_ref());
        let secret = secret.map(|key| (Kind::Secret, &key.name, &key.key, key.optional));
        let references = map.into_iter().chain(secret);
        references.map(|(kind, name, key, optional)| Reference {
            user: &variable.name,
            kind,
            name,
            key: Some(key),
            optional,
        })
    });
    let required = sources
        .chain(variables)
        .filter(|reference| reference.optional != Some(true));
    let objects = required.filter_map(|reference| {
        let (problem, is_absent) = reference.problem(pod.inputs)?;
        let hint = if is_absent {
            elsewhere(pod, reference.kind, reference.name)
        } else {
            String::new()
        };
        Some(Branch::new([
            TableCell::plain(reference.user),
            TableCell::red(problem),
            TableCell::dim(hint),
        ]))
    });
    objects.chain(files(container)).collect()
}

/// One line for each variable from a required env file. Offline, none of these files exists.
fn files(container: &ContainerView<'_>) -> impl Iterator<Item = Branch> {
    container.env.iter().filter_map(|variable| {
        let key = variable.value_from.as_ref()?.file_key_ref.as_ref()?;
        if key.optional == Some(true) {
            return None;
        }
        let problem = format!("{} of volume {} is missing", key.path, key.volume_name);
        Some(Branch::new([
            TableCell::plain(&variable.name),
            TableCell::red(problem),
            TableCell::dim(WRITTEN_LATER),
        ]))
    })
}

/// A hint at objects of that name in other namespaces, the usual reason for a missing object; empty if there are none.
pub(super) fn elsewhere(pod: &RenderedPod<'_>, kind: Kind, name: &str) -> String {
    let namespaces = pod.offline.namespaces_with(kind, name);
    let others: Vec<_> = namespaces
        .into_iter()
        .filter(|other| *other != pod.namespace())
        .collect();
    if others.is_empty() {
        String::new()
    } else {
        format!(
            "exists only in namespace {}; pods can't cross namespaces",
            others.join(", ")
        )
    }
}

/// The object, and perhaps the key, that a variable comes from.
struct Reference<'a> {
    /// The variable, or `envFrom`.
    user: &'a str,
    kind: Kind,
    name: &'a str,
    key: Option<&'a str>,
    optional: Option<bool>,
}

impl Reference<'_> {
    /// Whether the object exists, and whether it has the key.
    fn found(&self, inputs: &Inputs) -> (bool, bool) {
        let has = |contains: &dyn Fn(&str) -> bool| (true, self.key.is_none_or(contains));
        let nothing = (false, false);
        match self.kind {
            Kind::ConfigMap => match inputs.config_maps.get(self.name) {
                Some(Ok(map)) => has(&|key| map.data.contains_key(key)),
                _ => nothing,
            },
            Kind::Secret => match inputs.secrets.get(self.name) {
                Some(Ok(secret)) => has(&|key| secret.data.contains_key(key)),
                _ => nothing,
            },
        }
    }

    /// What is missing, and whether that is the object; `None` if nothing is.
    fn problem(&self, inputs: &Inputs) -> Option<(String, bool)> {
        let Self { kind, name, .. } = self;
        match self.found(inputs) {
            (true, true) => None,
            (true, false) => Some((format!("{kind} {name} has no key {}", self.key?), false)),
            (false, _) => Some((format!("{kind} {name} not found"), true)),
        }
    }
}
