//! Whether a workload replaces its pods by itself, so that new containers see what differs.
//!
//! Invariants:
//! 1. A template differs if the API server stores another one (`larder_objects::manifest::Workload::template`).
//! 2. A controller that acts on objects acts on those that exist on both sides and differ. A new one is a row of
//!    [`RELOADERS`].

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::PodSpec;
use larder_objects::{
    Kind, ObjectKey,
    manifest::{Maker, Rollout},
};
use regex::Regex;
use serde_json::Value;

use super::changed_objects::ChangedObjects;
use crate::{offline::needs, output::references::References, rendered::RenderedPod};

/// Who replaces a container that does not see a difference otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplacedBy {
    /// Its workload, for this reason.
    Workload(String),
    /// Nothing, until it is restarted by hand.
    Somebody,
    /// Nothing, until this is deleted and made again: the API server rejects the change, for this reason.
    Remaker { workload: String, reason: String },
    /// What this workload does is not known.
    Unknown(String),
}

impl fmt::Display for ReplacedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(why) => write!(f, "rolls out by itself: {why}"),
            Self::Somebody => f.write_str("keeps the old value until somebody restarts it"),
            Self::Remaker { workload, reason } => write!(
                f,
                "keeps the old value until somebody deletes {workload} and makes it again: the API server rejects a \
                 change of {reason}"
            ),
            Self::Unknown(workload) => write!(
                f,
                "keeps the old value until it is replaced: whether {workload} does it is not known"
            ),
        }
    }
}

impl ReplacedBy {
    /// Whether its workload replaces it, unless that is not known.
    pub(super) fn rolls_out(&self) -> Option<bool> {
        match self {
            Self::Workload(_) => Some(true),
            Self::Somebody | Self::Remaker { .. } => Some(false),
            Self::Unknown(_) => None,
        }
    }

    /// Whether a person may have to act.
    pub(super) fn needs_somebody(&self) -> bool {
        self.rolls_out() != Some(true)
    }
}

/// An annotation by which a controller replaces the pods of a workload.
struct ReloadAnnotation {
    name: &'static str,
    controller: &'static str,
    acts_on: ActsOn,
}

/// The objects whose changes a controller acts on.
#[derive(Clone, Copy)]
enum ActsOn {
    /// Those of these kinds that the containers refer to.
    Referenced(&'static [Kind]),
    /// Those that the value names: a list of patterns.
    Named(Kind),
    /// Those that the containers refer to, and that have [`MATCH`].
    Marked,
    /// Those that the containers refer to, and that this kind of document makes.
    MadeBy(&'static str),
}

const BOTH: &[Kind] = &[Kind::ConfigMap, Kind::Secret];
const STAKATER: &str = "Reloader";
/// Marks an object for [`ActsOn::Marked`].
const MATCH: &str = "reloader.stakater.com/match";
/// Takes an object out of what Reloader acts on.
const IGNORE: &str = "reloader.stakater.com/ignore";

/// The known annotations, as the controllers document them.
const RELOADERS: [ReloadAnnotation; 11] = [
    of(
        "reloader.stakater.com/auto",
        STAKATER,
        ActsOn::Referenced(BOTH),
    ),
    of(
        "configmap.reloader.stakater.com/auto",
        STAKATER,
        ActsOn::Referenced(&[Kind::ConfigMap]),
    ),
    of(
        "secret.reloader.stakater.com/auto",
        STAKATER,
        ActsOn::Referenced(&[Kind::Secret]),
    ),
    of(
        "configmap.reloader.stakater.com/reload",
        STAKATER,
        ActsOn::Named(Kind::ConfigMap),
    ),
    of(
        "secret.reloader.stakater.com/reload",
        STAKATER,
        ActsOn::Named(Kind::Secret),
    ),
    of("reloader.stakater.com/search", STAKATER, ActsOn::Marked),
    of(
        "wave.pusher.com/update-on-config-change",
        "Wave",
        ActsOn::Referenced(BOTH),
    ),
    of(
        "configmap.fabric8.io/update-on-change",
        "configmapcontroller",
        ActsOn::Named(Kind::ConfigMap),
    ),
    of(
        "operator.1password.io/auto-restart",
        "the 1Password operator",
        ActsOn::MadeBy("OnePasswordItem"),
    ),
    of(
        "secrets.doppler.com/reload",
        "the Doppler operator",
        ActsOn::MadeBy("DopplerSecret"),
    ),
    of(
        "secrets.infisical.com/auto-reload",
        "the Infisical operator",
        ActsOn::MadeBy("InfisicalSecret"),
    ),
];

const fn of(name: &'static str, controller: &'static str, acts_on: ActsOn) -> ReloadAnnotation {
    ReloadAnnotation {
        name,
        controller,
        acts_on,
    }
}

/// The annotations in which Reloader takes names out of what it acts on.
const EXCLUDED: [(&str, Kind); 2] = [
    (
        "configmaps.exclude.reloader.stakater.com/reload",
        Kind::ConfigMap,
    ),
    ("secrets.exclude.reloader.stakater.com/reload", Kind::Secret),
];

/// What replaces the pods of `to` when a container needs a new pod.
pub(super) fn replaced_by(
    from: &RenderedPod<'_>,
    to: &RenderedPod<'_>,
    changed: &ChangedObjects,
) -> ReplacedBy {
    if let Some(reason) = rejected(from, to) {
        let workload = to
            .made_by
            .map_or_else(|| format!("pod {}", to.name()), ToString::to_string);
        return ReplacedBy::Remaker { workload, reason };
    }
    let Some(workload) = to.made_by else {
        return ReplacedBy::Somebody;
    };
    let why = match workload.rollout {
        Rollout::Leaves => None,
        Rollout::NextRun => Some("its next run has new pods".to_owned()),
        Rollout::Replaces if has_other_template(from, to) => {
            Some("its pod template differs".to_owned())
        }
        Rollout::Replaces => reloaded(to, changed),
        Rollout::Unknown => match reloaded(to, changed) {
            None if has_other_template(from, to) => {
                return ReplacedBy::Unknown(workload.to_string());
            }
            why => why,
        },
    };
    why.map_or(ReplacedBy::Somebody, ReplacedBy::Workload)
}

/// Whether pods of the second side are made of another template. A pod of its own has none.
pub(super) fn has_other_template(from: &RenderedPod<'_>, to: &RenderedPod<'_>) -> bool {
    to.made_by.is_some() && template(from) != template(to)
}

fn template<'p>(pod: &RenderedPod<'p>) -> Option<&'p Value> {
    Some(&pod.made_by?.template)
}

/// The first field of the workload, or of a pod of its own, whose change the API server rejects.
fn rejected(from: &RenderedPod<'_>, to: &RenderedPod<'_>) -> Option<String> {
    match (from.made_by, to.made_by) {
        (Some(from), Some(to)) => {
            let mut fields = to.fixed.iter();
            let (field, _) = fields.find(|(field, value)| from.fixed.get(*field) != Some(value))?;
            Some((*field).to_owned())
        }
        (None, None) if fixed_spec(from) != fixed_spec(to) => Some("spec".to_owned()),
        _ => None,
    }
}

/// What the API server never changes of a pod (kubernetes v1.36, `ValidatePodUpdate` in
/// `pkg/apis/core/validation/validation.go`).
fn fixed_spec(pod: &RenderedPod<'_>) -> Option<PodSpec> {
    let mut spec = pod.pod.spec.clone()?;
    if !pod.states_node {
        spec.node_name = None;
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        container.image = None;
        // Its default follows from the image.
        container.image_pull_policy = None;
    }
    // They are made by a request of their own.
    spec.ephemeral_containers = None;
    spec.active_deadline_seconds = None;
    spec.termination_grace_period_seconds = None;
    spec.tolerations = None;
    Some(spec)
}

/// `Reloader acts on configmap app`
fn reloaded(to: &RenderedPod<'_>, changed: &ChangedObjects) -> Option<String> {
    let annotations = to.made_by.map(|workload| &workload.annotations);
    let of_pod = to.pod.metadata.annotations.as_ref();
    let has_any = |annotations: &&BTreeMap<String, String>| {
        RELOADERS
            .iter()
            .any(|one| annotations.contains_key(one.name))
    };
    // Those of the pods count where the workload has none.
    let annotations = annotations.filter(has_any).or(of_pod.filter(has_any))?;
    let namespace = to.namespace();
    let referenced = References::from(needs(to.pod));
    let referenced: Vec<_> = referenced
        .iter()
        .map(|(kind, name)| (kind, ObjectKey::new(namespace, name.clone())))
        .filter(|object| changed.has_updated(object))
        .collect();
    RELOADERS.iter().find_map(|reloader| {
        let value = annotations.get(reloader.name)?;
        let mark = |(kind, key): &(Kind, ObjectKey), name: &str| {
            to.offline.mark(*kind, key, name).is_some_and(is_true)
        };
        let is_ignored = |object: &(Kind, ObjectKey)| {
            let (kind, key) = object;
            let mut excluded = EXCLUDED.iter().filter(|(_, of)| of == kind);
            let is_excluded = excluded.any(|(name, _)| {
                annotations
                    .get(*name)
                    .map_or("", String::as_str)
                    .split(',')
                    .any(|name| name.trim() == key.name)
            });
            reloader.controller == STAKATER && (is_excluded || mark(object, IGNORE))
        };
        let found = match reloader.acts_on {
            ActsOn::Named(kind) => {
                let names = patterns(value);
                let mut objects = changed.updated_in(namespace);
                let is_named =
                    |key: &ObjectKey| names.iter().any(|pattern| pattern.is_match(&key.name));
                objects.find(|one| one.0 == kind && is_named(&one.1) && !is_ignored(one))
            }
            _ if !is_true(value) => None,
            acts_on => {
                let mut objects = referenced.iter().filter(|one| !is_ignored(one));
                objects.find(|object| match acts_on {
                    ActsOn::Referenced(kinds) => kinds.contains(&object.0),
                    ActsOn::Marked => mark(object, MATCH),
                    ActsOn::MadeBy(document) => is_made_by(to, object, document),
                    ActsOn::Named(_) => false,
                })
            }
        };
        let found = found?;
        let (kind, name) = (found.0.singular(), &found.1.name);
        Some(format!("{} acts on {kind} {name}", reloader.controller))
    })
}

fn is_made_by(pod: &RenderedPod<'_>, (kind, key): &(Kind, ObjectKey), document: &str) -> bool {
    pod.offline
        .maker(*kind, key)
        .is_some_and(|made| match &made.maker {
            Maker::Controller(makers) => {
                let mut makers = makers.split(" and ");
                makers.any(|maker| maker.split(' ').next() == Some(document))
            }
            Maker::Sops => false,
        })
}

/// As Go's `strconv.ParseBool` reads it.
fn is_true(text: &str) -> bool {
    ["1", "t", "T", "true", "TRUE", "True"].contains(&text)
}

/// The patterns in a list, each for a whole name. One that is not valid names nothing.
fn patterns(list: &str) -> Vec<Regex> {
    let names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    names
        .filter_map(|name| Regex::new(&format!("^(?:{name})$")).ok())
        .collect()
}
