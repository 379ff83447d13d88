//! The reference of all metrics, written from what an agent with everything turned on shows at its first scrape. A test of
//! `larder-agent` makes sure that this is every metric that is registered.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use expect_test::expect_file;

use crate::{
    Desk,
    run::{Agent, desk, until},
    service::get,
};

/// One metric in the exposition.
#[derive(Default)]
struct Metric {
    help: String,
    kind: String,
    labels: BTreeMap<String, Vec<String>>,
}

/// The metrics of an exposition in OpenMetrics' text format, by name.
fn parse(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::<String, Metric>::new();
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                help.clone_into(&mut metrics.entry(name.to_owned()).or_default().help);
            }
            ["#", "TYPE", name, kind] => {
                kind.clone_into(&mut metrics.entry(name.to_owned()).or_default().kind);
            }
            ["#", ..] => {}
            _ => {
                let Some((name, rest)) = line.split_once('{') else {
                    continue;
                };
                // A sample's name is the metric's and a suffix.
                let metric = metrics
                    .iter_mut()
                    .filter(|(known, _)| name.starts_with(known.as_str()));
                let (_, metric) = metric.max_by_key(|(known, _)| known.len()).unwrap();
                let (labels, _) = rest.rsplit_once('}').unwrap();
                for label in labels.split("\",").filter(|label| !label.is_empty()) {
                    let (label, value) = label.split_once("=\"").unwrap();
                    let values = metric.labels.entry(label.to_owned()).or_default();
                    let value = value.trim_end_matches('"').to_owned();
                    if label != "le" && !values.contains(&value) {
                        values.push(value);
                    }
                }
            }
        }
    }
    metrics
}

/// `docs/metrics.md`, from the metrics of agents and of a sidecar.
fn reference(agents: &BTreeMap<String, Metric>, sidecar: &BTreeMap<String, Metric>) -> String {
    format!(
        "# Metrics

In OpenMetrics' text format, at `/metrics`. Labels have the values of small fixed sets; no metric names a pod or an
object. [monitoring/](../monitoring) has alert rules and a dashboard.

## Agent

At the address of `larder run --listen ADDR`. The `kubelet_` metrics are those of the kubelet, under its names.

{}
## Sidecar

At the address of the sidecar's health: that of `--listen` or, with variables, port 8080 or `HEALTH_PORT`.

{}",
        table(agents),
        table(sidecar)
    )
}

fn table(metrics: &BTreeMap<String, Metric>) -> String {
    let mut text = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for (name, metric) in metrics {
        let suffix = if metric.kind == "counter" {
            "_total"
        } else {
            ""
        };
        let labels = metric.labels.keys().filter(|label| *label != "le");
        let labels: Vec<_> = labels.map(|label| format!("`{label}`")).collect();
        let help = metric.help.trim_end_matches('.');
        let row = format!(
            "| `{name}{suffix}` | {} | {} | {help} |\n",
            metric.kind,
            labels.join(", ")
        );
        text.push_str(&row);
    }
    text
}

#[test]
fn reference_has_every_metric() {
    let server = desk();
    let kubeconfig = server.path().join("kubeconfig");
    let mut apiserver = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args([
            "apiserver",
            "--manifests",
            "m",
            "--kubeconfig-out",
            "kubeconfig",
        ])
        .current_dir(server.path())
        .env_clear()
        .spawn()
        .unwrap();
    while !kubeconfig.exists() {
        std::thread::yield_now();
    }
    // Metrics that only one of the modes has.
    let checkpoint = ("", "checkpoint: {key: 'file:key'}");
    let beside = "beside: {kubeletRootDir: kubelet, lockDir: locks}";
    let mut metrics = BTreeMap::new();
    for (flag, config) in [checkpoint, (" --beside-kubelet", beside)] {
        let desk = Desk::with([("agent.yaml", config)]);
        fs::create_dir(desk.path().join("kubelet")).unwrap();
        fs::copy(&kubeconfig, desk.path().join("kubeconfig")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.env_clear();
        let origin = format!("--kubeconfig kubeconfig --node-name n1 --config agent.yaml{flag}");
        let mut agent = Agent::spawn(&desk, command, &origin);
        let address = agent.event("listening")["address"].clone();
        agent.summary();
        let (_, text) = get(address.as_str().unwrap(), "/metrics", "*/*");
        for (name, metric) in parse(&text) {
            metrics.entry(name).or_insert(metric);
        }
    }
    apiserver.kill().unwrap();
    apiserver.wait().unwrap();
    // The names that alerts and dashboard use.
    for name in [
        "larder_pods",
        "larder_healthy",
        "larder_ready",
        "larder_transport_dials",
        "larder_beside_touches",
    ] {
        assert!(metrics.contains_key(name), "{name}");
    }
    let sidecar = crate::sidecar::metrics::exposition(&server.path().join("kubeconfig"));
    expect_file!["../../../../docs/metrics.md"].assert_eq(&reference(&metrics, &parse(&sidecar)));
}

#[tokio::test]
async fn rejected_manifest_is_counted_until_it_is_mended() {
    let desk = Desk::with([]);
    let manifest = desk.path().join("m/bad.yaml");
    fs::create_dir(desk.path().join("m")).unwrap();
    fs::write(
        &manifest,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 7}\n",
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let flags = "--manifests m --node-name n1";
    let mut agent = Agent::spawn(&desk, command, flags);
    let address = agent.event("listening")["address"].clone();
    agent.collect_log();
    let problems = || {
        let (_, text) = get(address.as_str().unwrap(), "/metrics", "*/*");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("larder_problems "));
        line.unwrap_or_default().to_owned()
    };
    until("the problem", || problems() == "1").await;
    let mended = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    desk.replace("m/bad.yaml", mended);
    until("the end of the problem", || problems() == "0").await;
}

/// The names of metrics in a text, also those of single samples.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| {
        let is_metric = word.starts_with("larder_") || word.starts_with("kubelet_");
        // Neither a prefix of several, nor the name of a package.
        is_metric && !word.ends_with('_') && !word.contains(|letter: char| letter.is_ascii_digit())
    })
}

#[test]
fn metrics_that_are_named_exist() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(project.join(path)).unwrap();
    let reference = read("docs/metrics.md");
    let known: BTreeSet<_> = named(&reference).collect();
    let is_sample = |name: &str| {
        let suffixes = ["_bucket", "_count", "_sum", "_info"];
        let metric = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        metric.is_some_and(|metric| known.contains(metric))
    };
    let is_crate = |name: &str| project.join("crates").join(name.replace('_', "-")).exists();
    let documents = fs::read_dir(project.join("docs")).unwrap();
    let documents = documents.map(|entry| entry.unwrap().path());
    let others = [
        "README.md",
        "CHANGELOG.md",
        "monitoring/alerts.yaml",
        "monitoring/dashboard.json",
    ];
    let all = documents.chain(others.map(|path| project.join(path)));
    for path in
        all.filter(|path| path.is_file() && path.extension().is_some_and(|kind| kind != "txt"))
    {
        let text = fs::read_to_string(&path).unwrap();
        for name in named(&text) {
            // A package that a generator makes.
            let is_other = is_crate(name) || name == "larder_agent_client";
            assert!(
                known.contains(name) || is_sample(name) || is_other,
                "{}: {name}",
                path.display()
            );
        }
    }
}

#[test]
fn runbook_has_an_entry_for_each_alert() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(project.join(path)).unwrap();
    let (alerts, runbook) = (read("monitoring/alerts.yaml"), read("docs/runbook.md"));
    let alerts = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let entries = runbook.lines().filter_map(|line| line.strip_prefix("## "));
    let entries: BTreeSet<_> = entries
        .filter(|entry| entry.starts_with("Larder"))
        .collect();
    assert_eq!(alerts.collect::<BTreeSet<_>>(), entries);
}
