//! The one image of the node: a busybox and nothing else, as `docker save` would write it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::write_json;
use larder_e2e::process::run;

/// Name of the image. Without arguments, its container does nothing, as a sandbox does.
pub(crate) const IMAGE: &str = "larder.test/busybox:1";

/// Busybox's commands that tests use.
const COMMANDS: [&str; 8] = ["sh", "sleep", "cat", "ls", "touch", "echo", "test", "kill"];

/// Writes the archive below `folder`. Returns its path.
pub(super) fn build(folder: &Path, busybox: &Path) -> anyhow::Result<PathBuf> {
    let (root, image) = (folder.join("root"), folder.join("image"));
    fs::create_dir_all(root.join("bin"))?;
    fs::create_dir_all(&image)?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    for command in COMMANDS {
        symlink("busybox", root.join("bin").join(command))?;
    }
    for directory in ["tmp", "proc", "sys", "dev", "etc"] {
        fs::create_dir(root.join(directory))?;
    }
    archive(&root, &image.join("layer.tar"))?;
    let layer = run(Command::new("sha256sum").arg(image.join("layer.tar")))?;
    let digest = layer.split(' ').next().unwrap_or_default();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {
            "Entrypoint": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"],
            "Env": ["PATH=/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    write_json(&image.join("config.json"), &config)?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    write_json(&image.join("manifest.json"), &manifest)?;
    let path = folder.join("image.tar");
    archive(&image, &path)?;
    Ok(path)
}

fn archive(directory: &Path, to: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--owner=0").arg("--group=0");
    tar.arg("--file").arg(to).arg("--directory").arg(directory);
    for entry in fs::read_dir(directory)? {
        tar.arg(entry?.file_name());
    }
    run(&mut tar).map(|_| ())
}
