//! Broken configurations at startup.

use std::{fmt::Write as _, fs};

use larder_transport::{ClusterSource, Config, Metrics, connect};
use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use crate::{BASE64, CANARY, Log, check_debug, check_error, within};
use base64::Engine as _;

/// A kubeconfig with these fields of the cluster and the user.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "clusters: [{{name: c, cluster: {{{cluster}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
users:
- name: u
  user: {{{user}}}
"
    )
}

/// The error of a start with the kubeconfig `text`.
async fn failure(text: &str) -> String {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("kubeconfig");
    fs::write(&path, text).unwrap();
    let source = ClusterSource::Kubeconfig {
        path,
        context: None,
    };
    failure_of(source).await
}

async fn failure_of(source: ClusterSource) -> String {
    check_debug(&source);
    let connected = connect(source, Config::default(), Metrics::default());
    let Err(error) = within(connected).await else {
        panic!("it has started");
    };
    check_error(&error)
}

#[tokio::test]
async fn a_broken_kubeconfig_is_reported_by_path_line_and_kind() {
    let log = Log::captured();
    let server = "server: 'https://127.0.0.1:1'";
    let encoded = BASE64.encode(CANARY);
    for (text, expected) in [
        (
            format!("users:\n- name: u\n  user:\n    token: \"{CANARY}\n    password: ["),
            "line 5: malformed YAML",
        ),
        (
            kubeconfig(server, &format!("token: [{CANARY}]")),
            "line 6: not what a kubeconfig has here",
        ),
        (
            kubeconfig(server, &format!("token: \"{CANARY}\\u0001\"")),
            "invalid token: it is empty or has a control character",
        ),
        (
            kubeconfig(
                server,
                &format!("username: u, password: {CANARY}, tokenFile: /nowhere"),
            ),
            "failed to read the token from /nowhere",
        ),
        (
            kubeconfig(
                server,
                &format!("client-key-data: '{CANARY}!', client-certificate-data: ''"),
            ),
            "invalid client key: malformed base64",
        ),
        (
            kubeconfig(
                server,
                &format!("client-key-data: {encoded}, client-certificate-data: {encoded}"),
            ),
            "invalid client certificate: it has no certificate",
        ),
        (
            kubeconfig(
                &format!("{server}, certificate-authority-data: {encoded}"),
                "",
            ),
            "invalid certificate authority: it has no usable certificate",
        ),
        (
            kubeconfig(
                &format!("{server}, proxy-url: 'socks5://{CANARY}:{CANARY}@h:1/{CANARY}'"),
                "",
            ),
            "unsupported proxy socks5://h:1: expected",
        ),
        (
            kubeconfig(&format!("{server}, proxy-url: 'http://{CANARY} @h'"), ""),
            "unsupported proxy (malformed): expected",
        ),
        (
            kubeconfig(&format!("server: 'ftp://{CANARY}:{CANARY}@h/{CANARY}'"), ""),
            "unsupported server URL ftp://h: expected",
        ),
        (
            kubeconfig(&format!("{server}, tls-server-name: '{CANARY} '"), ""),
            "not a name",
        ),
    ] {
        let error = failure(&text).await;
        assert!(error.contains(expected), "{error}\n{text}");
    }
    log.check();
}

#[tokio::test]
async fn failing_providers_and_plugins_are_reported_by_name_and_kind() {
    let log = Log::captured();
    let server = "server: 'https://127.0.0.1:1'";
    for (text, expected) in [
        (
            kubeconfig(
                server,
                &format!("auth-provider: {{name: gcp, config: {{access-token: {CANARY}}}}}"),
            ),
            "auth provider gcp is not supported",
        ),
        (
            kubeconfig(server, &format!("as: \"{CANARY}\\n\"")),
            "invalid impersonated user",
        ),
        (
            kubeconfig(
                server,
                &format!(
                    "exec: {{command: sh, args: [-c, 'echo {CANARY}; echo {CANARY} >&2; exit 1'],
                     env: [{{name: TOKEN, value: {CANARY}}}]}}"
                ),
            ),
            "exec plugin sh gave no credentials: it failed (exit status: 1)",
        ),
        (
            kubeconfig(
                server,
                &format!("exec: {{command: echo, args: ['{{{CANARY}']}}"),
            ),
            "exec plugin echo gave no credentials: its output is not an ExecCredential",
        ),
        (
            kubeconfig(
                server,
                &format!("exec: {{command: '/nowhere/plugin --token {CANARY}'}}"),
            ),
            "exec plugin plugin gave no credentials: failed to start it",
        ),
    ] {
        let error = failure(&text).await;
        assert!(error.contains(expected), "{error}\n{text}");
    }
    log.check();
}

#[tokio::test]
async fn hostile_files_are_errors_within_bounds() {
    let log = Log::captured();
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::write(at("10 MiB"), CANARY.repeat((10 << 20) / CANARY.len())).unwrap();
    fs::write(at("flat"), "a: 1\n".repeat(300_000)).unwrap();
    fs::write(at("deep"), format!("users: {}", "[".repeat(1 << 20))).unwrap();
    let mut indented = String::new();
    for depth in 0..2000 {
        writeln!(indented, "{}a:", " ".repeat(depth)).unwrap();
    }
    fs::write(at("indented"), indented).unwrap();
    let mut bomb = format!("a0: &a0 {CANARY}\n");
    for level in 1..40 {
        let below = level - 1;
        writeln!(bomb, "a{level}: &a{level} [*a{below}, *a{below}]").unwrap();
    }
    fs::write(at("aliases"), bomb).unwrap();
    for path in [
        at("fifo"),
        at("."),
        at("10 MiB"),
        at("flat"),
        at("deep"),
        at("indented"),
        at("aliases"),
        "/dev/zero".into(),
    ] {
        let source = ClusterSource::Kubeconfig {
            path: path.clone(),
            context: None,
        };
        let error = failure_of(source).await;
        assert!(error.contains("failed to load kubeconfig"), "{error}");

        // The same as a token file and as a key.
        for field in ["tokenFile", "client-certificate"] {
            let field = format!("{field}: '{}', client-key: /dev/zero", path.display());
            if path.ends_with("flat") || path.ends_with("deep") || path.ends_with("aliases") {
                continue;
            }
            let text = kubeconfig("server: 'https://127.0.0.1:1'", &field);
            failure(&text).await;
        }
    }
    log.check();
}

#[test]
fn configurations_show_no_credentials_as_debug() {
    check_debug(&ClusterSource::ServiceAccount {
        directory: "/nowhere".into(),
        server: format!("https://u:{CANARY}@h/{CANARY}"),
    });
}
