//! Timing of hooks: when they fire, and how long their steps may take.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use smol_str::SmolStr;

use super::{Action, Restart};

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
/// Grace period of a pod without its own: the API server's default.
const GRACE: Duration = Duration::from_secs(30);
/// Longest grace period that counts. The API server admits any number of seconds, also one that no time can be added to.
const MAX_GRACE: Duration = Duration::from_hours(24);
/// Longest time for a restart, beyond the grace period.
const RESTART_TIMEOUT: Duration = Duration::from_mins(1);

impl Timing {
    /// With this quiet period, no random pause, and the defaults for the rest.
    pub fn new(debounce: Debounce) -> Self {
        Self {
            debounce,
            splay: Duration::ZERO,
            timeout: None,
            retry: Retry::default(),
        }
    }

    /// The longest time for `step`; `grace` is the pod's grace period.
    pub fn timeout_of(&self, step: &Action, grace: Duration) -> Duration {
        let timeout = self.timeout.unwrap_or(match step {
            Action::Signal(_) | Action::Http(_) => SHORT_TIMEOUT,
            Action::Exec(_) => EXEC_TIMEOUT,
            Action::Restart(restart) => restart.grace_or(grace) + RESTART_TIMEOUT,
        });
        timeout.min(MAX_PAUSE)
    }
}

/// How long the containers of `pod` may take to end: `terminationGracePeriodSeconds`, 30 s by default, at most a day.
pub fn grace_period(pod: &Pod) -> Duration {
    let seconds = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(GRACE, Duration::from_secs).min(MAX_GRACE)
}

/// How the containers of a pod are stopped where a hook does not say so.
#[derive(Clone, Debug, Default)]
pub struct StopDefaults {
    /// Time from the signal to KILL.
    pub grace: Duration,
    /// `lifecycle.stopSignal` of each container that has one.
    pub signals: BTreeMap<SmolStr, SmolStr>,
}

impl StopDefaults {
    /// Those of `pod`.
    pub fn of(pod: &Pod) -> Self {
        let containers = pod.spec.iter().flat_map(|spec| {
            spec.init_containers
                .iter()
                .flatten()
                .chain(&spec.containers)
        });
        let signals = containers.filter_map(|container| {
            let signal = container.lifecycle.as_ref()?.stop_signal.as_deref()?;
            Some((container.name.as_str().into(), signal.into()))
        });
        Self {
            grace: grace_period(pod),
            signals: signals.collect(),
        }
    }

    /// The name of the signal with which `restart` stops `container`: the hook's, the container's, or SIGTERM.
    pub fn signal(&self, restart: &Restart, container: &str) -> &str {
        match (restart.signal, self.signals.get(container)) {
            (Some(signal), _) => signal.name(),
            (None, Some(signal)) => signal,
            (None, None) => "SIGTERM",
        }
    }
}

impl Restart {
    /// The time until KILL, at most `MAX_GRACE`; `grace` is the pod's grace period, which may be anything.
    pub fn grace_or(&self, grace: Duration) -> Duration {
        self.grace.unwrap_or(grace).min(MAX_GRACE)
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

/// A longer time counts as this: a point in time that far ahead can always be represented.
pub(crate) const MAX_PAUSE: Duration = Duration::from_hours(365 * 24);

/// A shorter [`Retry::min`] counts as this. Annotations may say zero, which would keep the node busy.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// A shorter [`Retry::max`] counts as this.
const MIN_MAX_PAUSE: Duration = Duration::from_secs(1);

impl Retry {
    /// The pause after `failures` failures in a row, with `random` in [0, 1).
    pub(crate) fn pause(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let (min, max) = (
            self.min.max(MIN_PAUSE),
            self.max.clamp(MIN_MAX_PAUSE, MAX_PAUSE),
        );
        let pause = min.saturating_mul(1 << doublings).min(max);
        pause.mul_f64(0.5 + random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

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
    // on-change 66
    fn containers_stop_with_their_own_signal_unless_the_hook_names_one() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "terminationGracePeriodSeconds": 5,
            "initContainers": [{"name": "proxy", "restartPolicy": "Always", "lifecycle": {"stopSignal": "SIGQUIT"}}],
            "containers": [
                {"name": "web", "lifecycle": {"stopSignal": "SIGRTMIN+3"}},
                {"name": "job", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
            ],
        }}))
        .unwrap();
        let defaults = StopDefaults::of(&pod);
        assert_eq!(defaults.grace, Duration::from_secs(5));
        let hup = Restart {
            signal: Some(crate::Signal::Hup),
            ..Restart::default()
        };
        for (container, expected) in [
            ("proxy", "SIGQUIT"),
            ("web", "SIGRTMIN+3"),
            ("job", "SIGTERM"),
        ] {
            assert_eq!(defaults.signal(&Restart::default(), container), expected);
            assert_eq!(defaults.signal(&hup, container), "SIGHUP");
        }
    }

    #[test]
    fn grace_period_without_end_can_be_added_to_a_time() {
        let of = |seconds: Option<i64>| {
            let spec = PodSpec {
                termination_grace_period_seconds: seconds,
                ..PodSpec::default()
            };
            grace_period(&Pod {
                spec: Some(spec),
                ..Pod::default()
            })
        };
        assert_eq!(of(None), GRACE);
        assert_eq!(of(Some(5)), Duration::from_secs(5));
        assert_eq!(of(Some(-5)), GRACE);
        assert_eq!(of(Some(i64::MAX)), MAX_GRACE);
    }

    #[test]
    fn longest_grace_period_can_be_added_to_the_present() {
        let timing = Timing::new(Debounce::NONE);
        let restart = Restart::default();
        let longest = Duration::from_secs(i64::MAX.unsigned_abs());
        let timeout = timing.timeout_of(&Action::Restart(restart), longest);
        let now = tokio::time::Instant::now();
        assert!(now.checked_add(timeout).is_some(), "{timeout:?}");
        assert!(restart.grace_or(longest) < timeout);
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
