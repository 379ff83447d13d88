//! The parsed command line.

mod agent;
#[cfg(feature = "manifests")]
mod apiserver;
mod diff;
mod exec;
mod kubectl;
mod manifests;
mod on_change;
pub(crate) mod sidecar;
mod status;
mod values;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use larder_exec::{ANCHOR, STAGE};

#[cfg(feature = "manifests")]
pub(crate) use self::apiserver::ApiserverArgs;
pub(crate) use self::{
    agent::{
        CheckpointAction, CheckpointArgs, CheckpointOutput, CleanArgs, LogLevelArgs, PlaceArgs,
        RunArgs, UiArgs,
    },
    diff::{DiffArgs, DiffOutput, FailOn},
    exec::ExecArgs,
    kubectl::KubectlCommand,
    manifests::{ManifestArgs, ReadingArgs, RefsArgs, RefsOutput, RenderArgs, RenderOutput},
    sidecar::{ReloadArgs, SidecarArgs},
    status::{HealthCheck, StatusArgs, StatusOutput},
    values::{LogFormat, PodName, kubectl_kubeconfig},
};

/// Deliver ConfigMaps and Secrets to pods as the kubelet does, without a kubelet
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes:
  0  everything succeeded
  1  something requested failed, and the rest was done
  2  bad usage, or unreadable input

Examples:
  larder render -f app.yaml --pod prod/web     see what a container will see; works offline
  larder diff -f k8s/ --from main              see what changes for each container, and what must restart
  larder run --manifests examples/             serve the volumes, and follow edits of the manifests
  larder status                                show what is delivered, and what is pending
  larder exec -f app.yaml -- ./server          run a program with a container's view"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Status(StatusArgs),
    Ui(UiArgs),
    Checkpoint(CheckpointArgs),
    Clean(CleanArgs),
    LogLevel(LogLevelArgs),
    Render(RenderArgs),
    Diff(DiffArgs),
    Refs(RefsArgs),
    #[cfg(feature = "manifests")]
    Apiserver(ApiserverArgs),
    Exec(Box<ExecArgs>),
    Sidecar(Box<SidecarArgs>),
    /// Become the command of `larder exec`; started by it
    #[command(hide = true, name = STAGE)]
    ExecStage {
        /// File with the plan
        plan: PathBuf,
    },
    #[command(hide = true, name = ANCHOR)]
    ExecAnchor,
    Completion(CompletionArgs),
    Man(ManArgs),
    #[command(hide = true)]
    Describe(KubectlCommand),
    #[command(hide = true)]
    Get(KubectlCommand),
}

/// Print a completion script
///
/// It completes subcommands, flags and values, and the names of pods, containers, namespaces, contexts and revisions: of
/// the manifests after -f, else of the running agent; of the kubeconfig; of the repository. No cluster is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder completion bash > /etc/bash_completion.d/larder
  source <(larder completion zsh)
  larder completion kubectl > /usr/local/bin/kubectl_complete-larder")]
pub(crate) struct CompletionArgs {
    /// The shell; or kubectl, for the program kubectl_complete-larder that completes `kubectl larder`
    pub(crate) shell: CompletedShell,
}

/// What scripts of completion are printed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedShell {
    Bash,
    Elvish,
    Fish,
    Kubectl,
    Powershell,
    Zsh,
}

impl CompletedShell {
    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::Kubectl => "kubectl",
            Self::Powershell => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

/// Print the manual page of larder, or of one of its subcommands
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder man | man -l -
  larder man render > larder-render.1")]
pub(crate) struct ManArgs {
    /// The subcommand
    pub(crate) subcommand: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn clap_accepts_the_definition() {
        Args::command().debug_assert();
    }
}
