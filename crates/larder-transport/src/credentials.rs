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
//! 3. No start waits longer than [`FIRST_LOAD`] for a plugin or a file that hangs. What is wrong within that time is an
//!    error of the start; later, requests wait for the first credentials, and name what they lack.
//! 4. A panic while credentials are read is an error like any other.
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

use futures::future::{BoxFuture, FutureExt as _};
use http::HeaderValue;
use larder_files::stamp::Stamp;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
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

/// How long the start waits for the first credentials. Files take microseconds, most plugins some hundred milliseconds;
/// on a machine that is starting, both take longer.
const FIRST_LOAD: Duration = Duration::from_secs(3);

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
    state: Mutex<CredentialState>,
}

#[derive(Clone)]
enum CredentialState {
    /// The first ones were not there when the transport started, and no request can be sent without them.
    Loading(LoadingCredentials),
    Loaded(Arc<LoadedCredentials>),
}

/// Credentials that were never there.
#[derive(Clone)]
pub(crate) struct LoadingCredentials {
    pub(crate) since: Instant,
    /// The client's credential, for errors.
    pub(crate) description: Arc<str>,
}

/// The first load of credentials.
pub(crate) type FirstLoad = BoxFuture<'static, Check>;

/// Credentials that are loaded, or loading.
pub(crate) struct StartedCredentials {
    pub(crate) credentials: Arc<Credentials>,
    /// The load, if the start did not wait for its end.
    pub(crate) first_load: Option<FirstLoad>,
}

/// Which credentials a request was sent with; newer ones are greater. Those of a handshake (certificate, authorities)
/// belong to the connection, that of a head (a token) to the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation {
    pub(crate) handshake: u64,
    pub(crate) head: u64,
}

/// One state of the credentials.
#[derive(Clone)]
struct LoadedCredentials {
    generation: Generation,
    tls: Arc<ClientConfig>,
    /// Files on which TLS depends, and the kubeconfig itself.
    files: Vec<StampedFile>,
    /// `Authorization` of every request.
    authorization: Option<HeaderValue>,
    token_file: Option<StampedFile>,
    plugin: Option<(Box<Plugin>, Issued)>,
    /// The client's credential, for errors.
    description: Arc<str>,
}

/// Why credentials are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CheckCause {
    /// The last check is old, or server and client did not accept each other.
    #[default]
    Due,
    /// The API server has answered 401 since the last check.
    Unauthorized,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Unchanged,
    /// New content, used by connections from now on.
    Renewed(Generation),
    /// Only the token is new, used by requests from now on.
    RenewedToken(Generation),
    /// Something changed, but is unusable.
    Failed,
}

impl Credentials {
    /// Loads settings and credentials. If the credentials take long, they are loaded by a future that is returned with
    /// them.
    ///
    /// # Errors
    ///
    /// The source is unusable.
    pub(crate) async fn load(
        source: ClusterSource,
    ) -> Result<(Settings, StartedCredentials), SetupError> {
        let (settings, _) = patiently(|| read_settings(&source)).await?;
        let loading = LoadingCredentials {
            since: Instant::now(),
            description: describe(&settings).into(),
        };
        let description = Arc::clone(&loading.description);
        let credentials = Arc::new(Self {
            source,
            problem: Mutex::new(None),
            state: Mutex::new(CredentialState::Loading(loading)),
        });
        let of_task = Arc::clone(&credentials);
        let mut load = async move { of_task.load_first().await }.boxed();
        if let Ok(loaded) = timeout(FIRST_LOAD, &mut load).await {
            loaded?;
            let started = StartedCredentials {
                credentials,
                first_load: None,
            };
            return Ok((settings, started));
        }
        tracing::warn!(
            credentials = %description,
            "the credentials for the API server are still loading, starting without them"
        );
        let of_end = Arc::clone(&credentials);
        let first = load.map(move |loaded| of_end.first_check(loaded));
        let started = StartedCredentials {
            credentials,
            first_load: Some(first.boxed()),
        };
        Ok((settings, started))
    }

    fn first_check(&self, loaded: Result<(), SetupError>) -> Check {
        match loaded {
            Ok(()) => Check::Renewed(Generation::default()),
            Err(error) => self.failed(error),
        }
    }

    async fn load_first(&self) -> Result<(), SetupError> {
        let loaded = LoadedCredentials::load(&self.source, None).await?;
        self.replace(loaded);
        Ok(())
    }

    fn loaded(&self) -> Option<Arc<LoadedCredentials>> {
        match &*self.state.lock() {
            CredentialState::Loading(_) => None,
            CredentialState::Loaded(loaded) => Some(Arc::clone(loaded)),
        }
    }

    /// The credentials that were never there, if that is so.
    pub(crate) fn loading(&self) -> Option<LoadingCredentials> {
        match &*self.state.lock() {
            CredentialState::Loading(loading) => Some(loading.clone()),
            CredentialState::Loaded(_) => None,
        }
    }

    /// Whether a check can find anything new.
    pub(crate) fn can_change(&self) -> bool {
        self.loaded().is_none_or(|loaded| {
            loaded.plugin.is_some() || !loaded.files.is_empty() || loaded.token_file.is_some()
        })
    }

    /// How long requests wait for a check that begins at `now`. No request waits while a plugin renews credentials that
    /// are still valid.
    pub(crate) fn patience(&self, cause: CheckCause, now: Instant) -> Duration {
        let Some(loaded) = self.loaded() else {
            return plugin::TIMEOUT + PATIENCE;
        };
        let Some((_, issued)) = &loaded.plugin else {
            return PATIENCE;
        };
        let has_expired = issued.expiry.is_some_and(|expiry| expiry.at <= now);
        if cause == CheckCause::Unauthorized || has_expired {
            plugin::TIMEOUT + PATIENCE
        } else if issued.is_renewal_due(now) {
            Duration::ZERO
        } else {
            PATIENCE
        }
    }

    /// When a plugin is due to run again, if it is.
    pub(crate) fn renew_at(&self) -> Option<Instant> {
        let loaded = self.loaded()?;
        let (_, issued) = loaded.plugin.as_ref()?;
        Some(issued.expiry?.renew_at)
    }

    /// `Authorization` of a request, and its generation.
    pub(crate) fn authorization(&self) -> (Option<HeaderValue>, u64) {
        match &*self.state.lock() {
            CredentialState::Loading(_) => (None, 0),
            CredentialState::Loaded(loaded) => {
                (loaded.authorization.clone(), loaded.generation.head)
            }
        }
    }

    /// The client's credential, and why it was not renewed.
    pub(crate) fn description(&self) -> (Arc<str>, Option<Arc<SetupError>>) {
        let description = match &*self.state.lock() {
            CredentialState::Loading(loading) => Arc::clone(&loading.description),
            CredentialState::Loaded(loaded) => Arc::clone(&loaded.description),
        };
        (description, self.problem())
    }

    /// Why the last check failed, if it did.
    pub(crate) fn problem(&self) -> Option<Arc<SetupError>> {
        self.problem.lock().clone()
    }

    /// The TLS configuration for the next connection, and its generation; `None` while the first one is loading.
    pub(crate) fn tls(&self) -> Option<(Arc<ClientConfig>, u64)> {
        let loaded = self.loaded()?;
        Some((Arc::clone(&loaded.tls), loaded.generation.handshake))
    }

    /// Checks files and plugin, and loads again what has changed. Only one check runs at a time.
    pub(crate) async fn check(&self, cause: CheckCause) -> Check {
        *self.problem.lock() = None;
        let Some(before) = self.loaded() else {
            let loaded = self.load_first().await;
            return self.first_check(loaded);
        };
        let token = self.check_token(&before).await;
        let before = self.loaded().unwrap_or(before);
        let files = before.files.clone();
        let changed =
            blocking(move || Ok(files.iter().any(|(path, stamp)| Stamp::of(path) != *stamp)));
        let changed = changed.await.unwrap_or(true);
        let due = before.plugin_is_due(cause);
        if !changed && !due {
            return token;
        }
        let keep = before.plugin.as_ref().filter(|_| !due);
        match LoadedCredentials::load(&self.source, keep.map(|(_, issued)| issued.clone())).await {
            Ok(mut loaded) => {
                // A plugin without a certificate leaves TLS alone.
                let has_identity = |loaded: &LoadedCredentials| {
                    loaded
                        .plugin
                        .as_ref()
                        .is_some_and(|(_, issued)| issued.identity.is_some())
                };
                let only_token = !changed && !has_identity(&before) && !has_identity(&loaded);
                loaded.generation = if only_token {
                    before.generation.with_new_head()
                } else {
                    before.generation.with_new_handshake()
                };
                let generation = self.replace(loaded);
                tracing::info!("renewed the credentials for the API server");
                if only_token {
                    Check::RenewedToken(generation)
                } else {
                    Check::Renewed(generation)
                }
            }
            Err(error) => self.failed(error),
        }
    }

    async fn check_token(&self, before: &LoadedCredentials) -> Check {
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
                let mut loaded = before.clone();
                loaded.authorization = Some(token);
                loaded.token_file = Some(file);
                loaded.generation = before.generation.with_new_head();
                let generation = self.replace(loaded);
                tracing::info!("renewed the token for the API server");
                Check::RenewedToken(generation)
            }
            Err(error) => self.failed(error),
        }
    }

    fn replace(&self, loaded: LoadedCredentials) -> Generation {
        let generation = loaded.generation;
        *self.state.lock() = CredentialState::Loaded(Arc::new(loaded));
        generation
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

impl Generation {
    fn with_new_head(mut self) -> Self {
        self.head += 1;
        self
    }

    fn with_new_handshake(mut self) -> Self {
        self.handshake += 1;
        self.with_new_head()
    }
}

impl LoadedCredentials {
    /// Loads everything; `issued` is kept instead of running a plugin. Waits a moment for a file that is missing.
    async fn load(source: &ClusterSource, issued: Option<Issued>) -> Result<Self, SetupError> {
        patiently(|| Self::try_load(source, issued.clone())).await
    }

    async fn try_load(source: &ClusterSource, issued: Option<Issued>) -> Result<Self, SetupError> {
        let (settings, kubeconfig) = read_settings(source).await?;
        let plugin = match (&settings.user, issued) {
            (User::Plugin(plugin), Some(issued)) => Some((plugin.clone(), issued)),
            (User::Plugin(plugin), None) => {
                let issued = plugin.run().await.map_err(|source| SetupError::Plugin {
                    name: plugin.name().to_owned(),
                    source,
                })?;
                Some((plugin.clone(), issued))
            }
            _ => None,
        };
        blocking(move || Self::read(&settings, kubeconfig, plugin)).await
    }

    /// Reads the files that `settings` name. Blocks.
    fn read(
        settings: &Settings,
        kubeconfig: Option<StampedFile>,
        plugin: Option<(Box<Plugin>, Issued)>,
    ) -> Result<Self, SetupError> {
        let stamped = |path: PathBuf| {
            let stamp = Stamp::of(&path);
            (path, stamp)
        };
        let files: Vec<_> = settings
            .tls
            .files()
            .map(stamped)
            .chain(kubeconfig)
            .collect();
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
            generation: Generation::default(),
            tls: Arc::new(tls),
            files,
            authorization,
            token_file,
            plugin,
            description: describe(settings).into(),
        })
    }

    fn plugin_is_due(&self, cause: CheckCause) -> bool {
        self.plugin.as_ref().is_some_and(|(_, issued)| {
            cause == CheckCause::Unauthorized || issued.is_renewal_due(Instant::now())
        })
    }
}

/// A file, and its stamp from before it was read: a change in between is seen at the next check.
type StampedFile = (PathBuf, Option<Stamp>);

/// The settings of a source, and its kubeconfig if it is one.
async fn read_settings(
    source: &ClusterSource,
) -> Result<(Settings, Option<StampedFile>), SetupError> {
    let from = source.clone();
    let read = move || {
        let file = match &from {
            ClusterSource::Kubeconfig { path, .. } => Some((path.clone(), Stamp::of(path))),
            _ => None,
        };
        from.load().map(|settings| (settings, file))
    };
    blocking(read).await
}

/// Repeats `load` for a moment while a file is missing.
async fn patiently<T, F>(load: impl Fn() -> F) -> Result<T, SetupError>
where
    F: Future<Output = Result<T, SetupError>>,
{
    let (attempts, pause) = MISSING;
    for _ in 0..attempts {
        match load().await {
            Err(error) if error.is_missing_file() => sleep(pause).await,
            loaded => return loaded,
        }
    }
    load().await
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
        let (_, started) = Credentials::load(kubelet(directory.path())).await.unwrap();
        let credentials = started.credentials;
        assert_eq!(credentials.check(CheckCause::Due).await, Check::Unchanged);

        let next = issue(directory.path(), "two.pem");
        fs::remove_file(&current).unwrap();
        let rotation = async {
            sleep(Duration::from_millis(10)).await;
            symlink(&next, directory.path().join("updated.pem")).unwrap();
            fs::rename(directory.path().join("updated.pem"), &current).unwrap();
        };
        let (check, ()) = tokio::join!(credentials.check(CheckCause::Due), rotation);
        assert!(matches!(check, Check::Renewed(_)), "{check:?}");
        assert!(credentials.description().1.is_none());
        assert_eq!(credentials.check(CheckCause::Due).await, Check::Unchanged);
    }

    #[tokio::test(start_paused = true)]
    async fn last_certificate_stays_in_use_while_its_file_is_missing() {
        let directory = tempfile::TempDir::new().unwrap();
        let current = directory.path().join("current.pem");
        let one = issue(directory.path(), "one.pem");
        symlink(&one, &current).unwrap();
        let (_, started) = Credentials::load(kubelet(directory.path())).await.unwrap();
        let credentials = started.credentials;
        let (tls, _) = credentials.tls().unwrap();
        fs::remove_file(&current).unwrap();
        assert_eq!(credentials.check(CheckCause::Due).await, Check::Failed);
        assert!(Arc::ptr_eq(&tls, &credentials.tls().unwrap().0));
        assert!(credentials.description().1.is_some());
        symlink(&one, &current).unwrap();
        let check = credentials.check(CheckCause::Due).await;
        assert!(
            matches!(check, Check::Unchanged | Check::Renewed(_)),
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
        let (settings, started) = Credentials::load(source).await.unwrap();
        let credentials = started.credentials;
        assert_eq!(settings.namespace, "home");
        let shown = || {
            credentials
                .authorization()
                .0
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(shown(), "Bearer one");
        assert_eq!(credentials.check(CheckCause::Due).await, Check::Unchanged);

        // The kubelet replaces the token by the rename of a link.
        fs::write(at("token"), "").unwrap();
        assert_eq!(credentials.check(CheckCause::Due).await, Check::Failed);
        assert_eq!(shown(), "Bearer one");
        fs::write(at("next"), "two").unwrap();
        fs::rename(at("next"), at("token")).unwrap();
        let renewed = Generation {
            handshake: 0,
            head: 1,
        };
        let check = credentials.check(CheckCause::Due).await;
        assert_eq!(check, Check::RenewedToken(renewed));
        assert_eq!(shown(), "Bearer two");

        // One odd certificate leaves the others usable; a bundle without any does not.
        let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(at("ca.crt"), format!("text\n{odd}{}", authority.cert.pem())).unwrap();
        let renewed = Generation {
            handshake: 1,
            head: 2,
        };
        assert_eq!(
            credentials.check(CheckCause::Due).await,
            Check::Renewed(renewed)
        );
        fs::write(at("ca.crt"), odd).unwrap();
        assert_eq!(credentials.check(CheckCause::Due).await, Check::Failed);
    }
}
