//! What kubectl takes and larder does not need: accepted, or rejected with the command to use instead.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use clap::{Arg, Command, Error, builder::TypedValueParser, error::ErrorKind};

/// Flags that change nothing, or whose error says what to use.
#[derive(Debug, clap::Args)]
pub(crate) struct KubectlArgs {
    /// The pods of all namespaces, as is the default
    #[arg(short = 'A', long, hide = true)]
    all_namespaces: bool,

    /// Not supported: kubectl makes manifests of a kustomization
    #[arg(short = 'k', long, value_name = "DIR", hide = true, value_parser = Kustomization)]
    kustomize: Option<Infallible>,
}

/// `-it` of `kubectl exec`: the command has the input and the terminal of larder in any case.
#[derive(Debug, clap::Args)]
pub(crate) struct TerminalArgs {
    #[arg(short = 'i', long, hide = true)]
    stdin: bool,
    #[arg(short = 't', long, hide = true)]
    tty: bool,
}

/// The value of `-k`, which is always an error.
#[derive(Clone, Copy, Debug)]
struct Kustomization;

impl TypedValueParser for Kustomization {
    type Value = Infallible;

    fn parse_ref(
        &self,
        command: &Command,
        _flag: Option<&Arg>,
        dir: &OsStr,
    ) -> Result<Self::Value, Error> {
        let (name, dir) = (command.get_name(), dir.to_string_lossy());
        let more = if name == "diff" {
            " --kubeconfig FILE"
        } else {
            ""
        };
        let why = format!(
            "kubectl makes manifests of a kustomization: kubectl kustomize {dir} | larder {name} -f -{more}\n"
        );
        Err(Error::raw(ErrorKind::InvalidValue, why).with_cmd(command))
    }
}

/// A path after `-f`. kubectl also takes URLs; larder does not, and names the command that downloads one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifestPath;

impl TypedValueParser for ManifestPath {
    type Value = PathBuf;

    fn parse_ref(
        &self,
        command: &Command,
        _flag: Option<&Arg>,
        path: &OsStr,
    ) -> Result<PathBuf, Error> {
        let text = path.to_string_lossy();
        if !text.starts_with("https://") && !text.starts_with("http://") {
            return Ok(path.into());
        }
        let name = command.get_name();
        let why =
            format!("larder fetches no manifests: curl -fsSL '{text}' | larder {name} -f -\n");
        Err(Error::raw(ErrorKind::InvalidValue, why).with_cmd(command))
    }
}

/// A subcommand of kubectl that larder has under another name.
#[derive(Debug, clap::Args)]
pub(crate) struct KubectlCommand {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<OsString>,
}

impl KubectlCommand {
    /// What to use instead: the pod that was named is in it.
    pub(crate) fn advice(&self, command: &str) -> String {
        let mut words = self.words.iter().map(|word| word.to_string_lossy());
        let mut names = Vec::new();
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                names.push(word);
            } else if !word.contains('=') {
                // The next word is its value, as nearly always.
                words.next();
            }
        }
        let pod = match names.as_slice() {
            [kind, name, ..] if ["pod", "pods", "po"].contains(&&**kind) => name,
            [name, ..] => name.strip_prefix("pod/").unwrap_or("NAMESPACE/POD"),
            [] => "NAMESPACE/POD",
        };
        format!(
            "larder has no {command}: `larder status {pod}` shows what the agent delivers to a pod, \
             `larder render -f FILE --pod {pod}` what its manifests say"
        )
    }
}
