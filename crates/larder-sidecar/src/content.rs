//! The content of volumes, as hooks look at it.

use std::sync::Arc;

use larder_on_change::{ContentTag, PartContent, PartKey, PartTags, PodHooks};
use larder_projection::VolumeKind;

/// A volume with the tags of the files that hooks select.
pub(crate) type DeliveredPart = (PartKey, Arc<PartContent>);

/// The files of a volume; `None` if no hook selects it.
pub(crate) fn delivered<N: AsRef<str>>(
    volume: &str,
    hooks: &PodHooks,
    files: impl Iterator<Item = (N, ContentTag)>,
) -> Option<DeliveredPart> {
    let part = PartKey::Volume(volume.into(), VolumeKind::Projected);
    let tags = PartTags::of_items(hooks, &part, files, |tag| tag)?;
    let swapped = None;
    Some((part, Arc::new(PartContent { tags, swapped })))
}
