//! The HTTP interface: passes requests to the store and the writer, and returns their responses.

mod access;
mod body;
mod discovery;
mod format;
mod list;
mod message;
mod params;
mod protobuf;
mod read;
mod reviews;
mod table;
mod watch;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use serde_json::Value;
use smol_str::SmolStr;

pub use body::Body;

use crate::{
    ApiError, ApiServer, AuditRecord, BoxError, User,
    faults::{self, Cut, Effect},
    patch::PatchType,
    query::Query,
    request::{ResourcePath, Route, Verb},
    resource::Kind,
    selector::FieldSelector,
    write::{
        Part,
        options::{DeleteOptions, WriteParams},
    },
};
use format::Format;
use message::{
    created, delete_options, deleted_json, done, error_response, json_response, media_type,
    object_body, ok, parse_json, plain, read_body, written_response,
};
use params::{ListParams, WatchParams};
use watch::WatchStream;

impl ApiServer {
    /// Answers one request.
    ///
    /// # Errors
    ///
    /// A fault breaks the connection.
    pub(crate) async fn answer<B>(
        &self,
        user: Option<User>,
        request: Request<B>,
    ) -> Result<Response<Body>, Cut>
    where
        B: http_body::Body + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or(""));
        let versions = self.options().certificates_versions;
        let route = Route::of(parts.uri.path(), versions);
        let verb = match &route {
            Ok(Route::Objects(target)) => target.verb(&parts.method, &query),
            _ => Ok(Verb::of_method(&parts.method)),
        };
        let recorded = *verb.as_ref().unwrap_or(&Verb::Get);
        let effect = self.strike(user.as_ref(), recorded, route.as_ref().ok(), &query);
        match &effect {
            Some(Effect::Silence) => {
                self.record(recorded, &parts, 0);
                return std::future::pending().await;
            }
            Some(Effect::Drop) => {
                self.record(recorded, &parts, 0);
                return Err(Cut);
            }
            Some(Effect::Delay(delay)) => tokio::time::sleep(*delay).await,
            _ => {}
        }
        let mut response = match &effect {
            Some(Effect::Reject(error)) => error_response(error),
            _ => match self
                .try_answer(user, route, verb, &query, &parts, body)
                .await
            {
                Ok(response) => response,
                Err(error) => error_response(&error),
            },
        };
        if let Some(Effect::Stream(fault)) = effect {
            response = response.map(|body| body.with_fault(fault));
        }
        self.record(recorded, &parts, response.status().as_u16());
        Ok(response)
    }

    /// The fault that concerns a request.
    fn strike(
        &self,
        user: Option<&User>,
        verb: Verb,
        route: Option<&Route>,
        query: &Query<'_>,
    ) -> Option<Effect> {
        let target = match route {
            Some(Route::Objects(target)) => Some(target),
            _ => None,
        };
        let selector = target.and_then(|target| {
            let selector = query.get("fieldSelector")?;
            FieldSelector::parse(selector, target.kind.resource()).ok()
        });
        let selected = selector.as_ref().and_then(FieldSelector::name);
        let name = target.and_then(|target| target.name.as_ref()).or(selected);
        self.faults().strike(&faults::Request {
            user: user.map(|user| user.name.as_str()),
            verb,
            resource: target.map_or("", |target| target.kind.resource().plural),
            namespace: target.and_then(|target| target.namespace.as_deref()),
            name: name.map(SmolStr::as_str),
            streaming_list: query.flag("sendInitialEvents"),
        })
    }

    fn record(&self, verb: Verb, parts: &Parts, status: u16) {
        if !self.audit().is_on() {
            return;
        }
        let user_agent = parts.headers.get(header::USER_AGENT);
        self.audit().record(AuditRecord {
            time: format!("{:.6}", self.clock().now()),
            verb: verb.as_str(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            user_agent: user_agent
                .map(|agent| String::from_utf8_lossy(agent.as_bytes()).into_owned())
                .unwrap_or_default(),
            status,
        });
    }

    async fn try_answer<B>(
        &self,
        user: Option<User>,
        route: Result<Route, ApiError>,
        verb: Result<Verb, ApiError>,
        query: &Query<'_>,
        parts: &Parts,
        body: B,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let user = user.ok_or_else(ApiError::unauthorized)?;
        match route? {
            Route::Objects(target) => {
                let verb = verb?;
                self.authorize(&user, verb, &target, query)?;
                let body = read_body(body, self.unfinished()).await?;
                self.admit(&user, verb, &target, &parts.headers, &body)?;
                let response =
                    self.serve_objects(&user, verb, &target, query, &parts.headers, &body)?;
                let (parts, mut body) = response.into_parts();
                if target.stable {
                    body = body.stable();
                }
                // What a write returns is the store's, too.
                if matches!(verb, Verb::Get | Verb::List | Verb::Watch) {
                    body = body.counted(self.unread())?;
                }
                Ok(Response::from_parts(parts, body))
            }
            Route::Other(segments) => {
                let segments: Vec<_> = segments.iter().map(SmolStr::as_str).collect();
                let body = read_body(body, self.unfinished()).await?;
                self.serve_other(&user, &parts.method, &segments, &parts.headers, &body)
            }
        }
    }

    fn serve_objects(
        &self,
        user: &User,
        verb: Verb,
        target: &ResourcePath,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let format = Format::accepted(headers, query, self.clock())?;
        let writer = self.writer();
        let key = target.name.as_ref();
        let key = key.map(|name| read::key(target.namespace.as_ref(), name));
        match (target.kind, target.subresource.as_deref(), &key) {
            (Kind::ServiceAccount, Some("token"), Some(key)) if verb == Verb::Create => {
                let token = writer.create_token(key, object_body(headers, body)?)?;
                return Ok(created(&token));
            }
            (Kind::Pod, Some("binding"), Some(key)) if verb == Verb::Create => {
                writer.bind(key, &object_body(headers, body)?)?;
                return Ok(done());
            }
            (Kind::Pod, Some("eviction"), Some(key)) if verb == Verb::Create => {
                writer.evict(key, &object_body(headers, body)?)?;
                return Ok(done());
            }
            _ => {}
        }
        let part = part(verb, target)?;
        let authorization = self.options().authorization;
        let update = |key, params, change: &dyn Fn(&Value) -> Result<Value, ApiError>| {
            let make = |old: &Value| {
                let new = self.versioned(change(old)?);
                let subresource = target.subresource.as_deref();
                authorization.admit_update(user, target.kind, subresource, (old, &new))?;
                Ok(new)
            };
            let written = writer.update(target.kind, key, part, params, make)?;
            Ok(written_response(StatusCode::OK, &written))
        };
        match (verb, &key) {
            (Verb::Watch, _) => {
                let params = WatchParams::parse(query, target)?;
                let stream = WatchStream::open(
                    self.store(),
                    target.kind,
                    params,
                    format,
                    self.options().bookmark_interval,
                )?;
                Ok(json_response(StatusCode::OK, Body::watch(stream)))
            }
            (Verb::List, _) => {
                let params = ListParams::parse(query, target)?;
                let page = read::page(self.store(), target.kind, &params)?;
                let list = format.list(target.kind, page, &params);
                Ok(json_response(StatusCode::OK, list))
            }
            (Verb::Get, Some(key)) => {
                let current = self.store().version();
                if let Some(asked) = params::version(query)?.filter(|asked| *asked > current) {
                    return Err(ApiError::version_too_large(asked, current));
                }
                Ok(ok(format.object(&*self.store().require(target.kind, key)?)))
            }
            (Verb::Create, None) => self.serve_create(target, query, headers, body),
            (Verb::Update, Some(key)) => {
                let params = WriteParams::parse(query, "UpdateOptions")?;
                let body = object_body(headers, body)?;
                update(key, params, &|_| Ok(body.clone()))
            }
            (Verb::Patch, Some(key)) => {
                let params = WriteParams::parse(query, "PatchOptions")?;
                let patch_type = media_type(headers)
                    .and_then(PatchType::of_media_type)
                    .ok_or_else(ApiError::unsupported_patch)?;
                let body = parse_json(body)?;
                update(key, params, &|old| {
                    patch_type.apply(target.kind, old, &body)
                })
            }
            (Verb::Delete, Some(key)) => {
                let options = DeleteOptions::parse(query, delete_options(headers, body)?)?;
                let deleted = writer.delete(target.kind, key, &options)?;
                Ok(ok(deleted_json(target.kind, &deleted)))
            }
            (Verb::DeleteCollection, None) => {
                self.serve_delete_collection(target, query, headers, body)
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn serve_other(
        &self,
        user: &User,
        method: &Method,
        segments: &[&str],
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Body>, ApiError> {
        match (method, segments) {
            (&Method::GET, ["healthz" | "livez" | "readyz", ..]) => Ok(plain(StatusCode::OK, "ok")),
            (&Method::POST, ["apis", group, "v1", review]) if reviews::is_review(group, review) => {
                let review = self.review(user, review, object_body(headers, body)?)?;
                Ok(created(&review))
            }
            (method, segments) => {
                let versions = self.options().certificates_versions;
                let document = discovery::document(segments, versions);
                match document.filter(|_| method == Method::GET) {
                    Some(document) => Ok(ok(document.to_string().into())),
                    None if discovery::has_version(segments, versions) => {
                        Err(ApiError::no_such_path())
                    }
                    // No API is responsible that would answer with a `Status`.
                    None => Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n")),
                }
            }
        }
    }

    /// `object` in the version that is stored.
    fn versioned(&self, mut object: Value) -> Value {
        self.options().certificates_versions.read(&mut object);
        object
    }

    fn serve_create(
        &self,
        target: &ResourcePath,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let resource = target.kind.resource();
        if resource.namespaced && target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let params = WriteParams::parse(query, "CreateOptions")?;
        let body = self.versioned(object_body(headers, body)?);
        let namespace = target.namespace.as_deref();
        let written = self
            .writer()
            .create(target.kind, namespace, body, Part::Main, params)?;
        Ok(written_response(StatusCode::CREATED, &written))
    }

    fn serve_delete_collection(
        &self,
        target: &ResourcePath,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Body>, ApiError> {
        if target.kind.resource().namespaced && target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let options = DeleteOptions::parse(query, delete_options(headers, body)?)?;
        let params = ListParams::parse(query, target)?;
        let page = read::page(self.store(), target.kind, &params)?;
        for object in &page.objects {
            // Another client may have deleted it first.
            if let Err(error) = self.writer().delete(target.kind, &object.key, &options)
                && error.code() != StatusCode::NOT_FOUND
            {
                return Err(error);
            }
        }
        let list = Format::Objects.list(target.kind, page, &params);
        Ok(json_response(StatusCode::OK, list))
    }
}

/// The part of the object that a request is about.
fn part(verb: Verb, target: &ResourcePath) -> Result<Part, ApiError> {
    match target.subresource.as_deref() {
        None => Ok(Part::Main),
        Some("status") if target.kind.resource().has_status => match verb {
            Verb::Get | Verb::Update | Verb::Patch => Ok(Part::Status),
            _ => Err(ApiError::method_not_allowed()),
        },
        Some(_) => Err(ApiError::no_such_path()),
    }
}
