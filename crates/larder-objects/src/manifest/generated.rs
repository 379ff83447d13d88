//! Names for manifests that leave their name to the API server: `generateName`.
//!
//! The API server adds five random characters when it creates the object. A manifest is read many times, and a pod must
//! keep its directory, so here the characters are derived. Form, version 1: FNV-1a, 128 bit, over
//! `larder/v1/generated/<file name>/<kind>/<namespace>/<prefix>/<number>`, each digit of base 27 of it an index into
//! the API server's alphabet. The number counts, from 0, the objects of one prefix in the file. So an edit changes no
//! name, nor does another object before it, unless it has the same prefix.
//!
//! Rules: Kubernetes 1.36, `staging/src/k8s.io/apiserver/pkg/storage/names/generate.go`.

use std::{collections::HashMap, path::Path};

use super::RawObject;
use crate::StableHash;

/// What the characters after a prefix are taken from: no vowels and nothing that looks like one, so that no word comes
/// out.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// How many there are.
const SUFFIX: usize = 5;
/// A longer prefix is cut, so that the name is a label.
const PREFIX: usize = 63 - SUFFIX;

/// The objects of each kind, namespace and prefix that were named so far, by file.
#[derive(Debug, Default)]
pub(super) struct GeneratedNames(HashMap<String, u32>);

impl GeneratedNames {
    /// Names `object` of `file` if it leaves that to the API server.
    pub(super) fn name(&mut self, file: &str, namespace: &str, object: RawObject) -> RawObject {
        let prefix = object.text("/metadata/generateName");
        let absent = object
            .pointer("/metadata/name")
            .is_none_or(|name| name.is_null() || name == "");
        if prefix.is_empty() || !absent {
            return object;
        }
        let namespace = match object.text("/metadata/namespace") {
            "" => namespace,
            own => own,
        };
        // The same file has many paths.
        let file = Path::new(file).file_name().unwrap_or_default();
        let kind = object.text("/kind");
        let place = format!("{}/{kind}/{namespace}/{prefix}", file.display());
        let number = self.0.entry(place.clone()).or_default();
        let name = derived(prefix, &format!("{place}/{number}"));
        *number += 1;
        let mut value = object.into_value();
        value["metadata"]["name"] = name.into();
        RawObject::new(value)
    }
}

fn derived(prefix: &str, place: &str) -> String {
    let mut digest = StableHash::EMPTY
        .with("larder/v1/generated/")
        .with(place)
        .digest();
    generated_name(prefix, |_| {
        let index = usize::try_from(digest % 27).expect("less than 27");
        digest /= 27;
        index
    })
}

/// A name of `generateName`'s prefix and five characters. `pick` has the number of those to choose from, and answers
/// the index of one.
pub fn generated_name(prefix: &str, mut pick: impl FnMut(usize) -> usize) -> String {
    let end = prefix.floor_char_boundary(prefix.len().min(PREFIX));
    let suffix = (0..SUFFIX).map(|_| char::from(ALPHABET[pick(ALPHABET.len())]));
    prefix[..end].chars().chain(suffix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_of_the_form_never_changes() {
        assert_eq!(derived("job-", "app.yaml/Pod/default/job-/0"), "job-t5vkz");
    }

    #[test]
    fn a_long_prefix_leaves_room_for_the_suffix() {
        let name = derived(&"ä".repeat(40), "");
        assert!(name.len() <= 63 && name.starts_with("ää"), "{name}");
    }
}
