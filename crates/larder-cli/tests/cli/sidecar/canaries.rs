//! Values of Secrets, credentials and payloads appear in no output.

use std::{
    fs,
    io::Read as _,
    path::Path,
    process::{Output, Stdio},
    thread,
};

use rustix::process::Signal;
use serde_json::json;

use super::{Sidecar, World, stderr};
use crate::run::until;

const CANARY: &str = "canary-of-the-sidecar";
/// The same in base64.
const ENCODED: &str = "Y2FuYXJ5LW9mLXRoZS1zaWRlY2Fy";

#[track_caller]
fn check(what: &str, text: &str) {
    let is_shown = text.contains(CANARY) || text.contains(ENCODED);
    assert!(!is_shown, "{what} shows it: {text}");
}

/// Objects whose values are canaries, some of which cannot be written, or fetched.
async fn world() -> World {
    let world = World::new().await;
    let labeled = |name: &str| json!({"name": name, "labels": {"l": "1"}});
    let map = json!({"metadata": labeled("a"), "data": {"a.json": "{}"}});
    world.create("ConfigMap", map).await;
    let url = format!("http://user:{CANARY}@127.0.0.1:1/x?token={CANARY}");
    let secret = json!({
        "metadata": labeled("s"),
        "stringData": {"s": CANARY, "blocked": CANARY, "fetched.url": url, "broken.url": CANARY},
    });
    world.create("Secret", secret).await;
    world
}

fn variables(url: &str) -> [(&str, &str); 12] {
    [
        ("LABEL", "l"),
        ("RESOURCE", "both"),
        ("LOG_LEVEL", "DEBUG"),
        ("REQ_URL", url),
        ("REQ_METHOD", "POST"),
        ("REQ_PAYLOAD", CANARY),
        ("REQ_USERNAME", "user"),
        ("REQ_PASSWORD", CANARY),
        ("REQ_RETRY_TOTAL", "1"),
        ("REQ_RETRY_BACKOFF_FACTOR", "0"),
        ("LARDER_URL_CREDENTIALS", "Always"),
        ("LARDER_URL_REFRESH", "0"),
    ]
}

/// Checks every file below `directory`, and counts them.
fn check_files(directory: &Path) -> usize {
    let mut levels = vec![directory.to_owned()];
    let mut seen = 0;
    while let Some(level) = levels.pop() {
        for entry in fs::read_dir(level).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                levels.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            check(
                &path.display().to_string(),
                &String::from_utf8_lossy(&bytes),
            );
            seen += 1;
        }
    }
    seen
}

// sidecar 34, 63
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canaries_are_in_no_log_metric_status_and_index_of_labels() {
    let world = world().await;
    // A directory in the way of a key: an error that is retried.
    let folder = world.path().join("folder");
    fs::create_dir_all(folder.join("blocked/in the way")).unwrap();
    let url = format!("http://user:{CANARY}@127.0.0.1:1/reload?token={CANARY}");
    let mut command = world.sidecar(&[], &variables(&url));
    command.stderr(Stdio::piped());
    let mut sidecar = Sidecar::start(command);
    let mut log = sidecar.child.stderr.take().unwrap();
    let log = thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    until("files", || {
        folder.join("a.json").exists() && folder.join("s").exists()
    })
    .await;
    let paths = ["/healthz", "/readyz", "/livez", "/metrics"];
    for path in paths {
        until("an answer", || sidecar.ask(path).is_some()).await;
        check(path, &sidecar.ask(path).unwrap().1);
    }
    fs::remove_dir_all(folder.join("blocked")).unwrap();
    sidecar.until_ok("/readyz").await;
    until("the failed request", || {
        sidecar.ask("/readyz").unwrap().1.contains("Retrying")
    })
    .await;
    for path in paths {
        check(path, &sidecar.ask(path).unwrap().1);
    }
    assert_eq!(sidecar.signal(Signal::TERM), Some(0));
    let log = log.join().unwrap();
    check("the log", &log);
    for text in ["cannot write", "request failed", "round failed"] {
        assert!(log.contains(text), "no {text} in {log}");
    }
    for line in log.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let names: Vec<_> = event.as_object().unwrap().keys().collect();
        assert_eq!(names, ["level", "msg", "time"]);
    }
    assert_eq!(check_files(&world.path().join("state")), 1, "the index");
    assert_eq!(fs::read_to_string(folder.join("s")).unwrap(), CANARY);
}

fn code(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), stderr(output))
}

// sidecar 48, 63
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canaries_are_in_no_output_of_runs_that_end() {
    let world = world().await;
    let url = format!("http://user:{CANARY}@127.0.0.1:1/reload?token={CANARY}");
    for (url_keys, expected, text) in [
        ("Fetch", Some(1), "cannot fetch"),
        ("Ignore", Some(0), "request failed"),
    ] {
        let mut command = world.sidecar(&[], &variables(&url));
        command.envs([("METHOD", "LIST"), ("LARDER_URL_KEYS", url_keys)]);
        let (status, log) = code(&command.output().unwrap());
        assert_eq!(status, expected, "{log}");
        assert!(log.contains(text), "{log}");
        check("the log", &log);
    }

    let kubeconfig = ["--kubeconfig", &world.kubeconfig, "--state-dir", "state-2"];
    let once = ["--secret", "default/s:volume,mode=0400", "--once"];
    let mut command = world.sidecar(&[&once[..], &kubeconfig].concat(), &[("LABEL", "l")]);
    let (status, log) = code(&command.env("LARDER_LOG", "trace").output().unwrap());
    assert_eq!(status, Some(0), "{log}");
    assert!(
        log.contains("variables of the label form are ignored"),
        "{log}"
    );
    check("the log", &log);
    let volume = world.path().join("volume");
    assert_eq!(fs::read_to_string(volume.join("s")).unwrap(), CANARY);
    check_files(&world.path().join("state-2"));

    let missing = ["--config-map", "default/none:other", "--once-timeout", "1s"];
    let args = [&missing[..], &["--once"], &kubeconfig].concat();
    let (status, log) = code(&world.sidecar(&args, &[]).output().unwrap());
    assert_eq!(status, Some(1));
    assert!(log.contains("default/none"), "{log}");
}
