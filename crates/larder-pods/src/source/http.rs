//! The pods of a manifest behind a URL.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/http.go`: one pod or a list of pods, asked for from time to time, unchanged bodies
//! skipped. An answer that is no good keeps the pods; an empty one means none. We differ where the kubelet forgets or tells too much:
//! - A body counts as seen only once its pods were reported. (The kubelet remembers it first: a body that does not decode is an
//!   error once and then silence, and after an empty answer the old body does not bring its pods back.)
//! - A URL that does not answer, or not well, after a restart has the pods that it had, if [`HttpSource::remembering`] says where
//!   they are kept.
//! - Neither bodies nor header values nor the query of the URL are in any text.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header,
    uri::{Parts, PathAndQuery},
};
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use larder_objects::StableHash;
use tokio::{sync::mpsc, task::spawn_blocking, time};
use tower::{BoxError, ServiceExt as _, util::BoxCloneSyncService};

use super::{Closed, Reporter, SourceProblem, SourceReport, joined, last_good::LastGood};
use crate::{
    identity::PodSource,
    merge::SourcePods,
    static_pod::{StaticPodError, StaticPods, shown_url},
    stored::StoredPod,
};

/// Longest wait for an answer, redirects and body included; kubelet 1.36, `http.go`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An answer this long is refused, in bytes. kubelet 1.36: 10 MiB, and that length is too long.
const TOO_LONG: usize = 10 << 20;

/// Redirects that are followed, as Go's client does.
const REDIRECTS: usize = 10;

/// How the source asks. Answers with redirects are followed by the source itself.
pub type HttpService =
    BoxCloneSyncService<Request<Empty<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// A URL of static pods: `staticPodURL`.
pub struct HttpSource {
    url: Uri,
    headers: HeaderMap,
    check_frequency: Duration,
    static_pods: StaticPods,
    service: HttpService,
    /// Hash of the body whose pods were reported last.
    reported: Option<StableHash>,
    /// Where the last good body is kept for the next run.
    copies: Option<PathBuf>,
}

/// Header values are secrets.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource")
            .field("url", &shown_url(&self.url.to_string()))
            .field("check_frequency", &self.check_frequency)
            .finish_non_exhaustive()
    }
}

/// Why the URL gives no pods.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpSourceError {
    /// The URL cannot be used. The text is not quoted, for it may hold a password.
    #[error("the URL is not one of http or https")]
    Url,
    /// A header cannot be sent. The value is not quoted.
    #[error("header {0:?} has a name or value that cannot be sent")]
    Header(String),
    /// The certificates that the system trusts cannot be read.
    #[error("the system's certificates cannot be read")]
    Certificates(#[source] std::io::Error),
    /// There was no answer.
    #[error("no answer")]
    Request(#[source] BoxError),
    /// The answer did not come in time.
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    /// The answer has another status than 200.
    #[error("the answer is {0}")]
    Status(StatusCode),
    /// The answer leads nowhere, or in circles.
    #[error("the redirects lead nowhere")]
    Redirects,
    /// The answer broke off.
    #[error("the answer broke off")]
    Body(#[source] BoxError),
    /// The answer is too long for manifests.
    #[error("the answer has {TOO_LONG} bytes or more")]
    TooLong,
    /// The answer is not text.
    #[error("the answer is not UTF-8 text")]
    NotText,
    /// The answer is empty, which means that there are no pods.
    #[error("the answer is empty")]
    Empty,
    /// The answer is not that of static pods.
    #[error("the answer gives no static pods")]
    Manifest(#[source] StaticPodError),
}

impl HttpSource {
    /// The pods at `url`, as `static_pods` makes them, asked for with `headers`: `staticPodURLHeader`.
    ///
    /// `check_frequency` is `httpCheckFrequency`, 20 s by default in the kubelet: how long to wait after an answer. Must be
    /// positive.
    ///
    /// # Errors
    ///
    /// The URL or a header cannot be used, or there are no certificates to trust.
    pub fn new(
        url: &str,
        headers: &BTreeMap<String, Vec<String>>,
        check_frequency: Duration,
        static_pods: StaticPods,
    ) -> Result<Self, HttpSourceError> {
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(HttpSourceError::Certificates)?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new())
            // One request every now and then.
            .pool_max_idle_per_host(0)
            .build(connector);
        let service = client
            .map_response(|response: Response<hyper::body::Incoming>| {
                response.map(|body| body.map_err(BoxError::from).boxed_unsync())
            })
            .map_err(BoxError::from);
        let service = BoxCloneSyncService::new(service);
        Self::with_service(url, headers, check_frequency, static_pods, service)
    }

    /// The same, over a transport of the caller's.
    ///
    /// # Errors
    ///
    /// The URL or a header cannot be used.
    ///
    /// A user and a password in the URL are sent as Go's client sends them, unless `headers` authorize otherwise.
    pub fn with_service(
        url: &str,
        headers: &BTreeMap<String, Vec<String>>,
        check_frequency: Duration,
        static_pods: StaticPods,
        service: HttpService,
    ) -> Result<Self, HttpSourceError> {
        let url: Uri = url.parse().map_err(|_| HttpSourceError::Url)?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(HttpSourceError::Url);
        }
        Ok(Self {
            headers: header_map(headers, &url)?,
            url,
            check_frequency,
            static_pods,
            service,
            reported: None,
            copies: None,
        })
    }

    /// Keeps a copy of the last good body in `directory`, which is the source's own and private to the user. So a URL that gives
    /// no pods when the next source starts, but for an empty answer, has the pods that it had.
    #[must_use]
    pub fn remembering(mut self, directory: PathBuf) -> Self {
        self.copies = Some(directory);
        self
    }

    /// Reports the pods until nobody receives.
    pub async fn run(mut self, reports: mpsc::Sender<SourceReport>) {
        let mut reporter = Reporter::new(PodSource::Http, reports.clone());
        tokio::select! {
            _ = self.follow(&mut reporter) => {}
            () = reports.closed() => {}
        }
    }

    async fn follow(&mut self, reporter: &mut Reporter) -> Result<(), Closed> {
        let subject = shown_url(&self.url.to_string());
        let (mut last_good, mut remembered) = self.recall().await;
        loop {
            let fetched = time::timeout(TIMEOUT, self.fetch()).await;
            let body = fetched.unwrap_or(Err(HttpSourceError::Timeout));
            let (pods, error) = match body.and_then(|text| Ok((self.new_pods(&text)?, text))) {
                Ok((pods, text)) => {
                    last_good = self.kept(last_good, Some(text)).await;
                    (pods, None)
                }
                Err(error @ HttpSourceError::Empty) => {
                    last_good = self.kept(last_good, None).await;
                    (Some(Vec::new()), Some(error))
                }
                // The first answer is no good, so the last one of an earlier run counts.
                Err(error) => {
                    let pods = remembered.as_ref().map(|text| self.new_pods(text));
                    (pods.and_then(Result::ok).flatten(), Some(error))
                }
            };
            remembered = None;
            if let Some(pods) = pods {
                reporter.pods(SourcePods::All(pods)).await?;
            }
            let problem = error.map(|error| SourceProblem {
                subject: subject.clone(),
                error: Arc::new(error),
            });
            let copies = last_good.iter().flat_map(LastGood::problems);
            let problems = problem.into_iter().chain(copies).collect();
            reporter.problems(problems).await?;
            time::sleep(self.check_frequency).await;
        }
    }

    /// What an earlier run has kept of this URL.
    async fn recall(&self) -> (Option<LastGood>, Option<String>) {
        let Some(copies) = self.copies.clone() else {
            return (None, None);
        };
        let recalled = spawn_blocking(move || LastGood::recall(copies));
        let (last_good, remembered) = joined(recalled.await);
        let of_this = remembered
            .into_iter()
            .find(|copy| copy.place == self.place().as_bytes());
        (Some(last_good), of_this.map(|copy| copy.text))
    }

    /// Keeps `text` as the only copy, or none.
    async fn kept(&self, last_good: Option<LastGood>, text: Option<String>) -> Option<LastGood> {
        let (place, mut last_good) = (self.place(), last_good?);
        let keep = spawn_blocking(move || {
            let place = place.as_bytes();
            last_good.retain(text.iter().map(|_| place));
            if let Some(text) = text {
                last_good.keep(place, &text);
            }
            last_good
        });
        Some(joined(keep.await))
    }

    /// What the copy is of. A URL may hold a password, which needs no second place.
    fn place(&self) -> String {
        StableHash::EMPTY.with(self.url.to_string()).to_string()
    }

    /// The pods of an answer; `None` when they are those reported last.
    fn new_pods(&mut self, text: &str) -> Result<Option<Vec<StoredPod>>, HttpSourceError> {
        if text.is_empty() {
            self.reported = None;
            return Err(HttpSourceError::Empty);
        }
        let hash = StableHash::EMPTY.with(text);
        if self.reported == Some(hash) {
            return Ok(None);
        }
        let pods = self
            .static_pods
            .from_url(&self.url.to_string(), text)
            .map_err(HttpSourceError::Manifest)?;
        self.reported = Some(hash);
        Ok(Some(pods.into_iter().map(StoredPod::from).collect()))
    }

    async fn fetch(&self) -> Result<String, HttpSourceError> {
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::get(url.clone());
            // Another host has no business with what authorizes us to this one.
            if url.authority() == self.url.authority()
                && url.scheme() == self.url.scheme()
                && let Some(headers) = request.headers_mut()
            {
                headers.clone_from(&self.headers);
            }
            let request = request
                .body(Empty::new())
                .map_err(|_| HttpSourceError::Url)?;
            let service = self.service.clone();
            let response = service
                .oneshot(request)
                .await
                .map_err(HttpSourceError::Request)?;
            if response.status().is_redirection()
                && let Some(location) = response.headers().get(header::LOCATION)
            {
                url = redirected(&url, location).ok_or(HttpSourceError::Redirects)?;
                continue;
            }
            if response.status() != StatusCode::OK {
                return Err(HttpSourceError::Status(response.status()));
            }
            let mut body = response.into_body();
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(HttpSourceError::Body)?.into_data() {
                    bytes.extend_from_slice(&data);
                }
                if bytes.len() >= TOO_LONG {
                    return Err(HttpSourceError::TooLong);
                }
            }
            return String::from_utf8(bytes).map_err(|_| HttpSourceError::NotText);
        }
        Err(HttpSourceError::Redirects)
    }
}

fn header_map(
    headers: &BTreeMap<String, Vec<String>>,
    url: &Uri,
) -> Result<HeaderMap, HttpSourceError> {
    let mut map = HeaderMap::new();
    for (name, values) in headers {
        let unusable = || HttpSourceError::Header(name.clone());
        let key: HeaderName = name.parse().map_err(|_| unusable())?;
        for value in values {
            let mut value: HeaderValue = value.parse().map_err(|_| unusable())?;
            value.set_sensitive(true);
            map.append(key.clone(), value);
        }
    }
    if let (Some(basic), header::Entry::Vacant(entry)) =
        (basic_authorization(url), map.entry(header::AUTHORIZATION))
    {
        entry.insert(basic);
    }
    Ok(map)
}

/// User and password of `url` as a header: RFC 7617.
fn basic_authorization(url: &Uri) -> Option<HeaderValue> {
    let (user, _) = url.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let pair = [decoded(user)?, b":".to_vec(), decoded(password)?].concat();
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The bytes of a part of a URL, in which some are written as `%` and two hexadecimal digits.
fn decoded(part: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        bytes.push(match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?
            }
            (b'%', _) => return None,
            (byte, _) => *byte,
        });
    }
    Some(bytes)
}

/// Where `location`, absolute or relative, leads from `url`.
fn redirected(url: &Uri, location: &HeaderValue) -> Option<Uri> {
    let location = location.to_str().ok()?.split('#').next()?;
    if location.contains("://") {
        let url: Uri = location.parse().ok()?;
        return matches!(url.scheme_str(), Some("http" | "https")).then_some(url);
    }
    if location.starts_with("//") {
        return format!("{}:{location}", url.scheme_str()?).parse().ok();
    }
    let path = if location.starts_with('/') {
        location.to_owned()
    } else {
        let directory = url
            .path()
            .rsplit_once('/')
            .map_or("", |(directory, _)| directory);
        format!("{directory}/{location}")
    };
    let mut parts = Parts::from(url.clone());
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests;
