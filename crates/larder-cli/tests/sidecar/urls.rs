//! `*.url` keys.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use larder_sidecar::{RunError, run_label};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    application::{Application, reply},
    world::{World, until},
};

fn world(refresh: &str) -> World {
    World::new()
        // The application is on a loopback address.
        .with("LARDER_URL_CREDENTIALS", "Always")
        .with("LARDER_URL_REFRESH", refresh)
        .with("REQ_RETRY_BACKOFF_FACTOR", "0")
}

// sidecar 24
#[tokio::test]
async fn failure_keeps_the_old_file_and_the_first_one_leaves_none() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(200, &[], b"one")));
    let world = world("20ms");
    world.config_map("n", "a", &[("x.json.url", &application.url("/x"))]);
    let sidecar = world.ready().await;
    world.until_files("x.json=one").await;
    for status in [404, 500] {
        let before = application.seen().len();
        application.answers(move |_| Some(reply(status, &[], b"broken")));
        until(|| application.seen().len() >= before + 2).await;
        assert_eq!(world.files(), "x.json=one");
        application.answers(|_| Some(reply(200, &[], b"one")));
    }
    application.answers(|_| Some(reply(200, &[], b"two")));
    world.until_files("x.json=two").await;
    sidecar.stop().await.unwrap();

    let other = World::new()
        .with("LARDER_URL_CREDENTIALS", "Always")
        .with("REQ_TIMEOUT", "0.2");
    application.answers(|_| None);
    other.config_map("n", "a", &[("x.url", &application.url("/x")), ("y", "1")]);
    let _sidecar = other.ready().await;
    assert_eq!(other.files(), "y=1", "ready after the attempt");
    application.answers(|_| Some(reply(200, &[], b"late")));
    other.until_files("x=late y=1").await;
}

// sidecar 25
#[tokio::test]
async fn body_of_a_500_is_the_file_if_that_is_enabled() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(500, &[], b"500")));
    let world = world("0").with("ENABLE_5XX", "true");
    world.config_map("n", "a", &[("500.txt.url", &application.url("/500"))]);
    let _sidecar = world.ready().await;
    assert_eq!(world.files(), "500.txt=500");
}

// sidecar 26
#[tokio::test]
async fn credentials_go_where_the_user_says_or_to_the_first_host_if_always() {
    let (own, other) = (Application::start().await, Application::start().await);
    let target = other.url("/redirected");
    let redirect = move |_: &_| Some(reply(302, &[("Location", &target)], b""));
    own.answers(redirect);
    other.answers(|_| Some(reply(200, &[], b"ok")));
    let with = |always: &str| {
        world("0")
            .with("REQ_RETRY_TOTAL", "0")
            .with("REQ_USERNAME", "u")
            .with("REQ_PASSWORD", "p")
            .with("LARDER_URL_CREDENTIALS", always)
    };
    let has_credentials = |application: &Application| {
        let seen = application.seen().into_iter();
        let has = seen.map(|seen| seen.headers.contains_key("authorization"));
        has.collect::<Vec<_>>()
    };
    let world = with(&format!("{},http://other/", own.url("/public/")));
    let application = own.url("/public/../api/admin");
    for (name, url) in [
        ("a", &own.url("/public/a")),
        ("b", &application),
        ("c", &other.url("/c")),
    ] {
        world.config_map("n", name, &[(&format!("{name}.url"), url)]);
    }
    let sidecar = world.ready().await;
    // Without leave, no loopback address is asked at all, nor by a redirect.
    assert_eq!(world.files(), "");
    assert_eq!(has_credentials(&own), [true]);
    assert_eq!(has_credentials(&other), [false; 0]);
    sidecar.stop().await.unwrap();

    let (third, fourth) = (Application::start().await, Application::start().await);
    let target = fourth.url("/redirected");
    third.answers(move |_| Some(reply(307, &[("Location", &target)], b"")));
    let world = with("Always");
    world.config_map("n", "c", &[("c.url", &third.url("/c"))]);
    let _sidecar = world.ready().await;
    assert_eq!(has_credentials(&third), [true]);
    assert_eq!(has_credentials(&fourth), [false; 0]);
}

// sidecar 27
#[tokio::test]
async fn metadata_files_long_answers_and_many_redirects_are_refused() {
    let application = Application::start().await;
    let target = application.url("/again");
    application.answers(move |seen| {
        if seen.line.contains("/long") {
            return Some(reply(200, &[], &vec![b'x'; 17 << 20]));
        }
        Some(reply(302, &[("Location", &target)], b""))
    });
    let world = world("0").with("REQ_RETRY_TOTAL", "0");
    let urls = [
        ("a.url", "http://169.254.169.254/latest"),
        ("b.url", "file:///etc/passwd"),
        ("c.url", "http://[fe80::1]/"),
        ("d.url", &application.url("/long")),
        ("e.url", &application.url("/loop")),
    ];
    world.config_map("n", "a", &urls);
    world.config_map("n", "b", &[("ok", "1"), (".url", "http://127.0.0.1/")]);
    let _sidecar = world.ready().await;
    assert_eq!(world.files(), "ok=1");
    assert_eq!(application.seen().len(), 1 + 6);
}

// sidecar 24
#[tokio::test]
async fn hosts_that_never_answer_delay_readiness_by_one_timeout_and_no_other_object() {
    let application = Application::start().await;
    application.answers(|seen| seen.line.contains("/ok").then(|| reply(200, &[], b"1")));
    let world = world("0").with("REQ_TIMEOUT", "5");
    let silent: Vec<_> = (0..30).map(|key| format!("k{key}.url")).collect();
    let url = application.url("/silent");
    let silent: Vec<_> = silent.iter().map(|key| (&**key, &*url)).collect();
    world.config_map("n", "a", &silent);
    world.config_map("n", "b", &[("ok.url", &application.url("/ok"))]);
    let sidecar = world.start();
    // One at a time, they would take longer than anything is waited for.
    world.until_files("ok=1").await;
    until(|| sidecar.health.is_ready()).await;
}

// sidecar 28
#[tokio::test]
async fn unchanged_content_is_neither_sent_nor_written_and_fires_nothing() {
    let application = Application::start().await;
    application.answers(|seen| {
        Some(match seen.headers.get("if-none-match") {
            Some(tag) if tag == "\"1\"" => reply(304, &[], b""),
            _ => reply(200, &[("ETag", "\"1\"")], b"one"),
        })
    });
    let reload = Application::start().await;
    let world = world("20ms").with("REQ_URL", &reload.url("/reload"));
    world.config_map("n", "a", &[("x.url", &application.url("/x"))]);
    let _sidecar = world.ready().await;
    until(|| application.seen().len() >= 5).await;
    assert_eq!(world.files(), "x=one");
    until(|| reload.seen().len() == 1).await;
    let conditional = |seen: &crate::application::Seen| seen.headers.contains_key("if-none-match");
    assert!(application.seen()[1..].iter().all(conditional));
    assert_eq!(reload.seen().len(), 1);
}

// sidecar 29
#[tokio::test]
async fn deletion_fetches_nothing() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(200, &[], b"one")));
    let world = world("0");
    world.config_map("n", "a", &[("x.url", &application.url("/x"))]);
    let _sidecar = world.ready().await;
    world.until_files("x=one").await;
    world.delete(larder_apiserver::ApiKind::ConfigMap, "n", "a");
    world.until_files("").await;
    assert_eq!(application.seen().len(), 1);
}

#[tokio::test]
async fn keys_are_files_like_any_other_if_they_are_not_to_be_fetched() {
    let world = World::new().with("LARDER_URL_KEYS", "ignore");
    world.config_map("n", "a", &[("x.url", "http://127.0.0.1:1/")]);
    let _sidecar = world.ready().await;
    world.until_files("x.url=http://127.0.0.1:1/").await;
}

/// Objects such as those that k8s-sidecar's own tests use, each with a key of its own. `changed` are those of later.
fn resources(world: &World, application: &Application, changed: &str) {
    let binary = |key: &str| json!({"data": {format!("{changed}{key}"): "AAH/"}});
    let text = |key: &str| json!({"data": {format!("{changed}{key}"): key}});
    let moved = |key: &str, directory: &str| {
        let mut object = text(key);
        object["metadata"] = json!({"annotations": {"k8s-sidecar-target-directory": directory}});
        object
    };
    let mut sample = text("hello.world");
    sample["binaryData"] = json!({format!("{changed}map.bin"): "AAH/"});
    world.object("ConfigMap", "n", "sample", &sample);
    world.object("Secret", "n", "sample-binary", &binary("secret.bin"));
    let absolute = world.folder().join("absolute").display().to_string();
    world.object(
        "ConfigMap",
        "n",
        "absolute",
        &moved("absolute.txt", &absolute),
    );
    world.object(
        "ConfigMap",
        "n",
        "relative",
        &moved("relative.txt", "relative"),
    );
    let directory = if changed.is_empty() {
        "orig-dir"
    } else {
        "new-dir"
    };
    let mut object = moved("change-dir.txt", directory);
    object["data"] = json!({"change-dir.txt": "change-dir.txt"});
    world.object("ConfigMap", "n", "change-dir", &object);
    world.object("ConfigMap", "n", "similar", &text("similar-map.txt"));
    world.object("Secret", "n", "similar", &binary("similar-secret.txt"));
    world.config_map("n", "url-500", &[("500.txt.url", &application.url("/500"))]);
    let secured = application.url("/secured");
    world.config_map("n", "url-secured", &[("secured.txt.url", &secured)]);
    let url = STANDARD.encode(application.url("/static"));
    let object = json!({"binaryData": {"static.bin.url": url}});
    world.object("ConfigMap", "n", "url-binary", &object);
}

// sidecar 9
#[tokio::test]
async fn objects_of_the_tests_of_k8s_sidecar_become_the_files_that_these_expect() {
    let application = Application::start().await;
    application.answers(|seen| {
        let path = seen.line.split(' ').nth(1).unwrap();
        let is_known = seen
            .headers
            .get("authorization")
            .is_some_and(|sent| sent == "Basic dTpw");
        Some(match path {
            "/500" => reply(500, &[], b"500"),
            "/secured" if !is_known => reply(401, &[], b"not authenticated"),
            path => reply(200, &[], path.as_bytes()),
        })
    });
    let listed = [application.url("/500"), application.url("/static")].join(",");
    for (credentials, secured) in [(&*listed, ""), ("Always", "secured.txt=/secured ")] {
        let world = world("0")
            .with("RESOURCE", "both")
            .with("ENABLE_5XX", "true")
            .with("REQ_USERNAME", "u")
            .with("REQ_PASSWORD", "p")
            .with("LARDER_URL_CREDENTIALS", credentials);
        resources(&world, &application, "");
        let _sidecar = world.ready().await;
        let binary = "\0\u{1}\u{fffd}";
        let expected = format!(
            "500.txt=500 absolute/absolute.txt=absolute.txt hello.world=hello.world map.bin={binary} \
             orig-dir/change-dir.txt=change-dir.txt relative/relative.txt=relative.txt secret.bin={binary} \
             {secured}similar-map.txt=similar-map.txt similar-secret.txt={binary} static.bin=/static"
        );
        assert_eq!(world.files(), expected);
        resources(&world, &application, "x-");
        let expected = format!(
            "500.txt=500 absolute/x-absolute.txt=absolute.txt new-dir/change-dir.txt=change-dir.txt \
             relative/x-relative.txt=relative.txt {secured}static.bin=/static x-hello.world=hello.world \
             x-map.bin={binary} x-secret.bin={binary} x-similar-map.txt=similar-map.txt x-similar-secret.txt={binary}"
        );
        world.until_files(&expected).await;
    }
}

// sidecar 13, 24
#[tokio::test]
async fn object_that_takes_a_path_over_fetches_the_same_url_for_itself() {
    let application = Application::start().await;
    application.answers(|_| Some(reply(200, &[], b"one")));
    let (world, url) = (world("20ms"), application.url("/x"));
    world.config_map("n", "a", &[("x.json.url", &url)]);
    world.config_map("n", "b", &[("x.json.url", &url)]);
    let _sidecar = world.ready().await;
    assert_eq!(world.files(), "x.json=one");
    // A new name, as with a hash in it.
    world.config_map("n", "c", &[("x.json.url", &url)]);
    world.delete(larder_apiserver::ApiKind::ConfigMap, "n", "b");
    let before = application.seen().len();
    until(|| application.seen().len() >= before + 2).await;
    application.answers(|_| Some(reply(200, &[], b"two")));
    world.until_files("x.json=two").await;
    // The path goes, and comes back with the same URL.
    world.delete(larder_apiserver::ApiKind::ConfigMap, "n", "c");
    world.config_map("n", "a", &[("y", "1")]);
    world.until_files("y=1").await;
    world.config_map("n", "a", &[("x.json.url", &url)]);
    world.until_files("x.json=two").await;
}

/// A sidecar with `METHOD=LIST` and this URL of a key `x.url`, which gives up after a second.
async fn list(world: &World, url: &str) -> Result<(), RunError> {
    world.config_map("n", "a", &[("x.url", url), ("y", "1")]);
    let mut settings = world.settings();
    settings.once = Some(Duration::from_secs(2));
    run_label(
        settings,
        world.client(),
        Vec::new(),
        Arc::default(),
        CancellationToken::new(),
    )
    .await
}

// sidecar 24
#[tokio::test]
async fn one_list_fails_without_the_content_of_a_url_and_repeats_the_fetch_before() {
    let application = Application::start().await;
    let world = world("0").with("METHOD", "LIST");
    application.answers(|_| Some(reply(404, &[], b"")));
    let url = application.url("/x");
    let error = list(&world, &url).await.unwrap_err().to_string();
    let path = world.folder().join("x");
    let expected = format!("cannot fetch {}: {url}: answered 404", path.display());
    assert_eq!(error, expected);
    assert_eq!(world.files(), "y=1");

    let is_first = AtomicBool::new(true);
    application.answers(move |_| {
        let is_first = is_first.swap(false, Ordering::Relaxed);
        Some(reply(if is_first { 503 } else { 200 }, &[], b"one"))
    });
    assert_eq!(list(&world, &url).await, Ok(()));
    assert_eq!(world.files(), "x=one y=1");
    // An old file is enough.
    application.answers(|_| Some(reply(404, &[], b"")));
    assert_eq!(list(&world, &url).await, Ok(()));
}
