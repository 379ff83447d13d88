//! `*.url` keys: fetches their content (rule L7).
//!
//! Invariants:
//! 1. One fetch at a time, so at most one body is in memory.
//! 2. A failure, or a status other than 2xx, keeps the old file.
//! 3. Credentials go to the origin of `REQ_URL` only, unless the user says otherwise, and never after a redirect to
//!    another origin.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use larder_actions::http::{Fetch, FetchedBody, fetch};
use larder_on_change::{HttpUrl, HttpUrlError};
use larder_transport::redirect::redirect_target;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    intake::{SharedIntake, UrlFile},
    metrics::Metrics,
    request::authorization,
    settings::{MAX_TIME, UrlSettings},
};

/// The shortest time between two fetches of one file.
const MIN_REFRESH: Duration = Duration::from_secs(1);
/// The longest content.
const MAX_BODY: usize = 16 << 20;
/// Redirects that are followed.
const REDIRECTS: usize = 5;
/// The pause after the fast retries.
const SLOW: Duration = Duration::from_mins(5);

/// The keys whose content is fetched.
pub(crate) struct UrlKeys {
    settings: Arc<UrlSettings>,
    /// Those that are due at a time, by path.
    keys: BTreeMap<Arc<str>, Key>,
    fetching: Option<BoxFuture<'static, (UrlFile, Fetched)>>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Key {
    file: UrlFile,
    due: Instant,
    failures: u32,
    is_tried: bool,
    validators: Vec<(String, String)>,
}

/// New content; `None` if it is unchanged.
type Fetched = Result<Option<FetchedBody>, String>;

impl UrlKeys {
    pub(crate) fn new(settings: UrlSettings, metrics: Metrics) -> Self {
        Self {
            settings: Arc::new(settings),
            keys: BTreeMap::new(),
            fetching: None,
            metrics,
        }
    }

    /// Fetches these now.
    pub(crate) fn add(&mut self, files: Vec<UrlFile>) {
        self.keys.extend(files.into_iter().map(|file| {
            let key = Key {
                due: Instant::now(),
                failures: 0,
                is_tried: false,
                validators: Vec::new(),
                file,
            };
            (Arc::clone(&key.file.path), key)
        }));
    }

    /// Whether the first attempt of every key is over.
    pub(crate) fn is_tried(&self) -> bool {
        self.keys.values().all(|key| key.is_tried)
    }

    /// Waits for the end of the next fetch, and hands its content over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, intake: &SharedIntake) {
        loop {
            if let Some(fetching) = &mut self.fetching {
                let (file, fetched) = fetching.await;
                self.fetching = None;
                return self.ended(&file, fetched, intake);
            }
            let Some(key) = self.keys.values().min_by_key(|key| key.due) else {
                return std::future::pending().await;
            };
            sleep_until(key.due).await;
            let (file, validators) = (key.file.clone(), key.validators.clone());
            if !intake.lock().sink.wants(&file) {
                self.keys.remove(&file.path);
                continue;
            }
            let settings = Arc::clone(&self.settings);
            let fetching = async move {
                let fetched = run(&settings, &file.url, validators).await;
                (file, fetched)
            };
            self.fetching = Some(fetching.boxed());
        }
    }

    fn ended(&mut self, file: &UrlFile, fetched: Fetched, intake: &SharedIntake) {
        let key = self.keys.get_mut(&file.path);
        let Some(key) = key.filter(|key| key.file == *file) else {
            return;
        };
        key.is_tried = true;
        key.failures = fetched.as_ref().map_or(key.failures + 1, |_| 0);
        let retries = self.settings.client.retries;
        let pause = match key.failures {
            1.. if key.failures <= retries.total => {
                Some(retries.pause(key.failures).max(Duration::from_secs(1)))
            }
            1.. if retries.total > 0 => Some(SLOW),
            _ => self.settings.refresh,
        };
        let outcome = match fetched {
            Ok(Some(fetched)) => {
                key.validators = fetched.validators();
                intake.lock().sink.take_fetched(file, &fetched.body);
                "succeeded"
            }
            Ok(None) => "unchanged",
            Err(reason) => {
                warn!(path = %file.path, error = reason, "cannot fetch, keeping the old file");
                "failed"
            }
        };
        match pause {
            Some(pause) => key.due = Instant::now() + pause.clamp(MIN_REFRESH, MAX_TIME),
            None => drop(self.keys.remove(&file.path)),
        }
        self.metrics.fetched(outcome);
    }
}

/// Fetches a URL, and follows redirects, of which none begins when the time for a request is over.
async fn run(settings: &UrlSettings, url: &str, validators: Vec<(String, String)>) -> Fetched {
    let client = &settings.client;
    let first = HttpUrl::parse(url).map_err(|error| error.to_string())?;
    let mut url = first.clone();
    let began = Instant::now();
    for _ in 0..=REDIRECTS {
        let mut headers = validators.clone();
        let is_trusted = |trusted: &HttpUrl| origin(trusted) == origin(&url);
        let always = Some(&first).filter(|_| settings.credentials_always);
        if settings.origin.iter().chain(always).any(is_trusted) {
            headers.extend(authorization(&client.credentials)?);
        }
        let request = Fetch {
            url: &url,
            headers: &headers,
            tls: &client.tls,
            timeout: client.timeout,
            max_body: MAX_BODY,
            body_of_5xx: client.enable_5xx,
        };
        let fetched = fetch(&request).await;
        let fetched = fetched.map_err(|reason| format!("{url}: {reason}"))?;
        match fetched.status {
            200..=299 => return Ok(Some(fetched)),
            304 if !validators.is_empty() => return Ok(None),
            500..=599 if client.enable_5xx => return Ok(Some(fetched)),
            301 | 302 | 303 | 307 | 308 => {
                if began.elapsed() > client.timeout {
                    return Err(format!("{first}: redirects take too long"));
                }
                let next = redirected(&url, fetched.header("location").unwrap_or_default());
                url = next.map_err(|error| format!("{url}: {error}"))?;
            }
            status => return Err(format!("{url}: answered {status}")),
        }
    }
    Err(format!("{first}: more than {REDIRECTS} redirects"))
}

/// Scheme, host and port.
fn origin(url: &HttpUrl) -> (bool, String, u16) {
    (url.is_tls(), url.host().to_ascii_lowercase(), url.port())
}

/// Where `location` leads from `from`.
fn redirected(from: &HttpUrl, location: &str) -> Result<HttpUrl, HttpUrlError> {
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
