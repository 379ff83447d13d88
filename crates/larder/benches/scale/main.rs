//! Cost and speed of a node's watches, over TLS.
//!
//! ```text
//! # 100, 500, 1000 and 2000 objects, on the embedded API server
//! cargo bench -p larder --bench scale
//! # the same on the etcd and kube-apiserver of that folder
//! KUBEBUILDER_ASSETS=DIR cargo bench -p larder --bench scale
//! # other numbers
//! cargo bench -p larder --bench scale -- 5000
//! # one watch for the namespace instead of one for each object
//! cargo bench -p larder --bench scale -- --namespace-scope
//! # no latencies; the node ends with all of its memory in use
//! cargo bench -p larder --bench scale -- --sync-only
//! # another API server, in namespace larder-bench; with --server-pid PID its CPU time, if it runs on this machine
//! cargo bench -p larder --bench scale -- --kubeconfig FILE 500
//! ```
//!
//! Every row is a process of its own, so that nothing is left over from the row before; the server is another one. See
//! BENCHMARKS.md for what the columns mean.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "progress and report"
)]

mod node;
mod report;
mod server;

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use larder::WatchScope;
use larder_e2e::{Identity, Server};
use node::{Measured, Node};
use tokio::runtime::Runtime;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
    let mut numbers = Vec::new();
    let mut kubeconfig = None;
    let mut server = None;
    let mut scope = WatchScope::Object;
    let mut sync_only = false;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--serve" => return server::serve(),
            "--node" => {
                let mut next = || arguments.next().context("an argument of --node");
                return node::run(&Node {
                    kubeconfig: next()?,
                    objects: next()?.parse()?,
                    scope: next()?.parse()?,
                    sync_only: next()?.parse()?,
                    server: arguments.next().map(|pid| pid.parse()).transpose()?,
                });
            }
            "--server-pid" => {
                let pid = arguments.next().context("--server-pid PID")?;
                server = Some(pid.parse().context("--server-pid PID")?);
            }
            "--kubeconfig" => kubeconfig = Some(arguments.next().context("--kubeconfig FILE")?),
            "--namespace-scope" => scope = WatchScope::Namespace,
            "--sync-only" => sync_only = true,
            number => numbers.push(number.parse().context("a number of objects")?),
        }
    }
    if numbers.is_empty() {
        numbers = vec![100, 500, 1000, 2000];
    }
    let rows = numbers
        .into_iter()
        .map(|objects| {
            let node = |kubeconfig: &str, server| Node {
                kubeconfig: kubeconfig.into(),
                objects,
                scope,
                sync_only,
                server,
            };
            eprintln!("measuring {objects} objects");
            measure(kubeconfig.as_deref(), server, node)
        })
        .collect::<Result<Vec<_>>>()?;
    println!("{}", report::of(&rows));
    Ok(())
}

/// One row: a fresh server, unless there is one, and a fresh node on it.
fn measure(
    kubeconfig: Option<&str>,
    server: Option<u32>,
    node: impl FnOnce(&str, Option<u32>) -> Node,
) -> Result<Measured> {
    if let Some(kubeconfig) = kubeconfig {
        return measured(&node(kubeconfig, server));
    }
    if env::var_os("KUBEBUILDER_ASSETS").is_none() {
        let mut server = Process::start(&["--serve"])?;
        let kubeconfig = server.line()?;
        return measured(&node(&kubeconfig, Some(server.child.id())));
    }
    let server = Runtime::new()?.block_on(Server::start())?;
    let Server::Real(real) = &server else {
        anyhow::bail!("KUBEBUILDER_ASSETS asks for a real server");
    };
    let kubeconfig = server.kubeconfig(Identity::Admin)?;
    let kubeconfig = kubeconfig.to_str().context("the path is text")?;
    measured(&node(kubeconfig, real.process()))
}

/// Measures on a node that is a process of its own.
fn measured(node: &Node) -> Result<Measured> {
    let objects = node.objects.to_string();
    let sync_only = node.sync_only.to_string();
    let server = node.server.map(|pid| pid.to_string());
    let mut arguments = vec![
        "--node",
        &node.kubeconfig,
        &objects,
        node.scope.as_str(),
        &sync_only,
    ];
    arguments.extend(server.as_deref());
    let mut node = Process::start(&arguments)?;
    serde_json::from_str(&node.line()?).context("the node's measurements")
}

/// This program again, in another role. Killed when dropped.
struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("stdout is piped")?);
        Ok(Self { child, output })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "the process has ended");
        Ok(line.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
