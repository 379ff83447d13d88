//! The cost of many nodes for the API server: hollow nodes, each with an identity, connections and a manager of its
//! own, in one process.
//!
//! ```text
//! KUBEBUILDER_ASSETS=dir cargo bench -p larder-e2e --bench hollow             # 25, 50 and 100 nodes
//! KUBEBUILDER_ASSETS=dir cargo bench -p larder-e2e --bench hollow -- 200 400  # other numbers, ascending
//! KUBEBUILDER_ASSETS=dir cargo bench -p larder-e2e --bench hollow -- --namespace-scope
//! ```
//!
//! A node has one pod with 20 ConfigMaps of its own, in a namespace of its own. Everything is created first, and then
//! the nodes start. Their cost is the growth of the API server's process since before the first one. BENCHMARKS.md
//! explains the columns. With `--namespace-scope` a node has one watch for all of its objects, and the permissions of
//! an administrator, since a node may not do that.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "progress and report"
)]

use std::{env, fs, path::Path, time::Duration};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::{Api, Client, api::PostParams};
use larder::{ConfigMapManager, ManagerConfig, WatchScope};
use larder_e2e::{Identity, Server, figures::Usage};
use larder_transport::{ClusterSource, Config, Metrics, Transport};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, interval, sleep};

/// Objects of a node.
const OBJECTS: usize = 20;
/// Bytes of an object's one value.
const VALUE: usize = 1024;
/// Requests under way at once while everything is created.
const AT_ONCE: usize = 8;
/// Pause for the API server's garbage collector, and length of the time without changes.
const QUIET: Duration = Duration::from_secs(10);
/// Changes per second while changes are measured, and for how long.
const CHANGES: (u32, Duration) = (50, Duration::from_secs(10));
/// Nodes of the cluster for which the last row is extrapolated: the most that Kubernetes supports.
const CLUSTER: usize = 5000;
/// Longest wait for an object.
const PATIENCE: Duration = Duration::from_mins(2);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut scope = WatchScope::Object;
    let numbers = env::args().skip(1).filter(|argument| {
        if argument == "--namespace-scope" {
            scope = WatchScope::Namespace;
        }
        !argument.starts_with("--")
    });
    let numbers = numbers.map(|number| number.parse().context("a number of nodes"));
    let mut numbers = numbers.collect::<anyhow::Result<Vec<usize>>>()?;
    if numbers.is_empty() {
        numbers = vec![25, 50, 100];
    }
    let server = Server::start().await?;
    let Server::Real(real) = &server else {
        bail!("set KUBEBUILDER_ASSETS: this measures the process of a real API server");
    };
    let pid = real.process().context("the API server runs")?;
    let admin = server.client().await?;
    let most = numbers.iter().max().copied().unwrap_or_default();
    fill(&admin, most).await?;
    let files = TempDir::with_prefix("larder-bench-")?;
    let kubeconfig = fs::read_to_string(server.kubeconfig(Identity::Admin)?)?;

    sleep(QUIET).await;
    let calm = Usage::of(pid)?;
    sleep(QUIET).await;
    let (before, own) = (Usage::of(pid)?, Usage::of(std::process::id())?);
    println!(
        "| nodes | watches | connections | synced | server's CPU, each watch | server's memory | grown, each watch | idle, each 1000 watches | each change | larder's memory, each node |"
    );
    println!("| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |");
    let empty = Empty {
        resident: bytes(before.resident),
        share: millis(before.cpu_time.saturating_sub(calm.cpu_time)) / millis(QUIET),
    };
    let mut nodes: Vec<Node> = Vec::new();
    let mut last = None;
    for number in numbers {
        let each = match scope {
            WatchScope::Object => OBJECTS,
            _ => 1,
        };
        let new = number.saturating_sub(nodes.len()) * each;
        eprintln!("measuring {number} nodes, {new} new watches");
        let (start, began) = (Instant::now(), Usage::of(pid)?);
        let joining =
            (nodes.len()..number).map(|index| Node::join(index, scope, &kubeconfig, files.path()));
        nodes.extend(try_join_all(joining).await?);
        let (synced, joined) = (start.elapsed(), Usage::of(pid)?);
        // Once more, for the garbage collector.
        sleep(QUIET).await;
        let settled = Usage::of(pid)?;
        sleep(QUIET).await;
        let idle = Usage::of(pid)?;
        let changes = change(&admin, number).await?;
        let after = Usage::of(pid)?;

        let resident = bytes(settled.resident);
        let row = Row {
            nodes: number,
            watches: number * each,
            connections: nodes
                .iter()
                .map(|node| node.transport.connections().len())
                .sum(),
            synced,
            joined_millis: millis(joined.cpu_time.saturating_sub(began.cpu_time)) / count(new),
            resident,
            grown: (resident - empty.resident) / count(number * each),
            idle_share: (millis(idle.cpu_time.saturating_sub(settled.cpu_time)) / millis(QUIET)
                - empty.share)
                / count(number * each),
            change_millis: millis(after.cpu_time.saturating_sub(idle.cpu_time)) / count(changes),
            ours: (bytes(Usage::of(std::process::id())?.resident) - bytes(own.resident))
                / count(number),
        };
        row.print();
        last = Some(row);
    }
    if let Some(row) = last {
        row.print_calculated(CLUSTER, &empty);
    }
    Ok(())
}

/// The API server's usage before the first node.
struct Empty {
    /// Its memory, in bytes.
    resident: f64,
    /// Its share of one CPU.
    share: f64,
}

/// The measurements with a number of nodes.
struct Row {
    nodes: usize,
    watches: usize,
    connections: usize,
    /// From the first connection of the new nodes until all of their objects could be read.
    synced: Duration,
    /// CPU time of the API server meanwhile, for each new watch.
    joined_millis: f64,
    /// Memory of the API server, in bytes.
    resident: f64,
    /// Its growth since before the first node, for each watch, in bytes.
    grown: f64,
    /// Growth of its share of one CPU without changes since before the first node, for each watch.
    idle_share: f64,
    /// Its CPU time for each change.
    change_millis: f64,
    /// Growth of this process for each node, in bytes.
    ours: f64,
}

impl Row {
    fn print(&self) {
        println!(
            "| {} | {} | {} | {:.2} s | {:.2} ms | {:.0} MiB | {:.1} KiB | {:.1} % | {:.2} ms | {:.0} KiB |",
            self.nodes,
            self.watches,
            self.connections,
            self.synced.as_secs_f64(),
            self.joined_millis,
            self.resident / MIB,
            self.grown / KIB,
            100.0 * 1000.0 * self.idle_share,
            self.change_millis,
            self.ours / KIB,
        );
    }

    /// Extrapolates the cost to this number of nodes: every measured figure for a watch or a node, times their number,
    /// plus the usage without nodes. With few watches noise dominates, and a figure may be negative. A change reaches
    /// the watches of one object, so its cost does not grow with the nodes in object scope.
    fn print_calculated(&self, nodes: usize, empty: &Empty) {
        let times = count(nodes) / count(self.nodes);
        let watches = times * count(self.watches);
        println!(
            "\nCalculated for {nodes} nodes with {OBJECTS} objects each: {watches:.0} watches on {:.0} connections; {:.1} GiB of memory; \
             {:.1} min of one CPU until all are synced; {:.0} % of one CPU without changes.",
            times * count(self.connections),
            (empty.resident + watches * self.grown.max(0.0)) / KIB / MIB,
            watches * self.joined_millis / 1e3 / 60.0,
            100.0 * (empty.share + watches * self.idle_share.max(0.0)),
        );
    }
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn bytes(number: u64) -> f64 {
    number as f64
}

/// A node without disk and containers.
struct Node {
    transport: Transport,
    /// Keeps the watches.
    _manager: ConfigMapManager,
}

impl Node {
    /// Connects as the node, registers its pod and waits until all objects are there.
    async fn join(
        index: usize,
        scope: WatchScope,
        kubeconfig: &str,
        files: &Path,
    ) -> anyhow::Result<Self> {
        let mut kubeconfig: Value = serde_json::from_str(kubeconfig)?;
        if scope == WatchScope::Object {
            let user = &mut kubeconfig["users"][0]["user"];
            user["as"] = format!("system:node:{}", node(index)).into();
            user["as-groups"] = json!(["system:nodes"]);
        }
        let path = files.join(format!("{}.kubeconfig", node(index)));
        fs::write(&path, kubeconfig.to_string())?;
        let source = ClusterSource::Kubeconfig {
            path,
            context: None,
        };
        let (client, transport) =
            larder_transport::connect(source, Config::default(), Metrics::default()).await?;
        let config = ManagerConfig::default().watch_scope(scope);
        let manager = ConfigMapManager::new(client, &config)?;
        manager.register_pod(&object(pod(index))?);
        for number in 0..OBJECTS {
            manager
                .get_within(&node(index), &name(number), PATIENCE)
                .await?;
        }
        Ok(Self {
            transport,
            _manager: manager,
        })
    }
}

/// The name of a node, of its namespace and of its pod.
fn node(index: usize) -> String {
    format!("hollow-{index}")
}

fn name(number: usize) -> String {
    format!("object-{number}")
}

fn config_map(index: usize, number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": node(index), "name": name(number)},
        "data": {"value": format!("{:0VALUE$}", fastrand::u128(..))},
    })
}

fn pod(index: usize) -> Value {
    let volumes = (0..OBJECTS)
        .map(|number| json!({"name": format!("v{number}"), "configMap": {"name": name(number)}}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": node(index), "name": node(index), "uid": node(index)},
        "spec": {
            "nodeName": node(index),
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": volumes.collect::<Vec<_>>(),
        },
    })
}

fn object<K: DeserializeOwned>(value: Value) -> anyhow::Result<K> {
    Ok(serde_json::from_value(value)?)
}

/// Creates the objects and pods of `nodes` nodes.
async fn fill(admin: &Client, nodes: usize) -> anyhow::Result<()> {
    let params = PostParams::default();
    let each = (0..nodes).map(|index| {
        let params = params.clone();
        async move {
            let namespaces: Api<Namespace> = Api::all(admin.clone());
            let namespace = json!({"metadata": {"name": node(index)}});
            namespaces.create(&params, &object(namespace)?).await?;
            let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), &node(index));
            for number in 0..OBJECTS {
                maps.create(&params, &object(config_map(index, number))?)
                    .await?;
            }
            let pods: Api<Pod> = Api::namespaced(admin.clone(), &node(index));
            pods.create(&params, &object(pod(index))?).await?;
            anyhow::Ok(())
        }
    });
    stream::iter(each)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Changes objects of `nodes` nodes for a while; returns the number of changes.
async fn change(admin: &Client, nodes: usize) -> anyhow::Result<usize> {
    let mut ticks = interval(Duration::from_secs(1) / CHANGES.0);
    let (start, mut changes) = (Instant::now(), 0);
    while start.elapsed() < CHANGES.1 {
        ticks.tick().await;
        let (index, number) = (fastrand::usize(..nodes), fastrand::usize(..OBJECTS));
        let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), &node(index));
        let map = object(config_map(index, number))?;
        maps.replace(&name(number), &PostParams::default(), &map)
            .await?;
        changes += 1;
    }
    Ok(changes)
}
