//! Starts while the API server is away: what the checkpoint brings back, and what happens when the API server returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use larder_agent::{
    agent::PodDeletion,
    checkpoint::{CheckpointConfig, KeySource},
    status::{CheckpointStatus, Phase},
};
use larder_apiserver::{Fault, Kind, Options, Verb};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::{NODE, Node, config_map, pod, secret};

/// What no file of the checkpoint may show.
const CANARY: &str = "hunter2-canary";

/// A node with a checkpoint and without static pods, whose agent does not run yet. Its key lies in `static_pods`, which
/// the reboot does not empty.
fn prepare() -> Node {
    let mut node = Node::prepare_with(Options::default().fill_namespaces(true));
    node.follow_static_pods = false;
    node.pod_deletion = PodDeletion::External;
    let key = KeySource::File(node.static_pods.path().join("key"));
    node.checkpoint = Some(CheckpointConfig::new(vec![key]));
    node
}

fn checkpoint(node: &Node) -> CheckpointStatus {
    node.status().checkpoint.unwrap()
}

/// Waits until the checkpoint holds what the API server has by now.
async fn recorded(node: &Node) {
    let expected = |node: &Node| {
        let status = node.status();
        let pods = status.pods.iter().filter(|pod| pod.source == "api").count();
        // The facts about the node and the Services, too.
        pods + status.objects.len() + 2
    };
    node.settled().await;
    // The writes of a second join.
    sleep(Duration::from_secs(3)).await;
    node.wait("the checkpoint", |node| {
        (checkpoint(node).entries == expected(node)).then_some(())
    })
    .await;
}

/// What is left of the root directory after a reboot: the checkpoint.
fn empty_root(node: &Node) {
    for entry in fs::read_dir(node.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() == "checkpoint" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(entry.path()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// Stops the agent and reboots the machine.
async fn reboot(node: &mut Node) {
    node.stop().await;
    empty_root(node);
}

/// All files of the pods as readers see them, with their modes.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, String)> {
    fn collect(root: &Path, directory: &Path, found: &mut BTreeMap<PathBuf, (u32, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = entry.path();
            if name.starts_with("..20") {
                continue;
            }
            let Ok(metadata) = fs::metadata(&path) else {
                continue;
            };
            if metadata.is_dir() {
                collect(root, &path, found);
            } else {
                let content = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().to_owned();
                found.insert(path, (metadata.permissions().mode(), content));
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(root, &root.join("pods"), &mut found);
    found
}

/// Waits until a volume fails for a reason with these words.
async fn failing(node: &Node, pod: &str, volume: &str, words: &str) {
    node.wait(&format!("{pod}/{volume} to fail: {words}"), |node| {
        let delivery = node.volume(pod, volume)?.delivery;
        let is_failing = delivery.phase == Phase::Failing && delivery.reason.contains(words);
        is_failing.then_some(())
    })
    .await;
}

/// Objects of both kinds, and a pod that has them as volumes and variables.
fn apply_web(node: &Node) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 5432}]},
    });
    node.apply(&service);
    node.apply(&config_map("app", &[("a", "1"), ("b", "2")]));
    node.apply(&secret("tls", &[("key", CANARY)]));
    let mode = json!({"secret": {"secretName": "tls", "defaultMode": 0o400}});
    let limit = json!({"resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}, "path": "cpu"});
    let web = pod("web")
        .config_map("cfg", "app")
        .volume("tls", mode)
        .volume("facts", json!({"downwardAPI": {"items": [limit]}}))
        .env_from(json!({"secretRef": {"name": "tls"}}))
        .env(json!({"name": "B", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "b"}}}));
    node.apply(&web.build());
}

#[tokio::test(start_paused = true)]
async fn a_reboot_without_the_api_server_brings_everything_back() {
    // offline 1
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    let before = tree(node.path());
    assert!(before.len() >= 5, "{before:?}");
    let proven = checkpoint(&node).written.unwrap();
    reboot(&mut node).await;
    assert!(!node.path().join("pods").exists());

    node.server.faults().inject(Fault::on_any().never_answer());
    let start = Instant::now();
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.wait("the same tree", |node| {
        (tree(node.path()) == before).then_some(())
    })
    .await;
    let after = start.elapsed();
    assert!(
        after >= Duration::from_secs(1) && after < Duration::from_secs(2),
        "{after:?}"
    );
    let environment = node.environment("web", "main").unwrap();
    assert_eq!(environment["B"], "2");
    assert_eq!(environment["key"], CANARY);
    assert_eq!(environment["DB_SERVICE_HOST"], "10.96.0.7");

    let status = checkpoint(&node);
    let serving = status.serving.unwrap();
    assert_eq!(serving.pods, 1);
    assert!(serving.as_of >= proven);
    let stale: Vec<_> = ["cfg", "tls"]
        .map(|name| node.volume("web", name).unwrap().stale_as_of)
        .into();
    assert_eq!(stale, [Some(serving.as_of); 2]);
    assert_eq!(
        node.pod("web").unwrap().containers[0].stale_as_of,
        Some(serving.as_of)
    );
    assert_eq!(node.volume("web", "facts").unwrap().stale_as_of, None);
    assert!(
        node.status()
            .objects
            .iter()
            .all(|object| object.state == "stale")
    );
    assert!(
        node.metrics().contains("checkpoint_serving 1"),
        "{}",
        node.metrics()
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_elsewhere_outlives_the_root_directory() {
    let disk = tempfile::tempdir().unwrap();
    let mut node = prepare();
    node.checkpoint_dir = Some(disk.path().join("sealed"));
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    assert_eq!(fs::read_dir(node.path()).unwrap().count(), 0);

    node.server.faults().inject(Fault::on_any().never_answer());
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert!(!node.path().join("checkpoint").exists());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_meanwhile_is_swapped_in_once_after_the_return() {
    // offline 2
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.apply(&config_map("app", &[("a", "changed")]));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    let current = |node: &Node, volume: &str| {
        let path = node.volume_path("web", volume).unwrap().join("..data");
        fs::read_link(path).unwrap()
    };
    let (old, tls) = (current(&node, "cfg"), current(&node, "tls"));
    away.lift();
    let mut seen = BTreeSet::from([old.clone()]);
    node.wait("the marks to go", |node| {
        seen.insert(current(node, "cfg"));
        let pod = node.pod("web")?;
        let mut volumes = pod.volumes.iter();
        let proven = volumes.all(|volume| volume.stale_as_of.is_none());
        (proven && checkpoint(node).serving.is_none()).then_some(())
    })
    .await;
    seen.insert(current(&node, "cfg"));
    assert_eq!(seen.len(), 2, "one swap: {seen:?}");
    assert_eq!(
        current(&node, "tls"),
        tls,
        "what has not changed is not swapped"
    );
    node.until("web", "cfg", &[("a", "changed")]).await;
    assert!(
        node.status()
            .objects
            .iter()
            .all(|object| object.state == "synced")
    );
    // The environment of the next start needs the key that is gone.
    node.until_environment_failing("web", "couldn't find key b in ConfigMap default/app")
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_meanwhile_follows_the_rules_after_the_return() {
    // offline 3
    let mut node = prepare();
    apply_web(&node);
    let optional = json!({"configMap": {"name": "app", "optional": true}});
    node.apply(&pod("other").volume("opt", optional).build());
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.delete(Kind::ConfigMap, "app");
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.until("other", "opt", &[("a", "1"), ("b", "2")]).await;
    away.lift();
    node.until_failing("web", "cfg", r#"configmap "app" not found"#)
        .await;
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.until("other", "opt", &[]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_meanwhile_is_taken_down_after_the_return_only() {
    // offline 4
    let mut node = prepare();
    apply_web(&node);
    node.apply(&pod("gone").config_map("cfg", "app").build());
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node
        .server
        .faults()
        .inject(Fault::on_any().drop_connection());
    node.delete(Kind::Pod, "gone");
    node.run();
    node.until("gone", "cfg", &[("a", "1"), ("b", "2")]).await;
    let path = node.volume_path("gone", "cfg").unwrap();
    sleep(Duration::from_mins(5)).await;
    assert!(
        path.exists(),
        "nothing is taken down while the API server is away"
    );
    assert_eq!(
        checkpoint(&node).entries,
        6,
        "two pods, two objects, node and Services"
    );
    away.lift();
    node.wait("the pod to go", |node| {
        node.pod("gone").is_none().then_some(())
    })
    .await;
    assert!(!path.exists());
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(checkpoint(&node).entries, 5);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_accepted_gets_no_copies() {
    // offline 5
    for code in [401, 403] {
        let mut node = prepare();
        apply_web(&node);
        node.run();
        recorded(&node).await;
        reboot(&mut node).await;
        let denied = node.server.faults().inject(Fault::on_any().status(code));
        node.run();
        sleep(Duration::from_secs(10)).await;
        assert!(node.status().pods.is_empty());
        assert!(checkpoint(&node).serving.is_none());
        // Nor when it stops answering after that.
        denied.lift();
        let away = node.server.faults().inject(Fault::on_any().status(503));
        sleep(Duration::from_mins(1)).await;
        assert!(node.status().pods.is_empty());
        away.lift();
        node.until("web", "tls", &[("key", CANARY)]).await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_denied_is_not_served_and_loses_its_copy() {
    // offline 6
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    assert_eq!(checkpoint(&node).entries, 5);
    reboot(&mut node).await;
    node.server
        .faults()
        .inject(Fault::on_any().resource("secrets").name("tls").status(403));
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.wait("the denial", |node| {
        let reason = node.volume("web", "tls")?.delivery.reason;
        reason
            .contains("not allowed to read secret default/tls")
            .then_some(())
    })
    .await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(node.files("web", "tls"), None);
    assert_eq!(checkpoint(&node).entries, 4);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_denied_after_it_was_served_stays_in_its_volume_and_reaches_no_other() {
    // offline 6: the files stay, as those of any object that is denied or deleted
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    let path = node.volume_path("web", "tls").unwrap().join("..data");
    let set = fs::read_link(&path).unwrap();
    let stale_as_of = node.volume("web", "tls").unwrap().stale_as_of;
    assert!(stale_as_of.is_some());

    let denied = node
        .server
        .faults()
        .inject(Fault::on_any().resource("secrets").name("tls").status(403));
    away.lift();
    let words = "not allowed to read secret default/tls";
    failing(&node, "web", "tls", words).await;
    let mode = json!({"secret": {"secretName": "tls"}});
    node.apply(&pod("late").volume("tls", mode).build());
    failing(&node, "late", "tls", words).await;
    // Repairs change nothing.
    sleep(Duration::from_mins(10)).await;
    assert_eq!(node.files("late", "tls"), None);
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert_eq!(fs::read_link(&path).unwrap(), set);
    assert_eq!(
        node.volume("web", "tls").unwrap().stale_as_of,
        stale_as_of,
        "its files are still those of the copy"
    );
    assert_eq!(node.environment("web", "main").unwrap()["key"], CANARY);
    assert_eq!(
        checkpoint(&node).entries,
        5,
        "two pods, the ConfigMap, node and Services"
    );

    // Nor does the next start serve it, which finds the files of this one.
    node.stop().await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.wait("the pods from the checkpoint", |node| {
        (node.status().pods.len() == 2).then_some(())
    })
    .await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(node.files("late", "tls"), None);
    node.until("web", "tls", &[("key", CANARY)]).await;
    away.lift();
    denied.lift();
    // A denial is asked about again less and less often.
    sleep(Duration::from_mins(5)).await;
    node.until("late", "tls", &[("key", CANARY)]).await;
    node.wait("the mark to go", |node| {
        let tls = node.volume("web", "tls")?;
        tls.stale_as_of.is_none().then_some(())
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn a_node_that_is_denied_after_copies_were_served_serves_them_to_no_new_pod() {
    // offline 5
    for code in [401, 403] {
        let mut node = prepare();
        node.follow_static_pods = true;
        let key = tempfile::tempdir().unwrap();
        let key_file = KeySource::File(key.path().join("key"));
        let mut config = CheckpointConfig::new(vec![key_file]);
        config.after = Duration::from_millis(300);
        node.checkpoint = Some(config);
        apply_web(&node);
        node.run();
        node.wait("the checkpoint", |node| {
            (checkpoint(node).entries == 5).then_some(())
        })
        .await;
        reboot(&mut node).await;
        let away = node.server.faults().inject(Fault::on_any().status(503));
        node.run();
        node.until("web", "tls", &[("key", CANARY)]).await;
        let before = tree(node.path());
        let away_problems = node.status().problems;
        node.server.faults().inject(Fault::on_any().status(code));
        away.lift();
        failing(&node, "web", "tls", "").await;
        node.wait("the denial of the pods", |node| {
            let problems = node.status().problems;
            (!problems.is_empty() && problems != away_problems).then_some(())
        })
        .await;
        node.static_pod(pod("late").config_map("cfg", "app").build());
        let late = format!("late-{NODE}");
        failing(&node, &late, "cfg", "").await;
        assert_eq!(node.files(&late, "cfg"), None, "{code}");
        // What runs keeps what it has.
        let mut now = tree(node.path());
        now.retain(|path, _| before.contains_key(path));
        assert_eq!(now, before, "{code}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_replaces_what_the_checkpoint_brought() {
    // offline 7
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    node.apply(&config_map("app", &[("a", "new"), ("b", "2")]));
    node.server
        .faults()
        .inject(Fault::on_any().delay(Duration::from_secs(3)));
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    let mut seen = BTreeSet::new();
    node.wait("the new state", |node| {
        let files = node
            .files("web", "cfg")
            .expect("the reader sees old or new, never neither");
        seen.insert(files["a"].clone());
        let proven = node.volume("web", "cfg")?.stale_as_of.is_none();
        (proven && files["a"] == "new").then_some(())
    })
    .await;
    assert_eq!(seen, BTreeSet::from(["1".to_owned(), "new".to_owned()]));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_answers_leaves_the_checkpoint_unused() {
    // offline 8
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    node.run();
    let mut serving = false;
    node.wait("everything", |node| {
        let status = node.status();
        let mut volumes = status.pods.iter().flat_map(|pod| &pod.volumes);
        serving |= checkpoint(node).serving.is_some();
        serving |= volumes.any(|volume| volume.stale_as_of.is_some());
        (node.is_ready() && node.files("web", "tls").is_some()).then_some(())
    })
    .await;
    sleep(Duration::from_secs(5)).await;
    assert!(!serving && checkpoint(&node).serving.is_none());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_secret_is_not_served_and_says_so() {
    // offline 9
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let proven = node.clock.now();
    node.set_clock_ahead(8 * 24 * 3600);
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    let reason = node.wait("the expiry", |node| {
        let delivery = node.volume("web", "tls")?.delivery;
        (delivery.phase == Phase::Failing).then_some(delivery.reason)
    });
    let reason = reason.await;
    let day = proven.to_string();
    let (day, _) = day.split_once('T').unwrap();
    assert!(
        reason.starts_with(&format!("last known good of {day}")),
        "{reason}"
    );
    assert!(reason.contains(" has expired: "), "{reason}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_in_1970_makes_no_copy_expire() {
    // offline 10
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let now = node.clock.now();
    node.set_clock_ahead(-now.as_second());
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_exposed_key_turns_the_checkpoint_off_and_nothing_else() {
    // offline 11
    let mut node = prepare();
    apply_web(&node);
    let key = node.static_pods.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    let problem = checkpoint(&node).problem;
    assert!(problem.contains("has mode 0644"), "{problem}");
    assert!(!node.path().join("checkpoint").exists());
    // As soon as it is private, it is used.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    recorded(&node).await;
    assert_eq!(checkpoint(&node).problem, "");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_key_starts_an_empty_checkpoint_and_says_so() {
    // offline 12
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    fs::remove_file(node.static_pods.path().join("key")).unwrap();
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.wait("the rejection", |node| {
        (!checkpoint(node).rejected.is_empty()).then_some(())
    })
    .await;
    let status = checkpoint(&node);
    assert_eq!(status.entries, 0);
    assert!(status.key_beside_data);
    let index = status
        .rejected
        .iter()
        .find(|text| text.starts_with("index"));
    assert_eq!(
        index.unwrap(),
        "index: sealed with a key that is not configured"
    );
    assert!(
        fs::read_dir(node.path().join("checkpoint/rejected"))
            .unwrap()
            .count()
            > 5
    );
    sleep(Duration::from_secs(5)).await;
    assert!(node.status().pods.is_empty());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rotated_key_opens_old_copies_and_seals_new_ones() {
    // offline 13
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let keys = |names: &[&str]| {
        let keys = names
            .iter()
            .map(|name| KeySource::File(node.static_pods.path().join(name)));
        CheckpointConfig::new(keys.collect())
    };
    let (both, new) = (keys(&["new", "key"]), keys(&["new"]));
    node.checkpoint = Some(both);
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    away.lift();
    recorded(&node).await;
    reboot(&mut node).await;
    node.checkpoint = Some(new);
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert!(checkpoint(&node).rejected.is_empty());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_nothing_holds_up_no_delivery() {
    // offline 20, 21: what the errors are, the tests of the store say
    let mut node = prepare();
    apply_web(&node);
    fs::write(node.path().join("checkpoint"), "in the way").unwrap();
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    let problem = checkpoint(&node).problem;
    assert!(problem.starts_with("cannot open "), "{problem}");
    assert!(
        node.metrics().contains("checkpoint_failures_total"),
        "{}",
        node.metrics()
    );
    // It heals by itself.
    fs::remove_file(node.path().join("checkpoint")).unwrap();
    recorded(&node).await;
    assert_eq!(checkpoint(&node).problem, "");
    node.stop().await;
}

/// Writes of the checkpoint so far.
fn writes(node: &Node) -> u64 {
    let metrics = node.metrics();
    let line = metrics
        .lines()
        .find(|line| line.contains("checkpoint_writes_total"));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_hundred_changes_in_a_second_make_two_writes_at_most() {
    // offline 22
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    let before = writes(&node);
    for number in 0..100 {
        node.apply(&config_map("app", &[("a", &number.to_string())]));
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_secs(5)).await;
    let made = writes(&node) - before;
    assert!((1..=2).contains(&made), "{made} writes");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_writes_nothing_for_an_hour() {
    // offline 23
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    let before = writes(&node);
    let index = fs::metadata(node.path().join("checkpoint/index")).unwrap();
    for _ in 0..60 {
        sleep(Duration::from_mins(1)).await;
    }
    assert_eq!(writes(&node), before);
    let after = fs::metadata(node.path().join("checkpoint/index")).unwrap();
    assert_eq!(after.modified().unwrap(), index.modified().unwrap());
    // A restart that finds the same versions writes no copy: only the times of the proofs are written at the shutdown.
    node.stop().await;
    node.run();
    recorded(&node).await;
    assert_eq!(writes(&node), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_reference_takes_the_copy_with_it() {
    // offline 24
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    assert_eq!(checkpoint(&node).entries, 5);
    node.delete(Kind::Pod, "web");
    node.wait("the copies to go", |node| {
        (checkpoint(node).entries == 2).then_some(())
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_volume_says_why_it_waits_and_the_others_are_there() {
    // offline 25
    let mut node = prepare();
    apply_web(&node);
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
    let volume = json!({"projected": {"sources": [token]}});
    node.apply(
        &pod("api")
            .volume("token", volume)
            .config_map("cfg", "app")
            .build(),
    );
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("api", "cfg", &[("a", "1"), ("b", "2")]).await;
    let reason = node.wait("the reason", |node| {
        let delivery = node.volume("api", "token")?.delivery;
        (delivery.phase == Phase::Failing).then_some(delivery.reason)
    });
    let reason = reason.await;
    assert!(reason.contains("token"), "{reason}");
    assert_eq!(node.files("api", "token"), None);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_absent_optional_object_stays_absent() {
    // offline 26
    let mut node = prepare();
    let optional = json!({"secret": {"secretName": "maybe", "optional": true}});
    node.apply(&pod("web").volume("opt", optional).build());
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "opt", &[]).await;
    assert!(node.volume("web", "opt").unwrap().stale_as_of.is_some());
    node.apply(&secret("maybe", &[("k", "v")]));
    away.lift();
    node.until("web", "opt", &[("k", "v")]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_secret_shows_in_checkpoint_status_or_metrics() {
    // offline 28: logs carry names only, as `larder`'s own canaries say
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    let mut files = 0;
    for entry in fs::read_dir(node.path().join("checkpoint")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        files += 1;
        for canary in [CANARY.as_bytes(), b"default", b"tls", NODE.as_bytes()] {
            let shows = bytes.windows(canary.len()).any(|window| window == canary);
            // Three letters come up by chance in random bytes.
            assert!(
                !shows || canary == b"tls",
                "{} shows {canary:?}",
                path.display()
            );
        }
    }
    assert!(files >= 6, "{files}");
    let status = serde_json::to_string(&node.status()).unwrap();
    for text in [status, node.metrics()] {
        assert!(!text.contains(CANARY), "{text}");
    }
    node.stop().await;
}

#[tokio::test]
async fn static_pods_beside_it_are_unaffected_and_read_copies_too() {
    // offline 31
    let mut node = prepare();
    node.follow_static_pods = true;
    let key = tempfile::tempdir().unwrap();
    let key_file = KeySource::File(key.path().join("key"));
    let mut config = CheckpointConfig::new(vec![key_file]);
    config.after = Duration::from_millis(300);
    node.checkpoint = Some(config);
    apply_web(&node);
    node.static_pod(pod("static").config_map("cfg", "app").build());
    node.run();
    node.until(&format!("static-{NODE}"), "cfg", &[("a", "1"), ("b", "2")])
        .await;
    node.wait("the checkpoint", |node| {
        (checkpoint(node).entries == 5).then_some(())
    })
    .await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until(&format!("static-{NODE}"), "cfg", &[("a", "1"), ("b", "2")])
        .await;
    node.until("web", "tls", &[("key", CANARY)]).await;
    away.lift();
    node.wait("the marks to go", |node| {
        let pod = node.pod(&format!("static-{NODE}"))?;
        pod.volumes[0].stale_as_of.is_none().then_some(())
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_erased_checkpoint_comes_back_with_the_next_change() {
    // offline 32
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    assert!(larder_agent::checkpoint::erase(&node.path().join("checkpoint")).unwrap() > 5);
    assert_eq!(
        fs::read_dir(node.path().join("checkpoint"))
            .unwrap()
            .count(),
        0
    );
    node.apply(&config_map("app", &[("a", "2"), ("b", "2")]));
    node.until("web", "cfg", &[("a", "2"), ("b", "2")]).await;
    node.wait("the index", |node| {
        node.path().join("checkpoint/index").exists().then_some(())
    })
    .await;
    reboot(&mut node).await;
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "cfg", &[("a", "2"), ("b", "2")]).await;
    node.until("web", "tls", &[("key", CANARY)]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_watch_that_fails_later_serves_no_copies() {
    // O19: while the agent runs, what is served stays served
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    let before = tree(node.path());
    node.server
        .faults()
        .inject(Fault::on(Verb::Watch).status(503));
    node.server
        .faults()
        .inject(Fault::on(Verb::List).status(503));
    node.server.end_watches();
    sleep(Duration::from_mins(10)).await;
    assert!(checkpoint(&node).serving.is_none());
    assert_eq!(tree(node.path()), before);
    node.stop().await;
}
