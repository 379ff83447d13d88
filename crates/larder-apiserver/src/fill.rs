//! Fills the server from inside the process: from manifests, and for tests.

use larder_objects::ObjectKey;
use serde::Serialize;
use serde_json::Value;

use crate::{
    ApiError, ApiKind, ApiServer,
    json::text,
    object::Object,
    write::Part,
    write::options::{DeleteOptions, WriteParams},
};

/// The result of applying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was none of that name.
    Created,
    /// It differed and was replaced.
    Changed,
    /// It was the same already: no new version, no event.
    Unchanged,
}

impl ApiServer {
    /// Creates `object`, or replaces the one of that name. `object` is of one of the kinds of [`ApiKind`], as a typed
    /// object or as JSON. It passes the same rules as over HTTP, but may state a status and a uid. A namespace that
    /// does not exist is created; an object that names none goes to `default`.
    ///
    /// An object that differs in what an update may not change (most of a pod's spec, a uid) is deleted at once and
    /// created again, except a ConfigMap or Secret that is immutable.
    ///
    /// # Errors
    ///
    /// The object is not of a known kind, breaks a rule, or changes what is immutable.
    pub fn apply(&self, object: &impl Serialize) -> Result<Applied, ApiError> {
        let mut value = serde_json::to_value(object)
            .map_err(|_| ApiError::bad_request("the object has no JSON form"))?;
        self.options().certificates_versions.read(&mut value);
        let (api_version, name) = (text(&value, "/apiVersion"), text(&value, "/kind"));
        let kind = ApiKind::of_manifest(api_version, name).ok_or_else(|| {
            ApiError::bad_request(format!(
                "no kind \"{name}\" is known in version \"{api_version}\""
            ))
        })?;
        let namespace = match text(&value, "/metadata/namespace") {
            "" => "default".to_owned(),
            namespace => namespace.to_owned(),
        };
        let namespace = Some(namespace).filter(|_| kind.resource().namespaced);
        if let Some(namespace) = &namespace {
            self.writer().ensure_namespace(namespace)?;
        }
        // Whatever version the manifest was written with, it means the object of that name.
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let name = text(&value, "/metadata/name");
        let key = ObjectKey::new(namespace.clone().unwrap_or_default(), name);
        let create = |dry_run: bool| {
            let params = WriteParams {
                dry_run,
                ..WriteParams::default()
            };
            let (namespace, value) = (namespace.as_deref(), value.clone());
            self.writer()
                .create(kind, namespace, value, Part::Whole, params)
        };
        let Some(before) = self.store().get(kind, &key) else {
            create(false)?;
            return Ok(Applied::Created);
        };
        let make = |_: &Value| Ok(value.clone());
        let params = WriteParams::default();
        match self.writer().update(kind, &key, Part::Whole, params, make) {
            Ok(after) if after.object.version == before.version => Ok(Applied::Unchanged),
            Ok(_) => Ok(Applied::Changed),
            // The identity or an immutable field differs: recreate the object, if the new one is valid. Readers of
            // immutable data have stopped watching, so they would not notice a new object of the same name.
            Err(error)
                if matches!(error.reason(), "Conflict" | "Invalid")
                    && before.value()["immutable"] != true =>
            {
                if create(true).is_err_and(|rejected| rejected.reason() != "AlreadyExists") {
                    return Err(error);
                }
                self.writer()
                    .delete(kind, &key, &DeleteOptions::immediate())?;
                create(false)?;
                Ok(Applied::Changed)
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes an object at once, without grace. `namespace` is empty for kinds of cluster scope.
    ///
    /// # Errors
    ///
    /// 404: there is none.
    pub fn delete(&self, kind: ApiKind, namespace: &str, name: &str) -> Result<(), ApiError> {
        let options = DeleteOptions::immediate();
        self.writer()
            .delete(kind, &ObjectKey::new(namespace, name), &options)?;
        Ok(())
    }

    /// An object as the server holds it. `namespace` is empty for kinds of cluster scope.
    pub fn get(&self, kind: ApiKind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.store().get(kind, &ObjectKey::new(namespace, name))?;
        Some(Object::value(&object))
    }
}
