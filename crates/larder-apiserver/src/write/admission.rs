//! Adds to objects what the default admission plugins of a kube-apiserver add, beyond the defaults of their fields.
//!
//! Source: Kubernetes 1.36, `plugin/pkg/admission`: `priority`, `defaulttolerationseconds`, `nodetaint`.
//! `serviceaccount`, which mounts a token into every pod, is omitted: as in the servers that controllers are tested
//! with, pods get only the volumes in their specification.
//!
//! Invariant: a second pass over a completed object changes nothing, so that a manifest that is applied again is
//! unchanged.

use serde_json::{Value, json};

use super::{Part, name};
use crate::{
    json::{set_default, text},
    resource::{ApiKind, Resource},
    status::ApiError,
};

/// The priority classes that every cluster has.
const SYSTEM_CLASSES: [(&str, i64); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

/// What pods of every class but a user's do to others.
const PREEMPTS: &str = "PreemptLowerPriority";

/// The taints that every pod tolerates for a while.
const NODE_FAILURES: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// For how long, in seconds.
const TOLERATED_SECS: i64 = 300;

/// Completes a new object (`old` is `None`) or one that replaces `old`. A status is left alone.
///
/// # Errors
///
/// 403: the priority that a pod states is not that of its class.
pub(super) fn admit(
    resource: &Resource,
    old: Option<&Value>,
    value: &mut Value,
    part: Part,
) -> Result<(), ApiError> {
    match (resource.kind, old) {
        _ if part == Part::Status => Ok(()),
        (ApiKind::Pod, _) => {
            tolerate_node_failures(&mut value["spec"]);
            set_priority(old, value, part)
        }
        // A node from a manifest gets no taint: no controller would remove it.
        (ApiKind::Node, None) if part != Part::Whole => {
            taint_not_ready(&mut value["spec"]);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Pods stay for five minutes on a node that is not ready or cannot be reached, unless they say otherwise.
fn tolerate_node_failures(spec: &mut Value) {
    let held = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let covers = |toleration: &Value, key: &str| {
        let (held, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        (held.is_empty() || held == key) && matches!(effect, "" | "NoExecute")
    };
    let mut tolerations = held.clone();
    for key in NODE_FAILURES {
        if !held.iter().any(|toleration| covers(toleration, key)) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_SECS,
            }));
        }
    }
    if tolerations.len() > held.len() {
        spec["tolerations"] = tolerations.into();
    }
}

/// The priority follows from the class. This server has no classes of its own, so that of an unknown one stays as
/// stated.
fn set_priority(old: Option<&Value>, value: &mut Value, part: Part) -> Result<(), ApiError> {
    if let Some(old) = old {
        for field in ["priority", "preemptionPolicy"] {
            if value["spec"][field].is_null() && !old["spec"][field].is_null() {
                value["spec"][field] = old["spec"][field].clone();
            }
        }
        return Ok(());
    }
    let class = text(value, "/spec/priorityClassName");
    let known = SYSTEM_CLASSES.iter().find(|(name, _)| *name == class);
    let Some(priority) = known
        .map(|(_, priority)| *priority)
        .or(class.is_empty().then_some(0))
    else {
        return Ok(());
    };
    let stated = value["spec"]["priority"].as_i64();
    if part != Part::Whole
        && let Some(stated) = stated.filter(|stated| *stated != priority)
    {
        let why = format!(
            "the integer value of priority ({stated}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(ApiError::forbidden(ApiKind::Pod, name(value), &why));
    }
    let policy = text(value, "/spec/preemptionPolicy");
    if part != Part::Whole && !matches!(policy, "" | PREEMPTS) {
        let why = format!(
            "the string value of PreemptionPolicy ({policy}) must not be provided in pod spec; priority admission controller computed {PREEMPTS} from the given PriorityClass name"
        );
        return Err(ApiError::forbidden(ApiKind::Pod, name(value), &why));
    }
    let spec = &mut value["spec"];
    if stated.is_none() {
        spec["priority"] = priority.into();
    }
    set_default(&mut spec["preemptionPolicy"], PREEMPTS);
    Ok(())
}

/// A new node takes no pods until its status is ready.
fn taint_not_ready(spec: &mut Value) {
    let taint = json!({"key": NODE_FAILURES[0], "effect": "NoSchedule"});
    match spec["taints"].as_array_mut() {
        Some(taints) if taints.contains(&taint) => {}
        Some(taints) => taints.push(taint),
        None => spec["taints"] = json!([taint]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(old: Option<&Value>, spec: Value, part: Part) -> Result<Value, String> {
        let mut value = json!({"metadata": {"name": "p"}, "spec": spec});
        admit(ApiKind::Pod.resource(), old, &mut value, part).map_err(|error| error.to_string())?;
        let once = value.clone();
        admit(ApiKind::Pod.resource(), Some(&once), &mut value, part).unwrap();
        assert_eq!(value, once, "the second time must change nothing");
        Ok(value["spec"].take())
    }

    #[test]
    fn a_pod_tolerates_node_failures_for_five_minutes_by_default() {
        let keys = |spec: &Value| -> Vec<String> {
            let tolerations = spec["tolerations"].as_array().into_iter().flatten();
            tolerations
                .map(|toleration| toleration["key"].as_str().unwrap_or("any").to_owned())
                .collect()
        };
        let [not_ready, unreachable] = NODE_FAILURES;
        let tolerating = |toleration: Value| {
            let spec = json!({"tolerations": [toleration]});
            keys(&admitted(None, spec, Part::Main).unwrap())
        };
        assert_eq!(
            keys(&admitted(None, json!({}), Part::Main).unwrap()),
            [not_ready, unreachable]
        );
        assert_eq!(
            tolerating(json!({"key": unreachable, "operator": "Exists"})),
            [unreachable, not_ready]
        );
        assert_eq!(
            tolerating(json!({"key": not_ready, "effect": "NoSchedule"})),
            [not_ready, not_ready, unreachable]
        );
        assert_eq!(tolerating(json!({"operator": "Exists"})), ["any"]);
    }

    #[test]
    fn a_pods_priority_is_that_of_its_class_and_stays() {
        let of =
            |spec: Value, part| admitted(None, spec, part).map(|mut spec| spec["priority"].take());
        assert_eq!(of(json!({}), Part::Main), Ok(0.into()));
        let critical = json!({"priorityClassName": "system-node-critical"});
        assert_eq!(of(critical, Part::Main), Ok(2_000_001_000.into()));
        assert_eq!(
            of(json!({"priorityClassName": "mine"}), Part::Main),
            Ok(Value::Null)
        );
        let stated = json!({"priority": 7});
        assert!(of(stated.clone(), Part::Main).unwrap_err().contains("(7)"));
        assert_eq!(of(stated, Part::Whole), Ok(7.into()));
        let never = json!({"preemptionPolicy": "Never"});
        assert!(of(never.clone(), Part::Main).is_err());
        assert_eq!(of(never, Part::Whole), Ok(0.into()));
        let old = json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}});
        let kept = admitted(Some(&old), json!({}), Part::Main).unwrap();
        assert_eq!(
            (&kept["priority"], &kept["preemptionPolicy"]),
            (&7.into(), &"Never".into())
        );
    }

    #[test]
    fn a_new_node_is_not_ready_unless_a_manifest_makes_it() {
        for (part, taints) in [(Part::Main, 1), (Part::Whole, 0)] {
            let mut value = json!({"metadata": {"name": "n"}});
            admit(ApiKind::Node.resource(), None, &mut value, part).unwrap();
            let found = value["spec"]["taints"].as_array().map_or(0, Vec::len);
            assert_eq!(found, taints, "{part:?}");
        }
    }
}
