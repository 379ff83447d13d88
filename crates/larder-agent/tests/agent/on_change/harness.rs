//! A node whose test receives the rounds of a hook.

use std::time::Duration;

use larder_agent::on_change::PodChange;
use larder_on_change::{
    Debounce, Hook, Paths,
    parse::{self, ConfiguredHook, HookOrigin, PodSelector},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::harness::{Node, ProgramHook, ReceivedRound};

/// Name of the hook.
pub(super) const HOOK: &str = "test";
/// Longer than any pause of a hook under test that is about to fire.
const LONG: Duration = Duration::from_mins(10);

/// The rounds of a node's hook.
pub(crate) struct Rounds(mpsc::UnboundedReceiver<ReceivedRound>);

/// A hook as annotations write it, in the long form. Its signal is never sent: the test receives the round instead.
pub(super) fn hook(fields: &str) -> Hook {
    let text = format!("[{{name: {HOOK}, signal: SIGHUP, {fields}}}]");
    let mut hooks = parse::hooks(&text, HookOrigin::Configuration, None).unwrap();
    hooks.remove(0)
}

/// A hook of the agent's configuration for every pod, in the long form.
pub(super) fn configured(text: &str) -> ConfiguredHook {
    let mut hooks = parse::hooks(text, HookOrigin::Configuration, None).unwrap();
    ConfiguredHook {
        pods: PodSelector::Names(Paths::default()),
        hook: hooks.remove(0).into(),
    }
}

/// A hook that fires at once.
pub(crate) fn immediate() -> Hook {
    let mut hook = hook("");
    hook.timing.debounce = Debounce::NONE;
    hook
}

/// Gives `node`, whose agent does not run yet, the hook. Its record outlives the agent.
pub(crate) fn with_hook(node: &mut Node, hook: Hook) -> Rounds {
    let (sender, receiver) = mpsc::unbounded_channel();
    node.program = Some(ProgramHook {
        hook,
        rounds: sender,
    });
    node.on_change.key_dirs = vec![node.memory().to_owned()];
    Rounds(receiver)
}

impl Rounds {
    /// Checks that no round has begun, and that the agent has another hook by now.
    pub(super) fn close(mut self) {
        let round = self.0.try_recv().map(|round| round.change);
        assert!(round.is_err(), "a round began: {round:?}");
    }

    /// The next round.
    pub(crate) async fn next(&mut self) -> ReceivedRound {
        let received = timeout(LONG, self.0.recv()).await;
        received
            .expect("a round begins")
            .expect("the agent has a hook")
    }

    /// The next round, which succeeds.
    pub(super) async fn succeed(&mut self) -> PodChange {
        let round = self.next().await;
        round.answer.send(Ok(())).expect("the round runs");
        round.change
    }

    /// The next round, which fails.
    pub(super) async fn fail(&mut self, reason: &str) -> PodChange {
        let round = self.next().await;
        round
            .answer
            .send(Err(reason.to_owned()))
            .expect("the round runs");
        round.change
    }

    /// Checks that no round begins within `time`.
    pub(super) async fn none_within(&mut self, time: Duration) {
        if let Ok(round) = timeout(time, self.0.recv()).await {
            panic!("a round began: {:?}", round.map(|round| round.change));
        }
    }

    /// Checks that no round begins: not within a time that exceeds every pause.
    pub(super) async fn none(&mut self) {
        self.none_within(Duration::from_mins(1)).await;
    }
}

/// Waits until `volume` of `pod` has the one file `f` with this text, and its hooks have taken it in.
pub(super) async fn delivered(node: &Node, pod: &str, volume: &str, text: &str) {
    node.until(pod, volume, &[("f", text)]).await;
    node.wait("the hook of the pod", |node| node.hook(pod, HOOK))
        .await;
}

/// Waits until the hook of `pod` is in this state.
pub(super) async fn until_state(node: &Node, pod: &str, state: &str) {
    node.wait(&format!("the hook of {pod} to be {state}"), |node| {
        (node.hook(pod, HOOK)?.state == state).then_some(())
    })
    .await;
}

/// Waits until the first hook of `pod` is in this state.
pub(super) async fn until_state_of(node: &Node, pod: &str, state: &str) {
    node.wait(&format!("the first hook of {pod} to be {state}"), |node| {
        (node.pod(pod)?.on_change.first()?.state == state).then_some(())
    })
    .await;
}

/// How long `work` takes, in milliseconds of the paused clock.
pub(super) async fn millis<T>(work: impl Future<Output = T>) -> (u128, T) {
    let began = Instant::now();
    let done = work.await;
    (began.elapsed().as_millis(), done)
}

/// The record of the pod's hooks.
pub(super) fn record_path(node: &Node, pod: &str) -> std::path::PathBuf {
    std::path::PathBuf::from(node.pod(pod).unwrap().path).join("on-change.json")
}

/// The text of the record of the pod's hooks.
pub(super) fn record(node: &Node, pod: &str) -> String {
    std::fs::read_to_string(record_path(node, pod)).unwrap()
}
