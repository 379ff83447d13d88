//! Mounts by `subPath` that follow their volume, in containers that a kubelet and a runtime have made.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    bed::{
        Bed, code, config_map_volume, container, content, pod, secret_volume, until, until_content,
    },
    node::{Container, IMAGE},
};

/// A pod with this annotation asks for updates.
pub(super) const ASKS: &str = "larder.dev/subpath-updates";

/// Reads `/one` without a pause, and appends each line that differs from the one before to the file `$SEEN`.
const READER: &str = "last=; while :; do if IFS= read -r now < /one; then :; else now=absent; fi; \
                      [ \"$now\" = \"$last\" ] || { echo \"$now\" >> \"$SEEN\"; last=$now; }; done";

/// The key `k` of a volume at `path`.
pub(super) fn by_sub_path(volume: &str, path: &str) -> Value {
    json!({"name": volume, "mountPath": path, "subPath": "k", "readOnly": true})
}

/// The pod `web`, which asks, with these mounts in its container.
pub(super) fn asking(volumes: Value, mounts: Value) -> Value {
    let mut web = pod("web", volumes);
    web["metadata"]["annotations"] = json!({ASKS: "true"});
    web["spec"]["containers"][0]["volumeMounts"] = mounts;
    web
}

/// A container of any kind.
fn container_named(pod: &Pod, name: &str) -> anyhow::Result<Container> {
    let mut pod = pod.clone();
    if let Some(status) = &mut pod.status {
        let others = [
            status.init_container_statuses.take(),
            status.ephemeral_container_statuses.take(),
        ];
        let all = status.container_statuses.get_or_insert_default();
        all.extend(others.into_iter().flatten().flatten());
    }
    Container::of(&pod, name)
}

/// The lines of the container's table of mounts for this mount point.
fn mounts_on(container: &Container, mount_point: &str) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{}/mountinfo", container.pid)).unwrap();
    let lines = table
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some(mount_point));
    lines.map(str::to_owned).collect()
}

/// There is one mount, read-only and private, of a file that exists.
fn assert_one_mount(container: &Container, mount_point: &str) {
    let mounts = mounts_on(container, mount_point);
    let [mount] = &mounts[..] else {
        panic!("{mounts:#?}")
    };
    let (own, _) = mount.split_once(" - ").unwrap();
    let fields: Vec<_> = own.split(' ').collect();
    assert!(fields[5].split(',').any(|option| option == "ro"), "{mount}");
    assert_eq!(fields.len(), 6, "it is in a group: {mount}");
    assert!(!fields[3].ends_with("//deleted"), "{mount}");
}

/// What larder says of a mount; null if nothing.
fn shown(bed: &mut Bed, pod: &Pod, container: &str, path: &str) -> Value {
    let status = bed.larder().status().unwrap().unwrap_or_default();
    let items = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let pods = items(&status, "pods").into_iter();
    let pod = pods
        .filter(|found| found["uid"].as_str() == pod.metadata.uid.as_deref())
        .flat_map(|pod| items(&pod, "volumes"))
        .flat_map(|volume| items(&volume, "subPaths"));
    let mut mounts =
        pod.filter(|mount| mount["container"] == container && mount["mountPath"] == path);
    mounts.next().unwrap_or_default()
}

pub(super) async fn until_state(
    bed: &mut Bed,
    pod: &Pod,
    container: &str,
    path: &str,
    state: &str,
) -> Value {
    let mut last = Value::Null;
    for _ in 0..600 {
        last = shown(bed, pod, container, path);
        if last["state"] == state {
            return last;
        }
        sleep(Duration::from_millis(100)).await;
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap();
    let name = pod.metadata.name.as_deref().unwrap();
    let now = bed.pods(namespace).get(name).await.unwrap();
    let mounts = container_named(&now, container).map(|found| mounts_on(&found, path));
    panic!(
        "{path} of {container} is not {state} within a minute: {last}\nmounts: {mounts:#?}\nlarder's log: {}\nstatus: {:#?}",
        bed.larder().log(),
        now.status
    );
}

/// The mounts below a directory on the node.
fn mounts_below(directory: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = |line: &&str| Path::new(line.split(' ').nth(4).unwrap()).starts_with(directory);
    table.lines().filter(below).map(str::to_owned).collect()
}

fn pod_dir(bed: &Bed, pod: &Pod) -> PathBuf {
    let uid = pod.metadata.uid.as_deref().unwrap();
    bed.node.kubelet.root_dir().join("pods").join(uid)
}

async fn delete_and_wait(bed: &Bed, ns: &str, pod: &Pod) {
    let (pods, name) = (bed.pods(ns), pod.metadata.name.clone().unwrap());
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    until("the pod is gone", async || {
        pods.get_opt(&name).await.unwrap().is_none()
    })
    .await;
    let directory = pod_dir(bed, pod);
    until("its directory is gone", async || !directory.exists()).await;
    let left = mounts_below(&directory);
    assert!(left.is_empty(), "{left:#?}");
    let log = bed.node.kubelet.log();
    assert!(
        !log.contains("device or resource busy"),
        "the kubelet could not unmount"
    );
}

// subpath 1, 22
pub(crate) async fn sub_path_of_a_config_map_shows_each_change(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1\n").await;
    let mut web = asking(
        json!([config_map_volume("app")]),
        json!([by_sub_path("app", "/one")]),
    );
    web["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", READER]);
    web["spec"]["containers"][0]["env"] = json!([{"name": "SEEN", "value": "/seen"}]);
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let c = container(&web);
    let first = until_state(bed, &web, "c", "/one", "live").await;
    assert_eq!(
        first["replacedAt"],
        Value::Null,
        "it is what the runtime mounted"
    );
    let mut all = "1\n".to_owned();
    for number in 2..=10 {
        bed.set_config_map(&ns, "app", &format!("{number}\n")).await;
        let took = until_content(&c.path("/one"), &format!("{number}\n")).await;
        println!("change {number}: {} ms", took.as_millis());
        writeln!(all, "{number}").unwrap();
        until_content(&c.path("/seen"), &all).await;
        assert_one_mount(&c, "/one");
    }
    let last = until_state(bed, &web, "c", "/one", "live").await;
    assert!(
        last["replacedAt"].is_string() && last["tookMs"].is_u64(),
        "{last}"
    );
    let replaced = bed
        .larder()
        .metric("larder_subpath_replacements_total", "replaced");
    assert_eq!(replaced.unwrap(), 9);
    assert_eq!(container(&bed.ready(&ns, "web").await), c, "no restart");
    println!("touches: {}", bed.touches(&web).len());
    delete_and_wait(bed, &ns, &web).await;
}

// subpath 3, 22: a volume in memory, with an owner and a mode of its own
pub(crate) async fn sub_path_of_a_secret_keeps_owner_and_mode(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_secret(&ns, "login", "1\n").await;
    let mut secret = secret_volume("login");
    secret["secret"]["defaultMode"] = 0o400.into();
    let out = json!({"name": "out", "emptyDir": {}});
    let mut web = asking(
        json!([secret, out]),
        json!([by_sub_path("login", "/one"), {"name": "out", "mountPath": "/out"}]),
    );
    web["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    web["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", READER]);
    web["spec"]["containers"][0]["env"] = json!([{"name": "SEEN", "value": "/out/seen"}]);
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "login", "Delivered").await;
    let c = container(&web);
    let facts = || {
        let found = fs::metadata(c.path("/one")).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    let before = facts();
    assert_eq!(before, (0, 2000, 0o440));
    let mut all = "1\n".to_owned();
    for number in 2..=4 {
        bed.set_secret(&ns, "login", &format!("{number}\n")).await;
        until_content(&c.path("/one"), &format!("{number}\n")).await;
        writeln!(all, "{number}").unwrap();
        // As the user of the container.
        until_content(&c.path("/out/seen"), &all).await;
        assert_eq!(facts(), before);
        assert_one_mount(&c, "/one");
    }
    let own = |line: &String| line.contains("kubernetes.io~secret");
    assert_eq!(
        mounts_below(&pod_dir(bed, &web))
            .iter()
            .filter(|line| own(line))
            .count(),
        1
    );
    delete_and_wait(bed, &ns, &web).await;
}

// subpath 2
pub(crate) async fn sub_path_of_a_pod_that_does_not_ask_is_pinned_until_it_does(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = asking(
        json!([config_map_volume("app")]),
        // The whole volume too: for its sake larder has the kubelet write.
        json!([by_sub_path("app", "/one"), {"name": "app", "mountPath": "/app"}]),
    );
    web["metadata"]["annotations"] = json!({});
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.change_app(&ns, &web, "2").await;
    let c = container(&web);
    let pinned = until_state(bed, &web, "c", "/one", "pinned").await;
    assert!(
        pinned["reason"].as_str().unwrap().contains(ASKS),
        "{pinned}"
    );
    assert_eq!(content(&c.path("/one")).as_deref(), Some("1"));
    bed.annotate(&ns, "web", ASKS, "true").await;
    let took = until_content(&c.path("/one"), "2").await;
    println!("after the annotation: {} ms", took.as_millis());
    until_state(bed, &web, "c", "/one", "live").await;
    bed.annotate(&ns, "web", ASKS, "false").await;
    until_state(bed, &web, "c", "/one", "pinned").await;
    bed.change_app(&ns, &web, "3").await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(content(&c.path("/one")).as_deref(), Some("2"));
    let pinned = until_state(bed, &web, "c", "/one", "pinned").await;
    assert!(
        pinned["reason"].as_str().unwrap().contains("\"false\""),
        "{pinned}"
    );
}

// subpath 7, 18: containers of three kinds; restarts of one, of the kubelet, and of larder
pub(crate) async fn sub_path_follows_through_restarts(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = asking(
        json!([config_map_volume("app")]),
        json!([by_sub_path("app", "/one")]),
    );
    let of_name = |name: &str| {
        json!({"name": name, "image": IMAGE, "imagePullPolicy": "Never",
            "volumeMounts": [by_sub_path("app", "/etc/app/one.conf")]})
    };
    let mut side = of_name("side");
    side["restartPolicy"] = "Always".into();
    web["spec"]["initContainers"] = json!([side]);
    web["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(of_name("second"));
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let subpaths = pod_dir(bed, &web).join("volume-subpaths");
    let kubelets = mounts_below(&subpaths);
    assert_eq!(kubelets.len(), 3, "{kubelets:#?}");
    let places = [
        ("c", "/one"),
        ("second", "/etc/app/one.conf"),
        ("side", "/etc/app/one.conf"),
    ];
    let all_see = async |bed: &mut Bed, value: &str| {
        let web = bed.ready(&ns, "web").await;
        for (name, path) in places {
            let one = container_named(&web, name).unwrap();
            until_content(&one.path(path), value).await;
            until_state(bed, &web, name, path, "live").await;
            assert_one_mount(&one, path);
        }
    };
    bed.set_config_map(&ns, "app", "2").await;
    all_see(bed, "2").await;
    let after = mounts_below(&subpaths);
    assert_eq!(after.len(), 3, "{after:#?}");

    // One container after the other starts again.
    for (number, (name, _)) in (3..).zip(places) {
        let pod = bed.ready(&ns, "web").await;
        let old = container_named(&pod, name).unwrap();
        old.kill().unwrap();
        let pods = bed.pods(&ns);
        until("it has started again", async || {
            let pod = pods.get("web").await.unwrap();
            container_named(&pod, name).is_ok_and(|new| new.id != old.id)
        })
        .await;
        all_see(bed, &(number - 1).to_string()).await;
        bed.set_config_map(&ns, "app", &number.to_string()).await;
        all_see(bed, &number.to_string()).await;
    }

    // The kubelet starts again, after a change that it has not seen.
    bed.node.kubelet.stop().unwrap();
    bed.set_config_map(&ns, "app", "6").await;
    bed.node.kubelet.start().unwrap();
    let admin = bed.admin.clone();
    bed.node.kubelet.ready(&admin).await.unwrap();
    all_see(bed, "6").await;

    // larder starts again: nothing is replaced for it, and a change that it has not seen arrives.
    bed.stop_larder();
    bed.start_larder().await;
    all_see(bed, "6").await;
    let replaced = bed
        .larder()
        .metric("larder_subpath_replacements_total", "replaced");
    assert_eq!(replaced.unwrap(), 0);
    bed.stop_larder();
    bed.set_config_map(&ns, "app", "7").await;
    sleep(Duration::from_secs(1)).await;
    bed.start_larder().await;
    all_see(bed, "7").await;
    let web = bed.ready(&ns, "web").await;
    let left = mounts_below(&subpaths);
    println!("the kubelet's own mounts at the end: {left:#?}");
    delete_and_wait(bed, &ns, &web).await;
}

// subpath 4, 5, 8, 9: a directory, an expression, a link on the way, a mount in another mount
pub(crate) async fn sub_paths_of_all_shapes_follow(bed: &mut Bed) {
    let ns = bed.namespace().await;
    for (name, value) in [("app", "1"), ("other", "1")] {
        bed.create_config_map(&ns, name, value).await;
    }
    bed.create_secret(&ns, "login", "1").await;
    let items = json!([{"key": "k", "path": "dir/k"}]);
    let volumes = json!([
        {"name": "app", "configMap": {"name": "app", "items": items}},
        config_map_volume("other"),
        {"name": "both", "projected": {"sources": [
            {"secret": {"name": "login", "items": [{"key": "k", "path": "login"}]}},
            {"downwardAPI": {"items": [
                {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}},
        ]}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}},
        {"name": "data", "emptyDir": {}},
    ]);
    let mounts = json!([
        {"name": "app", "mountPath": "/d", "subPath": "dir"},
        {"name": "other", "mountPath": "/expanded", "subPathExpr": "$(KEY)"},
        {"name": "both", "mountPath": "/login", "subPath": "login"},
        {"name": "both", "mountPath": "/note", "subPath": "note"},
        {"name": "down", "mountPath": "/down", "subPath": "note"},
        {"name": "data", "mountPath": "/data"},
        {"name": "other", "mountPath": "/data/link/one", "subPath": "k"},
        {"name": "other", "mountPath": "/data/twice", "subPath": "k"},
    ]);
    let mut web = asking(volumes, mounts);
    web["metadata"]["annotations"]["note"] = "1".into();
    web["spec"]["containers"][0]["env"] = json!([{"name": "KEY", "value": "k"}]);
    web["spec"]["initContainers"] = json!([{
        "name": "first", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "busybox mkdir /data/target && busybox ln -s target /data/link"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]);
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    for volume in ["app", "other", "both", "down"] {
        bed.until_phase(&web, volume, "Delivered").await;
    }
    let c = container(&web);
    for value in ["2", "3"] {
        bed.set_config_map(&ns, "app", value).await;
        bed.set_config_map(&ns, "other", value).await;
        bed.set_secret(&ns, "login", value).await;
        bed.annotate(&ns, "web", "note", value).await;
        for (spec, file) in [
            ("/d", "/d/k"),
            ("/expanded", "/expanded"),
            ("/login", "/login"),
            ("/note", "/note"),
            ("/down", "/down"),
            ("/data/link/one", "/data/target/one"),
            ("/data/twice", "/data/twice"),
        ] {
            until_content(&c.path(file), value).await;
            until_state(bed, &web, "c", spec, "live").await;
        }
    }
    for place in [
        "/d",
        "/expanded",
        "/login",
        "/note",
        "/down",
        "/data/target/one",
        "/data/twice",
    ] {
        // They were mounted writable.
        assert_one_mount(&c, place);
    }
    delete_and_wait(bed, &ns, &web).await;
}

// subpath 10, 11
pub(crate) async fn sub_path_whose_key_is_gone_or_comes_later(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    bed.create_config_map(&ns, "later", "0").await;
    let mut late = by_sub_path("later", "/late");
    late["subPath"] = "missing".into();
    let web = asking(
        json!([config_map_volume("app"), config_map_volume("later")]),
        json!([by_sub_path("app", "/one"), late]),
    );
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let c = container(&web);
    let without = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": ns, "name": "app"}, "data": {"other": "x"}});
    bed.replace(&without).await;
    let pinned = until_state(bed, &web, "c", "/one", "pinned").await;
    assert_eq!(pinned["reason"], "key k is gone");
    assert_eq!(content(&c.path("/one")).as_deref(), Some("1"));
    bed.set_config_map(&ns, "app", "2").await;
    until_content(&c.path("/one"), "2").await;
    until_state(bed, &web, "c", "/one", "live").await;
    // The kubelet has made a directory for what was missing.
    let pinned = until_state(bed, &web, "c", "/late", "pinned").await;
    assert_eq!(pinned["reason"], "key missing is gone");
    assert!(c.path("/late").is_dir());
    bed.set_key(&ns, "later", "missing", "1").await;
    until_content(
        &bed.volume(&web, "kubernetes.io~configmap", "later")
            .join("..data/missing"),
        "1",
    )
    .await;
    until("the types differ", async || {
        let pinned = shown(bed, &web, "c", "/late");
        let reason = pinned["reason"].as_str().unwrap_or_default();
        pinned["state"] == "pinned" && reason == "it is of another type now"
    })
    .await;
    assert!(c.path("/late").is_dir());
    delete_and_wait(bed, &ns, &web).await;
}

// subpath 12
pub(crate) async fn sub_path_that_the_container_has_covered_is_left_alone(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = asking(
        json!([config_map_volume("app")]),
        json!([by_sub_path("app", "/one")]),
    );
    let c = &mut web["spec"]["containers"][0];
    c["securityContext"] = json!({"capabilities": {"add": ["SYS_ADMIN"]}});
    c["command"] = json!([
        "/bin/sh",
        "-c",
        "echo own > /own; trap 'exit 0' TERM; \
        while :; do [ ! -f /cover ] || { busybox rm /cover; busybox mount --bind /own /one; }; sleep 0.1; done"
    ]);
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let c = container(&web);
    fs::write(c.path("/cover"), "").unwrap();
    until_content(&c.path("/one"), "own\n").await;
    bed.stop_larder();
    bed.start_larder().await;
    let pinned = until_state(bed, &web, "c", "/one", "pinned").await;
    assert!(
        pinned["reason"].as_str().unwrap().contains("over it"),
        "{pinned}"
    );
    assert_eq!(content(&c.path("/one")).as_deref(), Some("own\n"));
    // The kubelet removes the old file, and with it the kernel what is mounted on it.
    bed.set_config_map(&ns, "app", "2").await;
    until_content(&c.path("/one"), "2").await;
    until_state(bed, &web, "c", "/one", "live").await;
    assert_one_mount(&c, "/one");
}

// subpath 17: wherever it is killed
pub(crate) async fn sub_path_survives_a_killed_larder(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "0").await;
    let web = asking(
        json!([config_map_volume("app")]),
        json!([by_sub_path("app", "/one")]),
    );
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let c = container(&web);
    for round in 1..=12 {
        let value = round.to_string();
        bed.set_config_map(&ns, "app", &value).await;
        // About when it replaces the mount.
        sleep(Duration::from_millis(fastrand::u64(60..260))).await;
        bed.stop_larder();
        let seen = content(&c.path("/one"));
        bed.start_larder().await;
        let took = until_content(&c.path("/one"), &value).await;
        until_state(bed, &web, "c", "/one", "live").await;
        println!(
            "round {round}: {seen:?} when killed, {} ms",
            took.as_millis()
        );
        assert_one_mount(&c, "/one");
    }
    delete_and_wait(bed, &ns, &web).await;
}

// subpath 20
pub(crate) async fn hook_of_a_sub_path_fires_once_after_it_can_be_read(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let mut web = asking(
        json!([config_map_volume("app")]),
        json!([by_sub_path("app", "/one")]),
    );
    web["metadata"]["annotations"]["larder.dev/on-change"] = "signal:SIGHUP".into();
    web["spec"]["containers"][0]["command"] = json!([
        "/bin/sh",
        "-c",
        "trap 'cat /one >> /seen; echo >> /seen' HUP; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
    ]);
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let seen = container(&web).path("/seen");
    let mut all = String::new();
    for value in ["2", "3", "4"] {
        bed.set_config_map(&ns, "app", value).await;
        writeln!(all, "{value}").unwrap();
        let took = until_content(&seen, &all).await;
        println!(
            "change answered → read after the signal: {} ms",
            took.as_millis()
        );
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(content(&seen).as_deref(), Some(&*all));
    let runs = bed
        .larder()
        .metric("larder_on_change_runs_total", "succeeded");
    assert_eq!(runs.unwrap(), 3);
}

// subpath 24: Kubernetes allows no `subPath` in an ephemeral container; one with the whole volume is no obstacle
pub(crate) async fn ephemeral_container_is_no_obstacle_to_sub_paths(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let web = asking(
        json!([config_map_volume("app")]),
        json!([by_sub_path("app", "/one")]),
    );
    let web = bed.run_pod(&ns, &web).await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    let attach = async |mount: Value| {
        let patch = json!({"spec": {"ephemeralContainers": [{
            "name": "debug", "image": IMAGE, "imagePullPolicy": "Never",
            "volumeMounts": [mount],
        }]}});
        let parameters = kube::api::PatchParams::default();
        let patch = kube::api::Patch::Strategic(patch);
        bed.pods(&ns)
            .patch_ephemeral_containers("web", &parameters, &patch)
            .await
    };
    assert_eq!(code(attach(by_sub_path("app", "/one")).await), 422);
    attach(json!({"name": "app", "mountPath": "/app"}))
        .await
        .unwrap();
    let pods = bed.pods(&ns);
    until("it runs", async || {
        container_named(&pods.get("web").await.unwrap(), "debug").is_ok()
    })
    .await;
    let debug = container_named(&pods.get("web").await.unwrap(), "debug").unwrap();
    let c = container(&web);
    for value in ["2", "3"] {
        bed.set_config_map(&ns, "app", value).await;
        until_content(&c.path("/one"), value).await;
        until_content(&debug.path("/app/k"), value).await;
        until_state(bed, &web, "c", "/one", "live").await;
    }
    assert_one_mount(&c, "/one");
    delete_and_wait(bed, &ns, &web).await;
}
