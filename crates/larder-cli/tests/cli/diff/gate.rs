//! A change as a gate: `--fail-on`, `--exclude` and `--title`.

use std::fs;

use serde_json::Value;

use super::{Checkout, FROM, run};
use crate::Run;

/// A ConfigMap and a pod, whose container has `more`.
fn app(value: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{a: '{value}'}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  containers:
  - name: web
    image: i
    volumeMounts: [{{name: v, mountPath: /v}}]
    env:
    - {{name: FIXED, value: x}}
    {more}
  volumes: [{{name: v, configMap: {{name: app}}}}]
"
    )
}

fn secret_key(optional: bool) -> String {
    format!("- {{name: K, valueFrom: {{secretKeyRef: {{name: s, key: k, optional: {optional}}}}}}}")
}

#[test]
fn gate_closes_only_for_the_differences_that_it_names() {
    let from = app("1", "");
    let secret = "---\n{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: b}}\n";
    let unknown = app(
        "1",
        &["- {name: K, value: d}\n    ", &secret_key(true)].concat(),
    );
    let default = app("1", "- {name: K, value: d}");
    let plain = || from.clone();
    for (from, to, verdict, closed_by) in [
        (plain(), app("2", ""), "live", &[][..]),
        (plain(), default.clone(), "restart", &["restart"]),
        (
            plain(),
            [&app("1", &secret_key(false)), secret].concat(),
            "fails",
            &["fails"],
        ),
        (
            plain(),
            app("1", &secret_key(false)),
            "restart",
            &["restart", "unless"],
        ),
        (default, unknown, "unknown", &["unknown"]),
        (plain(), plain(), "", &[]),
    ] {
        let code = |args: &str| run(&from, &to, args).code;
        let shown: Value = serde_json::from_str(&run(&from, &to, "-o json").stdout).unwrap();
        let found = shown["pods"][0]["containers"]["web"]["verdict"].as_str();
        assert_eq!(found.unwrap_or_default(), verdict);
        for word in ["fails", "unless", "unknown", "restart"] {
            let expected = i32::from(closed_by.contains(&word));
            assert_eq!(
                code(&format!("--fail-on {word}")),
                expected,
                "{verdict} {word}"
            );
        }
        let all = code("--fail-on fails,unless,unknown,restart");
        assert_eq!(all, i32::from(!closed_by.is_empty()), "{verdict}");
        let any = i32::from(!verdict.is_empty());
        assert_eq!((code(""), code("--fail-on any")), (any, any), "{verdict}");
        assert_eq!(code("--fail-on fails --fail-on any"), any, "{verdict}");
    }
    // An error is 2, whatever the gate is for.
    let run = run(&from, &format!("{from}---\nkind: ["), "--fail-on fails");
    assert_eq!(run.code, 2, "{run:?}");
}

#[test]
fn a_word_that_no_gate_has_is_a_usage_error_that_names_the_words() {
    for words in ["restarts", "fails,never", "''"] {
        let run = run(FROM, FROM, &format!("--fail-on {words}"));
        assert_eq!((run.code, &*run.stdout), (2, ""), "{run:?}");
        let all = "fails, unless, unknown, restart, any";
        assert!(run.stderr.contains(all), "{run:?}");
    }
}

#[test]
fn title_is_the_heading_of_every_form_for_people() {
    let (from, to) = (app("1", ""), app("2", ""));
    let title = "a&b<i>`c`*d*@e\u{1b}";
    let desk = crate::Desk::with([("from.yaml", &*from), ("to.yaml", &to)]);
    let run = |output: &str, to: &str| {
        let title = format!("--title={title}");
        let args = format!("diff --from-file from.yaml --to-file {to} -o {output} {title}");
        desk.run(&args)
    };
    let first = |run: &Run| run.stdout.lines().next().unwrap_or_default().to_owned();
    for to in ["from.yaml", "to.yaml"] {
        assert_eq!(first(&run("tree", to)), "a&b<i>`c`*d*@e\\u{1b}");
        let markdown = "### a&amp;b&lt;i>\\`c\\`\\*d\\*@e\\\\u{1b}";
        assert_eq!(first(&run("markdown", to)), markdown);
        let page = run("html", to).stdout;
        let title = "a&amp;b&lt;i&gt;`c`*d*@e\\u{1b}</title>";
        assert!(page.contains(title), "{page}");
        let json = run("json", to).stdout;
        assert!(!json.contains("a&b"), "{json}");
    }
    assert!(
        run("tree", "from.yaml")
            .stdout
            .ends_with("\nNo container sees a difference.\n")
    );
}

#[test]
fn excluded_files_are_read_on_no_side_and_named() {
    let checkout = Checkout::new();
    checkout.write("k8s/app.yaml", FROM);
    fs::create_dir_all(checkout.path().join("k8s/a/flux-system/b")).unwrap();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: c, image: i}]}\n";
    for (path, text) in [
        ("k8s/a/flux-system/b/gotk.yaml", "kind: ["),
        ("k8s/a/flux-system/one.yaml", &pod.replace("NAME", "one")),
        ("k8s/x.enc.yaml", "sops: ["),
    ] {
        checkout.write(path, text);
    }
    checkout.git("add -A");
    checkout.git("-c user.name=n -c user.email=e -c commit.gpgsign=false commit -qm text");
    checkout.write("k8s/a/flux-system/two.yaml", &pod.replace("NAME", "two"));
    let sides = [&["--from", "HEAD"][..], &["--from", "HEAD", "--to", "HEAD"]];
    for sides in sides {
        let diff = |more: &[&str]| {
            let args = [&["-R", "-f", "k8s"], sides, more].concat();
            checkout.diff(".", &args)
        };
        assert_eq!(diff(&[]).code, 2);
        for globs in [
            ["flux-system", "*.enc.yaml"],
            ["a/flux-system/**", "/x.enc.yaml"],
            ["**/flux-system/", "x.*"],
        ] {
            let exclude = globs.map(|glob| format!("--exclude={glob}"));
            let run = diff(&[&*exclude[0], &*exclude[1]]);
            assert_eq!(run.code, 0, "{globs:?} {run:?}");
            for named in ["k8s/a/flux-system", "k8s/x.enc.yaml"] {
                assert!(run.stderr.contains(named), "{run:?}");
                assert!(run.stdout.contains(named), "{run:?}");
            }
        }
    }
    // Directories of files, each with paths of its own.
    let run = checkout.diff(
        ".",
        &[
            "-R",
            "--from-file",
            "k8s/a",
            "--to-file",
            "k8s",
            "--exclude",
            "flux-system",
            "--exclude=*.yaml",
        ],
    );
    assert_eq!((run.code, &*run.stdout), (2, ""), "{run:?}");
    assert!(
        run.stderr.contains("read 0 files; --exclude left out"),
        "{run:?}"
    );
}
