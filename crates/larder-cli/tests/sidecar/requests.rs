//! Scripts and requests after a change. The time is real, since the application is.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    application::{Application, reply},
    world::{World, until},
};

fn with_request(application: &Application) -> World {
    let url = application.url("/-/reload?token=canary");
    World::new()
        .with("REQ_URL", &url)
        .with("REQ_METHOD", "POST")
        .with("REQ_RETRY_BACKOFF_FACTOR", "0.01")
}

fn script(world: &World, mode: u32, text: &str) -> (PathBuf, PathBuf) {
    let (path, log) = (
        world.root.path().join("script"),
        world.root.path().join("log"),
    );
    fs::write(
        &path,
        format!("{text}\necho run $LARDER_VOLUMES >> {}\n", log.display()),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (path, log)
}

// sidecar 30
#[tokio::test]
async fn burst_of_objects_causes_one_script_run_and_then_one_request() {
    let application = Application::start().await;
    let mut world = with_request(&application).with("LARDER_DEBOUNCE", "300ms:60s");
    let (path, log) = script(&world, 0o755, "#!/bin/sh\nsleep 0.05");
    world.set("SCRIPT", &path.display().to_string());
    world.config_map("n", "first", &[("first", "1")]);
    let _sidecar = world.ready().await;
    until(|| application.seen().len() == 1).await;
    let observed = log.clone();
    application.answers(move |_| {
        let runs = fs::read_to_string(&observed).unwrap();
        Some(reply(200, &[], runs.as_bytes()))
    });
    for number in 0..50 {
        let name = format!("o{number}");
        world.config_map("n", &name, &[(&name, "1")]);
    }
    until(|| application.seen().len() == 2).await;
    assert_eq!(fs::read_to_string(&log).unwrap(), "run files\nrun files\n");
    assert_eq!(
        application.seen()[1].line,
        "POST /-/reload?token=canary HTTP/1.1"
    );
}

// sidecar 31
#[tokio::test]
async fn sidecar_is_ready_before_the_application_which_is_asked_when_it_is_up() {
    let application = Application::start().await;
    let port = application.port;
    let world = with_request(&application)
        .with("REQ_RETRY_TOTAL", "50")
        .with("REQ_RETRY_CONNECT", "50");
    drop(application);
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    sidecar.until_request("Running").await;
    let application = Application::start_at(port).await;
    until(|| application.seen().len() == 1).await;
}

// sidecar 32
#[tokio::test]
async fn no_request_after_the_first_sync_if_it_is_to_be_skipped() {
    let application = Application::start().await;
    let world = with_request(&application).with("REQ_SKIP_INIT", "true");
    world.config_map("n", "a", &[("a", "1")]);
    let _sidecar = world.ready().await;
    world.config_map("n", "a", &[("a", "2")]);
    until(|| application.seen().len() == 1).await;
    world.config_map("n", "a", &[("a", "3")]);
    until(|| application.seen().len() == 2).await;
}

// sidecar 33
#[tokio::test]
async fn restart_without_a_change_causes_no_request() {
    let application = Application::start().await;
    let world = with_request(&application);
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    sidecar.until_request("Idle").await;
    assert_eq!(application.seen().len(), 1);
    sidecar.stop().await.unwrap();
    let sidecar = world.ready().await;
    sidecar.until_request("Idle").await;
    world.config_map("n", "a", &[("a", "2")]);
    until(|| application.seen().len() == 2).await;
}

// on-change 66, 67, 68
#[tokio::test]
async fn object_that_is_left_out_causes_no_request() {
    let application = Application::start().await;
    let world = with_request(&application);
    let left_out = |text: &str| {
        let annotations = json!({"larder.dev/on-change": "false"});
        let fields = json!({"data": {"a": text}, "metadata": {"annotations": annotations}});
        world.object("ConfigMap", "n", "a", &fields);
    };
    left_out("1");
    let sidecar = world.ready().await;
    sidecar.until_request("Idle").await;
    left_out("2");
    world.until_files("a=2").await;
    sidecar.stop().await.unwrap();
    left_out("3");
    let sidecar = world.ready().await;
    world.until_files("a=3").await;
    sidecar.until_request("Idle").await;
    assert_eq!(application.seen().len(), 1, "the first sync");
    world.config_map("n", "b", &[("b", "1")]);
    until(|| application.seen().len() == 2).await;
    sidecar.until_request("Idle").await;
    // Without the annotation.
    world.config_map("n", "a", &[("a", "3")]);
    until(|| application.seen().len() == 3).await;
}

// sidecar 34
#[tokio::test]
async fn refused_login_is_sent_once_for_each_change() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(401, &[], b"canary")));
    let world = with_request(&application)
        .with("REQ_USERNAME", "user")
        .with("REQ_PASSWORD", "canary")
        .with("REQ_PAYLOAD", "canary");
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    sidecar.until_request("Retrying").await;
    let body = sidecar.health.ready(tokio::time::Instant::now()).body;
    assert!(
        body.contains("answered 401") && !body.contains("canary"),
        "{body}"
    );
    assert_eq!(application.seen().len(), 1, "an account may be locked");
    application.answers(|_| Some(reply(204, &[], b"")));
    world.config_map("n", "a", &[("a", "2")]);
    sidecar.until_request("Idle").await;
    assert_eq!(application.seen().len(), 2);
}

// sidecar 34
#[tokio::test]
async fn refused_login_is_repeated_when_the_file_of_its_password_changes() {
    let application = Application::start().await;
    application.answers(|seen| {
        let is_right = seen.headers["authorization"] == "Basic dTp0d28=";
        Some(reply(if is_right { 200 } else { 403 }, &[], b""))
    });
    let mut world = with_request(&application).with("REQ_USERNAME", "u");
    let path = world.root.path().join("password");
    fs::write(&path, "one").unwrap();
    world.set("REQ_PASSWORD_FILE", &path.display().to_string());
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    until(|| application.seen().len() == 1).await;
    fs::write(&path, "two").unwrap();
    sidecar.until_request("Idle").await;
    assert_eq!(application.seen().len(), 2);
}

// sidecar 50
#[tokio::test]
async fn end_does_not_wait_for_the_next_try() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(503, &[], b"")));
    let world = with_request(&application).with("REQ_RETRY_BACKOFF_FACTOR", "60");
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    // The first retry has no pause before it.
    until(|| application.seen().len() == 2).await;
    let began = Instant::now();
    sidecar.stop().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "the time for a round that runs"
    );
}

// sidecar 35
#[tokio::test]
async fn files_change_while_a_request_hangs() {
    let application = Application::start().await;
    application.answers(|_| None);
    let world = with_request(&application);
    world.config_map("n", "a", &[("a", "1")]);
    let _sidecar = world.ready().await;
    until(|| application.seen().len() == 1).await;
    world.config_map("n", "a", &[("a", "2")]);
    world.until_files("a=2").await;
    assert_eq!(application.seen().len(), 1);
}

// sidecar 36
#[tokio::test]
async fn script_that_fails_or_hangs_does_not_keep_the_request_away() {
    for (mode, end, limit) in [
        (0o644, "exit 1", "1m"),
        (0o755, "exit 1", "1m"),
        (0o755, "sleep 600", "10s"),
    ] {
        let application = Application::start().await;
        let mut world = with_request(&application).with("LARDER_SCRIPT_TIMEOUT", limit);
        let pid = world.root.path().join("pid");
        let text = format!("#!/bin/sh\necho $$ > {}\n{end}", pid.display());
        let (path, _) = script(&world, mode, &text);
        world.set("SCRIPT", &path.display().to_string());
        world.config_map("n", "a", &[("a", "1")]);
        let _sidecar = world.ready().await;
        until(|| application.seen().len() == 1).await;
        let pid = fs::read_to_string(pid).unwrap();
        let process = PathBuf::from("/proc").join(pid.trim());
        until(|| !process.exists()).await;
    }
    // Without the right to execute it, `sh` reads it.
    let mut world = World::new();
    let (path, log) = script(&world, 0o644, "");
    world.set("SCRIPT", &path.display().to_string());
    world.config_map("n", "a", &[("a", "1")]);
    let _sidecar = world.ready().await;
    until(|| fs::read_to_string(&log).is_ok_and(|log| log == "run files\n")).await;
}

// sidecar 37
#[tokio::test]
async fn payload_is_sent_as_json() {
    for (payload, expected) in [(r#"{"a": 1}"#, r#"{"a":1}"#), ("abc", "\"abc\"")] {
        let application = Application::start().await;
        let world = with_request(&application).with("REQ_PAYLOAD", payload);
        world.config_map("n", "a", &[("a", "1")]);
        let _sidecar = world.ready().await;
        until(|| application.seen().len() == 1).await;
        let request = application.seen().remove(0);
        assert_eq!(request.body, expected);
        assert_eq!(request.headers["content-type"], "application/json");
    }
}

// sidecar 38
#[tokio::test]
async fn next_request_has_the_password_that_was_just_written() {
    let application = Application::start().await;
    let mut world = with_request(&application).with("REQ_USERNAME", "u");
    let path = world.root.path().join("password");
    fs::write(&path, "one\n").unwrap();
    world.set("REQ_PASSWORD_FILE", &path.display().to_string());
    world.config_map("n", "a", &[("a", "1")]);
    let _sidecar = world.ready().await;
    until(|| application.seen().len() == 1).await;
    fs::write(&path, "two\n").unwrap();
    world.config_map("n", "a", &[("a", "2")]);
    until(|| application.seen().len() == 2).await;
    let sent = application.seen().into_iter();
    let sent: Vec<_> = sent
        .map(|seen| seen.headers["authorization"].clone())
        .collect();
    assert_eq!(sent, ["Basic dTpvbmU=", "Basic dTp0d28="]);
}

// sidecar 39
#[tokio::test]
async fn list_with_a_failing_request_succeeds_after_the_fast_retries() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(503, &[], b"")));
    let world = with_request(&application).with("METHOD", "LIST");
    world.config_map("n", "a", &[("a", "1")]);
    assert_eq!(world.start().ended().await, Ok(()));
    assert_eq!(application.seen().len(), 6);
}

// sidecar 39
#[tokio::test]
async fn list_with_a_refused_login_fails() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(401, &[], b"")));
    let world = with_request(&application).with("METHOD", "LIST");
    world.config_map("n", "a", &[("a", "1")]);
    let ended = world.start().ended().await.unwrap_err().to_string();
    assert!(ended.contains("answered 401"), "{ended}");
    assert_eq!(application.seen().len(), 1);
}

// sidecar 49
#[tokio::test]
async fn native_sidecar_is_ready_while_the_application_waits_for_it() {
    // The application starts only when the sidecar is ready, and then answers.
    let application = Application::start().await;
    let port = application.port;
    let world = with_request(&application)
        .with("REQ_RETRY_TOTAL", "50")
        .with("REQ_RETRY_CONNECT", "50");
    drop(application);
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.start();
    until(|| sidecar.health.ready(tokio::time::Instant::now()).is_ok).await;
    let application = Application::start_at(port).await;
    until(|| application.seen().len() == 1).await;
}

// sidecar 50
#[tokio::test]
async fn end_during_a_request_is_soon_and_the_request_is_sent_again() {
    let application = Application::start().await;
    application.answers(|_| None);
    let world = with_request(&application);
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    until(|| application.seen().len() == 1).await;
    let began = Instant::now();
    sidecar.stop().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "it ends by itself"
    );
    assert_eq!(world.files(), "a=1");
    application.answers(|_| Some(reply(200, &[], b"")));
    let _sidecar = world.ready().await;
    until(|| application.seen().len() == 2).await;
}

// sidecar 44
#[tokio::test]
async fn port_in_use_is_a_warning() {
    let application = Application::start().await;
    let world = World::new()
        .with("HEALTH_HOST", "127.0.0.1")
        .with("HEALTH_PORT", &application.port.to_string());
    world.config_map("n", "a", &[("a", "1")]);
    let _sidecar = world.ready().await;
    world.until_files("a=1").await;
}

// sidecar 43
#[tokio::test]
async fn probe_of_the_label_form_is_healthz() {
    let application = Application::start().await;
    let port = application.port;
    drop(application);
    let world = World::new()
        .with("HEALTH_HOST", "127.0.0.1")
        .with("HEALTH_PORT", &port.to_string());
    let fault = larder_apiserver::Fault::on_any().status(403);
    let fault = world.api.faults().inject(fault);
    let sidecar = world.start();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let check = async |path: &'static str| {
        let task = tokio::task::spawn_blocking(move || {
            larder_sidecar::check(address, path, Duration::from_secs(10))
        });
        task.await.unwrap()
    };
    loop {
        let answer = check("/healthz").await;
        let text = answer.expect_err("it is not ready");
        if text.starts_with("not ready: cannot ") {
            assert!(text.contains("configmaps in namespace n"), "{text}");
            break;
        }
    }
    fault.lift();
    until(|| sidecar.health.is_ready()).await;
    for path in ["/healthz", "/livez", "/readyz", "/metrics"] {
        assert_eq!(check(path).await, Ok(()), "{path}");
    }
    assert!(check("/healthz?max-age=0s").await.is_err());
    assert!(check("/secrets").await.is_err());
}
