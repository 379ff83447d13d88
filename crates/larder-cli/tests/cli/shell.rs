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
fn manual_pages_have_the_sections_that_their_readers_know() {
    let desk = Desk::with([]);
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
