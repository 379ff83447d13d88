//! The agent's configuration file.

use std::{cell::OnceCell, fs, path::PathBuf};

use larder_agent::config::{Config, Flags, Host};
use tempfile::TempDir;

use super::Target;
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target {
    name: "agent_config",
    run,
    seeds: &[
        "nodeName: n\nrootDir: /r\nlisten: 127.0.0.1:8080\n",
        "apiVersion: larder.dev/v1alpha1\nkind: AgentConfiguration\nsyncFrequency: 1m\n",
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodPath: /p\nstaticPodURL: http://h/p\n\
         staticPodURLHeader: {A: [b]}\nconfigMapAndSecretChangeDetectionStrategy: Cache\nmaxPods: 5\n",
        "onChange:\n- {pods: {namespace: n}, signal: SIGHUP, volumes: [v]}\n",
    ],
    more_seeds: Vec::new,
    structure: Structure::Tree { prefix: 0 },
    max_length: 8 << 10,
};

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
