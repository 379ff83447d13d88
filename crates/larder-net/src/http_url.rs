//! URLs of requests that a user writes, checked when they are read, so that no request fails due to its URL.

use std::{fmt, net::Ipv6Addr};

use http::{
    Uri,
    uri::{Authority, Scheme},
};
use zeroize::Zeroizing;

use crate::url::{
    basic_authorization, has_whole_escapes, host_and_port, port, port_number, without_credentials,
};

/// Longest name of a host (RFC 1035).
const MAX_HOST: usize = 253;

/// A URL with `http` or `https`, a host, and no fragment. Shown without user and query, which may be credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpUrl(Uri);

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

impl HttpUrl {
    /// Checks a URL.
    ///
    /// # Errors
    ///
    /// What the first rule that the text breaks expects. The text is not shown: it may hold credentials.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let after = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"))
            .ok_or(SCHEME)?;
        if !after.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CHARACTER);
        }
        if after.contains('#') {
            return Err(FRAGMENT);
        }
        if !has_whole_escapes(after) {
            return Err(PERCENT);
        }
        let authority = after.split(['/', '?']).next().unwrap_or_default();
        check_authority(authority)?;
        // What is left are characters that no request line may have, and a text that is too long for one.
        text.parse().map(Self).map_err(|_| CHARACTER)
    }

    fn authority_part(&self) -> &Authority {
        self.0.authority().expect("it was checked")
    }

    /// Whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == Some(&Scheme::HTTPS)
    }

    /// Name or address of the host, without brackets.
    pub fn host(&self) -> &str {
        self.authority_part().host().trim_matches(['[', ']'])
    }

    /// The port, or the scheme's.
    pub fn port(&self) -> u16 {
        let default = if self.is_tls() { 443 } else { 80 };
        port(self.authority_part(), default).expect("it was checked")
    }

    /// Host and port as in the header `Host`.
    pub fn authority(&self) -> String {
        host_and_port(self.authority_part()).to_owned()
    }

    /// Path and query, beginning with `/`.
    pub fn path(&self) -> String {
        let path = self.0.path();
        match self.0.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        }
    }

    /// The value of `Authorization` that stands for user and password before the host.
    pub fn basic_authorization(&self) -> Option<Zeroizing<String>> {
        basic_authorization(&self.0).expect("the escapes were checked")
    }
}

fn check_authority(text: &str) -> Result<(), &'static str> {
    if let Some((user, _)) = text.rsplit_once('@')
        && (user.is_empty() || user.contains('@'))
    {
        return Err(USER);
    }
    let authority: Authority = text.parse().map_err(|_| HOST)?;
    let host = authority.host();
    let after = host_and_port(&authority).strip_prefix(host).ok_or(HOST)?;
    match after.strip_prefix(':') {
        _ if !is_host(host) => Err(HOST),
        None if after.is_empty() => Ok(()),
        None => Err(HOST),
        Some(digits) => port_number(digits).map(drop).ok_or(PORT),
    }
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        return address
            .strip_suffix(']')
            .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.len() <= MAX_HOST && host.bytes().all(is_allowed)
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", without_credentials(&self.0), self.0.path())
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
    use crate::url::basic;

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
            ("http://h:80:81/", HOST),
            ("http://fe80::1/", HOST),
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
