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
    // It prints the IDs of the comments so far.
    program(
        &tools.join("gh"),
        "#!/bin/sh\necho \"$GH_TOKEN $*\" >> gh.log\ncase $* in *--paginate*) cat ids ;; esac\n",
    );
    checkout.write("ids", "");
    let workflow = block("A comment on a pull request", "yaml");
    let (_, script) = workflow.rsplit_once("run: |\n").unwrap();
    let lines = script.lines().map(str::trim_start);
    let script = lines.collect::<Vec<_>>().join("\n");
    // As GitHub Actions runs it.
    let run = |base: &str, is_fork: &str| {
        checkout.write("gh.log", "");
        checkout.write("summary", "");
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
            .envs([("IS_FORK", is_fork), ("GITHUB_REPOSITORY", "o/r")])
            .env("GITHUB_STEP_SUMMARY", "summary")
            .status();
        status.unwrap().success()
    };
    let read = |name: &str| fs::read_to_string(checkout.path().join(name)).unwrap();
    let requests = || {
        read("gh.log")
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(run("first", "false"));
    let created = "token api repos/o/r/issues/7/comments --field body=@comment.md";
    assert_eq!(requests()[1..], [created]);
    let comment = read("comment.md");
    assert!(comment.starts_with("<!-- larder diff -->\n"), "{comment}");
    assert!(
        comment.contains("| `prod/web` | `web` | needs a restart: variables |"),
        "{comment}"
    );
    checkout.write("ids", "41\n43\n");
    assert!(run("first", "false"));
    let replaced = "token api --method PATCH repos/o/r/issues/comments/41 --field body=@comment.md";
    assert_eq!(requests()[1..], [replaced]);
    assert!(run("first", "true"));
    assert_eq!(requests(), [""; 0], "a fork may not comment");
    assert_eq!(read("summary"), read("comment.md"));
    assert!(run("second", "false"));
    let comment = read("comment.md");
    let (first, unknown) = comment.split_once("\n\n").unwrap();
    assert!(
        first.ends_with("\nNo container sees a difference."),
        "{first}"
    );
    // A key that both sides lack.
    assert!(
        unknown.contains("couldn't find key t in Secret prod/token"),
        "{comment}"
    );
    assert!(!run("no-such-revision", "false"));
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
