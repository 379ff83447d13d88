//! Help, version, completion scripts and manual pages.

use crate::Desk;

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
    for shell in ["bash", "zsh", "fish"] {
        let run = desk.run(&format!("completion {shell}"));
        assert_eq!(run.code, 0, "{shell}");
        assert!(run.stdout.contains("show-secrets"), "{shell}");
        assert!(!run.stdout.contains("exec-stage"), "{shell}");
    }
    assert!(desk.run("man").stdout.contains(".TH larder 1"));
    assert!(
        desk.run("man render")
            .stdout
            .contains(".TH larder-render 1  \"larder 0")
    );
    assert_eq!(desk.run("man nonsense").code, 2);
}

#[test]
fn bad_usage_is_explained_and_exits_with_2() {
    let desk = Desk::with([("app.yaml", "")]);
    for (args, words) in [
        ("", "Usage"),
        ("nonsense", "unrecognized subcommand"),
        ("render", "--filename"),
        ("render -f app.yaml -o xml", "possible values: tree, json"),
        ("render -f app.yaml --pod a/b/c", "expected NAMESPACE/NAME"),
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
