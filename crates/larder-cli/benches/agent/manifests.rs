//! `larder run --manifests`: from the edit of a manifest to the file.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use larder_agent::status::Phase;
use larder_e2e::figures::Quantiles;
use larder_objects::manifest::{Loader, Manifest};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    process::{Agent, Moment, report},
    reader::Readers,
};

const EDITS: u32 = 20;
/// Between two edits: an editor's pace, not a burst.
const PAUSE: Duration = Duration::from_millis(150);

/// Measures on a copy of the manifests of `directory`.
#[expect(clippy::print_stdout, reason = "the report")]
pub(crate) async fn run(directory: &Path) -> anyhow::Result<()> {
    let copy = TempDir::with_prefix("larder-bench-")?;
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, copy.path().join(name))?;
        }
    }
    let target = EditedFile::find(copy.path())?;

    let agent = Agent::start(&["--manifests", &copy.path().display().to_string()])?;
    // Examples may name objects that are not there.
    let status = agent
        .settled(1, &[Phase::Delivered, Phase::Failing])
        .await?;
    let before = Moment::of("all in place", &agent)?;

    let volume = agent.volume(&target.namespace, &target.pod, "configmap", &target.volume);
    let file = volume.join(&target.key);
    let readers = Readers::start(vec![(volume, &target.key)])?;
    let text = fs::read_to_string(&target.manifest)?;
    let mut times = Vec::new();
    for edit in 1..=EDITS {
        sleep(PAUSE).await;
        let line = format!("{} {edit}", target.line);
        let edited = text.replacen(&target.line, &line, 1);
        let start = Instant::now();
        fs::write(&target.manifest, edited)?;
        times.push(readers.read(&file, &line).await? - start);
    }

    println!("### run --manifests {}\n", directory.display());
    println!("| edit of | bytes | manifest to file p50 / p99 / max |");
    println!("| --- | --: | --: |");
    let EditedFile { key, bytes, .. } = &target;
    println!("| {key} | {bytes} | {} |\n", Quantiles::of(times));
    report(&status, &[before, Moment::of("after the edits", &agent)?]);
    Ok(())
}

/// A file of a volume, and the line of it that is edited.
struct EditedFile {
    namespace: String,
    pod: String,
    volume: String,
    key: String,
    /// Length of the file.
    bytes: usize,
    manifest: PathBuf,
    /// Stands once in the manifest and once in the file.
    line: String,
}

impl EditedFile {
    /// The longest file of a ConfigMap volume that has a line to edit.
    fn find(directory: &Path) -> anyhow::Result<Self> {
        let mut targets = Vec::new();
        for entry in fs::read_dir(directory)? {
            Self::of_manifest(&entry?.path(), &mut targets)?;
        }
        targets
            .into_iter()
            .max_by_key(|target| target.bytes)
            .context("no ConfigMap volume has a line that could be edited")
    }

    fn of_manifest(manifest: &Path, targets: &mut Vec<Self>) -> anyhow::Result<()> {
        let mut loader = Loader::new("default");
        loader.file(manifest);
        let manifests = loader.finish();
        let text = fs::read_to_string(manifest)?;
        let map_of = |name: &str| {
            let documents = manifests.documents.iter();
            documents
                .filter_map(|document| match &document.manifest {
                    Manifest::ConfigMap(map) => Some(map),
                    _ => None,
                })
                .find(|map| map.metadata.name == name)
        };
        for pod in manifests.pods() {
            let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
            for volume in volumes {
                let Some(source) = &volume.config_map else {
                    continue;
                };
                let map = map_of(&source.name).filter(|_| source.items.is_none());
                for (key, value) in map.iter().flat_map(|map| map.data.iter()) {
                    let once = |text: &str, line: &str| text.matches(line).count() == 1;
                    let mut lines = value.lines().map(str::trim).filter(|line| line.len() > 8);
                    if let Some(line) = lines.find(|line| once(value, line) && once(&text, line)) {
                        targets.push(Self {
                            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                            pod: pod.metadata.name.clone().unwrap_or_default(),
                            volume: volume.name.clone(),
                            key: key.to_owned(),
                            bytes: value.len(),
                            manifest: manifest.to_owned(),
                            line: line.to_owned(),
                        });
                    }
                }
            }
        }
        Ok(())
    }
}
