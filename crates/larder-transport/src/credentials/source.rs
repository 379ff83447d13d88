//! Turns a source into settings: server, user and trust. The files that they name are not read yet.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use http::{HeaderName, HeaderValue, Uri};

use super::{
    file,
    kubeconfig::{AuthInfo, Kubeconfig, Selected},
    tls::{Material, TlsSettings},
    user::{User, impersonation, user_of},
};
use larder_net::url::shown_url;
use larder_objects::go_base64;
use zeroize::Zeroizing;

use crate::{proxy::Environment, setup_error::SetupError};

/// The mount point of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The source of a transport's server and identity.
///
/// `Debug` shows no credentials.
#[derive(Clone)]
#[non_exhaustive]
pub enum ClusterSource {
    /// A kubeconfig file. The user's credentials and the authority are followed, in the file and in files that it
    /// names; server, proxy and impersonation stay as they were.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context to use instead of the file's current one.
        context: Option<String>,
    },
    /// The service account of the pod in which this process runs: `token` and `ca.crt` as mounted there, which are
    /// followed, and the address in `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    InCluster,
    /// As [`InCluster`](Self::InCluster), but any certificate of the API server is accepted.
    InClusterUnverified,
    /// A service account for the API server at a URL. `token`, `ca.crt` and `namespace` are in a directory as the
    /// kubelet mounts them, and are followed.
    ServiceAccount {
        /// The directory with the files.
        directory: PathBuf,
        /// `https://HOST:PORT`.
        server: String,
    },
}

impl fmt::Debug for ClusterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig { path, context } => f
                .debug_struct("Kubeconfig")
                .field("path", path)
                .field("context", context)
                .finish(),
            Self::InCluster => f.write_str("InCluster"),
            Self::InClusterUnverified => f.write_str("InClusterUnverified"),
            Self::ServiceAccount { directory, server } => f
                .debug_struct("ServiceAccount")
                .field("directory", directory)
                .field("server", &shown_url(server))
                .finish(),
        }
    }
}

/// Everything that a source says. Files that it names are not yet read.
pub(crate) struct Settings {
    pub(crate) server: Uri,
    pub(crate) tls_server_name: Option<String>,
    pub(crate) proxy: Option<Uri>,
    pub(crate) namespace: String,
    /// Headers of every request, which name the user to impersonate.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) tls: TlsSettings,
    pub(super) user: User,
}

impl ClusterSource {
    /// What a client knows its API server by: the certificates that the source trusts, as they are configured (none if
    /// it trusts those of the system), and the server's name in TLS. Blocks on files; connects to nothing.
    ///
    /// # Errors
    ///
    /// The configuration or the file of the certificates is unreadable or invalid.
    pub fn server_identity(&self) -> Result<(Vec<u8>, String), SetupError> {
        let settings = self.load()?;
        let authority = match &settings.tls.authority {
            None => Vec::new(),
            Some(material) => material.read("certificate authority")?.to_vec(),
        };
        let host = settings.server.host().unwrap_or_default();
        let name = settings.tls_server_name.unwrap_or_else(|| host.to_owned());
        Ok((authority, name))
    }

    /// The namespace that the source names: that of the kubeconfig's context, or of the service account; `default` if it
    /// names none. Blocks on files; connects to nothing.
    ///
    /// # Errors
    ///
    /// The configuration is unreadable or invalid.
    pub fn namespace(&self) -> Result<String, SetupError> {
        Ok(self.load()?.namespace)
    }

    /// The names of the contexts of the kubeconfig; none without one. Blocks on files; connects to nothing.
    ///
    /// # Errors
    ///
    /// The kubeconfig is unreadable or invalid.
    pub fn contexts(&self) -> Result<Vec<String>, SetupError> {
        let Self::Kubeconfig { path, .. } = self else {
            return Ok(Vec::new());
        };
        let file = Kubeconfig::read(path).map_err(|source| SetupError::Kubeconfig {
            path: path.clone(),
            source,
        })?;
        Ok(file.contexts().cloned().collect())
    }

    /// Reads the configuration. Blocks on files.
    pub(super) fn load(&self) -> Result<Settings, SetupError> {
        match self {
            Self::Kubeconfig { path, context } => {
                let selected = Kubeconfig::read(path)
                    .and_then(|file| file.select(context.as_deref()))
                    .map_err(|source| SetupError::Kubeconfig {
                        path: path.clone(),
                        source,
                    })?;
                of_kubeconfig(selected)
            }
            Self::InCluster => in_cluster(Path::new(SERVICE_ACCOUNT), &environment),
            Self::InClusterUnverified => {
                let mut settings = in_cluster(Path::new(SERVICE_ACCOUNT), &environment)?;
                settings.tls.accept_invalid_certs = true;
                Ok(settings)
            }
            Self::ServiceAccount { directory, server } => service_account(directory, server),
        }
    }
}

/// Reads a variable of the environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn of_kubeconfig(selected: Selected) -> Result<Settings, SetupError> {
    let Selected {
        cluster,
        user,
        namespace,
    } = selected;
    let server = cluster.server.as_deref().unwrap_or_default();
    let server = server.parse().map_err(|_| SetupError::Url {
        url: shown_url(server),
    })?;
    let proxy = match cluster.proxy_url.as_deref() {
        None | Some("") => None,
        Some(url) => Some(url.parse().map_err(|_| SetupError::Proxy {
            url: shown_url(url),
        })?),
    };
    let data = cluster.certificate_authority_data.as_deref();
    let path = cluster.certificate_authority.as_ref();
    let authority = material(data, path, "certificate authority")?;
    // As client-go: one of the two is a mistake.
    if authority.is_some() && cluster.insecure_skip_tls_verify == Some(true) {
        let problem = "not with insecure-skip-tls-verify: true, which trusts every server";
        return Err(SetupError::invalid("certificate authority", problem));
    }
    let headers = impersonation(&user)?;
    let exec = user.exec.as_ref();
    let pem = match &authority {
        Some(authority) if exec.is_some_and(|exec| exec.provide_cluster_info) => {
            Some(authority.read("certificate authority")?)
        }
        _ => None,
    };
    let identity = identity(&user)?;
    Ok(Settings {
        server,
        tls_server_name: cluster
            .tls_server_name
            .clone()
            .filter(|name| !name.is_empty()),
        proxy,
        namespace: namespace.unwrap_or_else(|| "default".to_owned()),
        headers,
        tls: TlsSettings {
            authority,
            accept_invalid_certs: cluster.insecure_skip_tls_verify.unwrap_or(false),
            identity,
        },
        user: user_of(user, &cluster, pem.as_ref().map(|pem| pem.as_slice()))?,
    })
}

/// The TLS configuration of a client that trusts what the system trusts, and has no certificate. Blocks on files.
///
/// # Errors
///
/// The system trusts no authority.
pub(crate) fn system_tls() -> Result<rustls::ClientConfig, SetupError> {
    TlsSettings::default().load(None)
}

/// The configuration of a pod, whose service account is mounted at `directory`.
pub(super) fn in_cluster(
    directory: &Path,
    environment: Environment<'_>,
) -> Result<Settings, SetupError> {
    let set = |variable| {
        environment(variable)
            .filter(|value| !value.is_empty())
            .ok_or(SetupError::NotInCluster { variable })
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
fn service_account(directory: &Path, server: &str) -> Result<Settings, SetupError> {
    let namespace = file::read_text(&directory.join("namespace"))
        .ok()
        .map(|namespace| namespace.trim().to_owned());
    Ok(Settings {
        server: server.parse().map_err(|_| SetupError::Url {
            url: shown_url(server),
        })?,
        tls_server_name: None,
        proxy: None,
        namespace: namespace
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or_else(|| "default".to_owned()),
        headers: Vec::new(),
        tls: TlsSettings {
            authority: Some(Material::File(directory.join("ca.crt"))),
            ..TlsSettings::default()
        },
        user: User::TokenFile(directory.join("token")),
    })
}

/// Inline data takes precedence over a file.
fn material(
    data: Option<&str>,
    path: Option<&String>,
    part: &'static str,
) -> Result<Option<Material>, SetupError> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        // Without the place: it would tell something of the data.
        let data =
            go_base64::decode(data).map_err(|_| SetupError::invalid(part, "malformed base64"))?;
        return Ok(Some(Material::Data(Zeroizing::new(data))));
    }
    let path = path.filter(|path| !path.is_empty());
    Ok(path.map(|path| Material::File(path.into())))
}

/// The client's certificate and its key.
fn identity(user: &AuthInfo) -> Result<Option<(Material, Material)>, SetupError> {
    let data = user.client_certificate_data.as_deref();
    let certificate = material(data, user.client_certificate.as_ref(), "client certificate")?;
    let data = user.client_key_data.as_deref();
    let key = material(data, user.client_key.as_ref(), "client key")?;
    let problem = "it is missing, and a client certificate needs its key";
    let missing = |part| SetupError::invalid(part, problem);
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(missing("client key")),
        (None, Some(_)) => Err(missing("client certificate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(host: &str) -> Result<Settings, SetupError> {
        in_cluster(Path::new("/nowhere"), &|name| match name {
            "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("6443".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn a_pod_has_its_server_in_the_environment() {
        assert_eq!(pod("10.96.0.1").unwrap().server, "https://10.96.0.1:6443/");
        assert_eq!(pod("fd00::1").unwrap().server, "https://[fd00::1]:6443/");
        assert_eq!(pod("h").unwrap().namespace, "default");
        let error = in_cluster(Path::new("/nowhere"), &|_| None).err().unwrap();
        assert!(
            error.to_string().contains("KUBERNETES_SERVICE_HOST"),
            "{error}"
        );
    }

    #[test]
    fn a_certificate_authority_that_would_not_be_used_is_an_error() {
        for (authority, is_used) in [("", true), ("certificate-authority-data: YQ==", false)] {
            let text = format!(
                "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://h', insecure-skip-tls-verify: true, {authority}}}}}]\n"
            );
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            let selected = Kubeconfig::read(file.path()).unwrap();
            let selected = selected.select(None).unwrap();
            assert_eq!(of_kubeconfig(selected).is_ok(), is_used, "{text}");
        }
    }
}
