//! Objects that are missing, optional or immutable.

use larder_agent::status::Phase;
use larder_apiserver::ApiKind;
use larder_e2e::{fake_kubelet::ObjectStrategy, situations::Situation};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{Setup, World, millis, pod, secs};

#[tokio::test(start_paused = true)]
async fn nothing_is_touched_while_a_required_object_is_missing() {
    // beside-kubelet 11
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    world.delete(ApiKind::ConfigMap, "app");
    sleep(millis(2_500)).await;
    assert_eq!(world.touches(), 0);
    assert_eq!(world.file("web", "v", "n").as_deref(), Some("0"));
    let (phase, reason) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Failing);
    assert!(reason.contains("configmap \"app\" not found"), "{reason}");
    world.config_map("app", &[("n", "1")]);
    let taken = world.until_file("web", "v", "n", "1").await;
    assert!(taken <= millis(300), "{taken:?}");
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 1);
}

#[tokio::test(start_paused = true)]
async fn larder_waits_for_a_kubelet_that_backs_off() {
    // beside-kubelet 12
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    world.delete(ApiKind::ConfigMap, "app");
    // Another change of the pod makes the kubelet notice; its waits are 0.5, 1, 2, 4, 8, 16 and 32 s.
    world.apply(
        &pod("web")
            .config_map("v", "app")
            .set("/metadata/labels", json!({"a": "b"}))
            .build(),
    );
    sleep(secs(36)).await;
    assert_eq!(world.touches(), 0);
    world.config_map("app", &[("n", "1")]);
    sleep(secs(6)).await;
    let (phase, reason) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Waiting);
    assert!(reason.contains("kubelet retries at"), "{reason}");
    let taken = world.until_file("web", "v", "n", "1").await;
    assert!((secs(15)..=secs(27)).contains(&taken), "{taken:?}");
    world.until_delivered("web").await;
    assert!(
        (1..=4).contains(&world.touches()),
        "{} touches",
        world.touches()
    );
}

#[tokio::test(start_paused = true)]
async fn an_optional_object_comes_changes_and_goes_in_time() {
    // beside-kubelet 13
    let world = World::start().await;
    let optional = json!({"configMap": {"name": "app", "optional": true}});
    world.run(pod("web").volume("v", optional)).await;
    for text in ["1", "2"] {
        world.config_map("app", &[("n", text)]);
        let taken = world.until_file("web", "v", "n", text).await;
        assert!(taken <= millis(300), "{text}: {taken:?}");
        world.until_delivered("web").await;
        sleep(secs(3)).await;
    }
    world.delete(ApiKind::ConfigMap, "app");
    let is_gone = || world.file("web", "v", "n").is_none();
    let taken = world.until("the file to go", is_gone).await;
    assert!(taken <= millis(300), "{taken:?}");
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_its_first_mount_is_not_touched() {
    // beside-kubelet 14
    let world = World::start().await;
    world.apply(&pod("web").config_map("v", "app").build());
    sleep(secs(5)).await;
    world.config_map("app", &[("n", "1")]);
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_waits_for_its_environment_is_touched_once() {
    // beside-kubelet 15: on the fake as well.
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let from = json!([{"secretRef": {"name": "late"}}]);
    let web = pod("web")
        .config_map("v", "app")
        .set("/spec/containers/0/envFrom", from);
    world.apply(&web.build());
    sleep(secs(3)).await;
    let pod = world.server.get(ApiKind::Pod, "default", "web").unwrap();
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
    assert_eq!(waiting, "CreateContainerConfigError");
    world.secret("late", &[("A", "1")]);
    runs_after_one_touch(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_reads_an_env_file_is_touched_when_its_object_comes() {
    // beside-kubelet 15: the rest of its environment comes from a file that another container has written.
    let world = World::start().await;
    let variables = json!([
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "late", "key": "A"}}},
        {"name": "B", "valueFrom": {"fileKeyRef": {"volumeName": "scratch", "path": "env", "key": "B"}}},
    ]);
    let web = pod("web")
        .volume("scratch", json!({"emptyDir": {}}))
        .set("/spec/containers/0/env", variables);
    world.apply(&web.build());
    sleep(secs(3)).await;
    // The file is missing, too, so a touch would be in vain.
    world.secret("late", &[("A", "1")]);
    sleep(secs(3)).await;
    assert_eq!(world.touches(), 0);
    world.write_env_file("web", "scratch", "env", "B='2'\n");
    world.secret("late", &[("A", "2")]);
    runs_after_one_touch(&world).await;
}

/// Waits until the container of `web` runs: within a second, and after the first touch.
async fn runs_after_one_touch(world: &World) {
    let runs = || {
        let pod = world.server.get(ApiKind::Pod, "default", "web").unwrap();
        pod["status"]["phase"] == "Running"
    };
    let taken = world.until("the container to run", runs).await;
    assert!(taken <= secs(1), "{taken:?}");
    assert_eq!(world.touches(), 1);
}

fn immutable_map(text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "immutable": true, "data": {"n": text}})
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_caches_objects_delivers_a_recreated_immutable_one() {
    for strategy in [ObjectStrategy::Cache, ObjectStrategy::Get] {
        let setup = Setup {
            strategy,
            ..Setup::default()
        };
        let world = World::with(setup).await;
        world.apply(&immutable_map("0"));
        world.run(pod("web").config_map("v", "app")).await;
        world.delete(ApiKind::ConfigMap, "app");
        sleep(secs(1)).await;
        world.apply(&immutable_map("1"));
        world.apply(&pod("second").config_map("v", "app").build());
        for name in ["second", "web"] {
            world.until_file(name, "v", "n", "1").await;
            world.until_delivered(name).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_recreated_immutable_object_is_pinned_until_its_last_pod_is_gone() {
    // beside-kubelet 16
    let world = World::start().await;
    let map = immutable_map;
    world.apply(&map("0"));
    world.run(pod("web").config_map("v", "app")).await;
    world.delete(ApiKind::ConfigMap, "app");
    sleep(secs(1)).await;
    world.apply(&map("1"));
    // larder no longer follows an immutable object; a new pod makes it read the present one.
    world.apply(&pod("second").config_map("v", "app").build());
    world.until_file("second", "v", "n", "0").await;
    world
        .until_phase("second", "v", Phase::Held, "Pinned")
        .await;
    sleep(secs(120)).await;
    assert_eq!(world.touches(), 0);
    assert_eq!(world.file("web", "v", "n").as_deref(), Some("0"));
    world.delete(ApiKind::Pod, "web");
    world.delete(ApiKind::Pod, "second");
    sleep(secs(2)).await;
    world.apply(&pod("next").config_map("v", "app").build());
    world.until_file("next", "v", "n", "1").await;
    world.until_delivered("next").await;
    assert_eq!(world.touches(), 0);
}

// The rows of agents that serve volumes are in larder-agent.
#[tokio::test(start_paused = true)]
async fn every_output_says_the_same_of_a_pinned_object() {
    let situation = Situation::named("beside a kubelet an immutable object was made again");
    let world = World::start().await;
    world.apply(&immutable_map("0"));
    world.run(pod("first").config_map("v", "app")).await;
    world.delete(ApiKind::ConfigMap, "app");
    sleep(secs(1)).await;
    world.apply(&immutable_map("1"));
    world.apply(&pod("web").config_map("v", "app").build());
    world.until_phase("web", "v", Phase::Held, "Pinned").await;
    sleep(secs(60)).await;
    let status = world.status();
    let web = status.pods.iter().find(|pod| pod.name == "web").unwrap();
    assert_eq!(web.delivery.phase.as_str(), situation.phase);
    assert!(web.delivery.reason.contains(situation.reason));
    let directories = [world.larder_root(), world.kubelet_root()];
    let [root, kubelet] = directories.map(|path| path.display().to_string());
    let places = [(&*root, "/root-dir"), (&*kubelet, "/kubelet")];
    let document = serde_json::to_value(&status).unwrap();
    assert_eq!(situation.difference(document, &places), None);
    let metrics = world.metrics();
    let held = status
        .pods
        .iter()
        .filter(|pod| pod.delivery.phase == Phase::Held);
    let line = format!("pods{{phase=\"Held\"}} {}\n", held.count());
    assert!(metrics.contains(&line), "{metrics}");
    assert!(metrics.contains("\nproblems 0\n"), "{metrics}");
    let health = world.health();
    assert!(
        health.is_healthy() && health.waiting.is_empty(),
        "{health:?}"
    );
}
