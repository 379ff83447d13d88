//! The handle of the server, and its service.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Buf;
use http::{Request, Response};
use tower_service::Service;

use crate::{
    AuditLog, Body, Cut, Faults,
    clock::Clock,
    rest::BoxError,
    store::{Limits, Store},
    write::Writer,
};

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many changes of each kind are remembered, for watches that resume and for lists of older versions. At least 1.
    /// Defaults to 1024.
    pub history_changes: usize,
    /// How many bytes of objects these changes may hold; the oldest go first. Defaults to 4 MiB for each kind.
    pub history_bytes: usize,
    /// How often a quiet watch gets a bookmark. Defaults to 1 min, as kube-apiserver.
    pub bookmark_interval: Duration,
    /// The version that the first change follows. Defaults to the time of the start in microseconds, so that a version which a client
    /// kept from an earlier run is older than all of this run and answered with 410, and never taken for one of this run.
    pub first_version: Option<u64>,
    /// Where requests are recorded. Defaults to nowhere.
    pub audit: AuditLog,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_changes: 1024,
            history_bytes: 4 << 20,
            bookmark_interval: Duration::from_mins(1),
            first_version: None,
            audit: AuditLog::none(),
        }
    }
}

/// An API server. Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    writer: Writer,
    faults: Faults,
}

impl ApiServer {
    /// A server with nothing but the namespaces that every cluster has.
    pub fn new(options: Options) -> Self {
        let clock = Clock::start();
        let version = options
            .first_version
            .unwrap_or_else(|| u64::try_from(clock.now().as_microsecond()).unwrap_or(0));
        let limits = Limits {
            changes: options.history_changes,
            bytes: options.history_bytes,
        };
        let writer = Writer {
            store: Arc::new(Store::new(version, limits)),
            clock,
        };
        writer.create_first_namespaces();
        let shared = Arc::new(Shared {
            options,
            faults: Faults::new(writer.store.clone()),
            writer,
        });
        Self { shared }
    }

    /// The server as a service: for `kube::Client::new`, without sockets.
    pub fn service(&self) -> ApiService {
        ApiService {
            server: self.clone(),
        }
    }

    /// Forgets the past, as a compaction of etcd does: watches and lists that ask for an older version get 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Number of watches that are open.
    pub fn open_watches(&self) -> usize {
        self.store().watchers()
    }

    /// Ends all watches, those that begin later as well. Other requests are still answered.
    pub fn close_watches(&self) {
        self.store().close();
    }

    /// Faults, for tests.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// The audit log of the options.
    pub fn audit(&self) -> &AuditLog {
        &self.shared.options.audit
    }

    pub(crate) fn clock(&self) -> Clock {
        self.writer().clock
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.shared.writer.store
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.shared.writer
    }
}

/// One client's way to the server.
#[derive(Clone, Debug)]
pub struct ApiService {
    server: ApiServer,
}

impl<B> Service<Request<B>> for ApiService
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Cut;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Cut>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.server.clone();
        Box::pin(async move { server.answer(request).await })
    }
}
