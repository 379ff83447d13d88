//! The HTTP proxy on the way to a server, if there is one.
//!
//! A kubeconfig's `proxy-url` is always used. Without it, `HTTPS_PROXY` (for a server at `https://`) or `HTTP_PROXY`
//! applies, unless `NO_PROXY` names the server. Each variable may be in lower case. The rules are those of Go programs
//! such as kubectl and kubelet (`golang.org/x/net/http/httpproxy`): the loopback is never reached through a proxy.
//!
//! The proxy opens a tunnel (CONNECT). TLS is end to end with the API server, so the proxy sees no request.
//!
//! Invariant: user and password of the proxy's URL reach no log and no error, even if the proxy repeats them.

use std::net::IpAddr;

use http::Uri;
use larder_net::url::{basic_authorization, port, without_credentials};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::{error::ConnectError, setup_error::SetupError};

/// Reads a variable of the environment.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Longest head of a proxy's answer, in bytes.
const MAX_ANSWER_BYTES: usize = 16 << 10;

/// An HTTP proxy.
#[derive(Clone)]
pub(super) struct Proxy {
    pub(super) host: String,
    pub(super) port: u16,
    /// Value of `Proxy-Authorization`.
    pub(super) authorization: Option<Zeroizing<String>>,
}

impl Proxy {
    /// The proxy at a URL.
    ///
    /// # Errors
    ///
    /// It is not `http://HOST`. SOCKS and TLS to the proxy are not supported.
    pub(super) fn new(url: &Uri) -> Result<Self, SetupError> {
        let refused = || SetupError::Proxy {
            url: without_credentials(url),
        };
        let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(refused());
        };
        let authorization = basic_authorization(url).map_err(|_| refused())?;
        let host = authority.host();
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port(authority, 80).ok_or_else(refused)?,
            authorization,
        })
    }

    /// The proxy from the environment for a server, if any.
    ///
    /// # Errors
    ///
    /// It is not supported.
    pub(super) fn of_environment(
        server: &Uri,
        environment: Environment<'_>,
    ) -> Result<Option<Self>, SetupError> {
        let either = |upper: &str| {
            let set = |name: &str| environment(name).filter(|value| !value.is_empty());
            set(upper).or_else(|| set(&upper.to_lowercase()))
        };
        let (variable, default_port) = match server.scheme_str() {
            Some("https") => ("HTTPS_PROXY", 443),
            _ => ("HTTP_PROXY", 80),
        };
        let Some(text) = either(variable) else {
            return Ok(None);
        };
        let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = server
            .authority()
            .and_then(|found| port(found, default_port))
            .unwrap_or(default_port);
        let exceptions = either("NO_PROXY").unwrap_or_default();
        if is_excepted(host, port, &exceptions) {
            return Ok(None);
        }
        let unreadable = |_| SetupError::Proxy {
            url: format!("of {variable}"),
        };
        let url: Uri = if text.contains("://") {
            text.parse().map_err(unreadable)?
        } else {
            format!("http://{text}").parse().map_err(unreadable)?
        };
        Self::new(&url).map(Some)
    }

    /// Opens a tunnel to `HOST:PORT` on a new connection to the proxy.
    ///
    /// # Errors
    ///
    /// The proxy refuses, breaks off or does not speak HTTP.
    pub(super) async fn tunnel(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        target: &str,
    ) -> Result<(), ConnectError> {
        let failed = |source| ConnectError::ProxyBroke {
            proxy: format!("{}:{}", self.host, self.port),
            source,
        };
        let authorization = self.authorization.as_ref().map_or(String::new(), |value| {
            format!("Proxy-Authorization: {}\r\n", value.as_str())
        });
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        // Byte by byte: the bytes after the head belong to the API server.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_ANSWER_BYTES {
                return Err(failed(std::io::ErrorKind::InvalidData.into()));
            }
            head.push(stream.read_u8().await.map_err(failed)?);
        }
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        // The words after the code may repeat what the proxy was sent.
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| {
            let code = rest.get(2..5)?.parse::<u16>().ok()?;
            (100..=999).contains(&code).then_some(code)
        });
        match status {
            Some(200..=299) => Ok(()),
            Some(status) => Err(ConnectError::ProxyRefused {
                proxy: format!("{}:{}", self.host, self.port),
                status,
            }),
            None => Err(failed(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "it does not speak HTTP",
            ))),
        }
    }
}

/// Whether `exceptions`, the value of `NO_PROXY`, cover the server. The loopback is always covered.
fn is_excepted(host: &str, port: u16, exceptions: &str) -> bool {
    let host = host.trim_end_matches('.').to_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    exceptions
        .split(',')
        .map(|entry| entry.trim().to_lowercase())
        .any(|entry| {
            if entry == "*" {
                return true;
            }
            if let Some(prefix) = entry.split_once('/') {
                return address.is_some_and(|address| is_within(address, prefix));
            }
            let (name, only_port) = match entry.rsplit_once(':') {
                // An IPv6 address has colons, and brackets if a port follows.
                Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                    (name, Some(port))
                }
                _ => (entry.as_str(), None),
            };
            if name.is_empty() || only_port.is_some_and(|only| only != port.to_string()) {
                return false;
            }
            let name = name.trim_start_matches('[').trim_end_matches(']');
            if let Ok(excepted) = name.parse::<IpAddr>() {
                return address == Some(excepted);
            }
            // `.x` and `*.x` cover subdomains of x; `x` covers x as well.
            let (domain, itself) = match name.strip_prefix('*').unwrap_or(name).strip_prefix('.') {
                Some(domain) => (domain, false),
                None => (name, true),
            };
            let below = host
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.'));
            below || (itself && host == domain)
        })
}

/// Whether the address belongs to the network, given as address and number of leading bits.
fn is_within(address: IpAddr, (network, bits): (&str, &str)) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    // Of either kind: the address as a number, and its length in bits.
    let number = |address| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let ((address, length), (network, expected)) = (number(address), number(network));
    let differing = address ^ network;
    let is_shared = |shift| differing.checked_shr(shift).unwrap_or(0) == 0;
    length == expected && u32::checked_sub(length, bits).is_some_and(is_shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(server: &str, variables: &[(&str, &str)]) -> Option<String> {
        let environment = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let proxy = Proxy::of_environment(&server.parse().unwrap(), &environment).unwrap();
        proxy.map(|proxy| format!("{}:{}", proxy.host, proxy.port))
    }

    #[test]
    fn the_servers_scheme_selects_the_variable() {
        let both = [("HTTPS_PROXY", "http://s:3128"), ("http_proxy", "p")];
        assert_eq!(of("https://k8s:6443", &both).unwrap(), "s:3128");
        assert_eq!(of("http://k8s:8080", &both).unwrap(), "p:80");
        assert_eq!(of("https://k8s", &[("HTTP_PROXY", "p")]), None);
        assert_eq!(
            of(
                "https://k8s",
                &[("HTTPS_PROXY", ""), ("https_proxy", "q:1")]
            )
            .unwrap(),
            "q:1"
        );
        for loopback in [
            "https://localhost:6443",
            "https://127.0.0.1",
            "https://[::1]:6443",
        ] {
            assert_eq!(of(loopback, &both), None, "{loopback}");
        }
    }

    #[test]
    fn no_proxy_follows_go() {
        for (entry, host, expected) in [
            ("*", "a.b", true),
            ("b.com", "b.com", true),
            ("b.com", "a.b.com", true),
            ("b.com", "ab.com", false),
            (".b.com", "b.com", false),
            (".b.com", "a.b.com", true),
            ("*.b.com", "a.b.com", true),
            ("*.b.com", "b.com", false),
            ("x, B.COM ,y", "A.b.com", true),
            ("b.com:6443", "b.com", true),
            ("b.com:443", "b.com", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3:6443", "10.1.2.3", true),
            ("10.1.2.3:1", "10.1.2.3", false),
            ("fd00::/8", "fd00::1", true),
            ("[fd00::1]:6443", "fd00::1", true),
            ("fd00::1", "fd00::1", true),
            (":6443", "a.b", false),
            ("", "a.b", false),
        ] {
            assert_eq!(
                is_excepted(host, 6443, entry),
                expected,
                "{entry} and {host}"
            );
        }
    }

    #[test]
    fn credentials_of_a_proxy_are_sent_and_never_shown() {
        let url: Uri = "http://us%65r:p%40ss@proxy:3128".parse().unwrap();
        let proxy = Proxy::new(&url).unwrap();
        let sent = proxy.authorization.as_ref().map(|value| value.as_str());
        assert_eq!(sent, Some("Basic dXNlcjpwQHNz"));
        for url in ["socks5://u:secret@proxy:1080", "https://u:secret@proxy"] {
            let error = Proxy::new(&url.parse().unwrap()).err().unwrap().to_string();
            let scheme = url.split(':').next().unwrap();
            assert!(
                error.contains(scheme) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
