//! A node with one pod for each object, and what is measured on it.

use std::{collections::HashMap, convert::Infallible, io::Write as _, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use larder::{Changes, ConfigMapManager, ManagerConfig, WatchScope};
use larder_e2e::figures::{Quantiles, Usage};
use larder_transport::{ClusterSource, Config, Lane, Metrics, RateLimit, Transport};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Namespace of everything that is created.
const NAMESPACE: &str = "larder-bench";

/// Updates that are timed.
const UPDATES: usize = 200;

/// Changes per second of other objects, in the busy half.
const BACKGROUND: u64 = 50;

/// The measurements, and their target.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kubeconfig: String,
    pub(crate) objects: usize,
    pub(crate) scope: WatchScope,
    /// Nothing after the first sync, and an end without freeing anything: for a profiler of the heap.
    pub(crate) sync_only: bool,
    /// The server's process, if it is on this machine.
    pub(crate) server: Option<u32>,
}

/// One row of the report. Times in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) objects: usize,
    /// From the first registration until every object could be read; one has been read before.
    pub(crate) synced_ms: f64,
    /// A client that only opens the same watches, as many at a time, until all have sent what there is; if the server
    /// streams lists.
    pub(crate) bare_synced_ms: Option<f64>,
    /// Processor time of the node meanwhile.
    pub(crate) cpu_ms: f64,
    /// Processor time of the server meanwhile, if it is a process of this machine that is known.
    pub(crate) server_cpu_ms: Option<f64>,
    pub(crate) watch_connections: usize,
    pub(crate) request_connections: usize,
    /// Growth of resident memory from before the registrations, for each object.
    pub(crate) bytes_per_object: f64,
    /// While nothing else changes, and while the other objects do.
    pub(crate) latency: Option<[Latency; 2]>,
}

/// From just before a write is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Until the write is answered.
    pub(crate) write: Quantiles,
    /// Until a bare watch of the same object has the event.
    pub(crate) bare: Quantiles,
    /// Until a subscriber of the manager has the change, with the new object ready to be read.
    pub(crate) manager: Quantiles,
}

/// Measures on `node` and prints the result as JSON.
#[tokio::main(worker_threads = 2)]
pub(crate) async fn run(node: &Node) -> Result<()> {
    let measured = measure(node).await?;
    print(&measured)
}

fn print(measured: &Measured) -> Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(measured)?)?;
    Ok(())
}

async fn measure(node: &Node) -> Result<Measured> {
    let (kubeconfig, number) = (Path::new(&node.kubeconfig), node.objects);
    // The writer is not the node, so it has connections of its own.
    let (writer, _) = connect(kubeconfig).await?;
    prepare(&writer, number).await?;
    let (client, transport) = connect(kubeconfig).await?;
    let config = ManagerConfig::default().watch_scope(node.scope);
    let manager = ConfigMapManager::new(client.clone(), &config)?;
    let pods: Vec<Pod> = (0..number).map(pod).collect::<Result<_>>()?;

    // The first object brings code and the first connection into memory, which is not the price of an object.
    let first = pod(number)?;
    manager.register_pod(&first);
    read(&manager, number).await?;
    manager.unregister_pod(&first);

    let memory = resident_bytes()?;
    let cpu_before = cpu_time()?;
    let server_before = node.server.map(Usage::of).transpose()?;
    let start = Instant::now();
    for pod in &pods {
        manager.register_pod(pod);
    }
    for index in 0..number {
        read(&manager, index).await?;
    }
    let synced = start.elapsed();
    let cpu = cpu_time()?.saturating_sub(cpu_before);
    let server_cpu = match (node.server, server_before) {
        (Some(server), Some(before)) => {
            Some(Usage::of(server)?.cpu_time.saturating_sub(before.cpu_time))
        }
        _ => None,
    };
    let grown = resident_bytes()?.saturating_sub(memory);
    let connections = transport.connections();
    let on = |lane| connections.iter().filter(|c| c.lane == lane).count();

    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let mut measured = Measured {
        objects: number,
        synced_ms: synced.as_secs_f64() * 1e3,
        bare_synced_ms: None,
        cpu_ms: cpu.as_secs_f64() * 1e3,
        server_cpu_ms: server_cpu.map(|time| time.as_secs_f64() * 1e3),
        watch_connections: on(Lane::Watch),
        request_connections: on(Lane::Request),
        bytes_per_object: grown as f64 / number as f64,
        latency: None,
    };
    if node.sync_only {
        print(&measured)?;
        #[expect(clippy::exit, reason = "nothing is to be freed before the end")]
        std::process::exit(0);
    }
    let idle = latency(&writer, &client, &manager).await?;
    let busy = tokio::select! {
        latency = latency(&writer, &client, &manager) => latency?,
        ended = change_others(&writer, number) => match ended? {},
    };
    measured.latency = Some([idle, busy]);
    // Last, so that nothing of it is in memory before.
    let selectors = match node.scope {
        WatchScope::Namespace => vec![String::new()],
        WatchScope::Object | WatchScope::Auto => (0..number)
            .map(|index| format!("&fieldSelector=metadata.name%3D{}", name(index)))
            .collect(),
    };
    let bare = bare_sync(kubeconfig, selectors).await.ok();
    measured.bare_synced_ms = bare.map(|time| time.as_secs_f64() * 1e3);
    Ok(measured)
}

async fn connect(kubeconfig: &Path) -> Result<(kube::Client, Transport)> {
    let source = ClusterSource::Kubeconfig {
        path: kubeconfig.to_owned(),
        context: None,
    };
    let config = Config::default().rate_limit(RateLimit::Unlimited);
    Ok(larder_transport::connect(source, config, Metrics::default()).await?)
}

async fn read(manager: &ConfigMapManager, index: usize) -> Result<()> {
    manager
        .get_within(NAMESPACE, &name(index), Duration::from_mins(1))
        .await?;
    Ok(())
}

fn name(index: usize) -> String {
    format!("object-{index}")
}

fn pod(index: usize) -> Result<Pod> {
    let pod = json!({
        "metadata": {"namespace": NAMESPACE, "name": name(index), "uid": format!("uid-{index}")},
        "spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": name(index)}}]},
    });
    Ok(serde_json::from_value(pod)?)
}

/// Creates the namespace and `number` ConfigMaps of 100 bytes, and one more to warm up.
async fn prepare(writer: &kube::Client, number: usize) -> Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    send(
        writer,
        Method::POST,
        "/api/v1/namespaces".to_owned(),
        &namespace,
    )
    .await?;
    for index in 0..=number {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
        send(writer, Method::POST, path, &object(index)).await?;
    }
    Ok(())
}

/// An object with a value that it never had before.
fn object(index: usize) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": NAMESPACE, "name": name(index)},
        "data": {"value": format!("{:0100}", fastrand::u128(..))},
    })
}

/// Gives an object a new value. Returns when that was done.
async fn replace(writer: &kube::Client, index: usize) -> Result<Instant> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{}", name(index));
    send(writer, Method::PUT, path, &object(index)).await?;
    Ok(Instant::now())
}

/// Sends `object`. What is there already from an earlier run is fine.
async fn send(
    client: &kube::Client,
    method: Method,
    path: String,
    object: &serde_json::Value,
) -> Result<()> {
    let request = Request::builder()
        .method(method)
        .uri(&path)
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(object)?))?;
    let response = client.send(request).await?;
    let status = response.status();
    let body = response.into_body().collect_bytes().await?;
    if !status.is_success() && status != http::StatusCode::CONFLICT {
        bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(())
}

/// Times updates of the first object.
async fn latency(
    writer: &kube::Client,
    client: &kube::Client,
    manager: &ConfigMapManager,
) -> Result<Latency> {
    let first = name(0);
    let mut changes = manager.subscribe();
    // The version at which the bare watch begins must be one that the server remembers.
    replace(writer, 0).await?;
    change_of(&mut changes, &first).await?;
    let mut bare = bare_watch(client, &first).await?;
    let mut times: HashMap<_, Vec<Duration>> = HashMap::new();
    for _ in 0..UPDATES {
        let start = Instant::now();
        let (written, seen, told) = tokio::try_join!(
            replace(writer, 0),
            async {
                bare.frame().await.context("the bare watch has ended")??;
                Ok(Instant::now())
            },
            change_of(&mut changes, &first),
        )?;
        for (what, end) in [("write", written), ("bare", seen), ("manager", told)] {
            times.entry(what).or_default().push(end - start);
        }
    }
    let mut quantiles = |what| Quantiles::of(times.remove(what).unwrap_or_default());
    Ok(Latency {
        write: quantiles("write"),
        bare: quantiles("bare"),
        manager: quantiles("manager"),
    })
}

/// Waits until the manager reports a change of `name`.
async fn change_of(changes: &mut Changes, name: &str) -> Result<Instant> {
    loop {
        let change = changes.next().await.context("the manager has ended")?;
        if change.key.name == name {
            return Ok(Instant::now());
        }
    }
}

/// A watch of one object from its present version on.
async fn bare_watch(client: &kube::Client, name: &str) -> Result<Body> {
    let objects = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let request = Request::get(format!("{objects}/{name}")).body(Vec::new())?;
    let object: serde_json::Value = client.request(request).await?;
    let version = object["metadata"]["resourceVersion"]
        .as_str()
        .context("the object has a version")?;
    let watch = format!(
        "{objects}?watch=true&resourceVersion={version}&fieldSelector=metadata.name%3D{name}"
    );
    let response = client
        .send(Request::get(watch).body(Body::empty())?)
        .await?;
    anyhow::ensure!(
        response.status().is_success(),
        "the bare watch is refused: {}",
        response.status()
    );
    Ok(response.into_body())
}

/// Opens a streaming list for each selector over connections of its own, and waits until all have ended their initial
/// events.
async fn bare_sync(kubeconfig: &Path, selectors: Vec<String>) -> Result<Duration> {
    let (client, _) = connect(kubeconfig).await?;
    let start = Instant::now();
    let watches: Vec<Body> = stream::iter(&selectors)
        .map(|selector| streaming_list(&client, selector))
        .buffer_unordered(ManagerConfig::default().max_requests_in_flight)
        .try_collect()
        .await?;
    let synced = start.elapsed();
    drop(watches);
    Ok(synced)
}

async fn streaming_list(client: &kube::Client, selector: &str) -> Result<Body> {
    const END: &str = "initial-events-end";
    let watch = format!(
        "/api/v1/namespaces/{NAMESPACE}/configmaps?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
         &resourceVersionMatch=NotOlderThan{selector}"
    );
    let response = client
        .send(Request::get(watch).body(Body::empty())?)
        .await?;
    anyhow::ensure!(
        response.status().is_success(),
        "the streaming list is refused: {}",
        response.status()
    );
    let mut body = response.into_body();
    let mut seen = Vec::new();
    loop {
        let frame = body
            .frame()
            .await
            .context("the streaming list has ended")??;
        // The mark may stand in two frames.
        seen.drain(..seen.len().saturating_sub(END.len()));
        seen.extend_from_slice(&frame.into_data().unwrap_or_default());
        if String::from_utf8_lossy(&seen).contains(END) {
            return Ok(body);
        }
    }
}

/// Changes the other objects one after the other, forever.
async fn change_others(writer: &kube::Client, number: usize) -> Result<Infallible> {
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(BACKGROUND)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut others = (1..number.max(2)).cycle();
    loop {
        ticks.tick().await;
        let other = others.next().context("a cycle has no end")?;
        replace(writer, other).await?;
    }
}

fn resident_bytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("VmRSS in /proc/self/status")?
        .parse()?;
    Ok(kib * 1024)
}

/// Time that all threads of this process have run.
fn cpu_time() -> Result<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}
