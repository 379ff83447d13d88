//! Writing objects: create, update and patch, from the decoded body to the store.
//!
//! A write reads the object, computes the new one without a lock, and stores it if the object is unchanged. Otherwise
//! it starts over, unless the client insists on the version that it has read.
//!
//! Invariant: a write that changes nothing stores nothing: no new version, no event.

mod accounts;
mod admission;
mod bodies;
mod delete;
mod kinds;
mod metadata;
pub(crate) mod namespaces;
pub(crate) mod options;
mod pods;
mod rules;
mod services;

use std::sync::Arc;

use larder_objects::ObjectKey;
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    clock::Clock,
    json::{size, text},
    object::{EventType, Object},
    resource::{ApiKind, Resource},
    status::ApiError,
    store::{Changed, Store},
    tokens::TokenIssuer,
};

pub(crate) use delete::Deleted;
use options::WriteParams;
use services::Allocations;

/// The objects and the rules for writing them.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
    pub(crate) tokens: TokenIssuer,
    /// The certificate authority, as PEM, that new namespaces get in a ConfigMap; `None`: they stay empty.
    pub(crate) namespace_authority: Option<String>,
    /// Of Services.
    pub(crate) allocations: Mutex<Allocations>,
}

/// The result of a write.
#[derive(Debug)]
pub(crate) struct Written {
    /// The object as it is now (for a dry run: as it would be).
    pub(crate) object: Arc<Object>,
    /// Warnings for the client, such as unknown fields.
    pub(crate) warnings: Vec<String>,
}

/// The part of an object that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status.
    Main,
    /// The status; of the rest only labels, annotations and finalizers.
    Status,
    /// Both: how objects come in from manifests, which may state what a kubelet would report. A new one keeps the uid
    /// it states.
    Whole,
}

impl Writer {
    /// Creates an object of `kind` in `namespace` (`None` for cluster scope) from `body`.
    pub(crate) fn create(
        &self,
        kind: ApiKind,
        namespace: Option<&str>,
        body: Value,
        part: Part,
        params: WriteParams,
    ) -> Result<Written, ApiError> {
        let resource = kind.resource();
        let (mut value, warnings) = bodies::decode(resource, body, params)?;
        let generated = metadata::for_create(&mut value, resource, namespace, part, &self.clock)?;
        if let Some(namespace) = namespace {
            self.check_namespace_takes_objects(kind, namespace, name(&value))?;
        }
        kinds::for_create(resource, &mut value, part);
        self.complete(resource, None, &mut value, part)?;
        if params.dry_run {
            let object = Arc::new(Object::new(kind, value, 0, EventType::Added));
            if self.store.get(kind, &object.key).is_some() {
                return Err(ApiError::already_exists(kind, &object.key.name));
            }
            return Ok(Written { object, warnings });
        }
        let object = loop {
            match self.store.create(kind, value.clone()) {
                Ok(object) => break object,
                Err(_) if generated => metadata::generate_name(&mut value),
                Err(_) => return Err(ApiError::already_exists(kind, name(&value))),
            }
        };
        if kind == ApiKind::Namespace {
            self.fill_namespace(&object.key.name);
        }
        Ok(Written { object, warnings })
    }

    /// Replaces `part` of the object `key` by what `make` makes of it.
    ///
    /// # Errors
    ///
    /// 404 when there is none, 409 when the new object insists on a version or uid that is not the present one.
    pub(crate) fn update(
        &self,
        kind: ApiKind,
        key: &ObjectKey,
        part: Part,
        params: WriteParams,
        make: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Written, ApiError> {
        let resource = kind.resource();
        loop {
            let current = self.store.require(kind, key)?;
            let old = current.value();
            let (mut value, warnings) = bodies::decode(resource, make(&old)?, params)?;
            metadata::for_update(&old, &mut value, resource, key, params.patch)?;
            kinds::for_update(resource, &old, &mut value, part);
            self.complete(resource, Some(&old), &mut value, part)?;
            metadata::count_generation(&old, &mut value, resource);
            if value == old {
                let object = current;
                return Ok(Written { object, warnings });
            }
            if params.dry_run {
                let object = Object::new(kind, value, current.version, EventType::Modified);
                let object = Arc::new(object);
                return Ok(Written { object, warnings });
            }
            if let Ok(object) = self.store_or_delete(&current, value) {
                if object.event == EventType::Deleted {
                    self.finish_namespace(&object.key.namespace);
                }
                return Ok(Written { object, warnings });
            }
        }
    }

    /// Adds to a new object, or to what replaces `old`, what is missing, and checks it.
    fn complete(
        &self,
        resource: &Resource,
        old: Option<&Value>,
        value: &mut Value,
        part: Part,
    ) -> Result<(), ApiError> {
        admission::admit(resource, old, value, part)?;
        rules::apply(resource, old, value)?;
        if resource.kind == ApiKind::Service {
            self.allocate(old, value)?;
        }
        kinds::finish(resource, value);
        if size(value) > MAX_OBJECT_BYTES {
            return Err(ApiError::unexpected("etcdserver: request is too large"));
        }
        Ok(())
    }

    /// Stores `value` in place of `current`, or deletes that if nothing keeps it any longer.
    fn store_or_delete(&self, current: &Arc<Object>, value: Value) -> Result<Arc<Object>, Changed> {
        if metadata::is_finished(&value) {
            self.store.delete(current)
        } else {
            self.store.replace(current, value)
        }
    }
}

/// Most bytes of an object. Source: etcd 3.6, `--max-request-bytes`, which is what limits objects of a kube-apiserver.
const MAX_OBJECT_BYTES: usize = 3 << 19;

/// `metadata.name`; empty when absent.
fn name(value: &Value) -> &str {
    text(value, "/metadata/name")
}
