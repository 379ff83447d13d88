//! Every numbered scenario of the two behaviour specifications has a test that says so.
//!
//! A test names the scenarios that it protects in a comment of its own: `// managers 24`, `// projection 45, 48: why`,
//! `// managers 52 to 54`. What stands behind the numbers is for readers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    ops::RangeInclusive,
    path::Path,
};

/// The specifications with the numbers of their scenarios.
const SCENARIOS: [(&str, RangeInclusive<u32>); 2] = [("managers", 1..=82), ("projection", 1..=74)];

#[test]
fn every_scenario_has_a_test() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    read(crates, &mut text);
    let mut report = Vec::new();
    for (specification, numbers) in SCENARIOS {
        let tested = tested(&text, specification);
        let lacking: Vec<_> = numbers.clone().filter(|n| !tested.contains(n)).collect();
        // Straight to the stream, which no test runner holds back.
        let line = format!(
            "{specification}: {} of {} scenarios have a test\n",
            numbers.clone().count() - lacking.len(),
            numbers.count()
        );
        io::stderr().write_all(line.as_bytes()).unwrap();
        if !lacking.is_empty() {
            report.push((specification, lacking));
        }
    }
    assert!(report.is_empty(), "no test names {report:?}");
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
