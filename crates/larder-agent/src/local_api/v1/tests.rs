//! The JSON of every type, with all of its optional fields and with none, against the OpenAPI document. A new field
//! breaks the build here, and then the test until the document describes it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::local_api::OPENAPI;
use crate::status::{
    ContainerStatus, Delivery, DiskWaitStatus, HookStatus, OutdatedStatus, Phase, ServedPod,
    SubPathState, SubPathStatus, VolumeStatus, WaitsFor,
};

/// Sets all optional fields of a type, or none.
#[derive(Clone, Copy)]
struct Fill(bool);

impl Fill {
    fn some<T>(self, value: T) -> Option<T> {
        self.0.then_some(value)
    }

    fn text(self) -> String {
        self.some("text".to_owned()).unwrap_or_default()
    }

    fn time(self) -> Option<Timestamp> {
        self.some(Timestamp::UNIX_EPOCH)
    }

    fn delivery(self) -> Delivery {
        Delivery::new(Phase::Waiting, self.text(), Timestamp::UNIX_EPOCH)
    }

    fn hook(self) -> HookStatus {
        HookStatus {
            name: "reload".to_owned(),
            action: "signal:SIGHUP".to_owned(),
            place: "configuration".to_owned(),
            state: "Idle".to_owned(),
            since: self.time(),
            reason: self.text(),
            output: self.text(),
            attempts: 0,
            last_success: self.time(),
        }
    }

    fn volume(self) -> VolumeStatus {
        VolumeStatus {
            name: "config".to_owned(),
            type_: "configMap".to_owned(),
            path: "/config".to_owned(),
            delivery: self.delivery(),
            last_swap: self.time(),
            files: 1,
            stale_as_of: self.time(),
            left_out: self.some("app.conf".to_owned()).into_iter().collect(),
            note: self.some("a note".to_owned()).unwrap_or_default(),
            verified_in_ms: self.some(81),
            sub_paths: Vec::from_iter(self.some(SubPathStatus {
                container: "main".to_owned(),
                mount_path: "/app.conf".to_owned(),
                state: SubPathState::Live,
                reason: self.text(),
                waiting_since: self.time(),
                replaced_at: self.time(),
                took_ms: self.some(81),
            })),
        }
    }

    fn container(self) -> ContainerStatus {
        let outdated = OutdatedStatus {
            kind: "env".to_owned(),
            name: "LEVEL".to_owned(),
            object: "ConfigMap app".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        };
        ContainerStatus {
            name: "main".to_owned(),
            path: "/env.json".to_owned(),
            delivery: self.delivery(),
            last_swap: self.time(),
            stale_as_of: self.time(),
            left_out: self.some("LEVEL".to_owned()).into_iter().collect(),
            outdated: self.some(outdated).into_iter().collect(),
        }
    }

    fn pod(self) -> PodStatus {
        let waits_for = DiskWaitStatus {
            what: WaitsFor::Disk,
            since: Timestamp::UNIX_EPOCH,
        };
        PodStatus {
            namespace: "n".to_owned(),
            name: "web".to_owned(),
            uid: "u".to_owned(),
            source: "api".to_owned(),
            mirror: self.some("m".to_owned()),
            deletion_timestamp: self.time(),
            delivery: self.delivery(),
            waits_for: self.some(waits_for),
            path: "/pod".to_owned(),
            volumes: vec![self.volume()],
            containers: vec![self.container()],
            on_change: self.some(self.hook()).into_iter().collect(),
        }
    }
}

/// Checks that `value` has exactly the fields of `schema` if `fill` is full, or those that are required.
fn check(document: &Value, schema: &Value, value: &Value, fill: Fill) {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = document.pointer(reference.trim_start_matches('#'));
        return check(document, schema.expect(reference), value, fill);
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        let variant = variants.iter().find(|variant| {
            let name = variant["$ref"].as_str().unwrap().rsplit('/').next();
            name == value["type"].as_str()
        });
        return check(document, variant.expect("a line of this type"), value, fill);
    }
    // A field that may be missing.
    if let Some(variants) = schema["anyOf"].as_array() {
        return check(document, &variants[0], value, fill);
    }
    match schema["type"].as_str() {
        Some("object") if schema.get("properties").is_some() => {
            let value = value.as_object().expect("an object");
            let properties = schema["properties"].as_object().unwrap();
            let described: BTreeSet<_> = properties.keys().map(String::as_str).collect();
            let required = schema["required"].as_array().unwrap().iter();
            let required: BTreeSet<_> = required.map(|name| name.as_str().unwrap()).collect();
            let found: BTreeSet<_> = value.keys().map(String::as_str).collect();
            assert_eq!(found, if fill.0 { described } else { required });
            for (name, value) in value {
                check(document, &properties[name], value, fill);
            }
        }
        Some("object") => assert!(value.is_object(), "{value}"),
        Some("array") => {
            let items = value.as_array().expect("an array");
            assert!(!items.is_empty(), "nothing to check");
            for item in items {
                check(document, &schema["items"], item, fill);
            }
        }
        Some("integer") => assert!(value.is_u64(), "{value}"),
        Some("string") => {
            let text = value.as_str().expect("a string");
            if schema["format"] == "date-time" {
                text.parse::<Timestamp>().unwrap();
            }
            let listed = schema["enum"].as_array();
            assert!(listed.is_none_or(|all| all.contains(value)), "{value}");
        }
        _ => assert_eq!(schema["const"], *value),
    }
}

#[test]
fn json_of_every_type_is_as_described() {
    let document = serde_json::from_str(OPENAPI).unwrap();
    for fill in [Fill(true), Fill(false)] {
        let pod = fill.pod();
        let check_as = |name: &str, value: Value| {
            let schema = json!({"$ref": format!("#/components/schemas/{name}")});
            check(&document, &schema, &value, fill);
        };
        check_as("PodStatus", json!(pod));
        check_as("HookStatus", json!(fill.hook()));
        let served = ServedPod {
            status: pod.clone(),
            pod: k8s_openapi::api::core::v1::Pod::default(),
        };
        check_as("ServedPod", json!(served));
        let list = PodList {
            sequence: 1,
            pods: vec![pod.clone()],
        };
        check_as("PodList", json!(list));
        let (namespace, name, uid) = ("n", "web", "u");
        let lines = [
            ChangeLine::Changed {
                sequence: 1,
                namespace,
                name,
                uid,
                pod: &pod,
            },
            ChangeLine::Removed {
                sequence: 2,
                namespace,
                name,
                uid,
            },
            ChangeLine::Bookmark { sequence: 3 },
        ];
        for line in lines {
            check_as("Change", json!(line));
        }
        let phases = &document["components"]["schemas"]["Phase"]["enum"];
        assert_eq!(*phases, json!(Phase::ALL));
    }
}
