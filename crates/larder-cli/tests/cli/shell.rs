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
    assert!(desk.run("render --help").stdout.contains("Examples:"));
}

#[test]
fn packages_can_make_completions_and_manual_pages() {
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
fn bad_usage_ends_with_2_and_says_why() {
    let desk = Desk::with([("app.yaml", "")]);
    for (args, words) in [
        ("", "Usage"),
        ("nonsense", "unrecognized subcommand"),
        ("render", "--filename"),
        ("render -f app.yaml -o xml", "possible values: tree, json"),
        ("render -f app.yaml --pod a/b/c", "expected NAMESPACE/NAME"),
        (
            "render -f app.yaml -n A_b",
            "a namespace is named by lower case letters",
        ),
        (
            "refs -f app.yaml --namespace=",
            "a namespace is named by lower case letters",
        ),
    ] {
        let run = desk.run(args);
        assert_eq!(run.code, 2, "{args}");
        assert_eq!(run.stdout, "", "{args}");
        assert!(run.stderr.contains(words), "{args}: {}", run.stderr);
    }
}
