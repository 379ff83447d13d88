//! `larder checkpoint`: an agent's encrypted checkpoint, whether or not it runs.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use larder_agent::{
    checkpoint::inspect,
    config::{Config, Flags},
};
use larder_checkpoint::{Contents, SavedCopy, Store};
use larder_objects::chain;
use serde_json::json;

use crate::{
    agent::{cluster_id, config_with, origin},
    args::{CheckpointAction, CheckpointArgs, CheckpointOutput},
    outcome::{Failure, partial_if},
    output::{self, age, json::write_json},
};

pub(super) fn run(args: &CheckpointArgs) -> Result<ExitCode, Failure> {
    let flags = Flags {
        node_name: args.node_name.clone(),
        ..Flags::default()
    };
    let config = config_with(&args.place, flags)?;
    if args.action == CheckpointAction::Erase {
        let removed =
            Store::erase(&config.checkpoint_place()).context("cannot erase the checkpoint")?;
        output::note(format_args!("{} removed", output::count(removed, "file")));
        return Ok(ExitCode::SUCCESS);
    }
    let found = find(args, &config)?;
    output::results(|out| match (args.action, args.output) {
        (CheckpointAction::List, CheckpointOutput::Table) => {
            out.write_all(table(&found.copies, output::now()).as_bytes())
        }
        (_, CheckpointOutput::Json) => write_json(out, &json(&found)),
        _ => match found.copies.len() {
            1 => writeln!(out, "1 copy opened"),
            copies => writeln!(out, "{copies} copies opened"),
        },
    })?;
    for file in &found.rejected {
        output::error(anyhow!("{file}").as_ref());
    }
    Ok(partial_if(!found.rejected.is_empty()))
}

fn find(args: &CheckpointArgs, config: &Config) -> Result<Contents<()>, Failure> {
    let Some(checkpoint) = &config.checkpoint else {
        return Err(Failure::unreadable(
            "no checkpoint is configured; name a key in `checkpoint.key` of the configuration (--config FILE)",
        ));
    };
    let kubeconfig = args.kubeconfig.as_ref().or(config.kubeconfig.as_ref());
    let source = origin(kubeconfig.map(PathBuf::as_path), args.context.as_deref());
    let cluster = cluster_id(&source)?;
    let place = config.checkpoint_place();
    let found = inspect(&place, &checkpoint.keys, cluster, &config.node_name).map_err(|error| {
        Failure::unreadable(format!("cannot open the checkpoint: {}", chain(&error)))
    })?;
    let path = place.path().display();
    found.ok_or_else(|| Failure::unreadable(format!("there is no checkpoint at {path}")))
}

/// A line for each copy, with its age at `now`.
fn table(copies: &[SavedCopy<()>], now: Timestamp) -> String {
    let rows: Vec<_> = copies
        .iter()
        .map(|copy| {
            let name = match (copy.id.namespace.as_str(), copy.id.name.as_str()) {
                ("", name) => name.to_owned(),
                (namespace, name) => format!("{namespace}/{name}"),
            };
            let state = copy.content.map_or("absent", |()| "present");
            let verified_at = format!("{:.0}", copy.verified_at);
            [
                copy.id.kind.to_string(),
                name,
                state.to_owned(),
                verified_at,
                age(copy.verified_at, now),
                copy.bytes.to_string(),
            ]
        })
        .collect();
    let heading = ["KIND", "NAME", "STATE", "CONFIRMED", "AGE", "BYTES"];
    output::table::table(heading, &rows)
}

fn json(found: &Contents<()>) -> serde_json::Value {
    let copies = found.copies.iter().map(|copy| {
        json!({
            "kind": copy.id.kind,
            "namespace": copy.id.namespace,
            "name": copy.id.name,
            "absent": copy.content.is_none(),
            "lastConfirmed": copy.verified_at.to_string(),
            "bytes": copy.bytes,
        })
    });
    let rejected = found.rejected.iter().map(ToString::to_string);
    json!({"copies": copies.collect::<Vec<_>>(), "rejected": rejected.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use larder_checkpoint::CopyId;

    use super::*;

    #[test]
    fn a_list_shows_names_and_ages_and_no_value() {
        let copy = |kind: &str, namespace: &str, name: &str, content, bytes| SavedCopy {
            id: CopyId {
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
            },
            content,
            verified_at: Timestamp::UNIX_EPOCH,
            bytes,
        };
        let copies = [
            copy("Pod", "prod", "web", Some(()), 2048),
            copy("Secret", "prod", "tls\u{1b}", None, 0),
            copy("Node", "", "", Some(()), 512),
        ];
        let now = Timestamp::from_second(3600).unwrap();
        expect![[r#"
            KIND     NAME             STATE     CONFIRMED              AGE   BYTES
            Pod      prod/web         present   1970-01-01T00:00:00Z   60m   2048
            Secret   prod/tls\u{1b}   absent    1970-01-01T00:00:00Z   60m   0
            Node                      present   1970-01-01T00:00:00Z   60m   512
        "#]]
        .assert_eq(&table(&copies, now));
    }
}
