//! The manifests of a git revision, read by `git`.
//!
//! Invariants:
//! 1. What the user names as a revision is never taken as an option: it follows `--end-of-options`, and only the object
//!    IDs that git answers are used later.
//! 2. Names in the repository are data: git gets object IDs only.
//! 3. git neither asks the network for objects nor takes locks.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, anyhow, bail};
use larder_objects::manifest::{Loader, Manifests, is_manifest_name};

use crate::outcome::Failure;

/// Variables with which a git hook points to its own repository, instead of that of the directory.
const OF_HOOKS: [&str; 5] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
];
/// Most bytes of a listing: some hundred thousand files.
const MAX_LISTING_BYTES: u64 = 64 << 20;

/// The manifests at `paths` in `revision`. A path that the revision lacks has none.
///
/// # Errors
///
/// There is no such revision, or git fails.
pub(super) fn load(
    mut loader: Loader,
    paths: &[PathBuf],
    revision: &str,
    recursive: bool,
) -> Result<Manifests, Failure> {
    for path in paths {
        read(&mut loader, path, revision, recursive).with_context(|| {
            let path = path.display();
            format!("cannot read revision {revision:?} of {path}")
        })?;
    }
    Ok(loader.finish())
}

fn read(loader: &mut Loader, path: &Path, revision: &str, recursive: bool) -> anyhow::Result<()> {
    let (directory, name) = if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
        (path, None)
    } else {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let name = path.file_name().context("expected a file or directory")?;
        (parent.unwrap_or(Path::new(".")), Some(name))
    };
    let repository = Repository(directory);
    let commit = repository.resolve(OsStr::new(&format!("{revision}^{{commit}}")))?;
    let commit = commit.map_err(|problem| anyhow!(problem))?;
    let mut object = format!("{commit}:./").into_bytes();
    object.extend(name.unwrap_or_default().as_bytes());
    let Ok(object) = repository.resolve(OsStr::from_bytes(&object))? else {
        return Ok(());
    };
    let files = match name {
        Some(_) => vec![(path.to_owned(), object)],
        None => repository.files(path, &object, recursive)?,
    };
    repository.read(loader, &files)
}

/// A directory in a repository.
struct Repository<'a>(&'a Path);

impl Repository<'_> {
    fn git(&self) -> Command {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.0);
        for variable in OF_HOOKS {
            git.env_remove(variable);
        }
        git.env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        git
    }

    /// The ID of the object that `name` names, or git's message that there is none.
    fn resolve(&self, name: &OsStr) -> anyhow::Result<Result<String, String>> {
        let mut git = self.git();
        git.args(["rev-parse", "--verify", "--end-of-options"]);
        let output = git.arg(name).output().context("cannot run git")?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let is_id = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if output.status.success() && is_id {
            return Ok(Ok(id));
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let first = message.lines().next();
        Ok(Err(first.unwrap_or("git failed").to_owned()))
    }

    /// The manifests of the tree `id`, which is at `directory`, in the order of their names.
    fn files(
        &self,
        directory: &Path,
        id: &str,
        recursive: bool,
    ) -> anyhow::Result<Vec<(PathBuf, String)>> {
        let mut git = self.git();
        git.args(["ls-tree", "-z", "--full-tree"]);
        git.args(recursive.then_some("-r")).arg(id);
        let mut child = git.spawn().context("cannot run git")?;
        let mut listing = Vec::new();
        let stdout = child.stdout.take().context("no output of git")?;
        stdout.take(MAX_LISTING_BYTES).read_to_end(&mut listing)?;
        if listing.len() as u64 == MAX_LISTING_BYTES {
            let _ = child.kill();
        }
        if !child.wait()?.success() {
            bail!("cannot list the files");
        }
        let mut files = Vec::new();
        // `MODE TYPE ID\tPATH\0`.
        for entry in listing.split(|byte| *byte == 0) {
            let Some(tab) = entry.iter().position(|byte| *byte == b'\t') else {
                continue;
            };
            let head = String::from_utf8_lossy(&entry[..tab]);
            let mut head = head.split(' ');
            let (mode, _, id) = (head.next(), head.next(), head.next());
            let path = Path::new(OsStr::from_bytes(&entry[tab + 1..]));
            let mut parents = path.parent().into_iter().flat_map(Path::components);
            let is_hidden = parents.any(|part| part.as_os_str().as_bytes().starts_with(b"."));
            let name = path.file_name().and_then(OsStr::to_str);
            if is_hidden || !name.is_some_and(is_manifest_name) {
                continue;
            }
            match (mode, id) {
                (Some("100644" | "100755"), Some(id)) => {
                    files.push((directory.join(path), id.to_owned()));
                }
                (Some("120000"), _) => bail!("{} is a link, which is not followed", path.display()),
                _ => {}
            }
        }
        files.sort();
        Ok(files)
    }

    /// Reads the objects of `files`.
    fn read(&self, loader: &mut Loader, files: &[(PathBuf, String)]) -> anyhow::Result<()> {
        let mut git = self.git();
        git.args(["cat-file", "--batch"]).stdin(Stdio::piped());
        git.stderr(Stdio::null());
        let mut child = git.spawn().context("cannot run git")?;
        let mut stdin = child.stdin.take().context("no input of git")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no output of git")?);
        for (path, id) in files {
            // One at a time, so that neither side waits for the other to read.
            writeln!(stdin, "{id}")?;
            let mut head = String::new();
            stdout.read_line(&mut head)?;
            // `ID blob BYTES`, then the bytes and a line feed.
            let bytes = head.trim_end().rsplit_once(" blob ");
            let bytes = bytes.and_then(|(_, bytes)| bytes.parse::<u64>().ok());
            let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
            // One that is too long is an error of that file; the rest of it is passed over.
            let mut content = stdout.by_ref().take(bytes);
            loader.input(path, &mut content);
            io::copy(&mut content, &mut io::sink())?;
            stdout.read_exact(&mut [0])?;
        }
        drop(stdin);
        let _ = child.wait();
        Ok(())
    }
}
