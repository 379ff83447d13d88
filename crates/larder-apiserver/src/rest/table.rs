//! Objects as rows, for `kubectl get`: columns and cells as kube-apiserver 1.36 prints them
//! (`pkg/printers/internalversion`).

use jiff::Timestamp;
use larder_objects::age;
use serde_json::{Value, json};

use crate::{
    json::{items, text},
    resource::Kind,
};

/// Which part of the object a row carries besides its cells; `includeObject` of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Metadata,
    Object,
    Nothing,
}

/// The names of the columns; `+` marks those that only `-o wide` shows.
fn columns(kind: Kind) -> &'static str {
    match kind {
        Kind::Pod => {
            "Name, Ready, Status, Restarts, Age, +IP, +Node, +Nominated Node, +Readiness Gates"
        }
        Kind::ConfigMap => "Name, Data, Age",
        Kind::Secret => "Name, Type, Data, Age",
        Kind::Service => "Name, Type, Cluster-IP, External-IP, Port(s), Age, +Selector",
        Kind::ServiceAccount => "Name, Age",
        Kind::Namespace => "Name, Status, Age",
        Kind::Node => {
            "Name, Status, Roles, Age, Version, +Internal-IP, +External-IP, +OS-Image, +Kernel-Version, +Container-Runtime"
        }
        Kind::Event => {
            "Last Seen, Type, Reason, Object, +Subobject, +Source, Message, +First Seen, +Count, +Name"
        }
        Kind::ClusterTrustBundle => "Name, SignerName",
        Kind::PodCertificateRequest => {
            "Name, PodName, ServiceAccountName, NodeName, SignerName, State, UnverifiedUserAnnotations"
        }
        Kind::Lease => "Name, Holder, Age",
        Kind::CsiDriver => {
            "Name, AttachRequired, PodInfoOnMount, StorageCapacity, TokenRequests, RequiresRepublish, Modes, Age"
        }
    }
}

/// A `Table` of `objects`, with the list's `metadata`.
pub(super) fn table(
    kind: Kind,
    objects: impl Iterator<Item = Value>,
    metadata: Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let definitions = columns(kind).split(", ").map(|column| {
        let name = column.trim_start_matches('+');
        // `kubectl` takes the format, not the name, for the name of an object.
        let format = if name == "Name" { "name" } else { "" };
        let priority = i32::from(name != column);
        json!({"name": name, "type": "string", "format": format, "description": "", "priority": priority})
    });
    let definitions: Vec<_> = definitions.collect();
    let rows = objects.map(|object| {
        let cells = cells(kind, &object, now);
        match include {
            Include::Nothing => json!({"cells": cells, "object": null}),
            Include::Object => json!({"cells": cells, "object": object}),
            Include::Metadata => json!({"cells": cells, "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }}),
        }
    });
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows.collect::<Vec<_>>(),
    })
}

/// The cells of a row, in the order of [`columns`].
fn cells(kind: Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let text = |pointer: &str| text(object, pointer);
    let name = json!(text("/metadata/name"));
    let age = json!(ago(text("/metadata/creationTimestamp"), now));
    let size = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    let or_none = |text: &str| json!(if text.is_empty() { "<none>" } else { text });
    let or_unknown = |text: &str| json!(if text.is_empty() { "<unknown>" } else { text });
    match kind {
        Kind::Pod => {
            let (ready, total, restarts) = containers(object);
            vec![
                name,
                json!(format!("{ready}/{total}")),
                json!(pod_status(object)),
                json!(restarts.to_string()),
                age,
                or_none(text("/status/podIP")),
                or_none(text("/spec/nodeName")),
                or_none(text("/status/nominatedNodeName")),
                or_none(&readiness_gates(object)),
            ]
        }
        Kind::ConfigMap => vec![name, json!(size("data") + size("binaryData")), age],
        Kind::Secret => vec![name, json!(text("/type")), json!(size("data")), age],
        Kind::Service => vec![
            name,
            json!(text("/spec/type")),
            or_none(text("/spec/clusterIP")),
            or_none(text("/spec/externalName")),
            or_none(&ports(object)),
            age,
            or_none(&pairs(&object["spec"]["selector"])),
        ],
        Kind::ServiceAccount => vec![name, age],
        Kind::Namespace => vec![name, json!(text("/status/phase")), age],
        Kind::Node => vec![
            name,
            json!(node_status(object)),
            or_none(&roles(object)),
            age,
            json!(text("/status/nodeInfo/kubeletVersion")),
            or_none(address(object, "InternalIP")),
            or_none(address(object, "ExternalIP")),
            or_unknown(text("/status/nodeInfo/osImage")),
            or_unknown(text("/status/nodeInfo/kernelVersion")),
            or_unknown(text("/status/nodeInfo/containerRuntimeVersion")),
        ],
        Kind::Event => {
            let filled = |pointers: &[&str]| {
                let mut times = pointers.iter().map(|pointer| text(pointer));
                times.find(|time| !time.is_empty()).unwrap_or("")
            };
            let seen = filled(&["/lastTimestamp", "/eventTime", "/firstTimestamp"]);
            let first = filled(&["/firstTimestamp", "/eventTime"]);
            let involved = text("/involvedObject/kind").to_lowercase();
            let source = [text("/source/component"), text("/source/host")];
            let source: Vec<_> = source.into_iter().filter(|part| !part.is_empty()).collect();
            vec![
                json!(ago(seen, now)),
                json!(text("/type")),
                json!(text("/reason")),
                json!(format!("{involved}/{}", text("/involvedObject/name"))),
                json!(text("/involvedObject/fieldPath")),
                json!(source.join(", ")),
                json!(text("/message").trim()),
                json!(ago(first, now)),
                json!(object["count"].as_i64().unwrap_or(1).to_string()),
                name,
            ]
        }
        Kind::ClusterTrustBundle => vec![name, or_none(text("/spec/signerName"))],
        Kind::PodCertificateRequest => vec![
            name,
            json!(text("/spec/podName")),
            json!(text("/spec/serviceAccountName")),
            json!(text("/spec/nodeName")),
            json!(text("/spec/signerName")),
            json!(request_state(object)),
            or_none(&pairs(&object["spec"]["unverifiedUserAnnotations"])),
        ],
        Kind::Lease => vec![name, json!(text("/spec/holderIdentity")), age],
        Kind::CsiDriver => csi_driver(name, object, age),
    }
}

/// The cells of a CSI driver.
fn csi_driver(name: Value, driver: &Value, age: Value) -> Vec<Value> {
    let flag = |field: &str| json!(driver["spec"][field].as_bool().unwrap_or(false));
    let joined = |list: Vec<&str>| match list[..] {
        [] => json!("<unset>"),
        _ => json!(list.join(",")),
    };
    let audiences = items(driver, "/spec/tokenRequests");
    let audiences = audiences.filter_map(|request| request["audience"].as_str());
    let modes = items(driver, "/spec/volumeLifecycleModes").filter_map(Value::as_str);
    vec![
        name,
        flag("attachRequired"),
        flag("podInfoOnMount"),
        flag("storageCapacity"),
        joined(audiences.collect()),
        flag("requiresRepublish"),
        joined(modes.collect()),
        age,
    ]
}

/// How many of the conditions that a pod waits for hold: `1/2`; empty for none.
fn readiness_gates(pod: &Value) -> String {
    let holds = |gate: &&Value| {
        let mut conditions = items(pod, "/status/conditions");
        conditions.any(|held| held["type"] == gate["conditionType"] && held["status"] == "True")
    };
    let gates = items(pod, "/spec/readinessGates");
    match gates.clone().count() {
        0 => String::new(),
        all => format!("{}/{all}", gates.filter(holds).count()),
    }
}

/// The first address of this type; empty when there is none.
fn address<'v>(node: &'v Value, wanted: &str) -> &'v str {
    let found = items(node, "/status/addresses").find(|address| address["type"] == wanted);
    found.map_or("", |address| text(address, "/address"))
}

/// The condition that ended a request for a certificate.
fn request_state(request: &Value) -> &str {
    let last = items(request, "/status/conditions").next_back();
    last.and_then(|last| last["type"].as_str())
        .unwrap_or("Pending")
}

/// Ready containers, all containers, restarts.
fn containers(pod: &Value) -> (usize, usize, i64) {
    let statuses = items(pod, "/status/containerStatuses");
    let ready = statuses.clone().filter(|status| status["ready"] == true);
    let restarts = statuses.filter_map(|status| status["restartCount"].as_i64());
    let total = items(pod, "/spec/containers").count();
    (ready.count(), total, restarts.sum())
}

/// The reason of whatever keeps the pod, else its phase.
fn pod_status(pod: &Value) -> &str {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let status = &pod["status"];
    let reasons = items(status, "/containerStatuses").filter_map(|container| {
        let state = &container["state"];
        let waiting = state["waiting"]["reason"].as_str();
        waiting.or(state["terminated"]["reason"].as_str())
    });
    reasons
        .last()
        .or(status["reason"].as_str())
        .or(status["phase"].as_str())
        .unwrap_or("Unknown")
}

fn node_status(node: &Value) -> String {
    let mut conditions = items(node, "/status/conditions");
    let mut status = match conditions.find(|condition| condition["type"] == "Ready") {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        status += ",SchedulingDisabled";
    }
    status
}

fn roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let labels = labels.into_iter().flatten();
    let roles = labels.filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"));
    roles.collect::<Vec<_>>().join(",")
}

/// `80/TCP,443:30443/TCP`.
fn ports(service: &Value) -> String {
    let shown = items(service, "/spec/ports").map(|port| {
        let number = port["port"].as_i64().unwrap_or(0);
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_i64() {
            Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    });
    shown.collect::<Vec<_>>().join(",")
}

/// `a=1,b=2`.
fn pairs(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
    pairs.collect::<Vec<_>>().join(",")
}

/// How long ago `time` was.
fn ago(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => age(now.as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_needs_a_time() {
        let time = "2026-01-31T12:00:00Z";
        let now = time.parse().unwrap();
        assert_eq!(ago(time, now), "0s");
        assert_eq!(ago("", now), "<unknown>");
    }

    #[test]
    fn a_secret_row_counts_its_keys_and_shows_no_value() {
        let now = Timestamp::UNIX_EPOCH;
        let secret =
            json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"p": "aHVudGVyMg=="}});
        let shown = table(
            Kind::Secret,
            [secret].into_iter(),
            json!({}),
            Include::Metadata,
            now,
        );
        assert_eq!(
            shown["rows"][0]["cells"],
            json!(["s", "Opaque", 1, "<unknown>"])
        );
        assert!(!shown.to_string().contains("aHVudGVyMg"));
    }

    #[test]
    fn every_kind_has_as_many_cells_as_columns() {
        for kind in Kind::ALL {
            assert_eq!(
                cells(kind, &json!({}), Timestamp::UNIX_EPOCH).len(),
                columns(kind).split(", ").count()
            );
        }
    }
}
