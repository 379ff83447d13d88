//! What a node's watches cost and how fast they are, over TLS, against the embedded API server.
//!
//! ```text
//! cargo bench -p larder --bench scale                          # 100, 500, 1000 and 2000 objects
//! cargo bench -p larder --bench scale -- 5000                  # other numbers
//! cargo bench -p larder --bench scale -- --kubeconfig FILE 500 # another API server, in namespace larder-bench
//! ```
//!
//! Every row is a process of its own, so that nothing is left over from the row before; the server is another one. See
//! BENCHMARKS.md for what the columns mean.

#![expect(clippy::print_stdout, reason = "the report")]

mod node;
mod report;
mod server;

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use node::Measured;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
    let mut numbers = Vec::new();
    let mut kubeconfig = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--serve" => return server::serve(),
            "--node" => {
                let kubeconfig = arguments.next().context("--node FILE NUMBER")?;
                let number = arguments.next().context("--node FILE NUMBER")?.parse()?;
                return node::run(kubeconfig.into(), number);
            }
            "--kubeconfig" => kubeconfig = Some(arguments.next().context("--kubeconfig FILE")?),
            number => numbers.push(number.parse().context("a number of objects")?),
        }
    }
    if numbers.is_empty() {
        numbers = vec![100, 500, 1000, 2000];
    }
    let rows = numbers
        .into_iter()
        .map(|number| measure(number, kubeconfig.as_deref()))
        .collect::<Result<Vec<_>>>()?;
    println!("{}", report::of(&rows));
    Ok(())
}

/// One row: a fresh server, unless there is one, and a fresh node.
fn measure(number: usize, kubeconfig: Option<&str>) -> Result<Measured> {
    let server = kubeconfig.is_none().then(|| Process::start(&["--serve"]));
    let mut server = server.transpose()?;
    let kubeconfig = match (&mut server, kubeconfig) {
        (Some(server), _) => server.line()?,
        (None, Some(file)) => file.to_owned(),
        (None, None) => unreachable!("a server was started"),
    };
    let mut node = Process::start(&["--node", &kubeconfig, &number.to_string()])?;
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
