//! Follows a pass over a pod with hooks: hands over the tags of each part after its swap.
//!
//! Runs on the thread that writes the pod's files, before and after the swap of each part.

use std::{sync::Arc, time::Duration};

use larder_on_change::{Content, ItemObjects, PartContent, PartKey, PartTags, PodHooks};
use larder_pods::StoredPod;
use rustix::time::{ClockId, clock_gettime};

use super::OnChange;

/// Follows one pass over a pod with hooks.
#[expect(missing_debug_implementations, reason = "it holds what hooks share")]
pub struct Observer {
    on_change: OnChange,
    pod: Arc<StoredPod>,
    hooks: Arc<PodHooks>,
    /// Whether the hooks are new to the worker, so that the schedule does not know them.
    is_new: bool,
    delivered: Arc<Content>,
    parts: Vec<(PartKey, Arc<PartContent>)>,
}

impl OnChange {
    /// Follows a pass over `pod`. The hooks are new to the worker if `is_new`.
    pub fn observer(&self, pod: &Arc<StoredPod>, hooks: &Arc<PodHooks>, is_new: bool) -> Observer {
        Observer {
            on_change: self.clone(),
            pod: Arc::clone(pod),
            hooks: Arc::clone(hooks),
            is_new,
            delivered: Arc::default(),
            parts: Vec::new(),
        }
    }
}

impl Observer {
    /// Before the pass: reads the files of `parts` on disk, if the hooks are new.
    pub fn begin(&mut self, parts: impl Iterator<Item = PartKey>) {
        if self.is_new {
            let on_disk = parts.filter_map(|part| Some((part.clone(), self.on_disk(&part)?)));
            self.on_change.adopt(&self.pod, &self.hooks, on_disk);
        }
        self.delivered = self.on_change.schedule().delivered(self.uid());
    }

    /// The content that earlier runs left of a part.
    fn on_disk(&self, part: &PartKey) -> Option<Arc<PartContent>> {
        let (host, uid) = (&self.on_change.node().host, self.uid());
        let mut tags = Vec::from_iter(self.tags(part, std::iter::empty::<(&str, &[u8])>()));
        let mut add = |name: &str, bytes: &[u8]| {
            tags.extend(self.tags(part, std::iter::once((name, bytes))));
        };
        match part {
            PartKey::Volume(name, kind) => {
                host.read_set(uid, *kind, name, add)?;
            }
            PartKey::Environment(container) => {
                for (name, value) in host.read_back_environment(uid, container)? {
                    add(&name, &value);
                }
            }
        }
        Some(content(PartTags::joined(tags)?, None))
    }

    /// After the pass: every part that was due is in place, or has failed (rule F1).
    pub fn finish(mut self) {
        let parts = std::mem::take(&mut self.parts);
        self.on_change.passed(self.uid(), parts);
    }

    /// Files or variables of a part are about to be written.
    pub fn announce<N: AsRef<str>, B: AsRef<[u8]>>(
        &self,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
        objects: &ItemObjects<'_>,
    ) {
        if self.on_change.key().ends_with_agent()
            && let Some(tags) = self.tags(part, items)
        {
            let tags = tags.with_objects(objects);
            self.on_change.announce(self.uid(), part, &tags);
        }
    }

    /// Files or variables of a part are in place.
    pub fn add<N: AsRef<str>, B: AsRef<[u8]>>(
        &mut self,
        part: PartKey,
        items: impl Iterator<Item = (N, B)>,
        objects: &ItemObjects<'_>,
        swapped: bool,
    ) {
        let is_known = self
            .delivered
            .get(&part)
            .is_some_and(|known| known.tags.left_out() == objects.left_out);
        if (swapped || !is_known)
            && let Some(tags) = self.tags(&part, items)
        {
            let swapped = swapped.then(since_boot);
            let tags = tags.with_objects(objects);
            self.parts.push((part, content(tags, swapped)));
        }
    }

    fn tags<N: AsRef<str>, B: AsRef<[u8]>>(
        &self,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
    ) -> Option<PartTags> {
        PartTags::of(&self.hooks, part, items, self.on_change.key())
    }

    fn uid(&self) -> &str {
        self.pod.uid()
    }
}

fn content(tags: PartTags, swapped: Option<Duration>) -> Arc<PartContent> {
    Arc::new(PartContent { tags, swapped })
}

/// The time since the machine booted, as the start times of processes are counted.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

#[cfg(test)]
mod tests;
