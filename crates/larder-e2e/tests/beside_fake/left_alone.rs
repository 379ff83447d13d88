//! Cases without a reason to touch a pod.

use larder_agent::status::Phase;
use larder_apiserver::ApiKind;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Setup, World, millis, on_touch, pod, secs};

#[tokio::test(start_paused = true)]
async fn a_volume_that_shows_the_touch_is_no_reason_for_another() {
    // beside-kubelet 17
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let annotations = json!({"downwardAPI": {"items": [
        {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]}});
    world
        .run(pod("web").config_map("v", "app").volume("d", annotations))
        .await;
    world.config_map("app", &[("n", "1")]);
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    sleep(secs(60)).await;
    assert_eq!(world.touches(), 1);
    let shown = world.file("web", "d", "annotations").unwrap();
    assert!(shown.contains("larder.dev/refresh"), "{shown}");
    let mut annotated = world.server.get(ApiKind::Pod, "default", "web").unwrap();
    annotated["metadata"]["annotations"]["team"] = json!("a");
    world.apply(&annotated);
    let is_shown = || {
        let shown = world.file("web", "d", "annotations");
        shown.is_some_and(|shown| shown.contains("team=\"a\""))
    };
    world.until("the annotation", is_shown).await;
    sleep(secs(60)).await;
    assert_eq!(world.touches(), 1);
    world.until_delivered("web").await;
}

#[tokio::test(start_paused = true)]
async fn status_shows_a_changed_label_in_its_file_within_two_seconds() {
    let world = World::start().await;
    let labels = json!({"downwardAPI": {"items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
    ]}});
    world.run(pod("web").volume("d", labels)).await;
    world.until_delivered("web").await;
    let mut labeled = world.server.get(ApiKind::Pod, "default", "web").unwrap();
    labeled["metadata"]["labels"] = json!({"a": "1"});
    world.apply(&labeled);
    let is_waiting = || {
        world
            .phase("web", "d")
            .is_some_and(|(phase, _)| phase == Phase::Waiting)
    };
    world.until("the label to be seen", is_waiting).await;
    world.until_file("web", "d", "labels", "a=\"1\"").await;
    assert!(world.until_delivered("web").await < secs(2));
    assert_eq!(world.touches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_excludes_itself_is_not_watched() {
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let never = json!({"larder.dev/refresh-policy": "never"});
    world.apply(
        &pod("web")
            .config_map("v", "app")
            .set("/metadata/annotations", never)
            .build(),
    );
    let is_excluded = || {
        let pods = world.status().pods;
        pods.iter().any(|pod| pod.delivery.phase == Phase::Excluded)
    };
    world.until("the pod to be excluded", is_excluded).await;
    assert_eq!(world.status().objects, []);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_shows_what_it_would_touch() {
    let mut world = World::without_larder(Setup::default()).await;
    world.dry_run = true;
    world.start_larder();
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    world.config_map("app", &[("n", "1")]);
    let reason = "would touch the pod: n differs";
    world.until_phase("web", "v", Phase::Waiting, reason).await;
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_is_never_touched() {
    // beside-kubelet 18
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    let items = json!({"downwardAPI": {"items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
    ]}});
    let mirror = |label: &str| {
        pod("static-node-1")
            .volume("d", items.clone())
            .set("/metadata/labels", json!({"a": label}))
            .set(
                "/metadata/annotations",
                json!({
                    "kubernetes.io/config.hash": "static", "kubernetes.io/config.mirror": "static",
                    "kubernetes.io/config.source": "file",
                }),
            )
            .build()
    };
    world.apply(&mirror("1"));
    sleep(secs(5)).await;
    world.apply(&mirror("2"));
    world.config_map("app", &[("n", "1")]);
    world.until_file("web", "v", "n", "1").await;
    sleep(secs(90)).await;
    assert_eq!(world.touches_of("static-node-1"), 0);
    assert_eq!(world.touches(), 1);
}

#[tokio::test(start_paused = true)]
async fn terminating_pods_are_not_touched() {
    // beside-kubelet 19
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let hook = json!({"preStop": {"sleep": {"seconds": 20}}});
    let slow = pod("slow")
        .config_map("v", "app")
        .set("/spec/containers/0/lifecycle", hook);
    let once = pod("once")
        .config_map("v", "app")
        .set("/spec/restartPolicy", json!("Never"));
    world.run_all([slow, once]).await;
    world.kubelet.finish("once");
    let pods = kube::Api::<k8s_openapi::api::core::v1::Pod>::default_namespaced(kube::Client::new(
        world.server.service(),
        "default",
    ));
    pods.delete("slow", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    sleep(secs(2)).await;
    world.config_map("app", &[("n", "1")]);
    sleep(secs(10)).await;
    assert_eq!(world.file("slow", "v", "n").as_deref(), Some("0"), "frozen");
    sleep(secs(30)).await;
    assert_eq!(world.touches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_replaced_under_its_name_is_forgotten_and_the_new_one_served() {
    // beside-kubelet 19: the pod is replaced while its touch is on the way.
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    let late = on_touch().times(1).delay(millis(300));
    world.server.faults().inject(late);
    world.config_map("app", &[("n", "1")]);
    sleep(millis(50)).await;
    // larder sees it only after the answer.
    let paused = world.server.faults().pause_delivery();
    world.delete(ApiKind::Pod, "web");
    let next = pod("web").set("/metadata/uid", json!("another"));
    world.apply(&next.config_map("v", "app").build());
    sleep(millis(500)).await;
    drop(paused);
    sleep(secs(20)).await;
    let answers: Vec<_> = world.patches().iter().map(|patch| patch.status).collect();
    assert_eq!(answers, [422]);
    let pods = world.status().pods;
    assert!(pods.iter().any(|pod| pod.uid == "another"), "{pods:#?}");
    let path = world
        .kubelet
        .volume_path("another", larder_projection::VolumeKind::ConfigMap, "v");
    assert_eq!(std::fs::read_to_string(path.join("n")).unwrap(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_cluster_s_authority_alone_touches_no_pod() {
    // beside-kubelet 26
    let world = World::start().await;
    world.config_map("kube-root-ca.crt", &[("ca.crt", "0")]);
    let access = json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt"}},
    ]}});
    world.run(pod("web").volume("v", access)).await;
    world.config_map("kube-root-ca.crt", &[("ca.crt", "1")]);
    sleep(secs(5)).await;
    assert_eq!(world.touches(), 0);
    world.until_file("web", "v", "ca.crt", "1").await;
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_volume_that_is_republished_gets_the_first_touch_only() {
    // beside-kubelet 40
    let world = World::start().await;
    world.apply(
        &json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": "csi.example.com"}, "spec": {"requiresRepublish": true}}),
    );
    sleep(secs(1)).await;
    world.config_map("app", &[("n", "0")]);
    let csi = json!({"csi": {"driver": "csi.example.com"}});
    world
        .run(pod("web").config_map("v", "app").volume("csi", csi))
        .await;
    world.kubelet.lose_flags();
    world.config_map("app", &[("n", "1")]);
    sleep(secs(30)).await;
    assert_eq!(world.touches(), 1);
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 1);
}

#[tokio::test(start_paused = true)]
async fn daemon_sets_wait_in_a_large_cluster_and_others_do_not() {
    // beside-kubelet 25
    let mut waits = Vec::new();
    for seed in 0..8 {
        let setup = Setup {
            ttl: Some(60),
            seed,
            ..Setup::default()
        };
        let world = World::with(setup).await;
        world.config_map("one", &[("n", "0")]);
        world.config_map("two", &[("n", "0")]);
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]);
        let daemon = pod("daemon")
            .config_map("v", "one")
            .set("/metadata/ownerReferences", owner);
        world
            .run_all([daemon, pod("single").config_map("v", "two")])
            .await;
        world.config_map("two", &[("n", "1")]);
        let taken = world.until_file("single", "v", "n", "1").await;
        assert!(taken <= millis(300), "{taken:?}");
        sleep(secs(3)).await;
        world.config_map("one", &[("n", "1")]);
        let touched = || world.touches_of("daemon") == 1;
        let waited = world.until("the touch", touched).await;
        assert!(waited <= millis(5_050), "{waited:?}");
        waits.push(waited);
    }
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(*most > *least + secs(1), "nodes differ: {waits:?}");
}
