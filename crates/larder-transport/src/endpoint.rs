//! The address of a server, and the way to it.

use std::sync::Arc;

use http::Uri;
use larder_net::url::{port, without_credentials};
use rustls_pki_types::ServerName;

use crate::{
    credentials::{Settings, environment},
    proxy::Proxy,
    setup_error::SetupError,
};

/// Host, port and scheme of a server.
#[derive(Clone)]
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
            None => Proxy::of_environment(url, &environment)?,
        };
        Self::of(url, settings.tls_server_name.as_deref(), proxy)
    }

    /// The server at `url`, with another name in TLS if that is given.
    ///
    /// # Errors
    ///
    /// The URL is unsupported.
    pub(crate) fn of(
        url: &Uri,
        tls_server_name: Option<&str>,
        proxy: Option<Proxy>,
    ) -> Result<Self, SetupError> {
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
        let port = url
            .authority()
            .and_then(|found| port(found, default_port))
            .ok_or_else(|| SetupError::Port {
                url: without_credentials(url),
            })?;
        let tls_name = if tls {
            let name = tls_server_name.unwrap_or(host);
            Some(ServerName::try_from(name.to_owned()).map_err(|_| SetupError::ServerName)?)
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
