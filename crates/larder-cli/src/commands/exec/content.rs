//! The content that hooks select: the files of the command's volumes, and its variables.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Volume;
use larder_on_change::{DigestKey, PartContent, PartKey, PartTags, PodHooks};
use larder_projection::VolumeKind;
use zeroize::Zeroizing;

use super::target::ExecTarget;

/// How often a volume is read again if an agent swaps it meanwhile.
const READS: u32 = 10;

/// What hooks select of the volumes at `directories` and of the variables. `start` stands for everything else that the
/// command is started with, which a restart hook compares, too.
///
/// # Errors
///
/// A volume cannot be read, or the variables cannot be computed.
pub(super) fn content(
    target: &ExecTarget,
    directories: &[(&Volume, PathBuf)],
    start: &[u8],
    (hooks, key): (&PodHooks, &DigestKey),
) -> anyhow::Result<Vec<(PartKey, Arc<PartContent>)>> {
    let mut parts = Vec::new();
    let mut add = |part, tags: Option<PartTags>| {
        let swapped = None;
        parts.extend(tags.map(|tags| (part, Arc::new(PartContent { tags, swapped }))));
    };
    for (volume, directory) in directories {
        let Some(kind) = VolumeKind::of(volume) else {
            continue;
        };
        let part = PartKey::Volume(volume.name.as_str().into(), kind);
        if hooks.selects_part(&part) {
            let files = read_set(directory)?.into_iter();
            let tags = PartTags::of(hooks, &part, files, key);
            add(part, tags);
        }
    }
    let part = PartKey::Environment(target.container.as_str().into());
    let variables = target.environment()?;
    let variables = variables.iter();
    let variables = variables.map(|(name, variable)| (name, &*variable.value));
    // No variable has this name.
    let all = variables.chain([("", start)]);
    let tags = PartTags::of(hooks, &part, all, key);
    add(part, tags);
    Ok(parts)
}

/// The volumes among `volumes` that larder fills.
pub(super) fn filled<'a>(
    volumes: impl Iterator<Item = &'a Volume>,
) -> impl Iterator<Item = &'a Volume> {
    volumes.filter(|volume| VolumeKind::of(volume).is_some())
}

/// A file of a volume: its path and bytes.
type ReadFile = (String, Zeroizing<Vec<u8>>);

/// The files of a volume's set.
fn read_set(directory: &Path) -> io::Result<Vec<ReadFile>> {
    let data = directory.join("..data");
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..READS {
        // A volume that has never been filled is empty.
        let Ok(set) = fs::read_link(&data) else {
            return Ok(Vec::new());
        };
        let mut files = Vec::new();
        match read_directory(&directory.join(&set), "", &mut files) {
            Ok(()) => return Ok(files),
            // The set was removed: there is another one.
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn read_directory(directory: &Path, prefix: &str, files: &mut Vec<ReadFile>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read_directory(&entry.path(), &format!("{path}/"), files)?;
        } else {
            files.push((path, Zeroizing::new(fs::read(entry.path())?)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Pod;
    use larder_on_change::{
        PodOutline,
        parse::{HookOrigin, hooks},
    };
    use serde_json::json;

    use super::{
        super::target::{Contents, Delivered},
        *,
    };

    #[test]
    fn renewal_of_a_token_fires_nothing_however_its_path_is_written() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {
                "containers": [{"name": "c"}],
                "volumes": [{"name": "v", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "./token"}},
                ]}}],
            },
        }))
        .unwrap();
        let target = ExecTarget {
            pod: pod.clone(),
            container: "c".to_owned(),
            contents: Contents::Delivered(Delivered {
                variables: BTreeMap::new(),
                environment: PathBuf::new(),
                volumes: BTreeMap::new(),
            }),
        };
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("..2026");
        fs::create_dir(&set).unwrap();
        std::os::unix::fs::symlink("..2026", folder.path().join("..data")).unwrap();
        let hooks = hooks("signal:SIGHUP", HookOrigin::CommandLine, None).unwrap();
        let outline = PodOutline::of(&pod);
        let hooks = PodHooks::of_command(hooks.into_iter().map(Arc::new), &outline);
        let key = DigestKey::temporary().unwrap();
        let volumes = [(
            &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0],
            folder.path().to_owned(),
        )];
        let tags = |token: &str| {
            fs::write(set.join("token"), token).unwrap();
            let parts = content(&target, &volumes, b"", (&hooks, &key)).unwrap();
            parts[0].1.tags.clone()
        };
        assert_eq!(tags("one"), tags("two"));
    }
}
