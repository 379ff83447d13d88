//! A worker's steps at the disk: awaited, shown in the status if they wait, and abandoned at the end of the agent.

use std::time::Duration;

use tokio::time::sleep;

use super::worker::{PodWork, SlowStep};
use crate::disk_turns::{DiskStep, StepProgress};

/// Time after which the status shows a step that is not over.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// Pause between two looks at a step during the shutdown.
const SHUTDOWN_LOOK: Duration = Duration::from_millis(50);

/// The agent shuts down, and the step does not go on: it is abandoned. What it was about to write stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abandoned;

/// A worker, which has one step at a time.
pub(crate) trait StepOwner: Send {
    /// What the mode adds to parts.
    type OfMode: Default + Send;

    /// The work on its pod.
    fn work(&mut self) -> &mut PodWork<Self::OfMode>;

    /// Publishes the status of the pod, whose step has become slow, or goes on.
    fn publish_progress(&mut self);

    /// Runs `work` as a step of the pod. `parts` are those that it is about, by their index in the plan.
    fn at_disk<T: Send + 'static>(
        &mut self,
        parts: &[usize],
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, Abandoned>> + Send {
        let own = self.work();
        own.in_step = parts.to_vec();
        let step = own.node.disk.step(&own.entry.name.namespace, work);
        async move {
            let ended = self.ended(step).await;
            let own = self.work();
            own.slow_step = None;
            own.in_step.clear();
            ended
        }
    }

    /// Waits for the end of the step, and publishes what it waits for.
    fn ended<T: Send + 'static>(
        &mut self,
        mut step: DiskStep<T>,
    ) -> impl Future<Output = Result<T, Abandoned>> + Send {
        async move {
            let shutdown = self.work().shutdown.clone();
            let mut shown = None;
            loop {
                let pause = if shutdown.is_cancelled() {
                    SHUTDOWN_LOOK
                } else {
                    SHOWN_AFTER
                };
                tokio::select! {
                    biased;
                    done = step.ended() => return Ok(done),
                    () = shutdown.cancelled(), if !shutdown.is_cancelled() => continue,
                    () = sleep(pause) => {}
                }
                let progress = step.progress();
                if shutdown.is_cancelled() {
                    match progress {
                        StepProgress::Working => continue,
                        StepProgress::Waiting(..) => return Err(Abandoned),
                    }
                }
                if shown.replace(progress) != Some(progress) {
                    let now = self.work().wall();
                    self.work().slow_step = Some(SlowStep::of(progress, now));
                    self.publish_progress();
                }
            }
        }
    }
}
