//! Completions: a choice for everything that the documents of a world do not say.

use std::fmt;

use serde_json::{Value, json};

use super::world::{Data, Listing, OBJECTS, Random, Side, World, object};

/// What an object is on both sides: `None` does not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Choice {
    from: Option<Data>,
    to: Option<Data>,
}

/// In the order of [`OBJECTS`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Completion(Vec<Choice>);

impl Completion {
    /// The first ones are extreme: nothing exists, or everything does, with all keys.
    pub(super) fn new(world: &World, number: u64) -> Self {
        let mut random = Random(fastrand::Rng::with_seed(world.seed << 16 | number));
        let sides = world.from.objects.iter().zip(&world.to.objects);
        let choices = sides.enumerate().map(|(index, (from, to))| {
            let mut draw = |listing: &Listing| match number {
                0 => fill(listing, None),
                2 => fill(listing, Some(full(|key| format!("{index}{key}")))),
                // What is not known may be what is written elsewhere.
                1 | 3..=7 => {
                    let constant = ["1", "2", "three", "A", "d", "default"];
                    let place = usize::try_from(number).unwrap().saturating_sub(2);
                    fill(listing, Some(full(|_| constant[place].to_owned())))
                }
                _ => {
                    let data = random.data();
                    fill(listing, (!random.0.u8(0..4).eq(&0)).then_some(data))
                }
            };
            // What the documents of one side have, or make, is not there before they do or after they did.
            let is_outside = [from, to].map(|listing| *listing == Listing::Outside);
            let one = draw(from).filter(|_| !is_outside[0] || is_outside[1]);
            let other = match (from, to) {
                // One object: it is on both sides what it is, unless what makes it differs.
                _ if from == to => one.clone(),
                (_, Listing::Outside) => None,
                (Listing::Sealed(before), Listing::Sealed(after)) => {
                    let fresh = draw(to);
                    one.as_ref().zip(fresh).map(|(one, mut fresh)| {
                        for (key, value) in one {
                            if before.get(key) == after.get(key) {
                                fresh.insert(key, value.clone());
                            }
                        }
                        fresh
                    })
                }
                _ => draw(to),
            };
            Choice {
                from: one,
                to: other,
            }
        });
        Self(choices.collect())
    }

    /// Both pods with everything that they may refer to, as `from` and `to` in the namespace with these suffixes.
    pub(super) fn documents(&self, world: &World, namespace: &str) -> Vec<Value> {
        let mut documents = Vec::new();
        let of_from = |choice: &Choice| choice.from.clone();
        let of_to = |choice: &Choice| choice.to.clone();
        self.side(
            &world.from,
            &format!("{namespace}-from"),
            of_from,
            &mut documents,
        );
        self.side(&world.to, &format!("{namespace}-to"), of_to, &mut documents);
        documents
    }

    fn side(
        &self,
        side: &Side,
        namespace: &str,
        of: impl Fn(&Choice) -> Option<Data>,
        documents: &mut Vec<Value>,
    ) {
        for ((kind, name), choice) in OBJECTS.iter().zip(&self.0) {
            if let Some(data) = of(choice) {
                documents.push(object(kind, namespace, name, &data));
            }
        }
        documents.push(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace}, "spec": side.pod,
        }));
    }

    /// The choices of the objects that one of the texts names.
    pub(super) fn choices_of(&self, texts: &[String]) -> Vec<Option<Choice>> {
        let choices = OBJECTS.iter().zip(&self.0);
        let choices = choices.map(|((_, name), choice)| {
            let is_named = texts
                .iter()
                .any(|text| text.split([' ', '/', ',', ':']).any(|word| word == *name));
            is_named.then(|| choice.clone())
        });
        choices.collect()
    }
}

/// What the object is, if what is not known of it is `unknown`.
fn fill(listing: &Listing, unknown: Option<Data>) -> Option<Data> {
    match listing {
        Listing::Outside => unknown,
        Listing::Data(data) => Some(data.clone()),
        // Something makes it, so it is there.
        Listing::Empty | Listing::External(_) => Some(unknown.unwrap_or_default()),
        // Its keys are known, their values are not.
        Listing::Sealed(versions) => {
            let unknown = unknown.unwrap_or_default();
            let keys = versions.keys();
            let value = |key| {
                unknown
                    .get(key)
                    .cloned()
                    .unwrap_or_else(|| format!("sealed {key}"))
            };
            Some(keys.map(|key| (*key, value(key))).collect())
        }
    }
}

fn full(value: impl Fn(&str) -> String) -> Data {
    super::world::KEYS
        .into_iter()
        .map(|key| (key, value(key)))
        .collect()
}

impl fmt::Display for Completion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((_, name), choice) in OBJECTS.iter().zip(&self.0) {
            if choice.from == choice.to {
                write!(out, "{name}={:?} ", choice.from)?;
            } else {
                write!(out, "{name}={:?}→{:?} ", choice.from, choice.to)?;
            }
        }
        Ok(())
    }
}
