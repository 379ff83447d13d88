//! The stream of a watch.
//!
//! It runs no task: reading the response drives it. It sends, in this order:
//!
//! 1. the initial state, each object as ADDED, if the client requested it;
//! 2. a bookmark with `k8s.io/initial-events-end`, if the client requested the state with `sendInitialEvents`;
//! 3. changes, in order; between them, while there are none, bookmarks.
//!
//! It ends at its time limit, when the server shuts down, with ERROR 410 when its client is too slow, or with
//! ERROR 429 when there is no memory for a frame that is made for it alone.

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
    cut::Cut,
    object::EventType,
    resource::ApiKind,
    store::{Compacted, End, Start, Store, Taken, Watch, WatchEvent},
    unread::{Pieces, Share, Unread},
};

/// What the stream sends next.
#[derive(Debug)]
enum Ready {
    /// A change. Its frame is made when the client takes it.
    Event(WatchEvent),
    /// A bookmark or an error.
    Frame(Bytes),
}

/// The stream of one watch.
#[derive(Debug)]
pub(crate) struct WatchStream {
    kind: ApiKind,
    format: Format,
    /// `None` when nothing more comes than what is ready.
    watch: Option<Watch>,
    ready: VecDeque<Ready>,
    /// Where frames count that are made for this stream alone.
    unread: Option<Unread>,
    /// The share of the initial state, until all of it is taken.
    share: Option<Share>,
    deadline: Pin<Box<Sleep>>,
    /// When the next bookmark is due; `None` when the client does not want any.
    bookmark: Option<Pin<Box<Sleep>>>,
}

/// Interval of bookmarks on a quiet watch, as in kube-apiserver.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);

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
        kind: ApiKind,
        params: WatchParams,
        format: Format,
    ) -> Result<Self, ApiError> {
        let current = store.version_from(params.version)?;
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
            unread: None,
            share: None,
            bookmark: params
                .bookmarks
                .then(|| Box::pin(sleep_until(next_bookmark(deadline)))),
            deadline: Box::pin(sleep_until(deadline)),
        };
        match store.watch(kind, Arc::new(params.filter), start) {
            Ok((watch, state, version)) => {
                let event = EventType::Added;
                let added = state.into_iter().map(|object| WatchEvent { event, object });
                stream.ready.extend(added.map(Ready::Event));
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

    /// Counts what it holds, and the frames that are made for it alone.
    ///
    /// # Errors
    ///
    /// As [`Unread::share`].
    pub(super) fn count(&mut self, unread: &Unread) -> Result<(), ApiError> {
        self.share = Some(unread.share(self.ready.len() * size_of::<Ready>())?);
        self.unread = Some(unread.clone());
        Ok(())
    }

    /// Ends the stream with an ERROR event.
    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(Ready::Frame(error.to_event()));
        self.watch = None;
    }

    /// The frame of a change, counted.
    fn frame(&self, event: &WatchEvent) -> Result<Pieces, ApiError> {
        self.format
            .event(event.event, &event.object)
            .into_iter()
            .map(|piece| match &self.unread {
                Some(unread) => unread.hold(piece),
                None => Ok(piece),
            })
            .collect()
    }

    fn push_bookmark(&mut self, version: u64, ends_initial_events: bool) {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = self.format.bookmark(self.kind, metadata);
        let frame = json!({"type": "BOOKMARK", "object": object});
        let frame = format!("{frame}\n").into();
        self.ready.push_back(Ready::Frame(frame));
    }

    /// The next frame; `None` at the end.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Pieces, Cut>>> {
        loop {
            match self.ready.pop_front() {
                Some(Ready::Frame(frame)) => return Poll::Ready(Some(Ok([frame].into()))),
                Some(Ready::Event(event)) => match self.frame(&event) {
                    Ok(pieces) => return Poll::Ready(Some(Ok(pieces))),
                    Err(error) => {
                        self.ready.clear();
                        self.fail(&error);
                        continue;
                    }
                },
                None => self.share = None,
            }
            let Some(watch) = &self.watch else {
                return Poll::Ready(None);
            };
            if self.deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            match watch.poll_take(context.waker()) {
                Poll::Ready(Taken::Events(events)) => {
                    self.ready.extend(events.into_iter().map(Ready::Event));
                }
                Poll::Ready(Taken::Expired) => {
                    let message =
                        "too old resource version: the client reads slower than objects change";
                    self.fail(&ApiError::expired(message));
                }
                Poll::Ready(Taken::Over(End::Ended)) => self.watch = None,
                #[cfg(feature = "faults")]
                Poll::Ready(Taken::Over(End::Cut)) => return Poll::Ready(Some(Err(Cut))),
                Poll::Pending => {
                    let Some(due) = &mut self.bookmark else {
                        return Poll::Pending;
                    };
                    if due.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    due.as_mut().reset(next_bookmark(self.deadline.deadline()));
                    if let Some(version) = watch.in_step_with() {
                        self.push_bookmark(version, false);
                    }
                }
            }
        }
    }
}

/// When the next bookmark is due: after an interval, or shortly before the time limit.
fn next_bookmark(deadline: Instant) -> Instant {
    let now = Instant::now();
    let last = deadline
        .checked_sub(LAST_BOOKMARK)
        .filter(|last| *last > now);
    (now + BOOKMARK_INTERVAL).min(last.unwrap_or(deadline))
}
