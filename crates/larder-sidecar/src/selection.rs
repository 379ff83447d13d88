//! The objects that a sidecar follows, and the watches that this takes.

use std::{cmp::Reverse, collections::BTreeSet, fmt};

use larder_objects::Kind;
use larder_on_change::ObjectTag;
use smol_str::SmolStr;

/// `NAME`, `KIND/NAME` or `NAMESPACE/KIND/NAME` (rule L2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectName {
    namespace: Option<SmolStr>,
    kind: Option<Kind>,
    /// `None` only for any object.
    name: Option<SmolStr>,
}

impl ObjectName {
    /// The name that `text` denotes, if it denotes one; the kinds are `configmap` and `secret`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplit('/');
        let (name, kind, namespace) = (parts.next()?, parts.next(), parts.next());
        let kind = match kind {
            None => None,
            Some("configmap") => Some(Kind::ConfigMap),
            Some("secret") => Some(Kind::Secret),
            Some(_) => return None,
        };
        let is_name = !name.is_empty() && namespace != Some("") && parts.next().is_none();
        is_name.then(|| Self {
            namespace: namespace.map(SmolStr::new),
            kind,
            name: Some(name.into()),
        })
    }

    /// The one object that it can only be.
    pub(crate) fn object(self) -> Option<ObjectRef> {
        Some(ObjectRef::new(self.kind?, &self.namespace?, &self.name?))
    }
}

/// What one watch covers. Requests encode its parts; those for a namespace that cannot be part of a path fail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Selection {
    /// The kind.
    pub kind: Kind,
    /// The namespace; `None` for all.
    pub namespace: Option<SmolStr>,
    /// The one name; `None` for any.
    pub name: Option<SmolStr>,
    /// The label selector; `None` for objects with any labels.
    pub labels: Option<String>,
}

impl Selection {
    /// One object.
    pub(crate) fn of(object: &ObjectRef) -> Self {
        Self {
            kind: object.kind(),
            namespace: Some(object.namespace.clone()),
            name: Some(object.name.clone()),
            labels: None,
        }
    }

    /// The one object that it can cover, if that is known.
    pub(crate) fn object(&self) -> Option<ObjectRef> {
        let (namespace, name) = (self.namespace.as_ref()?, self.name.as_ref()?);
        Some(ObjectRef::new(self.kind, namespace, name))
    }

    /// Whether the object would be found here, if its labels fit.
    pub(crate) fn covers(&self, object: &ObjectRef) -> bool {
        let fits =
            |own: &Option<SmolStr>, found: &SmolStr| own.as_ref().is_none_or(|own| own == found);
        self.kind == object.kind()
            && fits(&self.namespace, &object.namespace)
            && fits(&self.name, &object.name)
    }
}

/// `configmaps in namespace prod`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.object_type().resource)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in all namespaces"),
        }
    }
}

/// One watch for each kind and namespace, or for each name, for which labels play no part (rules L1, L2). Without
/// namespaces, these are all at once. All have the same labels, since a list without an object means that it is gone.
pub fn selections(
    kinds: &[Kind],
    namespaces: Option<BTreeSet<SmolStr>>,
    labels: Option<String>,
    names: Option<Vec<ObjectName>>,
) -> BTreeSet<Selection> {
    let labels = labels.filter(|_| names.is_none());
    // As if a name were given that any object has, and a namespace that stands for all.
    let names = names.unwrap_or_else(|| vec![ObjectName::default()]);
    let places = namespaces.map_or_else(|| vec![None], |all| all.into_iter().map(Some).collect());
    let mut all = BTreeSet::new();
    for one in &names {
        let own = &one.namespace;
        let kinds = kinds.iter().copied();
        for kind in kinds.filter(|kind| one.kind.is_none_or(|own| own == *kind)) {
            let fits = |place: &&Option<_>| own.is_none() || place.is_none() || *place == own;
            all.extend(places.iter().filter(fits).map(|place| Selection {
                kind,
                namespace: place.as_ref().or(own.as_ref()).cloned(),
                name: one.name.clone(),
                labels: labels.clone(),
            }));
        }
    }
    all
}

/// An object. Of several that want one path, the last in this order wins (rule L6).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectRef {
    /// The kind: Secrets come before ConfigMaps.
    kind: Reverse<Kind>,
    /// The namespace.
    pub(crate) namespace: SmolStr,
    /// The name.
    pub(crate) name: SmolStr,
}

impl ObjectRef {
    pub(crate) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self {
            kind: Reverse(kind),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind.0
    }

    /// Stands for the object.
    pub(crate) fn tag(&self) -> ObjectTag {
        let (namespace, name) = (&self.namespace, &self.name);
        ObjectTag::of((self.kind(), &format!("{namespace}/{name}")))
    }

    /// As [`ObjectName::parse`] reads it.
    pub(crate) fn text(&self) -> String {
        let (namespace, name) = (&self.namespace, &self.name);
        format!("{namespace}/{}/{name}", self.kind().singular())
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind(), self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selections(namespaces: &[&str], both: bool, names: Option<&[&str]>) -> Vec<String> {
        let kinds: &[Kind] = if both {
            &[Kind::ConfigMap, Kind::Secret]
        } else {
            &[Kind::ConfigMap]
        };
        let namespaces: BTreeSet<_> = namespaces.iter().map(SmolStr::new).collect();
        let namespaces = Some(namespaces).filter(|namespaces| !namespaces.is_empty());
        let names = names.map(|names| {
            let names = names.iter().map(|name| ObjectName::parse(name).unwrap());
            names.collect::<Vec<_>>()
        });
        let has_names = names.is_some();
        let all = super::selections(kinds, namespaces, Some("l".to_owned()), names);
        let is_labeled = |selection: &Selection| selection.labels.is_some();
        assert!(
            all.iter()
                .all(|selection| is_labeled(selection) != has_names)
        );
        all.iter().map(ToString::to_string).collect()
    }

    // sidecar 18
    #[test]
    fn labels_take_one_watch_for_each_kind_and_namespace() {
        assert_eq!(
            selections(&["a", "b"], true, None),
            [
                "configmaps in namespace a",
                "configmaps in namespace b",
                "secrets in namespace a",
                "secrets in namespace b",
            ]
        );
        let all = ["configmaps in all namespaces", "secrets in all namespaces"];
        assert_eq!(selections(&[], true, None), all);
    }

    // sidecar 21 to 23
    #[test]
    fn names_take_one_watch_each_where_they_may_be() {
        let of = |namespaces, names: &[&str]| selections(namespaces, true, Some(names));
        assert_eq!(
            of(&["a"], &["configmap/x"]),
            ["configmaps x in namespace a"]
        );
        assert_eq!(
            of(&["ns1", "ns2"], &["ns1/secret/x"]),
            ["secrets x in namespace ns1"]
        );
        assert_eq!(
            of(&[], &["x"]),
            [
                "configmaps x in all namespaces",
                "secrets x in all namespaces"
            ]
        );
        assert_eq!(of(&[], &["ns1/secret/x"]), ["secrets x in namespace ns1"]);
        assert!(of(&["a"], &["b/secret/x"]).is_empty());
        for bad in ["", "pod/x", "a/b/c/d", "/secret/x", "configmap/"] {
            assert_eq!(ObjectName::parse(bad), None, "{bad}");
        }
    }

    // sidecar 14
    #[test]
    fn config_map_wins_over_secret_and_then_the_later_name() {
        let object = ObjectRef::new;
        let secret = object(Kind::Secret, "z", "z");
        assert!(secret < object(Kind::ConfigMap, "a", "a"));
        assert!(object(Kind::ConfigMap, "a", "z") < object(Kind::ConfigMap, "b", "a"));
    }
}
