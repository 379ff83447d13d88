//! The keys of the checkpoint and their sources.
//!
//! | source | file |
//! | --- | --- |
//! | `credential:NAME` | `NAME` in `$CREDENTIALS_DIRECTORY`, where systemd puts the unit's decrypted credentials |
//! | `file:PATH` | 32 random bytes that only the agent's user can read; created if missing |
//!
//! Invariants:
//! 1. A key is 32 bytes. No error, log or `Debug` text contains any of them.
//! 2. A file that another user may have read or written is rejected, with its name and the reason.

use std::{
    ffi::OsStr,
    fmt,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    str::FromStr,
};

use larder_files::{
    operation_error::{OperationError, failed},
    ownership::{Ownership, user},
    regular_file::read_open,
    sys,
};
use rustix::{
    fs::{CWD, FileType},
    io::Errno,
};

use crate::seal::{KeyBytes, SealingKey};

/// The source of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A credential of the unit, by its name.
    Credential(String),
    /// A file.
    File(PathBuf),
}

/// A text that is not a valid source of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected credential:NAME or file:PATH")]
pub struct UnknownKeySource;

impl FromStr for KeySource {
    type Err = UnknownKeySource;

    fn from_str(text: &str) -> Result<Self, UnknownKeySource> {
        match text.split_once(':') {
            Some(("credential", name)) if is_credential_name(name) => {
                Ok(Self::Credential(name.to_owned()))
            }
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(UnknownKeySource),
        }
    }
}

/// systemd's rule (`credential_name_valid`): a file name of printable ASCII without a colon.
fn is_credential_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    (1..=255).contains(&name.len()) && ![".", ".."].contains(&name) && name.bytes().all(is_plain)
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential(name) => write!(f, "credential:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// A key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Reading or creating the file failed.
    #[error(transparent)]
    Io(#[from] OperationError),
    /// A credential is configured, and systemd passed none.
    #[error("no credentials are passed to this process ($CREDENTIALS_DIRECTORY is not set)")]
    NoCredentials,
    /// Other users may read or replace the key.
    #[error(
        "key {} of user {owner} has mode {mode:04o}, expected a file of user {user} with mode 0600 or stricter",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// User ID of its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// User ID of this process.
        user: u32,
    },
    /// The file has further names, so it may be at a place where others read it or take it away.
    #[error(
        "key {} has {links} hard links, expected a file with one name; copy it to a new file and remove the other names",
        path.display()
    )]
    Linked {
        /// The file.
        path: PathBuf,
        /// Number of its names.
        links: u64,
    },
    /// There is no such file. It is created only where no checkpoint can have been sealed with it.
    #[error(
        "key {} is missing, so the checkpoint stays as it is (mount the disk of the key, or start anew with \
         `larder checkpoint erase`)",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file without exactly 32 bytes, or no regular file.
    #[error("key {} is not a file of 32 bytes", path.display())]
    Length {
        /// The file.
        path: PathBuf,
    },
}

/// The keys of one checkpoint. The first seals, all of them open.
#[derive(Debug)]
pub struct Keyring {
    keys: Vec<SealingKey>,
}

impl Keyring {
    /// Reads the keys of `sources`, at least one. The first file is created if missing. `credentials` is the directory of
    /// the unit's credentials, as `$CREDENTIALS_DIRECTORY` names it.
    ///
    /// # Errors
    ///
    /// A key cannot be used.
    pub fn load(sources: &[KeySource], credentials: Option<&OsStr>) -> Result<Self, KeyError> {
        if let Some(KeySource::File(path)) = sources.first()
            && read(path, is_private)?.is_none()
        {
            create(path)?;
        }
        Self::load_existing(sources, credentials)
    }

    /// As [`Self::load`], without creating anything.
    ///
    /// # Errors
    ///
    /// A key cannot be used.
    pub fn load_existing(
        sources: &[KeySource],
        credentials: Option<&OsStr>,
    ) -> Result<Self, KeyError> {
        let load = |source: &KeySource| -> Result<SealingKey, KeyError> {
            let (path, key) = match source {
                KeySource::Credential(name) => {
                    let directory = credentials.ok_or(KeyError::NoCredentials)?;
                    let path = Path::new(directory).join(name);
                    let key = read(&path, is_private_credential)?;
                    (path, key)
                }
                KeySource::File(path) => (path.clone(), read(path, is_private)?),
            };
            key.ok_or(KeyError::Missing { path })
        };
        let keys = sources.iter().map(load).collect::<Result<_, _>>()?;
        Ok(Self { keys })
    }

    /// The key that seals.
    pub(crate) fn sealing(&self) -> &SealingKey {
        &self.keys[0]
    }

    /// All keys, any of which may open.
    pub(crate) fn all(&self) -> &[SealingKey] {
        &self.keys
    }
}

/// The key in the file `path`, if there is one.
fn read(path: &Path, may_use: impl Fn(Ownership) -> bool) -> Result<Option<SealingKey>, KeyError> {
    let wrong_length = || KeyError::Length {
        path: path.to_owned(),
    };
    let file = match sys::open_file(CWD, path) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed("open key", path)(errno).into()),
    };
    let stat = sys::stat(&file).map_err(failed("examine key", path))?;
    if sys::file_type(&stat) != FileType::RegularFile {
        return Err(wrong_length());
    }
    let ownership = Ownership::from(&stat);
    if !may_use(ownership) {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
            owner: ownership.owner,
            mode: ownership.mode,
            user: user(),
        });
    }
    if stat.st_nlink > 1 {
        return Err(KeyError::Linked {
            path: path.to_owned(),
            links: stat.st_nlink,
        });
    }
    let bytes = match read_open(&file, &stat, 32) {
        Ok(bytes) => bytes,
        Err(Errno::FBIG) => return Err(wrong_length()),
        Err(errno) => return Err(failed("read key", path)(errno).into()),
    };
    let mut key = KeyBytes::default();
    if bytes.len() != key.len() {
        return Err(wrong_length());
    }
    key.copy_from_slice(&bytes);
    Ok(Some(SealingKey::new(key)))
}

fn is_private(ownership: Ownership) -> bool {
    ownership.is_own() && !ownership.is_open_to_others()
}

/// systemd gives the files of a unit's credentials to root, and lets the unit's user read them by an ACL, which appears
/// as permission bits of the group.
fn is_private_credential(ownership: Ownership) -> bool {
    ownership.is_trusted() && ownership.mode & 0o027 == 0
}

/// Creates a key. It is on the disk before it seals anything.
fn create(path: &Path) -> Result<(), KeyError> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let file_name = path
        .file_name()
        .ok_or_else(|| failed("create key", path)(Errno::ISDIR))?;
    let mut aside = file_name.to_owned();
    aside.push(".new");
    let create = || -> rustix::io::Result<()> {
        // A link in a parent directory is the operator's choice, as in any path of the configuration.
        let directory: OwnedFd = rustix::fs::open(
            parent,
            rustix::fs::OFlags::RDONLY
                | rustix::fs::OFlags::DIRECTORY
                | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        // A crash may have left one.
        sys::may_be_missing(sys::remove_file(directory.as_fd(), &*aside))?;
        let file = sys::create_file(directory.as_fd(), &*aside, 0o600)?;
        sys::write(&file, &**SealingKey::random())?;
        sys::sync(&file)?;
        sys::rename(directory.as_fd(), &*aside, file_name)?;
        sys::sync(&directory)
    };
    Ok(create().map_err(failed("create key", path))?)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    impl Keyring {
        pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
            let key = |&byte: &u8| SealingKey::new(Box::new([byte; 32].into()));
            Self {
                keys: bytes.iter().map(key).collect(),
            }
        }
    }

    fn load(source: &str) -> Result<Keyring, KeyError> {
        Keyring::load(&[source.parse().unwrap()], None)
    }

    #[test]
    fn sources_are_a_credential_or_a_file() {
        for text in ["credential:larder.key", "file:/var/lib/key", "file:key"] {
            assert_eq!(text.parse::<KeySource>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "file:",
            "credential:",
            "credential:..",
            "credential:a/b",
            "tpm:0",
            "key",
        ] {
            assert!(text.parse::<KeySource>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_missing_key_file_is_created_once() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("key");
        let source = format!("file:{}", path.display());
        let first = load(&source).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.len(), metadata.permissions().mode() & 0o7777),
            (32, 0o600)
        );
        let again = load(&source).unwrap();
        assert_eq!(first.sealing().id(), again.sealing().id());
        // A further key only opens what it has sealed, so creating one would be useless.
        let sources = [
            source.parse().unwrap(),
            "file:/nonexistent/key".parse().unwrap(),
        ];
        assert!(Keyring::load(&sources, None).is_err());
    }

    #[test]
    fn an_exposed_key_file_is_rejected_by_name() {
        // offline 11
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("key");
        fs::write(&path, [7; 32]).unwrap();
        let user = rustix::process::geteuid().as_raw();
        for mode in [0o644, 0o640, 0o660, 0o604, 0o777] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = load(&format!("file:{}", path.display())).unwrap_err();
            let expected = format!(
                "key {} of user {user} has mode {mode:04o}, expected a file of user {user} with mode 0600 or stricter",
                path.display()
            );
            assert_eq!(error.to_string(), expected);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        load(&format!("file:{}", path.display())).unwrap();
    }

    #[test]
    fn a_hard_link_to_a_key_file_is_rejected_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("key");
        let source = format!("file:{}", path.display());
        load(&source).unwrap();
        // Another name of the file, in a directory where its owner is not the only one to reach it.
        let other = temp.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        for path in [&path, &other] {
            let error = load(&format!("file:{}", path.display())).unwrap_err();
            let expected = format!(
                "key {} has 2 hard links, expected a file with one name; copy it to a new file and remove the other names",
                path.display()
            );
            assert_eq!(error.to_string(), expected);
        }
        fs::remove_file(&other).unwrap();
        load(&source).unwrap();
    }

    #[test]
    fn only_a_regular_file_of_32_bytes_is_a_key() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("key");
        let source = format!("file:{}", path.display());
        for length in [0, 31, 33, 4096] {
            fs::write(&path, vec![7; length]).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let error = load(&source).unwrap_err();
            assert!(
                matches!(error, KeyError::Length { .. }),
                "{length}: {error}"
            );
        }
        fs::remove_file(&path).unwrap();
        symlink("/etc/hostname", &path).unwrap();
        assert!(matches!(load(&source).unwrap_err(), KeyError::Io(_)));
    }

    #[test]
    fn credentials_come_from_the_directory_of_systemd() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("larder.key");
        fs::write(&path, [7; 32]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o440)).unwrap();
        let sources = ["credential:larder.key".parse().unwrap()];
        Keyring::load(&sources, Some(temp.path().as_os_str())).unwrap();
        let error = Keyring::load(&sources, None).unwrap_err();
        assert!(matches!(error, KeyError::NoCredentials), "{error}");
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        let error = Keyring::load(&sources, Some(temp.path().as_os_str())).unwrap_err();
        assert!(matches!(error, KeyError::Exposed { .. }), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(Keyring::load(&sources, Some(temp.path().as_os_str())).is_err());
    }
}
