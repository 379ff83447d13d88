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
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::{
    intake::{SharedIntake, UrlFile},
    metrics::Metrics,
    request::authorization,
    settings::UrlSettings,
};

/// The longest content.
const MAX_BODY: usize = 16 << 20;
/// Redirects that are followed.
const REDIRECTS: usize = 5;
/// The pause after the fast retries.
const SLOW: Duration = Duration::from_mins(5);

/// The keys whose content is fetched.
pub(crate) struct UrlKeys {
    settings: Arc<UrlSettings>,
    keys: BTreeMap<Arc<str>, Key>,
    fetching: Option<(UrlFile, BoxFuture<'static, Fetched>)>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Key {
    file: UrlFile,
    due: Option<Instant>,
    failures: u32,
    is_tried: bool,
    validators: Vec<(&'static str, String)>,
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
        for file in files {
            let key = Key {
                due: Some(Instant::now()),
                failures: 0,
                is_tried: false,
                validators: Vec::new(),
                file,
            };
            self.keys.insert(Arc::clone(&key.file.path), key);
        }
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
            if let Some((_, fetching)) = &mut self.fetching {
                let fetched = fetching.await;
                if let Some((file, _)) = self.fetching.take() {
                    self.ended(file, fetched, intake);
                }
                return;
            }
            let due = self
                .keys
                .values()
                .filter_map(|key| Some((key.due?, &key.file)));
            let Some((due, file)) = due.min_by_key(|(due, _)| *due) else {
                return std::future::pending().await;
            };
            let file = file.clone();
            sleep_until(due).await;
            if !intake.lock().sink.wants(&file) {
                self.keys.remove(&file.path);
                continue;
            }
            let validators = self.keys[&file.path].validators.clone();
            let (settings, url) = (Arc::clone(&self.settings), Arc::clone(&file.url));
            let fetching = async move { run(&settings, &url, validators).await };
            self.fetching = Some((file, fetching.boxed()));
        }
    }

    fn ended(&mut self, file: UrlFile, fetched: Fetched, intake: &SharedIntake) {
        let now = Instant::now();
        let Some(key) = self.keys.get_mut(&file.path).filter(|key| key.file == file) else {
            return;
        };
        key.is_tried = true;
        let refresh = self.settings.refresh.map(|refresh| now + refresh);
        let outcome = match fetched {
            Ok(fetched) => {
                key.failures = 0;
                key.due = refresh;
                let is_new = fetched.is_some();
                if let Some(fetched) = fetched {
                    key.validators = fetched.validators();
                    intake.lock().sink.take_fetched(&file, &fetched.body);
                }
                if is_new { "succeeded" } else { "unchanged" }
            }
            Err(reason) => {
                warn!(path = %file.path, error = reason, "cannot fetch, keeping the old file");
                key.failures += 1;
                let retries = self.settings.client.retries;
                let pause = if key.failures <= retries.total {
                    retries.pause(key.failures).max(Duration::from_secs(1))
                } else {
                    SLOW
                };
                key.due = (retries.total > 0).then_some(now + pause).or(refresh);
                "failed"
            }
        };
        self.metrics.fetched(outcome);
    }
}

/// Fetches a URL, and follows redirects.
async fn run(
    settings: &UrlSettings,
    url: &str,
    validators: Vec<(&'static str, String)>,
) -> Fetched {
    let client = &settings.client;
    let first = HttpUrl::parse(url).map_err(|error| error.to_string())?;
    let mut url = first.clone();
    for _ in 0..=REDIRECTS {
        let conditions = validators.iter();
        let conditions = conditions.map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut headers: Vec<_> = conditions.collect();
        let trusted = settings.origin.as_ref();
        if trusted.is_some_and(|trusted| is_same_origin(trusted, &url))
            || (settings.credentials_always && is_same_origin(&first, &url))
        {
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
                let next = redirected(&url, fetched.header("location").unwrap_or_default());
                url = next.map_err(|error| format!("{url}: {error}"))?;
            }
            status => return Err(format!("{url}: answered {status}")),
        }
    }
    Err(format!("{first}: more than {REDIRECTS} redirects"))
}

fn is_same_origin(one: &HttpUrl, other: &HttpUrl) -> bool {
    one.is_tls() == other.is_tls()
        && one.port() == other.port()
        && one.host().eq_ignore_ascii_case(other.host())
}

/// The target of a redirect: a URL, or a path on the same server.
fn redirected(from: &HttpUrl, location: &str) -> Result<HttpUrl, HttpUrlError> {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = if from.is_tls() { "https" } else { "http" };
    let (authority, path) = (from.authority(), from.path());
    let path = path.split('?').next().unwrap_or_default();
    let directory = &path[..=path.rfind('/').unwrap_or_default()];
    HttpUrl::parse(&if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.contains("://") {
        location.to_owned()
    } else {
        format!("{scheme}://{authority}{directory}{location}")
    })
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
        assert!(is_same_origin(&own, &url("http://LOCALHOST:3000/x")));
        for other in [
            "https://localhost:3000/",
            "http://localhost/",
            "http://other:3000/",
        ] {
            assert!(!is_same_origin(&own, &url(other)));
        }
    }

    #[test]
    fn redirects_are_relative_to_their_server() {
        let from = url("http://user:pw@h:80/a/b?c");
        let to = |location| redirected(&from, location).map(|url| (url.authority(), url.path()));
        let of = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(to("/x#top"), of("h:80", "/x"));
        assert_eq!(to("x"), of("h:80", "/a/x"));
        assert_eq!(to("//other/x"), of("other", "/x"));
        assert_eq!(to("https://other/x"), of("other", "/x"));
        assert!(to("file:///etc/passwd").is_err());
    }
}
