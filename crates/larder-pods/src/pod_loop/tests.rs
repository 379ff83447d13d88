//! What a mirror pod and the problems of the API server bring about.

use super::*;
use crate::{
    merge::SourcePods,
    testing::{mirror_pod, static_pod},
};

fn report(source: PodSource, event: SourceEvent) -> SourceReport {
    SourceReport { source, event }
}

fn pods(pods: Vec<StoredPod>) -> SourceEvent {
    SourceEvent::Pods(SourcePods::All(pods))
}

fn problems(texts: &[&str]) -> SourceEvent {
    let problem = |text: &&str| {
        let error = std::io::Error::other((*text).to_owned());
        SourceProblem::new("API server", Arc::new(error))
    };
    SourceEvent::Problems(texts.iter().map(problem).collect())
}

fn loop_of_both() -> PodLoop {
    let merge = PodMerge::new([PodSource::File, PodSource::Api]);
    PodLoop::new(merge, PodManager::default())
}

#[test]
fn an_unchanged_address_of_a_mirror_pod_serves_nothing_again() {
    let mut node = loop_of_both();
    let now = Timestamp::UNIX_EPOCH;
    let web = static_pod("web").stored();
    node.report(report(PodSource::File, pods(vec![web])), now);
    // How often the static pod is served, and with which address the last time.
    let mut mirror = |address: Option<&str>, phase: &str| {
        let mut mirror = mirror_pod("web").phase(phase).build();
        mirror.status.get_or_insert_default().pod_ip = address.map(str::to_owned);
        let mirror = StoredPod::new(mirror).unwrap();
        let actions = node.report(report(PodSource::Api, pods(vec![mirror])), now);
        let served = actions.into_iter().filter_map(|action| match action {
            PodAction::Serve(pod) => Some(pod.addresses().pod_ip),
            _ => None,
        });
        served.collect::<Vec<_>>()
    };
    assert_eq!(mirror(None, "Pending"), []);
    let first = Some("10.0.0.9".to_owned());
    assert_eq!(mirror(Some("10.0.0.9"), "Pending"), [first]);
    assert_eq!(mirror(Some("10.0.0.9"), "Running"), []);
    let second = Some("10.0.0.10".to_owned());
    assert_eq!(mirror(Some("10.0.0.10"), "Running"), [second]);
}

#[test]
fn a_solved_problem_begins_an_epoch_whatever_comes_in_its_place() {
    let mut node = loop_of_both();
    let now = Timestamp::UNIX_EPOCH;
    let mut epoch = |texts: &[&str]| {
        node.report(report(PodSource::Api, problems(texts)), now);
        node.epoch
    };
    assert_eq!(epoch(&["refused"]), 0);
    assert_eq!(epoch(&["refused", "slow"]), 0);
    assert_eq!(epoch(&["slow", "forbidden"]), 1);
    assert_eq!(epoch(&["slow", "forbidden"]), 1);
    assert_eq!(epoch(&[]), 2);
    // Other sources have no part in it.
    node.report(report(PodSource::File, problems(&["refused"])), now);
    node.report(report(PodSource::File, problems(&[])), now);
    assert_eq!(node.epoch, 2);
}
