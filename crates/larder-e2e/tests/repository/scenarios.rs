//! Every numbered scenario of the specifications in `docs/spec` has a test that cites it.
//!
//! A test cites the scenarios that it protects in a comment of its own: `// managers 24`, `// projection 45, 48: why`,
//! `// managers 52 to 54`. Text after a colon is for readers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    path::Path,
};

/// The specifications in `docs/spec`, and the section of each that lists its scenarios.
const SPECIFICATIONS: [&str; 7] = [
    "managers",
    "projection",
    "on-change",
    "offline",
    "beside-kubelet",
    "sidecar",
    "subpath",
];

/// Numbers that no scenario has: those of section 8 of the sidecar, which is left out.
const LEFT_OUT: [(&str, &[u32]); 1] = [("sidecar", &[54, 55, 56, 57, 58])];

#[test]
fn every_scenario_has_a_test() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = String::new();
    read(crates, &mut sources);
    let mut missing = Vec::new();
    for specification in SPECIFICATIONS {
        let path = crates.join(format!("../docs/spec/{specification}.md"));
        let known = LEFT_OUT.iter().find(|(name, _)| *name == specification);
        let left_out = known.map_or(&[][..], |(_, numbers)| numbers);
        let scenarios = scenarios(&fs::read_to_string(path).unwrap(), left_out);
        let tested = tested(&sources, specification);
        let untested: Vec<_> = scenarios.difference(&tested).collect();
        // Straight to the stream, which no test runner captures.
        let line = format!(
            "{specification}: {} of {} scenarios have a test\n",
            scenarios.len() - untested.len(),
            scenarios.len()
        );
        io::stderr().write_all(line.as_bytes()).unwrap();
        if !untested.is_empty() {
            missing.push(format!("{specification}: {untested:?}"));
        }
        let unknown: Vec<_> = tested.difference(&scenarios).collect();
        assert!(
            unknown.is_empty(),
            "{specification} has no scenario {unknown:?}"
        );
    }
    assert!(missing.is_empty(), "no test cites {missing:?}");
}

#[test]
fn readme_of_each_library_has_its_line_of_cargo_toml() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for entry in fs::read_dir(crates).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
        let has = |file: &str| entry.path().join(file).exists();
        // The library of a program is for itself.
        if manifest.contains("publish = false") || !has("src/lib.rs") || has("src/main.rs") {
            continue;
        }
        let readme = fs::read_to_string(entry.path().join("README.md")).unwrap();
        let line = format!("[dependencies]\n{name} = {{ path = \"larder/crates/{name}\"");
        assert!(readme.contains(&line), "{name}/README.md lacks {line}");
    }
}

#[test]
fn scenarios_are_the_numbered_lines_of_their_section() {
    let text = "## 1. Rules\n1. no scenario\n\n## 2. Test scenarios\n\n**Part**\n1. one\n2. (U) two\n\n## 3. More\n3. none";
    assert_eq!(scenarios(text, &[]), BTreeSet::from([1, 2]));
}

#[test]
fn scenarios_of_a_running_text_are_numbered_from_one() {
    let text = "## 11. Budgets\n1. none\n\n## 12. Scenarios\n\nAgent.\n\n- **One.** 1. a → b. 2. c 7. d.\n- **Two.** 3. e";
    assert_eq!(scenarios(text, &[]), BTreeSet::from([1, 2, 3]));
    let text = text.replace(" 2. c", "");
    assert_eq!(scenarios(&text, &[2]), BTreeSet::from([1, 3]));
}

/// The numbers of the scenarios that a specification lists: the numbered lines of the section "Test scenarios", or, in
/// the section "Scenarios", the numbers from 1 on in the running text, but for those left out.
fn scenarios(specification: &str, left_out: &[u32]) -> BTreeSet<u32> {
    let running = specification.split("\n## ").find(|section| {
        let title = section.lines().next().unwrap_or_default();
        title.trim_end().ends_with(". Scenarios")
    });
    if let Some(mut rest) = running {
        let mut found = BTreeSet::new();
        for number in (1..).filter(|number| !left_out.contains(number)) {
            let mark = format!(" {number}. ");
            let Some(at) = rest.find(&mark) else { break };
            rest = &rest[at + mark.len() - 1..];
            found.insert(number);
        }
        return found;
    }
    let sections = specification.split("\n## ");
    let mut listed = sections.filter(|section| {
        section
            .lines()
            .next()
            .is_some_and(|title| title.ends_with("Test scenarios"))
    });
    let section = listed.next().expect("a section \"Test scenarios\"");
    let lines = section.lines().skip(1);
    let numbered = lines.filter_map(|line| line.split_once(". ")?.0.parse().ok());
    numbered.collect()
}

#[test]
fn numbers_end_where_the_words_begin() {
    let text = "
        // managers 1, 3: since 7 is no number here
        // managers 10 to 12, B13
        // projection 2
        // managers 14.2, 20
        let x = 1; // managers 99
        // several managers 98
    ";
    let expected = BTreeSet::from([1, 3, 10, 11, 12, 14, 20]);
    assert_eq!(tested(text, "managers"), expected);
}

/// The numbers that comments of `text` name.
fn tested(text: &str, specification: &str) -> BTreeSet<u32> {
    let mark = format!("// {specification} ");
    let mut found = BTreeSet::new();
    for list in text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(&mark))
    {
        for item in list.split(',') {
            let mut words = item.split_whitespace();
            let Some(first) = words.next().and_then(number) else {
                break;
            };
            let last = match (words.next(), words.next()) {
                (Some("to"), Some(last)) => number(last).unwrap_or(first),
                _ => first,
            };
            found.extend(first..=last);
        }
    }
    found
}

/// The scenario of `14`, of `14.2`, a case of it, and of `14:`, the last of a list.
fn number(word: &str) -> Option<u32> {
    let digits = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    word[..digits].parse().ok()
}

/// Adds the sources below `directory`, but for this one.
fn read(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with(Path::new(file!()).file_name().unwrap())
        {
            *text += &fs::read_to_string(&path).unwrap();
            *text += "\n";
        }
    }
}
