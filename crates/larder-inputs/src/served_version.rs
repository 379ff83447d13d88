//! Resources of `certificates.k8s.io`: `v1` where the API server serves it (Kubernetes 1.37), `v1beta1` otherwise.
//!
//! No discovery: a version that is not served answers 404. The kinds of this group have the same fields in both
//! versions (Kubernetes 1.36, `staging/src/k8s.io/api/certificates/v1beta1/types.go`), so one type reads either.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::Method;
use k8s_openapi::{ResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Client;
use larder_transport::path::Resource;
use larder_watch::{
    CollectionFreshness, NodeContext, RequestError,
    collection::{Collection, CollectionEvent, CollectionItem},
    request,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

const GROUP: &str = "certificates.k8s.io";
/// The preferred one first.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The specification of a kind of this group, which names the kind.
pub(crate) trait ServedSpec:
    fmt::Debug + Serialize + DeserializeOwned + Send + 'static
{
    const KIND: &'static str;
    const PLURAL: &'static str;
    type Scope: ResourceScope;
    type Status: fmt::Debug + Serialize + DeserializeOwned + Send;
}

/// An object in either served version. A type of `k8s-openapi` reads one version only.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct ServedObject<S: ServedSpec> {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: S,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<S::Status>,
}

impl<S: ServedSpec> k8s_openapi::Resource for ServedObject<S> {
    const API_VERSION: &'static str = "certificates.k8s.io/v1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = S::KIND;
    const VERSION: &'static str = VERSIONS[0];
    const URL_PATH_SEGMENT: &'static str = S::PLURAL;
    type Scope = S::Scope;
}

impl<S: ServedSpec> k8s_openapi::Metadata for ServedObject<S> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &Self::Ty {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Self::Ty {
        &mut self.metadata
    }
}

/// A resource and the version in which the API server was last seen to serve it. Clones share what is learned.
#[derive(Clone, Debug)]
pub(crate) struct ServedResource {
    kind: &'static str,
    plural: &'static str,
    current: Arc<AtomicUsize>,
}

impl ServedResource {
    /// The resource of the objects with this specification.
    pub(crate) fn of<S: ServedSpec>() -> Self {
        Self {
            kind: S::KIND,
            plural: S::PLURAL,
            current: Arc::default(),
        }
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    fn at(&self, version: usize) -> Resource {
        Resource::new(GROUP, VERSIONS[version], self.plural)
    }

    /// Creates `object` in `namespace`, in the current version, or in the other one if that is not served.
    ///
    /// # Errors
    ///
    /// The request failed; the error [is "not served"](RequestError::is_not_served) only if neither version is.
    pub(crate) async fn create<T: DeserializeOwned>(
        &self,
        client: &Client,
        namespace: &str,
        object: &(impl Serialize + Sync),
    ) -> Result<T, RequestError> {
        let current = self.current();
        let mut version = current;
        loop {
            let path = self.at(version).in_namespace(namespace)?;
            let body = Body {
                api_version: format!("{GROUP}/{}", VERSIONS[version]),
                kind: self.kind,
                object,
            };
            let result = request(client, Method::POST, path.as_str(), Some(&body)).await;
            let is_served = !matches!(&result, Err(error) if error.is_not_served());
            if is_served {
                self.current.store(version, Ordering::Relaxed);
            }
            if is_served || version != current {
                return result;
            }
            version = 1 - current;
        }
    }
}

/// An object with its type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a, T> {
    api_version: String,
    kind: &'static str,
    #[serde(flatten)]
    object: &'a T,
}

/// Watches all objects of a resource in the version that is served, and in the other one once that is not served.
pub(crate) struct ServedCollection<K: CollectionItem> {
    resource: ServedResource,
    /// One for each version. The idle one keeps its back-off, so a resource that neither version serves costs no flood.
    collections: [Collection<K>; VERSIONS.len()],
    /// How many versions in a row were not served.
    unserved: usize,
}

impl<K: CollectionItem> ServedCollection<K> {
    pub(crate) fn new(
        client: &Client,
        resource: &ServedResource,
        field_selector: Option<&str>,
        context: &NodeContext,
    ) -> Self {
        let collection = |version| {
            let path = resource.at(version).collection();
            Collection::new(client.clone(), path, field_selector, context)
        };
        Self {
            resource: resource.clone(),
            collections: [collection(0), collection(1)],
            unserved: 0,
        }
    }

    /// Keeps in `freshness` how fresh is what it has passed on.
    pub(crate) fn proving(mut self, freshness: &CollectionFreshness) -> Self {
        self.collections = self
            .collections
            .map(|collection| collection.proving(freshness));
        self
    }

    /// The next event of the served version. "Not served" is reported once neither version is.
    pub(crate) async fn next(&mut self) -> CollectionEvent<K> {
        loop {
            let current = self.resource.current();
            let event = self.collections[current].next().await;
            if !matches!(&event, CollectionEvent::Failed(failure) if failure.error.is_not_served())
            {
                self.unserved = 0;
                return event;
            }
            let other = 1 - current;
            self.resource.current.store(other, Ordering::Relaxed);
            self.unserved += 1;
            if self.unserved >= VERSIONS.len() {
                return event;
            }
        }
    }
}
