//! The changes since the last success of a hook, as its commands see them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use larder_objects::PodIdentity;
use serde::Serialize;
use smol_str::SmolStr;

use crate::round_id::RoundId;

/// A delivered change of a pod's content, of which one attempt of a hook notifies the application.
#[derive(Clone, Debug)]
pub struct PodChange {
    /// The pod.
    pub pod: PodIdentity,
    /// Name of the hook.
    pub hook: String,
    /// All attempts of a round have the same.
    pub round: RoundId,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The differences from the content of the last success, with the directories of volumes.
    pub changes: Changes,
}

/// The changes that a round is about, in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// The volumes whose content changed.
    pub volumes: Vec<VolumeChange>,
    /// Names of variables that were changed, added or removed.
    pub variables: Vec<String>,
}

/// A volume whose content changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VolumeChange {
    /// Its name.
    pub name: SmolStr,
    /// The directory with its files, as the reader of the changes sees it.
    pub directory: PathBuf,
    /// Paths of new files.
    pub added: Vec<String>,
    /// Paths of changed files.
    pub changed: Vec<String>,
    /// Paths of removed files.
    pub removed: Vec<String>,
}

impl VolumeChange {
    /// The number of files that differ.
    pub fn files(&self) -> usize {
        self.added.len() + self.changed.len() + self.removed.len()
    }
}

impl Changes {
    /// Sets the directories of volumes, as far as they are known.
    pub fn locate(&mut self, directories: &BTreeMap<SmolStr, PathBuf>) {
        for volume in &mut self.volumes {
            if let Some(directory) = directories.get(&volume.name) {
                volume.directory.clone_from(directory);
            }
        }
    }

    /// `volumes`, `environment`, or both with a comma; empty for a round without a change (`initial`).
    pub fn reason(&self) -> &'static str {
        match (self.volumes.is_empty(), self.variables.is_empty()) {
            (true, true) => "",
            (false, true) => "volumes",
            (true, false) => "environment",
            (false, false) => "volumes,environment",
        }
    }

    /// The names of the volumes, with blanks between them.
    pub fn volume_names(&self) -> String {
        self.volumes
            .iter()
            .map(|volume| &*volume.name)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// As text for logs and events: names only.
    pub fn summary(&self) -> String {
        let volumes: BTreeSet<_> = self.volumes.iter().map(|volume| &*volume.name).collect();
        let variables = self.variables.iter().map(String::as_str).collect();
        let part = |what: &str, names: BTreeSet<&str>| {
            let names: Vec<_> = names.into_iter().collect();
            match names.as_slice() {
                [] => None,
                [one] => Some(format!("{what} {one} changed")),
                _ => Some(format!("{what}s {} changed", names.join(", "))),
            }
        };
        [part("volume", volumes), part("variable", variables)]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// The content of the file that `LARDER_CHANGES` names.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and paths of UTF-8 have a form in JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_names_volumes_and_variables() {
        let volume = |name: &str| VolumeChange {
            name: name.into(),
            ..VolumeChange::default()
        };
        let mut changes = Changes::default();
        assert_eq!((changes.summary().as_str(), changes.reason()), ("", ""));
        changes.variables = vec!["LOG_LEVEL".to_owned()];
        assert_eq!(changes.summary(), "variable LOG_LEVEL changed");
        assert_eq!(changes.reason(), "environment");
        changes.volumes = vec![volume("a"), volume("b")];
        assert_eq!(
            changes.summary(),
            "volumes a, b changed; variable LOG_LEVEL changed"
        );
        assert_eq!(changes.reason(), "volumes,environment");
        assert_eq!(changes.volume_names(), "a b");
    }
}
