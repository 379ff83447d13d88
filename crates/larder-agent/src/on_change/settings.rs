//! The agent's configuration of hooks: the operator's own, and the actions that pods may request.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use larder_on_change::{
    Hook, Paths,
    parse::{self, AllowedActions, HookError},
};
use larder_pods::StoredPod;
use serde_json::{Map, Value};

/// Default limit of rounds that run at the same time.
const PARALLELISM: usize = 8;

/// The settings of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnChangeConfig {
    /// Actions that annotations of pods may request. `onChangeFromPods`; everything but commands by default.
    pub from_pods: AllowedActions,
    /// Limit of rounds that run at the same time. `onChangeParallelism`; defaults to 8.
    pub parallelism: usize,
    /// The operator's hooks. `onChange`; none by default.
    pub hooks: Vec<ConfiguredHook>,
    /// Directories in memory for the key of all digests, in order of preference; one that is not in memory is skipped.
    /// Defaults to `/run/larder` for root, `$XDG_RUNTIME_DIR/larder` for others, then the root directory.
    pub key_dirs: Vec<PathBuf>,
}

impl Default for OnChangeConfig {
    fn default() -> Self {
        Self {
            from_pods: AllowedActions::default(),
            parallelism: PARALLELISM,
            hooks: Vec::new(),
            key_dirs: Vec::new(),
        }
    }
}

impl OnChangeConfig {
    /// `onChangeFromPods` as it is written.
    pub(crate) fn allowed_words(&self) -> Vec<&'static str> {
        let AllowedActions {
            signal,
            http,
            restart,
        } = self.from_pods;
        let words = [(signal, "signal"), (http, "http"), (restart, "restart")];
        let allowed = words.into_iter().filter(|(allowed, _)| *allowed);
        allowed.map(|(_, word)| word).collect()
    }

    /// Whether a hook of the operator runs commands.
    pub fn runs_commands(&self) -> bool {
        self.hooks.iter().any(|hook| hook.hook.runs_commands())
    }
}

/// A hook of the operator, for the pods that it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredHook {
    /// The pods.
    pub pods: PodSelector,
    /// The hook.
    pub hook: Arc<Hook>,
}

/// Selects pods of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodSelector {
    /// Globs of `NAMESPACE/NAME`. `*` does not cross the slash.
    Names(Paths),
    /// Labels that a pod must have, with these values.
    Labels(BTreeMap<String, String>),
}

impl PodSelector {
    /// Whether the pod is selected.
    pub fn selects(&self, pod: &StoredPod) -> bool {
        let metadata = &pod.metadata;
        match self {
            Self::Names(globs) => {
                let text = |field: &Option<String>| field.clone().unwrap_or_default();
                globs.contains(&format!(
                    "{}/{}",
                    text(&metadata.namespace),
                    text(&metadata.name)
                ))
            }
            Self::Labels(labels) => {
                let found = metadata.labels.as_ref();
                labels
                    .iter()
                    .all(|(name, value)| found.and_then(|labels| labels.get(name)) == Some(value))
            }
        }
    }
}

/// Reads an entry of `onChange`.
///
/// # Errors
///
/// The field below the entry, and the problem with it.
pub(crate) fn configured_hook(value: &Value, position: usize) -> Result<ConfiguredHook, String> {
    let Value::Object(fields) = value else {
        return Err(format!("[{position}]: expected a hook with fields"));
    };
    let mut fields = fields.clone();
    let pods = selector(&mut fields).map_err(|problem| format!("[{position}]{problem}"))?;
    let hook = parse::hook_of_value(&Value::Object(fields), position);
    let hook = hook.map_err(|error| error.to_string())?;
    let hook = Arc::new(hook);
    Ok(ConfiguredHook { pods, hook })
}

/// Checks the entries of `onChange` together.
///
/// # Errors
///
/// Two have one name.
pub(crate) fn check_together(hooks: &[ConfiguredHook]) -> Result<(), String> {
    for (later, hook) in hooks.iter().enumerate() {
        let same = |other: &ConfiguredHook| other.hook.name == hook.hook.name;
        if let Some(earlier) = hooks[..later].iter().position(same) {
            let name = &hook.hook.name;
            return Err(format!(
                "[{later}].name: [{earlier}] is named {name:?} as well"
            ));
        }
    }
    Ok(())
}

fn selector(fields: &mut Map<String, Value>) -> Result<PodSelector, &'static str> {
    match (fields.remove("pods"), fields.remove("selector")) {
        (Some(pods), None) => {
            let expected = ".pods: expected globs such as web/nginx-*";
            let globs: Vec<String> = serde_json::from_value(pods).map_err(|_| expected)?;
            let is_name = |glob: &String| glob.split('/').count() == 2;
            if globs.is_empty() || !globs.iter().all(is_name) {
                return Err(expected);
            }
            Paths::new(globs)
                .map(PodSelector::Names)
                .map_err(|_| expected)
        }
        (None, Some(selector)) => {
            let expected = ".selector: expected matchLabels with at least one label";
            let Value::Object(mut selector) = selector else {
                return Err(expected);
            };
            let labels = selector.remove("matchLabels").ok_or(expected)?;
            let labels: BTreeMap<_, _> = serde_json::from_value(labels).map_err(|_| expected)?;
            if labels.is_empty() || !selector.is_empty() {
                return Err(expected);
            }
            Ok(PodSelector::Labels(labels))
        }
        (Some(_), Some(_)) => Err(": expected either pods or selector"),
        (None, None) => Err(": expected pods or selector"),
    }
}

/// Reads `onChangeFromPods`.
///
/// # Errors
///
/// What was expected instead.
pub(crate) fn allowed_actions(words: &[String]) -> Result<AllowedActions, &'static str> {
    let mut allowed = AllowedActions {
        signal: false,
        http: false,
        restart: false,
    };
    for word in words {
        match word.as_str() {
            "signal" => allowed.signal = true,
            "http" => allowed.http = true,
            "restart" => allowed.restart = true,
            "exec" => return Err("a pod may not run commands on its node: use onChange"),
            _ => return Err("expected some of signal, http, restart"),
        }
    }
    Ok(allowed)
}

/// The error of a pod's annotation, in one text.
pub(crate) fn shown_error(annotation: &str, error: &HookError) -> String {
    // A field that does not begin with an index follows after a colon as well.
    format!("{annotation}: {error}")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str) -> StoredPod {
        let metadata = json!({"namespace": namespace, "name": name, "labels": {"app": "web"}});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        StoredPod::new(pod).unwrap()
    }

    #[test]
    fn pods_are_selected_by_name_or_label() {
        let hook = |fields: Value| {
            let mut hook = json!({"signal": "SIGHUP"});
            hook.as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            configured_hook(&hook, 0)
        };
        let selects = |fields: Value, namespace: &str, name: &str| {
            hook(fields).unwrap().pods.selects(&pod(namespace, name))
        };
        assert!(selects(json!({"pods": ["web/nginx-*"]}), "web", "nginx-1"));
        assert!(!selects(
            json!({"pods": ["web/nginx-*"]}),
            "other",
            "nginx-1"
        ));
        assert!(!selects(json!({"pods": ["*/nginx-*"]}), "web", "apache"));
        assert!(selects(
            json!({"selector": {"matchLabels": {"app": "web"}}}),
            "n",
            "p"
        ));
        assert!(!selects(
            json!({"selector": {"matchLabels": {"app": "db"}}}),
            "n",
            "p"
        ));
        let error = |fields: Value| hook(fields).unwrap_err();
        assert_eq!(error(json!({})), "[0]: expected pods or selector");
        assert_eq!(
            error(json!({"pods": ["nginx"]})),
            "[0].pods: expected globs such as web/nginx-*"
        );
        assert_eq!(
            error(json!({"pods": ["a/b"], "debuonce": "1s"})),
            "[0]: unknown field \"debuonce\""
        );
    }

    #[test]
    fn allowed_actions_are_words_without_exec() {
        let read = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(ToString::to_string).collect();
            allowed_actions(&words)
        };
        assert_eq!(
            read(&["signal", "http", "restart"]),
            Ok(AllowedActions::default())
        );
        assert!(!read(&[]).unwrap().signal);
        assert!(read(&["exec"]).is_err());
        assert!(read(&["kill"]).is_err());
    }
}
