//! Paths and queries of requests to the API server.
//!
//! Namespaces, names and selectors come from manifests and from the API server, so any of them may be hostile. Every
//! path is built here:
//!
//! ```
//! use larder_transport::path::{Query, Resource, field_selector};
//!
//! # fn main() -> Result<(), larder_transport::path::PathError> {
//! const PODS: Resource = Resource::core("pods");
//! let pods = PODS.in_namespace("default")?;
//! assert_eq!(pods.as_str(), "/api/v1/namespaces/default/pods");
//! assert_eq!(pods.object("web")?.subresource("log").as_str(), "/api/v1/namespaces/default/pods/web/log");
//!
//! let query = Query::new().with("fieldSelector", &field_selector("spec.nodeName", "n1"));
//! assert_eq!(PODS.collection().uri(&query)?, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1");
//! # Ok(())
//! # }
//! ```
//!
//! Invariants:
//! 1. A namespace or name is exactly one segment of the path, whatever characters it has.
//! 2. A path is a valid URI; with a query, [`CollectionPath::uri`] and [`ObjectPath::uri`] check that it is.

use std::fmt::{self, Write as _};

use http::Uri;

/// Longest namespace or name that becomes part of a path, in bytes. Kubernetes allows 253 for objects (1.36,
/// `apimachinery/pkg/util/validation`); names up to this limit are left to the API server to reject.
const MAX_NAME_BYTES: usize = 1024;

/// Longest path with its query, in bytes. The `http` crate refuses URIs from 64 KiB on.
const MAX_URI_BYTES: usize = 32 << 10;

/// Why a request has no valid path. The rejected text is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// A namespace or name is empty, `.` or `..`.
    #[error("a namespace or name is empty, \".\" or \"..\"")]
    InvalidName,
    /// A namespace or name is too long.
    #[error("a namespace or name is longer than {MAX_NAME_BYTES} bytes")]
    NameTooLong,
    /// The path and its query are too long.
    #[error("path and query are longer than {MAX_URI_BYTES} bytes")]
    TooLong,
}

/// A kind of resource: group, version and plural name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
}

impl Resource {
    /// Pods, which every part of larder asks for.
    pub const PODS: Self = Self::core("pods");

    /// A resource of the core group, `v1`.
    pub const fn core(plural: &'static str) -> Self {
        Self::new("", "v1", plural)
    }

    /// A resource of a group; the core group is empty.
    pub const fn new(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            version,
            plural,
        }
    }

    /// All objects of a cluster-scoped resource, or the objects of all namespaces.
    pub fn collection(self) -> CollectionPath {
        CollectionPath(format!("{}/{}", self.root(), self.plural))
    }

    /// The objects of one namespace.
    ///
    /// # Errors
    ///
    /// The namespace cannot be a segment of a path.
    pub fn in_namespace(self, namespace: &str) -> Result<CollectionPath, PathError> {
        let mut path = self.root();
        path.push_str("/namespaces");
        push_segment(&mut path, namespace)?;
        path.push('/');
        path.push_str(self.plural);
        Ok(CollectionPath(path))
    }

    fn root(self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

/// Path of a collection of objects, percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CollectionPath(String);

impl CollectionPath {
    /// The object with this name.
    ///
    /// # Errors
    ///
    /// The name cannot be a segment of a path.
    pub fn object(&self, name: &str) -> Result<ObjectPath, PathError> {
        let mut path = self.0.clone();
        push_segment(&mut path, name)?;
        Ok(ObjectPath(path))
    }

    /// The path without a query: a valid URI.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path with a query.
    ///
    /// # Errors
    ///
    /// [`PathError::TooLong`].
    pub fn uri(&self, query: &Query) -> Result<Uri, PathError> {
        uri(&self.0, query)
    }
}

/// Path of one object or of a subresource of it, percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectPath(String);

impl ObjectPath {
    /// A subresource of the object, for instance `token` or `status`.
    #[must_use]
    pub fn subresource(mut self, name: &'static str) -> Self {
        self.0.push('/');
        self.0.push_str(name);
        self
    }

    /// The path without a query: a valid URI.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path with a query.
    ///
    /// # Errors
    ///
    /// [`PathError::TooLong`].
    pub fn uri(&self, query: &Query) -> Result<Uri, PathError> {
        uri(&self.0, query)
    }
}

/// The query of a request; values are percent-encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(String);

impl Query {
    /// A query without parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.add(name, value);
        self
    }

    /// Adds a parameter.
    pub fn add(&mut self, name: &'static str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        push_encoded(&mut self.0, value, UNRESERVED);
    }
}

/// With its `?`, or empty.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The field selector `field=value`, where `\`, `,` and `=` in the value are escaped.
pub fn field_selector(field: &'static str, value: &str) -> String {
    let mut selector = String::with_capacity(field.len() + 1 + value.len());
    selector.push_str(field);
    selector.push('=');
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            selector.push('\\');
        }
        selector.push(character);
    }
    selector
}

fn push_segment(path: &mut String, name: &str) -> Result<(), PathError> {
    match name {
        "" | "." | ".." => Err(PathError::InvalidName),
        _ if name.len() > MAX_NAME_BYTES => Err(PathError::NameTooLong),
        _ => {
            path.push('/');
            push_encoded(path, name, UNRESERVED);
            Ok(())
        }
    }
}

/// The unreserved characters of RFC 3986, besides letters and digits.
const UNRESERVED: &[u8] = b"-._~";

/// Percent-encodes all but letters, digits and what is `plain`.
pub(crate) fn push_encoded(text: &mut String, value: &str, plain: &[u8]) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a String does not fail");
        }
    }
}

fn uri(path: &str, query: &Query) -> Result<Uri, PathError> {
    if path.len() + query.0.len() > MAX_URI_BYTES {
        return Err(PathError::TooLong);
    }
    Ok(format!("{path}{query}")
        .try_into()
        .expect("path and query are percent-encoded and short enough"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: Resource = Resource::core("serviceaccounts");
    const REQUESTS: Resource = Resource::new("certificates.k8s.io", "v1", "podcertificaterequests");

    /// Text as a hostile manifest may have it.
    const HOSTILE: [&str; 8] = [
        "a b", "../..", "a/../b?x", "a#b", "%2e%2e", "é\n\0", "a&b=c", "[::1]@x",
    ];

    #[test]
    fn paths_follow_the_api_convention() {
        let token = TOKENS.in_namespace("n").unwrap().object("a").unwrap();
        assert_eq!(
            token.subresource("token").as_str(),
            "/api/v1/namespaces/n/serviceaccounts/a/token"
        );
        assert_eq!(
            REQUESTS.collection().as_str(),
            "/apis/certificates.k8s.io/v1/podcertificaterequests"
        );
    }

    #[test]
    fn a_hostile_name_is_one_segment_of_a_valid_uri() {
        for name in HOSTILE {
            let object = TOKENS.in_namespace(name).unwrap().object(name).unwrap();
            let uri: Uri = object.as_str().parse().unwrap();
            assert_eq!(uri.path().split('/').count(), 7, "{uri}");
            assert_eq!((uri.path(), uri.query()), (object.as_str(), None));
        }
        let object = TOKENS.collection().object("a/../b?x").unwrap();
        assert_eq!(object.as_str(), "/api/v1/serviceaccounts/a%2F..%2Fb%3Fx");
    }

    #[test]
    fn names_that_cannot_be_a_segment_are_errors() {
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for (name, error) in [
            ("", PathError::InvalidName),
            (".", PathError::InvalidName),
            ("..", PathError::InvalidName),
            (long.as_str(), PathError::NameTooLong),
        ] {
            assert_eq!(TOKENS.in_namespace(name), Err(error));
            assert_eq!(TOKENS.collection().object(name), Err(error));
        }
        let longest = "\n".repeat(MAX_NAME_BYTES);
        let object = TOKENS
            .in_namespace(&longest)
            .unwrap()
            .object(&longest)
            .unwrap();
        object.uri(&Query::new()).unwrap();
    }

    #[test]
    fn a_hostile_value_is_one_parameter_of_the_query() {
        for value in HOSTILE {
            let query = Query::new().with("continue", value).with("limit", "500");
            let uri = TOKENS.collection().uri(&query).unwrap();
            let pairs: Vec<_> = uri.query().unwrap().split('&').collect();
            assert_eq!(pairs.len(), 2, "{uri}");
            assert_eq!(pairs[1], "limit=500");
        }
        let endless = Query::new().with("continue", &"a".repeat(1 << 20));
        let uri = TOKENS.collection().uri(&endless);
        assert_eq!(uri, Err(PathError::TooLong));
    }

    #[test]
    fn a_hostile_value_is_one_term_of_the_field_selector() {
        let selector = field_selector("metadata.name", r"a,b=c\d");
        assert_eq!(selector, r"metadata.name=a\,b\=c\\d");
    }
}
