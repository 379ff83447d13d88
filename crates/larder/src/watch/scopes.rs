//! Whether the objects of a namespace are watched together or one by one, and by whom.
//!
//! Every namespace with a reference has a future of its own here, driven by the one task of the store. Under `Auto` that future begins
//! with the question what this identity may do; where it may not list and watch the namespace, it hands its commands on
//! to a [`Worker`], which watches by name. The question is put again when the API server refuses a watch that it has allowed.
//!
//! Invariants:
//! 1. The last reference in a namespace ends its future. The next one makes another, which is driven after the end of
//!    the first (I1, I2).
//! 2. Until then a namespace is watched as a whole or by name, never both, and changes at most once, from the first to the second.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use larder_objects::Object;
use smol_str::SmolStr;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    Command, Commands, Worker,
    namespace::{Namespace, Return},
};
use crate::{
    api::Api,
    backoff::Backoff,
    config::{ManagerConfig, WatchScope},
    error::RequestError,
    status::ScopeChoice,
    store::watching::Shared,
};

pub(crate) struct Scopes<K: Object> {
    shared: Arc<Shared<K>>,
    api: Api,
    max_idle: Duration,
    /// Under `Auto`, the commands of the worker that watches by name.
    by_name: Option<Arc<Commands<K>>>,
    slots: HashMap<SmolStr, Arc<Slot<K>>>,
    /// The slot of each object, by the number of its cell.
    routes: HashMap<u64, Arc<Slot<K>>>,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// One namespace.
struct Slot<K> {
    namespace: SmolStr,
    commands: Arc<Commands<K>>,
    objects: AtomicUsize,
}

impl<K: Object> Drop for Scopes<K> {
    /// However the task ends, readers are told instead of left waiting.
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<K: Object> Scopes<K> {
    pub(crate) fn new(shared: Arc<Shared<K>>, api: Api, config: &ManagerConfig) -> Self {
        let running = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        let by_name = (config.watch_scope == WatchScope::Auto).then(|| {
            let commands = Arc::new(Commands::default());
            let worker = Worker::new(Arc::clone(&shared), api.clone(), config);
            running.push(Box::pin(worker.listening_to(Arc::clone(&commands)).run()));
            commands
        });
        Self {
            shared,
            api,
            max_idle: config.max_idle(),
            by_name,
            slots: HashMap::new(),
            routes: HashMap::new(),
            running,
        }
    }

    /// Works until it is told to shut down, or dropped.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            // Both arms are cancel-safe: commands stay in their queue, futures in their collection.
            tokio::select! {
                () = shared.commands.arrived.notified() => {
                    if shared.commands.each(|command| self.route(command)).is_break() {
                        return;
                    }
                }
                Some(()) = self.running.next(), if !self.running.is_empty() => {}
            }
        }
    }

    fn route(&mut self, command: Command<K>) {
        match command {
            Command::Added(entry) => {
                let slot = self.slot(&entry.key.namespace);
                slot.objects.fetch_add(1, Ordering::Relaxed);
                self.routes.insert(entry.cell.id, Arc::clone(&slot));
                slot.commands.send(Command::Added(entry));
            }
            Command::Referenced(id) | Command::Wanted(id) => {
                if let Some(slot) = self.routes.get(&id) {
                    slot.commands.send(command);
                }
            }
            Command::Removed(id) => {
                let Some(slot) = self.routes.remove(&id) else {
                    return;
                };
                slot.commands.send(command);
                if slot.objects.fetch_sub(1, Ordering::Relaxed) == 1 {
                    self.slots.remove(&slot.namespace);
                    self.shared.scopes.lock().remove(&slot.namespace);
                    slot.commands.close();
                }
            }
        }
    }

    fn slot(&mut self, namespace: &SmolStr) -> Arc<Slot<K>> {
        if let Some(slot) = self.slots.get(namespace) {
            return Arc::clone(slot);
        }
        let commands = Arc::<Commands<K>>::default();
        let slot = Arc::new(Slot {
            namespace: namespace.clone(),
            commands: Arc::clone(&commands),
            objects: AtomicUsize::new(0),
        });
        self.slots.insert(namespace.clone(), Arc::clone(&slot));
        let (shared, api) = (Arc::clone(&self.shared), self.api.clone());
        let mut together = Namespace::new(
            Arc::clone(&shared),
            Arc::clone(&commands),
            api.clone(),
            self.max_idle,
            namespace.clone(),
        );
        self.running.push(match &self.by_name {
            None => Box::pin(async move { while together.run().await == Return::Forbidden {} }),
            Some(by_name) => {
                let choice = Choice {
                    shared,
                    api,
                    namespace: namespace.clone(),
                    commands,
                    by_name: Arc::clone(by_name),
                };
                Box::pin(choice.run(together))
            }
        });
        slot
    }
}

/// A namespace under `Auto`.
struct Choice<K: Object> {
    shared: Arc<Shared<K>>,
    api: Api,
    namespace: SmolStr,
    commands: Arc<Commands<K>>,
    by_name: Arc<Commands<K>>,
}

impl<K: Object> Choice<K> {
    async fn run(self, mut together: Namespace<K>) {
        let mut early = Vec::new();
        let Some(refused) = self.ask(&mut early).await else {
            return;
        };
        if let Some(reason) = refused {
            self.choose(WatchScope::Object, reason);
            drop(together);
            return self.watch_by_name(early).await;
        }
        let may = "may list and watch the namespace";
        self.choose(WatchScope::Namespace, may.to_owned());
        for command in early {
            self.commands.send(command);
        }
        loop {
            if together.run().await == Return::ShutDown {
                return;
            }
            // Its commands wait meanwhile. Where the question fails, the watch is tried again, and with it the question comes again.
            if let Ok(Some(reason)) = self.review().await {
                self.choose(WatchScope::Object, format!("{reason} any more"));
                return self.watch_by_name(together.into_commands()).await;
            }
        }
    }

    /// Notes the choice where it can be seen.
    fn choose(&self, scope: WatchScope, reason: String) {
        let choice = ScopeChoice { scope, reason };
        info!(
            kind = K::KIND.as_str(), namespace = %self.namespace, scope = %choice.scope, reason = %choice.reason,
            "watch scope chosen"
        );
        self.shared
            .scopes
            .lock()
            .insert(self.namespace.clone(), choice);
    }

    /// Hands all commands on, `first` those.
    async fn watch_by_name(&self, first: Vec<Command<K>>) {
        for command in first {
            self.by_name.send(command);
        }
        let hand_on = |command| self.by_name.send(command);
        while self.commands.each(hand_on).is_continue() {
            self.commands.arrived.notified().await;
        }
    }

    /// Why the namespace may not be watched as a whole, or `None` within if it may; `None` if it lost its last reference
    /// meanwhile. Commands that came by then are `early`.
    async fn ask(&self, early: &mut Vec<Command<K>>) -> Option<Option<String>> {
        let mut backoff = Backoff::new();
        loop {
            let error = tokio::select! {
                answer = self.review() => match answer {
                    Ok(refused) => return Some(refused),
                    Err(error) => error,
                },
                () = self.end(early) => return None,
            };
            if !is_passing(&error) {
                return Some(Some(format!("what it may do cannot be asked: {error}")));
            }
            let delay = backoff.delay_after(&error, Instant::now(), fastrand::f64());
            let error = Arc::new(error);
            self.fail(early, &error);
            tokio::select! {
                () = sleep(delay) => {}
                () = self.end(early) => return None,
            }
        }
    }

    /// Takes commands in until the namespace has lost its last reference.
    async fn end(&self, early: &mut Vec<Command<K>>) {
        while self
            .commands
            .each(|command| early.push(command))
            .is_continue()
        {
            self.commands.arrived.notified().await;
        }
    }

    /// Tells the readers why they wait.
    fn fail(&self, early: &[Command<K>], error: &Arc<RequestError>) {
        let mut news = false;
        for command in early {
            if let Command::Added(entry) = command
                && let Some(event) = entry.cell.failed(Arc::clone(error), Instant::now())
            {
                self.shared.changes.publish(&entry.key, &event);
                news = true;
            }
        }
        if news {
            let error: &dyn std::error::Error = &**error;
            warn!(
                kind = K::KIND.as_str(), namespace = %self.namespace, error,
                "failed to ask how a namespace may be watched, will retry"
            );
        }
    }

    /// Asks for both verbs; which one is refused, if any is.
    async fn review(&self) -> Result<Option<String>, RequestError> {
        for verb in ["list", "watch"] {
            let resource = K::KIND.resource();
            if !self.api.may(verb, resource, &self.namespace).await? {
                return Ok(Some(format!("may not {verb} {resource} of the namespace")));
            }
        }
        Ok(None)
    }
}

/// Whether the same question may be answered a moment later.
fn is_passing(error: &RequestError) -> bool {
    error.is_transport() || error.is_too_many_requests() || error.is_server_error()
}
