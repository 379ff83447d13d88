//! Namespaces of its own for a test binary: its processes, and their mounts.
//!
//! The binary starts itself again under `unshare`. The process that does so is the first of its PID namespace: when it
//! ends, for whatever reason, the kernel kills every container with it, and with the mount namespace goes all that the
//! kubelet has mounted.

use std::{env, fs, io, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::{Context as _, bail};

/// Proof that the process has namespaces of its own.
#[derive(Debug)]
#[non_exhaustive]
pub struct Isolated;

/// Set for the process that runs in them.
const INSIDE: &str = "LARDER_E2E_ISOLATED";

/// Folders outside of the node's own that a kubelet or a runtime writes to.
const SCRATCH: [&str; 3] = ["/run", "/var/log", "/var/lib/kubelet"];

/// Returns in the namespaces; outside of them, replaces the process by one that starts it there.
///
/// # Errors
///
/// The namespaces cannot be made, or what must be mounted in them cannot be.
pub fn enter() -> anyhow::Result<Isolated> {
    if env::var_os(INSIDE).is_none() {
        let error = again()?;
        return Err(error).context("failed to start unshare");
    }
    // What the kubelet mounts must reach containers that ask for it, and they ask a mount that is shared. The
    // namespace was made with all of them private, so nothing goes back to the host.
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
    let output = Command::new("mount").args(arguments).output()?;
    if !output.status.success() {
        bail!(
            "mount {arguments:?} failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
