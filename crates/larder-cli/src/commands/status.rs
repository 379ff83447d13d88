//! `larder status`: what a running agent says of itself.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, bail};
use larder_agent::{
    config::Flags,
    root_dir,
    status::{AgentStatus, Delivery},
};

use super::{
    Failure, Outcome,
    refs::{columns, write_json},
    run::config,
};
use crate::{
    args::{StatusArgs, StatusOutput},
    output,
};

/// Longest wait for the agent's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &StatusArgs) -> Result<Outcome, Failure> {
    let root_dir = config(&args.place, Flags::default())?.root_dir;
    let socket = root_dir::socket(&root_dir);
    let status = ask(&socket).with_context(|| {
        format!(
            "no agent answers at {}; does `larder run` run, with the same --root-dir?",
            socket.display()
        )
    })?;
    output::results(|out| match args.output {
        StatusOutput::Json => write_json(out, &status),
        StatusOutput::Table => out.write_all(tables(&status).as_bytes()),
    })?;
    Ok(Outcome::Done)
}

/// Asks the agent behind `socket`. HTTP/1.0, so that the end of the answer is the end of the connection.
fn ask(socket: &Path) -> anyhow::Result<AgentStatus> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /status HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("the answer is not HTTP")?;
    let status = answer.split(|byte| *byte == b' ').nth(1);
    if status != Some(b"200") {
        bail!(
            "the answer is {}",
            String::from_utf8_lossy(status.unwrap_or_default())
        );
    }
    serde_json::from_slice(&answer[head + 4..])
        .context("the answer is of another version of larder")
}

fn tables(status: &AgentStatus) -> String {
    let mut text = format!(
        "node {}, change detection {}, root directory {}\n",
        status.node, status.change_detection, status.root_dir
    );
    // Writing to a String does not fail.
    for source in &status.silent_sources {
        let _ = writeln!(
            text,
            "no word yet from source {source}; nothing is removed until then"
        );
    }
    for problem in &status.problems {
        let _ = writeln!(text, "problem: {problem}");
    }

    let mut rows =
        vec![["POD", "SOURCE", "PHASE", "SINCE", "UID", "MIRROR", "REASON"].map(str::to_owned)];
    for pod in &status.pods {
        let (phase, since, reason) = shown(&pod.delivery);
        rows.push([
            format!("{}/{}", pod.namespace, pod.name),
            pod.source.clone(),
            phase,
            since,
            pod.uid.clone(),
            pod.mirror.clone().unwrap_or_default(),
            reason,
        ]);
    }
    section(&mut text, &rows);

    let mut rows = vec![
        [
            "VOLUME",
            "TYPE",
            "PHASE",
            "SINCE",
            "FILES",
            "LAST SWAP",
            "REASON",
        ]
        .map(str::to_owned),
    ];
    for pod in &status.pods {
        for volume in &pod.volumes {
            let (phase, since, reason) = shown(&volume.delivery);
            rows.push([
                format!("{}/{}/{}", pod.namespace, pod.name, volume.name),
                volume.type_.clone(),
                phase,
                since,
                volume.files.to_string(),
                volume
                    .last_swap
                    .map(|time| format!("{time:.0}"))
                    .unwrap_or_default(),
                reason,
            ]);
        }
    }
    section(&mut text, &rows);

    let mut rows = vec![["OBJECT", "STATE", "VERSION", "AGE", "PODS", "ERROR"].map(str::to_owned)];
    for object in &status.objects {
        rows.push([
            format!("{} {}/{}", object.kind, object.namespace, object.name),
            object.state.clone(),
            object.resource_version.clone(),
            format!("{}s", object.age_secs),
            object.pods.join(","),
            object.error.clone(),
        ]);
    }
    section(&mut text, &rows);
    text
}

fn shown(delivery: &Delivery) -> (String, String, String) {
    let since = format!("{:.0}", delivery.since);
    (
        delivery.phase.as_str().to_owned(),
        since,
        delivery.reason.clone(),
    )
}

/// Appends a table, unless it is empty.
fn section<const N: usize>(text: &mut String, rows: &[[String; N]]) {
    if rows.len() > 1 {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| row.each_ref().map(String::as_str))
            .collect();
        text.push('\n');
        *text += &columns(&rows);
    }
}
