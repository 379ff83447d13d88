//! The hooks that the annotations of a pod define.

use std::collections::BTreeMap;

use larder_objects::FieldPath;
use smol_str::SmolStr;

use super::{
    AllowedActions, HookOrigin, MAX_HOOKS, MAX_TEXT,
    error::{HookError, TOO_LONG, TOO_MANY, at},
    hooks,
    place::check_container,
};
use crate::{hook::Hook, outline::PodOutline};

/// The annotation for hooks of the whole pod.
pub const ANNOTATION: &str = larder_objects::ON_CHANGE_ANNOTATION;
/// Prefix of the annotations for hooks of one container, followed by its name.
pub const ANNOTATION_PREFIX: &str = "on-change.larder.dev/";

/// Whether an annotation with this key defines hooks.
pub(crate) fn defines_hooks(key: &str) -> bool {
    key == ANNOTATION || key.starts_with(ANNOTATION_PREFIX)
}

/// The hooks of one annotation, or its error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotatedHooks {
    /// The annotation's key.
    pub annotation: String,
    /// Its hooks. With an error the annotation adds none; whether earlier ones stay in force is the caller's decision.
    pub hooks: Result<Vec<Hook>, HookError>,
}

/// Reads the hooks of all annotations that larder knows, each by itself, in the order of their keys.
///
/// More than [`MAX_HOOKS`] hooks or [`MAX_TEXT`] bytes in all are an error of each annotation (rule S8). Annotations
/// beyond one more than [`MAX_HOOKS`] are ignored, so that a pod with thousands of them has a few errors.
pub fn annotated_hooks(
    annotations: &BTreeMap<String, String>,
    allowed: AllowedActions,
    outline: &PodOutline,
) -> Vec<AnnotatedHooks> {
    let known = annotations.iter().filter(|(key, _)| defines_hooks(key));
    let mut texts: Vec<_> = known.collect();
    let too_long = texts.iter().map(|(_, text)| text.len()).sum::<usize>() > MAX_TEXT;
    let too_many = texts.len() > MAX_HOOKS;
    texts.truncate(MAX_HOOKS + 1);
    let mut found: Vec<_> = texts
        .into_iter()
        .map(|(key, text)| AnnotatedHooks {
            annotation: key.clone(),
            hooks: if too_long {
                Err(HookError::whole(TOO_LONG))
            } else if too_many {
                Err(HookError::whole(TOO_MANY))
            } else {
                annotation(key, text, allowed, outline)
            },
        })
        .collect();
    let count: usize = found.iter().flat_map(|one| &one.hooks).map(Vec::len).sum();
    if count > MAX_HOOKS {
        for one in &mut found {
            one.hooks = Err(HookError::whole(TOO_MANY));
        }
    }
    found
}

fn annotation(
    key: &str,
    text: &str,
    allowed: AllowedActions,
    outline: &PodOutline,
) -> Result<Vec<Hook>, HookError> {
    let mut hooks = hooks(text, HookOrigin::Annotation(allowed), Some(outline))?;
    let Some(container) = key.strip_prefix(ANNOTATION_PREFIX) else {
        return Ok(hooks);
    };
    check_container(container, outline).map_err(HookError::whole)?;
    for (position, hook) in hooks.iter_mut().enumerate() {
        match &hook.container {
            Some(other) if other != container => {
                return Err(at(
                    FieldPath::root().index(position).child("container"),
                    "only for the container that the annotation names",
                ));
            }
            _ => hook.container = Some(SmolStr::from(container)),
        }
    }
    Ok(hooks)
}
