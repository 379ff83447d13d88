//! HTTP for the page: one browser, on loopback, read only.
//!
//! Invariants:
//! 1. A request counts only if its `Host` is the address that was printed, so no name of a foreign site leads here, and
//!    if its `Origin`, where it has one, is this page.
//! 2. The token in the printed address works once. It gives a session, kept in a cookie that no script can read and no
//!    other site can send. Browsers send a cookie to every port of the machine, so this one is limited to a path that
//!    only the page knows: no server of another user gets it.
//! 3. Each answer forbids everything that the page does not need.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::stream;
use larder_agent::local_api::Router;
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::view::View;
use crate::output::html::{live_page, policy};

/// Access to the page: a token that works once, and then a session.
pub(super) struct Access {
    address: SocketAddr,
    /// Gone once it was used.
    token: Mutex<Option<String>>,
    session: String,
    /// Where the page is, `/PATH/`.
    home: String,
}

struct Server {
    access: Access,
    views: watch::Receiver<Arc<View>>,
    shutdown: CancellationToken,
}

impl Access {
    /// Access to the page at `address`, with a new token.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn new(address: SocketAddr) -> Result<Self, ring::error::Unspecified> {
        Ok(Self {
            address,
            token: Mutex::new(Some(random()?)),
            session: random()?,
            home: format!("/{}/", random()?),
        })
    }

    /// The address of the page, with the token.
    pub(super) fn url(&self) -> String {
        let token = self.token.lock().clone().unwrap_or_default();
        format!("http://{}/?token={token}", self.address)
    }

    /// Another page of larder may have a cookie of this machine, too, so the name has the port.
    fn cookie(&self) -> String {
        format!("larder-{}={}", self.address.port(), self.session)
    }

    fn is_own_host(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts
            .next()
            .filter(|_| hosts.next().is_none())
            .and_then(|host| host.to_str().ok());
        let local = format!("localhost:{}", self.address.port());
        let own = [self.address.to_string(), local];
        let Some(host) = host.filter(|host| own.iter().any(|own| own == host)) else {
            return false;
        };
        let mut origins = headers.get_all(header::ORIGIN).iter();
        origins.all(|origin| origin == format!("http://{host}").as_str())
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let expected = self.cookie();
        let mut cookies = headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|cookies| cookies.to_str().ok())
            .flat_map(|cookies| cookies.split(';'));
        cookies.any(|cookie| is_same(cookie.trim(), &expected))
    }

    /// Uses up the token, if `query` has it.
    fn take_token(&self, query: Option<&str>) -> bool {
        let given = query.and_then(|query| query.strip_prefix("token="));
        let mut token = self.token.lock();
        let is_right = match (given, token.as_deref()) {
            (Some(given), Some(token)) => is_same(given, token),
            _ => false,
        };
        if is_right {
            *token = None;
        }
        is_right
    }
}

/// 128 random bits, as hexadecimal digits.
fn random() -> Result<String, ring::error::Unspecified> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Whether both are the same, in a time that does not depend on where they differ.
fn is_same(one: &str, other: &str) -> bool {
    let pairs = one.bytes().zip(other.bytes());
    let differences = pairs.fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

/// The page and its events.
pub(super) fn router(
    access: Access,
    views: watch::Receiver<Arc<View>>,
    shutdown: CancellationToken,
) -> Router {
    let server = Server {
        access,
        views,
        shutdown,
    };
    Router::new().fallback(answer).with_state(Arc::new(server))
}

async fn answer(State(server): State<Arc<Server>>, request: Request) -> Response {
    let mut response = server.response(&request);
    let headers = response.headers_mut();
    let policy = format!("{}; frame-ancestors 'none'", policy(true));
    let policy = HeaderValue::try_from(policy).expect("digests are ASCII");
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Server {
    fn response(self: &Arc<Self>, request: &Request) -> Response {
        let headers = request.headers();
        if !self.access.is_own_host(headers) {
            return (StatusCode::FORBIDDEN, "wrong Host or Origin\n").into_response();
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let allow = [(header::ALLOW, "GET, HEAD")];
            return (StatusCode::METHOD_NOT_ALLOWED, allow, "read only\n").into_response();
        }
        let has_session = self.access.has_session(headers);
        let path = request.uri().path();
        let home = &self.access.home;
        match path.strip_prefix(home.as_str()).unwrap_or(path) {
            "" | "/" if has_session => page(home),
            "/" if *request.method() == Method::GET
                && self.access.take_token(request.uri().query()) =>
            {
                let cookie = self.access.cookie();
                let cookie = format!("{cookie}; HttpOnly; SameSite=Strict; Path={home}");
                ([(header::SET_COOKIE, cookie)], page(home)).into_response()
            }
            "events" if has_session => self.events(),
            _ if has_session => (StatusCode::NOT_FOUND, "no such page\n").into_response(),
            _ => {
                let text = "the address works once: start larder ui again for a new one\n";
                (StatusCode::UNAUTHORIZED, text).into_response()
            }
        }
    }

    /// Server-sent events: first all cards, then those that change.
    fn events(&self) -> Response {
        let mut views = self.views.clone();
        views.mark_changed();
        let start = (views, self.shutdown.clone(), HashMap::new());
        let events = stream::unfold(start, async |(mut views, shutdown, mut sent)| {
            // Both arms are cancel-safe.
            tokio::select! {
                () = shutdown.cancelled() => return None,
                changed = views.changed() => changed.ok()?,
            }
            let view = Arc::clone(&views.borrow_and_update());
            let event = event(&view, &mut sent);
            Some((Ok::<_, Infallible>(event), (views, shutdown, sent)))
        });
        let kind = [(header::CONTENT_TYPE, "text/event-stream")];
        (kind, Body::from_stream(events)).into_response()
    }
}

/// The page, which stays at `home`.
fn page(home: &str) -> Response {
    let page = live_page("larder", "asking the agent", home);
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (kind, page).into_response()
}

/// The cards of `view` that were not `sent` before.
fn event(view: &View, sent: &mut HashMap<String, String>) -> String {
    let order: Vec<_> = view.cards.iter().map(|card| card.id.as_str()).collect();
    sent.retain(|id, _| order.contains(&id.as_str()));
    let mut changed = Vec::new();
    for card in &view.cards {
        if sent.get(&card.id) != Some(&card.html) {
            sent.insert(card.id.clone(), card.html.clone());
            changed.push(json!({"id": card.id, "html": card.html}));
        }
    }
    let data = json!({"order": order, "changed": changed, "summary": view.summary});
    format!("event: cards\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect()
    }

    fn access() -> Access {
        Access::new("127.0.0.1:8900".parse().unwrap()).unwrap()
    }

    #[test]
    fn other_hosts_and_origins_are_refused() {
        let access = access();
        let check = |pairs: &[_], expected| {
            assert_eq!(access.is_own_host(&headers(pairs)), expected, "{pairs:?}");
        };
        check(&[(header::HOST, "127.0.0.1:8900")], true);
        check(&[(header::HOST, "localhost:8900")], true);
        check(&[], false);
        for host in [
            "127.0.0.1",
            "127.0.0.1:8901",
            "evil.example:8900",
            "127.0.0.1:8900.evil.example",
        ] {
            check(&[(header::HOST, host)], false);
        }
        let own = (header::HOST, "127.0.0.1:8900");
        check(
            &[own.clone(), (header::ORIGIN, "http://127.0.0.1:8900")],
            true,
        );
        for origin in [
            "null",
            "http://127.0.0.1:8901",
            "https://127.0.0.1:8900",
            "http://localhost:8900",
        ] {
            check(&[own.clone(), (header::ORIGIN, origin)], false);
        }
    }

    #[test]
    fn token_works_once_and_the_session_after_it() {
        let access = access();
        let url = access.url();
        let (_, query) = url.split_once('?').unwrap();
        assert!(!access.take_token(Some("token=")));
        assert!(!access.take_token(Some(&query[..query.len() - 1])));
        assert!(!access.take_token(None));
        assert!(access.take_token(Some(query)));
        assert!(!access.take_token(Some(query)));
        assert!(!access.take_token(Some("token=")));
        let mut headers = HeaderMap::new();
        assert!(!access.has_session(&headers));
        headers.insert(header::COOKIE, HeaderValue::from_static("larder-8900="));
        assert!(!access.has_session(&headers));
        let cookies = format!("a=b; {}; c=d", access.cookie());
        headers.append(header::COOKIE, HeaderValue::try_from(cookies).unwrap());
        assert!(access.has_session(&headers));
    }

    #[test]
    fn event_has_the_cards_that_changed() {
        let card = |id: &str, html: &str| crate::output::html::Card {
            id: id.to_owned(),
            html: html.to_owned(),
        };
        let mut sent = HashMap::new();
        let mut view = View {
            summary: "s".to_owned(),
            cards: vec![card("a", "1"), card("b", "1")],
        };
        let data = |text: String| -> serde_json::Value {
            let text = text.strip_prefix("event: cards\ndata: ").unwrap();
            serde_json::from_str(text.strip_suffix("\n\n").unwrap()).unwrap()
        };
        let first = data(event(&view, &mut sent));
        assert_eq!(first["changed"].as_array().unwrap().len(), 2);
        view.cards = vec![card("c", "1"), card("b", "2\n")];
        let second = data(event(&view, &mut sent));
        assert_eq!(second["order"], json!(["c", "b"]));
        assert_eq!(
            second["changed"],
            json!([{"id": "c", "html": "1"}, {"id": "b", "html": "2\n"}])
        );
        assert_eq!(data(event(&view, &mut sent))["changed"], json!([]));
    }
}
