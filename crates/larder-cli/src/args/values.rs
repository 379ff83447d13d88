//! Values of flags that have a form of their own.

use std::str::FromStr;

use larder_objects::validation::is_label;
use rustix::process::Signal;

/// The action when the volumes of a command change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnChange {
    /// None: the command reads the files again by itself.
    Nothing,
    /// The command gets a signal.
    Signal(Signal),
    /// The command is ended and started again, also when its environment would differ.
    Restart,
}

/// `NAMESPACE/NAME`, or `NAME` in the namespace of `-n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    namespace: Option<String>,
    name: String,
}

impl PodName {
    /// The namespace, or `default` if the name has none.
    pub(crate) fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        self.namespace.as_deref().unwrap_or(default)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for PodName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace == Some("") {
            return Err("expected NAMESPACE/NAME");
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

/// Parses `--namespace`.
pub(super) fn namespace(text: &str) -> Result<String, &'static str> {
    if is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("expected lower-case letters, digits and '-', as in kube-system")
    }
}

/// Parses `--on-change`.
pub(super) fn on_change(text: &str) -> Result<OnChange, String> {
    let signals = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("TERM", Signal::TERM),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
        ("CONT", Signal::CONT),
    ];
    match (text, text.strip_prefix("signal:")) {
        ("none", _) => Ok(OnChange::Nothing),
        ("restart", _) => Ok(OnChange::Restart),
        (_, Some(name)) => {
            let name = name.strip_prefix("SIG").unwrap_or(name);
            let found = signals.iter().find(|(known, _)| *known == name);
            found
                .map(|&(_, signal)| OnChange::Signal(signal))
                .ok_or_else(|| {
                    let known = signals.map(|(known, _)| format!("SIG{known}"));
                    format!("expected one of {}", known.join(", "))
                })
        }
        _ => Err("expected none, signal:NAME or restart".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_of_a_pod_name_is_optional() {
        let parse = |text: &str| text.parse::<PodName>();
        assert_eq!(parse("prod/web").unwrap().namespace("x"), "prod");
        assert_eq!(parse("web").unwrap().namespace("x"), "x");
        for bad in ["", "/", "prod/", "/web", "a/b/c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
