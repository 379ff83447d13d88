//! A tree in git: a line for each file (`PATH`) and each link (`PATH -> TARGET`). What `larder diff` reads of the directory
//! `k8s` in a revision is what it reads of the same directory on disk.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::{Component, Path, PathBuf},
    process::Command,
};

use larder_objects::manifest::{Loader, Manifests};
use tempfile::TempDir;

/// The directory that is read.
const DIRECTORY: &str = "k8s";
/// Most files and links.
const MOST: usize = 32;
/// Longest path or target.
const MAX_PATH: usize = 200;

/// Reads an input; `None` if git rejects the tree.
pub fn run(input: &[u8]) -> Option<()> {
    thread_local!(static REPOSITORY: TempDir = repository().expect("git makes a repository"));
    REPOSITORY.with(|repository| {
        let root = repository.path();
        let revision = commit(root, input)?;
        let path = root.join(DIRECTORY);
        let found = larder_cli::manifests_of_revision(&path, &revision);
        let found = found.expect("git has the revision");
        let mut errors = found.errors.iter().map(ToString::to_string);
        // Reading from disk has no such bound.
        if errors.any(|error| error.contains("have led through too many directories")) {
            return Some(());
        }
        let mut loader = Loader::new("default").recursive(true);
        loader.path(&path);
        assert_eq!(seen(&found), seen(&loader.finish()));
        Some(())
    })
}

fn repository() -> io::Result<TempDir> {
    let repository = tempfile::tempdir()?;
    git(repository.path(), &["init", "--quiet"]).ok_or(io::ErrorKind::Other)?;
    Ok(repository)
}

/// The output of git in `root`, if it succeeds.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(root).env("GIT_CONFIG_GLOBAL", "/dev/null");
    for setting in ["core.protectNTFS=false", "user.name=t", "user.email=t"] {
        git.args(["-c", setting]);
    }
    git.args(args);
    let output = git.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.trim().to_owned())
}

/// Makes the tree on disk and in git, and returns its commit.
fn commit(root: &Path, input: &[u8]) -> Option<String> {
    for entry in fs::read_dir(root).ok()?.flatten() {
        let path = entry.path();
        if entry.file_name() == ".git" {
        } else if entry.file_type().ok()?.is_dir() {
            fs::remove_dir_all(path).ok()?;
        } else {
            fs::remove_file(path).ok()?;
        }
    }
    fs::create_dir(root.join(DIRECTORY)).ok()?;
    for (number, line) in input.split(|byte| *byte == b'\n').take(MOST).enumerate() {
        let arrow = line.windows(4).position(|part| part == b" -> ");
        let (path, target) = line.split_at(arrow.unwrap_or(line.len()));
        let Some(path) = clean(path) else { continue };
        // What is behind a link may be outside of the repository.
        if path
            .ancestors()
            .skip(1)
            .any(|above| root.join(above).is_symlink())
        {
            continue;
        }
        let path = root.join(path);
        // An entry that another one blocks is left out.
        let _ = fs::create_dir_all(path.parent()?);
        let _ = match target.get(4..) {
            Some(target) if target.len() > MAX_PATH || target.contains(&0) => return None,
            Some(target) => symlink(OsStr::from_bytes(target), path),
            None if fs::symlink_metadata(&path).is_ok() => Ok(()),
            None => fs::write(path, manifest(number)),
        };
    }
    // git has no empty directories.
    fs::write(root.join(DIRECTORY).join("last.yaml"), manifest(MOST)).ok()?;
    git(root, &["add", "--all", "--force", "."])?;
    let tree = git(root, &["write-tree"])?;
    git(root, &["commit-tree", &tree, "-m", "t"])
}

fn manifest(number: usize) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: t-{number}}}}}\n")
}

/// A relative path that git accepts.
fn clean(path: &[u8]) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path));
    let is_clean = |part| match part {
        Component::Normal(name) => {
            !name.eq_ignore_ascii_case(".git") && !name.as_bytes().contains(&0)
        }
        _ => false,
    };
    let fits = (1..=MAX_PATH).contains(&path.as_os_str().len());
    (fits && path.components().all(is_clean)).then(|| path.to_owned())
}

/// The objects by their files, and the files with errors.
fn seen(manifests: &Manifests) -> (BTreeSet<(String, String)>, BTreeSet<String>) {
    let documents = manifests.documents.iter().map(|document| {
        let name = document.object.key().name.to_string();
        (document.origin.file.to_string(), name)
    });
    let errors = manifests.errors.iter().map(|error| error.path().to_owned());
    (documents.collect(), errors.collect())
}
