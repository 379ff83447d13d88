//! Prepares `larder run --beside-kubelet` before the agent is built.

use std::{env, fs::DirBuilder, os::unix::fs::DirBuilderExt as _, path::Path};

use anyhow::Context as _;
use larder_agent::{
    beside::BesideConfig,
    config::{Config, SubPathUpdates},
};
use larder_containers::namespaces::keep_apart;
use larder_kubelet::{
    kubeconfig::KubeletFiles,
    landlock::{WriteProtection, forbid_writes},
};
use larder_objects::chain;
use tracing::{info, warn};

use crate::{args::RunArgs, outcome::Failure};

/// Set in every container of a cluster.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// Uses the kubelet's own kubeconfig and root directory if none is named and this process is not in a cluster.
///
/// # Errors
///
/// There is no kubeconfig.
pub(super) fn find_kubelet(args: &RunArgs, config: &mut Config) -> Result<(), Failure> {
    let Some(beside) = &mut config.beside else {
        return Ok(());
    };
    let is_named = args.kubeconfig.is_some() || config.kubeconfig.is_some();
    if is_named || env::var_os(IN_CLUSTER).is_some() {
        return Ok(());
    }
    let found = KubeletFiles::find().map_err(|error| Failure::unreadable(error.to_string()))?;
    let default = Path::new(BesideConfig::KUBELET_ROOT_DIR);
    if args.kubelet_root_dir.is_none() && beside.kubelet_root_dir == default {
        beside.kubelet_root_dir = found.root_dir;
    }
    config.kubeconfig = Some(found.kubeconfig);
    Ok(())
}

/// Denies this process writes outside its own directories (R1). Must be called before any thread starts.
///
/// # Errors
///
/// A directory cannot be created.
pub(super) fn protect(config: &Config) -> Result<(), Failure> {
    let Some(beside) = &config.beside else {
        return Ok(());
    };
    beside
        .check_directories(&config.root_dir)
        .map_err(|error| Failure::unreadable(error.to_string()))?;
    let own: [&Path; 2] = [&config.root_dir, &beside.lock_dir];
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o750);
    for directory in own {
        builder
            .create(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    // Mounting counts as a write, so the thread that mounts starts first.
    let mounts = config.sub_path_updates != SubPathUpdates::Never;
    if mounts {
        keep_apart().context("cannot start a thread")?;
    }
    match forbid_writes(&own, usize::from(mounts)) {
        Ok(WriteProtection::Full) => {}
        Ok(WriteProtection::Partial) => {
            info!(
                "this kernel can deny only some kinds of writes (Landlock, Linux 6.2 denies all); larder writes nothing below the kubelet's directory"
            );
        }
        Ok(WriteProtection::Unavailable) => warn!(
            "this kernel cannot deny writes (needs Landlock, Linux 5.13); larder writes nothing below the kubelet's directory"
        ),
        Err(error) => warn!(
            error = chain(&error),
            "failed to deny writes; larder writes nothing below the kubelet's directory"
        ),
    }
    Ok(())
}
