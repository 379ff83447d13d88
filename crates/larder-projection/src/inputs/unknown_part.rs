//! What a projection reads of an object that is not known, or only in part.

use std::mem;

use larder_objects::{ResourceVersion, manifest::Recipe};

use super::{Existence, KeyContent, OtherKeys, UnknownObject};
use crate::{ObjectId, Origin, Question, Unknown, UnknownSource, Value};

/// An object whose values are not known.
pub(crate) struct UnknownPart<'a> {
    pub(crate) id: ObjectId,
    name: &'a str,
    object: &'a UnknownObject,
    existence: Existence,
}

/// What is known of a key.
pub(crate) enum KeyState<'a> {
    /// It is there, with this value.
    Present(Value<'a>, Origin<'a>),
    /// It has this value, if the answer is yes.
    Perhaps(Question, Value<'a>, Origin<'a>),
    Missing,
}

/// That of an object that no API server has.
static NO_VERSION: ResourceVersion = ResourceVersion::NONE;

impl<'a> UnknownPart<'a> {
    pub(super) fn new(id: ObjectId, name: &'a str, object: &'a UnknownObject) -> Self {
        Self {
            id,
            name,
            object,
            existence: object.existence,
        }
    }

    pub(crate) fn key(&self, key: &'a str) -> KeyState<'a> {
        let origin = self.missing(Some(key));
        match (self.object.keys.get(key), self.object.others.recipe()) {
            (Some(content), _) => self.known_key(key, content, origin),
            (None, Some(recipe)) => {
                let question = Question::HasKey(self.id.clone(), key.into());
                KeyState::Perhaps(question, self.value(key, recipe), origin)
            }
            (None, None) => KeyState::Missing,
        }
    }

    /// The keys that it has if it is there.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'a str, KeyState<'a>)> {
        let keys = self.object.keys.iter();
        keys.map(|(key, content)| (&**key, self.known_key(key, content, self.missing(None))))
    }

    /// Whether it may have any others.
    pub(crate) fn may_have_others(&self) -> bool {
        matches!(self.object.others, OtherKeys::Any(_))
    }

    /// What is so if it is there. Returns whether it is, if that is not known.
    pub(crate) fn require(&mut self) -> Option<Question> {
        let before = mem::replace(&mut self.existence, Existence::Certain);
        (before == Existence::Unsure).then(|| Question::existence(&self.id))
    }

    fn known_key(
        &self,
        key: &'a str,
        content: &'a KeyContent,
        missing: Origin<'a>,
    ) -> KeyState<'a> {
        let (value, origin) = match content {
            KeyContent::Made(recipe) => (self.value(key, recipe), missing),
            KeyContent::Known(bytes) => {
                let origin = Origin::Key {
                    kind: self.id.kind,
                    name: self.name,
                    key,
                    resource_version: &NO_VERSION,
                };
                (Value::Borrowed(bytes), origin)
            }
        };
        match self.existence {
            Existence::Certain => KeyState::Present(value, origin),
            Existence::Unsure => KeyState::Perhaps(Question::existence(&self.id), value, origin),
        }
    }

    fn missing(&self, key: Option<&'a str>) -> Origin<'a> {
        Origin::Missing {
            kind: self.id.kind,
            name: self.name,
            key,
        }
    }

    fn value(&self, key: &str, recipe: &Recipe) -> Value<'a> {
        Unknown::of(UnknownSource::key(&self.id, key, recipe)).into()
    }
}
