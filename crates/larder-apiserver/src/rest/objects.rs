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
    authorize::{self, Attempt, NodeRestriction},
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

impl ObjectRequest<'_> {
    /// Rejects what the user may not do.
    pub(super) fn authorize(&self) -> Result<(), ApiError> {
        let target = self.target;
        let selector = self.query.get("fieldSelector").unwrap_or("");
        let selector = FieldSelector::parse(selector, target.kind.resource())?;
        let attempt = Attempt::new(self.verb, Some(target), Some(&selector));
        let authorization = self.server.options().authorization;
        authorization
            .decide(self.server.store(), self.user, &attempt)
            .map_err(|why| authorize::denied(self.user, &attempt, &why))
    }

    /// Checks what no authorizer can: some namespaces stay, and nodes write only what concerns them.
    pub(super) fn admit(&self, body: &Bytes) -> Result<(), ApiError> {
        let Self { verb, target, .. } = *self;
        if (target.kind, verb) == (ApiKind::Namespace, Verb::Delete) {
            return namespaces::check_may_go(target.name.as_deref().unwrap_or_default());
        }
        let writes = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
        let node = self.server.options().authorization.node(self.user);
        let Some(node) = node.filter(|_| writes.contains(&verb)) else {
            return Ok(());
        };
        let body = (verb == Verb::Create).then(|| object_body(self.headers, body));
        let body = body.transpose()?;
        let restriction = NodeRestriction {
            store: self.server.store(),
            node,
            verb,
            kind: target.kind,
            subresource: target.subresource.as_deref(),
            key: &target.key(),
            body: body.as_ref(),
        };
        restriction.admit()
    }

    /// Does what an admitted request asks for.
    pub(super) fn serve(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        let (server, verb, target) = (self.server, self.verb, self.target);
        let (query, headers) = (self.query, self.headers);
        let (kind, store) = (target.kind, server.store());
        let format = Format::accepted(headers, query, server.clock())?;
        let key = target.name.as_ref().map(|_| target.key());
        if let (Verb::Create, Some(subresource), Some(key)) = (verb, &target.subresource, &key)
            && let Some(answer) = self.act(subresource, key, body)?
        {
            return Ok(answer);
        }
        let part = self.part()?;
        match (verb, &key) {
            (Verb::Watch, _) => {
                let params = WatchParams::parse(query, target)?;
                let stream = WatchStream::open(store, kind, params, format)?;
                Ok(json_response(StatusCode::OK, Body::watch(stream)))
            }
            (Verb::List, _) => {
                let params = ListParams::parse(query, target)?;
                let page = read::page(store, kind, &params)?;
                let list = format.list(kind, page, &params);
                Ok(json_response(StatusCode::OK, list))
            }
            (Verb::Get, Some(key)) => {
                let asked = params::version(query).map_err(ApiError::unexpected)?;
                store.version_from(asked.unwrap_or(0))?;
                Ok(ok(format.object(&*store.require(kind, key)?)))
            }
            (Verb::Create, None) => self.create(body),
            (Verb::Update, Some(_)) => {
                let params = WriteParams::parse(query, "UpdateOptions")?;
                let body = object_body(headers, body)?;
                self.update(part, params, |_| Ok(body.clone()))
            }
            (Verb::Patch, Some(_)) => {
                let params = WriteParams::parse(query, "PatchOptions")?;
                let patch_type = media_type(headers)
                    .and_then(PatchType::of_media_type)
                    .ok_or_else(ApiError::unsupported_patch)?;
                let body = parse_json(body)?;
                self.update(part, params, |old| patch_type.apply(old, &body))
            }
            (Verb::Delete, Some(key)) => {
                let options = self.delete_options(body)?;
                let deleted = server.writer().delete(kind, key, &options)?;
                Ok(ok(deleted_json(kind, &deleted)))
            }
            (Verb::DeleteCollection, None) => self.delete_collection(body),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Does what the creation of a subresource means; nothing if it is none that is created.
    fn act(
        &self,
        subresource: &str,
        key: &ObjectKey,
        body: &Bytes,
    ) -> Result<Option<Response<Body>>, ApiError> {
        let (writer, body) = (self.server.writer(), || object_body(self.headers, body));
        Ok(match (self.target.kind, subresource) {
            (ApiKind::ServiceAccount, "token") => {
                Some(created(&writer.create_token(key, body()?)?))
            }
            (ApiKind::Pod, "binding") => {
                writer.bind(key, &body()?)?;
                Some(done())
            }
            (ApiKind::Pod, "eviction") => {
                writer.evict(key, &body()?)?;
                Some(done())
            }
            _ => None,
        })
    }

    fn create(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        self.check_names_namespace()?;
        let params = WriteParams::parse(self.query, "CreateOptions")?;
        let body = self.versioned(object_body(self.headers, body)?);
        let namespace = self.target.namespace.as_deref();
        let writer = self.server.writer();
        let written = writer.create(self.target.kind, namespace, body, Part::Main, params)?;
        Ok(written_response(StatusCode::CREATED, &written))
    }

    fn delete_collection(&self, body: &Bytes) -> Result<Response<Body>, ApiError> {
        self.check_names_namespace()?;
        let (kind, writer) = (self.target.kind, self.server.writer());
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
        let target = self.target;
        let authorization = self.server.options().authorization;
        let make = |old: &Value| {
            let new = self.versioned(change(old)?);
            let subresource = target.subresource.as_deref();
            authorization.admit_update(self.user, target.kind, subresource, (old, &new))?;
            Ok(new)
        };
        let writer = self.server.writer();
        let written = writer.update(target.kind, &target.key(), part, params, make)?;
        Ok(written_response(StatusCode::OK, &written))
    }

    /// `object` in the version that is stored.
    fn versioned(&self, mut object: Value) -> Value {
        let versions = self.server.options().certificates_versions;
        versions.read(&mut object);
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
