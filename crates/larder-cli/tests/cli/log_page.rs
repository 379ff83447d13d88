//! The messages and fields of the log that `docs/operations.md` lists.

use std::{fs, path::Path};

use crate::run::{Agent, desk, pod, put};

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The first columns of the table with this heading.
fn first_column(heading: &str) -> Vec<String> {
    let page = Path::new(CRATES).join("../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once(&format!("| {heading} |")).unwrap();
    let rows = table.lines().skip(2).take_while(|row| !row.is_empty());
    // A message may have a comma, but stands alone in its cell.
    let cells = rows.flat_map(|row| row.split('|').nth(1).unwrap().split("`, `"));
    let cells = cells.map(|cell| cell.trim().trim_matches('`').to_owned());
    cells.collect()
}

/// The sources of all crates.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn listed_messages_are_logged() {
    let mut text = String::new();
    for entry in fs::read_dir(CRATES).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.exists() {
            sources(&source, &mut text);
        }
    }
    let messages = first_column("message");
    assert!(messages.len() > 10, "{messages:?}");
    for message in messages {
        assert!(text.contains(&format!("\"{message}\"")), "{message}");
    }
}

#[test]
fn fields_of_an_event_are_listed() {
    let desk = desk();
    put(&desk, "late.yaml", &pod("late", "missing"));
    let mut agent = Agent::start(&desk);
    let event = agent.event("delivery failed, will retry");
    let listed = first_column("field");
    for field in event.as_object().unwrap().keys() {
        assert!(listed.contains(field), "{field}: {event}");
    }
    assert_eq!(event["pod"], "default/late");
    assert_eq!(event["part"], "volume cfg");
}
