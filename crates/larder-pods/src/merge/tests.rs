//! The scenarios of the merge.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::*;
use crate::testing::{PodBuilder, pod};

fn merge() -> PodMerge {
    PodMerge::new([PodSource::File])
}

fn all(pods: impl IntoIterator<Item = PodBuilder>) -> SourcePods {
    SourcePods::All(pods.into_iter().map(PodBuilder::stored).collect())
}

fn one(pod: PodBuilder) -> SourcePods {
    SourcePods::One(Box::new(pod.stored()))
}

/// The updates as text: `REMOVE a b, ADD c`.
#[track_caller]
fn check(merge: &mut PodMerge, pods: SourcePods, expected: &str) {
    let merged = merge.merge(PodSource::File, pods, Timestamp::UNIX_EPOCH);
    let text = |update: &PodUpdate| {
        assert_eq!(update.source, PodSource::File);
        let mut words = vec![format!("{:?}", update.operation).to_uppercase()];
        words.extend(
            update
                .pods
                .iter()
                .map(|pod| FullName::of(&pod.metadata).name.to_string()),
        );
        words.join(" ")
    };
    let updates: Vec<_> = merged.updates.iter().map(text).collect();
    assert_eq!(updates.join(", "), expected);
}

#[test]
fn sets_add_update_and_remove_pods_unchanged_sets_do_nothing() {
    // managers 70
    let mut merge = merge();
    check(&mut merge, all([pod("p")]), "ADD p");
    check(&mut merge, all([pod("p")]), "");
    check(&mut merge, all([pod("p").image("i:2")]), "UPDATE p");
    check(&mut merge, all([]), "REMOVE p");
    check(&mut merge, all([pod("p")]), "ADD p");
}

#[test]
fn operations_come_in_handling_order() {
    // managers 71
    let mut merge = merge();
    check(
        &mut merge,
        all([pod("foo"), pod("foo2"), pod("foo3")]),
        "ADD foo foo2 foo3",
    );
    check(
        &mut merge,
        all([pod("foo2").image("i:2"), pod("foo3"), pod("foo4")]),
        "REMOVE foo, ADD foo4, UPDATE foo2",
    );
    check(
        &mut merge,
        all([
            pod("foo2").image("i:2").deleted(),
            pod("foo3").phase("Running"),
            pod("foo4").image("i:2"),
            pod("foo5"),
        ]),
        "ADD foo5, UPDATE foo4, DELETE foo2, RECONCILE foo3",
    );
}

#[test]
fn a_deletion_timestamp_deletes_known_pods_and_adds_new_ones() {
    // managers 72
    let mut merge = merge();
    check(&mut merge, all([pod("p")]), "ADD p");
    check(
        &mut merge,
        all([pod("p").deleted(), pod("q").deleted()]),
        "ADD q, DELETE p",
    );
}

#[test]
fn a_changed_status_is_a_reconcile_unless_more_has_changed() {
    // managers 73
    let mut merge = merge();
    check(&mut merge, all([pod("p")]), "ADD p");
    check(&mut merge, all([pod("p").phase("Running")]), "RECONCILE p");
    check(
        &mut merge,
        all([pod("p").phase("Failed").image("i:2")]),
        "UPDATE p",
    );
}

#[test]
fn annotations_and_labels_are_updates_except_local_annotations() {
    // managers 74
    let mut merge = merge();
    check(&mut merge, all([pod("p").annotation("k", "1")]), "ADD p");
    for changed in [
        pod("p").annotation("k", "2"),
        pod("p").annotation("k", "2").annotation("added", ""),
        pod("p").annotation("k", "2"),
        pod("p").annotation("k", "2").label("l", "1"),
        pod("p").annotation("k", "2").label("l", "2"),
        pod("p"),
    ] {
        check(&mut merge, all([changed]), "UPDATE p");
    }
    for key in LOCAL_ANNOTATIONS {
        check(&mut merge, all([pod("p").annotation(key, "other")]), "");
    }
    let mut empty = pod("p").stored();
    empty.metadata.annotations = Some(BTreeMap::new());
    check(&mut merge, SourcePods::All(vec![empty]), "");
}

#[test]
fn a_source_without_pods_is_announced_once() {
    // managers 75
    let mut merge = merge();
    check(&mut merge, all([]), "ADD");
    check(&mut merge, all([]), "");
}

#[test]
fn of_two_pods_with_one_identity_the_first_is_kept() {
    // managers 75
    let mut merge = merge();
    let merged = merge.merge(
        PodSource::File,
        all([
            pod("p").uid("1"),
            pod("p").uid("2"),
            pod("q").uid("1"),
            pod("r").uid("2"),
        ]),
        Timestamp::UNIX_EPOCH,
    );
    let uids = |pods: &[Arc<StoredPod>]| -> Vec<_> {
        let uid = |pod: &Arc<StoredPod>| PodUid::of(&pod.metadata).to_string();
        pods.iter().map(uid).collect()
    };
    assert_eq!(uids(&merged.updates[0].pods), ["1", "2"]);
    let texts: Vec<_> = merged.duplicates.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "ignoring pod p_default of source file: another pod already has its full name",
            "ignoring pod q_default of source file: pod p_default of source file already has its UID",
        ]
    );
}

#[test]
fn a_recreated_or_renamed_pod_replaces_the_old_one() {
    let mut merge = merge();
    check(&mut merge, all([pod("p").uid("1")]), "ADD p");
    check(&mut merge, all([pod("p").uid("2")]), "REMOVE p, ADD p");
    check(&mut merge, one(pod("p").uid("3")), "REMOVE p, ADD p");
    check(&mut merge, all([pod("q").uid("3")]), "REMOVE p, ADD q");
    // Two pods swap their UIDs.
    check(
        &mut merge,
        all([pod("p").uid("4"), pod("q").uid("3")]),
        "ADD p",
    );
    check(
        &mut merge,
        all([pod("p").uid("3"), pod("q").uid("4")]),
        "REMOVE p q, ADD p q",
    );
}

#[test]
fn single_reports_equal_a_full_set() {
    let mut merge = merge();
    check(&mut merge, all([]), "ADD");
    check(&mut merge, one(pod("p")), "ADD p");
    check(&mut merge, one(pod("p")), "");
    check(&mut merge, one(pod("q")), "ADD q");
    check(&mut merge, one(pod("p").image("i:2")), "UPDATE p");
    check(&mut merge, one(pod("p").image("i:2").deleted()), "DELETE p");
    let gone = |name: &str, uid: &str| {
        let full_name = FullName::of(&pod(name).build().metadata);
        SourcePods::Gone(full_name, PodUid::new(uid))
    };
    // Late word about a predecessor.
    check(&mut merge, gone("p", "older-uid"), "");
    check(&mut merge, gone("p", "p-uid"), "REMOVE p");
    check(&mut merge, gone("p", "p-uid"), "");
    check(&mut merge, all([pod("q")]), "");
}

#[test]
fn pods_carry_their_source_and_first_seen_time() {
    let mut merge = merge();
    let mut at = |second, pods| {
        let now = Timestamp::from_second(second).unwrap();
        let merged = merge.merge(PodSource::File, pods, now);
        let pod = Arc::clone(&merged.updates[0].pods[0]);
        let of = |key| annotation(&pod.metadata, key).unwrap().to_owned();
        (of(CONFIG_SOURCE), of(CONFIG_SEEN))
    };
    let first = (
        "file".to_owned(),
        "1970-01-01T00:00:01.000000000Z".to_owned(),
    );
    let from_api = pod("p").annotation(CONFIG_SOURCE, "api");
    assert_eq!(at(1, all([from_api])), first);
    assert_eq!(at(2, all([pod("p").image("i:2")])), first);
    assert_eq!(at(3, one(pod("p").image("i:3"))), first);
    let again = "1970-01-01T00:00:04.000000000Z";
    assert_eq!(
        at(4, all([pod("p").uid("new")])).1,
        first.1,
        "the removed pod"
    );
    assert_eq!(at(4, all([pod("q")])).1, again, "the removed pod");
}

#[test]
fn updates_carry_the_new_object() {
    let mut merge = merge();
    let version = |version: &str, owner: &str| {
        let mut pod = pod("p").stored();
        pod.metadata.resource_version = Some(version.to_owned());
        pod.metadata.owner_references = Some(vec![OwnerReference {
            name: owner.to_owned(),
            ..OwnerReference::default()
        }]);
        SourcePods::All(vec![pod])
    };
    check(&mut merge, version("1", "a"), "ADD p");
    let merged = merge.merge(PodSource::File, version("2", "b"), Timestamp::UNIX_EPOCH);
    assert_eq!(merged.updates[0].operation, Operation::Reconcile);
    let metadata = &merged.updates[0].pods[0].metadata;
    assert_eq!(metadata.resource_version.as_deref(), Some("2"));
    assert_eq!(metadata.owner_references.as_ref().unwrap()[0].name, "b");
}

#[test]
fn sources_are_separate_and_ready_after_a_full_set() {
    // managers 76
    let mut merge = PodMerge::new([PodSource::File, PodSource::Api]);
    let now = Timestamp::UNIX_EPOCH;
    assert!(!merge.all_sources_seen());
    merge.merge(PodSource::Api, all([pod("p")]), now);
    merge.merge(PodSource::File, one(pod("p").uid("f")), now);
    assert!(!merge.all_sources_seen());
    assert_eq!(
        merge.silent_sources().collect::<Vec<_>>(),
        [PodSource::File]
    );

    let merged = merge.merge(PodSource::File, all([]), now);
    assert_eq!(merged.updates[0].operation, Operation::Remove);
    assert!(merge.all_sources_seen());
    // The pod of the other source is untouched: naming it again is no news.
    assert_eq!(
        merge.merge(PodSource::Api, all([pod("p")]), now),
        Merged::default()
    );
}

/// The UIDs of pods with their names, by source.
fn present(merge: &PodMerge) -> Vec<String> {
    let sources = merge.sources.iter();
    let pods = sources.flat_map(|(source, state)| {
        let names = state.uid_by_name.iter();
        names.map(move |(name, uid)| format!("{source} {} {uid}", name.name))
    });
    let mut pods: Vec<_> = pods.collect();
    pods.sort();
    pods
}

fn waiting(merge: &PodMerge) -> Vec<String> {
    let mut by_uid = HashMap::<_, BTreeSet<_>>::new();
    for (source, state) in &merge.sources {
        for (name, pod) in &state.waiting {
            let uid = PodUid::of(&pod.metadata);
            by_uid
                .entry(uid)
                .or_default()
                .insert((*source, name.clone()));
        }
    }
    assert_eq!(merge.uids.waiting, by_uid);
    merge.waiting().map(|pod| pod.to_string()).collect()
}

#[test]
fn manifest_with_the_uid_of_another_pod_takes_nothing_over() {
    let now = Timestamp::UNIX_EPOCH;
    let mut merge = PodMerge::new([PodSource::Api, PodSource::File]);
    merge.merge(PodSource::Api, all([pod("prod").uid("1")]), now);
    // Of another source, and of the same one: in a full set that lists the thief first, and alone.
    let merged = merge.merge(PodSource::File, all([pod("static").uid("1")]), now);
    assert_eq!(merged.duplicates.len(), 1);
    merge.merge(PodSource::Api, one(pod("aaa").uid("1")), now);
    let set = [pod("aaa").uid("1"), pod("prod").uid("1")];
    let merged = merge.merge(PodSource::Api, all(set), now);
    assert_eq!(merged.updates, []);
    assert_eq!(present(&merge), ["api prod 1"]);
    assert_eq!(
        waiting(&merge),
        [
            "ignoring pod static_default of source file: pod prod_default of source api already has its UID",
            "ignoring pod aaa_default of source api: pod prod_default of source api already has its UID",
        ]
    );
    // They wait for it: one gets it when the pod is gone.
    let name = FullName::of(&pod("prod").stored().metadata);
    let gone = SourcePods::Gone(name, PodUid::new("1"));
    let merged = merge.merge(PodSource::Api, gone, now);
    let operations: Vec<_> = merged
        .updates
        .iter()
        .map(|update| update.operation)
        .collect();
    assert_eq!(operations, [Operation::Remove, Operation::Add]);
    assert_eq!(present(&merge).len(), 1);
    assert_eq!(waiting(&merge).len(), 1);
    // One that is gone waits no more.
    merge.merge(PodSource::File, all([]), now);
    merge.merge(PodSource::Api, all([pod("aaa").uid("1")]), now);
    assert_eq!(waiting(&merge), [""; 0]);
    assert_eq!(present(&merge), ["api aaa 1"]);
}

#[test]
fn after_a_restart_the_pod_with_the_volumes_keeps_its_uid() {
    let now = Timestamp::UNIX_EPOCH;
    let name = FullName::of(&pod("prod").stored().metadata);
    let earlier = || [(PodUid::new("1"), name.clone())];
    let sources = [PodSource::Api, PodSource::File];
    let mut merge = PodMerge::new(sources).keeping(earlier());
    merge.merge(PodSource::File, all([pod("static").uid("1")]), now);
    assert_eq!(present(&merge), [""; 0]);
    let set = [pod("aaa").uid("1"), pod("prod").uid("1")];
    merge.merge(PodSource::Api, all(set), now);
    assert_eq!(present(&merge), ["api prod 1"]);
    assert_eq!(waiting(&merge).len(), 2);
    // If no source has it any more, another pod may have its UID, but not its volumes.
    let mut merge = PodMerge::new(sources).keeping(earlier());
    merge.merge(PodSource::File, all([pod("static").uid("1")]), now);
    merge.merge(PodSource::Api, all([]), now);
    assert_eq!(present(&merge), [""; 0]);
    assert_eq!(merge.volumes_gone(&PodUid::new("1"), now).len(), 1);
    assert_eq!(present(&merge), ["file static 1"]);
}
