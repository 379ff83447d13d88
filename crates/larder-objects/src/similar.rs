//! The name that a misspelled one may mean.

/// Longest name for which a similar one is looked up, in bytes. Comparing costs the product of the lengths.
const MAX_COMPARED: usize = 64;
/// Number of names that one is compared with.
const MAX_NAMES: usize = 1000;

/// The name of `known` that differs from `name` in the fewest letters, if those are at most a third. Of many names, the
/// first 1000 are compared.
pub fn most_similar<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > MAX_COMPARED {
        return None;
    }
    let lower = name.to_lowercase();
    let distance = |known: &str| strsim::osa_distance(&lower, &known.to_lowercase());
    known
        .into_iter()
        .take(MAX_NAMES)
        .filter(|known| known.len() <= MAX_COMPARED)
        .map(|known| (distance(known), known))
        .min()
        .filter(|(distance, _)| *distance <= (name.len() / 3).max(1) && *distance < name.len())
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_differ_in_few_letters() {
        let known = ["name", "image", "volumeMounts", "env", "envFrom"];
        for (name, expected) in [
            ("nam", Some("name")),
            ("evn", Some("env")),
            ("envfrom", Some("envFrom")),
            ("volumeMount", Some("volumeMounts")),
            ("volumes_mount", Some("volumeMounts")),
            ("x", None),
            ("command", None),
            (&"n".repeat(65), None),
        ] {
            assert_eq!(most_similar(name, known), expected, "{name}");
        }
    }
}
