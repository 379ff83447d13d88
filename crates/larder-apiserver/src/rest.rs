//! The HTTP interface: passes requests to the store and the writer, and returns their responses.

mod body;
mod discovery;
mod format;
mod list;
mod message;
mod objects;
mod params;
mod protobuf;
mod read;
mod reviews;
mod table;
mod watch;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use smol_str::SmolStr;

pub use body::Body;

use crate::{
    ApiError, ApiServer, AuditRecord, BoxError, User,
    authorize::Attempt,
    faults::{Cut, Effect},
    query::Query,
    request::{ResourcePath, Route, Verb},
    selector::FieldSelector,
};
use message::{created, error_response, object_body, ok, plain, read_body};
use objects::ObjectRequest;

impl ApiServer {
    /// Answers one request.
    ///
    /// # Errors
    ///
    /// A fault breaks the connection.
    pub(crate) async fn answer(
        &self,
        user: Option<User>,
        request: Request<impl http_body::Body<Data: Send, Error: Into<BoxError>> + Send>,
    ) -> Result<Response<Body>, Cut> {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or(""));
        let versions = self.options().certificates_versions;
        let route = Route::of(parts.uri.path(), versions);
        let target = match &route {
            Ok(Route::Objects(target)) => Some(target),
            _ => None,
        };
        let verb = match target {
            Some(target) => target.verb(&parts.method, &query),
            None => Ok(Verb::of_method(&parts.method)),
        };
        let recorded = *verb.as_ref().unwrap_or(&Verb::Get);
        let effect = self.strike(user.as_ref(), recorded, target, &query);
        if let Some(Effect::Silence | Effect::Drop) = effect {
            self.record(recorded, &parts, 0);
        }
        if let Some(Effect::Delay(delay)) = effect {
            tokio::time::sleep(delay).await;
        }
        let answer = match &effect {
            Some(Effect::Silence) => return std::future::pending().await,
            Some(Effect::Drop) => return Err(Cut),
            Some(Effect::Reject(error)) => Err(error.clone()),
            _ => {
                let answer = self.try_answer(user, route, verb, &query, &parts, body);
                answer.await
            }
        };
        let mut response = answer.unwrap_or_else(|error| error_response(&error));
        if let Some(Effect::Stream(fault)) = effect {
            response.body_mut().fault = Some(fault);
        }
        self.record(recorded, &parts, response.status().as_u16());
        Ok(response)
    }

    /// The fault that concerns a request.
    fn strike(
        &self,
        user: Option<&User>,
        verb: Verb,
        target: Option<&ResourcePath>,
        query: &Query<'_>,
    ) -> Option<Effect> {
        let selector = target.and_then(|target| {
            let selector = query.get("fieldSelector")?;
            FieldSelector::parse(selector, target.kind.resource()).ok()
        });
        let attempt = Attempt::new(verb, target, selector.as_ref());
        self.faults()
            .strike(user, &attempt, query.flag("sendInitialEvents"))
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

    async fn try_answer(
        &self,
        user: Option<User>,
        route: Result<Route, ApiError>,
        verb: Result<Verb, ApiError>,
        query: &Query<'_>,
        parts: &Parts,
        body: impl http_body::Body<Data: Send, Error: Into<BoxError>> + Send,
    ) -> Result<Response<Body>, ApiError> {
        let user = user.ok_or_else(ApiError::unauthorized)?;
        match route? {
            Route::Objects(target) => {
                let request = ObjectRequest {
                    server: self,
                    user: &user,
                    verb: verb?,
                    target: &target,
                    query,
                    headers: &parts.headers,
                };
                request.authorize()?;
                let body = read_body(body, &self.inner.unfinished).await?;
                let (parts, mut body) = request.serve(&body)?.into_parts();
                body.stable = target.stable;
                // What a write returns is the store's, too.
                if matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) {
                    body = body.counted(&self.inner.unread)?;
                }
                Ok(Response::from_parts(parts, body))
            }
            Route::Other(segments) => {
                let segments: Vec<_> = segments.iter().map(SmolStr::as_str).collect();
                let body = read_body(body, &self.inner.unfinished).await?;
                self.serve_other(&user, &parts.method, &segments, &parts.headers, &body)
            }
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
}
