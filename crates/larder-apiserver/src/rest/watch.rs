//! The stream of a watch.
//!
//! It runs no task: reading the response drives it. It sends, in this order:
//!
//! 1. the initial state, each object as ADDED, if the client requested it;
//! 2. a bookmark with `k8s.io/initial-events-end`, if the client requested the state with `sendInitialEvents`;
//! 3. changes, in order; between them, while there are none, bookmarks.
//!
//! It ends at its time limit, when the server shuts down, or with ERROR 410 when its client is too slow.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use serde_json::json;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{format::Format, params::WatchParams};
use crate::{
    ApiError,
    faults::Cut,
    object::EventType,
    resource::Kind,
    store::{Compacted, End, Start, Store, Taken, Watch},
};

/// The progress of a stream.
#[derive(Debug)]
enum Phase {
    /// It delivers.
    Open,
    /// Nothing more comes.
    Ended,
}

/// The stream of one watch.
#[derive(Debug)]
pub(crate) struct WatchStream {
    kind: Kind,
    format: Format,
    /// `None` when the version to begin from was gone already.
    watch: Option<Watch>,
    /// Frames that are ready.
    ready: VecDeque<Bytes>,
    phase: Phase,
    deadline: Pin<Box<Sleep>>,
    /// When the next bookmark is due; `None` when the client does not want any.
    bookmark: Option<Pin<Box<Sleep>>>,
    bookmark_interval: Duration,
}

/// A last bookmark comes this long before the time limit, so that the client can resume from there.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

impl WatchStream {
    /// Opens the watch that `params` ask for.
    ///
    /// A version that is gone shows in the stream, as ERROR 410: where kube-apiserver reports it.
    ///
    /// # Errors
    ///
    /// The version is one that the server has not reached. (The real server waits for it when the watch asks for no
    /// state. It can only come from another server's past, so waiting would lose what happens until then.)
    pub(crate) fn open(
        store: &Arc<Store>,
        kind: Kind,
        params: WatchParams,
        format: Format,
        bookmark_interval: Duration,
    ) -> Result<Self, ApiError> {
        let current = store.version();
        if params.version > current {
            return Err(ApiError::version_too_large(params.version, current));
        }
        let start = match (params.initial_events, params.version) {
            (Some(true), _) | (None, 0) => Start::State,
            (Some(false), 0) => Start::After(current),
            (_, version) => Start::After(version),
        };
        // As kube-apiserver's --min-request-timeout: 30 to 60 min unless the client says otherwise.
        let timeout = params
            .timeout
            .unwrap_or_else(|| Duration::from_secs(fastrand::u64(1800..3600)));
        let deadline = Instant::now() + timeout;
        let mut stream = Self {
            kind,
            format,
            watch: None,
            ready: VecDeque::new(),
            phase: Phase::Open,
            bookmark: params
                .bookmarks
                .then(|| Box::pin(sleep_until(next_bookmark(deadline, bookmark_interval)))),
            bookmark_interval,
            deadline: Box::pin(sleep_until(deadline)),
        };
        match store.watch(kind, Arc::new(params.filter), start) {
            Ok((watch, state, version)) => {
                for object in state {
                    let frame = stream.format.event(EventType::Added, &object);
                    stream.ready.push_back(frame);
                }
                if params.initial_events == Some(true) && params.bookmarks {
                    stream.push_bookmark(version, true);
                }
                stream.watch = Some(watch);
            }
            Err(Compacted { oldest }) => {
                let asked = params.version;
                stream.fail(&ApiError::expired(format!(
                    "too old resource version: {asked} ({oldest})"
                )));
            }
        }
        Ok(stream)
    }

    /// Ends the stream with an ERROR event.
    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(error.to_event());
        self.phase = Phase::Ended;
    }

    fn push_bookmark(&mut self, version: u64, ends_initial_events: bool) {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = self.format.bookmark(self.kind, metadata);
        let frame = json!({"type": "BOOKMARK", "object": object});
        self.ready.push_back(format!("{frame}\n").into());
    }

    /// The next frame; `None` at the end.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if matches!(self.phase, Phase::Ended) || self.deadline.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(None);
            }
            let Some(watch) = &self.watch else {
                return Poll::Ready(None);
            };
            match watch.poll_take(context.waker()) {
                Poll::Ready(Taken::Events(events)) => {
                    let format = &self.format;
                    let frames = events
                        .into_iter()
                        .map(|event| format.event(event.event, &event.object));
                    self.ready.extend(frames);
                }
                Poll::Ready(Taken::Expired) => {
                    let message =
                        "too old resource version: the client reads slower than objects change";
                    self.fail(&ApiError::expired(message));
                }
                Poll::Ready(Taken::Over(End::Ended)) => self.phase = Phase::Ended,
                Poll::Ready(Taken::Over(End::Cut)) => return Poll::Ready(Some(Err(Cut))),
                Poll::Pending => {
                    let Some(due) = &mut self.bookmark else {
                        return Poll::Pending;
                    };
                    if due.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    let next = next_bookmark(self.deadline.deadline(), self.bookmark_interval);
                    due.as_mut().reset(next);
                    if let Some(version) = watch.in_step_with() {
                        self.push_bookmark(version, false);
                    }
                }
            }
        }
    }
}

/// When the next bookmark is due: after an interval, or shortly before the time limit.
fn next_bookmark(deadline: Instant, interval: Duration) -> Instant {
    let now = Instant::now();
    let last = deadline
        .checked_sub(LAST_BOOKMARK)
        .filter(|last| *last > now);
    (now + interval).min(last.unwrap_or(deadline))
}
