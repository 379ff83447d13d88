//! Discovery: groups, resources, version, health, and as much OpenAPI as `kubectl` looks for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use serde_json::{Value, json};

use super::reviews::{AUTHENTICATION, AUTHORIZATION, REVIEWS};
use crate::{
    request::Verb,
    resource::{RESOURCES, Resource, group_version},
    versions::{CERTIFICATES, CertificatesVersions, STORED},
};

/// The release whose rules this server follows.
const MINOR: &str = "36";

/// Whether a path leads into a version of a group that this server has.
pub(super) fn has_version(segments: &[&str], versions: CertificatesVersions) -> bool {
    match segments {
        ["api", "v1", ..] => true,
        ["apis", group, version, ..] => has_group_version(group, version, versions),
        _ => false,
    }
}

/// The document at a path, by its segments; `None` when there is none.
pub(super) fn document(segments: &[&str], served: CertificatesVersions) -> Option<Value> {
    Some(match segments {
        [] => json!({"paths": [
            "/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version",
        ]}),
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
            let groups = GROUPS.map(|group| api_group(group, versions(group, served)));
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["apis", group] => {
            let group = GROUPS.into_iter().find(|known| known == group)?;
            api_group(group, versions(group, served))
        }
        ["api", "v1"] => resources("", "v1"),
        ["apis", group, version] if has_group_version(group, version, served) => {
            resources(group, version)
        }
        ["openapi", "v3"] => {
            let stored = versions(CERTIFICATES, served)
                .iter()
                .map(|version| format!("apis/{CERTIFICATES}/{version}"));
            let paths = std::iter::once("api/v1".to_owned())
                .chain(stored)
                .map(|path| {
                    let url = json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
                    (path, url)
                });
            json!({"paths": paths.collect::<serde_json::Map<_, _>>()})
        }
        ["openapi", "v3", "api", "v1"] => open_api("", "v1"),
        ["openapi", "v3", "apis", group, version] if has_group_version(group, version, served) => {
            open_api(group, version)
        }
        _ => return None,
    })
}

/// The groups besides the core group.
const GROUPS: [&str; 5] = [
    AUTHENTICATION,
    AUTHORIZATION,
    CERTIFICATES,
    "coordination.k8s.io",
    "storage.k8s.io",
];

/// The subresources that are posted to: their resource, name and kind, and the kind's group if it is not the resource's.
const SUBRESOURCES: [(&str, &str, &str, &str); 3] = [
    ("pods", "binding", "Binding", ""),
    ("pods", "eviction", "Eviction", "policy"),
    ("serviceaccounts", "token", "TokenRequest", AUTHENTICATION),
];

/// The versions of `group`, the preferred one first.
fn versions(group: &str, served: CertificatesVersions) -> &'static [&'static str] {
    match group {
        CERTIFICATES => served.names(),
        _ => &["v1"],
    }
}

fn has_group_version(group: &str, version: &str, served: CertificatesVersions) -> bool {
    GROUPS.contains(&group) && versions(group, served).contains(&version)
}

fn api_group(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<_> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "preferredVersion": versions[0],
        "versions": versions,
    })
}

fn resources(group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for review in REVIEWS.iter().filter(|review| review.group == group) {
        resources.push(APIResource {
            name: review.plural(),
            singular_name: review.kind.to_lowercase(),
            kind: review.kind.to_owned(),
            verbs: words(["create"]),
            ..APIResource::default()
        });
    }
    for resource in of_group(group, version) {
        let mut verbs = words(Verb::NAMES.map(|(_, name)| name));
        verbs.sort_unstable();
        let short_names = resource.short_names;
        resources.push(APIResource {
            name: resource.plural.to_owned(),
            singular_name: resource.singular(),
            namespaced: resource.namespaced,
            kind: resource.name.to_owned(),
            verbs,
            short_names: (!short_names.is_empty()).then(|| words(short_names.iter().copied())),
            ..APIResource::default()
        });
        resources.extend(subresources(resource));
    }
    let resources = APIResourceList {
        group_version: group_version(group, version),
        resources,
    };
    json!(resources)
}

fn subresources(resource: &Resource) -> impl Iterator<Item = APIResource> {
    let Resource {
        plural, namespaced, ..
    } = *resource;
    let status = resource.has_status.then(|| APIResource {
        name: format!("{plural}/status"),
        namespaced,
        kind: resource.name.to_owned(),
        verbs: words(["get", "patch", "update"]),
        ..APIResource::default()
    });
    let created = SUBRESOURCES
        .iter()
        .filter(move |(of, ..)| *of == plural)
        .map(move |(_, name, kind, group)| {
            let is_foreign = !group.is_empty();
            APIResource {
                name: format!("{plural}/{name}"),
                namespaced,
                kind: (*kind).to_owned(),
                verbs: words(["create"]),
                group: is_foreign.then(|| (*group).to_owned()),
                version: is_foreign.then(|| "v1".to_owned()),
                ..APIResource::default()
            }
        });
    status.into_iter().chain(created)
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}

fn of_group(group: &str, version: &str) -> impl Iterator<Item = &'static Resource> {
    let stored = if group == CERTIFICATES {
        STORED
    } else {
        version
    };
    let fits = move |resource: &&Resource| (resource.group, resource.version) == (group, stored);
    RESOURCES.iter().filter(fits)
}

/// No schemas: bodies are checked here. `kubectl` only looks whether PATCH takes `fieldValidation`, and then leaves
/// checking to us.
fn open_api(group: &str, version: &str) -> Value {
    let paths = of_group(group, version).map(|resource| {
        let parameters = ["dryRun", "fieldValidation"]
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}));
        let gvk = json!({"group": resource.group, "version": version, "kind": resource.name});
        let operation = json!({
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": gvk,
        });
        (object_path(resource, version), json!({"patch": operation}))
    });
    json!({
        "openapi": "3.0.0",
        "info": {"title": "larder", "version": format!("v1.{MINOR}.0")},
        "paths": paths.collect::<serde_json::Map<_, _>>(),
        "components": {"schemas": {}},
    })
}

fn object_path(resource: &Resource, version: &str) -> String {
    let root = match resource.group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let plural = resource.plural;
    if resource.namespaced {
        format!("{root}/namespaces/{{namespace}}/{plural}/{{name}}")
    } else {
        format!("{root}/{plural}/{{name}}")
    }
}
