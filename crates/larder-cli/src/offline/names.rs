//! Names that users write: what they may mean where nothing has that name.

use k8s_openapi::api::core::v1::Pod;
use larder_objects::manifest::most_similar;
use larder_projection::{ContainerView, containers};

/// The container of this name.
///
/// # Errors
///
/// The pod has none; the reason names those that it has.
pub(crate) fn find_container<'p>(pod: &'p Pod, wanted: &str) -> anyhow::Result<ContainerView<'p>> {
    if let Some(found) = containers(pod).find(|container| container.name == wanted) {
        return Ok(found);
    }
    let all: Vec<_> = containers(pod).map(|container| container.name).collect();
    let hint = did_you_mean(wanted, all.iter().copied());
    let hint = match &*hint {
        "" => format!("it has {}", all.join(", ")),
        hint => hint.to_owned(),
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    anyhow::bail!("pod {name} has no container {wanted}; {hint}")
}

/// `did you mean "app"?`, if a name of `known` is likely to be meant; else empty.
pub(crate) fn did_you_mean<'k>(
    name: &str,
    known: impl IntoIterator<Item = &'k str, IntoIter: Clone>,
) -> String {
    let Some(meant) = likely_name(name, known) else {
        return String::new();
    };
    let stem = without_hash(meant);
    let hash = if stem != meant && stem == without_hash(name) {
        " kustomize adds a hash to the name"
    } else {
        ""
    };
    format!("did you mean {meant:?}?{hash}")
}

/// The name of `known` that differs from `name` only in the hash of kustomize, or else in few letters. `None` if `name` is
/// among them: it is no misspelling then, whatever is wrong with the object.
pub(crate) fn likely_name<'k>(
    name: &str,
    known: impl IntoIterator<Item = &'k str, IntoIter: Clone>,
) -> Option<&'k str> {
    let known = known.into_iter();
    if known.clone().any(|known| known == name) {
        return None;
    }
    let stem = without_hash(name);
    let same = known.clone().find(|known| without_hash(known) == stem);
    same.or_else(|| most_similar(name, known))
}

/// The name without the hash that a generator of kustomize adds: ten letters and digits, without those that may make a
/// word (kustomize 5.7, `api/hasher/hasher.go`).
fn without_hash(name: &str) -> &str {
    let is_hash = |hash: &str| {
        hash.len() == 10 && hash.bytes().all(|byte| b"2456789bcdfghkmt".contains(&byte))
    };
    match name.rsplit_once('-') {
        Some((stem, hash)) if is_hash(hash) => stem,
        _ => name,
    }
}

/// The problem, and what may be wrong, if that is known.
pub(crate) fn with_hint(problem: String, hint: &str) -> String {
    match hint {
        "" => problem,
        hint => format!("{problem}; {hint}"),
    }
}
