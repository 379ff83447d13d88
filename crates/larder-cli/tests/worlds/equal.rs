//! Completions that are made from a difference: a value that is not known becomes what makes both sides equal, or an object
//! gets a key, or loses it.

use larder_projection::Origin;

use super::{completion::Completion, draw::Draw, view::Seen};

/// A completion in which one more difference of a container may be none; `None` if nothing does that.
pub(super) fn with_one_less<'w>(
    before: &Seen<'_>,
    after: &Seen<'_>,
    completion: &Completion<'w>,
    draw: &mut Draw,
) -> Option<Completion<'w>> {
    with_equal_value(before, after, completion, draw).or_else(|| {
        let mut changed = with_other_keys(before, after, completion);
        (!changed.is_empty()).then(|| changed.swap_remove(draw.index(changed.len())))
    })
}

/// The completions in which an object gets or loses a key that only one side shows.
fn with_other_keys<'w>(
    before: &Seen<'_>,
    after: &Seen<'_>,
    completion: &Completion<'w>,
) -> Vec<Completion<'w>> {
    let mut changed = Vec::new();
    for (seen, other) in [(before, after), (after, before)] {
        let variables = seen
            .compared_names(other)
            .filter(|name| other.value(name).is_none());
        let variables = variables.filter_map(|name| {
            let origin = &seen.environment.get(name)?.origin;
            (!seen.is_of_service(name)).then(|| (name, object_of(origin)))
        });
        let files = seen.files.iter();
        let files = files.filter(|(path, _)| !other.files.contains_key(*path));
        let files = files.map(|(path, file)| (&**path, file.object.map(|(_, name)| name)));
        for (name, object) in variables.chain(files) {
            // Either the object that shows it loses it, or one that the other side shows has it, too.
            for (side, has_key) in [(seen, false), (other, true)] {
                let shown = side.all_keys.iter();
                let shown = shown.filter(|(own, _)| has_key || object == Some(*own));
                let keys =
                    shown.filter_map(|(own, prefix)| Some((*own, name.strip_prefix(&**prefix)?)));
                changed.extend(keys.flat_map(|(own, key)| completion.with_key(own, key, has_key)));
            }
        }
    }
    changed
}

/// The name of the object that a variable is of.
fn object_of<'a>(origin: &Origin<'a>) -> Option<&'a str> {
    match origin {
        Origin::Key { name, .. } => Some(name),
        _ => None,
    }
}

/// The completion in which a value is what makes both sides equal. If no single value can be that, one of several is empty:
/// the next one may be.
fn with_equal_value<'w>(
    before: &Seen<'_>,
    after: &Seen<'_>,
    completion: &Completion<'w>,
    draw: &mut Draw,
) -> Option<Completion<'w>> {
    let pairs = pairs(before, after);
    let both = || pairs.iter().flat_map(|(from, to)| [(from, to), (to, from)]);
    let inside = |text: &str| -> Vec<(usize, &str)> {
        let values = completion.unique_values();
        values.filter(|(_, value)| text.contains(value)).collect()
    };
    let filled = both().find_map(|(one, other)| {
        inside(one).into_iter().find_map(|(place, value)| {
            let filled = filling(one, value, other)?;
            completion.with(place, filled)
        })
    });
    filled.or_else(|| {
        let several = both().map(|(one, _)| inside(one));
        let several = several.filter(|values| values.len() > 1).flatten();
        let emptied = several.filter_map(|(place, _)| completion.with(place, ""));
        let mut emptied: Vec<_> = emptied.collect();
        (!emptied.is_empty()).then(|| emptied.swap_remove(draw.index(emptied.len())))
    })
}

/// The texts that differ.
fn pairs(before: &Seen<'_>, after: &Seen<'_>) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let variables = before.compared_names(after);
    let variables = variables.filter_map(|name| Some((before.value(name)?, after.value(name)?)));
    let files = before.files.iter();
    let files = files.filter_map(|(path, file)| Some((file.data, after.files.get(path)?.data)));
    let contents = variables.chain(files).filter(|(from, to)| from != to);
    let contents = contents.map(|(from, to)| (text(from), text(to)));
    let mounts = before.mounts.iter().filter_map(|(path, (_, part))| {
        let (_, other) = after.mounts.get(path)?;
        (part != other).then(|| (part.clone(), other.clone()))
    });
    contents.chain(mounts).collect()
}

/// What must be in place of `value` in `text` to make it `wanted`.
fn filling<'t>(text: &str, value: &str, wanted: &'t str) -> Option<&'t str> {
    let (before, after) = text.split_once(value)?;
    let filled = wanted.strip_prefix(before)?.strip_suffix(after)?;
    (!filled.contains(value) && text.replace(value, filled) == wanted).then_some(filled)
}
