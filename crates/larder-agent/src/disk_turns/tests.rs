//! Steps on their threads.

use std::sync::mpsc::{self, Receiver, Sender};

use larder_files::pause::point;
use tokio::task::JoinSet;

use super::*;

fn turns() -> DiskTurns {
    DiskTurns::new(Limits {
        turns: 1,
        threads: 8,
    })
}

/// Lends turns while the test runs.
fn lending(turns: &DiskTurns) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(turns.clone().lend_turns());
    tasks
}

/// A step that hangs until the sender is dropped.
fn hanging(turns: &DiskTurns, namespace: &str) -> (Sender<()>, DiskStep<()>) {
    let (release, released): (_, Receiver<()>) = mpsc::channel();
    let step = turns.step(&namespace.into(), move || {
        // Nothing is sent.
        let _ = released.recv();
        point();
    });
    (release, step)
}

#[tokio::test]
async fn a_step_that_hangs_holds_nobody_up_and_says_so() {
    let turns = turns();
    let _lending = lending(&turns);
    let (release, mut hung) = hanging(&turns, "a");
    assert_eq!(turns.step(&"a".into(), || 1).ended().await, 1);
    assert_eq!(turns.step(&"b".into(), || 2).ended().await, 2);
    let progress = hung.progress();
    assert!(
        matches!(progress, StepProgress::Waiting(WaitsFor::Disk, _)),
        "{progress:?}"
    );
    // The thread of a step ends after its result was sent.
    while turns.threads() != (1, 8) {
        tokio::task::yield_now().await;
    }
    drop(release);
    hung.ended().await;
    while turns.threads().0 > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn long_steps_give_way_at_their_pause_points() {
    let turns = turns();
    let _lending = lending(&turns);
    let (stop, stopped): (Sender<()>, Receiver<()>) = mpsc::channel();
    let (begun, has_begun) = oneshot::channel();
    // It works until the other step has ended, and holds the only turn.
    let mut long = turns.step(&"a".into(), move || {
        begun.send(()).unwrap();
        while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            point();
        }
    });
    has_begun.await.unwrap();
    assert_eq!(turns.step(&"b".into(), || 1).ended().await, 1);
    drop(stop);
    long.ended().await;
}

#[tokio::test]
async fn a_step_that_nobody_wants_any_more_never_begins() {
    let turns = turns();
    let (release, mut hung) = hanging(&turns, "a");
    let (begun, has_begun) = mpsc::channel::<()>();
    drop(turns.step(&"b".into(), move || begun.send(())));
    // Its work is gone, and so is its sender.
    assert!(has_begun.recv().is_err());
    drop(release);
    hung.ended().await;
}

#[tokio::test]
async fn a_panic_ends_the_step_and_resumes_where_it_is_awaited() {
    let turns = turns();
    let mut panics = turns.step(&"a".into(), || panic!("a mistake"));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { panics.ended().await });
    assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
    assert_eq!(turns.step(&"a".into(), || 1).ended().await, 1);
}

#[tokio::test]
async fn a_step_without_a_thread_or_a_turn_says_what_it_waits_for() {
    let turns = DiskTurns::new(Limits {
        turns: 1,
        threads: 2,
    });
    let wait = |step: &DiskStep<()>| match step.progress() {
        StepProgress::Waiting(wait, _) => Some(wait),
        StepProgress::Working => None,
    };
    let (_first, hung) = hanging(&turns, "a");
    let (_second, of_same) = hanging(&turns, "a");
    let (_third, of_other) = hanging(&turns, "b");
    assert_eq!(wait(&of_same), Some(WaitsFor::Thread));
    assert_eq!(wait(&of_other), Some(WaitsFor::Turn));
    drop((hung, of_same, of_other));
}
