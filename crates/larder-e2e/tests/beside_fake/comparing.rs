//! Differences that lead to a touch.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use larder_agent::status::Phase;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Setup, World, pod, secs};

/// The files behind `..data` of the volume `v` of `web`.
fn set(world: &World) -> PathBuf {
    world
        .path("web", "v")
        .join("..data")
        .canonicalize()
        .unwrap()
}

/// Starts larder on a node with a volume of two keys and a token, which `tamper` has changed on disk while larder did
/// not run. Returns how often larder touches the pod.
async fn touches_after(tamper: impl FnOnce(PathBuf)) -> (World, usize) {
    let mut world = World::without_larder(Setup::default()).await;
    world.config_map("app", &[("a", "1"), ("b", "2")]);
    let sources = json!({"projected": {"sources": [
        {"configMap": {"name": "app"}},
        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
    ]}});
    world.apply(&pod("web").volume("v", sources).build());
    world.until_file("web", "v", "a", "1").await;
    sleep(secs(5)).await;
    tamper(set(&world));
    world.start_larder();
    sleep(secs(10)).await;
    let touches = world.touches();
    (world, touches)
}

#[tokio::test(start_paused = true)]
async fn other_files_and_bytes_are_a_reason_to_touch() {
    // beside-kubelet 31
    let extra = |set: PathBuf| fs::write(set.join("extra"), "x").unwrap();
    let missing = |set: PathBuf| fs::remove_file(set.join("b")).unwrap();
    let other = |set: PathBuf| fs::write(set.join("b"), "3").unwrap();
    for (what, tamper) in [
        ("extra", Box::new(extra) as Box<dyn FnOnce(PathBuf)>),
        ("missing", Box::new(missing)),
        ("other byte", Box::new(other)),
    ] {
        let (world, touches) = touches_after(tamper).await;
        assert_eq!(touches, 1, "{what}");
        world.until_delivered("web").await;
        assert_eq!(world.file("web", "v", "b").as_deref(), Some("2"), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn modes_and_tokens_are_no_reason_to_touch() {
    // beside-kubelet 31
    let mode = |set: PathBuf| {
        fs::set_permissions(set.join("b"), fs::Permissions::from_mode(0o640)).unwrap();
    };
    let other = |set: PathBuf| fs::write(set.join("token"), "another").unwrap();
    for (what, tamper) in [
        ("mode", Box::new(mode) as Box<dyn FnOnce(PathBuf)>),
        ("other token", Box::new(other)),
    ] {
        let (world, touches) = touches_after(tamper).await;
        assert_eq!(touches, 0, "{what}");
        world.until_delivered("web").await;
    }
    let missing = |set: PathBuf| fs::remove_file(set.join("token")).unwrap();
    let (world, touches) = touches_after(missing).await;
    assert_eq!(touches, 0);
    let (phase, reason) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Waiting, "{reason}");
    assert!(reason.contains("token"), "{reason}");
}
