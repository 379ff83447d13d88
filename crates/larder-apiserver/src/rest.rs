//! The HTTP face: from a request to what the store and the writer do, and back.

mod body;
mod discovery;
mod format;
pub(crate) mod params;
mod protobuf;
mod read;
mod request;
mod table;
mod watch;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};
use smol_str::SmolStr;

pub use body::{Body, Cut};
pub use request::Verb;

use crate::{
    ApiError, ApiServer, AuditRecord, Authorization, Effect, User,
    authorize::{self, Attempt},
    faults,
    patch::{self, PatchType},
    resource::Kind,
    selector::FieldSelector,
    store::Object,
    write::{Deleted, Part, Written, namespaces},
};
use format::Format;
use params::{DeleteOptions, ListParams, Query, WatchParams, WriteParams};
use request::{Route, Target};
use watch::WatchStream;

/// Longest body that is read, in bytes; as kube-apiserver's limit for JSON.
const MAX_BODY_BYTES: usize = 3 << 20;

/// Any error of a request's body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

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
        let route = Route::of(parts.uri.path());
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
            Some(Effect::Refuse(error)) => refusal(error),
            _ => match self
                .try_answer(user, route, verb, &query, &parts, body)
                .await
            {
                Ok(response) => response,
                Err(error) => refusal(&error),
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
                let body = read_body(body).await?;
                self.admit(&user, verb, &target, &parts.headers, &body)?;
                self.serve_objects(&user, verb, &target, query, &parts.headers, &body)
            }
            Route::Other(segments) => {
                let segments: Vec<_> = segments.iter().map(SmolStr::as_str).collect();
                let body = read_body(body).await?;
                self.serve_other(&user, &parts.method, &segments, &parts.headers, &body)
            }
        }
    }

    fn serve_objects(
        &self,
        user: &User,
        verb: Verb,
        target: &Target,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let format = Format::accepted(headers, query, self.clock())?;
        match (target.kind, target.subresource.as_deref(), &target.name) {
            (Kind::ServiceAccount, Some("token"), Some(name)) if verb == Verb::Create => {
                let key = read::key(target.namespace.as_ref(), name);
                let token = self
                    .writer()
                    .create_token(&key, object_body(headers, body)?)?;
                return Ok(created(&token));
            }
            (Kind::Pod, Some("binding"), Some(name)) if verb == Verb::Create => {
                let binding = object_body(headers, body)?;
                let node = binding["target"]["name"].as_str().unwrap_or_default();
                let key = read::key(target.namespace.as_ref(), name);
                self.writer().bind(&key, node)?;
                return Ok(created(
                    &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
                ));
            }
            _ => {}
        }
        let part = part(verb, target)?;
        let authorization = self.options().authorization;
        let admitted = |old: &Value, new: Value| {
            if (target.kind, target.subresource.as_deref()) == (Kind::Pod, Some("status")) {
                authorization.admit_status(user, old, &new)?;
            }
            Ok(new)
        };
        match (verb, &target.name) {
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
                Ok(ok(format.list(target.kind, &page, &params)))
            }
            (Verb::Get, Some(name)) => {
                let current = self.store().version();
                if let Some(asked) = params::version(query)?.filter(|asked| *asked > current) {
                    return Err(ApiError::version_too_large(asked, current));
                }
                let key = read::key(target.namespace.as_ref(), name);
                let object = self.store().get(target.kind, &key);
                let object =
                    object.ok_or_else(|| ApiError::not_found(target.kind.resource(), name))?;
                Ok(ok(format.object(&object)))
            }
            (Verb::Create, None) => self.serve_create(target, query, headers, body),
            (Verb::Update, Some(name)) => {
                let params = WriteParams::parse(query)?;
                let body = object_body(headers, body)?;
                let key = read::key(target.namespace.as_ref(), name);
                let make = |old: &Value| admitted(old, body.clone());
                let written = self
                    .writer()
                    .update(target.kind, &key, part, params, make)?;
                Ok(written_response(StatusCode::OK, &written))
            }
            (Verb::Patch, Some(name)) => {
                let params = WriteParams::parse(query)?;
                let patch_type = media_type(headers)
                    .and_then(PatchType::of_media_type)
                    .ok_or_else(|| ApiError::unsupported_media_type(patch::MEDIA_TYPES))?;
                let body = parse_json(body)?;
                let key = read::key(target.namespace.as_ref(), name);
                let make = |old: &Value| admitted(old, patch_type.apply(target.kind, old, &body)?);
                let written = self
                    .writer()
                    .update(target.kind, &key, part, params, make)?;
                Ok(written_response(StatusCode::OK, &written))
            }
            (Verb::Delete, Some(name)) => {
                let options = DeleteOptions::parse(query, delete_options(headers, body)?)?;
                let key = read::key(target.namespace.as_ref(), name);
                let deleted = self.writer().delete(target.kind, &key, &options)?;
                Ok(ok(deleted_json(target.kind, &deleted)))
            }
            (Verb::DeleteCollection, None) => {
                self.serve_delete_collection(target, query, headers, body)
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn authorize(
        &self,
        user: &User,
        verb: Verb,
        target: &Target,
        query: &Query<'_>,
    ) -> Result<(), ApiError> {
        let selector = query.get("fieldSelector").unwrap_or("");
        let selector = FieldSelector::parse(selector, target.kind.resource())?;
        let attempt = Attempt {
            verb,
            group: target.kind.resource().group,
            resource: target.kind.resource().plural,
            subresource: target.subresource.as_deref(),
            namespace: target.namespace.as_deref(),
            name: target
                .name
                .as_ref()
                .or(selector.name())
                .map(SmolStr::as_str),
            node_name: selector.node_name().map(SmolStr::as_str),
        };
        self.options()
            .authorization
            .decide(self.store(), user, &attempt)
            .map_err(|why| authorize::refusal(user, &attempt, &why))
    }

    /// Some namespaces stay, and what nodes may do to pods and in their name depends on the pod.
    fn admit(
        &self,
        user: &User,
        verb: Verb,
        target: &Target,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<(), ApiError> {
        if (target.kind, verb) == (Kind::Namespace, Verb::Delete) {
            return namespaces::check_may_go(target.name.as_deref().unwrap_or_default());
        }
        let authorization = self.options().authorization;
        let concerns = matches!(target.kind, Kind::Pod | Kind::PodCertificateRequest)
            && matches!(
                verb,
                Verb::Create | Verb::Update | Verb::Patch | Verb::Delete
            );
        if authorization == Authorization::AllowAll || !concerns {
            return Ok(());
        }
        let object = match verb {
            Verb::Create => Some(object_body(headers, body)?),
            _ => None,
        };
        let named = target.name.clone().unwrap_or_default();
        let key = read::key(target.namespace.as_ref(), &named);
        authorization.admit(
            self.store(),
            user,
            verb,
            (target.kind, &key),
            object.as_ref(),
        )
    }

    /// Answers a SelfSubjectAccessReview: whether `user` may do what it asks about.
    fn review(&self, user: &User, mut review: Value) -> Value {
        let asked = &review["spec"]["resourceAttributes"];
        let text = |field: &str| asked[field].as_str().filter(|text| !text.is_empty());
        let requirements = asked["fieldSelector"]["requirements"].as_array();
        let selected = |key: &str| {
            let requirements = requirements.into_iter().flatten();
            let mut fitting =
                requirements.filter(|term| term["key"] == key && term["operator"] == "In");
            fitting.find_map(|term| match term["values"].as_array()?.as_slice() {
                [one] => one.as_str(),
                _ => None,
            })
        };
        let decision = match text("verb").and_then(Verb::parse) {
            _ if asked.is_null() => Ok(()),
            None => Err("no such verb".to_owned()),
            Some(verb) => self.options().authorization.decide(
                self.store(),
                user,
                &Attempt {
                    verb,
                    group: text("group").unwrap_or_default(),
                    resource: text("resource").unwrap_or_default(),
                    subresource: text("subresource"),
                    namespace: text("namespace"),
                    name: text("name").or(selected("metadata.name")),
                    node_name: selected("spec.nodeName"),
                },
            ),
        };
        review["kind"] = "SelfSubjectAccessReview".into();
        review["apiVersion"] = "authorization.k8s.io/v1".into();
        review["status"] = match decision {
            Ok(()) => json!({"allowed": true}),
            Err(reason) => json!({"allowed": false, "reason": reason}),
        };
        review
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
            (&Method::GET, ["healthz" | "livez" | "readyz", ..]) => {
                let mut response = ok(Bytes::from_static(b"ok"));
                let plain = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, plain);
                Ok(response)
            }
            (&Method::GET, segments) => discovery::document(segments)
                .map(|document| ok(document.to_string().into()))
                .ok_or_else(ApiError::no_such_path),
            (
                &Method::POST,
                [
                    "apis",
                    "authorization.k8s.io",
                    "v1",
                    "selfsubjectaccessreviews",
                ],
            ) => {
                let review = self.review(user, object_body(headers, body)?);
                Ok(created(&review))
            }
            _ => Err(ApiError::no_such_path()),
        }
    }

    fn serve_create(
        &self,
        target: &Target,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let resource = target.kind.resource();
        if resource.namespaced && target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let params = WriteParams::parse(query)?;
        let body = object_body(headers, body)?;
        let namespace = target.namespace.as_deref();
        let written = self
            .writer()
            .create(target.kind, namespace, body, Part::Main, params)?;
        Ok(written_response(StatusCode::CREATED, &written))
    }

    fn serve_delete_collection(
        &self,
        target: &Target,
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
            // What somebody else deleted first is as gone as it should be.
            if let Err(error) = self.writer().delete(target.kind, &object.key, &options)
                && error.code() != StatusCode::NOT_FOUND
            {
                return Err(error);
            }
        }
        Ok(ok(read::list_json(target.kind, &page, &params)))
    }
}

/// The part of the object that a request is about.
fn part(verb: Verb, target: &Target) -> Result<Part, ApiError> {
    match target.subresource.as_deref() {
        None => Ok(Part::Main),
        Some("status") if target.kind.resource().has_status => match verb {
            Verb::Get | Verb::Update | Verb::Patch => Ok(Part::Status),
            _ => Err(ApiError::method_not_allowed()),
        },
        Some(_) => Err(ApiError::no_such_path()),
    }
}

async fn read_body<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body + Send,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::too_large(MAX_BODY_BYTES)),
        Err(error) => Err(ApiError::bad_request(format!(
            "cannot read the body: {error}"
        ))),
    }
}

/// The body: JSON, or what little is read of protobuf.
fn object_body(headers: &HeaderMap, body: &[u8]) -> Result<Value, ApiError> {
    const JSON: &str = "application/json";
    match media_type(headers) {
        None | Some(JSON) => parse_json(body),
        Some(protobuf::MEDIA_TYPE) => {
            protobuf::decode(body).ok_or_else(|| ApiError::unsupported_media_type(JSON))
        }
        Some(_) => Err(ApiError::unsupported_media_type(JSON)),
    }
}

/// The body of a deletion, if there is one.
fn delete_options(headers: &HeaderMap, body: &[u8]) -> Result<Option<Value>, ApiError> {
    if body.is_empty() {
        Ok(None)
    } else {
        object_body(headers, body).map(Some)
    }
}

fn parse_json(body: &[u8]) -> Result<Value, ApiError> {
    // The error tells the place only: its text may quote a Secret.
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        ApiError::bad_request(format!(
            "the body is not JSON: line {line}, column {column}"
        ))
    })
}

/// `Content-Type` without its parameters.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim())
}

/// What a deletion answers: the object where it stays, or where clients want to see how it ended; else plain success.
fn deleted_json(kind: Kind, deleted: &Deleted) -> Bytes {
    let shows_object = matches!(kind, Kind::Pod | Kind::Service | Kind::ServiceAccount);
    match deleted {
        Deleted::Marked(object) => object.json(),
        Deleted::Gone(object) if shows_object => object.json(),
        Deleted::Gone(object) => success(object).to_string().into(),
    }
}

fn success(object: &Object) -> Value {
    let resource = object.kind.resource();
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.key.name,
            "kind": resource.plural,
            "uid": object.uid,
        },
    });
    if !resource.group.is_empty() {
        status["details"]["group"] = resource.group.into();
    }
    status
}

fn ok(json: Bytes) -> Response<Body> {
    json_response(StatusCode::OK, json.into())
}

fn created(value: &Value) -> Response<Body> {
    json_response(StatusCode::CREATED, Bytes::from(value.to_string()).into())
}

fn json_response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

fn written_response(status: StatusCode, written: &Written) -> Response<Body> {
    let mut response = json_response(status, written.object.json().into());
    for warning in &written.warnings {
        // RFC 9110 leaves 299 and `-` for a warning without code and agent.
        let text = warning.replace('\\', r"\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

fn refusal(error: &ApiError) -> Response<Body> {
    let mut response = json_response(error.code(), Bytes::from(error.to_json()).into());
    if error.retry_after() > 0 {
        let value = HeaderValue::from(error.retry_after());
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}
