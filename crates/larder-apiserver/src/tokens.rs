//! Tokens of service accounts: JSON web tokens as the TokenRequest API issues them.
//!
//! Source of the claims and limits: kube-apiserver 1.36, `pkg/serviceaccount/claims.go` and
//! `pkg/registry/core/serviceaccount/storage/token.go`. Intentionally missing: the extension of a token of 3607 s to a
//! year.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use larder_objects::{ObjectKey, uuid};
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};

use crate::{SetupError, object::Object};

/// The issuer of the tokens, and their audience when the request names none.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Signs tokens with a key of its own.
#[derive(Debug)]
pub(crate) struct TokenIssuer {
    key: KeyPair,
}

impl TokenIssuer {
    pub(crate) fn generate() -> Result<Self, SetupError> {
        Ok(Self {
            key: KeyPair::generate_for(&PKCS_ED25519)?,
        })
    }

    /// A token of `account` that begins `now`. It is void without the object in `bound_to`, which stands after `pod`,
    /// `secret` or `node`.
    pub(crate) fn issue(
        &self,
        account: &Object,
        bound_to: Option<(&str, Arc<Object>)>,
        audiences: &[String],
        lifetime: SignedDuration,
        now: Timestamp,
    ) -> Result<String, SetupError> {
        let ObjectKey { namespace, name } = &account.key;
        let mut private = json!({
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": account.uid},
        });
        if let Some((kind, object)) = bound_to {
            private[kind] = json!({"name": object.key.name, "uid": object.uid});
        }
        let now = now.as_second();
        let payload = json!({
            "aud": audiences,
            "exp": now + lifetime.as_secs(),
            "iat": now,
            "iss": ISSUER,
            "jti": uuid(fastrand::u128(..), 4),
            "kubernetes.io": private,
            "nbf": now,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
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
