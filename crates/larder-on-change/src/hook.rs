//! A hook: the content that it selects, its actions, and their timing.

pub(crate) mod http;
pub(crate) mod paths;
pub(crate) mod timing;

use std::{
    fmt,
    hash::{Hash, Hasher},
    time::Duration,
};

use ring::digest;
use smol_str::SmolStr;

pub(crate) use self::{
    http::{HttpAuth, HttpCall, HttpTarget, HttpTls, Port},
    paths::Paths,
    timing::{Debounce, Retry, Timing},
};
use crate::signal::Signal;

/// Most bytes of a program's name in the name of a hook, which has a position or a digest besides.
const MAX_LABEL: usize = 40;

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
    /// A hook that selects all files, and is retried.
    pub fn new(name: String, steps: Vec<Action>, timing: Timing) -> Self {
        Self {
            name,
            volumes: None,
            paths: Paths::default(),
            environment: false,
            container: None,
            steps,
            timing,
            on_failure: OnFailure::Retry,
            initial: false,
        }
    }

    /// Whether the hook selects the volume.
    pub fn selects_volume(&self, volume: &str) -> bool {
        let Some(volumes) = &self.volumes else {
            return true;
        };
        volumes.iter().any(|name| name == volume)
    }

    /// Whether the hook selects this file. A service account token counts only if a pattern names it: tokens are
    /// renewed all the time (rule F6).
    pub fn selects_file(&self, volume: &str, path: &str, is_token: bool) -> bool {
        self.selects_volume(volume)
            && if is_token {
                self.paths.names(path)
            } else {
                self.paths.contains(path)
            }
    }

    /// Identifies the definition of the hook across restarts: two hooks that differ in anything have different ones.
    /// Another version of larder may compute a different one, so that the hook counts as edited.
    pub fn definition(&self) -> Definition {
        Definition::of(self)
    }

    /// Its action in the short form: `signal:SIGHUP`. Several steps are separated by commas.
    pub fn action(&self) -> String {
        self.steps
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Whether a step sends a signal.
    pub fn signals(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Action::Signal(_)))
    }

    /// Whether a step runs a command.
    pub fn runs_commands(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Action::Exec(_)))
    }

    /// Whether a step ends the container's process.
    pub fn restarts(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Action::Restart(_)))
    }
}

/// Identifies the definition of a hook; see [`Hook::definition`]. Shown as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Definition(u128);

impl Definition {
    /// Identifies everything that `value` passes to its hasher.
    pub fn of(value: &impl Hash) -> Self {
        let mut hasher = Sha256Hasher(digest::Context::new(&digest::SHA256));
        value.hash(&mut hasher);
        let hash = hasher.0.finish();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_ref()[..16]);
        Self(u128::from_be_bytes(bytes))
    }
}

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
    /// The word for the action in the name of a hook that has none: of a command, the name of its program.
    pub fn label(&self) -> String {
        let Self::Exec(command) = self else {
            return self.word().to_owned();
        };
        let program = command.words.first().map_or("", String::as_str);
        let name = program
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .replace(char::is_control, "");
        match &name[..name.floor_char_boundary(MAX_LABEL)] {
            "" => self.word().to_owned(),
            name => name.to_owned(),
        }
    }

    /// The word for the action in status and metrics.
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
                let program = command.words.first().map_or("", String::as_str);
                write!(f, "exec:{program}")
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

/// How a container's process is ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Restart {
    /// The first signal; `None` for the container's `lifecycle.stopSignal`, or SIGTERM.
    pub signal: Option<Signal>,
    /// Time until KILL; `None` for the pod's grace period.
    pub grace: Option<Duration>,
    /// Select variables only (`restart:environment`).
    pub environment_only: bool,
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
    /// Whether the end of its output is logged, without values of Secrets (rule X5).
    pub log_output: bool,
}

impl Command {
    /// The command without options.
    pub fn new(words: Vec<String>) -> Self {
        Self {
            words,
            user: None,
            working_directory: "/".to_owned(),
            env: Vec::new(),
            log_output: false,
        }
    }
}

/// The values of variables may be credentials, so only the program is shown.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.words.first())
            .finish_non_exhaustive()
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn definition_changes_with_every_field() {
        let hook = |text: &str| {
            let origin = crate::parse::HookOrigin::Configuration;
            let mut hooks = crate::parse::hooks(text, origin, None).unwrap();
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
}
