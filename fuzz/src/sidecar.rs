//! Variables of a sidecar, a line each, and after an empty line the annotation of an object.

use std::{collections::BTreeMap, path::Component};

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    let text = str::from_utf8(input).ok()?;
    let (variables, annotation) = text.split_once("\n\n").unwrap_or((text, ""));
    let variables: BTreeMap<_, _> = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let read = larder_cli::label_settings(|name| variables.get(name).map(ToString::to_string));
    let settings = match read {
        Ok(settings) => settings,
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                let name = mistake.split([':', ' ']).next().unwrap_or_default();
                let is_name =
                    |byte: u8| byte.is_ascii_uppercase() || b"_0123456789".contains(&byte);
                assert!(
                    name.len() > 2 && name.bytes().all(is_name),
                    "{mistake:?} names no variable"
                );
            }
            return None;
        }
    };
    let places = &settings.files;
    let folder = places.directory(None);
    assert!(folder.is_ok_and(|folder| places.contains(&folder)));
    let directory = places.directory(Some(annotation)).ok()?;
    assert!(places.contains(&directory), "{}", directory.display());
    let is_clean = |part| matches!(part, Component::RootDir | Component::Normal(_));
    assert!(
        directory.components().all(is_clean),
        "{}",
        directory.display()
    );
    Some(())
}
