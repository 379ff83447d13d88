//! HTTP requests of hooks: target, content, and the condition for success.

use std::fmt;

use larder_net::http_url::HttpUrl;
use smol_str::SmolStr;

/// An HTTP request.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpCall {
    /// Where to.
    pub target: HttpTarget,
    /// `GET`, `PUT` or `POST`.
    pub method: &'static str,
    /// Further headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body, up to 64 KiB.
    pub body: String,
    /// The status codes that count as success, as inclusive ranges.
    pub expect: Vec<(u16, u16)>,
    /// Files of the pod's volumes with credentials.
    pub auth: Option<HttpAuth>,
    /// How a server's certificate is verified.
    pub tls: HttpTls,
}

impl HttpCall {
    /// A `POST` without content, for which any 2xx is success.
    pub fn post(target: HttpTarget) -> Self {
        Self {
            target,
            method: "POST",
            headers: Vec::new(),
            body: String::new(),
            expect: vec![(200, 299)],
            auth: None,
            tls: HttpTls::default(),
        }
    }

    /// Whether an answer with this status is a success.
    pub fn is_expected(&self, status: u16) -> bool {
        self.expect
            .iter()
            .any(|(low, high)| (*low..=*high).contains(&status))
    }
}

/// Bodies, headers and queries may hold credentials, so they are not shown (rule S6).
impl fmt::Debug for HttpCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpCall")
            .field("target", &self.target)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// The target of an HTTP request.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum HttpTarget {
    /// A port of the pod itself: an annotation can name no other host (rule S5).
    Pod {
        /// The port.
        port: Port,
        /// The path, beginning with `/`, and perhaps a query.
        path: String,
        /// Whether TLS is spoken.
        tls: bool,
    },
    /// Any URL, `http` or `https`.
    Url(HttpUrl),
}

/// The target without user and query, as logs may show it (rule S6).
impl fmt::Display for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { port, path, .. } => {
                write!(f, "{port}{}", path.split('?').next().unwrap_or_default())
            }
            Self::Url(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// By number.
    Number(u16),
    /// By the name that a container gives it.
    Name(String),
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Files of the pod's own volumes that hold credentials; they are read for each request (rule H7).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HttpAuth {
    /// User and password, for basic authentication.
    Basic {
        /// The volume.
        volume: SmolStr,
        /// Path of the file with the user's name.
        username: String,
        /// Path of the file with the password.
        password: String,
    },
    /// A bearer token.
    Bearer {
        /// The volume.
        volume: SmolStr,
        /// Path of the file with the token.
        path: String,
    },
}

/// How a server's certificate is verified (rule H5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpTls {
    /// File with the authorities; `None` for the system's.
    pub ca: Option<String>,
    /// Name that the certificate must have; `None` for the host's.
    pub server_name: Option<String>,
    /// Accept any certificate.
    pub insecure_skip_verify: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    // on-change 53
    #[test]
    fn shown_urls_have_neither_user_nor_query() {
        let url = HttpUrl::parse("https://user:canary@host:9/-/reload?token=canary").unwrap();
        let url = HttpTarget::Url(url);
        assert_eq!(url.to_string(), "https://host:9/-/reload");
        assert_eq!(format!("{url:?}"), "https://host:9/-/reload");
        let path = "/-/reload?token=canary".into();
        let pod = HttpTarget::Pod {
            port: Port::Number(9090),
            path,
            tls: false,
        };
        assert_eq!(format!("{pod:?}"), "9090/-/reload");
    }
}
