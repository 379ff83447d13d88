//! Which form settings choose, and what they must be.

use super::{
    Sidecar, World,
    application::{Application, reply},
    sidecar, stderr,
};
use crate::Desk;
use std::sync::atomic::{AtomicBool, Ordering};

#[track_caller]
fn refused(args: &[&str], variables: &[(&str, &str)], text: &str) {
    let desk = Desk::with([]);
    let mut command = sidecar(&desk, args);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?} {variables:?}");
    let log = stderr(&output);
    assert!(log.contains(text), "{text} is not in {log}");
}

#[test]
fn command_and_executable_take_the_same_settings() {
    let desk = Desk::with([]);
    let command = desk.run("sidecar --help");
    let output = sidecar(&desk, &["--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let usage = ("Usage: larder sidecar", "Usage: larder-sidecar");
    assert_eq!(command.stdout.replace(usage.0, usage.1), help);
    let run = desk.run("sidecar");
    assert_eq!(run.code, 2);
    let output = sidecar(&desk, &[]).output().unwrap();
    assert_eq!(run.stderr, stderr(&output));
}

// sidecar 1, 3
#[test]
fn form_is_chosen_by_flags_or_variables() {
    refused(&[], &[], "give one of three forms");
    let label = ("LABEL", "l");
    refused(&[], &[label], "FOLDER: is required");
    let bad = [
        label,
        ("FOLDER", "/f"),
        ("NAMESPACE", "n"),
        ("RESOURCE", "x"),
        ("REQ_METHOD", "y"),
    ];
    refused(&[], &bad, "RESOURCE: expected");
    refused(&[], &bad, "REQ_METHOD: expected");
    // In one line, whose parts no escaped line break separates.
    refused(&[], &bad, "; RESOURCE: ");
    let both = ["--config-map", "n/a:/d", "--volume-dir", "/e"];
    refused(&both, &[], "another form");
    let volume = ["--volume-dir", "/e"];
    refused(&volume, &[label], "--webhook-url is required");
    refused(&["--config-map", "a:/d"], &[], "the namespace is unknown");
    let nested = ["--config-map", "n/a:/d", "--secret", "n/b:/d/e"];
    refused(&nested, &[], "/d/e is inside /d");
    let outside = ["--once", "--secret", "n/a:/d,item=A:../x"];
    refused(&outside, &[], "secret.items[0].path: Invalid value");
    let hook = ["--config-map", "n/a:/d", "--on-change", "restart"];
    refused(&hook, &[], "a sidecar cannot restart containers");
    // Of the program that is left out.
    refused(&["--watched-dir", "/d"], &[], "--watched-dir");
}

/// Every variable of section 4, but for those of credentials from files and of kubeconfigs, with a good value.
const GOOD: [(&str, &str); 46] = [
    ("LABEL", "l"),
    ("LABEL_VALUE", "1"),
    ("FOLDER", "folder"),
    ("FOLDER_ANNOTATION", "example.com/directory"),
    ("NAMESPACE", " default, default"),
    ("RESOURCE", "both"),
    ("RESOURCE_NAME", "configmap/a"),
    ("METHOD", "watch"),
    ("SLEEP_TIME", "5"),
    ("WATCH_SERVER_TIMEOUT", "60"),
    ("WATCH_CLIENT_TIMEOUT", "66"),
    ("IGNORE_ALREADY_PROCESSED", "True"),
    ("UNIQUE_FILENAMES", "TRUE"),
    ("DEFAULT_FILE_MODE", "0440"),
    ("REQ_METHOD", "post"),
    ("REQ_PAYLOAD", "{\"a\": 1}"),
    ("REQ_TIMEOUT", "2.5"),
    ("REQ_RETRY_TOTAL", "3"),
    ("REQ_RETRY_CONNECT", "3"),
    ("REQ_RETRY_READ", "3"),
    ("REQ_RETRY_BACKOFF_FACTOR", "0.1"),
    ("REQ_SKIP_INIT", "false"),
    ("REQ_USERNAME", "user"),
    ("REQ_PASSWORD", "password"),
    ("REQ_USERNAME_FILE", "user"),
    ("REQ_PASSWORD_FILE", "password"),
    ("REQ_BASIC_AUTH_ENCODING", "UTF-8"),
    ("REQ_SKIP_TLS_VERIFY", "true"),
    ("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt"),
    ("SCRIPT", "script"),
    ("ENABLE_5XX", "true"),
    ("ERROR_THROTTLE_SLEEP", "5"),
    ("SKIP_TLS_VERIFY", "false"),
    ("DISABLE_X509_STRICT_VERIFICATION", "true"),
    ("LOG_LEVEL", "warning"),
    ("LOG_FORMAT", "logfmt"),
    ("LOG_TZ", "utc"),
    ("LOG_CONFIG", "log.yaml"),
    ("LARDER_STATE_DIR", "state"),
    ("LARDER_DEBOUNCE", "10ms:1s"),
    ("LARDER_FOLDER_ROOTS", "/tmp:/etc/grafana"),
    ("LARDER_URL_KEYS", "ignore"),
    ("LARDER_URL_CREDENTIALS", "always"),
    ("LARDER_URL_REFRESH", "0"),
    ("LARDER_SCRIPT_TIMEOUT", "30s"),
    ("HEALTH_HOST", "127.0.0.1"),
];

// sidecar 3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_every_variable_set_the_exec_probe_succeeds() {
    let world = World::new().await;
    for (name, text) in [
        ("user", "u"),
        ("password", "p"),
        ("script", "exit 0"),
        ("log.yaml", "root: {level: WARNING}"),
    ] {
        std::fs::write(world.path().join(name), text).unwrap();
    }
    let object = serde_json::json!({"metadata": {"name": "a"}, "data": {"a": "1"}});
    world.create("ConfigMap", object).await;
    let application = Application::start().await;
    let mut command = world.sidecar(&[], &GOOD);
    command.env("REQ_URL", application.url("/reload"));
    let sidecar_process = Sidecar::start(command);
    sidecar_process.until_ok("/readyz").await;
    let port = sidecar_process.port.to_string();
    let probe = |state: &str| {
        let mut probe = sidecar(&world.desk, &["--check", state]);
        probe.env("HEALTH_PORT", &port);
        probe.status().unwrap().code()
    };
    assert_eq!((probe("ready"), probe("live")), (Some(0), Some(0)));
    let file = world.path().join("folder/namespace_default.configmap_a.a");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "1");
    crate::run::until("the request", || !application.seen().is_empty()).await;
    let request = application.seen().remove(0);
    assert_eq!(
        request.headers["authorization"], "Basic dTpw",
        "of the files"
    );
    assert_eq!(request.body, r#"{"a":1}"#);
    drop(sidecar_process);
    assert_eq!(probe("ready"), Some(1));
}

// sidecar 36, 44, 46
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_parts_are_one_warning_each_and_the_files_are_written() {
    let world = World::new().await;
    let metadata = serde_json::json!({"name": "a", "labels": {"l": "1"}});
    let object = serde_json::json!({"metadata": metadata, "data": {"a": "1"}});
    world.create("ConfigMap", object).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    std::fs::write(world.path().join("script"), "#!/nowhere/python\n").unwrap();
    let variables = [
        ("RESOURCE_NAME", "a,configmap/gone,secret/a"),
        ("METHOD", "LIST"),
        ("SCRIPT", "script"),
        ("HEALTH_HOST", "127.0.0.1"),
        (
            "HEALTH_PORT",
            &taken.local_addr().unwrap().port().to_string(),
        ),
        ("LARDER_STATE_DIR", "/dev/null/state"),
    ];
    let output = world.sidecar(&[], &variables).output().unwrap();
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    for warning in [
        "cannot listen, running without health",
        "cannot use the state directory",
        "this image cannot run the script",
        "RESOURCE_NAME: secret/a is not read, as RESOURCE (default: configmap) or NAMESPACE excludes it",
        "object not found selection=configmaps gone in namespace default",
    ] {
        assert_eq!(log.matches(warning).count(), 1, "{warning} in {log}");
    }
    let file = world.path().join("folder/a");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_says_address_objects_and_pauses_in_words() {
    let world = World::new().await;
    let metadata = serde_json::json!({"name": "a", "labels": {"l": "1"}});
    let object = serde_json::json!({"metadata": metadata, "data": {"a": "1"}});
    world.create("ConfigMap", object).await;
    let application = Application::start().await;
    let url = application.url("/reload");
    let (is_first, log) = (AtomicBool::new(true), world.path().join("log"));
    application.answers(move |_| {
        let status = if is_first.swap(false, Ordering::Relaxed) {
            503
        } else {
            200
        };
        Some(reply(status, &[], b""))
    });
    let mut command = world.sidecar(&[], &[("LABEL", "l"), ("REQ_URL", &url)]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let sidecar = Sidecar::start(command);
    sidecar.until_ok("/readyz").await;
    crate::run::until("the second request", || application.seen().len() > 1).await;
    let text = std::fs::read_to_string(log).unwrap();
    // In the form of k8s-sidecar, the fields are in the message.
    for expected in [
        &*format!("listening address=127.0.0.1:{}\"", sidecar.port),
        "first sync complete objects=1",
        "request failed, will retry error=",
        " pause=0s",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
}
