//! The hooks of one pod: from its annotations, from the agent's configuration, and from the program that embeds the
//! agent.

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smol_str::SmolStr;

use crate::{
    hook::{Hook, OnFailure},
    outline::{ContainerOutline, ContainerRole, MountedPath, PodOutline},
    parse::{AllowedActions, ConfiguredHook, HookError, annotated_hooks, defines_hooks},
    part::PartKey,
};

/// The origin of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The annotation with this key.
    Annotation(SmolStr),
    /// `onChange` of the configuration.
    Configuration,
    /// The command line.
    CommandLine,
    /// The program that embeds the agent: its hook with this index, which it runs itself.
    Program(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(key) => f.write_str(key),
            Self::Configuration => f.write_str("configuration"),
            Self::CommandLine => f.write_str("command line"),
            Self::Program(_) => f.write_str("program"),
        }
    }
}

/// One hook of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodHook {
    /// Its origin.
    pub place: Place,
    /// The hook.
    pub hook: Arc<Hook>,
    /// What `subPath` means for it; `None` if that is nothing.
    sub_paths: Option<Box<SubPaths>>,
}

/// The effect of mounts by `subPath` on a hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SubPaths {
    /// A note for the user in addition to the hook's state (rule F7).
    note: Option<String>,
    /// The volumes that its containers mount by `subPath` only, and what of each. Other files of them do not count, since
    /// no container sees them (rule F2).
    partial: Vec<(SmolStr, MountedPath)>,
}

impl PodHook {
    fn new(place: Place, hook: Arc<Hook>, outline: &PodOutline) -> Self {
        let sub_paths = SubPaths {
            note: sub_path_note(outline, &hook),
            partial: partial(outline, &hook),
        };
        let has_any = sub_paths != SubPaths::default();
        Self {
            place,
            hook,
            sub_paths: has_any.then(|| Box::new(sub_paths)),
        }
    }

    /// A note for its user in addition to its state.
    pub fn note(&self) -> Option<&str> {
        self.sub_paths.as_ref()?.note.as_deref()
    }

    /// Whether the hook selects content of the part.
    pub fn selects_part(&self, part: &PartKey) -> bool {
        match part {
            PartKey::Volume(name, _) => self.hook.selects_volume(name),
            PartKey::Environment(container) => {
                let named = self.hook.container.as_ref();
                self.hook.environment && named.is_none_or(|named| named == container)
            }
        }
    }

    /// Whether the hook selects the file or variable of this name.
    pub(crate) fn selects(&self, part: &PartKey, name: &str, is_token: bool) -> bool {
        match part {
            PartKey::Volume(volume, _) => {
                self.hook.selects_file(volume, name, is_token) && self.sees(volume, name)
            }
            // The item without a name stands for all else that a restart changes.
            PartKey::Environment(_) => {
                self.selects_part(part) && (!name.is_empty() || self.hook.restarts())
            }
        }
    }

    fn sees(&self, volume: &str, path: &str) -> bool {
        let mut mounted = self
            .sub_paths
            .iter()
            .flat_map(|found| &found.partial)
            .filter(|(name, _)| name == volume)
            .peekable();
        mounted.peek().is_none() || mounted.any(|(_, part)| part.contains(path))
    }

    /// Whether both are the same hook with the same definition.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.place == other.place
            && (Arc::ptr_eq(&self.hook, &other.hook) || self.hook == other.hook)
    }

    /// Its action, in short.
    pub fn action(&self) -> String {
        match self.place {
            Place::Program(_) => "program".to_owned(),
            Place::Annotation(_) | Place::Configuration | Place::CommandLine => self.hook.action(),
        }
    }
}

/// An annotation with an error: its hooks are missing, or are the last valid ones. Or `onChange` of the configuration, where
/// a hook names a pod and what this pod lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{annotation}: {error}")]
pub struct InvalidAnnotation {
    /// Its key, or `onChange`.
    pub annotation: SmolStr,
    /// The field, and the problem.
    pub error: HookError,
}

/// All hooks of a pod.
#[derive(Debug, PartialEq, Eq)]
pub struct PodHooks {
    /// The hooks.
    pub hooks: Box<[PodHook]>,
    /// The annotations with errors, and hooks of the configuration that name what the pod lacks.
    pub errors: Box<[InvalidAnnotation]>,
    /// Containers whose variables hooks may select (rule F9); none if no hook selects variables.
    targets: Box<[SmolStr]>,
    /// Volume and path of each service account token.
    tokens: Box<[(SmolStr, SmolStr)]>,
}

impl PodHooks {
    /// The hooks of one application, from its command line.
    pub fn of_command(hooks: impl IntoIterator<Item = Arc<Hook>>, outline: &PodOutline) -> Self {
        let hooks = hooks
            .into_iter()
            .map(|hook| PodHook::new(Place::CommandLine, hook, outline));
        Self::new(hooks.collect(), Vec::new(), outline)
    }

    fn new(hooks: Vec<PodHook>, errors: Vec<InvalidAnnotation>, outline: &PodOutline) -> Self {
        let select_variables = hooks.iter().any(|hook| hook.hook.environment);
        let targets = outline
            .containers
            .iter()
            .filter(|container| select_variables && container.role != ContainerRole::Init);
        let tokens = outline.volumes.iter().flat_map(|volume| {
            volume
                .tokens
                .iter()
                .map(|path| (volume.name.clone(), path.clone()))
        });
        Self {
            hooks: hooks.into(),
            errors: errors.into(),
            targets: targets.map(|container| container.name.clone()).collect(),
            tokens: tokens.collect(),
        }
    }

    /// Whether a hook selects content of the part.
    pub fn selects_part(&self, part: &PartKey) -> bool {
        if let PartKey::Environment(container) = part
            && !self.targets.contains(container)
        {
            return false;
        }
        self.hooks.iter().any(|hook| hook.selects_part(part))
    }

    /// Whether a hook selects the file or variable of this name.
    pub(crate) fn selects(&self, part: &PartKey, name: &str, is_token: bool) -> bool {
        let mut hooks = self.hooks.iter();
        hooks.any(|hook| hook.selects(part, name, is_token))
    }

    /// Whether the part is a volume, and its file of this path a service account token (rule F6).
    pub(crate) fn is_token(&self, part: &PartKey, path: &str) -> bool {
        let mut tokens = self.tokens.iter();
        matches!(part, PartKey::Volume(volume, _)
            if tokens.any(|(owner, token)| owner == volume && token == path))
    }
}

/// The hooks that the pods of a node may have besides those of their annotations.
#[derive(Clone, Copy, Debug)]
pub struct HookSources<'a> {
    /// Actions that annotations may request.
    pub allowed: AllowedActions,
    /// The hooks of the configuration.
    pub configured: &'a [ConfiguredHook],
    /// The hooks of the program that embeds the agent.
    pub program: &'a [ConfiguredHook],
}

impl HookSources<'_> {
    /// The hooks of `pod`, which had `before` until now; `None` if it has none. `outline` is called only if the pod has an
    /// annotation of hooks, or a hook selects it.
    pub fn hooks_of(
        &self,
        pod: &ObjectMeta,
        outline: impl FnOnce() -> PodOutline,
        before: Option<&PodHooks>,
    ) -> Option<PodHooks> {
        let mut all = self.configured.iter().chain(self.program);
        if hook_annotations(pod).next().is_none() && !all.any(|found| found.pods.selects(pod)) {
            return None;
        }
        let outline = outline();
        let (mut hooks, mut errors) = (Vec::new(), Vec::new());
        let mut add = |place: &Place, hook: Arc<Hook>| {
            if applies(&hook, &outline) {
                hooks.push(PodHook::new(place.clone(), hook, &outline));
            }
        };
        let annotations = pod.annotations.iter();
        for found in annotations.flat_map(|all| annotated_hooks(all, self.allowed, &outline)) {
            let annotation = SmolStr::from(found.annotation);
            let place = Place::Annotation(annotation.clone());
            match found.hooks {
                Ok(found) => {
                    found
                        .into_iter()
                        .map(Arc::new)
                        .for_each(|hook| add(&place, hook));
                }
                Err(error) => {
                    // The last valid value stays in force, unless a reload has forbidden it (rule S4).
                    before
                        .iter()
                        .flat_map(|before| &before.hooks)
                        .filter(|hook| hook.place == place && self.allows(&hook.hook))
                        .for_each(|hook| add(&place, Arc::clone(&hook.hook)));
                    errors.push(InvalidAnnotation { annotation, error });
                }
            }
        }
        let configured = self
            .configured
            .iter()
            .map(|found| (Place::Configuration, found));
        let program = self
            .program
            .iter()
            .enumerate()
            .map(|(index, found)| (Place::Program(index), found));
        for (place, found) in configured.chain(program) {
            if !found.pods.selects(pod) {
                continue;
            }
            add(&place, Arc::clone(&found.hook));
            if let (Place::Configuration, Err(error)) = (&place, found.check(pod, &outline)) {
                let annotation = SmolStr::new_static("onChange");
                errors.push(InvalidAnnotation { annotation, error });
            }
        }
        if hooks.is_empty() && errors.is_empty() {
            return None;
        }
        Some(PodHooks::new(hooks, errors, &outline))
    }

    /// Whether annotations may still ask for everything that the hook does.
    fn allows(&self, hook: &Hook) -> bool {
        hook.steps.iter().all(|step| self.allowed.allows(step))
            && (hook.on_failure != OnFailure::Restart || self.allowed.restart)
    }
}

/// Whether two states of a pod with one specification have the same hooks, as long as the sources stay the same.
pub fn has_same_hooks(pod: &ObjectMeta, other: &ObjectMeta) -> bool {
    hook_annotations(pod).eq(hook_annotations(other)) && pod.labels == other.labels
}

/// Whether the pod has any content that the hook selects. A hook of the configuration applies to many pods.
fn applies(hook: &Hook, outline: &PodOutline) -> bool {
    let has_container = |name: &SmolStr| {
        outline
            .containers
            .iter()
            .any(|container| container.role != ContainerRole::Init && container.name == *name)
    };
    (hook.environment || outline.delivered().any(|name| hook.selects_volume(name)))
        && hook.container.as_ref().is_none_or(has_container)
}

/// The running containers that the hook is about.
fn containers<'a>(
    outline: &'a PodOutline,
    hook: &Hook,
) -> impl Iterator<Item = &'a ContainerOutline> {
    let containers = outline.containers.iter();
    containers.filter(|container| {
        let named = hook.container.as_ref();
        container.role != ContainerRole::Init && named.is_none_or(|name| *name == container.name)
    })
}

/// The note for a hook that depends on a `subPath` mount, which keeps the old file (rule F7).
fn sub_path_note(outline: &PodOutline, hook: &Hook) -> Option<String> {
    if hook.restarts() {
        return None;
    }
    let mut containers =
        containers(outline, hook).filter(|container| container.role != ContainerRole::Sidecar);
    let is_stale = |(volume, path): &&(SmolStr, MountedPath)| {
        *path != MountedPath::Whole
            && hook.selects_volume(volume)
            && outline.delivered().any(|name| name == volume)
    };
    containers.find_map(|container| {
        let (volume, _) = container.mounts.iter().find(is_stale)?;
        Some(format!(
            "container {} mounts {volume} by subPath: only a restart shows it the new file",
            container.name
        ))
    })
}

/// The volumes that the hook's containers mount by `subPath` only, and what of each. A volume that none of them mounts
/// is whole: others read it.
fn partial(outline: &PodOutline, hook: &Hook) -> Vec<(SmolStr, MountedPath)> {
    let mounts = || containers(outline, hook).flat_map(|container| &container.mounts);
    let is_partial = |(volume, _): &&(SmolStr, MountedPath)| {
        let mut same = mounts().filter(|(name, _)| name == volume);
        same.all(|(_, path)| matches!(path, MountedPath::SubPath(_)))
    };
    mounts().filter(is_partial).cloned().collect()
}

/// The annotations that define hooks, in the order of their keys.
fn hook_annotations(pod: &ObjectMeta) -> impl Iterator<Item = (&String, &String)> {
    pod.annotations
        .iter()
        .flatten()
        .filter(|(key, _)| defines_hooks(key))
}
