//! The view as a tree, for people: does the pod start, why not, and what does each container see.
//!
//! Invariant: without `--show-secrets` no byte of a Secret, a token or a key is printed, only lengths.

mod branch;
mod lacking;
mod words;

use std::io::{self, Write};

use k8s_openapi::api::core::v1::Volume;
use larder_objects::chain;
use larder_projection::{
    Absent, ContainerKind, ContainerView, Environment, EnvironmentError, Mount, MountError,
    ObjectError, Origin, PayloadError, Projection, SourceError, is_used,
};

use self::{
    branch::{Branch, Cell},
    lacking::{elsewhere, lacking},
    words::{absent, origin, size, value, volume_type},
};
use super::{Blind, View, mount_table};
use crate::output::Style;

/// Of env files, which containers write: whether a variable will be there, nobody can say beforehand.
const WRITTEN_LATER: &str = "only a running pod has it";

/// Writes one tree for each pod, with a blank line between them.
pub(super) fn write(
    out: &mut dyn Write,
    views: &[View<'_>],
    show_secrets: bool,
    style: Style,
) -> io::Result<()> {
    for (index, view) in views.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let tree = pod(view, show_secrets);
        out.write_all(tree.render(style).as_bytes())?;
    }
    Ok(())
}

fn pod(view: &View<'_>, show_secrets: bool) -> Branch {
    let name = format!("{}/{}", view.namespace(), view.name());
    let mut root = Branch::new([Cell::bold(name), Cell::dim(view.source)]);
    root.push(verdict(view));
    for (container, sight) in &view.containers {
        let mut branch = Branch::new([Cell::bold(heading(container))]);
        match sight {
            Ok(sight) => {
                let mut group = variables(&sight.environment, show_secrets);
                group.extend(optional_files(container));
                branch.push_group(group);
                branch.extend(sight.mounts.iter().map(|mount| mounted(view, mount)));
            }
            Err(error) => {
                branch.push(Branch::new([Cell::red(format!(
                    "not started: {}",
                    chain(error)
                ))]));
                branch.extend(lacking(view, container));
                // Without its variables; a sub path that is made of them cannot be told.
                let mounts = mount_table(view.pod, *container, &Environment::default());
                branch.extend(mounts.iter().flatten().map(|mount| mounted(view, mount)));
            }
        }
        root.push(branch);
    }
    root.push_group(unmounted(view));
    root
}

fn heading(container: &ContainerView<'_>) -> String {
    let kind = match container.kind {
        ContainerKind::Init => "init container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral container",
    };
    format!("{kind} {}", container.name)
}

/// Whether the pod starts, as far as larder's part of it goes, and otherwise every reason.
fn verdict(view: &View<'_>) -> Branch {
    let containers = view.containers.iter().filter_map(|(container, sight)| {
        let error = sight.as_ref().err()?;
        Some(Branch::new([
            Cell::red(heading(container)),
            Cell::plain(chain(error)),
            Cell::dim(hint(error)),
        ]))
    });
    // A volume that no container mounts is never set up, so it stops nobody.
    let used = view
        .volumes
        .iter()
        .filter(|(volume, _)| is_used(view.pod, &volume.name));
    let volumes = used.filter_map(|(volume, projection)| {
        let error = projection.as_ref().err()?;
        let hint = error.errors().iter().find_map(|error| match error {
            SourceError::Object(ObjectError::NotFound { kind, name }) => {
                Some(elsewhere(view, *kind, name))
            }
            _ => None,
        });
        Some(Branch::new([
            Cell::red(format!("volume {}", volume.name)),
            Cell::plain(error),
            Cell::dim(hint.unwrap_or_default()),
        ]))
    });
    let reasons: Vec<_> = containers.chain(volumes).collect();
    if reasons.is_empty() {
        Branch::new([Cell::green("ready to start: every reference is met")])
    } else {
        Branch::with([Cell::red("does not start")], reasons)
    }
}

/// What the kubelet's words for a failure leave open; empty if nothing.
fn hint(error: &Blind) -> &'static str {
    match error {
        Blind::Environment(EnvironmentError::UnreadableEnvFile(_)) => WRITTEN_LATER,
        Blind::Mounts(MountError::MissingValue(_)) => "a subPathExpr refers to it",
        _ => "",
    }
}

/// The variables, those of Services in one line for each Service.
fn variables(environment: &Environment<'_>, show_secrets: bool) -> Branch {
    let count = environment.len();
    let heading = match count {
        0 => "environment: empty".to_owned(),
        1 => "environment: 1 variable".to_owned(),
        _ => format!("environment: {count} variables"),
    };
    let mut branch = Branch::new([Cell::plain(heading)]);
    let mut services: Vec<(&str, &str, usize)> = Vec::new();
    for (name, variable) in environment.iter() {
        if let Origin::Service { namespace, name } = variable.origin {
            match services
                .iter_mut()
                .find(|service| (service.0, service.1) == (namespace, name))
            {
                Some(service) => service.2 += 1,
                None => services.push((namespace, name, 1)),
            }
            continue;
        }
        let shown = if variable.secret && !show_secrets {
            Cell::yellow(format!("<hidden, {}>", size(variable.value.len())))
        } else {
            Cell::plain(value(&variable.value))
        };
        branch.push(Branch::new([
            Cell::plain(name),
            shown,
            Cell::dim(origin(&variable.origin, name)),
        ]));
    }
    for (namespace, name, count) in services {
        let text = format!("{count} variables of Service {namespace}/{name}");
        branch.push(Branch::new([Cell::dim(text)]));
    }
    branch.extend(missing(environment.absent()));
    branch
}

/// Variables from files that containers write while the pod runs, which offline are never there.
fn optional_files<'a>(container: &ContainerView<'a>) -> impl Iterator<Item = Branch> + use<'a> {
    let sources = container.env.iter().filter_map(|variable| {
        let key = variable.value_from.as_ref()?.file_key_ref.as_ref()?;
        Some((&variable.name, key))
    });
    let optional = sources.filter(|(_, key)| key.optional == Some(true));
    optional.map(|(name, key)| {
        let file = format!("{} of volume {}", key.path, key.volume_name);
        Branch::new([Cell::yellow(format!(
            "optional and not there: {name} in {file}; {WRITTEN_LATER}"
        ))])
    })
}

/// What is optional and not there.
fn missing(all: &[Absent<'_>]) -> Vec<Branch> {
    let lines = absent(all).into_iter();
    lines
        .map(|line| Branch::new([Cell::yellow(format!("optional and not there: {line}"))]))
        .collect()
}

/// One mount, with the files that the container finds there.
fn mounted(view: &View<'_>, mount: &Mount<'_>) -> Branch {
    let volume = mount.volume;
    let mut what = format!("volume {}: {}", volume.name, volume_type(volume));
    if let Some(path) = &mount.sub_path {
        what = format!("{path} of {what}");
    }
    if mount.read_only {
        what += ", read-only";
    }
    let mut branch = Branch::new([Cell::plain(&mount.mount_path), Cell::dim(what)]);
    let filled = view
        .volumes
        .iter()
        .find(|(filled, _)| filled.name == volume.name);
    if let Some((_, projection)) = filled {
        branch.extend(content(projection, mount.sub_path.as_deref().unwrap_or("")));
    }
    branch
}

/// Files of a volume at or below `sub_path`.
fn content(projection: &Result<Projection<'_>, PayloadError>, sub_path: &str) -> Vec<Branch> {
    let projection = match projection {
        Ok(projection) => projection,
        Err(error) => return vec![Branch::new([Cell::red(format!("not filled: {error}"))])],
    };
    let wanted = sub_path.trim_end_matches('/');
    let is_below = |path: &str| {
        let rest = path.strip_prefix(wanted);
        wanted.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let files = projection
        .payload
        .iter()
        .filter(|(path, _)| is_below(path.as_str()));
    let mut branches: Vec<_> = files
        .map(|(path, file)| {
            let source = projection.origins.get(path);
            Branch::new([
                Cell::plain(path),
                Cell::plain(format!("{:04o}", file.mode)),
                Cell::plain(size(file.data.len())),
                Cell::dim(source.map_or(String::new(), |source| origin(source, path.as_str()))),
            ])
        })
        .collect();
    let found = !branches.is_empty();
    match (found, wanted) {
        (true, _) => {}
        (false, "") => branches.push(Branch::new([Cell::dim("empty")])),
        (false, _) => branches.push(Branch::new([Cell::yellow(format!(
            "the volume has no {wanted}: the container gets an empty directory"
        ))])),
    }
    // Of no interest to one who mounts what is there.
    if wanted.is_empty() || !found {
        branches.extend(missing(&projection.absent));
    }
    branches
}

/// Volumes that are filled from objects and that no container mounts.
fn unmounted(view: &View<'_>) -> Branch {
    let volumes = view
        .volumes
        .iter()
        .filter(|(volume, _)| !is_used(view.pod, &volume.name));
    let branches = volumes.map(|(volume, projection)| {
        let volume: &Volume = volume;
        let text = format!("volume {}: {}", volume.name, volume_type(volume));
        Branch::with([Cell::plain(text)], content(projection, ""))
    });
    Branch::with([Cell::dim("mounted by no container")], branches.collect())
}
