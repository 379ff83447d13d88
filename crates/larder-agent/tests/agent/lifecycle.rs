//! Pods that come, end and leave, and restarts of the agent.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use larder_agent::status::Phase;
use larder_apiserver::ApiKind;
use serde_json::json;

use crate::harness::{NODE, Node, config_map, pod};

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[tokio::test(start_paused = true)]
async fn agent_is_ready_after_its_sources_have_reported() {
    let mut node = Node::prepare();
    node.run();
    // Nothing has run yet: on this thread, the agent's task waits for the first await.
    assert!(!node.is_ready());
    node.settled().await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_other_nodes_are_ignored() {
    let node = Node::start();
    let mut other = pod("other").build();
    other["spec"]["nodeName"] = json!(format!("{NODE}-2"));
    node.apply(&other);
    node.apply(&pod("own").build());
    node.wait("its own pod", |node| node.pod("own")).await;
    assert!(node.pod("other").is_none());
}

#[tokio::test(start_paused = true)]
async fn removed_pod_gives_up_volumes_and_objects() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "1")]).await;
    let directory = node.pod("web").unwrap().path;
    node.delete(ApiKind::Pod, "web");
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

#[tokio::test(start_paused = true)]
async fn ended_pod_gives_up_volumes_and_stays_known() {
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

#[tokio::test(start_paused = true)]
async fn agent_completes_a_deletion_where_no_kubelet_runs() {
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
        (node.pod("web").is_none() && node.server.get(ApiKind::Pod, "default", "web").is_none())
            .then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn volume_removed_from_a_pod_is_torn_down() {
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

#[tokio::test(start_paused = true)]
async fn restart_rewrites_nothing_and_removes_what_is_gone() {
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

    node.delete(ApiKind::Pod, "leaves");
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

#[tokio::test(start_paused = true)]
async fn restart_removes_volumes_of_pods_that_have_ended() {
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

#[tokio::test(start_paused = true)]
async fn pod_without_volumes_leaves_no_link() {
    let mut node = Node::start();
    node.apply(&pod("waits").config_map("cfg", "missing").build());
    node.until_failing("waits", "cfg", r#"configmap "missing" not found"#)
        .await;
    let link = node.path().join("by-name/default/waits");
    assert!(fs::read_link(&link).is_ok());
    node.stop().await;

    node.delete(ApiKind::Pod, "waits");
    node.run();
    // Nothing of it need be on disk; if its environment was, its directory is taken down first.
    node.wait("the link to go", |_| {
        fs::read_link(&link).is_err().then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn link_by_name_appears_once_its_place_is_free() {
    let node = Node::prepare();
    let by_name = node.path().join("by-name");
    fs::write(&by_name, "in the way").unwrap();
    let mut node = node;
    node.run();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    // The volume is delivered all the same.
    node.until("web", "cfg", &[("a", "1")]).await;
    let told = node.wait("the failure to be reported", |node| {
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

#[tokio::test(start_paused = true)]
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
    node.delete(ApiKind::Pod, "parent");
    node.wait("the held pod to go", |node| {
        node.pod("parent").is_none().then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn path_in_the_way_fails_one_volume_until_removed() {
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
