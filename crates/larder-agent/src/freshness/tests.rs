use larder_projection::{ContainerKind, VolumeKind};
use serde_json::json;

use super::*;
use crate::delivery::plan::PartKind;

fn wall() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// What these inputs, which are secrets or else, make unproven.
fn unproven(inputs: &[(&str, &str)]) -> Unproven {
    let doubts = inputs.iter().map(|(name, why)| {
        let doubt = Doubt {
            since: wall(),
            why: (*why).to_owned(),
        };
        let input = match *name {
            "Services" => Input::Services,
            "Pods" => Input::Pods,
            name => Input::Object(Kind::Secret, ObjectKey::new("prod", name)),
        };
        (input, doubt)
    });
    Unproven {
        inputs: doubts.collect(),
        ..Unproven::default()
    }
}

fn part(name: &str, secrets: &[&str]) -> Part {
    let reads = secrets.iter();
    Part {
        kind: PartKind::Volume(name.to_owned(), VolumeKind::Secret),
        reads: reads
            .map(|name| Need::Object(Kind::Secret, (*name).into()))
            .collect(),
    }
}

/// The phases of a pod and its volumes `a` and `b`, and the pod's reason.
fn shown(of_pod: &str, of_parts: [&str; 2], unproven: &Unproven) -> (Phase, [Phase; 2], String) {
    let volume = |name: &str, phase: &str| {
        json!({"name": name, "type": "secret", "path": "", "files": 1, "phase": phase,
            "since": "2025-01-01T00:00:00Z"})
    };
    let mut pod: PodStatus = serde_json::from_value(json!({
        "namespace": "prod", "name": "web", "uid": "u", "source": "api", "phase": of_pod,
        "since": "2025-01-01T00:00:00Z", "path": "", "containers": [],
        "volumes": [volume("a", of_parts[0]), volume("b", of_parts[1])],
    }))
    .unwrap();
    unproven.show(&[part("a", &["x"]), part("b", &["y", "z"])], &mut pod);
    let phase = |index: usize| pod.volumes[index].delivery.phase;
    (
        pod.delivery.phase,
        [phase(0), phase(1)],
        pod.delivery.reason,
    )
}

#[test]
fn a_delivered_part_with_an_unproven_object_is_stale_and_so_is_its_pod() {
    use Phase::{Delivered, Failing, Held, Stale, Waiting};
    let nothing = unproven(&[]);
    let text = |text: &str| text.to_owned();
    let both = ["Delivered", "Delivered"];
    assert_eq!(
        shown("Delivered", both, &nothing),
        (Delivered, [Delivered; 2], text(""))
    );
    let z = unproven(&[("z", "forbidden"), ("unread", "forbidden")]);
    let stale = text("volume b: secret z: forbidden");
    assert_eq!(
        shown("Delivered", both, &z),
        (Stale, [Delivered, Stale], stale.clone())
    );
    assert_eq!(
        shown("Held", ["Held", "Delivered"], &z),
        (Stale, [Held, Stale], stale)
    );
    // What is worse stays.
    for (worse, phase) in [("Waiting", Waiting), ("Failing", Failing)] {
        assert_eq!(
            shown(worse, [worse, "Delivered"], &z),
            (phase, [phase, Stale], text(""))
        );
        assert_eq!(
            shown(worse, ["Delivered", worse], &z),
            (phase, [Delivered, phase], text(""))
        );
    }
    let elsewhere = unproven(&[("unread", "forbidden")]);
    assert_eq!(
        shown("Delivered", both, &elsewhere),
        (Delivered, [Delivered; 2], text(""))
    );
}

#[test]
fn an_unproven_pod_makes_all_its_parts_stale_unless_it_has_another_source() {
    let (pods, services) = (
        unproven(&[("Pods", "forbidden")]),
        unproven(&[("Services", "forbidden")]),
    );
    let both = ["Delivered", "Delivered"];
    let stale = (
        Phase::Stale,
        [Phase::Stale; 2],
        "volume a: the pod: forbidden".to_owned(),
    );
    assert_eq!(shown("Delivered", both, &pods), stale);
    // No volume reads the Services.
    assert_eq!(shown("Delivered", both, &services).0, Phase::Delivered);
    let reads = Box::new([Need::Services]);
    let environment = Part {
        kind: PartKind::Environment("main".to_owned(), ContainerKind::Regular),
        reads,
    };
    let stale = |unproven: &Unproven, source: &str| {
        let pod = PodStatus {
            namespace: "prod".to_owned(),
            source: source.to_owned(),
            ..PodStatus::default()
        };
        let found = unproven.of_parts(&pod, std::slice::from_ref(&environment));
        let found = found.into_values().next();
        found.map(|(_, delivery)| delivery.reason)
    };
    let reason = |text: &str| Some(text.to_owned());
    assert_eq!(stale(&services, "file"), reason("the Services: forbidden"));
    assert_eq!(stale(&pods, "api"), reason("the pod: forbidden"));
    assert_eq!(stale(&pods, "file"), None);
}

#[test]
fn objects_with_one_cause_are_one_problem() {
    let all = unproven(&[("a", "refused"), ("b", "refused"), ("c", "forbidden")]);
    let problems: Vec<_> = all.problems().collect();
    assert_eq!(
        problems,
        [
            "secret prod/c may have changed unnoticed since 2026-01-01T00:00:00Z: forbidden",
            "secret prod/a and 1 more may have changed unnoticed since 2026-01-01T00:00:00Z: refused",
        ]
    );
}
