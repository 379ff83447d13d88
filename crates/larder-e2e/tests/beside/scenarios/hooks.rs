//! Hooks of pods whose containers a kubelet runs.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use larder_containers::processes::{ContainerId, PodMounts, Processes};
use serde_json::json;

use crate::bed::{Bed, config_map_volume, container, content, pod, until, until_content};

/// On SIGHUP, appends the file of the ConfigMap to `/seen`.
const READER: &str = "trap 'cat /app/k >> /seen; echo >> /seen' HUP; trap 'exit 0' TERM; \
                      while :; do sleep 3600 & wait $!; done";

const RUNS: &str = "larder_on_change_runs_total";

/// A pod whose container reads its file again on SIGHUP, with this hook, and larder, which has found nothing out of date.
async fn reader(bed: &mut Bed, hook: &str) -> (String, Pod) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = pod("web", json!([config_map_volume("app")]));
    web["metadata"]["annotations"] = json!({"larder.dev/on-change": hook});
    web["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", READER]);
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    (ns, web)
}

// beside-kubelet 38: the driver and the version of control groups that this machine has.
pub(crate) async fn runtime_and_control_groups_name_the_same_main_process(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let web = bed.run_pod(&ns, &pod("web", json!([]))).await;
    let status = web.status.as_ref().unwrap().container_statuses.as_ref();
    let id = status.unwrap()[0].container_id.as_deref().unwrap();
    let ids = [("c".into(), ContainerId::of_status(id).unwrap())].into();
    let processes = Processes::new("/proc", "/");
    let mounts = PodMounts::default();
    let found = processes.containers(&mounts, Some(&ids)).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    let first = bed.node.first_process(&container(&web)).unwrap();
    assert_eq!(u32::try_from(found[0].main.pid).unwrap(), first);
    let groups = fs::read_to_string(format!("/proc/{first}/cgroup")).unwrap();
    println!("control groups: {}", groups.lines().last().unwrap());
}

// beside-kubelet 39
pub(crate) async fn signal_is_sent_once_after_the_bytes(bed: &mut Bed) {
    let (ns, web) = reader(bed, "signal:SIGHUP").await;
    let seen = container(&web).path("/seen");
    for (value, all) in [("2", "2\n"), ("3", "2\n3\n")] {
        bed.set_config_map(&ns, "app", value).await;
        let took = until_content(&seen, all).await;
        println!(
            "change answered → read after the signal: {} ms",
            took.as_millis()
        );
    }
    assert_eq!(bed.larder().metric(RUNS, "succeeded").unwrap(), 2);
}

// beside-kubelet 39
pub(crate) async fn container_that_was_restarted_after_the_swap_gets_no_signal(bed: &mut Bed) {
    // Long enough for a restart. If it takes longer, there is no process meanwhile, and the round is tried again.
    let hook = "[{signal: SIGHUP, debounce: {min: 10s, max: 10s}}]";
    let (ns, web) = reader(bed, hook).await;
    bed.set_config_map(&ns, "app", "2").await;
    until_content(&bed.app_file(&web), "2").await;
    container(&web).kill().unwrap();
    until("the round has ended", async || {
        bed.larder().metric(RUNS, "skipped").unwrap() == 1
    })
    .await;
    let web = bed.ready(&ns, "web").await;
    assert_eq!(bed.larder().metric(RUNS, "succeeded").unwrap(), 0);
    assert_eq!(content(&container(&web).path("/seen")), None);
}
