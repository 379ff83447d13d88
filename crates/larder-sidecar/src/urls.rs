//! `*.url` keys: fetches their content (rule L7).
//!
//! Invariants:
//! 1. A body is written while it is read. All bodies together are bounded, and so are the fetches of one object.
//! 2. A failure, or a status other than 2xx, keeps the old file.
//! 3. Credentials go, and loopback addresses are asked, only where the user says so, and never after a redirect to
//!    another origin.
//! 4. Readiness waits for foreign hosts no longer than for one request, but for the one sync of `METHOD=LIST`.

use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use larder_actions::http::{Fetch, FetchedHead, RequestProgress, fetch};
use larder_net::redirect::redirect_target;
use larder_on_change::HttpUrl;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    intake::{FetchedFile, SharedIntake, UrlFile},
    metrics::Metrics,
    request::{SLOW, authorization, is_refused},
    settings::{MAX_TIME, UrlCredentials, UrlSettings},
};

/// The shortest time between two fetches of one file.
const MIN_REFRESH: Duration = Duration::from_secs(1);
/// The longest content.
const MAX_BODY: usize = 16 << 20;
/// The longest content of all files.
const MAX_BODIES: usize = 256 << 20;
/// Fetches at the same time, and those of one object among them.
const MAX_FETCHES: usize = 8;
const MAX_OF_OBJECT: usize = 2;
/// Redirects that are followed.
const REDIRECTS: usize = 5;

/// The keys whose content is fetched.
pub(crate) struct UrlKeys {
    settings: Arc<UrlSettings>,
    /// By path.
    keys: BTreeMap<Arc<str>, Key>,
    fetching: FuturesUnordered<BoxFuture<'static, (UrlFile, Fetched)>>,
    /// The files of `fetching`.
    under_way: Vec<UrlFile>,
    /// When readiness stops waiting for first attempts.
    ready_at: Option<Instant>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Key {
    file: UrlFile,
    due: Instant,
    failures: u32,
    is_tried: bool,
    /// Why the last attempt failed.
    error: Option<FetchFailure>,
    content: FetchedContent,
}

/// New content; `None` if it is unchanged.
type Fetched = Result<Option<FetchedContent>, FetchFailure>;

/// What was fetched last: the headers that ask whether it has changed, and its bytes.
#[derive(Debug, Default)]
struct FetchedContent {
    validators: Vec<(String, String)>,
    length: usize,
}

/// Why a URL was not fetched. The texts have neither user nor query.
#[derive(Debug, thiserror::Error)]
enum FetchFailure {
    /// Not a URL, or credentials that cannot be sent.
    #[error("{0}")]
    Unusable(&'static str),
    #[error("{url}: {reason}")]
    Request { url: HttpUrl, reason: String },
    #[error("{url}: answered {status}")]
    Answered { url: HttpUrl, status: u16 },
    #[error("{url}: {problem}")]
    Location { url: HttpUrl, problem: &'static str },
    #[error("{first}: redirects take too long")]
    SlowRedirects { first: HttpUrl },
    #[error("{first}: more than {REDIRECTS} redirects")]
    ManyRedirects { first: HttpUrl },
}

impl FetchFailure {
    /// Whether the login was refused.
    fn is_refused(&self) -> bool {
        matches!(self, Self::Answered { status, .. } if is_refused(RequestProgress::Answered(*status)))
    }
}

impl UrlKeys {
    pub(crate) fn new(settings: UrlSettings, metrics: Metrics) -> Self {
        Self {
            settings: Arc::new(settings),
            keys: BTreeMap::new(),
            fetching: FuturesUnordered::new(),
            under_way: Vec::new(),
            ready_at: None,
            metrics,
        }
    }

    /// Fetches these now.
    pub(crate) fn add(&mut self, files: Vec<UrlFile>) {
        let now = Instant::now();
        if !files.is_empty() {
            let longest = self.settings.client.timeout.min(MAX_TIME);
            self.ready_at.get_or_insert(now + longest);
        }
        self.keys.extend(files.into_iter().map(|file| {
            let key = Key {
                due: now,
                failures: 0,
                is_tried: false,
                error: None,
                content: FetchedContent::default(),
                file,
            };
            (Arc::clone(&key.file.path), key)
        }));
    }

    /// Whether the first attempt of every key is over, or has taken too long.
    pub(crate) fn is_tried(&self) -> bool {
        let is_late = self.ready_at.is_some_and(|at| at <= Instant::now());
        is_late || self.keys.values().all(|key| key.is_tried)
    }

    /// A file that is not there, and why. With a deadline, one that is not fetched again before.
    pub(crate) fn missing(&self, deadline: Option<Instant>) -> Option<String> {
        let is_late = |key: &Key| deadline.is_none_or(|deadline| key.due > deadline);
        let mut keys = self.keys.iter();
        let (path, key) = keys.find(|(path, key)| is_late(key) && !Path::new(&***path).exists())?;
        Some(match &key.error {
            Some(error) => format!("cannot fetch {path}: {error}"),
            None => format!("cannot fetch {path}: the fetch is under way"),
        })
    }

    /// Waits for the end of the next fetch, or until readiness waits no longer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, intake: &SharedIntake) {
        loop {
            let due = self.begin(intake);
            let at = |time: Option<Instant>| OptionFuture::from(time.map(sleep_until));
            let ready_at = self.ready_at.filter(|_| !self.is_tried());
            // Every arm is cancel-safe.
            tokio::select! {
                biased;
                Some((file, fetched)) = self.fetching.next() => {
                    self.under_way.retain(|known| *known != file);
                    return self.ended(&file, fetched);
                }
                Some(()) = at(ready_at) => return,
                Some(()) = at(due) => {}
                else => return std::future::pending().await,
            }
        }
    }

    /// Begins the fetches that are due, as far as there is room. Returns when the next one is due.
    fn begin(&mut self, intake: &SharedIntake) -> Option<Instant> {
        let now = Instant::now();
        let (mut next, mut gone) = (None, Vec::new());
        for (path, key) in &self.keys {
            if key.due > now {
                next = Some(next.map_or(key.due, |next: Instant| next.min(key.due)));
                continue;
            }
            let own = self
                .under_way
                .iter()
                .filter(|file| file.object == key.file.object)
                .count();
            if self.under_way.len() >= MAX_FETCHES {
                // The end of one brings the next.
                break;
            }
            if own >= MAX_OF_OBJECT || self.under_way.contains(&key.file) {
                continue;
            }
            if !intake.lock().sink.wants(&key.file) {
                gone.push(Arc::clone(path));
                continue;
            }
            let others: usize = self
                .keys
                .values()
                .filter(|other| other.file != key.file)
                .map(|other| other.content.length)
                .sum();
            let room = MAX_BODIES - MAX_BODIES.min(others + self.under_way.len() * MAX_BODY);
            let settings = Arc::clone(&self.settings);
            let file = key.file.clone();
            let intake = Arc::clone(intake);
            let validators = key.content.validators.clone();
            self.under_way.push(file.clone());
            let fetching = async move {
                let fetch = UrlFetch {
                    settings: &settings,
                    file: &file,
                    validators,
                    max_body: room.min(MAX_BODY),
                    intake: &intake,
                };
                let fetched = fetch.run().await;
                (file, fetched)
            };
            self.fetching.push(fetching.boxed());
        }
        for path in gone {
            self.keys.remove(&path);
        }
        next
    }

    fn ended(&mut self, file: &UrlFile, fetched: Fetched) {
        let key = self.keys.get_mut(&file.path);
        let Some(key) = key.filter(|key| key.file == *file) else {
            return;
        };
        key.is_tried = true;
        key.failures = fetched.as_ref().map_or(key.failures + 1, |_| 0);
        let retries = self.settings.client.retries;
        let is_refused = fetched.as_ref().is_err_and(FetchFailure::is_refused);
        let pause = match key.failures {
            1.. if retries.total > 0 && (is_refused || key.failures > retries.total) => SLOW,
            1.. if key.failures <= retries.total => {
                retries.pause(key.failures).max(Duration::from_secs(1))
            }
            // Without a refresh, a change of the object causes the next one.
            _ => self.settings.refresh.unwrap_or(MAX_TIME),
        };
        key.error = None;
        let outcome = match fetched {
            Ok(Some(content)) => {
                key.content = content;
                "succeeded"
            }
            Ok(None) => "unchanged",
            Err(error) => {
                warn!(path = %file.path, %error, "cannot fetch, keeping the old file");
                key.error = Some(error);
                "failed"
            }
        };
        key.due = Instant::now() + pause.clamp(MIN_REFRESH, MAX_TIME);
        self.metrics.fetched(outcome);
    }
}

/// A URL whose content goes into a file.
struct UrlFetch<'a> {
    settings: &'a UrlSettings,
    file: &'a UrlFile,
    /// The headers that ask whether the content has changed.
    validators: Vec<(String, String)>,
    max_body: usize,
    intake: &'a SharedIntake,
}

impl UrlFetch<'_> {
    /// Follows redirects, of which none begins when the time for a request is over.
    async fn run(&self) -> Fetched {
        let client = &self.settings.client;
        let first = HttpUrl::parse(&self.file.url).map_err(FetchFailure::Unusable)?;
        let mut url = first.clone();
        let began = Instant::now();
        for _ in 0..=REDIRECTS {
            let (head, content) = self.request(&first, &url).await?;
            let is_content = match head.status {
                500..=599 => client.enable_5xx,
                status => (200..=299).contains(&status),
            };
            if is_content {
                return Ok(content.map(|content| {
                    let length = content.length;
                    self.intake.lock().sink.take_fetched(self.file, content);
                    let validators = head.validators();
                    FetchedContent { validators, length }
                }));
            }
            match head.status {
                304 if !self.validators.is_empty() => return Ok(None),
                301 | 302 | 303 | 307 | 308 => {
                    if began.elapsed() > client.timeout {
                        return Err(FetchFailure::SlowRedirects { first });
                    }
                    let next = redirected(&url, head.header("location").unwrap_or_default());
                    url = next.map_err(|problem| FetchFailure::Location { url, problem })?;
                }
                status => return Err(FetchFailure::Answered { url, status }),
            }
        }
        Err(FetchFailure::ManyRedirects { first })
    }

    /// Requests `url`, to which redirects have led from `first`. The content is aside until it is taken.
    async fn request(
        &self,
        first: &HttpUrl,
        url: &HttpUrl,
    ) -> Result<(FetchedHead, Option<FetchedFile>), FetchFailure> {
        let client = &self.settings.client;
        let is_trusted = match &self.settings.credentials {
            UrlCredentials::Never => false,
            UrlCredentials::Always => origin(first) == origin(url),
            UrlCredentials::Below(trusted) => trusted.iter().any(|above| is_below(url, above)),
        };
        let mut headers = self.validators.clone();
        if is_trusted {
            let own = authorization(&client.credentials);
            headers.extend(own.map_err(FetchFailure::Unusable)?);
        }
        let request = Fetch {
            url,
            headers: &headers,
            tls: &client.tls,
            timeout: client.timeout,
            max_body: self.max_body,
            body_of_5xx: client.enable_5xx,
            allow_loopback: is_trusted,
        };
        let mut content = None;
        let mut take = |bytes: &[u8]| -> io::Result<()> {
            let content: &mut FetchedFile = match &mut content {
                Some(content) => content,
                none => none.insert(self.intake.lock().sink.begin_fetched(self.file)?),
            };
            content.write(bytes)
        };
        match fetch(&request, &mut take).await {
            Ok(head) => Ok((head, content)),
            Err(reason) => {
                let url = url.clone();
                Err(FetchFailure::Request { url, reason })
            }
        }
    }
}

/// Whether a URL is `above`, or below it. A path that the server may resolve to another one is not.
fn is_below(url: &HttpUrl, above: &HttpUrl) -> bool {
    let path = |url: &HttpUrl| url.path().split(['?', '#']).next().map(str::to_owned);
    let (Some(path), Some(root)) = (path(url), path(above)) else {
        return false;
    };
    let encoded = path.to_ascii_lowercase();
    let is_plain = !["/.", "\\", "%2e", "%2f", "%5c"]
        .iter()
        .any(|odd| encoded.contains(odd));
    let is_inside = path
        .strip_prefix(root.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    origin(url) == origin(above) && is_plain && is_inside
}

/// Scheme, host and port.
fn origin(url: &HttpUrl) -> (bool, String, u16) {
    (url.is_tls(), url.host().to_ascii_lowercase(), url.port())
}

/// Where `location` leads from `from`.
fn redirected(from: &HttpUrl, location: &str) -> Result<HttpUrl, &'static str> {
    let scheme = if from.is_tls() { "https" } else { "http" };
    let target = redirect_target(scheme, &from.authority(), &from.path(), location);
    HttpUrl::parse(&target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> HttpUrl {
        HttpUrl::parse(text).unwrap()
    }

    // sidecar 26
    #[test]
    fn origin_is_scheme_host_and_port() {
        let own = url("http://localhost:3000/api");
        assert_eq!(origin(&own), origin(&url("http://LOCALHOST:3000/x")));
        for other in [
            "https://localhost:3000/",
            "http://localhost/",
            "http://other:3000/",
        ] {
            assert_ne!(origin(&own), origin(&url(other)));
        }
    }

    // sidecar 26
    #[test]
    fn credentials_go_below_a_listed_url_only() {
        let is_in = |text: &str| is_below(&url(text), &url("http://h/public/"));
        for text in [
            "http://h/public",
            "http://h/public/",
            "http://H/public/x?y=/..",
        ] {
            assert!(is_in(text), "{text}");
        }
        for text in [
            "http://h/",
            "http://h/publicity",
            "https://h/public/",
            "http://h:81/public/",
            "http://h/public/../api",
            "http://h/public/%2E%2e/api",
            "http://h/public/..%2fapi",
        ] {
            assert!(!is_in(text), "{text}");
        }
    }

    #[test]
    fn redirects_lead_to_servers_of_http_only() {
        let from = url("http://user:pw@h:80/a/b?c");
        let to = |location| redirected(&from, location).map(|url| (url.authority(), url.path()));
        let of = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(to("x"), of("h:80", "/a/x"));
        assert_eq!(to("https://other/x"), of("other", "/x"));
        assert!(to("file:///etc/passwd").is_err());
    }
}
