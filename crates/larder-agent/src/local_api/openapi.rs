//! The description of the socket's API in OpenAPI 3.1. `docs/openapi.json` is this document; the socket serves it, too.
//!
//! Objects of the agent have no other fields than those described. A test of `v1` compares both.

use serde_json::{Map, Value, json};

/// The document.
pub fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "larder agent",
            "version": "v1",
            "description": "The API on the socket agent.sock in the agent's root directory. It answers root and the agent's own user.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost", "description": "HTTP/1.1 over the Unix socket; the host name has no meaning."}],
        "paths": {
            "/v1/pods": {"get": {
                "operationId": "listPods",
                "summary": "The pods of the node, and how far their delivery is",
                "responses": {"200": answer("The pods, by namespace and name", "PodList")},
            }},
            "/v1/pods/{namespace}/{name}": {
                "parameters": [path_parameter("namespace"), path_parameter("name")],
                "get": {
                    "operationId": "readPod",
                    "summary": "One pod: its specification, the paths of its volumes and of its variables",
                    "responses": {
                        "200": answer("The pod", "ServedPod"),
                        "404": text("The agent serves no such pod"),
                    },
                },
            },
            "/v1/changes": {"get": {
                "operationId": "followChanges",
                "summary": "A stream of changes: one JSON object per line, of each pod the last change",
                "parameters": [{
                    "name": "since", "in": "query", "required": false,
                    "description": "The stream begins after this sequence number, as found in a list or a line; without it, after the last change.",
                    "schema": {"type": "integer", "minimum": 0},
                }],
                "responses": {
                    "200": {
                        "description": "Lines until the agent or the client ends the connection",
                        "content": {"application/x-ndjson": {"schema": reference("Change")}},
                    },
                    "410": text("Changes after this number are no longer known: list the pods again"),
                },
            }},
            "/v1/project": {"post": {
                "operationId": "project",
                "summary": "What the containers of the given pods see. Neither pods nor objects of the agent are used",
                "requestBody": {
                    "required": true,
                    "description": "Manifests of pods, ConfigMaps, Secrets, Services and Nodes: a List, or several YAML documents. At most 16 MiB.",
                    "content": {"application/json": {}, "application/yaml": {}},
                },
                "responses": {
                    "200": answer("Variables and files, as printed by `larder render -o json`", "Projection"),
                    "413": text("The body is too large"),
                    "422": text("No manifest could be read"),
                },
            }},
            "/v1/openapi.json": {"get": {
                "operationId": "openapi",
                "summary": "This document",
                "responses": {"200": {"description": "OpenAPI 3.1", "content": {"application/json": {}}}},
            }},
        },
        "components": {"schemas": schemas()},
    })
}

fn schemas() -> Value {
    json!({
        "PodList": object(&[
            ("sequence", true, integer("Changes after this number may be missing in the list: follow them from here.")),
            ("pods", true, list(reference("PodStatus"))),
        ]),
        "ServedPod": object(&[
            ("status", true, reference("PodStatus")),
            ("pod", true, json!({"type": "object", "description": "The Pod, as in the API of Kubernetes."})),
        ]),
        "PodStatus": object(&with_delivery(&[
            ("namespace", true, string("")),
            ("name", true, string("")),
            ("uid", true, string("UID under which its directory is found.")),
            ("source", true, string("`api`, `manifests`, `file` or `http`.")),
            ("mirror", false, string("UID of the mirror pod of a static pod.")),
            ("deletionTimestamp", false, time("The pod has been deleted and is served until it ends.")),
            ("path", true, string("Its directory.")),
            ("volumes", true, list(reference("VolumeStatus"))),
            ("containers", true, list(reference("ContainerStatus"))),
            ("onChange", false, list(reference("HookStatus"))),
        ])),
        "HookStatus": object(&[
            ("name", true, string("")),
            ("action", true, string("What it does, as in `signal:SIGHUP`.")),
            ("place", true, string("The annotation, or `configuration`.")),
            ("state", true, string("`Idle`, `Waiting`, `Running`, `Retrying`, `Failing` or `Invalid`.")),
            ("since", false, time("Since when it is so.")),
            ("reason", false, string("Why the last attempt failed, or what the hook waits for.")),
            ("output", false, string("The end of what the command of the last failed attempt printed, if the hook sets `logOutput`.")),
            ("attempts", true, integer("Failed attempts in a row.")),
            ("lastSuccess", false, time("When a round last succeeded.")),
        ]),
        "VolumeStatus": object(&with_delivery(&[
            ("name", true, string("")),
            ("type", true, string("`configMap`, `secret`, `projected` or `downwardAPI`.")),
            ("path", true, string("Its directory. `..data` in it is a link to the current set of files.")),
            ("lastSwap", false, time("When its content last changed under this agent.")),
            ("files", true, integer("Number of its files.")),
            ("staleAsOf", false, time("Its content is from a checkpoint of that time, and may be out of date.")),
            ("verifiedInMs", false, integer("Beside a kubelet: milliseconds from its last change until its content was verified.")),
        ])),
        "ContainerStatus": object(&with_delivery(&[
            ("name", true, string("")),
            ("path", true, string("A file of mode 0600 with the variables of the container: one JSON object with a string for each name. Empty beside a kubelet.")),
            ("lastSwap", false, time("When its variables last changed under this agent.")),
            ("staleAsOf", false, time("Its variables are from a checkpoint of that time, and may be out of date.")),
            ("outdated", false, list(reference("OutdatedStatus"))),
        ])),
        "OutdatedStatus": object(&[
            ("kind", true, string("What the container sees only after a restart: `env` or `subPath`.")),
            ("name", true, string("Name of the variable, or path of the mount.")),
            ("object", true, string("The object that has changed, as in `ConfigMap app`.")),
            ("since", true, time("Since when it is out of date.")),
        ]),
        "Phase": {
            "type": "string",
            "enum": ["Delivered", "Ended", "Excluded", "Held", "Waiting", "Failing", "Removing"],
            "description": "In order of the attention needed; the phase of a pod is the last one of its parts.",
        },
        "Change": {"oneOf": [
            object(&[
                ("type", true, json!({"const": "Changed"})),
                ("sequence", true, integer("")),
                ("namespace", true, string("")),
                ("name", true, string("")),
                ("uid", true, string("")),
                ("pod", true, reference("PodStatus")),
            ]),
            object(&[
                ("type", true, json!({"const": "Removed"})),
                ("sequence", true, integer("")),
                ("namespace", true, string("")),
                ("name", true, string("")),
                ("uid", true, string("")),
            ]),
            object(&[
                ("type", true, json!({"const": "Bookmark"})),
                ("sequence", true, integer("Nothing else has changed up to this number.")),
            ]),
        ]},
        "Projection": object(&[("pods", true, list(json!({
            "type": "object",
            "required": ["namespace", "name", "uid", "references", "containers", "volumes"],
            "properties": {
                "containers": {
                    "type": "object",
                    "description": "By container: its variables, or why it does not start.",
                    "additionalProperties": either("env", json!({"type": "object", "additionalProperties": {"type": "string"}})),
                },
                "volumes": {
                    "type": "object",
                    "description": "By volume: its files by path, or why there are none.",
                    "additionalProperties": either("files", json!({"type": "object", "additionalProperties": object(&[
                        ("mode", true, string("Four octal digits.")),
                        ("data", true, string("Base64.")),
                    ])})),
                },
            },
        })))]),
    })
}

type Property = (&'static str, bool, Value);

/// An object with these properties and no others; `true` means required.
fn object(properties: &[Property]) -> Value {
    let required = properties.iter().filter(|(_, required, _)| *required);
    let required: Vec<_> = required.map(|(name, ..)| *name).collect();
    let properties = properties.iter();
    let properties: Map<_, _> = properties
        .map(|(name, _, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": false,
    })
}

fn with_delivery(properties: &[Property]) -> Vec<Property> {
    let delivery = [
        ("phase", true, reference("Phase")),
        ("since", true, time("Since when it is so.")),
        (
            "reason",
            false,
            string("What it waits for, or what went wrong."),
        ),
    ];
    properties.iter().cloned().chain(delivery).collect()
}

/// An object with `field`, or with `error`.
fn either(field: &'static str, schema: Value) -> Value {
    json!({"oneOf": [object(&[(field, true, schema)]), object(&[("error", true, string(""))])]})
}

fn described(mut schema: Value, about: &str) -> Value {
    if !about.is_empty() {
        schema["description"] = about.into();
    }
    schema
}

fn string(about: &str) -> Value {
    described(json!({"type": "string"}), about)
}

fn time(about: &str) -> Value {
    described(json!({"type": "string", "format": "date-time"}), about)
}

fn integer(about: &str) -> Value {
    described(json!({"type": "integer", "minimum": 0}), about)
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn answer(about: &str, schema: &str) -> Value {
    json!({"description": about, "content": {"application/json": {"schema": reference(schema)}}})
}

fn text(about: &str) -> Value {
    json!({"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}})
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    #[test]
    fn document_is_published_as_it_is() {
        let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        expect_file!["../../../../docs/openapi.json"].assert_eq(&text);
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let text = document.to_string();
        let names = text.split("#/components/schemas/").skip(1);
        for name in names.map(|rest| rest.split('"').next().unwrap()) {
            assert!(
                document["components"]["schemas"].get(name).is_some(),
                "{name}"
            );
        }
    }
}
