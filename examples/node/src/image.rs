//! Images: archives as `docker save` writes them, unpacked once into a directory that all containers share.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// An unpacked image.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Its files, never written to.
    pub(crate) root: PathBuf,
    pub(crate) config: ImageConfig,
}

/// What an image says of its containers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ImageConfig {
    /// `NAME=VALUE`.
    pub(crate) env: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    pub(crate) working_dir: String,
    /// `UID[:GID]`; names are not looked up.
    pub(crate) user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Manifest {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    config: ImageConfig,
}

/// The name by which an image is found: `registry/path/agnhost:2.63` is `agnhost`.
pub(crate) fn short_name(reference: &str) -> &str {
    let name = reference.rsplit('/').next().unwrap_or_default();
    name.split([':', '@']).next().unwrap_or_default()
}

/// Unpacks every `NAME.tar` in `archives` below `images`.
pub(crate) fn unpack_all(
    archives: &Path,
    images: &Path,
) -> anyhow::Result<BTreeMap<String, Image>> {
    let mut unpacked = BTreeMap::new();
    let entries = fs::read_dir(archives);
    for entry in entries.with_context(|| format!("cannot read {}", archives.display()))? {
        let archive = entry?.path();
        if archive.extension() != Some(OsStr::new("tar")) {
            continue;
        }
        let name = archive.file_stem().unwrap_or_default().to_string_lossy();
        let image = unpack(&archive, &images.join(&*name))
            .with_context(|| format!("cannot unpack {}", archive.display()))?;
        unpacked.insert(name.into_owned(), image);
    }
    Ok(unpacked)
}

fn unpack(archive: &Path, image: &Path) -> anyhow::Result<Image> {
    let (parts, root) = (image.join("parts"), image.join("root"));
    for directory in [&parts, &root] {
        // What an earlier run has left may be half done.
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
    }
    tar(archive, &parts)?;
    let manifests: Vec<Manifest> = serde_json::from_slice(&fs::read(parts.join("manifest.json"))?)?;
    let [manifest] = manifests.as_slice() else {
        bail!("expected one image, found {}", manifests.len());
    };
    for layer in &manifest.layers {
        // Files that a layer removes from those below stay.
        tar(&parts.join(layer), &root)?;
    }
    let config: ConfigFile = serde_json::from_slice(&fs::read(parts.join(&manifest.config))?)?;
    fs::remove_dir_all(parts)?;
    Ok(Image {
        root,
        config: config.config,
    })
}

/// Unpacks a file that may be compressed.
fn tar(archive: &Path, directory: &Path) -> anyhow::Result<()> {
    let output = Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(directory)
        .output();
    let output = output.context("cannot run tar")?;
    anyhow::ensure!(
        output.status.success(),
        "tar: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::short_name;

    #[test]
    fn images_are_found_by_the_last_word_of_their_repository() {
        for (reference, name) in [
            ("registry.k8s.io/e2e-test-images/agnhost:2.63.0", "agnhost"),
            ("localhost:5000/busybox@sha256:1234", "busybox"),
            ("busybox", "busybox"),
        ] {
            assert_eq!(short_name(reference), name);
        }
    }
}
