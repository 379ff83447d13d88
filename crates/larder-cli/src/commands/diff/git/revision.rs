//! The repository of a path, one revision in it, and its objects.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs,
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, anyhow, bail};

/// Variables with which a git hook points to its own repository, instead of that of the directory.
const OF_HOOKS: [&str; 5] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
];
/// Settings that let no configuration of a repository choose another one, or run a command.
const SETTINGS: [&str; 4] = [
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "maintenance.auto=false",
];
/// Most bytes of a listing: some hundred thousand files.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Longest target of a link, as in Linux.
const MAX_TARGET_BYTES: u64 = 4096;
/// Most names that are looked up in a revision. A link may lead through a thousand directories.
const MAX_LOOKUPS: u32 = 10_000;
/// Most bytes of git's messages that are shown.
const MAX_MESSAGE_BYTES: usize = 1000;
/// What to do where a revision is not in the clone.
const SHALLOW: &str = "; this clone is shallow, so fetch the base first: `git fetch --depth=1 origin BASE` for a branch \
                       or commit, `git fetch --deepen=1` for HEAD^1";

/// What a tree has at a name.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) kind: EntryKind,
    pub(super) id: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Tree,
    Link,
    Submodule,
}

/// Entries by their paths.
pub(super) type Tree = BTreeMap<PathBuf, Entry>;

/// A revision of a repository.
pub(super) struct Revision {
    /// The directory that has `.git` in it.
    root: PathBuf,
    /// Its ID, and that of its tree.
    pub(super) commit: String,
    pub(super) tree: String,
    /// The lookups that are left.
    pub(super) lookups: Cell<u32>,
    /// The trees that were looked into, by ID.
    pub(super) trees: RefCell<BTreeMap<String, Tree>>,
}

impl Revision {
    /// The revision `name` of the repository of `path`, and the path in it. Links below it are left as they are: a
    /// revision has its own.
    pub(super) fn of(path: &Path, name: &str) -> anyhow::Result<(Self, PathBuf)> {
        let mut clean = PathBuf::new();
        for part in env::current_dir()?.join(path).components() {
            if part == Component::ParentDir {
                clean.pop();
            } else {
                clean.push(part);
            }
        }
        let root = |path: &Path| {
            path.ancestors()
                .find(|directory| is_repository(&directory.join(".git")))
                .map(Path::to_owned)
        };
        let (root, path) = if let Some(root) = root(&clean) {
            (root, clean)
        } else {
            // A link from elsewhere.
            let real = clean.canonicalize()?;
            let root = root(&real).ok_or_else(|| no_working_tree(&real))?;
            (root, real)
        };
        let below = path.strip_prefix(&root)?.to_owned();
        let mut revision = Self {
            root,
            commit: String::new(),
            tree: String::new(),
            lookups: Cell::new(MAX_LOOKUPS),
            trees: RefCell::default(),
        };
        revision.commit = revision.resolve(&format!("{name}^{{commit}}"))?;
        revision.tree = revision.resolve(&format!("{}^{{tree}}", revision.commit))?;
        Ok((revision, below))
    }

    pub(super) fn git(&self) -> Command {
        let mut git = Command::new("git");
        for setting in SETTINGS {
            git.args(["-c", setting]);
        }
        git.arg("-C").arg(&self.root);
        for variable in OF_HOOKS {
            git.env_remove(variable);
        }
        let above = self.root.parent().unwrap_or(Path::new("/"));
        git.env("GIT_CEILING_DIRECTORIES", above)
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            // For a git that does not know the last one: it may fetch, by no protocol.
            .env("GIT_ALLOW_PROTOCOL", "none")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            // Unread messages would fill a pipe and block git.
            .stderr(Stdio::null())
            .stdout(Stdio::piped());
        git
    }

    /// The ID of the object that `name` names.
    fn resolve(&self, name: &str) -> anyhow::Result<String> {
        let mut git = self.git();
        git.args(["rev-parse", "--verify", "--end-of-options"]);
        let output = git
            .arg(name)
            .stderr(Stdio::piped())
            .output()
            .context("cannot run git")?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let is_id = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if output.status.success() && is_id {
            return Ok(id);
        }
        let mut message = message(&output.stderr);
        let args = ["rev-parse", "--is-shallow-repository"];
        let is_shallow = self.output(&args, MAX_TARGET_BYTES);
        if is_shallow.is_ok_and(|(answer, _)| answer.starts_with(b"true")) {
            message += SHALLOW;
        }
        Err(anyhow!(message))
    }

    /// At most so many bytes of what git prints with these arguments, and whether it has printed all and succeeded.
    fn output(&self, args: &[&str], most: u64) -> anyhow::Result<(Vec<u8>, bool)> {
        let mut child = self.git().args(args).spawn().context("cannot run git")?;
        let mut output = Vec::new();
        child
            .stdout
            .take()
            .context("no output of git")?
            .take(most)
            .read_to_end(&mut output)?;
        if output.len() as u64 == most {
            let _ = child.kill();
        }
        let is_success = child.wait()?.success();
        Ok((output, is_success))
    }

    /// Where the link `id` leads.
    pub(super) fn target(&self, id: &str) -> anyhow::Result<PathBuf> {
        let (target, _) = self.output(&["cat-file", "blob", id], MAX_TARGET_BYTES)?;
        Ok(PathBuf::from(OsStr::from_bytes(&target)))
    }

    /// The entries of the tree `id` by their paths, those of its subtrees if `recursive`.
    pub(super) fn list(&self, id: &str, recursive: bool) -> anyhow::Result<Tree> {
        let mut args = vec!["ls-tree", "-z", "--full-tree", id];
        args.splice(3..3, recursive.then_some("-r"));
        let (listing, is_whole) = self.output(&args, MAX_LISTING_BYTES)?;
        if !is_whole {
            bail!("cannot list the files");
        }
        // `MODE TYPE ID\tPATH\0`.
        let entries = listing.split(|byte| *byte == 0).filter_map(|entry| {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            let mut head = str::from_utf8(&entry[..tab]).ok()?.split(' ');
            let kind = match (head.next()?, head.next()?) {
                ("120000", _) => EntryKind::Link,
                (_, "tree") => EntryKind::Tree,
                (_, "commit") => EntryKind::Submodule,
                _ => EntryKind::File,
            };
            let id = head.next()?.to_owned();
            let path = PathBuf::from(OsStr::from_bytes(&entry[tab + 1..]));
            Some((path, Entry { kind, id }))
        });
        Ok(entries.collect())
    }
}

/// What git says, remedies included, on one line.
fn message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(&stderr[..stderr.len().min(MAX_MESSAGE_BYTES)]);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines.collect::<Vec<_>>().join(" ") {
        empty if empty.is_empty() => "git failed".to_owned(),
        message => message,
    }
}

/// Why there is no working tree above `path`.
fn no_working_tree(path: &Path) -> anyhow::Error {
    let is_bare = |directory: &&Path| {
        let holds = |name: &str| directory.join(name).is_dir();
        directory.join("HEAD").is_file() && holds("objects") && holds("refs")
    };
    match path.ancestors().find(is_bare) {
        Some(bare) => anyhow!(
            "{} is a bare repository, without files to compare: make a working tree of it with `git worktree add`",
            bare.display()
        ),
        None => anyhow!("not in a git repository"),
    }
}

/// Whether `path`, which is called `.git`, is a repository or leads to one. An empty directory is not.
fn is_repository(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file()) || path.join("HEAD").is_file()
}
