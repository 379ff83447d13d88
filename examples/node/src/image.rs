//! Images: archives as `docker save` writes them, unpacked once into a directory that all containers share.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

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

/// The name by which an image is found: `registry/path/agnhost:2.63` is `agnhost`.
pub(crate) fn short_name(reference: &str) -> &str {
    let name = reference.rsplit('/').next().unwrap_or_default();
    name.split([':', '@']).next().unwrap_or_default()
}

/// Images by the last word of their repository's name.
pub(crate) type Images = BTreeMap<String, Image>;

/// Unpacks every `NAME.tar` in `archives` below `images`.
pub(crate) fn unpack_all(archives: &Path, images: &Path) -> anyhow::Result<Images> {
    let mut unpacked = Images::new();
    let entries = fs::read_dir(archives);
    for entry in entries.with_context(|| format!("cannot read {}", archives.display()))? {
        let archive = entry?.path();
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        if let Some(name) = name.strip_suffix(".tar") {
            let image = unpack(&archive, &images.join(name));
            let image = image.with_context(|| format!("cannot unpack {}", archive.display()))?;
            unpacked.insert(name.to_owned(), image);
        }
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
    let read = |name: &str| -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&fs::read(parts.join(name))?)?)
    };
    // Of several images, the first one.
    let manifest = read("manifest.json")?[0].take();
    for layer in manifest["Layers"].as_array().into_iter().flatten() {
        // Files that a layer removes from those below stay.
        tar(&parts.join(layer.as_str().unwrap_or_default()), &root)?;
    }
    let config = read(manifest["Config"].as_str().unwrap_or_default())?["config"].take();
    fs::remove_dir_all(parts)?;
    let config = Option::deserialize(config)?.unwrap_or_default();
    Ok(Image { root, config })
}

/// Unpacks a file that may be compressed.
fn tar(archive: &Path, directory: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    let tar = tar.arg("-xf").arg(archive).arg("-C").arg(directory);
    let status = tar.status().context("cannot run tar")?;
    anyhow::ensure!(status.success(), "tar has failed with {status}");
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
