//! Fetches content by GET: one request to one server, with a bounded body.
//!
//! Invariants:
//! 1. Link-local addresses and those of clouds' metadata services are refused, whatever name led there.
//! 2. No error has the user or the query of the URL, or content of the answer.

use std::{fmt, io, net::SocketAddr, time::Duration};

use http::HeaderMap;
use http_body_util::BodyExt as _;
use larder_objects::chain;
use larder_on_change::{HttpTls, HttpUrl};
use tokio::time::timeout;

use super::{Files, addresses::is_metadata, error::HttpError, exchange, new_request, resolve};

/// What is fetched, and how.
#[derive(Clone, Copy)]
pub struct Fetch<'a> {
    /// The URL.
    pub url: &'a HttpUrl,
    /// Further headers.
    pub headers: &'a [(String, String)],
    /// How the server's certificate is verified.
    pub tls: &'a HttpTls,
    /// Longest time for everything.
    pub timeout: Duration,
    /// Most bytes of the body.
    pub max_body: usize,
    /// Whether the body of a status from 500 on is wanted, too.
    pub body_of_5xx: bool,
    /// Whether the server may be on this machine.
    pub allow_loopback: bool,
}

impl fmt::Debug for Fetch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("url", self.url)
            .finish_non_exhaustive()
    }
}

/// Takes the body piece by piece, at least one, which may be empty; none if the status says that it is not the content.
pub type TakeBody<'a> = dyn FnMut(&[u8]) -> io::Result<()> + Send + 'a;

/// An answer without its body.
pub struct FetchedHead {
    /// The status.
    pub status: u16,
    headers: HeaderMap,
}

impl fmt::Debug for FetchedHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}>", self.status)
    }
}

impl FetchedHead {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The headers by which the next request asks only for other content.
    pub fn validators(&self) -> Vec<(String, String)> {
        [
            ("etag", "if-none-match"),
            ("last-modified", "if-modified-since"),
        ]
        .into_iter()
        .filter_map(|(name, condition)| Some((condition.to_owned(), self.header(name)?.to_owned())))
        .collect()
    }
}

/// Sends the request, and reads the answer. Redirects are not followed, and no proxy is used.
///
/// # Errors
///
/// The reason, without the URL.
pub async fn fetch(fetch: &Fetch<'_>, take: &mut TakeBody<'_>) -> Result<FetchedHead, String> {
    match timeout(fetch.timeout, request(fetch, take)).await {
        Ok(Ok(fetched)) => Ok(fetched),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("timed out after {:?}", fetch.timeout)),
    }
}

async fn request(fetch: &Fetch<'_>, take: &mut TakeBody<'_>) -> Result<FetchedHead, HttpError> {
    let url = fetch.url;
    let addresses = resolve(url).await?;
    if let Some(refused) = addresses.iter().find(|address| is_metadata(address.ip())) {
        return Err(HttpError::LinkLocal(refused.ip()));
    }
    let own = |address: &&SocketAddr| address.ip().to_canonical().is_loopback();
    if let Some(own) = addresses.iter().find(own).filter(|_| !fetch.allow_loopback) {
        return Err(HttpError::Loopback(own.ip()));
    }
    let request = new_request(&url.path(), &url.authority(), fetch.headers)?;
    let limit = fetch.max_body;
    let read = async |response: http::Response<hyper::body::Incoming>| {
        let (head, mut body) = response.into_parts();
        let status = head.status.as_u16();
        let is_wanted = head.status.is_success() || (fetch.body_of_5xx && status >= 500);
        let mut length = 0;
        if is_wanted {
            take(&[]).map_err(HttpError::Store)?;
        }
        while is_wanted && let Some(frame) = body.frame().await {
            let frame = frame.map_err(HttpError::Exchange)?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            length += data.len();
            if length > limit {
                return Err(HttpError::TooLong(limit));
            }
            take(data).map_err(HttpError::Store)?;
        }
        Ok(FetchedHead {
            status,
            headers: head.headers,
        })
    };
    let files = Files {
        volumes: &std::collections::BTreeMap::new(),
        any_authorities: true,
    };
    let secured = url.is_tls().then_some((fetch.tls, url.host(), files));
    exchange(&addresses, secured, request, read).await?
}
