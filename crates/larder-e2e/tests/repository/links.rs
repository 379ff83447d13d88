//! What documents name: links lead to files and headings that exist, and measurements have their commit.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The Markdown files of a directory.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .collect()
}

/// A page without its code blocks.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.split("```").step_by(2).collect()
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter
            .is_alphanumeric()
            .then(|| letter.to_ascii_lowercase()),
    });
    letters.collect()
}

fn has_heading(page: &Path, wanted: &str) -> bool {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
    anchors.any(|anchor| anchor == wanted)
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = ["", "docs", "docs/spec", "deploy", "monitoring", "fuzz"];
    let directories = places.map(|place| root.join(place));
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    let mut checked = 0;
    for page in directories
        .into_iter()
        .chain(crates)
        .flat_map(|place| pages(&place))
    {
        let text = prose(&page);
        let targets = text.split("](").skip(1);
        for target in targets.map(|rest| rest.split(')').next().unwrap()) {
            if target.contains(':') || target.contains(char::is_whitespace) {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let found = match path {
                "" => page.clone(),
                _ => page.parent().unwrap().join(path),
            };
            assert!(found.exists(), "{}: {target}", page.display());
            let is_there = heading.is_empty() || has_heading(&found, heading);
            assert!(is_there, "{}: {target}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// Whether a text has the abbreviated name of a commit, as code.
fn names_commit(text: &str) -> bool {
    let is_name =
        |code: &&str| code.len() == 8 && code.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split('`').any(|code| is_name(&code))
}

#[test]
fn measurements_name_their_commit() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in ["BENCHMARKS.md", "README.md"] {
        let text = prose(&root.join(page));
        let sections = text.split("\n## ").skip(1);
        // Their columns are numbers.
        let tables = sections.filter(|section| section.contains("--: |"));
        let mut checked = 0;
        for section in tables {
            let heading = section.lines().next().unwrap();
            assert!(names_commit(section), "{page}: {heading}");
            checked += 1;
        }
        assert!(checked > 0, "{page}");
    }
}
