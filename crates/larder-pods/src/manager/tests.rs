//! The scenarios of the pod manager, and a random walk compared with a naive model.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::EphemeralContainer;
use proptest::prelude::*;

use super::*;
use crate::testing::{PodBuilder, mirror_pod, pod, static_pod};

fn manager_of(pods: impl IntoIterator<Item = PodBuilder>) -> PodManager {
    let mut manager = PodManager::default();
    for pod in pods {
        manager.add_pod(pod.shared());
    }
    manager
}

fn uids<'a>(pods: impl IntoIterator<Item = &'a Arc<StoredPod>>) -> BTreeSet<String> {
    let uid = |pod: &Arc<StoredPod>| PodUid::of(&pod.metadata).to_string();
    pods.into_iter().map(uid).collect()
}

fn resolved(uid: &str) -> ResolvedPodUid {
    ResolvedPodUid::new(uid)
}

#[test]
fn lists_hold_regular_pods_and_uids_translate() {
    // managers 46
    let manager = manager_of([mirror_pod("web"), static_pod("web"), pod("app")]);

    assert_eq!(
        uids(&manager.pods()),
        ["app-uid", "web-uid"].map(String::from).into()
    );
    let translate = |uid: &str| manager.translate_pod_uid(&PodUid::new(uid)).to_string();
    assert_eq!(translate("web-mirror-uid"), "web-uid");
    assert_eq!(translate("app-uid"), "app-uid");
    assert_eq!(translate("unknown"), "unknown");
    assert_eq!(translate(""), "");

    let translations = manager.uid_translations();
    let (pod, mirror) = (resolved("web-uid"), MirrorPodUid::new("web-mirror-uid"));
    assert_eq!(
        translations,
        UidTranslations {
            pod_to_mirror: [(pod.clone(), Some(mirror.clone()))].into(),
            mirror_to_pod: [(mirror, pod)].into(),
        }
    );
}

#[test]
fn names_and_pods_lead_to_their_counterparts() {
    // managers 47
    let manager = manager_of([mirror_pod("web"), static_pod("web"), pod("app")]);
    let web = manager.pod_by_uid(&resolved("web-uid")).unwrap();
    let mirror = manager.mirror_pod_by_pod(&web).unwrap();

    let full_name = FullName::of(&mirror.metadata);
    assert_eq!(manager.pod_by_full_name(&full_name), Some(Arc::clone(&web)));
    assert_eq!(
        manager.pod_by_name("default", "web"),
        Some(Arc::clone(&web))
    );
    assert_eq!(manager.pod_by_mirror_pod(&mirror), Some(Arc::clone(&web)));
    // A mirror pod's UID finds no regular pod.
    assert_eq!(manager.pod_by_uid(&resolved("web-mirror-uid")), None);

    let both = |was_mirror| PodAndMirrorPod {
        pod: Some(Arc::clone(&web)),
        mirror_pod: Some(Arc::clone(&mirror)),
        was_mirror,
    };
    assert_eq!(manager.pod_and_mirror_pod(&mirror), both(true));
    assert_eq!(manager.pod_and_mirror_pod(&web), both(false));
    let app = manager.pod_by_uid(&resolved("app-uid")).unwrap();
    let alone = PodAndMirrorPod {
        pod: Some(Arc::clone(&app)),
        mirror_pod: None,
        was_mirror: false,
    };
    assert_eq!(manager.pod_and_mirror_pod(&app), alone);
    // The argument need not be known.
    let stranger = mirror_pod("stranger").shared();
    let answer = manager.pod_and_mirror_pod(&stranger);
    assert_eq!((answer.pod, answer.mirror_pod), (None, Some(stranger)));
}

#[test]
fn a_mirror_pod_without_its_static_pod_is_an_orphan() {
    // managers 48
    let web = static_pod("web").stored();
    let manager = || manager_of([mirror_pod("web"), static_pod("web"), pod("app")]);
    let orphans = |manager: &PodManager| uids(&manager.pods_and_mirror_pods().orphaned_mirror_pods);

    let mut without_mirror = manager();
    without_mirror.remove_pod(&mirror_pod("web").stored());
    assert!(orphans(&without_mirror).is_empty());
    assert!(without_mirror.mirror_pod_by_pod(&web).is_none());

    let mut without_static = manager();
    without_static.remove_pod(&web);
    let lists = without_static.pods_and_mirror_pods();
    let mirror_uid = BTreeSet::from(["web-mirror-uid".to_owned()]);
    assert_eq!(uids(&lists.orphaned_mirror_pods), mirror_uid);
    assert_eq!(uids(&lists.mirror_pods), mirror_uid);
    // News of the ending pod still finds it.
    let translated = without_static.translate_pod_uid(&PodUid::new("web-mirror-uid"));
    assert_eq!(translated, resolved("web-uid"));

    let mut without_ordinary = manager();
    without_ordinary.remove_pod(&pod("app").stored());
    assert_eq!(
        uids(&without_ordinary.pods()),
        BTreeSet::from(["web-uid".to_owned()])
    );
    assert!(orphans(&without_ordinary).is_empty());
}

#[test]
fn translations_do_not_depend_on_the_order_of_arrival() {
    // managers 49
    let lonely = manager_of([static_pod("web"), pod("app")]);
    assert_eq!(
        lonely.uid_translations().pod_to_mirror,
        [(resolved("web-uid"), None)].into()
    );
    let static_pods = lonely.static_pods_and_mirror_pods();
    assert_eq!(static_pods, [(static_pod("web").shared(), None)]);

    let mirror_first = manager_of([mirror_pod("web"), static_pod("web")]);
    let static_first = manager_of([static_pod("web"), mirror_pod("web")]);
    let translations = mirror_first.uid_translations();
    assert_eq!(translations, static_first.uid_translations());
    assert_eq!(translations.mirror_to_pod.len(), 1);
}

#[test]
fn a_shared_full_name_survives_the_removal_of_either_pod() {
    let api = || pod("web").uid("api-uid");
    let by_name = |manager: &PodManager| {
        let pod = manager.pod_by_name("default", "web");
        pod.map(|pod| PodUid::of(&pod.metadata).to_string())
    };
    for (removed, left) in [
        (api(), "web-uid"),
        (static_pod("web"), "api-uid"),
        (pod("web").uid("unknown"), "api-uid"),
    ] {
        let mut manager = manager_of([static_pod("web"), api(), mirror_pod("web")]);
        assert_eq!(by_name(&manager).as_deref(), Some("api-uid"));
        manager.remove_pod(&removed.stored());
        assert_eq!(by_name(&manager).as_deref(), Some(left));
        let translated = manager.translate_pod_uid(&PodUid::new("web-mirror-uid"));
        assert_eq!(translated.as_str(), left);
    }
}

#[test]
fn a_late_removal_leaves_the_mirror_pods_successor() {
    let successor = || mirror_pod("web").uid("successor");
    let mut manager = manager_of([static_pod("web"), mirror_pod("web"), successor()]);
    manager.remove_pod(&mirror_pod("web").stored());

    let web = static_pod("web").stored();
    assert_eq!(manager.mirror_pod_by_pod(&web), Some(successor().shared()));
    let translations = manager.uid_translations();
    assert_eq!(
        translations.pod_to_mirror,
        [(resolved("web-uid"), Some(MirrorPodUid::new("successor")))].into()
    );
    assert_eq!(translations.mirror_to_pod.len(), 1);
}

#[test]
fn counts_equal_the_pods_present() {
    let mut busy = pod("busy").build();
    busy.spec.get_or_insert_default().ephemeral_containers =
        Some(vec![EphemeralContainer::default(); 2]);
    let busy = StoredPod::new(busy).unwrap();
    let mut manager = manager_of([static_pod("web"), mirror_pod("web"), pod("app")]);
    manager.add_pod(Arc::new(busy.clone()));
    let counts = PodCounts {
        ordinary: 2,
        r#static: 1,
        active_ordinary: 2,
        active_static: 1,
        mirrors: 1,
        ephemeral_containers: 2,
    };
    assert_eq!(manager.counts(), counts);
    // Adding or removing twice counts once.
    manager.add_pod(Arc::new(busy.clone()));
    assert_eq!(manager.counts(), counts);
    for _ in 0..2 {
        manager.remove_pod(&busy);
        manager.remove_pod(&mirror_pod("web").stored());
    }
    assert_eq!(
        manager.counts(),
        PodCounts {
            ordinary: 1,
            r#static: 1,
            active_ordinary: 1,
            active_static: 1,
            ..PodCounts::default()
        }
    );
}

/// A naive manager: a list in the order of the last upsert, searched from the end.
#[derive(Default)]
struct Model {
    pods: Vec<Arc<StoredPod>>,
    translations: BTreeMap<String, String>,
}

impl Model {
    fn remove(&mut self, pod: &StoredPod) -> Option<Arc<StoredPod>> {
        let same = |other: &Arc<StoredPod>| {
            PodUid::of(&other.metadata) == PodUid::of(&pod.metadata)
                && is_mirror_pod(&other.metadata) == is_mirror_pod(&pod.metadata)
        };
        let at = self.pods.iter().position(same)?;
        Some(self.pods.remove(at))
    }

    fn apply(&mut self, add: bool, pod: &Arc<StoredPod>) {
        let before = self.remove(pod);
        let renamed = before
            .is_some_and(|before| FullName::of(&before.metadata) != FullName::of(&pod.metadata));
        if is_mirror_pod(&pod.metadata) && (!add || renamed) {
            self.translations.remove(PodUid::of(&pod.metadata).as_str());
        }
        if add {
            self.pods.push(Arc::clone(pod));
        }
        for mirror in self.pods.iter().filter(|pod| is_mirror_pod(&pod.metadata)) {
            if let Some(pod) = self.find(false, &FullName::of(&mirror.metadata)) {
                let uids = (
                    PodUid::of(&mirror.metadata).to_string(),
                    PodUid::of(&pod.metadata).to_string(),
                );
                self.translations.extend([uids]);
            }
        }
    }

    fn find(&self, mirror: bool, full_name: &FullName) -> Option<&Arc<StoredPod>> {
        let wanted = |pod: &&Arc<StoredPod>| {
            is_mirror_pod(&pod.metadata) == mirror && FullName::of(&pod.metadata) == *full_name
        };
        self.pods.iter().rev().find(wanted)
    }

    fn check(&self, manager: &PodManager) {
        let is = |mirror| move |pod: &&Arc<StoredPod>| is_mirror_pod(&pod.metadata) == mirror;
        let lists = manager.pods_and_mirror_pods();
        assert_eq!(uids(&manager.pods()), uids(&lists.pods));
        assert_eq!(lists.pods.len(), self.pods.iter().filter(is(false)).count());
        assert_eq!(uids(&lists.pods), uids(self.pods.iter().filter(is(false))));
        assert_eq!(
            uids(&lists.mirror_pods),
            uids(self.pods.iter().filter(is(true)))
        );
        let lost = |pod: &&Arc<StoredPod>| self.find(false, &FullName::of(&pod.metadata)).is_none();
        assert_eq!(
            uids(&lists.orphaned_mirror_pods),
            uids(self.pods.iter().filter(is(true)).filter(lost))
        );
        for name in NAMES {
            let sought = pod(name).stored();
            let full_name = FullName::of(&sought.metadata);
            assert_eq!(
                manager.pod_by_full_name(&full_name).as_ref(),
                self.find(false, &full_name)
            );
            assert_eq!(
                manager.mirror_pod_by_pod(&sought).as_ref(),
                self.find(true, &full_name)
            );
        }
        for pod in self.pods.iter().filter(is(false)) {
            let uid = resolved(PodUid::of(&pod.metadata).as_str());
            assert_eq!(manager.pod_by_uid(&uid).as_ref(), Some(pod));
        }
        let translations = manager.uid_translations();
        let mirror_to_pod = translations.mirror_to_pod.iter();
        let mirror_to_pod: BTreeMap<_, _> = mirror_to_pod
            .map(|(mirror, pod)| (mirror.to_string(), pod.to_string()))
            .collect();
        assert_eq!(mirror_to_pod, self.translations);
        let mut static_pods: Vec<_> = self.pods.iter().filter(is(false)).collect();
        static_pods.retain(|pod| is_static_pod(&pod.metadata));
        assert_eq!(
            manager.static_pods_and_mirror_pods().len(),
            static_pods.len()
        );
        for (pod, mirror) in manager.static_pods_and_mirror_pods() {
            let expected = self.find(true, &FullName::of(&pod.metadata));
            assert_eq!(mirror.as_ref(), expected);
        }
        for pod in static_pods {
            let mirror = &translations.pod_to_mirror[&resolved(PodUid::of(&pod.metadata).as_str())];
            let translates_here =
                |(_, uid): &(&String, &String)| uid.as_str() == PodUid::of(&pod.metadata).as_str();
            let some = self.translations.iter().any(|pair| translates_here(&pair));
            assert_eq!(mirror.is_some(), some);
        }
        let counts = manager.counts();
        assert_eq!(counts.ordinary + counts.r#static, lists.pods.len() as u64);
        assert_eq!(counts.mirrors, lists.mirror_pods.len() as u64);
    }
}

/// Few names and UIDs, so that they collide.
const NAMES: [&str; 3] = ["a", "b", "c"];

fn steps() -> impl Strategy<Value = Vec<(bool, Arc<StoredPod>)>> {
    let step = (any::<bool>(), 0..3_usize, 0..3_u8, 0..5_u8).prop_map(|(add, name, kind, uid)| {
        let pod = match kind {
            0 => pod(NAMES[name]),
            1 => static_pod(NAMES[name]),
            _ => mirror_pod(NAMES[name]),
        };
        (add, pod.uid(&uid.to_string()).shared())
    });
    proptest::collection::vec(step, 0..40)
}

proptest! {
    #[test]
    fn any_walk_agrees_with_the_model(steps in steps()) {
        let mut manager = PodManager::default();
        let mut model = Model::default();
        for (add, pod) in steps {
            if add {
                manager.add_pod(Arc::clone(&pod));
            } else {
                manager.remove_pod(&pod);
            }
            model.apply(add, &pod);
            model.check(&manager);
        }
    }
}
