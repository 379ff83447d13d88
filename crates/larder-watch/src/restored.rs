//! States that are older than the known one: overtaken by events, or those of an API server that was restored.
//!
//! An API server may answer from a cache that is behind, so one older state is not conclusive. A second one in a row
//! is, if it is older than the state that was known at the first. This holds only for requests of the most recent
//! state.

use larder_objects::ResourceVersion;

/// Judges the states of one object or target.
#[derive(Clone, Debug, Default)]
pub struct RestoreDetector {
    /// The last state was older than the known one, which was this.
    known_before: Option<ResourceVersion>,
}

/// What a state is, compared with the known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Recency {
    /// At least as recent.
    Current,
    /// Older: the most recent state must be requested once more.
    InDoubt,
    /// Older again, but not than what was known at the first request: a newer state has become known meanwhile.
    Overtaken,
    /// Older again: the API server was restored, and the state is true.
    Restored,
}

impl RestoreDetector {
    /// Judges the state of that version.
    pub fn judge(&mut self, version: &ResourceVersion, known: &ResourceVersion) -> Recency {
        let before = self.known_before.take();
        if !version.is_older_than(known) {
            return Recency::Current;
        }
        if let Some(before) = &before
            && version.is_older_than(before)
        {
            return Recency::Restored;
        }
        self.known_before = Some(known.clone());
        match before {
            None => Recency::InDoubt,
            Some(_) => Recency::Overtaken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts on states, each with what is known at its arrival.
    fn judge(states: &[(u64, u64)]) -> Vec<Recency> {
        let version = |number: u64| ResourceVersion::new(number.to_string());
        let mut detector = RestoreDetector::default();
        let judge =
            |(state, known): &(u64, u64)| detector.judge(&version(*state), &version(*known));
        states.iter().map(judge).collect()
    }

    // B14
    #[test]
    fn only_a_second_older_state_in_a_row_is_that_of_a_restored_server() {
        use Recency::{Current, InDoubt, Overtaken, Restored};
        assert_eq!(judge(&[(5, 5), (7, 5)]), [Current, Current]);
        assert_eq!(
            judge(&[(3, 9), (3, 9), (4, 3)]),
            [InDoubt, Restored, Current]
        );
        assert_eq!(
            judge(&[(3, 9), (9, 9), (3, 9)]),
            [InDoubt, Current, InDoubt]
        );
        // Events brought 12 between the two requests.
        assert_eq!(judge(&[(3, 9), (10, 12)]), [InDoubt, Overtaken]);
    }
}
