use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use larder_objects::{Kind, ResourceVersion, SecretBytes, pem};
use larder_projection::{
    File, FileData, Origin, Payload, VolumePath,
    disk::{Memory, PodVolume, VolumeHost},
};
use parking_lot::Mutex;
use rustix::{
    fs::{CWD, Mode},
    mount::UnmountFlags,
};
use tempfile::TempDir;

use super::*;

const UID: &str = "7e0c5e5c-0000-4000-8000-000000000001";

static VERSION: LazyLock<ResourceVersion> = LazyLock::new(|| ResourceVersion::new("1"));

/// Content that must not appear in a result.
const CANARY: &str = "c4n4ry";

/// A root directory with volumes as the kubelet writes them.
struct Kubelet {
    root: TempDir,
    host: VolumeHost,
    swaps: Mutex<i64>,
}

impl Kubelet {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        Self {
            root,
            host,
            swaps: Mutex::default(),
        }
    }

    /// With tmpfs mounts; `None` where this process may not mount.
    fn with_mounts() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let is_privileged = matches!(host.memory(), Memory::Tmpfs { .. });
        assert!(
            is_privileged || std::env::var_os("CI").is_none(),
            "CI has to run as root"
        );
        is_privileged.then(|| Self {
            root,
            host,
            swaps: Mutex::default(),
        })
    }

    fn write(&self, id: &VolumeId<'_>, files: &[(&str, &str)]) {
        let payload: Payload<'_> = files
            .iter()
            .map(|(path, text)| {
                let file = File {
                    data: FileData::Borrowed(text.as_bytes()),
                    mode: 0o644,
                    owner: None,
                };
                (VolumePath::parse(path).unwrap(), file)
            })
            .collect();
        let mut swaps = self.swaps.lock();
        *swaps += 1;
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(*swaps);
        let volume = PodVolume::new(id.pod_uid, id.name, id.kind);
        self.host.set_up(&volume, &payload, now).unwrap();
    }

    fn path(&self, id: &VolumeId<'_>) -> PathBuf {
        self.host.volume_path(id.pod_uid, id.kind, id.name)
    }

    /// A path in the current set.
    fn data(&self, id: &VolumeId<'_>, path: &str) -> PathBuf {
        self.path(id).join(DATA).join(path)
    }

    fn open(&self, mounts: Mounts) -> KubeletDir {
        KubeletDir::open(self.root.path(), mounts).unwrap()
    }

    fn compare(
        &self,
        id: &VolumeId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
    ) -> Differences {
        let directory = self.open(Mounts::NotExpected);
        let found = directory.compare(id, volume, projection).unwrap();
        found.differences
    }
}

const fn volume_of(kind: VolumeKind) -> VolumeId<'static> {
    VolumeId {
        pod_uid: UID,
        kind,
        name: "v",
    }
}

const CONFIG_MAP: VolumeId<'static> = volume_of(VolumeKind::ConfigMap);
const SECRET: VolumeId<'static> = volume_of(VolumeKind::Secret);
const PROJECTED: VolumeId<'static> = volume_of(VolumeKind::Projected);

fn volume(json: serde_json::Value) -> Volume {
    let mut volume: Volume = serde_json::from_value(json).unwrap();
    volume.name = "v".to_owned();
    volume
}

fn config_map(name: &str) -> Volume {
    volume(serde_json::json!({"name": "v", "configMap": {"name": name}}))
}

fn projected() -> Volume {
    volume(serde_json::json!({"name": "v", "projected": {"sources": [
        {"configMap": {"name": "kube-root-ca.crt"}},
        {"secret": {"name": "s"}},
        {"serviceAccountToken": {"path": "token"}},
    ]}}))
}

fn key<'a>(kind: Kind, name: &'a str, key: &'a str) -> Origin<'a> {
    Origin::Key {
        kind,
        name,
        key,
        resource_version: &VERSION,
    }
}

fn of_config_map(path: &str) -> Origin<'_> {
    key(Kind::ConfigMap, "c", path)
}

const TOKEN: Origin<'static> = Origin::Token { audience: None };

fn projection<'a>(files: &[(&str, &str, Origin<'a>)]) -> Projection<'a> {
    let mut projection = Projection::default();
    for (path, text, origin) in files {
        let path = VolumePath::parse(path).unwrap();
        let file = File {
            data: FileData::Owned(SecretBytes::new(text.as_bytes().to_vec())),
            mode: 0o400,
            owner: Some(1000),
        };
        projection.origins.insert(path.clone(), origin.clone());
        projection.payload.insert(path, file);
    }
    projection
}

/// Everything that differs, in one line.
fn shown(differences: &Differences) -> String {
    let named = differences.named().iter();
    let named: Vec<_> = named
        .map(|(path, kind)| format!("{kind:?} {path}"))
        .collect();
    format!("{} {:?}", named.join(", "), differences.reason())
}

#[test]
fn equal_bytes_are_no_difference_whatever_mode_and_owner() {
    // beside-kubelet 31
    let kubelet = Kubelet::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e/f", CANARY), ("empty", "")]);
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(kubelet.data(&CONFIG_MAP, "a"), mode).unwrap();
    let computed = projection(&[
        ("a", "1", of_config_map("a")),
        ("d/e/f", CANARY, of_config_map("f")),
        ("empty", "", of_config_map("empty")),
    ]);
    let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &computed);
    assert!(found.is_none(), "{found:?}");
    assert_eq!(found.reason(), None);
}

#[test]
fn extra_missing_and_changed_files_are_reasons_to_touch() {
    // beside-kubelet 31
    let kubelet = Kubelet::new();
    let map = config_map("c");
    kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e", CANARY)]);
    let check = |files: &[(&str, &str)], expected: &str| {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (*path, *text, of_config_map(path)))
            .collect();
        let found = kubelet.compare(&CONFIG_MAP, &map, &projection(&files));
        assert_eq!(shown(&found), expected);
        assert!(!format!("{found:?}").contains(CANARY));
    };
    check(&[("a", "1"), ("d/e", "c4n4rz")], "Changed d/e Some(Object)");
    check(&[("a", "12"), ("d/e", CANARY)], "Changed a Some(Object)");
    check(&[("a", ""), ("d/e", CANARY)], "Changed a Some(Object)");
    check(
        &[("a", "1"), ("b", "1"), ("d/e", CANARY), ("d/f/g", "")],
        "Missing b, Missing d/f/g Some(Object)",
    );
    check(&[("a", "1")], "Extra d Some(Object)");
    check(&[("d/e", CANARY)], "Extra a Some(Object)");
    // A file in the place of a directory, and the other way round.
    check(
        &[("a/b", "1"), ("d", CANARY)],
        "Missing a/b, Missing d Some(Object)",
    );
    // A name that begins like a directory is not in it.
    check(
        &[("a", "1"), ("d-e", "1"), ("d/e", CANARY)],
        "Missing d-e Some(Object)",
    );
}

#[test]
fn tokens_and_certificates_only_have_to_exist() {
    // beside-kubelet 31
    let kubelet = Kubelet::new();
    let certificate = Origin::PodCertificate { signer: "s" };
    let computed = projection(&[
        (
            "ca.crt",
            "ca",
            key(Kind::ConfigMap, "kube-root-ca.crt", "ca.crt"),
        ),
        ("key", "", certificate),
        ("token", "", TOKEN),
    ]);
    kubelet.write(
        &PROJECTED,
        &[("ca.crt", "ca"), ("key", CANARY), ("token", CANARY)],
    );
    let found = kubelet.compare(&PROJECTED, &projected(), &computed);
    assert!(found.is_none(), "{found:?}");
    kubelet.write(&PROJECTED, &[("ca.crt", "ca"), ("key", CANARY)]);
    let found = kubelet.compare(&PROJECTED, &projected(), &computed);
    assert_eq!(shown(&found), "Missing token None");
}

#[test]
fn cluster_authorities_are_a_reason_of_their_own() {
    // beside-kubelet 26
    let kubelet = Kubelet::new();
    for name in ["kube-root-ca.crt", "openshift-service-ca.crt"] {
        let computed = projection(&[
            ("ca.crt", "new", key(Kind::ConfigMap, name, "ca.crt")),
            ("s", "1", key(Kind::Secret, "s", "s")),
        ]);
        kubelet.write(&PROJECTED, &[("ca.crt", "old"), ("s", "1")]);
        let found = kubelet.compare(&PROJECTED, &projected(), &computed);
        assert_eq!(shown(&found), "Changed ca.crt Some(ClusterAuthority)");
        kubelet.write(&PROJECTED, &[("ca.crt", "old"), ("s", "2")]);
        let found = kubelet.compare(&PROJECTED, &projected(), &computed);
        assert_eq!(shown(&found), "Changed ca.crt, Changed s Some(Object)");
        // A Secret of that name is one like any other.
        let computed = projection(&[("ca.crt", "new", key(Kind::Secret, name, "ca.crt"))]);
        let found = kubelet.compare(&PROJECTED, &projected(), &computed);
        assert_eq!(found.reason(), Some(TouchReason::Object));
    }
    kubelet.write(&CONFIG_MAP, &[("old", "")]);
    let found = kubelet.compare(
        &CONFIG_MAP,
        &config_map("kube-root-ca.crt"),
        &Projection::default(),
    );
    assert_eq!(shown(&found), "Extra old Some(ClusterAuthority)");
}

#[test]
fn trust_anchors_are_a_set() {
    let kubelet = Kubelet::new();
    let bundle = |ders: &[&str]| -> String {
        let ders = ders
            .iter()
            .map(|der| pem::encode_certificate(der.as_bytes()));
        ders.collect()
    };
    let text = bundle(&["one", "two"]);
    let computed = projection(&[("t", &text, Origin::TrustBundle)]);
    let volume = volume(serde_json::json!({"name": "v", "projected": {"sources": [
        {"clusterTrustBundle": {"name": "b", "path": "t"}},
    ]}}));
    for (ders, is_same) in [
        (&["two", "one"][..], true),
        (&["two", "one", "one"], true),
        (&["two"], false),
        (&["two", "one", "three"], false),
    ] {
        kubelet.write(&PROJECTED, &[("t", &bundle(ders))]);
        let found = kubelet.compare(&PROJECTED, &volume, &computed);
        assert_eq!(found.is_none(), is_same, "{ders:?}");
        assert_eq!(found.reason(), (!is_same).then_some(TouchReason::Object));
    }
}

#[test]
fn unknown_annotations_are_ignored_and_others_are_no_reason() {
    // beside-kubelet 17
    let kubelet = Kubelet::new();
    let volume = volume(serde_json::json!({"name": "v", "downwardAPI": {}}));
    let id = volume_of(VolumeKind::DownwardApi);
    let text = "a=\"1\"\nz=\"larder.dev/\"\n";
    let seen = "metadata.annotations['kubernetes.io/config.seen']";
    let computed = projection(&[
        ("all", text, Origin::Field("metadata.annotations")),
        ("one", "1", Origin::Field("metadata.annotations['a']")),
        ("seen", "", Origin::Field(seen)),
    ]);
    let on_disk = |first: &str| {
        format!(
            "{first}\nkubernetes.io/config.seen=\"x\"\nkubernetes.io/config.source=\"api\"\nlarder.dev/refresh=\"t\"\nz=\"larder.dev/\""
        )
    };
    kubelet.write(
        &id,
        &[("all", &on_disk("a=\"1\"")), ("one", "1"), ("seen", "now")],
    );
    let found = kubelet.compare(&id, &volume, &computed);
    assert!(found.is_none(), "{found:?}");
    kubelet.write(
        &id,
        &[("all", &on_disk("a=\"2\"")), ("extra", ""), ("one", "2")],
    );
    let found = kubelet.compare(&id, &volume, &computed);
    assert_eq!(
        shown(&found),
        "Changed all, Changed one, Missing seen, Extra extra None"
    );
}

#[test]
fn volumes_without_a_set_are_not_set_up() {
    let kubelet = Kubelet::new();
    let directory = kubelet.open(Mounts::NotExpected);
    let is_not_set_up = || matches!(directory.presence(&CONFIG_MAP), Err(Unseen::NotSetUp));
    assert!(is_not_set_up());
    fs::create_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
    assert!(is_not_set_up());
    kubelet.write(&CONFIG_MAP, &[]);
    directory.presence(&CONFIG_MAP).unwrap();
    fs::remove_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
    assert!(is_not_set_up());
}

#[test]
fn names_that_are_no_file_names_are_rejected() {
    let kubelet = Kubelet::new();
    kubelet.write(&CONFIG_MAP, &[]);
    let directory = kubelet.open(Mounts::NotExpected);
    for hostile in ["", ".", "..", "../v", "/", "a\0b", &"a".repeat(256)] {
        for id in [
            VolumeId {
                pod_uid: hostile,
                ..CONFIG_MAP
            },
            VolumeId {
                name: hostile,
                ..CONFIG_MAP
            },
        ] {
            let error = directory.presence(&id).unwrap_err();
            assert!(
                matches!(error, Unseen::Unreadable(ReadError::Name)),
                "{error}"
            );
        }
    }
}

#[test]
fn memory_volume_that_is_no_mount_point_is_not_visible() {
    // beside-kubelet 27
    let kubelet = Kubelet::new();
    kubelet.write(&SECRET, &[("a", "1")]);
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let directory = kubelet.open(Mounts::Required);
    let error = directory.presence(&SECRET).unwrap_err();
    assert!(matches!(error, Unseen::NotVisible), "{error}");
    let volume = volume(serde_json::json!({"name": "v", "secret": {"secretName": "s"}}));
    let error = directory
        .compare(&SECRET, &volume, &Projection::default())
        .unwrap_err();
    assert!(matches!(error, Unseen::NotVisible), "{error}");
    directory.presence(&CONFIG_MAP).unwrap();
    // The kubelet has made the directory, and has not mounted it yet.
    let marker = "plugins/kubernetes.io~empty-dir/wrapped_v/ready";
    fs::remove_file(kubelet.root.path().join("pods").join(UID).join(marker)).unwrap();
    let error = directory.presence(&SECRET).unwrap_err();
    assert!(matches!(error, Unseen::NotSetUp), "{error}");
}

#[test]
fn mounted_volume_is_read_and_can_be_unmounted_at_once() {
    // beside-kubelet 28
    let Some(kubelet) = Kubelet::with_mounts() else {
        return;
    };
    let directory = kubelet.open(Mounts::Required);
    let volume = volume(serde_json::json!({"name": "v", "secret": {"secretName": "s"}}));
    let computed = projection(&[("d/a", "1", key(Kind::Secret, "s", "a"))]);
    let mut identities = Vec::new();
    for _ in 0..2 {
        kubelet.write(&SECRET, &[("d/a", "1")]);
        let found = directory.compare(&SECRET, &volume, &computed).unwrap();
        assert!(found.differences.is_none());
        identities.push(found.identity);
    }
    // The same tmpfs, and then one made anew while a container keeps the old one.
    assert_eq!(identities[0], identities[1]);
    let path = kubelet.path(&SECRET);
    let container = fs::File::open(&path).unwrap();
    rustix::mount::unmount(&path, UnmountFlags::DETACH).unwrap();
    kubelet.write(&SECRET, &[("d/a", "1")]);
    let found = directory.compare(&SECRET, &volume, &computed).unwrap();
    assert_ne!(found.identity, identities[0]);
    drop(container);
    // EBUSY if anything were open.
    rustix::mount::unmount(&path, UnmountFlags::empty()).unwrap();
}

#[test]
fn directory_made_anew_has_another_identity() {
    // beside-kubelet 30
    let kubelet = Kubelet::new();
    let directory = kubelet.open(Mounts::NotExpected);
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let first = directory.presence(&CONFIG_MAP).unwrap();
    kubelet.write(&CONFIG_MAP, &[("a", "2")]);
    assert_eq!(directory.presence(&CONFIG_MAP).unwrap(), first);
    // A container keeps the old directory.
    let _container = fs::File::open(kubelet.path(&CONFIG_MAP)).unwrap();
    fs::remove_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
    kubelet.write(&CONFIG_MAP, &[("a", "2")]);
    assert_ne!(directory.presence(&CONFIG_MAP).unwrap(), first);
}

#[test]
fn directory_made_anew_with_the_old_inode_has_another_identity() {
    // beside-kubelet 30
    let kubelet = Kubelet::new();
    let directory = kubelet.open(Mounts::NotExpected);
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let mut last = directory.presence(&CONFIG_MAP).unwrap();
    if last.created.is_none() {
        // This file system does not tell when a directory was created.
        return;
    }
    for _ in 0..5 {
        fs::remove_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
        kubelet.write(&CONFIG_MAP, &[("a", "1")]);
        let found = directory.presence(&CONFIG_MAP).unwrap();
        assert_ne!(found, last);
        last = found;
    }
}

#[test]
fn set_outside_of_the_volume_is_not_read() {
    let kubelet = Kubelet::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let data = kubelet.path(&CONFIG_MAP).join(DATA);
    let elsewhere = kubelet.root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a"), "1").unwrap();
    symlink(&elsewhere, kubelet.path(&CONFIG_MAP).join("..link")).unwrap();
    fs::write(kubelet.path(&CONFIG_MAP).join("..file"), "").unwrap();
    let directory = kubelet.open(Mounts::NotExpected);
    let computed = projection(&[("a", "1", of_config_map("a"))]);
    let compare = || directory.compare(&CONFIG_MAP, &config_map("c"), &computed);
    let absolute = elsewhere.to_str().unwrap();
    for target in [
        absolute,
        "../../../../../elsewhere",
        "..",
        ".",
        "..link",
        "..file",
        "..data",
    ] {
        fs::remove_file(&data).unwrap();
        symlink(target, &data).unwrap();
        let error = compare().unwrap_err();
        let expected = matches!(error, Unseen::Unreadable(ReadError::NotASet { .. }));
        assert!(expected, "{target}: {error}");
    }
    // A set that is gone, for good.
    fs::remove_file(&data).unwrap();
    symlink("..gone", &data).unwrap();
    let error = compare().unwrap_err();
    let expected = matches!(error, Unseen::Unreadable(ReadError::Replaced { .. }));
    assert!(expected, "{error}");
    // No link at all.
    fs::remove_file(&data).unwrap();
    fs::create_dir(&data).unwrap();
    let error = compare().unwrap_err();
    let expected = matches!(error, Unseen::Unreadable(ReadError::NotASet { .. }));
    assert!(expected, "{error}");
}

#[test]
fn links_and_pipes_in_a_set_are_not_followed_or_opened() {
    let kubelet = Kubelet::new();
    let computed = projection(&[
        ("a", "1", of_config_map("a")),
        ("d/e", "1", of_config_map("e")),
    ]);
    let outside = kubelet.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("e"), "1").unwrap();
    let check = |expected: &str| {
        let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &computed);
        assert_eq!(shown(&found), expected);
    };
    let make_fresh = || {
        // Another payload first, so that the set is a new one.
        kubelet.write(&CONFIG_MAP, &[("a", "0")]);
        kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e", "1")]);
    };
    // Link to an equal file.
    make_fresh();
    fs::remove_file(kubelet.data(&CONFIG_MAP, "a")).unwrap();
    symlink(outside.join("e"), kubelet.data(&CONFIG_MAP, "a")).unwrap();
    check("Missing a Some(Object)");

    // Link to an equal directory.
    make_fresh();
    fs::remove_dir_all(kubelet.data(&CONFIG_MAP, "d")).unwrap();
    symlink(&outside, kubelet.data(&CONFIG_MAP, "d")).unwrap();
    check("Missing d/e Some(Object)");

    // Pipe.
    make_fresh();
    fs::remove_file(kubelet.data(&CONFIG_MAP, "a")).unwrap();
    let pipe = kubelet.data(&CONFIG_MAP, "a");
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    check("Missing a Some(Object)");

    // Socket beside the files.
    make_fresh();
    let socket = kubelet.data(&CONFIG_MAP, "socket");
    rustix::fs::mknodat(CWD, &socket, rustix::fs::FileType::Socket, Mode::RUSR, 0).unwrap();
    check("Extra socket Some(Object)");
}

#[test]
fn large_files_are_neither_read_nor_held() {
    let kubelet = Kubelet::new();
    kubelet.write(&PROJECTED, &[("a", "1"), ("t", "1"), ("x", "1")]);
    for name in ["a", "t", "x"] {
        let file = fs::File::options()
            .write(true)
            .open(kubelet.data(&PROJECTED, name))
            .unwrap();
        // Sparse: it takes no memory and no disk.
        file.set_len(1 << 40).unwrap();
    }
    let computed = projection(&[
        ("a", "1", Origin::Field("metadata.annotations")),
        ("t", "1", Origin::TrustBundle),
        ("x", "1", of_config_map("x")),
    ]);
    let found = kubelet.compare(&PROJECTED, &projected(), &computed);
    assert_eq!(
        shown(&found),
        "Changed a, Changed t, Changed x Some(Object)"
    );
}

#[test]
fn many_extra_files_end_the_search_at_the_first() {
    let kubelet = Kubelet::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    for number in 0..3000 {
        fs::write(kubelet.data(&CONFIG_MAP, &format!("x{number}")), "").unwrap();
    }
    let computed = projection(&[("a", "1", of_config_map("a"))]);
    let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &computed);
    assert_eq!((found.count(), found.named().len()), (1, 1));
}

#[test]
fn differences_are_counted_and_only_some_are_named() {
    let kubelet = Kubelet::new();
    kubelet.write(&CONFIG_MAP, &[]);
    let names: Vec<_> = (0..100).map(|number| format!("{number:03}")).collect();
    let files: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "1", of_config_map(name)))
        .collect();
    let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &projection(&files));
    assert_eq!((found.count(), found.named().len()), (100, 8));
}

#[test]
fn comparison_goes_on_where_it_had_to_close() {
    let kubelet = Kubelet::new();
    let names: Vec<_> = (0..40)
        .map(|number| format!("d{}/e/f{number:02}", number / 8))
        .collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    kubelet.write(&CONFIG_MAP, &files);
    let computed: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "1", of_config_map(name)))
        .collect();
    let directory = KubeletDir {
        open_budget: Duration::ZERO,
        ..kubelet.open(Mounts::NotExpected)
    };
    let compare = |files: &[(&str, &str, Origin<'_>)]| {
        let projection = projection(files);
        let found = directory.compare(&CONFIG_MAP, &config_map("c"), &projection);
        found.unwrap().differences.count()
    };
    assert_eq!(compare(&computed), 0);
    assert_eq!(compare(&computed[..39]), 1);
    fs::write(kubelet.data(&CONFIG_MAP, &names[17]), "2").unwrap();
    fs::remove_file(kubelet.data(&CONFIG_MAP, &names[23])).unwrap();
    assert_eq!(compare(&computed), 2);
}

#[test]
fn set_is_seen_whole_however_often_it_is_replaced() {
    let kubelet = Kubelet::new();
    let names: Vec<_> = (0..50).map(|number| format!("d/{number}")).collect();
    let files = |text: &'static str| -> Vec<(&str, &'static str)> {
        names.iter().map(|name| (name.as_str(), text)).collect()
    };
    let computed: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "odd", of_config_map(name)))
        .collect();
    let computed = projection(&computed);
    kubelet.write(&CONFIG_MAP, &files("even"));
    let directory = kubelet.open(Mounts::NotExpected);
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for swap in 0..50 {
                let text = if swap % 2 == 0 { "odd" } else { "even" };
                kubelet.write(&CONFIG_MAP, &files(text));
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            match directory.compare(&CONFIG_MAP, &config_map("c"), &computed) {
                Ok(found) => {
                    let count = found.differences.count();
                    assert!(count == 0 || count == names.len(), "{count}");
                }
                Err(Unseen::Unreadable(ReadError::Replaced { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn nothing_but_the_root_directory_stays_open() {
    let kubelet = Kubelet::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e", "2")]);
    let directory = kubelet.open(Mounts::NotExpected);
    let computed = projection(&[("a", "1", of_config_map("a"))]);
    directory
        .compare(&CONFIG_MAP, &config_map("c"), &computed)
        .unwrap();
    directory.presence(&CONFIG_MAP).unwrap();
    let root = kubelet.root.path().canonicalize().unwrap();
    let open: Vec<_> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.starts_with(&root))
        .collect();
    // The second one is the writer's.
    assert_eq!(open, [root.clone(), root]);
}

#[test]
fn subpath_shows_what_the_container_started_with() {
    // beside-kubelet 32
    let kubelet = Kubelet::new();
    let mounts = kubelet
        .root
        .path()
        .join("pods")
        .join(UID)
        .join("volume-subpaths/v/app");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(mounts.join("1"))
        .unwrap();
    fs::write(mounts.join("0"), "1").unwrap();
    fs::write(mounts.join("1/b"), "2").unwrap();
    let id = |index, sub_path| SubPathId {
        volume: CONFIG_MAP,
        container: "app",
        index,
        sub_path,
    };
    let directory = kubelet.open(Mounts::NotExpected);
    let compare = |id: &SubPathId<'_>, files: &[(&str, &str)]| {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (*path, *text, of_config_map(path)))
            .collect();
        let projection = projection(&files);
        let found = directory.compare_subpath(id, &config_map("c"), &projection);
        found
            .map(|found| shown(&found))
            .map_err(|error| error.to_string())
    };
    let same = Ok(" None".to_owned());
    let files = [("a", "1"), ("d/b", "2")];
    assert_eq!(compare(&id(0, "a"), &files), same);
    assert_eq!(compare(&id(0, "..data/a"), &files), same);
    assert_eq!(compare(&id(1, "d"), &files), same);
    assert_eq!(compare(&id(1, "./d/"), &files), same);
    // The volume itself is never out of date.
    assert_eq!(compare(&id(1, "."), &files), same);
    let differs = |text: &str| Ok(format!("{text} Some(Object)"));
    assert_eq!(compare(&id(0, "a"), &[("a", "2")]), differs("Changed a"));
    assert_eq!(compare(&id(0, "a"), &[("b", "1")]), differs("Extra a"));
    assert_eq!(
        compare(&id(1, "d"), &[("d/b", "2"), ("d/c", ""), ("e", "")]),
        differs("Missing d/c")
    );
    assert_eq!(
        compare(&id(1, "d"), &[("d/c", "")]),
        differs("Missing d/c, Extra d/b")
    );
    let not_set_up = Err("not set up by the kubelet".to_owned());
    assert_eq!(compare(&id(2, "a"), &files), not_set_up);
    // The file that the kubelet mounts on.
    let directory = kubelet.open(Mounts::Required);
    let error = directory
        .compare_subpath(&id(0, "a"), &config_map("c"), &Projection::default())
        .unwrap_err();
    assert!(matches!(error, Unseen::NotVisible), "{error}");
}

#[test]
fn deep_paths_are_compared_at_every_level() {
    let kubelet = Kubelet::new();
    // Deeper than the way that stays open.
    let deep = "d/".repeat(300) + "f";
    kubelet.write(&CONFIG_MAP, &[(&deep, "1"), ("a/b", "1")]);
    let computed = projection(&[
        ("a/b", "1", of_config_map("b")),
        (&deep, "1", of_config_map("f")),
    ]);
    let directories = [OPEN_BUDGET, Duration::ZERO].map(|open_budget| KubeletDir {
        open_budget,
        ..kubelet.open(Mounts::NotExpected)
    });
    let compare = |directory: &KubeletDir| {
        let found = directory.compare(&CONFIG_MAP, &config_map("c"), &computed);
        found.unwrap().differences.count()
    };
    assert_eq!(directories.each_ref().map(compare), [0, 0]);
    let middle = kubelet.data(&CONFIG_MAP, &"d/".repeat(200));
    fs::write(middle.join("extra"), "").unwrap();
    assert_eq!(directories.each_ref().map(compare), [1, 1]);
}

#[test]
fn directories_are_opened_beneath_without_openat2_too() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("a/b")).unwrap();
    symlink("a", root.path().join("link")).unwrap();
    let directory = sys::open_root(root.path()).unwrap();
    for open in [sys::open_dir_beneath, sys::open_by_elements] {
        let errno = |path| open(directory.as_fd(), path).map(drop).err();
        assert_eq!(errno("a/b"), None);
        assert_eq!(errno("a/c"), Some(Errno::NOENT));
        assert_eq!(errno("../a"), Some(Errno::XDEV));
        assert!(matches!(errno("link/b"), Some(Errno::LOOP | Errno::NOTDIR)));
    }
    let system = sys::open_root(Path::new("/")).unwrap();
    for open in [sys::open_dir_beneath, sys::open_by_elements] {
        let crossed = open(system.as_fd(), "proc/self");
        assert!(crossed.is_err(), "{crossed:?}");
    }
}
