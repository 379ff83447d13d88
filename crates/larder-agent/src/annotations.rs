//! What is wrong with the annotations of a pod or an object that larder reads: `larder run --check` says it beforehand, and reports
//! of manifests do.
//!
//! Invariant: a key that is nearly one of larder's is a problem, since it would be ignored without a word.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use larder_containers::subpaths;
use larder_kubelet::touch;
use larder_objects::{ON_CHANGE_ANNOTATION, ObjectMeta, Reactions, manifest::most_similar};
use larder_on_change::{
    PodOutline,
    parse::{self, AllowedActions, annotated_hooks},
};

use crate::beside::POLICY;

/// The domain of larder's annotations.
const DOMAIN: &str = "larder.dev";

/// The annotations that larder knows, but for those of one container.
const KNOWN: [&str; 5] = [
    parse::ANNOTATION,
    subpaths::ANNOTATION,
    touch::REFRESH,
    POLICY.0,
    "larder.dev/static-pod-content",
];

/// An annotation of a pod that does not do what it was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationProblem {
    /// The annotation's key.
    pub key: String,
    /// Quotes no value of it.
    pub problem: String,
}

/// The problems of all annotations of a pod, also those of its hooks, if annotations may request these actions.
pub fn problems(pod: &Pod, allowed: AllowedActions) -> Vec<AnnotationProblem> {
    let Some(annotations) = &pod.metadata.annotations else {
        return Vec::new();
    };
    let hooks = annotated_hooks(annotations, allowed, &PodOutline::of(pod))
        .into_iter()
        .filter_map(|found| {
            let problem = found.hooks.err()?.to_string();
            let key = found.annotation;
            Some(AnnotationProblem { key, problem })
        });
    misspelled(annotations).into_iter().chain(hooks).collect()
}

/// Annotations that are misspelled, or have a value without a meaning; those of hooks are read elsewhere.
pub fn misspelled(annotations: &BTreeMap<String, String>) -> Vec<AnnotationProblem> {
    let found = annotations.iter().filter_map(|(key, value)| {
        let key = key.clone();
        let problem = problem_of(&key, value)?;
        Some(AnnotationProblem { key, problem })
    });
    found.collect()
}

/// What is wrong with the annotation of an object by which hooks leave it out.
pub fn problem_of_object(object: &ObjectMeta) -> Option<AnnotationProblem> {
    (object.on_change == Reactions::Invalid).then(|| AnnotationProblem {
        key: ON_CHANGE_ANNOTATION.to_owned(),
        problem: "not \"false\", so it is ignored".to_owned(),
    })
}

fn problem_of(key: &str, value: &str) -> Option<String> {
    if key == subpaths::ANNOTATION {
        let is_known = matches!(value, "true" | "false");
        return (!is_known).then(|| "neither \"true\" nor \"false\", so it is ignored".to_owned());
    }
    if key == POLICY.0 {
        return (value != POLICY.1).then(|| format!("not {:?}, so it is ignored", POLICY.1));
    }
    if KNOWN.contains(&key) {
        return None;
    }
    let (domain, name) = key.split_once('/')?;
    let of_containers = parse::ANNOTATION_PREFIX.trim_end_matches('/');
    let similar = if domain == of_containers {
        return None;
    } else if domain == DOMAIN {
        most_similar(key, KNOWN).map(str::to_owned)
    } else if domain.ends_with(".larder.dev") {
        most_similar(domain, [of_containers]).map(|domain| format!("{domain}/{name}"))
    } else {
        return None;
    };
    let problem = "larder knows no such annotation";
    Some(match similar {
        Some(similar) => format!("{problem}; did you mean {similar:?}?"),
        None => problem.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn misspelled_annotations_and_invalid_hooks_are_found() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"annotations": {
                "larder.dev/on-chnage": "signal:HUP",
                "on-chnage.larder.dev/c": "signal:HUP",
                "larder.dev/subpath-update": "true",
                "larder.dev/subpath-updates": "yes",
                "larder.dev/refresh-policy": "nevr",
                "larder.dev/refresh": "2026-11-22T04:34:06Z",
                "larder.dev/on-change": "signal:HUP",
                "on-change.larder.dev/c": "signal:SIGFOO",
                "on-change.larder.dev/d": "signal:HUP",
                "example.com/larder.dev": "x",
                "prometheus.io/scrape": "yes",
            }},
            "spec": {"containers": [{"name": "c"}]},
        }))
        .unwrap();
        let found = problems(&pod, AllowedActions::default());
        let found: Vec<_> = found
            .iter()
            .map(|found| (&*found.key, &*found.problem))
            .collect();
        let unknown = "larder knows no such annotation; did you mean";
        assert_eq!(
            found,
            [
                (
                    "larder.dev/on-chnage",
                    &*format!("{unknown} \"larder.dev/on-change\"?")
                ),
                (
                    "larder.dev/refresh-policy",
                    "not \"never\", so it is ignored"
                ),
                (
                    "larder.dev/subpath-update",
                    &*format!("{unknown} \"larder.dev/subpath-updates\"?")
                ),
                (
                    "larder.dev/subpath-updates",
                    "neither \"true\" nor \"false\", so it is ignored"
                ),
                (
                    "on-chnage.larder.dev/c",
                    &*format!("{unknown} \"on-change.larder.dev/c\"?")
                ),
                (
                    "on-change.larder.dev/c",
                    "expected one of SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT"
                ),
                ("on-change.larder.dev/d", "no container \"d\""),
            ]
        );
    }
}
