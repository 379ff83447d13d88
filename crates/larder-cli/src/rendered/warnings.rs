//! What is allowed and often a mistake: a pod with it starts, and does not see what its author meant.
//!
//! Invariant: no byte of a Secret is in a warning.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Volume;
use larder_agent::annotations;
use larder_objects::{Kind, SourceKind};
use larder_projection::{
    ANY_KEY, Absent, ContainerView, Environment, Inputs, Mount, Origin, VolumeKind,
    disk::HiddenLinks, expand, fs_group, pod_volumes,
};
use serde_json::Value;

use super::{
    RenderedPod,
    container::{ContainerContent, MountedFile, files_below, path_in_volume},
    hints::keys,
    pod::RenderedContainer,
    words::size,
};
use crate::{offline::with_hint, output};

/// Longest string of an environment or a command line, its end included (Linux, `MAX_ARG_STRLEN`).
const MAX_STRING: usize = 128 << 10;
/// Longest environment and command line: a quarter of the usual stack of 8 MiB.
const MAX_SUM: usize = 2 << 20;
/// Size of the pointer to a string.
const POINTER: usize = 8;

/// The user that volumes belong to.
const ROOT: u32 = 0;
/// Most files that are named because no user of the container can read them.
const MAX_UNREADABLE: usize = 20;

/// What deserves a look in a container that starts.
pub(super) fn of_container(
    pod: &RenderedPod<'_>,
    container: &ContainerView<'_>,
    view: &RenderedContainer<'_>,
) -> Vec<String> {
    let mut found = Vec::new();
    for mount in &view.mounts {
        let mut elements = mount.mount_path.split('/');
        if elements.all(|element| matches!(element, "" | "." | "..")) {
            found.push(format!(
                "{}: no runtime mounts a volume at the root of a container: the container does not start",
                mount.mount_path
            ));
        }
        if let (Some(path), None) = (&mount.sub_path, &mount.unknown_sub_path)
            && let Some(Ok(projection)) = pod.projection(&mount.volume.name)
            && projection.any_keys().is_empty()
            && !path_in_volume(path).is_empty()
            && files_below(&projection.payload, path).next().is_none()
            && let Some(path) = mount.shown_sub_path()
        {
            found.push(format!(
                "{}: volume {} has no {path}, so it is an empty directory",
                mount.mount_path, mount.volume.name
            ));
        }
    }
    found.extend(absent(pod, view.environment.absent()));
    unexpanded(container, view, &mut found);
    found.extend(blocked(pod, view));
    found.extend(set_twice(pod.inputs, container, &view.environment));
    let variables = view.environment.iter();
    let of_secret = variables.filter(|(_, variable)| variable.secret);
    let with_newline = of_secret.filter(|(_, variable)| variable.value.ends_with(b"\n"));
    found.extend(
        with_newline.map(|(name, _)| format!("{name}: the value of a Secret ends in a newline")),
    );
    found.extend(quoted(&view.environment));
    too_large(view, &mut found);
    found.extend(unreadable(pod, container, view));
    found
}

/// Files that the process may not read: it is no root, they are of root, and the pod names no group for them.
fn unreadable(
    pod: &RenderedPod<'_>,
    container: &ContainerView<'_>,
    view: &RenderedContainer<'_>,
) -> Vec<String> {
    let of_pod = pod
        .pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context;
    let user = own
        .and_then(|context| context.run_as_user)
        .or(of_pod.and_then(|context| context.run_as_user));
    let group = own
        .and_then(|context| context.run_as_group)
        .or(of_pod.and_then(|context| context.run_as_group));
    let Some(user) = user.filter(|user| *user != 0 && fs_group(pod.pod).is_none()) else {
        return Vec::new();
    };
    // Without a group of its own, the process has the one of root.
    let is_of_group = group.unwrap_or(0) == 0;
    let content = ContainerContent::new(container, &view.environment, &view.mounts, pod);
    let may_read = |file: &MountedFile<'_>| {
        let mode = file.file.mode;
        if i64::from(file.file.owner.unwrap_or(0)) == user {
            mode & 0o400 != 0
        } else {
            mode & 0o004 != 0 || is_of_group && mode & 0o040 != 0
        }
    };
    // Files of keys that no document names, too.
    let any = content.any_files().into_keys();
    let any = any.map(|root| format!("{root}/{ANY_KEY}"));
    let found = content.paths().into_iter().chain(any).filter_map(|path| {
        let term = content.look_up(&path);
        let file = term.files().find(|file| !may_read(file))?;
        let (mode, owner) = (file.file.mode, file.file.owner.unwrap_or(0));
        let path = path.replace(ANY_KEY, "*");
        Some(format!(
            "{path}: user {user} cannot read it: mode {mode:04o}, user {owner}, and the pod has no fsGroup"
        ))
    });
    found.take(MAX_UNREADABLE).collect()
}

/// Optional objects and keys that are missing, if something else may be meant.
fn absent(pod: &RenderedPod<'_>, all: &[Absent<'_>]) -> impl Iterator<Item = String> {
    pod.absent(all)
        .into_iter()
        .filter(|(_, hint)| !hint.is_empty())
        .map(|(line, hint)| with_hint(line, &hint))
}

/// Files that are mounted below a volume that is filled from objects. The kubelet makes a directory there, of each mount
/// point, before it writes the volume (`pkg/volume/util/nested_volumes.go`).
fn blocked(pod: &RenderedPod<'_>, view: &RenderedContainer<'_>) -> Vec<String> {
    let path = |mount: &Mount<'_>| mount.mount_path.trim_end_matches('/').to_owned();
    let found = view.mounts.iter().filter_map(|mount| {
        let (Some(part), None) = (&mount.sub_path, &mount.unknown_sub_path) else {
            return None;
        };
        let projection = pod.projection(&mount.volume.name)?.as_ref().ok()?;
        files_below(&projection.payload, part).find(|(below, ..)| below.is_empty())?;
        let inner = path(mount);
        let is_around = |outer: &&Mount<'_>| {
            inner.strip_prefix(&path(outer)).is_some_and(|below| below.starts_with('/'))
        };
        let around = view.mounts.iter().filter(is_around);
        let outer = around.max_by_key(|outer| path(outer).len())?;
        pod.projection(&outer.volume.name)?;
        Some(format!(
            "{inner}: a file cannot be mounted below {}, as volume {} gets a directory for it: the container does not start",
            outer.mount_path, outer.volume.name
        ))
    });
    found.collect()
}

fn unexpanded(
    container: &ContainerView<'_>,
    view: &RenderedContainer<'_>,
    found: &mut Vec<String>,
) {
    let is_name = |name: &str| {
        let is_part = |byte: u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
        !name.is_empty() && name.bytes().all(is_part)
    };
    let references = |text: &str| {
        let mut names = Vec::new();
        expand(text, |name| {
            names.push(name.to_owned());
            None
        });
        names
    };
    for variable in container.env {
        let value = view.environment.get(&variable.name);
        let (Some(text), Some(value)) = (&variable.value, value) else {
            continue;
        };
        for name in references(text) {
            let whole = format!("$({name})");
            // A known one may have this text as its value, which is as odd.
            if String::from_utf8_lossy(&value.value).contains(&whole) {
                found.push(format!(
                    "{}: {whole} stays as it is: no earlier variable has this name",
                    variable.name
                ));
            }
        }
    }
    let has_any_keys = !view.environment.any_keys().is_empty();
    for word in container.command.iter().chain(container.args) {
        // Others may be meant for a shell.
        let names = references(word).into_iter().filter(|name| is_name(name));
        let unknown = names.filter(|name| !has_any_keys && view.environment.get(name).is_none());
        found.extend(unknown.map(|name| {
            format!("the command has $({name}), which stays as it is: no variable has this name")
        }));
    }
}

/// Variables that are set more than once: the last one counts.
fn set_twice(
    inputs: &Inputs,
    container: &ContainerView<'_>,
    environment: &Environment<'_>,
) -> Vec<String> {
    let mut by_name = BTreeMap::<String, Vec<String>>::new();
    for source in container.env_from {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let map = source
            .config_map_ref
            .iter()
            .map(|map| (Kind::ConfigMap, &map.name));
        let secret = source
            .secret_ref
            .iter()
            .map(|secret| (Kind::Secret, &secret.name));
        for (kind, name) in map.chain(secret) {
            for key in keys(inputs, kind, name).into_iter().flatten() {
                by_name
                    .entry(format!("{prefix}{key}"))
                    .or_default()
                    .push(format!("{kind} {name}"));
            }
        }
    }
    let is_absent = |wanted: (Kind, &str, &str)| {
        let mut absent = environment.absent().iter();
        absent.any(|one| wanted == (one.kind, one.name, one.key.unwrap_or(wanted.2)))
    };
    for variable in container.env {
        let source = variable.value_from.as_ref();
        let map = source
            .and_then(|source| source.config_map_key_ref.as_ref())
            .map(|key| (Kind::ConfigMap, &*key.name, &*key.key));
        let secret = source
            .and_then(|source| source.secret_key_ref.as_ref())
            .map(|key| (Kind::Secret, &*key.name, &*key.key));
        if map.or(secret).is_some_and(is_absent) {
            continue;
        }
        by_name
            .entry(variable.name.clone())
            .or_default()
            .push("env".to_owned());
    }
    let twice = by_name.into_iter().filter(|(_, sources)| sources.len() > 1);
    let texts = twice.map(|(name, sources)| {
        let all = sources.join(", then by ");
        format!("{name}: set by {all}; the last one counts")
    });
    texts.collect()
}

/// Values of objects in quotes: those of an env file are a part of the value.
fn quoted(environment: &Environment<'_>) -> impl Iterator<Item = String> {
    let is_quoted = |value: &[u8]| match value {
        [first @ (b'"' | b'\''), inner @ .., last] => first == last && !inner.contains(first),
        _ => false,
    };
    environment.iter().filter_map(move |(name, variable)| {
        let Origin::Key { kind, name: object, .. } = &variable.origin else {
            return None;
        };
        is_quoted(&variable.value).then(|| {
            format!("{name}: the value in {kind} {object} has quotes around it, which are a part of it: an env file leaves them")
        })
    })
}

/// An environment that the kernel rejects.
fn too_large(view: &RenderedContainer<'_>, found: &mut Vec<String>) {
    let (mut sum, mut of_services) = (0, 0);
    for (name, variable) in view.environment.iter() {
        // NAME=VALUE, and its end.
        let bytes = name.len() + variable.value.len() + 2;
        if bytes > MAX_STRING {
            found.push(format!(
                "{name}: {}, more than the kernel takes for one variable ({}): no process starts",
                size(bytes),
                size(MAX_STRING)
            ));
        }
        sum += bytes + POINTER;
        if matches!(variable.origin, Origin::Service { .. }) {
            of_services += bytes + POINTER;
        }
    }
    if sum > MAX_SUM {
        let (all, most) = (size(sum), size(MAX_SUM));
        let advice = if of_services > sum / 2 {
            "; most are of Services: set enableServiceLinks: false"
        } else {
            ""
        };
        found.push(format!(
            "the variables have {all}, more than the kernel takes ({most}): no process starts{advice}"
        ));
    }
}

/// What deserves a look in a volume.
pub(super) fn of_volume(pod: &RenderedPod<'_>, volume: &Volume) -> Vec<String> {
    let mut found = Vec::new();
    let stated = serde_json::to_value(volume).unwrap_or_default();
    decimal_modes(&stated, &mut found);
    let mut paths = BTreeMap::<&str, usize>::new();
    for (_, source) in SourceKind::of_volume(volume) {
        let mut named = source.paths();
        // Without items, all keys.
        let object = match source {
            SourceKind::ConfigMap(map) => Some((Kind::ConfigMap, &map.name)),
            SourceKind::Secret(secret) => Some((Kind::Secret, &secret.name)),
            SourceKind::PodCertificate(certificate) if !pod.offline.is_of_cluster => {
                found.push(format!(
                    "its certificate is issued by the signer {} of a cluster; larder run --manifests has none",
                    certificate.signer_name
                ));
                None
            }
            _ => None,
        };
        if let Some((kind, name)) = object
            && named.is_empty()
        {
            named = keys(pod.inputs, kind, name).unwrap_or_default();
        }
        for path in named {
            *paths.entry(path).or_default() += 1;
        }
    }
    let twice = paths.into_iter().filter(|(_, count)| *count > 1);
    found.extend(twice.map(|(path, count)| {
        let sources = output::count(count, "source");
        format!("{path}: {sources} have this path; the last one counts")
    }));
    if let Some(Ok(projection)) = pod.projection(&volume.name) {
        found.extend(absent(pod, &projection.absent));
        let hidden =
            VolumeKind::of(volume).map(|kind| HiddenLinks::of(kind, &projection.payload, ROOT));
        found.extend(hidden.into_iter().flatten().map(|links| links.to_string()));
    }
    found
}

/// What deserves a look in the pod itself, each with its place.
pub(super) fn of_pod(pod: &RenderedPod<'_>) -> Vec<(String, String)> {
    let secrets = pod.missing_pull_secrets();
    // Otherwise they are taken as there.
    let secrets = secrets
        .filter(|_| !pod.offline.takes_outside)
        .map(|text| ("imagePullSecrets".to_owned(), text));
    let account = pod.missing_account().map(|account| {
        let text = format!("ServiceAccount {account} is not among the manifests");
        ("serviceAccountName".to_owned(), text)
    });
    let claims = pod.missing_claims().map(|(volume, claim)| {
        let text = format!("PersistentVolumeClaim {claim} is not among the manifests");
        (format!("volume {}", volume.name), text)
    });
    let annotations = pod
        .pod
        .metadata
        .annotations
        .iter()
        .flat_map(annotations::misspelled)
        .map(|found| (format!("annotation {}", found.key), found.problem));
    let missing = account.into_iter().chain(claims);
    secrets.chain(missing).chain(annotations).collect()
}

/// Modes of a volume and its items that look like octal numbers.
fn decimal_modes(part: &Value, found: &mut Vec<String>) {
    if let Value::Array(parts) = part {
        for part in parts {
            decimal_modes(part, found);
        }
    }
    for (field, value) in part.as_object().into_iter().flatten() {
        match (field.as_str(), value.as_i64()) {
            ("defaultMode" | "mode", Some(mode @ (400 | 440 | 444))) => {
                let item = part["path"].as_str();
                let of = item.map(|path| format!(" of {path}")).unwrap_or_default();
                found.push(format!(
                    "{field}{of}: {mode} is a decimal number, the mode {mode:04o}; the mode 0{mode} is written 0{mode}"
                ));
            }
            _ => decimal_modes(value, found),
        }
    }
}

impl RenderedPod<'_> {
    /// Whether something in it deserves a look.
    pub(crate) fn deserves_a_look(&self) -> bool {
        let mut containers = self.containers.iter();
        !self.warnings().is_empty()
            || containers.any(|(container, _)| !self.missing_secrets(container).is_empty())
    }

    /// What deserves a look, each with the container or volume that has it.
    pub(crate) fn warnings(&self) -> Vec<(String, String)> {
        let containers = self.containers.iter().flat_map(|(container, view)| {
            view.iter()
                .flat_map(|view| of_container(self, container, view))
                .map(|text| (super::words::heading(container), text))
        });
        let volumes = pod_volumes(self.pod).flat_map(|volume| {
            of_volume(self, volume)
                .into_iter()
                .map(|text| (format!("volume {}", volume.name), text))
        });
        of_pod(self)
            .into_iter()
            .chain(containers)
            .chain(volumes)
            .collect()
    }
}
