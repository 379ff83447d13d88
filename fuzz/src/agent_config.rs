//! The agent's configuration file.

use std::{cell::OnceCell, fs, path::PathBuf};

use larder_agent::config::{Config, Flags, Host};
use tempfile::TempDir;

/// Reads an input. Returns whether it was accepted.
pub fn run(input: &[u8]) -> bool {
    thread_local! {
        static DIRECTORY: OnceCell<TempDir> = const { OnceCell::new() };
    }
    let path = DIRECTORY.with(|directory| {
        let directory =
            directory.get_or_init(|| TempDir::new().expect("a directory for temporary files"));
        directory.path().join("config.yaml")
    });
    fs::write(&path, input).expect("the directory is writable");
    let host = Host {
        name: "node-1".to_owned(),
        uid: 0,
        runtime_dir: None,
        temp_dir: PathBuf::from("/tmp"),
    };
    let loaded = Config::load(Some(&path), Flags::default(), &host);
    if let Ok((config, _)) = &loaded {
        assert!(!config.node_name.is_empty());
    }
    loaded.is_ok()
}
