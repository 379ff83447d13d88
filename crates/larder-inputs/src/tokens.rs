//! Tokens of service accounts, for projected volumes: requested, kept, and renewed in time.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/token/token_manager.go`; `Token` decides when a token is due. Two differences
//! are intended. A token is also due by its age, so a wrong wall clock delays no renewal. A failed renewal is retried
//! after a growing delay, not with every pass.
//!
//! Invariants:
//! 1. A token is held as `SecretBytes`; no error contains any of it.
//! 2. A token that has just arrived is neither due nor expired for `MIN_USE`, whatever its lifetime and the clock. So
//!    neither a wrong clock nor a short lifetime causes a flood of requests.
//! 3. At most 32 requests are in flight.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fastrand::Rng;
use http::Method;
use jiff::Timestamp;
use kube::Client;
use larder_objects::{SecretBytes, chain};
use larder_pods::StoredPod;
use larder_projection::{MAX_REFRESH_JITTER, Token, TokenRequest, Unavailable};
use larder_transport::{
    Backoff,
    path::{PathError, Resource},
};
use larder_watch::{RequestError, request_secret};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use smol_str::SmolStr;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tracing::warn;

use crate::clock::Clock;

const SERVICE_ACCOUNTS: Resource = Resource::core("serviceaccounts");

/// Longest wait for a token whose valid predecessor its reader waits for meanwhile.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Shortest time for which a token is used. Kubernetes issues none for less than ten minutes.
const MIN_USE: Duration = Duration::from_secs(10);

/// Maximum number of requests in flight: an agent that starts needs one for each pod, and each takes some 10 KiB.
const MAX_REQUESTS: usize = 32;

/// Requests tokens and keeps them while they are valid.
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct Tokens {
    client: Client,
    clock: Clock,
    /// The delays between attempts to renew a token.
    backoff: Backoff,
    rng: Mutex<Rng>,
    issued: Mutex<HashMap<Key, CachedToken>>,
    /// One for each request in flight.
    permits: Semaphore,
}

/// Pod, service account and request: what a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    pod_uid: SmolStr,
    account: SmolStr,
    request: TokenRequest,
}

/// A token, and the state that decides when it is due.
#[derive(Clone)]
struct CachedToken {
    token: Token,
    received: Instant,
    /// Random for each token, so that tokens that came together are not renewed together.
    jitter: Duration,
    /// By the wall clock the token was due on arrival, so that clock is ignored for it.
    clock_is_wrong: bool,
    /// Earliest time of the next attempt after a failure.
    retry: Option<(Backoff, Instant)>,
}

impl CachedToken {
    fn new(token: Token, received: Instant, now: Timestamp, rng: &mut Rng) -> Self {
        let jitter = Duration::from_secs(rng.u64(0..=MAX_REFRESH_JITTER.as_secs()));
        Self {
            clock_is_wrong: token.is_refresh_due(now, jitter) || token.is_expired(now),
            token,
            received,
            jitter,
            retry: None,
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let used = self.received.elapsed();
        let age = self.token.refresh_age(self.jitter);
        used >= MIN_USE
            && (age.is_some_and(|age| used >= age)
                || !self.clock_is_wrong && self.token.is_refresh_due(now, self.jitter))
    }

    fn is_expired(&self, now: Timestamp) -> bool {
        let used = self.received.elapsed();
        let life = self.token.life_time;
        used >= MIN_USE
            && (life.is_some_and(|life| used > life)
                || !self.clock_is_wrong && self.token.is_expired(now))
    }

    /// Time of the next check, as of `now`.
    fn wake_at(&self, now: Timestamp) -> Option<Instant> {
        if let Some((_, at)) = self.retry {
            return Some(at);
        }
        let by_age = self.received + self.token.refresh_age(self.jitter)?;
        let by_clock = self.token.refresh_at(self.jitter)?.duration_since(now);
        // A moment later, when that time has passed.
        let by_clock = Duration::try_from(by_clock).unwrap_or_default() + Duration::from_millis(1);
        let due = if self.clock_is_wrong {
            by_age
        } else {
            by_age.min(Instant::now() + by_clock)
        };
        Some(due.max(self.received + MIN_USE))
    }
}

/// Why no token was issued.
#[derive(Debug, thiserror::Error)]
enum TokenRequestError {
    #[error(transparent)]
    Request(RequestError),
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
    #[error("the API server does not have TokenRequest endpoints enabled")]
    NoEndpoint,
    #[error("the response contains no token")]
    Answer,
    #[error("invalid namespace or service account")]
    Path(#[from] PathError),
}

impl Tokens {
    /// Without tokens. `backoff` has the delays between attempts to renew one.
    pub fn new(client: Client, clock: Clock, backoff: Backoff, rng: Rng) -> Self {
        Self {
            client,
            clock,
            backoff,
            rng: Mutex::new(rng),
            issued: Mutex::default(),
            permits: Semaphore::new(MAX_REQUESTS),
        }
    }

    /// The token of `pod` for `request`: the kept one, unless it is due.
    ///
    /// # Errors
    ///
    /// None is issued, and there is none that is still valid. The text is the kubelet's.
    pub async fn get(
        &self,
        pod: &StoredPod,
        request: &TokenRequest,
    ) -> Result<Arc<SecretBytes>, Unavailable> {
        let key = Key {
            pod_uid: pod.uid().into(),
            account: pod.service_account().into(),
            request: request.clone(),
        };
        let now = self.clock.now();
        let kept = self.issued.lock().get(&key).cloned();
        let good = kept.as_ref().filter(|kept| !kept.is_expired(now));
        if let Some(good) = good {
            let waits = good.retry.is_some_and(|(_, at)| at > Instant::now());
            if waits || !good.is_due(now) {
                return Ok(good.token.token.clone());
            }
        }
        let patience = if good.is_some() {
            RENEWAL_TIMEOUT
        } else {
            // The request has a limit of its own, and the wait for a permit says nothing about the API server.
            Duration::MAX
        };
        let answer = timeout(patience, async {
            let _permit = self.permits.acquire().await.expect("it is never closed");
            // Boxed: it is large, and most wait.
            Box::pin(self.request(pod, &key)).await
        })
        .await;
        let error = match answer.unwrap_or(Err(TokenRequestError::Timeout(patience))) {
            Ok(issued) => {
                let token = issued.token.clone();
                let (received, now) = (Instant::now(), self.clock.now());
                let issued = CachedToken::new(issued, received, now, &mut self.rng.lock());
                self.issued.lock().insert(key, issued);
                return Ok(token);
            }
            Err(error) => chain(&error),
        };
        if let Some(good) = good {
            warn!(error, account = %key.account, "token not renewed, the old one is still good");
            let mut backoff = good.retry.map_or(self.backoff, |(backoff, _)| backoff);
            let at = Instant::now() + backoff.next_delay();
            if let Some(kept) = self.issued.lock().get_mut(&key) {
                kept.retry = Some((backoff, at));
            }
            return Ok(good.token.token.clone());
        }
        Err(Unavailable::failed(match kept {
            None => format!("failed to fetch token: {error}"),
            Some(_) => format!("token {} expired and refresh failed: {error}", key.account),
        }))
    }

    /// Time of the next check of the pod's tokens.
    pub fn renewal(&self, pod_uid: &str) -> Option<Instant> {
        let issued = self.issued.lock();
        let now = self.clock.now();
        issued
            .iter()
            .filter(|(key, _)| key.pod_uid == pod_uid)
            .filter_map(|(_, kept)| kept.wake_at(now))
            .min()
    }

    /// Forgets the tokens of a pod whose volumes are gone.
    pub fn forget(&self, pod_uid: &str) {
        self.issued.lock().retain(|key, _| key.pod_uid != pod_uid);
    }

    async fn request(&self, pod: &StoredPod, key: &Key) -> Result<Token, TokenRequestError> {
        let accounts = SERVICE_ACCOUNTS.in_namespace(&pod.key().namespace)?;
        let path = accounts.object(&key.account)?.subresource("token");
        let audiences: Vec<_> = key.request.audience.iter().collect();
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": key.request.expiration_secs,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.metadata.name,
                    "uid": key.pod_uid,
                },
            },
        });
        let answer = request_secret(&self.client, Method::POST, path.as_str(), Some(&body))
            .await
            .map_err(|error| {
                if error.is_not_served() {
                    TokenRequestError::NoEndpoint
                } else {
                    TokenRequestError::Request(error)
                }
            })?;
        decode(&answer).ok_or(TokenRequestError::Answer)
    }
}

/// The part of a TokenRequest that is read.
#[derive(Deserialize)]
struct TokenAnswer<'a> {
    #[serde(default)]
    spec: TokenAnswerSpec,
    #[serde(borrow)]
    status: TokenAnswerStatus<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TokenAnswerSpec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenAnswerStatus<'a> {
    /// Borrowed: a token has no character that JSON escapes, so it is copied only once.
    token: &'a str,
    expiration_timestamp: Timestamp,
}

fn decode(answer: &[u8]) -> Option<Token> {
    let answer: TokenAnswer<'_> = serde_json::from_slice(answer).ok()?;
    Some(Token {
        token: Arc::new(SecretBytes::new(answer.status.token.as_bytes().to_vec())),
        expires_at: answer.status.expiration_timestamp,
        life_time: answer.spec.expiration_seconds.map(Duration::from_secs),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::ready,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures::future::join_all;
    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::{sleep, sleep_until};
    use tower::service_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_are_bounded() {
        let now = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (requests, peak) = (Arc::clone(&now), Arc::clone(&most));
        let service = service_fn(move |_: Request<Body>| {
            let (requests, peak) = (Arc::clone(&requests), Arc::clone(&peak));
            async move {
                peak.fetch_max(
                    requests.fetch_add(1, Ordering::Relaxed) + 1,
                    Ordering::Relaxed,
                );
                sleep(Duration::from_secs(1)).await;
                requests.fetch_sub(1, Ordering::Relaxed);
                let answer =
                    br#"{"status":{"token":"abc","expirationTimestamp":"2026-03-01T12:00:00Z"}}"#;
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_vec())))
            }
        });
        let client = Client::new(service, "default");
        let clock = Clock::new(|| "2026-03-01T11:00:00Z".parse().unwrap());
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        let tokens = Tokens::new(client, clock, backoff, Rng::with_seed(1));
        let pods = (0..3 * MAX_REQUESTS).map(|number| {
            let pod =
                json!({"metadata": {"namespace": "n", "name": "p", "uid": format!("u{number}")}});
            serde_json::from_value::<StoredPod>(pod).unwrap()
        });
        let request = TokenRequest {
            audience: None,
            expiration_secs: 3607,
        };
        let issued = join_all(pods.map(async |pod| tokens.get(&pod, &request).await));
        assert!(issued.await.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::Relaxed), MAX_REQUESTS);
    }

    #[tokio::test(start_paused = true)]
    async fn texts_of_failures_are_the_kubelets() {
        // projection 71
        let not_served = || Response::builder().status(404).body(Body::from(Vec::new()));
        let body = br#"{"spec":{"expirationSeconds":600},"status":{"token":"abc","expirationTimestamp":"2026-03-01T11:10:00Z"}}"#;
        let issued = || Ok(Response::new(Body::from(body.to_vec())));
        let requests = AtomicUsize::new(0);
        let service = service_fn(move |_: Request<Body>| {
            let is_second = requests.fetch_add(1, Ordering::Relaxed) == 1;
            ready(if is_second { issued() } else { not_served() })
        });
        let clock = Clock::new(|| "2026-03-01T11:00:00Z".parse().unwrap());
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        let client = Client::new(service, "default");
        let tokens = Tokens::new(client, clock, backoff, Rng::with_seed(1));
        let pod = json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"serviceAccountName": "a", "containers": []}});
        let pod: StoredPod = serde_json::from_value(pod).unwrap();
        let request = TokenRequest {
            audience: None,
            expiration_secs: 600,
        };
        let failure = async || tokens.get(&pod, &request).await.unwrap_err();
        let reason = "the API server does not have TokenRequest endpoints enabled";
        let never = format!("failed to fetch token: {reason}");
        assert_eq!(failure().await, Unavailable::failed(never));
        tokens.get(&pod, &request).await.unwrap();
        sleep(Duration::from_secs(601)).await;
        let expired = format!("token a expired and refresh failed: {reason}");
        assert_eq!(failure().await, Unavailable::failed(expired));
    }

    #[tokio::test(start_paused = true)]
    async fn token_without_a_lifetime_worth_the_name_is_requested_every_ten_seconds() {
        for life in [0, 1, 5] {
            let requests = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&requests);
            let service = service_fn(move |_: Request<Body>| {
                seen.fetch_add(1, Ordering::Relaxed);
                let at = format!("2026-03-01T11:00:0{life}Z");
                let answer = json!({"spec": {"expirationSeconds": life},
                    "status": {"token": "abc", "expirationTimestamp": at}});
                ready(Ok::<_, Infallible>(Response::new(Body::from(
                    answer.to_string().into_bytes(),
                ))))
            });
            let client = Client::new(service, "default");
            let start = Instant::now();
            let clock = Clock::new(move || {
                let at: Timestamp = "2026-03-01T11:00:00Z".parse().unwrap();
                at + start.elapsed()
            });
            let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
            let tokens = Tokens::new(client, clock, backoff, Rng::with_seed(1));
            let pod = json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"}});
            let pod: StoredPod = serde_json::from_value(pod).unwrap();
            let request = TokenRequest {
                audience: None,
                expiration_secs: 600,
            };
            // As the worker of a pod: it wakes for each renewal, and other events wake it in between.
            while start.elapsed() < Duration::from_secs(35) {
                tokens.get(&pod, &request).await.unwrap();
                let renewal = tokens.renewal("u").unwrap();
                assert!(renewal > Instant::now(), "{life}");
                sleep_until(renewal.min(Instant::now() + Duration::from_millis(300))).await;
            }
            assert_eq!(requests.load(Ordering::Relaxed), 4, "{life}");
        }
    }

    #[test]
    fn an_answer_is_read_and_anything_else_is_not() {
        let answer = br#"{"spec":{"expirationSeconds":3607},"status":{"token":"abc.def","expirationTimestamp":"2026-03-01T12:00:00Z"}}"#;
        let issued = decode(answer).unwrap();
        assert_eq!(&**issued.token, b"abc.def");
        assert_eq!(issued.life_time, Some(Duration::from_secs(3607)));
        assert!(decode(b"{}").is_none());
        assert!(!format!("{issued:?}").contains("abc"));
    }
}
