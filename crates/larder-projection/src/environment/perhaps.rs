//! Variables that are perhaps set: by optional keys, and by all keys, of objects that are not known.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::FileKeySelector;

use super::{Builder, EnvironmentError, Piecewise, Referred, Variable, VariableSource, of_unknown};
use crate::{
    AnyKeys, Origin, Question, Unknown,
    inputs::{KeyState, UnknownPart},
    unknown::MAX_DEPTH,
};

impl<'a> Builder<'a> {
    /// The keys of an object of `envFrom` whose values are not known.
    pub(super) fn unknown_keys(
        &mut self,
        prefix: &'a str,
        object: &'a str,
        mut part: UnknownPart<'a>,
        optional: Option<bool>,
    ) -> Result<(), EnvironmentError> {
        if optional != Some(true) {
            self.environment.needs.extend(part.require());
        }
        if part.may_have_others() {
            self.any_keys(AnyKeys {
                prefix,
                name: object,
                object: part.id.clone(),
            })?;
        }
        for (key, state) in part.keys() {
            let name = Cow::Owned([prefix, key].concat());
            match state {
                KeyState::Present(value, origin) => self.set(name, of_unknown(value, origin))?,
                KeyState::Perhaps(question, value, origin) => {
                    self.set_perhaps(name, question, of_unknown(value, origin))?;
                }
                KeyState::Missing => {}
            }
        }
        Ok(())
    }

    fn any_keys(&mut self, all: AnyKeys<'a>) -> Result<(), EnvironmentError> {
        // Each variable so far may be one of them.
        let layers = self
            .environment
            .variables
            .keys()
            .filter_map(|name| Some((name.clone(), all.layer(name)?)));
        for (name, (question, value)) in layers.collect::<Vec<_>>() {
            let value = of_unknown(value, all.origin());
            self.set_perhaps(name, question, value)?;
        }
        self.environment.any_keys.push(all);
        Ok(())
    }

    /// The key of a file that containers of the pod write.
    pub(super) fn written_later(
        &mut self,
        selector: &FileKeySelector,
        origin: Origin<'a>,
    ) -> VariableSource<'a> {
        let FileKeySelector {
            key,
            path,
            volume_name,
            ..
        } = selector;
        let what: Arc<str> = format!("{path} of volume {volume_name} key {key}").into();
        let value = of_unknown(Unknown::of_fact(Arc::clone(&what)), origin);
        let question = Question::Fact(what);
        if selector.optional == Some(true) {
            return VariableSource::Perhaps(question, value);
        }
        self.environment.needs.insert(question);
        value.into()
    }

    /// Sets a variable if the answer to `question` is yes; otherwise it stays as it is.
    pub(super) fn set_perhaps(
        &mut self,
        name: Cow<'a, str>,
        question: Question,
        variable: Variable<'a>,
    ) -> Result<(), EnvironmentError> {
        let before = self.environment.look_up(&name);
        let secret = variable.secret || before.as_ref().is_some_and(|before| before.secret);
        let before = before.map(Cow::into_owned);
        let fallback = before
            .as_ref()
            .and_then(|before| match before.value.unknown() {
                Some(_) => before.fallback.clone(),
                None => Some(Box::new(before.origin.clone())),
            });
        let below = before.map(|before| before.value.into_term());
        let value = Unknown::layered(below, question, variable.value.into_term());
        let origin = variable.origin;
        let value = value.into();
        self.set(
            name,
            Variable {
                value,
                origin,
                fallback,
                secret,
            },
        )
    }

    /// What the reference `whole` to the variable `name` stands for, where it stands.
    pub(super) fn refer<'v>(&'v self, name: &str, whole: &'v str) -> Referred<'v> {
        let set = match self.environment.get(name) {
            Some(variable) if !variable.value.may_be_absent() => return Referred::to(variable),
            None if self.environment.any_keys().is_empty() => None,
            _ => self.environment.look_up(name),
        };
        let below = match self.services.get(name) {
            Some(variable) => Referred::to(variable),
            None => match self.environment.other_service(name) {
                Some(service) => Referred {
                    value: Piecewise::Unknown(Cow::Owned(Unknown::of(service))),
                    secret: false,
                },
                None => Referred::literal(whole),
            },
        };
        let Some(set) = set else { return below };
        let secret = set.secret;
        let term = set.into_owned().value.into_term().or(below.into_term());
        let value = Piecewise::Unknown(Cow::Owned(term));
        Referred { value, secret }
    }
}

/// Checks that a walk over the value does not run out of stack.
pub(super) fn check_depth(name: &str, variable: &Variable<'_>) -> Result<(), EnvironmentError> {
    let depth = variable.value.unknown().map_or(0, Unknown::depth);
    if depth > MAX_DEPTH {
        let name = name.to_owned();
        return Err(EnvironmentError::TooDeep { name });
    }
    Ok(())
}
