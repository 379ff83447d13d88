//! The loop of a sidecar that follows objects: what comes is put into files, and hooks follow.
//!
//! Invariants:
//! 1. A sink learns that all is complete once every selection has had a complete state (rule A1).
//! 2. A stale object is listed again by its name, with growing pauses after failures, until it was taken or is gone.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, OptionFuture},
};
use larder_objects::chain;
use larder_on_change::{HookState, Past};
use larder_watch::{
    Api, Engine, MinFreshness, NodeContext, Report, RequestBackoff, RequestError, RequestTiming,
    TargetId,
};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    health::{Health, MAX_SILENCE},
    hooks::{Hooks, RoundEvent},
    intake::{Intake, Settled, SharedIntake, Sink, Watched, failure_text},
    request::RequestRound,
    selection::{ObjectRef, Selection},
    server::{Pages, RunError},
    settings::{MAX_TIME, UrlSettings},
    urls::UrlKeys,
};

/// Requests that wait for their response at the same time. Each holds an object while it is read.
const MAX_REQUESTS_IN_FLIGHT: usize = 4;
/// The shortest pause between two lists of a selection: nothing may ask without one.
const POLL: Duration = Duration::from_secs(1);
/// The shortest silence after which a watch is reopened, for the same reason.
const MIN_SILENCE: Duration = Duration::from_secs(10);
/// The name of the hook of the label form.
pub(crate) const HOOK: &str = "request";
/// Pause before hooks are shown what has changed: all files are looked at, once for a burst of changes.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before something that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Pause between two comparisons of what is in place with the disk.
const LOOK: Duration = Duration::from_secs(30);
/// Time for a round that runs when the sidecar ends (rule B4).
const END: Duration = Duration::from_secs(5);

/// What a form does besides following objects.
#[derive(Default)]
pub(crate) struct Course {
    /// Everything is written once, within this time.
    pub(crate) once: Option<Duration>,
    /// The application may have read files before this start: its first changes fire hooks.
    pub(crate) had_files: bool,
    /// The round of the label form.
    pub(crate) own_round: Option<OwnRound>,
}

/// A round of the label form.
pub(crate) struct OwnRound {
    pub(crate) round: Arc<RequestRound>,
    pub(crate) first: FirstRequest,
}

/// What follows the first sync.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstRequest {
    Sent,
    /// As with `REQ_SKIP_INIT`.
    Skipped,
}

/// How far it has come.
enum Progress {
    /// Not everything is listed and written. Hooks wait.
    FirstSync {
        /// It has written or removed something, so that hooks fire at its end.
        has_written: bool,
    },
    /// Everything was written once, and changes are shown to hooks.
    Following {
        /// When hooks are shown what has changed.
        observe_at: Option<Instant>,
    },
}

/// How often objects are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    /// Once, and then they are watched.
    Watched,
    /// Once.
    Once,
    Every(Duration),
}

impl Poll {
    fn of(pause: Option<Duration>) -> Self {
        match pause {
            None => Self::Watched,
            Some(pause) if pause >= MAX_TIME => Self::Once,
            Some(pause) => Self::Every(pause.max(POLL)),
        }
    }

    /// The pause between two lists.
    fn pause(self) -> Option<Duration> {
        match self {
            Self::Watched => None,
            Self::Once => Some(MAX_TIME),
            Self::Every(pause) => Some(pause),
        }
    }
}

/// What wakes a sidecar.
enum SidecarEvent {
    ShutDown,
    /// A round has begun or ended.
    Round,
    /// Hooks are to be shown what has changed.
    ObserveDue,
    /// A fetch has ended, or readiness waits for fetches no longer.
    Fetched,
    /// What could not be written is tried again.
    RetryDue,
    /// What is in place is to be compared with the disk.
    LookDue,
    /// Not everything was written once in time.
    TimeIsUp,
    /// The object is to be read again.
    Stale(ObjectRef),
    ReadAgain(ObjectRef, Result<(), RequestError>),
    /// About the selection of this number.
    Report(u64, Report<Watched>),
}

/// A sidecar that runs.
pub(crate) struct Running {
    pub(crate) intake: SharedIntake,
    hooks: Hooks,
    health: Arc<Health>,
    pub(crate) urls: UrlKeys,
    course: Course,
    progress: Progress,
    engine: Box<Engine<Watched>>,
    /// What is followed, by the numbers of targets and in [`Health`].
    selections: Vec<Selection>,
    timing: RequestTiming,
    poll: Poll,
    api: Api,
    /// A stale object that is being read again.
    reread: Option<BoxFuture<'static, (ObjectRef, Result<(), RequestError>)>>,
    reread_backoff: RequestBackoff,
    /// When what is in place is compared with the disk.
    look_at: Instant,
}

impl Running {
    /// Follows selections, and fetches nothing.
    pub(crate) fn new(
        client: kube::Client,
        course: Course,
        selections: impl IntoIterator<Item = Selection>,
        timing: RequestTiming,
        sink: impl Sink + 'static,
        hooks: Hooks,
        pages: &Pages,
    ) -> Self {
        let health = Arc::clone(&pages.health);
        let api = Api::new(client);
        let random = fastrand::Rng::new();
        let node = NodeContext::default();
        let most = MAX_REQUESTS_IN_FLIGHT;
        let seqs = Arc::default();
        let engine = Engine::new(api.clone(), most, seqs, &node, random);
        let capped = |time: Duration| time.min(MAX_TIME);
        let poll = Poll::of(timing.poll);
        let silence = poll
            .pause()
            .map_or(MAX_SILENCE, |pause| 2 * pause + Duration::from_mins(1));
        let silence = timing.max_silence.unwrap_or(silence);
        let timing = RequestTiming {
            poll: poll.pause(),
            watch_timeout: timing.watch_timeout.map(capped),
            max_silence: Some(capped(silence).max(MIN_SILENCE)),
            min_pause: capped(timing.min_pause),
        };
        let mut running = Self {
            engine: Box::new(engine),
            selections: selections.into_iter().collect(),
            timing,
            poll,
            api,
            course,
            progress: Progress::FirstSync { has_written: false },
            reread: None,
            reread_backoff: RequestBackoff::default(),
            intake: Intake::new(sink, &pages.metrics),
            hooks,
            health,
            urls: UrlKeys::new(UrlSettings::default(), pages.metrics.clone()),
            look_at: Instant::now() + LOOK,
        };
        let health = &running.health;
        health.follow(&running.selections, timing.max_silence);
        for (number, selection) in running.selections.iter().enumerate() {
            let watched = running.watched(selection, Some((Arc::clone(health), number)));
            let target = TargetId::Collection(number as u64);
            running.engine.add(target, watched);
            running.engine.start(target, MinFreshness::Newest);
        }
        running
    }

    fn watched(&self, selection: &Selection, health: Option<(Arc<Health>, usize)>) -> Watched {
        Watched {
            selection: selection.clone(),
            timing: self.timing,
            intake: Arc::clone(&self.intake),
            health,
        }
    }

    /// Runs until `shutdown`, or until everything is written once.
    pub(crate) async fn until(&mut self, shutdown: &CancellationToken) -> Result<(), RunError> {
        let once = self.course.once.map(|once| once.min(MAX_TIME));
        let deadline = once.map(|once| Instant::now() + once);
        loop {
            let settled = self.settle();
            // After the only sync comes one round. Its failure is only logged, unless the login was refused (rule N5).
            if once.is_some() && self.is_synced() && self.hooks.is_at_rest() {
                let refusal = self
                    .course
                    .own_round
                    .as_ref()
                    .and_then(|own| own.round.refusal.lock().take());
                return refusal.map_or(Ok(()), |reason| Err(RunError::LoginRefused(reason)));
            }
            let deadline = deadline.filter(|_| !self.is_synced());
            if let Some(reason) = deadline.and_then(|at| self.urls.missing(Some(at))) {
                return Err(RunError::NotFetched(reason));
            }
            match self.next(shutdown, deadline, settled.retries).await {
                SidecarEvent::ShutDown => {
                    info!("ending, files stay");
                    self.end().await;
                    return Ok(());
                }
                SidecarEvent::Round => self.record(),
                SidecarEvent::ObserveDue => self.observe(),
                SidecarEvent::Fetched | SidecarEvent::RetryDue => {}
                SidecarEvent::LookDue => {
                    self.look_at = Instant::now() + LOOK;
                    self.health.comes_to("look at the files");
                    self.intake.lock().sink.look();
                }
                SidecarEvent::TimeIsUp => {
                    let reason = self
                        .health
                        .missing()
                        .or(settled.unwritten)
                        .unwrap_or_else(|| "the first sync takes too long".into());
                    return Err(RunError::Incomplete(reason));
                }
                SidecarEvent::Stale(object) => self.read_again(object),
                SidecarEvent::ReadAgain(object, read) => {
                    self.reread = None;
                    self.was_read(&object, read);
                }
                SidecarEvent::Report(target, report) => self.reported(target, report)?,
            }
        }
    }

    /// The next event. Objects come last, since a server that never pauses must not hold up the rest.
    ///
    /// # Cancel safety
    ///
    /// Every arm is cancel-safe: what is under way is kept in its part.
    async fn next(
        &mut self,
        shutdown: &CancellationToken,
        deadline: Option<Instant>,
        retries: bool,
    ) -> SidecarEvent {
        let observe_at = match self.progress {
            Progress::FirstSync { .. } => None,
            Progress::Following { observe_at } => observe_at,
        };
        let stale = self
            .intake
            .lock()
            .next_stale()
            .filter(|_| self.reread.is_none())
            .map(|(due, object)| async move {
                sleep_until(due).await;
                object
            });
        tokio::select! {
            biased;
            () = shutdown.cancelled() => SidecarEvent::ShutDown,
            _ = self.hooks.next() => SidecarEvent::Round,
            Some(()) = at(observe_at) => SidecarEvent::ObserveDue,
            () = self.urls.next(&self.intake) => SidecarEvent::Fetched,
            () = sleep(RETRY), if retries => SidecarEvent::RetryDue,
            () = sleep_until(self.look_at) => SidecarEvent::LookDue,
            Some(()) = at(deadline) => SidecarEvent::TimeIsUp,
            Some(object) = OptionFuture::from(stale) => SidecarEvent::Stale(object),
            Some((object, read)) = OptionFuture::from(self.reread.as_mut()) => {
                SidecarEvent::ReadAgain(object, read)
            }
            (TargetId::Collection(target), report) = self.engine.next() => {
                SidecarEvent::Report(target, report)
            }
        }
    }

    /// Lists a stale object by its name (rule D5).
    fn read_again(&mut self, object: ObjectRef) {
        let watched = self.watched(&Selection::of(&object), None);
        let api = self.api.clone();
        let reading = async move { (object, api.list(&watched, None).await.map(drop)) };
        self.reread = Some(reading.boxed());
    }

    /// Whether the first sync is complete and written.
    fn is_synced(&self) -> bool {
        matches!(self.progress, Progress::Following { .. })
    }

    fn reported(&mut self, target: u64, report: Report<Watched>) -> Result<(), RunError> {
        let number = usize::try_from(target).unwrap_or(usize::MAX);
        let selection = &self.selections[number];
        match report {
            Report::Synced(all) if all.reset => {
                self.intake.lock().forget_versions(selection);
                self.engine
                    .start(TargetId::Collection(target), MinFreshness::Newest);
            }
            Report::Synced(all) => {
                // Otherwise others may be there, too.
                if all.incomplete.is_none() {
                    // Nothing will find it: no list follows.
                    if self.poll == Poll::Once && selection.name.is_some() && all.state.is_empty() {
                        warn!(%selection, "object not found");
                    }
                    self.intake.lock().listed(selection, &all.state);
                }
                self.health.listed(number);
            }
            Report::Deleted(object, _) => self.intake.lock().gone(&object),
            Report::Failed(failure) => {
                let error = failure_text(selection, &failure);
                error!(error, "request failed, will retry");
                self.health.failed(number, &error);
                // Repeating it does not help: the right or the path is missing.
                let is_final = failure.error.is_forbidden() || failure.error.is_not_found();
                if self.course.once.is_some() && is_final {
                    return Err(RunError::Denied(error));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A stale object was listed, or could not be.
    fn was_read(&mut self, object: &ObjectRef, read: Result<(), RequestError>) {
        let mut intake = self.intake.lock();
        if let Err(error) = read {
            let now = Instant::now();
            let random = fastrand::f64();
            let pause = self.reread_backoff.delay_after(&error, now, random);
            let error = chain(&error);
            warn!(error, "cannot read an object again, will retry");
            intake.postpone(object, pause.max(self.timing.min_pause));
        } else {
            self.reread_backoff.reset();
            intake.was_read(object);
        }
    }

    /// Follows up on what has changed: files, fetches, readiness, hooks.
    fn settle(&mut self) -> Settled {
        let is_listed = self.health.missing().is_none();
        self.health.comes_to("bring the files up to date");
        let mut intake = self.intake.lock();
        let mut settled = intake.settle(is_listed);
        let is_complete = is_listed && intake.has_reread();
        drop(intake);
        self.urls.add(mem::take(&mut settled.fetches));
        let has_written = match &mut self.progress {
            Progress::Following { observe_at } => {
                if settled.is_changed {
                    observe_at.get_or_insert(Instant::now() + PAUSE);
                }
                return settled;
            }
            Progress::FirstSync { has_written } => {
                *has_written |= settled.is_changed;
                *has_written
            }
        };
        if self.course.once.is_some() {
            // Nothing fetches them later.
            settled.unwritten = settled.unwritten.or_else(|| self.urls.missing(None));
        }
        self.health.set_problem(settled.unwritten.clone());
        if is_complete && self.urls.is_tried() && settled.unwritten.is_none() {
            self.begin(has_written);
            self.health.set_ready();
            let objects = self.intake.lock().count();
            info!(objects, "first sync complete");
        }
        settled
    }

    /// The first sync is complete: hooks begin (rule N2).
    fn begin(&mut self, has_written: bool) {
        let mut intake = self.intake.lock();
        let index = intake.sink.index();
        let key = index.key().clone();
        let past = Past {
            record: index.hooks().cloned(),
            is_uncertain: has_written && self.course.had_files,
            ..Past::default()
        };
        drop(intake);
        let own = self.course.own_round.as_ref();
        let skipped = own
            .filter(|own| own.first == FirstRequest::Skipped)
            .map(|own| Arc::clone(&own.round));
        if skipped.as_ref().is_some_and(|round| round.script.is_none()) {
            // Its hook starts from the present content.
            self.hooks.adopt(|hook| hook.name != HOOK, &past, &key);
        }
        self.hooks.adopt(|_| true, &past, &key);
        self.observe();
        if let Some(round) = skipped {
            // As theirs does, only the script runs.
            let runs = self.hooks.state(HOOK) == Some(HookState::Waiting);
            round.skips_request.store(runs, Ordering::Relaxed);
        }
    }

    fn observe(&mut self) {
        self.progress = Progress::Following { observe_at: None };
        self.health.comes_to("read the files, for hooks");
        let mut intake = self.intake.lock();
        let content = intake.sink.content(&self.hooks.adopted);
        self.hooks.observe(content, intake.sink.index().key());
        drop(intake);
        self.record();
    }

    /// Stores what the application was last notified of.
    fn record(&mut self) {
        self.health.comes_to("write the records of hooks");
        let mut intake = self.intake.lock();
        let index = intake.sink.index();
        if let Some(record) = self.hooks.record(index.key()) {
            index.set_hooks(record);
        }
    }

    /// Gives a round that runs some time.
    pub(crate) async fn end(&mut self) {
        let deadline = Instant::now() + END;
        while self.hooks.is_running() {
            match timeout_at(deadline, self.hooks.next()).await {
                // It is repeated after the next start.
                Ok(RoundEvent::Begun) | Err(_) => break,
                Ok(RoundEvent::Ended) => self.record(),
            }
        }
    }
}

/// Waits until then, if that is known.
fn at(time: Option<Instant>) -> OptionFuture<Sleep> {
    time.map(sleep_until).into()
}
