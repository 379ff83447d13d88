//! Health and metrics over HTTP, and the probe that asks for them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Response, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use larder_actions::http::{Fetch, fetch};
use larder_connections::{Acceptor, ConnectionLimits, log_panic};
use larder_objects::go_duration;
use larder_on_change::{HttpTls, HttpUrl};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::service_fn;
use tracing::info;

use crate::{health::Health, metrics::Metrics, run::RunError};

/// Connections at the same time.
const CONNECTIONS: usize = 16;
/// Longest time for a probe.
const PROBE: Duration = Duration::from_secs(10);
/// Longest answer that a probe reads.
const MAX_ANSWER: usize = 64 << 10;
/// Time for open connections when the sidecar ends.
const END: Duration = Duration::from_millis(500);

/// What is served besides health.
#[derive(Clone, Debug)]
pub(crate) enum Pages {
    /// Own form: health and readiness have paths of their own.
    Own(Metrics),
    /// Label form: `/healthz` is both (rule H6).
    Label(Metrics),
    /// Reload form: `/healthz` as theirs, and metrics at this path.
    Reload(String),
}

/// The server of health and metrics, or none.
#[derive(Debug, Default)]
pub(crate) struct Server {
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Server {
    /// Serves on the listener, if there is one.
    pub(crate) fn start(
        listener: Option<TcpListener>,
        pages: Pages,
        health: &Arc<Health>,
        registry: Registry,
    ) -> Self {
        let mut server = Self::default();
        if let Some(listener) = listener {
            let address = listener.local_addr().ok();
            info!(?address, "listening");
            let limits = ConnectionLimits::default().http1_only();
            let limits = limits.max_connections(CONNECTIONS);
            let (health, registry) = (Arc::clone(health), Arc::new(registry));
            let service = service_fn(move |request: http::Request<Incoming>| {
                let response = respond(&pages, &health, &registry, request.uri());
                async move { response }
            });
            let serving = Acceptor::new(listener, limits).serve(service, server.shutdown.clone());
            server.tasks.spawn(serving);
        }
        server
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        if let Ok(Some(ended)) = timeout(END, self.tasks.join_next()).await {
            log_panic(ended);
        }
    }
}

/// A listener on the address.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    let failed = |error| RunError::Listen(format!("cannot listen on {address}: {error}"));
    TcpListener::bind(address).await.map_err(failed)
}

/// A listener on the port: on `host`, or on all addresses, where there is IPv6 of both versions.
pub(crate) async fn bind(host: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let address = host.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    match TcpListener::bind((address, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse && host.is_none() => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

fn respond(
    pages: &Pages,
    health: &Health,
    registry: &Registry,
    uri: &http::Uri,
) -> http::Result<Response<Full<Bytes>>> {
    let response = |status: u16, form, body| {
        let response = Response::builder()
            .status(status)
            .header(CONTENT_TYPE, form);
        response.body(Full::new(Bytes::from(body)))
    };
    let now = Instant::now();
    let mut query = uri.query().unwrap_or_default().split('&');
    let max_age = query.find_map(|pair| pair.strip_prefix("max-age="));
    let Ok(max_age) = max_age.map(go_duration::parse).transpose() else {
        return response(
            400,
            "text/plain",
            "max-age: expected a duration\n".to_owned(),
        );
    };
    let answer = match (pages, uri.path()) {
        (Pages::Label(_), "/healthz") => health.live_and_ready(max_age, now),
        (Pages::Reload(_), "/healthz") => health.up(),
        (Pages::Own(_) | Pages::Label(_), "/healthz" | "/livez") => health.live(max_age, now),
        (Pages::Own(_) | Pages::Label(_), "/readyz") => health.ready(now),
        (pages, path) => {
            let metrics_path = match pages {
                Pages::Own(own) | Pages::Label(own) => {
                    own.proof_age.set(health.proof_age(now).as_secs_f64());
                    "/metrics"
                }
                Pages::Reload(own_path) => own_path,
            };
            if path != metrics_path {
                return response(404, "text/plain", "not found\n".to_owned());
            }
            let mut text = String::new();
            encode(&mut text, registry).expect("writing to a String does not fail");
            let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            return response(200, form, text);
        }
    };
    let status = if answer.is_ok { 200 } else { 503 };
    response(status, "application/json", answer.body)
}

/// Asks the sidecar at `address` for `path`, as a probe does. Blocks.
///
/// # Errors
///
/// The reason: its answer, or why there is none.
pub fn check(address: SocketAddr, path: &str) -> Result<(), String> {
    check_within(PROBE, address, path)
}

fn check_within(limit: Duration, address: SocketAddr, path: &str) -> Result<(), String> {
    let url = HttpUrl::parse(&format!("http://{address}{path}"));
    let request = Fetch {
        url: &url.map_err(|error| error.to_string())?,
        headers: &[],
        tls: &HttpTls::default(),
        timeout: limit,
        max_body: MAX_ANSWER,
        body_of_5xx: true,
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot ask {address}: {error}"))?;
    let fetched = runtime.block_on(fetch(&request));
    let fetched = fetched.map_err(|error| format!("cannot ask {address}: {error}"))?;
    let status: Option<serde_json::Value> = serde_json::from_slice(&fetched.body).ok();
    match status.as_ref().and_then(|body| body["status"].as_str()) {
        _ if fetched.status == 200 => Ok(()),
        Some(status) => Err(status.to_owned()),
        None => Err("no usable answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use http_body_util::BodyExt as _;
    use larder_objects::Kind;
    use tokio::time::advance;

    use super::*;
    use crate::selection::{ObjectRef, Selection};

    #[tokio::test(start_paused = true)]
    async fn age_of_the_oldest_proof_is_as_of_the_scrape() {
        let mut registry = Registry::with_prefix("larder_sidecar");
        let (pages, health) = (
            Pages::Own(Metrics::register(&mut registry)),
            Health::default(),
        );
        let watch = |name| Selection::of(&ObjectRef::new(Kind::Secret, "n", name));
        health.follow(&[watch("a"), watch("b")], Duration::from_mins(2));
        health.proven(0, None);
        advance(Duration::from_secs(30)).await;
        health.proven(1, None);
        advance(Duration::from_secs(10)).await;
        let uri = "/metrics".parse().unwrap();
        let response = respond(&pages, &health, &registry, &uri).unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(
            text.contains("larder_sidecar_proof_age_seconds 40.0\n"),
            "{text}"
        );
    }

    #[test]
    fn server_that_drips_does_not_hold_a_probe() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A byte, whenever the probe has said nothing for a moment.
            stream
                .set_read_timeout(Some(Duration::from_millis(10)))
                .unwrap();
            while stream.write_all(b" ").is_ok() {
                let _ = stream.read(&mut [0; 64]);
            }
        });
        let error = check_within(Duration::from_millis(100), address, "/livez").unwrap_err();
        assert!(
            error.starts_with(&format!("cannot ask {address}: ")),
            "{error}"
        );
    }
}
