//! Hooks as they are written: the fields of the long form, before they are checked.
//!
//! Invariant: nothing here is shown. Headers, bodies, variables and arguments may be credentials.

use std::{collections::BTreeMap, fmt, time::Duration};

use larder_objects::{go_duration, yaml::ShortOr};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Number;
use smol_str::SmolStr;

/// The fields of a hook.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookFields {
    /// Only in the agent's configuration, as `selector`.
    pub(super) pods: Option<Vec<String>>,
    pub(super) selector: Option<SelectorFields>,
    pub(super) name: Option<String>,
    pub(super) volumes: Option<Vec<SmolStr>>,
    pub(super) paths: Option<Vec<String>>,
    pub(super) environment: Option<bool>,
    pub(super) container: Option<SmolStr>,
    pub(super) signal: Option<SignalField>,
    pub(super) http: Option<HttpField>,
    pub(super) restart: Option<RestartField>,
    pub(super) exec: Option<ExecField>,
    pub(super) steps: Option<Vec<StepFields>>,
    pub(super) debounce: Option<ShortOr<Pause, DebounceFields>>,
    pub(super) splay: Option<Pause>,
    pub(super) timeout: Option<Pause>,
    pub(super) retry: Option<RetryFields>,
    pub(super) on_failure: Option<OnFailureWord>,
    pub(super) initial: Option<bool>,
}

impl fmt::Debug for HookFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookFields").finish_non_exhaustive()
    }
}

/// The one action of a step.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepFields {
    pub(super) signal: Option<SignalField>,
    pub(super) http: Option<HttpField>,
    pub(super) restart: Option<RestartField>,
    pub(super) exec: Option<ExecField>,
}

/// Labels of pods.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SelectorFields {
    pub(super) match_labels: BTreeMap<String, String>,
}

pub(super) type SignalField = ShortOr<NumberOrText, SignalFields>;
pub(super) type HttpField = ShortOr<String, HttpFields>;
pub(super) type RestartField = ShortOr<bool, RestartFields>;
pub(super) type ExecField = ShortOr<Vec<String>, ExecFields>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalFields {
    pub(super) name: NumberOrText,
    pub(super) process: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RestartFields {
    pub(super) signal: Option<NumberOrText>,
    pub(super) grace: Option<Pause>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ExecFields {
    pub(super) command: Vec<String>,
    pub(super) user: Option<String>,
    pub(super) working_directory: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) log_output: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpFields {
    pub(super) url: Option<String>,
    pub(super) scheme: Option<Scheme>,
    pub(super) port: Option<NumberOrText>,
    pub(super) path: Option<String>,
    pub(super) method: Option<Method>,
    pub(super) headers: Option<BTreeMap<String, String>>,
    pub(super) body: Option<String>,
    pub(super) expect: Option<Vec<NumberOrText>>,
    pub(super) auth: Option<AuthFields>,
    pub(super) tls: Option<TlsFields>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) enum Scheme {
    #[serde(rename = "http", alias = "HTTP")]
    Http,
    #[serde(rename = "https", alias = "HTTPS")]
    Https,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Method {
    Get,
    Put,
    Post,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuthFields {
    pub(super) volume: SmolStr,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) bearer: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TlsFields {
    pub(super) ca: Option<String>,
    pub(super) server_name: Option<String>,
    pub(super) insecure_skip_verify: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DebounceFields {
    pub(super) min: Pause,
    pub(super) max: Option<Pause>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryFields {
    pub(super) min: Option<Pause>,
    pub(super) max: Option<Pause>,
    pub(super) attempts: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) enum OnFailureWord {
    Retry,
    Ignore,
    Restart,
}

/// A duration as Go writes it.
#[derive(Clone, Copy)]
pub(super) struct Pause(pub(super) Duration);

impl<'de> Deserialize<'de> for Pause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "expected a duration such as 100ms, 20s or 1m30s";
        let wrong = |_| D::Error::custom(expected);
        let text = String::deserialize(deserializer).map_err(wrong)?;
        go_duration::parse(&text)
            .map(Self)
            .map_err(|_| D::Error::custom(expected))
    }
}

/// A port, a status or, by mistake, a signal: a number, or a name.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
pub(super) enum NumberOrText {
    Number(Number),
    Text(String),
}
