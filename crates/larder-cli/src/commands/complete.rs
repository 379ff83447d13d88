//! Completion in shells. The scripts of `larder completion` call larder back at each Tab, so that it offers names: pods
//! and containers of the manifests on the command line, or of the running agent, contexts of the kubeconfig, revisions of
//! the repository.
//!
//! Invariants:
//! 1. Nothing but candidates is printed. What cannot be read offers nothing.
//! 2. No cluster is asked, no standard input is read, and an agent is waited for no longer than [`PATIENCE`].

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use clap::{Arg, CommandFactory as _};
use clap_complete::{
    engine::{ArgValueCandidates, CompletionCandidate, complete},
    env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh},
};
use larder_exec::{ANCHOR, STAGE};
use larder_objects::manifest::{Loader, Manifest};
use larder_projection::containers;
use larder_transport::ClusterSource;
use serde_json::Value;

use crate::{
    agent::{AgentClient, client_config},
    args::{Args, CompletionArgs, PlaceArgs, kubectl_kubeconfig},
    outcome::Failure,
    output,
};

/// The name of the command, in every script.
const NAME: &str = "larder";
/// The variable by which a script asks, for the shell that it names.
const ASKING: &str = "LARDER_COMPLETE";
/// Longest wait for an agent, while a person waits for the shell.
const PATIENCE: Duration = Duration::from_secs(1);
/// The shells that scripts are printed for, and kubectl, which completes `kubectl larder …`.
const SHELLS: Shells<'static> = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh, &Kubectl]);

/// Prints the script of a shell.
pub(super) fn script(args: &CompletionArgs) -> Result<ExitCode, Failure> {
    let shell = SHELLS
        .completer(args.shell.as_str())
        .expect("every shell has a script");
    let mut script = Vec::new();
    shell
        .write_registration(ASKING, NAME, NAME, NAME, &mut script)
        .map_err(anyhow::Error::from)?;
    output::results(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Answers a shell, if one asks.
pub(crate) fn answer() -> Option<ExitCode> {
    let shell = CompleteEnv::with_factory(offered)
        .var(ASKING)
        .shells(SHELLS);
    let directory = env::current_dir().ok();
    match shell.try_complete(env::args_os(), directory.as_deref()) {
        Ok(true) => Some(ExitCode::SUCCESS),
        Ok(false) => None,
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// The command without what only larder itself runs, with the names of everything that has some.
fn offered() -> clap::Command {
    let whole = Args::command();
    let all = whole.get_subcommands();
    let public = all.filter(|command| ![STAGE, ANCHOR].contains(&command.get_name()));
    clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(public.map(|command| command.clone().mut_args(with_names)))
}

/// Arguments of one name take the same values in every subcommand.
fn with_names(arg: Arg) -> Arg {
    let names: fn() -> BTreeSet<String> = match arg.get_id().as_str() {
        "pod" | "pods" => pod_names,
        "container" => container_names,
        "namespace" => namespaces,
        "context" => contexts,
        "from" | "to" => revisions,
        _ => return arg,
    };
    let candidates = move || {
        // Shells print names as they are, and manifests may be a stranger's.
        names()
            .into_iter()
            .filter(|name| !name.contains(char::is_control))
            .map(CompletionCandidate::new)
            .collect()
    };
    arg.add(ArgValueCandidates::new(candidates))
}

/// The values that the command line has so far for a flag with these names: up to the next flag.
fn given(names: &[&str]) -> Vec<OsString> {
    let words = env::args_os().skip_while(|word| word != "--").skip(1);
    values_of(words, names)
}

fn values_of(words: impl Iterator<Item = OsString>, names: &[&str]) -> Vec<OsString> {
    let (mut values, mut is_named) = (Vec::new(), false);
    for word in words {
        let text = word.to_string_lossy();
        let (flag, value) = text.split_once('=').unwrap_or((&text, ""));
        if text.starts_with('-') && text != "-" {
            is_named = names.contains(&flag) && value.is_empty();
            if names.contains(&flag) && !value.is_empty() {
                values.push(value.into());
            }
        } else if is_named && !word.is_empty() {
            values.push(word);
        }
    }
    values
}

fn path_given(names: &[&str]) -> Option<PathBuf> {
    given(names).into_iter().next().map(PathBuf::from)
}

fn text_given(names: &[&str]) -> Option<String> {
    given(names).into_iter().next()?.into_string().ok()
}

/// A pod that the command line could mean.
struct NamedPod {
    namespace: String,
    name: String,
    containers: Vec<String>,
}

impl NamedPod {
    fn is_called(&self, name: &str) -> bool {
        let Self {
            namespace,
            name: own,
            ..
        } = self;
        name == own || name.split_once('/') == Some((namespace, own))
    }
}

/// The pods of the manifests, or of the agent if the command line names no manifests.
fn pods() -> Vec<NamedPod> {
    let files = given(&["-f", "--filename", "--from-file", "--to-file"]);
    if files.is_empty() {
        return pods_of_agent().unwrap_or_default();
    }
    let namespace = text_given(&["-n", "--namespace"]);
    let mut loader = Loader::new(namespace.as_deref().unwrap_or("default")).by_workload();
    for file in files.iter().filter(|file| *file != "-") {
        loader.path(Path::new(file));
    }
    let documents = loader.finish().documents.into_iter();
    let pods = documents.filter_map(|document| {
        let Manifest::Pod(pod) = document.manifest else {
            return None;
        };
        Some(NamedPod {
            containers: containers(&pod).map(|one| one.name.to_owned()).collect(),
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
        })
    });
    pods.collect()
}

fn pods_of_agent() -> Option<Vec<NamedPod>> {
    let place = PlaceArgs {
        root_dir: path_given(&["--root-dir"]),
        config: path_given(&["--config"]),
    };
    let root_dir = client_config(&place).ok()?.root_dir;
    let agent = AgentClient::new(&root_dir).ok()?.within(PATIENCE);
    let list: Value = agent.ask("/v1/pods").ok()??;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = list["pods"].as_array()?.iter().map(|pod| {
        let containers = pod["containers"].as_array().into_iter().flatten();
        NamedPod {
            namespace: text(&pod["namespace"]),
            name: text(&pod["name"]),
            containers: containers.map(|one| text(&one["name"])).collect(),
        }
    });
    Some(pods.collect())
}

/// `NAMESPACE/NAME`, or names if the command line has the namespace.
fn pod_names() -> BTreeSet<String> {
    let given = text_given(&["-n", "--namespace"]);
    pods()
        .into_iter()
        .filter_map(|pod| match &given {
            None => Some(format!("{}/{}", pod.namespace, pod.name)),
            Some(namespace) => (pod.namespace == *namespace).then_some(pod.name),
        })
        .collect()
}

/// Of the pod on the command line, or of all.
fn container_names() -> BTreeSet<String> {
    let wanted = text_given(&["--pod"]);
    let is_wanted = |pod: &NamedPod| wanted.as_ref().is_none_or(|name| pod.is_called(name));
    pods()
        .into_iter()
        .filter(is_wanted)
        .flat_map(|pod| pod.containers)
        .collect()
}

fn namespaces() -> BTreeSet<String> {
    pods().into_iter().map(|pod| pod.namespace).collect()
}

/// Of the kubeconfig on the command line, or of kubectl's.
fn contexts() -> BTreeSet<String> {
    let file = path_given(&["--kubeconfig"]).or_else(|| kubectl_kubeconfig().ok());
    let contexts = file.and_then(|path| {
        let context = None;
        ClusterSource::Kubeconfig { path, context }.contexts().ok()
    });
    contexts.into_iter().flatten().collect()
}

/// Branches and tags of the repository of the manifests.
fn revisions() -> BTreeSet<String> {
    let path = path_given(&["-f", "--filename"]).unwrap_or_else(|| ".".into());
    let directory = match path.parent() {
        Some(parent) if !path.is_dir() && parent != Path::new("") => parent,
        Some(_) if !path.is_dir() => Path::new("."),
        _ => &path,
    };
    let mut git = Command::new("git");
    git.arg("-C").arg(directory);
    git.args(["for-each-ref", "--format=%(refname:short)"]);
    git.args(["refs/heads", "refs/tags", "refs/remotes"]);
    git.env("GIT_OPTIONAL_LOCKS", "0");
    let output = git.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let names = output.map(|output| output.stdout).unwrap_or_default();
    let names = String::from_utf8_lossy(&names);
    names.lines().chain(["HEAD"]).map(str::to_owned).collect()
}

/// kubectl runs `kubectl_complete-larder` with the words so far, and reads candidates with their help, one a line, and a
/// directive at the end.
#[derive(Clone, Copy, Debug)]
struct Kubectl;

/// kubectl offers no files of its own.
const NO_FILES: u8 = 4;
/// It appends no blank.
const NO_SPACE: u8 = 2;

impl EnvCompleter for Kubectl {
    fn name(&self) -> &'static str {
        "kubectl"
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(
        &self,
        variable: &str,
        _: &str,
        _: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        writeln!(out, "#!/bin/sh")?;
        writeln!(
            out,
            "{variable}={} exec {completer} -- {completer} \"$@\"",
            self.name()
        )
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let last = words.len().saturating_sub(1);
        let candidates = complete(command, words, last, directory)?;
        let is_open = |value: &OsStr| value.as_encoded_bytes().ends_with(b"/");
        let stays_open = candidates.iter().any(|one| is_open(one.get_value()));
        for candidate in candidates {
            let help = candidate.get_help().map(ToString::to_string);
            let help = help.as_deref().and_then(|help| help.lines().next());
            let value = candidate.get_value().to_string_lossy();
            writeln!(out, "{value}\t{}", help.unwrap_or_default())?;
        }
        let directive = NO_FILES | if stays_open { NO_SPACE } else { 0 };
        writeln!(out, ":{directive}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_flag_end_at_the_next_one() {
        let words = [
            "larder",
            "render",
            "-f",
            "a",
            "b",
            "--pod",
            "x",
            "--filename=c",
            "",
            "d",
            "-f",
            "-",
        ];
        let words = || words.iter().map(OsString::from);
        assert_eq!(
            values_of(words(), &["-f", "--filename"]),
            ["a", "b", "c", "-"]
        );
        assert_eq!(values_of(words(), &["--pod"]), ["x"]);
        assert!(values_of(words(), &["--context"]).is_empty());
    }
}
