//! The description of the socket's API in OpenAPI 3.1, which the agent serves as recorded. `UPDATE_EXPECT=1 cargo test`
//! writes it.
//!
//! The types of the answers describe themselves. Objects have no other fields than those described; a test of `v1`
//! compares both.

use std::{collections::BTreeSet, fs, mem};

use expect_test::expect_file;
use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::{Map, Value, json};

use crate::{
    local_api::{
        problem::Problem,
        v1::{ChangeLine, PodList},
    },
    status::ServedPod,
};

/// The document.
#[expect(clippy::too_many_lines, reason = "it is a table of pages")]
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
        "tags": [
            {"name": "pods", "description": "The pods of the node, and the state of their delivery."},
            {"name": "project", "description": "Projections of given manifests."},
            {"name": "agent", "description": "The agent itself: health, status, settings. Most pages are on `--listen`, too."},
        ],
        "paths": {
            "/v1/pods": {"get": {
                "operationId": "listPods",
                "tags": ["pods"],
                "summary": "The pods of the node, and how far their delivery is",
                "responses": {"200": answer("The pods, by namespace and name", "PodList")},
            }},
            "/v1/pods/{namespace}/{name}": read_pod("readPod", "One pod: its specification, the paths of its volumes and of its variables"),
            "/v1/changes": {"get": {
                "operationId": "followChanges",
                "tags": ["pods"],
                "summary": "A stream of changes: one JSON object per line, of each pod the last change",
                "parameters": [
                    query_number("since", "The stream begins after this sequence number, as found in a list or a line; without it, after the last change."),
                    // The connection ends then in any case.
                    query_number("timeoutSeconds", "The stream ends after this time, for clients that read a response as a whole. At most a day."),
                ],
                "responses": {
                    "200": {
                        "description": "Lines until the time is up, or the agent or the client ends the connection",
                        "content": {"application/x-ndjson": {"schema": reference("Change")}},
                    },
                    "400": failure("A parameter is not a number"),
                    "410": failure("Changes after this number are no longer known: list the pods again"),
                },
            }},
            "/v1/project": {"post": {
                "operationId": "project",
                "tags": ["project"],
                "summary": "What the containers of the given pods see. Neither pods nor objects of the agent are used",
                "requestBody": {
                    "required": true,
                    "description": "Manifests of pods, ConfigMaps, Secrets, Services and Nodes: a List, or several YAML documents. At most 16 MiB.",
                    "content": {
                        "application/json": {"schema": reference("Manifests")},
                        "application/yaml": {"schema": {"type": "string"}},
                    },
                },
                "responses": {
                    "200": answer("Variables and files, as printed by `larder render -o json`", "Projection"),
                    "404": failure("The program that runs the agent computes no projections"),
                    "408": failure("The body did not arrive in time"),
                    "413": failure("The body is too large"),
                    "422": failure("No manifest could be read"),
                },
            }},
            "/v1/openapi.json": {"get": {
                "operationId": "openapi",
                "tags": ["agent"],
                "summary": "This document",
                "responses": {"200": object("OpenAPI 3.1")},
            }},
            "/pods/{namespace}/{name}": read_pod("readPodUnversioned", "As `readPod`, for `larder exec` and `larder status`"),
            "/log-level": {
                "get": {
                    "operationId": "readLogLevel",
                    "tags": ["agent"],
                    "summary": "The log filter",
                    "responses": {"200": text("The filter"), "404": text("The program has no log filter")},
                },
                "put": {
                    "operationId": "setLogLevel",
                    "tags": ["agent"],
                    "summary": "Sets the log filter until the agent ends",
                    "requestBody": {
                        "required": true,
                        "description": "The filter, as in `debug` or `info,larder_agent=debug`. At most 4 KiB of UTF-8.",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    },
                    "responses": {
                        "204": {"description": "The filter is set"},
                        "400": text("Not a filter"),
                        "404": text("The program has no log filter"),
                        "413": text("The body is too large"),
                    },
                },
            },
            "/healthz": probe("healthz", "Whether the agent works", "A line for each problem"),
            "/readyz": probe("readyz", "Whether all sources have reported and every pod was tried", "Not yet"),
            "/metrics": page("metrics", "Metrics in the text format of OpenMetrics", {
                let text = json!({"schema": {"type": "string"}});
                json!({"description": "The metrics", "content": {"application/openmetrics-text": text}})
            }),
            "/status": page("status", "The document of `larder status -o json`", object("The status of agent, sources and pods")),
            "/statusz": page("statusz", "Start, version and paths", text("For people")),
            "/flagz": page("flagz", "The flags of the command", text("For people")),
            "/configz": page("configz", "The configuration in use, credentials masked", object("The configuration under `agentconfiguration`")),
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
    let _ = generator.subschema_for::<Problem>();
    let mut schemas = generator.take_definitions(true);
    split_changes(&mut schemas);
    schemas.extend(projection());
    for (name, schema) in &mut schemas {
        enumerate(schema);
        let schema = schema.as_object_mut().unwrap();
        schema.insert("title".to_owned(), name.as_str().into());
    }
    schemas
}

/// Gives each line of the stream of changes a name, and their union a discriminator.
fn split_changes(schemas: &mut Map<String, Value>) {
    let lines = mem::take(&mut schemas["Change"]["oneOf"]);
    let mut mapping = Map::new();
    for mut line in lines.as_array().unwrap().iter().cloned() {
        let name = line["properties"]["type"]["const"]
            .as_str()
            .unwrap()
            .to_owned();
        if line.get("description").is_none() {
            line["description"] = format!("The line of a pod with the type `{name}`.").into();
        }
        mapping.insert(name.clone(), format!("#/components/schemas/{name}").into());
        assert!(
            schemas.insert(name, line).is_none(),
            "two types with one name"
        );
    }
    let names: Vec<_> = mapping.keys().map(|name| reference(name)).collect();
    schemas["Change"]["oneOf"] = names.into();
    schemas["Change"]["discriminator"] = json!({"propertyName": "type", "mapping": mapping});
}

/// One of several texts is an `enum`, which generators know. What each means joins the description.
fn enumerate(schema: &mut Value) {
    let variants = schema["oneOf"].as_array().into_iter().flatten();
    let texts: Vec<_> = variants
        .filter_map(|variant| variant.get("const"))
        .cloned()
        .collect();
    if texts.is_empty() {
        return;
    }
    let variants = mem::take(&mut schema["oneOf"]);
    let meanings = variants.as_array().unwrap().iter().map(|variant| {
        let (text, meaning) = (&variant["const"], &variant["description"]);
        format!(
            "\n- `{}`: {}",
            text.as_str().unwrap(),
            meaning.as_str().unwrap()
        )
    });
    let about = schema["description"].as_str().unwrap();
    let about = format!("{about}\n{}", meanings.collect::<String>());
    *schema = json!({"type": "string", "description": about, "enum": texts});
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

/// The body and the answer of a projection, whose types are not in this crate.
fn projection() -> Map<String, Value> {
    let texts = |about: &str| json!({"type": "object", "description": about, "additionalProperties": {"type": "string"}});
    let names = json!({"type": "array", "items": {"type": "string"}});
    let by_name = |about: &str, of: &str| json!({"type": "object", "description": about, "additionalProperties": reference(of)});
    let known = |field: &str, values: Value| {
        json!({
            field: values,
            "error": {"type": "string", "description": "Why it has none of these."},
            "unknown": texts("By name: what is known only on a node. `*` is for files without names."),
            "warnings": {"type": "array", "items": {"type": "string"}, "description": "What deserves a look."},
        })
    };
    let mut container = known("env", texts("By name."));
    container["mounts"] = json!({
        "type": "array", "items": reference("ProjectedMount"), "description": "In the order of the pod.",
    });
    let hooks = json!({"type": "array", "items": closed("", &["name", "action"], json!({
        "name": {"type": "string"}, "action": {"type": "string", "description": "As in `signal:SIGHUP`."},
    }))});
    let schemas = json!({
        "Manifests": {
            "type": "object",
            "description": "Objects as in the API of Kubernetes: a `List` with `items`, or one object.",
            "required": ["apiVersion", "kind"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "items": {"type": "array", "items": {"type": "object", "additionalProperties": true}},
            },
            "additionalProperties": true,
        },
        "Projection": closed("What the containers of the pods see.", &["pods"], json!({
            "pods": {"type": "array", "items": reference("ProjectedPod")},
            "version": {"type": "integer", "description": "Of this format."},
        })),
        "ProjectedPod": closed(
            "One pod.",
            &["namespace", "name", "uid", "references", "containers", "volumes"],
            json!({
                "namespace": {"type": "string"},
                "name": {"type": "string"},
                "uid": {"type": "string"},
                "references": reference("ProjectedReferences"),
                "containers": by_name("By container.", "ProjectedContainer"),
                "volumes": by_name("By volume.", "ProjectedVolume"),
                "onChange": by_name("By annotation.", "ProjectedHooks"),
            }),
        ),
        "ProjectedReferences": closed("Names of the objects that the pod references.", &["configMaps", "secrets"], json!({
            "configMaps": names, "secrets": names,
        })),
        "ProjectedContainer": closed("The variables of a container in `env`, or why it does not start in `error`.", &[], container),
        "ProjectedMount": closed("A mount of a container.", &["path", "volume", "readOnly"], json!({
            "path": {"type": "string"},
            "volume": {"type": "string", "description": "`kube-api-access` is the automatic token volume."},
            "subPath": {"type": "string"},
            "readOnly": {"type": "boolean"},
        })),
        "ProjectedVolume": closed("The files of a volume in `files`, or why there are none in `error`.", &[], known("files", by_name("By path.", "ProjectedFile"))),
        "ProjectedFile": closed("A file of a volume.", &["mode", "data"], json!({
            "mode": {"type": "string", "description": "Four octal digits."},
            "owner": {"type": "integer", "minimum": 0, "description": "UID, if the volume names one."},
            "data": {"type": "string", "description": "Base64."},
        })),
        "ProjectedHooks": closed("The hooks of an annotation in `hooks`, or what is wrong with it in `error`.", &[], json!({
            "hooks": hooks, "error": {"type": "string"},
        })),
    });
    let Value::Object(schemas) = schemas else {
        unreachable!("written above")
    };
    schemas
}

/// An object without other fields.
fn closed(about: &str, required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "description": about, "required": required, "properties": properties,
        "additionalProperties": false,
    })
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn answer(about: &str, schema: &str) -> Value {
    json!({"description": about, "content": {"application/json": {"schema": reference(schema)}}})
}

/// A request without a result.
fn failure(about: &str) -> Value {
    answer(about, "Problem")
}

fn text(about: &str) -> Value {
    json!({"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}})
}

/// Any JSON object.
fn object(about: &str) -> Value {
    let schema = json!({"schema": {"type": "object", "additionalProperties": true}});
    json!({"description": about, "content": {"application/json": schema}})
}

fn page(operation: &str, summary: &str, ok: Value) -> Value {
    json!({"get": {"operationId": operation, "tags": ["agent"], "summary": summary, "responses": {"200": ok}}})
}

fn probe(operation: &str, summary: &str, failed: &str) -> Value {
    let mut page = page(operation, summary, text("ok"));
    page["get"]["responses"]["503"] = text(failed);
    page
}

fn read_pod(operation: &str, summary: &str) -> Value {
    json!({
        "parameters": [path_parameter("namespace"), path_parameter("name")],
        "get": {
            "operationId": operation,
            "tags": ["pods"],
            "summary": summary,
            "responses": {
                "200": answer("The pod", "ServedPod"),
                "400": failure("The path is not UTF-8"),
                "404": failure("The agent serves no such pod"),
                "503": failure("The agent keeps the volumes of the pod, whose specification is in a manifest that cannot be read"),
            },
        },
    })
}

fn query_number(name: &str, about: &str) -> Value {
    json!({
        "name": name, "in": "query", "required": false, "description": about,
        "schema": {"type": "integer", "minimum": 0},
    })
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
}

#[test]
fn recorded_document_describes_the_types() {
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    expect_file!["../openapi.json"].assert_eq(&text);
}

/// A client that is generated from the document takes a response of the type of the result for the result.
#[test]
fn no_failure_of_a_request_for_json_has_the_type_of_its_result() {
    let document = document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let of_status = |status: &str| methods["get"]["responses"][status]["content"].clone();
        let is_json = of_status("200").get("application/json").is_some();
        for status in ["400", "404", "410", "503"].map(of_status) {
            if is_json && !status.is_null() {
                assert_eq!(
                    status["application/json"]["schema"],
                    reference("Problem"),
                    "{path}"
                );
            }
        }
    }
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

/// The pages of the table in `docs/api.md` and those of the document are the same.
#[test]
fn every_documented_path_is_described() {
    let document = document();
    let described: BTreeSet<_> = document["paths"].as_object().unwrap().keys().collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
    let page = fs::read_to_string(page).unwrap();
    let (page, _) = page.split_once("\n## Values\n").unwrap();
    let cells = page
        .lines()
        .filter_map(|row| row.strip_prefix("| ")?.split(" |").next());
    let words = cells.flat_map(|cell| cell.split([' ', '`']));
    let documented = words.filter(|word| word.starts_with('/'));
    let mut found = BTreeSet::new();
    for path in documented {
        let path = path.split('?').next().unwrap();
        let path = path.replace("NAMESPACE/NAME", "{namespace}/{name}");
        assert!(described.contains(&path), "{path}");
        found.insert(path);
    }
    let missing: Vec<_> = described
        .iter()
        .filter(|path| !found.contains(path.as_str()))
        .collect();
    assert!(missing.is_empty(), "not in docs/api.md: {missing:?}");
}

#[test]
fn every_operation_and_schema_has_what_generators_need() {
    let document = document();
    let mut operations = BTreeSet::new();
    let operation = |path: &Value| path.as_object().unwrap().clone();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, described) in operation(methods) {
            if method == "parameters" {
                continue;
            }
            let id = described["operationId"].as_str().unwrap().to_owned();
            assert!(operations.insert(id), "{path}");
            assert!(
                described["tags"][0].is_string() && described["summary"].is_string(),
                "{path}"
            );
            let responses = described["responses"].as_object().unwrap().values();
            for content in responses
                .chain([&described["requestBody"]])
                .filter_map(|body| body["content"].as_object())
            {
                assert!(
                    content.values().all(|media| media["schema"].is_object()),
                    "{path}"
                );
            }
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(
            schema["title"].is_string() && schema["description"].is_string(),
            "{name}"
        );
    }
}
