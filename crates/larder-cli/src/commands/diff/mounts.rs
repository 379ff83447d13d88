//! Mounts that differ, as parts of a container.

use larder_projection::{Mount, Unknown};

use super::{
    edits::Edit,
    outcome::{DiffPart, Effect},
};
use crate::rendered::{ShownMount, path_in_volume};

/// Whether two mounts are the same, and made of the same.
pub(super) fn is_same_mount(from: &ShownMount<'_>, to: &ShownMount<'_>) -> bool {
    match (from, to) {
        (ShownMount::Own(from), ShownMount::Own(to)) => {
            is_same_place(from, to) && sub_path(from) == sub_path(to)
        }
        (ShownMount::Token(from), ShownMount::Token(to)) => from == to,
        _ => false,
    }
}

/// A mount that differs. Parts of the same volume are the same if their paths are.
pub(super) fn mount_part<'p, 'r>(edit: &Edit<ShownMount<'r>>) -> DiffPart<'p, 'r> {
    if let Edit::Changed(ShownMount::Own(from), ShownMount::Own(to)) = edit
        && is_same_place(from, to)
        && let (Some(from), Some(to)) = (sub_path(from), sub_path(to))
    {
        return DiffPart::SubPath(Box::new([from, to]));
    }
    DiffPart::Different(Effect::Restart)
}

/// The part of the volume that is mounted; `None` for the whole.
fn sub_path(mount: &Mount<'_>) -> Option<Unknown> {
    let known = mount.sub_path.as_deref().map(|path| match mount.kind {
        Some(_) => Unknown::of_text(path_in_volume(path).as_bytes()),
        None => Unknown::of_text(path.as_bytes()),
    });
    mount.unknown_sub_path.clone().or(known)
}

/// The part of the volume that is mounted; empty for the whole.
pub(super) fn mounted_part(mount: &Mount<'_>) -> Unknown {
    sub_path(mount).unwrap_or_else(|| Unknown::of_text(b""))
}

/// Whether two mounts are the same but for the part of the volume. Of volumes that are filled from objects, a container
/// sees the files, not how they are defined.
fn is_same_place(from: &Mount<'_>, to: &Mount<'_>) -> bool {
    let is_same_volume = if is_filled(from, to) {
        from.volume.name == to.volume.name
    } else {
        from.volume == to.volume
    };
    let options = |mount: &Mount<'_>| {
        let is_read_only = (mount.read_only, mount.recursive_read_only);
        (is_read_only, mount.propagation, mount.options)
    };
    is_same_volume && from.mount_path == to.mount_path && options(from) == options(to)
}

/// Whether a pod that runs has a volume that is filled otherwise: it keeps what it has of it.
pub(super) fn is_filled_otherwise(from: &Mount<'_>, to: &Mount<'_>) -> bool {
    is_filled(from, to) && from.volume != to.volume
}

fn is_filled(from: &Mount<'_>, to: &Mount<'_>) -> bool {
    from.kind.is_some() && to.kind.is_some()
}
