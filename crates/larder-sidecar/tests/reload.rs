//! The reload form of configmap-reload. The time is real, since the kernel's notices are.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "shared/application.rs"]
mod application;

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use larder_e2e::HungFs;
use larder_on_change::HttpUrl;
use larder_sidecar::{ReloadSettings, check, run_reload};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    runtime::Builder,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::application::{Application, reply};

/// Makes a volume hold a new set, as the kubelet does.
fn swap(volume: &Path, set: &str, content: &str) {
    fs::create_dir_all(volume.join(set)).unwrap();
    fs::write(volume.join(set).join("k"), content).unwrap();
    symlink(set, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
}

/// Settings with a free port.
async fn settings(volumes: Vec<PathBuf>, urls: &[String], attempts: u32) -> ReloadSettings {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = port.local_addr().unwrap();
    ReloadSettings {
        volume_dirs: volumes,
        webhooks: urls
            .iter()
            .map(|url| HttpUrl::parse(url).unwrap())
            .collect(),
        method: "POST",
        status: 200,
        attempts,
        listen,
        telemetry_path: "/metrics".to_owned(),
    }
}

async fn start(volumes: Vec<PathBuf>, urls: &[String], attempts: u32) -> (JoinSet<()>, SocketAddr) {
    let settings = settings(volumes, urls, attempts).await;
    let listen = settings.listen;
    let mut task = JoinSet::new();
    task.spawn(async move {
        run_reload(settings, CancellationToken::new())
            .await
            .unwrap();
    });
    // Then it watches the directories, and has read them.
    let up = async {
        while spawn_blocking(move || check(listen, "/healthz", Duration::from_secs(10)))
            .await
            .unwrap()
            .is_err()
        {}
    };
    timeout(Duration::from_mins(1), up).await.unwrap();
    (task, listen)
}

#[tokio::test]
async fn health_is_bad_until_the_directories_are_watched() {
    let volume = TempDir::new().unwrap();
    let Some(mut hung) = HungFs::mount(volume.path()) else {
        return;
    };
    let settings = settings(vec![volume.path().join("v")], &[], 1).await;
    let (listen, shutdown) = (settings.listen, CancellationToken::new());
    let ended = shutdown.clone();
    let sidecar = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run_reload(settings, ended)).unwrap();
    });
    let answer = loop {
        let asked = move || check(listen, "/healthz", Duration::from_secs(10));
        match spawn_blocking(asked).await.unwrap() {
            Err(answer) if answer.contains("watched") => break answer,
            // It does not listen yet.
            Err(_) => {}
            Ok(()) => panic!("no directory is watched"),
        }
    };
    assert!(
        answer.contains("the directories are not watched yet"),
        "{answer}"
    );
    hung.abort();
    shutdown.cancel();
    sidecar.join().unwrap();
}

async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_mins(1), wait)
        .await
        .expect("it comes true");
}

// sidecar 52
#[tokio::test]
async fn webhook_is_asked_for_other_bytes_only() {
    let root = TempDir::new().unwrap();
    let (one, two) = (root.path().join("one"), root.path().join("two"));
    swap(&one, "..1", "1");
    swap(&two, "..1", "1");
    let application = Application::start().await;
    let (_task, _) = start(
        vec![one.clone(), two.clone()],
        &[application.url("/-/reload")],
        1,
    )
    .await;
    swap(&one, "..2", "1");
    // The same bytes fire nothing; both directories together fire once.
    swap(&one, "..3", "2");
    swap(&two, "..3", "2");
    until(|| !application.seen().is_empty()).await;
    let request = application.seen().remove(0);
    assert_eq!(request.line, "POST /-/reload HTTP/1.1");
    assert!(request.body.is_empty() && request.headers.contains_key("larder-round"));
    swap(&two, "..4", "3");
    until(|| application.seen().len() >= 2).await;
    swap(&two, "..5", "3");
    swap(&one, "..5", "4");
    until(|| application.seen().len() >= 3).await;
    assert_eq!(application.seen().len(), 3);
}

// sidecar 53
#[tokio::test]
async fn webhook_that_is_down_does_not_delay_another() {
    let root = TempDir::new().unwrap();
    let volume = root.path().join("v");
    swap(&volume, "..1", "1");
    let (hanging, up) = (Application::start().await, Application::start().await);
    hanging.answers(|_| None);
    let urls = [hanging.url("/a"), up.url("/b")];
    let (_task, _) = start(vec![volume.clone()], &urls, 1).await;
    swap(&volume, "..2", "2");
    until(|| up.seen().len() == 1 && hanging.seen().len() == 1).await;
}

#[tokio::test]
async fn links_in_a_volume_are_not_followed() {
    let root = TempDir::new().unwrap();
    let volume = root.path().join("v");
    swap(&volume, "..1", "1");
    let application = Application::start().await;
    let (_task, _) = start(vec![volume.clone()], &[application.url("/a")], 1).await;
    // Eight levels of twenty links that lead back are 25 billion paths.
    fs::create_dir(volume.join("..2")).unwrap();
    for number in 0..20 {
        symlink(".", volume.join(format!("..2/{number}"))).unwrap();
    }
    swap(&volume, "..2", "2");
    until(|| application.seen().len() == 1).await;
}

#[tokio::test]
async fn failed_webhook_is_retried() {
    let root = TempDir::new().unwrap();
    let volume = root.path().join("v");
    swap(&volume, "..1", "1");
    let application = Application::start().await;
    application.answers(|_| Some(reply(500, &[], b"")));
    let (_task, _) = start(vec![volume.clone()], &[application.url("/a")], 3).await;
    swap(&volume, "..2", "2");
    until(|| application.seen().len() == 3).await;
    application.answers(|_| Some(reply(200, &[], b"")));
    until(|| application.seen().len() == 4).await;
}
