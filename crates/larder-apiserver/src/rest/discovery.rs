//! What the server tells about itself: groups, resources, version, health, and as much OpenAPI as `kubectl` looks for.

use serde_json::{Value, json};

use crate::resource::{Kind, Resource};

/// The release whose rules this server follows.
const MINOR: &str = "36";

/// The document at a path, by its segments; `None` when there is none.
pub(super) fn document(segments: &[&str]) -> Option<Value> {
    Some(match segments {
        [] => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})
        }
        ["version"] => json!({
            "major": "1",
            "minor": MINOR,
            "gitVersion": format!("v1.{MINOR}.0+larder"),
            "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        }),
        ["api"] => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        }
        ["apis"] => {
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [authorization_group()]})
        }
        ["apis", "authorization.k8s.io"] => authorization_group(),
        ["api", "v1"] => core_resources(),
        ["apis", "authorization.k8s.io", "v1"] => json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": "authorization.k8s.io/v1",
            "resources": [{
                "name": "selfsubjectaccessreviews",
                "singularName": "selfsubjectaccessreview",
                "namespaced": false,
                "kind": "SelfSubjectAccessReview",
                "verbs": ["create"],
            }],
        }),
        ["openapi", "v3"] => {
            json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}})
        }
        ["openapi", "v3", "api", "v1"] => open_api(),
        _ => return None,
    })
}

fn authorization_group() -> Value {
    let version = json!({"groupVersion": "authorization.k8s.io/v1", "version": "v1"});
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "authorization.k8s.io",
        "versions": [version],
        "preferredVersion": version,
    })
}

fn core_resources() -> Value {
    let mut resources = Vec::new();
    for resource in Kind::ALL.map(Kind::resource) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.name,
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        resources.push(entry);
        for (subresource, kind, verbs) in resource.subresources() {
            resources.push(json!({
                "name": format!("{}/{subresource}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "verbs": verbs,
            }));
        }
    }
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
}

/// No schemas: bodies are checked here. `kubectl` only looks whether PATCH takes `fieldValidation`, and then leaves checking to us.
fn open_api() -> Value {
    let paths = Kind::ALL.map(Kind::resource).map(|resource| {
        let parameters = ["dryRun", "fieldValidation"]
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}));
        let gvk =
            json!({"group": resource.group, "version": resource.version, "kind": resource.name});
        let operation = json!({
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": gvk,
        });
        (object_path(resource), json!({"patch": operation}))
    });
    json!({
        "openapi": "3.0.0",
        "info": {"title": "larder", "version": format!("v1.{MINOR}.0")},
        "paths": paths.into_iter().collect::<serde_json::Map<_, _>>(),
        "components": {"schemas": {}},
    })
}

fn object_path(resource: &Resource) -> String {
    if resource.namespaced {
        format!(
            "/api/v1/namespaces/{{namespace}}/{}/{{name}}",
            resource.plural
        )
    } else {
        format!("/api/v1/{}/{{name}}", resource.plural)
    }
}
