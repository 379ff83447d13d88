//! The agent's configuration file.

use std::{fs, path::PathBuf};

use larder_agent::config::{Config, Flags, Host};
use tempfile::TempDir;

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    thread_local! {
        static DIRECTORY: TempDir = TempDir::new().expect("a directory for temporary files");
    }
    let path = DIRECTORY.with(|directory| directory.path().join("config.yaml"));
    fs::write(&path, input).expect("the directory is writable");
    let host = Host {
        name: "node-1".to_owned(),
        uid: 0,
        runtime_dir: None,
        temp_dir: PathBuf::from("/tmp"),
    };
    let (config, _) = Config::load(Some(&path), Flags::default(), &host).ok()?;
    assert!(!config.node_name.is_empty());
    Some(())
}
