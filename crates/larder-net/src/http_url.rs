//! URLs of requests that a user writes, checked when they are read, so that no request fails due to its URL.

use std::{fmt, net::Ipv6Addr};

use http::Uri;
use zeroize::Zeroizing;

use crate::url::{basic, decoded_user, has_whole_escapes, port_number};

/// Longest name of a host (RFC 1035).
const MAX_HOST: usize = 253;

/// A URL with `http` or `https`, a host, and no fragment. Shown without user and query, which may be credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpUrl {
    text: String,
}

// Why a text is not such a URL. None shows the text: it may hold credentials.
/// Another scheme, or none.
const SCHEME: &str = "expected a URL that begins with http:// or https://";
/// A character that no request may have, or too many of them.
const CHARACTER: &str = "expected a URL of printable ASCII characters without blanks, < and >";
/// A percent sign without two hexadecimal digits.
const PERCENT: &str = "expected two hexadecimal digits after each % of the URL";
/// A fragment, which no request carries.
const FRAGMENT: &str = "expected a URL without a fragment (#)";
/// An empty user, or another `@` in it.
const USER: &str = "expected a user before the @ of the URL, and any other @ there as %40";
/// No host, or one that is neither a name nor an address.
const HOST: &str =
    "expected a host in the URL: a name, an IPv4 address, or an IPv6 address in brackets";
/// The port is no number from 1 to 65535.
const PORT: &str = "expected 1 to 65535 as the port of the URL";

/// The parts of a URL.
struct Parts<'a> {
    is_tls: bool,
    user: Option<&'a str>,
    /// An IPv6 address in brackets.
    host: &'a str,
    port: Option<u16>,
    /// Path and query, perhaps without the first slash.
    rest: &'a str,
}

impl HttpUrl {
    /// Checks a URL.
    ///
    /// # Errors
    ///
    /// What the first rule that the text breaks expects. The text is not shown: it may hold credentials.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let parts = parts(text)?;
        let path = path(&parts);
        // What is left are characters that no request line may have, and a text that is too long for one.
        let uri: Uri = path.parse().map_err(|_| CHARACTER)?;
        if uri
            .path_and_query()
            .is_none_or(|found| found.as_str() != path)
        {
            return Err(CHARACTER);
        }
        Ok(Self {
            text: text.to_owned(),
        })
    }

    fn parts(&self) -> Parts<'_> {
        parts(&self.text).expect("the text was checked")
    }

    /// Whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.parts().is_tls
    }

    /// Name or address of the host, without brackets.
    pub fn host(&self) -> &str {
        self.parts().host.trim_matches(['[', ']'])
    }

    /// The port, or the scheme's.
    pub fn port(&self) -> u16 {
        let parts = self.parts();
        parts.port.unwrap_or(if parts.is_tls { 443 } else { 80 })
    }

    /// Host and port as in the header `Host`.
    pub fn authority(&self) -> String {
        let parts = self.parts();
        match parts.port {
            Some(port) => format!("{}:{port}", parts.host),
            None => parts.host.to_owned(),
        }
    }

    /// Path and query, beginning with `/`.
    pub fn path(&self) -> String {
        path(&self.parts())
    }

    /// The value of `Authorization` that stands for user and password before the host.
    pub fn basic_authorization(&self) -> Option<Zeroizing<String>> {
        self.parts().user.map(|user| basic(&decoded_user(user)))
    }
}

fn path(parts: &Parts<'_>) -> String {
    let slash = if parts.rest.starts_with('/') { "" } else { "/" };
    format!("{slash}{}", parts.rest)
}

fn parts(text: &str) -> Result<Parts<'_>, &'static str> {
    let (is_tls, after) = if let Some(after) = text.strip_prefix("https://") {
        (true, after)
    } else {
        let after = text.strip_prefix("http://").ok_or(SCHEME)?;
        (false, after)
    };
    if !after.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(CHARACTER);
    }
    if after.contains('#') {
        return Err(FRAGMENT);
    }
    if !has_whole_escapes(after) {
        return Err(PERCENT);
    }
    let (authority, rest) = after.split_at(after.find(['/', '?']).unwrap_or(after.len()));
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, _)) if user.is_empty() || user.contains('@') => {
            return Err(USER);
        }
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    let end = if place.starts_with('[') {
        place.find(']').ok_or(HOST)? + 1
    } else {
        place.find(':').unwrap_or(place.len())
    };
    let (host, port) = place.split_at(end);
    if !is_host(host) {
        return Err(HOST);
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        None => return Err(HOST),
        Some(digits) => Some(port_number(digits).ok_or(PORT)?),
    };
    Ok(Parts {
        is_tls,
        user,
        host,
        port,
        rest,
    })
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']');
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.len() <= MAX_HOST && host.bytes().all(is_allowed)
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let path = self.path();
        let path = path.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{}{path}", self.authority())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_its_parts() {
        let url = |text| HttpUrl::parse(text).unwrap();
        let plain = url("http://reload.example");
        assert_eq!(
            (plain.host(), plain.port(), plain.is_tls()),
            ("reload.example", 80, false)
        );
        assert_eq!(
            (plain.authority().as_str(), plain.path().as_str()),
            ("reload.example", "/")
        );
        assert_eq!(plain.basic_authorization(), None);
        let full = url("https://a%40b:c%2f@[2001:db8::1]:8443/x?y=@z");
        assert_eq!(
            (full.host(), full.port(), full.is_tls()),
            ("2001:db8::1", 8443, true)
        );
        assert_eq!(full.authority(), "[2001:db8::1]:8443");
        assert_eq!(full.path(), "/x?y=@z");
        assert_eq!(*full.basic_authorization().unwrap(), *basic(b"a@b:c/"));
        let without_password = url("http://token@h").basic_authorization();
        assert_eq!(*without_password.unwrap(), *basic(b"token:"));
        assert_eq!(full.to_string(), "https://[2001:db8::1]:8443/x");
        assert_eq!(url("http://h?q").path(), "/?q");
        assert_eq!(url("https://h").port(), 443);
    }

    #[test]
    fn each_mistake_in_a_url_has_its_message() {
        for (text, error) in [
            ("h/", SCHEME),
            ("ftp://h/", SCHEME),
            ("unix:///run/x", SCHEME),
            ("http:/h", SCHEME),
            ("http://h:99999/", PORT),
            ("http://h:65536", PORT),
            ("http://h:0/", PORT),
            ("http://h:/", PORT),
            ("http://h:+80/", PORT),
            ("http://h:80:81/", PORT),
            ("http://[::1]:99999/", PORT),
            ("http://", HOST),
            ("http:///path", HOST),
            ("http://:80/", HOST),
            ("http://user@/", HOST),
            ("http://[::1/", HOST),
            ("http://[::1]80/", HOST),
            ("http://[1.2.3.4]/", HOST),
            ("http://[fe80::1%25eth0]/", HOST),
            ("http://@h/", USER),
            ("http://a@b@c/", USER),
            ("http://h%2e/", HOST),
            ("http://a,b/", HOST),
            ("http://h/#top", FRAGMENT),
            ("http://h#@evil/", FRAGMENT),
            ("http://h/%", PERCENT),
            ("http://h/%zz", PERCENT),
            ("http://us%e@h/", PERCENT),
            ("http://h/a b", CHARACTER),
            ("http://h/\r\nhost: evil", CHARACTER),
            ("http://h\0/", CHARACTER),
            ("http://h/ü", CHARACTER),
            ("http://h/<a>", CHARACTER),
        ] {
            assert_eq!(HttpUrl::parse(text), Err(error), "{text:?}");
        }
        let long = format!("http://{}/", "a".repeat(254));
        assert_eq!(HttpUrl::parse(&long), Err(HOST));
        assert_eq!(
            HttpUrl::parse(&format!("http://h/{}", "a".repeat(1 << 17))),
            Err(CHARACTER)
        );
    }
}
