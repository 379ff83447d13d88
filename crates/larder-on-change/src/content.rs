//! The content that the hooks of a pod select, as tags of its bytes.
//!
//! Content is held as keyed tags, never as bytes.
//!
//! Invariant: files and variables of an object that is left out are in a [`Content`] as they were before, whatever a
//! pass brings. So they differ from no earlier content, and nothing else here knows of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use smol_str::SmolStr;

use crate::{
    changes::{Changes, VolumeChange},
    digest::{ContentDigest, ContentTag, DigestItem, DigestKey},
    left_out::{ItemObjects, LeftOut, ObjectTag},
    part::PartKey,
    pod_hooks::{PodHook, PodHooks},
};

/// One file or variable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    /// Path in the volume, or name of the variable.
    name: SmolStr,
    tag: ContentTag,
    /// Whether it is a service account token (rule F6).
    is_token: bool,
    /// The object that it is a key of.
    object: Option<ObjectTag>,
}

impl Item {
    /// What stands for its name and bytes.
    fn bytes(&self) -> (&SmolStr, ContentTag) {
        (&self.name, self.tag)
    }
}

/// The tags of those files or variables of a part that hooks select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartTags {
    /// Sorted by name.
    items: Box<[Item]>,
    /// The objects that are left out (rule F10).
    left_out: LeftOut,
}

impl PartTags {
    /// Tags files by their paths, or variables by their names; `None` if none of `hooks` selects content of the part.
    pub fn of<N: AsRef<str>, B: AsRef<[u8]>>(
        hooks: &PodHooks,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
        key: &DigestKey,
    ) -> Option<Self> {
        Self::of_items(hooks, part, items, |bytes| (key.tag(bytes.as_ref()), None))
    }

    /// As [`Self::of`], for files or variables that `tag` tags, with the objects that they come from.
    pub fn of_items<N: AsRef<str>, T>(
        hooks: &PodHooks,
        part: &PartKey,
        items: impl Iterator<Item = (N, T)>,
        tag: impl Fn(T) -> (ContentTag, Option<ObjectTag>),
    ) -> Option<Self> {
        if !hooks.selects_part(part) {
            return None;
        }
        let items = items.filter_map(|(name, content)| {
            let name = name.as_ref();
            let is_token = hooks.is_token(part, name);
            hooks.selects(part, name, is_token).then(|| {
                let (tag, object) = tag(content);
                Item {
                    name: SmolStr::new(name),
                    tag,
                    is_token,
                    object,
                }
            })
        });
        Some(Self::sorted(items.collect()))
    }

    /// The tags of one part that were taken file by file; `None` if there are none, because no hook selects it.
    pub fn joined(tags: Vec<Self>) -> Option<Self> {
        let is_some = !tags.is_empty();
        is_some.then(|| Self::sorted(tags.into_iter().flat_map(|tags| tags.items).collect()))
    }

    fn sorted(mut items: Vec<Item>) -> Self {
        items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Self {
            items: items.into(),
            left_out: LeftOut::default(),
        }
    }

    /// These tags with the objects that the files or variables come from.
    #[must_use]
    pub fn with_objects(mut self, objects: &ItemObjects<'_>) -> Self {
        for item in &mut self.items {
            item.object = (objects.of)(&item.name);
        }
        self.leaving_out(objects.left_out)
    }

    /// These tags, with the objects that are left out.
    #[must_use]
    pub fn leaving_out(mut self, objects: &LeftOut) -> Self {
        self.left_out = objects.clone();
        self
    }

    /// The objects that are left out.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// These tags, with the files and variables of objects that are left out as in `before`.
    pub(crate) fn after(&self, before: &Self) -> Self {
        if self.left_out.is_empty() {
            return self.clone();
        }
        let counts = |item: &&Item| !self.left_out.has(item.object);
        let mut items: Vec<_> = self.items.iter().filter(counts).cloned().collect();
        for known in &before.items {
            // One that is gone was of the object that it came from, another one is of the object that it comes from.
            let object = match self.item(&known.name) {
                None => known.object,
                // Of a file on disk the object is unknown. Had this one been left out before, it would be held.
                Some(now) if known.object.is_none() && before.left_out.has(now.object) => None,
                Some(now) => now.object,
            };
            if self.left_out.has(object) {
                let known = known.clone();
                items.push(Item { object, ..known });
            }
        }
        Self {
            left_out: self.left_out.clone(),
            ..Self::sorted(items)
        }
    }

    fn item(&self, name: &str) -> Option<&Item> {
        self.items
            .binary_search_by(|item| (*item.name).cmp(name))
            .ok()
            .map(|index| &self.items[index])
    }

    /// The files and variables that are held as they were, to be recorded: name, tag and object.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&str, ContentTag, ObjectTag)> {
        self.items
            .iter()
            .filter(|item| self.left_out.has(item.object))
            .filter_map(|item| Some((&*item.name, item.tag, item.object?)))
    }

    /// These tags, with the files and variables of the objects that an earlier run has left out as it has held them.
    pub(crate) fn holding(
        &self,
        left_out: &LeftOut,
        held: &BTreeMap<SmolStr, (ContentTag, ObjectTag)>,
    ) -> Self {
        let is_held = |item: &&Item| held.contains_key(&item.name);
        let others = self.items.iter().filter(|item| !is_held(item)).cloned();
        let held_items = held.iter().map(|(name, (tag, object))| Item {
            name: name.clone(),
            tag: *tag,
            is_token: false,
            object: Some(*object),
        });
        Self {
            left_out: left_out.clone(),
            ..Self::sorted(others.chain(held_items).collect())
        }
    }

    /// Whether names and bytes are the same, wherever they come from.
    fn has_same_bytes(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|tags| tags.items.iter().map(Item::bytes));
        own.eq(others)
    }

    fn selected<'a>(
        &'a self,
        part: &'a PartKey,
        hook: &'a PodHook,
    ) -> impl Iterator<Item = &'a Item> {
        self.items
            .iter()
            .filter(|item| hook.selects(part, &item.name, item.is_token))
    }
}

/// A delivered part.
#[derive(Clone, Debug)]
pub struct PartContent {
    /// Its tags.
    pub tags: PartTags,
    /// When it was put in place, as time since boot; `None` if that was before larder's first look.
    pub swapped: Option<Duration>,
}

impl PartContent {
    /// This part in place of `before`. The same bytes keep the time of their swap.
    fn after(self: Arc<Self>, before: &Arc<Self>) -> Arc<Self> {
        let tags = self.tags.after(&before.tags);
        if tags == before.tags {
            return Arc::clone(before);
        }
        let is_same = tags.has_same_bytes(&before.tags);
        let swapped = if is_same {
            before.swapped
        } else {
            self.swapped
        };
        Arc::new(Self { tags, swapped })
    }
}

/// The parts of a pod that its hooks select; sorted, each once. Contents share their parts.
#[derive(Clone, Debug, Default)]
pub struct Content(Box<[(PartKey, Arc<PartContent>)]>);

impl Content {
    /// This content with `parts` in place of those of the same key.
    #[must_use]
    pub fn with(&self, parts: impl IntoIterator<Item = (PartKey, Arc<PartContent>)>) -> Self {
        let mut all: BTreeMap<_, _> = self.0.iter().cloned().collect();
        for (key, part) in parts {
            let part = match all.get(&key) {
                Some(known) => part.after(known),
                None => part,
            };
            all.insert(key, part);
        }
        Self(all.into_iter().collect())
    }

    /// The parts of which objects are left out.
    pub(crate) fn with_left_out(&self) -> impl Iterator<Item = (&PartKey, &PartTags)> {
        self.parts()
            .map(|(key, part)| (key, &part.tags))
            .filter(|(_, tags)| !tags.left_out.is_empty())
    }

    /// The parts.
    pub fn parts(&self) -> impl Iterator<Item = (&PartKey, &Arc<PartContent>)> {
        self.0.iter().map(|(key, part)| (key, part))
    }

    /// The part of this key.
    pub fn get(&self, key: &PartKey) -> Option<&Arc<PartContent>> {
        self.0
            .binary_search_by(|(known, _)| known.cmp(key))
            .ok()
            .map(|index| &self.0[index].1)
    }

    /// Keeps the parts of these keys only.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&PartKey) -> bool) -> Self {
        let kept = self.0.iter().filter(|(key, _)| keep(key));
        Self(kept.cloned().collect())
    }

    /// The digest of the content that `hook` selects (rule F2).
    pub(crate) fn digest(&self, hook: &PodHook, key: &DigestKey) -> ContentDigest {
        // Parts and their items are in the order of their keys.
        key.digest(self.selected(hook).map(|(part, item)| {
            let (is_variable, owner) = match part {
                PartKey::Volume(volume, _) => (false, volume),
                PartKey::Environment(container) => (true, container),
            };
            DigestItem {
                is_variable,
                owner,
                name: &item.name,
                tag: item.tag,
            }
        }))
    }

    fn selected<'a>(&'a self, hook: &'a PodHook) -> impl Iterator<Item = (&'a PartKey, &'a Item)> {
        self.parts().flat_map(|(part, content)| {
            content
                .tags
                .selected(part, hook)
                .map(move |item| (part, item))
        })
    }

    /// Whether `hook` selects any of this content.
    pub(crate) fn concerns(&self, hook: &PodHook) -> bool {
        self.parts().any(|(part, _)| hook.selects_part(part))
    }

    /// The differences from `before` that `hook` selects: paths of files and names of variables, in order, without the
    /// directories of volumes.
    pub fn changes_since(&self, before: &Self, hook: &PodHook) -> Changes {
        let items = |content: &Self| -> BTreeMap<_, _> {
            let items = content.selected(hook);
            items
                .map(|(part, item)| ((part.clone(), item.name.clone()), item.tag))
                .collect()
        };
        let (now, before) = (items(self), items(before));
        let mut volumes = BTreeMap::<_, VolumeChange>::new();
        let mut variables = BTreeSet::new();
        let keys: BTreeSet<_> = now.keys().chain(before.keys()).collect();
        for key @ (part, name) in keys {
            let (now, before) = (now.get(key), before.get(key));
            if now == before {
                continue;
            }
            let PartKey::Volume(volume, _) = part else {
                variables.extend((!name.is_empty()).then(|| name.to_string()));
                continue;
            };
            let change = volumes.entry(volume).or_default();
            let paths = match (before, now) {
                (None, _) => &mut change.added,
                (_, None) => &mut change.removed,
                _ => &mut change.changed,
            };
            paths.push(name.to_string());
        }
        let named = volumes.into_iter().map(|(name, change)| VolumeChange {
            name: name.clone(),
            ..change
        });
        Changes {
            volumes: named.collect(),
            variables: variables.into_iter().collect(),
        }
    }

    /// The containers with variables that `hook` selects and that differ from `before`.
    pub fn changed_environments<'a>(
        &'a self,
        before: &'a Self,
        hook: &'a PodHook,
    ) -> BTreeSet<SmolStr> {
        let items = |content: &'a Self, key: &'a PartKey| {
            content.get(key).map_or(Vec::new(), |part| {
                part.tags.selected(key, hook).map(Item::bytes).collect()
            })
        };
        self.0
            .iter()
            .chain(&before.0)
            .map(|(key, _)| key)
            .filter(|key| items(self, key) != items(before, key))
            .filter_map(|key| match key {
                PartKey::Environment(container) => Some(container.clone()),
                PartKey::Volume(..) => None,
            })
            .collect()
    }

    /// When the last part that `hook` selects and that differs from `before` was put in place, as time since boot;
    /// `None` if that is unknown for one.
    pub fn swapped_since(&self, before: &Self, hook: &PodHook) -> Option<Duration> {
        let mut last = None;
        for (key, now) in self.parts().filter(|(key, _)| hook.selects_part(key)) {
            if before
                .get(key)
                .is_none_or(|before| !before.tags.has_same_bytes(&now.tags))
            {
                last = last.max(Some(now.swapped?));
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use larder_projection::VolumeKind;

    use super::*;
    use crate::{outline::PodOutline, parse};

    // on-change 42
    #[test]
    fn changes_are_added_changed_and_removed_names() {
        let origin = parse::HookOrigin::CommandLine;
        let hooks = parse::hooks("[{http: 80/, environment: true}]", origin, None).unwrap();
        let outline = PodOutline {
            containers: vec![crate::ContainerOutline {
                name: "web".into(),
                ..crate::ContainerOutline::default()
            }],
            ..PodOutline::default()
        };
        let hooks = PodHooks::of_command(hooks.into_iter().map(Arc::new), &outline);
        let key = DigestKey::from_bytes(&[1; 32]);
        let content = |files: &[(&str, &str, &str)], level: &str| {
            let of = |part: PartKey, items: &[(&str, &str)]| {
                let tags = PartTags::of(&hooks, &part, items.iter().copied(), &key).unwrap();
                (
                    part,
                    Arc::new(PartContent {
                        tags,
                        swapped: None,
                    }),
                )
            };
            let mut parts = vec![of(
                PartKey::Environment("web".into()),
                &[("LEVEL", level), ("SAME", "x"), ("", level)],
            )];
            for volume in ["v", "w"] {
                let own = files.iter().filter(|(owner, ..)| *owner == volume);
                let items: Vec<_> = own.map(|(_, path, text)| (*path, *text)).collect();
                parts.push(of(
                    PartKey::Volume(volume.into(), VolumeKind::ConfigMap),
                    &items,
                ));
            }
            Content::default().with(parts)
        };
        let before = content(&[("v", "a", "1"), ("v", "b", "1"), ("w", "x", "1")], "1");
        let now = content(&[("v", "b", "2"), ("v", "c", "1"), ("w", "x", "1")], "2");
        let hook = &hooks.hooks[0];
        let changes = now.changes_since(&before, hook);
        assert_eq!(changes.variables, ["LEVEL"]);
        let [volume] = changes.volumes.as_slice() else {
            panic!("one volume has changed: {changes:?}");
        };
        assert_eq!(volume.name, "v");
        assert_eq!(volume.added, ["c"]);
        assert_eq!(volume.changed, ["b"]);
        assert_eq!(volume.removed, ["a"]);
        assert_eq!(now.changes_since(&now, hook), Changes::default());
    }
}
