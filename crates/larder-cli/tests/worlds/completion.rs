//! Completions: a choice for everything that the documents of a world do not say.
//!
//! What is not known has an identity, and a choice is made for each identity. So it is the same on both sides as long as
//! what is known to make it is the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::Value;

use super::{
    draw::{Draw, KEYS},
    world::{CERTIFICATE_KEYS, Data, Listing, OBJECTS, ServiceListing, Side, World},
};

/// An object whose values no document has, of something that makes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unseen {
    /// Place in [`OBJECTS`].
    object: usize,
    made_of: String,
}

/// Something of the running pod, its node or its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fact {
    PodName,
    Uid,
    NodeName,
    PodAddress,
    HostAddress,
    /// The processors of the node.
    Processors,
    /// What a controller adds to the labels.
    Label,
    /// When the node's agent first saw the pod.
    FirstSeen,
    /// The value of a key that a container writes to a file of variables; perhaps it does not.
    Written(&'static str),
    /// The address of the Service `db`, if no document has it; perhaps there is none.
    OtherService,
    /// The address that the Service `db` of a document gets.
    Address,
    ApiServer,
    /// The ClusterTrustBundle `ca`, if no document has it; perhaps there is none.
    Bundle,
}

/// Form of the text of a fact.
#[derive(Clone, Copy, PartialEq)]
enum TextForm {
    Any,
    Address,
    Number,
}

const FACTS: [Fact; 15] = [
    Fact::PodName,
    Fact::Uid,
    Fact::NodeName,
    Fact::PodAddress,
    Fact::HostAddress,
    Fact::Processors,
    Fact::Label,
    Fact::FirstSeen,
    Fact::Written(KEYS[0]),
    Fact::Written(KEYS[1]),
    Fact::Written(KEYS[2]),
    Fact::OtherService,
    Fact::Address,
    Fact::ApiServer,
    Fact::Bundle,
];

impl Fact {
    /// Whether `text` names it.
    fn is_named(self, text: &str) -> bool {
        match self {
            Self::PodName => text == "metadata.name",
            Self::Uid => text == "metadata.uid",
            Self::NodeName => text == "spec.nodeName",
            Self::PodAddress => text == "status.podIP",
            Self::HostAddress => text == "status.hostIP",
            Self::Processors => text == "limits.cpu",
            Self::Label => text.starts_with("metadata.labels["),
            Self::FirstSeen => text == "metadata.annotations['kubernetes.io/config.seen']",
            Self::Written(key) => text == format!("e.env of volume files key {key}"),
            Self::OtherService => text == "service db",
            Self::Address => text == "clusterIP of service db",
            Self::ApiServer => text == "service kubernetes",
            Self::Bundle => text == "ClusterTrustBundle ca",
        }
    }

    fn may_be_missing(self) -> bool {
        matches!(self, Self::Written(_) | Self::OtherService | Self::Bundle)
    }

    fn form(self) -> TextForm {
        match self {
            Self::PodAddress | Self::HostAddress | Self::Address => TextForm::Address,
            Self::Processors => TextForm::Number,
            _ => TextForm::Any,
        }
    }
}

/// A value that is chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Key(Unseen, String),
    Fact(Fact),
}

impl Slot {
    /// Whether its value may be `text`.
    fn takes(&self, text: &str) -> bool {
        match self {
            Self::Key(..) => true,
            Self::Fact(fact) => match fact.form() {
                // Quotes delimit the values of a file of variables, an empty one counts as missing, and none is a path.
                TextForm::Any => !text.is_empty() && !text.contains(['\'', '/']),
                TextForm::Address => text.parse::<std::net::IpAddr>().is_ok(),
                TextForm::Number => text
                    .parse::<u32>()
                    .is_ok_and(|number| number.to_string() == text),
            },
        }
    }

    /// A value that nothing else has.
    fn unique(&self, number: usize) -> String {
        match self {
            Self::Key(..) => format!("v{number}"),
            Self::Fact(fact) => match fact.form() {
                TextForm::Any => format!("f{number}"),
                TextForm::Address => format!("10.9.9.{number}"),
                TextForm::Number => format!("70{number}"),
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Completion {
    /// The keys of each object whose keys no document has; `None` if it does not exist.
    keys: BTreeMap<Unseen, Option<BTreeSet<String>>>,
    values: BTreeMap<Slot, String>,
    missing: BTreeSet<Fact>,
    /// Whether no two slots have the same value, which nothing else has.
    pub(super) is_unique: bool,
}

/// What the completions of a world are made of.
pub(super) struct Alphabet {
    /// Names that keys of objects may have.
    names: Vec<String>,
    /// Texts that values may be.
    texts: Vec<String>,
    /// Objects whose keys no document has, and whether they exist all the same.
    unseen: BTreeMap<Unseen, bool>,
    slots: BTreeSet<Slot>,
    /// The keys that the pods name, by the name of their object.
    stated: BTreeSet<(String, String)>,
}

impl Alphabet {
    pub(super) fn of(world: &World) -> Self {
        let (mut names, mut texts) = (BTreeSet::new(), BTreeSet::new());
        for side in [&world.from, &world.to] {
            collect(&side.pod, &mut names, &mut texts);
        }
        names.extend(KEYS.map(str::to_owned));
        names.insert("Z".to_owned());
        // A key is a name without its prefix.
        let bare = names.iter().filter_map(|name| name.strip_prefix("P_"));
        let bare: Vec<_> = bare.map(str::to_owned).collect();
        names.extend(bare);
        // A file cannot be where a directory is.
        names.remove("d");
        names.retain(|name| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !name.is_empty() && name.bytes().all(is_part)
        });
        for listing in world.from.objects.iter().chain(&world.to.objects) {
            if let Listing::Data(data) | Listing::Immutable(data) = listing {
                texts.extend(data.values().cloned());
            }
        }
        texts.extend(["", "/", "1", "2", "d", "10.0.0.1", "default"].map(str::to_owned));
        texts.extend(names.iter().map(|name| format!("$({name})")));
        let mut all = Self {
            names: names.into_iter().collect(),
            texts: texts.into_iter().collect(),
            unseen: BTreeMap::new(),
            slots: FACTS.map(Slot::Fact).into(),
            stated: BTreeSet::new(),
        };
        for side in [&world.from, &world.to] {
            stated_keys(&side.pod, &mut all.stated);
        }
        for side in [&world.from, &world.to] {
            for (object, listing) in side.objects.iter().enumerate() {
                all.add(object, listing);
            }
        }
        all
    }

    fn add(&mut self, object: usize, listing: &Listing) {
        match known_keys(listing) {
            None => {
                let Some(made_of) = made_of(listing) else {
                    return;
                };
                let unseen = Unseen { object, made_of };
                let names = self.names.iter().cloned();
                self.slots
                    .extend(names.map(|name| Slot::Key(unseen.clone(), name)));
                self.unseen.insert(unseen, *listing != Listing::Outside);
            }
            Some(keys) => {
                let keys = keys.into_iter();
                self.slots.extend(
                    keys.map(|(key, made_of)| {
                        Slot::Key(Unseen { object, made_of }, key.to_owned())
                    }),
                );
            }
        }
    }
}

/// What decides the keys of an object; `None` if its document has its values.
fn made_of(listing: &Listing) -> Option<String> {
    match listing {
        Listing::Data(_) | Listing::Immutable(_) => None,
        Listing::Outside => Some("outside".to_owned()),
        Listing::Empty => Some("empty".to_owned()),
        Listing::External(version) => Some(format!("external {version}")),
        Listing::Sealed(_) | Listing::Encrypted(_) | Listing::Certificate(_) => Some(String::new()),
    }
}

/// The keys that a document has without their values, each with what decides its value; `None` if it has no keys, or values.
fn known_keys(listing: &Listing) -> Option<Vec<(&'static str, String)>> {
    match listing {
        Listing::Sealed(versions) => Some(
            versions
                .iter()
                .map(|(key, version)| (*key, format!("sealed {version}")))
                .collect(),
        ),
        Listing::Encrypted(versions) => Some(
            versions
                .iter()
                .map(|(key, version)| (*key, format!("encrypted {version}")))
                .collect(),
        ),
        Listing::Certificate(version) => Some(
            CERTIFICATE_KEYS
                .map(|key| (key, format!("certificate {version}")))
                .into(),
        ),
        _ => None,
    }
}

/// The keys that a spec names, each with the name of its object.
fn stated_keys(value: &Value, stated: &mut BTreeSet<(String, String)>) {
    let parts: Vec<_> = match value {
        Value::Array(all) => all.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => return,
    };
    for part in parts {
        stated_keys(part, stated);
    }
    let name = value["name"].as_str().or(value["secretName"].as_str());
    let items = value["items"].as_array().into_iter().flatten();
    let keys = items.chain([value]).filter_map(|one| one["key"].as_str());
    let pairs = keys.filter_map(|key| Some((name?.to_owned(), key.to_owned())));
    stated.extend(pairs);
}

/// The names and the texts in a spec, with the parts of those that refer to variables.
fn collect(value: &Value, names: &mut BTreeSet<String>, texts: &mut BTreeSet<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| collect(one, names, texts)),
        Value::Object(fields) => fields.values().for_each(|one| collect(one, names, texts)),
        Value::String(text) => {
            let mut rest = &**text;
            while let Some((_, after)) = rest.split_once("$(") {
                let Some((name, after)) = after.split_once(')') else {
                    break;
                };
                names.insert(name.to_owned());
                rest = after;
            }
            names.insert(text.clone());
            texts.insert(text.clone());
        }
        _ => {}
    }
}

impl Completion {
    /// The first ones are extreme: nothing exists, or everything does, with all keys.
    pub(super) fn new(world: &World, alphabet: &Alphabet, number: u64) -> Self {
        let mut draw = Draw::of(world.seed << 16 | number);
        let constants = ["1", "2", "three", "A", "d", "10.0.0.1", "/"];
        let constant = (2..).zip(constants).find(|(place, _)| *place == number);
        let constant = constant.map(|(_, text)| text);
        let is_extreme = number < 11;
        let keys = alphabet.unseen.iter().map(|(unseen, exists)| {
            let all = alphabet.names.iter().cloned();
            let (_, name) = OBJECTS[unseen.object];
            let of_object = alphabet.stated.iter().filter(|(object, _)| object == name);
            let stated = of_object.map(|(_, key)| key.clone());
            let keys = match number {
                0 => None,
                9 => Some(BTreeSet::new()),
                10 => Some(stated.collect()),
                _ if is_extreme => Some(all.collect()),
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
            (unseen.clone(), keys)
        });
        let keys = keys.collect();
        let may_be_missing = FACTS.into_iter().filter(|fact| fact.may_be_missing());
        let missing = may_be_missing
            .filter(|_| number == 0 || !is_extreme && draw.once_in(3))
            .collect();
        let is_unique =
            number < 2 || (9..11).contains(&number) || constant.is_none() && draw.once_in(2);
        let slots = alphabet.slots.iter().enumerate();
        let values = slots.map(|(place, slot)| {
            let text = match constant {
                Some(text) => text.to_owned(),
                None => alphabet.texts[draw.index(alphabet.texts.len())].clone(),
            };
            let is_chosen = !is_unique && slot.takes(&text);
            let value = if is_chosen { text } else { slot.unique(place) };
            (slot.clone(), value)
        });
        Self {
            values: values.collect(),
            keys,
            missing,
            is_unique,
        }
    }

    /// The slots with their values.
    pub(super) fn values(&self) -> impl Iterator<Item = (&Slot, &str)> {
        self.values.iter().map(|(slot, value)| (slot, &**value))
    }

    /// This completion, with another value; `None` if the slot cannot have it.
    pub(super) fn with(&self, slot: &Slot, value: &str) -> Option<Self> {
        let mut changed = self.clone();
        value.clone_into(changed.values.get_mut(slot)?);
        (slot.takes(value) && changed != *self).then_some(changed)
    }

    /// What an object is on a side; `None` if it does not exist there.
    pub(super) fn data(&self, object: usize, own: &Side, other: &Side) -> Option<Data> {
        let listing = &own.objects[object];
        // What the documents of one side have, or make, is not there before they do or after they did.
        if *listing == Listing::Outside && other.objects[object] != Listing::Outside {
            return None;
        }
        if let Listing::Data(data) | Listing::Immutable(data) = listing {
            return Some(data.clone());
        }
        let value = |made_of: &str, key: &str| {
            let made_of = made_of.to_owned();
            let slot = Slot::Key(Unseen { object, made_of }, key.to_owned());
            (key.to_owned(), self.values[&slot].clone())
        };
        if let Some(keys) = known_keys(listing) {
            return Some(
                keys.iter()
                    .map(|(key, made_of)| value(made_of, key))
                    .collect(),
            );
        }
        let made_of = made_of(listing)?;
        let keys = &self.keys[&Unseen {
            object,
            made_of: made_of.clone(),
        }];
        Some(
            keys.as_ref()?
                .iter()
                .map(|key| value(&made_of, key))
                .collect(),
        )
    }

    /// The text of a fact; `None` if there is none.
    pub(super) fn fact(&self, fact: Fact) -> Option<&str> {
        let is_there = !self.missing.contains(&fact);
        is_there.then(|| &*self.values[&Slot::Fact(fact)])
    }

    /// The address of the Service `db` on a side.
    pub(super) fn service(&self, own: &Side) -> Option<&str> {
        match own.service {
            ServiceListing::At(address) => Some(address),
            ServiceListing::New => self.fact(Fact::Address),
            ServiceListing::Headless => None,
            // It may be there already, also if the other side has a document.
            ServiceListing::Outside => self.fact(Fact::OtherService),
        }
    }

    /// Whether a side has the ClusterTrustBundle `ca`.
    pub(super) fn has_bundle(&self, own: &Side, other: &Side) -> bool {
        own.has_bundle || !other.has_bundle && self.fact(Fact::Bundle).is_some()
    }

    /// What it is without what no document has: render and exec take that as missing.
    pub(super) fn without_outside(mut self) -> Self {
        for (unseen, keys) in &mut self.keys {
            match &*unseen.made_of {
                "outside" => *keys = None,
                "empty" => *keys = Some(BTreeSet::new()),
                _ => {}
            }
        }
        self.missing.insert(Fact::Bundle);
        self
    }

    /// What it is where all objects exist.
    pub(super) fn with_outside(mut self) -> Self {
        for keys in self.keys.values_mut() {
            keys.get_or_insert_default();
        }
        self.missing.remove(&Fact::Bundle);
        self
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
        let values = self.values.iter().filter(|(slot, _)| match slot {
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
    keys: Vec<Option<&'c BTreeSet<String>>>,
    values: Vec<&'c str>,
    missing: Vec<Fact>,
}

impl fmt::Display for Completion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (Unseen { object, made_of }, keys) in &self.keys {
            let (_, name) = OBJECTS[*object];
            write!(out, "{name} ({made_of}) ")?;
            match keys {
                None => write!(out, "is missing; ")?,
                Some(keys) => write!(out, "has {keys:?}; ")?,
            }
        }
        write!(out, "missing {:?}; values ", self.missing)?;
        for (slot, value) in &self.values {
            match slot {
                Slot::Key(Unseen { object, made_of }, key) => {
                    let (_, name) = OBJECTS[*object];
                    let keys = self
                        .keys
                        .iter()
                        .find(|(unseen, _)| (unseen.object, &unseen.made_of) == (*object, made_of));
                    let is_there = keys.is_none_or(|(_, keys)| {
                        keys.as_ref().is_some_and(|keys| keys.contains(key))
                    });
                    if is_there {
                        write!(out, "{name} ({made_of}) {key}={value:?} ")?;
                    }
                }
                Slot::Fact(fact) => write!(out, "{fact:?}={value:?} ")?,
            }
        }
        Ok(())
    }
}
