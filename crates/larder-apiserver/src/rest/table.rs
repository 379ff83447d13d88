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
struct Column {
    name: &'static str,
    cell: Cell,
    /// Only `-o wide` shows it.
    is_wide: bool,
}

/// Where the cells of a column come from.
enum Cell {
    /// A field, and what shows where it is absent.
    Field(&'static str, &'static str),
    /// More than a field of the object.
    Computed(fn(&Value, Timestamp) -> Value),
}

const fn column(name: &'static str, cell: Cell) -> Column {
    Column {
        name,
        cell,
        is_wide: false,
    }
}

const fn computed(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    column(name, Cell::Computed(cell))
}

const fn field(name: &'static str, pointer: &'static str, absent: &'static str) -> Column {
    column(name, Cell::Field(pointer, absent))
}

const fn wide(column: Column) -> Column {
    Column {
        is_wide: true,
        ..column
    }
}

const NONE: &str = "<none>";
const NAME: Column = field("Name", "/metadata/name", "");
const AGE: Column = computed("Age", |object, now| {
    since(object, &["/metadata/creationTimestamp"], now)
});

const POD: &[Column] = &[
    NAME,
    computed("Ready", |pod, _| json!(ready(pod))),
    computed("Status", |pod, _| json!(pod_status(pod))),
    computed("Restarts", |pod, _| json!(restarts(pod).to_string())),
    AGE,
    wide(field("IP", "/status/podIP", NONE)),
    wide(field("Node", "/spec/nodeName", NONE)),
    wide(field("Nominated Node", "/status/nominatedNodeName", NONE)),
    wide(computed("Readiness Gates", |pod, _| {
        or(&readiness_gates(pod), NONE)
    })),
];
const CONFIG_MAP: &[Column] = &[
    NAME,
    computed("Data", |map, _| {
        json!(size(&map["data"]) + size(&map["binaryData"]))
    }),
    AGE,
];
const SECRET: &[Column] = &[
    NAME,
    field("Type", "/type", ""),
    computed("Data", |secret, _| json!(size(&secret["data"]))),
    AGE,
];
const SERVICE: &[Column] = &[
    NAME,
    field("Type", "/spec/type", ""),
    field("Cluster-IP", "/spec/clusterIP", NONE),
    field("External-IP", "/spec/externalName", NONE),
    computed("Port(s)", |service, _| or(&ports(service), NONE)),
    AGE,
    wide(computed("Selector", |service, _| {
        pairs(&service["spec"]["selector"])
    })),
];
const SERVICE_ACCOUNT: &[Column] = &[NAME, AGE];
const NAMESPACE: &[Column] = &[NAME, field("Status", "/status/phase", ""), AGE];
const NODE: &[Column] = &[
    NAME,
    computed("Status", |node, _| json!(node_status(node))),
    computed("Roles", |node, _| or(&roles(node), NONE)),
    AGE,
    field("Version", "/status/nodeInfo/kubeletVersion", ""),
    wide(computed("Internal-IP", |node, _| {
        or(address(node, "InternalIP"), NONE)
    })),
    wide(computed("External-IP", |node, _| {
        or(address(node, "ExternalIP"), NONE)
    })),
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
    computed("Last Seen", |event, now| {
        since(
            event,
            &["/lastTimestamp", "/eventTime", "/firstTimestamp"],
            now,
        )
    }),
    field("Type", "/type", ""),
    field("Reason", "/reason", ""),
    computed("Object", |event, _| {
        let kind = text(event, "/involvedObject/kind").to_lowercase();
        json!(format!("{kind}/{}", text(event, "/involvedObject/name")))
    }),
    wide(field("Subobject", "/involvedObject/fieldPath", "")),
    wide(computed("Source", |event, _| {
        let mut source = vec![
            text(event, "/source/component"),
            text(event, "/source/host"),
        ];
        source.retain(|part| !part.is_empty());
        json!(source.join(", "))
    })),
    computed("Message", |event, _| json!(text(event, "/message").trim())),
    wide(computed("First Seen", |event, now| {
        since(event, &["/firstTimestamp", "/eventTime"], now)
    })),
    wide(computed("Count", |event, _| {
        json!(event["count"].as_i64().unwrap_or(1).to_string())
    })),
    wide(NAME),
];
const CLUSTER_TRUST_BUNDLE: &[Column] = &[NAME, field("SignerName", "/spec/signerName", NONE)];
const POD_CERTIFICATE_REQUEST: &[Column] = &[
    NAME,
    field("PodName", "/spec/podName", ""),
    field("ServiceAccountName", "/spec/serviceAccountName", ""),
    field("NodeName", "/spec/nodeName", ""),
    field("SignerName", "/spec/signerName", ""),
    // The condition that ended the request.
    computed("State", |request, _| {
        let last = items(request, "/status/conditions").next_back();
        or(last.map_or("", |last| text(last, "/type")), "Pending")
    }),
    computed("UnverifiedUserAnnotations", |request, _| {
        pairs(&request["spec"]["unverifiedUserAnnotations"])
    }),
];
const LEASE: &[Column] = &[NAME, field("Holder", "/spec/holderIdentity", ""), AGE];
const CSI_DRIVER: &[Column] = &[
    NAME,
    computed("AttachRequired", |csi, _| flag(csi, "attachRequired")),
    computed("PodInfoOnMount", |csi, _| flag(csi, "podInfoOnMount")),
    computed("StorageCapacity", |csi, _| flag(csi, "storageCapacity")),
    computed("TokenRequests", |csi, _| {
        joined(items(csi, "/spec/tokenRequests").map(|request| &request["audience"]))
    }),
    computed("RequiresRepublish", |csi, _| flag(csi, "requiresRepublish")),
    computed("Modes", |csi, _| {
        joined(items(csi, "/spec/volumeLifecycleModes"))
    }),
    AGE,
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
    let definitions: Vec<_> = columns(kind)
        .iter()
        .map(|column| {
            // `kubectl` takes the format, not the name, for the name of an object.
            let format = if column.name == "Name" { "name" } else { "" };
            json!({"name": column.name, "type": "string", "format": format, "description": "",
            "priority": i32::from(column.is_wide)})
        })
        .collect();
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
    columns(kind)
        .iter()
        .map(|column| match column.cell {
            Cell::Field(pointer, absent) => or(text(object, pointer), absent),
            Cell::Computed(cell) => cell(object, now),
        })
        .collect()
}

fn or(text: &str, absent: &str) -> Value {
    json!(if text.is_empty() { absent } else { text })
}

fn size(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

fn flag(object: &Value, field: &str) -> Value {
    json!(object["spec"][field] == true)
}

fn joined<'v>(words: impl Iterator<Item = &'v Value>) -> Value {
    let words: Vec<_> = words.filter_map(Value::as_str).collect();
    if words.is_empty() {
        return json!("<unset>");
    }
    json!(words.join(","))
}

/// How long ago the first of these times was that the object has.
fn since(object: &Value, pointers: &[&str], now: Timestamp) -> Value {
    let mut times = pointers.iter().map(|pointer| text(object, pointer));
    let first = times.find(|time| !time.is_empty());
    json!(ago(first.unwrap_or(""), now))
}

/// How many of the containers are ready: `1/2`.
fn ready(pod: &Value) -> String {
    let ready = items(pod, "/status/containerStatuses")
        .filter(|status| status["ready"] == true)
        .count();
    format!("{ready}/{}", items(pod, "/spec/containers").count())
}

fn restarts(pod: &Value) -> i64 {
    items(pod, "/status/containerStatuses")
        .filter_map(|status| status["restartCount"].as_i64())
        .sum()
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
    items(node, "/status/addresses")
        .find(|address| address["type"] == wanted)
        .map_or("", |address| text(address, "/address"))
}

/// The reason of whatever keeps the pod, else its phase.
fn pod_status(pod: &Value) -> &str {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let status = &pod["status"];
    let mut reasons = items(status, "/containerStatuses").filter_map(|container| {
        let state = &container["state"];
        state["waiting"]["reason"]
            .as_str()
            .or(state["terminated"]["reason"].as_str())
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
    node["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect::<Vec<_>>()
        .join(",")
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
fn pairs(map: &Value) -> Value {
    let pairs = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
    or(&pairs.collect::<Vec<_>>().join(","), NONE)
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
        for kind in crate::resource::RESOURCES
            .iter()
            .map(|resource| resource.kind)
        {
            assert_eq!(
                cells(kind, &json!({}), Timestamp::UNIX_EPOCH).len(),
                columns(kind).len()
            );
        }
    }
}
