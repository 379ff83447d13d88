//! The volumes of the own form, in the flags `--config-map` and `--secret` (docs/spec/sidecar.md, section 3).

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, KeyToPath, Pod, PodSpec, SecretVolumeSource, Volume,
};
use larder_objects::{
    FieldPath, Kind,
    validation::{self, is_label, is_subdomain},
};
use larder_sidecar::OwnVolume;
use smol_str::SmolStr;

use crate::args::values::octal_mode;

/// The kubelet's mode of files.
const MODE: i32 = 0o644;

/// The volume of `[NAMESPACE/]NAME:DIR[,OPTION…]`, the value of `--config-map` or `--secret`, or what was expected.
pub(crate) fn volume(kind: Kind, text: &str, namespace: Option<&str>) -> Result<OwnVolume, String> {
    let mut parts = text.split(',');
    let place = parts.next().and_then(|place| place.split_once(':'));
    let expected = "expected [NAMESPACE/]NAME:DIR[,OPTION…]";
    let (object, path) = place.ok_or(expected)?;
    let (own, name) = match object.split_once('/') {
        Some((own, name)) => (Some(own), name),
        None => (namespace, object),
    };
    let own = own.ok_or("the namespace is unknown: give NAMESPACE/NAME, or -n")?;
    if name.is_empty() || name.contains('/') || own.is_empty() || path.is_empty() {
        return Err(expected.to_owned());
    }
    if !is_subdomain(name) || !is_label(own) {
        return Err(format!("{own}/{name}: no object can have this name"));
    }
    let (mut optional, mut mode, mut items) = (false, MODE, Vec::new());
    for option in parts {
        match option.split_once('=') {
            None if option == "optional" => optional = true,
            Some(("mode", digits)) => mode = octal_mode(digits)?.cast_signed(),
            Some(("item", text)) => items.push(item(text)?),
            _ => {
                let expected = "expected optional, mode= or item=";
                return Err(format!("unknown option {option:?}: {expected}"));
            }
        }
    }
    let secret = SecretVolumeSource {
        secret_name: Some(format!("{own}/{name}")),
        optional: Some(optional),
        default_mode: Some(mode),
        items: Some(items).filter(|items| !items.is_empty()),
        ..SecretVolumeSource::default()
    };
    let source = source(kind, secret);
    check(&source)?;
    let path = std::path::absolute(path).unwrap_or_else(|_| Path::new(path).to_owned());
    let path: PathBuf = path.components().collect();
    let last = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(OwnVolume {
        name: SmolStr::new(last),
        path,
        sources: vec![source],
    })
}

/// A volume with the fields of `secret`.
fn source(kind: Kind, secret: SecretVolumeSource) -> Volume {
    let mut source = Volume {
        name: "v".to_owned(),
        ..Volume::default()
    };
    match kind {
        Kind::ConfigMap => {
            source.config_map = Some(ConfigMapVolumeSource {
                name: secret.secret_name.unwrap_or_default(),
                optional: secret.optional,
                default_mode: secret.default_mode,
                items: secret.items,
                ..ConfigMapVolumeSource::default()
            });
        }
        Kind::Secret => source.secret = Some(secret),
    }
    source
}

/// An item of a volume.
fn item(text: &str) -> Result<KeyToPath, String> {
    let parts: Vec<_> = text.split(':').collect();
    let (key, path, mode) = match parts.as_slice() {
        [key, path] => (key, path, None),
        [key, path, digits] => (key, path, Some(octal_mode(digits)?.cast_signed())),
        _ => return Err("expected item=KEY:PATH[:MODE]".to_owned()),
    };
    Ok(KeyToPath {
        key: (*key).to_owned(),
        path: (*path).to_owned(),
        mode,
        ..KeyToPath::default()
    })
}

/// Checks a volume as the API server does.
fn check(volume: &Volume) -> Result<(), String> {
    let spec = PodSpec {
        volumes: Some(vec![volume.clone()]),
        ..PodSpec::default()
    };
    let pod = Pod {
        spec: Some(spec),
        ..Pod::default()
    };
    let place = FieldPath::fields("spec.volumes").index(0);
    let problem = validation::pod(&pod).iter().find_map(|error| {
        let field = error.field.segments().strip_prefix(place.segments())?;
        let field: FieldPath = field.iter().cloned().collect();
        Some(format!("{field}: {}", error.body()))
    });
    problem.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_object_directory_and_options() {
        let parsed = volume(
            Kind::Secret,
            "tls:/etc/tls/,optional,mode=0440,item=a:b/c:0400",
            Some("n"),
        );
        let parsed = parsed.unwrap();
        assert_eq!(
            (parsed.name.as_str(), parsed.path.to_str()),
            ("tls", Some("/etc/tls"))
        );
        let source = parsed.sources[0].secret.as_ref().unwrap();
        assert_eq!(source.secret_name.as_deref(), Some("n/tls"));
        assert_eq!(source.optional, Some(true));
        assert_eq!(source.default_mode, Some(0o440));
        assert_eq!(source.items.as_ref().unwrap()[0].mode, Some(0o400));
        let parsed = volume(Kind::ConfigMap, "other/app:/d", None).unwrap();
        let source = parsed.sources[0].config_map.as_ref().unwrap();
        assert_eq!(source.name, "other/app");
        for bad in [
            "app",
            "app:",
            ":/d",
            "a/b/c:/d",
            "app:/d,x",
            "app:/d,mode=9",
            "app:/d,item=a",
            "app:/d,item=A:../x",
            "app:/d,item=A:x,item=B:..x",
            "App:/d",
            "n_/app:/d",
        ] {
            assert!(volume(Kind::ConfigMap, bad, Some("n")).is_err(), "{bad}");
        }
        assert!(volume(Kind::ConfigMap, "app:/d", None).is_err());
    }
}
