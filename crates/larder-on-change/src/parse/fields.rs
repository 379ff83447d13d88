//! Reading the fields of a mapping one by one, each with its path for errors.

use std::time::Duration;

use larder_objects::go_duration;
use serde_json::{Map, Value};
use smol_str::SmolStr;

use super::{
    HookOrigin,
    error::{HookError, at},
};
use crate::outline::PodOutline;

/// Where hooks come from, and the pod that they are for, if it is known.
#[derive(Clone, Copy)]
pub(super) struct ParseContext<'a> {
    pub(super) origin: HookOrigin,
    pub(super) outline: Option<&'a PodOutline>,
}

impl ParseContext<'_> {
    pub(super) fn is_annotation(self) -> bool {
        matches!(self.origin, HookOrigin::Annotation(_))
    }
}

/// The fields of one mapping that have not been taken yet.
pub(super) struct Fields<'a> {
    path: String,
    values: &'a Map<String, Value>,
    context: ParseContext<'a>,
    taken: Vec<&'static str>,
}

/// One field: its path and its value.
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) value: &'a Value,
    pub(super) context: ParseContext<'a>,
}

impl<'a> Fields<'a> {
    /// The field, unless it is absent or null.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.taken.push(name);
        let value = self.values.get(name).filter(|value| !value.is_null())?;
        Some(Field {
            path: format!("{}.{name}", self.path),
            value,
            context: self.context,
        })
    }

    /// What `read` makes of the field, unless it is absent or null.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Field<'a>) -> Result<T, HookError>,
    ) -> Result<Option<T>, HookError> {
        self.take(name).map(|field| read(&field)).transpose()
    }

    /// Rejects the fields that were not taken.
    pub(super) fn finish(self) -> Result<(), HookError> {
        let mut names = self.values.keys();
        match names.find(|name| !self.taken.contains(&name.as_str())) {
            Some(name) => Err(at(
                self.path,
                format!("unknown field {:?}", shortened(name)),
            )),
            None => Ok(()),
        }
    }
}

impl<'a> Field<'a> {
    pub(super) fn error(&self, problem: impl Into<String>) -> HookError {
        at(self.path.clone(), problem)
    }

    pub(super) fn expected(&self, what: &'static str) -> HookError {
        self.error(format!("expected {what}"))
    }

    /// Its fields, if it is a mapping.
    pub(super) fn fields(&self, expected: &'static str) -> Result<Fields<'a>, HookError> {
        let values = self.value.as_object();
        Ok(Fields {
            path: self.path.clone(),
            values: values.ok_or_else(|| self.expected(expected))?,
            context: self.context,
            taken: Vec::new(),
        })
    }

    pub(super) fn text(&self) -> Result<&'a str, HookError> {
        let text = self.value.as_str();
        text.ok_or_else(|| self.expected("a text"))
    }

    pub(super) fn string(&self) -> Result<String, HookError> {
        self.text().map(str::to_owned)
    }

    pub(super) fn flag(&self) -> Result<bool, HookError> {
        let flag = self.value.as_bool();
        flag.ok_or_else(|| self.expected("true or false"))
    }

    pub(super) fn duration(&self) -> Result<Duration, HookError> {
        let text = self.value.as_str();
        text.and_then(|text| go_duration::parse(text).ok())
            .ok_or_else(|| self.expected("a duration such as 100ms, 20s or 1m30s"))
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = Field<'a>>, HookError> {
        let items = self.value.as_array();
        let items = items.ok_or_else(|| self.expected("a list"))?;
        let (path, context) = (self.path.clone(), self.context);
        Ok(items.iter().enumerate().map(move |(index, value)| Field {
            path: format!("{path}[{index}]"),
            value,
            context,
        }))
    }

    pub(super) fn strings(&self) -> Result<Vec<String>, HookError> {
        self.items()?.map(|item| item.string()).collect()
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

    /// The texts of a mapping, in the order of their names.
    pub(super) fn pairs(&self, expected: &'static str) -> Result<Vec<(String, String)>, HookError> {
        let fields = self.value.as_object();
        let fields = fields.ok_or_else(|| self.expected(expected))?;
        let usable = |text: &str| !text.contains(['\0', '\r', '\n']);
        let pair = |(name, value): (&String, &Value)| match value.as_str() {
            Some(value) if usable(name) && !name.is_empty() && usable(value) => {
                Ok((name.clone(), value.to_owned()))
            }
            _ => Err(at(
                format!("{}.{}", self.path, shortened(name)),
                "expected a text of one line",
            )),
        };
        fields.iter().map(pair).collect()
    }
}

/// Checks that the pod has the container, and that it is no init container.
pub(super) fn check_container(name: &str, outline: &PodOutline) -> Result<(), String> {
    let shown = shortened(name);
    match outline.containers.iter().find(|found| found.name == name) {
        Some(found) if found.is_init => Err(format!("container {shown:?} is an init container")),
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
