//! An API server whose every answer is the test's: for orders of events that no real server can be made to produce.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::channel::mpsc as body;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tokio::sync::{mpsc, oneshot};

type ScriptedAnswer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The requests of a client, in the order of their arrival.
pub(crate) struct Script {
    requests: mpsc::UnboundedReceiver<Exchange>,
}

/// One request that waits for its answer.
pub(crate) struct Exchange {
    pub(crate) path_and_query: String,
    pub(crate) headers: http::HeaderMap,
    answer: oneshot::Sender<ScriptedAnswer>,
}

/// The body of a watch under way; dropping it ends the watch.
pub(crate) struct Stream(body::UnboundedSender<Result<Frame<Bytes>, Infallible>>);

impl Script {
    /// A client and what it asks.
    pub(crate) fn new() -> (kube::Client, Self) {
        let (sender, requests) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answer, answered) = oneshot::channel();
            let exchange = Exchange {
                path_and_query: request.uri().to_string(),
                headers: request.headers().clone(),
                answer,
            };
            let sent = sender.send(exchange);
            async move {
                sent.map_err(|_| std::io::Error::other("the script has ended"))?;
                answered
                    .await
                    .map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
            }
        });
        (kube::Client::new(service, "default"), Self { requests })
    }

    /// The next request.
    #[track_caller]
    pub(crate) fn next(&mut self) -> impl Future<Output = Exchange> {
        let place = std::panic::Location::caller();
        async move {
            tokio::time::timeout(Duration::from_hours(2), self.requests.recv())
                .await
                .unwrap_or_else(|_| panic!("no request arrives at {place}"))
                .expect("the client lives")
        }
    }

    /// A request that has arrived.
    pub(crate) fn arrived(&mut self) -> Option<Exchange> {
        self.requests.try_recv().ok()
    }

    /// Expects that no request has arrived.
    pub(crate) fn none(&mut self) {
        if let Some(request) = self.arrived() {
            panic!("unexpected request: {}", request.path_and_query);
        }
    }

    /// Lets `time` pass and expects no request.
    pub(crate) async fn silence(&mut self, time: Duration) {
        if let Ok(Some(request)) = tokio::time::timeout(time, self.requests.recv()).await {
            panic!("unexpected request: {}", request.path_and_query);
        }
    }
}

impl Exchange {
    /// Whether the client no longer waits for the answer.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.answer.is_closed()
    }

    /// Asserts that the query has each of these parameters, `name=value`, and none of those with `!` in front.
    #[track_caller]
    pub(crate) fn check(&self, parameters: &str) -> &Self {
        let query = self.path_and_query.split_once('?').unwrap_or_default().1;
        for parameter in parameters.split_whitespace() {
            let (name, expected) = match parameter.strip_prefix('!') {
                Some(name) => (name, false),
                None => (parameter, true),
            };
            let found = query
                .split('&')
                .any(|part| part == name || (!expected && part.split('=').next() == Some(name)));
            assert_eq!(found, expected, "{parameter} in {query}");
        }
        self
    }

    /// The seconds of `timeoutSeconds`.
    pub(crate) fn timeout_seconds(&self) -> u64 {
        let (_, rest) = self.path_and_query.split_once("timeoutSeconds=").unwrap();
        rest.split('&').next().unwrap().parse().unwrap()
    }

    /// Answers with a whole body.
    pub(crate) fn answer(self, code: u16, text: &str) {
        let body = http_body_util::Full::new(Bytes::from(text.to_owned()));
        let answer = Response::builder()
            .status(StatusCode::from_u16(code).unwrap())
            .body(body.boxed_unsync())
            .unwrap();
        // A client that no longer waits is part of some tests.
        drop(self.answer.send(answer));
    }

    /// Answers with the list of `object`, if there is one.
    pub(crate) fn list(self, version: u64, object: Option<&str>) {
        let items = object.unwrap_or_default();
        self.answer(
            200,
            &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#),
        );
    }

    /// Answers a freshness check of one object, be it a get or a list.
    pub(crate) fn prove(self, version: u64, object: &str) {
        if self.path_and_query.contains('?') {
            self.list(version, Some(object));
        } else {
            self.answer(200, object);
        }
    }

    /// Answers with a failure.
    pub(crate) fn refuse(self, code: u16) {
        self.answer(
            code,
            &format!(r#"{{"kind":"Status","code":{code},"message":"refused with {code}"}}"#),
        );
    }

    /// Answers with an open watch.
    pub(crate) fn stream(self) -> Stream {
        let (sender, receiver) = body::unbounded();
        let body = StreamBody::new(receiver).boxed_unsync();
        drop(self.answer.send(Response::new(body)));
        Stream(sender)
    }

    /// Answers a streaming list with `object`, if there is one, and the bookmark that ends it.
    pub(crate) fn synced(self, version: u64, object: Option<&str>) -> Stream {
        let stream = self.stream();
        if let Some(object) = object {
            stream.event("ADDED", object);
        }
        stream.end_of_initial_events(version);
        stream
    }
}

impl Stream {
    /// Sends an event.
    pub(crate) fn event(&self, kind: &str, object: &str) {
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        drop(self.0.unbounded_send(Ok(Frame::data(line.into()))));
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&self, bytes: &'static str) {
        drop(self.0.unbounded_send(Ok(Frame::data(bytes.into()))));
    }

    /// Sends the bookmark that ends the initial events of a streaming list.
    pub(crate) fn end_of_initial_events(&self, version: u64) {
        self.event(
            "BOOKMARK",
            &format!(
                r#"{{"metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
            ),
        );
    }

    /// Sends an `ERROR` event.
    pub(crate) fn error(&self, code: u16) {
        self.event("ERROR", &format!(r#"{{"kind":"Status","code":{code}}}"#));
    }

    /// Sends a bookmark.
    pub(crate) fn bookmark(&self, version: u64) {
        self.event(
            "BOOKMARK",
            &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#),
        );
    }

    /// Whether the client has dropped the watch.
    pub(crate) fn is_dropped(&self) -> bool {
        self.0.is_closed()
    }
}

/// ConfigMap `n/a` at `version` with one value.
pub(crate) fn object(version: u64, value: &str) -> String {
    named("a", version, value)
}

/// ConfigMap `n/<name>` at `version` with one value.
pub(crate) fn named(name: &str, version: u64, value: &str) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"u1","resourceVersion":"{version}"}},"data":{{"k":"{value}"}}}}"#
    )
}

/// The same, immutable, of that incarnation.
pub(crate) fn immutable(version: u64, uid: &str, value: &str) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"n","name":"a","uid":"{uid}","resourceVersion":"{version}"}},"data":{{"k":"{value}"}},"immutable":true}}"#
    )
}
