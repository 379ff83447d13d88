//! Rendered pods as trees: whether the pod starts, why not, and the view of each container.
//!
//! Invariant: without `--show-secrets`, the lengths of Secrets, tokens and keys are printed, and none of their bytes.

mod missing;

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use indexmap::IndexMap;
use larder_containers::subpaths::ANNOTATION;
use larder_objects::chain;
use larder_projection::{Absent, Environment, Mount, Origin, PayloadError, Projection, fs_group};

use self::missing::missing_references;
use super::verdict::JudgedPod;
use crate::{
    offline::with_hint,
    output::{Paint, Style, count, tree::Branch},
    rendered::{
        RenderedPod, files_below, mount_table, path_in_volume,
        words::{
            heading, is_cut, mount_source, permissions, size, sources, text_lines,
            unknown as unknown_words, variable_value, volume_type,
        },
    },
};

/// Writes one tree for each pod, and their sum, with blank lines between them.
pub(super) fn write(
    out: &mut dyn Write,
    pods: &[JudgedPod<'_, '_>],
    paint: Paint,
    sum: String,
    show_secrets: bool,
    style: Style,
) -> io::Result<()> {
    if pods.is_empty() {
        return Ok(());
    }
    let shown = Shown {
        secrets: show_secrets,
        contents: false,
    };
    for tree in trees(pods, shown) {
        writeln!(out, "{}", tree.render(style))?;
    }
    writeln!(out, "{}", style.paint(paint, sum))
}

/// The tree of each pod.
pub(super) fn trees<'p>(
    pods: &'p [JudgedPod<'_, '_>],
    shown: Shown,
) -> impl Iterator<Item = Branch> + 'p {
    pods.iter().map(move |pod| tree_of(pod, shown))
}

/// What could not be read; `None` if all was.
pub(super) fn not_read(all: &BTreeSet<(String, String)>) -> Option<Branch> {
    let entries = all
        .iter()
        .map(|(path, reason)| Branch::new().yellow(format_args!("not read: {path}: {reason}")));
    Branch::list("not looked at", entries)
}

/// What deserves a look in the manifests, outside of pods; `None` if nothing does.
pub(super) fn warnings(all: &[String]) -> Option<Branch> {
    let entries = all.iter().map(|text| Branch::new().yellow(text));
    Branch::list("what deserves a look", entries)
}

/// What trees show besides names and sizes.
#[derive(Clone, Copy, Default)]
pub(super) struct Shown {
    /// Values of Secrets.
    pub(super) secrets: bool,
    /// Contents of files, and long values in full.
    pub(super) contents: bool,
}

impl Shown {
    /// `branch` with a text below it, if that is to be shown there.
    fn with_content(self, branch: Branch, bytes: &[u8], is_secret: bool) -> Branch {
        let is_hidden = !self.contents || is_secret && !self.secrets;
        match text_lines(bytes).filter(|_| !is_hidden) {
            Some(lines) => {
                let lines = lines.into_iter().map(|line| (Paint::Plain, line));
                branch.text(lines).folded()
            }
            None => branch,
        }
    }
}

fn tree_of(judged: &JudgedPod<'_, '_>, shown: Shown) -> Branch {
    let pod = judged.pod;
    let name = format!("{}/{}", pod.namespace(), pod.label);
    let mut root = Branch::new().bold(name).dim(pod.source);
    root.push(judged.headline());
    for (container, view) in &pod.containers {
        let mut branch = Branch::new().bold(heading(container));
        match view {
            Ok(view) => {
                branch.push_group(variables(pod, &view.environment, shown));
                branch.extend(view.mounts.iter().map(|mount| mounted(pod, mount, shown)));
            }
            Err(error) => {
                let why = format!("not started: {}", chain(error));
                branch.push(Branch::new().red(why));
                branch.extend(missing_references(pod, container));
                // Without variables, a subPathExpr that refers to one stays unknown.
                let mounts = mount_table(pod.pod, *container, &Environment::default());
                let mounts = mounts.iter().flatten();
                branch.extend(mounts.map(|mount| mounted(pod, mount, shown)));
            }
        }
        root.push(branch);
    }
    root.push_group(unmounted(pod, shown));
    root.extend(hooks(pod));
    let warnings = judged
        .warnings
        .iter()
        .map(|(place, text)| Branch::new().plain(place).yellow(text));
    root.extend(Branch::list("what deserves a look", warnings));
    root
}

/// The hooks that annotations ask for, and their errors.
fn hooks(pod: &RenderedPod<'_>) -> Vec<Branch> {
    let mut branches = Vec::new();
    for annotation in &pod.hooks {
        let place = annotation.annotation.as_str();
        match &annotation.hooks {
            Ok(hooks) => branches.extend(hooks.iter().map(|hook| {
                let volumes = match &hook.volumes {
                    None => "all volumes".to_owned(),
                    Some(names) if names.is_empty() => "no volume".to_owned(),
                    Some(names) => names.join(", "),
                };
                let and = if hook.environment {
                    " and variables"
                } else {
                    ""
                };
                Branch::new()
                    .bold(format!("on change {}", hook.name))
                    .plain(hook.action())
                    .plain(format!("{volumes}{and}"))
                    .dim(place)
            })),
            Err(error) => branches.push(Branch::new().red("on change").plain(error).dim(place)),
        }
    }
    branches
}

/// The variables, with those of a Service on one line.
fn variables(pod: &RenderedPod<'_>, environment: &Environment<'_>, shown: Shown) -> Branch {
    let heading = match environment.len() {
        0 => "environment: empty".to_owned(),
        variables => format!("environment: {}", count(variables, "variable")),
    };
    let mut branch = Branch::new().plain(heading);
    let mut services: IndexMap<(&str, &str), (usize, &str)> = IndexMap::new();
    for (name, variable) in environment.iter() {
        if let Origin::Service { namespace, name } = variable.origin {
            let (count, unknown) = services.entry((namespace, name)).or_default();
            *count += 1;
            if variable.value.unknown().is_some() {
                *unknown = ", <known when it runs: clusterIP>";
            }
            continue;
        }
        let is_hidden = variable.secret && !shown.secrets;
        let is_known = variable.value.unknown().is_none() && !is_hidden;
        let paint = if is_known {
            Paint::Plain
        } else {
            Paint::Yellow
        };
        let fallback = variable.fallback.as_deref();
        let line = Branch::new()
            .plain(name)
            .cell(paint, variable_value(variable, is_hidden))
            .dim(sources(pod, &variable.origin, fallback, name));
        branch.push(if is_cut(&variable.value) {
            shown.with_content(line, &variable.value, variable.secret)
        } else {
            line
        });
    }
    for ((namespace, name), (count, unknown)) in services {
        let text = format!("{count} variables of Service {namespace}/{name}{unknown}");
        branch.push(Branch::new().dim(text));
    }
    for (prefix, objects) in environment.opaque() {
        let words = unknown_words(&objects, false);
        branch.push(Branch::new().plain(prefix).yellow(words));
    }
    branch.extend(missing(pod, environment.absent()));
    branch
}

/// Optional objects and keys that are missing.
fn missing(pod: &RenderedPod<'_>, all: &[Absent<'_>]) -> impl Iterator<Item = Branch> {
    pod.absent(all)
        .into_iter()
        .map(|(line, hint)| Branch::new().yellow(with_hint(line, &hint)))
}

/// One mount, with the files that the container finds there.
fn mounted(pod: &RenderedPod<'_>, mount: &Mount<'_>, shown: Shown) -> Branch {
    let projection = pod.projection(&mount.volume.name);
    let mut branch = Branch::new().plain(&mount.mount_path);
    branch = branch.dim(mount_source(mount));
    if let Some(projection) = projection {
        if mount.sub_path.is_some() {
            branch = branch.dim(if pod.updates_sub_paths() {
                format!("sees changes without a restart, by {ANNOTATION}")
            } else {
                format!("needs a restart to see changes, or {ANNOTATION}: \"true\"")
            });
        }
        branch.extend(content(pod, projection, Some(mount), shown));
    }
    branch
}

/// Files of a volume, or of the part of it that is mounted. Of a part that is not known, all of the volume.
fn content(
    pod: &RenderedPod<'_>,
    projection: &Result<Projection<'_>, PayloadError>,
    mount: Option<&Mount<'_>>,
    shown: Shown,
) -> Vec<Branch> {
    let projection = match projection {
        Ok(projection) => projection,
        Err(error) => {
            return vec![Branch::new().red(format!("not filled: {error}"))];
        }
    };
    let mount = mount.filter(|mount| mount.unknown_sub_path.is_none());
    let sub_path = mount
        .and_then(|mount| mount.sub_path.as_deref())
        .unwrap_or_default();
    let in_volume = path_in_volume(sub_path);
    let shown_path = mount.and_then(Mount::shown_sub_path).unwrap_or_default();
    let wanted = shown_path.trim_end_matches('/');
    let hides_path = mount.is_some_and(|mount| mount.secret_sub_path) && !shown.secrets;
    let group = fs_group(pod.pod);
    let mut branches: Vec<_> = files_below(&projection.payload, sub_path)
        .map(|(below, path, file)| {
            let source = projection.origins.get(path);
            let branch = Branch::new().plain(if hides_path {
                format!("{wanted}/{below}").trim_end_matches('/').to_owned()
            } else {
                path.to_string()
            });
            let owner = file.owner.filter(|_| projection.names_owner);
            let branch = branch.plain(permissions(file.mode, owner, group));
            let view = projection.look_up(path.as_str());
            let branch = match view.term() {
                Some(unknown) => branch.yellow(unknown_words(&unknown, false)),
                None => branch.plain(size(file.data.len())),
            };
            // Another file is perhaps in place of this one.
            let (own, fallback) = match view.layers.last() {
                Some(layer) => (Some(&layer.origin), source),
                None => (source, None),
            };
            let from = own
                .filter(|_| !hides_path)
                .map(|own| sources(pod, own, fallback, path.as_str()));
            let branch = branch.dim(from.unwrap_or_default());
            if !view.layers.is_empty() {
                return branch;
            }
            let is_secret = source.is_none_or(Origin::is_secret);
            shown.with_content(branch, &file.data, is_secret)
        })
        .collect();
    let perhaps = projection.paths().filter(|path| {
        let is_below = in_volume.is_empty() || path.as_str() == in_volume;
        is_below && !projection.payload.contains_key(*path)
    });
    branches.extend(perhaps.filter_map(|path| {
        let words = unknown_words(&projection.look_up(path.as_str()).term()?, false);
        Some(Branch::new().plain(path).yellow(words))
    }));
    if let Some(objects) = projection.opaque() {
        let words = unknown_words(&objects, false);
        branches.push(Branch::new().plain("*").yellow(words));
    }
    let found = !branches.is_empty();
    match (found, &*in_volume) {
        (true, _) => {}
        (false, "") => branches.push(Branch::new().dim("empty")),
        (false, _) => branches.push(Branch::new().yellow(format_args!(
            "the volume has no {wanted}: the container gets an empty directory"
        ))),
    }
    // A mount that shows what it should needs no hint at what else is missing.
    if in_volume.is_empty() || !found {
        branches.extend(missing(pod, &projection.absent));
    }
    branches
}

/// Volumes that are filled from objects and that no container mounts.
fn unmounted(pod: &RenderedPod<'_>, shown: Shown) -> Branch {
    let branches = pod
        .volumes
        .values()
        .filter(|(volume, _)| !pod.is_used(volume))
        .map(|(volume, projection)| {
            let text = format!("volume {}: {}", volume.name, volume_type(volume));
            let files = content(pod, projection, None, shown);
            Branch::new().plain(text).with(files)
        });
    Branch::new().dim("mounted by no container").with(branches)
}
