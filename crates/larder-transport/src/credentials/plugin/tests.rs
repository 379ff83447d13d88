use super::*;

const CANARY: &str = "c4n4ry";

/// A plugin that runs `script` in a shell.
fn shell(script: &str) -> Plugin {
    Plugin {
        api_version: Some("client.authentication.k8s.io/v1".to_owned()),
        command: "/bin/sh".to_owned(),
        args: ["-c", script, CANARY]
            .map(|argument| argument.to_owned().into())
            .into(),
        env: vec![Variable {
            name: "SECRET".to_owned(),
            value: CANARY.to_owned().into(),
        }],
        cluster: None,
    }
}

async fn failure(script: &str) -> String {
    let plugin = shell(script);
    let error = plugin.run().await.err().unwrap();
    let text = error.to_string();
    for shown in [&text, &format!("{error:?}")] {
        assert!(!shown.contains(CANARY), "{shown}");
    }
    text
}

#[tokio::test]
async fn arguments_environment_and_output_reach_no_error() {
    for (script, expected) in [
        (
            "echo $SECRET; echo $SECRET >&2; exit 3",
            "it failed (exit status: 3); its output is not shown",
        ),
        ("echo $SECRET", "its output is not an ExecCredential"),
        (
            "echo \"{apiVersion: $SECRET, status: {}}\"",
            "it answered with another apiVersion than the configured one",
        ),
        (
            "echo \"{apiVersion: client.authentication.k8s.io/v1, status: {unknown: $SECRET}}\"",
            "its answer has no usable token and no client certificate with key",
        ),
        (
            "echo \"{apiVersion: client.authentication.k8s.io/v1, status: {token: t, expirationTimestamp: $SECRET}}\"",
            "its output is not an ExecCredential",
        ),
    ] {
        assert_eq!(failure(script).await, expected);
    }
    let mut missing = shell("");
    missing.command = format!("/nowhere/plugin --token={CANARY}");
    let error = missing.run().await.err().unwrap();
    assert!(matches!(error, PluginError::Start(_)), "{error:?}");
    assert_eq!(missing.name(), "plugin");
}

#[tokio::test]
async fn endless_output_ends_the_plugin() {
    assert_eq!(
        failure("while :; do echo $SECRET$SECRET$SECRET$SECRET; done").await,
        "its output is longer than 65536 bytes"
    );
}

#[tokio::test]
async fn a_canceled_plugin_ends_with_its_group() {
    let directory = tempfile::TempDir::new().unwrap();
    let fifo = directory.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // A process of the group holds the FIFO open until it ends.
    let script = format!(
        "(exec 3>{0}; echo started >&3; sleep 1000) & wait",
        fifo.display()
    );
    let plugin = shell(&script);
    let reader = tokio::task::spawn_blocking(move || {
        use std::io::{BufRead as _, BufReader, Read as _};
        let mut pipe = BufReader::new(std::fs::File::open(&fifo).unwrap());
        let mut line = String::new();
        pipe.read_line(&mut line).unwrap();
        (line, move || pipe.read_to_end(&mut Vec::new()).unwrap())
    });
    let (line, until_closed) = tokio::select! {
        _ = plugin.run() => panic!("it has ended"),
        started = reader => started.unwrap(),
    };
    assert_eq!(line, "started\n");
    assert_eq!(tokio::task::spawn_blocking(until_closed).await.unwrap(), 0);
}

#[tokio::test]
async fn an_answer_has_token_and_expiry() {
    let script = "echo \"$KUBERNETES_EXEC_INFO\" | grep -q '\"interactive\":false' &&
        echo '{\"apiVersion\": \"client.authentication.k8s.io/v1\",
        \"status\": {\"token\": \"t\", \"expirationTimestamp\": \"2000-01-01T00:00:00Z\"}}'";
    let issued = shell(script).run().await.unwrap();
    assert_eq!(issued.token.unwrap(), "Bearer t");
    assert!(issued.expiry.unwrap().at <= Instant::now());
}
