//! Requests for objects: their authorization, and the work of each verb.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use larder_objects::ObjectKey;
use serde_json::Value;

use super::{
    body::Body,
    format::Format,
    message::{
        created, deleted_json, done, json_response, media_type, object_body, ok, parse_json,
        written_response,
    },
    params::{self, ListParams, WatchParams},
    read,
    watch::WatchStream,
};
use crate::{
    ApiError, ApiServer, User,
    authorize::{self, Attempt, AttemptedUpdate, AttemptedWrite, Authorization, Objects},
    patch::PatchType,
    query::Query,
    request::{ResourcePath, Verb},
    resource::ApiKind,
    selector::FieldSelector,
    write::{
        Part, namespaces,
        options::{DeleteOptions, WriteParams},
    },
};

/// A request for objects of one kind, but for its body.
pub(super) struct ObjectRequest<'r> {
    pub(super) server: &'r ApiServer,
    pub(super) user: &'r User,
    pub(super) verb: Verb,
    pub(super) target: &'r ResourcePath,
    pub(super) query: &'r Query<'r>,
    pub(super) headers: &'r HeaderMap,
}

/// What a creation makes, or does to the object that its path names.
enum Creation {
    Object(WriteParams),
    Token,
    Binding,
    Eviction,
}

impl ObjectRequest<'_> {
    /// Rejects what the user may not do.
    pub(super) fn authorize(&self) -> Result<(), ApiError> {
        let target = self.target;
        let selector = self.query.get("fieldSelector").unwrap_or("");
        let selector = FieldSelector::parse(selector, target.kind.resource())?;
        let attempt = Attempt::new(self.verb, Some(target), Some(&selector));
        let objects = Objects(self.server.store());
        self.authorization()
            .authorize(objects, self.user, &attempt)
            .map_err(|why| authorize::denied(self.user, &attempt, &why))
    }

    /// Does what an authorized request asks for.
    pub(super) fn serve(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        let format = Format::accepted(self.headers, self.query, self.server.clock())?;
        match self.verb {
            Verb::Create => self.create(body),
            Verb::Get | Verb::List | Verb::Watch => self.read(format),
            Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => self.write(body),
        }
    }

    fn read(&self, format: Format) -> Result<Response<Body>, ApiError> {
        let query = self.query;
        let target = self.target;
        let store = self.server.store();
        self.part()?;
        match self.verb {
            Verb::Watch => {
                let params = WatchParams::parse(query, target)?;
                let stream = WatchStream::open(store, target.kind, params, format)?;
                Ok(json_response(StatusCode::OK, Body::watch(stream)))
            }
            Verb::List => {
                let params = ListParams::parse(query, target)?;
                let page = read::page(store, target.kind, &params)?;
                let list = format.list(target.kind, page, &params);
                Ok(json_response(StatusCode::OK, list))
            }
            _ => {
                let asked = params::version(query).map_err(ApiError::unexpected)?;
                store.version_from(asked.unwrap_or(0))?;
                let object = store.require(target.kind, &target.key())?;
                Ok(ok(format.object(&object)))
            }
        }
    }

    fn write(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        let query = self.query;
        let headers = self.headers;
        let kind = self.target.kind;
        let part = self.part()?;
        match self.verb {
            Verb::Delete => {
                let key = self.target.key();
                if kind == ApiKind::Namespace {
                    namespaces::check_may_go(&key.name)?;
                }
                self.admit(&key, None)?;
                let options = self.delete_options(body)?;
                let deleted = self.server.writer().delete(kind, &key, &options)?;
                Ok(ok(deleted_json(kind, &deleted)))
            }
            Verb::DeleteCollection => self.delete_collection(body),
            Verb::Patch => {
                let params = WriteParams::parse(query, "PatchOptions")?;
                let patch_type = media_type(headers)
                    .and_then(PatchType::of_media_type)
                    .ok_or_else(ApiError::unsupported_patch)?;
                let body = parse_json(body)?;
                self.update(part, params, |old| patch_type.apply(old, &body))
            }
            _ => {
                let params = WriteParams::parse(query, "UpdateOptions")?;
                let body = object_body(headers, body)?;
                self.update(part, params, |_| Ok(body.clone()))
            }
        }
    }

    fn create(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        let creation = self.creation()?;
        let body = object_body(self.headers, body)?;
        let key = self.target.key();
        self.admit(&key, Some(&body))?;
        let writer = self.server.writer();
        match creation {
            Creation::Object(params) => {
                let kind = self.target.kind;
                let namespace = self.target.namespace.as_deref();
                let body = self.versioned(body);
                let written = writer.create(kind, namespace, body, Part::Main, params)?;
                Ok(written_response(StatusCode::CREATED, &written))
            }
            Creation::Token => Ok(created(&writer.create_token(&key, body)?)),
            Creation::Binding => writer.bind(&key, &body).map(|()| done()),
            Creation::Eviction => writer.evict(&key, &body).map(|()| done()),
        }
    }

    fn creation(&self) -> Result<Creation, ApiError> {
        let target = self.target;
        match (target.kind, &target.name, target.subresource.as_deref()) {
            (_, None, _) => {
                self.check_names_namespace()?;
                let params = WriteParams::parse(self.query, "CreateOptions")?;
                Ok(Creation::Object(params))
            }
            (ApiKind::ServiceAccount, _, Some("token")) => Ok(Creation::Token),
            (ApiKind::Pod, _, Some("binding")) => Ok(Creation::Binding),
            (ApiKind::Pod, _, Some("eviction")) => Ok(Creation::Eviction),
            _ => {
                self.part()?;
                Err(ApiError::method_not_allowed())
            }
        }
    }

    fn authorization(&self) -> &dyn Authorization {
        &*self.server.options().authorization
    }

    /// Rejects a write of what the user may not change.
    fn admit(&self, key: &ObjectKey, body: Option<&Value>) -> Result<(), ApiError> {
        let write = AttemptedWrite {
            verb: self.verb,
            kind: self.target.kind,
            subresource: self.target.subresource.as_deref(),
            key,
            body,
        };
        let objects = Objects(self.server.store());
        self.authorization().admit(objects, self.user, &write)
    }

    fn delete_collection(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        self.check_names_namespace()?;
        let kind = self.target.kind;
        let writer = self.server.writer();
        let options = self.delete_options(body)?;
        let params = ListParams::parse(self.query, self.target)?;
        let page = read::page(self.server.store(), kind, &params)?;
        for object in &page.objects {
            // Another client may have deleted it first.
            if let Err(error) = writer.delete(kind, &object.key, &options)
                && error.code() != StatusCode::NOT_FOUND
            {
                return Err(error);
            }
        }
        let list = Format::Objects.list(kind, page, &params);
        Ok(json_response(StatusCode::OK, list))
    }

    /// The part of the object that the request is about.
    fn part(&self) -> Result<Part, ApiError> {
        match self.target.subresource.as_deref() {
            None => Ok(Part::Main),
            Some("status") if self.target.kind.resource().has_status => match self.verb {
                Verb::Get | Verb::Update | Verb::Patch => Ok(Part::Status),
                _ => Err(ApiError::method_not_allowed()),
            },
            Some(_) => Err(ApiError::no_such_path()),
        }
    }

    /// Replaces the object by what `change` makes of it.
    fn update(
        &self,
        part: Part,
        params: WriteParams,
        change: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Response<Body>, ApiError> {
        let kind = self.target.kind;
        let key = self.target.key();
        self.admit(&key, None)?;
        let make = |old: &Value| {
            let new = self.versioned(change(old)?);
            let update = AttemptedUpdate {
                kind,
                subresource: self.target.subresource.as_deref(),
                old,
                new: &new,
            };
            self.authorization().admit_update(self.user, &update)?;
            Ok(new)
        };
        let written = self
            .server
            .writer()
            .update(kind, &key, part, params, make)?;
        Ok(written_response(StatusCode::OK, &written))
    }

    /// `object` in the version that is stored.
    fn versioned(&self, mut object: Value) -> Value {
        self.server
            .options()
            .certificates_versions
            .read(&mut object);
        object
    }

    fn delete_options(&self, body: &Bytes) -> Result<DeleteOptions, ApiError> {
        if body.is_empty() {
            DeleteOptions::of_query(self.query)
        } else {
            DeleteOptions::of_body(&object_body(self.headers, body)?)
        }
    }

    /// Objects of all namespaces cannot be written at once.
    fn check_names_namespace(&self) -> Result<(), ApiError> {
        if self.target.kind.resource().namespaced && self.target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        Ok(())
    }
}
