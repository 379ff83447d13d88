//! Credentials in memory.

use std::ops::Deref;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::HeaderValue;
use serde::Deserialize;
use zeroize::Zeroizing;

/// Text that is wiped when it is dropped, and has no `Debug`.
#[derive(Clone, Default, Deserialize)]
#[serde(from = "String")]
pub(super) struct SecretText(Zeroizing<String>);

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl Deref for SecretText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// `Authorization` for a bearer token; `None` if it is empty or has a character that no header may have.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    let token = token.trim();
    if token.is_empty() {
        return None;
    }
    sensitive(&Zeroizing::new(format!("Bearer {token}")))
}

/// `Authorization` for a user and password.
pub(super) fn basic(user: &str, password: &str) -> Option<HeaderValue> {
    let pair = Zeroizing::new(format!("{user}:{password}"));
    let encoded = Zeroizing::new(BASE64.encode(pair.as_bytes()));
    sensitive(&Zeroizing::new(format!("Basic {}", *encoded)))
}

fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(value).ok()?;
    header.set_sensitive(true);
    Some(header)
}
