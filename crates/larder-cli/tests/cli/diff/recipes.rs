//! The recipes of `docs/diff.md`, `action.yml` and `.pre-commit-hooks.yaml`, as their readers run them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use larder_objects::yaml::YamlDocument;
use serde_json::Value;

use super::{Checkout, to};

/// The directory of the project.
const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Most bytes of a comment on GitHub.
const MOST: usize = 65_536;

/// The first code block in this language of the recipe with this heading that has this text in it.
fn block(heading: &str, language: &str, text: &str) -> String {
    let document = fs::read_to_string(format!("{PROJECT}/docs/diff.md")).unwrap();
    let (_, recipe) = document.split_once(&format!("### {heading}\n")).unwrap();
    let fence = format!("```{language}\n");
    let blocks = recipe.split(&*fence).skip(1);
    let mut blocks = blocks.map(|block| block.split_once("```").unwrap().0);
    blocks
        .find(|block| block.contains(text))
        .unwrap()
        .to_owned()
}

fn yaml(text: &str) -> Value {
    YamlDocument::parse(text, 0).unwrap().decode().unwrap()
}

fn project_file(name: &str) -> Value {
    yaml(&fs::read_to_string(format!("{PROJECT}/{name}")).unwrap())
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

/// A runner of CI: a clone of `checkout` as it was committed last, with nothing before that commit.
struct Runner {
    desk: crate::Desk,
}

impl Runner {
    fn new(checkout: &Checkout) -> Self {
        let runner = Self {
            desk: crate::Desk::with([("ids", ""), ("requests", ""), ("summary", "")]),
        };
        let url = format!("file://{}", checkout.path().display());
        let clone = runner.shell(&format!("git clone -q --depth=1 {url} clone"), &[]);
        assert!(clone.status.success(), "{clone:?}");
        fs::create_dir(runner.path("tools")).unwrap();
        // They print the IDs of the comments so far.
        let log = "echo \"$*\" >> ../requests";
        let gh = format!("#!/bin/sh\n{log}\ncase $* in *--paginate*) cat ../ids ;; esac\n");
        program(&runner.path("tools/gh"), &gh);
        program(&runner.path("tools/curl"), &format!("#!/bin/sh\n{log}\n"));
        program(&runner.path("tools/jq"), "#!/bin/sh\ncat ../ids\n");
        let comment = format!("{PROJECT}/packaging/comment");
        symlink(comment, runner.path("tools/larder-comment")).unwrap();
        runner
    }

    fn path(&self, name: &str) -> PathBuf {
        self.desk.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The last line of the log of requests.
    fn last_request(&self) -> String {
        self.read("requests")
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned()
    }

    /// Runs a step as GitHub Actions and GitLab do.
    fn shell(&self, script: &str, variables: &[(&str, &str)]) -> Output {
        let clone = self.path("clone");
        let directory = if clone.exists() { clone } else { self.path("") };
        let mut bash = Command::new("bash");
        bash.args([
            "--noprofile",
            "--norc",
            "-e",
            "-o",
            "pipefail",
            "-c",
            script,
        ]);
        bash.current_dir(directory)
            .env("PATH", path_with(&self.path("tools")))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env_remove("GIT_DIR")
            .envs(variables.iter().copied());
        bash.output().unwrap()
    }

    /// Runs the steps of `action.yml` with these inputs; returns the outcome of each.
    fn action(&self, given: &[(&str, &str)]) -> Vec<Output> {
        let action = project_file("action.yml");
        let inputs = action["inputs"].as_object().unwrap();
        let default = |(name, input): (&String, &Value)| {
            (
                format!("inputs.{name}"),
                input["default"].as_str().unwrap_or_default().to_owned(),
            )
        };
        let mut values: BTreeMap<_, _> = inputs.iter().map(default).collect();
        let given = given.iter();
        values.extend(given.map(|(name, value)| (format!("inputs.{name}"), (*value).to_owned())));
        let temp = self.desk.path().display().to_string();
        for (name, value) in [
            ("github.action_path", PROJECT),
            ("runner.temp", &temp),
            ("github.event.pull_request.number", "7"),
        ] {
            values.insert(name.to_owned(), value.to_owned());
        }
        let value_of = |text: &str| {
            let Some((before, rest)) = text.split_once("${{ ") else {
                return text.to_owned();
            };
            let (expression, after) = rest.split_once(" }}").unwrap();
            format!("{before}{}{after}", values[expression])
        };
        let steps = action["runs"]["steps"].as_array().unwrap().iter();
        let outcomes = steps.map(|step| {
            assert_eq!(step["shell"], "bash");
            let env = step["env"].as_object().unwrap().iter();
            let env: Vec<_> = env
                .map(|(name, value)| (&**name, value_of(value.as_str().unwrap())))
                .collect();
            let mut all: Vec<_> = env.iter().map(|(name, value)| (*name, &**value)).collect();
            all.extend([
                ("GITHUB_STEP_SUMMARY", "../summary"),
                ("GITHUB_REPOSITORY", "o/r"),
                ("GITHUB_REF", "refs/heads/main"),
            ]);
            self.shell(step["run"].as_str().unwrap(), &all)
        });
        outcomes.collect()
    }
}

#[test]
fn action_comments_what_changes_in_each_overlay() {
    let checkout = Checkout::new();
    fs::create_dir(checkout.path().join("other")).unwrap();
    checkout.write(
        "other/a.yaml",
        "# nothing\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: other}}\n",
    );
    checkout.commit("second");
    let runner = Runner::new(&checkout);
    let inputs = [
        ("paths", "k8s\n\nother\n"),
        ("fail-on", "unknown"),
        ("token", "t"),
        ("comment", "true"),
    ];
    let outcomes = runner.action(&inputs);
    assert!(
        outcomes.iter().all(|step| step.status.success()),
        "{outcomes:?}"
    );
    let comment = runner.read("larder-comment.md");
    let lines: Vec<_> = comment.lines().collect();
    assert_eq!(lines[0], "<!-- larder diff -->");
    assert!(
        lines.contains(&"### k8s") && lines.contains(&"### other"),
        "{comment}"
    );
    assert!(
        comment.contains("| `prod/web` | `web` | needs a restart: variables"),
        "{comment}"
    );
    assert_eq!(runner.read("summary"), comment);
    let file = runner.path("larder-comment.md").display().to_string();
    let created = format!("api repos/o/r/issues/7/comments --field body=@{file}");
    assert_eq!(runner.last_request(), created);
    fs::write(runner.path("ids"), "41\n43\n").unwrap();
    runner.action(&inputs);
    let replaced = format!("api --method PATCH repos/o/r/issues/comments/41 --field body=@{file}");
    assert_eq!(runner.last_request(), replaced);
    // The gate fails the first step, and the comment is written all the same.
    let gated = runner.action(&[("paths", "k8s"), ("fail-on", "fails,restart")]);
    assert_eq!(gated[0].status.code(), Some(1), "{gated:?}");
    assert!(gated[1].status.success(), "{gated:?}");
    // What cannot be compared fails it, too.
    let failed = runner.action(&[("paths", "k8s"), ("from", "no-such-revision")]);
    assert_eq!(failed[0].status.code(), Some(2), "{failed:?}");
    assert!(
        runner
            .read("larder-comment.md")
            .contains("larder failed: see the log")
    );
}

#[test]
fn comment_of_many_large_overlays_fits() {
    let checkout = Checkout::new();
    let object = |overlay: usize, value: &str| {
        let line = |line| format!("    {line} {value} {}\n", "x".repeat(90));
        let lines = (0..120).map(line).collect::<Vec<_>>().concat();
        let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, configMap: {name: big}}]\n";
        format!(
            "# {overlay}\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: big}}\ndata:\n  k: |\n{lines}{pod}"
        )
    };
    let paths: Vec<_> = (0..8).map(|overlay| format!("o{overlay}")).collect();
    for value in ["a", "b"] {
        for (overlay, path) in paths.iter().enumerate() {
            let _ = fs::create_dir(checkout.path().join(path));
            checkout.write(&format!("{path}/a.yaml"), &object(overlay, value));
        }
        checkout.commit(value);
    }
    for count in [1, 3, 8] {
        let output = Command::new(format!("{PROJECT}/packaging/comment"))
            .arg("a")
            .args(&paths[..count])
            .current_dir(checkout.path())
            .env("PATH", path_with(checkout.path()))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let comment = String::from_utf8(output.stdout).unwrap();
        assert!(comment.len() <= MOST, "{count}: {}", comment.len());
        assert_eq!(
            comment.matches("**1 pod differs").count(),
            count,
            "{comment}"
        );
        let folded = ["<details>", "</details>"].map(|part| comment.matches(part).count());
        assert_eq!(folded[0], folded[1]);
        assert_eq!(folded[0] > 0, count < 3, "too long for its share");
    }
}

#[test]
fn gitlab_recipe_comments_on_a_merge_request() {
    let checkout = Checkout::new();
    fs::create_dir_all(checkout.path().join("overlays/staging")).unwrap();
    fs::rename(
        checkout.path().join("k8s"),
        checkout.path().join("overlays/prod"),
    )
    .unwrap();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n";
    checkout.write("overlays/staging/a.yaml", pod);
    checkout.commit("second");
    let runner = Runner::new(&checkout);
    let recipe = yaml(&block(
        "A comment on a pull request",
        "yaml",
        "merge_request_event",
    ));
    let script = recipe["larder"]["script"][0].as_str().unwrap();
    let variables = [
        ("CI_MERGE_REQUEST_DIFF_BASE_SHA", "first"),
        ("CI_API_V4_URL", "https://gitlab.example/api/v4"),
        ("CI_PROJECT_ID", "3"),
        ("CI_MERGE_REQUEST_IID", "7"),
        ("LARDER_TOKEN", "t"),
    ];
    // Of a commit, GitLab gives the name; the test has a tag.
    let script = script.replace("origin \"$CI", "origin tag \"$CI");
    let run = runner.shell(&script, &variables);
    assert_eq!(
        run.status.code(),
        Some(1),
        "a container would not start: {run:?}"
    );
    let notes = "https://gitlab.example/api/v4/projects/3/merge_requests/7/notes";
    assert!(
        runner
            .last_request()
            .ends_with(&format!("--data-urlencode body@comment.md {notes}"))
    );
    fs::write(runner.path("ids"), "41\n").unwrap();
    runner.shell(&script, &variables);
    assert!(runner.last_request().ends_with(&format!(
        "--request PUT --data-urlencode body@comment.md {notes}/41"
    )));
    assert!(
        runner
            .read("clone/comment.md")
            .contains("### overlays/prod")
    );
}

/// The shell step of the Jenkinsfile, as Jenkins runs it: `sh -xe`, in a whole clone of the branch of the change.
#[test]
fn jenkins_recipe_shows_what_the_change_does_and_nothing_of_its_target() {
    let checkout = Checkout::new();
    checkout.git("branch -M main");
    let pod = |name: &str| {
        format!(
            "apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}}}
data: {{other: '1'}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - {{name: c, image: i, env: [{{name: A, valueFrom: {{configMapKeyRef: {{name: {name}, key: none}}}}}}]}}
"
        )
    };
    for overlay in ["staging", "prod"] {
        fs::create_dir_all(checkout.path().join("overlays").join(overlay)).unwrap();
        checkout.write(
            &format!("overlays/{overlay}/a.yaml"),
            "# none\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: other}}\n",
        );
    }
    checkout.commit("base");
    checkout.git("checkout -q -b change");
    checkout.write("overlays/prod/b.yaml", &pod("changed"));
    checkout.commit("edit");
    checkout.git("checkout -q main");
    checkout.write("overlays/prod/c.yaml", &pod("elsewhere"));
    checkout.commit("elsewhere");
    checkout.git("checkout -q change");
    let runner = Runner::new(&checkout);
    let whole = runner.shell("git fetch -q --unshallow", &[]);
    assert!(whole.status.success(), "{whole:?}");
    let recipe = block("A comment on a pull request", "groovy", "changeRequest()");
    let (_, step) = recipe.split_once("sh '''").unwrap();
    let (step, _) = step.split_once("'''").unwrap();
    let run = Command::new("sh")
        .args(["-xec", step])
        .current_dir(runner.path("clone"))
        .env("PATH", path_with(&runner.path("tools")))
        .env("CHANGE_TARGET", "main")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let comment = runner.read("clone/comment.md");
    assert!(
        comment.contains("### overlays/prod") && comment.contains("default/changed"),
        "{comment}"
    );
    assert!(!comment.contains("elsewhere"), "{comment}");
}

#[test]
fn shallow_clone_is_told_to_fetch_the_base_first() {
    let checkout = Checkout::new();
    checkout.commit("second");
    let runner = Runner::new(&checkout);
    for from in ["HEAD^1", "first", "origin/release"] {
        let run = runner.shell(&format!("larder diff -f k8s --from {from}"), &[]);
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        let error = String::from_utf8(run.stderr).unwrap();
        assert!(
            error.contains("this clone is shallow, so fetch the base first: `git fetch"),
            "{error}"
        );
    }
    let run = checkout.diff(".", &["-f", "k8s", "--from", "no-such"]);
    assert!(run.code == 2 && !run.stderr.contains("shallow"), "{run:?}");
}

#[test]
fn clone_of_another_owner_is_rejected_with_the_remedy_of_git() {
    let checkout = Checkout::new();
    let runner = Runner::new(&checkout);
    // git's own tests have it.
    let other_owner = [("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")];
    let run = runner.shell("larder diff -f k8s --from HEAD", &other_owner);
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    let error = String::from_utf8(run.stderr).unwrap();
    assert!(error.contains("detected dubious ownership"), "{error}");
    assert!(
        error.contains("git config --global --add safe.directory"),
        "{error}"
    );
}

#[test]
fn hooks_of_pre_commit_reject_what_would_not_start() {
    let checkout = Checkout::new();
    let hooks = project_file(".pre-commit-hooks.yaml");
    let run = |id: &str| {
        let mut hooks = hooks.as_array().unwrap().iter();
        let hook = hooks.find(|hook| hook["id"] == id).unwrap();
        assert_eq!(
            (&hook["language"], &hook["pass_filenames"]),
            (&"system".into(), &false.into())
        );
        let entry = hook["entry"].as_str().unwrap().split(' ');
        let args = hook["args"].as_array().unwrap().iter();
        let words: Vec<_> = entry.chain(args.map(|arg| arg.as_str().unwrap())).collect();
        let hook = Command::new(words[0])
            .args(&words[1..])
            .current_dir(checkout.path())
            .env("PATH", path_with(checkout.path()))
            .output()
            .unwrap();
        hook.status.code()
    };
    assert_eq!(
        run("larder-diff"),
        Some(1),
        "a container would not start any more"
    );
    assert_eq!(run("larder-render"), Some(1));
    let mended = to().replace("{other: hunter2}", "{t: hunter2}");
    checkout.write("k8s/app.yaml", &mended);
    assert_eq!(run("larder-diff"), Some(0), "a restart is no reason");
    assert_eq!(run("larder-render"), Some(0));
    let warned = mended.replace(
        "name: web\n        image: i",
        "name: web\n        image: i\n        args: [$(NONE)]",
    );
    checkout.write("k8s/app.yaml", &warned);
    assert_eq!(run("larder-render"), Some(1), "what deserves a look");
    checkout.write("k8s/app.yaml", "kind: [");
    assert_eq!(run("larder-diff"), Some(2));
}

#[test]
fn hook_rejects_a_commit_after_which_a_container_would_not_start() {
    let checkout = Checkout::new();
    let hook = checkout.path().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    program(
        &hook,
        &block("A hook before each commit", "sh", "larder diff"),
    );
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
