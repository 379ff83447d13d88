//! The volumes of the own form, in flags and in the file of `--config` (docs/spec/sidecar.md, section 3).

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Pod, PodSpec, ProjectedVolumeSource, SecretVolumeSource, Volume,
    VolumeProjection,
};
use larder_objects::{
    FieldPath, Kind,
    validation::{self, is_label, is_subdomain},
    yaml::{COPIED_BYTES, YamlDocument},
};
use larder_on_change::{
    Hook,
    parse::{self, HookOrigin},
};
use larder_sidecar::OwnVolume;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::args::values::octal_mode;

/// The kubelet's mode of files.
const MODE: i32 = 0o644;
/// The error for sources of a pod that a sidecar does not support.
const OTHERS: &str = "only configMap and secret: a volume of the pod does that";

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
    let (mut optional, mut default_mode, mut items) = (false, Value::Null, Vec::new());
    for option in parts {
        match option.split_once('=') {
            None if option == "optional" => optional = true,
            Some(("mode", digits)) => default_mode = octal_mode(digits)?.into(),
            Some(("item", text)) => items.push(item(text)?),
            _ => {
                let expected = "expected optional, mode= or item=";
                return Err(format!("unknown option {option:?}: {expected}"));
            }
        }
    }
    let (field, name_field) = match kind {
        Kind::ConfigMap => ("configMap", "name"),
        Kind::Secret => ("secret", "secretName"),
    };
    let source = json!({
        name_field: name, "optional": optional, "defaultMode": default_mode, "items": items,
    });
    let volume = json!({"path": path, field: source});
    let volume: FileVolume = serde_json::from_value(volume).map_err(|error| error.to_string())?;
    volume.own_volume(Some(own))
}

/// An item of a volume.
fn item(text: &str) -> Result<Value, String> {
    let parts: Vec<_> = text.split(':').collect();
    let (key, path, mode) = match parts.as_slice() {
        [key, path] => (key, path, Value::Null),
        [key, path, digits] => (key, path, octal_mode(digits)?.into()),
        _ => return Err("expected item=KEY:PATH[:MODE]".to_owned()),
    };
    Ok(json!({"key": key, "path": path, "mode": mode}))
}

/// Reads the file of `--config`, a `SidecarConfiguration`: its volumes and hooks.
///
/// # Errors
///
/// The place, and what was expected.
pub(crate) fn read(
    text: &str,
    namespace: Option<&str>,
) -> Result<(Vec<OwnVolume>, Vec<Hook>), String> {
    let document = YamlDocument::parse(text, COPIED_BYTES).map_err(|error| error.to_string())?;
    let file: Option<File> = document.decode().map_err(|error| error.to_string())?;
    let file = file.unwrap_or_default();
    let known = json!({ "volumes": file.volumes });
    let given = json!({ "volumes": document.value().get("volumes") });
    if let Some(field) = unknown_field(&FieldPath::root(), &given, &known) {
        let line = document.line_of(&field);
        return Err(format!("line {line}: {field}: unknown field"));
    }
    if file.kind.is_some_and(|kind| kind != "SidecarConfiguration") {
        return Err("kind: expected SidecarConfiguration".to_owned());
    }
    let volumes = file.volumes.into_iter().flatten().enumerate();
    let volumes = volumes.map(|(number, entry)| {
        let volume = entry.own_volume(namespace);
        volume.map_err(|error| format!("volumes[{number}]: {error}"))
    });
    let hooks = file.on_change.map_or(Ok(Vec::new()), |value| {
        parse::hooks(&value.to_string(), HookOrigin::CommandLine, None)
    });
    let hooks = hooks.map_err(|error| format!("onChange{error}"));
    Ok((volumes.collect::<Result<_, _>>()?, hooks?))
}

/// The first field of `given` that `known`, the same as it was decoded, lacks: types of Kubernetes drop such fields.
fn unknown_field(path: &FieldPath, given: &Value, known: &Value) -> Option<FieldPath> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let mut given = given.iter().filter(|(_, value)| !value.is_null());
            given.find_map(|(name, value)| match known.get(name) {
                Some(known) => unknown_field(&path.child(name), value, known),
                None => Some(path.child(name)),
            })
        }
        (Value::Array(given), Value::Array(known)) => {
            let mut both = given.iter().zip(known).enumerate();
            both.find_map(|(index, (given, known))| unknown_field(&path.index(index), given, known))
        }
        _ => None,
    }
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

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default, rename = "apiVersion")]
    _api_version: Option<String>,
    kind: Option<String>,
    volumes: Option<Vec<FileVolume>>,
    on_change: Option<Value>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileVolume {
    name: Option<SmolStr>,
    path: PathBuf,
    config_map: Option<ConfigMapVolumeSource>,
    secret: Option<SecretVolumeSource>,
    projected: Option<ProjectedVolumeSource>,
}

impl FileVolume {
    fn own_volume(mut self, namespace: Option<&str>) -> Result<OwnVolume, String> {
        let namespace = namespace.ok_or("the namespace is unknown: give -n")?;
        let mut names = Vec::new();
        match (&mut self.config_map, &mut self.secret, &mut self.projected) {
            (Some(map), None, None) => {
                map.default_mode.get_or_insert(MODE);
                names.push(&mut map.name);
            }
            (None, Some(secret), None) => {
                secret.default_mode.get_or_insert(MODE);
                names.push(secret.secret_name.get_or_insert_default());
            }
            (None, None, Some(projected)) => {
                projected.default_mode.get_or_insert(MODE);
                for source in projected.sources.iter_mut().flatten() {
                    let mut others = source.clone();
                    (others.config_map, others.secret) = (None, None);
                    names.push(match (&mut source.config_map, &mut source.secret) {
                        _ if others != VolumeProjection::default() => return Err(OTHERS.to_owned()),
                        (Some(map), None) => &mut map.name,
                        (None, Some(secret)) => &mut secret.name,
                        _ => return Err(OTHERS.to_owned()),
                    });
                }
            }
            _ => return Err("expected one of configMap, secret and projected".to_owned()),
        }
        for name in names {
            if name.is_empty() {
                return Err("the name of the object is missing".to_owned());
            }
            if !is_subdomain(name) || !is_label(namespace) {
                return Err(format!("{namespace}/{name}: no object can have this name"));
            }
            *name = format!("{namespace}/{name}");
        }
        let volume = Volume {
            name: "v".to_owned(),
            config_map: self.config_map,
            secret: self.secret,
            projected: self.projected,
            ..Volume::default()
        };
        check(&volume)?;
        let path = std::path::absolute(&self.path).unwrap_or(self.path);
        let path: PathBuf = path.components().collect();
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(OwnVolume {
            name: self.name.unwrap_or_else(|| SmolStr::new(last)),
            path,
            sources: vec![volume],
        })
    }
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

    #[test]
    fn configuration_has_volumes_of_a_pod_and_hooks() {
        let text = "
kind: SidecarConfiguration
volumes:
- path: /etc/app
  projected:
    sources:
    - configMap: {name: app}
    - secret: {name: tls, optional: true}
- {name: own, path: /etc/other, configMap: {name: other}}
onChange:
- http: 8080/-/reload
";
        let (volumes, hooks) = read(text, Some("n")).unwrap();
        assert_eq!(volumes.len(), 2);
        let projected = volumes[0].sources[0].projected.as_ref().unwrap();
        let named = json!([
            {"configMap": {"name": "n/app"}},
            {"secret": {"name": "n/tls", "optional": true}},
        ]);
        assert_eq!(serde_json::to_value(&projected.sources).unwrap(), named);
        assert_eq!(volumes[1].name, "own");
        assert_eq!(hooks.len(), 1);
        for (bad, expected) in [
            ("kind: Pod", "kind"),
            ("volumes: [{path: /d}]", "volumes[0]: expected one of"),
            (
                "volumes: [{path: /d, projected: {sources: [{downwardAPI: {}}]}}]",
                "a volume of the pod does that",
            ),
            (
                "volumes: [{path: /d, projected: {sources: [{secret: {name: s}, downwardAPI: {}}]}}]",
                "a volume of the pod does that",
            ),
            (
                "volumes: [{path: /d, configMap: {}}]",
                "the name of the object is missing",
            ),
            (
                "volumes:\n- {path: /d, configMap: {name: a}}\n- {path: /e, secret: {nam: s}}",
                "line 3: volumes[1].secret.nam: unknown field",
            ),
            (
                "volumes: [{path: /d, projected: {sources: [{secret: {name: s, items: [{key: a, paht: b, path: c}]}}]}}]",
                "line 1: volumes[0].projected.sources[0].secret.items[0].paht: unknown field",
            ),
            (
                "volumes: [{path: /d, secret: {secretName: s, defaultMode: 4096}}]",
                "volumes[0]: secret.defaultMode: Invalid value: 4096",
            ),
            (
                "volumes:\n- path: /d\n  emptyDir: {}",
                "line 3: volumes[0].emptyDir: unknown field",
            ),
            (
                "volumes: [{path: /d, configMap: {name: app, optional: canary}}]",
                "line 1: volumes[0].configMap.optional: expected a boolean, found a string",
            ),
            (
                "volumes: [{name: own}]",
                "line 1: volumes[0]: missing field `path`",
            ),
            (
                "kind: 1\nkind: 2",
                "line 2: key \"kind\" is already set on line 1",
            ),
            ("- canary", "line 1: expected a mapping, found a sequence"),
            ("onChange: [{signal: NONE}]", "onChange"),
        ] {
            let error = read(bad, Some("n")).unwrap_err();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }
}
