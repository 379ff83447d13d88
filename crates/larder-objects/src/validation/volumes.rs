//! Volumes of a pod.

use std::{collections::HashSet, ops::RangeInclusive};

use k8s_openapi::{
    api::core::v1::{
        ClusterTrustBundleProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource,
        HostPathVolumeSource, KeyToPath, PodCertificateProjection, ServiceAccountTokenProjection,
        Volume, VolumeProjection,
    },
    apimachinery::pkg::api::resource,
};
use serde_json::{Map, Value};

use super::{
    certificates::{SIGNER, is_signer_name},
    environment::{check_field_ref, check_resource_ref},
    field::Field,
    volume_types::{TYPES, check_required},
};
use crate::{Quantity, SourceKind, volume_sources};

/// Fields of the pod that a file may show.
const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// What is wrong with a token that lives for so many `seconds`.
pub fn token_secs_problem(seconds: i64) -> Option<&'static str> {
    match seconds {
        ..600 => Some("may not specify a duration less than 10 minutes"),
        600..=0x1_0000_0000 => None,
        _ => Some("may not specify a duration larger than 2^32 seconds"),
    }
}

/// Bounds of `podCertificate.maxExpirationSeconds`: an hour, and 91 days, or a day where Kubernetes itself signs.
pub fn certificate_secs(signer_name: &str) -> RangeInclusive<i32> {
    let kubernetes = signer_name.starts_with("kubernetes.io/");
    3600..=if kubernetes { 86_400 } else { 91 * 86_400 }
}

pub(super) fn check_volume(field: &Field<'_>, volume: &Volume) {
    let name = field.child("name");
    name.check_given(&volume.name, Field::check_label);
    let sources = volume_sources(volume);
    let mut types = TYPES
        .iter()
        .filter_map(|known| Some((known, sources.get(known.field)?.as_object()?)));
    match types.next() {
        None => field.required("must specify a volume type"),
        Some((known, fields)) => {
            let field = field.child(known.field);
            check_required(&field, known.required, fields);
            check_delivered(&field, known.field, fields, volume);
        }
    }
    for (known, _) in types {
        let rule = "may not specify more than 1 volume type";
        field.child(known.field).forbidden(rule);
    }
}

/// Checks the part `field` of a volume of a type that an agent or `larder exec` delivers; nothing of another.
fn check_delivered(
    field: &Field<'_>,
    volume_type: &str,
    fields: &Map<String, Value>,
    volume: &Volume,
) {
    // Only these types have the two.
    let number = |name: &str| fields.get(name).and_then(Value::as_i64);
    check_mode(field, "defaultMode", number("defaultMode"));
    field.child("defaultUser").check_id(number("defaultUser"));
    match volume_type {
        "emptyDir" => volume
            .empty_dir
            .iter()
            .for_each(|source| check_empty_dir(field, source)),
        "hostPath" => volume
            .host_path
            .iter()
            .for_each(|source| check_host_path(field, source)),
        "configMap" => {
            let items = volume.config_map.iter().flat_map(|map| &map.items);
            check_items(field, items.flatten());
        }
        "secret" => {
            let items = volume.secret.iter().flat_map(|secret| &secret.items);
            check_items(field, items.flatten());
        }
        "downwardAPI" => {
            let items = volume.downward_api.iter().flat_map(|source| &source.items);
            check_downward_files(field, items.flatten());
        }
        "projected" => {
            let sources = volume.projected.iter().flat_map(|held| &held.sources);
            let mut paths = HashSet::new();
            for (index, source) in sources.flatten().enumerate() {
                check_projection(&field.child("sources").index(index), source, &mut paths);
            }
        }
        _ => {}
    }
}

fn check_empty_dir(field: &Field<'_>, source: &EmptyDirVolumeSource) {
    let mode = source.mode.map_or(0, i64::from);
    field.child("mode").check_range(mode, 0..=0o1777);
    let Some(resource::Quantity(text)) = &source.size_limit else {
        return;
    };
    let field = field.child("sizeLimit");
    match text.parse::<Quantity>() {
        Err(error) => field.invalid(text, &error.to_string()),
        Ok(limit) if limit < Quantity::default() => {
            field.forbidden("SizeLimit field must be a valid resource quantity");
        }
        Ok(_) => {}
    }
}

fn check_host_path(field: &Field<'_>, source: &HostPathVolumeSource) {
    if source.path.is_empty() {
        return;
    }
    field.child("path").check_inside(&source.path);
    let types = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    field
        .child("type")
        .check_choice(source.type_.as_deref(), &types);
}

fn check_mode(field: &Field<'_>, name: &'static str, mode: Option<i64>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let rule = "must be a number between 0 and 0777 (octal), both inclusive";
        field.child(name).invalid(mode, rule);
    }
}

/// Checks `items`. Returns their paths.
fn check_items<'e, 'a>(
    field: &Field<'e>,
    items: impl Iterator<Item = &'a KeyToPath>,
) -> SourcePaths<'e, 'a> {
    let mut paths = Vec::new();
    for (index, item) in items.enumerate() {
        let field = field.child("items").index(index);
        field.child("key").check_not_empty(&item.key);
        check_path(&field.child("path"), &item.path);
        check_mode(&field, "mode", item.mode.map(i64::from));
        field.child("user").check_id(item.user);
        paths.push((field.child("path"), &*item.path));
    }
    paths
}

fn check_downward_files<'e, 'a>(
    field: &Field<'e>,
    items: impl Iterator<Item = &'a DownwardAPIVolumeFile>,
) -> SourcePaths<'e, 'a> {
    let mut paths = Vec::new();
    for (index, item) in items.enumerate() {
        let field = field.child("items").index(index);
        check_path(&field.child("path"), &item.path);
        match (&item.field_ref, &item.resource_field_ref) {
            (None, None) => {
                field.required("one of fieldRef and resourceFieldRef is required");
            }
            (Some(_), Some(_)) => {
                let rule = "fieldRef and resourceFieldRef can not be specified simultaneously";
                field.invalid("resource", rule);
            }
            (Some(reference), None) => {
                check_field_ref(&field.child("fieldRef"), reference, &VOLUME_FIELDS);
            }
            (None, Some(reference)) => {
                let field = field.child("resourceFieldRef");
                // A volume has no container of its own to fall back to.
                let container = reference.container_name.as_deref().unwrap_or("");
                field.child("containerName").check_not_empty(container);
                check_resource_ref(&field, reference);
            }
        }
        check_mode(&field, "mode", item.mode.map(i64::from));
        field.child("user").check_id(item.user);
        paths.push((field.child("path"), &*item.path));
    }
    paths
}

/// The explicit paths of a source, each with its field.
type SourcePaths<'e, 'a> = Vec<(Field<'e>, &'a str)>;

/// Checks one source. `paths` holds the explicit paths of all sources so far, compared as they are written.
fn check_projection<'a>(
    field: &Field<'_>,
    source: &'a VolumeProjection,
    paths: &mut HashSet<&'a str>,
) {
    let checked: Vec<SourcePaths<'_, 'a>> = SourceKind::of_entry(source)
        .map(|source| {
            let field = field.child(source.field());
            match source {
                SourceKind::Secret(secret) => {
                    check_object(&field, &secret.name, secret.items.iter().flatten())
                }
                SourceKind::ConfigMap(map) => {
                    check_object(&field, &map.name, map.items.iter().flatten())
                }
                SourceKind::DownwardApi(downward) => {
                    check_downward_files(&field, downward.items.iter().flatten())
                }
                SourceKind::Token(token) => {
                    check_token(&field, token);
                    // Its path does not take part in the search for conflicts.
                    Vec::new()
                }
                SourceKind::TrustBundle(bundle) => check_trust_bundle(&field, bundle),
                SourceKind::PodCertificate(certificate) => check_certificate(&field, certificate),
            }
        })
        .collect();
    for (field, path) in checked.iter().flatten() {
        if !path.is_empty() && !paths.insert(path) {
            field.invalid(path, "conflicting duplicate paths");
        }
    }
    if checked.len() > 1 {
        field.forbidden("may not specify more than 1 volume type per source");
    }
}

/// Checks a ConfigMap or Secret of a projection.
fn check_object<'e, 'a>(
    field: &Field<'e>,
    name: &str,
    items: impl Iterator<Item = &'a KeyToPath>,
) -> SourcePaths<'e, 'a> {
    field.child("name").check_not_empty(name);
    check_items(field, items)
}

fn check_token(field: &Field<'_>, token: &ServiceAccountTokenProjection) {
    if let Some(seconds) = token.expiration_seconds
        && let Some(rule) = token_secs_problem(seconds)
    {
        field.child("expirationSeconds").invalid(seconds, rule);
    }
    check_path(&field.child("path"), &token.path);
    field.child("user").check_id(token.user);
}

fn check_certificate<'e, 'a>(
    field: &Field<'e>,
    wanted: &'a PodCertificateProjection,
) -> SourcePaths<'e, 'a> {
    check_certificate_request(field, wanted);
    field.child("user").check_id(wanted.user);
    let files = [
        ("credentialBundlePath", &wanted.credential_bundle_path),
        ("keyPath", &wanted.key_path),
        ("certificateChainPath", &wanted.certificate_chain_path),
    ];
    let paths: Vec<_> = files
        .into_iter()
        .filter_map(|(name, path)| Some((field.child(name), path.as_deref()?)))
        .filter(|(_, path)| !path.is_empty())
        .collect();
    if paths.is_empty() {
        field.required(
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
        );
    }
    for (field, path) in &paths {
        check_path(field, path);
    }
    paths
}

/// Checks the fields of a certificate's request, but not its paths.
fn check_certificate_request(field: &Field<'_>, wanted: &PodCertificateProjection) {
    if !is_signer_name(&wanted.signer_name) {
        field
            .child("signerName")
            .invalid(&*wanted.signer_name, SIGNER);
    }
    let key_types = [
        "RSA3072",
        "RSA4096",
        "ECDSAP256",
        "ECDSAP384",
        "ECDSAP521",
        "ED25519",
    ];
    field
        .child("keyType")
        .check_choice(Some(&wanted.key_type), &key_types);
    let (shortest, longest) = certificate_secs(&wanted.signer_name).into_inner();
    if let Some(seconds) = wanted.max_expiration_seconds {
        let bound = match seconds {
            _ if seconds < shortest => format!(">= {shortest}"),
            _ if seconds > longest => format!("<= {longest}"),
            _ => return,
        };
        let rule = format!("if provided, maxExpirationSeconds must be {bound}");
        field.child("maxExpirationSeconds").invalid(seconds, &rule);
    }
}

fn check_trust_bundle<'e, 'a>(
    field: &Field<'e>,
    bundle: &'a ClusterTrustBundleProjection,
) -> SourcePaths<'e, 'a> {
    let set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    match (set(&bundle.name), set(&bundle.signer_name)) {
        (true, true) => field.invalid("", "only one of name and signerName may be used"),
        (false, false) => field.required("either name or signerName must be specified"),
        (true, false) if bundle.label_selector.is_some() => {
            let rule = "only signerName may be used together with labelSelector";
            field.child("labelSelector").invalid("", rule);
        }
        _ => {}
    }
    check_path(&field.child("path"), &bundle.path);
    field.child("user").check_id(bundle.user);
    vec![(field.child("path"), &bundle.path)]
}

/// A path of a file that the node writes: inside the volume, and none of the writer's own names.
fn check_path(field: &Field<'_>, path: &str) {
    if path.is_empty() {
        return field.required("");
    }
    field.check_relative(path);
    if path.starts_with("..") && !path.starts_with("../") {
        field.invalid(path, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{from_value, json};

    use super::*;
    use crate::validation::FieldErrors;

    #[track_caller]
    fn check(volumes: Value, expected: Expect) {
        let volumes: Vec<Volume> = from_value(volumes).unwrap();
        let errors = FieldErrors::found(|object| {
            for (index, volume) in volumes.iter().enumerate() {
                check_volume(&object.at("v").index(index), volume);
            }
        });
        expected.assert_eq(&errors.lines());
    }

    #[test]
    fn a_volume_has_one_type() {
        check(
            json!([{"name": "a"}, {"name": "b", "emptyDir": {}, "secret": {"secretName": "s"}}, {"name": "", "nfs": {}}]),
            expect![[r#"
                v[0]: Required value: must specify a volume type
                v[1].secret: Forbidden: may not specify more than 1 volume type
                v[2].name: Required value
                v[2].nfs.server: Required value
                v[2].nfs.path: Required value
            "#]],
        );
    }

    #[test]
    fn volumes_of_the_host_are_of_their_range() {
        check(
            json!([
                {"name": "a", "hostPath": {"path": "/a/../b", "type": "Bad"}},
                {"name": "b", "hostPath": {"path": ""}},
                {"name": "c", "emptyDir": {"sizeLimit": "-1"}},
                {"name": "d", "emptyDir": {"sizeLimit": "1 Gi"}},
            ]),
            expect![[r#"
                v[0].hostPath.path: Invalid value: "/a/../b": must not contain '..'
                v[0].hostPath.type: Unsupported value: "Bad": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"
                v[1].hostPath.path: Required value
                v[2].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity
                v[3].emptyDir.sizeLimit: Invalid value: "1 Gi": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
            "#]],
        );
    }

    #[test]
    fn hostile_item_paths_are_refused() {
        // projection 14.2, 29
        let item = |key: &str, path: &str| json!({"key": key, "path": path});
        check(
            json!([{"name": "a", "configMap": {"name": "m", "items": [
                item("k", "a/..b"), item("k", "/etc/x"), item("k", "../x"), item("k", "a/../../x"), item("k", "..x"), item("", ""),
            ]}}]),
            expect![[r#"
                v[0].configMap.items[1].path: Invalid value: "/etc/x": must be a relative path
                v[0].configMap.items[2].path: Invalid value: "../x": must not contain '..'
                v[0].configMap.items[3].path: Invalid value: "a/../../x": must not contain '..'
                v[0].configMap.items[4].path: Invalid value: "..x": must not start with '..'
                v[0].configMap.items[5].key: Required value
                v[0].configMap.items[5].path: Required value
            "#]],
        );
    }

    #[test]
    fn an_object_may_have_a_name_that_none_can_have() {
        for name in ["A_b", "a/../b", "é"] {
            let volumes: Vec<Volume> = from_value(json!([
                {"name": "a", "projected": {"sources": [{"secret": {"name": name}}, {"configMap": {"name": name}}]}},
                {"name": "b", "configMap": {"name": name}},
                {"name": "c", "secret": {"secretName": name}},
            ]))
            .unwrap();
            let errors = FieldErrors::found(|object| {
                for volume in &volumes {
                    check_volume(&object.at("v"), volume);
                }
            });
            assert!(errors.is_empty(), "{}", errors.lines());
        }
    }

    #[test]
    fn modes_are_permission_bits() {
        // projection 14.2
        check(
            json!([{"name": "a", "secret": {"secretName": "", "defaultMode": 512, "items": [{"key": "k", "path": "p", "mode": -1}]}}]),
            expect![[r#"
                v[0].secret.secretName: Required value
                v[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive
                v[0].secret.items[0].mode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive
            "#]],
        );
    }

    #[test]
    fn a_mode_of_an_empty_directory_may_be_sticky() {
        // projection 79
        check(
            json!([{"name": "a", "emptyDir": {"mode": 0o1777}}, {"name": "b", "emptyDir": {"mode": 0o2000}}]),
            expect![[r#"
                v[1].emptyDir.mode: Invalid value: 1024: must be between 0 and 1023, inclusive
            "#]],
        );
    }

    #[test]
    fn owners_are_users() {
        // projection 75
        let user = 2_147_483_648_i64;
        check(
            json!([
                {"name": "a", "configMap": {"name": "m", "defaultUser": -1, "items": [{"key": "k", "path": "p", "user": user}]}},
                {"name": "b", "secret": {"secretName": "s", "defaultUser": user}},
                {"name": "c", "downwardAPI": {"defaultUser": 0, "items": [
                    {"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}, "user": -1}]}},
                {"name": "d", "projected": {"defaultUser": -1, "sources": [
                    {"serviceAccountToken": {"path": "t", "user": user}},
                    {"clusterTrustBundle": {"name": "n", "path": "c", "user": user}},
                    {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "k", "user": user}},
                ]}},
            ]),
            expect![[r#"
                v[0].configMap.defaultUser: Invalid value: -1: must be between 0 and 2147483647, inclusive
                v[0].configMap.items[0].user: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive
                v[1].secret.defaultUser: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive
                v[2].downwardAPI.items[0].user: Invalid value: -1: must be between 0 and 2147483647, inclusive
                v[3].projected.defaultUser: Invalid value: -1: must be between 0 and 2147483647, inclusive
                v[3].projected.sources[0].serviceAccountToken.user: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive
                v[3].projected.sources[1].clusterTrustBundle.user: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive
                v[3].projected.sources[2].podCertificate.user: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive
            "#]],
        );
    }

    #[test]
    fn explicit_paths_of_a_projection_differ_as_written() {
        // projection 14.2: the token's path takes no part, `a//b` and `a/b` differ.
        let map =
            |path: &str| json!({"configMap": {"name": "m", "items": [{"key": "k", "path": path}]}});
        check(
            json!([{"name": "a", "projected": {"sources": [
                map("a/b"), map("a//b"), map("a/b"),
                {"serviceAccountToken": {"path": "a/b", "expirationSeconds": 599}},
                {"secret": {"name": "s"}, "downwardAPI": {}},
                {},
            ]}}]),
            expect![[r#"
                v[0].projected.sources[2].configMap.items[0].path: Invalid value: "a/b": conflicting duplicate paths
                v[0].projected.sources[3].serviceAccountToken.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes
                v[0].projected.sources[4]: Forbidden: may not specify more than 1 volume type per source
            "#]],
        );
    }

    #[test]
    fn trust_bundles_and_certificates_say_what_they_want() {
        // projection 14.2
        check(
            json!([{"name": "a", "projected": {"sources": [
                {"clusterTrustBundle": {"name": "n", "signerName": "s", "path": "a"}},
                {"clusterTrustBundle": {"path": "b"}},
                {"clusterTrustBundle": {"name": "n", "labelSelector": {}, "path": "c"}},
                {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519"}},
                {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "k", "certificateChainPath": "k"}},
            ]}}]),
            expect![[r#"
                v[0].projected.sources[0].clusterTrustBundle: Invalid value: "": only one of name and signerName may be used
                v[0].projected.sources[1].clusterTrustBundle: Required value: either name or signerName must be specified
                v[0].projected.sources[2].clusterTrustBundle.labelSelector: Invalid value: "": only signerName may be used together with labelSelector
                v[0].projected.sources[3].podCertificate: Required value: specify at least one of credentialBundlePath, keyPath, and certificateChainPath
                v[0].projected.sources[4].podCertificate.certificateChainPath: Invalid value: "k": conflicting duplicate paths
            "#]],
        );
    }

    #[test]
    fn downward_files_show_one_thing_each() {
        // projection 14.2
        check(
            json!([{"name": "a", "downwardAPI": {"items": [
                {"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "n", "fieldRef": {"fieldPath": "spec.nodeName"}},
                {"path": "x"},
                {"path": "y", "fieldRef": {"fieldPath": "metadata.name"}, "resourceFieldRef": {"resource": "limits.cpu"}},
                {"path": "z", "resourceFieldRef": {"resource": "limits.cpu"}},
            ]}}]),
            expect![[r#"
                v[0].downwardAPI.items[1].fieldRef.fieldPath: Unsupported value: "spec.nodeName": supported values: "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"
                v[0].downwardAPI.items[2]: Required value: one of fieldRef and resourceFieldRef is required
                v[0].downwardAPI.items[3]: Invalid value: "resource": fieldRef and resourceFieldRef can not be specified simultaneously
                v[0].downwardAPI.items[4].resourceFieldRef.containerName: Required value
            "#]],
        );
    }
}
