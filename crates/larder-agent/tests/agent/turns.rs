//! Work on disks takes turns: what one tenant writes holds up no other.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use larder_agent::status::{Phase, WaitsFor};
use larder_e2e::HungFs;
use serde_json::json;
use tokio::time::timeout;

use crate::harness::{Node, config_map, pod};

/// Pods of the tenant, and keys of the object that all of them mount.
const PODS: usize = 6;
const KEYS: usize = 3_000;

fn object(value: &str) -> serde_json::Value {
    let keys: BTreeMap<_, _> = (0..KEYS)
        .map(|key| (format!("key-{key:05}"), value))
        .collect();
    let mut object = config_map("large", &[]);
    object["data"] = json!(keys);
    object
}

/// The tenant's volumes whose files have this content.
fn written(node: &Node, value: &str) -> usize {
    let pods = (0..PODS).filter(|index| {
        let path = node.volume_path(&format!("tenant-{index}"), "cfg");
        let read = path.map(|path| fs::read_to_string(path.join("key-00000")));
        matches!(read, Some(Ok(found)) if found == value)
    });
    pods.count()
}

#[tokio::test]
async fn an_edit_is_delivered_between_pieces_of_a_tenants_large_volumes() {
    let mut node = Node::start();
    node.apply(&object("1"));
    node.apply(&config_map("app", &[("a", "1")]));
    for index in 0..PODS {
        let name = format!("tenant-{index}");
        node.apply(&pod(&name).config_map("cfg", "large").build());
    }
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "1")]).await;
    node.wait("the tenant's volumes", |node| {
        (written(node, "1") == PODS).then_some(())
    })
    .await;
    // Nothing of the first delivery is under way any more.
    node.wait("all pods to be delivered", |node| {
        let pods = node.status().pods;
        let all = pods
            .iter()
            .all(|pod| pod.delivery.phase == Phase::Delivered);
        all.then_some(())
    })
    .await;
    node.apply(&object("2"));
    // As soon as the first of the new sets is begun.
    node.wait("the tenant's edit to be under way", |node| {
        let path = node.volume_path("tenant-0", "cfg")?;
        let entries = fs::read_dir(path).ok()?.flatten();
        let sets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        (sets.count() > 1).then_some(())
    })
    .await;
    node.apply(&config_map("app", &[("a", "2")]));
    node.until("web", "cfg", &[("a", "2")]).await;
    assert_eq!(written(&node, "2"), 0, "the tenant's volumes came first");
    node.wait("the tenant's new volumes", |node| {
        (written(node, "2") == PODS).then_some(())
    })
    .await;
    node.stop().await;
}

/// Longest shutdown: far less than the agent waits for steps that go on.
const SHUTDOWN: Duration = Duration::from_secs(5);

fn waits_for_disk(node: &Node, name: &str) -> Option<()> {
    let pod = node.pod(name)?;
    let waits = pod
        .waits_for
        .is_some_and(|wait| wait.what == WaitsFor::Disk);
    (waits && pod.delivery.phase == Phase::Waiting).then_some(())
}

/// A node with these pods, each delivered.
async fn node_with(pods: &[&str]) -> Node {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    for name in pods {
        node.apply(&pod(name).config_map("cfg", "app").build());
    }
    for name in pods {
        node.until(name, "cfg", &[("a", "1")]).await;
        node.wait("the pod to be delivered", |node| {
            (node.pod(name)?.delivery.phase == Phase::Delivered).then_some(())
        })
        .await;
    }
    node
}

#[tokio::test]
async fn directories_that_hang_hold_up_their_own_pods_alone() {
    const HANGING: [&str; 5] = ["one", "two", "three", "four", "five"];
    let mut node = node_with(&["one", "two", "three", "four", "five", "web"]).await;
    let mut hung = Vec::new();
    for name in HANGING {
        let Some(mounted) = HungFs::mount(Path::new(&node.pod(name).unwrap().path)) else {
            return;
        };
        hung.push(mounted);
    }
    for value in ["2", "3"] {
        node.apply(&config_map("app", &[("a", value)]));
        node.until("web", "cfg", &[("a", value)]).await;
    }
    for name in HANGING {
        node.wait("the pod to wait for the disk", |node| {
            waits_for_disk(node, name)
        })
        .await;
    }
    assert_eq!(node.pod("web").unwrap().waits_for, None);
    timeout(SHUTDOWN, node.stop()).await.expect("nothing waits");
    // The runtime of the test waits for its threads.
    drop(hung);
}

#[tokio::test]
async fn a_disk_that_hangs_is_shown_and_does_not_keep_the_agent() {
    let mut node = node_with(&["one", "two", "three", "four", "web"]).await;
    let Some(mut hung) = HungFs::mount(&node.path().join("pods")) else {
        return;
    };
    node.apply(&config_map("app", &[("a", "2")]));
    for name in ["one", "two", "three", "four", "web"] {
        node.wait("the pod to wait for the disk", |node| {
            let pod = node.pod(name)?;
            (pod.waits_for.is_some() && pod.delivery.phase == Phase::Waiting).then_some(())
        })
        .await;
    }
    timeout(SHUTDOWN, node.stop()).await.expect("nothing waits");
    hung.abort();
}
