//! The files on disk, and their differences from the expected ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use larder_e2e::Server;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    agent::Agent,
    expected::{Content, ExpectedFile, ExpectedPod, expected},
    world::NAMESPACE,
};

/// How long it may take until everything is in place. Far more than any back-off.
const PATIENCE: Duration = Duration::from_mins(3);
/// Between two comparisons.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Waits until what lies on disk is what the API server's content says, nothing more, nothing less, and as many static
/// pods have mirror pods; returns the pods.
pub(crate) async fn at_rest(
    server: &Server,
    agent: &Agent,
    static_pods: usize,
) -> Vec<ExpectedPod> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let pods = expected(&server.client().await.unwrap(), NAMESPACE)
            .await
            .unwrap();
        let mut found = differences(&agent.root(), &agent.mounts(), &pods);
        let mirrors = pods.iter().filter(|pod| pod.is_static).count();
        if mirrors != static_pods {
            found.push(format!(
                "{mirrors} mirror pods for {static_pods} static pods"
            ));
        }
        if found.is_empty() {
            return pods;
        }
        assert!(
            Instant::now() < deadline,
            "{} differences:\n{}\n--- the agent's problems\n{}\n--- its log\n{}",
            found.len(),
            found.join("\n"),
            agent.problems().join("\n"),
            agent.log(),
        );
        sleep(POLL_INTERVAL).await;
    }
}

/// Where the files and what else the agent keeps differ from `pods`, a line each.
fn differences(root: &Path, mounts: &[PathBuf], pods: &[ExpectedPod]) -> Vec<String> {
    let mut found = Vec::new();
    names(
        "pods",
        &root.join("pods"),
        pods.iter().map(|pod| pod.uid.clone()),
        &mut found,
    );
    let mut namespaces: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for pod in pods {
        namespaces
            .entry(&pod.namespace)
            .or_default()
            .insert(pod.name.clone());
    }
    let by_name = root.join("by-name");
    names(
        "by-name",
        &by_name,
        namespaces.keys().map(|name| (*name).to_owned()),
        &mut found,
    );
    for (namespace, pods) in namespaces {
        names(
            namespace,
            &by_name.join(namespace),
            pods.into_iter(),
            &mut found,
        );
    }
    for pod in pods {
        of_pod(root, pod, &mut found);
    }
    let served = |path: &Path| {
        pods.iter()
            .any(|pod| path.starts_with(root.join("pods").join(&pod.uid)))
    };
    let left = mounts.iter().filter(|path| !served(path));
    found.extend(left.map(|path| format!("still mounted: {}", path.display())));
    found
}

fn of_pod(root: &Path, pod: &ExpectedPod, found: &mut Vec<String>) {
    let (namespace, name) = (&pod.namespace, &pod.name);
    let directory = root.join("pods").join(&pod.uid);
    let link = fs::read_link(root.join("by-name").join(namespace).join(name));
    let target = Path::new("../../pods").join(&pod.uid);
    if link.as_ref().ok() != Some(&target) {
        found.push(format!(
            "{namespace}/{name}: by name {link:?}, not {}",
            target.display()
        ));
    }
    let volumes = directory.join("volumes");
    let mut plugins: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for volume in pod.volumes.keys() {
        let (plugin, volume) = volume.split_once('/').expect("plugin and volume");
        plugins.entry(plugin).or_default().insert(volume.to_owned());
    }
    for (plugin, expected) in plugins {
        names(
            &format!("{namespace}/{name} {plugin}"),
            &volumes.join(plugin),
            expected.into_iter(),
            found,
        );
    }
    for (volume, expected) in &pod.volumes {
        let what = format!("{namespace}/{name} {volume}");
        match files(&volumes.join(volume)) {
            Err(error) => found.push(format!("{what}: {error}")),
            Ok(files) => compare(&what, expected, &files, found),
        }
    }
    for (container, expected) in &pod.environments {
        let path = directory
            .join("containers")
            .join(container)
            .join("env.json");
        let what = format!("{namespace}/{name} environment of {container}");
        match environment(&path) {
            Err(error) => found.push(format!("{what}: {error}")),
            Ok(mut variables) => {
                variables.retain(|name, _| !name.starts_with("KUBERNETES_"));
                if variables != *expected {
                    let differing = expected
                        .iter()
                        .filter(|(name, value)| variables.get(*name) != Some(value));
                    let differing: Vec<_> = differing.map(|(name, _)| name).collect();
                    found.push(format!("{what}: differs in {differing:?} or has too much"));
                }
            }
        }
    }
}

fn environment(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Compares the entries of a directory with those that it should have. One that is not there has none.
fn names(
    what: &str,
    directory: &Path,
    expected: impl Iterator<Item = String>,
    found: &mut Vec<String>,
) {
    let expected: BTreeSet<_> = expected.collect();
    let entries = match entries(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
        Err(error) => return found.push(format!("{what}: {error}")),
    };
    for missing in expected.difference(&entries) {
        found.push(format!("{what}: {missing} is missing"));
    }
    for left in entries.difference(&expected) {
        found.push(format!("{what}: {left} is left over"));
    }
}

fn entries(directory: &Path) -> io::Result<BTreeSet<String>> {
    fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// A file as a container would find it.
struct Found {
    mode: u32,
    bytes: Vec<u8>,
}

/// The files of a volume, by path, read through the links that a container follows.
fn files(volume: &Path) -> io::Result<BTreeMap<String, Found>> {
    let mut files = BTreeMap::new();
    let entries = entries(volume)?;
    let (hidden, visible): (BTreeSet<_>, BTreeSet<_>) =
        entries.into_iter().partition(|name| name.starts_with(".."));
    if hidden.len() != 2 || !hidden.contains("..data") {
        return Err(io::Error::other(format!(
            "holds {hidden:?}, not ..data and one set"
        )));
    }
    for name in visible {
        walk(&volume.join(&name), &name, &mut files)?;
    }
    Ok(files)
}

fn walk(at: &Path, name: &str, files: &mut BTreeMap<String, Found>) -> io::Result<()> {
    let metadata = fs::metadata(at)?;
    if metadata.is_dir() {
        for below in entries(at)? {
            walk(&at.join(&below), &format!("{name}/{below}"), files)?;
        }
    } else {
        let found = Found {
            mode: metadata.mode() & 0o7777,
            bytes: fs::read(at)?,
        };
        files.insert(name.to_owned(), found);
    }
    Ok(())
}

fn compare(
    what: &str,
    expected: &BTreeMap<String, ExpectedFile>,
    files: &BTreeMap<String, Found>,
    found: &mut Vec<String>,
) {
    for (path, expected) in expected {
        let Some(file) = files.get(path) else {
            found.push(format!("{what}: {path} is missing"));
            continue;
        };
        if file.mode != expected.mode {
            found.push(format!(
                "{what}: {path} has mode {:o}, not {:o}",
                file.mode, expected.mode
            ));
        }
        match &expected.content {
            Content::Bytes(bytes) if *bytes != file.bytes => {
                let (is, should) = (head(&file.bytes), head(bytes));
                found.push(format!("{what}: {path} is {is:?}, not {should:?}"));
            }
            Content::TokenOf { pod_uid } if token_pod(&file.bytes).as_ref() != Some(pod_uid) => {
                found.push(format!("{what}: {path} is no token of {pod_uid}"));
            }
            _ => {}
        }
    }
    for path in files.keys().filter(|path| !expected.contains_key(*path)) {
        found.push(format!("{what}: {path} is left over"));
    }
}

/// Enough to see the generation.
fn head(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(24)]).into_owned()
}

/// The UID of the pod that a token is bound to.
fn token_pod(token: &[u8]) -> Option<String> {
    let token = std::str::from_utf8(token).ok()?;
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Some(claims["kubernetes.io"]["pod"]["uid"].as_str()?.to_owned())
}
