//! Volumes that larder does not deliver: the API server's rules for each type.
//!
//! The forms of names in storage systems, such as an iSCSI qualified name, are not checked.

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaimTemplate, Volume},
    apimachinery::pkg::api::resource,
};
use serde_json::{Map, Value};

use super::field::Field;
use crate::Quantity;

pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The types of volumes, each with the fields that may not be empty, in the order in which the API server looks for them:
/// the first that is there counts. Any name of a ConfigMap or Secret will do: an object that cannot exist is not found.
pub(super) const TYPES: [(&str, &[&str]); 30] = [
    ("emptyDir", &[]),
    ("hostPath", &["path"]),
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("persistentVolumeClaim", &["claimName"]),
    ("rbd", &["monitors", "image"]),
    ("cinder", &["volumeID"]),
    ("cephfs", &["monitors"]),
    ("quobyte", &[]),
    ("downwardAPI", &[]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("configMap", &["name"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("storageos", &["volumeName"]),
    ("projected", &[]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("csi", &["driver"]),
    ("ephemeral", &["volumeClaimTemplate"]),
    ("image", &["reference"]),
];

/// Checks the part `field` of `volume`, which is of type `volume_type`, has `fields`, and must have those `required`.
pub(super) fn check(
    field: &Field<'_>,
    (volume_type, required): (&str, &[&str]),
    fields: &Map<String, Value>,
    volume: &Volume,
) {
    for name in required {
        if fields.get(*name).is_none_or(is_empty) {
            field.child(name).required("");
        }
    }
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| fields.get(name).and_then(Value::as_i64).unwrap_or(0);
    let choice = |name: &str, supported: &[&str]| {
        let value = text(name);
        if fields.contains_key(name) && !supported.contains(&value) {
            field.child(name).not_supported(value, supported);
        }
    };
    match volume_type {
        "emptyDir" => {
            field.child("mode").check_range(number("mode"), 0..=0o1777);
            let limit = fields.get("sizeLimit").and_then(Value::as_str);
            let field = field.child("sizeLimit");
            match limit.map(|text| (text, text.parse::<Quantity>())) {
                Some((text, Err(error))) => field.invalid(text, &error.to_string()),
                Some((_, Ok(limit))) if limit < Quantity::default() => {
                    field.forbidden("SizeLimit field must be a valid resource quantity");
                }
                _ => {}
            }
        }
        "hostPath" if !text("path").is_empty() => {
            field.child("path").check_inside(text("path"));
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
            choice("type", &types);
        }
        "gitRepo" => field.child("directory").check_relative(text("directory")),
        "nfs" if !text("path").starts_with('/') => {
            let rule = "must be an absolute path";
            field.child("path").invalid(text("path"), rule);
        }
        "iscsi" => {
            let (name, sorts) = (text("iqn"), ["iqn", "eui", "naa"]);
            if !name.is_empty() && !sorts.iter().any(|sort| name.starts_with(sort)) {
                let rule = "must be valid format starting with iqn, eui, or naa";
                field.child("iqn").invalid(name, rule);
            }
            field.child("lun").check_range(number("lun"), 0..=255);
        }
        "awsElasticBlockStore" | "gcePersistentDisk" => {
            let partition = number("partition");
            if !(0..=255).contains(&partition) {
                let rule = "must be between 1 and 255, inclusive";
                field.child("partition").invalid(partition, rule);
            }
        }
        "fc" if ["targetWWNs", "wwids"]
            .iter()
            .all(|name| fields.get(*name).is_none_or(is_empty)) =>
        {
            let rule = "must specify either targetWWNs or wwids, but not both";
            field.child("targetWWNs").required(rule);
        }
        "flocker" if text("datasetName").is_empty() && text("datasetUUID").is_empty() => {
            field.required("one of datasetName and datasetUUID is required");
        }
        "quobyte" => {
            let rule = "must be a host:port pair or multiple pairs separated by commas";
            if text("registry").is_empty() {
                field.child("registry").required(rule);
            } else if !text("registry").split(',').all(|pair| pair.contains(':')) {
                field.child("registry").invalid(text("registry"), rule);
            }
            field.child("volume").check_not_empty(text("volume"));
        }
        "image" => choice("pullPolicy", &PULL_POLICIES),
        "ephemeral" => {
            let claim = volume.ephemeral.iter();
            for claim in claim.flat_map(|volume| &volume.volume_claim_template) {
                check_claim(&field.child("volumeClaimTemplate"), claim);
            }
        }
        _ => {}
    }
}

/// Checks a claim as far as every claim has the same fields: how it is accessed and how much it asks for.
fn check_claim(field: &Field<'_>, claim: &PersistentVolumeClaimTemplate) {
    let labels = claim.metadata.iter().flat_map(|held| &held.labels);
    for (key, _) in labels.flatten() {
        let field = field.at("metadata.labels");
        field.check_qualified_name(key, key);
    }
    let modes_field = field.at("spec.accessModes");
    let modes = claim.spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        modes_field.required("at least 1 access mode is required");
    }
    let supported = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ];
    for mode in modes {
        modes_field.check_choice(Some(mode), &supported);
    }
    let resources = claim.spec.resources.as_ref();
    let requests = resources.and_then(|held| held.requests.as_ref());
    let field = field.at("spec.resources").key("storage");
    match requests.and_then(|requests| requests.get("storage")) {
        None => field.required(""),
        Some(resource::Quantity(text)) => match text.parse::<Quantity>() {
            Err(error) => field.invalid(&**text, &error.to_string()),
            Ok(size) if size <= Quantity::default() => {
                field.invalid(&**text, "must be greater than zero");
            }
            Ok(_) => {}
        },
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Null => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::validation::FieldErrors;
    use crate::validation::volumes::check_volume;

    #[test]
    fn every_type_says_what_it_lacks() {
        let mut checked = 0;
        for (volume_type, required) in TYPES {
            if required.is_empty() {
                continue;
            }
            let mut volume = json!({"name": "v"});
            // As much as the type needs to be decoded.
            volume[volume_type] = json!({"lun": 0, "secretRef": {"name": "s"}});
            let volume: Volume = from_value(volume).unwrap();
            let errors = FieldErrors::found(|object| check_volume(&object.at("v"), &volume));
            for name in required {
                let field = format!("v.{volume_type}.{name}");
                assert!(
                    errors.iter().any(|error| error.field.to_string() == field),
                    "{field}: {errors}"
                );
            }
            checked += 1;
        }
        assert_eq!(checked, 24);
    }

    #[test]
    fn values_are_of_their_range() {
        for (volume, error) in [
            (
                json!({"hostPath": {"path": "/a/../b"}}),
                "v.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            ),
            (
                json!({"nfs": {"server": "s", "path": "a"}}),
                "v.nfs.path: Invalid value: \"a\": must be an absolute path",
            ),
            (
                json!({"emptyDir": {"sizeLimit": "-1"}}),
                "v.emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            ),
            (
                json!({"fc": {}}),
                "v.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both",
            ),
            (
                json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 256}}),
                "v.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ),
            (
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}),
                "v.ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
            ),
        ] {
            let mut volume = volume;
            volume["name"] = "v".into();
            let volume: Volume = from_value(volume).unwrap();
            let errors = FieldErrors::found(|object| check_volume(&object.at("v"), &volume));
            assert_eq!(errors.to_string(), error);
        }
    }
}
