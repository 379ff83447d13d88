//! Credentials in use, and files that break while a client runs.

use std::{fs, path::Path, time::Duration};

use base64::Engine as _;
use larder_transport::{ClusterSource, Error};
use tempfile::TempDir;

use crate::{
    BASE64, CANARY, Log,
    certificates::Authority,
    check_debug, check_error,
    client::{Client, config},
    server::Server,
};

/// A kubeconfig for `server` with these fields of the user.
fn write(path: &Path, server: &Server, authority: &Authority, user: &str) {
    let text = format!(
        "{{clusters: [{{name: c, cluster: {{server: 'https://{}', certificate-authority-data: {}}}}}],
          contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x,
          users: [{{name: u, user: {{{user}}}}}]}}",
        server.address,
        BASE64.encode(authority.pem())
    );
    fs::write(path, text).unwrap();
}

/// Gets a 401, and then the error of the requests that share it.
async fn refused(client: &Client) -> String {
    for _ in 0..100 {
        match client.get("/unauthorized").await {
            Ok(response) => assert_eq!(response.status(), 401),
            Err(kube::Error::Service(error)) => {
                let error = error.downcast::<Error>().unwrap();
                assert!(error.is_unauthorized(), "{error}");
                return check_error(&*error);
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no request shares the outcome of another");
}

#[tokio::test]
async fn what_breaks_while_it_is_renewed_is_not_quoted() {
    let log = Log::captured();
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let identity = authority.issue("node");
    let plugin = |token: &str| {
        let answer = format!(
            "{{apiVersion: v1, status: {{token: {token}, expirationTimestamp: '2000-01-01T00:00:00Z'}}}}"
        );
        format!("echo \"{answer}\"; echo {CANARY} >&2")
    };
    let exec = format!(
        "exec: {{apiVersion: v1, command: sh, args: [FILE, {CANARY}], env: [{{name: A, value: {CANARY}}}]}}"
    );
    let good_token = format!("{CANARY}-good");
    // The user, the file that breaks, its good content, and how its failure is reported.
    for (user, good, shown, reported) in [
        (
            "tokenFile: FILE".to_owned(),
            good_token.clone(),
            format!("Bearer {good_token}"),
            "failed to read the token from",
        ),
        (
            exec,
            plugin(&good_token),
            format!("Bearer {good_token}"),
            "exec plugin sh gave no credentials",
        ),
        (
            "client-key: FILE, client-certificate: CERTIFICATE".to_owned(),
            identity.key_pem.clone(),
            String::new(),
            "invalid client key",
        ),
    ] {
        let directory = TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        let named = |user: &str| {
            let user = user.replace("FILE", at("file").to_str().unwrap());
            user.replace("CERTIFICATE", at("client.crt").to_str().unwrap())
        };
        fs::write(at("file"), &good).unwrap();
        fs::write(at("client.crt"), &identity.certificate_pem).unwrap();
        write(&at("kubeconfig"), &server, &authority, &named(&user));
        let source = ClusterSource::Kubeconfig {
            path: at("kubeconfig"),
            context: None,
        };
        let config = config().credentials_check_interval(Duration::ZERO);
        let client = Client::from(source, config).await;
        client.get("/a").await.unwrap();
        assert_eq!(server.last_request().authorization, shown);
        check_debug(&client.transport);

        fs::write(at("file"), format!("{CANARY}\u{1}; exit 1")).unwrap();
        client.get("/a").await.unwrap();
        assert_eq!(server.last_request().authorization, shown);
        let error = refused(&client).await;
        assert!(error.contains(reported), "{error}");
        assert!(log.text().contains("failed to renew the credentials"));
        check_debug(&client.transport);
        log.check();
    }
}

#[tokio::test]
async fn a_kubeconfig_that_breaks_is_kept_and_then_followed() {
    let log = Log::captured();
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("kubeconfig");
    write(&path, &server, &authority, &format!("token: {CANARY}-1"));
    let source = ClusterSource::Kubeconfig {
        path: path.clone(),
        context: None,
    };
    let config = config().credentials_check_interval(Duration::ZERO);
    let client = Client::from(source, config).await;
    client.get("/a").await.unwrap();
    assert_eq!(server.last_request().authorization, "Bearer c4n4ry-1");

    fs::write(&path, format!("users:\n- {{token: \"{CANARY}-2")).unwrap();
    client.get("/a").await.unwrap();
    assert_eq!(server.last_request().authorization, "Bearer c4n4ry-1");
    let error = refused(&client).await;
    assert!(error.contains("line 2: malformed YAML"), "{error}");

    write(
        &path,
        &server,
        &authority,
        &format!("username: u, password: {CANARY}"),
    );
    client.get("/a").await.unwrap();
    let expected = format!("Basic {}", BASE64.encode(format!("u:{CANARY}")));
    assert_eq!(server.last_request().authorization, expected);
    check_debug(&client.transport);
    log.check();
}

#[tokio::test]
async fn a_plugin_runs_again_before_its_token_expires() {
    let log = Log::captured();
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    // Each run counts up. The first token has expired, the second one lasts for decades.
    let script = format!(
        "cd {}; echo >>runs; n=$(wc -l <runs); year=$((1900 + n * 100));
         echo \"{{apiVersion: v1, status: {{token: {CANARY}-$n, expirationTimestamp: '$year-01-01T00:00:00Z'}}}}\"",
        directory.path().display()
    );
    fs::write(at("script"), script).unwrap();
    let user = format!(
        "exec: {{apiVersion: v1, command: sh, args: ['{}']}}",
        at("script").display()
    );
    write(&at("kubeconfig"), &server, &authority, &user);
    let source = ClusterSource::Kubeconfig {
        path: at("kubeconfig"),
        context: None,
    };
    let config = config().credentials_check_interval(Duration::ZERO);
    let client = Client::from(source, config).await;
    for _ in 0..3 {
        client.get("/a").await.unwrap();
        assert_eq!(server.last_request().authorization, "Bearer c4n4ry-2");
    }
    // A watch that is open does not mind.
    let _watch = client.watch("w").await;
    assert_eq!(client.transport.connections().len(), 2);
    log.check();
}

#[tokio::test]
async fn a_plugin_whose_tokens_live_for_less_than_a_minute_runs_once() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    let script = format!(
        "cd {}; echo >>runs; at=$(date -u -d @$(($(date +%s) + 55)) +%Y-%m-%dT%H:%M:%SZ);
         echo \"{{apiVersion: v1, status: {{token: {CANARY}, expirationTimestamp: '$at'}}}}\"",
        directory.path().display()
    );
    fs::write(at("script"), script).unwrap();
    let user = format!(
        "exec: {{apiVersion: v1, command: sh, args: ['{}']}}",
        at("script").display()
    );
    write(&at("kubeconfig"), &server, &authority, &user);
    let source = ClusterSource::Kubeconfig {
        path: at("kubeconfig"),
        context: None,
    };
    let config = config().credentials_check_interval(Duration::ZERO);
    let client = Client::from(source, config).await;
    for _ in 0..3 {
        client.get("/a").await.unwrap();
    }
    assert_eq!(fs::read_to_string(at("runs")).unwrap(), "\n");
}
