//! Names and UIDs of pods, their sources, and the annotations that identify static and mirror pods.
//!
//! Terms and annotation keys are those of kubelet 1.36 (`pkg/kubelet/types/pod_update.go`,
//! `pkg/kubelet/container/helpers.go`).

use std::{fmt, str::FromStr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use larder_objects::escaped;
use smol_str::SmolStr;

/// Annotation with the source of a pod: `file`, `http` or `api`. Set by the node, never read from a manifest.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation that makes a pod a mirror pod; its value is the [`CONFIG_HASH`] of the static pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation with the identity of a static pod's manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation with the time when the node first saw the pod, RFC 3339 with nine fractional digits.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

macro_rules! uid_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(SmolStr);

        impl $name {
            /// The UID with this text.
            pub fn new(text: impl Into<SmolStr>) -> Self {
                Self(text.into())
            }

            /// The UID of the pod with `metadata`; empty if it has none.
            pub fn of(metadata: &ObjectMeta) -> Self {
                Self::new(metadata.uid.as_deref().unwrap_or_default())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

uid_type! {
    /// `metadata.uid` of a pod that may be a mirror pod.
    PodUid
}
uid_type! {
    /// UID under which the node knows a pod: in volumes and registrations. Never that of a mirror pod.
    ResolvedPodUid
}
uid_type! {
    /// UID of the API server's copy of a static pod.
    MirrorPodUid
}

/// `<pod name>_<namespace>`, which a static pod shares with its mirror pod.
///
/// Neither part can hold a `_` in a valid pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FullName {
    /// `metadata.name`.
    pub name: SmolStr,
    /// `metadata.namespace`.
    pub namespace: SmolStr,
}

impl FullName {
    /// The full name of the pod with `metadata`.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
        }
    }
}

/// Escapes control characters, which no valid name holds: an API server that sends some cannot forge lines of a log.
impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", escaped(&self.name), escaped(&self.namespace))
    }
}

/// The text is not two non-empty parts around one `_`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the pod full name {0:?}")]
pub struct FullNameError(String);

impl FromStr for FullName {
    type Err = FullNameError;

    fn from_str(text: &str) -> Result<Self, FullNameError> {
        match text.split_once('_') {
            Some((name, namespace))
                if !name.is_empty() && !namespace.is_empty() && !namespace.contains('_') =>
            {
                Ok(Self {
                    name: name.into(),
                    namespace: namespace.into(),
                })
            }
            _ => Err(FullNameError(text.to_owned())),
        }
    }
}

/// A source of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodSource {
    /// A manifest file, or a directory of them.
    File,
    /// A manifest behind a URL.
    Http,
    /// The API server.
    Api,
}

impl PodSource {
    /// The value of [`CONFIG_SOURCE`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }

    /// The annotated source of the pod with `metadata`; `None` without annotation or with an unknown value.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        let source = annotation(metadata, CONFIG_SOURCE)?;
        let all = [Self::File, Self::Http, Self::Api];
        all.into_iter().find(|known| known.as_str() == source)
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The annotation `key`.
pub(crate) fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Sets or removes the annotation `key`.
pub(crate) fn set_annotation(metadata: &mut ObjectMeta, key: &str, value: Option<String>) {
    match value {
        Some(value) => {
            metadata
                .annotations
                .get_or_insert_default()
                .insert(key.to_owned(), value);
        }
        None => {
            if let Some(annotations) = &mut metadata.annotations {
                annotations.remove(key);
            }
        }
    }
}

/// Whether the pod with `metadata` is the API server's copy of a static pod: it has the annotation, whatever its value.
pub fn is_mirror_pod(metadata: &ObjectMeta) -> bool {
    annotation(metadata, CONFIG_MIRROR).is_some()
}

/// Whether the pod with `metadata` comes from a file or URL. A pod without [`CONFIG_SOURCE`] does not.
pub fn is_static_pod(metadata: &ObjectMeta) -> bool {
    annotation(metadata, CONFIG_SOURCE).is_some_and(|source| source != PodSource::Api.as_str())
}

/// Whether the pod with the metadata `mirror` is the current mirror pod of the pod with the metadata `pod`: it has the
/// same full name and was made from the same manifest.
pub fn is_mirror_pod_of(mirror: &ObjectMeta, pod: &ObjectMeta) -> bool {
    mirror.name == pod.name
        && mirror.namespace == pod.namespace
        && annotation(mirror, CONFIG_MIRROR)
            .is_some_and(|hash| annotation(pod, CONFIG_HASH) == Some(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PodBuilder, pod};

    #[test]
    fn full_names_have_exactly_two_parts() {
        // managers 50
        for text in ["bar_foo", "bar.org_foo.com", "bar-bar_foo"] {
            assert_eq!(text.parse::<FullName>().unwrap().to_string(), text);
        }
        for text in ["barfoo", "bar_foo_foo", "", "bar_", "_foo", "_"] {
            assert!(text.parse::<FullName>().is_err(), "{text:?}");
        }
        let full_name: FullName = "web_prod".parse().unwrap();
        assert_eq!((&*full_name.name, &*full_name.namespace), ("web", "prod"));
    }

    #[test]
    fn a_mirror_pod_matches_by_name_and_hash() {
        // managers 51
        let metadata = |pod: PodBuilder| pod.build().metadata;
        let static_pod = metadata(pod("web").uid("s").annotation(CONFIG_HASH, "h"));
        let mirror = pod("web").annotation(CONFIG_MIRROR, "h");
        assert!(is_mirror_pod_of(&metadata(mirror.clone()), &static_pod));
        for other in [
            pod("web").annotation(CONFIG_MIRROR, "other"),
            pod("web"),
            mirror.clone().namespace("elsewhere"),
            pod("app").annotation(CONFIG_MIRROR, "h"),
        ] {
            let other = metadata(other);
            assert!(!is_mirror_pod_of(&other, &static_pod), "{other:?}");
        }
        // Two missing annotations do not match.
        let web = metadata(pod("web"));
        assert!(!is_mirror_pod_of(&web, &web));
    }

    #[test]
    fn annotations_distinguish_static_mirror_and_ordinary_pods() {
        assert!(is_static_pod(
            &pod("p").annotation(CONFIG_SOURCE, "file").build().metadata
        ));
        assert!(is_static_pod(
            &pod("p").annotation(CONFIG_SOURCE, "http").build().metadata
        ));
        assert!(!is_static_pod(
            &pod("p").annotation(CONFIG_SOURCE, "api").build().metadata
        ));
        assert!(!is_static_pod(&pod("p").build().metadata));
        assert!(is_mirror_pod(
            &pod("p").annotation(CONFIG_MIRROR, "").build().metadata
        ));
        assert!(!is_mirror_pod(&pod("p").build().metadata));
    }
}
