//! From objects to files.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use larder_apiserver::ApiKind;
use serde_json::json;

use crate::world::{World, meanwhile, until};

const ANNOTATION: &str = "k8s-sidecar-target-directory";

fn moved_to(directory: &str) -> serde_json::Value {
    json!({"metadata": {"annotations": {ANNOTATION: directory}}})
}

// sidecar 9
#[tokio::test(start_paused = true)]
async fn objects_of_both_kinds_become_files_where_annotations_say() {
    let world = World::new().with("RESOURCE", "both");
    let text = json!({"data": {"hello.world": "Hello World!"}});
    world.object("ConfigMap", "n", "plain", &text);
    let binary = json!({"binaryData": {"cm.bin": "AAEC"}});
    world.object("ConfigMap", "n", "binary", &binary);
    world.secret("n", "secret", &[("secret.bin", "\u{1}x")]);
    let absolute = world.folder().join("absolute").display().to_string();
    for (name, directory) in [
        ("absolute", absolute.as_str()),
        ("relative", "relative/deep"),
    ] {
        let mut fields = moved_to(directory);
        fields["data"] = json!({ "file": name });
        world.object("ConfigMap", "n", name, &fields);
    }
    let unlabeled = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "n", "name": "unlabeled"}, "data": {"x": "y"},
    });
    world.api.apply(&unlabeled).unwrap();
    let sidecar = world.ready().await;
    let expected = "absolute/file=absolute cm.bin=\0\u{1}\u{2} hello.world=Hello World! relative/deep/file=relative secret.bin=\u{1}x";
    assert_eq!(world.files(), expected);
    let mode = fs::metadata(world.folder().join("hello.world"))
        .unwrap()
        .mode();
    let mask = fs::read_to_string("/proc/self/status").unwrap();
    let mask = mask.lines().find_map(|line| line.strip_prefix("Umask:\t"));
    let mask = u32::from_str_radix(mask.unwrap(), 8).unwrap();
    assert_eq!(mode & 0o7777, 0o666 & !mask);
    assert_eq!(sidecar.stop().await, Ok(()));
    assert_eq!(world.files(), expected, "files stay");
}

// sidecar 10
#[tokio::test(start_paused = true)]
async fn files_follow_labels_keys_annotations_and_deletions() {
    let world = World::new();
    for name in ["a", "b", "c", "d"] {
        world.config_map("n", name, &[(name, "1"), (&format!("{name}{name}"), "1")]);
    }
    let _sidecar = world.ready().await;
    world
        .until_files("a=1 aa=1 b=1 bb=1 c=1 cc=1 d=1 dd=1")
        .await;
    world.object(
        "ConfigMap",
        "n",
        "a",
        &json!({"metadata": {"labels": {"l": null}}}),
    );
    let unlabeled = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "n", "name": "a", "labels": {}}, "data": {"a": "1"},
    });
    world.api.apply(&unlabeled).unwrap();
    world.delete(ApiKind::ConfigMap, "n", "b");
    world.config_map("n", "c", &[("cc", "2")]);
    world.object(
        "ConfigMap",
        "n",
        "d",
        &json!({"data": {"d": "1", "dd": "1"}, "metadata": {"annotations": {ANNOTATION: "sub/e"}}}),
    );
    world.until_files("cc=2 sub/e/d=1 sub/e/dd=1").await;
    world.delete(ApiKind::ConfigMap, "n", "d");
    world.until_files("cc=2").await;
    assert!(
        !world.folder().join("sub").exists(),
        "directories that were made go, too"
    );
}

// sidecar 11
#[tokio::test(start_paused = true)]
async fn unique_file_names_are_removed_with_their_object() {
    let world = World::new().with("UNIQUE_FILENAMES", "True");
    world.config_map("n", "a", &[("x.json", "1")]);
    let _sidecar = world.ready().await;
    world.until_files("namespace_n.configmap_a.x.json=1").await;
    world.delete(ApiKind::ConfigMap, "n", "a");
    world.until_files("").await;
}

// sidecar 12
#[tokio::test(start_paused = true)]
async fn annotation_that_leads_out_is_refused() {
    let mut world = World::new();
    let outside = world.root.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(world.folder()).unwrap();
    symlink(&outside, world.folder().join("link")).unwrap();
    let absolute = outside.display().to_string();
    for (name, directory) in [
        ("a", "../outside"),
        ("b", &absolute),
        ("c", "../../etc"),
        ("d", ".."),
    ] {
        let fields =
            json!({"data": {"x": name}, "metadata": {"annotations": {ANNOTATION: directory}}});
        world.object("ConfigMap", "n", name, &fields);
    }
    world.config_map("n", "good", &[("g", "1")]);
    let sidecar = world.ready().await;
    assert_eq!(world.files(), "g=1");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // Through a link, and with a path that is too long, it is not written either.
    let fields = json!({"data": {"x": "1"}, "metadata": {"annotations": {ANNOTATION: "link"}}});
    world.object("ConfigMap", "n", "link", &fields);
    let long = "d/".repeat(4000);
    let fields = json!({"data": {"x": "1"}, "metadata": {"annotations": {ANNOTATION: long}}});
    world.object("ConfigMap", "n", "long", &fields);
    world.config_map("n", "good", &[("g", "2")]);
    world.until_files("g=2").await;
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    sidecar.stop().await.unwrap();
    // Nor do they keep a sidecar from being ready.
    world.ready().await.stop().await.unwrap();
    assert_eq!(world.files(), "g=2");

    world.delete(ApiKind::ConfigMap, "n", "link");
    world.delete(ApiKind::ConfigMap, "n", "long");
    world.set("LARDER_FOLDER_ROOTS", &absolute);
    let _sidecar = world.ready().await;
    let written = fs::read_to_string(outside.join("x")).unwrap();
    assert_eq!(written, "b", "of two with one path the later name wins");
}

#[tokio::test(start_paused = true)]
async fn many_keys_in_a_long_directory_take_bounded_memory() {
    let world = World::new();
    let long = format!("{}/", "d".repeat(250)).repeat(15);
    let data: serde_json::Map<_, _> = (0..2000)
        .map(|key| (format!("k{key}"), json!("")))
        .collect();
    let mut fields = moved_to(&long);
    fields["data"] = data.into();
    world.object("ConfigMap", "n", "a", &fields);
    // Its directory alone is too long.
    let fields =
        json!({"data": {"x": "1"}, "metadata": {"annotations": {ANNOTATION: long.repeat(60)}}});
    world.object("ConfigMap", "n", "b", &fields);
    world.config_map("n", "c", &[("c", "1")]);
    let _sidecar = world.ready().await;
    assert_eq!(
        fs::read_to_string(world.folder().join("c")).unwrap(),
        "1",
        "others are written"
    );
    let files = fs::read_dir(world.folder().join(long)).unwrap().count();
    assert!((40..80).contains(&files), "{files} files, 256 KiB of paths");
    let indexes = fs::read_dir(world.root.path().join("state")).unwrap();
    let index = indexes.map(|index| index.unwrap().path().join("index"));
    let length: u64 = index.map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(length < 300 << 10, "an index of {length} bytes");
}

// sidecar 13
#[tokio::test(start_paused = true)]
async fn content_of_the_next_object_takes_the_place_of_a_winner_that_goes() {
    let world = World::new().with("NAMESPACE", "a,b");
    world.config_map("a", "x", &[("k", "of a")]);
    world.config_map("b", "x", &[("k", "of b")]);
    let _sidecar = world.ready().await;
    world.until_files("k=of b").await;
    let path = world.folder().join("k");
    let reader = meanwhile(move || {
        let text = fs::read_to_string(&path).expect("there is no gap");
        assert!(text == "of a" || text == "of b", "{text}");
    });
    world.config_map("a", "x", &[("k", "of a")]);
    world.delete(ApiKind::ConfigMap, "b", "x");
    world.until_files("k=of a").await;
    reader.end();
    world.delete(ApiKind::ConfigMap, "a", "x");
    world.until_files("").await;
}

// sidecar 14
#[tokio::test(start_paused = true)]
async fn config_map_wins_over_a_secret() {
    let world = World::new().with("RESOURCE", "both");
    world.config_map("n", "a", &[("k", "map")]);
    world.secret("n", "z", &[("k", "secret")]);
    let _sidecar = world.ready().await;
    world.until_files("k=map").await;
    world.secret("n", "z", &[("k", "secret 2"), ("other", "1")]);
    world.until_files("k=map other=1").await;
    world.delete(ApiKind::ConfigMap, "n", "a");
    world.until_files("k=secret 2 other=1").await;
}

// sidecar 15
#[tokio::test(start_paused = true)]
async fn key_that_moves_between_data_and_binary_data_keeps_its_file() {
    let world = World::new();
    world.object("ConfigMap", "n", "a", &json!({"binaryData": {"k": "MQ=="}}));
    let _sidecar = world.ready().await;
    world.until_files("k=1").await;
    let inode = || fs::metadata(world.folder().join("k")).unwrap().ino();
    let before = inode();
    world.config_map("n", "a", &[("k", "1"), ("marker", "1")]);
    world.until_files("k=1 marker=1").await;
    assert_eq!(inode(), before, "the same bytes are not written");
}

// sidecar 16
#[tokio::test(start_paused = true)]
async fn reader_never_finds_an_empty_or_half_file() {
    let world = World::new();
    let content = |version: usize| format!("{version:05}").repeat(1000);
    world.config_map("n", "a", &[("k", &content(0))]);
    let _sidecar = world.ready().await;
    let path = world.folder().join("k");
    let reader = meanwhile(move || {
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.len(), 5000);
        assert_eq!(text, text[..5].repeat(1000));
    });
    for version in 1..=1000 {
        world.config_map("n", "a", &[("k", &content(version))]);
        if version % 10 == 0 {
            world.until_files(&format!("k={}", content(version))).await;
        }
    }
    reader.end();
}

// sidecar 17
#[tokio::test(start_paused = true)]
async fn file_has_its_mode_from_the_first_moment() {
    let world = World::new().with("DEFAULT_FILE_MODE", "440");
    world.config_map("n", "a", &[("k", "0")]);
    let _sidecar = world.ready().await;
    let path = world.folder().join("k");
    let read = path.clone();
    let reader = meanwhile(move || {
        let mode = fs::metadata(&read).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o440);
    });
    for version in 1..100 {
        let text = version.to_string();
        world.config_map("n", "a", &[("k", &text)]);
        world.until_files(&format!("k={version}")).await;
    }
    reader.end();
    // The same bytes with another mode are replaced.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    world.config_map("n", "a", &[("k", "99"), ("marker", "1")]);
    world.until_files("k=99 marker=1").await;
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o440);
}

// sidecar 19
#[tokio::test(start_paused = true)]
async fn files_of_the_application_are_never_touched() {
    let world = World::new();
    fs::create_dir_all(world.folder().join("tenant")).unwrap();
    for name in ["own", "tenant/own", "shared"] {
        fs::write(world.folder().join(name), "app").unwrap();
    }
    world.config_map("n", "a", &[("k", "1"), ("shared", "ours")]);
    let sidecar = world.ready().await;
    world
        .until_files("k=1 own=app shared=ours tenant/own=app")
        .await;
    sidecar.kill().await;
    let sidecar = world.ready().await;
    world.delete(ApiKind::ConfigMap, "n", "a");
    world.until_files("own=app tenant/own=app").await;
    sidecar.stop().await.unwrap();
}

// sidecar 20
#[tokio::test(start_paused = true)]
async fn objects_with_run_together_names_are_kept_apart() {
    let world = World::new()
        .with("NAMESPACE", "a,ab")
        .with("UNIQUE_FILENAMES", "true");
    for (namespace, name) in [("a", "bc"), ("ab", "c"), ("a", "c"), ("ab", "bc")] {
        world.config_map(namespace, name, &[("k", &format!("{namespace}.{name}"))]);
    }
    let _sidecar = world.ready().await;
    let of = |namespace: &str, name: &str| {
        format!("namespace_{namespace}.configmap_{name}.k={namespace}.{name}")
    };
    let all = [of("a", "bc"), of("a", "c"), of("ab", "bc"), of("ab", "c")].join(" ");
    world.until_files(&all).await;
    world.delete(ApiKind::ConfigMap, "a", "bc");
    let rest = [of("a", "c"), of("ab", "bc"), of("ab", "c")].join(" ");
    world.until_files(&rest).await;
}

// sidecar 45
#[tokio::test(start_paused = true)]
async fn file_of_an_object_that_went_meanwhile_goes_after_all_lists() {
    let world = World::new().with("NAMESPACE", "a,b");
    world.config_map("a", "x", &[("x", "1")]);
    world.config_map("b", "y", &[("y", "1")]);
    world.ready().await.kill().await;
    fs::write(world.folder().join(".larder-left"), "half").unwrap();
    world.delete(ApiKind::ConfigMap, "a", "x");
    world.config_map("a", "z", &[("z", "1")]);
    let fault = larder_apiserver::Fault::on_any().namespace("b").status(403);
    let fault = world.api.faults().inject(fault);
    let sidecar = world.start();
    // The file of the new object shows that its namespace was listed.
    world.until_files("x=1 y=1 z=1").await;
    assert!(!sidecar.health.is_ready());
    fault.lift();
    until(|| sidecar.health.is_ready()).await;
    world.until_files("y=1 z=1").await;
}

#[tokio::test(start_paused = true)]
async fn two_sidecars_share_a_folder_and_a_state_directory() {
    let first = World::new();
    let mut second = World::new().with("LABEL", "m");
    for (name, path) in [("FOLDER", "f"), ("LARDER_STATE_DIR", "state")] {
        second.set(name, &first.root.path().join(path).display().to_string());
    }
    first.config_map("n", "a", &[("a", "1")]);
    second.object(
        "ConfigMap",
        "n",
        "b",
        &json!({"data": {"b": "1"}, "metadata": {"labels": {"m": "1"}}}),
    );
    for _ in 0..2 {
        for world in [&first, &second] {
            world.ready().await.stop().await.unwrap();
        }
    }
    assert_eq!(first.files(), "a=1 b=1");
}

// sidecar 46
#[tokio::test(start_paused = true)]
async fn without_a_state_directory_nothing_old_is_removed() {
    let world = World::new();
    world.config_map("n", "a", &[("a", "1")]);
    world.config_map("n", "b", &[("b", "1")]);
    world.ready().await.kill().await;
    world.delete(ApiKind::ConfigMap, "n", "a");
    let mut world = world;
    let blocked = world.root.path().join("blocked");
    fs::write(&blocked, "a file, no directory").unwrap();
    world.set("LARDER_STATE_DIR", &blocked.display().to_string());
    let _sidecar = world.ready().await;
    assert_eq!(world.files(), "a=1 b=1");
    world.delete(ApiKind::ConfigMap, "n", "b");
    world.until_files("a=1").await;
}

#[tokio::test(start_paused = true)]
async fn folder_that_cannot_be_used_keeps_readiness_away() {
    let world = World::new();
    fs::write(world.folder(), "in the way").unwrap();
    world.config_map("n", "a", &[("k", "1")]);
    let sidecar = world.start();
    let status = || sidecar.health.ready(tokio::time::Instant::now()).body;
    until(|| status().contains("cannot open the directory")).await;
    assert!(!sidecar.health.is_ready());
    fs::remove_file(world.folder()).unwrap();
    world.until_files("k=1").await;
    until(|| sidecar.health.is_ready()).await;
}

#[tokio::test(start_paused = true)]
async fn directory_in_the_way_of_a_key_keeps_no_readiness_away() {
    let world = World::new();
    let mut fields = moved_to("k");
    fields["data"] = json!({"x": "1"});
    world.object("ConfigMap", "n", "a", &fields);
    world.config_map("n", "b", &[("k", "1"), ("other", "1")]);
    let _sidecar = world.ready().await;
    world.until_files("k/x=1 other=1").await;
    world.delete(ApiKind::ConfigMap, "n", "a");
    world.until_files("k=1 other=1").await;
}

// sidecar 19
#[tokio::test(start_paused = true)]
async fn file_that_the_application_removes_comes_back() {
    for method in ["WATCH", "SLEEP"] {
        let world = World::new().with("METHOD", method);
        world.config_map("n", "a", &[("a", "1"), ("b", "1")]);
        let sidecar = world.ready().await;
        fs::remove_file(world.folder().join("a")).unwrap();
        let removed = tokio::time::Instant::now();
        world.until_files("a=1 b=1").await;
        assert!(removed.elapsed().as_secs() <= 60, "{method}");
        if method == "SLEEP" {
            // A poll compares the content, too.
            fs::write(world.folder().join("b"), "edited").unwrap();
            world.until_files("a=1 b=1").await;
        }
        sidecar.stop().await.unwrap();
    }
}

// sidecar 63
#[tokio::test(start_paused = true)]
async fn value_of_a_secret_is_in_no_status_and_no_index() {
    const CANARY: &str = "canary-of-a-secret";
    let world = World::new().with("RESOURCE", "secret");
    world.secret("n", "s", &[("k", CANARY)]);
    world.object("Secret", "n", "broken", &json!({"data": {"k": ""}}));
    let sidecar = world.ready().await;
    let now = tokio::time::Instant::now();
    for answer in [sidecar.health.live(None, now), sidecar.health.ready(now)] {
        assert!(!answer.body.contains(CANARY));
    }
    sidecar.stop().await.unwrap();
    let mut files = vec![world.root.path().join("state")];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            let bytes = fs::read(&path).unwrap();
            let found = bytes
                .windows(CANARY.len())
                .any(|part| part == CANARY.as_bytes());
            assert!(!found, "{}", path.display());
            let mode = fs::metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o600);
            seen += 1;
        }
    }
    assert_eq!(seen, 1, "the index");
}
