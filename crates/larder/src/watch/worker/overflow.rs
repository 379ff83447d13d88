//! Objects beyond the most that may be watched: they are asked for when they are read, and what is known is good for a time
//! to live, as under strategy `Cache`. A watch that ends makes room for the one that has waited longest.
//!
//! A reader notices nothing but that: while the API server does not answer, what was known before stands in, for the pods
//! that could read it before.

use larder_objects::Object;
use tokio::time::{Duration, Instant};
use tracing::warn;

use super::{Part, Worker, admission::Permit, set_timer};

/// Whether the object has one of the places for watches.
#[derive(Debug)]
pub(super) enum Place {
    /// It needs none: it is new, immutable or idle.
    None,
    /// It is watched, or about to be. Dropping the permit gives the place back.
    Held { _permit: Permit },
    /// All places are taken.
    Waiting {
        /// What is known has expired; this is the moment that it proved.
        expired: Option<u64>,
    },
}

/// Shortest time to live, so that those who wait for an answer see it.
const TTL_MIN: Duration = Duration::from_secs(1);

impl<K: Object> Worker<K> {
    /// Takes a place for the object's watch. If there is none, the object waits for one, and is asked for if it is wanted.
    pub(super) fn take_place(&mut self, id: u64) -> bool {
        let Some(object) = self.objects.get_mut(&id) else {
            return false;
        };
        match object.place {
            Place::Held { .. } => return true,
            Place::Waiting { .. } => {}
            Place::None => {
                if let Some(permit) = self.places.enter() {
                    object.place = Place::Held { _permit: permit };
                    return true;
                }
                if !self.overflowed {
                    self.overflowed = true;
                    let (kind, limit) = (K::KIND.as_str(), self.config.max_watches);
                    warn!(
                        kind,
                        limit, "more objects are referenced than may be watched"
                    );
                }
                object.entry.cell.set_watched(false);
                self.places.queue(id, Part::Reflector, false);
                self.answered(id);
            }
        }
        self.pursue(id);
        false
    }

    /// Has objects watched that wait for it, as long as there are places.
    pub(super) fn fill_places(&mut self) {
        while let Some((id, _, permit)) = self.places.next() {
            self.stand_in(id);
            if let Some(object) = self.objects.get_mut(&id)
                && matches!(object.place, Place::Waiting { .. })
            {
                object.place = Place::Held { _permit: permit };
                object.last_read = Instant::now();
                object.entry.cell.set_watched(true);
                self.start(id);
            }
        }
    }

    /// What is known of an object that is not watched, if anything, is good for a while from now on.
    pub(super) fn answered(&mut self, id: u64) {
        let ttl = self.config.ttl().max(TTL_MIN);
        if let Some(object) = self.objects.get_mut(&id) {
            object.place = Place::Waiting { expired: None };
            object.entry.cell.interrupted(Instant::now());
            set_timer(&mut self.timers, object, Some(ttl));
        }
    }

    /// What is known of an object that is not watched has been good for long enough.
    pub(super) fn expire(&mut self, id: u64) {
        if let Some(object) = self.objects.get_mut(&id)
            && let Place::Waiting { expired } = &mut object.place
        {
            let proven = self.shared.expire(&object.entry);
            *expired = Some(expired.unwrap_or_default().max(proven));
        }
    }

    /// The API server does not answer about an object that is not watched: until it is asked again, what was known stands in.
    pub(super) fn stand_in(&mut self, id: u64) {
        if let Some(object) = self.objects.get_mut(&id)
            && let Place::Waiting {
                expired: Some(proven),
            } = object.place
        {
            object.entry.cell.stand_in(proven);
        }
    }
}
