//! Examples and snippets as programs of their own, with the dependencies that they print.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A program that the documentation shows.
struct Program {
    name: String,
    /// The lines below `[dependencies]`.
    dependencies: String,
    source: String,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The first block of a language in Markdown, after its first line.
fn block(text: &str, language: &str) -> String {
    let start = format!("```{language}");
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with(&start))
        .skip(1);
    let lines: Vec<_> = lines.take_while(|line| *line != "```").collect();
    lines.join("\n") + "\n"
}

fn dependencies(text: &str) -> String {
    let toml = block(text, "toml");
    let lines = toml.strip_prefix("[dependencies]\n");
    lines.expect("a block of dependencies").to_owned()
}

fn programs() -> Vec<Program> {
    let mut programs = Vec::new();
    for krate in [
        "larder",
        "larder-agent",
        "larder-apiserver",
        "larder-projection",
    ] {
        let directory = workspace().join("crates").join(krate).join("examples");
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let source = fs::read_to_string(&path).unwrap();
            let header = source.lines().map_while(|line| line.strip_prefix("//!"));
            let header: Vec<_> = header
                .map(|line| line.strip_prefix(' ').unwrap_or(line))
                .collect();
            programs.push(Program {
                name: path
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .replace('_', "-"),
                dependencies: dependencies(&header.join("\n")),
                source,
            });
        }
    }
    for (name, path) in [
        ("readme", "README.md"),
        ("readme-larder", "crates/larder/README.md"),
    ] {
        let text = fs::read_to_string(workspace().join(path)).unwrap();
        // Lines that a reader does not see begin with `# `.
        let code = block(&text, "rust").replace("\n# ", "\n");
        let source = if code.contains("async fn") {
            format!("{code}fn main() {{ let _ = example; }}\n")
        } else {
            format!("fn main() {{\n{code}}}\n")
        };
        programs.push(Program {
            name: name.to_owned(),
            dependencies: dependencies(&text),
            source,
        });
    }
    programs
}

#[test]
fn versions_of_printed_dependencies_are_those_of_the_workspace() {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let of_workspace = |name: &str| {
        let line = manifest
            .lines()
            .find(|line| line.starts_with(&format!("{name} = ")));
        version(line.unwrap_or_else(|| panic!("no dependency {name}")))
    };
    let programs = programs();
    assert!(programs.len() >= 9);
    for program in programs {
        for line in program.dependencies.lines() {
            let (name, value) = line.split_once(" = ").unwrap();
            if value.contains("path = ") {
                let path = format!("path = \"larder/crates/{name}\"");
                assert!(value.contains(&path), "{}: {line}", program.name);
            } else {
                assert_eq!(
                    version(line),
                    of_workspace(name),
                    "{}: {name}",
                    program.name
                );
            }
        }
    }
}

/// Of a line such as `kube = "5"` or `kube = { version = "5" }`, the first text.
fn version(line: &str) -> &str {
    line.split('"').nth(1).unwrap()
}

/// Compiles everything that the programs depend on once more; `.ci/outside` runs it.
#[test]
#[ignore = "takes minutes"]
fn programs_compile_outside_the_workspace() {
    let desk = tempfile::tempdir().unwrap();
    let crates = workspace().join("crates");
    let mut members = BTreeSet::new();
    for program in programs() {
        let package = desk.path().join(&program.name);
        fs::create_dir_all(package.join("src")).unwrap();
        fs::write(package.join("src/main.rs"), &program.source).unwrap();
        let dependencies = program
            .dependencies
            .replace("larder/crates", crates.to_str().unwrap());
        let name = &program.name;
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[dependencies]\n{dependencies}"
        );
        fs::write(package.join("Cargo.toml"), manifest).unwrap();
        members.insert(program.name);
    }
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n");
    fs::write(
        desk.path().join("Cargo.toml"),
        manifest.replace('{', "[").replace('}', "]"),
    )
    .unwrap();
    fs::copy(
        workspace().join("Cargo.lock"),
        desk.path().join("Cargo.lock"),
    )
    .unwrap();
    // One by one: together, a program could use the features that another one asks for.
    for member in &members {
        let checked = Command::new(env!("CARGO"))
            .args(["check", "--quiet", "--package", member])
            .current_dir(desk.path())
            .env("CARGO_TARGET_DIR", workspace().join("target/outside"))
            .status();
        assert!(checked.unwrap().success(), "{member}");
    }
}
