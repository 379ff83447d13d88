//! The fields `mode` and `beside` of the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::file::{Fields, FileError, typed};
use crate::beside::BesideConfig;

/// The field as typed.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct BesideField {
    kubelet_root_dir: Option<PathBuf>,
    namespaces: BTreeSet<String>,
    selector: BTreeMap<String, String>,
    #[serde(rename = "refreshClusterCAs")]
    refresh_cluster_cas: bool,
    restart_events: bool,
    lock_dir: Option<PathBuf>,
}

/// Takes `mode`: whether it is `Beside`.
pub(super) fn take_mode(fields: &mut Fields) -> Result<bool, FileError> {
    let mode = fields.take_text("mode", |text| match text {
        "Serve" => Ok(false),
        "Beside" => Ok(true),
        _ => Err("expected one of Serve, Beside"),
    })?;
    Ok(mode.unwrap_or(false))
}

/// Takes `beside`. Paths are relative to `directory`.
pub(super) fn take(fields: &mut Fields, directory: &Path) -> Result<BesideConfig, FileError> {
    let expected =
        "kubeletRootDir, namespaces, selector, refreshClusterCAs, restartEvents and lockDir";
    let taken = fields.take_with("beside", |value| {
        let typed: BesideField = typed(value, expected)?;
        let mut config = BesideConfig::default();
        for (path, setting) in [
            (typed.kubelet_root_dir, &mut config.kubelet_root_dir),
            (typed.lock_dir, &mut config.lock_dir),
        ] {
            match path {
                Some(path) if path.as_os_str().is_empty() => {
                    return Err("paths must not be empty".to_owned());
                }
                Some(path) => *setting = directory.join(path),
                None => {}
            }
        }
        config.namespaces = typed.namespaces;
        config.selector = typed.selector;
        config.refresh_cluster_cas = typed.refresh_cluster_cas;
        config.restart_events = typed.restart_events;
        Ok(config)
    })?;
    Ok(taken.unwrap_or_default())
}
