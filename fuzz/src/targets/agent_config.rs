//! The agent's configuration file.

use std::{cell::OnceCell, fs, path::PathBuf};

use larder_agent::config::{Config, Flags, Host};
use tempfile::TempDir;

use super::{Reader::OfBytes, Target};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target::new(
    "agent_config",
    OfBytes(run),
    Structure::Tree { prefix: 0 },
    8 << 10,
);

fn run(input: &[u8]) -> Outcome {
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
    match Config::load(Some(&path), Flags::default(), &host) {
        Ok((config, warning)) => {
            assert!(!config.node_name.is_empty());
            Outcome::accepted().with(&warning.unwrap_or_default())
        }
        Err(error) => Outcome::rejected(&larder_objects::chain(&error)),
    }
}
