//! Where the server is, who we are, and how both are kept up to date.
//!
//! Files are looked at again before a stream is opened, at most once per interval, and soon after an answer 401. The token of a
//! file travels in every request; the next one has the new content. Client certificates and authorities belong to a
//! connection: when one has changed, the next connection uses it; existing connections take no new streams and go on
//! with those that they have, so that no watch is lost. (Tokens of exec plugins are renewed by kube's auth layer.)
//!
//! A changed file that cannot be used (half written, key and certificate of different pairs) leaves the last good
//! credentials in place and is tried again at the next look.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use http::HeaderValue;
use kube::{
    client::ConfigExt as _,
    config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext},
};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use super::{
    SetupError,
    proxy::{Environment, Proxy},
};

/// Where a pod's service account is mounted.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

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
    /// The service account of the pod in which this process runs: the token and `ca.crt` that are mounted there, which are
    /// followed, and the address in `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    InCluster,
    /// A service account whose `token`, `ca.crt` and `namespace` are in a directory as the kubelet mounts them, where they are
    /// followed, for the API server at that URL.
    ServiceAccount {
        /// Where the files are.
        directory: PathBuf,
        /// `https://HOST:PORT`.
        server: String,
    },
    /// A configuration made elsewhere. Files with certificates and with a token that it names are followed. Its proxy is used, and
    /// not one of the environment.
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
            Self::InCluster => in_cluster(Path::new(SERVICE_ACCOUNT), &environment),
            Self::ServiceAccount { directory, server } => service_account(directory, server),
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
            .chain(config.root_cert_file.clone())
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
    if proxy.is_none_or(|url| url.is_empty()) {
        config.proxy_url = None;
    }
    Ok(config)
}

/// A variable of the environment.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The configuration of a pod, whose service account is mounted at `directory`.
fn in_cluster(directory: &Path, environment: Environment<'_>) -> Result<kube::Config, SetupError> {
    let set = |variable| {
        let value = environment(variable).filter(|value| !value.is_empty());
        value.ok_or(SetupError::NotInCluster { variable })
    };
    let (host, port) = (
        set("KUBERNETES_SERVICE_HOST")?,
        set("KUBERNETES_SERVICE_PORT")?,
    );
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    service_account(directory, &format!("https://{host}:{port}"))
}

/// The configuration of the service account that is mounted at `directory`.
fn service_account(directory: &Path, server: &str) -> Result<kube::Config, SetupError> {
    let file = |name| directory.join(name).to_string_lossy().into_owned();
    let namespace = fs::read_to_string(file("namespace")).ok();
    let config = Kubeconfig {
        clusters: vec![NamedCluster {
            name: String::new(),
            cluster: Some(Cluster {
                server: Some(server.to_owned()),
                certificate_authority: Some(file("ca.crt")),
                ..Cluster::default()
            }),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: String::new(),
            auth_info: Some(AuthInfo {
                token_file: Some(file("token")),
                ..AuthInfo::default()
            }),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: String::new(),
            context: Some(Context {
                namespace: namespace.map(|namespace| namespace.trim().to_owned()),
                user: Some(String::new()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        current_context: Some(String::new()),
        ..Kubeconfig::default()
    };
    let mut config = kube::Config::try_from(config).map_err(SetupError::InCluster)?;
    config.root_cert_file = Some(directory.join("ca.crt"));
    config.proxy_url = None;
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
    /// What the connections lead through.
    pub(super) proxy: Option<Proxy>,
}

impl Server {
    /// The server of `config`, which came from `source`.
    pub(super) fn of(config: &kube::Config, source: &Source) -> Result<Self, SetupError> {
        let proxy = match (&config.proxy_url, source) {
            (Some(url), _) => Some(Proxy::new(url)?),
            (None, Source::Config(_)) => None,
            (None, _) => Proxy::of_environment(&config.cluster_url, &environment)?,
        };
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
            proxy,
        })
    }
}

/// The URL without the `user:password@` that a proxy's may carry.
pub(super) fn without_credentials(url: &http::Uri) -> String {
    match url.authority() {
        Some(authority) => format!(
            "{}://{}",
            url.scheme_str().unwrap_or_default(),
            authority.as_str().rsplit('@').next().unwrap_or_default()
        ),
        None => url.to_string(),
    }
}

/// Who we are, and whom we trust.
#[derive(Debug)]
pub(super) struct Credentials {
    source: Source,
    /// An exec plugin gave the client certificate. It has no file to watch, so the plugin is asked again when the server
    /// has answered 401.
    from_plugin: bool,
    /// What is shown to the server, for errors.
    shown: Arc<str>,
    /// Why the last look could not take what it found.
    problem: Mutex<Option<Arc<SetupError>>>,
    /// Held during a look, so that two never run at once.
    state: Mutex<State>,
    /// `Authorization` of every request, if a file has the token.
    token: Mutex<Option<HeaderValue>>,
}

#[derive(Debug)]
struct State {
    tls: Arc<ClientConfig>,
    files: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    token_file: Option<(PathBuf, Option<Stamp>)>,
}

/// What a look at the files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Unchanged,
    /// New content, in use for connections from now on.
    Renewed,
    /// Only the token is new, in use for requests from now on.
    RenewedToken,
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
    /// Loads the credentials of `config`, which came from `source`, and takes the token file out of it: it is read here. Blocks on
    /// files and on an exec plugin.
    pub(super) fn load(source: Source, config: &mut kube::Config) -> Result<Self, SetupError> {
        let shown = shown(&config.auth_info).into();
        let auth = &mut config.auth_info;
        // As client-go has it, the file takes precedence over a token beside it.
        let token_file = auth.token_file.take().map(PathBuf::from);
        let mut token = None;
        let token_file = match token_file {
            None => None,
            Some(path) => {
                auth.token = None;
                let stamp = Stamp::of(&path);
                token = Some(read_token(&path)?);
                Some((path, stamp))
            }
        };
        let config = &*config;
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
            shown,
            problem: Mutex::new(None),
            state: Mutex::new(State {
                tls: Arc::new(tls),
                files,
                stamps,
                token_file,
            }),
            token: Mutex::new(token),
        })
    }

    /// Whether there is anything that a look could find.
    pub(super) fn can_change(&self) -> bool {
        let state = self.state.lock();
        self.from_plugin || !state.files.is_empty() || state.token_file.is_some()
    }

    /// The `Authorization` of a request, if a file has the token.
    pub(super) fn token(&self) -> Option<HeaderValue> {
        self.token.lock().clone()
    }

    /// What is shown to the server, and why that is not renewed.
    pub(super) fn shown(&self) -> (Arc<str>, Option<Arc<SetupError>>) {
        (Arc::clone(&self.shown), self.problem.lock().clone())
    }

    /// The configuration for the next connection.
    pub(super) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.state.lock().tls)
    }

    /// Looks at the files and loads them again if they have changed; `unauthorized` says that the server has answered
    /// 401 since the last look. Blocks.
    pub(super) fn look(&self, unauthorized: bool) -> Look {
        let mut state = self.state.lock();
        *self.problem.lock() = None;
        let token = self.look_at_token(&mut state);
        // Taken before the files are read: a change in between is seen at the next look.
        let stamps = stamps(&state.files);
        if stamps == state.stamps && !(self.from_plugin && unauthorized) {
            return token;
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
                    token_file: state.token_file.take(),
                };
                tracing::info!("credentials for the API server renewed");
                Look::Renewed
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to reload credentials for the API server, keeping the last ones"
                );
                *self.problem.lock() = Some(Arc::new(error));
                Look::Failed
            }
        }
    }

    fn look_at_token(&self, state: &mut State) -> Look {
        let Some((path, last)) = &mut state.token_file else {
            return Look::Unchanged;
        };
        let stamp = Stamp::of(path);
        if stamp == *last {
            return Look::Unchanged;
        }
        match read_token(path) {
            Ok(token) => {
                *last = stamp;
                *self.token.lock() = Some(token);
                tracing::info!("token for the API server renewed");
                Look::RenewedToken
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to reload the token for the API server, keeping the last one"
                );
                *self.problem.lock() = Some(Arc::new(error));
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

/// What a client with this configuration shows to the server, and where it is from.
fn shown(auth: &AuthInfo) -> String {
    if let Some(path) = &auth.token_file {
        format!("the token in {path}")
    } else if auth.token.is_some() {
        "the token of the configuration".to_owned()
    } else if let Some(exec) = &auth.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        format!("the credentials of the plugin {command}")
    } else if let Some(path) = &auth.client_certificate {
        format!("the client certificate in {path}")
    } else if auth.client_certificate_data.is_some() {
        "the client certificate of the configuration".to_owned()
    } else if auth.username.is_some() {
        "the password of the configuration".to_owned()
    } else if let Some(provider) = &auth.auth_provider {
        format!("the credentials of the provider {}", provider.name)
    } else {
        "a client without credentials".to_owned()
    }
}

/// The value of `Authorization` for the token in a file.
fn read_token(path: &Path) -> Result<HeaderValue, SetupError> {
    let failed = |source| SetupError::TokenFile {
        path: path.to_owned(),
        source,
    };
    let token = zeroize::Zeroizing::new(fs::read_to_string(path).map_err(failed)?);
    if token.trim().is_empty() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is empty",
        )));
    }
    let header = zeroize::Zeroizing::new(format!("Bearer {}", token.trim()));
    let unusable = |_| {
        failed(io::Error::new(
            io::ErrorKind::InvalidData,
            "it has a control character",
        ))
    };
    let mut header = HeaderValue::try_from(header.as_str()).map_err(unusable)?;
    header.set_sensitive(true);
    Ok(header)
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|path| Stamp::of(path)).collect()
}

fn tls_config(config: &kube::Config) -> Result<ClientConfig, SetupError> {
    let mut tls = config.rustls_client_config().map_err(SetupError::Tls)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(directory: &Path, host: &str) -> Result<kube::Config, SetupError> {
        in_cluster(directory, &|name| match name {
            "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("6443".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn a_pod_has_its_server_in_the_environment_and_its_identity_in_files() {
        let directory = tempfile::TempDir::new().unwrap();
        let write = |name, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let authority = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        write("ca.crt", &authority.cert.pem());
        write("token", "one\n");
        write("namespace", "home");
        let mut config = pod(directory.path(), "10.96.0.1").unwrap();
        assert_eq!(config.cluster_url, "https://10.96.0.1:6443/");
        assert_eq!(config.default_namespace, "home");
        assert_eq!(config.root_cert, Some(vec![authority.cert.der().to_vec()]));
        let source = Source::InCluster;
        assert!(
            source
                .files(&config)
                .contains(&directory.path().join("ca.crt"))
        );

        // The kubelet replaces the token by the rename of a link.
        let credentials = Credentials::load(source, &mut config).unwrap();
        let shown = |token: Option<HeaderValue>| token.unwrap().to_str().unwrap().to_owned();
        assert_eq!(shown(credentials.token()), "Bearer one");
        assert_eq!(credentials.look(false), Look::Unchanged);
        write("token", "");
        assert_eq!(credentials.look(false), Look::Failed);
        assert_eq!(shown(credentials.token()), "Bearer one");
        write("next", "two");
        fs::rename(
            directory.path().join("next"),
            directory.path().join("token"),
        )
        .unwrap();
        assert_eq!(credentials.look(false), Look::RenewedToken);
        assert_eq!(shown(credentials.token()), "Bearer two");
        assert!(!format!("{credentials:?}").contains("two"));

        let config = pod(directory.path(), "fd00::1").unwrap();
        assert_eq!(config.cluster_url, "https://[fd00::1]:6443/");
    }

    #[test]
    fn outside_of_a_pod_the_missing_variable_is_named() {
        let error = in_cluster(Path::new("/nowhere"), &|_| None).unwrap_err();
        assert!(
            error.to_string().contains("KUBERNETES_SERVICE_HOST"),
            "{error}"
        );
        let error = pod(Path::new("/nowhere"), "h").unwrap_err();
        assert!(matches!(error, SetupError::InCluster(_)), "{error}");
    }
}
