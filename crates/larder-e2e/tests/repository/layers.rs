//! The tables of crates in the documents: each crate depends only on those above it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{fs, path::Path};

/// The crates of the first table of `page`, in its order.
fn table(page: &str) -> Vec<&str> {
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| crate "));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.filter_map(|row| row.split('`').nth(1)).collect()
}

/// The crates of this workspace that this one depends on, but for its tests.
fn dependencies(cargo_toml: &str) -> impl Iterator<Item = &str> {
    let (_, section) = cargo_toml.split_once("\n[dependencies]\n").unwrap();
    let section = section.split("\n[").next().unwrap();
    let names = section
        .lines()
        .filter_map(|line| line.split([' ', '.', '=']).next());
    names.filter(|name| name.starts_with("larder"))
}

#[test]
fn crates_depend_only_on_those_above_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in ["ARCHITECTURE.md", "docs/library.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let crates = table(&text);
        assert!(crates.len() > 15, "{page}: {crates:?}");
        for (place, name) in crates.iter().enumerate() {
            let path = root.join("crates").join(name).join("Cargo.toml");
            let cargo_toml = fs::read_to_string(path).unwrap();
            for dependency in dependencies(&cargo_toml) {
                let is_above = crates[..place].contains(&dependency);
                assert!(is_above, "{page}: {name} is not below {dependency}");
            }
        }
    }
}
