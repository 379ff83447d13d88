//! `staticPodURL` over TLS: a server with a certificate of a private authority, and an agent that learns of both from
//! its configuration and its environment.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    Desk,
    recipes::Blocks,
    run::{config_map, key, pod, put},
};

/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The server's answer until it is changed, and the requests that it received.
#[derive(Debug, Default)]
struct Script {
    answer: String,
    requests: Vec<String>,
}

/// A server of manifests; its threads end with the test's process.
struct TlsServer {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    /// The authority that has signed its certificate, in PEM.
    authority: String,
}

impl TlsServer {
    fn start() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider().into();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(Mutex::new(Script::default()));
        let (config, scripted) = (Arc::new(config), script.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, script) = (config.clone(), scripted.clone());
                // A client that does not trust the server, or has seen enough, ends the connection.
                thread::spawn(move || answer(stream.ok()?, config, &script));
            }
        });
        Self {
            address,
            script,
            authority,
        }
    }

    fn answers(&self, status: &str, body: &str) {
        self.answers_with(status, "", body);
    }

    fn answers_with(&self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let mut script = self.script.lock();
        script.answer = answer;
        script.requests.clear();
    }

    fn requests(&self) -> Vec<String> {
        let script = self.script.lock();
        script.requests.clone()
    }
}

fn answer(stream: TcpStream, config: Arc<ServerConfig>, script: &Mutex<Script>) -> Option<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config).ok()?, stream);
    let mut request = String::new();
    let mut lines = BufReader::new(&mut stream);
    while !request.ends_with("\r\n\r\n") {
        if lines.read_line(&mut request).ok()? == 0 {
            return None;
        }
    }
    let answer = {
        let mut script = script.lock();
        script.requests.push(request.clone());
        // A redirect leads to the same answer without it.
        if request.starts_with("GET /moved ") {
            script.answer.replacen("302 Found", "200 OK", 1)
        } else {
            script.answer.clone()
        }
    };
    stream.write_all(answer.as_bytes()).ok()?;
    stream.conn.send_close_notify();
    stream.flush().ok()
}

/// An agent with an empty directory of manifests, which trusts what is in `authority.pem`; ended with the test.
struct StaticUrlAgent<'a> {
    desk: &'a Desk,
    child: Child,
}

impl<'a> StaticUrlAgent<'a> {
    fn start(desk: &'a Desk) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["run", "--manifests", "m", "--root-dir", "root"])
            .args(["--node-name", "n1", "--config", "agent.yaml"])
            .current_dir(desk.path())
            .env_clear()
            .env("SSL_CERT_FILE", desk.path().join("authority.pem"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(desk.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { desk, child }
    }

    fn status(&self) -> Option<Value> {
        let run = self.desk.run("status --root-dir root -o json");
        serde_json::from_str(&run.stdout).ok()
    }

    /// Waits until the status is as wanted.
    async fn until<T>(&self, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if let Some(found) = status.as_ref().and_then(&look) {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}: {status:#?}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a problem says this; the pods that are served then.
    async fn until_problem(&self, text: &str) -> Vec<String> {
        self.until(text, |status| {
            let problems = status["problems"].as_array()?;
            let told = |problem: &Value| problem.as_str().unwrap().contains(text);
            problems.iter().any(told).then(|| pods(status))
        })
        .await
    }

    /// Waits until exactly these pods are served, and nothing is wrong.
    async fn until_pods(&self, expected: &[&str]) {
        self.until(&format!("{expected:?}"), |status| {
            let well = status["problems"].as_array()?.is_empty();
            (well && pods(status) == expected).then_some(())
        })
        .await;
    }
}

impl Drop for StaticUrlAgent<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pods(status: &Value) -> Vec<String> {
    let pods = status["pods"].as_array().unwrap().iter();
    pods.map(|pod| pod["name"].as_str().unwrap().to_owned())
        .collect()
}

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
    )
}

fn desk(server: &TlsServer) -> Desk {
    let config = format!(
        "staticPodURL: https://user:pass%20word@localhost:{}/pods.yaml?token=t0ken\n\
         staticPodURLHeader: {{X-Auth: [s3cret]}}\nhttpCheckFrequency: 50ms\n",
        server.address.port()
    );
    let desk = Desk::with([
        ("agent.yaml", &config),
        ("authority.pem", &server.authority),
    ]);
    fs::create_dir(desk.path().join("m")).unwrap();
    desk
}

fn log(desk: &Desk) -> String {
    let path: PathBuf = desk.path().join("log");
    fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn static_pods_survive_every_bad_response_but_not_an_empty_one() {
    // managers 68
    let server = TlsServer::start();
    server.answers("200 OK", &manifest("a"));
    let desk = desk(&server);
    let agent = StaticUrlAgent::start(&desk);
    agent.until_pods(&["a-n1"]).await;
    let request = server.requests().remove(0).to_lowercase();
    for header in [
        "x-auth: s3cret",
        "authorization: basic dxnlcjpwyxnzihdvcmq=",
    ] {
        assert!(request.contains(header), "{request}");
    }
    assert!(
        request.starts_with("get /pods.yaml?token=t0ken http/1.1"),
        "{request}"
    );

    for (status, body, why) in [
        ("404 Not Found", "", "unexpected status 404 Not Found"),
        ("500 Internal Server Error", "oops", "unexpected status 500"),
        ("200 OK", "garbage", "the response holds no static pods"),
        ("200 OK", &"x".repeat(10 << 20), "10485760 bytes or more"),
    ] {
        server.answers(status, body);
        assert_eq!(agent.until_problem(why).await, ["a-n1"]);
    }
    server.answers_with("302 Found", "Location: /moved\r\n", &manifest("b"));
    agent.until_pods(&["b-n1"]).await;
    server.answers("200 OK", "");
    agent.until_problem("the response is empty").await;
    agent
        .until("no pods", |status| pods(status).is_empty().then_some(()))
        .await;
    server.answers("200 OK", &manifest("b"));
    agent.until_pods(&["b-n1"]).await;

    drop(agent);
    // The server is of no help at the next start.
    server.answers("503 Service Unavailable", "");
    let agent = StaticUrlAgent::start(&desk);
    assert_eq!(
        agent
            .until_problem("unexpected status 503 Service Unavailable")
            .await,
        ["b-n1"]
    );
    let log = log(&desk);
    for secret in ["s3cret", "t0ken", "pass%20word", "pass word"] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn pods_of_the_url_read_the_objects_of_the_machine() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/machines.md");
    let server = TlsServer::start();
    let shared = pod("web", "own");
    server.answers("200 OK", &shared);
    let blocks = Blocks::in_page(PAGE, "Pods from a URL, Secrets of each machine");
    let here = format!("localhost:{}", server.address.port());
    for machine in ["vm-17", "vm-18"] {
        let desk = desk(&server);
        let config = blocks.files[0]
            .1
            .replace("/etc/larder/manifests", "m")
            .replace("config.example.com", &here);
        fs::write(desk.path().join("agent.yaml"), config).unwrap();
        put(
            &desk,
            "own.yaml",
            &config_map("own", &format!("a: {machine}")),
        );
        let agent = StaticUrlAgent::start(&desk);
        agent
            .until("the volume", |_| {
                (key(&desk, "web-n1", "a")? == machine).then_some(())
            })
            .await;
    }
    let request = server.requests().remove(0).to_lowercase();
    assert!(request.contains("authorization: bearer token"), "{request}");
}

#[tokio::test]
async fn untrusted_server_certificate_is_reported() {
    let server = TlsServer::start();
    server.answers("200 OK", &manifest("a"));
    let desk = desk(&server);
    fs::write(
        desk.path().join("authority.pem"),
        &TlsServer::start().authority,
    )
    .unwrap();
    let agent = StaticUrlAgent::start(&desk);
    let pods = agent.until_problem("/pods.yaml: no response: ").await;
    assert!(pods.is_empty());
    agent.until_problem("invalid peer certificate").await;
    assert!(
        server.requests().is_empty(),
        "nothing was asked in the clear"
    );
}
