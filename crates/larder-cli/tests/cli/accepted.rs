//! What an agent has accepted of its manifests is known to the next one: nothing worse takes the place of what is
//! delivered, whether the edit came before the restart or while no agent ran.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    Desk,
    run::{Agent, put, status, until},
};

/// A mistake in the manifests of a pod, which is called so, as is its Secret.
struct Mistake {
    pod: &'static str,
    /// The file with the mistake.
    file: &'static str,
    edit: fn(&str) -> String,
    /// What the problem says.
    problem: &'static str,
}

const MISTAKES: [Mistake; 6] = [
    Mistake {
        pod: "field",
        file: "field.yaml",
        edit: |text| text.replace("stringData", "stringDat"),
        problem: "unknown field \"stringDat\"",
    },
    Mistake {
        pod: "reference",
        file: "reference-pod.yaml",
        edit: |text| text.replace("valueFrom", "valuefrom"),
        problem: "valuefrom",
    },
    Mistake {
        pod: "empty",
        file: "empty.yaml",
        edit: |_| String::new(),
        problem: "has no objects",
    },
    Mistake {
        pod: "gone",
        file: "gone-pod.yaml",
        edit: |_| String::new(),
        problem: "has no objects",
    },
    Mistake {
        pod: "immutable",
        file: "immutable.yaml",
        edit: |text| text.replace("k: '1'", "k: '2'"),
        problem: "field is immutable",
    },
    Mistake {
        pod: "second",
        file: "0-second.yaml",
        edit: |_| secret("second", "2"),
        problem: "Secret default/second is already defined in m/second.yaml",
    },
];

fn secret(name: &str, value: &str) -> String {
    let immutable = if name == "immutable" {
        "immutable: true\n"
    } else {
        ""
    };
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{k: '{value}'}}\n{immutable}"
    )
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  volumes: [{{name: v, secret: {{secretName: {name}, optional: true}}}}]
  containers:
  - name: c
    image: i
    env: [{{name: X, valueFrom: {{secretKeyRef: {{name: {name}, key: k, optional: true}}}}}}]
    volumeMounts: [{{name: v, mountPath: /v}}]
"
    )
}

fn desk() -> Desk {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    for Mistake { pod: name, .. } in MISTAKES {
        put(&desk, &format!("{name}-pod.yaml"), &pod(name));
        put(&desk, &format!("{name}.yaml"), &secret(name, "1"));
    }
    desk
}

fn make_mistakes(desk: &Desk) {
    for Mistake { file, edit, .. } in MISTAKES {
        let path = format!("m/{file}");
        let text = fs::read_to_string(desk.path().join(&path)).unwrap_or_default();
        desk.replace(&path, &edit(&text));
    }
}

/// Key and variable of the pod.
fn delivered(desk: &Desk, pod: &str) -> (String, Value) {
    let pod = desk.path().join("root/by-name/default").join(pod);
    let read = |path: &str| fs::read_to_string(pod.join(path)).unwrap_or_default();
    let variables: Value = serde_json::from_str(&read("containers/c/env.json")).unwrap_or_default();
    (
        read("volumes/kubernetes.io~secret/v/k"),
        variables["X"].clone(),
    )
}

async fn until_all_are_named(desk: &Desk) {
    for Mistake { problem, .. } in MISTAKES {
        until(problem, || {
            let problems = status(desk)["problems"].clone();
            let named = problems.as_array().into_iter().flatten();
            let named = named.filter(|named| named.as_str().unwrap().contains(problem));
            named.count() == if problem == "has no objects" { 2 } else { 1 }
        })
        .await;
    }
}

#[track_caller]
fn assert_kept(desk: &Desk) {
    let pods = status(desk)["pods"].clone();
    for Mistake { pod, .. } in MISTAKES {
        assert_eq!(delivered(desk, pod), ("1".to_owned(), "1".into()), "{pod}");
        let mut found = pods.as_array().into_iter().flatten();
        let found = found.find(|found| found["name"] == pod);
        let phase = found.map(|found| &found["phase"]);
        let is_delivered = phase.is_some_and(|phase| phase == "Delivered");
        assert_eq!(is_delivered, pod == "second", "{pod}: {phase:?}");
    }
}

fn check(desk: &Desk) -> String {
    let run = desk.run("run --check --manifests m --root-dir root");
    assert_eq!(run.code, 1, "{run:?}");
    run.stderr
}

#[tokio::test]
async fn nothing_worse_takes_the_place_of_what_an_earlier_agent_accepted() {
    for is_running in [true, false] {
        let desk = desk();
        let record = desk.path().join("root/manifests.json");
        let mut agent = Agent::start(&desk);
        agent.summary();
        for Mistake { pod, .. } in MISTAKES {
            until(pod, || delivered(&desk, pod).1 == "1").await;
        }
        until("the record", || record.exists()).await;
        if is_running {
            make_mistakes(&desk);
            until_all_are_named(&desk).await;
            assert_kept(&desk);
        }
        assert_eq!(agent.signal(Signal::TERM), Some(0));
        // Dropped, one would unmount the volumes.
        let mut ended = vec![agent];
        if !is_running {
            make_mistakes(&desk);
        }
        let before = fs::read_to_string(&record).unwrap();
        let said = check(&desk);
        for Mistake { problem, .. } in MISTAKES {
            assert!(said.contains(problem), "{problem}: {said}");
        }
        assert_eq!(fs::read_to_string(&record).unwrap(), before);
        // Twice, as the second agent has not seen the good files at all.
        for _ in 0..2 {
            let mut agent = Agent::start(&desk);
            agent.summary();
            until_all_are_named(&desk).await;
            assert_kept(&desk);
            assert_eq!(agent.signal(Signal::TERM), Some(0));
            ended.push(agent);
        }

        let mut agent = Agent::start(&desk);
        agent.summary();
        for Mistake { pod: name, .. } in MISTAKES {
            desk.replace(&format!("m/{name}-pod.yaml"), &pod(name));
        }
        desk.replace("m/field.yaml", &secret("field", "2"));
        desk.replace("m/immutable.yaml", &secret("immutable", "1"));
        for gone in ["empty", "0-second"] {
            fs::remove_file(desk.path().join(format!("m/{gone}.yaml"))).unwrap();
        }
        until("the mended file", || delivered(&desk, "field").0 == "2").await;
        until("the end of the removed file", || {
            delivered(&desk, "empty").0.is_empty()
        })
        .await;
        until("the end of the problems", || {
            status(&desk)["problems"] == Value::Array(Vec::new())
        })
        .await;
        assert_eq!(delivered(&desk, "immutable").0, "1");
    }
}

#[tokio::test]
async fn the_record_has_no_value_and_is_read_by_its_user_alone() {
    let desk = desk();
    put(&desk, "immutable.yaml", &secret("immutable", "hunter2"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    let record = desk.path().join("root/manifests.json");
    until("the record", || record.exists()).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&record), 0o600);
    let text = fs::read_to_string(&record).unwrap();
    assert!(
        text.contains("immutable.yaml") && text.contains("digest"),
        "{text}"
    );
    assert!(
        !text.contains("hunter2") && !text.contains("aHVudGVyMg"),
        "{text}"
    );
    assert_eq!(agent.signal(Signal::TERM), Some(0));

    // One that is damaged is none, and the log says so.
    fs::write(&record, &text[1..]).unwrap();
    desk.replace("m/immutable.yaml", &secret("immutable", "other"));
    let mut agent = Agent::start(&desk);
    agent.event("cannot use the record of accepted manifests, taking this for a first start");
    until("the new value", || {
        delivered(&desk, "immutable").0 == "other"
    })
    .await;
    until("the new record", || {
        let now = fs::read_to_string(&record).unwrap_or_default();
        now.starts_with('{') && now != text
    })
    .await;
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    let run = desk.run("clean --root-dir root");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    assert!(!desk.path().join("root").exists());
}
