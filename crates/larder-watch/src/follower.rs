//! One reflector at work: its requests, its stream and its timer, driven by whoever asks for the next thing that happened.
//!
//! For what is followed as a whole, a handful of collections. The objects that are watched by name are so many that one
//! [`Worker`](super::Worker) drives all their reflectors together.
//!
//! Invariants:
//! 1. At most one request or stream is under way; dropping the follower ends it.
//! 2. [`Follower::next`] may be dropped at any time without losing anything.

use std::{fmt, future::pending, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use larder_objects::ResourceVersion;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    api::{Api, EventStream, Listed, Target, WatchEvent},
    error::{RequestError, outcome_label},
    outages::Outages,
    reflector::{Effect, Event, Next, Reflector, Restart, Turn},
    server::Server,
};

/// Follows one target.
pub struct Follower<T: Target> {
    api: Api,
    target: T,
    reflector: Reflector,
    server: Server,
    /// Tells when the API server is back.
    over: watch::Receiver<Duration>,
    step: Step<T>,
    /// What the open watch has sent of a state that is not complete yet.
    collected: T::State,
    /// When the reflector wants to be asked again, whatever happens until then.
    deadline: Option<Instant>,
    asked: Asked,
}

/// The last request for a complete state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The moment that its answer proves, if that is consistent; see [`Target::moment`].
    pub moment: u64,
    /// How many there were, with this one.
    pub count: u64,
}

/// What is under way.
enum Step<T: Target> {
    Nothing,
    Opening(BoxFuture<'static, Result<EventStream<T>, RequestError>>),
    Listing(BoxFuture<'static, Result<Listed<T>, RequestError>>),
    Reading(EventStream<T>),
}

/// The end of a step.
enum Outcome<T: Target> {
    Opened(Result<EventStream<T>, RequestError>),
    Listed(Result<Listed<T>, RequestError>),
    Event(Option<Result<WatchEvent<T>, RequestError>>),
    Expired,
}

/// What readers should learn.
#[derive(Debug)]
pub enum News<T: Target> {
    /// The complete state.
    Synced {
        state: T::State,
        version: ResourceVersion,
        /// It was read consistently: as new as the moment of asking.
        consistent: bool,
        /// It may be older than what readers have: the API server was restored.
        reset: bool,
    },
    /// An object was added or modified.
    Changed(T::Item),
    /// An object was deleted, at this version.
    Deleted(T::Gone, ResourceVersion),
    /// The watch goes on after an interruption: what readers have is in step again.
    Resumed,
    /// A request failed.
    Failed(Arc<RequestError>),
}

/// Something that happened; at least one part of it is there.
#[derive(Debug)]
pub struct Happening<T: Target> {
    /// What readers should learn.
    pub news: Option<News<T>>,
    /// Why the watch has to be opened again.
    pub restart: Option<Restart>,
    /// The verb of a request that was answered, and the outcome as a label.
    pub answered: Option<(&'static str, &'static str)>,
}

/// What a step brought of the target.
enum Found<T: Target> {
    Nothing,
    State(T::State),
    Item(T::Item),
    Gone(T::Gone),
}

impl<T: Target> fmt::Debug for Follower<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("reflector", &self.reflector)
            .finish_non_exhaustive()
    }
}

impl<T: Target + Clone> Follower<T> {
    /// Nothing is asked for before [`start`](Self::start) and [`next`](Self::next).
    ///
    /// `outages` are those that it shares with others.
    pub fn new(api: Api, target: T, outages: Outages) -> Self {
        Self {
            api,
            target,
            reflector: Reflector::new(fastrand::Rng::new()),
            over: outages.over(),
            server: Server::sharing(outages),
            step: Step::Nothing,
            collected: T::State::default(),
            deadline: None,
            asked: Asked::default(),
        }
    }

    /// The last request for a complete state; the one that [`News::Synced`] answers.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// Whether nothing is under way.
    pub fn is_resting(&self) -> bool {
        self.reflector.is_resting()
    }

    /// Whether it waits out a delay.
    pub fn is_waiting(&self) -> bool {
        self.reflector.is_waiting()
    }

    /// Whether a request is under way whose answer has not come yet, or not all of it.
    pub fn awaits_answer(&self) -> bool {
        self.reflector.awaits_answer()
    }

    /// Asks for a consistent state when it comes to the next one.
    pub fn want_consistent(&mut self) {
        self.reflector.want_consistent();
    }

    /// Learns from elsewhere that there was this version: a state that is older is that of a restored API server.
    pub fn saw(&mut self, version: &ResourceVersion) {
        self.reflector.saw(version);
    }

    /// Ends what is under way; the version last seen stays the lower bound of a later start.
    pub fn stop(&mut self) {
        self.reflector.stop();
        self.turn(Next::Rest);
    }

    /// Asks for the whole state at once, whatever is under way: the most recent one if `consistent`.
    pub fn start(&mut self, consistent: bool) {
        let turn = self
            .reflector
            .start(consistent, Instant::now(), &self.server);
        self.turn(turn.next);
    }

    /// The next thing that happens.
    pub async fn next(&mut self) -> Happening<T> {
        loop {
            let outcome = tokio::select! {
                outcome = self.step.end() => outcome,
                () = until(self.deadline) => Outcome::Expired,
                Ok(()) = self.over.changed() => {
                    let spread = *self.over.borrow_and_update();
                    if let Some(turn) = self.reflector.hurry(spread, Instant::now()) {
                        self.turn(turn.next);
                    }
                    continue;
                }
            };
            let happening = self.ended(outcome);
            if happening.news.is_some()
                || happening.restart.is_some()
                || happening.answered.is_some()
            {
                return happening;
            }
        }
    }

    /// Tells the reflector how a step ended, and does what it wants.
    fn ended(&mut self, outcome: Outcome<T>) -> Happening<T> {
        let (reflector, now, server) = (&mut self.reflector, Instant::now(), &mut self.server);
        let mut answered = None;
        let (turn, found) = match outcome {
            Outcome::Opened(result) => {
                answered = Some(("watch", outcome_label(&result)));
                let result = result.map(|stream| self.step = Step::Reading(stream));
                (reflector.opened(result, now, server), Found::Nothing)
            }
            Outcome::Listed(result) => {
                answered = Some(("list", outcome_label(&result)));
                self.step = Step::Nothing;
                let (result, found) = match result {
                    Ok(Listed { state, version }) => (Ok(version), Found::State(state)),
                    Err(error) => (Err(error), Found::Nothing),
                };
                (reflector.listed(result, now, server), found)
            }
            Outcome::Event(Some(Ok(event))) => {
                let (event, found) = match event {
                    WatchEvent::Changed(item) => {
                        (Event::Change(T::version(&item).clone()), Found::Item(item))
                    }
                    WatchEvent::Deleted(gone, version) => {
                        (Event::Change(version), Found::Gone(gone))
                    }
                    WatchEvent::Bookmark {
                        version,
                        initial_events_end,
                    } => {
                        let event = Event::Bookmark {
                            version,
                            initial_events_end,
                        };
                        let found = if initial_events_end {
                            Found::State(std::mem::take(&mut self.collected))
                        } else {
                            Found::Nothing
                        };
                        (event, found)
                    }
                    WatchEvent::Error(error) => (Event::Error(error), Found::Nothing),
                };
                (reflector.event(event, now, server), found)
            }
            Outcome::Event(ended) => {
                self.step = Step::Nothing;
                let error = ended.and_then(Result::err);
                (reflector.closed(error, now, server), Found::Nothing)
            }
            Outcome::Expired => {
                self.deadline = None;
                (reflector.expired(now, server), Found::Nothing)
            }
        };
        let Turn {
            effect,
            next,
            restart,
        } = turn;
        let news = effect.and_then(|effect| self.news(effect, found));
        self.turn(next);
        Happening {
            news,
            restart,
            answered,
        }
    }

    /// The effect on what was found.
    fn news(&mut self, effect: Effect, found: Found<T>) -> Option<News<T>> {
        match (effect, found) {
            (Effect::Collect, Found::Item(item)) => T::add(&mut self.collected, item),
            (Effect::Collect, Found::Gone(gone)) => T::remove(&mut self.collected, &gone),
            (
                Effect::Synced {
                    version,
                    consistent,
                    reset,
                },
                Found::State(state),
            ) => {
                return Some(News::Synced {
                    state,
                    version,
                    consistent,
                    reset,
                });
            }
            (Effect::Changed(_), Found::Item(item)) => return Some(News::Changed(item)),
            (Effect::Changed(version), Found::Gone(gone)) => {
                return Some(News::Deleted(gone, version));
            }
            (Effect::Resumed, _) => return Some(News::Resumed),
            (Effect::Failed(error), _) => return Some(News::Failed(error)),
            // The reflector answers in kind.
            (Effect::Collect | Effect::Synced { .. } | Effect::Changed(_), _) => {}
        }
        None
    }

    /// Does what the reflector wants.
    fn turn(&mut self, next: Next) {
        let after = |time: Duration| Some(Instant::now() + time);
        match next {
            Next::Read => {}
            Next::ReadFor(time) => self.deadline = after(time),
            Next::Open(watch) => {
                self.deadline = None;
                self.collected = T::State::default();
                if watch.initial_events {
                    self.count();
                }
                let (api, target) = (self.api.clone(), self.target.clone());
                let open = async move { api.watch(target, &watch).await };
                self.step = Step::Opening(Box::pin(open));
            }
            Next::List(version) => {
                self.deadline = None;
                self.count();
                let (api, target) = (self.api.clone(), self.target.clone());
                let list = async move { api.list(&target, version.as_ref()).await };
                self.step = Step::Listing(Box::pin(list));
            }
            Next::Sleep(time) => {
                self.step = Step::Nothing;
                self.deadline = after(time);
            }
            Next::Rest => {
                self.step = Step::Nothing;
                self.deadline = None;
            }
        }
    }
}

impl<T: Target> Follower<T> {
    /// A request for a complete state is about to be made.
    fn count(&mut self) {
        self.asked = Asked {
            moment: self.target.moment(),
            count: self.asked.count + 1,
        };
    }
}

impl<T: Target> Step<T> {
    /// The end of what is under way. Cancel-safe; a request must not be waited for again once it has ended.
    async fn end(&mut self) -> Outcome<T> {
        match self {
            Self::Nothing => pending().await,
            Self::Opening(opening) => Outcome::Opened(opening.await),
            Self::Listing(listing) => Outcome::Listed(listing.await),
            Self::Reading(stream) => Outcome::Event(stream.next().await),
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
