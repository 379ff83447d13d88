//! Who may ask the API server now: requests that wait for their answer are bounded.
//!
//! A request counts from when it is sent until it is answered: a GET or list by its body, a watch by its head, a streaming
//! list by the end of its initial events. A watch that is established does not count.

use std::{collections::VecDeque, sync::Arc};

/// Which of an object's two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The list or watch of its reflector.
    Reflector,
    /// The GET that proves freshness.
    Proof,
}

/// The right to one request; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Permit {
    /// Counts the permits.
    _count: Arc<()>,
}

/// The permits, and the objects that wait for one: first those that a reader waits for, then the others, each in the order
/// in which they came.
///
/// An entry may be out of date, since nothing is taken out of the middle: whoever takes the next one looks whether the
/// object still waits.
#[derive(Debug)]
pub(super) struct Admission {
    count: Arc<()>,
    limit: usize,
    wanted: VecDeque<(u64, Part)>,
    others: VecDeque<(u64, Part)>,
}

impl Admission {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            count: Arc::new(()),
            limit,
            wanted: VecDeque::new(),
            others: VecDeque::new(),
        }
    }

    /// A permit, if there is one and nobody waits for it.
    pub(super) fn enter(&self) -> Option<Permit> {
        let idle = self.wanted.is_empty() && self.others.is_empty();
        self.permit().filter(|_| idle)
    }

    /// Has the object wait; again if it is wanted and was not before.
    pub(super) fn queue(&mut self, id: u64, part: Part, wanted: bool) {
        if wanted {
            self.wanted.push_back((id, part));
        } else {
            self.others.push_back((id, part));
        }
    }

    /// The next that waits, and its permit.
    pub(super) fn next(&mut self) -> Option<(u64, Part, Permit)> {
        let permit = self.permit()?;
        let next = self.wanted.pop_front().or_else(|| self.others.pop_front());
        next.map(|(id, part)| (id, part, permit))
    }

    fn permit(&self) -> Option<Permit> {
        (Arc::strong_count(&self.count) <= self.limit).then(|| Permit {
            _count: Arc::clone(&self.count),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_wanted_goes_first_and_the_others_in_their_order() {
        let mut admission = Admission::new(1);
        let first = admission.enter().unwrap();
        assert!(admission.enter().is_none());
        admission.queue(1, Part::Reflector, false);
        admission.queue(2, Part::Reflector, false);
        admission.queue(3, Part::Reflector, false);
        admission.queue(3, Part::Reflector, true);
        assert!(admission.next().is_none());
        drop(first);
        // Who comes now does not overtake those who wait.
        assert!(admission.enter().is_none());
        let mut order = Vec::new();
        while let Some((id, _, _permit)) = admission.next() {
            order.push(id);
        }
        assert_eq!(order, [3, 1, 2, 3]);
        assert!(admission.enter().is_some());
    }
}
