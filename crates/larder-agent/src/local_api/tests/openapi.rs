//! The description of the socket's API in OpenAPI 3.1, which the agent serves as recorded. `UPDATE_EXPECT=1 cargo test`
//! writes it.
//!
//! The types of the answers describe themselves. Objects have no other fields than those described; a test of `v1`
//! compares both.

use expect_test::expect_file;
use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::{Map, Value, json};

use crate::{
    local_api::v1::{ChangeLine, PodList},
    status::ServedPod,
};

/// The document.
fn document() -> Value {
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

/// The types of the answers, and those that they have.
fn schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings =
        settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let settings = settings.with_transform(RecursiveTransform(plain));
    let mut generator = settings.into_generator();
    let _ = generator.subschema_for::<PodList>();
    let _ = generator.subschema_for::<ServedPod>();
    let _ = generator.subschema_for::<ChangeLine<'_>>();
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Projection".to_owned(), projection());
    schemas
}

/// What is omitted is never null, there are no fields but those described, and a constant needs no type.
fn plain(schema: &mut Schema) {
    if let Some([kind, null]) = schema
        .get("type")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        && null == "null"
    {
        let kind = kind.clone();
        schema.insert("type".to_owned(), kind);
    }
    if schema.get("const").is_some() {
        schema.remove("type");
    }
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    if schema.get("type").is_some_and(|kind| kind == "integer") {
        schema.remove("format");
    }
}

/// The answer of `larder render`, whose types are not in this crate.
fn projection() -> Value {
    let file = json!({
        "type": "object",
        "required": ["mode", "data"],
        "properties": {
            "mode": {"type": "string", "description": "Four octal digits."},
            "data": {"type": "string", "description": "Base64."},
        },
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "required": ["pods"],
        "properties": {"pods": {"type": "array", "items": {
            "type": "object",
            "required": ["namespace", "name", "uid", "references", "containers", "volumes"],
            "properties": {
                "containers": {
                    "type": "object",
                    "description": "By container: its variables, or why it does not start.",
                    "additionalProperties": either("env", json!({"type": "string"})),
                },
                "volumes": {
                    "type": "object",
                    "description": "By volume: its files by path, or why there are none.",
                    "additionalProperties": either("files", file),
                },
            },
        }}},
        "additionalProperties": false,
    })
}

/// An object with values in `field`, or with an error.
fn either(field: &str, value: Value) -> Value {
    let variant = |field: &str, schema: Value| {
        json!({
            "type": "object", "required": [field], "properties": {field: schema}, "additionalProperties": false,
        })
    };
    let values = json!({"type": "object", "additionalProperties": value});
    json!({"oneOf": [variant(field, values), variant("error", json!({"type": "string"}))]})
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

#[test]
fn recorded_document_describes_the_types() {
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    expect_file!["../openapi.json"].assert_eq(&text);
}

#[test]
fn every_reference_leads_to_a_schema() {
    let document = document();
    let text = document.to_string();
    let names = text.split("#/components/schemas/").skip(1);
    for name in names.map(|rest| rest.split('"').next().unwrap()) {
        let schema = document["components"]["schemas"].get(name);
        assert!(schema.is_some(), "{name}");
    }
}
