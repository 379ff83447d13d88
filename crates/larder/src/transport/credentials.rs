//! Where the server is, who we are, and how both are kept up to date.
//!
//! Tokens travel in every request and are read anew by kube's auth layer. Client certificates and authorities belong to a
//! connection: their files are looked at again before a stream is opened, at most once per interval. When one has
//! changed, the next connection uses the new content; existing connections take no new streams and go on with those
//! that they have, so that no watch is lost.
//!
//! A changed file that cannot be used (half written, key and certificate of different pairs) leaves the last good
//! credentials in place and is tried again at the next look.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use kube::{client::ConfigExt as _, config::Kubeconfig};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use super::SetupError;

/// Where a transport takes server and identity from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A kubeconfig file. Certificates in it or named by it are followed; server, user and token stay as they were.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context to use instead of the file's current one.
        context: Option<String>,
    },
    /// The service account of the pod in which this process runs.
    InCluster,
    /// A configuration made elsewhere. Certificate files that it names are followed.
    Config(Box<kube::Config>),
}

impl Source {
    /// Reads the configuration. Blocks on files.
    pub(super) fn load(&self) -> Result<kube::Config, SetupError> {
        match self {
            Self::Kubeconfig { path, context } => load_kubeconfig(path, context.as_deref())
                .map_err(|source| SetupError::Kubeconfig {
                    path: path.clone(),
                    source,
                }),
            Self::InCluster => kube::Config::incluster().map_err(SetupError::InCluster),
            Self::Config(config) => Ok(config.as_ref().clone()),
        }
    }

    /// Files on which TLS depends.
    fn files(&self, config: &kube::Config) -> Vec<PathBuf> {
        let auth = &config.auth_info;
        let mut files: Vec<PathBuf> = [&auth.client_certificate, &auth.client_key]
            .into_iter()
            .flatten()
            .map(PathBuf::from)
            .collect();
        if let Self::Kubeconfig { path, context } = self {
            files.extend(authority_file(path, context.as_deref()));
            files.push(path.clone());
        }
        files
    }
}

fn load_kubeconfig(
    path: &Path,
    context: Option<&str>,
) -> Result<kube::Config, kube::config::KubeconfigError> {
    let kubeconfig = read_kubeconfig(path, context)?;
    let proxy = cluster(&kubeconfig).and_then(|cluster| cluster.proxy_url.clone());
    let mut config = kube::Config::try_from(kubeconfig)?;
    // kube also takes the proxy of the environment, and that without regard to NO_PROXY.
    if proxy.is_none_or(|url| url.is_empty()) && config.proxy_url.take().is_some() {
        tracing::debug!("HTTPS_PROXY is not used for the API server");
    }
    Ok(config)
}

fn read_kubeconfig(
    path: &Path,
    context: Option<&str>,
) -> Result<Kubeconfig, kube::config::KubeconfigError> {
    let mut kubeconfig = Kubeconfig::read_from(path)?;
    if let Some(context) = context {
        kubeconfig.current_context = Some(context.to_owned());
    }
    Ok(kubeconfig)
}

fn cluster(kubeconfig: &Kubeconfig) -> Option<&kube::config::Cluster> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig
        .contexts
        .iter()
        .find(|context| context.name == *current)?
        .context
        .as_ref()?;
    kubeconfig
        .clusters
        .iter()
        .find(|cluster| cluster.name == context.cluster)?
        .cluster
        .as_ref()
}

fn authority_file(path: &Path, context: Option<&str>) -> Option<PathBuf> {
    let kubeconfig = read_kubeconfig(path, context).ok()?;
    let cluster = cluster(&kubeconfig)?;
    match &cluster.certificate_authority_data {
        Some(_) => None,
        None => cluster.certificate_authority.as_ref().map(PathBuf::from),
    }
}

/// Host, port and scheme of the server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// `HOST:PORT`, for errors and logs.
    pub(super) name: Arc<str>,
    pub(super) host: String,
    pub(super) port: u16,
    /// The name to verify, when TLS is spoken.
    pub(super) tls_name: Option<ServerName<'static>>,
}

impl Server {
    pub(super) fn of(config: &kube::Config) -> Result<Self, SetupError> {
        if let Some(url) = &config.proxy_url {
            return Err(SetupError::Proxy {
                url: without_credentials(url),
            });
        }
        let invalid = || SetupError::Url {
            url: without_credentials(&config.cluster_url),
        };
        let url = &config.cluster_url;
        let host = url.host().ok_or_else(invalid)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let (tls, default_port) = match url.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(invalid()),
        };
        let port = url.port_u16().unwrap_or(default_port);
        let tls_name = if tls {
            let name = config.tls_server_name.as_deref().unwrap_or(host);
            let server_name =
                ServerName::try_from(name.to_owned()).map_err(|source| SetupError::ServerName {
                    name: name.to_owned(),
                    source,
                })?;
            Some(server_name)
        } else {
            None
        };
        Ok(Self {
            name: format!("{}:{port}", url.host().unwrap_or(host)).into(),
            host: host.to_owned(),
            port,
            tls_name,
        })
    }
}

/// The URL without the `user:password@` that a proxy's may carry.
fn without_credentials(url: &http::Uri) -> String {
    match url.authority() {
        Some(authority) => format!(
            "{}://{}",
            url.scheme_str().unwrap_or_default(),
            authority.as_str().rsplit('@').next().unwrap_or_default()
        ),
        None => url.to_string(),
    }
}

/// The TLS side of the credentials.
#[derive(Debug)]
pub(super) struct Credentials {
    source: Source,
    /// An exec plugin gave the client certificate. It has no file to watch, so the plugin is asked again when the server
    /// has answered 401.
    from_plugin: bool,
    /// Held during a look, so that two never run at once.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tls: Arc<ClientConfig>,
    files: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
}

/// What a look at the files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Unchanged,
    /// New content, in use from now on.
    Renewed,
    /// Something changed, but cannot be used.
    Failed,
}

/// Tells one content of a file from the next, also when a link is flipped or the file replaced within one clock tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            inode: metadata.ino(),
        })
    }
}

impl Credentials {
    /// Loads the credentials of `config`, which came from `source`. Blocks on files and on an exec plugin.
    pub(super) fn load(source: Source, config: &kube::Config) -> Result<Self, SetupError> {
        let files = source.files(config);
        let stamps = stamps(&files);
        let tls = tls_config(config)?;
        let from_plugin = config.auth_info.exec.is_some()
            && config.auth_info.client_certificate.is_none()
            && config.auth_info.client_certificate_data.is_none()
            && tls.client_auth_cert_resolver.has_certs();
        Ok(Self {
            source,
            from_plugin,
            state: Mutex::new(State {
                tls: Arc::new(tls),
                files,
                stamps,
            }),
        })
    }

    /// Whether there is anything that a look could find.
    pub(super) fn can_change(&self) -> bool {
        self.from_plugin || !self.state.lock().files.is_empty()
    }

    /// The configuration for the next connection.
    pub(super) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.state.lock().tls)
    }

    /// Looks at the files and loads them again if they have changed; `unauthorized` says that the server has answered
    /// 401 since the last look. Blocks.
    pub(super) fn look(&self, unauthorized: bool) -> Look {
        let mut state = self.state.lock();
        // Taken before the files are read: a change in between is seen at the next look.
        let stamps = stamps(&state.files);
        if stamps == state.stamps && !(self.from_plugin && unauthorized) {
            return Look::Unchanged;
        }
        match self.reload() {
            Ok((tls, files)) => {
                *state = State {
                    stamps: if files == state.files {
                        stamps
                    } else {
                        self::stamps(&files)
                    },
                    tls: Arc::new(tls),
                    files,
                };
                tracing::info!("credentials for the API server renewed");
                Look::Renewed
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to reload credentials for the API server, keeping the last ones"
                );
                Look::Failed
            }
        }
    }

    fn reload(&self) -> Result<(ClientConfig, Vec<PathBuf>), SetupError> {
        let mut config = self.source.load()?;
        if !self.from_plugin {
            // The plugin gives a token, which the auth layer renews; it has nothing to say about TLS.
            config.auth_info.exec = None;
        }
        Ok((tls_config(&config)?, self.source.files(&config)))
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|path| Stamp::of(path)).collect()
}

fn tls_config(config: &kube::Config) -> Result<ClientConfig, SetupError> {
    let mut tls = config.rustls_client_config().map_err(SetupError::Tls)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}
