//! The tags that a pass over a pod hands over to its hooks, taken when a part is in place.
//!
//! Runs on the thread that writes the pod's files, before and after the swap of each part.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use larder_on_change::DigestKey;
use larder_pods::StoredPod;
use larder_projection::{Payload, VolumeKind};
use rustix::time::{ClockId, clock_gettime};
use smol_str::SmolStr;

use super::{
    OnChange,
    content::{Content, Item, PartContent, PartKey},
    pod_hooks::PodHooks,
    record::Record,
};

/// The state that earlier runs left of a pod, read before the first pass with its hooks.
#[derive(Debug)]
pub(super) struct Past {
    /// The parts on disk.
    pub(super) content: Content,
    /// `None` if there is none that can be read.
    pub(super) record: Option<Record>,
}

/// Follows one pass over a pod with hooks.
pub(crate) struct Observer {
    on_change: OnChange,
    pod: Arc<StoredPod>,
    hooks: Arc<PodHooks>,
    /// Whether the hooks are new to the worker, so that the known content of the pod may lack parts that they select.
    is_new: bool,
    past: Option<Past>,
    known: Arc<Content>,
    tokens: TokenPaths,
    parts: Vec<(PartKey, Arc<PartContent>)>,
}

impl Observer {
    pub(super) fn new(
        on_change: OnChange,
        pod: Arc<StoredPod>,
        hooks: Arc<PodHooks>,
        is_new: bool,
    ) -> Self {
        Self {
            on_change,
            pod,
            hooks,
            is_new,
            past: None,
            known: Arc::default(),
            tokens: TokenPaths::default(),
            parts: Vec::new(),
        }
    }

    /// Before the pass: reads the files of `parts` on disk, if the hooks are new.
    pub(crate) fn begin(&mut self, pod: &Pod, parts: impl Iterator<Item = PartKey>) {
        self.tokens = TokenPaths::of(pod);
        if !self.is_new {
            self.known = self.on_change.content_of(self.uid());
            return;
        }
        let key = self.on_change.key();
        let host = self.on_change.host();
        let uid = self.uid().to_owned();
        let mut on_disk = Vec::new();
        for part in parts.filter(|part| self.hooks.look_at_part(part)) {
            let mut items = Vec::new();
            let is_there = match &part {
                PartKey::Volume(name, kind) => host.read_set(&uid, *kind, name, |path, bytes| {
                    items.extend(self.item(&part, path, bytes, &key));
                }),
                PartKey::Environment(container) => {
                    let variables = host.read_back_environment(&uid, container);
                    for (name, value) in variables.iter().flatten() {
                        items.extend(self.item(&part, name, value, &key));
                    }
                    variables.is_some()
                }
            };
            if is_there {
                on_disk.push((part, content(items, None)));
            }
        }
        let content = Content::default().with(on_disk);
        let mut record = self.on_change.read_record(&uid);
        if let Some(record) = &mut record
            && record.resolve(&self.hooks, &content, &key)
        {
            self.on_change.replace_earlier_record(&uid, record);
        }
        self.past = Some(Past { content, record });
    }

    /// A volume is about to be written.
    pub(crate) fn before_volume(&self, name: &str, kind: VolumeKind, payload: &Payload<'_>) {
        let part = PartKey::Volume(name.into(), kind);
        self.announce(&part, || self.files(&part, payload));
    }

    /// A volume is in place.
    pub(crate) fn volume(
        &mut self,
        name: &str,
        kind: VolumeKind,
        payload: &Payload<'_>,
        swapped: bool,
    ) {
        let part = PartKey::Volume(name.into(), kind);
        if !self.wants(&part, swapped) {
            return;
        }
        let content = content(self.files(&part, payload), swapped.then(since_boot));
        self.parts.push((part, content));
    }

    /// The variables of a container are about to be written.
    pub(crate) fn before_environment(&self, container: &str, variables: &BTreeMap<&str, &[u8]>) {
        let part = PartKey::Environment(container.into());
        self.announce(&part, || self.variables(&part, variables));
    }

    /// The variables of a container are in place.
    pub(crate) fn environment(
        &mut self,
        container: &str,
        variables: &BTreeMap<&str, &[u8]>,
        swapped: bool,
    ) {
        let part = PartKey::Environment(container.into());
        if !self.wants(&part, swapped) {
            return;
        }
        let content = content(self.variables(&part, variables), swapped.then(since_boot));
        self.parts.push((part, content));
    }

    /// After the pass over `decoded`: every part that was due is in place, or has failed (rule F1).
    pub(crate) fn finish(self, decoded: &Pod) {
        let Self {
            on_change,
            pod,
            hooks,
            past,
            parts,
            ..
        } = self;
        on_change.passed(&pod, Some(decoded), hooks, past, parts);
    }

    fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Whether a hook selects content of the part.
    fn wants(&self, part: &PartKey, swapped: bool) -> bool {
        let is_known = !self.is_new && self.known.get(part).is_some();
        (swapped || !is_known) && self.hooks.look_at_part(part)
    }

    /// Records that a part is about to change, if an attempt may begin with this pass, or if the next agent could not find
    /// the change (rule P4).
    fn announce(&self, part: &PartKey, items: impl FnOnce() -> Vec<Item>) {
        let is_needed = if self.on_change.keeps_key() {
            // No attempt begins with the first pass after a restart (rule P6).
            self.past.is_none() && self.hooks.fire_at_once(part)
        } else {
            self.hooks.look_at_part(part)
        };
        if !is_needed {
            return;
        }
        let before = self
            .past
            .as_ref()
            .map_or(&*self.known, |past| &past.content);
        let differs = match before.get(part) {
            Some(before) => before.items != content(items(), None).items,
            // A first delivery, unless the part was on disk and has not been written by this agent yet.
            None => self.past.is_none(),
        };
        if differs {
            let record = self.past.as_ref().and_then(|past| past.record.as_ref());
            self.on_change.announce_change(self.uid(), record);
        }
    }

    fn files(&self, part: &PartKey, payload: &Payload<'_>) -> Vec<Item> {
        let key = self.on_change.key();
        let files = payload.iter();
        let items =
            files.filter_map(|(path, file)| self.item(part, path.as_str(), &file.data, &key));
        items.collect()
    }

    fn variables(&self, part: &PartKey, variables: &BTreeMap<&str, &[u8]>) -> Vec<Item> {
        let key = self.on_change.key();
        let variables = variables.iter();
        let items = variables.filter_map(|(name, value)| self.item(part, name, value, &key));
        items.collect()
    }

    /// The item, if a hook selects it.
    fn item(&self, part: &PartKey, name: &str, bytes: &[u8], key: &DigestKey) -> Option<Item> {
        item(&self.hooks, &self.tokens, part, name, bytes, key)
    }
}

/// The item of `part`, if one of `hooks` looks at it.
pub(super) fn item(
    hooks: &PodHooks,
    tokens: &TokenPaths,
    part: &PartKey,
    name: &str,
    bytes: &[u8],
    key: &DigestKey,
) -> Option<Item> {
    let item = Item {
        name: SmolStr::new(name),
        tag: key.tag(bytes),
        is_token: tokens.contains(part, name),
    };
    hooks.look_at(part, &item).then_some(item)
}

fn content(mut items: Vec<Item>, swapped: Option<Duration>) -> Arc<PartContent> {
    items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Arc::new(PartContent {
        items: items.into(),
        swapped,
    })
}

/// The time since the machine booted, as the start times of processes are counted.
pub(super) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// Volume and path of each service account token of a pod.
#[derive(Debug, Default)]
pub(super) struct TokenPaths(BTreeSet<(SmolStr, SmolStr)>);

impl TokenPaths {
    pub(super) fn of(pod: &Pod) -> Self {
        let spec = pod.spec.iter();
        let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
        let mut tokens = BTreeSet::new();
        for volume in volumes {
            let projected = volume.projected.iter();
            let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
            for token in sources.filter_map(|source| source.service_account_token.as_ref()) {
                if let Ok(path) = larder_projection::VolumePath::parse(&token.path) {
                    tokens.insert((volume.name.as_str().into(), path.as_str().into()));
                }
            }
        }
        Self(tokens)
    }

    fn contains(&self, part: &PartKey, path: &str) -> bool {
        match part {
            PartKey::Volume(volume, VolumeKind::Projected) => {
                self.0.contains(&(volume.clone(), path.into()))
            }
            PartKey::Volume(..) | PartKey::Environment(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
