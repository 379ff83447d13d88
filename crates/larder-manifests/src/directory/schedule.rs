//! Decides when a changed file is read.
//!
//! An editor writes a file in several steps. Between two of them the file may be empty, incomplete or missing. A file
//! that was closed or renamed into place is complete: it is read after [`SETTLE`]. A file that is still being written,
//! or that has just vanished, is read after [`PATIENCE`], unless another event comes first. So the usual edit is served
//! without delay, and a half-written file or a series of renames removes no object.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use larder_pods::source::Touch;
use tokio::time::Instant;

/// Time after the last step of an edit; gathers files that are replaced together.
const SETTLE: Duration = Duration::from_millis(2);
/// Time for a writer to continue, or for a file that was moved away to be replaced.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for a file that is written without a pause.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The files to look at, each with its time.
#[derive(Debug, Default)]
pub(super) struct ReadSchedule(BTreeMap<PathBuf, ScheduledRead>);

#[derive(Debug)]
struct ScheduledRead {
    first: Instant,
    due: Instant,
}

impl ReadSchedule {
    /// Notes an event of `path`.
    pub(super) fn touch(&mut self, path: PathBuf, touch: Touch, now: Instant) {
        let entry = self.0.entry(path).or_insert(ScheduledRead {
            first: now,
            due: now,
        });
        let wait = match touch {
            Touch::Settled => SETTLE,
            Touch::Other | Touch::Writing | Touch::Gone => PATIENCE,
        };
        entry.due = (now + wait).min(entry.first + MAX_WAIT);
    }

    /// When [`Self::take_due`] next returns a file.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|entry| entry.due).min()
    }

    /// Takes out the files whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeSet<PathBuf> {
        self.0
            .extract_if(.., |_, entry| entry.due <= now)
            .map(|(path, _)| path)
            .collect()
    }

    /// Whether `path` is in the middle of a change.
    pub(super) fn is_pending(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn due(schedule: &mut ReadSchedule, now: Instant) -> Vec<String> {
        let names = schedule.take_due(now).into_iter();
        names.map(|path| path.display().to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_file_is_due_at_once_and_only_once() {
        let (mut schedule, start) = (ReadSchedule::default(), Instant::now());
        schedule.touch("a".into(), Touch::Writing, start);
        schedule.touch("a".into(), Touch::Settled, start + MS);
        assert_eq!(schedule.next(), Some(start + MS + SETTLE));
        assert_eq!(due(&mut schedule, start + MS), [""; 0]);
        assert_eq!(due(&mut schedule, start + MS + SETTLE), ["a"]);
        assert_eq!(schedule.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_in_the_middle_of_a_change_does_not_delay_another() {
        let (mut schedule, start) = (ReadSchedule::default(), Instant::now());
        schedule.touch("being-written".into(), Touch::Writing, start);
        schedule.touch("vanished".into(), Touch::Gone, start);
        schedule.touch("whole".into(), Touch::Settled, start);
        assert_eq!(due(&mut schedule, start + SETTLE), ["whole"]);
        assert!(schedule.is_pending(Path::new("vanished")));
        assert_eq!(
            due(&mut schedule, start + PATIENCE),
            ["being-written", "vanished"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_series_of_renames_ends_in_one_read_of_the_new_file() {
        let (mut schedule, start) = (ReadSchedule::default(), Instant::now());
        schedule.touch("a".into(), Touch::Gone, start);
        schedule.touch("a".into(), Touch::Settled, start + 5 * MS);
        assert_eq!(due(&mut schedule, start + 5 * MS + SETTLE), ["a"]);
        assert_eq!(due(&mut schedule, start + MAX_WAIT), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_written_without_pause_is_still_read() {
        let (mut schedule, start) = (ReadSchedule::default(), Instant::now());
        let mut now = start;
        while now < start + MAX_WAIT {
            schedule.touch("log".into(), Touch::Writing, now);
            assert_eq!(due(&mut schedule, now), [""; 0]);
            now += 50 * MS;
        }
        assert_eq!(due(&mut schedule, now), ["log"]);
    }
}
