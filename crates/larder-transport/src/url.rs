//! Ports of URLs, and URLs in messages.
//!
//! Invariant: no user, password, path or query of a URL is shown.

use http::{Uri, uri::Authority};

/// The port of a URL's authority, or `default` if it has none. `None` if no connection can be opened to it:
/// [`http::Uri`] takes any number for a port, and then acts as if there were none.
pub(crate) fn port(authority: &Authority, default: u16) -> Option<u16> {
    match port_text(authority) {
        "" => Some(default),
        text => text.parse().ok().filter(|port| *port != 0),
    }
}

/// The port as it is written, whether or not it is one; empty if there is none.
pub(crate) fn port_text(authority: &Authority) -> &str {
    let text = authority.as_str();
    let text = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
    let rest = text.strip_prefix(authority.host()).unwrap_or_default();
    rest.strip_prefix(':').unwrap_or_default()
}

/// Scheme, host and port of a URL: no user, password, path or query.
pub(crate) fn without_credentials(url: &Uri) -> String {
    match (url.scheme_str(), url.authority()) {
        (Some(scheme), Some(authority)) => match (authority.host(), port_text(authority)) {
            (host, "") => format!("{scheme}://{host}"),
            (host, port) => format!("{scheme}://{host}:{port}"),
        },
        _ => "(without scheme or host)".to_owned(),
    }
}

/// As [`without_credentials`], for text that may be no URL.
pub(crate) fn shown_url(text: &str) -> String {
    text.parse().map_or_else(
        |_| "(malformed)".to_owned(),
        |url| without_credentials(&url),
    )
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
}
