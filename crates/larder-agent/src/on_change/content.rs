//! The content that the hooks of a pod select, as tags of its bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use larder_on_change::{Changes, ContentDigest, ContentTag, DigestKey, Digester};
use larder_projection::VolumeKind;
use smol_str::SmolStr;

use super::pod_hooks::PodHook;

/// Names a part of a pod. Ordered, so that content is ordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartKey {
    /// The volume of this name.
    Volume(SmolStr, VolumeKind),
    /// The variables of the container of this name.
    Environment(SmolStr),
}

/// One file or variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Path in the volume, or name of the variable.
    pub(super) name: SmolStr,
    pub(super) tag: ContentTag,
    /// Whether it is a service account token (rule F6).
    pub(super) is_token: bool,
}

/// A delivered part.
#[derive(Debug)]
pub(super) struct PartContent {
    /// Sorted by name.
    pub(super) items: Box<[Item]>,
    /// When it was put in place, as time since boot; `None` if an earlier agent did so.
    pub(super) swapped: Option<Duration>,
}

/// The parts of a pod that its hooks select; sorted, each once. Contents share their parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Content(Box<[(PartKey, Arc<PartContent>)]>);

impl Content {
    /// This content with `parts` in place of those of the same key.
    pub(super) fn with(
        &self,
        parts: impl IntoIterator<Item = (PartKey, Arc<PartContent>)>,
    ) -> Self {
        let mut all: BTreeMap<_, _> = self.0.iter().cloned().collect();
        for (key, part) in parts {
            // The same items keep the time of their swap.
            match all.get(&key) {
                Some(known) if known.items == part.items => {}
                _ => {
                    all.insert(key, part);
                }
            }
        }
        Self(all.into_iter().collect())
    }

    /// The parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&PartKey, &Arc<PartContent>)> {
        self.0.iter().map(|(key, part)| (key, part))
    }

    pub(super) fn get(&self, key: &PartKey) -> Option<&Arc<PartContent>> {
        let found = self.0.binary_search_by(|(known, _)| known.cmp(key));
        found.ok().map(|index| &self.0[index].1)
    }

    /// Keeps the parts of these keys only.
    pub(super) fn retain(&self, mut keep: impl FnMut(&PartKey) -> bool) -> Self {
        let kept = self.0.iter().filter(|(key, _)| keep(key));
        Self(kept.cloned().collect())
    }

    /// The digest of the content that `hook` selects (rule F2).
    pub(super) fn digest(&self, hook: &PodHook, key: &DigestKey) -> ContentDigest {
        self.digester(hook, key).finish()
    }

    fn digester(&self, hook: &PodHook, key: &DigestKey) -> Digester {
        let mut digester = Digester::new(key);
        for (part, content) in self.parts() {
            for item in content
                .items
                .iter()
                .filter(|item| hook.looks_at(part, item))
            {
                match part {
                    PartKey::Volume(volume, _) => digester.file_tag(volume, &item.name, item.tag),
                    PartKey::Environment(container) => {
                        digester.variable_tag(container, &item.name, item.tag);
                    }
                }
            }
        }
        digester
    }

    /// Whether `hook` selects any of this content.
    pub(super) fn concerns(&self, hook: &PodHook) -> bool {
        self.parts().any(|(part, _)| hook.looks_at_part(part))
    }

    /// The differences from `before` that `hook` selects: paths of files and names of variables, without the
    /// directories of volumes.
    pub(super) fn changes_since(&self, before: &Self, hook: &PodHook, key: &DigestKey) -> Changes {
        let items = |content: &Self| content.digester(hook, key).finish_with_items().1;
        items(self).changes_since(&items(before))
    }

    /// The containers with variables that `hook` selects and that differ from `before`.
    pub(super) fn changed_environments(&self, before: &Self, hook: &PodHook) -> BTreeSet<SmolStr> {
        let keys = self.0.iter().chain(&before.0).map(|(key, _)| key);
        let items = |content: &Self, key: &PartKey| {
            let part = content.get(key);
            part.map_or(Vec::new(), |part| {
                let items = part.items.iter().filter(|item| hook.looks_at(key, item));
                items.cloned().collect()
            })
        };
        keys.filter(|key| items(self, key) != items(before, key))
            .filter_map(|key| match key {
                PartKey::Environment(container) => Some(container.clone()),
                PartKey::Volume(..) => None,
            })
            .collect()
    }

    /// When the last of these parts was put in place, as time since boot; `None` if that is unknown for one.
    pub(super) fn swapped<'a>(&self, parts: impl Iterator<Item = &'a PartKey>) -> Option<Duration> {
        let mut last = None;
        for key in parts {
            let part = self.get(key)?;
            last = last.max(Some(part.swapped?));
        }
        last
    }

    /// The parts that `hook` selects and in which the two differ.
    pub(super) fn changed_parts<'a>(
        &'a self,
        before: &'a Self,
        hook: &PodHook,
    ) -> Vec<&'a PartKey> {
        let differs = |key: &&PartKey| match (self.get(key), before.get(key)) {
            (Some(now), Some(before)) => now.items != before.items,
            (now, before) => now.is_some() != before.is_some(),
        };
        let keys = self.0.iter().map(|(key, _)| key);
        keys.filter(|key| hook.looks_at_part(key))
            .filter(differs)
            .collect()
    }
}
