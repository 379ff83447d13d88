//! The manifests of a git revision, read by `git`.
//!
//! Invariants:
//! 1. What the user names as a revision is never taken as an option: it follows `--end-of-options`, and only the object
//!    IDs that git answers are used later.
//! 2. Names in the repository are data: git gets object IDs only.
//! 3. The repository is the one whose `.git` is nearest above the path. Files of a tree cannot be taken for another:
//!    git runs in that directory, and looks no further.
//! 4. git neither asks the network for objects, nor takes locks, nor runs a command of a configuration.
//! 5. A file that a checkout would have with other bytes, by its attributes, is not read: it is named.
//!
//! The author of a revision may be a stranger, whose pull request is looked at. A tree of some kilobytes can have a file
//! under millions of names, and links that lead through all of them; so there are limits.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, anyhow, bail};
use larder_objects::manifest::{LEAVES, Loader, Manifests, has_manifest_extension};
use tempfile::{tempdir, tempfile};
use zeroize::Zeroizing;

use crate::{input, outcome::Failure};

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
/// Most manifests of a path, and most bytes in them: a revision may have one file under any number of names.
const MAX_FILES: usize = 50_000;
const MAX_BYTES: u64 = 256 << 20;
/// Most links that are followed one after the other, as in Linux.
const MAX_LINKS: usize = 40;
/// Longest target of a link, as in Linux.
const MAX_TARGET_BYTES: u64 = 4096;
/// Most names that are looked up in a revision. A link may lead through a thousand directories.
const MAX_LOOKUPS: u32 = 10_000;
/// Why a further link is not read.
const TOO_MANY_LINKS: &str = "it is a link, and others have led through too many directories";
/// The attributes by which a checkout changes a file.
const CHANGING: [&str; 3] = ["working-tree-encoding", "ident", "filter"];
/// What `ident` replaces.
const IDENT: &[u8] = b"$Id";
/// Most bytes of git's messages that are shown.
const MAX_MESSAGE_BYTES: usize = 1000;
/// What to do where a revision is not in the clone.
const SHALLOW: &str = "; this clone is shallow, so fetch the base first: `git fetch --depth=1 origin BASE` for a branch \
                       or commit, `git fetch --deepen=1` for HEAD^1";
/// Number of digits that are shown of an ID.
const SHORT_ID: usize = 10;
/// Why a submodule is not read.
const SUBMODULE: &str = "it is a submodule: its files are in another repository";

/// One side of a comparison.
pub(super) struct GitSide {
    pub(super) manifests: Manifests,
    /// The paths at which it has nothing.
    pub(super) absent: BTreeSet<PathBuf>,
    /// What it is: `main (1a2b3c4d5e)`.
    pub(super) name: String,
}

/// The manifests at `paths` in `revision`.
///
/// # Errors
///
/// There is no such revision, or git fails.
pub(super) fn load(
    mut loader: Loader,
    paths: &[PathBuf],
    revision: &str,
    recursive: bool,
) -> Result<GitSide, Failure> {
    let (mut absent, mut name) = (BTreeSet::new(), revision.to_owned());
    for path in paths {
        let read = read(&mut loader, path, revision, recursive).with_context(|| {
            let path = path.display();
            format!("cannot read revision {revision:?} of {path}")
        })?;
        absent.extend((!read.is_there).then(|| path.clone()));
        name = format!(
            "{revision} ({})",
            &read.commit[..read.commit.len().min(SHORT_ID)]
        );
    }
    Ok(GitSide {
        manifests: loader.finish(),
        absent,
        name,
    })
}

/// The same of the working tree.
pub(super) fn load_working_tree(loader: Loader, paths: &[PathBuf]) -> GitSide {
    let is_absent = |path: &PathBuf| {
        let nothing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        let found = path.symlink_metadata();
        found.is_err_and(|error| nothing.contains(&error.kind()))
    };
    let (absent, there): (Vec<_>, Vec<_>) = paths.iter().cloned().partition(is_absent);
    GitSide {
        manifests: input::load(loader, &there),
        absent: absent.into_iter().collect(),
        name: "the working tree".to_owned(),
    }
}

/// What was read of a path.
struct PathRead {
    /// Whether the revision has something there.
    is_there: bool,
    commit: String,
}

fn read(
    loader: &mut Loader,
    path: &Path,
    revision: &str,
    recursive: bool,
) -> anyhow::Result<PathRead> {
    let (revision, below) = Revision::of(path, revision)?;
    let found = revision.find(&below)?;
    let is_there = !matches!(found, Found::Nothing);
    let files = match found {
        Found::Nothing => Vec::new(),
        Found::NotRead(why) => {
            loader.not_read(path, why);
            Vec::new()
        }
        Found::Entry(entry, place) if entry.kind == EntryKind::Tree => {
            revision.files(loader, path, &place, &entry.id, recursive)?
        }
        Found::Entry(Entry { id, .. }, place) => {
            let shown = path.to_owned();
            vec![ManifestBlob { shown, place, id }]
        }
    };
    revision.read(loader, &files)?;
    Ok(PathRead {
        is_there,
        commit: revision.commit,
    })
}

/// What a tree has at a name.
#[derive(Clone)]
struct Entry {
    kind: EntryKind,
    id: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    File,
    Tree,
    Link,
    Submodule,
}

/// A file to read.
struct ManifestBlob {
    /// The path in messages.
    shown: PathBuf,
    /// Its path in the revision, without links.
    place: PathBuf,
    id: String,
}

/// What a checkout does to a file.
enum Checkout {
    /// `$Id$` is replaced in it.
    Ident,
    /// Its bytes are others, for this reason.
    Changed(String),
}

/// What a revision has at a path.
enum Found {
    Nothing,
    NotRead(&'static str),
    /// With its path in the revision, which has no links.
    Entry(Entry, PathBuf),
}

/// A revision of a repository.
struct Revision {
    /// The directory that has `.git` in it.
    root: PathBuf,
    /// Its ID, and that of its tree.
    commit: String,
    tree: String,
    /// The lookups that are left.
    lookups: Cell<u32>,
    /// The trees that were looked into, by ID.
    trees: RefCell<BTreeMap<String, Tree>>,
}

/// Entries by their paths.
type Tree = BTreeMap<PathBuf, Entry>;

impl Revision {
    /// The revision `name` of the repository of `path`, and the path in it. Links below it are left as they are: a
    /// revision has its own.
    fn of(path: &Path, name: &str) -> anyhow::Result<(Self, PathBuf)> {
        let mut clean = PathBuf::new();
        for part in env::current_dir()?.join(path).components() {
            if part == Component::ParentDir {
                clean.pop();
            } else {
                clean.push(part);
            }
        }
        let root = |path: &Path| {
            let mut above = path.ancestors();
            let root = above.find(|directory| is_repository(&directory.join(".git")));
            root.map(Path::to_owned)
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

    fn git(&self) -> Command {
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

    /// The entry at `path`, with links on the way followed.
    fn find(&self, path: &Path) -> anyhow::Result<Found> {
        let mut rest: Vec<_> = path.iter().rev().map(OsStr::to_owned).collect();
        // The directories that were gone through, and their path.
        let (mut trees, mut place) = (vec![self.tree.clone()], PathBuf::new());
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == "." {
                continue;
            }
            if name == ".." {
                trees.pop();
                if !place.pop() {
                    return Ok(Found::NotRead(LEAVES));
                }
                continue;
            }
            let Some(left) = self.lookups.get().checked_sub(1) else {
                return Ok(Found::NotRead(TOO_MANY_LINKS));
            };
            self.lookups.set(left);
            let tree = trees.last().context("the root is in it")?;
            let mut known = self.trees.borrow_mut();
            if !known.contains_key(tree) {
                known.insert(tree.clone(), self.list(tree, false)?);
            }
            let Some(entry) = known[tree].get(Path::new(&name)).cloned() else {
                return Ok(Found::Nothing);
            };
            match entry.kind {
                EntryKind::Tree => {
                    trees.push(entry.id);
                    place.push(name);
                }
                EntryKind::Submodule => return Ok(Found::NotRead(SUBMODULE)),
                EntryKind::File if rest.is_empty() => {
                    return Ok(Found::Entry(entry, place.join(name)));
                }
                EntryKind::File => return Ok(Found::Nothing),
                EntryKind::Link => {
                    links += 1;
                    let target = self.target(&entry.id)?;
                    if links > MAX_LINKS || target.is_absolute() {
                        return Ok(Found::NotRead(LEAVES));
                    }
                    rest.extend(target.iter().rev().map(OsStr::to_owned));
                }
            }
        }
        let (kind, id) = (EntryKind::Tree, trees.pop().context("the root is in it")?);
        Ok(Found::Entry(Entry { kind, id }, place))
    }

    /// At most so many bytes of what git prints with these arguments, and whether it has printed all and succeeded.
    fn output(&self, args: &[&str], most: u64) -> anyhow::Result<(Vec<u8>, bool)> {
        let mut child = self.git().args(args).spawn().context("cannot run git")?;
        let mut output = Vec::new();
        let stdout = child.stdout.take().context("no output of git")?;
        stdout.take(most).read_to_end(&mut output)?;
        if output.len() as u64 == most {
            let _ = child.kill();
        }
        let is_success = child.wait()?.success();
        Ok((output, is_success))
    }

    /// Where the link `id` leads.
    fn target(&self, id: &str) -> anyhow::Result<PathBuf> {
        let (target, _) = self.output(&["cat-file", "blob", id], MAX_TARGET_BYTES)?;
        Ok(PathBuf::from(OsStr::from_bytes(&target)))
    }

    /// The entries of the tree `id` by their paths, those of its subtrees if `recursive`.
    fn list(&self, id: &str, recursive: bool) -> anyhow::Result<Tree> {
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

    /// The manifests of a directory, shown as `path`, sorted by name. `place` is its path in the revision, without links,
    /// and `id` its tree. `loader` learns of entries that are not read.
    fn files(
        &self,
        loader: &mut Loader,
        path: &Path,
        place: &Path,
        id: &str,
        recursive: bool,
    ) -> anyhow::Result<Vec<ManifestBlob>> {
        if !recursive {
            self.note_unsearched(loader, path, id)?;
        }
        let mut files = Vec::new();
        let mut add = |shown, place, id| files.push(ManifestBlob { shown, place, id });
        for (below, entry) in self.list(id, recursive)? {
            let is_read = match entry.kind {
                EntryKind::Submodule => recursive,
                EntryKind::File | EntryKind::Link => has_manifest_extension(&below),
                EntryKind::Tree => false,
            };
            if !is_read || loader.leaves_out(path, &below) {
                continue;
            }
            let shown = path.join(&below);
            match entry.kind {
                EntryKind::Tree => {}
                EntryKind::Submodule => loader.not_read(&shown, SUBMODULE),
                EntryKind::File => add(shown, place.join(&below), entry.id),
                EntryKind::Link => match self.find(&place.join(&below))? {
                    Found::Entry(_, target) if !target.starts_with(place) => {
                        loader.not_read(&shown, LEAVES);
                    }
                    Found::Entry(entry, target) if entry.kind == EntryKind::File => {
                        add(shown, target, entry.id);
                    }
                    Found::NotRead(why) => loader.not_read(&shown, why),
                    Found::Entry(..) => loader.not_read(&shown, "it is a link to a directory"),
                    Found::Nothing => loader.not_read(&shown, "it is a link to nothing"),
                },
            }
        }
        Ok(files)
    }

    /// Notes whether subdirectories of the tree `id` have manifests.
    fn note_unsearched(&self, loader: &mut Loader, path: &Path, id: &str) -> anyhow::Result<()> {
        let all = self.list(id, true)?;
        let is_below = |path: &PathBuf| path.components().nth(1).is_some();
        if all
            .keys()
            .any(|path| is_below(path) && has_manifest_extension(path))
        {
            loader.not_searched(path);
        }
        Ok(())
    }

    /// What a checkout does to the files at `places`, where it does something.
    ///
    /// git reads the attributes of a revision from an index, here one in a directory that is removed afterwards. Older
    /// versions than 2.40 know no other way.
    fn checkouts(&self, files: &[ManifestBlob]) -> anyhow::Result<BTreeMap<PathBuf, Checkout>> {
        let directory = tempdir().context("cannot create a directory for an index")?;
        let index = directory.path().join("index");
        let mut git = self.git();
        git.env("GIT_INDEX_FILE", &index).arg("read-tree");
        let is_read = git.arg(&self.tree).status().context("cannot run git")?;
        if !is_read.success() {
            bail!("cannot read the attributes of its files");
        }
        let mut names = tempfile().context("cannot list the files")?;
        for file in files {
            names.write_all(file.place.as_os_str().as_bytes())?;
            names.write_all(b"\0")?;
        }
        names.rewind()?;
        let mut git = self.git();
        git.env("GIT_INDEX_FILE", &index);
        git.args(["check-attr", "--cached", "-z", "--stdin"])
            .args(CHANGING);
        let output = git.stdin(names).output().context("cannot run git")?;
        if !output.status.success() {
            bail!("cannot read the attributes of its files");
        }
        let mut fields = output.stdout.split(|byte| *byte == 0);
        let mut all = BTreeMap::new();
        // `PATH\0ATTRIBUTE\0VALUE\0`.
        while let (Some(path), Some(name), Some(value)) =
            (fields.next(), fields.next(), fields.next())
        {
            let (name, value) = (
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value),
            );
            if let Some(checkout) = checkout(&name, &value) {
                let path = PathBuf::from(OsStr::from_bytes(path));
                match all.get(&path) {
                    Some(Checkout::Changed(_)) => {}
                    _ => drop(all.insert(path, checkout)),
                }
            }
        }
        Ok(all)
    }

    /// Reads the objects of `files`.
    fn read(&self, loader: &mut Loader, files: &[ManifestBlob]) -> anyhow::Result<()> {
        if files.len() > MAX_FILES {
            bail!("more than {MAX_FILES} manifests");
        }
        let checkouts = self.checkouts(files)?;
        let mut left = MAX_BYTES;
        let mut git = self.git();
        git.args(["cat-file", "--batch"]).stdin(Stdio::piped());
        let mut child = git.spawn().context("cannot run git")?;
        let mut stdin = child.stdin.take().context("no input of git")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no output of git")?);
        for ManifestBlob {
            shown: path,
            place,
            id,
        } in files
        {
            // One at a time, so that neither side waits for the other to read.
            writeln!(stdin, "{id}")?;
            let mut head = String::new();
            stdout.read_line(&mut head)?;
            // `ID blob BYTES`, then the bytes and a line feed.
            let bytes = head.trim_end().rsplit_once(" blob ");
            let bytes = bytes.and_then(|(_, bytes)| bytes.parse::<u64>().ok());
            let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
            left = left
                .checked_sub(bytes)
                .context("more than 256 MiB of manifests")?;
            // One that is too long is an error of that file; the rest of it is passed over.
            let mut content = stdout.by_ref().take(bytes);
            match checkouts.get(place) {
                None => loader.input(path, &mut content),
                Some(Checkout::Changed(why)) => loader.not_read(path, why),
                Some(Checkout::Ident) => {
                    let mut bytes = Zeroizing::new(Vec::new());
                    content.read_to_end(&mut bytes)?;
                    if bytes.windows(IDENT.len()).any(|part| part == IDENT) {
                        loader.not_read(path, "its attribute ident replaces $Id$ at a checkout");
                    } else {
                        loader.input(path, &mut &**bytes);
                    }
                }
            }
            io::copy(&mut content, &mut io::sink())?;
            stdout.read_exact(&mut [0])?;
        }
        drop(stdin);
        let _ = child.wait();
        Ok(())
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

/// What an attribute does at a checkout.
fn checkout(name: &str, value: &str) -> Option<Checkout> {
    match (name, value) {
        (_, "unspecified" | "unset" | "") => None,
        ("ident", _) => Some(Checkout::Ident),
        // git's own encoding.
        ("working-tree-encoding", "set") => None,
        ("working-tree-encoding", encoding) if encoding.eq_ignore_ascii_case("UTF-8") => None,
        (name, value) => {
            let why = format!("its attribute {name}={value} changes it at a checkout");
            Some(Checkout::Changed(why))
        }
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
