//! The hooks that run because of the differences of a pod: `larder-on-change` decides it from the content of both sides,
//! as it does in an agent.

use std::{borrow::Cow, sync::Arc};

use larder_on_change::{
    Changes, Content, DigestKey, HookSources, LeftOut, ObjectTag, PartContent, PartKey, PartTags,
    PodHooks, PodOutline, parse::AllowedActions,
};
use larder_projection::{Origin, Unknown, VolumeKind};
use serde::Serialize;

use crate::rendered::RenderedPod;

/// A hook that would run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FiredHook {
    pub(super) name: String,
    pub(super) action: String,
    /// `volume cfg changed`
    pub(super) reason: String,
}

/// The hooks of `to` that select content in which the two differ.
pub(super) fn fired_hooks(from: &RenderedPod<'_>, to: &RenderedPod<'_>) -> Vec<FiredHook> {
    let sources = HookSources {
        // The limits of a node, and its own hooks, are unknown here.
        allowed: AllowedActions::default(),
        configured: &[],
        program: &[],
    };
    let hooks = sources.hooks_of(&to.pod.metadata, || PodOutline::of(to.pod), None);
    let (Some(hooks), Ok(key)) = (hooks, DigestKey::temporary()) else {
        return Vec::new();
    };
    // What containers keep fires nothing.
    let is_kept = |origin: &Origin<'_>| from.pinned(to, origin).is_some();
    let before = content(from, &hooks, &key, is_kept);
    let after = content(to, &hooks, &key, is_kept);
    // What is left out stays as it was.
    let both = parts_of(&before).filter(|(part, _)| after.get(part).is_some());
    let after = Content::default().with(both).with(parts_of(&after));
    let fired = hooks.hooks.iter().filter_map(|hook| {
        let changes = after.changes_since(&before, hook);
        (changes != Changes::default()).then(|| FiredHook {
            name: hook.hook.name.clone(),
            action: hook.action(),
            reason: changes.summary(),
        })
    });
    fired.collect()
}

/// What hooks select of the volumes and variables of a pod, without what `is_kept`.
fn content(
    pod: &RenderedPod<'_>,
    hooks: &PodHooks,
    key: &DigestKey,
    is_kept: impl Fn(&Origin<'_>) -> bool + Copy,
) -> Content {
    let tag = |(bytes, origin): (Cow<'_, [u8]>, Option<&Origin<'_>>)| {
        let object = origin.and_then(Origin::object);
        (key.tag(&bytes), object.map(ObjectTag::of))
    };
    let volumes = pod.volumes.values().filter_map(|(volume, projection)| {
        let projection = projection.as_ref().ok().filter(|_| pod.is_used(volume))?;
        let part = PartKey::Volume(volume.name.as_str().into(), VolumeKind::of(volume)?);
        // What is not known has its sources in place of its bytes.
        let files = projection
            .payload
            .iter()
            .filter(|(path, _)| !projection.origins.get(*path).is_some_and(is_kept))
            .map(|(path, file)| {
                let bytes = bytes(&file.data, file.data.unknown());
                (path.as_str(), (bytes, projection.origins.get(path)))
            });
        Some((PartTags::of_items(hooks, &part, files, tag)?, part))
    });
    let environments = pod.containers.iter().filter_map(|(container, view)| {
        let part = PartKey::Environment(container.name.into());
        let variables = view
            .as_ref()
            .ok()?
            .environment
            .iter()
            .filter(|(_, one)| !is_kept(&one.origin))
            .map(|(name, one)| {
                let bytes = bytes(&one.value, one.value.unknown());
                (name, (bytes, Some(&one.origin)))
            });
        Some((PartTags::of_items(hooks, &part, variables, tag)?, part))
    });
    let left_out: LeftOut = pod.inputs.left_out().map(ObjectTag::of).collect();
    let parts = volumes.chain(environments).map(|(tags, part)| {
        let (tags, swapped) = (tags.leaving_out(&left_out), None);
        (part, Arc::new(PartContent { tags, swapped }))
    });
    Content::default().with(parts)
}

fn parts_of(content: &Content) -> impl Iterator<Item = (PartKey, Arc<PartContent>)> {
    content
        .parts()
        .map(|(part, content)| (part.clone(), Arc::clone(content)))
}

fn bytes<'v>(known: &'v [u8], unknown: Option<&Unknown>) -> Cow<'v, [u8]> {
    match unknown {
        None => known.into(),
        Some(unknown) => unknown.text().into_bytes().into(),
    }
}
