//! Patterns of paths in volumes.

use std::hash::{Hash, Hasher};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns of paths: `*` and `?` stay within a directory, `**` crosses directories. Without patterns every path
/// matches.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    patterns: Vec<String>,
    set: GlobSet,
}

impl Paths {
    /// The paths that one of the patterns matches; `None` if a pattern is malformed.
    pub fn new(patterns: Vec<String>) -> Option<Self> {
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            let glob = GlobBuilder::new(pattern).literal_separator(true).build();
            set.add(glob.ok()?);
        }
        let set = set.build().ok()?;
        Some(Self { patterns, set })
    }

    /// Whether a pattern matches the path, or there is none.
    pub fn contains(&self, path: &str) -> bool {
        self.patterns.is_empty() || self.set.is_match(path)
    }

    /// Whether one of the patterns is this text.
    pub(crate) fn has_text(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern == path)
    }

    /// Whether a pattern other than a catch-all matches the path.
    pub(super) fn names(&self, path: &str) -> bool {
        let named = |index: usize| !matches!(self.patterns[index].as_str(), "*" | "**" | "**/*");
        self.set.matches(path).into_iter().any(named)
    }
}

impl PartialEq for Paths {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Paths {}

impl Hash for Paths {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.patterns.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(patterns: &[&str]) -> Paths {
        Paths::new(patterns.iter().map(ToString::to_string).collect()).unwrap()
    }

    // on-change 17
    #[test]
    fn patterns_stay_within_a_directory_unless_doubled() {
        assert!(paths(&[]).contains("a/b.conf"));
        assert!(paths(&["*.conf"]).contains("b.conf"));
        assert!(!paths(&["*.conf"]).contains("a.txt"));
        assert!(!paths(&["*.conf"]).contains("a/b.conf"));
        assert!(paths(&["**/*.conf"]).contains("a/b.conf"));
        assert!(paths(&["conf.d/**"]).contains("conf.d/x/y"));
        assert!(paths(&["a?.conf"]).contains("ab.conf"));
        assert!(Paths::new(vec!["[".into()]).is_none());
    }

    // on-change 18
    #[test]
    fn tokens_count_only_when_a_pattern_names_them() {
        assert!(!paths(&[]).names("token"));
        assert!(!paths(&["**"]).names("token"));
        assert!(paths(&["tok*"]).names("token"));
    }
}
