//! The record of a pod, `pods/UID/on-change.json`: the content of the last notification of each hook, as a digest
//! (rule P1).
//!
//! The digests are keyed, and the key is in memory only. So the record reveals nothing about the content of objects.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::{
    content::{Content, PartContent, PartTags},
    digest::{ContentDigest, ContentTag, DigestKey},
    engine::LastNotification,
    left_out::{LeftOut, ObjectTag},
    part::PartKey,
    pod_hooks::PodHook,
};

/// Version of the format. A record of another version is ignored.
const VERSION: u32 = 1;

/// The state that earlier runs left of a pod, read before the first pass with its hooks.
#[derive(Debug, Default)]
pub struct Past {
    /// The parts on disk.
    pub content: Content,
    /// `None` if there is none that can be read.
    pub record: Option<Record>,
    /// Without a record, the application may have read other content than what is on disk, so its hooks fire.
    pub is_uncertain: bool,
}

impl Past {
    /// The content of the last notification by the record: the parts on disk, but files and variables of objects that
    /// are left out as they were held.
    pub(crate) fn notified_content(&self, key: &DigestKey) -> Content {
        let held = self
            .record
            .as_ref()
            .filter(|record| record.key == key.fingerprint())
            .into_iter()
            .flat_map(|record| &record.held)
            .map(|part| {
                let items = part.items.iter().filter_map(|item| {
                    let tag = ContentTag::from_hex(&item.tag)?;
                    Some((item.name.clone(), (tag, item.object)))
                });
                let known = self.content.get(&part.part);
                let tags = known
                    .map_or_else(PartTags::default, |known| known.tags.clone())
                    .holding(&part.left_out, &items.collect());
                let swapped = known.and_then(|known| known.swapped);
                (part.part.clone(), Arc::new(PartContent { tags, swapped }))
            });
        let mut all: BTreeMap<_, _> = self
            .content
            .parts()
            .map(|(key, part)| (key.clone(), Arc::clone(part)))
            .collect();
        all.extend(held);
        Content::default().with(all)
    }
}

/// The record of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    version: u32,
    /// Identifies the key of the digests.
    key: String,
    hooks: Vec<HookRecord>,
    /// Absent while no object is left out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    held: Vec<HeldPart>,
}

/// The files or variables of a part that are held as they were, since their objects are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeldPart {
    part: PartKey,
    left_out: LeftOut,
    items: Vec<HeldItem>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeldItem {
    name: SmolStr,
    /// Under the key of the digests.
    tag: String,
    object: ObjectTag,
}

/// The record of one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HookRecord {
    place: String,
    name: String,
    /// Identifies the hook's definition.
    definition: String,
    /// Digest of the content of the last success; absent before the first delivery, and where an attempt began since.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<String>,
    /// Whether the application may have been notified of other content since, or lacks a notification of which the next
    /// agent could not know.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    uncertain: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    last_success: Option<Timestamp>,
}

impl Record {
    /// Records these hooks, which have selected from `content`.
    pub(crate) fn new(
        key: &DigestKey,
        hooks: impl Iterator<Item = HookRecord>,
        content: &Content,
    ) -> Self {
        let held = content.with_left_out().map(|(part, tags)| {
            let items = tags.held().map(|(name, tag, object)| HeldItem {
                name: name.into(),
                tag: tag.to_hex(),
                object,
            });
            HeldPart {
                part: part.clone(),
                left_out: tags.left_out().clone(),
                items: items.collect(),
            }
        });
        Self {
            version: VERSION,
            key: key.fingerprint(),
            hooks: hooks.collect(),
            held: held.collect(),
        }
    }

    /// Reads a record; `None` if the text is not one of this version.
    pub fn read(text: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(text).ok()?;
        (record.version == VERSION).then_some(record)
    }

    /// The text of the record.
    pub fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and numbers have a form in JSON")
    }

    /// Looks up the last notification of `hook`, and the time of its last success.
    ///
    /// The notification is `Nothing` if the record lacks a hook with this name, place and definition, and `None` if the
    /// digest of its content was made with another key.
    pub(crate) fn of(
        &self,
        hook: &PodHook,
        key: &DigestKey,
    ) -> (Option<LastNotification>, Option<Timestamp>) {
        let is_of = |record: &&HookRecord| {
            record.name == hook.hook.name
                && record.place == hook.place.to_string()
                && record.definition == hook.hook.definition().to_string()
        };
        let Some(found) = self.hooks.iter().find(is_of) else {
            return (Some(LastNotification::Nothing), None);
        };
        let recorded = match found.digest.as_deref().map(ContentDigest::from_hex) {
            _ if found.uncertain => Some(LastNotification::Uncertain),
            None => Some(LastNotification::Nothing),
            Some(_) if self.key != key.fingerprint() => None,
            Some(digest) => {
                Some(digest.map_or(LastNotification::Uncertain, LastNotification::Content))
            }
        };
        (recorded, found.last_success)
    }
}

impl HookRecord {
    /// Records `hook`, with the digest of its last success.
    pub(crate) fn new(
        hook: &PodHook,
        digest: Option<ContentDigest>,
        uncertain: bool,
        last_success: Option<Timestamp>,
    ) -> Self {
        Self {
            place: hook.place.to_string(),
            name: hook.hook.name.clone(),
            definition: hook.hook.definition().to_string(),
            digest: digest.map(ContentDigest::to_hex),
            uncertain,
            last_success,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // on-change 63
    #[test]
    fn foreign_record_is_ignored() {
        let written = Record::new(
            &DigestKey::from_bytes(&[1; 32]),
            std::iter::empty(),
            &Content::default(),
        )
        .text();
        let text = String::from_utf8(written).unwrap();
        assert!(Record::read(text.as_bytes()).is_some());
        let deep = |open: &str, close: &str| {
            let (open, close) = (open.repeat(100_000), close.repeat(100_000));
            text.replace("[]", &format!("[{open}{close}]"))
        };
        for hostile in [
            text.replace("\"version\":1", "\"version\":2"),
            text.replace("\"version\":1", "\"version\":-1"),
            text.replace("\"version\":1", "\"version\":1e400"),
            text.replace('}', ",\"version\":1}"),
            text.replace("[]", "[{}]"),
            text.replace("[]", "[null]"),
            text[..text.len() - 1].to_owned(),
            format!("{text}{text}"),
            deep("[", "]"),
            deep("{\"a\":", "}"),
            "[".repeat(100_000),
        ] {
            let shown: String = hostile.chars().take(80).collect();
            assert_eq!(Record::read(hostile.as_bytes()), None, "{shown}");
        }
        assert_eq!(Record::read(b"\xff\xfe"), None);
    }
}
