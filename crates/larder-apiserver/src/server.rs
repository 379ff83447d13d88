//! The handle of the server, and its service.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use jiff::Timestamp;
use larder_connections::{ConnectionLimits, setters};
use parking_lot::Mutex;
use tower_service::Service;

use crate::{
    AllowAll, AuditLog, Authorization, Body, BoxError, CertificatesVersions, Cut, SetupError, User,
    clock::Clock,
    pki::Authority,
    store::{Limits, Store},
    tokens::TokenIssuer,
    unread::Unread,
    write::Writer,
};

/// How many bytes of objects the remembered changes of a kind may hold; the oldest are dropped first.
const HISTORY_BYTES: usize = 4 << 20;

/// The behavior of a server.
///
/// ```
/// use larder_apiserver::Options;
///
/// let options = Options::default().fill_namespaces(true);
/// assert!(options.fill_namespaces);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How many changes of each kind are remembered, for watches that resume and for lists of older versions. At least
    /// 1. Defaults to 1024.
    pub history_changes: usize,
    /// The version that the first change follows. Defaults to the time of the start in microseconds, so that a version
    /// which a client kept from an earlier run is older than all of this run and answered with 410, and never taken for
    /// one of this run.
    pub first_version: Option<u64>,
    /// Whether each namespace gets a ConfigMap `kube-root-ca.crt` and a ServiceAccount `default`, as controllers of a
    /// cluster create them. Defaults to false.
    pub fill_namespaces: bool,
    /// The permissions of users. Defaults to [`AllowAll`].
    pub authorization: Arc<dyn Authorization>,
    /// The log of requests. Defaults to none.
    pub audit: AuditLog,
    /// What the server allows its clients when it listens.
    pub connections: ConnectionLimits,
    /// The versions of `certificates.k8s.io` that the server serves. Defaults to `v1beta1` alone, as Kubernetes 1.36.
    pub certificates_versions: CertificatesVersions,
}

impl Options {
    setters! {
        history_changes: usize
        first_version: u64
        fill_namespaces: bool
        audit: AuditLog
        connections: ConnectionLimits
        certificates_versions: CertificatesVersions
    }

    /// Sets `authorization`.
    #[must_use]
    pub fn authorization(mut self, authorization: impl Authorization + 'static) -> Self {
        self.authorization = Arc::new(authorization);
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_changes: 1024,
            first_version: None,
            fill_namespaces: false,
            authorization: Arc::new(AllowAll),
            audit: AuditLog::default(),
            connections: ConnectionLimits::default(),
            certificates_versions: CertificatesVersions::default(),
        }
    }
}

/// An API server. Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct ApiServer {
    pub(crate) inner: Arc<ServerInner>,
}

#[derive(Debug)]
pub(crate) struct ServerInner {
    options: Options,
    writer: Writer,
    #[cfg(feature = "faults")]
    faults: crate::Faults,
    pub(crate) authority: Arc<Authority>,
    pub(crate) unread: Unread,
    pub(crate) unfinished: Unread,
}

impl ApiServer {
    /// A server with nothing but the namespaces that every cluster has.
    ///
    /// # Panics
    ///
    /// The machine gives no random numbers for keys; [`ApiServer::try_new`] returns that as an error.
    pub fn new(options: Options) -> Self {
        Self::try_new(options).expect("the machine gives random numbers")
    }

    /// A server with nothing but the namespaces that every cluster has.
    ///
    /// # Errors
    ///
    /// The machine gives no random numbers for keys.
    pub fn try_new(options: Options) -> Result<Self, SetupError> {
        Self::with_authority(options, Arc::new(Authority::generate()?))
    }

    /// Another server with the same certificates and nothing stored: what there is after its storage was lost. It is to
    /// be served in place of this one, not beside it.
    ///
    /// # Errors
    ///
    /// The machine gives no random numbers for keys.
    pub fn emptied(&self) -> Result<Self, SetupError> {
        Self::with_authority(self.inner.options.clone(), self.inner.authority.clone())
    }

    fn with_authority(options: Options, authority: Arc<Authority>) -> Result<Self, SetupError> {
        let clock = Clock::start();
        let version = options
            .first_version
            .unwrap_or_else(|| u64::try_from(clock.now().as_microsecond()).unwrap_or(0));
        let limits = Limits {
            changes: options.history_changes,
            bytes: HISTORY_BYTES,
        };
        let writer = Writer {
            store: Arc::new(Store::new(version, limits)),
            clock,
            tokens: TokenIssuer::generate()?,
            namespace_authority: options.fill_namespaces.then(|| authority.certificate()),
            allocations: Mutex::default(),
        };
        writer.create_first_namespaces();
        let inner = Arc::new(ServerInner {
            options,
            #[cfg(feature = "faults")]
            faults: crate::Faults::new(writer.store.clone()),
            authority,
            unread: Unread::new("too many responses that clients have not read"),
            unfinished: Unread::new("too many requests whose bodies are not finished"),
            writer,
        });
        Ok(Self { inner })
    }

    /// The server as a service: for `kube::Client::new`, without sockets.
    pub fn service(&self) -> ApiService {
        self.service_as(User::admin())
    }

    /// The server as a service that takes every request for `user`'s.
    pub fn service_as(&self, user: User) -> ApiService {
        ApiService::new(self.clone(), Some(user))
    }

    /// Forgets the past, as a compaction of etcd does: watches and lists that ask for an older version get 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// Number of watches that are open.
    pub fn open_watches(&self) -> usize {
        self.store().watchers()
    }

    /// Ends all open watches, as if their time were up.
    pub fn end_watches(&self) {
        self.store().end_watches();
    }

    /// Faults, for tests.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> &crate::Faults {
        &self.inner.faults
    }

    /// The audit log of the options.
    pub fn audit(&self) -> &AuditLog {
        &self.inner.options.audit
    }

    /// The time of day, by the server's clock.
    pub fn now(&self) -> Timestamp {
        self.clock().now()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.writer().clock
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.inner.writer
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.inner.writer.store
    }
}

/// The server as one client sees it: a tower service.
#[derive(Clone, Debug)]
pub struct ApiService {
    server: ApiServer,
    /// `None` for an unauthenticated client: it gets 401.
    user: Option<User>,
}

impl ApiService {
    pub(crate) fn new(server: ApiServer, user: Option<User>) -> Self {
        Self { server, user }
    }
}

impl<B> Service<Request<B>> for ApiService
where
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Cut;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Cut>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { server, user } = self.clone();
        Box::pin(async move {
            #[cfg(feature = "faults")]
            let answer = server.answer_or_fail(user, request).await;
            #[cfg(not(feature = "faults"))]
            let answer = Ok(server.answer(user, request).await);
            answer
        })
    }
}
