//! `larder status`: what a running agent says of itself.

use std::fmt::Write as _;

use anyhow::Context as _;
use larder_agent::status::{AgentStatus, Delivery};

use crate::{
    agent::{AgentClient, client_config},
    args::{StatusArgs, StatusOutput},
    outcome::{CommandOutcome, Failure},
    output::{self, json::write_json, table::columns},
};

pub(super) fn run(args: &StatusArgs) -> Result<CommandOutcome, Failure> {
    let agent = AgentClient::new(&client_config(&args.place)?.root_dir)?;
    let status: AgentStatus = agent
        .ask("/status")?
        .context("the agent has no status (is it of another version of larder?)")?;
    output::results(|out| match args.output {
        StatusOutput::Json => write_json(out, &status),
        StatusOutput::Table => out.write_all(tables(&status).as_bytes()),
    })?;
    Ok(CommandOutcome::Done)
}

fn tables(status: &AgentStatus) -> String {
    let mut text = format!(
        "node {}, change detection {}, watch scope {}, root directory {}\n",
        status.node, status.change_detection, status.watch_scope, status.root_dir
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

    let mut rows = vec![["NAMESPACE", "KIND", "WATCH SCOPE", "REASON"].map(str::to_owned)];
    for choice in &status.watch_scopes {
        rows.push([
            choice.namespace.clone(),
            choice.kind.clone(),
            choice.scope.clone(),
            choice.reason.clone(),
        ]);
    }
    section(&mut text, &rows);

    let mut rows =
        vec![["POD", "SOURCE", "PHASE", "SINCE", "UID", "MIRROR", "REASON"].map(str::to_owned)];
    for pod in &status.pods {
        let (phase, since, reason) = shown(&pod.delivery);
        let deleted = pod.deletion_timestamp.map(|_| "Terminating".to_owned());
        let reasons = deleted.into_iter().chain(Some(reason));
        let reasons: Vec<_> = reasons.filter(|reason| !reason.is_empty()).collect();
        let mirror = match (&pod.mirror, pod.source.as_str()) {
            (Some(uid), _) => uid,
            (None, "file" | "http") => "missing",
            (None, _) => "",
        };
        rows.push([
            format!("{}/{}", pod.namespace, pod.name),
            pod.source.clone(),
            phase,
            since,
            pod.uid.clone(),
            mirror.to_owned(),
            reasons.join("; "),
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
