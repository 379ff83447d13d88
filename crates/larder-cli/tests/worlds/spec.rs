//! What the specs of pods name: paths, keys and texts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    draw::KEYS,
    keys::may_have,
    world::{CERTIFICATE_KEYS, OBJECTS, Side, World},
};

/// The paths of files, and what is left of them in a directory.
pub(super) fn paths_of(world: &World) -> BTreeSet<String> {
    let keys = KEYS.into_iter().chain(CERTIFICATE_KEYS);
    let mut paths: BTreeSet<_> = keys.map(str::to_owned).collect();
    for side in [&world.from, &world.to] {
        for (_, path) in stated_paths(&side.pod["volumes"]) {
            let rest = path.split_once('/').map(|(_, rest)| rest.to_owned());
            paths.extend(rest.into_iter().chain([path]));
        }
    }
    paths
}

/// The paths in a spec, each with the name of its field.
fn stated_paths(value: &Value) -> Vec<(&str, String)> {
    match value {
        Value::Array(all) => all.iter().flat_map(stated_paths).collect(),
        Value::Object(fields) => {
            let paths = fields.iter().flat_map(|(field, value)| match value {
                Value::String(text) if is_path(field) => vec![(&**field, text.clone())],
                value => stated_paths(value),
            });
            paths.collect()
        }
        _ => Vec::new(),
    }
}

fn is_path(field: &str) -> bool {
    let is_mount = matches!(field, "mountPath" | "fieldPath");
    !is_mount && (field.ends_with("Path") || ["path", "subPathExpr"].contains(&field))
}

/// What the mounts of a pod select.
pub(super) fn selected(pod: &Value) -> BTreeSet<String> {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let mounts = containers.flat_map(|one| one["volumeMounts"].as_array().into_iter().flatten());
    let paths = mounts.filter_map(|mount| mount["subPath"].as_str());
    paths.map(str::to_owned).collect()
}

/// The directories of the volumes that have all keys of an object, each with the name of the object.
pub(super) fn directories(own: &Side, other: &Side) -> Vec<(String, String)> {
    let pod = &own.pod;
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    let found = volumes.flat_map(|volume| {
        let containers = pod["containers"].as_array().into_iter().flatten();
        let mounts =
            containers.flat_map(|one| one["volumeMounts"].as_array().into_iter().flatten());
        let mounts = mounts.filter(|mount| mount["name"] == volume["name"]);
        let empty = empty_items(volume, own, other);
        let paths = mounts.chain([volume]).flat_map(stated_paths);
        let paths = paths.filter(|(_, path)| !empty.contains(path));
        let directories = paths.filter_map(|(_, path)| Some(path.split_once('/')?.0.to_owned()));
        let directories: BTreeSet<_> = directories.collect();
        let sources = volume["projected"]["sources"].as_array();
        let sources = sources.into_iter().flatten().chain([volume]);
        let objects = sources.flat_map(|source| [&source["configMap"], &source["secret"]]);
        let whole = objects.filter(|object| object.get("items").is_none());
        let names = whole.filter_map(|one| one["name"].as_str().or(one["secretName"].as_str()));
        let pairs = names.flat_map(|name| {
            let all = directories.iter();
            all.map(|directory| (name.to_owned(), directory.clone()))
        });
        pairs.collect::<Vec<_>>()
    });
    found.collect()
}

/// The paths of a volume at which no completion has a file: the object that would fill it lacks the key, or is missing.
fn empty_items(volume: &Value, own: &Side, other: &Side) -> BTreeSet<String> {
    let sources = volume["projected"]["sources"].as_array();
    let sources = sources.into_iter().flatten().chain([volume]);
    let objects = sources.flat_map(|source| [&source["configMap"], &source["secret"]]);
    let items = objects.flat_map(|object| {
        let name = object["name"].as_str().or(object["secretName"].as_str());
        let place = OBJECTS.iter().position(|(_, own)| Some(*own) == name);
        let items = object["items"].as_array().into_iter().flatten();
        let empty = items.filter(move |item| {
            let key = item["key"].as_str().unwrap_or_default();
            place.is_some_and(|place| !may_have(key, &own.objects[place], &other.objects[place]))
        });
        empty.filter_map(|item| Some(item["path"].as_str()?.to_owned()))
    });
    items.collect()
}

/// The keys of objects of `envFrom` to which a container refers as variables, each with the name of its object.
pub(super) fn referenced_keys(pod: &Value) -> BTreeSet<(String, String)> {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let keys = containers.flat_map(|container| {
        let text = container.to_string();
        let names = references(&text);
        let sources = container["envFrom"].as_array().into_iter().flatten();
        let keys = sources.flat_map(|source| {
            let object = source.get("secretRef").unwrap_or(&source["configMapRef"]);
            let (object, prefix) = (object["name"].as_str(), source["prefix"].as_str());
            let own = names.iter().filter_map(|name| {
                let key = name.strip_prefix(prefix.unwrap_or_default())?;
                Some((object?.to_owned(), key.to_owned()))
            });
            own.collect::<Vec<_>>()
        });
        keys.collect::<Vec<_>>()
    });
    keys.collect()
}

/// The keys that a spec names, each with the name of its object.
pub(super) fn stated_keys(value: &Value, stated: &mut BTreeSet<(String, String)>) {
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
pub(super) fn collect(value: &Value, names: &mut BTreeSet<String>, texts: &mut BTreeSet<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| collect(one, names, texts)),
        Value::Object(fields) => fields.values().for_each(|one| collect(one, names, texts)),
        Value::String(text) => {
            names.extend(references(text).into_iter().map(str::to_owned));
            names.insert(text.clone());
            texts.insert(text.clone());
        }
        _ => {}
    }
}

/// The variables to which a text refers.
fn references(text: &str) -> BTreeSet<&str> {
    let references = text.split("$(").skip(1);
    let names = references.filter_map(|rest| rest.split_once(')'));
    names.map(|(name, _)| name).collect()
}
