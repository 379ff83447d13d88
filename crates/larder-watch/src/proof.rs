//! By what a known state is proven to be current.

use std::{sync::Arc, time::Duration};

use larder_transport::Link;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{error::RequestFailure, report::Report, target::Target};

/// How fresh is what is known of an object or a collection. It means nothing while nothing is known of it.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The API server has proven at that time that the known state is current: by a response, an event or a bookmark, or
    /// by any byte on the connection of the open watch, such as the answer to a PING. A connection that is silent for
    /// longer than its PINGs take, or than bookmarks do where there are no PINGs, is given up, and the proof is lost.
    At(Instant),
    /// The known state may have changed since that time, the one of the last proof. A watch that ends as planned loses
    /// its proof for the milliseconds that it takes to open it again.
    Lost {
        /// The time of the last proof.
        since: Instant,
        /// The last failed request, if one has failed since.
        failure: Option<RequestFailure>,
    },
}

impl Proof {
    /// For how long the object may have changed unnoticed.
    pub fn age(&self, now: Instant) -> Duration {
        match self {
            Self::At(then) | Self::Lost { since: then, .. } => now.saturating_duration_since(*then),
        }
    }
}

/// The proof of one known state, kept from what an engine reports about it.
#[derive(Debug, Default)]
pub struct ProofRecord {
    /// The connection of its watch, if that is open and the connection is known.
    link: Option<Link>,
    /// Boxed, as it is seldom there and there may be very many records.
    interruption: Option<Box<Interruption>>,
}

/// What keeps a state from being in sync.
#[derive(Debug)]
struct Interruption {
    /// When the state was last proven to be current: it may have changed unnoticed since.
    since: Instant,
    /// The last failed request.
    failure: Option<RequestFailure>,
}

impl ProofRecord {
    /// The watch is open over this connection, if that is known; or there is none.
    pub fn watched_over(&mut self, link: Option<&Link>) {
        self.link = link.cloned();
    }

    /// The state is in sync again. Returns whether a failure has kept it from that.
    pub fn resume(&mut self) -> bool {
        self.interruption
            .take()
            .is_some_and(|interruption| interruption.failure.is_some())
    }

    /// The state was last proven to be current at that time, unless it was interrupted before.
    pub fn interrupt(&mut self, since: Instant) {
        self.interruption(since);
    }

    /// A request has failed. Returns the failure before, if it is not the first one.
    pub fn fail(&mut self, failure: RequestFailure, now: Instant) -> Option<RequestFailure> {
        self.interruption(now).failure.replace(failure)
    }

    fn interruption(&mut self, since: Instant) -> &mut Interruption {
        self.link = None;
        self.interruption.get_or_insert_with(|| {
            Box::new(Interruption {
                since,
                failure: None,
            })
        })
    }

    /// The last failed request, until the state is in sync again.
    pub fn failure(&self) -> Option<&RequestFailure> {
        self.interruption.as_ref()?.failure.as_ref()
    }

    /// By what the state is known to be current.
    pub fn proof(&self, now: Instant) -> Proof {
        match (&self.interruption, &self.link) {
            (Some(interruption), _) => Proof::Lost {
                since: interruption.since,
                failure: interruption.failure.clone(),
            },
            (None, Some(link)) => Proof::At(link.last_heard()),
            (None, None) => Proof::At(now),
        }
    }
}

/// How fresh is what a [`Collection`](crate::collection::Collection) has passed on. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct CollectionFreshness(Arc<Mutex<CollectionProof>>);

#[derive(Debug, Default)]
struct CollectionProof {
    /// Whether all objects were passed on once.
    is_known: bool,
    record: ProofRecord,
}

impl CollectionFreshness {
    /// By what the known objects are proven to be current; `None` before they are known.
    pub fn proof(&self, now: Instant) -> Option<Proof> {
        let known = self.0.lock();
        known.is_known.then(|| known.record.proof(now))
    }

    /// The last failed request, until one succeeds.
    pub fn failure(&self) -> Option<RequestFailure> {
        self.0.lock().record.failure().cloned()
    }

    /// Takes in a report about the collection.
    pub(crate) fn take<T: Target>(&self, report: &Report<T>) {
        let mut known = self.0.lock();
        let record = &mut known.record;
        match report {
            Report::Synced(snapshot) => {
                record.watched_over(snapshot.link.as_ref());
                record.resume();
                known.is_known = true;
            }
            Report::Resumed(link) => {
                record.watched_over(link.as_ref());
                record.resume();
            }
            Report::Interrupted { proven, .. } => record.interrupt(*proven),
            Report::Failed(failure) => {
                record.fail(failure.clone(), Instant::now());
            }
            Report::Changed(_)
            | Report::Deleted(..)
            | Report::Confirmed(_)
            | Report::CheckFailed(..)
            | Report::CheckDue
            | Report::Responded { .. } => {}
        }
    }
}
