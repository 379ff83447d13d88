//! A file system over FUSE with one file, `app.conf`. Its program finds the file, and never answers who changes its mode:
//! that one holds the lock of the file meanwhile.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Operations of the protocol (`include/uapi/linux/fuse.h`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// The directory, and the file in it.
const ROOT: u64 = 1;
const FILE: u64 = 2;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
/// How long the kernel keeps an answer, in seconds.
const VALID: u64 = 3600;

/// Mounted until it is dropped. Then whoever waits for it gets an error.
pub(super) struct SilentFs {
    path: PathBuf,
    changes: mpsc::Receiver<()>,
}

impl SilentFs {
    /// Mounts it on the directory `path`, which is created; `None` where there is no FUSE.
    pub(super) fn mount(path: &Path) -> Option<Self> {
        fs::create_dir(path).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let mounted = device.and_then(|device| {
            let options = format!(
                "fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0",
                device.as_raw_fd()
            );
            let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
            mount("silent", path, "fuse", MountFlags::empty(), options)?;
            Ok(device)
        });
        let device = match mounted {
            Ok(device) => device,
            Err(error) => {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "CI must have FUSE: {error}"
                );
                let said = format!("SKIPPED: no file system over FUSE ({error})\n");
                let _ = std::io::stderr().write_all(said.as_bytes());
                return None;
            }
        };
        let (sender, changes) = mpsc::channel();
        // It ends when the file system is unmounted.
        thread::spawn(move || serve(device, &sender));
        Some(Self {
            path: path.to_owned(),
            changes,
        })
    }

    /// Waits until somebody changes the file, and waits for the answer.
    pub(super) fn until_changed(&self) {
        self.changes.recv().unwrap();
    }
}

impl Drop for SilentFs {
    fn drop(&mut self) {
        // The first one ends the connection, even if it finds the file system in use.
        let _ = unmount(&self.path, UnmountFlags::FORCE);
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn serve(mut device: File, changed: &mpsc::Sender<()>) {
    let mut request = vec![0; 128 << 10];
    while let Ok(length) = device.read(&mut request) {
        let request = &request[..length];
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (operation, unique, node, argument) = (number(4), long(8), long(16), &request[40..]);
        let answer = match operation {
            INIT => Ok(initialized()),
            LOOKUP if argument == b"app.conf\0" => Ok(entry()),
            LOOKUP => Err(ENOENT),
            GETATTR => Ok([words(&[VALID, 0]), attributes(node)].concat()),
            SETATTR => {
                let _ = changed.send(());
                continue;
            }
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            _ => Err(ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = [
            &length.to_ne_bytes()[..],
            &error.to_ne_bytes(),
            &unique.to_ne_bytes(),
        ];
        let _ = device.write_all(&[&head.concat()[..], &body].concat());
    }
}

/// `fuse_init_out` of version 7.31.
fn initialized() -> Vec<u8> {
    let mut answer = halves(&[7, 31, 0, 0, 0, 4096, 1]);
    answer.resize(64, 0);
    answer
}

/// `fuse_entry_out` of the file.
fn entry() -> Vec<u8> {
    [
        words(&[FILE, 0, VALID, VALID]),
        halves(&[0, 0]),
        attributes(FILE),
    ]
    .concat()
}

/// `fuse_attr`
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { 0o040_755 } else { 0o100_644 };
    let (times, owners) = ([0; 3], [0; 3]);
    let sizes = words(&[node, 0, 0, 0, 0, 0]);
    [
        sizes,
        halves(&times),
        halves(&[mode, 1]),
        halves(&owners),
        halves(&[4096, 0]),
    ]
    .concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}
