//! The user of a configuration: token, password or plugin, and the user to impersonate.

use std::path::PathBuf;

use http::{HeaderName, HeaderValue};

use super::{
    kubeconfig::{AuthInfo, Cluster},
    plugin::{Plugin, command_name},
    secret::{SecretText, basic, bearer},
};
use crate::{path::push_encoded, setup_error::SetupError};

/// Prefix of a header with extra information about an impersonated user; the key follows.
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// How requests name their user, apart from a client certificate.
#[derive(Clone)]
pub(super) enum User {
    None,
    Token(HeaderValue),
    TokenFile(PathBuf),
    Password(HeaderValue),
    Plugin(Box<Plugin>),
}

/// The user of a configuration, for a cluster whose authorities are `authority` in PEM. A file takes precedence over a
/// token beside it, as in client-go.
pub(super) fn user_of(
    user: AuthInfo,
    cluster: &Cluster,
    authority: Option<&[u8]>,
) -> Result<User, SetupError> {
    let set = |text: Option<SecretText>| text.filter(|text| !text.is_empty());
    if let Some(path) = user.token_file.filter(|path| !path.is_empty()) {
        return Ok(User::TokenFile(path.into()));
    }
    if let Some(token) = set(user.token) {
        return token_header(&token);
    }
    if let Some(name) = set(user.username) {
        let password = user.password.as_deref().unwrap_or_default();
        let too_long = SetupError::invalid("password", "it is too long for a header");
        return basic(&name, password).ok_or(too_long).map(User::Password);
    }
    if let Some(provider) = user.auth_provider {
        let mut config = provider.config.unwrap_or_default();
        return provided(&provider.name, config.remove("id-token"));
    }
    match user.exec {
        None => Ok(User::None),
        Some(exec) => {
            let name = command_name(exec.command.as_deref().unwrap_or_default()).to_owned();
            let plugin = Plugin::new(exec, cluster, authority)
                .map_err(|source| SetupError::Plugin { name, source })?;
            Ok(User::Plugin(Box::new(plugin)))
        }
    }
}

fn token_header(token: &str) -> Result<User, SetupError> {
    let problem = "it is empty or has a control character";
    bearer(token)
        .ok_or(SetupError::invalid("token", problem))
        .map(User::Token)
}

/// Of the providers of older configurations only `oidc` is left, with the token that it has stored.
fn provided(name: &str, id_token: Option<SecretText>) -> Result<User, SetupError> {
    let unsupported = |provider| Err(SetupError::Provider { provider });
    match (name, id_token) {
        ("oidc", Some(token)) => token_header(&token),
        ("oidc", None) => unsupported("oidc without id-token"),
        ("gcp", _) => unsupported("gcp"),
        ("azure", _) => unsupported("azure"),
        _ => unsupported("of this name"),
    }
}

/// Headers that name the user to impersonate.
pub(super) fn impersonation(user: &AuthInfo) -> Result<Vec<(HeaderName, HeaderValue)>, SetupError> {
    let invalid = |problem| SetupError::invalid("impersonated user", problem);
    let value = |text: &str| {
        let problem = "it has a character that no header may have";
        HeaderValue::from_str(text).map_err(|_| invalid(problem))
    };
    let mut headers = Vec::new();
    let one = |name, text: &Option<SecretText>| match text {
        Some(text) => Ok(Some((HeaderName::from_static(name), value(text)?))),
        None => Ok(None),
    };
    headers.extend(one("impersonate-user", &user.impersonate)?);
    headers.extend(one("impersonate-uid", &user.impersonate_uid)?);
    for group in user.impersonate_groups.iter().flatten() {
        headers.push((HeaderName::from_static("impersonate-group"), value(group)?));
    }
    for (key, values) in user.impersonate_extra.iter().flatten() {
        let mut name = IMPERSONATE_EXTRA.to_owned();
        push_encoded(&mut name, key, b"!#$&'*+-.^_`|~");
        let name = HeaderName::try_from(name)
            .map_err(|_| invalid("its extra key is too long for a header"))?;
        for text in values {
            headers.push((name.clone(), value(text)?));
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impersonation_becomes_headers() {
        let text = |text: &str| Some(SecretText::from(text.to_owned()));
        let user = AuthInfo {
            impersonate: text("alice"),
            impersonate_groups: Some(vec!["a".to_owned().into(), "b".to_owned().into()]),
            impersonate_extra: Some([("x/y".to_owned(), vec!["1".to_owned().into()])].into()),
            ..AuthInfo::default()
        };
        let headers: Vec<_> = impersonation(&user)
            .unwrap()
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        assert_eq!(
            headers,
            [
                "impersonate-user=alice",
                "impersonate-group=a",
                "impersonate-group=b",
                "impersonate-extra-x%2fy=1"
            ]
        );
        let broken = AuthInfo {
            impersonate: text("c4n4ry\n"),
            ..AuthInfo::default()
        };
        let error = impersonation(&broken).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("c4n4ry"));
    }
}
