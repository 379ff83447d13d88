//! The HTTP interface: passes requests to the store and the writer, and returns their responses.

mod body;
mod discovery;
#[cfg(feature = "faults")]
mod faulty;
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
    query::Query,
    request::{Route, Verb},
};
use message::{created, error_response, object_body, ok, plain, read_body};
use objects::ObjectRequest;
use reviews::Review;

/// What a request asks for, but for its headers and its body.
struct Asked<'r> {
    query: Query<'r>,
    route: Result<Route, ApiError>,
    verb: Result<Verb, ApiError>,
}

impl Asked<'_> {
    /// The verb in the audit log.
    fn recorded(&self) -> Verb {
        *self.verb.as_ref().unwrap_or(&Verb::Get)
    }
}

impl ApiServer {
    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        user: Option<User>,
        request: Request<impl http_body::Body<Data: Send, Error: Into<BoxError>> + Send>,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let asked = self.asked(&parts);
        let recorded = asked.recorded();
        let answer = self.try_answer(user, asked, &parts.method, &parts.headers, body);
        let response = answer.await.unwrap_or_else(|error| error_response(&error));
        self.record(recorded, &parts, response.status().as_u16());
        response
    }

    fn asked<'r>(&self, parts: &'r Parts) -> Asked<'r> {
        let query = Query::parse(parts.uri.query().unwrap_or(""));
        let route = Route::of(parts.uri.path(), self.options().certificates_versions);
        let verb = match &route {
            Ok(Route::Objects(target)) => target.verb(&parts.method, &query),
            _ => Ok(Verb::of_method(&parts.method)),
        };
        Asked { query, route, verb }
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
        asked: Asked<'_>,
        method: &Method,
        headers: &HeaderMap,
        body: impl http_body::Body<Data: Send, Error: Into<BoxError>> + Send,
    ) -> Result<Response<Body>, ApiError> {
        let user = user.ok_or_else(ApiError::unauthorized)?;
        match asked.route? {
            Route::Objects(target) => {
                let request = ObjectRequest {
                    server: self,
                    user: &user,
                    verb: asked.verb?,
                    target: &target,
                    query: &asked.query,
                    headers,
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
                self.serve_other(&user, method, &segments, headers, &body)
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
        if let (&Method::POST, ["apis", group, "v1", name]) = (method, segments)
            && let Some(review) = Review::find(group, name)
        {
            let body = object_body(headers, body)?;
            return Ok(created(&(review.answer)(self, user, body)?));
        }
        match (method, segments) {
            (&Method::GET, ["healthz" | "livez" | "readyz", ..]) => Ok(plain(StatusCode::OK, "ok")),
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
