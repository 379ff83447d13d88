//! Files that are perhaps in a volume: optional keys, and all keys, of objects that are not known.
//!
//! Invariant: [`Projection::look_up`] answers for each path, also for one that only the keys of an unknown object may
//! have.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::KeyToPath;

use super::{Collector, Projection, SourceError};
use crate::{
    Absent, AnyKeys, File, Origin, Question, Unknown, UnknownSource, VolumePath,
    inputs::{KeyState, UnknownPart},
};

/// Most files that are perhaps in a volume, each once for each source that may have it.
const MAX_LAYERS: usize = 1 << 16;

/// A file that is there if the answer to a question is yes.
#[derive(Clone, Debug, PartialEq)]
pub struct FileLayer<'a> {
    /// The question.
    pub question: Question,
    /// The file.
    pub file: File<'a>,
    /// Its source.
    pub origin: Origin<'a>,
}

/// All keys of an object whose keys are not known, as files.
#[derive(Clone, Debug, PartialEq)]
pub struct AnyFiles<'a> {
    /// The keys; without a prefix.
    pub keys: AnyKeys<'a>,
    /// Any of the files.
    pub file: File<'a>,
}

/// What a volume has at a path.
#[derive(Clone, Debug)]
pub struct PathView<'p, 'a> {
    /// The file that is there if none of the layers is.
    pub below: Option<(&'p File<'a>, Option<&'p Origin<'a>>)>,
    /// The last one whose question is answered with yes counts.
    pub layers: Cow<'p, [FileLayer<'a>]>,
}

impl PathView<'_, '_> {
    /// What is not known of the content; `None` if all is known, or nothing is there.
    pub fn term(&self) -> Option<Unknown> {
        let below = self.below.map(|(file, _)| &file.data);
        if self.layers.is_empty() {
            return below?.unknown().cloned();
        }
        let below = below.map(|data| data.clone().into_term());
        self.layers.iter().fold(below, |below, layer| {
            let value = layer.file.data.clone().into_term();
            Some(Unknown::layered(below, layer.question.clone(), value))
        })
    }
}

impl<'a> Projection<'a> {
    /// What is at `path`.
    pub fn look_up(&self, path: &str) -> PathView<'_, 'a> {
        let below = self
            .payload
            .get(path)
            .map(|file| (file, self.origins.get(path)));
        let layers = match self.layers.get(path) {
            Some(layers) => Cow::Borrowed(&layers[..]),
            None if below.is_some() => Cow::Borrowed(&[][..]),
            None => {
                let layers = self.any_keys.iter().filter_map(|all| all.layer(path));
                Cow::Owned(layers.collect())
            }
        };
        PathView { below, layers }
    }

    /// The paths that the volume has or perhaps has, as far as they are known by name.
    pub fn paths(&self) -> impl Iterator<Item = &VolumePath> {
        let perhaps = self
            .layers
            .keys()
            .filter(|path| !self.payload.contains_key(*path));
        self.payload.keys().chain(perhaps)
    }

    /// All keys of objects whose keys are not known, in the order of the sources.
    pub fn any_keys(&self) -> &[AnyFiles<'a>] {
        &self.any_keys
    }

    /// All those keys as one value; `None` if there are none.
    pub fn opaque(&self) -> Option<Unknown> {
        self.any_keys
            .iter()
            .map(|all| &all.keys.object)
            .map(|object| Unknown::of(UnknownSource::object(object)))
            .reduce(|all, object| object.listed_after(Some(&all)))
    }

    /// The sources of what is not known.
    pub fn unknown_sources(&self) -> impl Iterator<Item = UnknownSource> {
        let layers = self.layers.values().flatten();
        let files = self.payload.values().chain(layers.map(|layer| &layer.file));
        let unknown = files.filter_map(|file| file.data.unknown());
        let objects = self
            .any_keys
            .iter()
            .map(|all| &all.keys.object)
            .map(UnknownSource::object);
        unknown.flat_map(Unknown::sources).cloned().chain(objects)
    }
}

impl<'a> AnyFiles<'a> {
    /// The file at `path`, if it is a key of the object.
    fn layer(&self, path: &str) -> Option<FileLayer<'a>> {
        if path.contains('/') {
            return None;
        }
        let (question, value) = self.keys.layer(path)?;
        let mut file = self.file.clone();
        file.data = value.into();
        Some(FileLayer {
            question,
            file,
            origin: self.keys.origin(),
        })
    }
}

impl<'a> Collector<'a> {
    /// The keys of an object whose values are not known: all of them, or those that `items` lists.
    pub(super) fn unknown_keys(
        &mut self,
        name: &'a str,
        mut part: UnknownPart<'a>,
        items: &'a [KeyToPath],
        optional: Option<bool>,
    ) -> Result<(), SourceError> {
        let kind = part.id.kind;
        let is_optional = optional == Some(true);
        if !is_optional {
            self.projection.needs.extend(part.require());
        }
        if items.is_empty() {
            if part.may_have_others() {
                self.any_keys(&part, name)?;
            }
            for (key, state) in part.keys() {
                let path = VolumePath::parse(key)?;
                match state {
                    KeyState::Present(value, origin) => {
                        let file = self.file(value, None, None)?;
                        self.add(path, file, origin);
                    }
                    KeyState::Perhaps(question, value, origin) => {
                        let file = self.file(value, None, None)?;
                        self.add_perhaps(
                            path,
                            FileLayer {
                                question,
                                file,
                                origin,
                            },
                        );
                    }
                    KeyState::Missing => {}
                }
            }
            return Ok(());
        }
        for item in items {
            let path = VolumePath::parse(&item.path)?;
            match part.key(&item.key) {
                KeyState::Present(value, origin) => {
                    let file = self.file(value, item.mode, item.user)?;
                    self.add(path, file, origin);
                }
                KeyState::Perhaps(question, value, origin) if is_optional => {
                    let file = self.file(value, item.mode, item.user)?;
                    self.add_perhaps(
                        path,
                        FileLayer {
                            question,
                            file,
                            origin,
                        },
                    );
                }
                KeyState::Perhaps(question, value, origin) => {
                    self.projection.needs.insert(question);
                    let file = self.file(value, item.mode, item.user)?;
                    self.add(path, file, origin);
                }
                KeyState::Missing if is_optional => {
                    let (name, key) = (name, Some(&*item.key));
                    self.projection.absent.push(Absent { kind, name, key });
                }
                KeyState::Missing => {
                    return Err(SourceError::MissingKey {
                        kind,
                        name: name.to_owned(),
                        key: item.key.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Notes that any key of an object may be a file.
    fn any_keys(&mut self, part: &UnknownPart<'_>, name: &'a str) -> Result<(), SourceError> {
        let object = Unknown::of(UnknownSource::object(&part.id));
        let all = AnyFiles {
            keys: AnyKeys {
                prefix: "",
                name,
                object: part.id.clone(),
            },
            file: self.file(object.into(), None, None)?,
        };
        let files = self.projection.paths().count();
        let sources = self.projection.any_keys.len() + 1;
        if files.saturating_mul(sources) > MAX_LAYERS {
            return Err(SourceError::TooManyUnknown);
        }
        // Each file so far may be one of them.
        let layers = self
            .projection
            .paths()
            .filter_map(|path| Some((path.clone(), all.layer(path.as_str())?)));
        for (path, layer) in layers.collect::<Vec<_>>() {
            self.add_perhaps(path, layer);
        }
        self.projection.any_keys.push(all);
        Ok(())
    }

    /// Adds a file if the answer to the question of `layer` is yes; otherwise the path stays as it is.
    fn add_perhaps(&mut self, path: VolumePath, layer: FileLayer<'a>) {
        if !self.projection.layers.contains_key(&path) {
            let before = self.projection.look_up(path.as_str()).layers.into_owned();
            self.projection.layers.insert(path.clone(), before);
        }
        let layers = self.projection.layers.entry(path).or_default();
        // The answer to the same question makes no difference any more.
        layers.pop_if(|earlier| earlier.question == layer.question);
        layers.push(layer);
    }
}
