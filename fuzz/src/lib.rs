//! Fuzz targets: each reads one input with a parser of outside input, and checks what must hold of the result.
//!
//! `targets/` has an executable for each, which `cargo fuzz` runs. The tests here run them on their corpus.

pub mod agent_config;
pub mod env_file;
pub mod expand;
pub mod git_tree;
pub mod hooks;
pub mod item_path;
pub mod list;
pub mod manifest;
pub mod patch;
pub mod quantity;
pub mod request;
pub mod sidecar;
pub mod watch;
pub mod x509;

use larder_apiserver::{ApiServer, Options};
use tokio::runtime::{Builder, Runtime};

/// Runs `future`, which never waits for anything outside the process.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: Runtime =
            Builder::new_current_thread().enable_time().build().expect("a runtime without I/O needs nothing");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// An API server in this process, with nothing from the input before.
fn server() -> ApiServer {
    thread_local!(static SERVER: ApiServer = ApiServer::new(Options::default().fill_namespaces(true)));
    SERVER.with(|server| server.emptied().expect("the machine gives random numbers"))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// Of one corpus. Each is read at every test, and is part of every clone.
    const MOST_INPUTS: usize = 40;

    type Read = fn(&[u8]) -> Option<()>;

    const TARGETS: &[(&str, Read)] = &[
        ("agent_config", agent_config::run),
        ("env_file", env_file::run),
        ("expand", expand::run),
        ("git_tree", git_tree::run),
        ("hooks", hooks::run),
        ("item_path", item_path::run),
        ("list", list::run),
        ("manifest", manifest::run),
        ("patch", patch::run),
        ("quantity", quantity::run),
        ("request", request::run),
        ("sidecar", sidecar::run),
        ("watch", watch::run),
        ("x509", x509::run),
    ];

    #[test]
    fn every_target_bears_its_corpus_and_accepts_a_part_of_it() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (name, read) in TARGETS {
            let inputs = fs::read_dir(directory.join("corpus").join(name)).unwrap();
            let inputs: Vec<_> = inputs
                .map(|input| fs::read(input.unwrap().path()).unwrap())
                .collect();
            assert!(
                inputs.len() <= MOST_INPUTS,
                "{name}: {} inputs; `.ci/fuzz {name} --keep` chooses",
                inputs.len()
            );
            assert!(
                inputs.iter().filter_map(|input| read(input)).count() > 0,
                "{name}"
            );
        }
    }

    #[test]
    fn every_target_has_an_executable_for_cargo_fuzz() {
        let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("targets")).unwrap();
        let executables: BTreeSet<_> = files
            .map(|file| file.unwrap().path().file_stem().unwrap().to_owned())
            .collect();
        let names = TARGETS.iter().map(|(name, _)| (*name).into());
        assert_eq!(executables, names.collect());
    }
}
