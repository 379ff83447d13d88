//! Tokens of service accounts: JSON web tokens as the TokenRequest API issues them.
//!
//! Source of the claims and limits: kube-apiserver 1.36, `pkg/serviceaccount/claims.go` and
//! `pkg/registry/core/serviceaccount/storage/token.go`. Intentionally missing: the extension of a token of 3607 s to a
//! year.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};

use crate::TlsError;

/// The issuer of the tokens, and their audience when the request names none.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Signs tokens with a key of its own.
pub(crate) struct TokenIssuer {
    key: KeyPair,
}

impl std::fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenIssuer").finish_non_exhaustive()
    }
}

/// Subject, audiences and lifetime of a token.
#[derive(Debug)]
pub(crate) struct Claims<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) account: &'a str,
    pub(crate) account_uid: &'a str,
    /// The object without which the token is void: `pod`, `secret` or `node`, with its name and uid.
    pub(crate) bound_to: Option<(&'a str, &'a str, &'a str)>,
    pub(crate) audiences: &'a [String],
    pub(crate) lifetime: SignedDuration,
    /// The token's own identity.
    pub(crate) id: String,
}

impl TokenIssuer {
    pub(crate) fn generate() -> Result<Self, TlsError> {
        Ok(Self {
            key: KeyPair::generate_for(&PKCS_ED25519)?,
        })
    }

    /// A token that begins `now`.
    pub(crate) fn issue(&self, claims: &Claims<'_>, now: Timestamp) -> Result<String, TlsError> {
        let mut private = json!({
            "namespace": claims.namespace,
            "serviceaccount": {"name": claims.account, "uid": claims.account_uid},
        });
        if let Some((kind, name, uid)) = claims.bound_to {
            private[kind] = json!({"name": name, "uid": uid});
        }
        let now = now.as_second();
        let payload = json!({
            "aud": claims.audiences,
            "exp": now + claims.lifetime.as_secs(),
            "iat": now,
            "iss": ISSUER,
            "jti": claims.id,
            "kubernetes.io": private,
            "nbf": now,
            "sub": format!("system:serviceaccount:{}:{}", claims.namespace, claims.account),
        });
        // RFC 8037: Ed25519.
        let header = json!({"alg": "EdDSA", "typ": "JWT"});
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&payload));
        let signature = self.key.sign(signed.as_bytes())?;
        let signature = URL_SAFE_NO_PAD.encode(signature);
        Ok(format!("{signed}.{signature}"))
    }
}
