//! Namespaces of its own for a test binary: its processes, and their mounts.
//!
//! The binary starts itself again under `unshare`. That process is the first of its PID namespace. When it ends, for
//! whatever reason, the kernel kills every container with it, and removes all mounts of the kubelet with the mount
//! namespace.

use std::{env, fs, io, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::Context as _;

use larder_e2e::process::run;

/// Proof that the process has namespaces of its own.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) struct Isolated;

/// Set for the process that runs in them.
const INSIDE: &str = "LARDER_E2E_ISOLATED";

/// Folders outside the node's own that a kubelet or a runtime writes to.
const SCRATCH: [&str; 3] = ["/run", "/var/log", "/var/lib/kubelet"];

/// Returns inside the namespaces; outside of them, replaces the process by one that starts it there.
///
/// # Errors
///
/// The namespaces or the mounts in them cannot be created.
pub(crate) fn enter() -> anyhow::Result<Isolated> {
    if env::var_os(INSIDE).is_none() {
        let error = again()?;
        return Err(error).context("failed to start unshare");
    }
    // The kubelet's mounts must propagate to containers that request it, which needs shared mounts. The namespace was
    // created with private mounts, so nothing propagates to the host.
    mount(&["--make-rshared", "/"])?;
    for folder in SCRATCH {
        let exists = Path::new(folder).is_dir();
        if !exists {
            fs::create_dir_all(folder)?;
        }
        mount(&["-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder])?;
    }
    Ok(Isolated)
}

/// Returns only when it fails.
fn again() -> anyhow::Result<io::Error> {
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child=KILL",
        ])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1");
    Ok(unshare.exec())
}

fn mount(arguments: &[&str]) -> anyhow::Result<()> {
    run(Command::new("mount").args(arguments)).map(|_| ())
}
