//! Objects as rows, for `kubectl get`: columns and cells as kube-apiserver 1.36 prints them
//! (`pkg/printers/internalversion`).

use jiff::Timestamp;
use larder_objects::age;
use serde_json::{Value, json};

use crate::{
    json::{items, text},
    resource::ApiKind,
};

/// Which part of the object a row carries besides its cells; `includeObject` of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Metadata,
    Object,
    Nothing,
}

/// A column of a kind.
#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    /// Where the cells come from, and what they show where that is absent; without it they are computed.
    field: Option<(&'static str, &'static str)>,
    /// Only `-o wide` shows it.
    is_wide: bool,
}

const fn computed(name: &'static str) -> Column {
    Column {
        name,
        field: None,
        is_wide: false,
    }
}

const fn field(name: &'static str, pointer: &'static str, absent: &'static str) -> Column {
    Column {
        field: Some((pointer, absent)),
        ..computed(name)
    }
}

const fn wide(column: Column) -> Column {
    Column {
        is_wide: true,
        ..column
    }
}

const POD: &[Column] = &[
    computed("Name"),
    computed("Ready"),
    computed("Status"),
    computed("Restarts"),
    computed("Age"),
    wide(field("IP", "/status/podIP", "<none>")),
    wide(field("Node", "/spec/nodeName", "<none>")),
    wide(field(
        "Nominated Node",
        "/status/nominatedNodeName",
        "<none>",
    )),
    wide(computed("Readiness Gates")),
];
const CONFIG_MAP: &[Column] = &[computed("Name"), computed("Data"), computed("Age")];
const SECRET: &[Column] = &[
    computed("Name"),
    field("Type", "/type", ""),
    computed("Data"),
    computed("Age"),
];
const SERVICE: &[Column] = &[
    computed("Name"),
    field("Type", "/spec/type", ""),
    field("Cluster-IP", "/spec/clusterIP", "<none>"),
    field("External-IP", "/spec/externalName", "<none>"),
    computed("Port(s)"),
    computed("Age"),
    wide(computed("Selector")),
];
const SERVICE_ACCOUNT: &[Column] = &[computed("Name"), computed("Age")];
const NAMESPACE: &[Column] = &[
    computed("Name"),
    field("Status", "/status/phase", ""),
    computed("Age"),
];
const NODE: &[Column] = &[
    computed("Name"),
    computed("Status"),
    computed("Roles"),
    computed("Age"),
    field("Version", "/status/nodeInfo/kubeletVersion", ""),
    wide(computed("Internal-IP")),
    wide(computed("External-IP")),
    wide(field("OS-Image", "/status/nodeInfo/osImage", "<unknown>")),
    wide(field(
        "Kernel-Version",
        "/status/nodeInfo/kernelVersion",
        "<unknown>",
    )),
    wide(field(
        "Container-Runtime",
        "/status/nodeInfo/containerRuntimeVersion",
        "<unknown>",
    )),
];
const EVENT: &[Column] = &[
    computed("Last Seen"),
    field("Type", "/type", ""),
    field("Reason", "/reason", ""),
    computed("Object"),
    wide(field("Subobject", "/involvedObject/fieldPath", "")),
    wide(computed("Source")),
    computed("Message"),
    wide(computed("First Seen")),
    wide(computed("Count")),
    wide(computed("Name")),
];
const CLUSTER_TRUST_BUNDLE: &[Column] = &[
    computed("Name"),
    field("SignerName", "/spec/signerName", "<none>"),
];
const POD_CERTIFICATE_REQUEST: &[Column] = &[
    computed("Name"),
    field("PodName", "/spec/podName", ""),
    field("ServiceAccountName", "/spec/serviceAccountName", ""),
    field("NodeName", "/spec/nodeName", ""),
    field("SignerName", "/spec/signerName", ""),
    computed("State"),
    computed("UnverifiedUserAnnotations"),
];
const LEASE: &[Column] = &[
    computed("Name"),
    field("Holder", "/spec/holderIdentity", ""),
    computed("Age"),
];
const CSI_DRIVER: &[Column] = &[
    computed("Name"),
    computed("AttachRequired"),
    computed("PodInfoOnMount"),
    computed("StorageCapacity"),
    computed("TokenRequests"),
    computed("RequiresRepublish"),
    computed("Modes"),
    computed("Age"),
];

const fn columns(kind: ApiKind) -> &'static [Column] {
    match kind {
        ApiKind::Pod => POD,
        ApiKind::ConfigMap => CONFIG_MAP,
        ApiKind::Secret => SECRET,
        ApiKind::Service => SERVICE,
        ApiKind::ServiceAccount => SERVICE_ACCOUNT,
        ApiKind::Namespace => NAMESPACE,
        ApiKind::Node => NODE,
        ApiKind::Event => EVENT,
        ApiKind::ClusterTrustBundle => CLUSTER_TRUST_BUNDLE,
        ApiKind::PodCertificateRequest => POD_CERTIFICATE_REQUEST,
        ApiKind::Lease => LEASE,
        ApiKind::CsiDriver => CSI_DRIVER,
    }
}

/// A `Table` of `objects`, with the list's `metadata`.
pub(super) fn table(
    kind: ApiKind,
    objects: impl Iterator<Item = Value>,
    metadata: Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let definitions = columns(kind).iter().map(|column| {
        // `kubectl` takes the format, not the name, for the name of an object.
        let format = if column.name == "Name" { "name" } else { "" };
        json!({"name": column.name, "type": "string", "format": format, "description": "",
            "priority": i32::from(column.is_wide)})
    });
    let definitions: Vec<_> = definitions.collect();
    let rows = objects.map(|object| {
        let cells = cells(kind, &object, now);
        match include {
            Include::Nothing => json!({"cells": cells, "object": null}),
            Include::Object => json!({"cells": cells, "object": object}),
            Include::Metadata => json!({"cells": cells, "object": partial(&object["metadata"])}),
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

/// An object reduced to its metadata.
pub(super) fn partial(metadata: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
    })
}

/// The cells of a row, in the order of [`columns`].
fn cells(kind: ApiKind, object: &Value, now: Timestamp) -> Vec<Value> {
    let cells = columns(kind).iter().map(|column| match column.field {
        Some((pointer, absent)) => or(text(object, pointer), absent),
        None => computed_cell(kind, column.name, object, now),
    });
    cells.collect()
}

/// A cell that is more than a field of the object.
fn computed_cell(kind: ApiKind, column: &str, object: &Value, now: Timestamp) -> Value {
    const NONE: &str = "<none>";
    let text = |pointer: &str| text(object, pointer);
    let size = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    let flag = |field: &str| json!(object["spec"][field] == true);
    let since = |pointers: &[&str]| {
        let mut times = pointers.iter().map(|pointer| text(pointer));
        let first = times.find(|time| !time.is_empty());
        json!(ago(first.unwrap_or(""), now))
    };
    let statuses = items(object, "/status/containerStatuses");
    match (kind, column) {
        (_, "Name") => json!(text("/metadata/name")),
        (_, "Age") => since(&["/metadata/creationTimestamp"]),
        (ApiKind::Pod, "Ready") => {
            let ready = statuses.filter(|status| status["ready"] == true).count();
            json!(format!(
                "{ready}/{}",
                items(object, "/spec/containers").count()
            ))
        }
        (ApiKind::Pod, "Status") => json!(pod_status(object)),
        (ApiKind::Pod, "Restarts") => {
            let counts = statuses.filter_map(|status| status["restartCount"].as_i64());
            json!(counts.sum::<i64>().to_string())
        }
        (ApiKind::Pod, "Readiness Gates") => or(&readiness_gates(object), NONE),
        (ApiKind::ConfigMap, "Data") => json!(size("data") + size("binaryData")),
        (ApiKind::Secret, "Data") => json!(size("data")),
        (ApiKind::Service, "Port(s)") => or(&ports(object), NONE),
        (ApiKind::Service, "Selector") => or(&pairs(&object["spec"]["selector"]), NONE),
        (ApiKind::Node, "Status") => json!(node_status(object)),
        (ApiKind::Node, "Roles") => or(&roles(object), NONE),
        (ApiKind::Node, "Internal-IP") => or(address(object, "InternalIP"), NONE),
        (ApiKind::Node, "External-IP") => or(address(object, "ExternalIP"), NONE),
        (ApiKind::Event, "Last Seen") => {
            since(&["/lastTimestamp", "/eventTime", "/firstTimestamp"])
        }
        (ApiKind::Event, "First Seen") => since(&["/firstTimestamp", "/eventTime"]),
        (ApiKind::Event, "Object") => {
            let kind = text("/involvedObject/kind").to_lowercase();
            json!(format!("{kind}/{}", text("/involvedObject/name")))
        }
        (ApiKind::Event, "Source") => {
            let source = [text("/source/component"), text("/source/host")];
            let source: Vec<_> = source.into_iter().filter(|part| !part.is_empty()).collect();
            json!(source.join(", "))
        }
        (ApiKind::Event, "Message") => json!(text("/message").trim()),
        (ApiKind::Event, "Count") => json!(object["count"].as_i64().unwrap_or(1).to_string()),
        (ApiKind::PodCertificateRequest, "State") => json!(request_state(object)),
        (ApiKind::PodCertificateRequest, "UnverifiedUserAnnotations") => {
            or(&pairs(&object["spec"]["unverifiedUserAnnotations"]), NONE)
        }
        (ApiKind::CsiDriver, "AttachRequired") => flag("attachRequired"),
        (ApiKind::CsiDriver, "PodInfoOnMount") => flag("podInfoOnMount"),
        (ApiKind::CsiDriver, "StorageCapacity") => flag("storageCapacity"),
        (ApiKind::CsiDriver, "RequiresRepublish") => flag("requiresRepublish"),
        (ApiKind::CsiDriver, "TokenRequests") => {
            let requests = items(object, "/spec/tokenRequests");
            joined(requests.filter_map(|request| request["audience"].as_str()))
        }
        (ApiKind::CsiDriver, "Modes") => {
            joined(items(object, "/spec/volumeLifecycleModes").filter_map(Value::as_str))
        }
        _ => unreachable!("every column has a field, or is computed above"),
    }
}

fn or(text: &str, absent: &str) -> Value {
    json!(if text.is_empty() { absent } else { text })
}

fn joined<'v>(words: impl Iterator<Item = &'v str>) -> Value {
    match words.collect::<Vec<_>>().as_slice() {
        [] => json!("<unset>"),
        words => json!(words.join(",")),
    }
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

/// The reason of whatever keeps the pod, else its phase.
fn pod_status(pod: &Value) -> &str {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let status = &pod["status"];
    let mut reasons = items(status, "/containerStatuses").filter_map(|container| {
        let state = &container["state"];
        let waiting = state["waiting"]["reason"].as_str();
        waiting.or(state["terminated"]["reason"].as_str())
    });
    reasons
        .next_back()
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
            ApiKind::Secret,
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
        for kind in ApiKind::ALL {
            assert_eq!(
                cells(kind, &json!({}), Timestamp::UNIX_EPOCH).len(),
                columns(kind).len()
            );
        }
    }
}
