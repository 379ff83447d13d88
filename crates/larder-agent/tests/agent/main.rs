//! The whole agent in one process, against the embedded API server, without sockets and without mounts.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not recognised as tests"
)]

mod api;
mod certificates;
mod disks;
mod events;
mod failures;
mod harness;
mod health;
mod tokens;
mod trust_bundles;
mod volumes;

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use harness::{NODE, Node, config_map, pod, secret};
use larder::Strategy;
use larder_agent::status::Phase;
use larder_apiserver::{Fault, Kind};
use serde_json::json;

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[tokio::test]
async fn a_pod_gets_its_files_and_every_edit_reaches_them() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1"), ("b", "1")]));
    node.apply(&secret("tls", &[("key", "hunter2")]));
    node.apply(
        &pod("web")
            .config_map("cfg", "app")
            .secret("tls", "tls")
            .build(),
    );
    node.until("web", "cfg", &[("a", "1"), ("b", "1")]).await;
    node.until("web", "tls", &[("key", "hunter2")]).await;
    // An edit, a key that goes and one that comes.
    node.apply(&config_map("app", &[("a", "2"), ("c", "1")]));
    node.until("web", "cfg", &[("a", "2"), ("c", "1")]).await;
    let link = fs::read_link(node.path().join("by-name/default/web")).unwrap();
    assert!(
        link.to_str()
            .unwrap()
            .ends_with(&node.pod("web").unwrap().uid)
    );
    node.stop().await;
}

#[tokio::test]
async fn a_missing_object_is_named_and_heals_when_it_appears() {
    // projection 36
    let node = Node::start();
    node.apply(&config_map("there", &[("k", "v")]));
    node.apply(
        &pod("web")
            .config_map("cfg", "missing")
            .config_map("other", "there")
            .build(),
    );
    node.until_failing("web", "cfg", r#"configmap "missing" not found"#)
        .await;
    // The others go on.
    node.until("web", "other", &[("k", "v")]).await;
    assert_eq!(node.pod("web").unwrap().delivery.phase, Phase::Failing);
    node.apply(&config_map("missing", &[("k", "v")]));
    node.until("web", "cfg", &[("k", "v")]).await;
    let healed = node.wait("the pod to heal", |node| {
        node.pod("web")
            .filter(|pod| pod.delivery.phase == Phase::Delivered)
    });
    assert_eq!(healed.await.delivery.reason, "");
}

#[tokio::test]
async fn a_required_object_or_key_that_goes_leaves_the_files_in_place() {
    // projection 36
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1"), ("b", "1")]));
    let items = json!({"configMap": {"name": "app", "items": [{"key": "a", "path": "x"}]}});
    node.apply(
        &pod("web")
            .volume("items", items)
            .config_map("all", "app")
            .build(),
    );
    node.until("web", "items", &[("x", "1")]).await;
    node.apply(&config_map("app", &[("b", "2")]));
    node.until_failing(
        "web",
        "items",
        "configmap references non-existent config key: a",
    )
    .await;
    node.until("web", "all", &[("b", "2")]).await;
    node.until("web", "items", &[("x", "1")]).await;
    node.delete(Kind::ConfigMap, "app");
    node.until_failing("web", "all", r#"configmap "app" not found"#)
        .await;
    node.until("web", "all", &[("b", "2")]).await;
}

#[tokio::test]
async fn an_optional_object_may_come_and_go() {
    let node = Node::start();
    let optional = json!({"secret": {"secretName": "maybe", "optional": true}});
    node.apply(&pod("web").volume("opt", optional).build());
    node.until("web", "opt", &[]).await;
    node.apply(&secret("maybe", &[("k", "v")]));
    node.until("web", "opt", &[("k", "v")]).await;
    node.delete(Kind::Secret, "maybe");
    node.until("web", "opt", &[]).await;
}

#[tokio::test]
async fn optional_volumes_follow_what_is_deleted_updated_and_created() {
    // projection 35
    let node = Node::start();
    node.apply(&secret("deleted", &[("data-1", "value-1")]));
    node.apply(&secret("updated", &[("data-1", "value-1")]));
    let optional = |name: &str| json!({"secret": {"secretName": name, "optional": true}});
    node.apply(
        &pod("web")
            .volume("del", optional("deleted"))
            .volume("upd", optional("updated"))
            .volume("create", optional("created"))
            .build(),
    );
    node.until("web", "del", &[("data-1", "value-1")]).await;
    node.until("web", "upd", &[("data-1", "value-1")]).await;
    node.until("web", "create", &[]).await;
    node.delete(Kind::Secret, "deleted");
    node.apply(&secret("updated", &[("data-3", "value-3")]));
    node.apply(&secret("created", &[("data-1", "value-1")]));
    node.until("web", "del", &[]).await;
    node.until("web", "upd", &[("data-3", "value-3")]).await;
    node.until("web", "create", &[("data-1", "value-1")]).await;
}

#[tokio::test]
async fn a_pod_reads_its_own_namespace_only() {
    // projection 33
    let node = Node::start();
    node.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}));
    let mut other = secret("login", &[("k", "theirs")]);
    other["metadata"]["namespace"] = json!("other");
    node.apply(&other);
    node.apply(&pod("web").secret("login", "login").build());
    node.until_failing("web", "login", r#"secret "login" not found"#)
        .await;
    node.apply(&secret("login", &[("k", "ours")]));
    node.until("web", "login", &[("k", "ours")]).await;
    // Neither an edit nor the end of the other one is news.
    other["stringData"] = json!({"k": "edited"});
    node.apply(&other);
    node.server.delete(Kind::Secret, "other", "login").unwrap();
    node.apply(&config_map("later", &[("k", "v")]));
    node.apply(&pod("later").config_map("cfg", "later").build());
    node.until("later", "cfg", &[("k", "v")]).await;
    node.until("web", "login", &[("k", "ours")]).await;
}

#[tokio::test]
async fn labels_of_a_pod_reach_its_files_and_nothing_is_swapped_without_a_change() {
    // projection 48
    let node = Node::start();
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let mut web = pod("web")
        .volume("info", json!({"downwardAPI": {"items": items}}))
        .build();
    web["metadata"]["labels"] = json!({"l": "1"});
    node.apply(&web);
    node.until("web", "info", &[("labels", "l=\"1\"")]).await;
    let path = node.volume_path("web", "info").unwrap().join("..data");
    let set = fs::read_link(&path).unwrap();
    // An annotation makes the agent look again, and is in no file.
    web["metadata"]["annotations"] = json!({"a": "1"});
    node.apply(&web);
    node.apply(&pod("later").build());
    node.wait("a later pod", |node| node.environment("later", "main"))
        .await;
    assert_eq!(fs::read_link(&path).unwrap(), set);
    web["metadata"]["labels"] = json!({"l": "2"});
    node.apply(&web);
    node.until("web", "info", &[("labels", "l=\"2\"")]).await;
    assert_ne!(fs::read_link(&path).unwrap(), set);
}

#[tokio::test]
async fn a_static_pod_that_cannot_be_taken_down_keeps_its_mirror() {
    // managers 61: what a container runtime that is down is to the kubelet, a disk in disorder is here.
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let file = node.static_pod(pod("static").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let mirror = |node: &Node| {
        let found = node.server.get(Kind::Pod, "default", &name)?;
        Some(found["metadata"]["uid"].as_str().unwrap().to_owned())
    };
    let uid = node.wait("the mirror pod", mirror).await;
    let volumes = Path::new(&node.pod(&name).unwrap().path).join("volumes");
    let aside = node.path().join("aside");
    fs::rename(&volumes, &aside).unwrap();
    fs::write(&volumes, "in the way").unwrap();

    fs::remove_file(&file).unwrap();
    let removing = node.wait("the failure to be told", |node| {
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
async fn the_environment_is_delivered_and_follows() {
    let node = Node::start();
    node.apply(&config_map("app", &[("A", "1")]));
    node.apply(
        &pod("web")
            .env_from(json!({"configMapRef": {"name": "app"}}))
            .build(),
    );
    let value = |node: &Node, name: &str| node.environment("web", "main")?.remove(name);
    node.wait("A=1", |node| (value(node, "A")? == "1").then_some(()))
        .await;
    node.apply(&config_map("app", &[("A", "2")]));
    node.wait("A=2", |node| (value(node, "A")? == "2").then_some(()))
        .await;
    // Services are there when they are.
    node.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
        "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 5432}]},
    }));
    node.wait("DB_SERVICE_HOST", |node| {
        (value(node, "DB_SERVICE_HOST")? == "10.0.0.7").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_leaves_is_cleaned_up_and_lets_go_of_its_objects() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "1")]).await;
    let directory = node.pod("web").unwrap().path;
    node.delete(Kind::Pod, "web");
    node.wait("the pod to go", |node| {
        node.pod("web").is_none().then_some(())
    })
    .await;
    assert!(!Path::new(&directory).exists());
    assert!(!node.path().join("by-name/default").exists());
    node.wait("its objects to go", |node| {
        node.status().objects.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_has_ended_gives_its_volumes_back_and_stays_known() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let mut ended = pod("job").config_map("cfg", "app").build();
    node.apply(&ended);
    node.until("job", "cfg", &[("a", "1")]).await;
    let directory = node.pod("job").unwrap().path;
    ended["status"] = json!({"phase": "Succeeded"});
    node.apply(&ended);
    let phase = |node: &Node| Some(node.pod("job")?.delivery.phase);
    node.wait("the pod to end", |node| {
        (phase(node)? == Phase::Ended).then_some(())
    })
    .await;
    assert!(!Path::new(&directory).exists());
    assert!(node.status().objects.is_empty());
}

#[tokio::test]
async fn a_restart_rewrites_nothing_and_cleans_up_what_left_meanwhile() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    for name in ["stays", "leaves"] {
        node.apply(&pod(name).config_map("cfg", "app").build());
        node.until(name, "cfg", &[("a", "1")]).await;
    }
    let data = node.volume_path("stays", "cfg").unwrap().join("..data");
    let left = node.pod("leaves").unwrap().path;
    let (set, file) = (fs::read_link(&data).unwrap(), inode(&data.join("a")));
    node.stop().await;
    assert!(data.join("a").exists(), "volumes stay when the agent ends");

    node.delete(Kind::Pod, "leaves");
    node.run();
    node.settled().await;
    node.until("stays", "cfg", &[("a", "1")]).await;
    assert_eq!(
        (fs::read_link(&data).unwrap(), inode(&data.join("a"))),
        (set, file)
    );
    node.wait("the other pod to go", |node| {
        (!Path::new(&left).exists() && node.pod("leaves").is_none()).then_some(())
    })
    .await;
    assert!(!node.path().join("by-name/default/leaves").is_symlink());
}

#[tokio::test]
async fn a_pod_that_never_got_anything_leaves_no_link_behind() {
    let mut node = Node::start();
    node.apply(&pod("waits").config_map("cfg", "missing").build());
    node.until_failing("waits", "cfg", r#"configmap "missing" not found"#)
        .await;
    let link = node.path().join("by-name/default/waits");
    assert!(fs::read_link(&link).is_ok());
    node.stop().await;

    node.delete(Kind::Pod, "waits");
    node.run();
    // Nothing of it need be on disk; if its environment was, its directory is taken down first.
    node.wait("the link to go", |_| {
        fs::read_link(&link).is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_agent_is_not_ready_before_its_sources_have_spoken() {
    let mut node = Node::prepare();
    node.run();
    // Nothing has run yet: on this thread, the agent's task waits for the first await.
    assert!(!node.is_ready());
    node.settled().await;
}

#[tokio::test]
async fn a_volume_that_the_manifest_no_longer_has_is_taken_down() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let with_uid = |mut pod: serde_json::Value| {
        pod["metadata"]["uid"] = json!("fixed");
        pod
    };
    node.apply(&with_uid(
        pod("web")
            .config_map("old", "app")
            .config_map("both", "app")
            .build(),
    ));
    node.until("web", "old", &[("a", "1")]).await;
    let old = node.volume_path("web", "old").unwrap();
    // As when a manifest is edited while no agent is there.
    node.stop().await;
    node.apply(&with_uid(
        pod("web")
            .config_map("new", "app")
            .config_map("both", "app")
            .build(),
    ));
    node.run();
    node.until("web", "new", &[("a", "1")]).await;
    node.until("web", "both", &[("a", "1")]).await;
    assert!(!old.exists());
}

#[tokio::test]
async fn a_burst_of_updates_ends_in_the_last_content_with_few_writes() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "0")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "0")]).await;
    let data = node.volume_path("web", "cfg").unwrap().join("..data");
    let (mut sets, mut last) = (0, fs::read_link(&data).unwrap());
    for update in 1..=100 {
        node.apply(&config_map("app", &[("a", &update.to_string())]));
        tokio::task::yield_now().await;
        let set = fs::read_link(&data).unwrap();
        sets += usize::from(set != last);
        last = set;
    }
    node.until("web", "cfg", &[("a", "100")]).await;
    assert!(sets <= 30, "{sets} sets");
}

#[tokio::test]
async fn one_pods_trouble_does_not_delay_another() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("bad").config_map("cfg", "missing").build());
    node.apply(&pod("good").config_map("cfg", "app").build());
    node.until("good", "cfg", &[("a", "1")]).await;
    node.until_failing("bad", "cfg", r#"configmap "missing" not found"#)
        .await;
    node.settled().await;
}

#[tokio::test]
async fn paths_that_cannot_be_fail_their_volume_alone() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1"), ("b", "2")]));
    let items = |paths: [&str; 2]| {
        let [a, b] = paths.map(ToOwned::to_owned);
        json!({"configMap": {"name": "app", "items": [{"key": "a", "path": a}, {"key": "b", "path": b}]}})
    };
    // What would leave the volume does not even get past the API server.
    let escape = pod("escape").volume("bad", items(["a", "../../escape"]));
    node.server.apply(&escape.build()).unwrap_err();
    // What contradicts itself does.
    node.apply(
        &pod("web")
            .volume("bad", items(["x", "x/y"]))
            .config_map("good", "app")
            .build(),
    );
    node.until_failing(
        "web",
        "bad",
        "invalid path: is both a file and a directory: x",
    )
    .await;
    node.until("web", "good", &[("a", "1"), ("b", "2")]).await;
    assert!(!node.volume_path("web", "bad").unwrap().exists());
}

#[tokio::test]
async fn a_deleted_pod_is_ended_where_no_kubelet_is() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "1")]).await;
    let client = kube::Client::new(node.server.service(), "default");
    let request = http::Request::delete("/api/v1/namespaces/default/pods/web")
        .body(Vec::new())
        .unwrap();
    client.request_text(request).await.unwrap();
    node.wait("the pod to go", |node| {
        (node.pod("web").is_none() && node.server.get(Kind::Pod, "default", "web").is_none())
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn pods_of_other_nodes_are_none_of_its_business() {
    let node = Node::start();
    let mut other = pod("other").build();
    other["spec"]["nodeName"] = json!(format!("{NODE}-2"));
    node.apply(&other);
    node.apply(&pod("own").build());
    node.wait("its own pod", |node| node.pod("own")).await;
    assert!(node.pod("other").is_none());
}

#[tokio::test]
async fn a_static_pod_is_served_and_shows_its_mirror() {
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
        let mirror = node.server.get(Kind::Pod, "default", &name);
        (node.pod(&name).is_none() && mirror.is_none()).then_some(())
    })
    .await;
    assert!(!Path::new(&directory).exists());
}

#[tokio::test]
async fn a_static_pod_whose_manifest_is_broken_at_a_restart_is_served_on() {
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
        let problem = node.wait("the problem to be told", |node| {
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
async fn a_static_pod_whose_manifest_is_gone_at_a_restart_is_gone() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let file = node.static_pod(pod("static").config_map("cfg", "app").build());
    node.static_pod(pod("stays").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.until(&name, "cfg", &[("a", "1")]).await;
    let directory = node.pod(&name).unwrap().path;
    let mirror = |node: &Node| node.server.get(Kind::Pod, "default", &name);
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
async fn manifests_are_remembered_privately_and_only_as_long_as_they_are_followed() {
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
    node.wait("both to be told", |node| {
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
async fn a_link_by_name_is_made_as_soon_as_nothing_is_in_its_way() {
    let node = Node::prepare();
    let by_name = node.path().join("by-name");
    fs::write(&by_name, "in the way").unwrap();
    let mut node = node;
    node.run();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    // The volume is delivered all the same.
    node.until("web", "cfg", &[("a", "1")]).await;
    let told = node.wait("the failure to be told", |node| {
        node.pod("web")
            .filter(|pod| pod.delivery.phase == Phase::Failing)
    });
    let reason = told.await.delivery.reason;
    assert!(reason.starts_with("directory: cannot "), "{reason}");
    assert!(reason.contains("by-name"), "{reason}");

    fs::remove_file(&by_name).unwrap();
    node.wait("the link", |_| {
        fs::read_link(by_name.join("default/web")).ok()
    })
    .await;
    node.wait("the pod to heal", |node| {
        let phase = node.pod("web")?.delivery.phase;
        (phase == Phase::Delivered).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_restart_cleans_up_a_pod_that_has_ended_meanwhile() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let mut job = pod("job").config_map("cfg", "app").build();
    node.apply(&job);
    node.until("job", "cfg", &[("a", "1")]).await;
    let directory = node.pod("job").unwrap().path;
    node.stop().await;
    job["status"] = json!({"phase": "Failed"});
    node.apply(&job);
    node.run();
    node.wait("the directory to go", |_| {
        (!Path::new(&directory).exists()).then_some(())
    })
    .await;
    assert!(node.status().objects.is_empty());
}

#[tokio::test]
async fn variables_come_from_the_file_that_another_container_writes() {
    // projection 61
    let node = Node::start();
    let variable = |name: &str, path: &str, optional: bool| {
        json!({"name": name, "valueFrom": {"fileKeyRef":
            {"volumeName": "scratch", "path": path, "key": "K", "optional": optional}}})
    };
    node.apply(
        &pod("web")
            .volume("scratch", json!({"emptyDir": {}}))
            .env(variable("A", "out/env", false))
            .env(variable("B", "never", true))
            .build(),
    );
    node.until_environment_failing(
        "web",
        "couldn't parse env file: failed to read out/env of volume scratch: no such file",
    )
    .await;
    let directory = Path::new(&node.pod("web").unwrap().path)
        .join("volumes/kubernetes.io~empty-dir/scratch/out");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("env"), "K='from a file'\n").unwrap();
    let environment = node.wait("the variable", |node| node.environment("web", "main"));
    let environment = environment.await;
    assert_eq!(environment["A"], "from a file");
    assert!(!environment.contains_key("B"));
}

#[tokio::test]
async fn without_a_watch_an_edit_arrives_with_the_next_pass() {
    for strategy in [Strategy::Get, Strategy::Cache] {
        let mut node = Node::prepare();
        node.strategy = strategy;
        node.run();
        node.apply(&config_map("app", &[("a", "1")]));
        node.apply(
            &pod("web")
                .config_map("cfg", "app")
                .env_from(json!({"configMapRef": {"name": "app"}}))
                .build(),
        );
        node.until("web", "cfg", &[("a", "1")]).await;
        node.apply(&config_map("app", &[("a", "2")]));
        // Longer than a pass may be away (90 s) and an answer is kept (60 s).
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(200)).await;
        tokio::time::resume();
        node.until("web", "cfg", &[("a", "2")]).await;
        node.wait("a=2", |node| {
            (node.environment("web", "main")?.remove("a")? == "2").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_optional_secret_may_be_missing_but_not_unknown() {
    // managers 82
    let node = Node::start();
    let optional = json!({"secretRef": {"name": "maybe", "optional": true}});
    node.apply(&pod("web").env_from(optional.clone()).build());
    node.wait("the environment", |node| node.environment("web", "main"))
        .await;

    let fault = Fault::on_any().resource("secrets").name("maybe");
    let silence = node.server.faults().inject(fault.never_answer());
    node.delete(Kind::Pod, "web");
    node.wait("the pod to go", |node| {
        node.pod("web").is_none().then_some(())
    })
    .await;
    node.apply(&pod("late").env_from(optional).build());
    node.until_environment_failing(
        "late",
        "failed to sync secret cache: timed out waiting for the condition",
    )
    .await;
    assert!(node.environment("late", "main").is_none());
    silence.lift();
    node.server.faults().close_connections();
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
async fn pod_whose_uid_is_no_directory_name_is_held() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    for (name, uid) in [
        ("parent", ".."),
        ("slash", "a/../../b"),
        ("long", &*"u".repeat(5000)),
        ("control", "a\u{1}b"),
    ] {
        let mut pod = pod(name).config_map("cfg", "app").build();
        pod["metadata"]["uid"] = json!(uid);
        node.apply(&pod);
        let reason = node.wait("the pod to be held", |node| {
            let pod = node.pod(name)?;
            (pod.delivery.phase == Phase::Held).then_some(pod.delivery.reason)
        });
        assert_eq!(reason.await, "its UID cannot be the name of a directory");
    }
    // The others are served.
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "1")]).await;
    let pods = fs::read_dir(node.path().join("pods")).unwrap();
    assert_eq!(pods.count(), 1);
    node.delete(Kind::Pod, "parent");
    node.wait("the held pod to go", |node| {
        node.pod("parent").is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_path_in_the_way_fails_one_volume_until_it_is_gone() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let plugin = node
        .path()
        .join("pods/blocked/volumes/kubernetes.io~configmap");
    fs::create_dir_all(&plugin).unwrap();
    fs::write(plugin.join("bad"), "in the way").unwrap();
    let mut blocked = pod("blocked")
        .config_map("bad", "app")
        .config_map("good", "app")
        .build();
    blocked["metadata"]["uid"] = json!("blocked");
    node.apply(&blocked);
    let reason = format!(
        "cannot open directory {}: Not a directory (os error 20)",
        plugin.join("bad").display()
    );
    node.until_failing("blocked", "bad", &reason).await;
    // Neither its own other volume nor another pod waits for it.
    node.until("blocked", "good", &[("a", "1")]).await;
    node.apply(&pod("other").config_map("cfg", "app").build());
    node.until("other", "cfg", &[("a", "1")]).await;
    assert_eq!(fs::read(plugin.join("bad")).unwrap(), b"in the way");

    fs::remove_file(plugin.join("bad")).unwrap();
    node.until("blocked", "bad", &[("a", "1")]).await;
}

#[tokio::test]
async fn answers_are_kept_as_long_as_the_node_says() {
    let mut node = Node::prepare();
    node.strategy = Strategy::Cache;
    node.sync_frequency = Some(Duration::from_millis(20));
    node.apply(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
    }));
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.run();
    node.until("web", "cfg", &[("a", "1")]).await;
    // The default of a minute is longer than this test waits.
    node.apply(&config_map("app", &[("a", "2")]));
    node.until("web", "cfg", &[("a", "2")]).await;
}
