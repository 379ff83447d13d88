//! Which mounts are found and picked in tables that are made up.

use std::{fs, path::Path};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    processes::{PodMounts, Processes},
    subpaths::{
        NotReplaced,
        find::{
            COVERED, FOREIGN, LEFT_OVER, LeadsTo, MAPS_USERS, MISSING, SEVERAL, SHARED,
            VolumeMount, WantedMount, pick, volume_mounts,
        },
    },
};

/// The volume `v` of the pod `1`, on a device of the machine.
const HOST: &str = "1 0 8:1 / / rw - ext4 /dev/a rw\n";
/// The beginning of the root of a container.
const ROOT: &str = "50 1 0:9 / / rw - overlay none rw\n";

fn found(table: &str) -> Result<Vec<VolumeMount>, NotReplaced> {
    let proc = tempfile::tempdir().unwrap();
    fs::create_dir(proc.path().join("self")).unwrap();
    fs::write(proc.path().join("self/mountinfo"), HOST).unwrap();
    let places = Processes::new(proc.path(), "/agent").places().unwrap();
    let pod = PodMounts {
        volumes: [("v".into(), "/agent/pods/1/volumes/v".into())].into(),
        containers: Vec::new(),
    };
    volume_mounts(|| Ok(table.as_bytes()), &places, &pod).unwrap()
}

fn wanted(mounts: &[(&str, &str)]) -> Vec<WantedMount> {
    let mounts = mounts.iter();
    mounts
        .map(|(at, path)| WantedMount::new("web", at, "v", path, false).unwrap())
        .collect()
}

/// The mount points that are picked for these paths of the volume, each with the mount that its path leads to, or why
/// none is.
fn picked(table: &str, mounts: &[(&str, u64)]) -> Vec<Result<String, NotReplaced>> {
    let found = found(table).unwrap();
    let paths = mounts.iter().zip(b'a'..);
    let paths: Vec<_> = paths
        .map(|((path, _), at)| (format!("/{}", char::from(at)), *path))
        .collect();
    let paths: Vec<_> = paths.iter().map(|(at, path)| (&**at, *path)).collect();
    let wanted = wanted(&paths);
    let leads_to = mounts.iter().map(|(_, id)| LeadsTo::Mount(*id));
    let picked = pick(&found, &wanted.iter().zip(leads_to).collect::<Vec<_>>());
    let picked = picked.into_iter();
    picked
        .map(|mount| Ok(mount?.record.mount_point.display().to_string()))
        .collect()
}

fn line(id: u32, parent: u32, root: &str, at: &str) -> String {
    format!("{id} {parent} 8:1 /agent/pods/1/volumes/v/{root} {at} ro - ext4 /dev/a rw\n")
}

#[test]
fn mount_of_another_path_of_the_same_volume_is_not_taken() {
    let table = [
        ROOT.to_owned(),
        line(51, 50, "..1/a//deleted", "/a"),
        line(52, 50, "..1/d/b", "/b"),
    ];
    let own = [("a", 51), ("..data/./d//b/", 52), ("c", 50)];
    let expected = [Ok("/a".to_owned()), Ok("/b".to_owned()), Err(MISSING)];
    assert_eq!(picked(&table.concat(), &own), expected);
    // The path leads to that of another file.
    assert_eq!(picked(&table.concat(), &[("a", 52)]), [Err(MISSING)]);
    // The volume itself follows by itself.
    assert_eq!(WantedMount::new("web", "/v", "v", ".", false), None);
    for path in ["..data", "..data/", "./..data/."] {
        let set = WantedMount::new("web", "/v", "v", path, false).unwrap();
        assert_eq!(set.path, Path::new(""));
    }
}

// subpath 12
#[test]
fn covered_doubled_moved_and_shared_mounts_are_obstacles() {
    let own = [("a", 51)];
    let a = line(51, 50, "..1/a", "/a");
    let over = "60 51 0:9 /x /a rw - overlay none rw\n";
    for leads_to in [51, 60] {
        let covered = picked(&[ROOT, &a, over].concat(), &[("a", leads_to)]);
        assert_eq!(covered, [Err(COVERED)]);
    }
    let twice = [ROOT, &a, &line(52, 50, "..1/a", "/z")].concat();
    assert_eq!(picked(&twice, &own), [Err(SEVERAL)]);
    // The pod may ask for both, below links of the image.
    assert_eq!(
        picked(&twice, &[("a", 52), ("a", 51)]),
        [Ok("/z".to_owned()), Ok("/a".to_owned())]
    );
    // Moved, or covered further up.
    assert_eq!(picked(&[ROOT, &a].concat(), &[("a", 50)]), [Err(MISSING)]);
    let shared = ROOT.replace("rw -", "rw shared:7 -");
    assert_eq!(picked(&[&*shared, &a].concat(), &own), [Err(SHARED)]);
    let mapped = a.replace("ro -", "ro,relatime,idmapped -");
    assert_eq!(picked(&[ROOT, &mapped].concat(), &own), [Err(MAPS_USERS)]);
    let follower = ROOT.replace("rw -", "rw master:7 -");
    assert_eq!(
        picked(&[&*follower, &a].concat(), &own),
        [Ok("/a".to_owned())]
    );
}

#[test]
fn nothing_is_found_beside_other_pods_or_the_directory_of_volumes() {
    let a = line(51, 50, "..1/a", "/a");
    let other = "52 50 8:1 /agent/pods/2/volumes/v /b ro - ext4 /dev/a rw\n";
    assert_eq!(found(&[ROOT, &a, other].concat()), Err(FOREIGN));
    let root = "52 50 8:1 /agent /host ro - ext4 /dev/a rw\n";
    assert_eq!(found(&[ROOT, &a, root].concat()), Err(FOREIGN));
    let same_path_elsewhere = a.replace("8:1", "8:2");
    assert_eq!(
        found(&[ROOT, &same_path_elsewhere].concat()),
        Ok(Vec::new())
    );
}

// subpath 17
#[test]
fn a_stack_of_two_sets_is_left_over_and_one_of_the_same_file_is_not() {
    let lower = line(52, 50, "..2/a", "/a");
    let upper = line(51, 52, "..1/a//deleted", "/a");
    let mounts = found(&[ROOT, &upper, &lower].concat()).unwrap();
    assert_eq!(mounts.len(), 1);
    assert_eq!(mounts[0].obstacle, Some(LEFT_OVER));
    assert!(mounts[0].is_deleted);
    assert_eq!(
        mounts[0].record.root,
        Path::new("/agent/pods/1/volumes/v/..1/a")
    );
    let same = line(51, 52, "..2/a", "/a");
    assert_eq!(found(&[ROOT, &lower, &same].concat()).unwrap().len(), 2);
}

#[test]
fn picking_takes_no_longer_than_a_few_looks_at_each_mount() {
    // All of one file.
    let count: u32 = 1000;
    let paths: Vec<_> = (0..count).map(|n| format!("/var/{n:04}")).collect();
    let own: Vec<_> = paths.iter().map(|path| (path.as_str(), "a")).collect();
    let lines = (0..count).map(|n| line(100 + n, 50, "..1/a", &format!("/run/{n:04}")));
    let table = ROOT.to_owned() + &lines.collect::<String>();
    let (found, wanted) = (found(&table).unwrap(), wanted(&own));
    let wanted: Vec<_> = wanted.iter().zip((100..).map(LeadsTo::Mount)).collect();
    let started = clock_gettime(ClockId::ThreadCPUTime);
    let picked = pick(&found, &wanted);
    let took = clock_gettime(ClockId::ThreadCPUTime) - started;
    for (number, mount) in picked.iter().enumerate() {
        let at = format!("/run/{number:04}");
        assert_eq!(mount.as_ref().unwrap().record.mount_point, Path::new(&at));
    }
    // By each pair, it took more than a minute.
    assert!(took.tv_sec < 5, "{took:?}");
}
