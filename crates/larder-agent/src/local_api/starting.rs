//! The local API of a program whose agent is not built yet, because its credentials are awaited.
//!
//! Invariant: `/healthz` and `/readyz` answer at once. Other requests wait for the agent, as its answers are about it.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use tokio::sync::watch;
use tower_service::Service as _;

/// Passes requests to the API of an agent, once there is one. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct StartingApi(Arc<watch::Sender<Option<Router>>>);

impl StartingApi {
    /// The API, before and after the agent is there.
    pub fn router(&self) -> Router {
        let agent = self.0.subscribe();
        Router::new().fallback(move |request: Request| answer(agent.clone(), request))
    }

    /// From now on, `agent` answers.
    pub fn agent_is_built(&self, agent: Router) {
        self.0.send_replace(Some(agent));
    }
}

async fn answer(mut agent: watch::Receiver<Option<Router>>, request: Request) -> Response {
    let early = early_answer(request.uri());
    if let Some(early) = early.filter(|_| agent.borrow().is_none()) {
        return early;
    }
    let router = agent
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|router| router.clone());
    match router {
        Some(mut router) => router.call(request).await.into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the agent did not start\n").into_response(),
    }
}

/// The answer while there is no agent.
fn early_answer(uri: &Uri) -> Option<Response> {
    match uri.path() {
        "/healthz" => Some("ok\n".into_response()),
        "/readyz" => {
            let text = "the agent waits for its credentials or manifests\n";
            Some((StatusCode::SERVICE_UNAVAILABLE, text).into_response())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, routing::get};
    use futures::{FutureExt as _, poll};
    use http_body_util::BodyExt as _;

    use super::*;

    async fn ask(api: &StartingApi, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = api.router().call(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn health_is_answered_before_there_is_an_agent_and_other_requests_wait() {
        let api = StartingApi::default();
        assert_eq!(ask(&api, "/healthz").await, (200, "ok\n".to_owned()));
        assert_eq!(ask(&api, "/readyz").await.0, 503);
        let mut status = ask(&api, "/status").boxed();
        assert!(poll!(&mut status).is_pending());
        let agent = Router::new()
            .route(
                "/healthz",
                get(async || (StatusCode::SERVICE_UNAVAILABLE, "of the agent")),
            )
            .route("/status", get(async || "of the agent"));
        api.agent_is_built(agent);
        assert_eq!(status.await, (200, "of the agent".to_owned()));
        assert_eq!(
            ask(&api, "/healthz").await,
            (503, "of the agent".to_owned())
        );
        assert_eq!(ask(&api, "/other").await.0, 404);
    }
}
