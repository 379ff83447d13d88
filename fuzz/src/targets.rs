//! The targets: each reads one input with a parser of outside input, and checks what must hold of the result.

mod agent_config;
mod env_file;
mod expand;
mod hooks;
mod item_path;
mod list;
mod manifest;
mod patch;
mod quantity;
mod watch;
mod x509;

use std::{cell::RefCell, fs, path::Path};

use tokio::runtime::{Builder, Runtime};

use crate::{outcome::Outcome, structure::Structure};

/// A function that reads hostile bytes.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    reader: Reader,
    /// Inputs beside those of the corpus, made when a campaign begins.
    pub(crate) more_seeds: fn() -> Vec<Vec<u8>>,
    /// How inputs are built.
    pub(crate) structure: Structure,
    /// Longest input, in bytes.
    pub(crate) max_length: usize,
}

/// Reads an input. Panics if something does not hold of it.
enum Reader {
    OfBytes(fn(&[u8]) -> Outcome),
    /// What is no text is rejected.
    OfText(fn(&str) -> Outcome),
}

impl Target {
    const fn new(
        name: &'static str,
        reader: Reader,
        structure: Structure,
        max_length: usize,
    ) -> Self {
        Self {
            name,
            reader,
            more_seeds: Vec::new,
            structure,
            max_length,
        }
    }

    pub(crate) fn run(&self, input: &[u8]) -> Outcome {
        match (&self.reader, str::from_utf8(input)) {
            (Reader::OfBytes(read), _) => read(input),
            (Reader::OfText(read), Ok(text)) => read(text),
            (Reader::OfText(_), Err(_)) => Outcome::rejected(&"not UTF-8 text"),
        }
    }
}

/// All targets, by name.
pub(crate) const TARGETS: [Target; 11] = [
    agent_config::TARGET,
    env_file::TARGET,
    expand::TARGET,
    hooks::TARGET,
    item_path::TARGET,
    list::TARGET,
    manifest::TARGET,
    patch::TARGET,
    quantity::TARGET,
    watch::TARGET,
    x509::TARGET,
];

/// A file of the repository, read when it is needed: the package of this crate has none of those outside its folder.
pub(crate) fn repository_file(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs `future`, which never waits for anything outside the process.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: RefCell<Runtime> = RefCell::new(
            Builder::new_current_thread().enable_time().build().expect("a runtime without I/O needs nothing"),
        );
    }
    RUNTIME.with_borrow(|runtime| runtime.block_on(future))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::corpus;

    #[test]
    fn every_target_bears_its_corpus() {
        for target in &TARGETS {
            let mut inputs = corpus(Path::new(env!("CARGO_MANIFEST_DIR")), target).unwrap();
            inputs.extend((target.more_seeds)());
            let accepted = inputs
                .iter()
                .filter(|input| target.run(input).is_accepted)
                .count();
            assert!(
                accepted > 0,
                "{} accepts none of its {} inputs",
                target.name,
                inputs.len()
            );
        }
    }
}
