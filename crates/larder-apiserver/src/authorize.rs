//! Permissions: what the owner of a server lets its users do.

use std::fmt;

use larder_objects::ObjectKey;
use serde_json::Value;
use smol_str::SmolStr;

use crate::{
    ApiError, User,
    object::Object,
    request::{ResourcePath, Verb},
    resource::ApiKind,
    selector::{FieldSelector, Filter},
    store::Store,
};

/// Decides what users may do. It is asked three times: about every request for objects, about a write once its body is
/// read, and about an update once its result is known.
///
/// ```
/// use larder_apiserver::{ApiServer, Attempt, Authorization, Objects, Options, User};
///
/// #[derive(Debug)]
/// struct AdminsOnly;
///
/// impl Authorization for AdminsOnly {
///     fn authorize(&self, _: Objects<'_>, user: &User, _: &Attempt<'_>) -> Result<(), String> {
///         if *user == User::admin() { Ok(()) } else { Err("not an administrator".to_owned()) }
///     }
/// }
///
/// let server = ApiServer::new(Options::default().authorization(AdminsOnly));
/// ```
pub trait Authorization: fmt::Debug + Send + Sync {
    /// Whether `user` may make the attempt.
    ///
    /// # Errors
    ///
    /// Why not; empty when no rule says anything. The request is answered with 403 and this reason.
    fn authorize(
        &self,
        objects: Objects<'_>,
        user: &User,
        attempt: &Attempt<'_>,
    ) -> Result<(), String>;

    /// Judges a write that is authorized, before its object is read. By default all are admitted.
    ///
    /// # Errors
    ///
    /// The answer in place of the write.
    fn admit(
        &self,
        _objects: Objects<'_>,
        _user: &User,
        _write: &AttemptedWrite<'_>,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Judges what an admitted update makes of its object. By default all are admitted.
    ///
    /// # Errors
    ///
    /// The answer in place of the update.
    fn admit_update(&self, _user: &User, _update: &AttemptedUpdate<'_>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Why no list of rules says what `user` may do, as a SelfSubjectRulesReview reports it. By default there is no
    /// reason: the user may do everything.
    fn why_unlisted(&self, _user: &User) -> Option<&'static str> {
        None
    }
}

/// Every authenticated user may do everything.
#[derive(Clone, Copy, Debug)]
pub struct AllowAll;

impl Authorization for AllowAll {
    fn authorize(&self, _: Objects<'_>, _: &User, _: &Attempt<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// A request to authorize.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// What is to be done.
    pub verb: Verb,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// As in a path: `secrets`.
    pub resource: &'a str,
    /// As in a path: `status`.
    pub subresource: Option<&'a str>,
    /// `None` for all namespaces, and for kinds of cluster scope.
    pub namespace: Option<&'a str>,
    /// From the path, or the one that a field selector leaves.
    pub name: Option<&'a str>,
    /// `spec.nodeName=` of a field selector.
    pub node_name: Option<&'a str>,
}

impl<'a> Attempt<'a> {
    /// A request for `target`, `None` if it is not about objects, with this field selector.
    pub(crate) fn new(
        verb: Verb,
        target: Option<&'a ResourcePath>,
        selector: Option<&'a FieldSelector>,
    ) -> Self {
        let resource = target.map(|target| target.kind.resource());
        let name = target
            .and_then(|target| target.name.as_ref())
            .or(selector.and_then(FieldSelector::name));
        let node_name = selector.and_then(FieldSelector::node_name);
        Self {
            verb,
            group: resource.map_or("", |resource| resource.group),
            resource: resource.map_or("", |resource| resource.plural),
            subresource: target.and_then(|target| target.subresource.as_deref()),
            namespace: target.and_then(|target| target.namespace.as_deref()),
            name: name.map(SmolStr::as_str),
            node_name: node_name.map(SmolStr::as_str),
        }
    }
}

/// The creation, change or deletion of one object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptedWrite<'a> {
    /// Create, update, patch or delete.
    pub verb: Verb,
    /// The object's kind.
    pub kind: ApiKind,
    /// As in a path: `status`.
    pub subresource: Option<&'a str>,
    /// From the path; its name is empty for the creation of an object.
    pub key: &'a ObjectKey,
    /// What a creation sends; `None` for other writes.
    pub body: Option<&'a Value>,
}

/// An object before and after an update.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptedUpdate<'a> {
    /// The object's kind.
    pub kind: ApiKind,
    /// As in a path: `status`.
    pub subresource: Option<&'a str>,
    /// The object that is stored.
    pub old: &'a Value,
    /// The object that would replace it.
    pub new: &'a Value,
}

/// The objects that a server holds at the moment, to decide by.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'a>(pub(crate) &'a Store);

impl<'a> Objects<'a> {
    /// The object, if there is one of that name.
    pub fn get(self, kind: ApiKind, key: &ObjectKey) -> Option<Value> {
        Some(self.0.get(kind, key)?.value())
    }

    /// The object of that name.
    ///
    /// # Errors
    ///
    /// 404: there is none.
    pub fn require(self, kind: ApiKind, key: &ObjectKey) -> Result<Value, ApiError> {
        Ok(self.0.require(kind, key)?.value())
    }

    /// All objects of a kind in a namespace.
    pub fn list(self, kind: ApiKind, namespace: &str) -> impl Iterator<Item = Value> + 'a {
        let filter = Filter {
            namespace: Some(namespace.into()),
            ..Filter::default()
        };
        let page = self.0.list(kind, &filter, None, None, None);
        // Only a version of the past can be compacted.
        page.map(|page| page.objects)
            .unwrap_or_default()
            .into_iter()
            .map(|object| Object::value(&object))
    }
}

/// The 403 for an attempt.
pub(crate) fn denied(user: &User, attempt: &Attempt<'_>, why: &str) -> ApiError {
    let resource = match attempt.subresource {
        Some(subresource) => format!("{}/{subresource}", attempt.resource),
        None => attempt.resource.to_owned(),
    };
    let scope = match attempt.namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let mut message = format!(
        "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" {scope}",
        user.name,
        attempt.verb.as_str(),
        attempt.group
    );
    if !why.is_empty() {
        message += ": ";
        message += why;
    }
    let kind =
        ApiKind::find(|resource| resource.plural == attempt.resource).unwrap_or(ApiKind::Namespace);
    ApiError::forbidden(kind, attempt.name.unwrap_or_default(), &message)
}
