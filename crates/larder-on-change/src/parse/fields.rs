//! Reading the fields of a mapping one by one, each with its path for errors.

use std::time::Duration;

use larder_objects::go_duration;
use serde_json::{Map, Value};
use smol_str::SmolStr;

use super::error::{HookError, Problem, at};
use crate::facts::PodFacts;

/// The fields of one mapping that have not been taken yet.
pub(super) struct Fields<'a> {
    path: String,
    values: &'a Map<String, Value>,
    taken: Vec<&'static str>,
}

/// One field: its path and its value.
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) value: &'a Value,
}

impl<'a> Fields<'a> {
    pub(super) fn of(
        path: String,
        value: &'a Value,
        expected: &'static str,
    ) -> Result<Self, HookError> {
        let Value::Object(fields) = value else {
            return Err(at(path, Problem::Expected(expected)));
        };
        Ok(Self {
            path,
            values: fields,
            taken: Vec::new(),
        })
    }

    /// The field, unless it is absent or null.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.taken.push(name);
        let value = self.values.get(name).filter(|value| !value.is_null())?;
        Some(Field {
            path: format!("{}.{name}", self.path),
            value,
        })
    }

    /// Rejects the fields that were not taken.
    pub(super) fn finish(self) -> Result<(), HookError> {
        let unknown = self
            .values
            .keys()
            .find(|name| !self.taken.contains(&name.as_str()));
        match unknown {
            Some(name) => {
                // A long name is shortened.
                let name = name.chars().take(64).collect();
                Err(at(self.path, Problem::UnknownField { name }))
            }
            None => Ok(()),
        }
    }
}

impl<'a> Field<'a> {
    pub(super) fn error(&self, problem: Problem) -> HookError {
        at(self.path.clone(), problem)
    }

    pub(super) fn text(&self) -> Result<&'a str, HookError> {
        self.value
            .as_str()
            .ok_or_else(|| self.error(Problem::Expected("a text")))
    }

    pub(super) fn flag(&self) -> Result<bool, HookError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.error(Problem::Expected("true or false")))
    }

    pub(super) fn duration(&self) -> Result<Duration, HookError> {
        let text = self.value.as_str();
        text.and_then(|text| go_duration::parse(text).ok())
            .ok_or_else(|| self.error(Problem::Expected("a duration such as 100ms, 20s or 1m30s")))
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = Field<'a>>, HookError> {
        let Value::Array(items) = self.value else {
            return Err(self.error(Problem::Expected("a list")));
        };
        let path = self.path.clone();
        Ok(items.iter().enumerate().map(move |(index, value)| Field {
            path: format!("{path}[{index}]"),
            value,
        }))
    }

    pub(super) fn texts(&self) -> Result<Vec<&'a str>, HookError> {
        self.items()?.map(|item| item.text()).collect()
    }

    /// Checks that larder delivers the volume to the pod.
    pub(super) fn check_volume(&self, name: &str, facts: &PodFacts) -> Result<(), HookError> {
        match facts.volumes.iter().find(|volume| volume.name == name) {
            Some(volume) if volume.kind.is_some() => Ok(()),
            Some(volume) => Err(self.error(Problem::OtherVolume {
                name: name.to_owned(),
                kind: volume.type_name.to_string(),
            })),
            None => Err(self.error(Problem::UnknownVolume {
                name: name.chars().take(64).collect(),
                known: facts.delivered().map(SmolStr::to_string).collect(),
            })),
        }
    }

    /// The texts of a mapping, in the order of their names.
    pub(super) fn pairs(&self, expected: &'static str) -> Result<Vec<(String, String)>, HookError> {
        let Value::Object(fields) = self.value else {
            return Err(self.error(Problem::Expected(expected)));
        };
        let usable = |text: &str| !text.contains(['\0', '\r', '\n']);
        let pair = |(name, value): (&String, &Value)| match value.as_str() {
            Some(value) if usable(name) && !name.is_empty() && usable(value) => {
                Ok((name.clone(), value.to_owned()))
            }
            _ => Err(at(
                format!(
                    "{}.{}",
                    self.path,
                    name.chars().take(64).collect::<String>()
                ),
                Problem::Expected("a text of one line"),
            )),
        };
        fields.iter().map(pair).collect()
    }
}
