//! The file source on real directories. Scans are tested without a runtime, following changes with one.

use std::{fs, future::Future};

use tempfile::TempDir;

use super::*;
use crate::{
    StoredPod,
    identity::FullName,
    source::{SourceEvent, file::scan::Scan},
    static_pod::ApiReferences,
};

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - {{name: c, image: {image}}}\n"
    )
}

fn static_pods() -> StaticPods {
    StaticPods::new("n1", ApiReferences::Refuse)
}

/// A path in a fresh directory, and its scanner. Copies are kept beside it.
struct Files {
    directory: TempDir,
    scanner: Option<Scanner>,
}

impl Files {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let mut files = Self {
            directory,
            scanner: None,
        };
        files.restart();
        files
    }

    /// A new scanner, which knows only the copies of the one before.
    fn restart(&mut self) {
        self.scanner = Some(self.another(self.path(), static_pods()));
    }

    /// A scanner of another path or with other settings, and the same copies.
    fn another(&self, path: PathBuf, static_pods: StaticPods) -> Scanner {
        let copies = self.directory.path().join("copies");
        Scanner::new(path, static_pods, Some(copies))
    }

    fn directory() -> Self {
        let files = Self::new();
        fs::create_dir(files.path()).unwrap();
        files
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("m")
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    fn scan(&mut self) -> Scan {
        let (scanner, scan) = self.scanner.take().unwrap().scan(None);
        self.scanner = Some(scanner);
        scan
    }

    /// Scans. Expects these pods with their images, and these problems with shortened paths. Returns the names of the pods
    /// that the problems keep.
    #[track_caller]
    fn check(&mut self, pods: Option<&[&str]>, problems: &[&str]) -> Vec<String> {
        let looked = self.scan();
        let found = looked.pods.as_deref().map(names);
        let found = found
            .as_ref()
            .map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), pods, "{:?}", looked.problems);
        let here = format!("{}/", self.directory.path().display());
        let texts: Vec<_> = looked
            .problems
            .iter()
            .map(|problem| problem.to_string().replace(&here, ""))
            .collect();
        assert_eq!(texts.len(), problems.len(), "{texts:?}");
        for (text, part) in texts.iter().zip(problems) {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        let kept = looked.problems.iter().flat_map(|problem| &problem.kept);
        kept.map(|kept| kept.name.to_string()).collect()
    }
}

/// `<name>=<image>`, without the name of the node.
fn names(pods: &[StoredPod]) -> Vec<String> {
    let name = |pod: &StoredPod| {
        let spec = pod.decode().spec.unwrap();
        let image = spec.containers[0].image.as_deref().unwrap();
        format!(
            "{}={image}",
            FullName::of(&pod.metadata).name.trim_end_matches("-n1")
        )
    };
    pods.iter().map(name).collect()
}

#[test]
fn a_missing_path_has_no_pods_and_is_reported() {
    // managers 66
    let mut files = Files::new();
    files.check(Some(&[]), &["m: path does not exist, ignoring"]);
    // It appears.
    fs::create_dir(files.path()).unwrap();
    files.put("a.yaml", &manifest("a", "i"));
    files.check(Some(&["a=i"]), &[]);
}

#[test]
fn an_empty_directory_has_no_pods_and_no_problem() {
    // managers 66
    Files::directory().check(Some(&[]), &[]);
}

#[test]
fn a_single_file_that_never_was_good_reports_no_pods() {
    // managers 66
    let mut files = Files::new();
    fs::write(files.path(), "garbage").unwrap();
    files.check(None, &["m: invalid static pod: "]);
    fs::write(files.path(), manifest("a", "i")).unwrap();
    files.check(Some(&["a=i"]), &[]);
    fs::write(files.path(), "garbage").unwrap();
    files.check(Some(&["a=i"]), &["m: invalid static pod: "]);
}

#[test]
fn a_broken_file_does_not_affect_a_good_one() {
    // managers 66
    let mut files = Files::directory();
    files.put("good.yaml", &manifest("good", "i"));
    files.put("bad.yaml", "garbage");
    files.check(Some(&["good=i"]), &["m/bad.yaml: invalid static pod: "]);
}

#[test]
fn a_half_written_file_keeps_its_pod() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i:1"));
    files.put("b.yaml", &manifest("b", "i:1"));
    files.check(Some(&["a=i:1", "b=i:1"]), &[]);
    let half = &manifest("a", "i:2")[..70];
    files.put("a.yaml", half);
    files.check(Some(&["a=i:1", "b=i:1"]), &["m/a.yaml"]);
    files.check(Some(&["a=i:1", "b=i:1"]), &["m/a.yaml"]);
    files.put("a.yaml", "");
    files.check(
        Some(&["a=i:1", "b=i:1"]),
        &["m/a.yaml: invalid static pod: "],
    );
    files.put("a.yaml", &manifest("a", "i:2"));
    files.check(Some(&["a=i:2", "b=i:1"]), &[]);
}

#[test]
fn an_unknown_field_never_replaces_a_pod_without_one() {
    let misspelled = |image: &str| manifest("a", image) + "  hostNetwrk: true\n";
    let mut files = Files::directory();
    files.put("a", &manifest("a", "i1"));
    files.check(Some(&["a=i1"]), &[]);
    files.put("a", &misspelled("i2"));
    let kept = "m/a: keeping its last good version: ";
    files.check(Some(&["a=i1"]), &[kept]);
    // Nor after a restart.
    files.restart();
    files.check(Some(&["a=i1"]), &["hostNetwrk"]);
    files.put("a", &manifest("a", "i3"));
    files.check(Some(&["a=i3"]), &[]);
    // At a first start it is served, with the problem; another version of it may replace it.
    files.put("b", &misspelled("j1").replace("name: a", "name: b"));
    let served = "m/b: the API server would reject it: ";
    files.check(Some(&["a=i3", "b=j1"]), &[served]);
    files.put("b", &misspelled("j2").replace("name: a", "name: b"));
    files.check(Some(&["a=i3", "b=j2"]), &[served]);
}

#[test]
fn a_problem_names_the_pods_whose_earlier_version_stays() {
    let mut files = Files::directory();
    let misspelled = |name: &str| manifest(name, "i:2") + "  hostNetwrk: true\n";
    files.put("a", &manifest("a", "i:1"));
    files.put("b", &misspelled("b"));
    let none: [&str; 0] = [];
    let served = ["a=i:1", "b=i:2"];
    assert_eq!(files.check(Some(&served), &["m/b"]), none);
    for broken in ["garbage", "", "\u{feff}", &misspelled("a")] {
        files.put("a", broken);
        assert_eq!(files.check(Some(&served), &["m/a", "m/b"]), ["a-n1"]);
    }
    // A file that cannot be read.
    fs::write(files.path().join("a"), [0xff]).unwrap();
    assert_eq!(files.check(Some(&served), &["m/a", "m/b"]), ["a-n1"]);
    // Another file has the pod as it is now.
    files.put("c", &manifest("a", "i:3"));
    let problems = ["m/a", "m/b", "m/a: ignored"];
    assert_eq!(files.check(Some(&["b=i:2", "a=i:3"]), &problems), none);
    files.remove("c");
    assert_eq!(files.check(Some(&served), &["m/a", "m/b"]), ["a-n1"]);
    // Of a path that cannot be read, all stay.
    fs::rename(files.path(), files.directory.path().join("away")).unwrap();
    assert_eq!(files.check(None, &["m: path"]), ["a-n1", "b-n1"]);
    files.restart();
    assert_eq!(files.check(Some(&served), &["m: path"]), ["a-n1", "b-n1"]);
    fs::rename(files.directory.path().join("away"), files.path()).unwrap();
    files.put("a", &manifest("a", "i:1"));
    assert_eq!(files.check(Some(&served), &["m/b"]), none);
}

#[test]
fn edits_renames_and_removals_change_the_set() {
    // managers 67
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i:1"));
    files.check(Some(&["a=i:1"]), &[]);
    // Same length, same time.
    files.put("a.yaml", &manifest("a", "i:2"));
    files.check(Some(&["a=i:2"]), &[]);
    files.put("a.yaml", &manifest("renamed", "i:2"));
    files.check(Some(&["renamed=i:2"]), &[]);
    fs::rename(files.path().join("a.yaml"), files.path().join(".a.yaml")).unwrap();
    files.check(Some(&[]), &[]);
    fs::rename(files.path().join(".a.yaml"), files.path().join("b")).unwrap();
    files.check(Some(&["renamed=i:2"]), &[]);
    files.remove("b");
    files.check(Some(&[]), &[]);
}

#[test]
fn after_a_notice_only_named_and_new_files_are_read() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i:1"));
    files.put("b.yaml", &manifest("b", "i:1"));
    files.check(Some(&["a=i:1", "b=i:1"]), &[]);
    files.put("a.yaml", &manifest("a", "i:2"));
    files.put("b.yaml", &manifest("b", "i:2"));
    files.put("c.yaml", &manifest("c", "i:1"));
    let touched = [files.path().join("b.yaml")].into();
    let (scanner, looked) = files.scanner.take().unwrap().scan(Some(&touched));
    files.scanner = Some(scanner);
    assert_eq!(
        looked.pods.as_deref().map(names),
        Some(["a=i:1", "b=i:2", "c=i:1"].map(str::to_owned).to_vec())
    );
    files.check(Some(&["a=i:2", "b=i:2", "c=i:1"]), &[]);
}

#[test]
fn hidden_and_backup_files_are_skipped_other_names_are_read() {
    // managers 67
    let mut files = Files::directory();
    let backups = [
        ".a.yaml",
        ".a.yaml.swp",
        "a.yaml~",
        "#a.yaml#",
        "a.yaml.bak",
        "a.yaml.swp",
        "a.yaml.orig",
        "a.yaml.rpmsave",
        "a.yaml.dpkg-old",
        "a.yaml.tmp",
    ];
    for name in backups {
        files.put(name, &manifest("backup", "i"));
    }
    files.put("a.manifest", &manifest("a", "i"));
    files.put("b", &manifest("b", "i"));
    files.check(Some(&["a=i", "b=i"]), &[]);
}

#[test]
fn of_two_files_with_one_pod_the_last_is_used() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("p", "i:1"));
    files.put("b.yaml", &manifest("p", "i:2"));
    files.check(
        Some(&["p=i:2"]),
        &["m/a.yaml: ignored: its pod p-n1_default is also in "],
    );
    files.remove("b.yaml");
    files.check(Some(&["p=i:1"]), &[]);
}

#[test]
fn a_missing_directory_keeps_its_pods_until_it_is_back() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i"));
    files.check(Some(&["a=i"]), &[]);
    fs::remove_dir_all(files.path()).unwrap();
    files.check(None, &["m: path does not exist, ignoring"]);
    fs::create_dir(files.path()).unwrap();
    files.check(Some(&[]), &[]);
}

#[test]
fn a_manifest_broken_at_restart_keeps_its_pod() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i:1"));
    files.put("b.yaml", &manifest("b", "i:1"));
    files.check(Some(&["a=i:1", "b=i:1"]), &[]);
    let before = files.scan().pods;
    files.put("a.yaml", &manifest("a", "i:2")[..70]);
    for _ in 0..2 {
        files.restart();
        files.check(Some(&["a=i:1", "b=i:1"]), &["m/a.yaml"]);
        assert_eq!(
            files.scan().pods,
            before,
            "the very same pods, UIDs included"
        );
    }
    files.put("a.yaml", &manifest("a", "i:2"));
    files.check(Some(&["a=i:2", "b=i:1"]), &[]);
    files.restart();
    files.put("a.yaml", "");
    files.check(Some(&["a=i:2", "b=i:1"]), &["m/a.yaml"]);
}

#[test]
fn a_manifest_removed_before_a_restart_has_no_pod() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i"));
    files.check(Some(&["a=i"]), &[]);
    files.remove("a.yaml");
    files.restart();
    files.check(Some(&[]), &[]);
    // Its copy as well: it does not come back with a broken file of the same name.
    files.put("a.yaml", "garbage");
    files.restart();
    files.check(Some(&[]), &["m/a.yaml"]);
}

#[test]
fn a_directory_missing_at_restart_keeps_its_pods() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i"));
    files.check(Some(&["a=i"]), &[]);
    let away = files.directory.path().join("away");
    fs::rename(files.path(), &away).unwrap();
    files.restart();
    files.check(Some(&["a=i"]), &["m: path does not exist, ignoring"]);
    files.check(None, &["m: path does not exist, ignoring"]);
    fs::rename(&away, files.path()).unwrap();
    files.check(Some(&["a=i"]), &[]);
    // The copies of one path say nothing about another.
    fs::rename(files.path(), &away).unwrap();
    let elsewhere = files.directory.path().join("elsewhere");
    let (_, looked) = files.another(elsewhere, static_pods()).scan(None);
    assert_eq!(looked.pods, Some(Vec::new()));
}

#[test]
fn a_single_file_broken_at_restart_keeps_its_pod() {
    let mut files = Files::new();
    fs::write(files.path(), manifest("a", "i")).unwrap();
    files.check(Some(&["a=i"]), &[]);
    fs::write(files.path(), "garbage").unwrap();
    files.restart();
    files.check(Some(&["a=i"]), &["m: invalid static pod: "]);
}

#[test]
fn copies_are_validated_with_current_settings() {
    let mut files = Files::directory();
    let secret = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: c, image: i}]\n  \
                  volumes: [{name: v, secret: {secretName: s}}]\n";
    files.put("a.yaml", secret);
    let allowing = StaticPods::new("n1", ApiReferences::Allow);
    let (_, looked) = files.another(files.path(), allowing).scan(None);
    assert_eq!(looked.pods.map(|pods| pods.len()), Some(1));
    files.restart();
    files.check(Some(&[]), &["m/a.yaml: invalid static pod: "]);
}

#[test]
fn a_damaged_copy_affects_no_other_pod() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i"));
    files.put("b.yaml", &manifest("b", "i"));
    files.check(Some(&["a=i", "b=i"]), &[]);
    let copies = files.directory.path().join("copies");
    for entry in fs::read_dir(&copies).unwrap() {
        let path = entry.unwrap().path();
        if fs::read_to_string(&path).unwrap().contains("a.yaml") {
            fs::write(path, "garbage").unwrap();
        }
    }
    files.put("b.yaml", "garbage");
    files.restart();
    // The manifest is good, so its copy is made again.
    files.check(Some(&["a=i", "b=i"]), &["m/b.yaml"]);
    files.put("a.yaml", "garbage");
    files.restart();
    files.check(Some(&["a=i", "b=i"]), &["m/a.yaml", "m/b.yaml"]);
}

#[test]
fn unreadable_entries_are_reported_and_affect_no_other_pod() {
    let mut files = Files::directory();
    files.put("good.yaml", &manifest("good", "i"));
    fs::create_dir(files.path().join("nested")).unwrap();
    std::os::unix::fs::symlink("nowhere", files.path().join("dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, files.path().join("pipe"), 0o600.into()).unwrap();
    fs::write(files.path().join("bytes"), [0xff, 0xfe]).unwrap();
    let long = fs::File::create(files.path().join("long")).unwrap();
    long.set_len(10 << 20).unwrap();
    files.check(
        Some(&["good=i"]),
        &[
            "m/bytes: is not UTF-8 text",
            "m/dangling: cannot stat",
            "m/long: has 10485760 bytes or more",
            "m/nested: subdirectories are not read",
            "m/pipe: expected a regular file",
        ],
    );
}

#[test]
fn an_impossible_time_is_a_problem_of_its_file() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i"));
    files.put("b.yaml", &manifest("b", "i"));
    files.check(Some(&["a=i", "b=i"]), &[]);
    let odd = manifest("a", "i") + "status: {startTime: '-009998-01-02T03:04:05Z'}\n";
    files.put("a.yaml", &odd);
    let problem = "status.startTime";
    files.check(Some(&["a=i", "b=i"]), &[problem]);
    files.put("c.yaml", &odd.replace("name: a", "name: c"));
    files.check(Some(&["a=i", "b=i"]), &[problem, problem]);
}

#[test]
fn a_directory_replaced_by_a_bad_file_keeps_its_pods() {
    let mut files = Files::directory();
    files.put("a.yaml", &manifest("a", "i"));
    files.check(Some(&["a=i"]), &[]);
    fs::rename(files.path(), files.directory.path().join("aside")).unwrap();
    fs::write(files.path(), "garbage").unwrap();
    files.check(Some(&["a=i"]), &["m: "]);
    files.restart();
    files.check(Some(&["a=i"]), &["m: "]);
    // A good file takes its place.
    fs::write(files.path(), manifest("b", "i")).unwrap();
    files.check(Some(&["b=i"]), &[]);
    fs::remove_file(files.path()).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, files.path(), 0o600.into()).unwrap();
    files.check(None, &["m: expected a regular file or a directory"]);
}

#[test]
fn control_characters_in_file_names_are_escaped() {
    let mut files = Files::directory();
    files.put("a\nb\u{1b}[31m", "garbage");
    files.check(Some(&[]), &["m/a\\nb\\u{1b}[31m: "]);
}

#[test]
fn symlinks_are_followed() {
    let mut files = Files::directory();
    let target = files.directory.path().join("target");
    fs::write(&target, manifest("a", "i:1")).unwrap();
    std::os::unix::fs::symlink(&target, files.path().join("link.yaml")).unwrap();
    files.check(Some(&["a=i:1"]), &[]);
    fs::write(&target, manifest("a", "i:2")).unwrap();
    files.check(Some(&["a=i:2"]), &[]);
}

/// The reports of a running source, as text.
struct FileReports(mpsc::Receiver<SourceReport>);

impl FileReports {
    async fn next(&mut self) -> String {
        let report = self.0.recv().await.unwrap();
        match report.event {
            SourceEvent::Pods(SourcePods::All(pods)) => names(&pods).join(" "),
            SourceEvent::Pods(other) => panic!("{other:?}"),
            SourceEvent::Problems(problems) => format!("{} problems", problems.len()),
        }
    }

    async fn until(&mut self, expected: &str) {
        while self.next().await != expected {}
    }
}

fn source(path: &Path, check_frequency: Duration) -> (FileReports, impl Future<Output = ()>) {
    let (sender, receiver) = mpsc::channel(16);
    let source = FileSource::new(path, check_frequency, static_pods());
    (FileReports(receiver), source.run(sender))
}

async fn while_running<T>(source: impl Future<Output = ()>, test: impl Future<Output = T>) -> T {
    tokio::select! {
        () = source => unreachable!("the receiver is here"),
        result = time::timeout(Duration::from_mins(1), test) => result.expect("the source reports in time"),
    }
}

// Real time, because notices come from the kernel. Within an hour they are the only way to learn of a change.
#[tokio::test]
async fn kernel_notices_trigger_scans() {
    // managers 67
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("m");
    fs::create_dir(&path).unwrap();
    let (mut reports, source) = source(&path, Duration::from_hours(1));
    while_running(source, async {
        reports.until("").await;
        fs::write(path.join("a.yaml"), manifest("a", "i:1")).unwrap();
        reports.until("a=i:1").await;
        fs::write(path.join("next"), manifest("a", "i:2")).unwrap();
        fs::rename(path.join("next"), path.join("a.yaml")).unwrap();
        reports.until("a=i:2").await;
        fs::remove_file(path.join("a.yaml")).unwrap();
        reports.until("").await;
    })
    .await;
}

#[tokio::test]
async fn a_swap_of_a_configmap_volume_triggers_a_scan() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("m");
    fs::create_dir(&path).unwrap();
    let revision = |name: &str, image: &str| {
        fs::create_dir(path.join(name)).unwrap();
        fs::write(path.join(name).join("a.yaml"), manifest("a", image)).unwrap();
        std::os::unix::fs::symlink(name, path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    revision("..1", "i:1");
    std::os::unix::fs::symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
    let (mut reports, source) = source(&path, Duration::from_hours(1));
    while_running(source, async {
        reports.until("a=i:1").await;
        revision("..2", "i:2");
        reports.until("a=i:2").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn files_are_decoded_off_the_runtime_thread() {
    crate::testing::mark_runtime_thread();
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("m");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), manifest("a", "i")).unwrap();
    let copies = directory.path().join("copies");
    for _ in 0..2 {
        let (sender, receiver) = mpsc::channel(16);
        let source = FileSource::new(&path, Duration::from_secs(20), static_pods());
        let source = source.remembering(copies.clone()).run(sender);
        let mut reports = FileReports(receiver);
        while_running(source, async { reports.until("a=i").await }).await;
    }
}

#[tokio::test]
async fn a_recreated_directory_is_watched_again() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("m");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), manifest("a", "i:1")).unwrap();
    let (mut reports, source) = source(&path, Duration::from_hours(1));
    while_running(source, async {
        reports.until("a=i:1").await;
        fs::remove_dir_all(&path).unwrap();
        reports.until("1 problems").await;
        fs::create_dir(&path).unwrap();
        reports.until("").await;
        fs::write(path.join("a.yaml"), manifest("a", "i:2")).unwrap();
        reports.until("a=i:2").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_a_notice_the_path_is_polled() {
    let directory = TempDir::new().unwrap();
    let target = directory.path().join("target");
    let path = directory.path().join("m");
    fs::create_dir(&path).unwrap();
    fs::write(&target, manifest("a", "i:1")).unwrap();
    std::os::unix::fs::symlink(&target, path.join("a.yaml")).unwrap();
    let (mut reports, source) = source(&path, Duration::from_secs(20));
    while_running(source, async {
        reports.until("a=i:1").await;
        // The kernel sends no notices about the target of a symlink.
        fs::write(&target, manifest("a", "i:2")).unwrap();
        reports.until("a=i:2").await;
    })
    .await;
}

#[tokio::test]
async fn a_single_file_is_followed_through_renames() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("pod.yaml");
    fs::write(&path, manifest("a", "i:1")).unwrap();
    let (mut reports, source) = source(&path, Duration::from_hours(1));
    while_running(source, async {
        reports.until("a=i:1").await;
        fs::write(directory.path().join("next"), manifest("a", "i:2")).unwrap();
        fs::rename(directory.path().join("next"), &path).unwrap();
        reports.until("a=i:2").await;
    })
    .await;
}
