//! Values of flags with a syntax of their own.

use std::{env, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{
    ValueEnum,
    builder::{PathBufValueParser, TypedValueParser},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use larder_agent::config::listen_address;
use larder_objects::{go_duration, validation::is_label};

/// Log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object for each event
    Json,
}

/// `NAMESPACE/NAME`, or `NAME` in the namespace of `-n`; of manifests, `NAMESPACE/KIND/NAME`, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    namespace: Option<String>,
    /// The kind of its workload, in any case.
    pub(crate) kind: Option<String>,
    pub(crate) name: String,
}

impl PodName {
    /// The namespace, or `default` if the name has none.
    pub(crate) fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        self.namespace.as_deref().unwrap_or(default)
    }

    /// As the user has written it.
    pub(super) fn as_written(&self) -> String {
        let parts = self.namespace.iter().chain(&self.kind);
        let parts: Vec<_> = parts.chain([&self.name]).map(String::as_str).collect();
        parts.join("/")
    }

    /// With the namespace `default` if the name has none.
    pub(crate) fn in_namespace(&self, default: &str) -> String {
        let namespace = Some(self.namespace(default).to_owned());
        let Self { kind, name, .. } = self.clone();
        Self {
            namespace,
            kind,
            name,
        }
        .as_written()
    }

    /// Whether it is the name of the pod with this `metadata`.
    pub(crate) fn names(&self, metadata: &ObjectMeta, default: &str) -> bool {
        metadata.namespace.as_deref() == Some(self.namespace(default))
            && metadata.name.as_deref() == Some(&self.name)
    }
}

impl FromStr for PodName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<_> = text.split('/').collect();
        let (namespace, kind, name) = match *parts {
            [name] => (None, None, name),
            [namespace, name] => (Some(namespace), None, name),
            [namespace, kind, name] => (Some(namespace), Some(kind), name),
            _ => return Err("expected NAMESPACE/NAME or NAMESPACE/KIND/NAME"),
        };
        if parts.contains(&"") {
            return Err("expected NAMESPACE/NAME");
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            kind: kind.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

/// Parses the name of a pod that an agent serves.
pub(super) fn served_pod(text: &str) -> Result<PodName, &'static str> {
    let name: PodName = text.parse()?;
    let is_served = name.kind.is_none();
    is_served.then_some(name).ok_or("expected NAMESPACE/NAME")
}

/// Parses `NAME=VALUE`.
pub(super) fn variable(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE"),
    }
}

/// Parses `--max-bytes`.
pub(super) fn at_least_2000(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|number| *number >= 2000)
        .ok_or("expected a number from 2000")
}

/// Parses an address of this machine's loopback interface.
pub(super) fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = Some(listen_address(text)?).filter(|address| address.ip().is_loopback());
    Ok(address.ok_or("expected an address on loopback, such as 127.0.0.1:8900")?)
}

/// Parses `--namespace`.
pub(super) fn namespace(text: &str) -> Result<String, &'static str> {
    is_label(text)
        .then(|| text.to_owned())
        .ok_or("expected lower-case letters, digits and '-', as in kube-system")
}

/// Parses the mode of a file.
pub(super) fn octal_mode(digits: &str) -> Result<u32, &'static str> {
    u32::from_str_radix(digits.trim_start_matches("0o"), 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or("expected an octal mode, such as 0440")
}

/// The value of `--kubeconfig` without one; no path has it.
pub(super) const OF_KUBECTL: &str = "\0";

/// Parses `--kubeconfig`; without a value, it is the file that kubectl would take.
pub(super) fn kubeconfig() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        if path.as_os_str() == OF_KUBECTL {
            kubectl_kubeconfig()
        } else {
            Ok(path)
        }
    })
}

/// The kubeconfig that kubectl would take.
///
/// # Errors
///
/// The environment names none, or several.
pub(crate) fn kubectl_kubeconfig() -> Result<PathBuf, &'static str> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    let Some(given) = variable("KUBECONFIG") else {
        return variable("HOME")
            .map(PathBuf::from)
            .map(|home| home.join(".kube/config"))
            .ok_or("neither KUBECONFIG nor HOME is set: name a file");
    };
    let mut files = env::split_paths(&given).filter(|path| !path.as_os_str().is_empty());
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => Err("KUBECONFIG names no file"),
        _ => Err("KUBECONFIG names several files, which larder does not merge: name one"),
    }
}

/// Longest time that a flag can give: a year.
const MAX_DURATION: Duration = Duration::from_hours(365 * 24);

/// Parses a duration as Go writes it, such as `1m30s`.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    go_duration::parse(text)
        .ok()
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or("expected a duration of at most a year, such as 500ms, 30s or 2m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_a_limit() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1.5s", 1500),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in [
            "",
            "s",
            "30",
            "-1s",
            "1d",
            "9999999h",
            "99999999999s",
            "1s ",
        ] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn namespace_of_a_pod_name_is_optional() {
        let parse = |text: &str| text.parse::<PodName>();
        assert_eq!(parse("prod/web").unwrap().namespace("x"), "prod");
        assert_eq!(parse("web").unwrap().namespace("x"), "x");
        assert_eq!(parse("prod/deployment/web").unwrap().name, "web");
        for bad in ["", "/", "prod/", "/web", "a//c", "a/b/c/d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(served_pod("prod/deployment/web").is_err());
    }
}
