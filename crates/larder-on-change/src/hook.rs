//! A hook: the content that it selects, its actions, and their timing.

use std::{
    fmt,
    hash::{Hash, Hasher},
    time::Duration,
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ring::digest;
use smol_str::SmolStr;

use crate::signal::Signal;

/// One hook of a pod or of a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hook {
    /// Name in status, events and log; unique among the hooks of one list.
    pub name: String,
    /// Names of the volumes that it selects; `None` for all that larder delivers to the pod.
    pub volumes: Option<Vec<SmolStr>>,
    /// The files that it selects in these volumes.
    pub paths: Paths,
    /// Whether it selects variables, too.
    pub environment: bool,
    /// The container that signals and restarts go to; `None` for every regular container or native sidecar that mounts
    /// a changed volume or whose variables changed.
    pub container: Option<SmolStr>,
    /// Its steps, in order; at least one.
    pub steps: Vec<Action>,
    /// Its timing.
    pub timing: Timing,
    /// The reaction when it keeps failing.
    pub on_failure: OnFailure,
    /// Whether it also fires after a first delivery.
    pub initial: bool,
}

impl Hook {
    /// Whether the hook selects the volume.
    pub fn looks_at_volume(&self, volume: &str) -> bool {
        let Some(volumes) = &self.volumes else {
            return true;
        };
        volumes.iter().any(|name| name == volume)
    }

    /// Whether the hook selects this file. A service account token counts only if a pattern names it: tokens are
    /// renewed all the time (rule F6).
    pub fn looks_at_file(&self, volume: &str, path: &str, is_token: bool) -> bool {
        self.looks_at_volume(volume)
            && if is_token {
                self.paths.names(path)
            } else {
                self.paths.contains(path)
            }
    }

    /// Identifies the definition of the hook across restarts: two hooks that differ in anything have different ones.
    /// Another version of larder may compute a different one, so that the hook counts as edited.
    pub fn definition(&self) -> Definition {
        let mut hasher = Sha256Hasher(digest::Context::new(&digest::SHA256));
        self.hash(&mut hasher);
        let hash = hasher.0.finish();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_ref()[..16]);
        Definition(u128::from_be_bytes(bytes))
    }

    /// Its action in the short form: `signal:SIGHUP`. Several steps are separated by commas.
    pub fn action(&self) -> String {
        let steps: Vec<_> = self.steps.iter().map(ToString::to_string).collect();
        steps.join(", ")
    }

    /// Whether a step sends a signal.
    pub fn signals(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Action::Signal(_)))
    }

    /// Whether a step runs a command.
    pub fn runs_commands(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Action::Exec(_)))
    }

    /// Whether a step ends the container's process.
    pub fn restarts(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Action::Restart(_)))
    }
}

/// Identifies the definition of a hook; see [`Hook::definition`]. Shown as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Definition(u128);

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Feeds SHA-256 with what a derived `Hash` writes.
struct Sha256Hasher(digest::Context);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: the whole hash is taken.
    fn finish(&self) -> u64 {
        0
    }
}

/// Patterns of paths: `*` and `?` stay within a directory, `**` crosses directories. Without patterns every path
/// matches.
#[derive(Clone, Default)]
pub struct Paths {
    patterns: Vec<String>,
    set: GlobSet,
}

/// A pattern is not a glob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a pattern such as *.conf or conf.d/**")]
pub struct InvalidPattern {
    /// The pattern.
    pub pattern: String,
}

impl Paths {
    /// The paths that one of the patterns matches.
    ///
    /// # Errors
    ///
    /// A pattern is malformed.
    pub fn new(patterns: Vec<String>) -> Result<Self, InvalidPattern> {
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            let invalid = |_| InvalidPattern {
                pattern: pattern.clone(),
            };
            let glob = GlobBuilder::new(pattern).literal_separator(true).build();
            set.add(glob.map_err(invalid)?);
        }
        let set = set.build().map_err(|_| InvalidPattern {
            pattern: patterns.join(", "),
        })?;
        Ok(Self { patterns, set })
    }

    /// The patterns as they were given.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Whether a pattern matches the path, or there is none.
    pub fn contains(&self, path: &str) -> bool {
        self.patterns.is_empty() || self.set.is_match(path)
    }

    /// Whether a pattern other than a catch-all matches the path.
    fn names(&self, path: &str) -> bool {
        let named = |index: usize| !matches!(self.patterns[index].as_str(), "*" | "**" | "**/*");
        self.set.matches(path).into_iter().any(named)
    }
}

impl PartialEq for Paths {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Paths {}

impl Hash for Paths {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.patterns.hash(state);
    }
}

impl fmt::Debug for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.patterns.fmt(f)
    }
}

/// One step of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a signal to processes of the container.
    Signal(SignalTarget),
    /// Send an HTTP request.
    Http(HttpCall),
    /// End the container's main process, so that the container's runtime restarts it.
    Restart(Restart),
    /// Run a command.
    Exec(Command),
}

impl Action {
    /// The word for the action in names, status and metrics.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Signal(_) => "signal",
            Self::Http(_) => "http",
            Self::Restart(_) => "restart",
            Self::Exec(_) => "exec",
        }
    }
}

/// The short form. Of a command only its program is shown: arguments may be credentials.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(target) => write!(f, "signal:{}", target.signal),
            Self::Http(call) => write!(f, "http:{}", call.target),
            Self::Restart(restart) if restart.environment_only => {
                f.write_str("restart:environment")
            }
            Self::Restart(_) => f.write_str("restart"),
            Self::Exec(command) => {
                write!(
                    f,
                    "exec:{}",
                    command.words.first().map_or("", String::as_str)
                )
            }
        }
    }
}

/// A signal and its target processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignalTarget {
    /// The signal.
    pub signal: Signal,
    /// All processes of the target with this executable name; `None` for the main process.
    pub process: Option<String>,
}

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
    Url(String),
}

/// The target without user and query, as logs may show it (rule S6).
impl fmt::Display for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before_query =
            |text: &str| text.split(['?', '#']).next().unwrap_or_default().to_owned();
        match self {
            Self::Pod { port, path, .. } => write!(f, "{port}{}", before_query(path)),
            Self::Url(url) => {
                let url = before_query(url);
                let (scheme, rest) = url.split_once("://").unwrap_or(("", &url));
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let host = authority.rsplit('@').next().unwrap_or_default();
                write!(f, "{scheme}://{host}{path}")
            }
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

/// How a container's process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Restart {
    /// The first signal.
    pub signal: Signal,
    /// Time until KILL; `None` for the pod's grace period.
    pub grace: Option<Duration>,
    /// Select variables only (`restart:environment`).
    pub environment_only: bool,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            signal: Signal::Term,
            grace: None,
            environment_only: false,
        }
    }
}

/// A command to run, without a shell (rule X1).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Command {
    /// Program and arguments; at least one.
    pub words: Vec<String>,
    /// The user it runs as; `None` for larder's own.
    pub user: Option<String>,
    /// Its directory.
    pub working_directory: String,
    /// Further variables.
    pub env: Vec<(String, String)>,
    /// When its output is logged.
    pub output: Output,
}

/// The values of variables may be credentials, so only the program is shown.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.words.first())
            .finish_non_exhaustive()
    }
}

/// When the output of a command is logged (rule X5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Output {
    /// After a failure.
    #[default]
    OnFailure,
    /// After each run.
    Always,
    /// Never.
    Never,
}

/// What follows when a hook keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Try again until it succeeds, or until `retry.attempts` are used up.
    #[default]
    Retry,
    /// One attempt, which counts as done.
    Ignore,
    /// After `retry.attempts`, restart the container.
    Restart,
}

/// When a hook fires and how long its steps may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The quiet period after a change.
    pub debounce: Debounce,
    /// Upper bound of a random pause before each round.
    pub splay: Duration,
    /// Longest time for each step; `None` for the action's default.
    pub timeout: Option<Duration>,
    /// Pauses after failures.
    pub retry: Retry,
}

/// Longest time for a signal or an HTTP request.
const SHORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a command.
const EXEC_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for a restart, beyond the grace period.
const RESTART_TIMEOUT: Duration = Duration::from_mins(1);

impl Timing {
    /// The longest time for `step`; `grace` is the pod's grace period.
    pub fn timeout_of(&self, step: &Action, grace: Duration) -> Duration {
        self.timeout.unwrap_or(match step {
            Action::Signal(_) | Action::Http(_) => SHORT_TIMEOUT,
            Action::Exec(_) => EXEC_TIMEOUT,
            Action::Restart(restart) => restart.grace.unwrap_or(grace) + RESTART_TIMEOUT,
        })
    }
}

/// The quiet period: a round waits until `min` has passed without another change, but no longer than `max` after the
/// first (rule T1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Debounce {
    /// Time without another change.
    pub min: Duration,
    /// Longest time since the first change.
    pub max: Duration,
}

impl Debounce {
    /// For signals, requests and commands.
    pub const DEFAULT: Self = Self {
        min: Duration::from_millis(100),
        max: Duration::from_secs(2),
    };
    /// For restarts.
    pub const RESTART: Self = Self {
        min: Duration::from_secs(1),
        max: Duration::from_secs(10),
    };
    /// For `larder exec`.
    pub const NONE: Self = Self {
        min: Duration::ZERO,
        max: Duration::ZERO,
    };
}

/// Pauses after failures: they begin with `min` and double up to `max`, each times a random 0.5 to 1 (rule T8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    /// The first pause. Below 10 ms it counts as 10 ms.
    pub min: Duration,
    /// The longest pause. Below 1 s it counts as 1 s.
    pub max: Duration,
    /// Number of attempts of a round; 0 for no limit.
    pub attempts: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            min: Duration::from_secs(1),
            max: Duration::from_mins(5),
            attempts: 0,
        }
    }
}

/// A shorter [`Retry::min`] counts as this. Annotations may say zero, which would keep the node busy.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// A shorter [`Retry::max`] counts as this.
const LEAST_LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Retry {
    /// The pause after `failures` failures in a row, with `random` in [0, 1).
    pub(crate) fn pause(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let (min, max) = (self.min.max(LEAST_PAUSE), self.max.max(LEAST_LONGEST_PAUSE));
        let pause = min.saturating_mul(1 << doublings).min(max);
        pause.mul_f64(0.5 + random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(patterns: &[&str]) -> Paths {
        Paths::new(patterns.iter().map(ToString::to_string).collect()).unwrap()
    }

    #[test]
    fn definition_changes_with_every_field() {
        let hook = |text: &str| {
            let authority = crate::parse::Authority::Configuration;
            let mut hooks = crate::parse::hooks(text, authority, None).unwrap();
            hooks.remove(0).definition()
        };
        let one = hook("[{signal: SIGHUP, volumes: [a]}]");
        assert_eq!(one, hook("[{volumes: [a], signal: SIGHUP}]"));
        for other in [
            "[{signal: SIGUSR1, volumes: [a]}]",
            "[{signal: SIGHUP, volumes: [b]}]",
            "[{signal: SIGHUP, volumes: [a], paths: ['*.conf']}]",
            "[{signal: SIGHUP, volumes: [a], debounce: 3s}]",
            "[{signal: SIGHUP, volumes: [a], container: web}]",
        ] {
            assert_ne!(one, hook(other), "{other}");
        }
        assert_eq!(one.to_string().len(), 32);
    }

    // on-change 17
    #[test]
    fn patterns_stay_within_a_directory_unless_doubled() {
        assert!(paths(&[]).contains("a/b.conf"));
        assert!(paths(&["*.conf"]).contains("b.conf"));
        assert!(!paths(&["*.conf"]).contains("a.txt"));
        assert!(!paths(&["*.conf"]).contains("a/b.conf"));
        assert!(paths(&["**/*.conf"]).contains("a/b.conf"));
        assert!(paths(&["conf.d/**"]).contains("conf.d/x/y"));
        assert!(paths(&["a?.conf"]).contains("ab.conf"));
        assert!(Paths::new(vec!["[".into()]).is_err());
    }

    // on-change 18
    #[test]
    fn tokens_count_only_when_a_pattern_names_them() {
        assert!(!paths(&[]).names("token"));
        assert!(!paths(&["**"]).names("token"));
        assert!(paths(&["tok*"]).names("token"));
    }

    // on-change 53
    #[test]
    fn shown_urls_have_neither_user_nor_query() {
        let url = HttpTarget::Url("https://user:canary@host:9/-/reload?token=canary#x".into());
        assert_eq!(url.to_string(), "https://host:9/-/reload");
        let path = "/-/reload?token=canary".into();
        let pod = HttpTarget::Pod {
            port: Port::Number(9090),
            path,
            tls: false,
        };
        assert_eq!(format!("{pod:?}"), "9090/-/reload");
    }

    // on-change 29
    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry::default();
        let bounds = |failures| (retry.pause(failures, 0.0), retry.pause(failures, 1.0));
        let secs = Duration::from_secs_f64;
        assert_eq!(bounds(1), (secs(0.5), secs(1.0)));
        assert_eq!(bounds(2), (secs(1.0), secs(2.0)));
        assert_eq!(bounds(3), (secs(2.0), secs(4.0)));
        assert_eq!(bounds(60), (secs(150.0), secs(300.0)));
    }

    #[test]
    fn pauses_of_zero_still_grow_to_a_second() {
        let retry = Retry {
            min: Duration::ZERO,
            max: Duration::ZERO,
            attempts: 0,
        };
        assert_eq!(retry.pause(1, 0.0), Duration::from_millis(5));
        assert_eq!(retry.pause(60, 0.0), Duration::from_millis(500));
    }
}
