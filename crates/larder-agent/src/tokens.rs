//! Tokens of service accounts, for projected volumes: requested, kept, and renewed in time.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/token/token_manager.go`; when a token is due is decided by [`Token`].
//!
//! Invariant: a token is held as [`SecretBytes`], and no error shows any of it.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use larder_objects::SecretBytes;
use larder_projection::{MAX_REFRESH_JITTER, Token, TokenRequest, Unavailable};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::{chain::chain, clock};

/// Shortest time between two attempts to renew a token that is due.
const RENEWAL_PACE: Duration = Duration::from_secs(1);
/// Longest answer that is read.
const ANSWER_LIMIT: usize = 1 << 20;
/// Longest wait for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests tokens and keeps them while they are good.
pub(crate) struct Tokens {
    client: Client,
    issued: Mutex<HashMap<Key, Token>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("issued", &self.issued.lock().len())
            .finish_non_exhaustive()
    }
}

/// Pod, service account and request: what a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    pod_uid: SmolStr,
    account: SmolStr,
    request: TokenRequest,
}

/// Why no token was issued.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("cannot talk to the API server")]
    Transport(#[source] kube::Error),
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    Timeout,
    #[error("the API server does not have TokenRequest endpoints enabled")]
    NoEndpoint,
    #[error("{message}")]
    Refused { message: String },
    #[error("the answer holds no token")]
    Answer,
}

impl Tokens {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            issued: Mutex::default(),
        }
    }

    /// The token of `pod` for `request`: the one that is kept, unless it is due to be renewed.
    pub(crate) async fn get(
        &self,
        pod: &Pod,
        request: &TokenRequest,
    ) -> Result<Arc<SecretBytes>, Unavailable> {
        let key = Key {
            pod_uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            account: account(pod).into(),
            request: request.clone(),
        };
        let now = clock::now();
        let jitter = Duration::from_secs(fastrand::u64(0..=MAX_REFRESH_JITTER.as_secs()));
        let kept = self.issued.lock().get(&key).cloned();
        if let Some(kept) = &kept
            && !kept.is_refresh_due(now, jitter)
            && !kept.is_expired(now)
        {
            return Ok(kept.token.clone());
        }
        let answer = timeout(REQUEST_TIMEOUT, self.request(pod, &key)).await;
        let error = match answer.unwrap_or(Err(RequestError::Timeout)) {
            Ok(issued) => {
                let token = issued.token.clone();
                self.issued.lock().insert(key, issued);
                return Ok(token);
            }
            Err(error) => chain(&error),
        };
        match Token::after_failed_refresh(kept.as_ref(), now, &key.account, &error) {
            Ok(kept) => {
                warn!(error, account = %key.account, "token not renewed, the old one is still good");
                Ok(kept.token.clone())
            }
            Err(error) => Err(Unavailable::failed(error.to_string())),
        }
    }

    /// When a token of the pod must be renewed next, as seen from `now`.
    pub(crate) fn renewal(&self, pod_uid: &str, now: Timestamp) -> Option<Instant> {
        let issued = self.issued.lock();
        let of_pod = issued.iter().filter(|(key, _)| key.pod_uid == pod_uid);
        let at = of_pod
            .filter_map(|(_, issued)| issued.refresh_at(Duration::ZERO))
            .min()?;
        // A second later it is due whatever the jitter; one that is due already has failed, and is tried at that pace.
        let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        Some(Instant::now() + wait + RENEWAL_PACE)
    }

    /// Forgets the tokens of a pod whose volumes are gone.
    pub(crate) fn forget(&self, pod_uid: &str) {
        self.issued.lock().retain(|key, _| key.pod_uid != pod_uid);
    }

    async fn request(&self, pod: &Pod, key: &Key) -> Result<Token, RequestError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
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
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!(
                "/api/v1/namespaces/{namespace}/serviceaccounts/{}/token",
                key.account
            ))
            .header(header::CONTENT_TYPE, "application/json")
            .body(kube::client::Body::from(body.to_string().into_bytes()))
            .expect("names of the API need no escaping in a path");
        let response = self
            .client
            .send(request)
            .await
            .map_err(RequestError::Transport)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT)
            .collect()
            .await;
        let body = SecretBytes::new(body.map_err(|_| RequestError::Answer)?.to_bytes().into());
        if status.is_success() {
            return decode(&body).ok_or(RequestError::Answer);
        }
        let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
        // Without a name in the answer it is the path that was not found, not the service account.
        if status == StatusCode::NOT_FOUND && refusal.details.name.is_empty() {
            return Err(RequestError::NoEndpoint);
        }
        Err(RequestError::Refused {
            message: refusal.message,
        })
    }
}

/// Name of the service account of `pod`.
fn account(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let named = spec.and_then(|spec| spec.service_account_name.as_deref());
    named.filter(|name| !name.is_empty()).unwrap_or("default")
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    message: String,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
}

/// What of a TokenRequest is read.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    spec: AnswerSpec,
    #[serde(borrow)]
    status: AnswerStatus<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AnswerSpec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerStatus<'a> {
    /// Borrowed: a token has no character that JSON escapes, and so is copied once only.
    token: &'a str,
    expiration_timestamp: Timestamp,
}

fn decode(answer: &[u8]) -> Option<Token> {
    let answer: Answer<'_> = serde_json::from_slice(answer).ok()?;
    Some(Token {
        token: Arc::new(SecretBytes::new(answer.status.token.as_bytes().to_vec())),
        expires_at: answer.status.expiration_timestamp,
        life_time: answer.spec.expiration_seconds.map(Duration::from_secs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
