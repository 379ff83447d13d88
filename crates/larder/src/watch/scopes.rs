//! Whether the objects of a namespace are watched together or one by one, and by whom.
//!
//! Every namespace with a reference has a future of its own here, driven by the one task of the store. Under `Auto` that future begins
//! with the question what this identity may do; where it may not list and watch the namespace, it hands its commands on
//! to a [`Worker`], which watches by name. The question is put again when the API server refuses a watch that it has allowed, and
//! while objects are watched by name, ever more seldom: rights come and go.
//!
//! Invariants:
//! 1. The last reference in a namespace ends its future. The next one makes another, which is driven after the end of
//!    the first (I1, I2).
//! 2. Until then a namespace is watched as a whole or by name, never both: who has watched gives all objects back before the other
//!    one is told of them. Meanwhile they are served as they are known.

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
use larder_watch::{Api, Backoff, Outages, RequestError};
use smol_str::SmolStr;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use super::{
    Command, Commands, Worker,
    namespace::{Namespace, Return},
};
use crate::{
    config::{ManagerConfig, WatchScope},
    status::ScopeChoice,
    store::watching::Shared,
};

pub(crate) struct Scopes<K: Object> {
    shared: Arc<Shared<K>>,
    api: Api,
    max_idle: Duration,
    outages: Outages,
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

/// How long objects are watched by name until the API server is asked again whether the namespace may be watched: at first, and
/// at most, each times a random 1.0 to 2.0. In between it doubles. Most refusals are for good, and those who get them are many.
const REVIEW_AGAIN: (Duration, Duration) = (Duration::from_mins(5), Duration::from_mins(40));

impl<K: Object> Drop for Scopes<K> {
    /// However the task ends, readers are told instead of left waiting.
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<K: Object> Scopes<K> {
    pub(crate) fn new(shared: Arc<Shared<K>>, api: Api, config: &ManagerConfig) -> Self {
        let running = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        let outages = Outages::default();
        let by_name = (config.watch_scope == WatchScope::Auto).then(|| {
            let commands = Arc::new(Commands::default());
            let worker = Worker::new(Arc::clone(&shared), api.clone(), config);
            let worker = worker.listening_to(Arc::clone(&commands), outages.clone());
            running.push(Box::pin(worker.run()));
            commands
        });
        Self {
            shared,
            api,
            max_idle: config.max_idle(),
            outages,
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
            // Is between those who watch.
            Command::GiveBack(..) => {}
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
        let watching = Watching {
            shared: Arc::clone(&self.shared),
            api: self.api.clone(),
            max_idle: self.max_idle,
            outages: self.outages.clone(),
            namespace: namespace.clone(),
            commands,
        };
        self.running.push(match &self.by_name {
            None => Box::pin(watching.together()),
            Some(by_name) => {
                let by_name = Arc::clone(by_name);
                Box::pin(Choice { watching, by_name }.run())
            }
        });
        slot
    }
}

/// What it takes to watch a namespace.
struct Watching<K: Object> {
    shared: Arc<Shared<K>>,
    api: Api,
    max_idle: Duration,
    outages: Outages,
    namespace: SmolStr,
    commands: Arc<Commands<K>>,
}

impl<K: Object> Watching<K> {
    fn start(&self) -> Namespace<K> {
        Namespace::new(
            Arc::clone(&self.shared),
            Arc::clone(&self.commands),
            self.api.clone(),
            self.max_idle,
            self.namespace.clone(),
            self.outages.clone(),
        )
    }

    /// As a whole, whatever the API server says to that.
    async fn together(self) {
        let mut namespace = self.start();
        while namespace.run().await == Return::Forbidden {}
    }
}

/// A namespace under `Auto`.
struct Choice<K: Object> {
    watching: Watching<K>,
    by_name: Arc<Commands<K>>,
}

impl<K: Object> Choice<K> {
    /// Until the namespace has lost its last reference.
    async fn run(self) {
        // What the next who watches has to be told first.
        let mut told = Vec::new();
        let Some(mut refused) = self.ask(&mut told).await else {
            return;
        };
        loop {
            let given_back = match refused {
                None => {
                    let may = "may list and watch the namespace";
                    self.choose(WatchScope::Namespace, may.to_owned());
                    self.watch_together(told).await
                }
                Some(reason) => {
                    self.choose(WatchScope::Object, reason);
                    self.watch_by_name(told).await.map(|told| (told, None))
                }
            };
            match given_back {
                Some((commands, reason)) => (told, refused) = (commands, reason),
                None => return,
            }
        }
    }

    /// Until the namespace may not be watched any more; gives the objects back, and the reason.
    async fn watch_together(
        &self,
        told: Vec<Command<K>>,
    ) -> Option<(Vec<Command<K>>, Option<String>)> {
        let mut together = self.watching.start();
        together.take_over(told);
        while together.run().await == Return::Forbidden {
            // Its commands wait meanwhile. Where the question fails, the watch is tried again, and with it the question comes again.
            if let Ok(Some(reason)) = self.review().await {
                let reason = format!("{reason} any more");
                return Some((together.into_commands(), Some(reason)));
            }
        }
        None
    }

    /// Until the namespace may be watched; gives the objects back.
    async fn watch_by_name(&self, told: Vec<Command<K>>) -> Option<Vec<Command<K>>> {
        for command in told {
            self.by_name.send(command);
        }
        let mut wait = REVIEW_AGAIN.0;
        let review = async {
            loop {
                sleep(wait.mul_f64(1.0 + fastrand::f64())).await;
                if let Ok(None) = self.review().await {
                    return;
                }
                wait = REVIEW_AGAIN.1.min(wait * 2);
            }
        };
        tokio::select! {
            () = self.each(|command| self.by_name.send(command)) => return None,
            () = review => {}
        }
        let (give, given) = oneshot::channel();
        let namespace = self.watching.namespace.clone();
        self.by_name.send(Command::GiveBack(namespace, give));
        // It fails when the worker has ended, and with it everything.
        given.await.ok()
    }

    /// Notes the choice where it can be seen.
    fn choose(&self, scope: WatchScope, reason: String) {
        let choice = ScopeChoice { scope, reason };
        info!(
            kind = K::KIND.as_str(), namespace = %self.watching.namespace, scope = %choice.scope, reason = %choice.reason,
            "watch scope chosen"
        );
        let mut scopes = self.watching.shared.scopes.lock();
        scopes.insert(self.watching.namespace.clone(), choice);
    }

    /// Why the namespace may not be watched as a whole, or `None` within if it may; `None` if it lost its last reference
    /// meanwhile. Commands that came by then are `early`.
    async fn ask(&self, early: &mut Vec<Command<K>>) -> Option<Option<String>> {
        let outages = &self.watching.outages;
        let (mut backoff, mut over, mut affected) = (Backoff::new(), outages.over(), None);
        loop {
            let answer = tokio::select! {
                answer = self.review() => answer,
                () = self.each(|command| early.push(command)) => return None,
            };
            let error = match answer {
                Err(error) if is_passing(&error) => error,
                answer => {
                    if let Some(affected) = affected {
                        outages.got_through(affected);
                    }
                    let unknown = |error| Some(format!("what it may do cannot be asked: {error}"));
                    return Some(answer.unwrap_or_else(unknown));
                }
            };
            let now = Instant::now();
            let mut delay = backoff.delay_after(&error, now, fastrand::f64());
            affected = None;
            if error.is_outage() {
                let (one, sooner) = outages.failed(delay, now, fastrand::f64());
                (affected, delay) = (Some(one), sooner);
            }
            self.fail(early, &Arc::new(error));
            over.mark_unchanged();
            let mut until = now + delay;
            loop {
                tokio::select! {
                    () = sleep_until(until) => break,
                    Ok(()) = over.changed(), if affected.is_some() => {
                        affected = None;
                        let spread = *over.borrow_and_update();
                        until = until.min(Instant::now() + spread.mul_f64(fastrand::f64()));
                    }
                    () = self.each(|command| early.push(command)) => return None,
                }
            }
        }
    }

    /// Looks at every command until the namespace has lost its last reference.
    async fn each(&self, mut look: impl FnMut(Command<K>)) {
        let commands = &self.watching.commands;
        while commands.each(&mut look).is_continue() {
            commands.arrived.notified().await;
        }
    }

    /// Tells the readers why they wait.
    fn fail(&self, early: &[Command<K>], error: &Arc<RequestError>) {
        let mut news = false;
        for command in early {
            if let Command::Added(entry) = command
                && let Some(event) = entry.cell.failed(Arc::clone(error), Instant::now())
            {
                self.watching.shared.changes.publish(&entry.key, &event);
                news = true;
            }
        }
        if news {
            let error: &dyn std::error::Error = &**error;
            warn!(
                kind = K::KIND.as_str(), namespace = %self.watching.namespace, error,
                "failed to ask how a namespace may be watched, will retry"
            );
        }
    }

    /// Asks for both verbs; which one is refused, if any is.
    async fn review(&self) -> Result<Option<String>, RequestError> {
        for verb in ["list", "watch"] {
            let resource = K::KIND.resource();
            let watching = &self.watching;
            if !watching
                .api
                .may(verb, resource, &watching.namespace)
                .await?
            {
                return Ok(Some(format!("may not {verb} {resource} of the namespace")));
            }
        }
        Ok(None)
    }
}

/// Whether the same question may be answered a moment later.
fn is_passing(error: &RequestError) -> bool {
    error.is_outage() || error.asks_for_patience()
}
