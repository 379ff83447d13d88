//! Objects that are made of documents: by several makers, beside one that is listed, of the content of others, in each
//! namespace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use larder_objects::{
    Kind, ObjectKey, SecretBytes,
    manifest::{MadeObject, Ownership, Recipe},
};
use larder_projection::{Existence, KeyContent, Keyed, Need, OtherKeys, UnknownObject};

use super::{Offline, OfflinePod, needs};

pub(super) type MadeObjects = HashMap<(Kind, ObjectKey), MadeObject>;

/// The objects, of which several may be one that more than one maker makes.
pub(super) fn joined(all: impl IntoIterator<Item = MadeObject>) -> MadeObjects {
    let mut makers = HashMap::<_, Vec<_>>::new();
    for made in all {
        let key = (made.kind, made.key.clone());
        makers.entry(key).or_default().push(made);
    }
    let objects = makers.into_iter();
    let objects = objects.filter_map(|(key, all)| Some((key, MadeObject::joined(all)?)));
    objects.collect()
}

/// The content of those objects.
fn contents<K: Keyed>(
    objects: &HashMap<ObjectKey, Arc<K>>,
    is_meant: impl Fn(&ObjectKey) -> bool,
) -> Vec<Recipe> {
    let objects = objects.iter().filter(|(key, _)| is_meant(key));
    let files = objects.flat_map(|(_, object)| object.files());
    let recipes = files.map(|(key, value)| Recipe::new(format!("{key} {}", value.escape_ascii())));
    recipes.collect()
}

/// What is known of an object that is made, and may be `listed` as well: each key may be that of either, unless what is
/// listed is `live`, which counts.
pub(super) fn made_object<K: Keyed>(
    made: &MadeObject,
    listed: Option<&K>,
    is_live: bool,
) -> UnknownObject {
    let own = made.keys.iter();
    let mut keys: BTreeMap<_, _> = own
        .map(|(key, recipe)| (Arc::clone(key), KeyContent::Made(recipe.clone())))
        .collect();
    for (key, value) in listed.into_iter().flat_map(Keyed::files) {
        let recipe = made.keys.get(key).or(made.others.as_ref());
        let content = match recipe.filter(|_| !is_live) {
            None => KeyContent::Known(SecretBytes::new(value.to_vec())),
            Some(recipe) => {
                let listed = Recipe::new(value.escape_ascii().to_string());
                KeyContent::Made(Recipe::joined([recipe.clone(), listed]))
            }
        };
        keys.insert(key.into(), content);
    }
    // Something else makes it, which is not listed.
    let is_outside = made.ownership == Ownership::Added && listed.is_none();
    UnknownObject {
        existence: if is_outside {
            Existence::Unsure
        } else {
            Existence::Certain
        },
        keys,
        others: match made.others.clone().or(is_outside.then(Recipe::default)) {
            None => OtherKeys::None,
            Some(recipe) if is_live && listed.is_some() => OtherKeys::Named(recipe),
            Some(recipe) => OtherKeys::Any(recipe),
        },
    }
}

impl Offline {
    /// Adds to what objects are made of the content of objects that it names, and puts those that are in each namespace into
    /// those of the pods that refer to them.
    pub(super) fn complete_made(&mut self, pods: &[OfflinePod]) {
        let made = self.made.values().map(|made| {
            let mut complete = made.clone();
            let contents = made.reads.iter();
            let contents = contents.flat_map(|(kind, name)| self.contents(*kind, made, name));
            let content = Recipe::joined(contents);
            if content != Recipe::default() {
                complete.depend_on(&content);
            }
            complete
        });
        let (everywhere, made): (Vec<_>, Vec<_>) =
            made.partition(|made| made.key.namespace.is_empty());
        let mut objects = BTreeSet::new();
        for pod in pods {
            let namespace = pod.place().namespace;
            objects.extend(needs(&pod.pod).into_iter().filter_map(|need| match need {
                Need::Object(kind, name) => Some((kind, ObjectKey::new(namespace.clone(), name))),
                _ => None,
            }));
        }
        let everywhere = objects.into_iter().flat_map(|(kind, key)| {
            let of_name = everywhere.iter();
            let of_name = of_name.filter(|made| made.kind == kind && made.key.name == key.name);
            let copies = of_name.cloned().map(|mut made| {
                made.key = key.clone();
                made
            });
            copies.collect::<Vec<_>>()
        });
        self.made = joined(made.into_iter().chain(everywhere));
    }

    /// The content of an object of this name, as far as it is known, in the namespace of what is made of it.
    fn contents(&self, kind: Kind, of: &MadeObject, name: &str) -> Vec<Recipe> {
        let namespace = &of.key.namespace;
        let is_meant = |key: &ObjectKey| {
            key.name == name && (namespace.is_empty() || key.namespace == *namespace)
        };
        let made = self.made.values();
        let made = made.filter(|made| made.kind == kind && is_meant(&made.key));
        let recipes = made.flat_map(|made| made.keys.values().chain(&made.others).cloned());
        let listed = match kind {
            Kind::ConfigMap => contents(&self.config_maps, is_meant),
            Kind::Secret => contents(&self.secrets, is_meant),
        };
        recipes.chain(listed).collect()
    }
}
