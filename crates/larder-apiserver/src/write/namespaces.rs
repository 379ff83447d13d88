//! Namespaces: they must exist, are created with a few objects, and are deleted with their content.

use std::sync::Arc;

use larder_objects::ObjectKey;
use serde_json::json;

use super::{
    Part, Writer,
    options::{DeleteOptions, WriteParams},
};
use crate::{
    object::Object,
    resource::{ApiKind, RESOURCES},
    selector::Filter,
    status::ApiError,
};

/// The namespaces of a new server.
const FIRST: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// Those that no client may delete. (kube-apiserver 1.36, admission plugin `NamespaceLifecycle`.)
const PERMANENT: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Rejects the deletion of a namespace that every cluster has.
pub(crate) fn check_may_go(namespace: &str) -> Result<(), ApiError> {
    if PERMANENT.contains(&namespace) {
        let why = "this namespace may not be deleted";
        return Err(ApiError::forbidden(ApiKind::Namespace, namespace, why));
    }
    Ok(())
}

impl Writer {
    /// Creates the namespaces that every cluster has.
    pub(crate) fn create_first_namespaces(&self) {
        for name in FIRST {
            self.ensure_namespace(name)
                .expect("these are names, and the store is new");
        }
    }

    /// Creates the namespace unless it exists.
    ///
    /// # Errors
    ///
    /// `name` is not one.
    pub(crate) fn ensure_namespace(&self, name: &str) -> Result<(), ApiError> {
        let key = ObjectKey::new("", name);
        if self.store.get(ApiKind::Namespace, &key).is_some() {
            return Ok(());
        }
        let body = json!({"metadata": {"name": name}});
        let params = WriteParams::default();
        match self.create(ApiKind::Namespace, None, body, Part::Main, params) {
            // Another write was faster.
            Err(error) if error.reason() == "AlreadyExists" => Ok(()),
            created => created.map(drop),
        }
    }

    /// What the root CA and service account controllers create in a new namespace.
    pub(super) fn fill_namespace(&self, namespace: &str) {
        let Some(authority) = &self.namespace_authority else {
            return;
        };
        let map = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": authority}});
        let account = json!({"metadata": {"name": "default"}});
        for (kind, body) in [
            (ApiKind::ConfigMap, map),
            (ApiKind::ServiceAccount, account),
        ] {
            let params = WriteParams::default();
            // It fails only if the namespace is gone again, or another write was faster.
            let _ = self.create(kind, Some(namespace), body, Part::Main, params);
        }
    }

    /// Deletes what is in the namespace, and the namespace when nothing holds on.
    pub(super) fn empty_namespace(&self, name: &str) {
        for object in self.content(name, None) {
            // Another write may be faster; then it is gone as well.
            let _ = self.delete(object.kind, &object.key, &DeleteOptions::default());
        }
        self.finish_namespace(name);
    }

    /// Lets a namespace go that is terminating and empty: after each deletion in it.
    pub(super) fn finish_namespace(&self, name: &str) {
        while let Some(current) = self.terminating(name) {
            if self.content(name, Some(1)).next().is_some() {
                return;
            }
            let mut value = current.value();
            value["spec"]["finalizers"] = json!([]);
            if self.store_or_delete(&current, value).is_ok() {
                return;
            }
        }
    }

    /// The objects in a namespace, at most `limit` of each kind.
    fn content(&self, namespace: &str, limit: Option<usize>) -> impl Iterator<Item = Arc<Object>> {
        let filter = Filter {
            namespace: Some(namespace.into()),
            ..Filter::default()
        };
        let resources = RESOURCES.iter().filter(|resource| resource.namespaced);
        resources.flat_map(move |resource| {
            let page = self.store.list(resource.kind, &filter, None, None, limit);
            // Only an older state than the present one may be gone.
            page.map(|page| page.objects).unwrap_or_default()
        })
    }

    /// The namespace, if it is terminating and its content still keeps it.
    fn terminating(&self, name: &str) -> Option<Arc<Object>> {
        let key = ObjectKey::new("", name);
        let held = self.store.get(ApiKind::Namespace, &key)?;
        let waits = held.field("status.phase") == "Terminating"
            && held.value()["spec"]["finalizers"] == json!(["kubernetes"]);
        waits.then_some(held)
    }

    /// Rejects new objects in a namespace that does not exist or is terminating.
    pub(super) fn check_namespace_takes_objects(
        &self,
        kind: ApiKind,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        let key = ObjectKey::new("", namespace);
        let held = self.store.require(ApiKind::Namespace, &key)?;
        if held.field("status.phase") == "Terminating" {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            return Err(ApiError::forbidden(kind, name, &why));
        }
        Ok(())
    }
}
