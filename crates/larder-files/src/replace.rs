//! Replaces a file in one step.
//!
//! Invariants:
//! 1. A reader sees the old file or the new one, even if the process was killed at any instant.
//! 2. A failure leaves the old file in place.
//! 3. The new file is not synced. After a power cut it may be absent, empty or cut off, so its reader must detect that.

use std::os::fd::BorrowedFd;

use rustix::io::Result;

use crate::sys::{create_file, may_be_missing, remove_file, rename, set_mode, write};

/// Makes `name` of `dir` a file with this content and mode, whatever the umask. Until then the new file is `aside` of
/// `dir`, which is removed first: an earlier process may have died there.
///
/// # Errors
///
/// The first call that failed.
pub fn replace_file(
    dir: BorrowedFd<'_>,
    name: &str,
    aside: &str,
    mode: u32,
    content: &[u8],
) -> Result<()> {
    may_be_missing(remove_file(dir, aside))?;
    let file = create_file(dir, aside, mode)?;
    let replaced = set_mode(&file, mode)
        .and_then(|()| write(&file, content))
        .and_then(|()| rename(dir, aside, name));
    if replaced.is_err() {
        // The error names the failed operation; what cannot be removed now is removed next time.
        let _ = remove_file(dir, aside);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{
            fd::AsFd as _,
            unix::fs::{MetadataExt as _, symlink},
        },
    };

    use rustix::io::Errno;

    use super::*;
    use crate::{
        faults::{Fault, during},
        sys::open_root,
    };

    #[test]
    fn a_failed_call_leaves_the_old_file_and_nothing_else() {
        for at in 0.. {
            let root = tempfile::tempdir().unwrap();
            let dir = open_root(root.path()).unwrap();
            let replace =
                |text: &str| replace_file(dir.as_fd(), "f", "aside", 0o600, text.as_bytes());
            replace("old").unwrap();
            let (result, is_reached) = during(at, Fault::Once(Errno::NOSPC), || replace("new"));
            let expected = if result.is_ok() { "new" } else { "old" };
            let found = fs::read_to_string(root.path().join("f")).unwrap();
            assert_eq!(found, expected, "call {at}");
            if !is_reached {
                break;
            }
            // What remains of the failure blocks no later attempt.
            replace("newest").unwrap();
            let entries = fs::read_dir(root.path()).unwrap();
            assert_eq!(entries.count(), 1, "call {at}");
        }
    }

    #[test]
    fn links_in_the_place_of_either_file_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        for name in ["f", "aside"] {
            symlink("victim", at(name)).unwrap();
        }
        let dir = open_root(root.path()).unwrap();
        replace_file(dir.as_fd(), "f", "aside", 0o604, b"new").unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "precious");
        let found = fs::symlink_metadata(at("f")).unwrap();
        assert!(found.is_file());
        assert_eq!(found.mode() & 0o7777, 0o604);
        fs::hard_link(at("victim"), at("aside")).unwrap();
        replace_file(dir.as_fd(), "f", "aside", 0o600, b"newer").unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "precious");
    }
}
