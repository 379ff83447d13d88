//! The registered pods and their references.
//!
//! Pure bookkeeping: a registration turns into references to add and to drop, and nothing here waits or makes requests.
//! Rules R2–R7 of the kubelet's managers (1.36, `pkg/kubelet/util/manager/cache_based_manager.go`); unlike there, the
//! names are kept and not the pod, so that a later change of the caller's pod changes no counts.
//!
//! Invariants:
//! 1. A pod is its namespace, name and UID together; a recreated pod is another pod.
//! 2. A pod holds one reference to a name, even if it mentions the name several times.
//! 3. Registering or unregistering a second time changes nothing.
//! 4. A pod held by a guard stays registered, regardless of other calls.
//! 5. References that guards share are marked before one of them is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use hashbrown::{HashMap, hash_map::EntryRef};
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{Object, PodIdentity};
use smallvec::SmallVec;
use smol_str::SmolStr;

/// The identity of a pod, borrowed from it. Fields that are missing are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodRef<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

impl<'a> PodRef<'a> {
    pub(crate) fn of(pod: &'a Pod) -> Self {
        let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
        Self {
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
            uid: text(&pod.metadata.uid),
        }
    }
}

impl<'a> From<&'a PodIdentity> for PodRef<'a> {
    fn from(pod: &'a PodIdentity) -> Self {
        Self {
            namespace: &pod.namespace,
            name: &pod.name,
            uid: &pod.uid,
        }
    }
}

impl From<PodRef<'_>> for PodIdentity {
    fn from(pod: PodRef<'_>) -> Self {
        Self {
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            uid: pod.uid.into(),
        }
    }
}

/// The guard that keeps a pod registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// `register_pod`, until `unregister_pod`.
    Plain,
    /// A guard, until it is dropped.
    Guard,
}

/// The references of one registered pod, by name; `R` is the store's reference. Shared with the pod's guards.
#[derive(Debug)]
pub(crate) struct PodReferences<R> {
    /// Sorted by name, each once.
    by_name: SmallVec<[(SmolStr, R); 1]>,
    /// The pod refers to other objects now.
    replaced: AtomicBool,
}

impl<R> PodReferences<R> {
    fn new(by_name: SmallVec<[(SmolStr, R); 1]>) -> Arc<Self> {
        Arc::new(Self {
            by_name,
            replaced: AtomicBool::new(false),
        })
    }

    /// The reference on the object `name`, unless the pod has been registered with other references since.
    #[inline]
    pub(crate) fn current(&self, name: &str) -> Option<&R> {
        let is_current = !self.replaced.load(Ordering::Acquire);
        is_current.then(|| self.find(name)).flatten()
    }

    /// Not by bisection: comparing for equality is that much quicker for the few names of a pod. They often begin alike,
    /// so their last bytes are compared first.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<&R> {
        let last = name.as_bytes().last();
        let mut names = self.by_name.iter();
        names
            .find(|(known, _)| known.as_bytes().last() == last && known == name)
            .map(|(_, reference)| reference)
    }

    fn names(&self) -> impl Iterator<Item = &SmolStr> {
        self.by_name.iter().map(|(name, _)| name)
    }

    fn refers_to(&self, name: &str) -> bool {
        self.by_name
            .binary_search_by(|(known, _)| known.as_str().cmp(name))
            .is_ok()
    }
}

#[derive(Debug)]
struct Registered<R> {
    namespace: SmolStr,
    name: SmolStr,
    references: Arc<PodReferences<R>>,
    plain: bool,
    guards: u32,
}

/// All registered pods of a manager.
#[derive(Debug)]
pub(crate) struct Registrations<R> {
    /// By UID. Several pods of one UID are a broken client's, but no reason to mix them up.
    pods: HashMap<SmolStr, SmallVec<[Registered<R>; 1]>, foldhash::fast::RandomState>,
}

impl<R> Default for Registrations<R> {
    fn default() -> Self {
        let pods = HashMap::default();
        Self { pods }
    }
}

impl<R: Clone> Registrations<R> {
    /// Registers `pod` with what it refers to now: `add` makes the references that are new, `release` takes those back
    /// that are gone.
    pub(crate) fn register<K: Object>(
        &mut self,
        pod: &Pod,
        hold: Hold,
        mut add: impl FnMut(&str) -> R,
        release: impl FnMut(&R),
    ) {
        let mut names = SmallVec::<[&str; 16]>::new();
        K::visit_references(pod, &mut |name| names.push(name));
        // Mostly they are in order already.
        if !names.is_sorted_by(|before, after| before < after) {
            names.sort_unstable();
            names.dedup();
        }
        let pod = PodRef::of(pod);

        let pods = match self.pods.entry_ref(pod.uid) {
            EntryRef::Occupied(of_uid) => of_uid.into_mut(),
            EntryRef::Vacant(of_uid) => of_uid.insert_with_key(pod.uid.into(), SmallVec::new()),
        };
        let at = pods
            .iter()
            .position(|known| known.is(pod))
            .unwrap_or_else(|| {
                let references = names.iter().map(|name| (SmolStr::new(name), add(name)));
                pods.push(Registered {
                    namespace: pod.namespace.into(),
                    name: pod.name.into(),
                    references: PodReferences::new(references.collect()),
                    plain: false,
                    guards: 0,
                });
                pods.len() - 1
            });
        let known = &mut pods[at];
        known.hold(hold);
        if !known.references.names().eq(names.iter()) {
            known.replace_references(&names, add, release);
        }
    }

    /// Ends one hold of `pod`; the last one ends the registration, and `release` takes all its references back.
    pub(crate) fn unregister(&mut self, pod: PodRef<'_>, hold: Hold, release: impl FnMut(&R)) {
        let EntryRef::Occupied(mut of_uid) = self.pods.entry_ref(pod.uid) else {
            return;
        };
        let pods = of_uid.get_mut();
        let Some(at) = pods.iter().position(|known| known.is(pod)) else {
            return;
        };
        if !pods[at].release(hold) {
            return;
        }
        let known = pods.swap_remove(at);
        if pods.is_empty() {
            of_uid.remove();
        }
        known
            .references
            .by_name
            .iter()
            .map(|(_, reference)| reference)
            .for_each(release);
    }

    /// The references of `pod`, if it is registered.
    pub(crate) fn references(&self, pod: PodRef<'_>) -> Option<&Arc<PodReferences<R>>> {
        let pods = self.pods.get(pod.uid)?;
        let known = pods.iter().find(|known| known.is(pod))?;
        Some(&known.references)
    }

    /// Every registered pod, with the names it refers to.
    pub(crate) fn pods(
        &self,
    ) -> impl Iterator<Item = (PodIdentity, impl Iterator<Item = &SmolStr>)> {
        self.pods.iter().flat_map(|(uid, pods)| {
            pods.iter().map(move |known| {
                let pod = PodIdentity {
                    namespace: known.namespace.clone(),
                    name: known.name.clone(),
                    uid: uid.clone(),
                };
                (pod, known.references.names())
            })
        })
    }
}

impl<R: Clone> Registered<R> {
    /// From now on the pod refers to `names`, which are sorted.
    fn replace_references(
        &mut self,
        names: &[&str],
        mut add: impl FnMut(&str) -> R,
        mut release: impl FnMut(&R),
    ) {
        let kept_or_added = names.iter().map(|name| {
            let kept = self.references.find(name).cloned();
            (SmolStr::new(name), kept.unwrap_or_else(|| add(name)))
        });
        // Added before dropped, so that nothing that stays is ever without reference.
        let references = PodReferences::new(kept_or_added.collect());
        let old = std::mem::replace(&mut self.references, references);
        old.replaced.store(true, Ordering::Release);
        for (name, reference) in &old.by_name {
            if !self.references.refers_to(name) {
                release(reference);
            }
        }
    }
}

impl<R> Registered<R> {
    fn is(&self, pod: PodRef<'_>) -> bool {
        self.namespace == pod.namespace && self.name == pod.name
    }

    fn hold(&mut self, hold: Hold) {
        match hold {
            Hold::Plain => self.plain = true,
            Hold::Guard => self.guards += 1,
        }
    }

    /// Whether nothing holds the pod any more.
    fn release(&mut self, hold: Hold) -> bool {
        match hold {
            Hold::Plain => self.plain = false,
            Hold::Guard => self.guards = self.guards.saturating_sub(1),
        }
        !self.plain && self.guards == 0
    }
}

#[cfg(test)]
pub(crate) mod tests;
