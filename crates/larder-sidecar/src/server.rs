//! Health and metrics over HTTP, and the probe that asks for them.

use std::{
    convert::Infallible,
    fmt,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use larder_connections::{Acceptor, ConnectionLimits};
use larder_objects::go_duration;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{net::TcpListener, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use crate::health::{Answer, Health};

/// Connections at the same time.
const CONNECTIONS: usize = 16;
/// Longest time for a probe.
const PROBE: Duration = Duration::from_secs(10);

/// What is served.
#[derive(Clone)]
pub(crate) enum Probed {
    /// Own form: health and readiness have paths of their own.
    Own(Arc<Health>),
    /// Label form: `/healthz` is both (rule H6).
    Label(Arc<Health>),
    /// Reload form: the text of `/healthz` while it works, and the path of the metrics.
    Reload(Arc<dyn Fn() -> Answer + Send + Sync>, String),
}

impl fmt::Debug for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probed")
    }
}

/// A listener on the port: on `host`, or on all addresses, where there is IPv6 of both versions.
///
/// # Errors
///
/// The port is in use, or may not be used.
pub(crate) async fn bind(host: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    if let Some(host) = host {
        return TcpListener::bind((host, port)).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// Serves until `shutdown`.
pub(crate) async fn serve(
    listener: TcpListener,
    probed: Probed,
    registry: Arc<Registry>,
    shutdown: CancellationToken,
) {
    let limits = ConnectionLimits::default()
        .http1_only()
        .max_connections(CONNECTIONS);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let response = respond(&probed, &registry, request.uri());
        async move { Ok::<_, Infallible>(response) }
    });
    Acceptor::new(listener, limits)
        .serve(service, shutdown)
        .await;
}

fn respond(probed: &Probed, registry: &Registry, uri: &http::Uri) -> Response<Full<Bytes>> {
    let now = Instant::now();
    let query = uri.query().unwrap_or_default().split('&');
    let mut ages = query.filter_map(|pair| pair.strip_prefix("max-age="));
    let max_age = match ages.next().map(go_duration::parse) {
        Some(Err(_)) => return plain(StatusCode::BAD_REQUEST, "max-age: expected a duration"),
        Some(Ok(age)) => Some(age),
        None => None,
    };
    let answer = match (probed, uri.path()) {
        (Probed::Own(health), "/healthz" | "/livez") => health.live(max_age, now),
        (Probed::Own(health), "/readyz") => health.ready(now),
        (Probed::Label(health), "/healthz") => health.live_and_ready(max_age, now),
        (Probed::Label(health), "/livez") => health.live(max_age, now),
        (Probed::Label(health), "/readyz") => health.ready(now),
        (Probed::Reload(answer, _), "/healthz") => answer(),
        (Probed::Own(health) | Probed::Label(health), "/metrics") => {
            health.refresh(now);
            return metrics(registry);
        }
        (Probed::Reload(_, path), found) if found == path => return metrics(registry),
        _ => return plain(StatusCode::NOT_FOUND, "not found"),
    };
    let status = if answer.is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    with_type(status, "application/json", answer.body)
}

fn metrics(registry: &Registry) -> Response<Full<Bytes>> {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a String does not fail");
    let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    with_type(StatusCode::OK, form, text)
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

fn with_type(status: StatusCode, form: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = http::HeaderValue::from_static(form);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

/// Asks the sidecar at `address` for `path`, as a probe does. Blocks.
///
/// # Errors
///
/// The reason: its answer, or why there is none.
pub fn check(address: SocketAddr, path: &str) -> Result<(), String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, PROBE)?;
        stream.set_read_timeout(Some(PROBE))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.take(1 << 20).read_to_end(&mut answer)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = ask().map_err(|error| format!("cannot ask {address}: {error}"))?;
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let body = answer
        .split_once("\r\n\r\n")
        .map_or(answer.as_str(), |(_, body)| body);
    let status: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let status = status.and_then(|body| Some(body.get("status")?.as_str()?.to_owned()));
    Err(status.unwrap_or_else(|| "no usable answer".to_owned()))
}
