//! Request attributes: verb, kind, namespace, name and subresource, from method and path.

use std::str::Utf8Error;

use http::Method;
use larder_objects::ObjectKey;
use percent_encoding::percent_decode_str;
use smol_str::SmolStr;

use crate::{query::Query, resource::ApiKind, status::ApiError, versions::CertificatesVersions};

/// The verb of a request, as in the audit log and in authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object, or anything that is not an object.
    Get,
    /// Read many.
    List,
    /// Follow changes.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// Delete one object.
    Delete,
    /// Delete all that a selector takes.
    DeleteCollection,
}

impl Verb {
    /// All verbs, in their order, with their names.
    pub(crate) const NAMES: [(Self, &'static str); 8] = [
        (Self::Get, "get"),
        (Self::List, "list"),
        (Self::Watch, "watch"),
        (Self::Create, "create"),
        (Self::Update, "update"),
        (Self::Patch, "patch"),
        (Self::Delete, "delete"),
        (Self::DeleteCollection, "deletecollection"),
    ];

    /// The verb that a review calls `word`.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, name)| *name == word)
            .map(|(verb, _)| *verb)
    }

    /// The verb of a request that is not about objects.
    pub(crate) fn of_method(method: &Method) -> Self {
        match *method {
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => Self::Get,
        }
    }

    /// The verb as the audit log has it: `get`, `deletecollection`, ...
    pub const fn as_str(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// The objects, or the object, that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) kind: ApiKind,
    /// `None` for kinds of cluster scope, and for all namespaces at once.
    pub(crate) namespace: Option<SmolStr>,
    /// `None` for a collection.
    pub(crate) name: Option<SmolStr>,
    /// `status`, `token`, ...
    pub(crate) subresource: Option<SmolStr>,
    /// The path names `v1` of a kind that is stored as `v1beta1`.
    pub(crate) stable: bool,
}

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To objects of a kind that this server stores.
    Objects(ResourcePath),
    /// To something else, by its segments: discovery, health, reviews.
    Other(Vec<SmolStr>),
}

impl Route {
    pub(crate) fn of(path: &str, versions: CertificatesVersions) -> Result<Self, ApiError> {
        let segments = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| Ok(percent_decode_str(segment).decode_utf8()?.into()))
            .collect::<Result<Vec<SmolStr>, Utf8Error>>()
            .map_err(|_| ApiError::bad_request("the path is not UTF-8"))?;
        let words: Vec<_> = segments.iter().map(SmolStr::as_str).collect();
        let target = match words.as_slice() {
            ["api", version, rest @ ..] => ResourcePath::of("", version, rest),
            ["apis", group, version, rest @ ..] => {
                let stored = versions.stored(group, version);
                stored
                    .and_then(|stored| ResourcePath::of(group, stored, rest))
                    .map(|target| ResourcePath {
                        stable: stored != Some(*version),
                        ..target
                    })
            }
            _ => None,
        };
        Ok(target.map_or(Self::Other(segments), Self::Objects))
    }
}

impl ResourcePath {
    /// The key of the object; its name is empty if the path names none.
    pub(crate) fn key(&self) -> ObjectKey {
        let [namespace, name] =
            [&self.namespace, &self.name].map(|text| text.clone().unwrap_or_default());
        ObjectKey::new(namespace, name)
    }

    /// The target of what follows group and version in a path.
    fn of(group: &str, version: &str, rest: &[&str]) -> Option<Self> {
        let (namespace, rest) = match rest {
            // `namespaces/x/pods`; `namespaces/x/status` is the namespace's own.
            ["namespaces", namespace, plural, ..]
                if ApiKind::of_path(group, version, plural)
                    .is_some_and(|kind| kind.resource().namespaced) =>
            {
                (Some(SmolStr::new(namespace)), &rest[2..])
            }
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name), None),
            [plural, name, subresource] => (plural, Some(name), Some(subresource)),
            _ => return None,
        };
        let kind = ApiKind::of_path(group, version, plural)?;
        // A single object of a namespaced kind lives in a namespace.
        if kind.resource().namespaced && namespace.is_none() && name.is_some() {
            return None;
        }
        Some(Self {
            kind,
            namespace,
            name: name.map(SmolStr::new),
            subresource: subresource.map(SmolStr::new),
            stable: false,
        })
    }

    /// The verb of `method` on this target.
    pub(crate) fn verb(&self, method: &Method, query: &Query<'_>) -> Result<Verb, ApiError> {
        let verb = match (method, &self.name) {
            (&Method::GET, None) if query.flag("watch") => Verb::Watch,
            (&Method::GET, None) => Verb::List,
            (&Method::GET, Some(_)) => Verb::Get,
            (&Method::POST, _) => Verb::Create,
            (&Method::PUT, Some(_)) => Verb::Update,
            (&Method::PATCH, Some(_)) => Verb::Patch,
            (&Method::DELETE, Some(_)) => Verb::Delete,
            (&Method::DELETE, None) => Verb::DeleteCollection,
            _ => return Err(ApiError::method_not_allowed()),
        };
        Ok(verb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &str) {
        let shown = match Route::of(path, CertificatesVersions::default()).unwrap() {
            Route::Objects(target) => {
                let part = |part: &Option<SmolStr>| part.as_deref().unwrap_or("-").to_owned();
                let kind = target.kind.resource().plural;
                let (namespace, name) = (part(&target.namespace), part(&target.name));
                format!("{kind} {namespace} {name} {}", part(&target.subresource))
            }
            Route::Other(segments) => format!("other {}", segments.join(" ")),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn paths_name_resources() {
        check("/api/v1/namespaces/n/configmaps/a", "configmaps n a -");
        check("/api/v1/namespaces/n/pods/p/status", "pods n p status");
        check("/api/v1/namespaces/n/secrets", "secrets n - -");
        check("/api/v1/pods", "pods - - -");
        check("/api/v1/nodes/n1", "nodes - n1 -");
        check("/api/v1/namespaces", "namespaces - - -");
        check("/api/v1/namespaces/n", "namespaces - n -");
        check("/api/v1/namespaces/n/status", "namespaces - n status");
        check("/api/v1/nodes/a%3Ab", "nodes - a:b -");
    }

    #[test]
    fn other_paths_are_kept_as_segments() {
        check("/api", "other api");
        check("/api/v1", "other api v1");
        check("/api/v1/pods/p", "other api v1 pods p");
        check("/api/v1/widgets", "other api v1 widgets");
        check("/apis/apps/v1/pods", "other apis apps v1 pods");
        check("/", "other ");
    }
}
