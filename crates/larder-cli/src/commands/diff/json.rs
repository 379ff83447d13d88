//! Differences as JSON, for programs. A secret that is not to be shown is `null`.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use larder_objects::{Kind, ObjectKey};
use larder_projection::Variable;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::compare::{Comparison, ContainerDiff, Edit, Edits, PodDiff, Verdict};
use crate::{
    output::json::not_read,
    rendered::{MountedFile, text, words::mount_source},
};

/// Version of the format; it changes when a program that reads it must change.
const VERSION: u32 = 1;

/// Everything that differs.
#[derive(Serialize)]
pub(super) struct Report<'c> {
    #[serde(rename = "notCompared", skip_serializing_if = "<[_]>::is_empty")]
    not_compared: &'c [String],
    #[serde(rename = "notRead", skip_serializing_if = "Vec::is_empty")]
    not_read: Vec<Value>,
    pods: Pods<'c>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<Value>,
    unreferenced: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unseen: Vec<Value>,
    version: u32,
}

/// The pods, made one after the other.
struct Pods<'c> {
    comparison: &'c Comparison<'c>,
    show_secrets: bool,
}

impl Serialize for Pods<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pods = self.comparison.pods.iter();
        serializer.collect_seq(pods.map(|one| pod(one, self.show_secrets)))
    }
}

impl<'c> Report<'c> {
    pub(super) fn new(comparison: &'c Comparison<'c>, show_secrets: bool) -> Self {
        let unknown = comparison.unknown.iter().map(|(pod, container, what)| {
            json!({"namespace": pod.namespace, "pod": pod.name, "container": container, "what": what})
        });
        let object = |(kind, key): &(Kind, ObjectKey)| json!({"kind": kind.object_type().kind, "namespace": key.namespace, "name": key.name});
        Self {
            not_compared: &comparison.left_out.not_compared,
            not_read: not_read(&comparison.left_out.not_read),
            pods: Pods {
                comparison,
                show_secrets,
            },
            unknown: unknown.collect(),
            unreferenced: comparison.unreferenced.iter().map(object).collect(),
            unseen: comparison.unseen.iter().map(object).collect(),
            version: VERSION,
        }
    }
}

fn pod(diff: &PodDiff<'_>, show_secrets: bool) -> Value {
    let containers = diff.containers.iter();
    let containers =
        containers.map(|one| (one.container.name.to_owned(), container(one, show_secrets)));
    let mut pod = json!({
        "namespace": diff.key.namespace,
        "name": diff.key.name,
        "change": match diff.sides {
            Edit::Added(_) => "added",
            Edit::Removed(_) => "removed",
            Edit::Changed(..) => "changed",
        },
        "containers": containers.collect::<Map<_, _>>(),
    });
    if !diff.hooks.is_empty() {
        pod["hooks"] = json!(diff.hooks);
    }
    pod
}

fn container(diff: &ContainerDiff<'_>, show_secrets: bool) -> Value {
    let shown = |is_secret: bool, value: &dyn Fn() -> Value| {
        if is_secret && !show_secrets {
            Value::Null
        } else {
            value()
        }
    };
    let variable = |one: &&Variable<'_>| shown(one.secret, &|| text(&one.value).into());
    let data =
        |one: &MountedFile<'_>| shown(one.is_secret(), &|| BASE64.encode(&*one.file.data).into());
    let mode = |one: &MountedFile<'_>| format!("{:04o}", one.file.mode);
    let file = |one: &MountedFile<'_>| {
        let mut file = json!({"mode": mode(one), "data": data(one)});
        if let Some(owner) = one.file.owner {
            file["owner"] = owner.into();
        }
        if let Some(group) = one.group {
            file["group"] = group.into();
        }
        file
    };
    let changed_file = |from: &MountedFile<'_>, to: &MountedFile<'_>| {
        let mut change = json!({"from": data(from), "to": data(to)});
        if from.file.mode != to.file.mode {
            change["mode"] = json!({"from": mode(from), "to": mode(to)});
        }
        if from.file.owner != to.file.owner {
            change["owner"] = json!({"from": from.file.owner, "to": to.file.owner});
        }
        if from.group != to.group {
            change["group"] = json!({"from": from.group, "to": to.group});
        }
        change
    };
    let (verdict, error) = match &diff.verdict {
        // It sees nothing on both.
        Verdict::Same | Verdict::Unknown => ("same", None),
        Verdict::Live => ("live", None),
        // Of a container that is gone, nothing starts again as it was.
        Verdict::Restart | Verdict::Removed => ("restart", None),
        Verdict::Starts => ("starts", None),
        Verdict::Fails(error) => ("fails", Some(error)),
    };
    let changed_variable = |from: &&Variable<'_>, to: &&Variable<'_>| {
        let mut change = json!({"from": variable(from), "to": variable(to)});
        // Of two that are not known, the sources are what differs.
        let sources = |one: &Variable<'_>| {
            let unknown = one.value.unknown();
            unknown.map(|unknown| shown(one.secret, &|| unknown.text().into()))
        };
        if from.value.unknown().is_some() || to.value.unknown().is_some() {
            change["unknown"] = json!({"from": sources(from), "to": sources(to)});
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
        let mount = |one: &&_| Value::from(mount_source(one));
        container["mounts"] = changes(
            &diff.mounts,
            mount,
            |from, to| json!({"from": mount(from), "to": mount(to)}),
        );
    }
    container
}

/// `{"added": {KEY: …}, "removed": [KEY], "changed": {KEY: …}}`
fn changes<K: ToString, T>(
    edits: &Edits<K, T>,
    one: impl Fn(&T) -> Value,
    both: impl Fn(&T, &T) -> Value,
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
                changed.insert(key, both(from, to));
            }
        }
    }
    json!({"added": added, "removed": removed, "changed": changed})
}
