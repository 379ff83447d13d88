//! Sequence numbers of registrations, which express how fresh a state is or must be.

use std::sync::atomic::{AtomicU64, Ordering};

/// The sequence number of a registration, from a counter that only increases.
///
/// A state is *fresh as of* a number if it was the most recent one at some time after the registration with that
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistrationSeq(u64);

/// A number that threads share. As the counter of all registrations: a request that is sent now brings a state that is
/// fresh as of [`current`](Self::current).
#[derive(Debug, Default)]
pub struct SeqCounter(AtomicU64);

impl SeqCounter {
    /// Begins with this number.
    pub fn new(seq: RegistrationSeq) -> Self {
        Self(AtomicU64::new(seq.0))
    }

    /// The number of the newest registration.
    pub fn current(&self) -> RegistrationSeq {
        RegistrationSeq(self.0.load(Ordering::Acquire))
    }

    /// Another number from now on.
    pub fn set(&self, seq: RegistrationSeq) {
        self.0.store(seq.0, Ordering::Release);
    }

    /// The number of a new registration.
    pub fn advance(&self) -> RegistrationSeq {
        RegistrationSeq(self.0.fetch_add(1, Ordering::AcqRel) + 1)
    }
}
