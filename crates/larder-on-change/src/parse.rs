//! Reads hooks: the short form (`signal:SIGHUP`) and the long one, a YAML or JSON list.
//!
//! The source of a hook determines its permissions (rules S1 to S8), so every reader takes the [`HookOrigin`]. Given
//! the outline of the pod, names of volumes, containers and ports are checked as well.
//!
//! Every error names the field; the caller adds the place: an annotation's key, a flag, a file with its line.

mod configured;
mod error;
mod fields;
mod http;
mod long;
mod pod;
mod short;
mod timing;

pub use configured::{ConfiguredHook, HookList, PodSelector, allowed_actions};
pub use error::HookError;
pub(crate) use pod::defines_hooks;
pub use pod::{ANNOTATION, ANNOTATION_PREFIX, AnnotatedHooks, annotated_hooks};

use larder_objects::yaml::YamlDocument;
use smol_str::SmolStr;

use self::{
    error::{TOO_LONG, TOO_MANY, at},
    fields::ParseContext,
};
use crate::{
    hook::{Action, Debounce, Hook, Timing},
    outline::PodOutline,
};

/// Most hooks of a pod (rule S8).
pub const MAX_HOOKS: usize = 16;
/// Most bytes of text that describe the hooks of a pod (rule S8).
pub const MAX_TEXT: usize = 16 << 10;
/// Bytes that aliases may copy, for each byte of the text plus 1024: enough for 16 hooks that share their fields.
/// Aliases of aliases expand a short text to any size.
const COPIED_BYTES: usize = 64;
/// Most bytes of a request's body (rule H1).
const MAX_BODY: usize = 64 << 10;

/// Where a hook was written, which decides what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookOrigin {
    /// The command line of `larder exec`.
    CommandLine,
    /// An annotation of the pod; the node's configuration decides what is allowed.
    Annotation(AllowedActions),
    /// The configuration of the machine's operator.
    Configuration,
}

/// The actions that annotations may request: `onChangeFromPods` of the agent's configuration (rule S4). Commands are
/// never allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedActions {
    /// `signal`
    pub signal: bool,
    /// `http`
    pub http: bool,
    /// `restart`
    pub restart: bool,
}

impl AllowedActions {
    /// The words for the actions that annotations may request.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let words = [
            ("signal", self.signal),
            ("http", self.http),
            ("restart", self.restart),
        ];
        let words = words.into_iter();
        words.filter_map(|(word, is_allowed)| is_allowed.then_some(word))
    }

    /// Whether an annotation may request the action.
    pub fn allows(self, action: &Action) -> bool {
        self.words().any(|word| word == action.word())
    }
}

impl Default for AllowedActions {
    fn default() -> Self {
        Self {
            signal: true,
            http: true,
            restart: true,
        }
    }
}

/// The default timing of a hook, by its source and its action.
fn default_timing(origin: HookOrigin, steps: &[Action]) -> Timing {
    Timing::new(if origin == HookOrigin::CommandLine {
        Debounce::NONE
    } else if steps.iter().any(|step| matches!(step, Action::Restart(_))) {
        Debounce::RESTART
    } else {
        Debounce::DEFAULT
    })
}

/// Reads the hooks of one flag or annotation, in either form. `none` gives none.
///
/// # Errors
///
/// The text is malformed, or requests something that its origin does not permit, or that the pod does not have.
pub fn hooks(
    text: &str,
    origin: HookOrigin,
    outline: Option<&PodOutline>,
) -> Result<Vec<Hook>, HookError> {
    if text.len() > MAX_TEXT {
        return Err(HookError::whole(TOO_LONG));
    }
    let text = text.trim();
    let context = ParseContext { origin, outline };
    let hooks = if text.starts_with(['-', '[', '{']) {
        let document = YamlDocument::parse(text, COPIED_BYTES * (1024 + text.len()));
        let document = document.map_err(|error| HookError::whole(error.to_string()))?;
        long::list(document.value(), context)?
    } else {
        short::hook(text, context)?.into_iter().collect()
    };
    check_together(&hooks)?;
    Ok(hooks)
}

/// Checks the list as a whole: the number and the names of hooks, and actions that contradict each other.
///
/// # Errors
///
/// There are too many hooks, two have one name, or one signals a container that another one restarts for the same
/// volumes.
pub fn check_together(hooks: &[Hook]) -> Result<(), HookError> {
    if hooks.len() > MAX_HOOKS {
        return Err(HookError::whole(TOO_MANY));
    }
    for (later, hook) in hooks.iter().enumerate() {
        for (earlier, other) in hooks[..later].iter().enumerate() {
            if hook.name == other.name {
                return Err(at(
                    format!("[{later}].name"),
                    format!("[{earlier}] is named {:?} as well", hook.name),
                ));
            }
            let (signal, restart) = match (hook.signals(), other.signals()) {
                (true, false) if other.restarts() => (later, earlier),
                (false, true) if hook.restarts() => (earlier, later),
                _ => continue,
            };
            if same_container(hook.container.as_ref(), other.container.as_ref())
                && share_volumes(hook, other)
            {
                return Err(at(
                    format!("[{restart}].restart"),
                    format!(
                        "[{signal}] sends a signal for the same volumes: give volumes, or restart:environment"
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn same_container(one: Option<&SmolStr>, other: Option<&SmolStr>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

fn share_volumes(one: &Hook, other: &Hook) -> bool {
    match (&one.volumes, &other.volumes) {
        (None, None) => true,
        (Some(names), None) | (None, Some(names)) => !names.is_empty(),
        (Some(one), Some(other)) => one.iter().any(|name| other.contains(name)),
    }
}

#[cfg(test)]
mod tests;
