//! A client on the transport, with the helpers that tests need.

use std::{fs, future::Future, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::ByteString;
use kube::client::Body;
use larder_transport::{
    ClusterSource, Config, ConnectionStatus, Link, Metrics, RateLimit, Transport,
};
use prometheus_client::registry::Registry;
use serde_json::json;
use tempfile::TempDir;

/// A client and its transport, with the helpers that tests need.
pub(crate) struct Client {
    pub(crate) kube: kube::Client,
    pub(crate) transport: Transport,
    registry: Registry,
    /// Has the kubeconfig.
    _directory: Option<TempDir>,
}

/// A kubeconfig with server, trust, proxy and user of `kube`, in a directory of its own.
pub(crate) fn kubeconfig(kube: &kube::Config) -> (TempDir, ClusterSource) {
    let base64 = |bytes: &[u8]| serde_json::to_value(ByteString(bytes.to_vec())).unwrap();
    let pem = |der: &Vec<u8>| {
        let body = base64(der);
        let body = body.as_str().unwrap();
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    };
    let authorities = kube.root_cert.as_ref();
    let authorities = authorities.map(|all| all.iter().map(pem).collect::<String>());
    let text = json!({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": kube.cluster_url.to_string(),
            "certificate-authority-data": authorities.map(|pem| base64(pem.as_bytes())),
            "insecure-skip-tls-verify": kube.accept_invalid_certs,
            "tls-server-name": kube.tls_server_name,
            "proxy-url": kube.proxy_url.as_ref().map(ToString::to_string),
        }}],
        "users": [{"name": "u", "user": kube.auth_info}],
    });
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("kubeconfig");
    fs::write(&path, text.to_string()).unwrap();
    let context = None;
    (directory, ClusterSource::Kubeconfig { path, context })
}

impl Client {
    /// With a kubeconfig that says the same as `kube`.
    pub(crate) async fn new(kube: kube::Config, config: Config) -> Self {
        let (directory, source) = kubeconfig(&kube);
        let client = Self::from(source, config).await;
        Self {
            _directory: Some(directory),
            ..client
        }
    }

    pub(crate) async fn from(source: ClusterSource, config: Config) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let connected = larder_transport::connect(source, config, metrics);
        let (kube, transport) = connected.await.unwrap();
        Self {
            kube,
            transport,
            registry,
            _directory: None,
        }
    }

    /// The value of a metric, as it is exported.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name} in:\n{text}"));
        value.trim().parse().unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Response<Body>, kube::Error> {
        let request = Request::get(path).body(Body::empty()).unwrap();
        within(self.kube.send(request)).await
    }

    /// Opens a watch and waits for its first line.
    pub(crate) async fn watch(&self, name: &str) -> Watch {
        let response = self.get(&format!("/{name}?watch=true")).await.unwrap();
        let mut watch = Watch::of(response);
        assert_eq!(watch.next().await.unwrap(), "open\n");
        watch
    }

    /// Waits until the connections are as `wanted` says. Tasks of this process cause every change, so yielding
    /// suffices.
    pub(crate) async fn until(
        &self,
        wanted: impl Fn(&[ConnectionStatus]) -> bool,
    ) -> Vec<ConnectionStatus> {
        within(async {
            loop {
                let connections = self.transport.connections();
                if wanted(&connections) {
                    return connections;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    pub(crate) fn streams(&self) -> Vec<usize> {
        let connections = self.transport.connections();
        connections.iter().map(|c| c.streams).collect()
    }
}

pub(crate) struct Watch {
    body: Body,
    pub(crate) link: Link,
}

impl Watch {
    pub(crate) fn of(mut response: Response<Body>) -> Self {
        let link = response.extensions_mut().remove().unwrap();
        let body = response.into_body();
        Self { body, link }
    }

    /// The next piece; an error if the stream broke.
    pub(crate) async fn next(&mut self) -> Result<Bytes, String> {
        match within(self.body.frame()).await {
            Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
            Some(Err(error)) => Err(chain(&error)),
            None => Err("end of stream".to_owned()),
        }
    }
}

/// An error with all its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Fails a test that would hang. A passing test never waits this long, even on the slowest machine.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future)
        .await
        .expect("still waiting after a minute")
}

/// No rate limit, so that requests wait only for what a test scripts.
pub(crate) fn config() -> Config {
    Config::default().rate_limit(RateLimit::Unlimited)
}
