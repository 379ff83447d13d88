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
    counted.check("s1 3, s10 1, s2 3, s3 3, s30 2, s4 2, s5 4, s50 2, s6 0, s60 0, s7 1, s70 1");
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
