//! The activity of connections: which are idle, since when, and in which order they are replaced.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::ConnectionLimits;

#[derive(Debug)]
pub(super) struct SlotsInner {
    pub(super) limits: ConnectionLimits,
    pub(super) max: usize,
    pub(super) table: Mutex<SlotTable>,
    /// Signals that a slot is free or that a connection became idle.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct SlotTable {
    pub(super) open: usize,
    /// Of the open ones, those that were asked to close.
    pub(super) closing: usize,
    pub(super) next: u64,
    /// Connections without a request in flight that may be replaced, in the order of replacement.
    pub(super) idle: BTreeMap<IdleKey, CancellationToken>,
}

/// Whether the connection has completed a request, and the order in which it became idle.
pub(super) type IdleKey = (bool, u64);

impl SlotTable {
    pub(super) fn replace_one(&mut self) {
        if let Some((_, replaced)) = self.idle.pop_first() {
            self.closing += 1;
            replaced.cancel();
        }
    }
}

/// The activity of a connection; its slot, its requests and their responses share it.
#[derive(Debug)]
pub(super) struct Activity {
    pub(super) slots: Arc<SlotsInner>,
    pub(super) replaced: CancellationToken,
    pub(super) state: watch::Sender<ActivityState>,
    pub(super) bodies: Mutex<Bodies>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ActivityState {
    pub(super) in_flight: usize,
    /// Whether a request was answered with anything but 401.
    pub(super) proven: bool,
    /// When the connection became idle, or stopped being so.
    pub(super) since: Instant,
    /// Its place in [`SlotTable::idle`]; `None` with a request in flight.
    pub(super) idle: Option<IdleKey>,
}

/// The responses that wait for the client: their body has more, and the connection does not take it.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    pub(super) next: u64,
    /// Since when, by number of the body.
    pub(super) stalled: BTreeMap<u64, Instant>,
}

impl Activity {
    /// Since when a response has waited for the client.
    pub(super) fn oldest_stalled(&self) -> Option<Instant> {
        self.bodies.lock().stalled.values().min().copied()
    }

    /// Changes the state, and with it the connection's place among the idle ones.
    pub(super) fn update(&self, change: impl FnOnce(&mut ActivityState)) {
        let mut table = self.slots.table.lock();
        self.state.send_modify(|state| {
            let before = (state.in_flight > 0, state.proven);
            change(state);
            let is_busy = state.in_flight > 0;
            // A client that stays unauthenticated gains no time by asking.
            if state.proven && before != (is_busy, true) {
                state.since = Instant::now();
            }
            if let Some(key) = state.idle.take() {
                table.idle.remove(&key);
            }
            if !is_busy && !self.replaced.is_cancelled() {
                let key = (state.proven, table.next);
                table.next += 1;
                table.idle.insert(key, self.replaced.clone());
                state.idle = Some(key);
            }
        });
        drop(table);
        self.slots.changed.notify_one();
    }
}
