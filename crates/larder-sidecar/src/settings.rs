//! The settings of the label form. The command fills them from the variables of k8s-sidecar and our own
//! (docs/spec/sidecar.md, section 4).
//!
//! Invariant: `Debug` shows no credential, payload or query.

use std::{collections::BTreeSet, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use larder_objects::PodIdentity;
use larder_on_change::{Debounce, HttpCall, HttpTls, HttpUrl};
use larder_watch::RequestTiming;

use crate::{place::Places, selection::Selection};

/// The longest time of a setting: a point in time that far ahead can always be represented.
pub(crate) const MAX_TIME: Duration = Duration::from_hours(365 * 24);

/// The settings of the label form. A time above a year counts as a year.
///
/// ```
/// use std::{collections::BTreeSet, path::Path};
///
/// use larder_objects::{Kind, PodIdentity};
/// use larder_on_change::Debounce;
/// use larder_sidecar::{LabelSettings, MAX_SILENCE, Places, UrlSettings, selections};
/// use larder_watch::RequestTiming;
///
/// let namespaces = BTreeSet::from(["monitoring".into()]);
/// let labels = Some("grafana_dashboard".to_owned());
/// let settings = LabelSettings {
///     selections: selections(&[Kind::ConfigMap], Some(namespaces), labels, None),
///     timing: RequestTiming {
///         max_silence: Some(MAX_SILENCE),
///         ..RequestTiming::default()
///     },
///     once: None,
///     files: Places::new(Path::new("/tmp/dashboards"), &[]).expect("the path is absolute"),
///     request: None,
///     script: None,
///     skip_init: false,
///     debounce: Debounce::DEFAULT,
///     urls: Some(UrlSettings::default()),
///     listen: Vec::new(),
///     pod: PodIdentity::default(),
///     state_dir: "/tmp/larder-sidecar".into(),
/// };
/// # assert_eq!(settings.selections.len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct LabelSettings {
    /// The watches (rules L1, L2), as [`selections`](crate::selections) returns them.
    pub selections: BTreeSet<Selection>,
    /// How they are followed. `poll` is 1 s at least, `max_silence` 10 s: by default [`MAX_SILENCE`](crate::MAX_SILENCE),
    /// or twice `poll` and a minute.
    pub timing: RequestTiming,
    /// Everything is listed and written once, within this time; script and request follow once, too (rule N5).
    pub once: Option<Duration>,
    /// Where their files go.
    pub files: Places,
    /// The request after a change (rules N1 to N3).
    pub request: Option<RequestSettings>,
    /// The script after a change, and its longest time (rule N4).
    pub script: Option<(PathBuf, Duration)>,
    /// No request after the first sync (rule N2).
    pub skip_init: bool,
    /// The quiet period before script and request (rule N1).
    pub debounce: Debounce,
    /// How `*.url` keys are fetched; `None` if they are files like any other.
    pub urls: Option<UrlSettings>,
    /// Addresses of health and metrics, of which the first that can be used is; none for no health (rule H6).
    pub listen: Vec<SocketAddr>,
    /// The pod of this process, for hooks and the script.
    pub pod: PodIdentity,
    /// Directory of the index (rules D2 to D4). Sidecars may share it, if their folders or selections differ.
    pub state_dir: PathBuf,
}

/// A request after a change.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// The request, but for credentials and TLS.
    pub call: HttpCall,
    /// How it is sent.
    pub client: HttpSettings,
}

/// How requests are sent.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Time for one attempt; 10 s by default.
    pub timeout: Duration,
    /// Fast retries. Slower attempts follow, unless these are none (rule N3).
    pub retries: Retries,
    /// User and password; none by default.
    pub credentials: Credentials,
    /// How certificates are verified.
    pub tls: HttpTls,
    /// Whether the answer of a server that fails is the content of a file (rule L7); off by default.
    pub enable_5xx: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            retries: Retries {
                total: 5,
                connect: 10,
                read: 5,
                factor: 1.1,
            },
            credentials: Credentials::default(),
            tls: HttpTls::default(),
            enable_5xx: false,
        }
    }
}

/// Fast retries of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retries {
    /// Of any kind; 5 by default.
    pub total: u32,
    /// After no connection; 10 by default. The smaller of this and the total holds.
    pub connect: u32,
    /// After no answer; 5 by default, likewise.
    pub read: u32,
    /// The pause before retry n is this × 2^(n−1) seconds, at most 2 min, and none before the first; 1.1 by default.
    pub factor: f64,
}

impl Retries {
    /// The longest pause.
    const MAX_PAUSE: Duration = Duration::from_mins(2);

    /// The pause before retry number `retry`, from 1.
    pub(crate) fn pause(&self, retry: u32) -> Duration {
        if retry <= 1 {
            return Duration::ZERO;
        }
        let pause =
            Duration::try_from_secs_f64(self.factor * f64::from((retry - 1).min(1000)).exp2());
        pause.map_or(Self::MAX_PAUSE, |pause| pause.min(Self::MAX_PAUSE))
    }
}

/// User and password of basic authentication, which takes both. `Debug` shows neither.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The user, if no file has it.
    pub username: String,
    /// The password, if no file has it.
    pub password: String,
    /// File with the user, read for each request.
    pub username_file: Option<PathBuf>,
    /// File with the password, read for each request.
    pub password_file: Option<PathBuf>,
    /// Their encoding. The request fails if they have characters outside it.
    pub encoding: Encoding,
}

impl Credentials {
    /// Whether they may change while the sidecar runs.
    pub(crate) fn has_files(&self) -> bool {
        self.username_file.is_some() || self.password_file.is_some()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// Encoding of credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// ISO 8859-1.
    #[default]
    Latin1,
    /// UTF-8.
    Utf8,
    /// ASCII.
    Ascii,
}

/// `*.url` keys (rule L7).
#[derive(Clone, Debug, Default)]
pub struct UrlSettings {
    /// Time between two fetches, 1 s at least; `None`, the default, if only a change of the object causes one.
    pub refresh: Option<Duration>,
    /// Where credentials go, and which loopback addresses are asked; nowhere, and none, by default.
    pub credentials: UrlCredentials,
    /// How they are fetched.
    pub client: HttpSettings,
}

/// The URLs that the operator trusts: their content may take credentials, or come from a loopback address.
#[derive(Clone, Debug, Default)]
pub enum UrlCredentials {
    /// None.
    #[default]
    Never,
    /// Those below these.
    Below(Vec<HttpUrl>),
    /// All, with the origin of the first one if redirects lead to others.
    Always,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_retries_double_and_the_first_is_none() {
        let mut retries = HttpSettings::default().retries;
        let pauses = [1, 2, 3, 20].map(|n| retries.pause(n).as_millis());
        assert_eq!(pauses, [0, 2200, 4400, 120_000]);
        retries.factor = 0.0;
        assert_eq!(retries.pause(2000), Duration::ZERO);
        for factor in [f64::NAN, f64::INFINITY, -1.0] {
            retries.factor = factor;
            assert_eq!(retries.pause(2), Duration::from_mins(2));
        }
    }
}
