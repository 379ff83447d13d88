//! The file of `--config`, and its form of volumes, which flags are read into as well (docs/spec/sidecar.md, section 3).

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, ProjectedVolumeSource, SecretVolumeSource, Volume, VolumeProjection,
};
use larder_on_change::{
    Hook,
    parse::{self, HookOrigin},
};
use larder_sidecar::OwnVolume;
use serde::Deserialize;
use serde_json::Value;
use smol_str::SmolStr;

/// The kubelet's mode of files.
const MODE: i32 = 0o644;
/// The error for sources of a pod that a sidecar does not support.
const OTHERS: &str = "only configMap and secret: a volume of the pod does that";

/// Reads one volume, as in the file of `--config`.
///
/// # Errors
///
/// What was expected.
pub(crate) fn read_volume(entry: Value, namespace: Option<&str>) -> Result<OwnVolume, String> {
    let volume: FileVolume = serde_json::from_value(entry).map_err(|error| error.to_string())?;
    volume.own_volume(namespace)
}

/// Reads the file of `--config`, a `SidecarConfiguration`: its volumes and hooks.
///
/// # Errors
///
/// The place, and what was expected.
pub(crate) fn read_configuration(
    text: &str,
    namespace: Option<&str>,
) -> Result<(Vec<OwnVolume>, Vec<Hook>), String> {
    // The parser's text may quote the input.
    let file: File = serde_saphyr::from_str(text).map_err(|error| match error.location() {
        Some(place) => format!("line {}: unexpected field or value", place.line()),
        None => "not YAML".to_owned(),
    })?;
    if file.kind.is_some_and(|kind| kind != "SidecarConfiguration") {
        return Err("kind: expected SidecarConfiguration".to_owned());
    }
    let volumes = file.volumes.into_iter().enumerate();
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default, rename = "apiVersion")]
    _api_version: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    volumes: Vec<FileVolume>,
    on_change: Option<Value>,
}

#[derive(Deserialize)]
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
            *name = format!("{namespace}/{name}");
        }
        let volume = Volume {
            config_map: self.config_map,
            secret: self.secret,
            projected: self.projected,
            ..Volume::default()
        };
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
    use serde_json::json;

    use super::*;

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
        let (volumes, hooks) = read_configuration(text, Some("n")).unwrap();
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
            ("volumes: [{path: /d, emptyDir: {}}]", "line 1"),
            ("onChange: [{signal: NONE}]", "onChange"),
        ] {
            let error = read_configuration(bad, Some("n")).unwrap_err();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }
}
