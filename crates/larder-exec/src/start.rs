//! Variables, mounts, user and command of one start, computed from the container. Pure but for the caller's
//! environment.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use anyhow::bail;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use larder_console::first_names;
use larder_projection::{
    BindOptions, ContainerView, Environment, RuntimeFeatures, VolumeKind, mounts,
};

use rustix::system::uname;
use zeroize::Zeroizing;

use crate::{
    sandbox::{CommandSettings, Identity},
    security::{has_read_only_root, identity, privileges},
    target::{Contents, ExecTarget},
};

/// Variables that an image would set; the caller's take their place where the container sets none.
const FROM_CALLER: [&str; 4] = ["PATH", "HOME", "TERM", "LANG"];

/// The variable that a container runtime sets.
const HOSTNAME: &str = "HOSTNAME";
/// Longest name of a pod's machine, and longest with its domain (kubelet 1.36, `pkg/kubelet/kubelet_pods.go` and
/// `pkg/kubelet/util/util.go`).
const MAX_HOST_NAME: usize = 63;
const MAX_FULL_NAME: usize = 64;
/// The domain of a cluster, where its administrator chose no other.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Longest argument or variable of Linux (`MAX_ARG_STRLEN`).
const MAX_VARIABLE_BYTES: usize = 128 << 10;

/// Most variables that a message names.
const NAMED_VARIABLES: usize = 8;

/// Everything that a command is started with, besides the content of its volumes.
pub(crate) struct Start {
    pub(crate) mounts: Vec<MountedVolume>,
    pub(crate) environment: Vec<(String, Vec<u8>)>,
    pub(crate) settings: CommandSettings,
}

/// A mount of the container, without the pod that it comes from.
#[derive(Debug, PartialEq)]
pub(crate) struct MountedVolume {
    pub(crate) index: usize,
    pub(crate) volume: String,
    pub(crate) source: MountSource,
    pub(crate) target: String,
    pub(crate) sub_path: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) options: BindOptions,
}

/// The place of a volume's content.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MountSource {
    /// In a volume that is set up for this command.
    Objects(VolumeKind),
    /// In a directory of the agent.
    Agent(PathBuf),
    /// In the directory of its pod at an agent, if it is shared.
    EmptyDir(EmptyDirVolumeSource, Option<PathBuf>),
    HostPath(PathBuf),
}

impl MountSource {
    /// The source of a volume; `None` for types that are not provided here.
    pub(crate) fn of(volume: &Volume, contents: &Contents) -> Option<Self> {
        if let Some(source) = &volume.empty_dir {
            let pod = match contents {
                Contents::Delivered(delivered) => delivered.shared.place_of(source),
                Contents::Inputs(_) => None,
            };
            return Some(Self::EmptyDir(source.clone(), pod.map(Path::to_owned)));
        }
        if let Contents::Delivered(delivered) = contents
            && let Some(directory) = delivered.volumes.get(&volume.name)
        {
            return Some(Self::Agent(directory.clone()));
        }
        if let Some(kind) = VolumeKind::of(volume) {
            return Some(Self::Objects(kind));
        }
        let host_path = volume.host_path.as_ref()?;
        Some(Self::HostPath(PathBuf::from(&host_path.path)))
    }
}

impl Start {
    /// The start of the container of `target`, or of the command `given` in its place. `mapped` are user and group
    /// outside, where they are mapped into a user namespace.
    pub(crate) fn of(
        target: &ExecTarget,
        given: &[OsString],
        mapped: Option<(u32, u32)>,
    ) -> anyhow::Result<Self> {
        let (pod, container) = (&target.pod, target.container());
        let variables = target.environment()?;
        let mounts: Vec<_> = mounts(pod, container, &variables, RuntimeFeatures::default())?
            .into_iter()
            .filter_map(|mount| {
                Some(MountedVolume {
                    index: mount.index,
                    source: MountSource::of(mount.volume, &target.contents)?,
                    volume: mount.volume.name.clone(),
                    target: mount.mount_path,
                    sub_path: mount.sub_path.map(Into::into),
                    read_only: mount.read_only,
                    options: mount.options,
                })
            })
            .collect();
        if let Some(mount) = mounts.iter().find(|mount| mount.target == "/") {
            bail!(
                "cannot mount volume {} on /: the command itself is there; mount it on a directory",
                mount.volume
            );
        }
        let environment = with_caller(&variables, pod)?;
        check_lengths(&environment)?;
        let identity = identity(pod, container, mapped)?;
        let directory = container
            .working_dir
            .filter(|path| !path.is_empty())
            .map(|path| format!("/{}", path.trim_start_matches('/')));
        Ok(Self {
            mounts,
            environment,
            settings: CommandSettings {
                working_dir: directory,
                command: command(given, container, &variables)?,
                privileges: privileges(container, identity.user == Some(0))?,
                identity,
                read_only_root: has_read_only_root(container),
                host_processes: pod.spec.as_ref().and_then(|spec| spec.host_pid) == Some(true),
            },
        })
    }

    /// What differs in `next`, for people: names of variables, never values.
    pub(crate) fn differences(&self, next: &Self) -> Vec<String> {
        let before: BTreeSet<_> = self.environment.iter().collect();
        let after: BTreeSet<_> = next.environment.iter().collect();
        let changed = before.symmetric_difference(&after);
        let names: BTreeSet<_> = changed.map(|(name, _)| name.as_str()).collect();
        let names = Vec::from_iter(names);
        let mut all = match &*names {
            [] => Vec::new(),
            [name] => vec![format!("variable {name}")],
            names => vec![format!("variables {}", first_names(names, NAMED_VARIABLES))],
        };
        if self.mounts != next.mounts {
            all.push("mounts".to_owned());
        } else if self.settings != next.settings {
            all.push("command, directory or user".to_owned());
        }
        all
    }

    /// Stands for everything but the variables. It may hold values of Secrets.
    pub(crate) fn fingerprint(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(format!("{:?}", self.mounts).into_bytes());
        serde_json::to_writer(&mut *bytes, &self.settings).expect("settings have a form in JSON");
        bytes
    }
}

impl MountedVolume {
    /// Whether this is a subPath of a volume whose content larder swaps.
    pub(crate) fn follows_subpath(&self) -> bool {
        let is_swapped = matches!(self.source, MountSource::Objects(_) | MountSource::Agent(_));
        self.sub_path.is_some() && is_swapped
    }
}

/// The mode of a file for a user namespace, which has a single user, so that every file belongs to that user. The
/// owner's bits become those that the user of the pod would have if the file belonged to `owner` and to the group
/// `fs_group` or root.
pub(crate) fn mode_for_only_user(
    identity: &Identity,
    owner: Option<u32>,
    fs_group: Option<u32>,
    mode: u32,
) -> u32 {
    let Some(user) = identity.user else {
        // The command runs as the caller, who owns these files.
        return mode;
    };
    if user == 0 || user == owner.unwrap_or(0) {
        return mode;
    }
    let in_group =
        fs_group.is_some() || identity.group.unwrap_or(0) == 0 || identity.groups.contains(&0);
    let bits = match (in_group, fs_group) {
        // fsGroup grants the group read access, whatever the mode.
        (true, Some(_)) => mode >> 3 | 0o4,
        (true, None) => mode >> 3,
        (false, _) => mode,
    };
    mode & 0o077 | (bits & 0o7) << 6
}

/// The command of the command line, or the container's.
fn command(
    given: &[OsString],
    container: ContainerView<'_>,
    variables: &Environment<'_>,
) -> anyhow::Result<Vec<Vec<u8>>> {
    if !given.is_empty() {
        return Ok(given.iter().map(|word| word.as_bytes().to_vec()).collect());
    }
    if container.command.is_empty() {
        bail!("the container has no command: give one after --");
    }
    let words = container.command.iter().chain(container.args);
    words
        .map(|word| Ok(variables.expand(word)?.to_vec()))
        .collect()
}

/// Rejects a variable with which Linux starts no command.
fn check_lengths(variables: &[(String, Vec<u8>)]) -> anyhow::Result<()> {
    // With `=` and a zero.
    let length = |(name, value): &(String, Vec<u8>)| name.len() + value.len() + 2;
    match variables
        .iter()
        .find(|one| length(one) > MAX_VARIABLE_BYTES)
    {
        Some((name, value)) => bail!(
            "variable {name} has {} bytes: Linux starts no command with a variable over 128 KiB; mount it as a file",
            value.len()
        ),
        None => Ok(()),
    }
}

/// The name of the pod's machine: `hostnameOverride`; else `hostname` or the pod's name, which the kubelet cuts to 63
/// characters, with the domain if `setHostnameAsFQDN` asks for it; that of this machine where the pod uses its network.
fn host_name(pod: &Pod) -> anyhow::Result<String> {
    let spec = pod.spec.clone().unwrap_or_default();
    if spec.host_network == Some(true) {
        return Ok(uname().nodename().to_string_lossy().into_owned());
    }
    let given = |name: Option<String>| name.filter(|name| !name.is_empty());
    if let Some(name) = given(spec.hostname_override) {
        return Ok(name);
    }
    let name = given(spec.hostname)
        .or(pod.metadata.name.clone())
        .unwrap_or_default();
    let end = name.floor_char_boundary(MAX_HOST_NAME);
    let name = name[..end].trim_end_matches(['-', '.']).to_owned();
    let (Some(subdomain), Some(true)) = (given(spec.subdomain), spec.set_hostname_as_fqdn) else {
        return Ok(name);
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let full = format!("{name}.{subdomain}.{namespace}.svc.{CLUSTER_DOMAIN}");
    if full.len() > MAX_FULL_NAME {
        bail!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long \
             ({MAX_FULL_NAME} characters is the max, {} characters requested)",
            full.len()
        );
    }
    Ok(full)
}

/// The variables of the container, and those that a runtime or the image would set.
fn with_caller(variables: &Environment<'_>, pod: &Pod) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let own = variables
        .iter()
        .map(|(name, variable)| (name.to_owned(), variable.value.to_vec()));
    let mut all: Vec<_> = own.collect();
    if variables.get(HOSTNAME).is_none() {
        all.push((HOSTNAME.to_owned(), host_name(pod)?.into_bytes()));
    }
    for name in FROM_CALLER {
        if variables.get(name).is_none()
            && let Some(value) = std::env::var_os(name)
        {
            all.push((name.to_owned(), value.as_bytes().to_vec()));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check_host_name(name: &str, spec: Value, expected: &str) {
        let pod = json!({"metadata": {"name": name, "namespace": "prod"}, "spec": spec});
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        pod.spec.get_or_insert_default().containers.clear();
        let found = host_name(&pod).unwrap_or_else(|error| error.to_string());
        assert_eq!(found, expected, "{spec}");
    }

    #[test]
    fn host_name_is_the_kubelets() {
        let node = uname().nodename().to_string_lossy().into_owned();
        let of_pod = |more: Value| {
            let mut spec = json!({"containers": []});
            let fields = more.as_object().cloned().unwrap_or_default();
            spec.as_object_mut().unwrap().extend(fields);
            spec
        };
        let full = json!({"hostname": "h", "subdomain": "sub", "setHostnameAsFQDN": true});
        for (spec, expected) in [
            (json!({}), "web-0"),
            (json!({"hostname": "h"}), "h"),
            (json!({"hostname": "h", "subdomain": "sub"}), "h"),
            (json!({"setHostnameAsFQDN": true}), "web-0"),
            (full, "h.sub.prod.svc.cluster.local"),
            (json!({"hostnameOverride": "a.b", "hostname": "h"}), "a.b"),
            (json!({"hostNetwork": true, "hostname": "h"}), &*node),
        ] {
            check_host_name("web-0", of_pod(spec), expected);
        }
        let long = format!("{}-.{}", "a".repeat(61), "b".repeat(9));
        check_host_name(&long, of_pod(json!({})), &"a".repeat(61));
        let full = json!({"subdomain": "sub", "setHostnameAsFQDN": true});
        let name = "c".repeat(40);
        check_host_name(
            &name,
            of_pod(full),
            &format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {name}.sub.prod.svc.cluster.local \
                 is too long (64 characters is the max, 67 characters requested)"
            ),
        );
    }

    #[test]
    fn single_user_of_a_namespace_gets_the_access_of_the_pods_user() {
        // projection 41, 42
        let user = |user, group, groups: &[u32]| Identity {
            user,
            group,
            groups: groups.to_vec(),
            mapped: Some((1000, 1000)),
        };
        let token = Some(4711);
        for (identity, owner, fs_group, mode, expected) in [
            (user(Some(4711), Some(42), &[]), None, None, 0o400, 0o000),
            (user(Some(4711), Some(42), &[]), None, None, 0o644, 0o444),
            // A user without a group is in group 0.
            (user(Some(4711), None, &[]), None, None, 0o440, 0o440),
            (user(Some(4711), Some(42), &[0]), None, None, 0o640, 0o440),
            (
                user(Some(4711), Some(42), &[7]),
                None,
                Some(7),
                0o400,
                0o400,
            ),
            (user(Some(4711), Some(42), &[]), token, None, 0o600, 0o600),
            (user(Some(0), None, &[]), None, None, 0o400, 0o400),
            (user(None, None, &[]), None, None, 0o400, 0o400),
        ] {
            let seen = mode_for_only_user(&identity, owner, fs_group, mode);
            assert_eq!(seen, expected, "{identity:?} {mode:o}");
        }
    }
}
