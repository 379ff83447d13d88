//! The origin of a command's pod: manifests, or a running agent.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use larder_exec::{ExecTarget, OriginRead, Stamps};
use larder_objects::manifest::ManifestError;

use super::{delivered, manifests};
use crate::{
    agent::{client_config, default_namespace},
    args::{ExecArgs, ManifestArgs, PodName, ReadingArgs},
    input,
    outcome::Failure,
    output::note,
};

/// Where the pod comes from.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) args: ExecArgs,
    /// Of objects that name none.
    namespace: String,
    source: PodSource,
}

#[derive(Debug)]
enum PodSource {
    /// Files and directories, absolute. Standard input, if it is one of them, is read once.
    Manifests { paths: Vec<PathBuf>, stdin: bool },
    /// The agent of this root directory, and its pod.
    Agent(PathBuf, PodName),
}

impl Origin {
    pub(super) fn new(args: ExecArgs) -> Result<Self, Failure> {
        let source = if args.filenames.is_empty() {
            let Some(pod) = args.pod().cloned() else {
                let why = "expected --pod for a pod of the running agent, or manifests with -f";
                return Err(Failure::unreadable(why));
            };
            if pod.kind.is_some() {
                let why = "expected NAMESPACE/NAME for a pod of the running agent";
                return Err(Failure::unreadable(why));
            }
            if let Some(path) = args.path_as_pod() {
                note(format_args!("to read {path}, write -f {path}"));
            }
            PodSource::Agent(client_config(&args.place)?.root_dir, pod)
        } else {
            let stdin = args.filenames.iter().any(|path| path == Path::new("-"));
            if stdin && args.on_change.is_active() {
                let why = "cannot follow standard input: name files with -f";
                return Err(Failure::unreadable(why));
            }
            let paths = args
                .filenames
                .iter()
                .filter(|path| *path != Path::new("-"))
                .map(|path| {
                    std::path::absolute(path)
                        .with_context(|| format!("cannot find {}", path.display()))
                })
                .collect::<Result<_, _>>()?;
            PodSource::Manifests { paths, stdin }
        };
        let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
        let namespace = default_namespace(args.namespace.as_deref(), kubeconfig, context)?;
        Ok(Self {
            args,
            namespace,
            source,
        })
    }

    /// The current target, and whether all manifests were valid. Waits for disks and for an agent.
    pub(super) fn read(&self) -> Result<(ExecTarget, bool), Failure> {
        let args = &self.args;
        let (mut target, is_valid) = match &self.source {
            PodSource::Manifests { .. } => {
                let given = ManifestArgs {
                    filenames: args.filenames.clone(),
                    reading: ReadingArgs::default(),
                };
                let manifests = input::read(&given, &self.namespace)?;
                if manifests.errors.iter().any(ManifestError::is_unreadable) {
                    // Most likely `--` is missing before the command.
                    let why = "cannot read every file; the command comes after --";
                    return Err(Failure::unreadable(why));
                }
                let is_valid = manifests.errors.is_empty();
                (
                    manifests::target(manifests, args, &self.namespace)?,
                    is_valid,
                )
            }
            PodSource::Agent(root_dir, pod) => {
                let container = args.container.as_deref();
                let target = delivered::target(root_dir, pod, &self.namespace, container)?;
                (target, true)
            }
        };
        target.set_variables(&args.env);
        Ok((target, is_valid))
    }

    /// The stamps of manifests before they are read; `None` if they are not followed. Files of an agent are compared when
    /// they are followed.
    pub(super) fn stamps(&self) -> Option<Stamps> {
        match &self.source {
            PodSource::Manifests { stdin: true, .. } => None,
            PodSource::Manifests { paths, .. } => Some(Stamps::of(paths)),
            PodSource::Agent(..) => Some(Stamps::default()),
        }
    }

    /// The paths that must stay visible in the sandbox: what is read again, and the targets of links there.
    pub(super) fn needed(&self) -> Vec<PathBuf> {
        let mut needed = match &self.source {
            PodSource::Manifests { paths, .. } => paths.clone(),
            PodSource::Agent(root_dir, _) => vec![root_dir.clone()],
        };
        let kubeconfig = self.args.kubeconfig.as_deref();
        needed.extend(kubeconfig.and_then(|path| std::path::absolute(path).ok()));
        let real: Vec<_> = needed.iter().flat_map(|path| path.canonicalize()).collect();
        needed.extend(real);
        needed
    }
}

impl larder_exec::Origin for Origin {
    fn read(&self) -> anyhow::Result<OriginRead> {
        let (target, is_valid) = Origin::read(self).map_err(|failure| failure.error)?;
        Ok(if is_valid {
            OriginRead::Whole(Box::new(target))
        } else {
            OriginRead::Invalid
        })
    }

    fn followed(&self, target: &ExecTarget) -> Vec<PathBuf> {
        match &self.source {
            PodSource::Manifests { paths, .. } => paths.clone(),
            PodSource::Agent(root_dir, _) => delivered::followed(root_dir, target),
        }
    }
}
