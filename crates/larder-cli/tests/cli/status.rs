//! `larder status`: names, `--wait` and `--watch`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{
    Desk,
    run::{Agent, config_map, desk, pod, put},
};

/// A `larder status` that runs beside the test.
fn spawn(desk: &Desk, args: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .arg("status")
        .args(["--root-dir", "root"])
        .args(args.split(' '))
        .current_dir(desk.path())
        .env_clear()
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads lines up to one with all of these words.
#[track_caller]
fn until_line(lines: &mut impl Iterator<Item = std::io::Result<String>>, words: &[&str]) -> String {
    let mut lines = lines.map(Result::unwrap);
    let found = lines.find(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line with {words:?}"))
}

#[test]
fn named_pods_are_explained_and_unknown_ones_reported() {
    let desk = desk();
    put(&desk, "other.yaml", &pod("other", "app"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    assert_eq!(desk.run("status --root-dir root --wait").code, 0);
    let run = desk.run("status --root-dir root default/web");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    assert!(run.stdout.starts_with("pod default/web: Delivered for "));
    for words in [
        "kubernetes.io~configmap/cfg",
        "env.json",
        "ConfigMap default/app",
    ] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    assert!(!run.stdout.contains("pod default/other"), "{}", run.stdout);

    let run = desk.run("status --root-dir root web -o json");
    let status: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(status["version"].is_u64(), "{status}");
    assert_eq!(status["pods"].as_array().unwrap().len(), 1);
    assert_eq!(status["pods"][0]["name"], "web");

    let run = desk.run("status --root-dir root prod/none default/web");
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains("pod default/web"), "{run:?}");
    assert_eq!(
        run.stderr,
        "larder: the agent serves no pod prod/none; `larder status` lists its pods\n"
    );
}

#[test]
fn wait_starts_before_the_agent_and_ends_with_delivery() {
    let desk = desk();
    put(&desk, "late.yaml", &pod("late", "missing"));
    let mut waiting = spawn(&desk, "--wait --timeout 10m");
    let mut agent = Agent::start(&desk);
    agent.summary();
    // One pod is delivered, the other is not.
    let run = desk.run("status --root-dir root --wait --timeout 10m default/web");
    assert_eq!(run.code, 0, "{run:?}");
    let run = desk.run("status --root-dir root --wait --timeout 0s");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("default/late"), "{run:?}");
    assert_eq!(
        run.stderr,
        "larder: not everything was delivered within 0 s: default/late (volume cfg: configmap \"missing\" not found)\n"
    );
    assert!(waiting.try_wait().unwrap().is_none(), "ended too early");
    put(&desk, "missing.yaml", &config_map("missing", "k: v"));
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn wait_reports_pending_pods_and_reasons_once_per_change() {
    let desk = desk();
    put(&desk, "late.yaml", &pod("late", "missing"));
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["status", "--root-dir", "root", "--wait", "--timeout", "10m"])
        .current_dir(desk.path())
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
    until_line(
        &mut lines,
        &["waiting: no agent is listening on", "agent.sock"],
    );
    let mut agent = Agent::start(&desk);
    agent.summary();
    let late = [
        "larder: waiting for default/late (",
        "configmap \"missing\" not found",
    ];
    until_line(&mut lines, &late);
    put(&desk, "later.yaml", &pod("later", "unknown"));
    let later = [", default/later (", "configmap \"unknown\" not found"];
    until_line(&mut lines, &[late, later].concat());
    put(&desk, "missing.yaml", &config_map("missing", "k: v"));
    put(&desk, "unknown.yaml", &config_map("unknown", "k: v"));
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(rest.len() <= 2, "printed again without a change: {rest:?}");
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn wait_for_all_pods_includes_those_of_rejected_manifests() {
    let desk = desk();
    let bad = pod("bad", "app").replace("image: i, ", "");
    put(&desk, "bad.yaml", &bad);
    put(&desk, "syn.yaml", "kind: Pod\nmetadata: {");
    let mut agent = Agent::start(&desk);
    for _ in 0..2 {
        // There is no last good content.
        agent.event("manifest rejected");
    }
    agent.summary();
    let wait = "status --root-dir root --wait --timeout";
    let run = desk.run(&format!("{wait} 10m default/web"));
    assert_eq!(run.code, 0, "{run:?}");
    let run = desk.run(&format!("{wait} 100ms"));
    assert_eq!(run.code, 1, "{run:?}");
    for part in [
        "not everything was delivered within 0.1 s: m/bad.yaml: ",
        ", m/syn.yaml: ",
    ] {
        assert!(run.stderr.contains(part), "{part}: {run:?}");
    }
    std::fs::remove_file(desk.path().join("m/syn.yaml")).unwrap();
    put(&desk, "bad.yaml", &pod("bad", "app"));
    assert_eq!(desk.run(&format!("{wait} 10m")).code, 0);
}

#[test]
fn wait_for_pods_of_a_namespace_needs_one() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let wait = "status --root-dir root --wait --timeout";
    assert_eq!(desk.run(&format!("{wait} 10m -n default")).code, 0);
    let run = desk.run(&format!("{wait} 100ms -n typo"));
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(
        run.stderr,
        "larder: the agent serves no pod typo/*; `larder status` lists its pods\n\
         larder: not everything was delivered within 0.1 s: typo/* (not served by the agent)\n"
    );
    // A list may be empty, and so may everything.
    assert_eq!(desk.run("status --root-dir root -n typo").code, 0);
    std::fs::remove_file(desk.path().join("m/web.yaml")).unwrap();
    agent.event("volumes removed");
    assert_eq!(desk.run(&format!("{wait} 10m")).code, 0);
}

#[test]
fn wait_for_an_agent_that_never_runs_ends_with_1() {
    let run = Desk::with([]).run("status --root-dir root --wait --timeout 1ms");
    assert_eq!((run.code, &*run.stdout), (1, ""));
    assert!(run.stderr.contains("no agent is listening on"), "{run:?}");
}

#[test]
fn watch_prints_changes_until_its_reader_ends() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let mut watching = spawn(&desk, "--watch");
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    until_line(&mut lines, &["node n1: 1 pod,"]);
    until_line(&mut lines, &["default/web", "Delivered"]);
    put(&desk, "late.yaml", &pod("late", "missing"));
    until_line(
        &mut lines,
        &["default/late", "configmap \"missing\" not found"],
    );
    drop(lines);
    put(&desk, "missing.yaml", &config_map("missing", "k: v"));
    assert!(watching.wait().unwrap().success());
}

#[test]
fn conflicting_and_malformed_flags_are_bad_usage() {
    let desk = Desk::with([]);
    for args in [
        "--watch --wait",
        "--timeout 5s",
        "--wait --timeout 5",
        "a/b/c",
        "-o xml",
    ] {
        let run = desk.run(&format!("status --root-dir root {args}"));
        assert_eq!((run.code, &*run.stdout), (2, ""), "{args}: {run:?}");
    }
}
