//! This build takes over what an earlier one has left on disk: `upgrade/VERSION.tar.gz`, written by `upgrade/record`.

use std::{fs, path::Path, process::Command};

use rustix::process::Signal;

use crate::{Desk, checkpoint::start_agent, run::until};

const RECORDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/upgrade");
const VOLUME: &str =
    "root/pods/6f1f6a5c-4f6a-4d3e-9d7c-0d3b8f8f1a10/volumes/kubernetes.io~configmap/app";

/// A directory with the root directory, checkpoint, key and configuration of an earlier agent, whose API server is gone.
fn recorded(record: &Path) -> Desk {
    let desk = Desk::with([]);
    let unpacked = Command::new("tar")
        .args(["--no-same-owner", "-xzf"])
        .arg(record)
        .current_dir(desk.path())
        .status();
    assert!(unpacked.unwrap().success());
    desk
}

#[tokio::test]
async fn volumes_hook_records_and_checkpoint_of_earlier_builds_are_taken_over() {
    let records = fs::read_dir(RECORDS).unwrap();
    let records = records.map(|record| record.unwrap().path());
    let records = records.filter(|record| record.extension().is_some_and(|end| end == "gz"));
    let mut count = 0;
    for record in records {
        let desk = recorded(&record);
        let set = || fs::read_link(desk.path().join(VOLUME).join("..data")).unwrap();
        let before = set();
        let mut agent = start_agent(&desk);
        agent.collect_log();
        let status = || {
            let run = desk.run("status -o json --root-dir root");
            serde_json::from_str::<serde_json::Value>(&run.stdout).unwrap_or_default()
        };
        until("the pod of the checkpoint", || {
            status()["pods"][0]["phase"] == "Stale"
        })
        .await;
        let found = status();
        let name = record.display();
        assert_eq!(found["checkpoint"]["serving"]["pods"], 1, "{name}");
        assert_eq!(found["checkpoint"]["entries"], 5, "{name}");
        assert!(
            !desk.path().join("root/checkpoint/rejected").exists(),
            "{name}"
        );
        assert_eq!(set(), before, "{name}: the same content is not swapped");
        let level = fs::read_to_string(desk.path().join(VOLUME).join("level"));
        assert_eq!(level.unwrap(), "info", "{name}");
        let hook = &found["pods"][0]["onChange"][0];
        let state = (hook["state"].as_str(), hook["attempts"].as_u64());
        assert_eq!(
            state,
            (Some("Idle"), Some(0)),
            "{name}: no change, no firing"
        );
        assert_eq!(agent.signal(Signal::TERM), Some(0));
        count += 1;
    }
    assert!(count > 0, "there is a record in {RECORDS}");
}
