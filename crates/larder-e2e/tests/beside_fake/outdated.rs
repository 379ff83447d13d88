//! Content that a container sees only after a restart.

use std::fs;

use larder_agent::status::Phase;
use serde_json::json;

use crate::world::{World, pod};

#[tokio::test(start_paused = true)]
async fn mounts_with_a_sub_path_are_listed_whatever_the_environment_comes_from() {
    // beside-kubelet 32
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.config_map("env", &[("FILE", "n")]);
    let mounts = json!([
        {"name": "v", "mountPath": "/v"},
        {"name": "v", "mountPath": "/expanded", "subPathExpr": "$(FILE)"},
    ]);
    let web = pod("web")
        .config_map("v", "app")
        .env_from(json!({"configMapRef": {"name": "env"}}))
        .set("/spec/containers/0/volumeMounts", mounts);
    let plain = pod("plain")
        .config_map("v", "app")
        .env_from(json!({"configMapRef": {"name": "env"}}))
        .set(
            "/spec/containers/0/volumeMounts",
            json!([
                {"name": "v", "mountPath": "/v"},
                {"name": "v", "mountPath": "/plain", "subPath": "n"},
            ]),
        );
    world.run_all([web, plain]).await;
    for name in ["web", "plain"] {
        // As the kubelet mounts it when it starts the container.
        let volume = world.path(name, "v");
        let directory = volume.ancestors().nth(3).unwrap();
        let directory = directory.join("volume-subpaths/v/main");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("1"), "0").unwrap();
    }
    // Only the volumes are looked at.
    world.config_map("app", &[("n", "1")]);
    for (name, path) in [("web", "/expanded"), ("plain", "/plain")] {
        world.until_file(name, "v", "n", "1").await;
        world.until_delivered(name).await;
        let pods = world.status().pods;
        let found = pods.iter().find(|found| found.name == name).unwrap();
        let outdated = &found.containers[0].outdated;
        let outdated: Vec<_> = outdated.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(outdated, [path]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_mounted_by_sub_path_only_is_not_touched() {
    // beside-kubelet 32
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let mounts = json!([{"name": "v", "mountPath": "/n", "subPath": "n"}]);
    let web = pod("web")
        .config_map("v", "app")
        .set("/spec/containers/0/volumeMounts", mounts);
    world.run(web).await;
    world.config_map("app", &[("n", "1")]);
    let reason = "left to the kubelet: n differs";
    world.until_phase("web", "v", Phase::Waiting, reason).await;
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 0);
}
