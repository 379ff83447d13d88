//! What `larder status --wait` waits for: pods, hooks and sources, with reasons.

use larder_agent::status::{AgentStatus, Phase, PodStatus, ProblemKind};
use larder_pods::PodSource;

use super::report::{has_idle_hooks, is_done, is_settled};
use crate::output::{because, first_names};

/// Number of pods that are named; the others are counted.
const NAMED_PODS: usize = 3;

/// When a wait for a pod is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// When its content is delivered and known to be current.
    Delivered,
    /// When its content is in place.
    InPlace,
}

impl WaitsFor {
    /// Whether the wait for this pod is over.
    pub(super) fn is_over(self, pod: &PodStatus) -> bool {
        is_settled(pod)
            || self == Self::InPlace && pod.delivery.phase == Phase::Stale && has_idle_hooks(pod)
    }

    /// The problems because of which a wait for all pods is not over.
    pub(super) fn problems(self, status: &AgentStatus) -> impl Iterator<Item = &str> {
        let counts = move |kind| match kind {
            ProblemKind::Undone | ProblemKind::Waiting => true,
            ProblemKind::Stale => self == Self::Delivered,
            ProblemKind::MirrorPod | ProblemKind::Checkpoint => false,
        };
        status
            .problems_by_kind()
            .filter_map(move |(kind, problem)| counts(kind).then_some(problem))
    }

    /// The sources without a report whose pods a wait for all pods needs. Where content that is in place is enough, copies
    /// of the checkpoint stand for the pods of the API server.
    pub(super) fn silent_sources(self, status: &AgentStatus) -> impl Iterator<Item = &str> {
        let has_copies = status
            .checkpoint
            .as_ref()
            .is_some_and(|checkpoint| checkpoint.serving.is_some());
        let takes_copies = self == Self::InPlace && has_copies;
        status
            .silent_sources
            .iter()
            .map(String::as_str)
            .filter(move |source| !(takes_copies && *source == PodSource::Api.as_str()))
    }
}

/// What is pending in a wait for the pods of `status`. The agent does not serve the pods called `missing`. With `all`,
/// the wait includes the pods of sources that have not reported.
pub(super) fn pending(
    status: &AgentStatus,
    missing: &[String],
    all: bool,
    waits_for: WaitsFor,
) -> String {
    let silent: Vec<_> = waits_for.silent_sources(status).collect();
    if all && !silent.is_empty() {
        let sources = silent.join(", ");
        let problem = status
            .problems
            .first()
            .map(|problem| format!(" ({problem})"))
            .unwrap_or_default();
        return format!("the pods of: {sources}{problem}");
    }
    let pods = status
        .pods
        .iter()
        .filter(|pod| !waits_for.is_over(pod))
        .map(|pod| {
            let mut hooks = pod.on_change.iter().filter(|hook| hook.state != "Idle");
            let why = match (hooks.next(), pod.delivery.reason.as_str()) {
                (Some(hook), _) if is_done(&pod.delivery) => {
                    let reason = because(&hook.reason);
                    format!("hook {} is {}{reason}", hook.name, hook.state)
                }
                (_, "") => pod.delivery.phase.as_str().to_owned(),
                (_, reason) => reason.to_owned(),
            };
            format!("{}/{} ({why})", pod.namespace, pod.name)
        });
    let missing = missing
        .iter()
        .map(|name| format!("{name} (not served by the agent)"));
    let problems = waits_for
        .problems(status)
        .filter(|_| all)
        .map(str::to_owned);
    let waiting: Vec<_> = pods.chain(missing).chain(problems).collect();
    first_names(&waiting, NAMED_PODS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(pods: &[(&str, &str, &str)], silent: &[&str]) -> AgentStatus {
        let pods = pods.iter().map(|(name, phase, reason)| {
            json!({
                "namespace": "prod", "name": name, "uid": "u", "source": "api", "path": "/r",
                "volumes": [], "containers": [],
                "phase": phase, "since": "2026-01-01T00:00:00Z", "reason": reason,
            })
        });
        let status = json!({
            "node": "n1", "rootDir": "/r", "started": "2026-01-01T00:00:00Z", "changeDetection": "Watch",
            "watchScope": "Object", "silentSources": silent, "problems": ["api: connection refused"],
            "pods": pods.collect::<Vec<_>>(), "objects": [],
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn pods_are_named_with_the_reason_and_the_rest_is_counted() {
        let done = ("db", "Delivered", "");
        // A pod beside a kubelet that the settings exclude.
        let excluded = (
            "dns",
            "Excluded",
            "excluded: its namespace is not in beside.namespaces",
        );
        let missing = ("web", "Failing", "secret \"tls\" not found");
        let one = status(&[done, excluded, missing], &[]);
        assert_eq!(
            pending(&one, &[], true, WaitsFor::Delivered),
            "prod/web (secret \"tls\" not found), api: connection refused"
        );
        let many = status(
            &[("a", "Waiting", ""), missing, ("c", "Waiting", ""), missing],
            &[],
        );
        assert_eq!(
            pending(&many, &["prod/x".to_owned()], false, WaitsFor::Delivered),
            "prod/a (Waiting), prod/web (secret \"tls\" not found), prod/c (Waiting) and 2 more"
        );
    }

    #[test]
    fn a_source_that_has_not_reported_is_named_with_the_first_problem() {
        let silent = status(&[("a", "Waiting", "")], &["api"]);
        assert_eq!(
            pending(&silent, &[], true, WaitsFor::Delivered),
            "the pods of: api (api: connection refused)"
        );
        // A wait for one pod does not wait for the source.
        assert_eq!(
            pending(&silent, &[], false, WaitsFor::Delivered),
            "prod/a (Waiting)"
        );
    }

    #[test]
    fn stale_content_ends_only_the_wait_for_content() {
        let pods = [
            ("a", "Stale"),
            ("b", "Delivered"),
            ("c", "Failing"),
            ("d", "Waiting"),
        ];
        let status = status(&pods.map(|(name, phase)| (name, phase, "")), &[]);
        let over = |waits_for: WaitsFor| {
            let over = status.pods.iter().filter(|pod| waits_for.is_over(pod));
            over.map(|pod| &*pod.name).collect::<Vec<_>>()
        };
        assert_eq!(over(WaitsFor::Delivered), ["b"]);
        assert_eq!(over(WaitsFor::InPlace), ["a", "b"]);
    }
}
