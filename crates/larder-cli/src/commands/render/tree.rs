//! The view as a tree, for people: does the pod start, why not, and what does each container see.
//!
//! Invariant: without `--show-secrets` no byte of a Secret, a token or a key is printed, only lengths.

mod branch;
mod words;

use std::io::{self, Write};

use k8s_openapi::api::core::v1::{Volume, VolumeMount};
use larder_projection::{
    Absent, ContainerKind, ContainerView, Environment, Origin, PayloadError, Projection, is_used,
};

use self::{
    branch::{Branch, Cell},
    words::{absent, origin, size, value, volume_type},
};
use super::View;
use crate::output::Style;

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
    for (container, environment) in &view.containers {
        let mut branch = Branch::new([Cell::bold(heading(container))]);
        match environment {
            Ok(environment) => branch.push_group(variables(environment, show_secrets)),
            Err(error) => branch.push(Branch::new([Cell::red(format!("no environment: {error}"))])),
        }
        for mount in container.volume_mounts {
            branch.push(mounted(view, mount));
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
    let containers = view
        .containers
        .iter()
        .filter_map(|(container, environment)| {
            let error = environment.as_ref().err()?;
            Some(Branch::new([
                Cell::red(heading(container)),
                Cell::plain(error),
            ]))
        });
    // A volume that no container mounts is never set up, so it stops nobody.
    let volumes = view.volumes.iter().filter_map(|(volume, projection)| {
        let error = projection
            .as_ref()
            .err()
            .filter(|_| is_used(view.pod, &volume.name))?;
        Some(Branch::new([
            Cell::red(format!("volume {}", volume.name)),
            Cell::plain(error),
        ]))
    });
    let reasons: Vec<_> = containers.chain(volumes).collect();
    if reasons.is_empty() {
        Branch::new([Cell::green("ready to start: every reference is met")])
    } else {
        Branch::with([Cell::red("does not start")], reasons)
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

/// What is optional and not there.
fn missing(all: &[Absent<'_>]) -> Vec<Branch> {
    let lines = absent(all).into_iter();
    lines
        .map(|line| Branch::new([Cell::yellow(format!("optional and not there: {line}"))]))
        .collect()
}

fn mounted(view: &View<'_>, mount: &VolumeMount) -> Branch {
    let volumes = view
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.into_iter().find(|volume| volume.name == mount.name);
    let sub_path = mount
        .sub_path
        .as_deref()
        .or(mount.sub_path_expr.as_deref())
        .unwrap_or("");
    let part = if sub_path.is_empty() {
        String::new()
    } else {
        format!(", only {sub_path}")
    };
    let what = volume.map_or(String::new(), volume_type);
    let mut branch = Branch::new([
        Cell::plain(&mount.mount_path),
        Cell::dim(format!("volume {}: {what}{part}", mount.name)),
    ]);
    let filled = view
        .volumes
        .iter()
        .find(|(volume, _)| volume.name == mount.name);
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
    if branches.is_empty() {
        branches.push(Branch::new([Cell::dim("empty")]));
    }
    branches.extend(missing(&projection.absent));
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
