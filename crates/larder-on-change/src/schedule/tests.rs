//! Pods with hooks through time: passes and ends of attempts go in, attempts come out.

use k8s_openapi::api::core::v1::Pod;
use larder_projection::VolumeKind;
use serde_json::json;

use super::*;
use crate::{outline::PodOutline, parse::AllowedActions, pod_hooks::HookSources};

mod left_out;

/// A node with pods, each with a volume.
struct Node {
    schedule: Schedule<()>,
    key: DigestKey,
    now: Now,
}

impl Node {
    fn new(parallelism: usize, key: DigestKey) -> Self {
        Self {
            schedule: Schedule::new(parallelism, Rng::with_seed(1)),
            key,
            now: Now {
                instant: Instant::now(),
                time: Timestamp::UNIX_EPOCH,
            },
        }
    }

    /// A pod with these hooks, which has had its first delivery.
    fn add(&mut self, uid: &str, hooks: &str) {
        self.add_undelivered(uid, hooks);
        self.deliver(uid, "1");
    }

    /// A pod with these hooks.
    fn add_undelivered(&mut self, uid: &str, hooks: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"annotations": {"larder.dev/on-change": hooks}},
            "spec": {
                "containers": [{"name": "web"}],
                "volumes": [{"name": "v", "configMap": {"name": "c"}}],
            },
        }))
        .unwrap();
        let sources = HookSources {
            allowed: AllowedActions::default(),
            configured: &[],
            program: &[],
        };
        let hooks = sources.hooks_of(&pod.metadata, || PodOutline::of(&pod), None);
        let hooks = Arc::new(hooks.unwrap());
        assert_eq!(hooks.errors.len(), 0, "{:?}", hooks.errors);
        let (key, past) = (&self.key, Past::default());
        let time = self.now.time;
        self.schedule
            .adopt(&uid.into(), (), hooks, &past, key, time);
    }

    fn part() -> PartKey {
        PartKey::Volume("v".into(), VolumeKind::ConfigMap)
    }

    fn tags(&self, uid: &str, text: &str) -> PartTags {
        let hooks = self.schedule.pod(uid).unwrap().hooks();
        let files = std::iter::once(("f", text));
        PartTags::of(hooks, &Self::part(), files, &self.key).unwrap()
    }

    fn deliver(&mut self, uid: &str, text: &str) {
        let content = PartContent {
            tags: self.tags(uid, text),
            swapped: None,
        };
        let parts = vec![(Self::part(), Arc::new(content))];
        self.schedule.pass(uid, parts, &self.key, self.now);
    }

    /// The attempts that begin `secs` later, by pod and hook.
    fn due(&mut self, secs: u64) -> Vec<Attempt<()>> {
        self.now.instant += Duration::from_secs(secs);
        self.schedule.due(self.now).0
    }

    fn ended(&mut self, attempt: &Attempt<()>, end: &AttemptEnd) {
        self.schedule.ended(attempt.id, end, self.now);
    }

    fn record(&mut self, uid: &str) -> Option<String> {
        let record = self.schedule.record(uid, &self.key);
        record.map(|record| String::from_utf8(record.text()).unwrap())
    }
}

fn kept() -> DigestKey {
    DigestKey::from_bytes(&[1; DigestKey::BYTES])
}

fn failed() -> AttemptEnd {
    AttemptEnd::Failed {
        reason: "exit status 1".to_owned(),
        output: "no such file".to_owned(),
        is_final: false,
    }
}

// on-change 33
#[test]
fn container_is_not_restarted_while_newer_content_waits() {
    let hook = "[{http: 80/, onFailure: Restart, retry: {attempts: 1}}]";
    let mut node = Node::new(8, kept());
    node.add("a", hook);
    node.deliver("a", "2");
    let [attempt] = &node.due(1)[..] else {
        panic!("one attempt");
    };
    assert!(attempt.control.restarts_after_failure());
    node.deliver("a", "3");
    assert!(!attempt.control.restarts_after_failure());
    node.ended(attempt, &failed());
    assert_eq!(node.due(1).len(), 1);
}

// on-change 59, 60
#[test]
fn attempt_is_recorded_as_uncertain_from_its_beginning_to_its_success() {
    let mut node = Node::new(8, kept());
    node.add("a", "signal:SIGHUP");
    assert!(!node.record("a").unwrap().contains("uncertain"));
    node.deliver("a", "2");
    // The next agent has the key: it sees that the content differs.
    assert_eq!(node.record("a"), None);
    let attempt = node.due(1).remove(0);
    assert!(node.record("a").unwrap().contains("uncertain"));
    node.ended(&attempt, &AttemptEnd::Succeeded);
    assert!(!node.record("a").unwrap().contains("uncertain"));
}

// on-change 59
#[test]
fn owed_notification_is_recorded_before_the_swap_where_the_key_ends() {
    let mut node = Node::new(8, DigestKey::temporary().unwrap());
    node.add("a", "signal:SIGHUP");
    node.record("a");
    let tags = ["1", "2"].map(|text| node.tags("a", text));
    assert!(!node.schedule.announce("a", &Node::part(), &tags[0]));
    assert!(node.schedule.announce("a", &Node::part(), &tags[1]));
    assert!(node.record("a").unwrap().contains("uncertain"));
    node.deliver("a", "2");
    assert!(node.record("a").unwrap().contains("uncertain"));
    // Back before an attempt has begun: nothing is owed.
    assert!(node.schedule.announce("a", &Node::part(), &tags[0]));
    node.deliver("a", "1");
    assert!(!node.record("a").unwrap().contains("uncertain"));
}

#[test]
fn failure_that_counts_as_done_leaves_nothing_owed() {
    let mut node = Node::new(8, DigestKey::temporary().unwrap());
    node.add("a", "[{signal: SIGHUP, onFailure: Ignore}]");
    node.deliver("a", "2");
    let attempt = node.due(1).remove(0);
    node.ended(&attempt, &failed());
    assert!(!node.record("a").unwrap().contains("uncertain"));
}

// Attack: containers that take hours to end.
#[test]
fn restart_that_waits_holds_no_place() {
    let mut node = Node::new(1, kept());
    node.add(
        "a",
        "[{steps: [{restart: true}, {signal: HUP}], debounce: 0s}]",
    );
    node.add("b", "[{signal: HUP, debounce: 0s}]");
    node.deliver("a", "2");
    let first = node.due(0).remove(0);
    node.deliver("b", "2");
    assert_eq!(node.due(1).len(), 0);
    node.schedule.yield_place(first.id);
    let second = node.due(0).remove(0);
    assert_eq!(second.uid, "b");
    // The next step of the first waits for a place.
    node.schedule.claim_place(first.id, node.now.instant);
    assert_eq!(node.due(0).len(), 0);
    assert!(!is_placed(&first.control));
    node.ended(&second, &AttemptEnd::Succeeded);
    assert_eq!(node.due(0).len(), 0);
    assert!(is_placed(&first.control));
}

/// Whether the round has its place, without waiting.
fn is_placed(control: &RoundControl) -> bool {
    let mut placed = std::pin::pin!(control.placed());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    placed.as_mut().poll(&mut context).is_ready()
}
