//! Single requests over HTTP/1.1, as Go's default client sends them. For the crates of this workspace.
//!
//! Each request has a connection of its own. `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` apply, by the rules of
//! `proxy`. A proxy gets the whole request to an `http://` server; to an `https://` server it opens a
//! tunnel. Redirects are the caller's.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};
use hyper::client::conn::TrySendError;
use larder_net::{http1, io::Received, url::host_and_port};
use rustls::ClientConfig;
use tokio::task::JoinSet;
use tower::BoxError;

use crate::{
    Config, SetupError,
    credentials::{environment, system_tls},
    dial::{first_hop, tunnel},
    endpoint::Endpoint,
    proxy::Proxy,
};

type ReadVariable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Sends requests without a body.
#[derive(Clone)]
pub struct HttpClient {
    tls: Arc<ClientConfig>,
    environment: Arc<ReadVariable>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpClient {
    /// A client that trusts what the system trusts. Blocks on files.
    ///
    /// # Errors
    ///
    /// The system trusts no authority.
    pub fn new() -> Result<Self, SetupError> {
        Self::with_environment(Arc::new(environment))
    }

    fn with_environment(environment: Arc<ReadVariable>) -> Result<Self, SetupError> {
        let mut tls = system_tls()?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            tls: Arc::new(tls),
            environment,
        })
    }

    /// Sends a request with an absolute URL, whose user and password it ignores.
    ///
    /// # Errors
    ///
    /// The URL or the proxy is unsupported, or no response came.
    pub async fn send(
        &self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError> {
        let (mut head, body) = request.into_parts();
        let proxy = Proxy::of_environment(&head.uri, &*self.environment)?;
        let server = Endpoint::of(&head.uri, None, proxy)?;
        let authority = head.uri.authority().map_or("", host_and_port);
        let path = head
            .uri
            .path_and_query()
            .map_or("/", PathAndQuery::as_str)
            .to_owned();
        let host = HeaderValue::try_from(authority)?;
        let mut target = path.parse::<Uri>()?;
        let config = Config::default();
        let stream = if let (None, Some(proxy)) = (&server.tls_name, &server.proxy) {
            target = format!("http://{authority}{path}").parse()?;
            if let Some(authorization) = &proxy.authorization {
                let mut value = HeaderValue::try_from(authorization.as_str())?;
                value.set_sensitive(true);
                head.headers.insert(header::PROXY_AUTHORIZATION, value);
            }
            first_hop(&server, &config).await?
        } else {
            tunnel(&server, Arc::clone(&self.tls), &config).await?.0
        };
        head.uri = target;
        head.headers.entry(header::HOST).or_insert(host);
        let (mut sender, connection) = http1::handshake(stream, Received::default()).await?;
        // The connection lives as long as the body of the response.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let response = sender
            .send(Request::from_parts(head, body))
            .await
            .map_err(TrySendError::into_error)?;
        Ok(response.map(|body| {
            let bytes = body.map_frame(move |frame| {
                let _ = &driver;
                frame
            });
            bytes.map_err(BoxError::from).boxed_unsync()
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::TcpListener,
    };

    use super::*;

    /// A server or proxy that answers one request with `answer`; its address, and the head that it gets.
    async fn peer(answer: &'static str) -> (SocketAddr, JoinSet<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(stream.read_line(&mut head).await.unwrap(), 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            head
        });
        (address, task)
    }

    fn client(variables: &[(&str, String)]) -> HttpClient {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let environment = move |name: &str| {
            let mut all = variables.iter();
            all.find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        HttpClient::with_environment(Arc::new(environment)).unwrap()
    }

    async fn get(client: &HttpClient, url: &str) -> Result<String, String> {
        let request = Request::get(url).body(Empty::new()).unwrap();
        let response = client.send(request).await;
        let response = response.map_err(|error| larder_objects::chain(&*error))?;
        let body = response.into_body().collect().await.unwrap();
        Ok(String::from_utf8(body.to_bytes().to_vec()).unwrap())
    }

    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npods";

    #[tokio::test]
    async fn proxy_of_the_environment_gets_the_whole_request() {
        let (address, mut task) = peer(ANSWER).await;
        let client = client(&[("HTTP_PROXY", format!("http://u:p@{address}"))]);
        let got = get(&client, "http://user:secret@pods.example/m?a=b").await;
        assert_eq!(got.as_deref(), Ok("pods"));
        let head = task.join_next().await.unwrap().unwrap().to_lowercase();
        assert!(
            head.starts_with("get http://pods.example/m?a=b http/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains("\r\nhost: pods.example\r\n"), "{head}");
        assert!(
            head.contains("\r\nproxy-authorization: basic dtpw\r\n"),
            "{head}"
        );
        assert!(!head.contains("secret"), "{head}");
    }

    #[tokio::test]
    async fn proxy_tunnels_to_a_server_with_tls() {
        let (address, mut task) = peer("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        let client = client(&[("HTTPS_PROXY", address.to_string())]);
        let error = get(&client, "https://pods.example/m").await.unwrap_err();
        let refused = format!("proxy {address} refused the connection with status 407");
        assert_eq!(error, refused);
        let head = task.join_next().await.unwrap().unwrap();
        assert!(
            head.starts_with("CONNECT pods.example:443 HTTP/1.1\r\n"),
            "{head}"
        );
    }

    #[tokio::test]
    async fn excepted_server_is_asked_directly() {
        let (address, mut task) = peer(ANSWER).await;
        // The loopback is never reached through a proxy.
        let client = client(&[("HTTP_PROXY", "http://127.0.0.1:1".to_owned())]);
        let got = get(&client, &format!("http://{address}/m")).await;
        assert_eq!(got.as_deref(), Ok("pods"));
        let head = task.join_next().await.unwrap().unwrap();
        assert!(head.starts_with("GET /m HTTP/1.1\r\n"), "{head}");
        let client = super::tests::client(&[
            ("HTTP_PROXY", "http://127.0.0.1:1".to_owned()),
            ("NO_PROXY", "192.0.2.0/24".to_owned()),
        ]);
        let error = get(&client, "http://pods.example/m").await.unwrap_err();
        assert!(error.contains("127.0.0.1:1"), "{error}");
    }
}
