//! The origin of a command's pod: manifests, or a running agent.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use larder_projection::pod_volumes;

use super::{delivered, target::ExecTarget};
use crate::{
    agent::client_config,
    args::{ExecArgs, ManifestArgs, PodName},
    input,
    outcome::Failure,
    sandbox::Stamps,
};

/// Where the pod comes from, and which container of it the command stands for.
pub(super) struct Origin {
    source: PodSource,
    pod: Option<PodName>,
    namespace: String,
    container: Option<String>,
    assume_missing: bool,
    /// Variables in place of the container's.
    variables: Vec<(String, String)>,
}

enum PodSource {
    /// Files and directories, absolute. Standard input, if it is one of them, is read once.
    Manifests {
        args: ManifestArgs,
        paths: Vec<PathBuf>,
        stdin: bool,
    },
    /// The agent of this root directory.
    Agent(PathBuf),
}

impl Origin {
    pub(super) fn new(args: &ExecArgs) -> Result<Self, Failure> {
        if args.filenames.is_empty() {
            if args.pod.is_none() {
                let why = "expected --pod for a pod of the running agent, or manifests with -f";
                return Err(Failure::unreadable(why));
            }
            let root_dir = client_config(&args.place)?.root_dir;
            return Ok(Self::of(PodSource::Agent(root_dir), args));
        }
        let stdin = args.filenames.iter().any(|path| path == Path::new("-"));
        if stdin && args.on_change.is_active() {
            let why = "cannot follow standard input: name files with -f";
            return Err(Failure::unreadable(why));
        }
        let files = args.filenames.iter().filter(|path| *path != Path::new("-"));
        let paths = files.map(|path| {
            std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
        });
        let source = PodSource::Manifests {
            paths: paths.collect::<Result<_, _>>()?,
            args: ManifestArgs {
                filenames: args.filenames.clone(),
                recursive: false,
                namespace: args.namespace.clone(),
            },
            stdin,
        };
        Ok(Self::of(source, args))
    }

    fn of(source: PodSource, args: &ExecArgs) -> Self {
        Self {
            source,
            pod: args.pod.clone(),
            namespace: args.namespace.clone(),
            container: args.container.clone(),
            assume_missing: args.assume_missing,
            variables: args.env.clone(),
        }
    }

    /// The current target, and whether all manifests were valid. Waits for disks and for an agent.
    pub(super) fn read(&self) -> Result<(ExecTarget, bool), Failure> {
        let (mut target, is_valid) = self.read_as_stated()?;
        target.set_variables(&self.variables);
        Ok((target, is_valid))
    }

    fn read_as_stated(&self) -> Result<(ExecTarget, bool), Failure> {
        let (pod, namespace, container) = (
            self.pod.as_ref(),
            self.namespace.as_str(),
            self.container.as_deref(),
        );
        match (&self.source, pod) {
            (PodSource::Manifests { args, .. }, _) => {
                let read = input::read(args)?;
                if !read.is_whole() {
                    // Most likely `--` is missing before the command.
                    let why = "cannot read every file; the command comes after --";
                    return Err(Failure::unreadable(why));
                }
                let target = ExecTarget::in_manifests(
                    read.manifests,
                    pod,
                    namespace,
                    container,
                    self.assume_missing,
                )?;
                Ok((target, !read.had_errors))
            }
            (PodSource::Agent(root_dir), Some(pod)) => {
                let target = delivered::target(root_dir, pod, namespace, container)?;
                Ok((target, true))
            }
            (PodSource::Agent(_), None) => unreachable!("an agent is not asked without a pod"),
        }
    }

    pub(super) fn is_followed(&self) -> bool {
        !matches!(self.source, PodSource::Manifests { stdin: true, .. })
    }

    /// The stamps of manifests before they are read. Files of an agent are compared when they are followed.
    pub(super) fn stamps(&self) -> Stamps {
        match &self.source {
            PodSource::Manifests { paths, .. } => Stamps::of(paths),
            PodSource::Agent(_) => Stamps::default(),
        }
    }

    pub(super) fn followed(&self, target: &ExecTarget) -> Vec<PathBuf> {
        match &self.source {
            PodSource::Manifests { paths, .. } => paths.clone(),
            PodSource::Agent(root_dir) => delivered::followed(root_dir, target),
        }
    }

    /// The paths that the private tmpfs must not hide.
    pub(super) fn needed(&self, target: &ExecTarget) -> Vec<PathBuf> {
        let mut needed = match &self.source {
            PodSource::Manifests { paths, .. } => paths.clone(),
            PodSource::Agent(root_dir) => vec![root_dir.clone()],
        };
        // The targets of links, too.
        let real: Vec<_> = needed.iter().flat_map(|path| path.canonicalize()).collect();
        needed.extend(real);
        needed.extend(std::env::current_dir());
        needed.extend(std::env::current_exe());
        let container = target.container();
        needed.extend(container.working_dir.map(PathBuf::from));
        let mounts = container.volume_mounts.iter();
        needed.extend(mounts.map(|mount| Path::new("/").join(&mount.mount_path)));
        let on_host = pod_volumes(&target.pod).filter_map(|volume| volume.host_path.as_ref());
        needed.extend(on_host.map(|source| PathBuf::from(&source.path)));
        needed
    }
}
