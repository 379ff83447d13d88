//! Values that are not known: facts that only a running pod has, and objects that are kept elsewhere.
//!
//! Such a value has no bytes. It is compared by what it is made of, so `$(POD_IP):80` and `$(POD_IP):81` differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector};
use larder_objects::{Kind, SecretBytes, split_subscript};

use crate::{
    NodeFacts,
    downward::{host_ips, pod_ips, quote, raw_pod_ip},
};

/// What a projection takes as unknown, instead of failing or leaving it empty. By default, nothing.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// Facts about the running pod and its node, unless pod or node have them; also its files of variables, which its
    /// containers write.
    pub facts: bool,
    /// Fields that something in the cluster sets when it makes the pod, by path: the value, or `None` if it is not known.
    pub fields: BTreeMap<String, Option<String>>,
    /// What something in the cluster writes later, such as tokens and certificates, exists.
    pub written_later: bool,
    /// Objects and keys that are missing exist, except these; `None` assumes none.
    pub missing: Option<BTreeSet<ObjectPart>>,
    /// Objects that may exist or not, because they could not be read, whatever `missing` says.
    pub not_read: BTreeSet<(Kind, String)>,
}

/// Kind and name of an object, and a key of it or the whole.
pub type ObjectPart = (Kind, String, Option<String>);

impl Assumptions {
    /// The source of `path` of `pod`, if it is unknown.
    pub(crate) fn field(&self, pod: &Pod, node: Option<&NodeFacts>, path: &str) -> Option<Unknown> {
        let has_node = || {
            let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            name.is_some_and(|name| !name.is_empty())
        };
        let is_unknown = match path {
            "metadata.labels" => return self.with_lines(path, pod.metadata.labels.as_ref()),
            "metadata.annotations" => {
                return self.with_lines(path, pod.metadata.annotations.as_ref());
            }
            "spec.nodeName" | "spec.host" => self.facts && !has_node(),
            "status.hostIP" | "status.hostIPs" => {
                self.facts && node.is_none() && host_ips(pod, node).is_empty()
            }
            "status.podIP" | "status.podIPs" => {
                self.facts && raw_pod_ip(pod).is_empty() && pod_ips(pod, node).is_empty()
            }
            _ => self.fields.get(path).is_some_and(Option::is_none),
        };
        is_unknown.then(|| Unknown::of_fact(path))
    }

    /// A number that depends on the node.
    pub(crate) fn resource(&self, pod: &Pod, field: &ResourceFieldSelector) -> Option<Unknown> {
        if !self.facts {
            return None;
        }
        let divisor = field.divisor.as_ref().map(|divisor| divisor.0.as_str());
        let divisor = divisor.filter(|divisor| !matches!(*divisor, "" | "0" | "1"));
        let name = field.resource.split_once('.').map_or("", |(_, name)| name);
        let resources = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let limit = resources.and_then(|resources| resources.limits.as_ref()?.get(name));
        let limit = limit.map(|limit| format!(" up to the pod's {}", limit.0));
        let divisor = divisor.map(|divisor| format!(" / {divisor}"));
        let detail = divisor.unwrap_or_default() + &limit.unwrap_or_default();
        Some(Unknown::of(UnknownSource::new(
            field.resource.as_str(),
            detail,
        )))
    }

    /// All labels or annotations: the pod's `own`, and those that are set when it is made. `None` if these are known.
    fn with_lines(&self, path: &str, own: Option<&BTreeMap<String, String>>) -> Option<Unknown> {
        if self.fields.is_empty() {
            return None;
        }
        let set = self.fields.iter().filter_map(|(field, value)| {
            let (base, key) = split_subscript(field)?;
            (base == path).then_some((key, value.as_ref()))
        });
        let own = own.into_iter().flatten();
        let mut all: BTreeMap<_, _> = own.map(|(key, value)| (&**key, Some(value))).collect();
        all.extend(set);
        all.values().find(|value| value.is_none())?;
        let lines = all.iter().enumerate().flat_map(|(index, (key, value))| {
            let end = if index == 0 { "" } else { "\n" };
            let unknown = Unknown::of_fact(format!("{path}['{key}']"));
            match value {
                Some(value) => vec![Ok(format!("{end}{key}={}", quote(value)))],
                None => vec![Ok(format!("{end}{key}=\"")), Err(unknown), Ok("\"".into())],
            }
        });
        let lines: Vec<Result<String, Unknown>> = lines.collect();
        let parts = lines.iter().map(|part| part.as_ref().map(String::as_bytes));
        Some(Unknown::joined(parts))
    }

    /// The value of a field that is set when the pod is made.
    pub(crate) fn set_field(&self, path: &str) -> Option<String> {
        self.fields.get(path).cloned().flatten()
    }

    /// An object that is missing or could not be read, or a key of it.
    pub fn object(&self, kind: Kind, name: &str, key: Option<&str>) -> Option<Unknown> {
        let detail = key.map(|key| format!(" key {key}")).unwrap_or_default();
        let what = format!("{} {name}", kind.singular());
        if self.not_read.contains(&(kind, name.to_owned())) {
            return Some(Unknown::of_object(kind, what, detail));
        }
        self.part(kind, name, key, what, detail)
    }

    /// A key that an object lacks.
    pub(crate) fn key(&self, kind: Kind, name: &str, key: &str) -> Option<Unknown> {
        let what = format!("{} {name} key {key}", kind.singular());
        let Unknown(mut parts) = self.part(kind, name, Some(key), what, String::new())?;
        if let [ValuePart::Source(source)] = &mut parts[..] {
            source.lacking = Some((name.into(), key.into()));
        }
        Some(Unknown(parts))
    }

    fn part(
        &self,
        kind: Kind,
        name: &str,
        key: Option<&str>,
        what: String,
        detail: String,
    ) -> Option<Unknown> {
        let known = self.missing.as_ref()?;
        let part = (kind, name.to_owned(), key.map(str::to_owned));
        (!known.contains(&part)).then(|| Unknown::of_object(kind, what, detail))
    }

    /// A file of variables that does not exist yet.
    pub(crate) fn env_file(&self, what: impl Into<Arc<str>>) -> Option<Unknown> {
        self.facts.then(|| Unknown::of_fact(what))
    }

    /// A file that something in the cluster writes.
    pub(crate) fn written_later(&self, what: impl Into<Arc<str>>) -> Option<Unknown> {
        self.written_later.then(|| Unknown::of_fact(what))
    }
}

/// The source of an unknown value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownSource {
    /// `status.podIP`, or `secret shop-tls`.
    pub what: Arc<str>,
    /// What of it: ` key tls.crt`; empty for all of it.
    detail: Arc<str>,
    /// The kind of the object that is missing; `None` for a fact that only the running pod has.
    pub object: Option<Kind>,
    /// The name of the object and the key that it lacks, if the object is there.
    pub lacking: Option<(Arc<str>, Arc<str>)>,
}

impl UnknownSource {
    fn new(what: impl Into<Arc<str>>, detail: impl Into<Arc<str>>) -> Self {
        Self {
            what: what.into(),
            detail: detail.into(),
            object: None,
            lacking: None,
        }
    }

    fn len(&self) -> usize {
        self.what.len() + self.detail.len()
    }
}

impl fmt::Display for UnknownSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.what, self.detail)
    }
}

/// What an unknown value is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(Vec<ValuePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    /// May be of a Secret.
    Text(SecretBytes),
    Source(UnknownSource),
}

impl Unknown {
    fn of(source: UnknownSource) -> Self {
        Self(vec![ValuePart::Source(source)])
    }

    /// A fact that only the cluster has.
    pub(crate) fn of_fact(what: impl Into<Arc<str>>) -> Self {
        Self::of(UnknownSource::new(what, ""))
    }

    fn of_object(kind: Kind, what: String, detail: String) -> Self {
        Self::of(UnknownSource {
            object: Some(kind),
            ..UnknownSource::new(what, detail)
        })
    }

    /// Both, with a comma between them; this one if there is no other.
    pub(crate) fn listed_after(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => Self::joined([Err(before), Ok(&b", "[..]), Err(&self)].into_iter()),
            None => self,
        }
    }

    /// The value that `parts` make, one after the other; text is known.
    pub(crate) fn joined<'p>(parts: impl Iterator<Item = Result<&'p [u8], &'p Self>>) -> Self {
        let (mut pieces, mut text) = (Vec::new(), Vec::new());
        // Texts are collected before they are copied: a growing buffer leaves pieces of a secret behind.
        let flush = |pieces: &mut Vec<ValuePart>, text: &mut Vec<&[u8]>| {
            let whole = text.concat();
            text.clear();
            if !whole.is_empty() {
                pieces.push(ValuePart::Text(SecretBytes::new(whole)));
            }
        };
        for part in parts {
            match part {
                Ok(known) => text.push(known),
                Err(unknown) => {
                    for piece in &unknown.0 {
                        match piece {
                            ValuePart::Text(known) => text.push(known),
                            ValuePart::Source(source) => {
                                flush(&mut pieces, &mut text);
                                pieces.push(ValuePart::Source(source.clone()));
                            }
                        }
                    }
                }
            }
        }
        flush(&mut pieces, &mut text);
        Self(pieces)
    }

    /// Its sources, in order.
    pub fn sources(&self) -> impl Iterator<Item = &UnknownSource> {
        self.0.iter().filter_map(|piece| match piece {
            ValuePart::Source(source) => Some(source),
            ValuePart::Text(_) => None,
        })
    }

    /// `status.podIP`, or with text around it `http://$(status.podIP):80`. Has the text of Secrets in it, if the value
    /// is secret.
    pub fn text(&self) -> String {
        if let [ValuePart::Source(source)] = &*self.0 {
            return source.to_string();
        }
        let pieces = self.0.iter().map(|piece| match piece {
            ValuePart::Text(text) => String::from_utf8_lossy(text).into_owned(),
            ValuePart::Source(source) => format!("$({source})"),
        });
        pieces.collect()
    }

    /// Whether it comes from a Secret.
    pub(crate) fn is_secret(&self) -> bool {
        self.sources()
            .any(|source| source.object == Some(Kind::Secret))
    }

    /// About the length of its text.
    pub(crate) fn len(&self) -> usize {
        let lengths = self.0.iter().map(|piece| match piece {
            ValuePart::Text(text) => text.len(),
            ValuePart::Source(source) => source.len(),
        });
        lengths.sum()
    }
}
