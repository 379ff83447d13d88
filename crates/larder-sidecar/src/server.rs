//! Health and metrics over HTTP, and the probe that asks for them.

use std::{io, net::SocketAddr, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use http::{Response, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use larder_actions::http::{Fetch, fetch};
use larder_connections::{Acceptor, ConnectionLimits};
use larder_objects::go_duration;
use larder_on_change::{HttpTls, HttpUrl};
use prometheus_client::{encoding::text::encode, registry::Registry};
use rustix::io::Errno;
use serde_json::Value;
use tokio::{
    net::TcpListener,
    runtime::Builder,
    sync::oneshot,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::service_fn;
use tracing::{error, info};

use crate::{
    health::{Health, attended},
    metrics::Metrics,
};

/// Connections at the same time.
const CONNECTIONS: usize = 16;
/// Time for an answer, which only a client that does not read it needs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer that a probe reads.
const MAX_ANSWER: usize = 64 << 10;
/// Time for open connections when the sidecar ends.
const END: Duration = Duration::from_millis(500);

/// Why a sidecar has failed: it cannot be set up, or it runs once, and something is missing. The reasons are for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The address of health and metrics cannot be used.
    #[error("cannot listen on {address}: {errno}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        errno: Errno,
    },
    /// There is no thread for health and metrics.
    #[error("cannot start the thread for health and metrics: {0}")]
    Thread(Errno),
    /// Repeating a request does not help: the right or the path is missing.
    #[error("{0}")]
    Denied(String),
    /// Time was up before everything was listed and written.
    #[error("{0}")]
    Incomplete(String),
    /// A file whose content is fetched is not there.
    #[error("{0}")]
    NotFetched(String),
    /// The application has refused the login.
    #[error("{0}")]
    LoginRefused(String),
}

/// Which pages there are.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// Health and readiness have paths of their own.
    Own,
    /// `/healthz` is both (rule H6).
    Label,
    /// `/healthz` as theirs, and metrics at this path.
    Reload(String),
}

/// Health and metrics, as they are served.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) form: Form,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
}

impl Pages {
    /// With our own metrics.
    pub(crate) fn new(form: Form, health: &Arc<Health>) -> Self {
        let mut registry = Registry::with_prefix("larder_sidecar");
        Self {
            form,
            health: Arc::clone(health),
            metrics: Metrics::register(&mut registry),
            registry,
        }
    }

    /// Serves them on the listener, if there is one, as long as `run` runs: on a thread of their own, since `run` may be
    /// held up by a disk.
    pub(crate) async fn served_during(
        self: &Arc<Self>,
        listener: Option<TcpListener>,
        run: impl Future<Output = Result<(), RunError>>,
    ) -> Result<(), RunError> {
        let run = attended(&self.health, run);
        let Some(listener) = listener else {
            return run.await;
        };
        let shutdown = CancellationToken::new();
        let _on_drop = shutdown.clone().drop_guard();
        let served = self
            .serve_on_thread(listener, shutdown.clone())
            .map_err(|error| RunError::Thread(errno_of(&error)))?;
        let ended = run.await;
        shutdown.cancel();
        // Whether it has ended, or is too late: it ends with the process.
        let _ = timeout(END, served).await;
        ended
    }

    /// The receiver learns of the end of the thread.
    fn serve_on_thread(
        self: &Arc<Self>,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> io::Result<oneshot::Receiver<()>> {
        let pages = Arc::clone(self);
        let listener = listener.into_std()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (ends, ended) = oneshot::channel::<()>();
        let serve = move || {
            runtime.block_on(pages.serve(listener, shutdown));
            drop(ends);
        };
        thread::Builder::new()
            .name("pages".to_owned())
            .spawn(serve)?;
        Ok(ended)
    }

    async fn serve(self: Arc<Self>, listener: std::net::TcpListener, shutdown: CancellationToken) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return error!(%error, "health and metrics are not served"),
        };
        if let Ok(address) = listener.local_addr() {
            info!(%address, "listening");
        }
        let limits = ConnectionLimits::default()
            .http1_only()
            .max_connections(CONNECTIONS)
            .response_timeout(RESPONSE_TIMEOUT);
        let service = service_fn(move |request: http::Request<Incoming>| {
            let response = self.response(request.uri());
            async move { response }
        });
        Acceptor::new(listener, limits)
            .serve(service, shutdown)
            .await;
    }

    fn response(&self, uri: &http::Uri) -> http::Result<Response<Full<Bytes>>> {
        let health = &self.health;
        let now = Instant::now();
        let mut query = uri.query().unwrap_or_default().split('&');
        let max_age = query.find_map(|pair| pair.strip_prefix("max-age="));
        let Ok(max_age) = max_age.map(go_duration::parse).transpose() else {
            return page(400, "text/plain", "max-age: expected a duration\n");
        };
        let answer = match (&self.form, uri.path()) {
            (Form::Label, "/healthz") => health.live_and_ready(max_age, now),
            (Form::Reload(_), "/healthz") => health.up(now),
            (Form::Own | Form::Label, "/healthz" | "/livez") => health.live(max_age, now),
            (Form::Own | Form::Label, "/readyz") => health.ready(now),
            (Form::Own | Form::Label, "/metrics") => return self.metrics(now),
            (Form::Reload(own), path) if own == path => return self.metrics(now),
            _ => return page(404, "text/plain", "not found\n"),
        };
        let status = if answer.is_ok { 200 } else { 503 };
        page(status, "application/json", answer.body)
    }

    fn metrics(&self, now: Instant) -> http::Result<Response<Full<Bytes>>> {
        let age = self.health.proof_age(now);
        self.metrics.proof_age.set(age.as_secs_f64());
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String does not fail");
        let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        page(200, form, text)
    }
}

fn page(status: u16, form: &str, body: impl Into<Bytes>) -> http::Result<Response<Full<Bytes>>> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, form)
        .body(Full::new(body.into()))
}

/// A listener on the address.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    let failed = |error| RunError::Listen {
        address,
        errno: errno_of(&error),
    };
    TcpListener::bind(address).await.map_err(failed)
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Asks the sidecar at `address` for `path`, as a probe does. Blocks for up to `limit`.
///
/// # Errors
///
/// The reason: its answer, or why there is none.
pub fn check(address: SocketAddr, path: &str, limit: Duration) -> Result<(), String> {
    let url = HttpUrl::parse(&format!("http://{address}{path}"));
    let request = Fetch {
        url: &url.map_err(str::to_owned)?,
        headers: &[],
        tls: &HttpTls::default(),
        timeout: limit,
        max_body: MAX_ANSWER,
        body_of_5xx: true,
        allow_loopback: true,
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot ask {address}: {error}"))?;
    let mut body = Vec::new();
    let mut take = |bytes: &[u8]| -> io::Result<()> {
        body.extend_from_slice(bytes);
        Ok(())
    };
    let fetched = runtime
        .block_on(fetch(&request, &mut take))
        .map_err(|error| format!("cannot ask {address}: {error}"))?;
    if fetched.status == 200 {
        return Ok(());
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    Err(body["status"].as_str().unwrap_or("no usable answer").into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, TcpListener},
        thread,
    };

    use http_body_util::BodyExt as _;
    use larder_objects::Kind;
    use tokio::time::advance;

    use super::*;
    use crate::selection::{ObjectRef, Selection};

    #[tokio::test(start_paused = true)]
    async fn age_of_the_oldest_proof_is_as_of_the_scrape() {
        let pages = Pages::new(Form::Own, &Arc::default());
        let health = &pages.health;
        let watch = |name| Selection::of(&ObjectRef::new(Kind::Secret, "n", name));
        health.follow(&[watch("a"), watch("b")], None);
        health.confirmed(0, None);
        advance(Duration::from_secs(30)).await;
        health.confirmed(1, None);
        advance(Duration::from_secs(10)).await;
        let uri = "/metrics".parse().unwrap();
        let response = pages.response(&uri).unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(
            text.contains("larder_sidecar_confirmed_age_seconds 40.0\n"),
            "{text}"
        );
    }

    // Attack: a disk that does not answer.
    #[tokio::test]
    async fn pages_answer_while_a_disk_holds_everything_up() {
        let pages = Arc::new(Pages::new(Form::Own, &Arc::default()));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = listen(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (thaw, frozen) = std::sync::mpsc::channel();
        let asking = thread::spawn(move || {
            let answers = ["/livez", "/readyz", "/metrics"]
                .map(|path| check(address, path, Duration::from_secs(30)));
            thaw.send(()).unwrap();
            answers
        });
        let run = async {
            // As a write to the disk: this thread does nothing else.
            frozen.recv().unwrap();
            Ok(())
        };
        assert_eq!(pages.served_during(Some(listener), run).await, Ok(()));
        let [live, ready, metrics] = asking.join().unwrap();
        assert_eq!((live, metrics), (Ok(()), Ok(())));
        assert!(ready.unwrap_err().starts_with("not ready: "));
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
        let error = check(address, "/livez", Duration::from_millis(100)).unwrap_err();
        assert!(
            error.starts_with(&format!("cannot ask {address}: ")),
            "{error}"
        );
    }
}
