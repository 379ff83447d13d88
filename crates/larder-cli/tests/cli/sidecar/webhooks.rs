//! The reload form, called as `configmap-reload`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
};

use larder_e2e::reserved_port;
use rustix::process::Signal;

use super::{
    Sidecar,
    application::{Application, reply},
};
use crate::{Desk, run::until};

const SIDECAR: &str = env!("CARGO_BIN_EXE_larder-sidecar");

/// Makes a volume hold a new set, as the kubelet does.
fn swap(volume: &Path, set: &str) {
    fs::create_dir_all(volume.join(set)).unwrap();
    fs::write(volume.join(set).join("k"), set).unwrap();
    symlink(set, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
}

/// `executable` under the name of configmap-reload.
fn configmap_reload(desk: &Desk, executable: &str, args: &[&str]) -> Command {
    let link = desk.path().join("configmap-reload");
    symlink(executable, &link).unwrap();
    let mut command = Command::new(&link);
    command
        .args(args)
        .current_dir(desk.path())
        .env_clear()
        .env("LABEL", "ignored");
    command
}

/// The type of each metric, and the label sets that it has, without the values of `webhook`.
fn metrics(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut found: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            let total = if kind == "counter" { "_total" } else { "" };
            let name = format!("{}{total}", name.trim_end_matches("_total"));
            kind.clone_into(&mut found.entry(name).or_default().0);
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split(',');
            let labels: BTreeSet<_> = labels
                .map(|label| match label.split_once('=') {
                    Some(("webhook", _)) | None => label.split('=').next().unwrap(),
                    Some(_) => label,
                })
                .collect();
            let labels = Vec::from_iter(labels).join(",");
            found.entry(name.to_owned()).or_default().1.insert(labels);
        }
    }
    found
}

// sidecar 2
#[test]
fn called_as_configmap_reload_it_takes_the_flags_of_that_program_only() {
    for executable in [SIDECAR, env!("CARGO_BIN_EXE_larder")] {
        let desk = Desk::with([]);
        let output = configmap_reload(&desk, executable, &["--config-map=n/a:/d"]).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{executable}");
    }
}

// sidecar 2, 59: of configmap-reload; the other program of that scenario is left out
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_configmap_reload_have_its_names_types_and_labels() {
    let desk = Desk::with([]);
    let volume = desk.path().join("volume");
    swap(&volume, "..1");
    let application = Application::start().await;
    application.answers(|seen| {
        let status = if seen.line.contains("/bad") { 500 } else { 200 };
        Some(reply(status, &[], b""))
    });
    let port = reserved_port().unwrap();
    let listen = format!("-web.listen-address=127.0.0.1:{port}");
    let (good, bad) = (application.url("/good"), application.url("/bad"));
    let good = good.replace("http://", "http://user:canary@");
    let args = [
        "-volume-dir=volume",
        &listen,
        &format!("-webhook-url={good}"),
        &format!("-webhook-url={bad}"),
        "-webhook-url=http://127.0.0.1:1/down",
    ];
    let mut sidecar = Sidecar::start_at(port, configmap_reload(&desk, SIDECAR, &args));
    sidecar.until_ok("/healthz").await;
    // As recorded from configmap-reload 0ec4d67 with such webhooks.
    let expected = [
        ("last_reload_error", "gauge", &["webhook"][..]),
        ("last_request_duration_seconds", "gauge", &["webhook"]),
        (
            "request_errors_total",
            "counter",
            &[
                "reason=\"client_request_do\",webhook",
                "reason=\"client_response\",webhook",
                "reason=\"retries_exhausted\",webhook",
            ],
        ),
        (
            "requests_total",
            "counter",
            &["status_code=\"200\",webhook", "status_code=\"500\",webhook"],
        ),
        ("success_reloads_total", "counter", &["webhook"]),
        ("watcher_errors_total", "counter", &[""]),
    ];
    let expected = expected.map(|(name, kind, labels)| {
        let labels = labels.iter().map(ToString::to_string).collect();
        (
            format!("configmap_reload_{name}"),
            (kind.to_owned(), labels),
        )
    });
    let expected = BTreeMap::from(expected);
    let scrape = || sidecar.ask("/metrics").unwrap().1;
    swap(&volume, "..2");
    until("one answer of each webhook", || {
        application.seen().len() >= 2 && metrics(&scrape()) == expected
    })
    .await;
    assert!(!scrape().contains("canary"));
    assert_eq!(sidecar.signal(Signal::TERM), Some(0));
}
