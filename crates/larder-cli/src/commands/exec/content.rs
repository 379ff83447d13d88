//! The content that hooks select: the files of the command's volumes, and its variables.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Volume;
use larder_actions::exec::Redactor;
use larder_on_change::{Changes, ContentDigest, DigestKey, Digester, Hook, Items};
use larder_projection::{VolumeKind, token_paths};
use zeroize::Zeroizing;

use super::target::{Contents, ExecTarget};

/// How often a volume is read again if an agent swaps it meanwhile.
const READS: u32 = 10;

/// The content of the command's volumes and variables at one time.
pub(super) struct Content {
    files: Vec<VolumeFile>,
    /// The names of the sets that the files are of.
    sets: Vec<String>,
    variables: Vec<(String, Zeroizing<Vec<u8>>)>,
    /// Everything else that the command is started with. A restart hook compares it, too.
    start: Zeroizing<Vec<u8>>,
}

/// One file of a volume.
struct VolumeFile {
    volume: String,
    path: String,
    is_token: bool,
    bytes: Zeroizing<Vec<u8>>,
}

impl Content {
    /// Reads the volumes at `directories`.
    ///
    /// # Errors
    ///
    /// A volume cannot be read, or the variables cannot be computed.
    pub(super) fn read(
        target: &ExecTarget,
        directories: &[(&Volume, PathBuf)],
        start: Zeroizing<Vec<u8>>,
    ) -> anyhow::Result<Self> {
        let (mut files, mut sets) = (Vec::new(), Vec::new());
        for (volume, directory) in directories {
            let tokens: Vec<_> = token_paths(volume).collect();
            let (set, read) = read_set(directory)?;
            sets.push(set);
            for (path, bytes) in read {
                files.push(VolumeFile {
                    volume: volume.name.clone(),
                    is_token: tokens.iter().any(|token| token.as_str() == path),
                    path,
                    bytes,
                });
            }
        }
        let variables = target.environment()?;
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, variable)| (name.to_owned(), Zeroizing::new(variable.value.to_vec())))
            .collect();
        Ok(Self {
            files,
            sets,
            variables,
            start,
        })
    }

    /// Finds the values that must not be logged: those of all Secrets that the pod reads. All that a command prints is
    /// withheld after a change of them, since nobody knows the values before it.
    pub(super) fn redactor(
        &self,
        target: &ExecTarget,
        directories: &[(&Volume, PathBuf)],
        changes: &Changes,
    ) -> Redactor {
        let may_hold_secrets = |name: &str| {
            let mut volumes = directories.iter().map(|(volume, _)| volume);
            let volume = volumes.find(|volume| volume.name == name);
            volume.is_some_and(|volume| volume.secret.is_some() || volume.projected.is_some())
        };
        let container = target.container();
        let is_literal = |name: &str| {
            let mut env = container.env.iter();
            env.any(|variable| variable.name == name && variable.value_from.is_none())
        };
        if changes
            .volumes
            .iter()
            .any(|volume| may_hold_secrets(&volume.name))
            || changes.variables.iter().any(|name| !is_literal(name))
        {
            return Redactor::all();
        }
        let mut values: Vec<&[u8]> = Vec::new();
        let tokens = self.files.iter().filter(|file| file.is_token);
        values.extend(tokens.map(|file| file.bytes.as_slice()));
        match &target.contents {
            Contents::Inputs(inputs) => {
                let secrets = inputs.secrets.values().flatten();
                values
                    .extend(secrets.flat_map(|secret| secret.data.values().map(|value| &**value)));
            }
            // The agent's files do not show which of them come from a Secret.
            Contents::Delivered(_) => {
                let files = self
                    .files
                    .iter()
                    .filter(|file| may_hold_secrets(&file.volume));
                values.extend(files.map(|file| file.bytes.as_slice()));
            }
        }
        // With what was made of a Secret's value.
        let read = self.variables.iter().filter(|(name, _)| !is_literal(name));
        values.extend(read.map(|(_, value)| value.as_slice()));
        let mut redactor = Redactor::new();
        for set in &self.sets {
            redactor.add_version(set.clone());
        }
        for value in values {
            if !redactor.add(value) {
                break;
            }
        }
        redactor
    }

    /// The part that `hook` selects.
    pub(super) fn of(&self, hook: &Hook, key: &DigestKey) -> (ContentDigest, Items) {
        let mut digester = Digester::new(key);
        for file in &self.files {
            if hook.selects_file(&file.volume, &file.path, file.is_token) {
                digester.file(&file.volume, &file.path, &file.bytes);
            }
        }
        if hook.environment {
            for (name, value) in &self.variables {
                digester.variable("", name, value);
            }
            if hook.restarts() {
                // No variable has this name.
                digester.variable("", "", &self.start);
            }
        }
        digester.finish_with_items()
    }
}

/// The volumes among `volumes` that larder fills.
pub(super) fn filled<'a>(
    volumes: impl Iterator<Item = &'a Volume>,
) -> impl Iterator<Item = &'a Volume> {
    volumes.filter(|volume| VolumeKind::of(volume).is_some())
}

/// A file of a volume: its path and bytes.
type ReadFile = (String, Zeroizing<Vec<u8>>);

/// The name of a volume's set, and the files of it.
fn read_set(directory: &Path) -> io::Result<(String, Vec<ReadFile>)> {
    let data = directory.join("..data");
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..READS {
        // A volume that has never been filled is empty.
        let Ok(set) = fs::read_link(&data) else {
            return Ok((String::new(), Vec::new()));
        };
        let mut files = Vec::new();
        match read_directory(&directory.join(&set), "", &mut files) {
            Ok(()) => return Ok((set.to_string_lossy().into_owned(), files)),
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
    use larder_on_change::parse::{HookOrigin, hooks};
    use serde_json::json;

    use super::{super::target::Delivered, *};

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
        let hook = hooks("signal:SIGHUP", HookOrigin::CommandLine, None)
            .unwrap()
            .remove(0);
        let key = DigestKey::temporary().unwrap();
        let volumes = [(
            &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0],
            folder.path().to_owned(),
        )];
        let digest = |token: &str| {
            fs::write(set.join("token"), token).unwrap();
            let content = Content::read(&target, &volumes, Zeroizing::default()).unwrap();
            content.of(&hook, &key).0
        };
        assert_eq!(digest("one"), digest("two"));
    }
}
