//! The scenarios of a pod's lifecycle that concern registration.

use super::*;
use crate::{
    identity::{CONFIG_MIRROR, CONFIG_SOURCE},
    testing::{PodBuilder, pod},
};

/// A lifecycle whose sources have been seen, with its actions as text.
struct Lives(PodLifecycle);

impl Lives {
    fn new() -> Self {
        let mut lives = PodLifecycle::new(true);
        assert_eq!(lives.all_sources_seen(), []);
        Self(lives)
    }

    #[track_caller]
    fn check(&mut self, operation: Operation, pod: PodBuilder, expected: &[&str]) {
        let actions = self.0.handle(operation, &pod.shared());
        assert_eq!(words(&actions), expected);
        self.check_counts();
    }

    #[track_caller]
    fn check_volumes_gone(&mut self, uid: &str, expected: &[&str]) {
        let actions = self.0.volumes_gone(&ResolvedPodUid::new(uid));
        assert_eq!(words(&actions), expected);
        self.check_counts();
    }

    /// The counts that are updated with each change equal a count of all pods.
    #[track_caller]
    fn check_counts(&self) {
        let mut working = WorkingPods::new();
        let mut terminating = BTreeSet::new();
        for tracked in self.0.pods.values() {
            *working.entry(tracked.kind()).or_default() += 1;
            let on_disk = matches!(tracked.life, PodLife::Served | PodLife::Retiring { .. });
            if is_static_pod(&tracked.pod.metadata) && tracked.gone && on_disk {
                terminating.insert(FullName::of(&tracked.pod.metadata));
            }
        }
        assert_eq!(self.0.working(), working);
        assert_eq!(*self.0.terminating.0.lock(), terminating);
    }

    #[track_caller]
    fn check_life(&self, uid: &str, expected: Option<PodLife>) {
        assert_eq!(self.0.life(&ResolvedPodUid::new(uid)), expected.as_ref());
    }
}

fn words(actions: &[LifecycleAction]) -> Vec<String> {
    let word = |action: &LifecycleAction| match action {
        LifecycleAction::Serve(pod) => format!("serve {}", PodUid::of(&pod.metadata)),
        LifecycleAction::Retire(pod) => format!("retire {}", PodUid::of(&pod.metadata)),
        LifecycleAction::Unregister(uid) => format!("unregister {uid}"),
    };
    actions.iter().map(word).collect()
}

fn static_pod(uid: &str) -> PodBuilder {
    pod("web").uid(uid).annotation(CONFIG_SOURCE, "file")
}

use Operation::{Add, Delete, Reconcile, Remove, Update};

#[test]
fn a_pod_is_registered_until_its_volumes_are_gone() {
    let mut lives = Lives::new();
    lives.check(Add, pod("p").uid("1"), &["serve 1"]);
    // Every change registers again: a new ephemeral container may refer to more.
    lives.check(Update, pod("p").uid("1").label("l", "1"), &["serve 1"]);
    lives.check(Reconcile, pod("p").uid("1").phase("Running"), &["serve 1"]);
    lives.check(Delete, pod("p").uid("1").deleted(), &["serve 1"]);
    lives.check(Remove, pod("p").uid("1"), &["retire 1"]);
    lives.check(Remove, pod("p").uid("1"), &[]);
    lives.check_volumes_gone("1", &["unregister 1"]);
    lives.check_volumes_gone("1", &[]);
    lives.check_life("1", None);
}

#[test]
fn rejected_pods_and_mirror_pods_are_never_registered() {
    // managers 77: admission rejects a pod by the phase Failed.
    let mut lives = Lives::new();
    lives.check(Add, pod("p").uid("1").phase("Failed"), &["retire 1"]);
    lives.check_volumes_gone("1", &[]);
    lives.check(
        Update,
        pod("p").uid("1").phase("Failed").label("l", "1"),
        &[],
    );
    lives.check(Remove, pod("p").uid("1"), &[]);
    lives.check_life("1", None);
    let mirror = || pod("web").uid("m").annotation(CONFIG_MIRROR, "hash");
    for operation in [Add, Update, Delete, Reconcile, Remove] {
        lives.check(operation, mirror(), &[]);
    }
}

#[test]
fn without_a_network_only_host_network_pods_are_registered() {
    // managers 78
    let mut lives = Lives(PodLifecycle::new(false));
    lives.0.all_sources_seen();
    lives.check(Add, pod("p").uid("1"), &[]);
    lives.check_life("1", Some(PodLife::Held(HeldBecause::NetworkNotReady)));
    let mut on_host = pod("q").uid("2").build();
    on_host.spec.get_or_insert_default().host_network = Some(true);
    let actions = lives
        .0
        .handle(Add, &Arc::new(StoredPod::new(on_host).unwrap()));
    assert_eq!(words(&actions), ["serve 2"]);
    assert_eq!(words(&lives.0.network_ready(true)), ["serve 1"]);
    // What is served stays so.
    assert_eq!(lives.0.network_ready(false), []);
    lives.check(Update, pod("p").uid("1").label("l", "1"), &["serve 1"]);
}

#[test]
fn a_succeeded_pod_stays_registered_until_its_volumes_are_gone() {
    // managers 78
    let mut lives = Lives::new();
    lives.check(Add, pod("p").uid("1"), &["serve 1"]);
    lives.check(
        Reconcile,
        pod("p").uid("1").phase("Succeeded"),
        &["retire 1"],
    );
    lives.check_life("1", Some(PodLife::Retiring { registered: true }));
    lives.check_volumes_gone("1", &["unregister 1"]);
    lives.check_life("1", Some(PodLife::Finished));
    lives.check(
        Update,
        pod("p").uid("1").phase("Succeeded").label("l", "1"),
        &[],
    );
    lives.check(Remove, pod("p").uid("1"), &[]);
    lives.check_life("1", None);
}

#[test]
fn of_static_pods_with_one_name_one_runs_others_wait() {
    // managers 79
    let mut lives = Lives::new();
    lives.check(Add, static_pod("2"), &["serve 2"]);
    lives.check(Add, static_pod("3"), &[]);
    lives.check(Add, static_pod("4"), &[]);
    lives.check_life("3", Some(PodLife::Held(HeldBecause::NameInUse)));
    lives.check(Add, pod("web").uid("api"), &["serve api"]);
    // 3 ends without ever having started.
    lives.check(Remove, static_pod("3"), &[]);
    lives.check_life("3", None);
    lives.check(Update, static_pod("4").label("l", "1"), &[]);
    lives.check(Remove, static_pod("2"), &["retire 2"]);
    lives.check_volumes_gone("2", &["unregister 2", "serve 4"]);
}

#[test]
fn the_last_of_many_manifest_changes_wins_during_termination() {
    // managers 59
    let mut lives = Lives::new();
    lives.check(Add, static_pod("0"), &["serve 0"]);
    lives.check(Remove, static_pod("0"), &["retire 0"]);
    lives.check(Add, static_pod("1"), &[]);
    for uid in 1..300 {
        lives.check(Remove, static_pod(&uid.to_string()), &[]);
        lives.check(Add, static_pod(&(uid + 1).to_string()), &[]);
        let ending = lives.0.terminating.0.lock();
        assert_eq!(*ending, ["web_default".parse().unwrap()].into());
    }
    lives.check_volumes_gone("0", &["unregister 0", "serve 300"]);
    assert!(lives.0.terminating.0.lock().is_empty());
    assert_eq!(lives.0.pods.len(), 1);
}

#[test]
fn a_reused_uid_starts_after_the_old_pod() {
    // managers 60
    let mut lives = Lives::new();
    lives.check(Add, static_pod("1"), &["serve 1"]);
    lives.check(Remove, static_pod("1"), &["retire 1"]);
    lives.check(Add, static_pod("1").image("i:2"), &[]);
    lives.check_volumes_gone("1", &["unregister 1", "serve 1"]);
    let restarted = RestartedPods {
        r#static: 1,
        ..RestartedPods::default()
    };
    assert_eq!(lives.0.restarted(), restarted);
    // And one that changes its mind does not.
    lives.check(Remove, static_pod("1"), &["retire 1"]);
    lives.check(Add, static_pod("1"), &[]);
    lives.check(Remove, static_pod("1"), &[]);
    lives.check_volumes_gone("1", &["unregister 1"]);
    lives.check_life("1", None);
}

#[test]
fn a_terminating_pod_is_served_only_if_it_may_run() {
    let mut lives = Lives(PodLifecycle::new(false));
    lives.0.all_sources_seen();
    lives.check(Add, pod("p").uid("1"), &[]);
    lives.check(Delete, pod("p").uid("1").deleted(), &[]);
    lives.check_life("1", Some(PodLife::Held(HeldBecause::EndedUnstarted)));
    assert_eq!(lives.0.network_ready(true), []);
    lives.check(Remove, pod("p").uid("1"), &[]);
    // After a restart: its containers may run.
    lives.check(Add, pod("q").uid("2").deleted(), &["serve 2"]);
}

#[test]
fn missing_pods_retire_only_after_all_sources_are_seen() {
    // managers 76
    let mut lives = Lives(PodLifecycle::new(true));
    lives.check(Add, pod("p").uid("1"), &["serve 1"]);
    lives.check(Add, pod("q").uid("2"), &["serve 2"]);
    lives.check(Remove, pod("p").uid("1"), &[]);
    lives.check(Remove, pod("q").uid("2"), &[]);
    lives.check(Add, pod("q").uid("2"), &["serve 2"]);
    assert_eq!(words(&lives.0.all_sources_seen()), ["retire 1"]);
    assert_eq!(lives.0.all_sources_seen(), []);
    lives.check_volumes_gone("1", &["unregister 1"]);
}

#[test]
fn an_edited_static_pod_is_served_before_all_sources_are_seen() {
    let mut lives = Lives(PodLifecycle::new(true));
    lives.check(Add, static_pod("1"), &["serve 1"]);
    lives.check(Remove, static_pod("1"), &[]);
    lives.check(Add, static_pod("2"), &["retire 1"]);
    lives.check_life("2", Some(PodLife::Held(HeldBecause::NameInUse)));
    lives.check_volumes_gone("1", &["unregister 1", "serve 2"]);
    // In the other order, and only once.
    lives.check(Add, static_pod("3"), &[]);
    lives.check(Remove, static_pod("2"), &["retire 2"]);
    lives.check(Update, static_pod("3").label("l", "1"), &[]);
    lives.check_volumes_gone("2", &["unregister 2", "serve 3"]);
    // A pod that nothing replaces stays.
    lives.check(Remove, static_pod("3"), &[]);
    lives.check_life("3", Some(PodLife::Served));
}

#[test]
fn pod_with_the_uid_of_one_that_is_gone_waits_for_its_volumes() {
    let mut lives = Lives(PodLifecycle::new(true));
    lives.check(Add, pod("a").uid("1"), &["serve 1"]);
    lives.check(Remove, pod("a").uid("1"), &[]);
    // Its source may report it again, so nothing is torn down, and nothing replaced.
    lives.check(Add, pod("b").uid("1"), &[]);
    lives.check_life("1", Some(PodLife::Served));
    assert_eq!(words(&lives.0.all_sources_seen()), ["retire 1"]);
    lives.check_volumes_gone("1", &["unregister 1", "serve 1"]);
}
