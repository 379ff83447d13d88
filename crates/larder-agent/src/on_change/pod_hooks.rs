//! The hooks of one pod: from its annotations, from the agent's configuration, and from the program that embeds the
//! agent.

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use larder_actions::targets::KnownContainers;
use larder_on_change::{
    Hook, OnFailure, PodFacts,
    parse::{ANNOTATION, ANNOTATION_PREFIX, annotated_hooks},
};
use larder_pods::StoredPod;
use parking_lot::Mutex;
use smol_str::SmolStr;

use super::{
    content::{Item, PartKey},
    round::{Handler, sub_path_note},
    settings::{OnChangeConfig, PodSelector, shown_error},
};

/// The origin of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The annotation with this key.
    Annotation(SmolStr),
    /// `onChange` of the configuration.
    Configuration,
    /// The program that embeds the agent.
    Program,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(key) => f.write_str(key),
            Self::Configuration => f.write_str("configuration"),
            Self::Program => f.write_str("program"),
        }
    }
}

/// A hook of the program that embeds the agent.
#[derive(Clone)]
pub(crate) struct ProgramHook {
    pub(crate) pods: PodSelector,
    pub(crate) hook: Arc<Hook>,
    pub(crate) handler: Handler,
}

/// One hook of a pod.
pub(crate) struct PodHook {
    pub(crate) place: Place,
    pub(crate) hook: Arc<Hook>,
    /// Called instead of steps.
    pub(crate) handler: Option<Handler>,
    /// A note for its user in addition to its state (rule F7).
    pub(crate) note: Option<Box<str>>,
}

impl fmt::Debug for PodHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodHook")
            .field("place", &self.place)
            .field("hook", &self.hook)
            .finish_non_exhaustive()
    }
}

impl PodHook {
    /// Whether the hook selects content of the part.
    pub(super) fn looks_at_part(&self, part: &PartKey) -> bool {
        match part {
            PartKey::Volume(name, _) => self.hook.looks_at_volume(name),
            PartKey::Environment(container) => {
                let named = self.hook.container.as_ref();
                self.hook.environment && named.is_none_or(|named| named == container)
            }
        }
    }

    /// Whether the hook selects the item of the part.
    pub(super) fn looks_at(&self, part: &PartKey, item: &Item) -> bool {
        match part {
            PartKey::Volume(name, _) => self.hook.looks_at_file(name, &item.name, item.is_token),
            PartKey::Environment(_) => self.looks_at_part(part),
        }
    }

    /// Whether a round may begin with the pass that changes the content.
    pub(super) fn fires_at_once(&self) -> bool {
        let timing = &self.hook.timing;
        timing.debounce.min.is_zero() && timing.splay.is_zero()
    }

    /// Whether both are the same hook with the same definition.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.place == other.place
            && (Arc::ptr_eq(&self.hook, &other.hook) || self.hook == other.hook)
    }

    /// Its action, in short.
    pub(crate) fn action(&self) -> String {
        if self.handler.is_some() {
            return "program".to_owned();
        }
        self.hook.action()
    }
}

/// All hooks of a pod.
#[derive(Debug)]
pub(crate) struct PodHooks {
    pub(crate) hooks: Box<[PodHook]>,
    /// Errors of annotations, whose hooks are missing or are the last valid ones: place, field, problem.
    pub(crate) errors: Box<[String]>,
    /// Containers whose variables hooks may look at (rule F9); none if no hook looks at variables.
    targets: Box<[SmolStr]>,
    /// The containers that earlier rounds have found.
    pub(super) known_containers: KnownContainers,
}

impl PodHooks {
    /// Whether both have the same hooks and errors.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let mut pairs = self.hooks.iter().zip(&other.hooks);
        self.hooks.len() == other.hooks.len()
            && pairs.all(|(one, other)| one.is_same(other) && one.note == other.note)
            && self.errors == other.errors
            && self.targets == other.targets
    }

    /// Whether a hook selects content of the part.
    pub(crate) fn look_at_part(&self, part: &PartKey) -> bool {
        if let PartKey::Environment(container) = part
            && !self.targets.contains(container)
        {
            return false;
        }
        self.hooks.iter().any(|hook| hook.looks_at_part(part))
    }

    /// Whether a hook that [fires at once](PodHook::fires_at_once) selects content of the part.
    pub(super) fn fire_at_once(&self, part: &PartKey) -> bool {
        let mut hooks = self.hooks.iter();
        self.look_at_part(part)
            && hooks.any(|hook| hook.fires_at_once() && hook.looks_at_part(part))
    }

    /// Whether a hook selects this item.
    pub(super) fn look_at(&self, part: &PartKey, item: &Item) -> bool {
        self.hooks.iter().any(|hook| hook.looks_at(part, item))
    }
}

/// Decides on the hooks of the pods of a node.
pub(super) struct HookSources {
    /// Replaced by a reload.
    config: Mutex<Arc<OnChangeConfig>>,
    program: Vec<ProgramHook>,
}

impl HookSources {
    pub(super) fn new(config: OnChangeConfig, program: Vec<ProgramHook>) -> Self {
        Self {
            config: Mutex::new(Arc::new(config)),
            program,
        }
    }

    /// The settings in use.
    pub(super) fn config(&self) -> Arc<OnChangeConfig> {
        Arc::clone(&self.config.lock())
    }

    /// Replaces the settings of hooks. The hooks of earlier pods are [out of date](Self::current) then.
    pub(super) fn reload(&self, config: OnChangeConfig) {
        *self.config.lock() = Arc::new(config);
    }

    /// The hooks of `pod`, which had `before` when it was the previous pod; `None` if it has none.
    pub(super) fn hooks(
        &self,
        pod: &StoredPod,
        decoded: Option<&Pod>,
        before: Option<(&StoredPod, Option<&Arc<PodHooks>>)>,
    ) -> Option<Arc<PodHooks>> {
        match before {
            Some((previous, hooks))
                if decoded.is_none()
                    && known_annotations(previous).eq(known_annotations(pod))
                    && previous.metadata.labels == pod.metadata.labels =>
            {
                hooks.cloned()
            }
            _ => self.current(pod, decoded, before.and_then(|(_, hooks)| hooks)),
        }
    }

    /// The hooks of `pod`, which had `before` until now, by the settings in use; `None` if it has none.
    ///
    /// A pod is not decoded if it has no annotation of hooks and no hook selects it.
    pub(super) fn current(
        &self,
        pod: &StoredPod,
        decoded: Option<&Pod>,
        before: Option<&Arc<PodHooks>>,
    ) -> Option<Arc<PodHooks>> {
        let config = self.config();
        let configured = config.hooks.iter();
        let configured = configured.filter(|hook| hook.pods.selects(pod));
        let configured: Vec<_> = configured.map(|found| Arc::clone(&found.hook)).collect();
        let program = self.program.iter();
        let program: Vec<_> = program.filter(|hook| hook.pods.selects(pod)).collect();
        let is_annotated = known_annotations(pod).next().is_some();
        if !is_annotated && configured.is_empty() && program.is_empty() {
            return None;
        }
        let own;
        let decoded = if let Some(decoded) = decoded {
            decoded
        } else {
            own = pod.decode();
            &own
        };
        let facts = PodFacts::of(decoded);
        let (mut hooks, mut errors) = (Vec::new(), Vec::new());
        if is_annotated {
            let annotations: BTreeMap<_, _> = known_annotations(pod)
                .map(|(key, text)| (key.clone(), text.clone()))
                .collect();
            for found in annotated_hooks(&annotations, config.from_pods, &facts) {
                let place = Place::Annotation(found.annotation.as_str().into());
                match found.hooks {
                    Ok(found) => hooks.extend(found.into_iter().map(|hook| PodHook {
                        place: place.clone(),
                        hook: Arc::new(hook),
                        handler: None,
                        note: None,
                    })),
                    Err(error) => {
                        errors.push(shown_error(&found.annotation, &error));
                        // The last valid value stays in force, unless a reload has forbidden it (rule S4).
                        let known = before.iter().flat_map(|before| &before.hooks);
                        let is_allowed = |hook: &Hook| {
                            let mut steps = hook.steps.iter();
                            steps.all(|step| config.from_pods.allows(step))
                                && (hook.on_failure != OnFailure::Restart
                                    || config.from_pods.restart)
                        };
                        let known =
                            known.filter(|hook| hook.place == place && is_allowed(&hook.hook));
                        hooks.extend(known.map(|hook| PodHook {
                            place: place.clone(),
                            hook: Arc::clone(&hook.hook),
                            handler: None,
                            note: None,
                        }));
                    }
                }
            }
        }
        hooks.extend(configured.into_iter().map(|hook| PodHook {
            place: Place::Configuration,
            hook,
            handler: None,
            note: None,
        }));
        hooks.extend(program.into_iter().map(|hook| PodHook {
            place: Place::Program,
            hook: Arc::clone(&hook.hook),
            handler: Some(Arc::clone(&hook.handler)),
            note: None,
        }));
        hooks.retain(|hook| applies(&hook.hook, &facts));
        if hooks.is_empty() && errors.is_empty() {
            return None;
        }
        for hook in &mut hooks {
            hook.note = sub_path_note(decoded, hook).map(String::into_boxed_str);
        }
        let look_at_variables = hooks.iter().any(|hook| hook.hook.environment);
        let targets = facts
            .containers
            .iter()
            .filter(|container| look_at_variables && !container.is_init);
        Some(Arc::new(PodHooks {
            hooks: hooks.into(),
            errors: errors.into(),
            targets: targets.map(|container| container.name.clone()).collect(),
            known_containers: KnownContainers::default(),
        }))
    }
}

/// Whether the pod has any content that the hook selects. A hook of the configuration applies to many pods.
fn applies(hook: &Hook, facts: &PodFacts) -> bool {
    let delivered = |name: &SmolStr| {
        let mut volumes = facts.volumes.iter();
        volumes.any(|volume| volume.is_delivered() && volume.name == *name)
    };
    let looks_at_volumes = match &hook.volumes {
        None => facts
            .volumes
            .iter()
            .any(larder_on_change::VolumeFacts::is_delivered),
        Some(names) => names.iter().any(delivered),
    };
    let has_container = |name: &SmolStr| {
        let mut containers = facts.containers.iter();
        containers.any(|container| !container.is_init && container.name == *name)
    };
    (looks_at_volumes || hook.environment) && hook.container.as_ref().is_none_or(has_container)
}

/// The annotations that define hooks, in the order of their keys.
fn known_annotations(pod: &StoredPod) -> impl Iterator<Item = (&String, &String)> {
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| *key == ANNOTATION || key.starts_with(ANNOTATION_PREFIX))
}
