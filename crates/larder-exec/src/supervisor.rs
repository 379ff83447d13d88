//! Runs the command until it ends: forwards signals, follows changes, runs hooks, and returns the command's status.
//!
//! Invariants:
//! 1. Volumes and subPath mounts are in place before a hook looks at them (rule F1).
//! 2. Nothing delays a signal, and no hook the delivery of a change: rounds run concurrently, and what waits for a disk or
//!    an agent runs on another thread and comes back as an event.
//! 3. No round begins without a command. A command that failed after a restart is started again by the next change, and
//!    by one that it has missed (rule R1).

use std::{
    future::pending, io, mem, os::unix::process::ExitStatusExt as _, pin::pin, process::ExitStatus,
    sync::Arc,
};

use anyhow::Context as _;
use futures::{
    Stream, StreamExt as _,
    future::{FutureExt as _, LocalBoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use larder_actions::StepOutcome;
use larder_console as console;
use larder_on_change::HookId;
use rustix::process::Signal;
use tokio::{
    sync::{mpsc::UnboundedReceiver, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until},
};

use crate::{
    hooks::CommandHooks,
    origin::{OnExit, OriginRead},
    sandbox::{
        ArrivedSignal, CommandSignal, Follower, Processes, ProcessesEvent, SentTo, forwarded,
    },
    session::{Session, Update},
    steps::{self, CommandContext, RestartRequest},
};

/// Why a command is started that has failed.
const CHANGED: &str = "the content has changed, starting the command again";
/// Exit code of a command that larder cannot start.
const CANNOT_START: i32 = 125;

/// An event that wakes the supervisor.
enum SupervisorEvent {
    Command(ProcessesEvent),
    Signal(ArrivedSignal),
    Changed,
    /// The pod, read again after a change.
    Read(Box<anyhow::Result<OriginRead>>),
    /// The command did not end in time.
    GraceIsOver,
    /// A round may be due.
    RoundDue,
    RoundOver(HookId, StepOutcome),
    Restart(RestartRequest),
}

/// The command is being ended, and will be started again.
struct Restarting {
    kill_at: Instant,
    waiting: Vec<oneshot::Sender<()>>,
}

/// The command.
enum Child {
    Running(Box<Processes>),
    /// It failed with this status after a restart, and waits for a change.
    Failed(ExitStatus),
}

impl Child {
    fn failed(status: ExitStatus) -> Self {
        console::note(format_args!(
            "the command failed ({status}), waiting for a change to start it again"
        ));
        Self::Failed(status)
    }

    /// The next event; none while no command runs. Cancel-safe.
    async fn next(&mut self) -> io::Result<ProcessesEvent> {
        match self {
            Self::Running(processes) => processes.next().await,
            Self::Failed(_) => pending().await,
        }
    }

    fn send(&self, signal: impl Into<CommandSignal>) {
        if let Self::Running(processes) = self {
            processes.inside.send(signal.into());
        }
    }

    /// Whether the stage has made all mounts.
    fn has_mounts(&self) -> bool {
        matches!(self, Self::Running(processes) if processes.inside.mounts.get().is_some())
    }
}

/// The rounds that run.
type RunningRounds<'a> = FuturesUnordered<LocalBoxFuture<'a, (HookId, StepOutcome)>>;

/// The command over all its starts.
struct Supervisor<'a> {
    session: Session<'a>,
    hooks: CommandHooks,
    child: Child,
    has_restarted: bool,
    /// The user ends the command.
    is_ending: bool,
    restarting: Option<Restarting>,
    /// A change came before the stage had made its mounts.
    is_waiting_for_mounts: bool,
}

/// Runs the command of `session`.
///
/// # Errors
///
/// The command cannot be started.
pub(crate) async fn supervise(
    mut session: Session<'_>,
    around: &CommandContext,
    restarts: UnboundedReceiver<RestartRequest>,
    hooks: CommandHooks,
    follower: Option<Follower>,
) -> anyhow::Result<ExitStatus> {
    let mut sources = EventSources {
        signals: forwarded()?,
        restarts,
        follower,
        reading: None,
        rounds: RunningRounds::new(),
    };
    let mut supervisor = Supervisor {
        child: Child::Running(Box::new(session.start()?)),
        session,
        hooks,
        has_restarted: false,
        is_ending: false,
        restarting: None,
        is_waiting_for_mounts: false,
    };
    loop {
        let round_at = supervisor.begin_rounds(around, &mut sources.rounds);
        let event = sources.next(&mut supervisor, round_at).await?;
        let ended = supervisor.handle(event, around, &mut sources).await?;
        if let Some(status) = ended {
            return Ok(status);
        }
    }
}

/// Where events come from, but for the command and the time.
struct EventSources<'a, S> {
    signals: S,
    restarts: UnboundedReceiver<RestartRequest>,
    follower: Option<Follower>,
    /// The pod is being read again.
    reading: Option<JoinHandle<anyhow::Result<OriginRead>>>,
    rounds: RunningRounds<'a>,
}

impl<S: Stream<Item = ArrivedSignal> + Unpin> EventSources<'_, S> {
    /// The next event. `round_at` is when the next round is due.
    ///
    /// # Cancel safety
    ///
    /// Each arm is cancel-safe: it loses nothing when another one completes first.
    async fn next(
        &mut self,
        supervisor: &mut Supervisor<'_>,
        round_at: Option<Instant>,
    ) -> anyhow::Result<SupervisorEvent> {
        let kill_at = supervisor
            .restarting
            .as_ref()
            .map(|restarting| restarting.kill_at);
        // A change while the pod is read is noticed afterwards.
        let idle = self.follower.as_mut().filter(|_| self.reading.is_none());
        let changed = OptionFuture::from(idle.map(Follower::changed));
        let read = OptionFuture::from(self.reading.as_mut());
        let grace_is_over = OptionFuture::from(kill_at.map(sleep_until));
        let round_due = OptionFuture::from(round_at.map(sleep_until));
        Ok(tokio::select! {
            event = supervisor.child.next() => SupervisorEvent::Command(event.context("cannot wait for the command")?),
            Some(arrived) = self.signals.next() => SupervisorEvent::Signal(arrived),
            Some(()) = changed => SupervisorEvent::Changed,
            Some(read) = read => SupervisorEvent::Read(Box::new(read.context("cannot read the pod again")?)),
            Some(()) = grace_is_over => SupervisorEvent::GraceIsOver,
            Some(()) = round_due => SupervisorEvent::RoundDue,
            Some((hook, outcome)) = self.rounds.next() => SupervisorEvent::RoundOver(hook, outcome),
            Some(request) = self.restarts.recv() => SupervisorEvent::Restart(request),
        })
    }
}

impl Supervisor<'_> {
    /// Begins the rounds that are due, if a command runs. Returns when the next one is due.
    fn begin_rounds<'a>(
        &mut self,
        around: &'a CommandContext,
        rounds: &mut RunningRounds<'a>,
    ) -> Option<Instant> {
        if !matches!(self.child, Child::Running(_)) {
            return None;
        }
        let (due, next) = self.hooks.due();
        let session = &self.session;
        for due in due {
            rounds.push(steps::run(due, around, session).boxed_local());
        }
        next
    }

    /// Returns the status of the command if larder ends with it.
    async fn handle<S>(
        &mut self,
        event: SupervisorEvent,
        around: &CommandContext,
        sources: &mut EventSources<'_, S>,
    ) -> anyhow::Result<Option<ExitStatus>> {
        match event {
            SupervisorEvent::Command(ProcessesEvent::Ended(status)) => {
                return self.ended(status, &mut sources.rounds).await;
            }
            SupervisorEvent::Command(ProcessesEvent::Mounted) => {
                if mem::take(&mut self.is_waiting_for_mounts) {
                    self.session.update_subpaths();
                    self.observe();
                }
            }
            SupervisorEvent::Signal(arrived) => return Ok(self.signaled(arrived)),
            SupervisorEvent::Changed => {
                let origin = Arc::clone(&self.session.origin);
                sources.reading = Some(spawn_blocking(move || origin.read()));
            }
            SupervisorEvent::Read(read) => {
                sources.reading = None;
                self.changed(*read, sources.follower.as_mut())?;
            }
            SupervisorEvent::GraceIsOver => {
                self.child.send(Signal::KILL);
                // The command ends now; the timer only has to stay out of the way.
                if let Some(restarting) = &mut self.restarting {
                    restarting.kill_at = Instant::now() + around.stop.grace;
                }
            }
            SupervisorEvent::RoundDue => {}
            SupervisorEvent::RoundOver(hook, outcome) => self.hooks.ended(hook, outcome.failure()),
            SupervisorEvent::Restart(request) => self.begin_restart(request)?,
        }
        Ok(None)
    }

    /// The command has ended. Returns its status if larder ends with it.
    async fn ended(
        &mut self,
        status: ExitStatus,
        running: &mut RunningRounds<'_>,
    ) -> anyhow::Result<Option<ExitStatus>> {
        // Also before the next start, which may need a port or a lock that a process still holds.
        let over = match mem::replace(&mut self.child, Child::Failed(status)) {
            Child::Running(processes) => end(*processes, running).await?,
            Child::Failed(_) => Vec::new(),
        };
        let has_failed = self.has_restarted && !self.is_ending && !status.success();
        let waits = has_failed && self.session.settings.on_exit == OnExit::Wait;
        if self.restarting.is_none() && !waits {
            return Ok(Some(status));
        }
        for (hook, outcome) in over {
            self.hooks.ended(hook, outcome.failure());
        }
        let has_missed = self.session.has_missed_changes();
        let restarting = self.restarting.take();
        if restarting.is_none() && has_missed {
            console::note(CHANGED);
        }
        if restarting.is_some() || has_missed {
            self.start_again()?;
        } else {
            self.child = Child::failed(status);
        }
        if mem::take(&mut self.is_waiting_for_mounts) {
            // The new start has it.
            self.observe();
        }
        for waiting in restarting.into_iter().flat_map(|ended| ended.waiting) {
            // The round may have timed out.
            let _ = waiting.send(());
        }
        Ok(None)
    }

    /// Starts the command again. If that is impossible, it has failed.
    fn start_again(&mut self) -> anyhow::Result<()> {
        (self.has_restarted, self.is_ending) = (true, false);
        self.child = match self.session.start() {
            Err(error) if self.session.settings.on_exit == OnExit::Wait => {
                console::error(error.as_ref());
                Child::failed(ExitStatus::from_raw(CANNOT_START << 8))
            }
            started => Child::Running(Box::new(started?)),
        };
        Ok(())
    }

    /// Passes a signal on if the command needs that. Returns the status with which larder ends now.
    fn signaled(&mut self, arrived: ArrivedSignal) -> Option<ExitStatus> {
        let signal = arrived.signal;
        let is_one = |all: &[Signal]| all.iter().any(|one| signal == (*one).into());
        let ends = is_one(&[Signal::TERM, Signal::INT, Signal::QUIT]);
        if let Child::Failed(status) = self.child
            && (ends || is_one(&[Signal::HUP]))
        {
            return Some(status);
        }
        self.is_ending |= ends;
        if arrived.sent_to == SentTo::Larder {
            if ends {
                // No restart.
                self.restarting = None;
            }
            self.child.send(signal);
        }
        None
    }

    /// The content may have changed.
    fn changed(
        &mut self,
        read: anyhow::Result<OriginRead>,
        follower: Option<&mut Follower>,
    ) -> anyhow::Result<()> {
        let update = self.session.update(read, follower);
        let is_running = matches!(self.child, Child::Running(_));
        let restarts = self.hooks.restart_for_variables();
        if update.start && is_running && !restarts {
            let old = self.session.outdated().join(" and ");
            if old.is_empty() {
                console::note("the running command has the present variables and mounts again");
            } else {
                console::note(format_args!(
                    "the running command keeps its old {old}; --on-change restart:environment restarts it after such a change"
                ));
            }
        }
        if !self.hooks.is_empty() {
            self.session.note_stale_subpaths(&update.volumes);
        }
        if !is_running && update != Update::default() {
            console::note(CHANGED);
            self.start_again()?;
            self.observe();
        } else if self.child.has_mounts() {
            self.session.update_subpaths();
            self.observe();
        } else {
            self.is_waiting_for_mounts = true;
        }
        Ok(())
    }

    /// Passes the present content to the hooks.
    fn observe(&mut self) {
        if let Err(error) = self.session.observe(&mut self.hooks) {
            console::error(error.context("cannot read the volumes").as_ref());
        }
    }

    /// Ends the command, unless it is being ended already, or starts one that has failed.
    fn begin_restart(&mut self, request: RestartRequest) -> anyhow::Result<()> {
        if let Some(restarting) = &mut self.restarting {
            restarting.waiting.push(request.done);
            return Ok(());
        }
        console::note(format_args!("restarting the command: {}", request.reason));
        if let Child::Failed(_) = self.child {
            self.start_again()?;
            // The round may have timed out.
            let _ = request.done.send(());
            return Ok(());
        }
        self.child.send(request.signal);
        self.restarting = Some(Restarting {
            kill_at: Instant::now() + request.grace,
            waiting: vec![request.done],
        });
        Ok(())
    }
}

/// Ends the remaining processes of a command that has ended. Returns the rounds that are over with it.
async fn end(
    processes: Processes,
    running: &mut RunningRounds<'_>,
) -> anyhow::Result<Vec<(HookId, StepOutcome)>> {
    let mut over = Vec::new();
    let mut end = pin!(processes.end());
    loop {
        // The namespace ends when its last process is reaped, and commands of hooks are reaped by their rounds.
        tokio::select! {
            biased;
            Some(round) = running.next() => over.push(round),
            ended = &mut end => {
                ended.context("cannot wait for the processes of the command")?;
                return Ok(over);
            }
        }
    }
}
