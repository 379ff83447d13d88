//! Reads hooks: the short form (`signal:SIGHUP`) and the long one, a YAML or JSON list.
//!
//! The source of a hook determines its permissions (rules S1 to S8), so every reader takes the [`HookOrigin`]. Given
//! the outline of the pod, names of volumes, containers and ports are checked as well.
//!
//! A text is decoded into [`HookFields`] by the one reader of settings (`larder_objects::yaml`), and checked field by
//! field. Every error names the field and its line; the caller adds the place: an annotation's key, a flag, a file.

mod configured;
mod error;
mod http;
mod long;
mod place;
mod pod;
mod short;
mod timing;
mod written;

pub use configured::{ConfiguredHook, HookList, PodSelector, allowed_actions};
pub use error::HookError;
pub(crate) use pod::defines_hooks;
pub use pod::{ANNOTATION, ANNOTATION_PREFIX, AnnotatedHooks, annotated_hooks};
pub use short::is_short;
pub use written::HookFields;

use larder_objects::{
    FieldPath,
    yaml::{self, YamlDocument},
};
use serde_json::Value;
use smol_str::SmolStr;

use self::{
    error::{TOO_LONG, TOO_MANY, at},
    place::ParseContext,
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
        [
            ("signal", self.signal),
            ("http", self.http),
            ("restart", self.restart),
        ]
        .into_iter()
        .filter_map(|(word, is_allowed)| is_allowed.then_some(word))
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
    hooks_after(0, text, origin, outline)
}

/// As [`hooks`], for a text that follows others, which have `before` hooks: names by position go on from there.
///
/// # Errors
///
/// Those of [`hooks`].
pub fn hooks_after(
    before: usize,
    text: &str,
    origin: HookOrigin,
    outline: Option<&PodOutline>,
) -> Result<Vec<Hook>, HookError> {
    if text.len() > MAX_TEXT {
        return Err(HookError::whole(TOO_LONG));
    }
    let context = ParseContext {
        origin,
        outline,
        before,
    };
    if short::is_short(text) {
        return Ok(short::hook(text.trim(), context)?.into_iter().collect());
    }
    // Not trimmed: the first line of a list may be indented.
    let document =
        YamlDocument::parse(text, COPIED_BYTES * (1024 + text.len())).map_err(not_yaml)?;
    let hooks = match document.value() {
        Value::Array(_) => {
            let fields = document
                .decode::<Vec<HookFields>>()
                .map_err(|error| at_line(error.line, error.field, error.problem))?;
            long::list(fields, context)
        }
        // One hook counts as a list of one.
        Value::Object(_) => {
            let fields = document.decode::<HookFields>().map_err(|error| {
                let field = FieldPath::root().index(0).join(&error.field);
                at_line(error.line, field, error.problem)
            })?;
            long::list(vec![fields], context)
        }
        Value::String(text) => short::hook(text, context).map(|hook| hook.into_iter().collect()),
        _ => Err(HookError::whole("expected a list of hooks")),
    };
    hooks
        .and_then(|hooks| check_together(&hooks).map(|()| hooks))
        .map_err(|error| with_line(error, &document))
}

fn not_yaml(error: yaml::Error) -> HookError {
    at_line(error.line, error.field, error.problem)
}

fn at_line(line: usize, field: FieldPath, problem: String) -> HookError {
    HookError {
        line: Some(line),
        ..at(field, problem)
    }
}

/// The error of a field that was decoded, with its line.
fn with_line(error: HookError, document: &YamlDocument) -> HookError {
    let is_list = document.value().is_array();
    let field: FieldPath = match error.field.segments() {
        [] => return error,
        [_, rest @ ..] if !is_list => rest.iter().cloned().collect(),
        all => all.iter().cloned().collect(),
    };
    HookError {
        line: Some(document.line_of(&field)),
        ..error
    }
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
                    FieldPath::root().index(later).child("name"),
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
                    FieldPath::root().index(restart).child("restart"),
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
