//! Where a field stands that is checked: its path, and what its hook may say there.

use std::collections::BTreeMap;

use larder_objects::FieldPath;
use smol_str::SmolStr;

use super::{
    HookOrigin,
    error::{HookError, at},
};
use crate::outline::{ContainerRole, PodOutline};

/// Where hooks come from, and the pod that they are for, if it is known.
#[derive(Clone, Copy)]
pub(super) struct ParseContext<'a> {
    pub(super) origin: HookOrigin,
    pub(super) outline: Option<&'a PodOutline>,
    /// How many hooks come before those of the text: a name by position counts them, too.
    pub(super) before: usize,
}

/// A field of a hook.
#[derive(Clone)]
pub(super) struct FieldPlace<'a> {
    pub(super) path: FieldPath,
    pub(super) context: ParseContext<'a>,
}

impl FieldPlace<'_> {
    pub(super) fn is_annotation(&self) -> bool {
        matches!(self.context.origin, HookOrigin::Annotation(_))
    }

    pub(super) fn child(&self, name: &str) -> Self {
        Self {
            path: self.path.child(name),
            ..self.clone()
        }
    }

    pub(super) fn index(&self, index: usize) -> Self {
        Self {
            path: self.path.index(index),
            ..self.clone()
        }
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> HookError {
        at(self.path.clone(), problem)
    }

    pub(super) fn expected(&self, what: &str) -> HookError {
        self.error(format!("expected {what}"))
    }

    /// Checks that larder delivers the volume to the pod, if the pod is known.
    pub(super) fn check_volume(&self, name: &str) -> Result<(), HookError> {
        let Some(outline) = self.context.outline else {
            return Ok(());
        };
        match outline.volumes.iter().find(|volume| volume.name == name) {
            Some(volume) if volume.kind.is_some() => Ok(()),
            Some(volume) => {
                let kind = with_article(&volume.type_name);
                Err(self.error(format!(
                    "volume {name:?} is {kind}, which larder does not deliver"
                )))
            }
            None => {
                let known: Vec<_> = outline.delivered().map(SmolStr::as_str).collect();
                let (name, known) = (shortened(name), known.join(", "));
                Err(self.error(format!("no volume {name:?}; there are {known}")))
            }
        }
    }

    /// The names with their values, which are texts of one line.
    pub(super) fn one_line_pairs(
        &self,
        values: BTreeMap<String, String>,
    ) -> Result<Vec<(String, String)>, HookError> {
        let usable = |text: &str| !text.contains(['\0', '\r', '\n']);
        let mut pairs = values.iter();
        match pairs.find(|(name, value)| name.is_empty() || !usable(name) || !usable(value)) {
            Some((name, _)) => Err(self.child(&shortened(name)).expected("a text of one line")),
            None => Ok(values.into_iter().collect()),
        }
    }
}

/// Checks that the pod has the container, and that it is no init container.
pub(super) fn check_container(name: &str, outline: &PodOutline) -> Result<(), String> {
    let shown = shortened(name);
    match outline.containers.iter().find(|found| found.name == name) {
        Some(found) if found.role == ContainerRole::Init => {
            Err(format!("container {shown:?} is an init container"))
        }
        Some(_) => Ok(()),
        None => Err(format!("no container {shown:?}")),
    }
}

/// The beginning of a name that an error quotes.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

fn with_article(kind: &str) -> String {
    let is_vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if is_vowel { "an" } else { "a" })
}
