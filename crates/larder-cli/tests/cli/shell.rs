//! Help, version, completion scripts and manual pages.

use std::{
    collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command,
};

use crate::{
    Desk,
    run::{Agent, desk},
};

#[test]
fn help_and_version_are_results() {
    let desk = Desk::with([]);
    for args in ["--help", "render --help", "refs -h", "--version"] {
        let run = desk.run(args);
        assert_eq!((run.code, &*run.stderr), (0, ""), "{args}");
        assert!(run.stdout.contains("larder"), "{args}: {}", run.stdout);
    }
}

#[test]
fn help_of_every_command_has_examples() {
    let desk = Desk::with([]);
    for command in [
        "",
        "run",
        "status",
        "ui",
        "clean",
        "log-level",
        "render",
        "diff",
        "refs",
        "exec",
        "apiserver",
        "completion",
        "man",
    ] {
        for flag in ["-h", "--help"] {
            let help = desk.run(&format!("{command} {flag}")).stdout;
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_default();
            let example = format!("larder {command}");
            assert!(examples.contains(&example), "{command} {flag}: {help}");
        }
    }
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let desk = Desk::with([]);
    for shell in ["bash", "elvish", "fish", "kubectl", "powershell", "zsh"] {
        let run = desk.run(&format!("completion {shell}"));
        assert_eq!(run.code, 0, "{shell}");
        assert!(run.stdout.contains("LARDER_COMPLETE"), "{shell}: {run:?}");
    }
    assert!(desk.run("man").stdout.contains(".TH larder 1"));
    assert!(
        desk.run("man render")
            .stdout
            .contains(".TH larder-render 1  \"larder 0")
    );
    assert_eq!(desk.run("man nonsense").code, 2);
}

/// What bash offers in `directory` for the last of the words after `larder`.
fn offered(directory: &Path, words: &[&str]) -> Vec<String> {
    let script =
        "source <(larder completion bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _clap_complete_larder larder \"${!#}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = in_directory("bash", directory)
        .args(["-c", script, "bash", "larder"])
        .args(words)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words:?}");
    lines(&output.stdout)
}

/// The program, which finds larder, in this directory.
fn in_directory(program: &str, directory: &Path) -> Command {
    let larder = Path::new(env!("CARGO_BIN_EXE_larder")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", larder.display()))
        .env("HOME", directory)
        .env_remove("KUBECONFIG");
    command
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.lines().map(str::to_owned).collect()
}

const PODS: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec: {containers: [{name: main, image: i}, {name: proxy, image: i}], initContainers: [{name: setup, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db}
spec: {containers: [{name: postgres, image: i}]}
---
kind: [
";

#[test]
fn bash_completes_names_of_the_manifests() {
    let desk = Desk::with([("app.yaml", PODS)]);
    let offered = |words: &str| offered(desk.path(), &words.split(' ').collect::<Vec<_>>());
    for (words, expected) in [
        ("render -f app.yaml --pod ", &["default/db", "prod/web"][..]),
        ("render -f app.yaml --pod p", &["prod/web"]),
        // One without a namespace is of that one.
        ("render -f app.yaml -n prod --pod ", &["db", "web"]),
        (
            "exec -f app.yaml --pod prod/web -c ",
            &["main", "proxy", "setup"],
        ),
        ("exec -f app.yaml -n default --pod db -c ", &["postgres"]),
        (
            "exec --filename=app.yaml --container p",
            &["postgres", "proxy"],
        ),
        ("render -f app.yaml -n ", &["default", "prod"]),
        ("render -f missing.yaml --pod ", &[""]),
        // What needs no names.
        ("diff --show-s", &["--show-secrets"]),
        ("render -f ap", &["app.yaml"]),
        ("exec-", &[""]),
    ] {
        assert_eq!(offered(words), expected, "{words}");
    }
}

#[test]
fn bash_completes_contexts_and_revisions() {
    let contexts =
        "contexts: [{name: east, context: {cluster: c}}, {name: west, context: {cluster: c}}]";
    let desk = Desk::with([("app.yaml", PODS), ("config", contexts)]);
    fs::create_dir(desk.path().join(".kube")).unwrap();
    fs::write(desk.path().join(".kube/config"), "contexts: [{name: home}]").unwrap();
    let offered = |words: &str| offered(desk.path(), &words.split(' ').collect::<Vec<_>>());
    let words = "diff -f app.yaml --kubeconfig config --context ";
    assert_eq!(offered(words), ["east", "west"]);
    assert_eq!(
        offered("render -f app.yaml --kubeconfig --context "),
        ["home"]
    );
    assert_eq!(offered("diff -f app.yaml --from "), ["HEAD"]);
    let git = "git init -q -b main . && git add app.yaml && git -c user.name=n -c user.email=e commit -qm m
        git tag v1 && git branch feature";
    let made = in_directory("sh", desk.path()).args(["-c", git]).status();
    assert!(made.unwrap().success());
    assert_eq!(
        offered("diff -f app.yaml --from "),
        ["HEAD", "feature", "main", "v1"]
    );
    assert_eq!(offered("diff -f app.yaml --from main --to v"), ["v1"]);
}

#[test]
fn bash_completes_pods_and_containers_of_the_agent() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let root = desk.path().join("root");
    let root = root.to_str().unwrap();
    let offered = |words: &[&str]| offered(desk.path(), words);
    assert_eq!(
        offered(&["status", "--root-dir", root, ""])[0],
        "default/web"
    );
    let words = ["exec", "--root-dir", root, "--pod", "web", "-c", ""];
    assert_eq!(offered(&words), ["main"]);
}

#[test]
fn kubectl_completes_its_plugin() {
    let desk = Desk::with([("app.yaml", PODS)]);
    let script = desk.path().join("kubectl_complete-larder");
    fs::write(&script, desk.run("completion kubectl").stdout).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let offered = |words: &[&str]| {
        let output = in_directory(script.to_str().unwrap(), desk.path())
            .args(words)
            .output();
        lines(&output.unwrap().stdout)
    };
    assert_eq!(
        offered(&["render", "-f", "app.yaml", "--pod", "d"]),
        ["default/db\t", ":4"]
    );
    let subcommands = offered(&["ren"]);
    assert!(
        subcommands[0].starts_with("render\tShow the variables"),
        "{subcommands:?}"
    );
    fs::create_dir(desk.path().join("k8s")).unwrap();
    assert_eq!(offered(&["render", "-f", "k"]).last().unwrap(), ":6");
}

#[test]
fn habits_of_kubectl_have_its_meaning_or_a_next_step() {
    let desk = Desk::with([("app.yaml", PODS)]);
    for (args, words) in [
        (
            "describe pod prod/web",
            "`larder status prod/web` shows what the agent delivers to a pod",
        ),
        (
            "describe pod/web -n prod",
            "`larder render -f FILE --pod web` what its manifests say",
        ),
        ("get pods -o wide", "`larder status NAMESPACE/POD`"),
        (
            "render -f https://example.com/a.yaml",
            "curl -fsSL 'https://example.com/a.yaml' | larder render -f -",
        ),
        (
            "exec -f http://a/b -- true",
            "curl -fsSL 'http://a/b' | larder exec -f -",
        ),
    ] {
        let run = desk.run(args);
        let code = if args.starts_with("exec") { 125 } else { 2 };
        assert_eq!((run.code, &*run.stdout), (code, ""), "{args}: {run:?}");
        assert!(run.stderr.contains(words), "{args}: {}", run.stderr);
    }
    // The pod by its place, as kubectl takes it.
    let run = desk.run("exec -it prod/web --root-dir none -- sh");
    assert!(run.stderr.contains("no agent is listening"), "{run:?}");
    let run = desk.run("exec -it prod/web --pod prod/web --root-dir none -- sh");
    assert!(run.stderr.contains("cannot be used with"), "{run:?}");
}

#[test]
fn manual_pages_have_the_sections_that_their_readers_know() {
    let desk = Desk::with([]);
    // The subcommands whose pages a package has.
    let help = desk.run("--help").stdout;
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let commands = commands.split("\n\n").next().unwrap();
    let pages = commands
        .lines()
        .map(|line| line.trim().split(' ').next().unwrap());
    let pages: Vec<_> = pages.filter(|name| *name != "help").collect();
    for (command, code) in [
        ("", "0"),
        ("run", "0"),
        ("diff", "1"),
        ("exec", "127"),
        ("render", "2"),
    ] {
        let page = desk.run(&format!("man {command}")).stdout;
        let sections: Vec<_> = page
            .lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .collect();
        let sections = sections.join(" ").replace('"', "");
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXIT STATUS",
            "ENVIRONMENT",
            "EXAMPLES",
            "SEE ALSO",
        ] {
            assert!(sections.contains(section), "{command}: {sections}");
        }
        assert_eq!(
            sections.contains("FILES"),
            !["diff", "render"].contains(&command),
            "{command}"
        );
        assert!(
            page.contains(&format!("\\fB{code}\\fR")),
            "{command}: {page}"
        );
        let (_, others) = page.split_once(".SH \"SEE ALSO\"").unwrap();
        for other in others.split("\\fBlarder\\-").skip(1) {
            let other = other.split("\\fR").next().unwrap().replace('\\', "");
            assert!(pages.contains(&&*other), "{command}: larder-{other}(1)");
        }
        // Each example is a line of its own.
        let (_, examples) = page.split_once(".SH EXAMPLES").unwrap();
        assert!(examples.matches("\\fBlarder ").count() > 1, "{examples}");
    }
}

#[test]
fn colors_can_be_forced_and_forbidden() {
    let desk = Desk::with([(
        "app.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n",
    )]);
    let colored = |variables: &[(&str, &str)]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["render", "-f", "app.yaml"])
            .current_dir(desk.path())
            .env_clear()
            .envs(variables.iter().copied())
            .output();
        output.unwrap().stdout.contains(&0x1b)
    };
    assert!(!colored(&[]));
    assert!(!colored(&[("CLICOLOR_FORCE", "0")]));
    assert!(colored(&[("CLICOLOR_FORCE", "1"), ("TERM", "dumb")]));
    assert!(!colored(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}

#[test]
fn bad_usage_is_explained_and_exits_with_2() {
    let desk = Desk::with([("app.yaml", "")]);
    for (args, words) in [
        ("", "Usage"),
        ("nonsense", "unrecognized subcommand"),
        ("render", "--filename"),
        ("render -f app.yaml -o xml", "possible values: tree, json"),
        (
            "render -f app.yaml --pod a/b/c/d",
            "expected NAMESPACE/NAME",
        ),
        (
            "render -f app.yaml -n A_b",
            "expected lower-case letters, digits and '-'",
        ),
        (
            "refs -f app.yaml --namespace=",
            "expected lower-case letters, digits and '-'",
        ),
    ] {
        let run = desk.run(args);
        assert_eq!(run.code, 2, "{args}");
        assert_eq!(run.stdout, "", "{args}");
        assert!(run.stderr.contains(words), "{args}: {}", run.stderr);
    }
}

/// The flags in `text`, which follows the name of a subcommand: up to the end of the command.
fn flags(text: &str) -> Vec<String> {
    let command = text.split(['`', '|', '\n', ';', '&']).next().unwrap();
    let words = command.split_whitespace().take_while(|word| *word != "--");
    let names = words.filter_map(|word| {
        let name = word.strip_prefix("--")?;
        let end = name.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-');
        Some(format!("--{}", &name[..end.unwrap_or(name.len())]))
    });
    names.collect()
}

#[test]
fn commands_in_the_documents_have_their_flags() {
    let desk = Desk::with([]);
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let documents = fs::read_dir(project.join("docs")).unwrap();
    let documents = documents.map(|entry| entry.unwrap().path());
    let documents = documents.chain([project.join("README.md")]);
    let mut helps = BTreeMap::new();
    let mut checked = 0;
    for path in documents.filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(&path).unwrap();
        for command in text.split("larder ").skip(1) {
            let name: String = command
                .chars()
                .take_while(|letter| !letter.is_whitespace())
                .collect();
            let help = helps.entry(name.clone()).or_insert_with(|| {
                let is_name = name
                    .chars()
                    .all(|letter| letter.is_ascii_lowercase() || letter == '-');
                let run = is_name.then(|| desk.run(&format!("{name} --help")));
                run.filter(|run| run.code == 0).map(|run| run.stdout)
            });
            let Some(help) = help else { continue };
            for flag in flags(&command[name.len()..]) {
                let is_known = help
                    .split_whitespace()
                    .any(|word| word.trim_end_matches(',') == flag);
                assert!(is_known, "{}: larder {name} {flag}", path.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked}");
}
