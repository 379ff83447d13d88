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

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::Object;
use smallvec::SmallVec;
use smol_str::SmolStr;

/// A registered pod, as status shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodIdentity {
    /// Namespace of the pod, and of the objects it refers to.
    pub namespace: SmolStr,
    /// Name of the pod.
    pub name: SmolStr,
    /// UID of the pod; a recreated pod has another.
    pub uid: SmolStr,
}

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

impl From<&Pod> for PodIdentity {
    fn from(pod: &Pod) -> Self {
        PodRef::of(pod).into()
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

    /// Not by bisection: comparing for equality is that much quicker for the few names of a pod.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<&R> {
        let found = self.by_name.iter().find(|(known, _)| known == name);
        found.map(|(_, reference)| reference)
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
        names.sort_unstable();
        names.dedup();
        let pod = PodRef::of(pod);

        // Not by `entry`, which needs the UID as an owned text.
        let pods = match self.pods.get_mut(pod.uid) {
            Some(pods) => pods,
            None => self.pods.entry(pod.uid.into()).or_default(),
        };
        let at = pods.iter().position(|known| known.is(pod));
        let at = at.unwrap_or_else(|| {
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
        let Some(pods) = self.pods.get_mut(pod.uid) else {
            return;
        };
        let Some(at) = pods.iter().position(|known| known.is(pod)) else {
            return;
        };
        if !pods[at].release(hold) {
            return;
        }
        let known = pods.swap_remove(at);
        if pods.is_empty() {
            self.pods.remove(pod.uid);
        }
        let references = known.references.by_name.iter();
        references.map(|(_, reference)| reference).for_each(release);
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
pub(crate) mod tests {
    use std::{cell::RefCell, collections::BTreeMap};

    use k8s_openapi::{
        api::core::v1::{Container, EnvFromSource, PodSpec, SecretEnvSource},
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use larder_objects::Secret;

    use super::*;

    /// Pod `n/<name>` of that UID which refers to these Secrets.
    pub(crate) fn pod(name: &str, uid: &str, secrets: &[&str]) -> Pod {
        let env_from = secrets.iter().map(|name| EnvFromSource {
            secret_ref: Some(SecretEnvSource {
                name: (*name).into(),
                ..Default::default()
            }),
            ..Default::default()
        });
        Pod {
            metadata: ObjectMeta {
                namespace: Some("n".into()),
                name: Some(name.into()),
                uid: Some(uid.into()),
                ..Default::default()
            },
            spec: Some(PodSpec {
                containers: vec![Container {
                    env_from: Some(env_from.collect()),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Registrations together with the references that they lead to.
    #[derive(Default)]
    struct Counted {
        registrations: Registrations<String>,
        counts: RefCell<BTreeMap<String, BTreeMap<String, i32>>>,
    }

    impl Counted {
        fn register(&mut self, pod: &Pod) -> Arc<PodReferences<String>> {
            self.hold(pod, Hold::Plain)
        }

        fn hold(&mut self, pod: &Pod, hold: Hold) -> Arc<PodReferences<String>> {
            let (counts, identity) = (&self.counts, PodIdentity::from(pod));
            let add = |name: &str| {
                count(counts, &identity, name, 1);
                name.to_owned()
            };
            let release = |name: &String| count(counts, &identity, name, -1);
            let registrations = &mut self.registrations;
            registrations.register::<Secret>(pod, hold, add, release);
            Arc::clone(registrations.references(PodRef::of(pod)).unwrap())
        }

        fn unregister(&mut self, pod: &Pod) {
            self.release(pod, Hold::Plain);
        }

        fn release(&mut self, pod: &Pod, hold: Hold) {
            let (counts, identity) = (&self.counts, PodIdentity::from(pod));
            let release = |name: &String| count(counts, &identity, name, -1);
            self.registrations
                .unregister(PodRef::of(pod), hold, release);
        }

        /// `expected` reads `name count` for every name ever mentioned.
        #[track_caller]
        fn check(&self, expected: &str) {
            let counts = self.counts.borrow();
            let counts = counts
                .iter()
                .map(|(name, holders)| format!("{name} {}", holders.values().sum::<i32>()));
            assert_eq!(counts.collect::<Vec<_>>().join(", "), expected);
        }
    }

    fn count(
        counts: &RefCell<BTreeMap<String, BTreeMap<String, i32>>>,
        pod: &PodIdentity,
        name: &str,
        difference: i32,
    ) {
        let mut counts = counts.borrow_mut();
        let holders = counts.entry(name.into()).or_default();
        let count = holders.entry(format!("{pod:?}")).or_default();
        *count += difference;
        assert!((0..=1).contains(count), "{name} of {pod:?}: {count}");
    }

    // managers 3
    #[test]
    fn a_second_registration_or_unregistration_changes_nothing() {
        let (p1, p2) = (pod("p1", "u1", &["s1"]), pod("p2", "u2", &["s1"]));
        let mut counted = Counted::default();
        counted.register(&p1);
        counted.register(&p1);
        counted.check("s1 1");
        counted.register(&p2);
        counted.check("s1 2");
        counted.unregister(&p1);
        counted.unregister(&p1);
        counted.check("s1 1");
        counted.unregister(&p2);
        counted.check("s1 0");
    }

    // managers 4
    #[test]
    fn a_changed_pod_changes_only_the_names_that_differ() {
        let mut counted = Counted::default();
        counted.register(&pod("p", "u", &["s1", "s10", "s2"]));
        counted.register(&pod("p", "u", &["s1", "s2", "s20", "s3"]));
        counted.check("s1 1, s10 0, s2 1, s20 1, s3 1");
    }

    // managers 5
    #[test]
    fn many_pods_share_names() {
        let mut counted = Counted::default();
        let first = ["s1", "s10", "s2", "s3"];
        let second = ["s2", "s4", "s5", "s50"];
        counted.register(&pod("n1", "n1", &first));
        counted.register(&pod("n2", "n2", &first));
        counted.register(&pod("n2", "n2", &second));
        counted.register(&pod("n3", "n3", &second));
        counted.register(&pod("n4", "n4", &second));
        counted.unregister(&pod("n3", "n3", &[]));
        counted.register(&pod("n5", "n5", &["s1", "s3", "s30", "s5"]));
        counted.register(&pod("n6", "n6", &["s1", "s3", "s30", "s5"]));
        counted.register(&pod("n7", "n7", &["s3", "s6", "s60"]));
        counted.unregister(&pod("n7", "n7", &[]));
        counted.register(&pod("other", "other", &first));
        counted.register(&pod("other", "other", &second));
        counted.unregister(&pod("other", "other", &[]));
        counted.register(&pod("noop", "noop", &["s7", "s70"]));
        counted.register(&pod("noop", "noop", &["s7", "s70"]));
        counted
            .check("s1 3, s10 1, s2 3, s3 3, s30 2, s4 2, s5 4, s50 2, s6 0, s60 0, s7 1, s70 1");
    }

    // managers 6
    #[test]
    fn a_recreated_pod_is_another_pod() {
        let mut counted = Counted::default();
        counted.register(&pod("p", "uid1", &["a"]));
        counted.register(&pod("p", "uid2", &["b"]));
        counted.check("a 1, b 1");
        counted.unregister(&pod("p", "uid1", &[]));
        counted.check("a 0, b 1");
        counted.unregister(&pod("p", "uid2", &["b"]));
        counted.check("a 0, b 0");
    }

    // managers 7
    #[test]
    fn a_name_mentioned_three_times_is_one_reference() {
        let mut counted = Counted::default();
        counted.register(&pod("p", "u", &["s", "s", "s"]));
        counted.check("s 1");
    }

    #[test]
    fn one_uid_under_two_names_is_two_pods() {
        let mut counted = Counted::default();
        counted.register(&pod("p", "u", &["a"]));
        counted.register(&pod("q", "u", &["a"]));
        counted.check("a 2");
        counted.unregister(&pod("p", "u", &[]));
        counted.check("a 1");
    }

    // managers 33, 34
    #[test]
    fn a_stranger_drops_no_reference() {
        let mut counted = Counted::default();
        counted.unregister(&pod("p2", "u2", &["s"]));
        counted.register(&pod("p1", "u1", &["s"]));
        counted.unregister(&pod("p2", "u2", &["s"]));
        counted.unregister(&pod("p1", "u2", &["s"]));
        counted.check("s 1");
        // B4: no −1 is left behind that would keep the object.
        counted.unregister(&pod("p1", "u1", &["s"]));
        counted.check("s 0");
    }

    #[test]
    fn a_guard_outlives_unregistration() {
        let mut counted = Counted::default();
        let p = pod("p", "u", &["a"]);
        counted.register(&p);
        counted.hold(&p, Hold::Guard);
        counted.unregister(&p);
        counted.unregister(&p);
        counted.check("a 1");
        counted.release(&p, Hold::Guard);
        counted.check("a 0");
    }

    #[test]
    fn a_guard_reads_no_reference_that_its_pod_has_replaced() {
        let mut counted = Counted::default();
        let first = counted.hold(&pod("p", "u", &["a", "b"]), Hold::Guard);
        assert!(first.current("a").is_some() && first.current("c").is_none());
        assert!(Arc::ptr_eq(
            &first,
            &counted.register(&pod("p", "u", &["b", "a"]))
        ));
        let second = counted.hold(&pod("p", "u", &["b", "c"]), Hold::Guard);
        assert!(first.current("a").is_none() && first.current("b").is_none());
        assert!(second.current("b").is_some() && second.current("c").is_some());
        counted.check("a 0, b 1, c 1");
    }
}
