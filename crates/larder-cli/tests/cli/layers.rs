//! The modules of the command form layers: a lower module never names a higher one, so no files import each other in a
//! circle.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The layers of `src/main.rs`, lowest first.
const LAYERS: [&[&str]; 5] = [
    &["args", "outcome"],
    &["output"],
    &[
        "agent", "input", "logging", "offline", "rendered", "sandbox",
    ],
    &["commands"],
    &[""],
];

/// A module's path without `crate`, such as `commands::exec`; empty for the root.
type ModulePath = String;

/// The modules that each module names, `mod` declarations aside.
fn imports() -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
    let mut sources = BTreeMap::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    read(&src, "", &mut sources);
    let modules: BTreeSet<_> = sources.keys().cloned().collect();
    let imports = sources.iter().map(|(module, text)| {
        let named = paths(text).into_iter().filter_map(|path| {
            let path = absolute(module, &path)?;
            let mut prefix = path.as_str();
            while !modules.contains(prefix) {
                prefix = prefix.rsplit_once("::").map_or("", |(parent, _)| parent);
            }
            (prefix != module).then(|| prefix.to_owned())
        });
        (module.clone(), named.collect())
    });
    imports.collect()
}

fn read(directory: &Path, module: &str, sources: &mut BTreeMap<ModulePath, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = match (module, name.as_str()) {
            ("", "main") => String::new(),
            ("", name) => name.to_owned(),
            (parent, name) => format!("{parent}::{name}"),
        };
        if path.is_dir() {
            read(&path, &module, sources);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            sources.insert(module, code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Every path in `text` that begins with `crate`, `self` or `super`, with the braces of `use` expanded.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The tests of a module may name what they like.
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && before != '_' && before != ':' {
                expand("", &mut text[at..].chars().peekable(), &mut found);
            }
        }
    }
    found
}

/// Reads one tree of a `use`, or a plain path.
fn expand(
    prefix: &str,
    text: &mut std::iter::Peekable<std::str::Chars<'_>>,
    found: &mut Vec<String>,
) {
    let mut path = prefix.to_owned();
    while let Some(&character) = text.peek() {
        if character.is_alphanumeric() || character == '_' || character == ':' {
            path.push(character);
            text.next();
        } else {
            break;
        }
    }
    if text.peek() != Some(&'{') {
        found.push(path);
        return;
    }
    text.next();
    loop {
        while text
            .next_if(|&next| next.is_whitespace() || next == ',')
            .is_some()
        {}
        if text.next_if_eq(&'}').is_some() {
            return;
        }
        expand(&path, text, found);
        // A renamed import.
        while text.next_if(|&next| next != ',' && next != '}').is_some() {}
    }
}

/// `path` as seen from the root.
fn absolute(module: &str, path: &str) -> Option<ModulePath> {
    let mut base: Vec<_> = module.split("::").filter(|name| !name.is_empty()).collect();
    let mut rest = path.split("::").peekable();
    match rest.next()? {
        "crate" => base.clear(),
        "self" => {}
        _ => {
            base.pop();
        }
    }
    while rest.next_if_eq(&"super").is_some() {
        base.pop();
    }
    base.extend(rest);
    Some(base.join("::"))
}

#[test]
fn no_module_names_a_higher_layer() {
    let layer = |module: &str| {
        let top = module.split("::").next().unwrap();
        let found = LAYERS.iter().position(|layer| layer.contains(&top));
        found.unwrap_or_else(|| panic!("{top} is in no layer"))
    };
    for (module, named) in imports() {
        for other in named {
            assert!(
                layer(&other) <= layer(&module),
                "{module} names {other}, which is above it"
            );
        }
    }
}

#[test]
fn no_modules_name_each_other_in_a_circle() {
    let mut imports = imports();
    assert!(imports["commands::exec::session"].contains("sandbox"));
    // Remove modules that name no remaining one until none is left, or only circles are.
    loop {
        let done: BTreeSet<_> = imports
            .iter()
            .filter(|(_, named)| named.is_empty())
            .map(|(module, _)| module.clone())
            .collect();
        if done.is_empty() {
            break;
        }
        imports.retain(|module, _| !done.contains(module));
        for named in imports.values_mut() {
            named.retain(|module| !done.contains(module));
        }
    }
    assert!(imports.is_empty(), "in or above a circle: {imports:#?}");
}

#[test]
fn commands_do_not_name_each_other() {
    let command = |module: &str| {
        module
            .strip_prefix("commands::")
            .map(|rest| rest.split("::").next().unwrap().to_owned())
    };
    for (module, named) in imports() {
        for other in named {
            if let (Some(a), Some(b)) = (command(&module), command(&other)) {
                assert_eq!(a, b, "{module} names {other}");
            }
        }
    }
}
