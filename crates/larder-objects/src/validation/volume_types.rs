//! The types of volumes, and the fields that each requires. Of the types that larder does not deliver, the API server
//! alone checks the rest.

use serde_json::{Map, Value};

use super::field::Field;

/// A type of volumes.
pub(super) struct VolumeType {
    /// Its field of a volume.
    pub(super) field: &'static str,
    /// The fields in it that may not be empty.
    pub(super) required: &'static [&'static str],
}

/// In the order in which the API server looks for them: the first that is there counts. Any name of a ConfigMap or
/// Secret will do: an object that cannot exist is not found.
pub(super) const TYPES: [VolumeType; 30] = [
    requiring("emptyDir", &[]),
    requiring("hostPath", &["path"]),
    requiring("gitRepo", &["repository"]),
    requiring("gcePersistentDisk", &["pdName"]),
    requiring("awsElasticBlockStore", &["volumeID"]),
    requiring("secret", &["secretName"]),
    requiring("nfs", &["server", "path"]),
    requiring("iscsi", &["targetPortal", "iqn"]),
    requiring("glusterfs", &["endpoints", "path"]),
    requiring("flocker", &[]),
    requiring("persistentVolumeClaim", &["claimName"]),
    requiring("rbd", &["monitors", "image"]),
    requiring("cinder", &["volumeID"]),
    requiring("cephfs", &["monitors"]),
    requiring("quobyte", &["registry", "volume"]),
    requiring("downwardAPI", &[]),
    requiring("fc", &[]),
    requiring("flexVolume", &["driver"]),
    requiring("configMap", &["name"]),
    requiring("azureFile", &["secretName", "shareName"]),
    requiring("vsphereVolume", &["volumePath"]),
    requiring("photonPersistentDisk", &["pdID"]),
    requiring("portworxVolume", &["volumeID"]),
    requiring("azureDisk", &["diskName", "diskURI"]),
    requiring("storageos", &["volumeName"]),
    requiring("projected", &[]),
    requiring("scaleIO", &["gateway", "system", "volumeName"]),
    requiring("csi", &["driver"]),
    requiring("ephemeral", &["volumeClaimTemplate"]),
    requiring("image", &["reference"]),
];

const fn requiring(field: &'static str, required: &'static [&'static str]) -> VolumeType {
    VolumeType { field, required }
}

/// Checks that the `fields` of the part `field` of a volume have those `required`.
pub(super) fn check_required(field: &Field<'_>, required: &[&str], fields: &Map<String, Value>) {
    for name in required {
        if fields.get(*name).is_none_or(is_empty) {
            field.child(name).required("");
        }
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
    use k8s_openapi::api::core::v1::Volume;
    use serde_json::{from_value, json};

    use super::*;
    use crate::validation::{FieldErrors, volumes::check_volume};

    #[test]
    fn every_type_says_what_it_lacks() {
        let mut checked = 0;
        for VolumeType { field, required } in TYPES {
            if required.is_empty() {
                continue;
            }
            let mut volume = json!({"name": "v"});
            // As much as the type needs to be decoded.
            volume[field] = json!({"lun": 0, "secretRef": {"name": "s"}});
            let volume: Volume = from_value(volume).unwrap();
            let errors = FieldErrors::found(|object| check_volume(&object.at("v"), &volume));
            for name in required {
                let field = format!("v.{field}.{name}");
                assert!(
                    errors.iter().any(|error| error.field.to_string() == field),
                    "{field}: {errors}"
                );
            }
            checked += 1;
        }
        assert_eq!(checked, 25);
    }
}
