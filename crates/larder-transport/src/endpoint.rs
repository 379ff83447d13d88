//! The address of the API server, and the way to it.

use std::sync::Arc;

use http::uri::Authority;
use rustls_pki_types::ServerName;

use crate::{
    SetupError,
    credentials::{Settings, environment, without_credentials},
    proxy::Proxy,
};

/// Host, port and scheme of the API server.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// `HOST:PORT`, for errors and logs.
    pub(crate) name: Arc<str>,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The name to verify, over TLS.
    pub(crate) tls_name: Option<ServerName<'static>>,
    /// The proxy on the way, if there is one.
    pub(crate) proxy: Option<Proxy>,
}

impl Endpoint {
    /// The API server of `settings`.
    ///
    /// # Errors
    ///
    /// The URL of the API server or of a proxy is unsupported.
    pub(crate) fn new(settings: &Settings) -> Result<Self, SetupError> {
        let url = &settings.server;
        let proxy = match &settings.proxy {
            Some(url) => Some(Proxy::new(url)?),
            None if settings.environment_proxy => Proxy::of_environment(url, &environment)?,
            None => None,
        };
        let unsupported = || SetupError::Url {
            url: without_credentials(url),
        };
        let host = url.host().ok_or_else(unsupported)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let (tls, default_port) = match url.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(unsupported()),
        };
        let port = url.authority().and_then(|found| port(found, default_port));
        let port = port.ok_or_else(|| SetupError::Port {
            url: without_credentials(url),
        })?;
        let tls_name = if tls {
            let name = settings.tls_server_name.as_deref().unwrap_or(host);
            let name = ServerName::try_from(name.to_owned());
            Some(name.map_err(|_| SetupError::ServerName)?)
        } else {
            None
        };
        Ok(Self {
            name: format!("{}:{port}", url.host().unwrap_or(host)).into(),
            host: host.to_owned(),
            port,
            tls_name,
            proxy,
        })
    }
}

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
}
