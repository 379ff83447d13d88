//! The fields `mode` and `beside` of the configuration.

use std::path::Path;

use serde_json::Value;

use super::file::{Fields, FileError, typed};
use crate::beside::BesideConfig;

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
        let mut value = value.clone();
        if let Value::Object(fields) = &mut value {
            fields.retain(|_, value| !value.is_null());
        }
        let mut config: BesideConfig = typed(&value, expected)?;
        for path in [&mut config.kubelet_root_dir, &mut config.lock_dir] {
            if path.as_os_str().is_empty() {
                return Err("paths must not be empty".to_owned());
            }
            *path = directory.join(&*path);
        }
        Ok(config)
    })?;
    Ok(taken.unwrap_or_default())
}
