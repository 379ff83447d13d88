//! Security contexts of pod and container: the fields that apply to a command, and those that cannot.

use std::collections::BTreeSet;

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::{Capabilities, Pod, PodSecurityContext, SecurityContext};
use larder_projection::{ContainerView, fs_group};
use rustix::thread::CapabilitySet;

use crate::sandbox::{Identity, Privileges};

/// The capabilities of a container whose pod neither adds nor drops any (containerd 2.2, `pkg/oci/spec.go`).
const DEFAULT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);
/// The word for every capability.
const ALL: &str = "ALL";
/// The type of a profile that forbids nothing.
const UNCONFINED: &str = "Unconfined";

/// The user and groups of the command. `mapped` are user and group outside, where they are mapped into a user
/// namespace.
///
/// # Errors
///
/// `runAsNonRoot` is set, and the command would run as root. The messages are the kubelet's
/// (kubelet v1.36, `pkg/kubelet/kuberuntime/security_context_others.go`).
pub(crate) fn identity(
    pod: &Pod,
    container: ContainerView<'_>,
    mapped: Option<(u32, u32)>,
) -> anyhow::Result<Identity> {
    let (of_pod, own) = contexts(pod, container);
    let id = |id: Option<i64>| id.map(u32::try_from).transpose();
    let user = id(own.run_as_user.or(of_pod.run_as_user))?;
    let group = id(own.run_as_group.or(of_pod.run_as_group))?;
    if own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let subject = format!(
            "(pod: \"{}_{}({})\", container: {})",
            text(&pod.metadata.name),
            text(&pod.metadata.namespace),
            text(&pod.metadata.uid),
            container.name
        );
        // Without runAsUser the command runs as the caller, who stands for the user of the image.
        let caller = mapped.unwrap_or_default().0;
        match user {
            Some(0) => bail!("container's runAsUser breaks non-root policy {subject}"),
            None if caller == 0 => {
                bail!("container has runAsNonRoot and image will run as root {subject}")
            }
            _ => {}
        }
    }
    let supplemental = of_pod
        .supplemental_groups
        .iter()
        .flatten()
        .filter_map(|&group| u32::try_from(group).ok());
    let groups: BTreeSet<_> = supplemental.chain(fs_group(pod)).collect();
    Ok(Identity {
        user,
        group,
        groups: groups.into_iter().collect(),
        mapped,
    })
}

/// The security contexts of the pod and of the container; nothing is set in one that is missing.
fn contexts(pod: &Pod, container: ContainerView<'_>) -> (PodSecurityContext, SecurityContext) {
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.clone());
    let own = container.security_context.cloned();
    (of_pod.unwrap_or_default(), own.unwrap_or_default())
}

/// The limits of the container's privileges. Without `capabilities`, a user that is named as root (`as_root`) has those
/// of a container, and for others the caller's stay.
///
/// # Errors
///
/// A capability is unknown.
pub(crate) fn privileges(
    container: ContainerView<'_>,
    as_root: bool,
) -> anyhow::Result<Privileges> {
    let unset = SecurityContext::default();
    let own = container.security_context.unwrap_or(&unset);
    let unlimited = own.privileged == Some(true);
    let default = (as_root && !unlimited).then(|| DEFAULT_CAPABILITIES.bits());
    let limited = own
        .capabilities
        .as_ref()
        .filter(|_| !unlimited)
        .map(capabilities)
        .transpose()?;
    Ok(Privileges {
        capabilities: limited.map(|(set, _)| set.bits()).or(default),
        added: limited.map_or(0, |(_, added)| added.bits()),
        no_escalation: own.allow_privilege_escalation == Some(false) && !unlimited,
    })
}

/// The set that a runtime computes: `ALL` first, then what is added, then what is dropped. And what is added.
fn capabilities(given: &Capabilities) -> anyhow::Result<(CapabilitySet, CapabilitySet)> {
    let (add, drop) = (given.add.as_deref(), given.drop.as_deref());
    let (add, drop) = (add.unwrap_or_default(), drop.unwrap_or_default());
    let has_all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(ALL));
    let set = if has_all(drop) {
        CapabilitySet::empty()
    } else if has_all(add) {
        CapabilitySet::from_bits_retain(u64::MAX)
    } else {
        DEFAULT_CAPABILITIES
    };
    let added: CapabilitySet = add
        .iter()
        .map(|name| capability(name))
        .collect::<Result<_, _>>()?;
    let dropped = drop
        .iter()
        .map(|name| capability(name))
        .collect::<Result<_, _>>()?;
    Ok(((set | added).difference(dropped), added))
}

/// The capability of this name; none for `ALL`.
fn capability(name: &str) -> anyhow::Result<CapabilitySet> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if short == ALL {
        return Ok(CapabilitySet::empty());
    }
    CapabilitySet::from_name(short).ok_or_else(|| anyhow!("unknown capability {name:?}"))
}

/// Whether the root file system is read-only.
pub(crate) fn has_read_only_root(container: ContainerView<'_>) -> bool {
    let own = container.security_context;
    own.and_then(|own| own.read_only_root_filesystem) == Some(true)
}

/// Fields of the pod that are not carried out. `mapped` as in [`identity`].
pub(crate) fn unsupported_fields(
    pod: &Pod,
    container: ContainerView<'_>,
    mapped: Option<(u32, u32)>,
) -> Vec<&'static str> {
    let spec = pod.spec.as_ref();
    let privileged = container.security_context.and_then(|own| own.privileged) == Some(true);
    [
        // The command keeps the caller's user namespace, or has one with a single user.
        (
            "hostUsers: false",
            spec.and_then(|spec| spec.host_users) == Some(false),
        ),
        // It sees all processes in /proc, but is in a PID namespace of its own.
        (
            "hostPID: true",
            spec.and_then(|spec| spec.host_pid) == Some(true),
        ),
        // The network is always that of the caller, which may be another than the machine's.
        (
            "hostNetwork: true",
            spec.and_then(|spec| spec.host_network) == Some(true) && !is_host_network(),
        ),
        ("privileged: true", privileged && mapped.is_some()),
    ]
    .into_iter()
    .filter(|(_, is_set)| *is_set)
    .map(|(field, _)| field)
    .collect()
}

/// Whether the network of this process is that of process 1, as far as that can be seen.
fn is_host_network() -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    of("1").map_or(true, |host| of("self").is_ok_and(|own| own == host))
}

/// Fields of the security contexts that only a container runtime can apply.
pub(crate) fn unsupported(pod: &Pod, container: ContainerView<'_>) -> Vec<&'static str> {
    let (of_pod, own) = contexts(pod, container);
    let seccomp = own
        .seccomp_profile
        .or(of_pod.seccomp_profile)
        .is_some_and(|profile| profile.type_ != UNCONFINED);
    let app_armor = own
        .app_armor_profile
        .or(of_pod.app_armor_profile)
        .is_some_and(|profile| profile.type_ != UNCONFINED);
    let linux = own.se_linux_options.or(of_pod.se_linux_options);
    let windows = own.windows_options.or(of_pod.windows_options);
    let sysctls = of_pod.sysctls.unwrap_or_default();
    [
        ("seccompProfile", seccomp),
        ("appArmorProfile", app_armor),
        ("seLinuxOptions", linux.is_some()),
        ("windowsOptions", windows.is_some()),
        ("procMount", own.proc_mount.is_some()),
        ("sysctls", !sysctls.is_empty()),
    ]
    .into_iter()
    .filter(|(_, is_set)| *is_set)
    .map(|(field, _)| field)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(add: &[&str], drop: &[&str], expected: CapabilitySet) {
        let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        let given = Capabilities {
            add: names(add),
            drop: names(drop),
        };
        let (set, _) = capabilities(&given).unwrap();
        assert_eq!(set, expected, "add {add:?}, drop {drop:?}");
    }

    #[test]
    fn capabilities_are_added_to_the_default_and_dropped_from_it() {
        let (admin, raw) = (CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW);
        let everything = CapabilitySet::from_bits_retain(u64::MAX);
        check(&[], &[], DEFAULT_CAPABILITIES);
        check(&["NET_ADMIN"], &[], DEFAULT_CAPABILITIES | admin);
        check(&[], &["NET_RAW"], DEFAULT_CAPABILITIES & !raw);
        check(&[], &["ALL"], CapabilitySet::empty());
        check(&["net_admin"], &["all"], admin);
        check(&["CAP_NET_ADMIN"], &["ALL"], admin);
        check(&["ALL"], &[], everything);
        check(&["ALL"], &["NET_RAW"], everything.difference(raw));
        check(&["NET_RAW"], &["NET_RAW"], DEFAULT_CAPABILITIES & !raw);
    }

    #[test]
    fn unknown_capability_is_an_error() {
        let given = Capabilities {
            add: Some(vec!["FLY".to_owned()]),
            drop: None,
        };
        let error = capabilities(&given).unwrap_err();
        assert_eq!(error.to_string(), "unknown capability \"FLY\"");
    }
}
