//! Completions: a choice for everything that the documents of a world do not say.
//!
//! What is not known has an identity, and a choice is made for each identity. So it is the same on both sides as long as
//! what is known to make it is the same.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
    rc::Rc,
};

use larder_objects::validation::is_config_map_key;

use super::{
    COMPLETIONS,
    draw::{Draw, KEYS},
    facts::{FACTS, Fact, TextForm, is_of_name},
    keys::{Keys, MadeOf, Unseen, keys_of},
    spec::{collect, directories, paths_of, referenced_keys, selected, stated_keys},
    world::{CERTIFICATE_KEYS, Listing, OBJECTS, ServiceListing, Side, World},
};

/// A value that is chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Key(Unseen, String),
    Fact(Fact),
}

impl Slot {
    /// The place of its object in [`OBJECTS`].
    fn object(&self) -> Option<usize> {
        match self {
            Self::Key(unseen, _) => Some(unseen.object),
            Self::Fact(_) => None,
        }
    }

    /// Whether its value may be `text`.
    fn takes(&self, text: &str) -> bool {
        match self {
            Self::Key(..) => true,
            Self::Fact(fact) => match fact.form() {
                // Quotes delimit the values of a file of variables, an empty one counts as missing, and none is a path.
                TextForm::Any => !text.is_empty() && !text.contains(['\'', '/']),
                TextForm::Address => text.parse::<std::net::IpAddr>().is_ok(),
                TextForm::Pem => text.starts_with("-----BEGIN "),
                TextForm::Name => !text.is_empty() && text.chars().all(is_of_name),
                TextForm::PodName => {
                    let rest = text.strip_prefix("web-").unwrap_or_default();
                    !rest.is_empty() && rest.chars().all(is_of_name)
                }
                TextForm::Number => text
                    .parse::<u32>()
                    .is_ok_and(|number| number.to_string() == text),
            },
        }
    }

    /// A value that nothing else has, nor a part of it.
    fn unique(&self, number: usize) -> String {
        match self {
            Self::Key(..) => format!("v{number:03}"),
            Self::Fact(fact) => match fact.form() {
                TextForm::Any | TextForm::Name => format!("f{number:03}"),
                TextForm::Pem => format!("-----BEGIN {number:03}"),
                TextForm::PodName => format!("web-{number:03}"),
                TextForm::Address => format!("10.9.{}.{}", number / 100, number % 100 + 100),
                TextForm::Number => format!("70{number:03}"),
            },
        }
    }
}

/// Cheap to clone: most of it is shared.
#[derive(Clone)]
pub(super) struct Completion<'w> {
    alphabet: &'w Alphabet,
    /// The keys of each object whose keys no document has; `None` if it does not exist.
    keys: Rc<BTreeMap<Unseen, Option<BTreeSet<&'w str>>>>,
    /// In the order of [`Alphabet::slots`].
    values: Vec<Rc<str>>,
    missing: BTreeSet<Fact>,
    /// Whether no two slots have the same value, which nothing else has.
    pub(super) is_unique: bool,
}

/// What the completions of a world are made of.
pub(super) struct Alphabet {
    /// Names that keys of objects may have.
    names: Vec<String>,
    /// Texts that values may be.
    texts: Vec<Rc<str>>,
    /// Objects whose keys no document has, and whether they exist all the same.
    unseen: BTreeMap<Unseen, bool>,
    /// Sorted.
    slots: Vec<Slot>,
    /// For each slot, a value that nothing else has.
    unique: Vec<Rc<str>>,
    /// The keys that the pods name, by the name of their object.
    stated: BTreeSet<(String, String)>,
    /// The names of directories that no key of an object has, by the name of the object.
    directories: BTreeSet<(String, String)>,
    /// What a `subPath` of a mount selects.
    selected: BTreeSet<String>,
    /// Paths of files that a value may be.
    paths: BTreeSet<String>,
}

impl Alphabet {
    pub(super) fn of(world: &World) -> Self {
        let (mut names, mut texts) = (BTreeSet::new(), BTreeSet::new());
        for side in [&world.from, &world.to] {
            collect(&side.pod, &mut names, &mut texts);
        }
        names.insert("Z".to_owned());
        // A key is a name without its prefix.
        let bare = names.iter().filter_map(|name| name.strip_prefix("P_"));
        let bare: Vec<_> = bare.map(str::to_owned).collect();
        names.extend(bare);
        let keys = KEYS.into_iter().chain(CERTIFICATE_KEYS);
        names.extend(keys.flat_map(|key| [key.to_owned(), format!("P_{key}")]));
        // Where a prefix is added, a key with it may be what makes both sides equal.
        names.extend(["P_X", "P_URL"].map(str::to_owned));
        for listing in world.from.objects.iter().chain(&world.to.objects) {
            if let Listing::Data(data) | Listing::Immutable(data) = listing {
                texts.extend(data.values().cloned());
            }
        }
        // A value may select the part of a volume that is mounted: a key, or nothing.
        let mut sides = [&world.from, &world.to].into_iter();
        if sides.any(|side| side.pod.to_string().contains("subPathExpr")) {
            names.extend(texts.iter().cloned());
        }
        names.retain(|name| is_config_map_key(name));
        texts.extend(["", "/", OUTSIDE, "1", "2", "d", "10.0.0.1", "default"].map(str::to_owned));
        let paths = paths_of(world);
        texts.extend(paths.iter().cloned());
        texts.extend(names.iter().map(|name| format!("$({name})")));
        let mut all = Self {
            names: names.into_iter().collect(),
            texts: texts.iter().map(|text| (**text).into()).collect(),
            unseen: BTreeMap::new(),
            slots: Vec::new(),
            unique: Vec::new(),
            stated: BTreeSet::new(),
            directories: BTreeSet::new(),
            selected: [&world.from, &world.to]
                .into_iter()
                .flat_map(|side| selected(&side.pod))
                .collect(),
            paths,
        };
        let mut slots: BTreeSet<_> = FACTS.map(Slot::Fact).into();
        for (side, other) in [(&world.from, &world.to), (&world.to, &world.from)] {
            stated_keys(&side.pod, &mut all.stated);
            all.stated.extend(referenced_keys(&side.pod));
            all.directories.extend(directories(side, other));
            for (object, listing) in side.objects.iter().enumerate() {
                slots.extend(all.add(object, listing));
            }
        }
        // Of the second side alone, too.
        all.directories.extend(directories(&world.to, &world.to));
        let names = &all.names;
        all.stated.retain(|(_, key)| names.contains(key));
        let numbered = slots.iter().enumerate();
        all.unique = numbered
            .map(|(place, slot)| slot.unique(place).into())
            .collect();
        all.slots = slots.into_iter().collect();
        all
    }

    /// Takes an object, and returns its slots.
    fn add(&mut self, object: usize, listing: &Listing) -> Vec<Slot> {
        let slot = |made_of, key: &str| Slot::Key(Unseen { object, made_of }, key.to_owned());
        match keys_of(listing) {
            Keys::Data => Vec::new(),
            Keys::Exactly(keys) => keys
                .into_iter()
                .map(|(key, made_of)| slot(made_of, key))
                .collect(),
            Keys::Any(made_of) => {
                let unseen = Unseen { object, made_of };
                self.unseen.insert(unseen, *listing != Listing::Outside);
                self.names.iter().map(|key| slot(made_of, key)).collect()
            }
        }
    }

    /// The path that values are in the completion of this number.
    fn path(&self, number: usize) -> Option<Path<'_>> {
        let objects = (0..OBJECTS.len()).map(Some).chain([None]);
        let pairs = objects.flat_map(|of| self.paths.iter().map(move |text| (of, text)));
        let whole = [(true, true), (true, false)];
        // Which of them are empty is drawn, so more than once.
        let parts = [(false, true), (false, false)].into_iter().cycle();
        let ways = whole.into_iter().chain(parts.take(6));
        let mut all = ways.flat_map(|(is_whole, has_all)| {
            let pairs = pairs.clone();
            pairs.map(move |(of, text)| Path {
                of,
                text,
                is_whole,
                has_all,
            })
        });
        all.nth(number)
    }

    /// The keys that an object of this name may have.
    fn keys_of<'w>(&'w self, object: &str) -> impl Iterator<Item = &'w str> {
        let names = self.names.iter().map(|name| &**name);
        names.filter(move |name| !self.is_directory(object, name))
    }

    /// Whether the key of an object of this name is that of a directory.
    fn is_directory(&self, object: &str, key: &str) -> bool {
        let mut all = self.directories.iter();
        all.any(|(own, directory)| own == object && directory == key)
    }

    fn place_of_key(&self, unseen: Unseen, key: &str) -> usize {
        let found = self.slots.binary_search_by(|slot| match slot {
            Slot::Key(own, name) => (*own, &**name).cmp(&(unseen, key)),
            Slot::Fact(_) => Ordering::Greater,
        });
        found.expect("each key of an object has a slot")
    }

    fn place_of_fact(&self, fact: Fact) -> usize {
        let found = self.slots.binary_search(&Slot::Fact(fact));
        found.expect("each fact has a slot")
    }
}

/// A path that the values of an object are, or all facts.
#[derive(Clone, Copy)]
struct Path<'w> {
    /// Place in [`OBJECTS`]; `None` for facts.
    of: Option<usize>,
    text: &'w str,
    /// Whether all of them are the path. Otherwise, some are empty, so that texts with several have the path in them.
    is_whole: bool,
    /// Whether objects have all keys, and not only those that are stated.
    has_all: bool,
}

/// A path out of its volume, wherever it stands in a text.
const OUTSIDE: &str = "/../";

impl<'w> Completion<'w> {
    /// The first ones are extreme: nothing exists, or everything does, with all keys. Later, the values of one object, or
    /// all facts, are the path of a file, or each of them is that or empty.
    pub(super) fn new(seed: u64, alphabet: &'w Alphabet, number: u64) -> Self {
        let mut draw = Draw::of(seed << 16 | number);
        let constants = ["1", "2", "three", "A", "d", "10.0.0.1", OUTSIDE, ""];
        let constant = (2..).zip(constants).find(|(place, _)| *place == number);
        let constant: Option<Rc<str>> = constant.map(|(_, text)| text.into());
        let is_extreme = number < 12;
        let path = number.checked_sub(COMPLETIONS);
        let path = path.and_then(|place| alphabet.path(usize::try_from(place).ok()?));
        let keys = alphabet.unseen.iter().map(|(unseen, exists)| {
            let (_, name) = OBJECTS[unseen.object];
            let all = alphabet.keys_of(name);
            let of_object = alphabet.stated.iter().filter(|(object, _)| object == name);
            let stated = of_object.map(|(_, key)| &**key);
            let keys = match number {
                0 => None,
                10 => Some(BTreeSet::new()),
                11 => Some(stated.collect()),
                _ if is_extreme => Some(all.collect()),
                _ if path.is_some_and(|path| path.has_all) => Some(all.collect()),
                _ if path.is_some() => Some(stated.collect()),
                _ => match draw.number(6) {
                    0 => None,
                    1 => Some(BTreeSet::new()),
                    2 => Some(all.filter(|_| draw.once_in(6)).collect()),
                    3 => Some(stated.collect()),
                    4 => Some(all.filter(|_| !draw.once_in(6)).collect()),
                    _ => Some(all.filter(|_| draw.once_in(2)).collect()),
                },
            };
            let keys = keys.or_else(|| exists.then(BTreeSet::new));
            (*unseen, keys)
        });
        let keys = keys.collect();
        let may_be_missing = FACTS.into_iter().filter(|fact| fact.may_be_missing());
        let missing = may_be_missing
            .filter(|_| number == 0 || !is_extreme && draw.once_in(3))
            .collect();
        let is_unique = number < 2
            || (10..12).contains(&number)
            || !is_extreme && path.is_none() && draw.once_in(2);
        let slots = alphabet.slots.iter().zip(&alphabet.unique);
        let values = slots.map(|(slot, unique)| {
            if let Some(Path {
                of, text, is_whole, ..
            }) = path
            {
                let is_path = slot.object() == of && slot.takes(text);
                return match (is_path, is_whole || draw.once_in(2)) {
                    (false, _) => Rc::clone(unique),
                    (true, true) => text.into(),
                    (true, false) => "".into(),
                };
            }
            let text = match &constant {
                Some(text) => text,
                None => &alphabet.texts[draw.index(alphabet.texts.len())],
            };
            let is_chosen = !is_unique && slot.takes(text);
            Rc::clone(if is_chosen { text } else { unique })
        });
        Self {
            alphabet,
            values: values.collect(),
            keys: Rc::new(keys),
            missing,
            is_unique,
        }
    }

    /// The values that nothing else has, each with the place of its slot.
    pub(super) fn unique_values(&self) -> impl Iterator<Item = (usize, &str)> {
        let both = self.values.iter().zip(&self.alphabet.unique);
        let unique = both.enumerate().filter(|(_, (own, unique))| own == unique);
        unique.map(|(place, (own, _))| (place, &**own))
    }

    /// This completion, with another value at this place, and at those that are as it is: what was made equal stays equal.
    /// `None` if there can be no other.
    pub(super) fn with(&self, place: usize, value: &str) -> Option<Self> {
        let is_other = *self.values[place] != *value && self.alphabet.slots[place].takes(value);
        is_other.then(|| {
            let (mut changed, own) = (self.clone(), &self.values[place]);
            let slots = self.alphabet.slots.iter().zip(&mut changed.values);
            for (_, other) in slots.filter(|(slot, other)| *other == own && slot.takes(value)) {
                *other = value.into();
            }
            changed
        })
    }

    /// The completions in which an object of this name has the key, or lacks it, and did not before.
    pub(super) fn with_key(&self, object: &str, key: &str, has_key: bool) -> Vec<Self> {
        let mut names = self.alphabet.keys_of(object);
        let Some(name) = names.find(|name| *name == key) else {
            return Vec::new();
        };
        let existing = self.keys.iter().filter(|(unseen, keys)| {
            let (_, own) = OBJECTS[unseen.object];
            let keys = keys.as_ref();
            own == object && keys.is_some_and(|keys| keys.contains(key) != has_key)
        });
        let changed = existing.map(|(unseen, _)| {
            let mut changed = self.clone();
            let keys = Rc::make_mut(&mut changed.keys).get_mut(unseen);
            let keys = keys.and_then(Option::as_mut).expect("it is one of them");
            if has_key {
                keys.insert(name);
            } else {
                keys.remove(key);
            }
            changed
        });
        changed.collect()
    }

    /// The keys and values of an object on a side; `None` if it does not exist there.
    pub(super) fn data<'c>(
        &'c self,
        object: usize,
        own: &'c Side,
        other: &Side,
    ) -> Option<Vec<(&'c str, &'c str)>> {
        let listing = &own.objects[object];
        // What the documents of one side have, or make, is not there before they do or after they did.
        if *listing == Listing::Outside && other.objects[object] != Listing::Outside {
            return None;
        }
        let value = |made_of, key: &str| {
            let place = self.alphabet.place_of_key(Unseen { object, made_of }, key);
            &*self.values[place]
        };
        match keys_of(listing) {
            Keys::Data => {
                let data = listing.data().into_iter().flatten();
                Some(data.map(|(key, value)| (&**key, &**value)).collect())
            }
            Keys::Exactly(keys) => {
                let keys = keys.into_iter();
                Some(
                    keys.map(|(key, made_of)| (key, value(made_of, key)))
                        .collect(),
                )
            }
            Keys::Any(made_of) => {
                let keys = self.keys[&Unseen { object, made_of }].as_ref()?;
                Some(keys.iter().map(|key| (*key, value(made_of, key))).collect())
            }
        }
    }

    /// The text of a fact; `None` if there is none.
    pub(super) fn fact(&self, fact: Fact) -> Option<&str> {
        let is_there = !self.missing.contains(&fact);
        is_there.then(|| &*self.values[self.alphabet.place_of_fact(fact)])
    }

    /// The address of the Service `db` on a side.
    pub(super) fn service(&self, own: &Side, other: &Side) -> Option<&str> {
        match own.service {
            ServiceListing::At(address) => Some(address),
            ServiceListing::New => self.fact(Fact::Address),
            ServiceListing::Headless => None,
            ServiceListing::Outside if other.service != ServiceListing::Outside => None,
            ServiceListing::Outside => self.fact(Fact::OtherService),
        }
    }

    /// Whether a side has the ClusterTrustBundle `ca`.
    pub(super) fn has_bundle(&self, own: &Side, other: &Side) -> bool {
        own.has_bundle || !other.has_bundle && self.fact(Fact::Bundle).is_some()
    }

    /// Whether the second side has not the account of its pod. One that the first side, whose pod runs, needs as well is
    /// there.
    pub(super) fn lacks_account(&self, own: &Side, first: &Side) -> bool {
        let needed = |side: &Side| {
            side.account()
                .filter(|place| !side.accounts[*place].is_listed())
        };
        let new = needed(own).filter(|place| needed(first) != Some(*place));
        new.is_some_and(|place| self.missing.contains(&Fact::Account(place)))
    }

    /// What it is without what no document has: render and exec take that as missing.
    pub(super) fn without_outside(mut self) -> Self {
        for (unseen, keys) in Rc::make_mut(&mut self.keys) {
            match unseen.made_of {
                MadeOf::Outside => *keys = None,
                MadeOf::Empty => *keys = Some(BTreeSet::new()),
                _ => {}
            }
        }
        self.missing.insert(Fact::Bundle);
        self
    }

    /// What it is where all objects exist.
    pub(super) fn with_outside(mut self) -> Self {
        for keys in Rc::make_mut(&mut self.keys).values_mut() {
            keys.get_or_insert_default();
        }
        self.missing.remove(&Fact::Bundle);
        self
    }

    /// Whether a key has the name of a Service's variable, and what that is.
    pub(super) fn repeats_service(&self) -> bool {
        let services = [Fact::ApiServer, Fact::OtherService, Fact::Address];
        let services = services.map(|fact| &self.values[self.alphabet.place_of_fact(fact)]);
        let slots = self.alphabet.slots.iter().zip(&self.values);
        let mut keys = slots.filter_map(|(slot, value)| match slot {
            Slot::Key(_, key) => Some((key, value)),
            Slot::Fact(_) => None,
        });
        keys.any(|(key, value)| key.contains("_SERVICE_") && services.contains(&value))
    }

    /// Whether a `subPath` selects a key that an object may have, but for a directory of that name.
    pub(super) fn selects_directory(&self) -> bool {
        let mut directories = self.alphabet.directories.iter();
        directories.any(|(_, directory)| self.alphabet.selected.contains(directory))
    }

    /// The choices that the texts name.
    pub(super) fn choices_of(&self, texts: &[String]) -> NamedChoices<'_> {
        let is_object_named = |object: usize| {
            let (_, name) = OBJECTS[object];
            let mut words = texts
                .iter()
                .flat_map(|text| text.split([' ', '/', ',', ':']));
            words.any(|word| word == name)
        };
        let objects: Vec<_> = (0..OBJECTS.len()).map(is_object_named).collect();
        let is_fact_named = |fact: Fact| texts.iter().any(|text| fact.is_named(text));
        let keys = self
            .keys
            .iter()
            .filter(|(unseen, _)| objects[unseen.object]);
        let values = self.alphabet.slots.iter().zip(&self.values);
        let values = values.filter(|(slot, _)| match slot {
            Slot::Key(unseen, _) => objects[unseen.object],
            Slot::Fact(fact) => is_fact_named(*fact),
        });
        let missing = self.missing.iter().copied();
        NamedChoices {
            keys: keys.map(|(_, keys)| keys.as_ref()).collect(),
            values: values.map(|(_, value)| &**value).collect(),
            missing: missing.filter(|fact| is_fact_named(*fact)).collect(),
        }
    }
}

/// Some choices of a completion, in the same order for all of a world.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedChoices<'c> {
    keys: Vec<Option<&'c BTreeSet<&'c str>>>,
    values: Vec<&'c str>,
    missing: Vec<Fact>,
}

impl fmt::Display for Completion<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (Unseen { object, made_of }, keys) in &*self.keys {
            let (_, name) = OBJECTS[*object];
            write!(out, "{name} ({made_of:?}) ")?;
            match keys {
                None => write!(out, "is missing; ")?,
                Some(keys) => write!(out, "has {keys:?}; ")?,
            }
        }
        write!(out, "missing {:?}; values ", self.missing)?;
        for (slot, value) in self.alphabet.slots.iter().zip(&self.values) {
            match slot {
                Slot::Key(unseen, key) => {
                    let Unseen { object, made_of } = unseen;
                    let (_, name) = OBJECTS[*object];
                    let is_there = self.keys.get(unseen).is_none_or(|keys| {
                        let keys = keys.as_ref();
                        keys.is_some_and(|keys| keys.contains(&**key))
                    });
                    if is_there {
                        write!(out, "{name} ({made_of:?}) {key}={value:?} ")?;
                    }
                }
                Slot::Fact(fact) => write!(out, "{fact:?}={value:?} ")?,
            }
        }
        Ok(())
    }
}
