//! The hooks of the agent's configuration, and the pods that they select.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use larder_objects::FieldPath;

use super::{
    AllowedActions, HookOrigin,
    error::HookError,
    long,
    place::{FieldPlace, ParseContext, check_container},
    written::HookFields,
};
use crate::{
    hook::{Definition, Hook, Paths},
    outline::PodOutline,
};

/// A hook for the pods that it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredHook {
    /// The pods.
    pub pods: PodSelector,
    /// The hook.
    pub hook: Arc<Hook>,
}

/// Selects pods of the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PodSelector {
    /// Globs of `NAMESPACE/NAME`. `*` does not cross the slash.
    Names(Paths),
    /// Labels that a pod must have, with these values.
    Labels(BTreeMap<String, String>),
}

impl PodSelector {
    /// Whether the pod is selected.
    pub fn selects(&self, pod: &ObjectMeta) -> bool {
        match self {
            Self::Names(globs) => globs.contains(&name_of(pod)),
            Self::Labels(labels) => {
                let found = pod.labels.as_ref();
                labels
                    .iter()
                    .all(|(name, value)| found.and_then(|labels| labels.get(name)) == Some(value))
            }
        }
    }
}

impl ConfiguredHook {
    /// Checks that a pod has what the hook names, if its `pods` name the pod as well: one that only matches a pattern, or
    /// has the labels, may lack it.
    pub(crate) fn check(&self, pod: &ObjectMeta, outline: &PodOutline) -> Result<(), HookError> {
        let PodSelector::Names(globs) = &self.pods else {
            return Ok(());
        };
        if !globs.has_text(&name_of(pod)) {
            return Ok(());
        }
        let context = ParseContext {
            origin: HookOrigin::Configuration,
            outline: Some(outline),
            before: 0,
        };
        let place = FieldPlace {
            path: FieldPath::root().child(&self.hook.name),
            context,
        };
        for volume in self.hook.volumes.iter().flatten() {
            place.child("volumes").check_volume(volume)?;
        }
        self.hook.container.iter().try_for_each(|name| {
            check_container(name, outline)
                .map_err(|problem| place.child("container").error(problem))
        })
    }
}

/// `NAMESPACE/NAME`
fn name_of(pod: &ObjectMeta) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    format!("{}/{}", text(&pod.namespace), text(&pod.name))
}

/// Digits of the digest in the name of a hook without one.
const NAME_DIGITS: usize = 8;

/// The entries of `onChange`, read one by one.
#[derive(Debug, Default)]
pub struct HookList {
    hooks: Vec<ConfiguredHook>,
    /// The position of each name.
    names: HashMap<String, usize>,
    /// How many hooks without a name have this definition.
    equal: HashMap<String, usize>,
}

impl HookList {
    /// Reads an entry and adds it.
    ///
    /// A hook without a name is named after its action or program and a digest of its definition, not after its position: so it
    /// stays the same hook when others come and go. Of several that are equal, each but the first gets a number.
    ///
    /// # Errors
    ///
    /// The field, from the position of the entry on, and what is wrong with it: another hook may have its name.
    pub fn add(&mut self, mut entry: HookFields) -> Result<(), HookError> {
        let position = self.hooks.len();
        let context = ParseContext {
            origin: HookOrigin::Configuration,
            outline: None,
            before: 0,
        };
        let place = FieldPlace {
            path: FieldPath::root().index(position),
            context,
        };
        let pods = selector(&mut entry, &place)?;
        let is_named = entry.name.is_some();
        let mut hook = long::hook(entry, position, context)?;
        if !is_named {
            hook.name = String::new();
            let digest = Definition::of(&(&pods, &hook)).to_string();
            hook.name = format!("{}-{}", hook.steps[0].label(), &digest[..NAME_DIGITS]);
            let equal = self.equal.entry(hook.name.clone()).or_default();
            *equal += 1;
            if *equal > 1 {
                hook.name = format!("{}-{equal}", hook.name);
            }
        }
        if let Some(earlier) = self.names.insert(hook.name.clone(), position) {
            let problem = format!("[{earlier}] is named {:?} as well", hook.name);
            return Err(place.child("name").error(problem));
        }
        let hook = Arc::new(hook);
        self.hooks.push(ConfiguredHook { pods, hook });
        Ok(())
    }

    /// The hooks, in the order of the entries.
    pub fn into_hooks(self) -> Vec<ConfiguredHook> {
        self.hooks
    }
}

/// Takes the selector of pods out of the hook at `place`.
fn selector(entry: &mut HookFields, place: &FieldPlace<'_>) -> Result<PodSelector, HookError> {
    match (entry.pods.take(), entry.selector.take()) {
        (Some(globs), None) => {
            let is_name = |glob: &String| glob.split('/').count() == 2;
            let globs = Some(globs)
                .filter(|globs| !globs.is_empty() && globs.iter().all(is_name))
                .and_then(Paths::new);
            let wrong = || place.child("pods").expected("globs such as web/nginx-*");
            globs.map(PodSelector::Names).ok_or_else(wrong)
        }
        (None, Some(selector)) if selector.match_labels.is_empty() => Err(place
            .child("selector")
            .expected("matchLabels with at least one label")),
        (None, Some(selector)) => Ok(PodSelector::Labels(selector.match_labels)),
        (Some(_), Some(_)) => Err(place.expected("either pods or selector")),
        (None, None) => Err(place.expected("pods or selector")),
    }
}

/// Reads `onChangeFromPods`: the actions that annotations may request.
///
/// # Errors
///
/// What was expected instead.
pub fn allowed_actions(words: &[String]) -> Result<AllowedActions, &'static str> {
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn written(hook: &Value) -> HookFields {
        serde_json::from_value(hook.clone()).unwrap()
    }

    fn pod(namespace: &str, name: &str) -> ObjectMeta {
        let metadata = json!({"namespace": namespace, "name": name, "labels": {"app": "web"}});
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn hook_that_names_a_pod_names_what_that_pod_has() {
        let of_pod = json!({
            "metadata": {"namespace": "web", "name": "nginx"},
            "spec": {
                "containers": [{"name": "c"}],
                "volumes": [{"name": "conf", "configMap": {"name": "m"}}],
            },
        });
        let of_pod: Pod = serde_json::from_value(of_pod).unwrap();
        let outline = PodOutline::of(&of_pod);
        let checked = |pods: &str, volume: &str, container: &str| {
            let hook = json!({"name": "a", "signal": "SIGHUP", "pods": [pods], "volumes": [volume], "container": container});
            let mut list = HookList::default();
            list.add(written(&hook)).unwrap();
            let found = list.into_hooks()[0].check(&of_pod.metadata, &outline);
            found.map_err(|error| error.to_string())
        };
        assert_eq!(checked("web/nginx", "conf", "c"), Ok(()));
        let volume = r#"a.volumes: no volume "cnof"; there are conf"#;
        assert_eq!(checked("web/nginx", "cnof", "c"), Err(volume.to_owned()));
        let container = r#"a.container: no container "x""#;
        assert_eq!(checked("web/nginx", "conf", "x"), Err(container.to_owned()));
        // Other pods that match may have it.
        assert_eq!(checked("web/*", "cnof", "x"), Ok(()));
    }

    #[test]
    fn pods_are_selected_by_name_or_label() {
        let hook = |fields: Value| {
            let mut hook = json!({"signal": "SIGHUP"});
            hook.as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            let mut list = HookList::default();
            list.add(written(&hook))
                .map(|()| list.into_hooks().remove(0))
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
        let error = |fields: Value| hook(fields).unwrap_err().to_string();
        assert_eq!(error(json!({})), "[0]: expected pods or selector");
        assert_eq!(
            error(json!({"pods": ["nginx"]})),
            "[0].pods: expected globs such as web/nginx-*"
        );
    }

    #[test]
    fn hook_without_a_name_has_one_name_at_every_position() {
        let names = |hooks: &[Value]| {
            let mut list = HookList::default();
            for hook in hooks {
                list.add(written(hook)).unwrap();
            }
            let hooks = list.into_hooks().into_iter();
            hooks.map(|read| read.hook.name.clone()).collect::<Vec<_>>()
        };
        let hup = json!({"pods": ["a/b"], "signal": "SIGHUP"});
        let elsewhere = json!({"pods": ["a/c"], "signal": "SIGHUP"});
        let usr1 = json!({"pods": ["a/b"], "signal": "SIGUSR1"});
        let with_name = json!({"pods": ["a/b"], "signal": "SIGUSR2", "name": "0-signal"});
        let [name, other] = &names(&[hup.clone(), elsewhere.clone()])[..] else {
            panic!("two hooks");
        };
        assert!(name.starts_with("signal-") && name.len() == 15, "{name}");
        assert_ne!(name, other);
        let moved = names(&[with_name, usr1, elsewhere, hup.clone(), hup.clone(), hup]);
        assert_eq!(moved[0], "0-signal");
        assert_eq!(&moved[2..4], [other.clone(), name.clone()]);
        assert_eq!(moved[4..], [format!("{name}-2"), format!("{name}-3")]);
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
