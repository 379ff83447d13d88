//! The status of an agent as lines for people.

use jiff::Timestamp;
use larder_agent::status::{
    AgentStatus, Delivery, HookStatus, ObjectStatus, Phase, PodStatus, VolumeStatus,
};

use super::{
    beside,
    urgency::{is_failing, most_urgent_first},
};
use crate::output::{
    age, because, count, escaped,
    table::{Row, table},
};

/// Whether it needs no more work.
pub(super) fn is_done(delivery: &Delivery) -> bool {
    matches!(
        delivery.phase,
        Phase::Delivered | Phase::Ended | Phase::Excluded
    )
}

/// Whether a pod and its hooks need no more work.
pub(super) fn is_settled(pod: &PodStatus) -> bool {
    is_done(&pod.delivery) && has_idle_hooks(pod)
}

/// Whether no hook of the pod is pending or failing.
pub(super) fn has_idle_hooks(pod: &PodStatus) -> bool {
    pod.on_change.iter().all(|hook| hook.state == "Idle")
}

/// All pods: a head line with counts, problems, the pods, the most urgent first, and the parts that are not delivered. If
/// it `is_wide`, every part, watch scopes and objects.
pub(super) fn overview(status: &AgentStatus, is_wide: bool, now: Timestamp) -> String {
    let mut text = serving(status);
    text += &head(status);
    if is_wide {
        text += &escaped_line(&format!(
            "change detection {}, watch scope {}, root directory {}, started {} ago",
            status.change_detection,
            status.watch_scope,
            status.root_dir,
            age(status.started, now)
        ));
    }
    text += &notes(status);
    let pods = most_urgent_first(&status.pods);
    text += &pod_section(&pods, is_wide, now);
    let all = pods.into_iter();
    text += &section(all.clone().flat_map(|pod| parts(pod, is_wide, now)));
    text += &section(all.clone().flat_map(|pod| beside::outdated(pod, now)));
    let hooks = all.flat_map(|pod| pod.on_change.iter().map(move |hook| (pod, hook)));
    // An idle hook gets no line.
    let hooks = hooks
        .filter(|(_, hook)| is_wide || hook.state != "Idle")
        .map(|(pod, hook)| {
            let mut row = hook_row(hook, now);
            row[0].1 = format!("{}/{}/{}", pod.namespace, pod.name, hook.name);
            row
        });
    text += &section(hooks);
    if is_wide {
        text += &section(status.watch_scopes.iter().map(|choice| {
            [
                ("NAMESPACE", choice.namespace.clone()),
                ("KIND", choice.kind.clone()),
                ("WATCH SCOPE", choice.scope.clone()),
                ("REASON", choice.reason.clone()),
            ]
        }));
    }
    // A watch may break, or be denied, under a pod that runs.
    text + &objects(status, |object| is_wide || !object.error.is_empty())
}

/// One pod in full.
pub(super) fn explanation(status: &AgentStatus, pod: &PodStatus, now: Timestamp) -> String {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let mut text = escaped_line(&format!(
        "pod {name}: {} for {}{}",
        pod.delivery.phase.as_str(),
        age(pod.delivery.since, now),
        because(&pod.delivery.reason)
    ));
    let mut fact = |label: &str, value: &str| {
        if !value.is_empty() {
            text += &escaped_line(&format!("  {label:<11}{value}"));
        }
    };
    fact("UID", &pod.uid);
    fact("source", &pod.source);
    fact("mirror", mirror(pod));
    fact("directory", &short_path(&status.root_dir, pod));
    if let Some(deleted) = pod.deletion_timestamp {
        let until =
            "served until it is gone from its source; the program that runs the pod ends it";
        fact("deletion", &format!("{deleted:.0}, {until}"));
    }
    text += &notes(status);
    text += &section(pod.volumes.iter().map(|volume| {
        let reason =
            beside::reason(volume).unwrap_or_else(|| reason(&volume.delivery, volume.stale_as_of));
        [
            ("VOLUME", volume.name.clone()),
            ("TYPE", volume.type_.clone()),
            ("PHASE", volume.delivery.phase.as_str().to_owned()),
            ("AGE", age(volume.delivery.since, now)),
            ("FILES", volume.files.to_string()),
            ("LAST SWAP", last(volume.last_swap, now)),
            ("PATH", below(pod, &volume.path)),
            ("REASON", reason),
        ]
    }));
    let noted = pod.volumes.iter().filter(|volume| !volume.note.is_empty());
    text.extend(noted.map(|volume| {
        let VolumeStatus { name, note, .. } = volume;
        escaped_line(&format!("note: volume {name}: {note}"))
    }));
    text += &section(pod.containers.iter().map(|container| {
        let reason = reason(&container.delivery, container.stale_as_of);
        [
            ("ENVIRONMENT OF", container.name.clone()),
            ("PHASE", container.delivery.phase.as_str().to_owned()),
            ("AGE", age(container.delivery.since, now)),
            ("PATH", below(pod, &container.path)),
            ("REASON", reason),
        ]
    }));
    text += &section(beside::outdated(pod, now));
    text += &section(beside::sub_paths(pod, now));
    text += &section(pod.on_change.iter().map(|hook| hook_row(hook, now)));
    for hook in pod.on_change.iter().filter(|hook| !hook.output.is_empty()) {
        text.push('\n');
        text += &escaped_line(&format!("last output of {}", hook.name));
        let lines = hook.output.lines();
        text.extend(lines.map(|line| escaped_line(&format!("  {line}"))));
    }
    text + &objects(status, |object| object.pods.contains(&name))
}

/// `API server away since 2026-01-01T00:00:00Z; serving 12 pods from the checkpoint of 2026-01-01T00:00:00Z`
fn serving(status: &AgentStatus) -> String {
    let serving = status.checkpoint.as_ref();
    let Some(serving) = serving.and_then(|checkpoint| checkpoint.serving.as_ref()) else {
        return String::new();
    };
    escaped_line(&format!(
        "API server away since {:.0}; serving {} from the checkpoint of {:.0}",
        serving.away_since,
        count(serving.pods, "pod"),
        serving.as_of
    ))
}

/// The problems of the checkpoint.
fn checkpoint_notes(status: &AgentStatus) -> Vec<String> {
    let Some(checkpoint) = &status.checkpoint else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if checkpoint.key_beside_data {
        notes.push(format!(
            "checkpoint: its key ({}) is on the same machine as the data; a stolen disk can be read",
            checkpoint.key
        ));
    }
    notes
}

fn hook_row(hook: &HookStatus, now: Timestamp) -> Row<8> {
    let since = hook.since.map(|since| age(since, now));
    [
        ("HOOK", hook.name.clone()),
        ("ACTION", hook.action.clone()),
        ("STATE", hook.state.clone()),
        ("AGE", since.unwrap_or_default()),
        ("ATTEMPTS", hook.attempts.to_string()),
        ("LAST SUCCESS", last(hook.last_success, now)),
        ("DEFINED IN", hook.place.clone()),
        ("REASON", hook.reason.clone()),
    ]
}

/// `node n1: 3 pods, 2 delivered, 1 failing; 4 volumes, 1 not delivered; 1 of 2 hooks failing`
fn head(status: &AgentStatus) -> String {
    let [delivered, others @ ..] = Phase::ALL;
    // What needs attention comes first.
    let phases = std::iter::once(delivered).chain(others.into_iter().rev());
    let by_phase = phases.filter_map(|phase| {
        let pods = status.pods.iter();
        match pods.filter(|pod| pod.delivery.phase == phase).count() {
            0 => None,
            pods => Some(format!("{pods} {}", phase.as_str().to_lowercase())),
        }
    });
    let all = std::iter::once(count(status.pods.len(), "pod"));
    let pods: Vec<_> = all.chain(by_phase).collect();
    let volumes = || status.pods.iter().flat_map(|pod| &pod.volumes);
    let pending = volumes().filter(|volume| !is_done(&volume.delivery));
    let pending = match pending.count() {
        0 => String::new(),
        pending => format!(", {pending} not delivered"),
    };
    let volumes = count(volumes().count(), "volume");
    let hooks = || status.pods.iter().flat_map(|pod| &pod.on_change);
    let failing = match hooks().filter(|hook| is_failing(hook)).count() {
        0 => String::new(),
        failing => format!("; {failing} of {} failing", count(hooks().count(), "hook")),
    };
    let pods = pods.join(", ");
    escaped_line(&format!(
        "node {}: {pods}; {volumes}{pending}{failing}",
        status.node
    ))
}

/// Problems, sources without a report, and what may be unexpected.
fn notes(status: &AgentStatus) -> String {
    let sources = status.silent_sources.iter().map(|source| {
        format!("source {source} has not reported yet; nothing is removed until it does")
    });
    let problems = status
        .problems
        .iter()
        .map(|problem| format!("problem: {problem}"));
    let notes = status.notes.iter().map(|note| format!("note: {note}"));
    let lines = sources
        .chain(problems)
        .chain(notes)
        .chain(checkpoint_notes(status));
    let lines = beside::notes(status).into_iter().chain(lines);
    lines.map(|line| escaped_line(&line)).collect()
}

fn pod_section(pods: &[&PodStatus], is_wide: bool, now: Timestamp) -> String {
    let rows = pods.iter().map(|pod| {
        let done = pod
            .volumes
            .iter()
            .filter(|volume| is_done(&volume.delivery))
            .count();
        let deleted = pod.deletion_timestamp.map(|_| "Terminating");
        let reasons = deleted.into_iter().chain([pod.delivery.reason.as_str()]);
        let reasons: Vec<_> = reasons.filter(|reason| !reason.is_empty()).collect();
        [
            ("POD", format!("{}/{}", pod.namespace, pod.name)),
            ("PHASE", pod.delivery.phase.as_str().to_owned()),
            ("AGE", age(pod.delivery.since, now)),
            ("VOLUMES", format!("{done}/{}", pod.volumes.len())),
            ("SOURCE", pod.source.clone()),
            ("UID", pod.uid.clone()),
            ("MIRROR", mirror(pod).to_owned()),
            ("REASON", reasons.join("; ")),
        ]
    });
    if is_wide {
        return section(rows);
    }
    section(rows.map(|[pod, phase, age, volumes, .., reason]| [pod, phase, age, volumes, reason]))
}

/// The volumes and environments of a pod.
fn parts(pod: &PodStatus, is_wide: bool, now: Timestamp) -> impl Iterator<Item = Row<7>> {
    let part = move |name: &str, type_: &str, delivery: &Delivery, stale, content: [String; 2]| {
        let is_shown = is_wide || !is_done(delivery) || Option::is_some(&stale);
        let [files, last_swap] = content;
        is_shown.then(|| {
            [
                ("PART", format!("{}/{}/{name}", pod.namespace, pod.name)),
                ("TYPE", type_.to_owned()),
                ("PHASE", delivery.phase.as_str().to_owned()),
                ("AGE", age(delivery.since, now)),
                ("FILES", files),
                ("LAST SWAP", last_swap),
                ("REASON", reason(delivery, stale)),
            ]
        })
    };
    let volumes = pod.volumes.iter().filter_map(move |one| {
        let content = [one.files.to_string(), last(one.last_swap, now)];
        part(
            &one.name,
            &one.type_,
            &one.delivery,
            one.stale_as_of,
            content,
        )
    });
    let containers = pod.containers.iter().filter_map(move |one| {
        let (delivery, content) = (&one.delivery, Default::default());
        part(&one.name, "environment", delivery, one.stale_as_of, content)
    });
    volumes.chain(containers)
}

fn objects(status: &AgentStatus, is_shown: impl Fn(&ObjectStatus) -> bool) -> String {
    let shown = status.objects.iter().filter(|object| is_shown(object));
    section(shown.map(|object| {
        let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
        [
            ("OBJECT", name),
            ("STATE", object.state.clone()),
            ("VERSION", object.resource_version.clone()),
            ("STALENESS", format!("{}s", object.age_secs)),
            ("PODS", object.pods.join(",")),
            ("ERROR", object.error.clone()),
        ]
    }))
}

/// The directory of a pod, by name where larder has made such a link.
pub(in crate::commands) fn short_path(root_dir: &str, pod: &PodStatus) -> String {
    if pod.path == format!("{root_dir}/pods/{}", pod.uid) {
        return format!("{root_dir}/by-name/{}/{}", pod.namespace, pod.name);
    }
    pod.path.clone()
}

/// A path in the directory of a pod, relative to it.
fn below(pod: &PodStatus, path: &str) -> String {
    path.strip_prefix(&*pod.path)
        .and_then(|path| path.strip_prefix('/'))
        .unwrap_or(path)
        .to_owned()
}

/// UID of the mirror pod, or whether it is missing.
fn mirror(pod: &PodStatus) -> &str {
    match (&pod.mirror, pod.source.as_str()) {
        (Some(uid), _) => uid,
        (None, "file" | "http") => "missing",
        (None, _) => "",
    }
}

/// The reason of a part, with the mark of content from the checkpoint.
fn reason(delivery: &Delivery, stale_as_of: Option<Timestamp>) -> String {
    let mark = stale_as_of.map(|time| format!("stale as of {time:.0}"));
    let reason = Some(delivery.reason.clone()).filter(|reason| !reason.is_empty());
    let texts: Vec<_> = mark.into_iter().chain(reason).collect();
    texts.join("; ")
}

fn last(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map(|time| format!("{} ago", age(time, now)))
        .unwrap_or_default()
}

fn escaped_line(text: &str) -> String {
    format!("{}\n", escaped(text))
}

/// A table after a blank line; nothing without rows.
fn section<const N: usize>(rows: impl Iterator<Item = Row<N>>) -> String {
    let rows: Vec<_> = rows.collect();
    let Some(first) = rows.first() else {
        return String::new();
    };
    let heading = first.each_ref().map(|(heading, _)| *heading);
    let cells = rows.into_iter().map(|row| row.map(|(_, cell)| cell));
    format!("\n{}", table(heading, &cells.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    fn status() -> AgentStatus {
        let at = |phase: &str, reason: &str| json!({"phase": phase, "since": "2026-01-01T00:00:00Z", "reason": reason});
        let with = |mut value: serde_json::Value, delivery: serde_json::Value| {
            let fields = delivery.as_object().unwrap().clone();
            value.as_object_mut().unwrap().extend(fields);
            value
        };
        let missing = "secret \"tls\" not found";
        let volume = |name: &str, delivery| {
            with(
                json!({"name": name, "type": "secret", "path": format!("/r/{name}"), "files": 2}),
                delivery,
            )
        };
        let pod = |name: &str, volumes, delivery| {
            with(
                json!({"namespace": "prod", "name": name, "uid": "u", "source": "api", "path": "/r", "volumes": volumes, "containers": []}),
                delivery,
            )
        };
        let value = json!({
            "node": "n1", "rootDir": "/r", "started": "2026-01-01T00:00:00Z",
            "changeDetection": "Watch", "watchScope": "Object", "silentSources": [],
            "problems": ["a.yaml: \u{1b}[2J"],
            "pods": [
                pod("db", vec![volume("data", at("Delivered", ""))], at("Delivered", "")),
                pod("web", vec![volume("ok", at("Delivered", "")), volume("tls", at("Failing", missing))], at("Failing", missing)),
            ],
            "objects": [],
        });
        serde_json::from_value(value).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:03:05Z".parse().unwrap()
    }

    #[test]
    fn overview_shows_only_the_parts_that_are_not_delivered() {
        expect![[r#"
            node n1: 2 pods, 1 delivered, 1 failing; 3 volumes, 1 not delivered
            problem: a.yaml: \u{1b}[2J

            POD        PHASE       AGE    VOLUMES   REASON
            prod/web   Failing     3m5s   1/2       secret "tls" not found
            prod/db    Delivered   3m5s   1/1

            PART           TYPE     PHASE     AGE    FILES   LAST SWAP   REASON
            prod/web/tls   secret   Failing   3m5s   2                   secret "tls" not found
        "#]]
        .assert_eq(&overview(&status(), false, now()));
    }

    #[test]
    fn overview_shows_objects_that_cannot_be_read_now() {
        let mut status = status();
        status.objects = serde_json::from_value(json!([{"kind": "ConfigMap", "namespace": "default", "name": "denied",
            "state": "Synced", "resourceVersion": "1", "ageSecs": 60, "error": "403 Forbidden", "pods": []}]))
        .unwrap();
        let text = overview(&status, false, now());
        assert!(
            text.contains("ConfigMap default/denied") && text.contains("403 Forbidden"),
            "{text}"
        );
        status.objects[0].error.clear();
        let text = overview(&status, false, now());
        assert!(!text.contains("denied"), "{text}");
    }

    #[test]
    fn wide_overview_shows_every_part() {
        expect![[r#"
            node n1: 2 pods, 1 delivered, 1 failing; 3 volumes, 1 not delivered
            change detection Watch, watch scope Object, root directory /r, started 3m5s ago
            problem: a.yaml: \u{1b}[2J

            POD        PHASE       AGE    VOLUMES   SOURCE   UID   MIRROR   REASON
            prod/web   Failing     3m5s   1/2       api      u              secret "tls" not found
            prod/db    Delivered   3m5s   1/1       api      u

            PART           TYPE     PHASE       AGE    FILES   LAST SWAP   REASON
            prod/web/ok    secret   Delivered   3m5s   2
            prod/web/tls   secret   Failing     3m5s   2                   secret "tls" not found
            prod/db/data   secret   Delivered   3m5s   2
        "#]]
        .assert_eq(&overview(&status(), true, now()));
    }

    #[test]
    fn every_phase_is_shown_the_same_everywhere() {
        use Phase::{Delivered, Ended, Excluded, Failing, Held, Removing, Stale, Waiting};
        for (phase, is_done, is_listed) in [
            (Delivered, true, false),
            (Ended, true, false),
            (Excluded, true, false),
            (Held, false, true),
            (Stale, false, true),
            (Waiting, false, true),
            (Failing, false, true),
            (Removing, false, true),
        ] {
            let mut status = status();
            let reason = if is_listed {
                "secret tls: forbidden"
            } else {
                ""
            };
            let pod = &mut status.pods[1];
            pod.delivery = Delivery::new(phase, reason, now());
            pod.volumes[1].delivery = pod.delivery.clone();
            // The exit code of `--wait`.
            assert_eq!(is_settled(pod), is_done, "{phase:?}");
            let text = overview(&status, false, now());
            let first = if is_listed { "web" } else { "db" };
            let lines: Vec<_> = text.lines().collect();
            let pods = lines.iter().position(|line| line.starts_with("POD"));
            let line = lines[pods.unwrap() + 1];
            let is_first = line.starts_with(&format!("prod/{first} "));
            assert!(is_first || !is_listed, "{phase:?}: {text}");
            assert_eq!(
                text.contains("prod/web/tls "),
                is_listed,
                "{phase:?}: {text}"
            );
            assert_eq!(text.contains("forbidden"), is_listed, "{phase:?}: {text}");
            let counted = format!(
                "{} {}",
                1 + usize::from(phase == Delivered),
                phase.as_str().to_lowercase()
            );
            assert!(lines[0].contains(&counted), "{phase:?}: {text}");
        }
    }

    #[test]
    fn hooks_are_shown_with_state_and_reason() {
        let mut status = status();
        let hook = |name: &str, state: &str, reason: &str| HookStatus {
            name: name.to_owned(),
            action: "signal:SIGHUP".to_owned(),
            place: "larder.dev/on-change".to_owned(),
            state: state.to_owned(),
            since: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            reason: reason.to_owned(),
            output: reason.replace(' ', "\n"),
            attempts: u32::from(!reason.is_empty()),
            last_success: None,
        };
        status.pods.truncate(1);
        status.pods[0].on_change = vec![
            hook("idle", "Idle", ""),
            hook("failing", "Retrying", "no process of container web"),
        ];
        expect![[r#"
            node n1: 1 pod, 1 delivered; 1 volume; 1 of 2 hooks failing
            problem: a.yaml: \u{1b}[2J

            POD       PHASE       AGE    VOLUMES   REASON
            prod/db   Delivered   3m5s   1/1

            HOOK              ACTION          STATE      AGE    ATTEMPTS   LAST SUCCESS   DEFINED IN             REASON
            prod/db/failing   signal:SIGHUP   Retrying   3m5s   1                         larder.dev/on-change   no process of container web
        "#]]
        .assert_eq(&overview(&status, false, now()));
        let explained = explanation(&status, &status.pods[0], now());
        assert!(
            explained.contains("idle      signal:SIGHUP   Idle"),
            "{explained}"
        );
        let output = "\nlast output of failing\n  no\n  process\n  of\n";
        assert!(explained.contains(output), "{explained}");
    }

    #[test]
    fn notes_on_volumes_follow_them() {
        let mut status = status();
        status.pods[0].volumes[0].note = "only user 1000 may follow the link".to_owned();
        let text = explanation(&status, &status.pods[0], now());
        let note = "\nnote: volume data: only user 1000 may follow the link\n";
        assert!(text.contains(note), "{text}");
    }

    #[test]
    fn explanation_shows_one_pod_in_full() {
        let status = status();
        expect![[r#"
            pod prod/web: Failing for 3m5s: secret "tls" not found
              UID        u
              source     api
              directory  /r
            problem: a.yaml: \u{1b}[2J

            VOLUME   TYPE     PHASE       AGE    FILES   LAST SWAP   PATH   REASON
            ok       secret   Delivered   3m5s   2                   ok
            tls      secret   Failing     3m5s   2                   tls    secret "tls" not found
        "#]]
        .assert_eq(&explanation(&status, &status.pods[1], now()));
    }
}
