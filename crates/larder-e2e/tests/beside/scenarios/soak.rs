//! The soak: random changes and restarts of the kubelet, while readers in the containers read every volume. In the end
//! every file is compared with the content written last. It takes minutes and runs only when named:
//!
//! ```text
//! LARDER_SOAK_SECS=1800 KUBEBUILDER_ASSETS=DIR cargo test --profile dist -p larder-e2e --test beside -- soak
//! ```

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::sub_paths::{asking, by_sub_path, until_state};
use crate::bed::{Bed, config_map_volume, container, content, pod, secret_volume, until_content};

/// Pods of the soak.
const SOAKED: u32 = 50;
/// Pods that start at once.
const STARTING: usize = 8;
/// Between two changes.
const STEP: Duration = Duration::from_millis(150);

/// The observations of a reader in the containers.
#[derive(Debug, Default)]
struct Readings {
    whole: u64,
    /// Sets that were torn, empty or missing.
    bad: Vec<String>,
}

/// Default duration.
const SHORT: u64 = 60;
/// Restarts of the kubelet, evenly spread: every ten minutes of half an hour.
const RESTARTS: u32 = 2;

/// The kubelet renews a token of ten minutes after eight of them, and looks every minute or two.
const RENEWAL: Duration = Duration::from_mins(12);

/// The value that was written last, by pod and kind.
type Written = BTreeMap<(u32, &'static str), u64>;

// beside-kubelet 41
pub(crate) async fn soak_of_fifty_pods(bed: &mut Bed) {
    let seconds = env::var("LARDER_SOAK_SECS").map_or(SHORT, |text| text.parse().expect("seconds"));
    let ns = bed.namespace().await;
    let pods = start_pods(bed, &ns).await;
    let volumes = pods.iter().flat_map(|(number, pod)| {
        let container = container(pod);
        [
            format!("/o{number}"),
            "/secret".to_owned(),
            "/both".to_owned(),
        ]
        .map(|path| container.path(&path))
    });
    let volumes: Vec<_> = volumes.collect();
    bed.start_larder().await;
    let end = CancellationToken::new();
    let mut reader = JoinSet::new();
    reader.spawn(read_until(end.clone(), volumes));
    let (written, changes) = change_for(bed, &ns, Duration::from_secs(seconds)).await;
    let ended = Instant::now();
    compare(bed, &pods, &written).await;
    let settled = ended.elapsed();
    end.cancel();
    let readings = reader.join_next().await.unwrap().unwrap();
    let touches = bed.larder_patches().len();
    let detached = bed
        .larder()
        .metric("larder_beside_volumes", "Detached")
        .unwrap();
    println!(
        "soak of {seconds} s: {changes} changes, {touches} touches, {RESTARTS} restarts of the kubelet, {} sets read \
         whole, {} not; no difference {settled:.1?} after the last change, {detached} volumes detached",
        readings.whole,
        readings.bad.len()
    );
    assert!(readings.bad.is_empty(), "{:?}", readings.bad);
    assert_eq!(detached, 0);
}

/// Pods with a volume of each kind.
async fn start_pods(bed: &Bed, ns: &str) -> Vec<(u32, Pod)> {
    stream::iter(0..SOAKED)
        .map(async |number| {
            let name = format!("o{number}");
            for kind in ["ConfigMap", "Secret"] {
                bed.create(&soaked_object(kind, ns, &name, 0)).await;
            }
            let projected = json!({"name": "both", "projected": {"sources": [
                {"configMap": {"name": name, "items": [{"key": "a", "path": "a"}]}},
                {"configMap": {"name": name, "items": [{"key": "b", "path": "b"}]}},
            ]}});
            let mut secret = secret_volume(&name);
            secret["name"] = "secret".into();
            let pod = pod(&name, json!([config_map_volume(&name), secret, projected]));
            (number, bed.run_pod(ns, &pod).await)
        })
        .buffer_unordered(STARTING)
        .collect()
        .await
}

/// Changes objects at random, and restarts the kubelet. Returns the content written last, and the number of changes.
async fn change_for(bed: &mut Bed, ns: &str, duration: Duration) -> (Written, u64) {
    let started = Instant::now();
    let (mut restarts, mut changes, mut written) = (0, 0, Written::new());
    while started.elapsed() < duration {
        let next = Instant::now() + STEP;
        let (number, kind) = (
            fastrand::u32(0..SOAKED),
            ["ConfigMap", "Secret"][fastrand::usize(0..2)],
        );
        changes += 1;
        bed.replace(&soaked_object(kind, ns, &format!("o{number}"), changes))
            .await;
        written.insert((number, kind), changes);
        if restarts < RESTARTS && started.elapsed() > duration / (RESTARTS + 1) * (restarts + 1) {
            bed.node.kubelet.stop().unwrap();
            bed.node.kubelet.start().unwrap();
            restarts += 1;
        }
        sleep_until(next).await;
    }
    (written, changes)
}

/// Waits until each volume has the content written last, and larder has verified it.
async fn compare(bed: &mut Bed, pods: &[(u32, Pod)], written: &Written) {
    for (number, pod) in pods {
        let of = |kind| {
            written
                .get(&(*number, kind))
                .copied()
                .unwrap_or_default()
                .to_string()
        };
        let (config_map, secret) = (of("ConfigMap"), of("Secret"));
        for (plugin, volume, expected) in [
            ("kubernetes.io~configmap", format!("o{number}"), &config_map),
            ("kubernetes.io~secret", "secret".to_owned(), &secret),
            ("kubernetes.io~projected", "both".to_owned(), &config_map),
        ] {
            let directory = bed.volume(pod, plugin, &volume);
            for key in ["a", "b"] {
                until_content(&directory.join(key), expected).await;
            }
            bed.until_phase(pod, &volume, "Delivered").await;
        }
    }
}

fn soaked_object(kind: &str, namespace: &str, name: &str, value: u64) -> Value {
    let field = if kind == "Secret" {
        "stringData"
    } else {
        "data"
    };
    let value = value.to_string();
    json!({
        "apiVersion": "v1", "kind": kind, "metadata": {"namespace": namespace, "name": name},
        field: {"a": value, "b": value},
    })
}

/// Reads volumes as their containers see them, until `end`.
async fn read_until(end: CancellationToken, volumes: Vec<PathBuf>) -> Readings {
    let mut readings = Readings::default();
    while !end.is_cancelled() {
        for volume in &volumes {
            match read_set(volume) {
                Ok(()) => readings.whole += 1,
                Err(problem) => readings
                    .bad
                    .push(format!("{}: {problem}", volume.display())),
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    readings
}

/// Reads a set whole, again when it was replaced meanwhile.
fn read_set(volume: &Path) -> Result<(), String> {
    let mut problem = String::new();
    for _ in 0..5 {
        let read = || -> io::Result<(String, String)> {
            let set = volume.join(fs::read_link(volume.join("..data"))?);
            Ok((
                fs::read_to_string(set.join("a"))?,
                fs::read_to_string(set.join("b"))?,
            ))
        };
        match read() {
            Ok((a, b)) if a.is_empty() || a != b => return Err(format!("{a:?} and {b:?}")),
            Ok(_) => return Ok(()),
            Err(error) => problem = error.to_string(),
        }
    }
    Err(problem)
}

// subpath 6
pub(crate) async fn renewed_token_is_seen_by_sub_path(bed: &mut Bed) {
    let ns = bed.namespace().await;
    let token = json!({"serviceAccountToken": {"path": "k", "expirationSeconds": 600}});
    let volumes = json!([{"name": "token", "projected": {"sources": [token]}}]);
    let mut web = asking(volumes, json!([by_sub_path("token", "/one")]));
    web["spec"]["serviceAccountName"] = "web".into();
    bed.create(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"namespace": ns, "name": "web"}}))
        .await;
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    until_state(bed, &web, "c", "/one", "live").await;
    let (file, started) = (container(&web).path("/one"), Instant::now());
    let first = content(&file).unwrap();
    let renewed = loop {
        let now = content(&file).unwrap();
        if now != first {
            break now;
        }
        assert!(started.elapsed() < RENEWAL, "it has the first token");
        sleep(Duration::from_millis(500)).await;
    };
    // Not printed: it is a token.
    assert!(renewed.starts_with("ey") && renewed.len() > 100);
    let shown = until_state(bed, &web, "c", "/one", "live").await;
    assert!(shown["replacedAt"].is_string(), "{shown}");
    println!("renewed after {} s", started.elapsed().as_secs());
}
