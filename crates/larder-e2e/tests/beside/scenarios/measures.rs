//! The benefit and the cost of larder beside a kubelet. They take minutes each, so they run only when named:
//!
//! ```text
//! KUBEBUILDER_ASSETS=DIR cargo test --release -p larder-e2e --test beside -- measure
//! ```

use std::{path::PathBuf, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use larder_e2e::figures::{Quantiles, Usage};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, config_map_volume, content, pod, until, until_content};

/// Changes that are measured with larder, each of the next of its pods: larder touches no pod more than ten times in a
/// minute.
const CHANGES: u32 = 60;
/// These pods.
const SERVED: u32 = 10;
/// Pods that exclude themselves. They change at the same time: a kubelet alone takes a minute for each change.
const CONTROLS: u32 = 20;
/// Changes of each of them.
const CONTROL_CHANGES: u32 = CHANGES / CONTROLS;
/// Pods that share an object: as many as a kubelet runs, except some of the system.
const SHARING: usize = 105;
/// Pods that start at once.
const STARTING: usize = 8;

/// CPU time of the processes.
struct Costs {
    kubelet: Usage,
    server: Usage,
    larder: Usage,
    at: Instant,
}

impl Costs {
    fn now(bed: &mut Bed) -> Self {
        let server = bed.real().process().expect("the API server runs");
        Self {
            kubelet: bed.node.kubelet.usage().unwrap(),
            server: Usage::of(server).unwrap(),
            larder: bed.larder().usage().unwrap(),
            at: Instant::now(),
        }
    }

    /// CPU time since then of kubelet, API server and larder.
    fn since(&self, bed: &mut Bed) -> [Duration; 3] {
        let now = Self::now(bed);
        [
            now.kubelet.cpu_time.saturating_sub(self.kubelet.cpu_time),
            now.server.cpu_time.saturating_sub(self.server.cpu_time),
            now.larder.cpu_time.saturating_sub(self.larder.cpu_time),
        ]
    }
}

pub(crate) async fn measure_changes_with_and_without_larder(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let mut served = Vec::new();
    for number in 0..SERVED {
        let name = format!("web-{number}");
        bed.create_config_map(&ns, &name, "0").await;
        let web = bed
            .run_pod(&ns, &pod(&name, json!([config_map_volume(&name)])))
            .await;
        let file = bed.volume(&web, "kubernetes.io~configmap", &name).join("k");
        served.push((name, file, web));
    }
    let mut controls = Vec::new();
    for number in 0..CONTROLS {
        let name = format!("control-{number}");
        bed.create_config_map(&ns, &name, "0").await;
        let mut control = pod(&name, json!([config_map_volume(&name)]));
        control["metadata"]["annotations"] = json!({"larder.dev/refresh-policy": "never"});
        let control = bed.run_pod(&ns, &control).await;
        controls.push((
            name.clone(),
            bed.volume(&control, "kubernetes.io~configmap", &name)
                .join("k"),
        ));
    }
    bed.start_larder().await;
    for (name, _, web) in &served {
        bed.until_phase(web, name, "Delivered").await;
    }
    let quiet = Costs::now(bed);
    sleep(Duration::from_secs(30)).await;
    let seconds = quiet.at.elapsed().as_secs_f64();
    let idle = quiet.since(bed).map(|time| time.as_secs_f64() / seconds);

    let before = Costs::now(bed);
    let shared = &*bed;
    let with_larder = async {
        let mut times = Vec::new();
        for (change, (name, file, _)) in (1..=CHANGES).zip(served.iter().cycle()) {
            sleep(Duration::from_millis(fastrand::u64(2000..4000))).await;
            let started = Instant::now();
            shared.set_config_map(&ns, name, &change.to_string()).await;
            until_content(file, &change.to_string()).await;
            times.push(started.elapsed());
        }
        times
    };
    let without_larder = stream::iter(&controls)
        .map(async |(name, file)| {
            let mut times = Vec::new();
            for change in 1..=CONTROL_CHANGES {
                // At random moments of the kubelet's periods.
                sleep(Duration::from_millis(fastrand::u64(0..60_000))).await;
                let (started, value) = (Instant::now(), change.to_string());
                shared.set_config_map(&ns, name, &value).await;
                while content(file).as_deref() != Some(value.as_str()) {
                    sleep(Duration::from_millis(20)).await;
                }
                times.push(started.elapsed());
            }
            times
        })
        .buffer_unordered(controls.len())
        .concat();
    let (with_larder, without_larder) = futures::join!(with_larder, without_larder);
    for (name, _, web) in &served {
        bed.until_phase(web, name, "Delivered").await;
    }
    let seconds = before.at.elapsed().as_secs_f64();
    let used = before.since(bed);
    let touches = bed.larder_patches().len();
    println!(
        "{CHANGES} changes with larder, change sent → file: {}",
        Quantiles::of(with_larder)
    );
    println!(
        "{CHANGES} changes without, in the same run:        {}",
        Quantiles::of(without_larder)
    );
    println!(
        "touches per change: {:.2}",
        f64::from(u32::try_from(touches).unwrap()) / f64::from(CHANGES)
    );
    for ((name, used), idle) in ["kubelet", "API server", "larder"]
        .into_iter()
        .zip(used)
        .zip(idle)
    {
        let more = (used.as_secs_f64() - idle * seconds) * 1e3 / f64::from(CHANGES);
        println!(
            "CPU time of {name}: {more:.1} ms per change above {:.1} ms per second at rest",
            idle * 1e3
        );
    }
    assert_eq!(
        bed.larder_patches()
            .iter()
            .filter(|patch| patch.pod.starts_with("control"))
            .count(),
        0
    );
}

// beside-kubelet 24
pub(crate) async fn measure_pods_that_share_a_config_map(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "0").await;
    let shared = &*bed;
    let ns_ref = &ns;
    let pods: Vec<Pod> = stream::iter(0..SHARING)
        .map(async |number| {
            let pod = pod(&format!("web-{number}"), json!([config_map_volume("app")]));
            shared.run_pod(ns_ref, &pod).await
        })
        .buffer_unordered(STARTING)
        .collect()
        .await;
    let files: Vec<_> = pods
        .iter()
        .map(|pod| bed.volume(pod, "kubernetes.io~configmap", "app").join("k"))
        .collect();
    bed.start_larder().await;
    for pod in &pods {
        bed.until_phase(pod, "app", "Delivered").await;
    }
    for round in 1..=5 {
        sleep(Duration::from_secs(5)).await;
        let (sent_before, value) = (bed.larder_patches().len(), round.to_string());
        let before = Costs::now(bed);
        let started = Instant::now();
        bed.set_config_map(&ns, "app", &value).await;
        let mut left: Vec<&PathBuf> = files.iter().collect();
        let mut times = Vec::new();
        until("all pods have the change", async || {
            left.retain(|file| {
                let arrived = content(file).as_deref() == Some(value.as_str());
                if arrived {
                    times.push(started.elapsed());
                }
                !arrived
            });
            left.is_empty()
        })
        .await;
        for pod in &pods {
            bed.until_phase(pod, "app", "Delivered").await;
        }
        let [kubelet, server, larder] = before.since(bed).map(|time| time.as_secs_f64());
        let touches = bed.larder_patches().len() - sent_before;
        println!(
            "{SHARING} pods, one change: {}, {touches} touches; CPU time: kubelet {kubelet:.2} s, API server {server:.2} \
             s, larder {larder:.2} s",
            Quantiles::of(times)
        );
        let rate = bed.larder().metric("larder_beside_rate_limit", "").unwrap();
        println!("rate limit after that: {rate}/s");
        assert!(touches <= SHARING * 4);
    }
}
