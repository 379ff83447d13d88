//! Mounts that differ, as parts of a container.

use larder_projection::{Mount, Unknown};

use super::{
    edits::Edit,
    outcome::{DiffPart, Effect},
};
use crate::rendered::ShownMount;

/// Whether two mounts are the same, and made of the same.
pub(super) fn is_same_mount(from: &ShownMount<'_>, to: &ShownMount<'_>) -> bool {
    match (from, to) {
        (ShownMount::Own(from), ShownMount::Own(to)) => {
            without_sub_path(from) == without_sub_path(to) && sub_path(from) == sub_path(to)
        }
        (ShownMount::Token(from), ShownMount::Token(to)) => from == to,
        _ => false,
    }
}

/// A mount that differs. Parts of the same volume are the same if their paths are.
pub(super) fn mount_part<'p, 'r>(edit: &Edit<ShownMount<'r>>) -> DiffPart<'p, 'r> {
    if let Edit::Changed(ShownMount::Own(from), ShownMount::Own(to)) = edit
        && without_sub_path(from) == without_sub_path(to)
        && let (Some(from), Some(to)) = (sub_path(from), sub_path(to))
    {
        return DiffPart::SubPath(Box::new([from, to]));
    }
    DiffPart::Different(Effect::Restart)
}

/// The part of the volume that is mounted; `None` for the whole.
fn sub_path(mount: &Mount<'_>) -> Option<Unknown> {
    let known = mount.sub_path.as_deref();
    let known = known.map(|path| Unknown::of_text(path.as_bytes()));
    mount.unknown_sub_path.clone().or(known)
}

/// The part of the volume that is mounted; empty for the whole.
pub(super) fn mounted_part(mount: &Mount<'_>) -> Unknown {
    sub_path(mount).unwrap_or_else(|| Unknown::of_text(b""))
}

/// A mount without its place in the list, and without what selects a part of the volume.
fn without_sub_path<'r>(mount: &Mount<'r>) -> Mount<'r> {
    let mut whole = mount.clone();
    whole.index = 0;
    whole.sub_path = None;
    whole.unknown_sub_path = None;
    whole.needs.clear();
    whole.secret_sub_path = false;
    whole
}
