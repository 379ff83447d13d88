//! Changes that arrive: the pods that are touched, how often, and those that are not.

use std::{fs, time::Duration};

use futures::future::join_all;
use kube::api::DeleteParams;
use larder_e2e::NODE;
use serde_json::json;
use tokio::time::sleep;

use crate::{
    bed::{
        Bed, config_map_volume, container, content, pod, secret_volume, until, until_content,
        waits_for,
    },
    node::IMAGE,
};

/// Long enough to see a wrong touch: the second attempt is due after 1.5 s.
const QUIET: Duration = Duration::from_secs(3);

// beside-kubelet 1
// beside-kubelet 20: larder's patches
pub(crate) async fn change_arrives_with_one_touch(bed: &mut Bed) {
    let (ns, web) = bed.web_beside_larder("1").await;
    assert_eq!(bed.touches(&web).len(), 0, "nothing was out of date");
    let file = bed.app_file(&web);
    bed.set_config_map(&ns, "app", "2").await;
    let took = until_content(&file, "2").await;
    // By itself the kubelet takes 36 s at least; half of that leaves no doubt on the slowest machine.
    assert!(took < Duration::from_secs(18), "{took:?}");
    assert_eq!(
        content(&container(&web).path("/app/k")).as_deref(),
        Some("2")
    );
    bed.until_phase(&web, "app", "Delivered").await;
    let touches = bed.touches(&web);
    let [touch] = &touches[..] else {
        panic!("{touches:?}")
    };
    assert_eq!(
        (touch.code, touch.user.as_str()),
        (200, &*format!("system:node:{NODE}"))
    );
    let value = &touch.body["metadata"]["annotations"]["larder.dev/refresh"];
    let nothing_else = json!({
        "metadata": {"uid": web.metadata.uid, "annotations": {"larder.dev/refresh": value}},
    });
    assert!(value.is_string());
    assert_eq!(touch.body, nothing_else);
    assert_eq!(
        bed.larder()
            .metric("larder_beside_touches_total", "ok")
            .unwrap(),
        1
    );
}

// beside-kubelet 4
pub(crate) async fn burst_of_changes_ends_with_the_last_content(bed: &mut Bed) {
    let (ns, web) = bed.web_beside_larder("0").await;
    for change in 1..=50 {
        bed.set_config_map(&ns, "app", &change.to_string()).await;
        sleep(Duration::from_millis(20)).await;
    }
    bed.until_app_is(&web, "50").await;
    let touches = bed.touches(&web).len();
    // At most the limit of a minute; the fake kubelet's test counts them exactly.
    assert!((1..=10).contains(&touches), "{touches}");
}

// beside-kubelet 5
pub(crate) async fn touch_serves_all_volumes_of_a_pod(bed: &mut Bed) {
    let ns = bed.namespace().await;
    for name in ["a", "b"] {
        bed.create_config_map(&ns, name, "1").await;
        bed.create_secret(&ns, name, "1").await;
    }
    let secret = |name: &str| json!({"name": format!("s{name}"), "secret": {"secretName": name}});
    let volumes = json!([
        config_map_volume("a"),
        config_map_volume("b"),
        secret("a"),
        secret("b")
    ]);
    let web = bed.run_pod(&ns, &pod("web", volumes)).await;
    bed.start_larder().await;
    for volume in ["a", "b", "sa", "sb"] {
        bed.until_phase(&web, volume, "Delivered").await;
    }
    let (bed_ref, ns_ref) = (&*bed, &ns);
    join_all(["a", "b"].map(async |name| {
        futures::join!(
            bed_ref.set_config_map(ns_ref, name, "2"),
            bed_ref.set_secret(ns_ref, name, "2")
        );
    }))
    .await;
    for (plugin, volume) in [
        ("configmap", "a"),
        ("configmap", "b"),
        ("secret", "sa"),
        ("secret", "sb"),
    ] {
        let file = bed
            .volume(&web, &format!("kubernetes.io~{plugin}"), volume)
            .join("k");
        until_content(&file, "2").await;
        bed.until_phase(&web, volume, "Delivered").await;
    }
    let touches = bed.touches(&web).len();
    assert!(touches < 4, "{touches} touches for four volumes");
}

// beside-kubelet 11
pub(crate) async fn required_object_that_is_missing_is_no_reason_to_touch(bed: &mut Bed) {
    let (ns, web) = bed.web_beside_larder("1").await;
    let file = bed.app_file(&web);
    bed.delete_config_map(&ns, "app").await;
    bed.until_phase(&web, "app", "Failing").await;
    assert_eq!(bed.touches(&web).len(), 0);
    assert_eq!(content(&file).as_deref(), Some("1"), "the old file stays");
    bed.create_config_map(&ns, "app", "2").await;
    bed.until_app_is(&web, "2").await;
    assert!((1..=4).contains(&bed.touches(&web).len()));
}

// beside-kubelet 13
pub(crate) async fn optional_object_comes_changes_and_goes(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let volume = json!({"name": "app", "configMap": {"name": "app", "optional": true}});
    let web = bed.run_pod(&ns, &pod("web", json!([volume]))).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let file = bed.app_file(&web);
    bed.create_config_map(&ns, "app", "1").await;
    until_content(&file, "1").await;
    bed.set_config_map(&ns, "app", "2").await;
    until_content(&file, "2").await;
    bed.delete_config_map(&ns, "app").await;
    until("the file is removed", async || content(&file).is_none()).await;
    bed.until_phase(&web, "app", "Delivered").await;
    // The kubelet may have seen a change by itself, just after the pod's start.
    assert!((1..=12).contains(&bed.touches(&web).len()));
}

// beside-kubelet 14
pub(crate) async fn pod_whose_first_mount_waits_is_not_touched(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.start_larder().await;
    let web = bed
        .create_pod(&ns, &pod("web", json!([config_map_volume("app")])))
        .await;
    sleep(QUIET).await;
    bed.create_config_map(&ns, "app", "1").await;
    bed.ready(&ns, "web").await;
    bed.until_phase(&web, "app", "Delivered").await;
    assert_eq!(bed.touches(&web).len(), 0);
}

// beside-kubelet 15
pub(crate) async fn container_that_waits_for_its_environment_starts_after_a_touch(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let mut web = pod("web", json!([]));
    web["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "login"}}]);
    let web = bed.create_pod(&ns, &web).await;
    bed.start_larder().await;
    let pods = bed.pods(&ns);
    until("the container waits", async || {
        waits_for(&pods.get("web").await.unwrap()).as_deref() == Some("CreateContainerConfigError")
    })
    .await;
    bed.create_secret(&ns, "login", "1").await;
    bed.ready(&ns, "web").await;
    assert_eq!(bed.touches(&web).len(), 1);
}

// beside-kubelet 16
pub(crate) async fn immutable_object_made_again_waits_for_the_last_of_its_pods(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let object = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
            "metadata": {"namespace": ns, "name": "app"}, "data": {"k": value},
        })
    };
    bed.create(&object("1")).await;
    let web = bed
        .run_pod(&ns, &pod("web", json!([config_map_volume("app")])))
        .await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    bed.delete_config_map(&ns, "app").await;
    bed.create(&object("2")).await;
    sleep(QUIET).await;
    assert_eq!(bed.touches(&web).len(), 0);
    assert_eq!(
        content(&container(&web).path("/app/k")).as_deref(),
        Some("1")
    );
    bed.pods(&ns)
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    let pods = bed.pods(&ns);
    until("the pod is gone", async || {
        pods.get_opt("web").await.unwrap().is_none()
    })
    .await;
    let next = bed
        .run_pod(&ns, &pod("next", json!([config_map_volume("app")])))
        .await;
    assert_eq!(
        content(&container(&next).path("/app/k")).as_deref(),
        Some("2")
    );
    bed.until_phase(&next, "app", "Delivered").await;
}

// beside-kubelet 17
pub(crate) async fn volume_with_all_annotations_causes_no_loop(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let about = json!({"name": "about", "downwardAPI": {"items": [
        {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]}});
    let web = bed
        .run_pod(&ns, &pod("web", json!([config_map_volume("app"), about])))
        .await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    bed.change_app(&ns, &web, "2").await;
    let after_change = bed.touches(&web).len();
    let annotations = bed
        .volume(&web, "kubernetes.io~downward-api", "about")
        .join("annotations");
    bed.annotate(&ns, "web", "note", "hello").await;
    until("the kubelet writes the annotation", async || {
        content(&annotations).is_some_and(|text| text.contains("note=\"hello\""))
    })
    .await;
    sleep(QUIET).await;
    assert_eq!(
        bed.touches(&web).len(),
        after_change,
        "{:?}",
        bed.phase(&web, "about")
    );
}

// beside-kubelet 18
pub(crate) async fn mirror_pod_is_never_touched(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.start_larder().await;
    let mut fixed = pod(
        "fixed",
        json!([{"name": "about", "downwardAPI": {"items": [
            {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}},
        ]}}]),
    );
    fixed["apiVersion"] = "v1".into();
    fixed["kind"] = "Pod".into();
    fixed["metadata"]["namespace"] = ns.as_str().into();
    fixed["spec"].as_object_mut().unwrap().remove("nodeName");
    let file = bed.node.kubelet.static_pods().join("fixed.json");
    fs::write(&file, fixed.to_string()).unwrap();
    let name = format!("fixed-{NODE}");
    let mirror = bed.ready(&ns, &name).await;
    bed.annotate(&ns, &name, "note", "hello").await;
    sleep(QUIET).await;
    assert_eq!(bed.touches(&mirror).len(), 0);
    fs::remove_file(file).unwrap();
    let pods = bed.pods(&ns);
    until("the mirror pod is gone", async || {
        pods.get_opt(&name).await.unwrap().is_none()
    })
    .await;
}

// beside-kubelet 32
pub(crate) async fn what_only_a_restart_brings_is_listed_until_then(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = pod("web", json!([config_map_volume("app")]));
    web["spec"]["containers"][0]["env"] =
        json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "k"}}}]);
    let sub_path = json!({"name": "app", "mountPath": "/one", "subPath": "k"});
    web["spec"]["containers"][0]["volumeMounts"]
        .as_array_mut()
        .unwrap()
        .push(sub_path);
    // Variables are known only of containers whose start larder has seen.
    bed.start_larder().await;
    let web = bed.run_pod(&ns, &web).await;
    bed.until_phase(&web, "app", "Delivered").await;
    bed.set_config_map(&ns, "app", "2").await;
    until_content(&bed.app_file(&web), "2").await;
    until("both are out of date", async || {
        bed.outdated(&web) == ["env", "subPath"]
    })
    .await;
    let first = container(&web);
    assert_eq!(content(&first.path("/one")).as_deref(), Some("1"));
    first.kill().unwrap();
    until("nothing is out of date", async || {
        bed.outdated(&web).is_empty()
    })
    .await;
    let web = bed.ready(&ns, "web").await;
    assert_eq!(content(&container(&web).path("/one")).as_deref(), Some("2"));
}

// beside-kubelet 33
pub(crate) async fn pod_that_crashes_gets_its_volume_and_no_restart(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = pod("web", json!([config_map_volume("app")]));
    web["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", "exit 1"]);
    let web = bed.create_pod(&ns, &web).await;
    bed.start_larder().await;
    let pods = bed.pods(&ns);
    until("it is in back-off", async || {
        waits_for(&pods.get("web").await.unwrap()).as_deref() == Some("CrashLoopBackOff")
    })
    .await;
    bed.until_phase(&web, "app", "Delivered").await;
    bed.change_app(&ns, &web, "2").await;
    // The kubelet may have been first, with a sync of its own at the end of a back-off.
    assert!(bed.touches(&web).len() <= 4);
}

// beside-kubelet 33
pub(crate) async fn touches_change_nothing_of_a_pod_with_probes(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let mut web = pod("web", json!([]));
    let probe = json!({"exec": {"command": ["/bin/test", "-d", "/proc"]}, "periodSeconds": 1});
    for kind in ["startupProbe", "livenessProbe", "readinessProbe"] {
        web["spec"]["containers"][0][kind] = probe.clone();
    }
    let before = bed.run_pod(&ns, &web).await;
    let admin = bed.admin.clone();
    for _ in 0..40 {
        bed.touch(&admin, &before).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    let after = bed.pods(&ns).get("web").await.unwrap();
    assert_eq!(after.status, before.status);
    assert_eq!(after.metadata.generation, before.metadata.generation);
    let image = after.spec.unwrap().containers.remove(0).image;
    assert_eq!(image.as_deref(), Some(IMAGE));
}

/// A Secret is in a volume in memory, which is a mount of its own.
pub(crate) async fn secret_arrives_and_nothing_stays_open(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_secret(&ns, "login", "one").await;
    let web = bed
        .run_pod(&ns, &pod("web", json!([secret_volume("login")])))
        .await;
    bed.start_larder().await;
    bed.until_phase(&web, "login", "Delivered").await;
    bed.change_login(&ns, &web, "two").await;
    bed.until_phase(&web, "login", "Delivered").await;
    let root = fs::canonicalize(bed.node.kubelet.root_dir()).unwrap();
    let pods = root.join("pods");
    until("nothing is open", async || {
        bed.larder().open_below(&pods).unwrap().is_empty()
    })
    .await;
    let log = bed.larder().log();
    assert!(!log.contains("two"), "{log}");
}
