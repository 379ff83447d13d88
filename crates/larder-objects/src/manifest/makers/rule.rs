//! What a kind of makers says of its documents: the objects that are made of one, and what their keys are made of.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
    sync::Arc,
};

use serde_json::{Value, json};

use super::{MadeObject, Maker, Ownership, Recipe};
use crate::{Kind, ObjectKey, manifest::Origin};

/// No place.
pub(super) const NONE: &str = "\0";

/// A kind of document, and the objects that are made of one.
pub(super) struct MakerKind {
    pub(super) group: &'static str,
    pub(super) kind: &'static str,
    /// A list of objects in it; [`NONE`] if it makes one.
    pub(super) each: &'static str,
    /// The name of the object is at the first of these places that has one.
    pub(super) names: &'static [&'static str],
    /// The namespace of the object, if it is not the document's.
    pub(super) namespace: &'static str,
    /// A field that says whose the object is, and what its texts mean, of which an empty one stands for none. Otherwise it
    /// is [`Ownership::Owned`]. `None` makes no object.
    pub(super) ownership: (&'static str, &'static [(&'static str, Option<Ownership>)]),
    /// A field that says whether the object is immutable.
    pub(super) immutable: &'static str,
    /// Whether values are made up for the document: one of another name has others.
    pub(super) generates: bool,
    /// ConfigMap or Secret.
    pub(super) of: Kind,
    /// Whether it makes one in each namespace.
    pub(super) is_everywhere: bool,
    /// A list of ConfigMaps and Secrets whose content is part of all values.
    pub(super) reads: &'static str,
    pub(super) keys: Keys,
}

/// Where the keys of an object are.
pub(super) struct Keys {
    /// Keys that it has if a field, or `type` of an entry in a list, has this text.
    pub(super) fixed: &'static [(&'static str, &'static str, &'static [&'static str])],
    /// Their names are those of fields.
    pub(super) maps: &'static [&'static str],
    /// Their names are in a field of the entries.
    pub(super) lists: &'static [(&'static str, &'static str)],
    /// If something is here, there are others.
    pub(super) open: &'static [&'static str],
    /// A template: the keys of its `data` are made of everything.
    pub(super) template: &'static str,
    /// Whether these are all keys, unless `mergePolicy` of the template says that they are merged.
    pub(super) replaces: bool,
    /// Fields that are keys.
    pub(super) named: &'static [&'static str],
    /// If a field has this text, there are no others.
    pub(super) closed: (&'static str, &'static str),
}

/// Parts of a specification on which no value depends.
const WITHOUT_EFFECT: [&str; 10] = [
    "/metadata",
    "/refreshAfter",
    "/refreshInterval",
    "/refreshPolicy",
    "/revisionHistoryLimit",
    "/rolloutRestartTargets",
    "/secretTemplate",
    "/template/metadata",
    "/target/template/metadata",
    "/destination/labels",
];

/// The objects that are made of `document`, whose `key` it is; `None` if it is no maker.
pub(super) fn objects_of(
    makers: &[MakerKind],
    document: &Value,
    (group, kind): (&str, &str),
    key: &ObjectKey,
    origin: &dyn Fn() -> Origin,
) -> Option<Vec<MadeObject>> {
    if (group, kind) == ("external-secrets.io", "ClusterExternalSecret") {
        let external = in_namespaces(document, key).into_iter();
        let made = external.filter_map(|(key, one)| {
            objects_of(makers, &one, (group, "ExternalSecret"), &key, origin)
        });
        let made: Vec<_> = made.flatten().collect();
        return (!made.is_empty()).then_some(made);
    }
    let rules = makers.iter();
    let rules = rules.filter(|rule| (rule.group, rule.kind) == (group, kind));
    let mut rules = rules.peekable();
    rules.peek()?;
    let made = rules.flat_map(|rule| {
        let parts = match document.pointer(rule.each) {
            _ if rule.each == NONE => slice::from_ref(document),
            Some(Value::Array(parts)) => parts,
            _ => &[],
        };
        let mut shared = document.get("spec").cloned().unwrap_or_default();
        remove(&mut shared, rule.each.trim_start_matches("/spec"));
        let made = parts.iter().filter_map(move |part| {
            let names = rule.names.iter();
            let name = names
                .map(|place| text(part, place))
                .find(|one| !one.is_empty())?;
            let namespace = match text(part, rule.namespace) {
                _ if rule.is_everywhere => String::new().into(),
                stated if stated.is_empty() => key.namespace.clone(),
                stated => stated.into(),
            };
            let (keys, others) = rule.keys(part, &shared, &key.name);
            Some(MadeObject {
                kind: rule.of,
                key: ObjectKey::new(namespace, name),
                maker: Maker::Controller(format!("{kind} {}", key.name)),
                origin: origin(),
                keys,
                others,
                ownership: rule.ownership(part)?,
                immutable: text(part, rule.immutable) == "true",
                reads: rule.reads(part),
            })
        });
        made.collect::<Vec<_>>()
    });
    Some(made.collect())
}

/// The ExternalSecrets that a ClusterExternalSecret makes, as far as it names their namespaces.
fn in_namespaces(cluster: &Value, key: &ObjectKey) -> Vec<(ObjectKey, Value)> {
    let spec = &cluster["spec"];
    let list = |field: &str| spec[field].as_array().into_iter().flatten();
    let selectors = list("namespaceSelectors").chain([&spec["namespaceSelector"]]);
    let selected = selectors.map(|one| &one["matchLabels"]["kubernetes.io/metadata.name"]);
    let namespaces = list("namespaces").chain(selected).filter_map(Value::as_str);
    let name = spec["externalSecretName"].as_str().unwrap_or(&key.name);
    let document = json!({"metadata": {"name": name}, "spec": spec["externalSecretSpec"]});
    let made = namespaces.map(|namespace| (ObjectKey::new(namespace, name), document.clone()));
    made.collect()
}

impl MakerKind {
    /// The objects that values are made of, too.
    fn reads(&self, part: &Value) -> BTreeSet<(Kind, String)> {
        let sources = part.pointer(self.reads).and_then(Value::as_array);
        let sources = sources.into_iter().flatten().flat_map(|source| {
            let name = |field: &str| text(source, &format!("/{field}/name"));
            [
                (Kind::ConfigMap, name("configMap")),
                (Kind::Secret, name("secret")),
            ]
        });
        sources.filter(|(_, name)| !name.is_empty()).collect()
    }

    /// Whose the object is; `None` if none is made.
    fn ownership(&self, part: &Value) -> Option<Ownership> {
        let stated = text(part, self.ownership.0);
        let meanings = self.ownership.1.iter();
        let mut meanings = meanings.filter(|(text, _)| *text == stated);
        meanings.next().map_or(Some(Ownership::Owned), |one| one.1)
    }

    /// The keys of the object that is made of `part`, and what others are made of, if there may be any. `shared` is what the
    /// document says of all objects.
    fn keys(&self, part: &Value, shared: &Value, document: &str) -> KnownKeys {
        let mut own = part.clone();
        let without_effect = [self.ownership.0, self.namespace, self.immutable];
        for place in self.names.iter().chain(&without_effect) {
            remove(&mut own, place);
        }
        let name = if self.generates { document } else { "" };
        let recipe = |own: &Value| {
            // Of a document that makes one object, only the specification counts.
            let own = match self.each {
                NONE => without_effect_of(own.get("spec").cloned().unwrap_or_default()),
                _ => json!([own, shared]),
            };
            format!("{}/{} {name} {own}", self.group, self.kind)
        };
        let whole = Recipe::new(recipe(&own));
        let Keys { maps, lists, .. } = self.keys;
        for place in maps.iter().chain(lists.iter().map(|(place, _)| place)) {
            remove(&mut own, place);
        }
        remove(&mut own, &format!("{}/data", self.keys.template));
        let rest = recipe(&own);
        let entries = self.keys.entries(part);
        let made_of = |entry: Option<&Value>| match entry {
            Some(entry) => Recipe::new(format!("{rest} {entry}")),
            None => whole.clone(),
        };
        let entries = entries.map(|(key, entry)| (key.into(), made_of(entry)));
        let is_open = self.keys.is_open(part);
        (entries.collect(), is_open.then(|| whole.clone()))
    }
}

/// What each key is made of, and the others.
type KnownKeys = (BTreeMap<Arc<str>, Recipe>, Option<Recipe>);

impl Keys {
    /// The keys, each with what it is made of besides what all are; `None` if that is everything. A later one counts.
    fn entries<'p>(&self, part: &'p Value) -> impl Iterator<Item = (&'p str, Option<&'p Value>)> {
        let fixed = self.fixed.iter();
        let fixed = fixed.filter(|(place, stated, _)| match part.pointer(place) {
            Some(Value::Array(entries)) => {
                entries.iter().any(|entry| text(entry, "/type") == *stated)
            }
            _ => text(part, place) == *stated,
        });
        let fixed = fixed.flat_map(|(.., keys)| keys.iter().map(|key| (*key, None)));
        let maps = self.maps.iter();
        let maps = maps.flat_map(move |place| fields(part.pointer(place)));
        let maps = maps.map(|(key, entry)| (&**key, Some(entry)));
        let lists = self.lists.iter().flat_map(move |(place, field)| {
            let entries = part.pointer(place).and_then(Value::as_array);
            let entries = entries.into_iter().flatten();
            entries.filter_map(|entry| Some((entry.get(*field)?.as_str()?, Some(entry))))
        });
        let is_replaced = self.is_replaced(part);
        let own = maps.chain(lists).filter(move |_| !is_replaced);
        let template = part.pointer(self.template);
        let templates = fields(template.and_then(|template| template.get("data")));
        let templates = templates.map(|(key, _)| (&**key, None));
        let named = self.named.iter();
        let named = named.filter_map(|place| Some((part.pointer(place)?.as_str()?, None)));
        fixed.chain(own).chain(templates).chain(named)
    }

    /// Whether the keys are those of the template.
    fn is_replaced(&self, part: &Value) -> bool {
        let Some(template) = part.pointer(self.template) else {
            return false;
        };
        let makes_keys = is_there(template, "/data") || is_there(template, "/templateFrom");
        self.replaces && makes_keys && text(template, "/mergePolicy") != "Merge"
    }

    /// Whether there may be others.
    fn is_open(&self, part: &Value) -> bool {
        let is_closed = text(part, self.closed.0) == self.closed.1;
        let is_open = !is_closed && self.open.iter().any(|place| is_there(part, place));
        is_open && !self.is_replaced(part)
            || is_there(part, &format!("{}/templateFrom", self.template))
    }
}

fn fields(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

/// The text, number or truth value at a place; empty if none is there.
pub(super) fn text(part: &Value, place: &str) -> String {
    match part.pointer(place) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
        _ => String::new(),
    }
}

/// Whether something is at a place.
fn is_there(part: &Value, place: &str) -> bool {
    match part.pointer(place) {
        None | Some(Value::Null) => false,
        Some(Value::Array(entries)) => !entries.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

fn remove(value: &mut Value, place: &str) {
    let Some((parent, field)) = place.rsplit_once('/') else {
        return;
    };
    let Some(Value::Object(fields)) = value.pointer_mut(parent) else {
        return;
    };
    // What has nothing else says nothing.
    if fields.remove(field).is_some() && fields.is_empty() {
        remove(value, parent);
    }
}

/// A specification without what no value depends on.
fn without_effect_of(mut spec: Value) -> Value {
    for place in WITHOUT_EFFECT {
        remove(&mut spec, place);
    }
    if spec == json!({}) { Value::Null } else { spec }
}
