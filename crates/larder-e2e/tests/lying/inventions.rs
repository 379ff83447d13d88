//! Things that a lying API server says: objects, lists, watch events, statuses and text that is none of these.

use serde_json::{Map, Value, json};

/// Text for names, versions and values: plain, odd and hostile.
pub(crate) fn text(random: &mut fastrand::Rng) -> String {
    const TEXTS: [&str; 18] = [
        "",
        "a",
        "true-0",
        "true-1",
        "pod-0",
        "../..",
        ".",
        "a b",
        "a\0b\n",
        "é\u{202e}",
        "0",
        "-1",
        "18446744073709551616",
        "99999999999999",
        "1e9",
        "null",
        "%2e%2e",
        "a,b=c",
    ];
    match random.u32(0..20) {
        0 => "x".repeat(random.usize(0..100_000)),
        1 => (0..random.usize(0..20)).map(|_| random.char(..)).collect(),
        _ => TEXTS[random.usize(..TEXTS.len())].to_owned(),
    }
}

/// Any JSON.
pub(crate) fn junk(random: &mut fastrand::Rng, depth: usize) -> Value {
    match random.u32(0..if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.bool()),
        2 => json!(random.i64(..)),
        3 => json!(random.f64() * 1e300),
        4 | 5 => json!(text(random)),
        6 => (0..random.usize(0..4))
            .map(|_| junk(random, depth - 1))
            .collect(),
        _ => (0..random.usize(0..4))
            .map(|_| (text(random), junk(random, depth - 1)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn date(random: &mut fastrand::Rng) -> Value {
    const DATES: [&str; 7] = [
        "2026-01-01T00:00:00Z",
        "-009998-01-02T03:04:05Z",
        "9999-12-31T23:59:60Z",
        "0000-00-00T00:00:00Z",
        "",
        "+262143-01-01T00:00:00Z",
        "tomorrow",
    ];
    json!(DATES[random.usize(..DATES.len())])
}

/// Metadata that is well-typed, mostly.
fn metadata(random: &mut fastrand::Rng, prefix: &str) -> Value {
    let mut metadata = json!({
        "namespace": "n",
        "name": format!("{prefix}-{}", random.usize(0..8)),
        "uid": format!("uid-{}", random.usize(0..8)),
        "resourceVersion": random.u64(0..100_000).to_string(),
    });
    for field in [
        "namespace",
        "name",
        "uid",
        "resourceVersion",
        "generateName",
    ] {
        if random.u32(0..6) == 0 {
            metadata[field] = json!(text(random));
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp"] {
        if random.u32(0..6) == 0 {
            metadata[field] = date(random);
        }
    }
    for field in [
        "labels",
        "annotations",
        "ownerReferences",
        "managedFields",
        "finalizers",
        "generation",
    ] {
        if random.u32(0..12) == 0 {
            metadata[field] = junk(random, 2);
        }
    }
    metadata
}

/// An object of this resource.
pub(crate) fn object(random: &mut fastrand::Rng, resource: &str) -> Value {
    let mut object = match resource {
        "pods" => {
            let volumes: Vec<_> = (0..random.usize(0..4))
                .map(|_| json!({"name": text(random), "configMap": {"name": text(random)}}))
                .collect();
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": metadata(random, "pod"),
                "spec": {
                    "nodeName": "node", "volumes": volumes,
                    "containers": [{"name": text(random), "image": text(random)}],
                },
                "status": {"phase": text(random), "startTime": date(random)},
            })
        }
        "secrets" => json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata(random, "true"),
            "type": text(random), "data": {"other": "AAAA", text(random): text(random)},
            "immutable": false,
        }),
        _ => json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(random, "true"),
            "data": {"other": text(random)}, "binaryData": {"b": text(random)},
        }),
    };
    // One field is of another type.
    if random.u32(0..3) == 0 {
        let fields: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
        let field = &fields[random.usize(..fields.len())];
        object[field] = junk(random, 2);
    }
    // It would be final, whatever the truth becomes.
    if object["immutable"] == true {
        object["immutable"] = json!(1);
    }
    object
}

/// A list of this resource.
pub(crate) fn list(random: &mut fastrand::Rng, resource: &str) -> Value {
    let items: Vec<_> = (0..random.usize(0..20))
        .map(|_| match random.u32(0..10) {
            0 => junk(random, 2),
            _ => object(random, resource),
        })
        .collect();
    let mut list = json!({
        "apiVersion": "v1", "kind": "List", "items": items,
        "metadata": {"resourceVersion": random.u64(0..100_000).to_string()},
    });
    match random.u32(0..8) {
        0 => list["metadata"] = junk(random, 2),
        1 => list["items"] = junk(random, 2),
        2 => list["metadata"]["resourceVersion"] = json!(text(random)),
        3 => list["metadata"]["continue"] = json!(text(random)),
        _ => {}
    }
    list
}

/// A line of a watch.
pub(crate) fn event(random: &mut fastrand::Rng, resource: &str) -> Vec<u8> {
    const TYPES: [&str; 7] = [
        "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "added", "",
    ];
    let kind = TYPES[random.usize(..TYPES.len())];
    let mut line = match random.u32(0..12) {
        0 => junk(random, 3).to_string(),
        1 => text(random),
        2 => "[".repeat(random.usize(0..100_000)),
        _ if kind == "ERROR" => json!({"type": kind, "object": status(random, 410)}).to_string(),
        _ => json!({"type": kind, "object": object(random, resource)}).to_string(),
    }
    .into_bytes();
    if random.u32(0..10) == 0 {
        mutate(random, &mut line);
    }
    line.push(b'\n');
    line
}

/// A Status; extreme numbers included.
pub(crate) fn status(random: &mut fastrand::Rng, code: u16) -> Value {
    const SECONDS: [u64; 5] = [0, 1, 3600, u64::MAX / 2, u64::MAX];
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": text(random), "message": text(random),
    });
    if random.u32(0..3) == 0 {
        let seconds = SECONDS[random.usize(..SECONDS.len())];
        status["details"] =
            json!({"retryAfterSeconds": seconds, "causes": [{"reason": text(random)}]});
    }
    if random.u32(0..6) == 0 {
        status["details"] = junk(random, 2);
    }
    status
}

/// Changes some bytes, or cuts.
pub(crate) fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    match random.u32(0..3) {
        0 => bytes.truncate(random.usize(..bytes.len())),
        1 => {
            for _ in 0..random.usize(1..8) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        _ => {
            let at = random.usize(..bytes.len());
            let more: Vec<_> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
            bytes.splice(at..at, more);
        }
    }
}
