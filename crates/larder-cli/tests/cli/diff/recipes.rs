//! The recipes of `docs/diff.md`, as written.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::{Checkout, to};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/diff.md");

/// The code block in this language of the recipe with this heading.
fn block(heading: &str, language: &str) -> String {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (_, recipe) = document.split_once(&format!("### {heading}\n")).unwrap();
    let (_, block) = recipe.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A `PATH` with `larder`, and the programs of `directory` before all others.
fn path_with(directory: &Path) -> String {
    let larder = Path::new(env!("CARGO_BIN_EXE_larder")).parent().unwrap();
    let others = std::env::var("PATH").unwrap();
    format!("{}:{}:{others}", directory.display(), larder.display())
}

#[test]
fn workflow_comments_on_a_pull_request() {
    let checkout = Checkout::new();
    checkout.commit("second");
    let tools = checkout.path().join("tools");
    fs::create_dir(&tools).unwrap();
    program(
        &tools.join("gh"),
        "#!/bin/sh\necho \"$GH_TOKEN $*\" > gh.log\n",
    );
    let workflow = block("A comment on a pull request", "yaml");
    let (_, script) = workflow.split_once("run: |\n").unwrap();
    let lines = script.lines().map(str::trim_start);
    let script = lines.collect::<Vec<_>>().join("\n");
    // As GitHub Actions runs it.
    let run = |base: &str| {
        let status = Command::new("bash")
            .args([
                "--noprofile",
                "--norc",
                "-e",
                "-o",
                "pipefail",
                "-c",
                &script,
            ])
            .current_dir(checkout.path())
            .env("PATH", path_with(&tools))
            .envs([("BASE", base), ("NUMBER", "7"), ("GH_TOKEN", "token")])
            .status();
        status.unwrap().success()
    };
    assert!(run("first"));
    let read = |name: &str| fs::read_to_string(checkout.path().join(name)).unwrap();
    assert_eq!(
        read("gh.log"),
        "token pr comment 7 --edit-last --create-if-none --body-file comment.md\n"
    );
    let comment = read("comment.md");
    assert!(
        comment.contains("| `prod/web` | `web` | needs a restart: variables |"),
        "{comment}"
    );
    assert!(run("second"));
    let comment = read("comment.md");
    let (first, unknown) = comment.split_once("\n\n").unwrap();
    assert_eq!(first, "No container sees a difference.");
    assert!(unknown.contains("secret token key t"), "{comment}");
    assert!(!run("no-such-revision"));
}

#[test]
fn hook_rejects_a_commit_after_which_a_container_would_not_start() {
    let checkout = Checkout::new();
    let hook = checkout.path().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    program(&hook, &block("A hook before each commit", "sh"));
    let commit = || {
        let mut git = Command::new("git");
        git.args("-c user.name=n -c user.email=e -c commit.gpgsign=false".split(' '));
        git.args(["commit", "-qam", "text"])
            .current_dir(checkout.path());
        let output = git
            .env("PATH", path_with(checkout.path()))
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), shown)
    };
    let (accepted, shown) = commit();
    assert!(!accepted && shown.contains("would not start"), "{shown}");
    checkout.write(
        "k8s/app.yaml",
        &to().replace("{other: hunter2}", "{t: hunter2}"),
    );
    let (accepted, shown) = commit();
    assert!(accepted && shown.contains("needs a restart"), "{shown}");
    checkout.write("k8s/app.yaml", "kind: [");
    assert!(!commit().0);
}
