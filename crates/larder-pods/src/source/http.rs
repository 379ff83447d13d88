//! The pods of a manifest behind a URL.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/http.go`: one pod or a list of pods, fetched periodically, unchanged bodies
//! skipped. A bad response keeps the pods; an empty one means no pods. Different where the kubelet forgets or leaks:
//! - A body counts as seen only once its pods were reported. (The kubelet remembers it first: a body that does not
//!   decode is reported once and then counts as success, and after an empty response the old body does not bring its
//!   pods back.)
//! - A URL without a good response after a restart keeps its pods, if [`HttpSource::remembering`] names a directory for
//!   a copy.
//! - A pod with a field that does not exist never replaces one without, and the field is reported. (The kubelet ignores
//!   it.)
//! - No text quotes bodies, header values, or the user, password and query of the URL.
//!
//! Invariants:
//! 1. Bodies are hashed and decoded on a blocking thread; the runtime only waits.
//! 2. A body is decoded once. While a bad one stays the same, its error is repeated from memory.
//! 3. A response takes at most [`TIMEOUT`] and [`TOO_LONG`] bytes of memory, whatever the server sends.

mod fetch;

use std::{collections::BTreeMap, fmt, mem, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{Empty, combinators::UnsyncBoxBody};
use larder_objects::StableHash;
use larder_transport::{SetupError, blocking::blocking, http_client::HttpClient};
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};
use tower::{BoxError, service_fn, util::BoxCloneSyncService};

use self::fetch::Fetch;
use super::{
    Closed, Reporter, SourceProblem, SourceReport,
    known_pod::{Counts, KnownPod},
    last_good::LastGood,
    until_closed,
};
use crate::{
    identity::{FullName, PodSource},
    merge::SourcePods,
    static_pod::{StaticPodError, StaticPods, UrlPod, shown_url},
    stored::StoredPod,
};

/// Longest wait for a response, redirects and body included; kubelet 1.36, `pkg/kubelet/config/http.go`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A response of this many bytes is rejected. kubelet 1.36: 10 MiB, and exactly 10 MiB is too long.
const TOO_LONG: usize = 10 << 20;

/// Redirects that are followed, as Go's client does.
const REDIRECTS: usize = 10;

/// The transport of the source. The source itself follows redirects.
pub type HttpService =
    BoxCloneSyncService<Request<Empty<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// A URL of static pods: `staticPodURL`.
pub struct HttpSource {
    fetch: Fetch,
    check_frequency: Duration,
    bodies: Bodies,
    /// The copy of the last good body for the next run.
    copies: Option<PathBuf>,
}

/// The bodies of one URL, decoded. Synchronous.
#[derive(Debug)]
struct Bodies {
    url: String,
    static_pods: StaticPods,
    /// Hash of the body whose pods were reported last.
    reported: Option<StableHash>,
    /// Those pods, or the last good versions of them.
    known: BTreeMap<FullName, KnownPod>,
    /// The unknown fields of that body, each with the pods that keep an earlier version for it.
    unknown_fields: Vec<(Arc<HttpSourceError>, Vec<FullName>)>,
    /// The last bad body's hash and error.
    rejected: Option<(StableHash, Arc<HttpSourceError>)>,
    /// The copy of the last good body, if there is one.
    last_good: Option<LastGood>,
    /// The body that an earlier run kept, until the first response.
    recalled: Option<String>,
}

/// Header values are secrets.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource")
            .field("url", &shown_url(&self.bodies.url))
            .field("check_frequency", &self.check_frequency)
            .finish_non_exhaustive()
    }
}

/// Why the URL gives no pods.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpSourceError {
    /// The URL cannot be used. The error does not quote it, because it may hold a password.
    #[error("unsupported URL: expected http://… or https://…")]
    Url,
    /// A header's name cannot be sent. The error does not quote it: it may be a misplaced value.
    #[error("invalid header name")]
    HeaderName,
    /// A header's value cannot be sent. The error does not quote it.
    #[error("header {name} has a value that cannot be sent")]
    HeaderValue {
        /// Name of the header, in lower case.
        name: String,
    },
    /// The certificates that the system trusts cannot be read.
    #[error("cannot read the system's trusted certificates")]
    Certificates(#[source] SetupError),
    /// The request failed.
    #[error("no response")]
    Request(#[source] BoxError),
    /// The response did not come in time.
    #[error("no response within {TIMEOUT:?}")]
    Timeout,
    /// The response has another status than 200.
    #[error("unexpected status {0}, expected 200 OK")]
    Status(StatusCode),
    /// The server redirects too often, or to something else than http or https.
    #[error(
        "cannot follow the redirect: expected an http or https URL and at most {REDIRECTS} redirects"
    )]
    Redirects,
    /// The response broke off.
    #[error("failed to read the response")]
    Body(#[source] BoxError),
    /// The response is too long for manifests.
    #[error("the response has {TOO_LONG} bytes or more")]
    TooLong,
    /// The response is not text.
    #[error("the response is not UTF-8 text")]
    NotText,
    /// The response is empty, which means no pods.
    #[error("the response is empty")]
    Empty,
    /// The response does not hold static pods.
    #[error("the response holds no static pods")]
    Manifest(#[source] StaticPodError),
    /// A pod has a field that does not exist, and there is no better version of it.
    #[error("the API server would reject it")]
    UnknownField(#[source] StaticPodError),
    /// A pod has a field that does not exist; its last version without one stays.
    #[error("keeping its last good version")]
    Kept(#[source] StaticPodError),
}

impl HttpSourceError {
    /// Whether the server has not answered, or has answered that it cannot: nothing is wrong with the pods as they are.
    pub const fn is_without_answer(&self) -> bool {
        matches!(
            self,
            Self::Request(_) | Self::Timeout | Self::Status(_) | Self::Body(_)
        )
    }
}

impl HttpSource {
    /// The pods at `url`, as `static_pods` makes them, requested with `headers`: `staticPodURLHeader`. `HTTP_PROXY`,
    /// `HTTPS_PROXY` and `NO_PROXY` apply, as in the kubelet.
    ///
    /// `check_frequency` is `httpCheckFrequency`, 20 s by default in the kubelet: the time between a response and the
    /// next request. Must be positive.
    ///
    /// # Errors
    ///
    /// The URL or a header cannot be used, or the system trusts no certificates.
    pub fn new(
        url: &str,
        headers: &BTreeMap<String, Vec<String>>,
        check_frequency: Duration,
        static_pods: StaticPods,
    ) -> Result<Self, HttpSourceError> {
        let client = HttpClient::new().map_err(HttpSourceError::Certificates)?;
        let service = service_fn(move |request| {
            let client = client.clone();
            async move { client.send(request).await }
        });
        let service = BoxCloneSyncService::new(service);
        Self::with_service(url, headers, check_frequency, static_pods, service)
    }

    /// As [`new`](Self::new), over a transport of the caller's.
    ///
    /// # Errors
    ///
    /// The URL or a header cannot be used.
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
            bodies: Bodies::new(url.to_string(), static_pods),
            fetch: Fetch::new(url, headers, service)?,
            check_frequency,
            copies: None,
        })
    }

    /// Keeps a copy of the last good body in `directory`, which belongs to the source alone and is private to the user.
    /// So the pods survive a restart during which the URL gives no good response. An empty response removes the copy.
    #[must_use]
    pub fn remembering(mut self, directory: PathBuf) -> Self {
        self.copies = Some(directory);
        self
    }

    /// Reports the pods until the receiver is dropped.
    pub async fn run(self, reports: mpsc::Sender<SourceReport>) {
        let mut reporter = Reporter::new(PodSource::Http, reports.clone());
        until_closed(&reports, self.follow(&mut reporter)).await;
    }

    async fn follow(self, reporter: &mut Reporter) -> Result<(), Closed> {
        let (mut bodies, copies) = (self.bodies, self.copies);
        let subject = shown_url(&bodies.url);
        bodies = blocking(move || bodies.recall(copies)).await;
        // When the pods were last known to be the newest.
        let mut proven = Instant::now();
        loop {
            let asked = Instant::now();
            let fetched = time::timeout(TIMEOUT, self.fetch.body())
                .await
                .unwrap_or(Err(HttpSourceError::Timeout));
            let outcome;
            (bodies, outcome) = blocking(move || {
                let outcome = bodies.take(fetched);
                (bodies, outcome)
            })
            .await;
            if let Some(pods) = outcome.pods {
                reporter.pods(SourcePods::All(pods)).await?;
            }
            let problem = |(error, kept): (Arc<HttpSourceError>, _)| {
                let problem = SourceProblem::new(&*subject, error).keeping(kept);
                SourceProblem {
                    since: proven,
                    ..problem
                }
            };
            let is_used = outcome.error.is_none();
            let problems = outcome
                .error
                .into_iter()
                .map(|error| (error, bodies.known.keys().cloned().collect()))
                .chain(bodies.unknown_fields.iter().cloned())
                .map(problem);
            let copies = bodies.last_good.iter().flat_map(LastGood::problems);
            reporter.problems(problems.chain(copies).collect()).await?;
            if is_used {
                proven = asked;
            }
            time::sleep(self.check_frequency).await;
        }
    }
}

/// The meaning of one response.
#[derive(Debug)]
struct Outcome {
    /// All pods; `None` if those reported last stay.
    pods: Option<Vec<StoredPod>>,
    /// Why the response is not used.
    error: Option<Arc<HttpSourceError>>,
}

impl Bodies {
    fn new(url: String, static_pods: StaticPods) -> Self {
        Self {
            url,
            static_pods,
            reported: None,
            known: BTreeMap::new(),
            unknown_fields: Vec::new(),
            rejected: None,
            last_good: None,
            recalled: None,
        }
    }

    /// Recalls the body that an earlier run kept in the directory `copies`, if it is named.
    fn recall(mut self, copies: Option<PathBuf>) -> Self {
        if let Some(copies) = copies {
            let (last_good, remembered) = LastGood::recall(copies);
            let place = self.place();
            let mut copies = remembered.into_iter();
            let of_this = copies.find(|copy| copy.place == place.as_bytes());
            self.recalled = of_this.map(|copy| copy.text);
            if let Some(text) = &self.recalled
                && let Ok(pods) = self.static_pods.from_url(&self.url, text)
            {
                // Of today's settings and version. They are not reported before the URL has answered.
                self.take_pods(pods);
                self.unknown_fields.clear();
            }
            self.last_good = Some(last_good);
        }
        self
    }

    /// What the copy is of: a hash, because the URL may hold a password.
    fn place(&self) -> String {
        StableHash::EMPTY.with(&self.url).to_string()
    }

    /// Keeps `text` as the only copy, or none.
    fn keep(&mut self, text: Option<&str>) {
        let place = self.place();
        if let Some(last_good) = &mut self.last_good {
            last_good.retain(text.map(|_| place.as_bytes()));
            if let Some(text) = text {
                last_good.keep(place.as_bytes(), text);
            }
        }
    }

    /// The meaning of a response. Keeps the body for the next run if it is good, and nothing if it is empty.
    fn take(&mut self, body: Result<Vec<u8>, HttpSourceError>) -> Outcome {
        // If the first response is bad, the last good one of an earlier run counts.
        let recalled = self.recalled.take();
        let read = body
            .and_then(|body| String::from_utf8(body).map_err(|_| HttpSourceError::NotText))
            .map_err(Arc::new)
            .and_then(|text| match text.as_str() {
                "" => Err(Arc::new(HttpSourceError::Empty)),
                _ => Ok((self.decode(&text)?, text)),
            });
        let error = match read {
            Ok((pods, text)) => {
                self.keep_good(&text);
                return Outcome { pods, error: None };
            }
            Err(error) => error,
        };
        let pods = if matches!(*error, HttpSourceError::Empty) {
            self.reported = None;
            self.known.clear();
            self.unknown_fields.clear();
            self.keep(None);
            Some(Vec::new())
        } else {
            recalled.and_then(|text| self.decode(&text).ok().flatten())
        };
        Outcome {
            pods,
            error: Some(error),
        }
    }

    /// Keeps the body of the reported pods, unless a pod of it is not used.
    fn keep_good(&mut self, text: &str) {
        if self.unknown_fields.iter().all(|(_, kept)| kept.is_empty()) {
            self.keep(Some(text));
        }
    }

    /// The pods of a body; `None` if they are those reported last.
    fn decode(&mut self, text: &str) -> Result<Option<Vec<StoredPod>>, Arc<HttpSourceError>> {
        let hash = StableHash::EMPTY.with(text);
        if self.reported == Some(hash) {
            return Ok(None);
        }
        if let Some((rejected, error)) = &self.rejected
            && *rejected == hash
        {
            return Err(Arc::clone(error));
        }
        match self.static_pods.from_url(&self.url, text) {
            Ok(pods) => {
                self.reported = Some(hash);
                Ok(Some(self.take_pods(pods)))
            }
            Err(error) => {
                let error = Arc::new(HttpSourceError::Manifest(error));
                self.rejected = Some((hash, Arc::clone(&error)));
                Err(error)
            }
        }
    }

    /// Returns the version that counts of each of these pods, which are all of the URL.
    fn take_pods(&mut self, pods: Vec<UrlPod>) -> Vec<StoredPod> {
        let mut before = mem::take(&mut self.known);
        self.unknown_fields.clear();
        let mut all = Vec::new();
        for UrlPod { pod, unknown_field } in pods {
            let name = FullName::of(&pod.metadata);
            let mut known = before.remove(&name);
            let counts = KnownPod::renew(&mut known, pod, unknown_field.is_some());
            let problem = unknown_field.map(|field| match counts {
                Counts::Read => (Arc::new(HttpSourceError::UnknownField(field)), Vec::new()),
                Counts::Known => (Arc::new(HttpSourceError::Kept(field)), vec![name.clone()]),
            });
            self.unknown_fields.extend(problem);
            if let Some(known) = known {
                all.push(known.pod.clone());
                self.known.insert(name, known);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
