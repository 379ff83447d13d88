//! What the containers of completed worlds see, by `larder render`, and how the sides differ.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::world::World;
use crate::Desk;

/// How what a container sees on the second side differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Same,
    /// Files of a mounted volume differ, and nothing else.
    Live,
    /// A running container cannot see the difference.
    Restart,
    Starts,
    Fails,
    Neither,
}

/// A container that starts.
#[derive(PartialEq)]
struct Seen {
    variables: BTreeMap<String, Value>,
    /// By path, volume and what is mounted of it.
    mounts: BTreeMap<String, (Value, String)>,
    /// What stays as it was at the start.
    fixed: BTreeMap<String, Value>,
    /// What follows.
    files: BTreeMap<String, Value>,
}

/// The rendered pods by namespace.
pub(super) fn render(documents: &[Value]) -> HashMap<String, Value> {
    let texts: Vec<_> = documents.iter().map(Value::to_string).collect();
    let desk = Desk::with([("all.yaml", texts.join("\n---\n").as_str())]);
    let run = desk.run("render -f all.yaml -o json --assume-cluster");
    let mut report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    assert!(report["notRead"].is_null(), "{}", run.stderr);
    let pods = report["pods"].as_array_mut().unwrap().drain(..);
    pods.map(|pod| (pod["namespace"].as_str().unwrap().to_owned(), pod))
        .collect()
}

/// The outcome for a container in the completion of this namespace.
pub(super) fn outcomes(
    world: &World,
    container: &str,
    namespace: &str,
    views: &HashMap<String, Value>,
) -> Outcome {
    let from = seen(
        &world.from.pod,
        container,
        &views[&format!("{namespace}-from")],
    );
    let to = seen(&world.to.pod, container, &views[&format!("{namespace}-to")]);
    match (from, to) {
        (None, None) => Outcome::Neither,
        (None, Some(_)) => Outcome::Starts,
        (Some(_), None) => Outcome::Fails,
        (Some(from), Some(to)) if from == to => Outcome::Same,
        (Some(from), Some(to)) => {
            let is_fixed = from.variables != to.variables
                || from.mounts != to.mounts
                || from.fixed != to.fixed;
            if is_fixed {
                Outcome::Restart
            } else {
                Outcome::Live
            }
        }
    }
}

/// What the container sees, unless it would not start: every volume that a container of the pod mounts must be filled.
fn seen(spec: &Value, name: &str, pod: &Value) -> Option<Seen> {
    let volumes = spec["volumes"].as_array().unwrap();
    let containers = spec["containers"].as_array().unwrap();
    let all_mounts = containers
        .iter()
        .flat_map(|one| one["volumeMounts"].as_array().unwrap());
    for mount in all_mounts {
        let volume = mount["name"].as_str().unwrap();
        if !pod["volumes"][volume]["error"].is_null() {
            return None;
        }
    }
    let view = &pod["containers"][name];
    let env = view["env"].as_object()?;
    assert!(
        view["unknown"].is_null(),
        "a completed world knows everything: {pod}"
    );
    let mut seen = Seen {
        variables: env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        mounts: BTreeMap::new(),
        fixed: BTreeMap::new(),
        files: BTreeMap::new(),
    };
    let container = containers.iter().find(|one| one["name"] == name).unwrap();
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volume = mount["name"].as_str().unwrap();
        let path = mount["mountPath"].as_str().unwrap();
        let expression = mount["subPathExpr"].as_str();
        let part = match expression.and_then(|text| text.strip_prefix("$(")?.strip_suffix(')')) {
            // Render says that a container without the variable does not start.
            Some(variable) => env[variable].as_str().unwrap(),
            None => mount["subPath"].as_str().unwrap_or(""),
        };
        let definition = volumes.iter().find(|one| one["name"] == volume).unwrap();
        seen.mounts
            .insert(path.to_owned(), (definition.clone(), part.to_owned()));
        for (file, content) in pod["volumes"][volume]["files"].as_object().unwrap() {
            let below = match part {
                "" => Some(file.as_str()),
                part => file
                    .strip_prefix(part)
                    .filter(|rest| rest.is_empty() || rest.starts_with('/')),
            };
            if let Some(below) = below {
                let kind = if part.is_empty() {
                    &mut seen.files
                } else {
                    &mut seen.fixed
                };
                kind.insert(format!("{path}/{below}"), content.clone());
            }
        }
    }
    Some(seen)
}
