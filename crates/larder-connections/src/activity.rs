//! The activity of connections: which are idle and since when, and the order in which they are replaced.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::ConnectionLimits;

#[derive(Debug)]
pub(crate) struct SlotsInner {
    pub(crate) limits: ConnectionLimits,
    pub(crate) max: usize,
    pub(crate) table: Mutex<SlotTable>,
    /// Signals that a slot is free or that a connection became idle.
    pub(crate) changed: Notify,
}

impl SlotsInner {
    /// How many connections that have completed no request are left alone at the limit while others are idle. A new one
    /// needs some time for its request.
    pub(crate) fn spared(&self) -> usize {
        (self.max / 4).clamp(1, 16)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    pub(crate) open: usize,
    /// Of the open ones, those that were asked to close.
    pub(crate) closing: usize,
    pub(crate) next: u64,
    /// Connections without a request in flight that may be replaced, in the order of replacement.
    pub(crate) idle: BTreeMap<IdleKey, CancellationToken>,
}

/// Whether the connection has completed a request, and the order in which it became idle.
pub(crate) type IdleKey = (bool, u64);

impl SlotTable {
    /// Closes the connection that has been idle longest: of those that have completed no request if there are more than
    /// `spared` of them, and else of the others.
    pub(crate) fn replace_one(&mut self, spared: usize) {
        const COMPLETED: IdleKey = (true, 0);
        let has_more = self.idle.range(..COMPLETED).nth(spared).is_some();
        let completed = self.idle.range(COMPLETED..).next().filter(|_| !has_more);
        let victim = completed.or_else(|| self.idle.first_key_value());
        let key = victim.map(|(key, _)| *key);
        if let Some(replaced) = key.and_then(|key| self.idle.remove(&key)) {
            self.closing += 1;
            replaced.cancel();
        }
    }
}

/// The activity of a connection; its slot, its requests and their responses share it.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) slots: Arc<SlotsInner>,
    pub(crate) replaced: CancellationToken,
    pub(crate) state: watch::Sender<ActivityState>,
    pub(crate) bodies: Mutex<Bodies>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivityState {
    pub(crate) in_flight: usize,
    /// Whether a request was answered with anything but 401.
    pub(crate) is_authenticated: bool,
    /// When the connection became idle, or stopped being so.
    pub(crate) since: Instant,
    /// Its place in [`SlotTable::idle`]; `None` with a request in flight.
    pub(crate) idle: Option<IdleKey>,
}

/// The responses that wait for the client: their body has more, and the connection does not take it.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    pub(crate) next: u64,
    /// Since when, by number of the body.
    pub(crate) stalled: BTreeMap<u64, Instant>,
}

impl Activity {
    /// Since when a response has waited for the client.
    pub(crate) fn oldest_stalled(&self) -> Option<Instant> {
        self.bodies.lock().stalled.values().min().copied()
    }

    /// Changes the state, and with it the connection's place among the idle ones.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ActivityState)) {
        let mut table = self.slots.table.lock();
        self.state.send_modify(|state| {
            let before = (state.in_flight > 0, state.is_authenticated);
            change(state);
            let is_busy = state.in_flight > 0;
            // A client that stays unauthenticated gains no time by asking.
            if state.is_authenticated && before != (is_busy, true) {
                state.since = Instant::now();
            }
            if let Some(key) = state.idle.take() {
                table.idle.remove(&key);
            }
            if !is_busy && !self.replaced.is_cancelled() {
                let key = (state.is_authenticated, table.next);
                table.next += 1;
                table.idle.insert(key, self.replaced.clone());
                state.idle = Some(key);
            }
        });
        drop(table);
        self.slots.changed.notify_one();
    }
}
