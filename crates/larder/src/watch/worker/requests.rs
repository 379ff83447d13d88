//! What is under way for the objects: requests and open watches, and what comes of them.

use std::sync::Arc;

use futures::future::{AbortHandle, Abortable, FutureExt};
use larder_objects::Object;
use larder_watch::{
    ByName, Event, EventStream, Listed, Next, RequestError, WatchEvent, outcome_label,
};
use tokio::time::Instant;
use tracing::trace;

use super::{
    Worker,
    admission::{Part, Permit},
};

/// The end of something that was under way.
pub(super) struct Step<K: Object> {
    pub(super) id: u64,
    pub(super) outcome: Outcome<K>,
}

pub(super) enum Outcome<K: Object> {
    Opened(Result<EventStream<ByName<K>>, RequestError>),
    Listed(Result<Listed<ByName<K>>, RequestError>),
    Event(
        Following<K>,
        Option<Result<WatchEvent<ByName<K>>, RequestError>>,
    ),
    Proof(u64, Result<Arc<K>, RequestError>),
}

/// An open watch, and what it has sent of a state that is not complete yet.
pub(super) struct Following<K: Object> {
    pub(super) stream: EventStream<ByName<K>>,
    pub(super) collected: Option<Arc<K>>,
}

impl<K: Object> Worker<K> {
    /// Has the reflector's request wait for its turn, unless that is now.
    pub(super) fn line_up(&mut self, id: u64) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        if object.queued {
            return;
        }
        let wanted = object.entry.cell.is_wanted();
        if object.asked_before {
            object.queued = true;
            self.pace.queue(id, wanted);
        } else if let Some(permit) = self.admission.enter() {
            self.ask_with(id, permit);
        } else {
            object.queued = true;
            self.admission.queue(id, Part::Reflector, wanted);
        }
    }

    /// When there will be somebody to admit although nothing happens until then.
    pub(super) fn paced_until(&self) -> Option<Instant> {
        let now = Instant::now();
        let wait = self.pace.wait(now)?;
        self.admission.enter().map(|_| now + wait)
    }

    /// Sends the requests of those who wait, as long as there are permits.
    pub(super) fn admit(&mut self) {
        while let Some((id, part, permit)) = self.admission.next() {
            let Some(object) = self.objects.get_mut(&id) else {
                continue;
            };
            match part {
                Part::Reflector if object.queued => {
                    object.queued = false;
                    self.ask_with(id, permit);
                }
                Part::Reflector => {}
                Part::Proof => self.prove_queued(id, permit),
            }
        }
        let now = Instant::now();
        while let Some(permit) = self.admission.enter()
            && let Some(id) = self.pace.next(now)
        {
            if let Some(object) = self.objects.get_mut(&id)
                && object.queued
            {
                object.queued = false;
                self.pace.gone(now);
                self.ask_with(id, permit);
            }
        }
    }

    /// Sends the reflector's request, made with what is known by now.
    pub(super) fn ask_with(&mut self, id: u64, permit: Permit) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let floor = self.server.floor(object.entry.newest_reference());
        let next = object
            .reflector
            .ask_again(Instant::now(), &self.server, floor);
        if let Some(next) = next {
            object.permit = Some(permit);
            let moment = floor.map(|floor| floor.moment);
            self.ask(id, next, moment);
        }
    }

    /// Sends the reflector's request. If it is consistent it proves `moment`, or the present one.
    pub(super) fn ask(&mut self, id: u64, request: Next, moment: Option<u64>) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        object.asked_before = true;
        object.asked = moment.unwrap_or_else(|| self.shared.entries.now());
        trace!(kind = K::KIND.as_str(), key = %object.entry.key, ?request, "ask");
        let (api, entry) = (self.api.clone(), Arc::clone(&object.entry));
        match request {
            Next::Open(watch) => self.spawn(id, async move {
                let target = ByName::new(entry);
                Outcome::Opened(api.watch(target, &watch).await)
            }),
            Next::List(version) => self.spawn(id, async move {
                let target = ByName::new(entry);
                Outcome::Listed(api.list(&target, version.as_ref()).await)
            }),
            Next::Read | Next::ReadFor(_) | Next::Sleep(_) | Next::Rest => {}
        }
    }

    pub(super) fn read(&mut self, id: u64, mut open: Following<K>) {
        self.spawn(id, async move {
            let event = open.stream.next().await;
            Outcome::Event(open, event)
        });
    }

    /// Puts the object's next step under way, in place of the one before.
    fn spawn(&mut self, id: u64, step: impl Future<Output = Outcome<K>> + Send + 'static) {
        let handle = self.push(id, step);
        if let Some(object) = self.objects.get_mut(&id) {
            abort(&mut object.step);
            object.step = Some(handle);
        }
    }

    pub(super) fn push(
        &mut self,
        id: u64,
        step: impl Future<Output = Outcome<K>> + Send + 'static,
    ) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        // An async block would hold the step twice: as it was given and as it is awaited.
        let step = step.map(move |outcome| Step { id, outcome });
        self.steps.push(Abortable::new(step.boxed(), registration));
        handle
    }

    /// Tells the reflector what came of a step, and does what it says.
    pub(super) fn step(&mut self, step: Step<K>) {
        let Step { id, outcome } = step;
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let now = Instant::now();
        let metrics = &self.shared.metrics;
        let server = &mut self.server;
        let (turn, found, open) = match outcome {
            Outcome::Opened(result) => {
                metrics.requested("watch", outcome_label(&result));
                let (result, open) = match result {
                    Ok(stream) => (
                        Ok(()),
                        Some(Following {
                            stream,
                            collected: None,
                        }),
                    ),
                    Err(error) => (Err(error), None),
                };
                (object.reflector.opened(result, now, server), None, open)
            }
            Outcome::Listed(result) => {
                metrics.requested("list", outcome_label(&result));
                let (result, found) = match result {
                    Ok(Listed { state, version }) => (Ok(version), state),
                    Err(error) => (Err(error), None),
                };
                (object.reflector.listed(result, now, server), found, None)
            }
            Outcome::Event(mut open, Some(Ok(event))) => {
                let (event, found) = match event {
                    WatchEvent::Changed(found) => {
                        let version = found.metadata().resource_version.clone();
                        (Event::Change(version), Some(found))
                    }
                    WatchEvent::Deleted((), version) => (Event::Change(version), None),
                    WatchEvent::Bookmark {
                        version,
                        initial_events_end,
                    } => {
                        let found = open.collected.take_if(|_| initial_events_end);
                        let event = Event::Bookmark {
                            version,
                            initial_events_end,
                        };
                        (event, found)
                    }
                    WatchEvent::Error(error) => (Event::Error(error), None),
                };
                (
                    object.reflector.event(event, now, server),
                    found,
                    Some(open),
                )
            }
            Outcome::Event(_, ended) => {
                let error = ended.and_then(Result::err);
                (object.reflector.closed(error, now, server), None, None)
            }
            Outcome::Proof(moment, result) => {
                metrics.requested("get", outcome_label(&result));
                return self.proof(id, moment, result);
            }
        };
        self.turn(id, turn, found, open);
    }
}

pub(super) fn abort(step: &mut Option<AbortHandle>) {
    if let Some(step) = step.take() {
        step.abort();
    }
}
