//! The containers that logs can be read of and commands be run in.

use std::{collections::HashMap, path::PathBuf};

use parking_lot::Mutex;

use crate::stage::Identity;

/// Namespace, pod and container.
pub(crate) type ContainerKey = (String, String, String);

/// One container.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The log of its last run.
    pub(crate) log: PathBuf,
    /// Its first process, and as what it runs; `None` while it does not run.
    pub(crate) process: Option<(u32, Identity)>,
}

/// All containers of the node.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<HashMap<ContainerKey, Entry>>);

impl Registry {
    pub(crate) fn get(&self, key: &ContainerKey) -> Option<Entry> {
        self.0.lock().get(key).cloned()
    }

    pub(crate) fn started(&self, key: ContainerKey, log: PathBuf, process: (u32, Identity)) {
        self.0.lock().insert(
            key,
            Entry {
                log,
                process: Some(process),
            },
        );
    }

    pub(crate) fn ended(&self, key: &ContainerKey) {
        if let Some(entry) = self.0.lock().get_mut(key) {
            entry.process = None;
        }
    }

    pub(crate) fn remove_pod(&self, namespace: &str, pod: &str) {
        let is_of_pod = |key: &ContainerKey| key.0 == namespace && key.1 == pod;
        self.0.lock().retain(|key, _| !is_of_pod(key));
    }
}
