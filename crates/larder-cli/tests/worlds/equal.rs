//! Completions that are made from a difference: a value that is not known becomes what makes both sides equal.

use super::{
    completion::{Completion, Slot},
    view::{NeededVolumes, RunningPod, Seen},
};

/// The completion in which one more difference of a container is none; `None` if no value does that.
pub(super) fn with_one_less(
    from: &RunningPod<'_>,
    to: &RunningPod<'_>,
    container: &str,
    completion: &Completion,
) -> Option<Completion> {
    let before = from.see(container, NeededVolumes::OfPod)?;
    let after = to.see(container, NeededVolumes::OfPod)?;
    let pairs = pairs(&before, &after);
    let slots: Vec<_> = completion.values().collect();
    let mut both = pairs.iter().flat_map(|(from, to)| [(from, to), (to, from)]);
    both.find_map(|(one, other)| {
        let mut inside = slots.iter().filter(|(_, value)| one.contains(value));
        inside.find_map(|(slot, value)| {
            let filled = filling(one, value, other)?;
            completion.with(slot, filled)
        })
    })
    .filter(|changed| slots_of(changed) != slots_of(completion))
}

fn slots_of(completion: &Completion) -> Vec<(&Slot, &str)> {
    completion.values().collect()
}

/// The texts that differ.
fn pairs(before: &Seen<'_>, after: &Seen<'_>) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let variables = before
        .variables
        .iter()
        .filter_map(|(name, value)| Some((text(value), text(after.variables.get(name)?))));
    let files = before
        .files
        .iter()
        .filter_map(|(path, file)| Some((text(&file.data), text(&after.files.get(path)?.data))));
    let mounts = before.mounts.iter().filter_map(|(path, (_, part))| {
        let (_, other) = after.mounts.get(path)?;
        Some((part.clone(), other.clone()))
    });
    let all = variables.chain(files).chain(mounts);
    all.filter(|(from, to)| from != to).collect()
}

/// What must be in place of `value` in `text` to make it `wanted`.
fn filling<'t>(text: &str, value: &str, wanted: &'t str) -> Option<&'t str> {
    let (before, after) = text.split_once(value)?;
    let filled = wanted.strip_prefix(before)?.strip_suffix(after)?;
    (!filled.contains(value) && text.replace(value, filled) == wanted).then_some(filled)
}
