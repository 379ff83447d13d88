//! Paths without detours.

/// `path` as an absolute, clean path.
pub(crate) fn absolute(path: &str) -> String {
    clean(&format!("/{path}"))
}

/// Drops empty and `.` elements and resolves `..` by the text alone, as Go's `filepath.Clean` does.
pub(crate) fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for element in path.split('/') {
        match element {
            "" | "." => {}
            ".." if kept.last().is_some_and(|last| *last != "..") => {
                kept.pop();
            }
            ".." if is_absolute => {}
            element => kept.push(element),
        }
    }
    let joined = kept.join("/");
    match (is_absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_cleaned_by_their_text() {
        for (path, expected) in [
            ("/a//b/./c/", "/a/b/c"),
            ("/a/../../b", "/b"),
            ("/", "/"),
            ("a/..", "."),
            ("../a/../..", "../.."),
            ("", "."),
        ] {
            assert_eq!(clean(path), expected, "{path}");
        }
        assert_eq!(absolute("a/b/"), "/a/b");
    }

    proptest! {
        #[test]
        fn cleaning_twice_is_cleaning_once(path in "(/|\\.|\\.\\.|a|bc){0,12}") {
            let once = clean(&path);
            prop_assert_eq!(clean(&once), once);
        }

        #[test]
        fn cleaning_agrees_with_the_standard_library(elements in prop::collection::vec("(\\.|\\.\\.|a|bc)?", 0..8)) {
            // The naive model: walk a path, and never above the root.
            let mut model = std::path::PathBuf::from("/");
            for element in &elements {
                match element.as_str() {
                    ".." => { model.pop(); }
                    "" | "." => {}
                    element => model.push(element),
                }
            }
            prop_assert_eq!(absolute(&elements.join("/")), model.to_str().unwrap());
        }
    }
}
