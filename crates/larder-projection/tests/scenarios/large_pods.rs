//! Pods with thousands of parts cost time in proportion to their size.
//!
//! The limit is far above what linear work needs, so that a slow machine does not decide; quadratic work needs minutes.

use std::{sync::Arc, time::Duration};

use larder_objects::SecretBytes;
use larder_projection::{
    EnvFile, EnvFileRef, RuntimeFeatures, containers, environment, mounts, nested_mount_points,
    used_volumes,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::World;

const PARTS: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `work`; panics if this thread's CPU spent more than [`LIMIT`] on it.
#[track_caller]
fn check<T>(work: impl FnOnce() -> T) -> T {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = now();
    let result = work();
    let took = now().saturating_sub(before);
    assert!(took < LIMIT, "{took:?}");
    result
}

#[test]
fn mounts_of_many_volumes_cost_linear_time() {
    let volumes: Vec<_> = (0..PARTS)
        .map(|index| json!({"name": format!("v{index}"), "configMap": {"name": "m"}}))
        .collect();
    let flat = |index| json!({"name": format!("v{index}"), "mountPath": format!("/d/{index}")});
    let mut of_one: Vec<_> = (0..PARTS).map(flat).collect();
    of_one.push(json!({"name": "v0", "mountPath": "/d"}));
    let mut path = String::new();
    let nested = (1..500).map(|depth| {
        path += "/d";
        json!({"name": format!("v{depth}"), "mountPath": path})
    });
    let nested: Vec<_> = nested.collect();
    let world = World::new(json!({"volumes": volumes, "containers": [
        {"name": "flat", "volumeMounts": of_one}, {"name": "deep", "volumeMounts": nested},
    ]}));
    let points = check(|| nested_mount_points(&world.pod));
    assert_eq!(points["v0"].as_ref().unwrap().len(), PARTS);
    assert_eq!(points["v1"].as_ref().unwrap().len(), 1);
    assert_eq!(check(|| used_volumes(&world.pod)).len(), PARTS);
    let table = check(|| {
        let container = containers(&world.pod).next().unwrap();
        let environment = environment(&world.pod, container, &world.inputs).unwrap();
        let table = mounts(
            &world.pod,
            container,
            &environment,
            RuntimeFeatures::default(),
        );
        table.unwrap().len()
    });
    assert_eq!(table, PARTS + 1);
}

#[test]
fn variables_of_many_files_and_containers_cost_linear_time() {
    let from_file = |index| {
        let source = json!({"volumeName": format!("v{index}"), "path": "a.env", "key": "A"});
        json!({"name": format!("F{index}"), "valueFrom": {"fileKeyRef": source}})
    };
    let of_one_file = |index| {
        let source = json!({"volumeName": "v0", "path": "big.env", "key": format!("K{index}")});
        json!({"name": format!("K{index}"), "valueFrom": {"fileKeyRef": source}})
    };
    let of_containers = |index| {
        let source = json!({"containerName": format!("c{index}"), "resource": "requests.cpu"});
        json!({"name": format!("R{index}"), "valueFrom": {"resourceFieldRef": source}})
    };
    let count = PARTS / 2;
    let env: Vec<_> = (0..count)
        .map(from_file)
        .chain((0..count).map(of_one_file))
        .chain((0..count).map(of_containers))
        .collect();
    let volumes: Vec<_> = (0..count)
        .map(|index| json!({"name": format!("v{index}"), "emptyDir": {}}))
        .collect();
    let mounts: Vec<_> = (0..count)
        .map(|index| json!({"name": format!("v{index}"), "mountPath": format!("/{index}")}))
        .collect();
    let others = (0..count).map(|index| json!({"name": format!("c{index}")}));
    let first = json!({"name": "c", "env": env, "volumeMounts": mounts});
    let all: Vec<_> = std::iter::once(first).chain(others).collect();
    let mut world = World::new(json!({"volumes": volumes, "containers": all}));
    let file = |content: String| {
        Ok(Arc::new(EnvFile {
            host_path: "/f".to_owned(),
            content: SecretBytes::new(content.into_bytes()),
        }))
    };
    let at = |index: usize, path: &str| EnvFileRef {
        volume: format!("v{index}"),
        path: path.to_owned(),
    };
    for index in 0..count {
        let small = file("A='1'\n".to_owned());
        world.inputs.env_files.insert(at(index, "a.env"), small);
    }
    let lines = (0..count).map(|index| format!("K{index}='{}'\n", "x".repeat(80)));
    let big = file(lines.collect());
    world.inputs.env_files.insert(at(0, "big.env"), big);
    let variables = check(|| {
        let container = containers(&world.pod).next().unwrap();
        environment(&world.pod, container, &world.inputs)
            .unwrap()
            .iter()
            .count()
    });
    assert_eq!(variables, 3 * count);
}
