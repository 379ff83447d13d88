//! Sends an HTTP request (rules H1 to H7).
//!
//! Invariants:
//! 1. Each attempt opens a new connection, reads its files again, and sends one request to one server: redirects are
//!    not followed, and no proxy variable is read.
//! 2. A hook without a URL reaches addresses of its own pod only, and none that lead to the machine or to a service of
//!    its network (rule S5).
//! 3. Of a response, only the status is kept.

mod addresses;
mod error;
mod fetch;
mod files;
mod tls;

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, Response,
    header::{AUTHORIZATION, CONNECTION, HOST, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::TrySendError};
use larder_net::{
    connect::{ConnectFailure, connect},
    http1,
    io::Received,
    lookup::lookup,
    tls_words::in_words,
    url::basic,
};
use larder_objects::chain;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use zeroize::Zeroizing;

pub use self::{
    addresses::{Network, NetworkError, PodAddresses},
    fetch::{Fetch, FetchedHead, TakeBody, fetch},
    files::Files,
};
use self::{error::HttpError, tls::connector};
use crate::StepOutcome;
use larder_on_change::{
    HttpAuth, HttpCall, HttpTarget, HttpTls, HttpUrl, PodChange, PodOutline, Port,
};

/// Most bytes of an answer that are read (rule H4).
const MAX_ANSWER: usize = 64 << 10;
/// The header `User-Agent` (rule H6).
const AGENT: &str = concat!("larder/", env!("CARGO_PKG_VERSION"));

/// The inputs of a request besides its round.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The addresses of the pod's ports.
    pub hosts: Hosts<'a>,
    /// The names of the pod's ports.
    pub outline: &'a PodOutline,
    /// The files that hold credentials and authorities.
    pub files: Files<'a>,
}

/// The addresses of a pod.
#[derive(Clone, Copy, Debug)]
pub enum Hosts<'a> {
    /// This machine: the command of `larder exec` shares its network.
    ThisMachine,
    /// Those of the pod.
    Pod(&'a PodAddresses),
}

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// There was no connection.
    Unsent,
    /// There was no answer.
    Unanswered,
    /// The answer has this status.
    Answered(u16),
}

/// Sends the request, and waits for the status.
pub async fn send(
    call: &HttpCall,
    limit: Duration,
    change: &PodChange,
    context: RequestContext<'_>,
) -> (StepOutcome, RequestProgress) {
    match timeout(limit, request(call, change, context)).await {
        Ok(Ok(status)) => (StepOutcome::Succeeded, RequestProgress::Answered(status)),
        Ok(Err(error)) => {
            let reason = format!("{}: {}", call.target, chain(&error));
            (StepOutcome::Failed(reason), error.progress())
        }
        Err(_) => {
            let timed_out = StepOutcome::timed_out(limit);
            let reason = format!("{}: {}", call.target, timed_out.reason());
            (StepOutcome::TimedOut(reason), RequestProgress::Unanswered)
        }
    }
}

async fn request(
    call: &HttpCall,
    change: &PodChange,
    context: RequestContext<'_>,
) -> Result<u16, HttpError> {
    let target = Target::of(call, context).await?;
    let request = target.request(call, change, context)?;
    let secured = target
        .is_tls
        .then_some((&call.tls, &*target.host, context.files));
    let status = exchange(&target.addresses, secured, request, status).await?;
    if call.is_expected(status) {
        Ok(status)
    } else {
        Err(HttpError::Status(status))
    }
}

/// One server.
struct Target {
    /// Name or address, without brackets.
    host: String,
    /// As in the header `Host`.
    authority: String,
    path: String,
    is_tls: bool,
    addresses: Vec<SocketAddr>,
}

impl Target {
    async fn of(call: &HttpCall, context: RequestContext<'_>) -> Result<Self, HttpError> {
        match &call.target {
            HttpTarget::Pod { port, path, tls } => {
                let port = match port {
                    Port::Number(number) => *number,
                    Port::Name(name) => context.outline.port(name).ok_or(HttpError::UnknownPort)?,
                };
                let addresses = context.hosts.addresses(port)?;
                let first = addresses.first().ok_or(HttpError::NoAddress)?;
                Ok(Self {
                    host: first.ip().to_string(),
                    authority: first.to_string(),
                    path: path.clone(),
                    is_tls: *tls,
                    addresses,
                })
            }
            HttpTarget::Url(url) => {
                let addresses = resolve(url).await?;
                if addresses.is_empty() {
                    return Err(HttpError::NoAddress);
                }
                Ok(Self {
                    host: url.host().to_owned(),
                    authority: url.authority(),
                    path: url.path(),
                    is_tls: url.is_tls(),
                    addresses,
                })
            }
        }
    }

    fn request(
        &self,
        call: &HttpCall,
        change: &PodChange,
        context: RequestContext<'_>,
    ) -> Result<Request<Full<Bytes>>, HttpError> {
        let mut request = new_request(&self.path, &self.authority, &call.headers)?;
        *request.method_mut() = call.method.parse().unwrap_or(http::Method::POST);
        *request.body_mut() = Full::new(Bytes::copy_from_slice(call.body.as_bytes()));
        let headers = request.headers_mut();
        headers.insert("larder-round", header(&change.round.to_string())?);
        if let Some(authorization) = authorization(call, context)? {
            let mut value =
                HeaderValue::from_bytes(&authorization).map_err(|_| HttpError::Credentials)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

/// A GET without a body.
fn new_request(
    path: &str,
    authority: &str,
    headers: &[(String, String)],
) -> Result<Request<Full<Bytes>>, HttpError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = path.parse().map_err(|_| HttpError::Url)?;
    let all = request.headers_mut();
    all.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    for (name, text) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| HttpError::Header)?;
        let mut value = header(text)?;
        // It may be a credential.
        value.set_sensitive(true);
        all.insert(name, value);
    }
    all.insert(HOST, header(authority)?);
    all.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

fn header(text: &str) -> Result<HeaderValue, HttpError> {
    HeaderValue::from_str(text).map_err(|_| HttpError::Header)
}

/// Credentials from files that are read for this request, or from the user in the URL.
fn authorization(
    call: &HttpCall,
    context: RequestContext<'_>,
) -> Result<Option<Zeroizing<Vec<u8>>>, HttpError> {
    let bytes = |value: &str| Zeroizing::new(value.as_bytes().to_vec());
    match &call.auth {
        Some(HttpAuth::Basic {
            volume,
            username,
            password,
        }) => {
            let username = context.files.credential(volume, username)?;
            let password = context.files.credential(volume, password)?;
            let both = Zeroizing::new([&**username, b":", &**password].concat());
            Ok(Some(bytes(&basic(&both))))
        }
        Some(HttpAuth::Bearer { volume, path }) => {
            let token = context.files.credential(volume, path)?;
            Ok(Some(Zeroizing::new([b"Bearer ", &**token].concat())))
        }
        None => {
            let HttpTarget::Url(url) = &call.target else {
                return Ok(None);
            };
            Ok(url.basic_authorization().map(|value| bytes(&value)))
        }
    }
}

impl Hosts<'_> {
    /// The addresses in the order in which they are tried.
    fn addresses(self, port: u16) -> Result<Vec<SocketAddr>, HttpError> {
        match self {
            Self::ThisMachine => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
            Self::Pod(addresses) => addresses.with_port(port),
        }
    }
}

/// The status of an answer, whose body is read as far as that is short.
async fn status(answer: Response<Incoming>) -> u16 {
    let status = answer.status().as_u16();
    let mut body = answer.into_body();
    let mut read = 0;
    while read < MAX_ANSWER {
        match body.frame().await {
            Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
            // The status has been received, and with it the answer that counts.
            Some(Err(_)) | None => break,
        }
    }
    status
}

/// Sends the request, with TLS if the host's certificate is to be verified, and passes the answer to `read`.
async fn exchange<T>(
    addresses: &[SocketAddr],
    secured: Option<(&HttpTls, &str, Files<'_>)>,
    request: Request<Full<Bytes>>,
    read: impl AsyncFnOnce(Response<Incoming>) -> T,
) -> Result<T, HttpError> {
    let connected = connect(addresses).await.ok_or(HttpError::NoAddress)?;
    let stream = connected.map_err(|ConnectFailure { source, .. }| HttpError::Connect(source))?;
    // A small request is sent at once.
    let _ = stream.set_nodelay(true);
    let Some((tls, host, files)) = secured else {
        return exchange_over(stream, request, read).await;
    };
    let (connector, name) = connector(tls, host, files).await?;
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| HttpError::Tls(in_words(error)))?;
    exchange_over(stream, request, read).await
}

async fn exchange_over<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
    read: impl AsyncFnOnce(Response<Incoming>) -> T,
) -> Result<T, HttpError> {
    let handshake = http1::handshake(stream, Received::default()).await;
    let (mut sender, connection) = handshake.map_err(HttpError::Exchange)?;
    let exchange = async {
        let answer = sender.send(request).await;
        let answer =
            answer.map_err(|error| HttpError::Exchange(TrySendError::into_error(error)))?;
        Ok(read(answer).await)
    };
    tokio::pin!(exchange);
    tokio::pin!(connection);
    // The connection is driven until the answer arrives; then both are dropped.
    tokio::select! {
        biased;
        answered = &mut exchange => answered,
        _ = &mut connection => exchange.await,
    }
}

/// The addresses of a URL's host.
async fn resolve(url: &HttpUrl) -> Result<Vec<SocketAddr>, HttpError> {
    lookup(url.host(), url.port())
        .await
        .map_err(HttpError::Lookup)
}

#[cfg(test)]
mod tests;
