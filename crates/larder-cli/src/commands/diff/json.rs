//! Differences as JSON, for programs. A secret that is not to be shown is `null`.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use larder_objects::{Kind, ObjectKey};
use larder_projection::{Unknown, Variable};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    both_sides::ServiceVariables,
    change::{Change, PodSides},
    compare::{Comparison, PodDiff, PodKey},
    container::{ContainerDiff, Verdict},
    edits::{Edit, Edits},
    rollout::ReplacedBy,
};
use crate::{
    output::json::{self, not_read},
    rendered::{MountedFile, ShownMount, text, words::shown_mount},
};

/// Version of the format; it changes when a program that reads it must change.
const VERSION: u32 = 1;

/// Everything that differs.
#[derive(Serialize)]
pub(super) struct Report<'c> {
    #[serde(rename = "notCompared", skip_serializing_if = "Vec::is_empty")]
    not_compared: Vec<&'c str>,
    #[serde(rename = "notRead", skip_serializing_if = "Vec::is_empty")]
    not_read: Vec<Value>,
    /// With whether Secrets are shown.
    #[serde(serialize_with = "pods")]
    pods: (&'c [PodDiff<'c>], bool),
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    services: &'c BTreeMap<String, ServiceVariables>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<Value>,
    unreferenced: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unseen: Vec<Value>,
    version: u32,
}

/// The pods, made one after the other.
fn pods<S: Serializer>(
    (pods, show_secrets): &(&[PodDiff<'_>], bool),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(pods.iter().map(|one| pod(one, *show_secrets)))
}

impl<'c> Report<'c> {
    pub(super) fn new(comparison: &'c Comparison<'c>, show_secrets: bool) -> Self {
        let unknown = comparison.unknown.iter().map(|(pod, container, what)| {
            let mut json = json!({"namespace": pod.namespace, "pod": pod.workload.name, "container": container, "what": what.to_string()});
            add_workload(&mut json, pod);
            json
        });
        let object = |(kind, key): &(Kind, ObjectKey)| json!({"kind": kind.object_type().kind, "namespace": key.namespace, "name": key.name});
        let not_compared = comparison.left_out.not_compared.iter();
        Self {
            not_compared: not_compared.map(|one| &*one.sentence).collect(),
            not_read: not_read(&comparison.left_out.not_read),
            pods: (&comparison.pods, show_secrets),
            services: &comparison.services,
            unknown: unknown.collect(),
            unreferenced: comparison.unreferenced.iter().map(object).collect(),
            unseen: comparison.unseen.iter().map(object).collect(),
            version: VERSION,
        }
    }
}

/// Names the kind of the pod's workload, unless it is a pod of its own.
fn add_workload(json: &mut Value, pod: &PodKey<'_>) {
    if let Some(workload) = pod.workload.in_words() {
        json["workload"] = workload.into();
    }
}

fn pod(diff: &PodDiff<'_>, show_secrets: bool) -> Value {
    let sides = PodSides::of(diff);
    let containers = diff.containers.iter().map(|one| {
        let name = one.container.name.to_owned();
        (name, container(one, sides, show_secrets))
    });
    let mut pod = json!({
        "namespace": diff.key.namespace,
        "name": diff.key.workload.name,
        "change": match diff.sides {
            Edit::Added(_) => "added",
            Edit::Removed(_) => "removed",
            Edit::Changed(..) => "changed",
        },
        "containers": containers.collect::<Map<_, _>>(),
    });
    add_workload(&mut pod, &diff.key);
    let is_replaced = diff.containers.iter().any(|one| one.replaced_by.is_some());
    let replaced_by = diff.replaced_by.as_ref().filter(|_| is_replaced);
    if let Some(rolls_out) = replaced_by.and_then(ReplacedBy::rolls_out) {
        pod["rollsOut"] = rolls_out.into();
    }
    if !diff.hooks.is_empty() {
        pod["hooks"] = json!(diff.hooks);
    }
    pod
}

fn container(diff: &ContainerDiff<'_>, sides: PodSides<'_>, show_secrets: bool) -> Value {
    let is_shown = |is_secret: bool| !is_secret || show_secrets;
    let both = |from: Value, to: Value| json!({"from": from, "to": to});
    let variable =
        |one: &Cow<'_, Variable<'_>>| Value::from(is_shown(one.secret).then(|| text(&one.value)));
    let file = |one: &MountedFile<'_>| {
        let data = is_shown(one.secret).then(|| BASE64.encode(&*one.file.data));
        json::file(one.file.mode, one.file.owner, one.group, data.into())
    };
    // If it is perhaps there, another value counts without it.
    let name_sources = |json: &mut Value, change: &Change<'_, '_>| {
        let (from, to) = change.sources_of_sides(sides);
        json["source"] = both(from.into(), to.into());
    };
    let changed_file = |path: &str, edit: &_, from: &MountedFile<'_>, to: &MountedFile<'_>| {
        let (mut before, mut after) = (file(from), file(to));
        let mut change = both(before["data"].take(), after["data"].take());
        for field in ["mode", "owner", "group"] {
            if before.get(field) != after.get(field) {
                change[field] = both(before[field].take(), after[field].take());
            }
        }
        let hides_source = (from.has_secret_place() || to.has_secret_place()) && !show_secrets;
        if !hides_source && (from.fallback.is_some() || to.fallback.is_some()) {
            name_sources(&mut change, &Change::File(path, edit));
        }
        change
    };
    let (verdict, error) = match &diff.verdict {
        Verdict::Same => ("same", None),
        Verdict::Neither(error) => ("neither", Some(error)),
        Verdict::Unknown { .. } => ("unknown", None),
        Verdict::Live => ("live", None),
        // Of a container that is gone, nothing starts again as it was.
        Verdict::Restart | Verdict::Removed => ("restart", None),
        Verdict::Starts => ("starts", None),
        Verdict::Fails(error) => ("fails", Some(error)),
    };
    let changed_variable = |name: &str, edit: &_, from: &Cow<'_, _>, to: &Cow<'_, _>| {
        let mut change = both(variable(from), variable(to));
        // Of two that are not known, the sources are what differs.
        let sources = |one: &Variable<'_>| {
            let unknown = one.value.unknown().filter(|_| is_shown(one.secret));
            Value::from(unknown.map(Unknown::text))
        };
        if from.value.unknown().is_some() || to.value.unknown().is_some() {
            change["unknown"] = both(sources(from), sources(to));
        }
        if from.fallback.is_some() || to.fallback.is_some() {
            name_sources(&mut change, &Change::Variable(name, edit));
        }
        change
    };
    let mut container = json!({
        "verdict": verdict,
        "env": changes(&diff.variables, variable, changed_variable),
        "files": changes(&diff.files, file, changed_file),
    });
    if !diff.unknown.is_empty() {
        container["unknown"] = json!(diff.unknown);
    }
    if !diff.unless.is_empty() {
        let unless = diff.unless.iter().map(|unmet| match &unmet.hint {
            Some(hint) => json!({"what": unmet.what, "hint": hint}),
            None => json!({"what": unmet.what}),
        });
        container["unless"] = unless.collect();
    }
    if let Some(rolls_out) = diff.replaced_by.as_ref().and_then(ReplacedBy::rolls_out) {
        container["rollsOut"] = rolls_out.into();
    }
    if !diff.immutable.is_empty() {
        container["immutable"] = json!(diff.immutable);
    }
    if let Some(error) = error {
        container["error"] = error.as_str().into();
    }
    if diff.verdict == Verdict::Removed {
        container["change"] = "removed".into();
    }
    if !diff.mounts.is_empty() {
        let mount = |one: &ShownMount<'_>| Value::from(shown_mount(*one));
        let changed_mount = |_: &str, _: &_, from: &_, to: &_| both(mount(from), mount(to));
        container["mounts"] = changes(&diff.mounts, mount, changed_mount);
    }
    container
}

/// `{"added": {KEY: …}, "removed": [KEY], "changed": {KEY: …}}`
fn changes<K: ToString, T>(
    edits: &Edits<K, T>,
    one: impl Fn(&T) -> Value,
    both: impl Fn(&str, &Edit<T>, &T, &T) -> Value,
) -> Value {
    let (mut added, mut removed, mut changed) = (Map::new(), Vec::new(), Map::new());
    for (key, edit) in edits {
        let key = key.to_string();
        match edit {
            Edit::Added(to) => {
                added.insert(key, one(to));
            }
            Edit::Removed(_) => removed.push(key),
            Edit::Changed(from, to) => {
                let change = both(&key, edit, from, to);
                changed.insert(key, change);
            }
        }
    }
    json!({"added": added, "removed": removed, "changed": changed})
}
