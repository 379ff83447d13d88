//! What a checkout would make of files, by their attributes.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{Seek as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use tempfile::{tempdir, tempfile};

use super::{paths::ManifestBlob, revision::Revision};

/// The attributes by which a checkout changes a file.
const CHANGING: [&str; 3] = ["working-tree-encoding", "ident", "filter"];

/// What a checkout does to a file.
pub(super) enum Checkout {
    /// `$Id$` is replaced in it.
    Ident,
    /// Its bytes are others, for this reason.
    Changed(String),
}

impl Revision {
    /// What a checkout does to the files at `places`, where it does something.
    ///
    /// git reads the attributes of a revision from an index, here one in a directory that is removed afterwards. Older
    /// versions than 2.40 know no other way.
    pub(super) fn checkouts(
        &self,
        files: &[ManifestBlob],
    ) -> anyhow::Result<BTreeMap<PathBuf, Checkout>> {
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
