//! The hooks of the command, whose rounds the supervisor runs, and the content that they select: the files of the
//! command's volumes, and its variables.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Volume;
use larder_console as console;
use larder_on_change::{
    Attempt, AttemptEnd, DigestKey, Hook, HookId, HookState, Now, PartContent, PartKey, PartTags,
    Past, PodHooks, PodOutline, Schedule,
};
use larder_projection::VolumeKind;
use smol_str::SmolStr;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::target::ExecTarget;

/// The command, which is the only application here.
const COMMAND: SmolStr = SmolStr::new_static("");
/// How often a volume is read again if an agent swaps it meanwhile.
const READS: u32 = 10;

/// The hooks, and what they know of the command.
pub(crate) struct CommandHooks {
    hooks: Arc<PodHooks>,
    schedule: Schedule<()>,
    key: DigestKey,
}

impl CommandHooks {
    /// Hooks that start from the first content that they observe (rule P7).
    pub(crate) fn new(hooks: Vec<Hook>, outline: &PodOutline) -> anyhow::Result<Self> {
        let hooks = hooks.into_iter().map(Arc::new);
        let hooks = Arc::new(PodHooks::of_command(hooks, outline));
        let mut schedule = Schedule::of_one(Some(fastrand::Rng::new()));
        let key = DigestKey::temporary()?;
        let (all, now) = (Arc::clone(&hooks), crate::now());
        schedule.adopt(&COMMAND, (), all, &Past::default(), &key, now);
        Ok(Self {
            hooks,
            schedule,
            key,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.hooks.is_empty()
    }

    /// Whether one restarts the command when its variables have changed.
    pub(crate) fn restart_for_variables(&self) -> bool {
        let mut hooks = self.hooks.hooks.iter();
        hooks.any(|found| found.hook.environment && found.hook.restarts())
    }

    /// Everything that has changed together is in place (rule F1): the volumes at `directories`, the variables, and
    /// everything else that the command is started with, for which `start` stands.
    ///
    /// # Errors
    ///
    /// A volume cannot be read, or the variables cannot be computed.
    pub(crate) fn observe(
        &mut self,
        target: &ExecTarget,
        directories: &[(&Volume, PathBuf)],
        start: &[u8],
    ) -> anyhow::Result<()> {
        let content = content(target, directories, start, &self.hooks, &self.key)?;
        self.schedule.pass(&COMMAND, content, &self.key, now());
        Ok(())
    }

    /// The attempts that begin now, and when to ask again.
    pub(crate) fn due(&mut self) -> (Vec<Attempt<()>>, Option<Instant>) {
        self.schedule.due(now())
    }

    /// An attempt is over, for this reason if it has failed.
    pub(crate) fn ended(&mut self, id: HookId, failure: Option<&str>) {
        let end = AttemptEnd::of(failure, String::new());
        let Some(ended) = self.schedule.ended(id, &end, now()) else {
            return;
        };
        let name = &ended.hook;
        if ended.is_news || failure.is_none() && ended.was_reported {
            let result = failure.unwrap_or("succeeded");
            console::note(format_args!("on change, {name}: {result}"));
        }
        if ended.state == HookState::Failing {
            console::note(format_args!(
                "on change, {name}: gave up until the next change"
            ));
        }
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        time: crate::now(),
    }
}

/// What hooks select of the volumes at `directories` and of the variables. A restart hook compares `start`, too.
fn content(
    target: &ExecTarget,
    directories: &[(&Volume, PathBuf)],
    start: &[u8],
    hooks: &PodHooks,
    key: &DigestKey,
) -> anyhow::Result<Vec<(PartKey, Arc<PartContent>)>> {
    let (mut parts, left_out) = (Vec::new(), target.left_out());
    let mut add = |part, tags: Option<PartTags>| {
        let part_content = |tags: PartTags| {
            let (tags, swapped) = (tags.leaving_out(&left_out), None);
            Arc::new(PartContent { tags, swapped })
        };
        parts.extend(tags.map(|tags| (part, part_content(tags))));
    };
    for (volume, directory) in directories {
        let Some(kind) = VolumeKind::of(volume) else {
            continue;
        };
        let part = PartKey::Volume(volume.name.as_str().into(), kind);
        if hooks.selects_part(&part) {
            let objects = target.objects_of_files(volume);
            let files = read_set(directory)?.into_iter().map(|(path, bytes)| {
                let object = objects.get(&path).copied();
                (path, (bytes, object))
            });
            let tags = PartTags::of_items(hooks, &part, files, |(bytes, object)| {
                (key.tag(&bytes), object)
            });
            add(part, tags);
        }
    }
    let part = PartKey::Environment(target.container.as_str().into());
    let environment = target.environment()?;
    let objects = target.objects_of_variables(&environment);
    let variables = environment.iter().map(|(name, variable)| {
        let object = objects.get(name).copied();
        (name, (&*variable.value, object))
    });
    // No variable has this name.
    let all = variables.chain([("", (start, None))]);
    let tags = PartTags::of_items(hooks, &part, all, |(bytes, object)| {
        (key.tag(bytes), object)
    });
    add(part, tags);
    Ok(parts)
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

    use super::*;
    use crate::target::{Contents, Delivered, LeftOutItems, SharedDirectory};

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
                shared: SharedDirectory::Foreign,
                left_out: LeftOutItems::default(),
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
            let parts = content(&target, &volumes, b"", &hooks, &key).unwrap();
            parts[0].1.tags.clone()
        };
        assert_eq!(tags("one"), tags("two"));
    }
}
