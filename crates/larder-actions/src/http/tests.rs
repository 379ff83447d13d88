//! Real listeners on loopback addresses.

use std::{collections::BTreeMap, fs, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::PrivateKeyDer;
use smol_str::SmolStr;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use larder_objects::PodIdentity;
use larder_on_change::{
    Action, Changes, HttpTls, RoundId,
    parse::{HookOrigin, hooks},
};

/// The request of a hook in the long form, with `fields` besides its target.
fn call(target: &str, fields: &str) -> HttpCall {
    let text = format!("[{{http: {{{target}, {fields}}}}}]");
    let hooks = hooks(&text, HookOrigin::Configuration, None).unwrap();
    let Action::Http(call) = hooks.into_iter().next().unwrap().steps.remove(0) else {
        unreachable!("the text has one request")
    };
    call
}

/// Volumes on disk.
struct Volumes {
    directory: TempDir,
    paths: BTreeMap<SmolStr, PathBuf>,
}

impl Volumes {
    fn with(volume: &str, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(volume);
        fs::create_dir(&path).unwrap();
        for (name, content) in files {
            fs::write(path.join(name), content).unwrap();
        }
        Self {
            directory,
            paths: BTreeMap::from([(volume.into(), path)]),
        }
    }

    async fn ask(&self, call: &HttpCall, hosts: Hosts<'_>) -> StepOutcome {
        self.ask_within(call, hosts, Duration::from_secs(30)).await
    }

    async fn ask_within(&self, call: &HttpCall, hosts: Hosts<'_>, limit: Duration) -> StepOutcome {
        let change = PodChange {
            hook: "0-http".to_owned(),
            round: RoundId::from_random(7),
            attempt: 1,
            pod: PodIdentity::default(),
            changes: Changes::default(),
        };
        let context = RequestContext {
            hosts,
            outline: &PodOutline::default(),
            files: Files {
                volumes: &self.paths,
                any_authorities: false,
            },
        };
        send(call, limit, &change, context).await.0
    }
}

fn pod(ips: &[IpAddr]) -> PodAddresses {
    PodAddresses {
        ips: ips.to_vec(),
        ..PodAddresses::default()
    }
}

async fn ask(call: &HttpCall) -> StepOutcome {
    let volumes = Volumes::with("none", &[]);
    volumes.ask(call, Hosts::ThisMachine).await
}

async fn ask_within(call: &HttpCall, timeout: Duration) -> StepOutcome {
    let volumes = Volumes::with("none", &[]);
    volumes.ask_within(call, Hosts::ThisMachine, timeout).await
}

/// Reads one request, and answers it with `answer`. Returns what was read.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl AsRef<[u8]>,
) -> String {
    let mut request = Vec::new();
    while !is_complete(&request) {
        if stream.read_buf(&mut request).await.unwrap() == 0 {
            break;
        }
    }
    stream.write_all(answer.as_ref()).await.unwrap();
    let _ = stream.shutdown().await;
    String::from_utf8(request).unwrap()
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.parse().unwrap())
}

/// A listener that answers one request.
async fn listener(answer: impl AsRef<[u8]> + Send + 'static) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = async move { serve(listener.accept().await.unwrap().0, answer).await };
    #[expect(clippy::disallowed_methods, reason = "each test awaits its listener")]
    let served = tokio::spawn(served);
    (format!("port: {port}, path: /-/reload"), served)
}

fn failed_at(call: &HttpCall, reason: &str) -> StepOutcome {
    StepOutcome::Failed(format!("{}: {reason}", call.target))
}

// on-change 48
#[tokio::test]
async fn status_decides_over_success() {
    for (status, expect, reason) in [
        ("204 No Content", "2xx", None),
        ("200 OK", "2xx", None),
        ("404 Not Found", "2xx", Some("answered 404")),
        ("404 Not Found", "404", None),
        (
            "301 Moved",
            "2xx",
            Some("answered 301; redirects are not followed"),
        ),
        ("503 Busy", "2xx", Some("answered 503")),
    ] {
        let answer = format!(
            "HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:1/canary\r\ncontent-length: 6\r\n\r\ncanary"
        );
        let (target, served) = listener(answer).await;
        let call = call(&target, &format!("expect: [{expect}]"));
        let expected = reason.map_or(StepOutcome::Succeeded, |reason| failed_at(&call, reason));
        assert_eq!(ask(&call).await, expected);
        served.await.unwrap();
    }
}

// on-change 48
#[tokio::test]
async fn refused_connection_and_missing_answer_are_named() {
    // The port is taken, and nothing listens.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let call_gone = call(&format!("port: {port}"), "");
    let outcome = ask(&call_gone).await;
    let reason = "cannot connect: Connection refused (os error 111)";
    assert_eq!(outcome, failed_at(&call_gone, reason));

    let (target, served) = listener("").await;
    let outcome = ask(&call(&target, "")).await;
    assert!(outcome.reason().contains(": no answer: "), "{outcome:?}");
    served.await.unwrap();
}

// on-change 48
#[tokio::test]
async fn silent_server_is_given_up_at_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let call = call(&format!("port: {port}, path: '/x?token=canary'"), "");
    let outcome = ask_within(&call, Duration::from_millis(50)).await;
    let reason = format!("{port}/x: timed out after 50ms");
    assert_eq!(outcome, StepOutcome::TimedOut(reason));
    assert_eq!(outcome.name(), "timed_out");
}

#[tokio::test]
async fn request_has_the_fields_of_the_contract() {
    let (target, served) = listener("HTTP/1.1 200 OK\r\n\r\n").await;
    let fields = "method: PUT, headers: {X-One: '1', User-Agent: mine}, body: hello";
    assert_eq!(ask(&call(&target, fields)).await, StepOutcome::Succeeded);
    let request = served.await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("PUT /-/reload HTTP/1.1\r\n"), "{head}");
    assert_eq!(body, "hello");
    for line in [
        "x-one: 1",
        "user-agent: mine",
        "larder-round: 00000000-0000-4000-8000-000000000007",
        "connection: close",
        "content-length: 5",
    ] {
        assert!(head.lines().any(|other| other == line), "{line} in {head}");
    }

    let (target, served) = listener("HTTP/1.1 200 OK\r\n\r\n").await;
    assert_eq!(ask(&call(&target, "")).await, StepOutcome::Succeeded);
    let request = served.await.unwrap();
    assert!(request.starts_with("POST /-/reload HTTP/1.1\r\n"));
    let agent = format!("user-agent: larder/{}\r\n", env!("CARGO_PKG_VERSION"));
    assert!(request.contains(&agent), "{request}");
}

// on-change 48
#[tokio::test]
async fn endless_answer_is_not_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endless = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    };
    let call = call(&format!("port: {port}"), "");
    let (outcome, ()) = tokio::join!(ask(&call), endless);
    assert_eq!(outcome, StepOutcome::Succeeded);
}

// on-change 48
#[tokio::test]
async fn endless_head_is_no_success_and_holds_nothing_up() {
    for (first, repeated) in [
        ("HTTP/1.1 200 OK\r\n", "x: y\r\n"),
        ("HTTP/1.1 200 ", "OK"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        ("", "\r\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endless = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(first.as_bytes()).await.unwrap();
            let chunk = repeated.repeat(1000);
            while stream.write_all(chunk.as_bytes()).await.is_ok() {}
        };
        let call = call(&format!("port: {port}"), "");
        let asked = ask_within(&call, Duration::from_millis(500));
        let (outcome, ()) = tokio::join!(asked, endless);
        assert!(!outcome.is_success(), "{first:?} {repeated:?}: {outcome:?}");
    }
}

// on-change 48
#[tokio::test]
async fn interim_answers_precede_an_answer_and_do_not_replace_it() {
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let (target, served) = listener(hints.repeat(3) + "HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(ask(&call(&target, "")).await, StepOutcome::Succeeded);
    served.await.unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endless = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let chunk = hints.repeat(1000);
        while stream.write_all(chunk.as_bytes()).await.is_ok() {}
    };
    let call = call(&format!("port: {port}"), "");
    // It fails, and does not wait for its timeout.
    let (outcome, ()) = tokio::join!(ask(&call), endless);
    let StepOutcome::Failed(reason) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(
        reason.contains("interim answers without an end"),
        "{reason}"
    );
}

// on-change 51
#[tokio::test]
async fn next_address_is_tried_if_nothing_listens_at_the_first() {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let addresses = ["127.0.0.3", "127.0.0.2"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    let stream = connect(&addresses).await.unwrap().unwrap();
    assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    // Both families, in the order of the pod's addresses.
    let ips = ["10.1.2.3", "fd00::7"].map(|ip| ip.parse().unwrap());
    let found = Hosts::Pod(&pod(&ips)).addresses(9090).unwrap();
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.1.2.3:9090", "[fd00::7]:9090"]
    );
}

// on-change 51
#[tokio::test]
async fn server_that_listens_on_ipv6_only_is_reached() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        // A machine without IPv6.
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let served = async {
        let stream = listener.accept().await.unwrap().0;
        serve(stream, "HTTP/1.1 204 No Content\r\n\r\n").await
    };
    let call = call(&format!("url: 'http://[::1]:{port}/-/reload'"), "");
    let (outcome, request) = tokio::join!(ask(&call), served);
    assert_eq!(outcome, StepOutcome::Succeeded);
    assert!(
        request.contains(&format!("host: [::1]:{port}\r\n")),
        "{request}"
    );
}

// on-change 11
#[tokio::test]
async fn addresses_that_lead_back_to_the_machine_are_rejected() {
    for ip in [
        "127.0.0.1",
        "127.8.8.8",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::127.0.0.1",
        "64:ff9b::",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::",
        "2002:e000:1:2::3",
    ] {
        let ips = [ip.parse().unwrap()];
        assert!(addresses::is_refused(ips[0]), "{ip}");
        let call = call("port: 9090", "");
        let volumes = Volumes::with("none", &[]);
        let outcome = volumes.ask(&call, Hosts::Pod(&pod(&ips))).await;
        let reason = format!("{} is not the address of a pod", ips[0]);
        assert_eq!(outcome, failed_at(&call, &reason));
    }
    for ip in [
        "10.0.0.1",
        "192.168.1.1",
        "fd00::1",
        "2001:db8::1",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::7f00:1",
        "fd00::7f00:1",
    ] {
        assert!(!addresses::is_refused(ip.parse().unwrap()), "{ip}");
    }
    let none = call("port: 9090", "");
    let outcome = Volumes::with("none", &[])
        .ask(&none, Hosts::Pod(&pod(&[])))
        .await;
    assert_eq!(outcome, failed_at(&none, "the pod has no address yet"));
}

// on-change 12
#[tokio::test]
async fn redirect_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = elsewhere.local_addr().unwrap();
    let answer = format!("HTTP/1.1 307 Elsewhere\r\nlocation: http://{location}/\r\n\r\n");
    let (target, served) = listener(answer).await;
    let call = call(&target, "");
    let reason = "answered 307; redirects are not followed";
    assert_eq!(ask(&call).await, failed_at(&call, reason));
    served.await.unwrap();
    let accepted = timeout(Duration::ZERO, elsewhere.accept()).await;
    assert!(accepted.is_err(), "a second request was sent");
}

// on-change 52
#[tokio::test]
async fn credentials_are_read_for_each_request() {
    let volumes = Volumes::with("admin", &[("user", "me\n"), ("password", "old")]);
    let auth = "auth: {volume: admin, username: user, password: password}";
    for (password, expected) in [("old", "bWU6b2xk"), ("new", "bWU6bmV3")] {
        fs::write(volumes.paths["admin"].join("password"), password).unwrap();
        let (target, served) = listener("HTTP/1.1 200 OK\r\n\r\n").await;
        let outcome = volumes.ask(&call(&target, auth), Hosts::ThisMachine).await;
        assert_eq!(outcome, StepOutcome::Succeeded);
        let header = format!("authorization: Basic {expected}\r\n");
        assert!(served.await.unwrap().contains(&header));
    }
    let (target, served) = listener("HTTP/1.1 200 OK\r\n\r\n").await;
    let bearer = call(&target, "auth: {volume: admin, bearer: password}");
    let outcome = volumes.ask(&bearer, Hosts::ThisMachine).await;
    assert_eq!(outcome, StepOutcome::Succeeded);
    let request = served.await.unwrap();
    assert!(request.contains("authorization: Bearer new\r\n"));
}

#[tokio::test]
async fn credentials_outside_the_volume_are_not_read() {
    let volumes = Volumes::with("admin", &[("user", "me")]);
    let outside = volumes.directory.path().join("outside");
    fs::write(&outside, "canary").unwrap();
    std::os::unix::fs::symlink(&outside, volumes.paths["admin"].join("link")).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        volumes.paths["admin"].join("pipe"),
        rustix::fs::Mode::RUSR,
    )
    .unwrap();
    for path in ["../outside", "link", "/etc/passwd", "pipe", "."] {
        let auth = format!("auth: {{volume: admin, bearer: '{path}'}}");
        let call = call("port: 1", &auth);
        let outcome = volumes.ask(&call, Hosts::ThisMachine).await;
        let reason = format!("cannot read {path} of volume admin");
        assert!(outcome.reason().contains(&reason), "{outcome:?}");
    }
}

// on-change 53
#[tokio::test]
async fn user_and_query_of_a_url_are_sent_and_not_shown() {
    let (target, served) = listener("HTTP/1.1 500 No\r\n\r\n").await;
    let port = target.split([' ', ',']).nth(1).unwrap();
    let url = format!("url: 'http://me:can%61ry@127.0.0.1:{port}/x?token=canary'");
    let call = call(&url, "");
    let outcome = ask(&call).await;
    assert_eq!(
        outcome.reason(),
        format!("http://127.0.0.1:{port}/x: answered 500")
    );
    let request = served.await.unwrap();
    assert!(request.starts_with("POST /x?token=canary HTTP/1.1\r\n"));
    assert!(
        request.contains("authorization: Basic bWU6Y2FuYXJ5\r\n"),
        "{request}"
    );
    assert!(request.contains(&format!("host: 127.0.0.1:{port}\r\n")));
}

/// An authority, and a certificate of it for a server.
struct Authorities {
    pem: String,
    config: Arc<ServerConfig>,
}

/// A certificate that is its own authority, as `openssl req -x509` makes it.
fn self_signed(names: &[&str]) -> Authorities {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    serving(certificate.pem(), &certificate, &key)
}

fn serving(pem: String, certificate: &rcgen::Certificate, key: &KeyPair) -> Authorities {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    Authorities {
        pem,
        config: Arc::new(config),
    }
}

fn authorities(names: &[&str]) -> Authorities {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().unwrap();
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let certificate = CertificateParams::new(names).unwrap();
    let certificate = certificate.signed_by(&own, &issuer).unwrap();
    serving(pem, &certificate, &own)
}

/// The outcome of a request to a server with this certificate.
async fn ask_tls(volumes: &Volumes, server: &Authorities, tls: HttpTls) -> StepOutcome {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut call = call(&format!("port: {port}, scheme: https"), "");
    call.tls = tls;
    let answering = async {
        let stream = listener.accept().await.unwrap().0;
        let acceptor = TlsAcceptor::from(Arc::clone(&server.config));
        if let Ok(stream) = acceptor.accept(stream).await {
            serve(stream, "HTTP/1.1 200 OK\r\n\r\n").await;
        }
    };
    let (outcome, ()) = tokio::join!(volumes.ask(&call, Hosts::ThisMachine), answering);
    outcome
}

// on-change 50
#[tokio::test]
async fn certificate_is_verified_against_the_authorities_of_the_moment() {
    let (ours, foreign) = (authorities(&["127.0.0.1"]), authorities(&["127.0.0.1"]));
    let volumes = Volumes::with("trust", &[("ca.crt", &ours.pem)]);
    let ca = || HttpTls {
        ca: Some("trust/ca.crt".to_owned()),
        ..HttpTls::default()
    };
    assert_eq!(ask_tls(&volumes, &ours, ca()).await, StepOutcome::Succeeded);
    for tls in [ca(), HttpTls::default()] {
        let outcome = ask_tls(&volumes, &foreign, tls).await;
        let reason = "TLS failed: invalid peer certificate: ";
        assert!(outcome.reason().contains(reason), "{outcome:?}");
    }
    fs::write(volumes.paths["trust"].join("ca.crt"), &foreign.pem).unwrap();
    let outcome = ask_tls(&volumes, &foreign, ca()).await;
    assert_eq!(outcome, StepOutcome::Succeeded);
    let insecure = HttpTls {
        insecure_skip_verify: true,
        ..HttpTls::default()
    };
    let outcome = ask_tls(&volumes, &ours, insecure).await;
    assert_eq!(outcome, StepOutcome::Succeeded);
}

// on-change 50
#[tokio::test]
async fn certificate_that_is_listed_itself_is_accepted_for_its_name() {
    let server = self_signed(&["127.0.0.1"]);
    let (other, named) = (self_signed(&["127.0.0.1"]), self_signed(&["other"]));
    let bundle = [&*other.pem, &named.pem].concat();
    let volumes = Volumes::with("trust", &[("own", &server.pem), ("others", &bundle)]);
    let tls = |file: &str| HttpTls {
        ca: Some(format!("trust/{file}")),
        ..HttpTls::default()
    };
    let outcome = ask_tls(&volumes, &server, tls("own")).await;
    assert_eq!(outcome, StepOutcome::Succeeded);
    for (server, words) in [
        (&server, "invalid peer certificate: it is "),
        (&named, "certificate not valid for name"),
    ] {
        let outcome = ask_tls(&volumes, server, tls("others")).await;
        assert!(outcome.reason().contains(words), "{outcome:?}");
    }
}

// on-change 50
#[tokio::test]
async fn certificate_must_have_the_name_of_the_server() {
    let server = authorities(&["reload.example"]);
    let volumes = Volumes::with("trust", &[("ca.crt", &server.pem), ("empty", "")]);
    let tls = |ca: &str, server_name: Option<&str>| HttpTls {
        ca: Some(format!("trust/{ca}")),
        server_name: server_name.map(str::to_owned),
        insecure_skip_verify: false,
    };
    let outcome = ask_tls(&volumes, &server, tls("ca.crt", None)).await;
    assert!(outcome.reason().contains("TLS failed: "), "{outcome:?}");
    let named = tls("ca.crt", Some("reload.example"));
    let outcome = ask_tls(&volumes, &server, named).await;
    assert_eq!(outcome, StepOutcome::Succeeded);
    for (file, reason) in [
        ("empty", "no CA certificates in trust/empty"),
        ("../../etc/passwd", "cannot read trust/../../etc/passwd: "),
    ] {
        let call = HttpCall {
            tls: tls(file, None),
            ..call("port: 1, scheme: https", "")
        };
        let files = Files {
            volumes: &volumes.paths,
            any_authorities: false,
        };
        let error = connector(&call.tls, "host", files).await.err().unwrap();
        assert!(chain(&error).starts_with(reason), "{error:?}");
    }
    // A file of the machine is for the operator's hooks only.
    let path = volumes.paths["trust"].join("ca.crt");
    let pipe = volumes.directory.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    for any_authorities in [false, true] {
        let files = Files {
            volumes: &volumes.paths,
            any_authorities,
        };
        let read = files.authorities(path.to_str().unwrap());
        assert_eq!(read.is_ok(), any_authorities);
        // A pipe is not waited for.
        let read = files.authorities(pipe.to_str().unwrap());
        assert!(matches!(read, Err(HttpError::CaCertificates { .. })));
    }
}
