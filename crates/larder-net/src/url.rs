//! Ports and users of URLs, and URLs in messages.
//!
//! Invariant: no user, password, path or query of a URL is shown.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{Uri, uri::Authority};
use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

/// The port of a URL's authority, or `default` if it has none. `None` if no connection can be opened to it:
/// [`http::Uri`] takes any number for a port, and then acts as if there were none.
pub fn port(authority: &Authority, default: u16) -> Option<u16> {
    match port_text(authority) {
        "" => Some(default),
        text => port_number(text),
    }
}

/// The port as it is written, whether or not it is one; empty if there is none.
fn port_text(authority: &Authority) -> &str {
    host_and_port(authority)
        .strip_prefix(authority.host())
        .unwrap_or_default()
        .strip_prefix(':')
        .unwrap_or_default()
}

/// The authority without user and password.
pub fn host_and_port(authority: &Authority) -> &str {
    let text = authority.as_str();
    text.rsplit_once('@').map_or(text, |(_, rest)| rest)
}

/// Scheme, host and port of a URL: no user, password, path or query.
pub fn without_credentials(url: &Uri) -> String {
    match (url.scheme_str(), url.authority()) {
        (Some(scheme), Some(authority)) => format!("{scheme}://{}", host_and_port(authority)),
        _ => "(without scheme or host)".to_owned(),
    }
}

/// As [`without_credentials`], for text that may be no URL.
pub fn shown_url(text: &str) -> String {
    text.parse().map_or_else(
        |_| "(malformed)".to_owned(),
        |url| without_credentials(&url),
    )
}

/// A percent sign in the user or password of a URL is not followed by two hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUser;

/// The value of `Authorization` or `Proxy-Authorization` that stands for user and password of a URL, if it has them.
///
/// # Errors
///
/// An escape in them is malformed.
pub fn basic_authorization(url: &Uri) -> Result<Option<Zeroizing<String>>, InvalidUser> {
    let authority = url.authority().map_or("", Authority::as_str);
    match authority.rsplit_once('@') {
        None => Ok(None),
        Some((user, _)) if has_whole_escapes(user) => Ok(Some(basic(&decoded_user(user)))),
        Some(_) => Err(InvalidUser),
    }
}

/// The value of `Authorization` for `USER:PASSWORD` (RFC 7617).
pub fn basic(user_and_password: &[u8]) -> Zeroizing<String> {
    let encoded = Zeroizing::new(BASE64.encode(user_and_password));
    Zeroizing::new(["Basic ", &encoded].concat())
}

/// `USER:PASSWORD` of a URL, in which either may be empty.
fn decoded_user(user: &str) -> Zeroizing<Vec<u8>> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let bytes = percent_decode_str(name).chain(*b":");
    Zeroizing::new(bytes.chain(percent_decode_str(password)).collect())
}

/// Whether two hexadecimal digits follow each percent sign.
pub(crate) fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|rest| {
        rest.as_bytes()
            .get(..2)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// A port that can be connected to.
pub(crate) fn port_number(text: &str) -> Option<u16> {
    // A sign would be accepted as well.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
        .filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_that_can_be_connected_to() {
        let found = |text: &str| {
            let authority: Authority = text.parse().unwrap();
            (port_text(&authority).to_owned(), port(&authority, 443))
        };
        for (text, shown, expected) in [
            ("host", "", Some(443)),
            ("host:", "", Some(443)),
            ("host:6443", "6443", Some(6443)),
            ("[fd00::1]:6443", "6443", Some(6443)),
            ("[fd00::1]", "", Some(443)),
            ("user:1@host", "", Some(443)),
            ("1:1@1:1", "1", Some(1)),
            ("host:65536", "65536", None),
            ("host:99999", "99999", None),
            ("host:0", "0", None),
            ("host:+80", "+80", None),
        ] {
            assert_eq!(found(text), (shown.to_owned(), expected), "{text}");
        }
    }

    #[test]
    fn a_url_is_shown_without_user_path_and_query() {
        for (url, shown) in [
            ("https://u:c4n4ry@h:1/c4n4ry?c4n4ry", "https://h:1"),
            ("http://h", "http://h"),
            ("c4n4ry", "(without scheme or host)"),
            ("https://c4n4ry c4n4ry", "(malformed)"),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn user_and_password_are_decoded() {
        let basic = |url: &str| basic_authorization(&url.parse().unwrap());
        let of = |pair: &[u8]| {
            let value = format!("Basic {}", BASE64.encode(pair));
            Ok(Some(Zeroizing::new(value)))
        };
        assert_eq!(basic("http://us%65r:p%40:s@h/@"), of(b"user:p@:s"));
        assert_eq!(basic("http://%ff@h"), of(b"\xff:"));
        assert_eq!(basic("http://h/u:p@h"), Ok(None));
        for user in ["%zz:p", "u:%4", "u%"] {
            assert_eq!(basic(&format!("http://{user}@h")), Err(InvalidUser));
        }
    }
}
