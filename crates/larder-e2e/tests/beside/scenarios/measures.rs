//! The benefit and the cost of larder beside a kubelet. They take minutes each, so they run only when named:
//!
//! ```text
//! KUBEBUILDER_ASSETS=DIR cargo test --profile dist -p larder-e2e --test beside -- measure
//! ```

use std::{path::PathBuf, time::Duration};

use futures::{StreamExt as _, stream};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use larder_e2e::figures::Quantiles;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::sub_paths::{ASKS, by_sub_path};
use crate::bed::{Bed, config_map_volume, container, content, pod, until, until_content};

/// Changes that are measured with larder, each of the next of its pods: larder touches no pod more than ten times in a
/// minute.
const CHANGES: u32 = 60;
/// These pods.
const SERVED: u32 = 10;
/// Pods that exclude themselves. They change at the same time: a kubelet alone takes a minute for each change.
const CONTROLS: u32 = 20;
/// Changes of each of them.
const CONTROL_CHANGES: u32 = CHANGES / CONTROLS;
/// Pods whose touches are counted, and rounds of the three phases of [`Load`]. Each pod is touched every 18 s on average.
const TOUCHED: u32 = 24;
const ROUNDS: u32 = 10;
/// Changes of a phase, and the pause after each, so that each is over before the next.
const PHASE_CHANGES: u32 = 40;
const BETWEEN: Duration = Duration::from_millis(250);
/// Pause at the end of a phase.
const SETTLING: Duration = Duration::from_secs(1);
/// Pods that share an object: as many as a kubelet runs, except some of the system.
const SHARING: usize = 105;
/// Pods that start at once.
const STARTING: usize = 8;

/// The processes whose CPU time is measured.
const PROCESSES: [&str; 4] = ["kubelet", "API server", "etcd", "larder"];

/// What has been used so far.
struct Costs {
    /// CPU time of [`PROCESSES`].
    cpu_time: [Duration; 4],
    /// Requests with the node's identity, which are the kubelet's and larder's.
    requests: usize,
}

impl Costs {
    fn now(bed: &mut Bed) -> Self {
        let usages = [
            bed.node.kubelet.usage().unwrap(),
            bed.real().usage().unwrap(),
            bed.real().etcd_usage().unwrap(),
            bed.larder().usage().unwrap(),
        ];
        Self {
            cpu_time: usages.map(|usage| usage.cpu_time),
            requests: bed.server.node_requests().unwrap().len(),
        }
    }

    /// What was used since then: CPU time of [`PROCESSES`] in milliseconds, and requests.
    fn since(&self, bed: &mut Bed) -> [f64; 5] {
        let now = Self::now(bed);
        let cpu_time = |process: usize| {
            let used = now.cpu_time[process].saturating_sub(self.cpu_time[process]);
            used.as_secs_f64() * 1e3
        };
        let requests = u32::try_from(now.requests - self.requests).unwrap();
        let [kubelet, server, etcd, larder] = [0, 1, 2, 3].map(cpu_time);
        [kubelet, server, etcd, larder, requests.into()]
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
    let shared = &*bed;
    let with_larder = async {
        let (mut times, mut events) = (Vec::new(), Vec::new());
        let mut watch = shared.watch_config_maps(&ns).await;
        for (change, (name, file, _)) in (1..=CHANGES).zip(served.iter().cycle()) {
            sleep(Duration::from_millis(fastrand::u64(2000..4000))).await;
            let (started, value) = (Instant::now(), change.to_string());
            let (at, ()) = futures::join!(
                watch.until_event(name, &value),
                shared.set_config_map(&ns, name, &value),
            );
            until_content(file, &value).await;
            times.push(started.elapsed());
            events.push((name, at));
        }
        (times, events)
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
    let ((with_larder, events), without_larder) = futures::join!(with_larder, without_larder);
    for (name, _, web) in &served {
        bed.until_phase(web, name, "Delivered").await;
    }
    let patches = bed.larder_patches();
    println!(
        "{CHANGES} changes with larder, change sent → file: {}",
        Quantiles::of(with_larder)
    );
    println!(
        "{CHANGES} changes without, in the same run:        {}",
        Quantiles::of(without_larder)
    );
    // The test's own watch may get the event later than larder's.
    let times = events.iter().map(|(name, at)| {
        let early = SignedDuration::from_secs(1);
        let mut patches = patches.iter().filter(|patch| patch.pod == **name);
        let patch = patches
            .find(|patch| patch.at > *at - early)
            .expect("a touch");
        patch
            .at
            .duration_since(*at)
            .max(SignedDuration::ZERO)
            .unsigned_abs()
    });
    println!(
        "event received by the test → PATCH received by the API server: {}",
        Quantiles::of(times.collect())
    );
    println!(
        "touches per change: {:.2}",
        f64::from(u32::try_from(patches.len()).unwrap()) / f64::from(CHANGES)
    );
    let of_controls = patches
        .iter()
        .filter(|patch| patch.pod.starts_with("control"));
    assert_eq!(of_controls.count(), 0);
}

/// A phase of the measurement of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Rest,
    /// Changes of a key that no volume shows: without touches.
    Hidden,
    /// Changes of the key that the volumes show: with touches.
    Shown,
}

/// The same objects change in turn with and without effect on the volumes of their pods. So the difference is the
/// touch and what follows from it, and neither the change nor its watches.
pub(crate) async fn measure_the_cost_of_a_touch(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let mut pods = Vec::new();
    for number in 0..TOUCHED {
        let name = format!("web-{number}");
        bed.create_config_map(&ns, &name, "0").await;
        let mut volume = config_map_volume(&name);
        volume["configMap"]["items"] = json!([{"key": "k", "path": "k"}]);
        pods.push((bed.run_pod(&ns, &pod(&name, json!([volume]))).await, name));
    }
    bed.start_larder().await;
    for (pod, name) in &pods {
        bed.until_phase(pod, name, "Delivered").await;
    }
    let mut names = pods.iter().map(|(_, name)| name).cycle();
    let mut loads = [Load::Rest, Load::Hidden, Load::Shown];
    let (mut changes, mut touches) = (Vec::new(), Vec::new());
    let (mut sent, mut value) = (0, 0);
    for _ in 0..ROUNDS {
        // So that no phase always follows the same one.
        fastrand::shuffle(&mut loads);
        let mut used = [[0.0; 5]; 3];
        for load in loads {
            let patches = bed.larder_patches().len();
            let before = Costs::now(bed);
            let start = Instant::now();
            for change in 1..=PHASE_CHANGES {
                if load != Load::Rest {
                    value += 1;
                    let key = if load == Load::Shown { "k" } else { "hidden" };
                    let name = names.next().expect("without end");
                    bed.set_key(&ns, name, key, &value.to_string()).await;
                }
                sleep_until(start + BETWEEN * change).await;
            }
            sleep(SETTLING).await;
            used[load as usize] = before.since(bed);
            let patches = bed.larder_patches().len() - patches;
            if load == Load::Shown {
                sent += patches;
            } else {
                assert_eq!(patches, 0, "touches without a reason");
            }
        }
        let [rest, hidden, shown] = used;
        let each = |more: &[f64; 5], less: &[f64; 5]| {
            std::array::from_fn(|what| (more[what] - less[what]) / f64::from(PHASE_CHANGES))
        };
        changes.push(each(&hidden, &rest));
        touches.push(each(&shown, &hidden));
    }
    for (pod, name) in &pods {
        bed.until_phase(pod, name, "Delivered").await;
    }
    println!("{sent} touches for {} changes", PHASE_CHANGES * ROUNDS);
    print_costs("a change that no volume shows", &changes);
    print_costs("a touch, with what follows", &touches);
}

/// Prints means of costs over rounds, with their standard errors.
fn print_costs(what: &str, rounds: &[[f64; 5]]) {
    let count = f64::from(u32::try_from(rounds.len()).unwrap());
    let mean = |index: usize| rounds.iter().map(|round| round[index]).sum::<f64>() / count;
    let error = |index: usize| {
        let mean = mean(index);
        let squares = rounds.iter().map(|round| (round[index] - mean).powi(2));
        (squares.sum::<f64>() / (count - 1.0) / count).sqrt()
    };
    print!("{what}:");
    for (index, process) in PROCESSES.iter().enumerate() {
        print!(" {process} {:.1} ± {:.1} ms,", mean(index), error(index));
    }
    println!(
        " CPU time; {:.2} ± {:.2} requests by the node",
        mean(4),
        error(4)
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
        let used = before.since(bed).map(|used| used / 1e3);
        let [kubelet, server, _, larder, _] = used;
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

/// Pods with a mount by `subPath` that share an object.
const SUB_PATH_SHARING: usize = 100;

/// A pod that asks for updates of its mount by `subPath` at `/one`.
fn asking(name: &str, object: &str) -> serde_json::Value {
    let mut pod = pod(name, json!([config_map_volume(object)]));
    pod["metadata"]["annotations"] = json!({ASKS: "true"});
    pod["spec"]["containers"][0]["volumeMounts"] = json!([by_sub_path(object, "/one")]);
    pod
}

/// From the server's answer to what the container reads by `subPath`.
pub(crate) async fn measure_changes_by_sub_path(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let mut served = Vec::new();
    for number in 0..SERVED {
        let name = format!("web-{number}");
        bed.create_config_map(&ns, &name, "0").await;
        let web = bed.run_pod(&ns, &asking(&name, &name)).await;
        let read = container(&web).path("/one");
        let written = bed
            .volume(&web, "kubernetes.io~configmap", &name)
            .join("..data/k");
        served.push((name, written, read, web));
    }
    bed.start_larder().await;
    for (name, _, _, web) in &served {
        bed.until_phase(web, name, "Delivered").await;
    }
    sleep(SETTLING * 4).await;
    let (mut writes, mut reads, mut between) = (Vec::new(), Vec::new(), Vec::new());
    for (change, (name, written, read, _)) in (1..=2 * CHANGES).zip(served.iter().cycle()) {
        sleep(Duration::from_millis(fastrand::u64(1000..2000))).await;
        let value = change.to_string();
        bed.set_config_map(&ns, name, &value).await;
        let answered = Instant::now();
        until_content(written, &value).await;
        let at = answered.elapsed();
        until_content(read, &value).await;
        let all = answered.elapsed();
        writes.push(at);
        reads.push(all);
        between.push(all.saturating_sub(at));
    }
    println!(
        "{} changes, answered → in the volume: {}",
        2 * CHANGES,
        Quantiles::of(writes)
    );
    println!(
        "the same, answered → read by subPath in the container: {}",
        Quantiles::of(reads)
    );
    println!(
        "in the volume → read by subPath: {}",
        Quantiles::of(between)
    );
}

// subpath 23
pub(crate) async fn measure_pods_that_share_a_sub_path(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "0").await;
    let shared = &*bed;
    let ns_ref = &ns;
    let pods: Vec<Pod> = stream::iter(0..SUB_PATH_SHARING)
        .map(async |number| {
            let pod = asking(&format!("web-{number}"), "app");
            shared.run_pod(ns_ref, &pod).await
        })
        .buffer_unordered(STARTING)
        .collect()
        .await;
    let reads: Vec<_> = pods.iter().map(|pod| container(pod).path("/one")).collect();
    bed.start_larder().await;
    for pod in &pods {
        bed.until_phase(pod, "app", "Delivered").await;
    }
    sleep(SETTLING * 4).await;
    for round in 1..=5 {
        let value = round.to_string();
        let before = bed.larder().usage().unwrap().cpu_time;
        bed.set_config_map(&ns, "app", &value).await;
        let answered = Instant::now();
        let mut times = Vec::new();
        let mut waiting: Vec<_> = reads.iter().collect();
        while !waiting.is_empty() {
            assert!(answered.elapsed() < crate::bed::PATIENCE, "{waiting:?}");
            waiting.retain(|read| {
                let arrived = content(read).as_deref() == Some(&*value);
                if arrived {
                    times.push(answered.elapsed());
                }
                !arrived
            });
            sleep(Duration::from_millis(3)).await;
        }
        sleep(SETTLING * 3).await;
        let used = bed
            .larder()
            .usage()
            .unwrap()
            .cpu_time
            .saturating_sub(before);
        println!(
            "round {round}: {SUB_PATH_SHARING} pods, answered → read by subPath: {}; larder's CPU time {} ms",
            Quantiles::of(times),
            used.as_millis()
        );
        sleep(Duration::from_secs(8)).await;
    }
}
