//! Errors of requests, as text without user, query and content of a response.

use std::{io, net::IpAddr};

use super::RequestProgress;

/// Why a request failed. The caller adds the target.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("no container has a port of this name")]
    UnknownPort,
    #[error("the pod has no address yet")]
    NoAddress,
    #[error("{0} is not the address of a pod")]
    RefusedAddress(IpAddr),
    #[error("{0} is stated in a manifest, and no network in onChangeAllowedNetworks has it")]
    StatedAddress(IpAddr),
    #[error("{0} is an address of this machine, whose network the pod does not use")]
    OwnAddress(IpAddr),
    #[error(
        "a pod with hostNetwork has no address that a hook may call by its port: put the hook into the agent's \
         configuration, with url: http://127.0.0.1:{0}/PATH"
    )]
    HostNetwork(u16),
    #[error("{0} is link-local, or of a metadata service")]
    LinkLocal(IpAddr),
    #[error("{0} is a loopback address, which nothing in LARDER_URL_CREDENTIALS allows")]
    Loopback(IpAddr),
    #[error("cannot store the content")]
    Store(#[source] io::Error),
    #[error("more than {0} bytes")]
    TooLong(usize),
    #[error("not a URL")]
    Url,
    #[error("not a header")]
    Header,
    #[error("the credentials hold characters that no header may have")]
    Credentials,
    #[error("cannot read {path} of volume {volume}")]
    File {
        volume: String,
        path: String,
        source: io::Error,
    },
    #[error("no CA certificates in {path}")]
    NoCaCertificates { path: String },
    #[error("cannot read {path}")]
    CaCertificates { path: String, source: io::Error },
    #[error("no system CA certificates found")]
    NoSystemCaCertificates,
    #[error("invalid server name {name:?}")]
    ServerName { name: String },
    #[error("cannot resolve the host")]
    Lookup(#[source] io::Error),
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("TLS failed")]
    Tls(#[source] io::Error),
    #[error("no answer")]
    Exchange(#[source] hyper::Error),
    #[error("answered {0}{note}", note = note(*.0))]
    Status(u16),
}

impl HttpError {
    pub(super) fn progress(&self) -> RequestProgress {
        match self {
            Self::Status(status) => RequestProgress::Answered(*status),
            Self::Exchange(_) => RequestProgress::Unanswered,
            _ => RequestProgress::Unsent,
        }
    }
}

fn note(status: u16) -> &'static str {
    if (300..400).contains(&status) {
        "; redirects are not followed"
    } else {
        ""
    }
}
