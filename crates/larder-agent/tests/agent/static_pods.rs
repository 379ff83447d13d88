//! Static pods: their manifests, mirror pods and remembered copies. Real time, since files are watched.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use larder_agent::{node::own_addresses, status::Phase};
use larder_apiserver::{ApiKind, Fault};
use larder_pods::static_pod::ApiReferences;
use serde_json::json;

use crate::harness::{NODE, Node, config_map, pod, secret};

#[tokio::test]
async fn static_pod_is_served_and_shows_its_mirror() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let file = node.static_pod(pod("static").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let status = node.wait("the mirror pod", |node| {
        let pod = node.pod(&name)?;
        pod.mirror.is_some().then_some(pod)
    });
    let status = status.await;
    assert_eq!(status.source, "file");
    assert_ne!(status.mirror, Some(status.uid));
    let directory = status.path;

    fs::remove_file(&file).unwrap();
    node.wait("the pod and its mirror to go", |node| {
        let mirror = node.server.get(ApiKind::Pod, "default", &name);
        (node.pod(&name).is_none() && mirror.is_none()).then_some(())
    })
    .await;
    assert!(!Path::new(&directory).exists());
}

#[tokio::test]
async fn static_pod_has_the_address_of_its_mirror() {
    let node = Node::start();
    let ip = json!({"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
    node.static_pod(pod("static").env(ip).build());
    let name = format!("static-{NODE}");
    let mirror = node.wait("the mirror pod", |node| {
        node.server.get(ApiKind::Pod, "default", &name)
    });
    let mut mirror = mirror.await;
    assert_eq!(node.environment(&name, "main"), None);
    mirror["status"]["podIP"] = json!("10.0.0.9");
    node.apply(&mirror);
    let environment = node.wait("the address", |node| node.environment(&name, "main"));
    assert_eq!(environment.await["IP"], "10.0.0.9");
}

#[tokio::test]
async fn static_pod_keeps_its_mirror_until_torn_down() {
    // managers 61: what a container runtime that is down is to the kubelet, a disk in disorder is here.
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let file = node.static_pod(pod("static").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let mirror = |node: &Node| {
        let found = node.server.get(ApiKind::Pod, "default", &name)?;
        Some(found["metadata"]["uid"].as_str().unwrap().to_owned())
    };
    let uid = node.wait("the mirror pod", mirror).await;
    let volumes = Path::new(&node.pod(&name).unwrap().path).join("volumes");
    let aside = node.path().join("aside");
    fs::rename(&volumes, &aside).unwrap();
    fs::write(&volumes, "in the way").unwrap();

    fs::remove_file(&file).unwrap();
    let removing = node.wait("the failure to be reported", |node| {
        node.pod(&name)
            .filter(|pod| pod.delivery.phase == Phase::Removing && !pod.delivery.reason.is_empty())
    });
    let reason = removing.await.delivery.reason;
    assert!(reason.contains("volumes"), "{reason}");
    assert_eq!(mirror(&node), Some(uid));
    let metrics = node.metrics();
    let gauge = |line: &str| metrics.lines().any(|found| found == line);
    assert!(
        gauge(r#"kubelet_working_pods{lifecycle="terminating",config="orphan",static="true"} 1"#)
            && gauge(r#"kubelet_desired_pods{static="true"} 0"#),
        "{metrics}"
    );

    fs::remove_file(&volumes).unwrap();
    fs::rename(&aside, &volumes).unwrap();
    node.wait("pod and mirror to go", |node| {
        (node.pod(&name).is_none() && mirror(node).is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn manifest_broken_at_a_restart_leaves_its_pod_served() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let manifest = pod("static").config_map("cfg", "app").build();
    let file = node.static_pod(manifest.clone());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let before = node.wait("the mirror pod", |node| {
        node.pod(&name).filter(|pod| pod.mirror.is_some())
    });
    let before = before.await;
    let data = node.volume_path(&name, "cfg").unwrap().join("..data");
    let set = fs::read_link(&data).unwrap();
    node.stop().await;

    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    for _ in 0..2 {
        node.run();
        node.settled().await;
        node.until(&name, "cfg", &[("a", "1")]).await;
        assert_eq!(fs::read_link(&data).unwrap(), set, "nothing is rewritten");
        let problem = node.wait("the problem to be reported", |node| {
            node.status().problems.into_iter().next()
        });
        assert!(problem.await.contains("static.json: invalid static pod"));
        node.stop().await;
    }
    // Served means fresh, and it is the same pod with the same mirror.
    node.run();
    node.apply(&config_map("app", &[("a", "2")]));
    node.until(&name, "cfg", &[("a", "2")]).await;
    let after = node.wait("the mirror pod", |node| {
        node.pod(&name).filter(|pod| pod.mirror.is_some())
    });
    let after = after.await;
    assert_eq!((after.uid, after.mirror), (before.uid, before.mirror));
    // It ends being broken.
    node.static_pod(manifest);
    node.wait("the problem to go", |node| {
        node.status().problems.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn manifest_gone_at_a_restart_removes_its_pod() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let file = node.static_pod(pod("static").config_map("cfg", "app").build());
    node.static_pod(pod("stays").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let directory = node.pod(&name).unwrap().path;
    let mirror = |node: &Node| node.server.get(ApiKind::Pod, "default", &name);
    node.wait("the mirror pod", mirror).await;
    node.stop().await;

    fs::remove_file(file).unwrap();
    node.run();
    node.wait("pod, directory and mirror to go", |node| {
        let gone = !Path::new(&directory).exists() && mirror(node).is_none();
        (gone && node.is_ready()).then_some(())
    })
    .await;
    assert!(node.pod(&name).is_none());
    node.until(&format!("stays-{NODE}"), "cfg", &[("a", "1")])
        .await;
}

#[tokio::test]
async fn manifests_are_remembered_privately_while_they_are_followed() {
    let mut node = Node::start();
    let mut manifest = pod("static").build();
    manifest["spec"]["containers"][0]["env"] = json!([{"name": "PASSWORD", "value": "hunter2"}]);
    let file = node.static_pod(manifest);
    let name = format!("static-{NODE}");
    node.wait("the variable", |node| node.environment(&name, "main"))
        .await;
    let copies = node.path().join("static-pods/file");
    let copy = |copies: &Path| {
        let entry = fs::read_dir(copies).unwrap().next();
        entry.map(|entry| entry.unwrap().path())
    };
    let found = copy(&copies).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&found), mode(&copies)), (0o600, 0o700));
    assert_eq!(mode(copies.parent().unwrap()), 0o700);
    node.stop().await;

    // Of a damaged copy nothing is left but a word, and the agent works on.
    fs::write(&found, "garbage").unwrap();
    fs::write(&file, "garbage").unwrap();
    node.apply(&pod("other").build());
    node.run();
    node.wait("both to be reported", |node| {
        let problems = node.status().problems;
        let told = |text| problems.iter().any(|problem| problem.contains(text));
        (told("static.json: invalid static pod") && told("copy of a last good manifest is damaged"))
            .then_some(())
    })
    .await;
    node.wait("the other pod", |node| node.environment("other", "main"))
        .await;
    node.stop().await;

    node.follow_static_pods = false;
    node.run();
    node.settled().await;
    assert!(!copies.exists());
}

#[tokio::test]
async fn static_pod_is_edited_and_has_the_nodes_address_while_the_server_was_never_reached() {
    let mut node = Node::prepare();
    let outage = node.server.faults().inject(Fault::on_any().never_answer());
    node.run();
    let ip = json!({"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}});
    let version = |number: &str| {
        let number = json!({"name": "VERSION", "value": number});
        pod("static").env(ip.clone()).env(number).build()
    };
    let name = format!("static-{NODE}");
    let own = own_addresses();
    node.static_pod(version("1"));
    for number in ["1", "2"] {
        node.static_pod(version(number));
        // A machine without a network has no address to tell.
        let Some(own) = own.first() else {
            let waits = "waiting for status.hostIP: the Node has no address yet";
            node.until_environment_failing(&name, waits).await;
            continue;
        };
        let environment = node.wait("the version", |node| {
            let environment = node.environment(&name, "main")?;
            (environment["VERSION"] == number).then_some(environment)
        });
        assert_eq!(environment.await["IP"], own.to_string());
    }
    // The Node's own word counts once it is heard.
    outage.lift();
    let mut object = node.server.get(ApiKind::Node, "", NODE).unwrap();
    object["status"] = json!({"addresses": [{"type": "InternalIP", "address": "10.1.2.3"}]});
    node.apply(&object);
    node.wait("the address of the Node", |node| {
        (node.environment(&name, "main")?["IP"] == "10.1.2.3").then_some(())
    })
    .await;
}

#[tokio::test]
async fn missing_node_is_noted_until_it_is_there() {
    let mut node = Node::prepare();
    let object = node.server.get(ApiKind::Node, "", NODE).unwrap();
    node.delete_global(ApiKind::Node, NODE);
    node.api_references = ApiReferences::Refuse;
    node.run();
    let said = node.wait("the note", |node| node.status().notes.into_iter().next());
    let expected = format!("the API server has no Node {NODE:?}, so it binds no pods to it");
    assert_eq!(said.await, expected);
    node.apply(&object);
    node.wait("the note to go", |node| {
        node.status().notes.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn static_pod_with_an_unknown_field_replaces_none_without() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&config_map("other", &[("b", "1")]));
    node.static_pod(pod("static").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let mut misspelled = pod("static").config_map("cfg", "other").build();
    misspelled["spec"]["hostNetwrk"] = json!(true);
    node.static_pod(misspelled);
    let problem = node.wait("the problem", |node| {
        node.status().problems.into_iter().next()
    });
    let problem = problem.await;
    assert!(
        problem.contains("keeping its last good version") && problem.contains("hostNetwrk"),
        "{problem}"
    );
    node.until(&name, "cfg", &[("a", "1")]).await;
    node.static_pod(pod("static").config_map("cfg", "other").build());
    node.until(&name, "cfg", &[("b", "1")]).await;
    assert!(node.status().problems.is_empty());
}

#[tokio::test]
async fn running_pod_never_waits_for_another_pods_freshness_check() {
    let mut node = Node::prepare();
    node.sync_frequency = Some(Duration::from_millis(20));
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("running").config_map("cfg", "app").build());
    node.run();
    node.until("running", "cfg", &[("a", "1")]).await;

    // An outage as the managers see it. The new pod comes from a file.
    let outage = Fault::on_any().resource("configmaps");
    let outage = node.server.faults().inject(outage.never_answer());
    node.server.faults().close_connections();
    node.static_pod(pod("new").config_map("cfg", "app").build());
    let new = format!("new-{NODE}");
    node.until_failing(
        &new,
        "cfg",
        "failed to sync configmap cache: timed out waiting for the condition",
    )
    .await;
    let unchanged = |node: &Node| {
        let metrics = node.metrics();
        let label = "deliveries_total{part=\"volume\",outcome=\"unchanged\"} ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(label));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let before = unchanged(&node);
    node.wait("repair passes of the running pod", |node| {
        let phase = node.pod("running")?.delivery.phase;
        assert_eq!(phase, Phase::Delivered);
        (unchanged(node) >= before + 5).then_some(())
    })
    .await;
    outage.lift();
}

#[tokio::test]
async fn static_pod_with_the_uid_of_another_pod_takes_nothing_over() {
    let mut node = Node::start();
    node.apply(&secret("keys", &[("key", "1")]));
    let mut victim = pod("victim").secret("cfg", "keys").build();
    victim["metadata"]["uid"] = json!("stated");
    node.apply(&victim);
    node.until("victim", "cfg", &[("key", "1")]).await;
    node.apply(&config_map("app", &[("a", "1")]));
    let mut thief = pod("thief").config_map("cfg", "app").build();
    thief["metadata"]["uid"] = json!("stated");
    node.static_pod(thief);
    let rejected = format!(
        "ignoring pod thief-{NODE}_default of source file: pod victim_default of source api already has its UID"
    );
    // As long as both run, and after a restart, when the file is read first.
    for _ in 0..2 {
        node.wait("the conflict to be shown", |node| {
            node.status().problems.contains(&rejected).then_some(())
        })
        .await;
        node.until("victim", "cfg", &[("key", "1")]).await;
        assert!(node.pod(&format!("thief-{NODE}")).is_none());
        node.stop().await;
        node.run();
    }
    node.delete(ApiKind::Pod, "victim");
    node.until(&format!("thief-{NODE}"), "cfg", &[("a", "1")])
        .await;
}
