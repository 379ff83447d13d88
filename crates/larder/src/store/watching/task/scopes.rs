//! The watch scope of each namespace: one watch for the namespace, or one per object.
//!
//! Under `Auto`, a review of this identity's permissions decides when a namespace gains its first reference. If the API
//! server later denies the watch of the namespace, its objects get watches of their own, for as long as any of them is
//! referenced.
//!
//! The API server sends everything in the namespace, since no selector says "one of these names", and one that excludes
//! types may hide a Secret that a pod refers to. Objects without a reference are dropped while the response is read.
//!
//! Invariant: a namespace has one watch, or its objects have watches of their own, never both. When the scope changes,
//! the known states are served until the new watches are in sync.

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    sync::Arc,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_objects::Object;
use larder_watch::{
    Access, AccessReview, Api, NodeContext, ObjectId, RequestFailure, RequestPhase, TargetId,
};
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::info;

use super::{super::target::WatchTarget, WatchTask};
use crate::{
    config::WatchScope,
    status::{ObjectState, ScopeChoice},
};

/// A namespace with references.
pub(super) struct Namespace {
    /// Its number, which distinguishes it from earlier and later ones of that name.
    id: TargetId,
    state: NamespaceState,
    /// The referenced objects.
    pub(super) members: BTreeSet<ObjectId>,
    pub(super) last_read: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamespaceState {
    /// The review is not answered yet.
    Choosing,
    /// One watch covers all objects; its number is that of the namespace.
    Together,
    /// Each object has a watch of its own.
    ByName,
}

/// The answer to the review of the namespace with this number.
pub(super) struct ReviewAnswer {
    target: TargetId,
    review: AccessReview,
    access: Access,
}

/// The namespaces with references.
pub(super) struct Scopes {
    by_name: BTreeMap<SmolStr, Namespace>,
    /// Those that are watched together, or for which that is not decided yet.
    by_target: BTreeMap<TargetId, SmolStr>,
    /// The number of the next namespace.
    next_id: u64,
    reviews: FuturesUnordered<BoxFuture<'static, ReviewAnswer>>,
    api: Api,
    context: NodeContext,
    random: fastrand::Rng,
}

impl Scopes {
    pub(super) fn new(api: Api, context: NodeContext, random: fastrand::Rng) -> Self {
        Self {
            by_name: BTreeMap::new(),
            by_target: BTreeMap::new(),
            next_id: 0,
            reviews: FuturesUnordered::new(),
            api,
            context,
            random,
        }
    }

    /// The namespace that the target stands for, if it is not one object.
    pub(super) fn name(&self, target: TargetId) -> Option<&SmolStr> {
        self.by_target.get(&target)
    }

    /// The objects that the target covers, if it is not one object.
    pub(super) fn members(&self, target: TargetId) -> impl Iterator<Item = &ObjectId> {
        self.name(target)
            .and_then(|name| self.by_name.get(name))
            .map(|namespace| &namespace.members)
            .into_iter()
            .flatten()
    }

    /// The target is in use.
    pub(super) fn touch(&mut self, target: TargetId, now: Instant) {
        if let Some(name) = self.by_target.get(&target)
            && let Some(namespace) = self.by_name.get_mut(name)
        {
            namespace.last_read = now;
        }
    }

    pub(super) fn watched_namespaces(
        &mut self,
    ) -> impl Iterator<Item = (TargetId, &mut Namespace)> {
        let namespaces = self.by_name.values_mut();
        let together = |namespace: &&mut Namespace| self.by_target.contains_key(&namespace.id);
        namespaces
            .filter(together)
            .map(|namespace| (namespace.id, namespace))
    }

    /// The next answer to a review. Cancel-safe: reviews stay in their collection.
    pub(super) async fn next_review(&mut self) -> ReviewAnswer {
        match self.reviews.next().await {
            Some(answer) => answer,
            None => future::pending().await,
        }
    }

    fn review(&self, target: TargetId, mut review: AccessReview) {
        let answer = async move {
            let access = review.next().await;
            ReviewAnswer {
                target,
                review,
                access,
            }
        };
        self.reviews.push(answer.boxed());
    }
}

impl<K: Object> WatchTask<K> {
    /// Adds an object to its namespace. Returns the target that covers it.
    pub(super) fn join_namespace(&mut self, name: &SmolStr, object: ObjectId) -> Option<TargetId> {
        if !self.scopes.by_name.contains_key(name) {
            self.enter_namespace(name);
        }
        let namespace = self.scopes.by_name.get_mut(name)?;
        namespace.members.insert(object);
        namespace.last_read = Instant::now();
        let id = namespace.id;
        match namespace.state {
            NamespaceState::Choosing => None,
            NamespaceState::Together => {
                self.cover_object(object, id);
                Some(id)
            }
            NamespaceState::ByName => self.watch_object(object),
        }
    }

    /// A namespace gains its first reference.
    fn enter_namespace(&mut self, name: &SmolStr) {
        let id = TargetId::Collection(self.scopes.next_id);
        self.scopes.next_id += 1;
        let namespace = Namespace {
            id,
            state: NamespaceState::Choosing,
            members: BTreeSet::new(),
            last_read: Instant::now(),
        };
        self.scopes.by_name.insert(name.clone(), namespace);
        self.scopes.by_target.insert(id, name.clone());
        if self.config.watch_scope == WatchScope::Auto {
            let scopes = &mut self.scopes;
            let (api, random) = (scopes.api.clone(), scopes.random.fork());
            let review = AccessReview::new(api, K::TYPE, name, &scopes.context, random);
            self.scopes.review(id, review);
        } else {
            self.watch_namespace(name);
        }
    }

    /// An object has lost its last reference; its namespace may have with it.
    pub(super) fn leave_namespace(&mut self, name: &SmolStr, object: ObjectId) {
        let Some(namespace) = self.scopes.by_name.get_mut(name) else {
            return;
        };
        namespace.members.remove(&object);
        let id = namespace.id;
        if namespace.members.is_empty() {
            self.scopes.by_name.remove(name);
            self.scopes.by_target.remove(&id);
            self.engine.remove(id);
            self.inner.scopes.lock().remove(name);
        } else if namespace.state == NamespaceState::Together {
            self.rest_if_final(id);
        }
    }

    /// The review of a namespace was answered, or failed.
    pub(super) fn reviewed(&mut self, answer: ReviewAnswer) {
        let target = answer.target;
        let Some(name) = self.scopes.by_target.get(&target).cloned() else {
            return;
        };
        let resource = K::TYPE.resource;
        let reason = match answer.access {
            Access::Granted => {
                let reason = "may list and watch the namespace".to_owned();
                self.choose(&name, WatchScope::Namespace, reason);
                self.watch_namespace(&name);
                return;
            }
            Access::Failed(error) => {
                self.failed(target, &RequestFailure::new(RequestPhase::Review, error));
                self.scopes.review(target, answer.review);
                return;
            }
            Access::Denied(verb) => format!("may not {verb} {resource} of the namespace"),
            Access::Unknown(error) => format!("permission check failed: {error}"),
        };
        self.choose(&name, WatchScope::Object, reason);
        self.scopes.by_target.remove(&target);
        self.watch_objects(&name);
    }

    /// The API server denies a watch that it has granted.
    pub(super) fn fall_back_to_objects(&mut self, target: TargetId) {
        if self.config.watch_scope != WatchScope::Auto {
            return;
        }
        let Some(name) = self.scopes.by_target.remove(&target) else {
            return;
        };
        self.engine.remove(target);
        let resource = K::TYPE.resource;
        let reason = format!("may no longer list and watch {resource} of the namespace");
        self.choose(&name, WatchScope::Object, reason);
        self.watch_objects(&name);
    }

    /// Notes the choice where status shows it.
    fn choose(&self, namespace: &SmolStr, scope: WatchScope, reason: String) {
        info!(
            kind = K::TYPE.kind, %namespace, %scope, %reason, "watch scope chosen"
        );
        let choice = ScopeChoice { scope, reason };
        self.inner.scopes.lock().insert(namespace.clone(), choice);
    }

    /// Has one watch cover all objects of a namespace.
    fn watch_namespace(&mut self, name: &SmolStr) {
        let Some(namespace) = self.scopes.by_name.get_mut(name) else {
            return;
        };
        namespace.state = NamespaceState::Together;
        let (id, members) = (namespace.id, namespace.members.clone());
        let target = WatchTarget::Namespace(Arc::clone(&self.inner), name.clone());
        self.engine.add(id, target);
        for object in members {
            self.cover_object(object, id);
        }
        self.refresh(id);
    }

    /// Gives each object of a namespace a watch of its own.
    fn watch_objects(&mut self, name: &SmolStr) {
        let Some(namespace) = self.scopes.by_name.get_mut(name) else {
            return;
        };
        namespace.state = NamespaceState::ByName;
        let (id, members) = (namespace.id, namespace.members.clone());
        for object in members {
            self.pending.remove(&(id, object));
            let entry = &self.objects[&object].entry;
            let cell = &entry.cell;
            if cell.state() != ObjectState::Immutable {
                cell.interrupted(entry.newest_reference(), Instant::now());
            }
            self.watch_object(object);
            self.refresh(TargetId::Object(object));
        }
    }
}
