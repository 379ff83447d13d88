//! What depends on what: files of a crate, and the faults that only tests inject. What the types of a crate are called.
//!
//! No file imports one that imports it, directly or through others, in any crate of the workspace. No two types of a
//! crate have one name, so that a name says what it means without a look at the imports.
//!
//! What a module takes from its own children is left out, for a module is made of them; so are unit tests, which may
//! name what they like. The sources are read as text: an import that a macro writes is missed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    iter::Peekable,
    path::{Path, PathBuf},
};

/// The path of a module from the root of its crate; empty for the root.
type Module = Vec<String>;

#[test]
fn no_files_import_each_other() {
    let mut found = BTreeMap::new();
    for root in crates() {
        let mut sources = BTreeMap::new();
        read(&root.join("src"), &[], &mut sources);
        let circles = in_circles(imports(&sources));
        if !circles.is_empty() {
            found.insert(root, circles);
        }
    }
    assert!(found.is_empty(), "files in circles of imports: {found:#?}");
}

#[test]
fn type_names_occur_once_in_a_crate() {
    let mut found = Vec::new();
    for root in crates() {
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for path in files_below(&root.join("src")) {
            let text = fs::read_to_string(&path).unwrap();
            for name in text.lines().filter_map(defined_type) {
                places
                    .entry(name.to_owned())
                    .or_default()
                    .push(path.clone());
            }
        }
        found.extend(places.into_iter().filter(|(_, places)| places.len() > 1));
    }
    assert!(found.is_empty(), "one name of several types: {found:#?}");
}

#[test]
fn a_type_is_defined_by_its_keyword_and_no_associated_type_is_one() {
    let defined = |line, name| assert_eq!(defined_type(line), name, "{line}");
    defined("pub(crate) struct Name<'a> {", Some("Name"));
    defined("        enum Name {", Some("Name"));
    defined("pub trait Name: Send {", Some("Name"));
    defined("type Name = Vec<u8>;", Some("Name"));
    defined("    type Name = Vec<u8>;", None);
    defined("// struct Name", None);
    defined("    structure: Name,", None);
}

#[test]
fn only_tests_enable_faults() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut enabling = 0;
    for root in fs::read_dir(crates).unwrap() {
        let root = root.unwrap().path();
        if root.ends_with("larder-e2e") {
            continue;
        }
        let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            if line.contains("faults\"") || line.starts_with("larder-e2e") {
                assert_eq!(section, "[dev-dependencies]", "{}: {line}", root.display());
                enabling += 1;
            }
        }
    }
    assert!(enabling > 0);
}

#[test]
fn imports_of_parents_and_siblings_count_and_those_of_children_do_not() {
    let sources = BTreeMap::from([
        (module(""), "use crate::a::Thing;".to_owned()),
        (module("a"), "use self::b::{c, d}; use crate::e;".to_owned()),
        (
            module("a::b"),
            "use super::{X, b::c as d, f::{G}};".to_owned(),
        ),
        (
            module("a::f"),
            "pub(super) struct G(crate::a::b::Y);".to_owned(),
        ),
        (module("e"), "fn f() { super::a::b::g() }".to_owned()),
    ]);
    let circles = in_circles(imports(&sources));
    let expected = ["a", "a::b", "a::f", "e"].map(module);
    assert_eq!(circles, BTreeSet::from(expected));
}

fn module(path: &str) -> Module {
    let names = path.split("::").filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// The directories of all crates.
fn crates() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = fs::read_dir(workspace.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    crates.chain([workspace.join("fuzz")]).collect()
}

/// The files of Rust below `directory`, with those of unit tests.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The type that `line` begins to define. An associated type is named by its trait.
fn defined_type(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(item) => item.split_once(' ')?.1,
        None => item,
    };
    let (keyword, rest) = item.split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "union" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|next: char| !next.is_alphanumeric() && next != '_');
    is_type.then(|| &rest[..end.unwrap_or(rest.len())])
}

/// Adds the code below `directory`, without comments and unit tests, by its module.
fn read(directory: &Path, parent: &[String], sources: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" || name == "testing" {
            continue;
        }
        let is_root = parent.is_empty() && (name == "lib" || name == "main");
        let module = if is_root {
            Vec::new()
        } else {
            [parent, &[name]].concat()
        };
        if path.is_dir() {
            read(&path, &module, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap().lines();
            let code = code.filter(|line| !line.trim_start().starts_with("//"));
            sources.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The modules that each module names, but for its children.
fn imports(sources: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let of = |module: &Module, text: &str| {
        let mut named = BTreeSet::new();
        for path in paths(text) {
            let mut path = absolute(module, &path);
            while !path.is_empty() && !sources.contains_key(&path) {
                path.pop();
            }
            // The root stands for the items that `lib.rs` re-exports.
            if !path.is_empty() && !path.starts_with(module) {
                named.insert(path);
            }
        }
        named
    };
    let modules = sources.iter();
    modules
        .map(|(module, text)| (module.clone(), of(module, text)))
        .collect()
}

/// Every path in `text` that begins with `crate`, `self` or `super`, with braces expanded.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && !"_:".contains(before) {
                expand("", &mut text[at..].chars().peekable(), &mut found);
            }
        }
    }
    found
}

/// Reads one path, or one tree of a `use`, that goes on from `prefix`.
fn expand(prefix: &str, text: &mut Peekable<impl Iterator<Item = char>>, found: &mut Vec<Module>) {
    let mut path = prefix.to_owned();
    while let Some(next) = text.next_if(|next| next.is_alphanumeric() || "_:".contains(*next)) {
        path.push(next);
    }
    if text.next_if_eq(&'{').is_none() {
        found.push(module(&path));
        return;
    }
    loop {
        while text
            .next_if(|next| next.is_whitespace() || *next == ',')
            .is_some()
        {}
        if text.peek().is_none() || text.next_if_eq(&'}').is_some() {
            return;
        }
        expand(&path, text, found);
        // A renamed import.
        while text.next_if(|next| !",}".contains(*next)).is_some() {}
    }
}

/// `path` in `module`, from the root.
fn absolute(module: &[String], path: &[String]) -> Module {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (base, skipped) = match path[0].as_str() {
        "crate" => (&[][..], 1),
        "self" => (module, 1),
        _ => (&module[..module.len().saturating_sub(ups)], ups),
    };
    [base, &path[skipped..]].concat()
}

/// The modules that lead back to themselves.
fn in_circles(imports: BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let leads_back = |start: &&Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![*start]);
        while let Some(module) = next.pop() {
            for named in &imports[module] {
                if seen.insert(named) {
                    next.push(named);
                }
            }
        }
        seen.contains(*start)
    };
    imports.keys().filter(leads_back).cloned().collect()
}
