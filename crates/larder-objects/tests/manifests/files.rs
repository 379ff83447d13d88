//! The bounded reader of manifest files, on files that are too long or never end.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::symlink,
    path::Path,
};

use larder_files::regular_file::RegularFileError;
use larder_objects::{
    chain,
    manifest::{Loader, MAX_MANIFEST_BYTES, Manifests, read_manifest},
};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, open, openat};
use tempfile::TempDir;

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

fn load(path: &Path) -> Manifests {
    let mut loader = Loader::new("default");
    loader.path(path);
    loader.finish()
}

fn errors(manifests: &Manifests) -> Vec<String> {
    manifests.errors.iter().map(|error| chain(error)).collect()
}

#[test]
fn a_sparse_file_is_rejected_without_reading_it() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("a.yaml");
    let file = File::create(&path).unwrap();
    for (length, is_read) in [
        (MAX_MANIFEST_BYTES - 1, true),
        (MAX_MANIFEST_BYTES, false),
        (1_500_000_000, false),
    ] {
        file.set_len(length).unwrap();
        match read_manifest(&path) {
            Ok(bytes) => assert!(is_read && bytes.len() as u64 == length),
            Err(error) => assert!(!is_read && matches!(error, RegularFileError::TooLong { .. })),
        }
    }
    let expected = format!("cannot read {}: has 10485760 bytes or more", path.display());
    assert_eq!(errors(&load(&path)), [expected]);
}

#[test]
fn subdirectory_that_cannot_be_listed_is_named_and_the_rest_is_read() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("a.yaml"), MAP).unwrap();
    // Listing a directory whose path is too long fails even for root.
    let name = "d".repeat(255);
    let mut directory = open(root.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..17 {
        mkdirat(&directory, &*name, Mode::from_raw_mode(0o700)).unwrap();
        directory = openat(&directory, &*name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let mut loader = Loader::new("default").recursive(true);
    loader.path(root.path());
    let manifests = loader.finish();
    assert_eq!(manifests.documents.len(), 1);
    let [error] = &*errors(&manifests) else {
        panic!("{manifests:?}")
    };
    assert!(
        error.contains("/dddd") && error.starts_with("cannot list "),
        "{error}"
    );
}

#[test]
fn special_files_are_errors_that_name_the_file() {
    let root = TempDir::new().unwrap();
    pipe(&root.path().join("a.yaml"));
    symlink("a.yaml", root.path().join("b.yaml")).unwrap();
    symlink("/dev/zero", root.path().join("c.yaml")).unwrap();
    symlink("/dev/tty", root.path().join("d.yaml")).unwrap();
    let errors = errors(&load(root.path()));
    assert_eq!(errors.len(), 4, "{errors:?}");
    let special = "expected a regular file, found a device, pipe or socket";
    let link = "it is a link that leads out of the directory";
    let reasons = [("a", special), ("b", special), ("c", link), ("d", link)];
    for (error, (name, reason)) in errors.iter().zip(reasons) {
        let path = root.path().join(format!("{name}.yaml"));
        let expected = format!("cannot read {}: {reason}", path.display());
        assert_eq!(*error, expected);
    }
}

#[test]
fn a_kernel_file_that_blocks_or_never_ends_is_not_waited_for() {
    // Regular by its type and empty by its length, yet reading it waits for the kernel's next message.
    let root = TempDir::new().unwrap();
    let path = root.path().join("a.yaml");
    symlink("/proc/kmsg", &path).unwrap();
    let errors = errors(&load(&path));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("a.yaml"), "{errors:?}");
}

#[test]
fn links_to_regular_files_are_followed() {
    let root = TempDir::new().unwrap();
    // As in a ConfigMap volume.
    fs::create_dir(root.path().join("..2026")).unwrap();
    fs::write(root.path().join("..2026/a.yaml"), MAP).unwrap();
    symlink("..2026", root.path().join("..data")).unwrap();
    symlink("..data/a.yaml", root.path().join("a.yaml")).unwrap();
    let manifests = load(root.path());
    assert_eq!(manifests.documents.len(), 1, "{:?}", manifests.errors);
}

#[test]
fn a_pipe_named_by_the_user_is_read_up_to_the_limit() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("pipe");
    pipe(&path);
    let load_written = |text: &[u8]| {
        std::thread::scope(|scope| {
            // Fails when the reader has enough.
            scope.spawn(|| {
                let mut pipe = File::options().write(true).open(&path).unwrap();
                drop(pipe.write_all(text));
            });
            load(&path)
        })
    };
    assert_eq!(load_written(MAP.as_bytes()).documents.len(), 1);
    let long = vec![b' '; 11 << 20];
    let errors = errors(&load_written(&long));
    assert!(
        errors[0].ends_with("has 10485760 bytes or more"),
        "{errors:?}"
    );
}

#[test]
fn standard_input_is_bounded() {
    let mut loader = Loader::new("default");
    loader.stdin(io::repeat(b' '));
    let errors = errors(&loader.finish());
    let expected = "cannot read standard input: has 10485760 bytes or more";
    assert_eq!(errors, [expected]);
}

#[test]
fn a_directory_of_ten_thousand_files_is_read_as_a_whole() {
    let root = TempDir::new().unwrap();
    for index in 0..10_000 {
        let path = root.path().join(format!("{index}.yaml"));
        fs::write(path, MAP.replace("name: a", &format!("name: a-{index}"))).unwrap();
    }
    let manifests = load(root.path());
    assert_eq!(manifests.documents.len(), 10_000, "{:?}", manifests.errors);
}
