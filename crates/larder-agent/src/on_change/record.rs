//! The record of a pod, `pods/UID/on-change.json`: the content of the last notification of each hook, as a digest
//! (rule P1).
//!
//! The digests are keyed, and the key is in memory only. So the record reveals nothing about the content of objects.

use jiff::Timestamp;
use larder_on_change::{ContentDigest, DigestKey};
use serde::{Deserialize, Serialize};

use super::{
    content::Content,
    pod_hooks::{PodHook, PodHooks},
    tracked::TrackedHook,
};

/// Version of the format. A record of another version is ignored.
const VERSION: u32 = 1;

/// The length of a text is a multiple of this. So the records of a pod mostly have one length, and a file that held one
/// holds the next without being cut off, which would delay a swap or a round.
const LENGTH: usize = 256;

/// The record of a pod.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    version: u32,
    /// Identifies the key of the digests.
    key: String,
    hooks: Vec<HookRecord>,
}

/// The record of one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HookRecord {
    place: String,
    name: String,
    /// Identifies the hook's definition.
    definition: String,
    /// Digest of the content of the last success; absent before the first delivery, and where an attempt began since.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<String>,
    /// Whether the application may have been notified of other content since, or lacks a notification of which the next
    /// agent could not know. With a digest, this counts only if the disk has other content: no attempt begins before
    /// its content is on disk.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    uncertain: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    last_success: Option<Timestamp>,
}

/// The last known notification of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// The record lacks a hook with this name, place and definition.
    New,
    /// The application was notified of this content.
    Notified(ContentDigest, Option<Timestamp>),
    /// The application may have been notified of other content.
    Uncertain(Option<Timestamp>),
    /// The application was notified of content whose digest was made with another key.
    OtherKey(Option<Timestamp>),
}

impl Record {
    /// Records these hooks. The flag of each says that its content is about to change, so that an attempt may follow, or
    /// that its application lacks a notification and the digest cannot show this to the next agent.
    pub(super) fn new<'a>(
        key: &DigestKey,
        hooks: impl Iterator<Item = (&'a PodHook, &'a TrackedHook, bool)>,
    ) -> Self {
        let hooks = hooks.map(|(hook, tracked, is_behind)| {
            let digest = tracked.engine.notified();
            HookRecord {
                place: hook.place.to_string(),
                name: hook.hook.name.clone(),
                definition: hook.hook.definition().to_string(),
                digest: digest.map(|digest| digest.to_hex()),
                // Without content there was no delivery.
                uncertain: tracked.engine.is_uncertain() || (is_behind && digest.is_some()),
                last_success: tracked.last_success,
            }
        });
        Self {
            version: VERSION,
            key: key.fingerprint(),
            hooks: hooks.collect(),
        }
    }

    /// This record, with every notification uncertain.
    pub(super) fn as_uncertain(&self) -> Self {
        let hooks = self.hooks.iter().map(|hook| HookRecord {
            // Without content there was no delivery.
            uncertain: hook.uncertain || hook.digest.is_some(),
            digest: None,
            ..hook.clone()
        });
        Self {
            version: self.version,
            key: self.key.clone(),
            hooks: hooks.collect(),
        }
    }

    /// Decides what depends on the content on disk, which `hooks` look at, before that changes. Returns whether anything
    /// did.
    pub(super) fn resolve(&mut self, hooks: &PodHooks, on_disk: &Content, key: &DigestKey) -> bool {
        let is_own_key = self.key == key.fingerprint();
        let mut depended = false;
        for record in self.hooks.iter_mut().filter(|record| record.uncertain) {
            let Some(digest) = record.digest.take() else {
                continue;
            };
            depended = true;
            let mut hooks = hooks.hooks.iter();
            let hook = hooks.find(|hook| record.is_of(hook));
            if is_own_key && hook.is_some_and(|hook| on_disk.digest(hook, key).to_hex() == digest) {
                record.digest = Some(digest);
                record.uncertain = false;
            }
        }
        depended
    }

    /// Reads a record; `None` if the text is not one of this version.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(text).ok()?;
        (record.version == VERSION).then_some(record)
    }

    /// The text of the record, with blanks at its end.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("names and numbers have a form in JSON");
        text.resize(text.len().next_multiple_of(LENGTH), b' ');
        text
    }

    /// Looks up the last known notification of `hook`, in a record that is [resolved](Self::resolve).
    pub(super) fn of(&self, hook: &PodHook, key: &DigestKey) -> Recorded {
        let Some(found) = self.hooks.iter().find(|record| record.is_of(hook)) else {
            return Recorded::New;
        };
        let last = found.last_success;
        if found.uncertain {
            return Recorded::Uncertain(last);
        }
        let digest = found.digest.as_deref();
        match digest.map(ContentDigest::from_hex) {
            None => Recorded::New,
            Some(_) if self.key != key.fingerprint() => Recorded::OtherKey(last),
            Some(Some(digest)) => Recorded::Notified(digest, last),
            Some(None) => Recorded::Uncertain(last),
        }
    }
}

impl HookRecord {
    /// Whether it is the record of `hook`, as it is defined now.
    fn is_of(&self, hook: &PodHook) -> bool {
        self.name == hook.hook.name
            && self.place == hook.place.to_string()
            && self.definition == hook.hook.definition().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // on-change 63
    #[test]
    fn foreign_record_is_ignored() {
        let written = Record::new(&DigestKey::from_bytes(&[1; 32]), std::iter::empty()).text();
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
            text.trim_end()[..text.trim_end().len() - 1].to_owned(),
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
