//! kubectl flags that larder does not need: accepted, or rejected with the command to use instead.

use std::{convert::Infallible, ffi::OsStr};

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
