//! What a pod reads and the documents lack: taken as unknown, or made unavailable with its reason.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use larder_objects::{
    Kind, ObjectKey,
    manifest::{MadeObject, Maker, Recipe},
};
use larder_projection::{
    Existence, Inputs, Keyed, OtherKeys, TrustBundles, Unavailable, UnknownObject,
};

type ObjectsByName<K> = BTreeMap<String, Result<Arc<K>, Unavailable>>;

/// Takes objects that do not exist as what `unseen` says.
pub(super) fn take_missing<K: Keyed>(
    objects: &mut ObjectsByName<K>,
    namespace: &str,
    unseen: &impl Fn(Kind, &ObjectKey) -> Option<UnknownObject>,
) {
    for (name, found) in objects {
        let missing = matches!(found, Err(Unavailable::NotFound));
        let key = || ObjectKey::new(namespace, name.as_str());
        if let Some(object) = missing.then(|| unseen(K::KIND, &key())).flatten() {
            *found = Err(Unavailable::Unknown(Arc::new(object)));
        }
    }
}

/// Takes the keys of objects without data as unknown: those for which `filled_by` has what is known to fill them.
pub(super) fn take_empty<K>(
    objects: &mut ObjectsByName<K>,
    filled_by: impl Fn(&K) -> Option<Recipe>,
) {
    for found in objects.values_mut() {
        let recipe = found.as_ref().ok().and_then(|object| filled_by(object));
        if let Some(recipe) = recipe {
            let unseen = UnknownObject::unseen(Existence::Certain);
            let others = OtherKeys::Any(recipe);
            let object = UnknownObject { others, ..unseen };
            *found = Err(Unavailable::Unknown(Arc::new(object)));
        }
    }
}

/// Takes the objects that a projection lacks as there. For what else it reads.
pub(crate) fn assume_all(inputs: &mut Inputs) {
    let unseen = |_, _: &ObjectKey| Some(UnknownObject::unseen(Existence::Certain));
    take_missing(&mut inputs.config_maps, "", &unseen);
    take_missing(&mut inputs.secrets, "", &unseen);
    inputs.trust_bundles = TrustBundles::Partial([].into(), Existence::Certain);
    inputs.assumptions.written_later = true;
}

/// Makes objects that could not be read unavailable, with their reasons.
pub(super) fn refuse_unread<K: Keyed>(
    objects: &mut ObjectsByName<K>,
    namespace: &str,
    reasons: &BTreeSet<(String, String)>,
) {
    for (name, found) in objects {
        let kind = K::KIND.object_type().kind;
        let called = format!("{kind} {}", ObjectKey::new(namespace, name.as_str()));
        let reason = reasons.iter().find(|(object, _)| *object == called);
        if let Some((object, reason)) = reason {
            *found = Err(Unavailable::failed(format!(
                "cannot read {object}: {reason}"
            )));
        }
    }
}

/// Makes objects without values in the documents unavailable, except those that are `live`.
pub(super) fn refuse_made<K: Keyed>(
    objects: &mut ObjectsByName<K>,
    namespace: &str,
    made: &HashMap<(Kind, ObjectKey), MadeObject>,
    live: Option<&HashMap<ObjectKey, Arc<K>>>,
) {
    for (name, found) in objects {
        let key = (K::KIND, ObjectKey::new(namespace, name.as_str()));
        let (Err(Unavailable::Unknown(_)), Some(made)) = (&found, made.get(&key)) else {
            continue;
        };
        if let Some(live) = live.and_then(|live| live.get(&key.1)) {
            *found = Ok(Arc::clone(live));
            continue;
        }
        let kind = K::KIND.singular();
        *found = Err(Unavailable::failed(match &made.maker {
            Maker::Sops => {
                format!(
                    "{kind} {name:?} is encrypted by sops; decrypt it first: sops -d {}",
                    made.origin.file
                )
            }
            Maker::Controller(document) => format!(
                "{kind} {name:?} is made in a cluster, by {document}; --assume-missing leaves its values empty"
            ),
        }));
    }
}
