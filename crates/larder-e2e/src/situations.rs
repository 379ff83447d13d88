//! The situations that the parts of a pod can be in, and what every output says of each.
//!
//! An agent is brought into each situation in the tests of its mode, which hold its status document, health, metrics and
//! events to the table, and the document to the one that is recorded here. The tests of `larder status` hold its text and
//! `--wait` to the recorded documents. So no output contradicts another.
//!
//! `UPDATE_EXPECT=1` records the documents again.

use std::{env, fs, path::PathBuf};

use serde_json::{Value, json};

/// A situation, and what the outputs say of one pod.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Also of the recorded document.
    pub name: &'static str,
    /// Name of the pod.
    pub pod: &'static str,
    /// The phase of the pod and of its worst part.
    pub phase: &'static str,
    /// In the reason of the pod; empty if it has none.
    pub reason: &'static str,
    /// The state of its hook, and a part of the reason; empty without a hook.
    pub hook: [&'static str; 2],
    /// How a problem begins, or what it has after the place in a file; empty if there is none.
    pub problem: &'static str,
    /// In a line of `/healthz` about something that waits; empty if nothing does.
    pub waiting: &'static str,
    /// The reason of an event; empty if there is none, or the API server does not take it.
    pub event: &'static str,
    /// When a wait for everything is over.
    pub wait_for_all: Wait,
    /// When a wait for the pod is over.
    pub wait_for_pod: Wait,
}

/// When `larder status --wait` is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At once.
    Over,
    /// With `--allow-stale`.
    OverIfStaleIsEnough,
    /// Not in this situation.
    Pending,
}

const DELIVERED: Situation = Situation {
    name: "delivered",
    pod: "web",
    phase: "Delivered",
    reason: "",
    hook: ["", ""],
    problem: "",
    waiting: "",
    event: "",
    wait_for_all: Wait::Over,
    wait_for_pod: Wait::Over,
};

/// Something is not delivered.
const FAILING: Situation = Situation {
    phase: "Failing",
    event: "FailedMount",
    wait_for_all: Wait::Pending,
    wait_for_pod: Wait::Pending,
    ..DELIVERED
};

/// The Secret of the volume `tls` may have changed unnoticed.
const STALE: Situation = Situation {
    phase: "Stale",
    reason: "volume tls: secret tls: ",
    problem: "secret default/tls may have changed unnoticed since ",
    event: "ContentMayBeStale",
    wait_for_all: Wait::OverIfStaleIsEnough,
    wait_for_pod: Wait::OverIfStaleIsEnough,
    ..DELIVERED
};

/// The pod is delivered, and something else is wrong.
const PROBLEM: Situation = Situation {
    wait_for_all: Wait::Pending,
    ..DELIVERED
};

/// The pod is delivered, and its hook is not done.
const HOOK: Situation = Situation {
    wait_for_pod: Wait::Pending,
    ..PROBLEM
};

/// All situations.
pub const SITUATIONS: [Situation; 32] = [
    DELIVERED,
    Situation {
        name: "a key is missing",
        reason: "references non-existent secret key: none",
        ..FAILING
    },
    Situation {
        name: "the checkpoint cannot be written",
        problem: "checkpoint: ",
        ..DELIVERED
    },
    Situation {
        name: "the disk is full",
        reason: "No space left on device",
        ..FAILING
    },
    Situation {
        name: "the copy of a checkpoint is too old by the clock",
        reason: "has expired: the API server has not answered",
        problem: "API server: failed to follow the pods of node ",
        event: "",
        ..FAILING
    },
    Situation {
        name: "a step waits for the disk",
        phase: "Waiting",
        reason: "waiting for the disk, which does not answer",
        waiting: "pod default/web: waiting for the disk, which does not answer since ",
        event: "",
        ..FAILING
    },
    Situation {
        name: "the right on the Secret is taken away and it changes",
        ..STALE
    },
    Situation {
        name: "the credentials are refused for Secrets",
        ..STALE
    },
    Situation {
        name: "the watch of one object fails",
        ..STALE
    },
    Situation {
        name: "the server accepts requests for the Secret and is silent",
        ..STALE
    },
    Situation {
        name: "a connection without PING is silent",
        ..STALE
    },
    Situation {
        name: "outage",
        problem: "secret default/tls and 3 more may have changed unnoticed since ",
        event: "",
        ..STALE
    },
    Situation {
        name: "the API server is away at the start",
        reason: "volume tls: ",
        problem: "API server: failed to follow the pods of node ",
        event: "",
        ..STALE
    },
    Situation {
        name: "the right on Services is taken away",
        reason: "environment of main: the Services: ",
        problem: "the Services may have changed unnoticed since ",
        ..STALE
    },
    Situation {
        name: "the right on the Node is taken away",
        reason: "volume info: the Node: ",
        problem: "the Node may have changed unnoticed since ",
        ..STALE
    },
    Situation {
        name: "the right on ClusterTrustBundles is taken away",
        reason: "volume trust: the ClusterTrustBundles: ",
        problem: "the ClusterTrustBundles may have changed unnoticed since ",
        ..STALE
    },
    Situation {
        name: "a Service cannot be decoded",
        reason: "environment of main: the Services: default/db: ",
        problem: "the Services of namespace default may have changed unnoticed since ",
        ..STALE
    },
    Situation {
        name: "the Node cannot be decoded",
        reason: "volume info: the Node: node-1: ",
        problem: "the Node may have changed unnoticed since ",
        ..STALE
    },
    Situation {
        name: "the right on the pods is taken away",
        reason: "volume tls: the pod: ",
        problem: "the pods of the node may have changed unnoticed since ",
        ..STALE
    },
    Situation {
        name: "the hook is not valid",
        hook: ["Invalid", "larder.dev/on-change"],
        problem: "pod default/web: larder.dev/on-change: ",
        event: "InvalidOnChange",
        ..HOOK
    },
    Situation {
        name: "the hook fails",
        hook: ["Retrying", "the application says no"],
        event: "OnChangeFailed",
        ..HOOK
    },
    Situation {
        name: "an annotation is misspelled",
        problem: "pod default/web: annotation larder.dev/on-chnage: ",
        ..PROBLEM
    },
    Situation {
        name: "another pod states its UID",
        problem: "ignoring pod aaa_default",
        event: "FailedValidation",
        ..PROBLEM
    },
    Situation {
        name: "a static pod has an unknown field",
        problem: "/static-pods/other.json: the API server would reject it",
        ..PROBLEM
    },
    Situation {
        name: "the manifest of a static pod is rejected",
        pod: "static-node-1",
        reason: "environment of main: the pod: /static-pods/static.json: ",
        problem: "/static-pods/static.json: ",
        wait_for_all: Wait::Pending,
        ..STALE
    },
    Situation {
        name: "a manifest has an unknown field",
        problem: "/root-dir/manifests/tls.yaml: document 1, line ",
        ..PROBLEM
    },
    Situation {
        name: "the manifest of the Secret has an unknown field",
        reason: "volume tls: secret tls: /root-dir/manifests/tls.yaml: document 1, line 4: Secret \"tls\": unknown field",
        problem: "/root-dir/manifests/tls.yaml: document 1, line 4: Secret \"tls\": unknown field",
        wait_for_all: Wait::Pending,
        ..STALE
    },
    Situation {
        name: "the manifest of the Secret cannot be read",
        reason: "volume tls: secret tls: /root-dir/manifests/tls.yaml: document 1, line ",
        problem: "/root-dir/manifests/tls.yaml: document 1, line ",
        wait_for_all: Wait::Pending,
        ..STALE
    },
    Situation {
        name: "the manifest of the pod is rejected",
        reason: "volume tls: the pod: /root-dir/manifests/web.json: document 1",
        problem: "/root-dir/manifests/web.json: document 1",
        wait_for_all: Wait::Pending,
        ..STALE
    },
    Situation {
        name: "a document is rejected",
        problem: "/root-dir/manifests/tls.yaml: document 1",
        ..PROBLEM
    },
    Situation {
        name: "a manifest is on a disk that does not answer",
        problem: "/root-dir/manifests/linked.yaml: not read, its disk has not answered since ",
        waiting: "manifests /root-dir/manifests/linked.yaml: waiting for the disk since ",
        ..PROBLEM
    },
    Situation {
        name: "beside a kubelet an immutable object was made again",
        phase: "Held",
        reason: "Pinned: the kubelet serves the immutable ",
        wait_for_all: Wait::Pending,
        wait_for_pod: Wait::Pending,
        ..DELIVERED
    },
];

impl Situation {
    /// The one of this name.
    ///
    /// # Panics
    ///
    /// There is none.
    pub fn named(name: &str) -> Self {
        let found = SITUATIONS.into_iter().find(|found| found.name == name);
        found.unwrap_or_else(|| panic!("no situation {name:?}"))
    }

    fn file(&self) -> PathBuf {
        let name = format!("src/situations/{}.json", self.name.replace(' ', "-"));
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
    }

    /// The status document of the situation.
    ///
    /// # Panics
    ///
    /// None is recorded.
    pub fn recorded(&self) -> Value {
        let text = fs::read_to_string(self.file());
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        serde_json::from_str(&text).expect("it was recorded as JSON")
    }

    /// Compares a status document that names these places with the recorded one. Returns the difference; with
    /// `UPDATE_EXPECT`, records it in its place.
    ///
    /// # Panics
    ///
    /// None is recorded.
    pub fn difference(&self, status: Value, places: &Places<'_>) -> Option<String> {
        let status = normalized(status, places);
        let shown = serde_json::to_string_pretty(&status).expect("it is JSON");
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(self.file(), shown + "\n").expect("the recorded documents can be written");
            return None;
        }
        let recorded = self.recorded();
        (recorded != status).then(|| format!("{}: recorded {recorded:#}, found {shown}", self.name))
    }
}

/// Directories of a run, each with its name in recorded documents.
pub type Places<'a> = [(&'a str, &'static str)];

/// The document without what differs from run to run: times, ages, versions and directories.
pub fn normalized(mut status: Value, places: &Places<'_>) -> Value {
    normalize(&mut status, places);
    status
}

fn normalize(value: &mut Value, places: &Places<'_>) {
    match value {
        Value::String(text) => *text = normalized_text(text, places),
        Value::Array(values) => values.iter_mut().for_each(|value| normalize(value, places)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "ageSecs" | "attempts" | "verifiedInMs" => *value = json!(0),
                    "resourceVersion" if *value != "" => *value = json!("1"),
                    "mirror" => *value = json!("of-mirror"),
                    _ => normalize(value, places),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A line of text without what differs from run to run.
pub fn normalized_text(text: &str, places: &Places<'_>) -> String {
    let mut text = text.to_owned();
    for (directory, name) in places {
        text = text.replace(directory, name);
    }
    let parts: Vec<_> = text.split('/').map(normalized_set).collect();
    let text = parts.join("/");
    let mut shown = String::new();
    let mut rest = &text[..];
    while let Some(at) = rest.find('T') {
        let (start, end) = (
            at.checked_sub(10),
            rest[at..].find('Z').map(|end| at + end + 1),
        );
        match (start, end) {
            (Some(start), Some(end)) if rest.get(start..end).is_some_and(is_time) => {
                shown += &rest[..start];
                shown += "2026-01-01T00:00:00Z";
                rest = &rest[end..];
            }
            _ => {
                shown += &rest[..=at];
                rest = &rest[at + 1..];
            }
        }
    }
    shown + rest
}

/// The name of a set of a volume without its time: `..2026_01_31_12_00_00.123`.
fn normalized_set(part: &str) -> &str {
    let is_of_time = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'_' | b'.');
    if part.starts_with("..2") && part.bytes().all(is_of_time) {
        "..set"
    } else {
        part
    }
}

fn is_time(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_situation_has_a_name_of_its_own_and_a_document() {
        let names: BTreeSet<_> = SITUATIONS.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), SITUATIONS.len());
        for situation in SITUATIONS {
            assert!(situation.recorded().is_object(), "{}", situation.name);
        }
    }

    #[test]
    fn what_differs_from_run_to_run_is_left_out() {
        let status = json!({"since": "2026-11-29T02:03:04.5Z", "path": "/tmp/x/pods/T", "ageSecs": 7,
            "problems": ["The Secret has changed since 2026-11-29T02:03:04Z: TZ",
                "/tmp/x/tls/..2026_11_29_02_55_03.189841411/key: full"]});
        let expected = json!({"since": "2026-01-01T00:00:00Z", "path": "/root-dir/pods/T", "ageSecs": 0,
            "problems": ["The Secret has changed since 2026-01-01T00:00:00Z: TZ", "/root-dir/tls/..set/key: full"]});
        assert_eq!(normalized(status, &[("/tmp/x", "/root-dir")]), expected);
    }
}
