//! Faults for tests: a server that rejects, is slow, is silent, or breaks off.
//!
//! ```
//! use larder_apiserver::{ApiServer, Fault, Options, Verb};
//!
//! let server = ApiServer::new(Options::default());
//! let fault = Fault::on(Verb::Watch).resource("secrets").name("s1").times(2).status(403);
//! let injected = server.faults().inject(fault);
//! // ... two watches are rejected, the third is not ...
//! assert_eq!(injected.hits(), 0);
//! injected.lift();
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::{ApiError, User, Verb, authorize::Attempt, store::Store};

/// The requests that fail, how often, and how. The effect comes last; without one, they are answered as usual.
#[derive(Clone, Debug, Default)]
#[must_use = "a fault does nothing until it is injected"]
pub struct Fault {
    user: Option<SmolStr>,
    verb: Option<Verb>,
    resource: Option<SmolStr>,
    namespace: Option<SmolStr>,
    name: Option<SmolStr>,
    streaming_list: bool,
    /// `None`: until the fault is lifted.
    times: Option<u32>,
    effect: Effect,
}

/// The kind of a fault.
#[derive(Clone, Debug, Default)]
pub(crate) enum Effect {
    /// Answered as usual.
    #[default]
    Nothing,
    /// Rejected with a `Status`.
    Reject(ApiError),
    /// Answered as usual, but later.
    Delay(Duration),
    /// Never answered.
    Silence,
    /// The connection is closed instead of an answer. In process, the service fails.
    Drop,
    /// The answer begins, and then goes wrong.
    Stream(StreamFault),
}

/// How the body of an answer goes wrong. What is already sent stays as it was.
#[derive(Clone, Debug)]
pub(crate) struct StreamFault {
    left: Left,
    /// What happens after these.
    then: Struck,
}

/// What still passes.
#[derive(Clone, Copy, Debug)]
enum Left {
    Events(usize),
    /// Also amid an event.
    Bytes(usize),
}

impl Fault {
    /// Requests of one verb.
    pub fn on(verb: Verb) -> Self {
        Self {
            verb: Some(verb),
            ..Self::default()
        }
    }

    /// Requests of any verb.
    pub fn on_any() -> Self {
        Self::default()
    }

    /// Only those of the user of this name: `system:node:n1`.
    pub fn user(mut self, name: &str) -> Self {
        self.user = Some(name.into());
        self
    }

    /// Only those for this resource, as in a path: `secrets`.
    pub fn resource(mut self, plural: &str) -> Self {
        self.resource = Some(plural.into());
        self
    }

    /// Only those in this namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only those for this name, in the path or as `fieldSelector=metadata.name=`.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only watches with `sendInitialEvents=true`.
    pub fn streaming_list(mut self) -> Self {
        self.streaming_list = true;
        self
    }

    /// Only the first `times` of them. Without this, all until the fault is lifted.
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Answers with `code` and the reason that belongs to it: 403 `Forbidden`, 410 `Expired`, 422 `Invalid`, ...
    ///
    /// # Panics
    ///
    /// `code` is not an HTTP status.
    pub fn status(self, code: u16) -> Self {
        self.effect(Effect::Reject(error(code)))
    }

    /// Like [`Self::status`], with this text: what an authorizer, an admission plugin or a policy would say.
    ///
    /// # Panics
    ///
    /// `code` is not an HTTP status.
    pub fn rejection(self, code: u16, message: &str) -> Self {
        self.effect(Effect::Reject(ApiError::of(status(code), message)))
    }

    /// Answers with `code` (429, 503, ...) and `Retry-After`.
    ///
    /// # Panics
    ///
    /// `code` is not an HTTP status.
    pub fn retry_after(self, code: u16, seconds: u32) -> Self {
        self.effect(Effect::Reject(error(code).with_retry_after(seconds)))
    }

    /// Answers as usual, after `delay`.
    pub fn delay(self, delay: Duration) -> Self {
        self.effect(Effect::Delay(delay))
    }

    /// Never answers.
    pub fn never_answer(self) -> Self {
        self.effect(Effect::Silence)
    }

    /// Closes the connection instead of answering.
    pub fn drop_connection(self) -> Self {
        self.effect(Effect::Drop)
    }

    /// Breaks the connection after `events` events.
    pub fn cut_after_events(self, events: usize) -> Self {
        self.stream(Left::Events(events), Struck::Cut)
    }

    /// Breaks the connection after `bytes` bytes of the body.
    pub fn cut_after_bytes(self, bytes: usize) -> Self {
        self.stream(Left::Bytes(bytes), Struck::Cut)
    }

    /// Ends the stream, as if it were complete, after `events` events.
    pub fn end_after_events(self, events: usize) -> Self {
        self.stream(Left::Events(events), Struck::Last(Bytes::new()))
    }

    /// Sends an ERROR event with `code` after `events` events, and ends the stream.
    ///
    /// # Panics
    ///
    /// `code` is not an HTTP status.
    pub fn error_after_events(self, events: usize, code: u16) -> Self {
        self.stream(Left::Events(events), Struck::Last(error(code).to_event()))
    }

    fn stream(self, left: Left, then: Struck) -> Self {
        self.effect(Effect::Stream(StreamFault { left, then }))
    }

    fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Whether the fault concerns a request of `user`, `None` for an unauthenticated client.
    fn concerns(&self, user: Option<&User>, request: &Attempt<'_>, streaming_list: bool) -> bool {
        let fits = |wanted: &Option<SmolStr>, given: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| given == Some(wanted))
        };
        self.verb.is_none_or(|verb| verb == request.verb)
            && fits(&self.user, user.map(|user| user.name.as_str()))
            && fits(&self.resource, Some(request.resource))
            && fits(&self.namespace, request.namespace)
            && fits(&self.name, request.name)
            && (!self.streaming_list || streaming_list)
    }
}

fn error(code: u16) -> ApiError {
    let code = status(code);
    ApiError::of(code, format!("fault injected: {code}"))
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).expect("the test names an HTTP status")
}

/// The faults of a server.
#[derive(Clone, Debug)]
pub struct Faults {
    /// In the order of injection; the first that concerns a request strikes.
    armed: Arc<Mutex<Vec<Armed>>>,
    store: Arc<Store>,
    pub(crate) connections: Connections,
}

/// Signals to the connections of a server. They reach these in the order in which the connections began: tokio's
/// channel `watch` wakes its receivers in a random one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    /// Makes each go away when its requests are answered.
    go_away: Arc<Notify>,
    /// Breaks each off.
    close: Arc<Notify>,
}

impl Connections {
    /// When a connection that begins now is to go away, and when it breaks off.
    pub(crate) fn signals(&self) -> (OwnedNotified, OwnedNotified) {
        // They count from now on, not from when they are polled first.
        let [go_away, close] = [&self.go_away, &self.close];
        (
            go_away.clone().notified_owned(),
            close.clone().notified_owned(),
        )
    }
}

/// A fault, and how many requests it has struck.
type Armed = (Fault, Arc<AtomicU32>);

/// A fault that was injected. It stays when this is dropped.
#[derive(Clone, Debug)]
pub struct Injected {
    faults: Faults,
    hits: Arc<AtomicU32>,
}

impl Faults {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            armed: Arc::default(),
            store,
            connections: Connections::default(),
        }
    }

    /// Adds a fault. Of several that concern a request the one that was injected first strikes, until its times are up.
    pub fn inject(&self, fault: Fault) -> Injected {
        let hits = Arc::<AtomicU32>::default();
        self.armed.lock().push((fault, hits.clone()));
        Injected {
            faults: self.clone(),
            hits,
        }
    }

    /// Lifts all faults.
    pub fn clear(&self) {
        self.armed.lock().clear();
    }

    /// Holds back what open and later watches would send, until the guard is dropped. Changes still happen, and wait in
    /// the history.
    #[must_use = "delivery goes on when the guard is dropped"]
    pub fn pause_delivery(&self) -> Paused {
        self.store.pause(true);
        Paused {
            store: self.store.clone(),
        }
    }

    /// Breaks all open watches as a lost connection would.
    pub fn cut_watches(&self) {
        self.store.cut();
    }

    /// Asks served clients to leave their connections: GOAWAY on HTTP/2, no more requests on HTTP/1.1. Requests in
    /// flight go on.
    pub fn go_away(&self) {
        self.connections.go_away.notify_waiters();
    }

    /// Closes the connections of served clients, whatever runs on them.
    pub fn close_connections(&self) {
        self.connections.close.notify_waiters();
    }

    /// The effect on `request`, which counts as a hit.
    pub(crate) fn strike(
        &self,
        user: Option<&User>,
        request: &Attempt<'_>,
        streaming_list: bool,
    ) -> Option<Effect> {
        let armed = self.armed.lock();
        let (struck, hits) = armed.iter().find(|(fault, hits)| {
            let hits = hits.load(Ordering::Relaxed);
            fault.times.is_none_or(|times| hits < times)
                && fault.concerns(user, request, streaming_list)
        })?;
        hits.fetch_add(1, Ordering::Relaxed);
        Some(struck.effect.clone())
    }
}

impl Injected {
    /// How many requests it has struck.
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Ends the fault. Streams that it has already struck go on as it made them.
    pub fn lift(&self) {
        let mut armed = self.faults.armed.lock();
        armed.retain(|(_, hits)| !Arc::ptr_eq(hits, &self.hits));
    }
}

/// Watches are held back while this lives.
#[derive(Debug)]
pub struct Paused {
    store: Arc<Store>,
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.store.pause(false);
    }
}

impl StreamFault {
    /// What becomes of the next frame: it passes, it is replaced (and is the last), or the stream breaks.
    pub(crate) fn strike(&mut self, frame: Bytes) -> Struck {
        if self.is_due() {
            return self.then.clone();
        }
        match &mut self.left {
            Left::Events(left) => {
                *left -= 1;
                Struck::Pass(frame)
            }
            Left::Bytes(left) => {
                let kept = frame.slice(..frame.len().min(*left));
                *left -= kept.len();
                Struck::Pass(kept)
            }
        }
    }

    /// What becomes of the wait for a frame: a break that is due does not wait.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self.left, Left::Events(0) | Left::Bytes(0))
    }
}

/// The fate of a frame.
#[derive(Clone, Debug)]
pub(crate) enum Struck {
    Pass(Bytes),
    Last(Bytes),
    Cut,
}
