use std::{
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    time::Duration,
};

use larder_e2e::HungFs;
use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

/// A directory under test, and what follows it.
struct Followed {
    directory: TempDir,
    follower: ManifestDir,
}

async fn open(path: &Path) -> Result<(ManifestDir, ManifestDiff), OpenError> {
    ManifestDir::open(
        path,
        Box::new(|| jiff::Timestamp::UNIX_EPOCH),
        &Record::default(),
    )
    .await
}

fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: '{value}'}}\n")
}

fn summary(changes: &ManifestDiff) -> String {
    let upserts = changes.upserts.iter().map(|object| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match object.pointer("/data/k").and_then(|value| value.as_str()) {
            Some(value) => format!("{name}={value}"),
            None => name.to_owned(),
        }
    });
    let deletes = changes.deletes.iter().map(|id| format!("-{}", id.key.name));
    upserts.chain(deletes).collect::<Vec<_>>().join(" ")
}

impl Followed {
    /// Follows a directory that holds ConfigMaps, given as `name=value`, each in a file of its own.
    async fn holding(config_maps: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in config_maps {
            let path = directory.path().join(format!("{name}.yaml"));
            fs::write(path, config_map(name, value)).unwrap();
        }
        Self::of(directory).await
    }

    async fn of(directory: TempDir) -> Self {
        let (follower, _) = open(directory.path()).await.unwrap();
        Self {
            directory,
            follower,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits for the next change.
    async fn next(&mut self) -> String {
        let changes = timeout(Duration::from_secs(20), self.follower.next()).await;
        summary(&changes.expect("the directory was changed"))
    }
}

#[tokio::test]
async fn the_first_look_finds_everything_and_pods_come_last() {
    let directory = tempfile::tempdir().unwrap();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
    fs::write(directory.path().join("a.yaml"), pod).unwrap();
    fs::write(directory.path().join("b.yaml"), config_map("app", "x")).unwrap();
    fs::write(directory.path().join("ignored.txt"), "}").unwrap();
    // kubectl reads hidden files, too.
    fs::write(directory.path().join(".c.yaml"), config_map("hidden", "y")).unwrap();
    fs::write(directory.path().join("..data.yaml"), "}").unwrap();
    fs::write(directory.path().join(".#a.yaml"), "}").unwrap();
    fs::create_dir(directory.path().join("directory.yaml")).unwrap();
    let (follower, changes) = open(directory.path()).await.unwrap();
    assert_eq!(summary(&changes), "app=x hidden=y web");
    assert!(follower.problems().is_empty());
}

#[tokio::test]
async fn an_edit_of_any_style_is_followed() {
    let mut followed = Followed::holding(&[("a", "1"), ("b", "1")]).await;
    // In place.
    fs::write(followed.path("a.yaml"), config_map("a", "2")).unwrap();
    assert_eq!(followed.next().await, "a=2");
    // Written aside and renamed.
    fs::write(followed.path("a.yaml.tmp"), config_map("a", "3")).unwrap();
    fs::rename(followed.path("a.yaml.tmp"), followed.path("a.yaml")).unwrap();
    assert_eq!(followed.next().await, "a=3");
    // Moved away, then written again.
    fs::rename(followed.path("a.yaml"), followed.path("a.yaml~")).unwrap();
    fs::write(followed.path("a.yaml"), config_map("a", "4")).unwrap();
    assert_eq!(followed.next().await, "a=4");
    // Deleted, created.
    fs::remove_file(followed.path("b.yaml")).unwrap();
    assert_eq!(followed.next().await, "-b");
    fs::write(followed.path("c.yaml"), config_map("c", "1")).unwrap();
    assert_eq!(followed.next().await, "c=1");
}

#[tokio::test]
async fn a_file_that_is_read_while_it_is_empty_loses_nothing() {
    let mut followed = Followed::holding(&[("a", "1")]).await;
    let path = followed.path("a.yaml");
    // As an editor leaves it between truncating and writing, seen twice.
    for _ in 0..2 {
        fs::write(&path, "").unwrap();
        let touched = BTreeSet::from([path.clone()]);
        let changes = followed.follower.look(touched).await.unwrap();
        assert_eq!(summary(&changes), "");
    }
    fs::write(&path, config_map("a", "2")).unwrap();
    assert_eq!(followed.next().await, "a=2");
    // One that stays so is what a failed command leaves.
    fs::write(&path, "").unwrap();
    assert_eq!(followed.next().await, "");
    assert!(followed.follower.problems()[0].contains("has no objects"));
    fs::remove_file(&path).unwrap();
    assert_eq!(followed.next().await, "-a");
}

#[tokio::test]
async fn a_file_loses_no_object_before_its_writer_has_closed_it() {
    let mut followed = Followed::holding(&[("b", "1")]).await;
    let path = followed.path("a.yaml");
    let both = [config_map("a", "1"), config_map("c", "1")].join("---\n");
    fs::write(&path, &both).unwrap();
    assert_eq!(followed.next().await, "a=1 c=1");
    // Half of it, for however long: the notices of another file come later.
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(config_map("a", "1").as_bytes()).unwrap();
    fs::write(followed.path("b.yaml"), config_map("b", "2")).unwrap();
    assert_eq!(followed.next().await, "b=2");
    let look_after = async |followed: &mut Followed, age: Duration| {
        let directory = &mut followed.follower;
        let mut look = async |age| {
            let touched = directory.schedule.take_due(Instant::now() + age);
            assert!(touched.contains(&path));
            if let Some(doubt) = directory.doubts.get_mut(&path) {
                doubt.1 -= age;
            }
            summary(&directory.look(touched).await.unwrap())
        };
        assert_eq!(look(PATIENCE).await, "");
        look(age).await
    };
    assert_eq!(look_after(&mut followed, 2 * PATIENCE).await, "");
    drop(file);
    assert_eq!(followed.next().await, "-c");
    // A writer that never closes it does not keep it for ever.
    let _open = fs::File::create(&path).unwrap();
    fs::write(followed.path("b.yaml"), config_map("b", "3")).unwrap();
    assert_eq!(followed.next().await, "b=3");
    assert_eq!(look_after(&mut followed, WRITER_PATIENCE).await, "");
    assert!(followed.follower.problems()[0].contains("has no objects"));
}

#[tokio::test]
async fn a_broken_file_is_reported_with_its_place_and_costs_nothing() {
    let mut followed = Followed::holding(&[("a", "1"), ("b", "1")]).await;
    fs::write(
        followed.path("a.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: 7}\n",
    )
    .unwrap();
    let file = followed.path("a.yaml");
    // No object has changed.
    assert_eq!(followed.next().await, "");
    assert_eq!(
        followed.follower.problems(),
        [format!(
            r#"{}: document 1, line 4: ConfigMap "a": data[k]: expected a string, found a number (quote it)"#,
            file.display()
        )]
    );
    fs::write(&file, config_map("a", "2")).unwrap();
    assert_eq!(followed.next().await, "a=2");
    assert!(followed.follower.problems().is_empty());
}

#[tokio::test]
async fn a_directory_that_vanishes_and_returns_is_survived() {
    let mut followed = Followed::holding(&[("a", "1"), ("b", "1")]).await;
    let path = followed.directory.path().to_owned();
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    assert_eq!(followed.next().await, "");
    assert!(!followed.follower.problems().is_empty());
    fs::write(away.join("a.yaml"), config_map("a", "2")).unwrap();
    fs::remove_file(away.join("b.yaml")).unwrap();
    fs::rename(&away, &path).unwrap();
    assert_eq!(followed.next().await, "a=2 -b");
    assert!(followed.follower.problems().is_empty());
    // And it is followed again.
    fs::write(followed.path("a.yaml"), config_map("a", "3")).unwrap();
    assert_eq!(followed.next().await, "a=3");
}

#[tokio::test]
async fn a_link_to_a_file_that_is_swapped_is_followed() {
    // As kubelet and larder themselves present ConfigMaps.
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, path(name)).unwrap();
    for (set, value) in [("..1", "old"), ("..2", "new")] {
        fs::create_dir(path(set)).unwrap();
        fs::write(path(set).join("a.yaml"), config_map("a", value)).unwrap();
    }
    link("..1", "..data");
    link("..data/a.yaml", "a.yaml");
    let (mut follower, changes) = open(directory.path()).await.unwrap();
    assert_eq!(summary(&changes), "a=old");
    link("..2", "..data_tmp");
    fs::rename(path("..data_tmp"), path("..data")).unwrap();
    assert_eq!(summary(&follower.next().await), "a=new");
}

#[tokio::test]
async fn link_that_another_user_may_have_made_leads_to_nothing_outside() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("a.yaml"), config_map("a", "1")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("..data")).unwrap();
    fs::write(path("..data").join("b.yaml"), config_map("b", "1")).unwrap();
    symlink("..data/b.yaml", path("b.yaml")).unwrap();
    symlink(outside.path().join("a.yaml"), path("a.yaml")).unwrap();
    let (_, changes) = open(directory.path()).await.unwrap();
    assert_eq!(summary(&changes), "a=1 b=1");

    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let (follower, changes) = open(directory.path()).await.unwrap();
    assert_eq!(summary(&changes), "b=1");
    let problems = follower.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("a link that leads out of the directory"),
        "{problems:?}"
    );
}

#[tokio::test]
async fn link_that_leads_nowhere_is_a_problem_and_costs_nothing() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("a.yaml");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    symlink(&target, &path).unwrap();
    let (mut follower, changes) = open(directory.path()).await.unwrap();
    assert!(changes.is_empty());
    let reason = format!(
        "cannot follow the link {}: No such file or directory (os error 2)",
        path.display()
    );
    assert_eq!(follower.problems(), [reason.as_str()]);
    assert_eq!(follower.hidden_objects(), HiddenObjects::anything());

    fs::write(&target, config_map("a", "1")).unwrap();
    let touched = BTreeSet::from([path.clone()]);
    let changes = follower.look(touched.clone()).await.unwrap();
    assert_eq!(summary(&changes), "a=1");
    assert_eq!(follower.problems(), [""; 0]);
    fs::remove_file(&target).unwrap();
    let changes = follower.look(touched).await.unwrap();
    assert_eq!(summary(&changes), "");
    assert_eq!(follower.problems(), [reason.as_str()]);
}

#[tokio::test]
async fn directory_that_everybody_may_write_to_is_named_until_they_may_not() {
    let mut followed = Followed::holding(&[("a", "1")]).await;
    assert_eq!(followed.follower.open_to_all(), None);
    let path = followed.directory.path().to_owned();
    let set_mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    for (mode, is_open) in [
        (0o777, true),
        (0o755, false),
        (0o1777, true),
        (0o775, false),
    ] {
        set_mode(mode);
        // The directory is looked at with its next change, or in the next pass.
        let value = format!("{mode:o}");
        fs::write(followed.path("b.yaml"), config_map("b", &value)).unwrap();
        assert_eq!(followed.next().await, format!("b={value}"));
        let warning = followed.follower.open_to_all();
        assert_eq!(warning.is_some(), is_open, "{mode:o}: {warning:?}");
        if let Some(warning) = warning {
            assert!(
                warning.contains(&format!("{} (mode {mode:04o})", path.display())),
                "{warning}"
            );
        }
    }
}

#[tokio::test]
async fn path_that_is_not_a_directory_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let error = open(&missing).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot read the manifests of {}", missing.display())
    );
}

#[tokio::test]
async fn a_document_rejected_since_the_start_hides_what_it_could_hold_until_it_is_mended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    let rejected = "apiVersion: v1\nkind: Pod\nmetadata: {namespace: other, name: web}\nspec: {containers: 5}\n---\n";
    fs::write(&path, rejected.to_owned() + &config_map("a", "1")).unwrap();
    let mut followed = Followed::of(directory).await;
    let mut only_the_pod = HiddenObjects::default();
    only_the_pod.insert("Pod", &larder_objects::ObjectKey::new("other", "web"));
    assert_eq!(followed.follower.hidden_objects(), only_the_pod);
    // What an edit makes unreadable was known, so the doubt stays as small as it is.
    fs::write(&path, "}").unwrap();
    assert_eq!(followed.next().await, "");
    assert_eq!(followed.follower.hidden_objects(), only_the_pod);
    fs::write(&path, config_map("a", "2")).unwrap();
    assert_eq!(followed.next().await, "a=2");
    assert!(followed.follower.hidden_objects().is_empty());
    // Nor is there any about a file that was readable at first.
    fs::write(&path, "}").unwrap();
    assert_eq!(followed.next().await, "");
    assert!(followed.follower.hidden_objects().is_empty());
}

#[tokio::test]
async fn a_better_reading_narrows_what_is_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    fs::write(&path, "}").unwrap();
    let mut followed = Followed::of(directory).await;
    assert_eq!(
        followed.follower.hidden_objects(),
        HiddenObjects::anything()
    );
    fs::write(
        &path,
        config_map("a", "1") + "---\n" + &config_map("a", "2"),
    )
    .unwrap();
    assert_eq!(followed.next().await, "a=1");
    let mut only_the_second = HiddenObjects::default();
    only_the_second.insert("ConfigMap", &larder_objects::ObjectKey::new("default", "a"));
    assert_eq!(followed.follower.hidden_objects(), only_the_second);
    fs::remove_file(&path).unwrap();
    assert_eq!(followed.next().await, "-a");
    assert!(followed.follower.hidden_objects().is_empty());
}

// Attack: a link to a file system that never answers.
#[tokio::test]
async fn a_link_to_a_disk_that_does_not_answer_holds_up_no_other_file() {
    let hung = tempfile::tempdir().unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("z.yaml"), config_map("z", "1")).unwrap();
    fs::write(hung.path().join("linked.yaml"), config_map("linked", "1")).unwrap();
    symlink(
        hung.path().join("linked.yaml"),
        directory.path().join("a.yaml"),
    )
    .unwrap();
    let mut followed = Followed::of(directory).await;
    let Some(mounted) = HungFs::mount(hung.path()) else {
        return;
    };
    fs::write(followed.path("z.yaml"), config_map("z", "2")).unwrap();
    // What the link led to stays.
    let mut seen = followed.next().await;
    while seen.is_empty() {
        seen = followed.next().await;
    }
    assert_eq!(seen, "z=2");
    let path = followed.path("a.yaml");
    let problem = format!(
        "{}: not read, its disk has not answered since 1970-01-01T00:00:00Z",
        path.display()
    );
    assert_eq!(followed.follower.problems(), [problem]);
    let waits: Vec<_> = followed.follower.waits().collect();
    let wait = format!(
        "manifests {}: waiting for the disk since 1970-01-01T00:00:00Z",
        path.display()
    );
    assert_eq!(waits, [wait]);
    // Without the mount, the file is there again.
    drop(mounted);
    assert_eq!(followed.next().await, "");
    assert!(followed.follower.problems().is_empty());
    assert_eq!(followed.follower.waits().count(), 0);
}
