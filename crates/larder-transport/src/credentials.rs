//! The client's identity and the authorities that it trusts, both kept up to date.
//!
//! Files are checked before a stream is opened, at most once per interval, and soon after a 401. A token travels in
//! every request, so the next request has the new one. Client certificates and authorities belong to a connection: new
//! connections use the new ones, existing connections take no new streams and finish those they have, so that no watch
//! is lost. An exec plugin runs again shortly before its credentials expire and after a 401.
//!
//! Invariants:
//! 1. A changed file that is unusable (half written, key and certificate of different pairs) leaves the last good
//!    credentials in use. It is read again at the next check.
//! 2. No error, log line or `Debug` has any byte of a credential file, of a plugin's arguments, environment or output,
//!    or of a URL's user and password. Errors of parsers quote their input, so none of them is passed on.
//! 3. A panic while credentials are read is an error like any other.
//!
//! Memory: file contents, keys and tokens are wiped when they are replaced or dropped, with these exceptions. The token
//! stays in the `HeaderValue` of requests and in the buffers of h2, hyper and rustls; the private key stays in rustls's
//! signing key; a kubeconfig's YAML scalars pass through the parser's buffers.

mod file;
mod kubeconfig;
mod plugin;
mod secret;
mod source;
mod tls;
mod user;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use larder_files::stamp::Stamp;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

pub use self::source::ClusterSource;
pub(crate) use self::source::{Settings, environment, system_tls};
use self::{
    plugin::{Issued, Plugin},
    user::User,
};
use crate::setup_error::SetupError;

/// Longest wait of requests for a check of files, which usually takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often, and after which pause, a missing file is looked for again. A kubelet rotates its client certificate by
/// removing a link and renaming the new one (client-go 1.36, `util/certificate/certificate_store.go`), so a file may be
/// missing for an instant.
const MISSING: (u32, Duration) = (4, Duration::from_millis(50));

/// The credentials of a transport.
pub(crate) struct Credentials {
    source: ClusterSource,
    /// Why the last check failed, if it did.
    problem: Mutex<Option<Arc<SetupError>>>,
    /// Replaced as a whole by a check, of which only one runs at a time.
    loaded: Mutex<Arc<LoadedCredentials>>,
}

/// One state of the credentials.
#[derive(Clone)]
struct LoadedCredentials {
    tls: Arc<ClientConfig>,
    /// Files on which TLS depends, and the kubeconfig itself.
    files: Vec<(PathBuf, Option<Stamp>)>,
    /// `Authorization` of every request.
    authorization: Option<HeaderValue>,
    token_file: Option<(PathBuf, Option<Stamp>)>,
    plugin: Option<(Box<Plugin>, Issued)>,
    /// The client's credential, for errors.
    description: Arc<str>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Unchanged,
    /// New content, used by connections from now on.
    Renewed,
    /// Only the token is new, used by requests from now on.
    RenewedToken,
    /// Something changed, but is unusable.
    Failed,
}

impl Credentials {
    /// Loads settings and credentials.
    ///
    /// # Errors
    ///
    /// The source is unusable.
    pub(crate) async fn load(source: ClusterSource) -> Result<(Settings, Self), SetupError> {
        let (settings, loaded) = LoadedCredentials::load(&source, None).await?;
        let credentials = Self {
            source,
            problem: Mutex::new(None),
            loaded: Mutex::new(Arc::new(loaded)),
        };
        Ok((settings, credentials))
    }

    fn loaded(&self) -> Arc<LoadedCredentials> {
        Arc::clone(&self.loaded.lock())
    }

    /// Whether a check can find anything new.
    pub(crate) fn can_change(&self) -> bool {
        let loaded = self.loaded();
        loaded.plugin.is_some() || !loaded.files.is_empty() || loaded.token_file.is_some()
    }

    /// How long requests wait for a check that begins at `now`. No request waits while a plugin renews credentials that
    /// are still valid.
    pub(crate) fn patience(&self, unauthorized: bool, now: Instant) -> Duration {
        let loaded = self.loaded();
        let Some((_, issued)) = &loaded.plugin else {
            return PATIENCE;
        };
        if unauthorized || issued.expiry.is_some_and(|expiry| expiry.at <= now) {
            plugin::TIMEOUT + PATIENCE
        } else if issued.is_renewal_due(now) {
            Duration::ZERO
        } else {
            PATIENCE
        }
    }

    /// When a plugin is due to run again, if it is.
    pub(crate) fn renew_at(&self) -> Option<Instant> {
        let loaded = self.loaded();
        let (_, issued) = loaded.plugin.as_ref()?;
        Some(issued.expiry?.renew_at)
    }

    /// `Authorization` of a request.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.loaded.lock().authorization.clone()
    }

    /// The client's credential, and why it was not renewed.
    pub(crate) fn description(&self) -> (Arc<str>, Option<Arc<SetupError>>) {
        let description = Arc::clone(&self.loaded.lock().description);
        (description, self.problem.lock().clone())
    }

    /// The TLS configuration for the next connection.
    pub(crate) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.loaded.lock().tls)
    }

    /// Checks files and plugin, and loads again what has changed. `unauthorized`: the API server has answered 401 since
    /// the last check. Only one check runs at a time.
    pub(crate) async fn check(&self, unauthorized: bool) -> Check {
        *self.problem.lock() = None;
        let token = self.check_token().await;
        let before = self.loaded();
        let files = before.files.clone();
        let changed =
            blocking(move || Ok(files.iter().any(|(path, stamp)| Stamp::of(path) != *stamp)));
        let changed = changed.await.unwrap_or(true);
        let due = before.plugin_is_due(unauthorized);
        if !changed && !due {
            return token;
        }
        let keep = before.plugin.as_ref().filter(|_| !due);
        match LoadedCredentials::load(&self.source, keep.map(|(_, issued)| issued.clone())).await {
            Ok((_, loaded)) => {
                // A plugin without a certificate leaves TLS alone.
                let has_identity = |loaded: &LoadedCredentials| {
                    let issued = loaded.plugin.as_ref();
                    issued.is_some_and(|(_, issued)| issued.identity.is_some())
                };
                let only_token = !changed && !has_identity(&before) && !has_identity(&loaded);
                *self.loaded.lock() = Arc::new(loaded);
                tracing::info!("renewed the credentials for the API server");
                if only_token {
                    Check::RenewedToken
                } else {
                    Check::Renewed
                }
            }
            Err(error) => self.failed(error),
        }
    }

    async fn check_token(&self) -> Check {
        let before = self.loaded();
        let Some((path, last)) = before.token_file.clone() else {
            return Check::Unchanged;
        };
        let read = blocking(move || {
            let stamp = Stamp::of(&path);
            if stamp == last {
                return Ok(None);
            }
            let token = read_token(&path)?;
            Ok(Some((token, (path, stamp))))
        });
        match read.await {
            Ok(None) => Check::Unchanged,
            Ok(Some((token, file))) => {
                let mut loaded = LoadedCredentials::clone(&before);
                loaded.authorization = Some(token);
                loaded.token_file = Some(file);
                *self.loaded.lock() = Arc::new(loaded);
                tracing::info!("renewed the token for the API server");
                Check::RenewedToken
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&self, error: SetupError) -> Check {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "failed to renew the credentials for the API server, keeping the last good ones"
        );
        *self.problem.lock() = Some(Arc::new(error));
        Check::Failed
    }
}

impl LoadedCredentials {
    /// Loads everything; `issued` is kept instead of running a plugin. Waits a moment for a file that is missing.
    async fn load(
        source: &ClusterSource,
        issued: Option<Issued>,
    ) -> Result<(Settings, Self), SetupError> {
        let (attempts, pause) = MISSING;
        for _ in 0..attempts {
            match Self::try_load(source, issued.clone()).await {
                Err(error) if error.is_missing_file() => sleep(pause).await,
                loaded => return loaded,
            }
        }
        Self::try_load(source, issued).await
    }

    async fn try_load(
        source: &ClusterSource,
        issued: Option<Issued>,
    ) -> Result<(Settings, Self), SetupError> {
        let from = source.clone();
        // Stamps are taken before the files are read: a change in between is seen at the next check.
        let kubeconfig = move || {
            let file = match &from {
                ClusterSource::Kubeconfig { path, .. } => Some((path.clone(), Stamp::of(path))),
                _ => None,
            };
            from.load().map(|settings| (settings, file))
        };
        let (settings, kubeconfig) = blocking(kubeconfig).await?;
        let plugin = match (&settings.user, issued) {
            (User::Plugin(plugin), Some(issued)) => Some((plugin.clone(), issued)),
            (User::Plugin(plugin), None) => {
                let issued = plugin.run().await;
                let issued = issued.map_err(|source| SetupError::Plugin {
                    name: plugin.name().to_owned(),
                    source,
                })?;
                Some((plugin.clone(), issued))
            }
            _ => None,
        };
        blocking(move || {
            let loaded = Self::read(&settings, kubeconfig, plugin)?;
            Ok((settings, loaded))
        })
        .await
    }

    /// Reads the files that `settings` name. Blocks.
    fn read(
        settings: &Settings,
        kubeconfig: Option<(PathBuf, Option<Stamp>)>,
        plugin: Option<(Box<Plugin>, Issued)>,
    ) -> Result<Self, SetupError> {
        let stamped = |path: PathBuf| {
            let stamp = Stamp::of(&path);
            (path, stamp)
        };
        let files = settings.tls.files().map(stamped).chain(kubeconfig);
        let files: Vec<_> = files.collect();
        let issued = plugin.as_ref().map(|(_, issued)| issued);
        let tls = settings
            .tls
            .load(issued.and_then(|issued| issued.identity.as_ref()))?;
        let mut token_file = None;
        let authorization = match &settings.user {
            User::None => None,
            User::Token(header) | User::Password(header) => Some(header.clone()),
            User::TokenFile(path) => {
                token_file = Some(stamped(path.clone()));
                Some(read_token(path)?)
            }
            User::Plugin(_) => issued.and_then(|issued| issued.token.clone()),
        };
        Ok(Self {
            tls: Arc::new(tls),
            files,
            authorization,
            token_file,
            plugin,
            description: describe(settings).into(),
        })
    }

    fn plugin_is_due(&self, unauthorized: bool) -> bool {
        let issued = self.plugin.as_ref().map(|(_, issued)| issued);
        issued.is_some_and(|issued| unauthorized || issued.is_renewal_due(Instant::now()))
    }
}

/// Runs `read` where it may block; a panic becomes an error, without its message.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, SetupError> + Send + 'static,
) -> Result<T, SetupError> {
    spawn_blocking(read)
        .await
        .unwrap_or(Err(SetupError::Interrupted))
}

/// `Authorization` for the token in a file.
fn read_token(path: &Path) -> Result<HeaderValue, SetupError> {
    let failed = |source| SetupError::Unreadable {
        part: "token",
        path: path.to_owned(),
        source,
    };
    let token = file::read_text(path).map_err(failed)?;
    secret::bearer(&token).ok_or_else(|| {
        failed(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "it is empty or has a control character",
        ))
    })
}

/// The credential of a client with these settings, and its source.
fn describe(settings: &Settings) -> String {
    match &settings.user {
        User::TokenFile(path) => format!("the token in {}", path.display()),
        User::Token(_) => "the token of the configuration".to_owned(),
        User::Password(_) => "the password of the configuration".to_owned(),
        User::Plugin(plugin) => format!("the credentials of the plugin {}", plugin.name()),
        User::None => match &settings.tls.identity {
            None => "a client without credentials".to_owned(),
            Some((certificate, _)) => match certificate.path() {
                Some(path) => format!("the client certificate in {}", path.display()),
                None => "the client certificate of the configuration".to_owned(),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A kubeconfig as kubelets have it: certificate and key in one file, which is a link.
    fn kubelet(directory: &Path) -> ClusterSource {
        let authority = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        fs::write(directory.join("ca.crt"), authority.cert.pem()).unwrap();
        let kubeconfig = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://h:1", "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"client-certificate": "current.pem", "client-key": "current.pem"}}]}"#;
        fs::write(directory.join("config"), kubeconfig).unwrap();
        let path = directory.join("config");
        ClusterSource::Kubeconfig {
            path,
            context: None,
        }
    }

    /// Writes a new certificate with its key, which `current.pem` does not lead to yet.
    fn issue(directory: &Path, name: &str) -> PathBuf {
        let issued = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let pem = issued.cert.pem() + &issued.signing_key.serialize_pem();
        fs::write(directory.join(name), pem).unwrap();
        directory.join(name)
    }

    #[tokio::test(start_paused = true)]
    async fn certificate_that_is_missing_for_an_instant_is_no_failure() {
        // beside-kubelet 37
        let directory = tempfile::TempDir::new().unwrap();
        let current = directory.path().join("current.pem");
        symlink(issue(directory.path(), "one.pem"), &current).unwrap();
        let (_, credentials) = Credentials::load(kubelet(directory.path())).await.unwrap();
        assert_eq!(credentials.check(false).await, Check::Unchanged);

        let next = issue(directory.path(), "two.pem");
        fs::remove_file(&current).unwrap();
        let rotation = async {
            sleep(Duration::from_millis(10)).await;
            symlink(&next, directory.path().join("updated.pem")).unwrap();
            fs::rename(directory.path().join("updated.pem"), &current).unwrap();
        };
        let (check, ()) = tokio::join!(credentials.check(false), rotation);
        assert_eq!(check, Check::Renewed);
        assert!(credentials.description().1.is_none());
        assert_eq!(credentials.check(false).await, Check::Unchanged);
    }

    #[tokio::test(start_paused = true)]
    async fn last_certificate_stays_in_use_while_its_file_is_missing() {
        let directory = tempfile::TempDir::new().unwrap();
        let current = directory.path().join("current.pem");
        let one = issue(directory.path(), "one.pem");
        symlink(&one, &current).unwrap();
        let (_, credentials) = Credentials::load(kubelet(directory.path())).await.unwrap();
        let tls = credentials.tls();
        fs::remove_file(&current).unwrap();
        assert_eq!(credentials.check(false).await, Check::Failed);
        assert!(Arc::ptr_eq(&tls, &credentials.tls()));
        assert!(credentials.description().1.is_some());
        symlink(&one, &current).unwrap();
        let check = credentials.check(false).await;
        assert!(
            matches!(check, Check::Unchanged | Check::Renewed),
            "{check:?}"
        );
        assert!(credentials.description().1.is_none());
    }

    #[tokio::test]
    async fn a_service_account_is_followed() {
        let directory = tempfile::TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        let authority = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        fs::write(at("ca.crt"), authority.cert.pem()).unwrap();
        fs::write(at("token"), "one\n").unwrap();
        fs::write(at("namespace"), "home").unwrap();
        let source = ClusterSource::ServiceAccount {
            directory: directory.path().to_owned(),
            server: "https://10.96.0.1:6443".to_owned(),
        };
        let (settings, credentials) = Credentials::load(source).await.unwrap();
        assert_eq!(settings.namespace, "home");
        let shown = || {
            credentials
                .authorization()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(shown(), "Bearer one");
        assert_eq!(credentials.check(false).await, Check::Unchanged);

        // The kubelet replaces the token by the rename of a link.
        fs::write(at("token"), "").unwrap();
        assert_eq!(credentials.check(false).await, Check::Failed);
        assert_eq!(shown(), "Bearer one");
        fs::write(at("next"), "two").unwrap();
        fs::rename(at("next"), at("token")).unwrap();
        assert_eq!(credentials.check(false).await, Check::RenewedToken);
        assert_eq!(shown(), "Bearer two");

        // One odd certificate leaves the others usable; a bundle without any does not.
        let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(at("ca.crt"), format!("text\n{odd}{}", authority.cert.pem())).unwrap();
        assert_eq!(credentials.check(false).await, Check::Renewed);
        fs::write(at("ca.crt"), odd).unwrap();
        assert_eq!(credentials.check(false).await, Check::Failed);
    }
}
