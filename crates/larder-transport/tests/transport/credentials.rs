//! The client's identity and trusted authorities, and how their files are followed.

use std::{fs, path::Path, process::Command, time::Duration};

use larder_transport::{ClusterSource, Config, Error, Metrics, SetupError};
use tempfile::TempDir;

use crate::{
    Client,
    certificates::{Authority, Identity},
    chain,
    client::kubeconfig,
    config,
    server::Server,
    within,
};

/// Checks the files before every request.
fn always_checking() -> Config {
    config().credentials_check_interval(Duration::ZERO)
}

fn with_client_files(server: &Server, authority: &Authority, directory: &Path) -> kube::Config {
    let mut kube = server.config(authority);
    let file = |name| Some(directory.join(name).to_str().unwrap().to_owned());
    kube.auth_info.client_certificate = file("client.crt");
    kube.auth_info.client_key = file("client.key");
    kube
}

impl Identity {
    #[track_caller]
    fn check_last(&self, server: &Server) {
        let seen = server.last_request().client_certificate;
        assert!(seen.as_ref() == Some(&self.certificate_der));
    }
}

#[tokio::test]
async fn new_connections_use_a_replaced_certificate_and_watches_continue() {
    let (authority, directory) = (Authority::new(), TempDir::new().unwrap());
    let (old, new) = (authority.issue("old"), authority.issue("new"));
    old.write(directory.path());
    let server = Server::kube_like(&authority).await;
    let kube = with_client_files(&server, &authority, directory.path());
    let client = Client::new(kube, always_checking()).await;

    let mut watch = client.watch("w").await;
    old.check_last(&server);
    client.get("/a").await.unwrap();
    old.check_last(&server);

    new.write(directory.path());
    client.get("/a").await.unwrap();
    new.check_last(&server);
    let _second = client.watch("v").await;
    new.check_last(&server);
    server.send("w", "event\n");
    assert_eq!(watch.next().await.unwrap(), "event\n");

    // The old connection for requests is gone; the one of the watch goes with its watch.
    client.until(|all| all.len() == 3).await;
    drop(watch);
    client
        .until(|all| all.len() == 2 && all.iter().all(|c| !c.closing))
        .await;
}

#[tokio::test]
async fn unusable_files_leave_the_last_good_certificate_in_use() {
    let (authority, directory) = (Authority::new(), TempDir::new().unwrap());
    let (old, new) = (authority.issue("old"), authority.issue("new"));
    old.write(directory.path());
    let server = Server::kube_like(&authority).await;
    let kube = with_client_files(&server, &authority, directory.path());
    let client = Client::new(kube, always_checking()).await;
    client.get("/a").await.unwrap();

    // Half of a renewal: the certificate does not fit the key.
    fs::write(directory.path().join("client.crt"), &new.certificate_pem).unwrap();
    client.get("/a").await.unwrap();
    fs::remove_file(directory.path().join("client.key")).unwrap();
    client.get("/a").await.unwrap();
    old.check_last(&server);
    assert_eq!(client.transport.connections().len(), 1);

    new.write(directory.path());
    client.get("/a").await.unwrap();
    new.check_last(&server);
}

#[tokio::test]
async fn a_kubeconfig_and_its_files_are_followed() {
    let (authority, directory) = (Authority::new(), TempDir::new().unwrap());
    let identity = authority.issue("node");
    identity.write(directory.path());
    fs::write(directory.path().join("ca.crt"), authority.pem()).unwrap();
    fs::write(directory.path().join("token"), "from-file").unwrap();
    let server = Server::kube_like(&authority).await;
    let path = directory.path().join("kubeconfig");
    let kubeconfig = format!(
        "{{clusters: [{{name: c, cluster: {{server: 'https://{}', certificate-authority: ca.crt}}}}],
          users: [{{name: u, user: {{client-certificate: client.crt, client-key: client.key, tokenFile: token}}}}],
          contexts: [{{name: other, context: {{cluster: none}}}},
                     {{name: mine, context: {{cluster: c, user: u, namespace: home}}}}],
          current-context: other}}",
        server.address
    );
    fs::write(&path, kubeconfig).unwrap();
    let source = ClusterSource::Kubeconfig {
        path,
        context: Some("mine".to_owned()),
    };
    let client = Client::from(source, always_checking()).await;
    assert_eq!(client.kube.default_namespace(), "home");
    client.get("/a").await.unwrap();
    identity.check_last(&server);
    assert_eq!(server.last_request().authorization, "Bearer from-file");

    // Another authority is trusted from now on, and the server still has its old certificate.
    fs::write(directory.path().join("ca.crt"), Authority::new().pem()).unwrap();
    let error = client.get("/a").await.unwrap_err();
    assert!(
        chain(&error).contains("invalid peer certificate"),
        "{}",
        chain(&error)
    );
}

#[tokio::test]
async fn an_exec_plugin_runs_again_after_a_401() {
    let (authority, directory) = (Authority::new(), TempDir::new().unwrap());
    let (old, new) = (authority.issue("old"), authority.issue("new"));
    let credential = |identity: &Identity| {
        let credential = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {
                "clientCertificateData": identity.certificate_pem,
                "clientKeyData": identity.key_pem,
            },
        });
        fs::write(directory.path().join("credential"), credential.to_string()).unwrap();
    };
    credential(&old);
    let server = Server::kube_like(&authority).await;
    let mut kube = server.config(&authority);
    let exec = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [directory.path().join("credential")],
        "interactiveMode": "Never",
    });
    kube.auth_info.exec = Some(serde_json::from_value(exec).unwrap());
    let client = Client::new(kube, always_checking()).await;
    client.get("/a").await.unwrap();
    credential(&new);
    client.get("/a").await.unwrap();
    old.check_last(&server);

    let refused = client.get("/unauthorized").await.unwrap();
    assert_eq!(refused.status(), 401);
    client.get("/a").await.unwrap();
    new.check_last(&server);
}

#[tokio::test]
async fn the_servers_certificate_is_verified_as_configured() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = Server::kube_like(&authority).await;
    let good = server.config(&authority);

    let mut wrong_authority = good.clone();
    wrong_authority.root_cert = Some(vec![stranger.der()]);
    let mut wrong_name = good.clone();
    wrong_name.tls_server_name = Some("elsewhere".to_owned());
    for (kube, cause) in [
        (wrong_authority.clone(), "invalid peer certificate"),
        (wrong_name, "not valid for name"),
    ] {
        let client = Client::new(kube, config()).await;
        let error = client.get("/a").await.unwrap_err();
        let text = chain(&error);
        assert!(
            text.contains("TLS handshake failed") && text.contains(cause),
            "{text}"
        );
        let kube::Error::Service(error) = error else {
            panic!("{error:?}")
        };
        let error = error.downcast_ref().unwrap();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
    }

    let mut right_name = good;
    right_name.tls_server_name = Some("localhost".to_owned());
    let mut unverified = wrong_authority;
    unverified.root_cert = None;
    unverified.accept_invalid_certs = true;
    for kube in [right_name, unverified] {
        Client::new(kube, config()).await.get("/a").await.unwrap();
    }
}

#[tokio::test]
async fn an_unusable_configuration_fails_at_setup() {
    let refused = async |change: fn(&mut kube::Config)| {
        let mut kube = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        kube.root_cert = Some(vec![Authority::new().der()]);
        change(&mut kube);
        let (_directory, source) = kubeconfig(&kube);
        let connected = larder_transport::connect(source, config(), Metrics::default());
        within(connected).await.map(|_| ()).unwrap_err()
    };
    let proxy = |kube: &mut kube::Config| {
        kube.proxy_url = Some("socks5://user:secret@proxy:1080".parse().unwrap());
    };
    let error = refused(proxy).await;
    assert!(matches!(&error, SetupError::Proxy { url } if url == "socks5://proxy:1080"));
    let error = refused(|kube| kube.cluster_url = "ftp://host".parse().unwrap()).await;
    assert!(matches!(error, SetupError::Url { .. }), "{error}");
    let far_port = |kube: &mut kube::Config| {
        kube.cluster_url = "https://user:secret@host:99999/path".parse().unwrap();
    };
    let error = refused(far_port).await;
    assert_eq!(
        error.to_string(),
        "invalid port in server https://host:99999: expected 1 to 65535"
    );
    let far_proxy = |kube: &mut kube::Config| {
        kube.proxy_url = Some("http://user:secret@proxy:99999".parse().unwrap());
    };
    let error = refused(far_proxy).await;
    assert!(matches!(&error, SetupError::Proxy { url } if url == "http://proxy:99999"));
    let error = refused(|kube| kube.tls_server_name = Some("no name".to_owned())).await;
    assert!(matches!(error, SetupError::ServerName), "{error}");
    let error = refused(|kube| kube.auth_info.token_file = Some("/nowhere".to_owned())).await;
    assert!(matches!(error, SetupError::Unreadable { .. }), "{error}");
    let error = refused(|kube| kube.auth_info.client_key = Some("/nowhere".to_owned())).await;
    assert!(matches!(error, SetupError::Invalid { .. }), "{error}");

    let source = ClusterSource::Kubeconfig {
        path: "/nowhere".into(),
        context: None,
    };
    let connected = larder_transport::connect(source, config(), Metrics::default()).await;
    let error = connected.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}

#[tokio::test]
async fn a_plugin_that_hangs_holds_up_requests_and_not_the_start() {
    let (authority, directory) = (Authority::new(), TempDir::new().unwrap());
    let fifo = directory.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let server = Server::kube_like(&authority).await;
    let mut kube = server.config(&authority);
    // It prints nothing before something is written to the other end.
    let exec = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [fifo],
        "interactiveMode": "Never",
    });
    kube.auth_info.exec = Some(serde_json::from_value(exec).unwrap());
    let client = Client::new(kube, config()).await;
    assert!(client.transport.loading_since().is_some());

    let (response, ()) = tokio::join!(client.get("/a"), async {
        let credential = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": "late"},
        });
        within(tokio::fs::write(&fifo, credential.to_string()))
            .await
            .unwrap();
    });
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(server.last_request().authorization, "Bearer late");
    assert!(client.transport.loading_since().is_none());
}

#[tokio::test]
async fn a_plugin_that_hangs_and_fails_is_named_by_requests() {
    let directory = TempDir::new().unwrap();
    let fifo = directory.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let mut kube = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
    let exec = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [fifo],
        "interactiveMode": "Never",
    });
    kube.auth_info.exec = Some(serde_json::from_value(exec).unwrap());
    let client = Client::new(kube, config()).await;
    let (response, ()) = tokio::join!(client.get("/a"), async {
        within(tokio::fs::write(&fifo, "no credentials"))
            .await
            .unwrap();
    });
    let kube::Error::Service(error) = response.unwrap_err() else {
        panic!("it comes from the transport");
    };
    let error: Box<Error> = error.downcast().unwrap();
    assert!(matches!(*error, Error::NoCredentials { .. }), "{error}");
    let shown = chain(&*error);
    let expected = "no credentials for 127.0.0.1:1 yet (the credentials of the plugin cat)";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(client.transport.loading_since().is_some());
}
