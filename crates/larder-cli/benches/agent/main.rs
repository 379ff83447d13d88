//! Speed and cost of the built command: start, memory, and the time from a write at the API server to the file.
//!
//! ```text
//! cargo bench -p larder-cli --bench agent                          # the embedded API server over TLS
//! KUBEBUILDER_ASSETS=dir cargo bench -p larder-cli --bench agent   # etcd and kube-apiserver of that folder
//! cargo bench -p larder-cli --bench agent -- --offline             # starts from the checkpoint, and what it costs
//! cargo bench -p larder-cli --bench agent -- --manifests dir       # no API server: edits of manifests; default examples/
//! cargo bench -p larder-cli --bench agent -- --on-change           # from the change to the signal, request or command
//! cargo bench -p larder-cli --bench agent -- --tenants             # edits beside a tenant that keeps the disk busy
//! ```
//!
//! `LARDER_BENCH_BINARY` names another build of the command to be measured instead. See BENCHMARKS.md for what the
//! columns mean.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "progress and report"
)]

mod manifests;
mod node;
mod offline;
mod on_change;
mod process;
mod push;
mod reader;
mod tenants;

use std::{env, path::PathBuf, time::Duration};

use anyhow::bail;
use larder_agent::status::Phase;
use larder_e2e::{Identity, NODE, Server};
use larder_objects::Kind;
use tokio::time::sleep;

use crate::{
    node::{Node, PodForm},
    process::{Agent, Moment, report},
    push::{Latency, PAUSE, Push},
};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(2);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    // In a process of its own, whose start is timed.
    if let [role, tag, socket] = arguments.as_slice()
        && on_change::probe::run(role, tag, socket.as_ref())?
    {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(measure(arguments))
}

async fn measure(arguments: Vec<String>) -> anyhow::Result<()> {
    let mut arguments = arguments
        .into_iter()
        .filter(|argument| argument != "--bench");
    match arguments.next().as_deref() {
        None => api().await,
        Some("--offline") => offline::run().await,
        Some("--on-change") => on_change::run().await,
        Some("--tenants") => tenants::run().await,
        Some("--manifests") => {
            let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
            let directory = arguments.next().map_or(examples.into(), PathBuf::from);
            manifests::run(&directory).await
        }
        Some(other) => {
            bail!("{other}? Only --offline, --manifests DIR, --on-change and --tenants are known")
        }
    }
}

/// A node with many pods, at an API server.
async fn api() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let client = server.client().await?;
    let node = Node::fill(client.clone(), PodForm::WithToken).await?;
    let kubeconfig = server.kubeconfig(Identity::Node)?.display().to_string();

    let agent = Agent::start(&["--kubeconfig", &kubeconfig, "--node-name", NODE])?;
    eprintln!("waiting until {} pods are in place", node::PODS);
    let status = agent.settled(node::PODS, &[Phase::Delivered]).await?;
    let before = Moment::of("all in place", &agent)?;
    // The answer of `/status` that said so is dropped.
    sleep(Duration::from_secs(1)).await;
    let at_rest = Moment::of("a second later", &agent)?;

    let push = Push::prepare(&agent, &client, &node).await?;
    let mut rows = Vec::new();
    for kind in [Kind::ConfigMap, Kind::Secret] {
        eprintln!("measuring updates of a {kind}");
        rows.push((kind, "idle", push.measure(kind, PAUSE).await?));
        let in_a_row = push.measure(kind, Duration::ZERO).await?;
        rows.push((kind, "idle, no pauses", in_a_row));
        let changing = tokio::select! {
            latency = push.measure(kind, PAUSE) => latency?,
            ended = node.change_others() => match ended? {},
        };
        rows.push((kind, "changing", changing));
    }
    let after = Moment::of("after the updates", &agent)?;

    println!("### {}\n", server.name());
    println!(
        "| object | others | write p50 | bare watch p50 / p99 / max | file p50 / p99 / max | file / bare (p50) |"
    );
    println!("| --- | --- | --: | --: | --: | --: |");
    for (kind, others, Latency { write, bare, file }) in rows {
        let ratio = file.p50 / bare.p50;
        println!(
            "| {kind} | {others} | {:.2} ms | {bare} | {file} | {ratio:.2} |",
            write.p50
        );
    }
    println!();
    report(&status, &[before, at_rest, after]);
    Ok(())
}
