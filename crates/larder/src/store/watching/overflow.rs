//! Objects beyond the last watch that may be open. They are requested when they are read, and an answer is good for a
//! time to live, as under strategy `Cache`. A watch that ends makes room for the one that has waited longest.
//!
//! A reader notices nothing but that. While the API server does not answer, the last good state is served, to the pods
//! that could read it before.

use larder_objects::Object;
use larder_watch::RegistrationSeq;
use tokio::time::{Duration, Instant};
use tokio_util::time::{DelayQueue, delay_queue};
use tracing::warn;

use super::task::WatchTask;

/// An object without a watch.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// When the known state expires.
    expiry: Option<delay_queue::Key>,
    /// What is known has expired; this is how fresh it was.
    expired: Option<RegistrationSeq>,
}

impl Overflow {
    pub(super) fn cancel(self, expiries: &mut DelayQueue<u64>) {
        if let Some(key) = self.expiry {
            expiries.remove(&key);
        }
    }
}

/// Shortest time to live, so that the readers that wait for an answer see it.
const TTL_MIN: Duration = Duration::from_secs(1);

impl<K: Object> WatchTask<K> {
    /// The object has to do without a watch.
    pub(super) fn overflow(&mut self, id: u64) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        if object.overflow.is_some() {
            return;
        }
        object.overflow = Some(Box::default());
        object.entry.cell.set_watched(false);
        if !self.overflowed {
            self.overflowed = true;
            let (kind, limit) = (K::KIND.as_str(), self.config.max_watches);
            warn!(
                kind,
                limit, "watch limit reached, fetching the remaining objects on read"
            );
        }
        self.answered(id);
    }

    /// What is known of an object without a watch, if anything, is good for a while from now on.
    pub(super) fn answered(&mut self, id: u64) {
        let ttl = self.config.current_ttl().max(TTL_MIN);
        if let Some(object) = self.objects.get_mut(&id)
            && let Some(overflow) = &mut object.overflow
        {
            overflow.expired = None;
            object.entry.cell.interrupted(Instant::now());
            match &overflow.expiry {
                Some(key) => self.expiries.reset(key, ttl),
                None => overflow.expiry = Some(self.expiries.insert(id, ttl)),
            }
        }
    }

    /// What is known of an object without a watch has been good for long enough. While the API server fails, it is
    /// served all the same.
    pub(super) fn expired(&mut self, id: u64) {
        if let Some(object) = self.objects.get_mut(&id)
            && let Some(overflow) = &mut object.overflow
        {
            overflow.expiry = None;
            if !self.engine.is_check_backing_off(id) {
                self.expire(id);
            }
        }
    }

    pub(super) fn expire(&mut self, id: u64) {
        if let Some(object) = self.objects.get_mut(&id)
            && let Some(overflow) = &mut object.overflow
        {
            let seq = object.entry.cell.expire();
            overflow.expired = Some(overflow.expired.unwrap_or_default().max(seq));
        }
    }

    /// The API server does not answer about an object without a watch: until it is asked again, the last good state is
    /// served.
    pub(super) fn serve_stale(&self, id: u64) {
        if let Some(object) = self.objects.get(&id)
            && let Some(overflow) = &object.overflow
            && let Some(seq) = overflow.expired
        {
            object.entry.cell.serve_stale(seq);
        }
    }

    /// The object has a watch from now on, or needs none.
    pub(super) fn leave_overflow(&mut self, id: u64) {
        self.serve_stale(id);
        if let Some(object) = self.objects.get_mut(&id)
            && let Some(overflow) = object.overflow.take()
        {
            object.entry.cell.set_watched(true);
            overflow.cancel(&mut self.expiries);
        }
    }
}
