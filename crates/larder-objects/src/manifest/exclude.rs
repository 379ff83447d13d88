//! Files and directories that are not read, by patterns.
//!
//! A pattern is relative to the directory that is read: `*` and `?` stay within a directory, `**` crosses directories. As
//! in a `.gitignore`, one without a slash before its end is the name of a file or directory at any depth, and a directory
//! that matches is left out with all that is in it.

use std::{path::Path, str::FromStr};

use globset::{Error, GlobBuilder, GlobSet, GlobSetBuilder};

/// A pattern of files and directories that are not read.
#[derive(Clone, Debug)]
pub struct Exclusion(GlobSet);

impl Exclusion {
    /// Whether it matches `path`, which is relative to the directory that is read, and around which no directory matches.
    pub(super) fn matches(&self, path: &Path) -> bool {
        self.0.is_match(path)
    }
}

impl FromStr for Exclusion {
    type Err = InvalidExclusion;

    fn from_str(pattern: &str) -> Result<Self, InvalidExclusion> {
        let path = pattern.trim_end_matches('/');
        if matches!(path, "" | ".") {
            return Err(InvalidExclusion::Empty);
        }
        let in_root = path.strip_prefix("./").or(path.strip_prefix('/'));
        let glob = match in_root {
            Some(path) => path.to_owned(),
            None if path.contains('/') => path.to_owned(),
            None => format!("**/{path}"),
        };
        let malformed = |error: Error| InvalidExclusion::Malformed {
            why: error.kind().to_string(),
        };
        let glob = GlobBuilder::new(&glob).literal_separator(true).build();
        let set = GlobSetBuilder::new().add(glob.map_err(malformed)?).build();
        Ok(Self(set.map_err(malformed)?))
    }
}

/// Why a pattern is malformed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidExclusion {
    /// It names nothing in the directory.
    #[error("expected a pattern of files, such as 'flux-system/**'")]
    Empty,
    /// It has no meaning.
    #[error("{why}")]
    Malformed {
        /// What is wrong with it.
        why: String,
    },
}

/// The outermost part of `path` that is left out; `path` is relative to the directory that is read.
pub(super) fn outermost<'p>(exclusions: &[Exclusion], path: &'p Path) -> Option<&'p Path> {
    path.ancestors()
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .find(|part| exclusions.iter().any(|one| one.matches(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, path: &str, expected: Option<&str>) {
        let exclusions = [pattern.parse().unwrap()];
        let found = outermost(&exclusions, Path::new(path));
        assert_eq!(found, expected.map(Path::new), "{pattern} {path}");
    }

    #[test]
    fn name_is_excluded_at_any_depth_with_all_that_is_in_it() {
        for pattern in ["flux-system", "flux-system/", "flux-*"] {
            check(pattern, "flux-system", Some("flux-system"));
            check(pattern, "a/flux-system/b/c.yaml", Some("a/flux-system"));
            check(pattern, "a/b.yaml", None);
        }
        check("*.enc.yaml", "a/b.enc.yaml", Some("a/b.enc.yaml"));
        check("*.enc.yaml", "a.enc.yaml", Some("a.enc.yaml"));
    }

    #[test]
    fn path_is_relative_to_the_directory() {
        for pattern in ["a/flux/*", "/a/flux/*", "./a/flux/*", "a/flux/**"] {
            check(pattern, "a/flux/b/c.yaml", Some("a/flux/b"));
            check(pattern, "a/flux/c.yaml", Some("a/flux/c.yaml"));
            check(pattern, "b/a/flux/c.yaml", None);
        }
        for pattern in ["/a.yaml", "./a.yaml"] {
            check(pattern, "a.yaml", Some("a.yaml"));
            check(pattern, "b/a.yaml", None);
        }
        check("**/gen/*.yaml", "a/b/gen/c.yaml", Some("a/b/gen/c.yaml"));
        check("*/c.yaml", "a/b/c.yaml", None);
    }

    #[test]
    fn malformed_pattern_is_an_error_that_says_why() {
        let error = |pattern: &str| pattern.parse::<Exclusion>().unwrap_err().to_string();
        assert_eq!(error("a["), "unclosed character class; missing ']'");
        for empty in ["", "/", "./"] {
            assert!(error(empty).starts_with("expected a pattern"), "{empty}");
        }
    }
}
