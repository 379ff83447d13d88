//! Env files, which containers of a pod write into an `emptyDir` for variables of other containers (`fileKeyRef`).
//!
//! Rules: kubelet 1.36, `pkg/kubelet/kubelet_pods.go`, with two differences. A link that leads out of the volume is an
//! error, where the kubelet takes the root of the volume for the root of the file system. And the size of a file is
//! limited, because it comes from a container, which must not fill the memory of the node.

use std::{
    mem,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::Arc,
};

use larder_files::{regular_file::read_open, sys};
use larder_objects::{SecretBytes, chain};
use rustix::{
    fs::{self, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    DiskError, VolumeHost,
    layout::{self, element},
    subpath::resolve,
};
use crate::{EnvFile, EnvFileRef, Inputs, Unavailable};

/// Longest file that is read, in bytes: what a ConfigMap or Secret may have.
const LIMIT: usize = 1 << 20;

impl VolumeHost {
    /// Reads env files of a pod into `inputs`, as they are now: other containers write them at any time.
    pub fn read_env_files(
        &self,
        pod_uid: &str,
        files: impl IntoIterator<Item = EnvFileRef>,
        inputs: &mut Inputs,
    ) {
        for file in files {
            let found = match self.read_env_file(pod_uid, &file) {
                Ok(Some(found)) => Ok(Arc::new(found)),
                Ok(None) => Err(Unavailable::NotFound),
                Err(error) => Err(Unavailable::failed(chain(&error))),
            };
            inputs.env_files.insert(file, found);
        }
    }

    /// Reads an env file of a pod as it is now; `None` if there is no such file, or no `emptyDir` of that name yet.
    ///
    /// # Errors
    ///
    /// The path leads out of the volume, or to something other than a file, or the file has more than 1 MiB or cannot be
    /// read.
    fn read_env_file(
        &self,
        pod_uid: &str,
        file: &EnvFileRef,
    ) -> Result<Option<EnvFile>, DiskError> {
        let path = [layout::VOLUMES, layout::EMPTY_DIR, element(&file.volume)?];
        let Some(pod) = self.pod(pod_uid)? else {
            return Ok(None);
        };
        let Some(volume) = pod.descendant(&path)? else {
            return Ok(None);
        };
        // The API has a path within the volume, whether or not it begins with a slash.
        let path = file.path.trim_start_matches('/');
        let failed = volume.failed("read env file", path);
        let found = match resolve(volume.as_fd(), path) {
            Err(Errno::NOENT) => return Ok(None),
            found => found.map_err(&failed)?,
        };
        let content = read(&found).map_err(failed)?;
        Ok(Some(EnvFile {
            host_path: volume.path().join(path).display().to_string(),
            content,
        }))
    }
}

/// The content of the file that `handle`, which cannot be read itself, stands for.
fn read(handle: &OwnedFd) -> rustix::io::Result<SecretBytes> {
    let stat = sys::stat(handle)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR),
        // A pipe would never end, and a device may do anything.
        _ => return Err(Errno::INVAL),
    }
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::open(path, flags, Mode::empty())?;
    let mut content = read_open(&file, &stat, LIMIT)?;
    Ok(SecretBytes::new(mem::take(&mut *content)))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use rustix::fs::{CWD, FileType};
    use tempfile::TempDir;

    use super::*;

    /// A root directory with an `emptyDir` of the pod `u1`, and that directory.
    fn empty_dir() -> (TempDir, VolumeHost, PathBuf) {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let volume = root
            .path()
            .join("pods/u1/volumes/kubernetes.io~empty-dir/scratch");
        fs::create_dir_all(&volume).unwrap();
        (root, host, volume)
    }

    fn read(host: &VolumeHost, path: &str) -> Result<Option<EnvFile>, DiskError> {
        let file = EnvFileRef {
            volume: "scratch".to_owned(),
            path: path.to_owned(),
        };
        host.read_env_file("u1", &file)
    }

    #[test]
    fn a_file_is_read_as_it_is_now() {
        // projection 61
        let (_root, host, volume) = empty_dir();
        fs::create_dir(volume.join("sub")).unwrap();
        assert_eq!(read(&host, "sub/env").unwrap(), None);
        for content in ["A='1'\n", ""] {
            fs::write(volume.join("sub/env"), content).unwrap();
            let file = read(&host, "sub/env").unwrap().unwrap();
            assert_eq!(&*file.content, content.as_bytes());
            assert_eq!(file.host_path, volume.join("sub/env").display().to_string());
            assert_eq!(
                &*read(&host, "/sub/env").unwrap().unwrap().content,
                content.as_bytes()
            );
        }
    }

    #[test]
    fn without_a_volume_there_is_no_file() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        assert_eq!(read(&host, "env").unwrap(), None);
        let (_root, host, volume) = empty_dir();
        fs::remove_dir(volume).unwrap();
        assert_eq!(read(&host, "env").unwrap(), None);
    }

    #[test]
    fn links_lead_nowhere_outside_of_the_volume() {
        let (root, host, volume) = empty_dir();
        fs::write(root.path().join("outside"), "K='stolen'").unwrap();
        fs::write(volume.join("inside"), "K='own'").unwrap();
        symlink("inside", volume.join("good")).unwrap();
        symlink("../../../../../outside", volume.join("up")).unwrap();
        symlink(root.path().join("outside"), volume.join("absolute")).unwrap();
        symlink("loop", volume.join("loop")).unwrap();
        assert_eq!(&*read(&host, "good").unwrap().unwrap().content, b"K='own'");
        for path in ["up", "absolute", "loop", "../../../../../outside"] {
            let error = read(&host, path).unwrap_err();
            let named = volume.join(path).display().to_string();
            assert_eq!(error.to_string(), format!("cannot read env file {named}"));
        }
    }

    #[test]
    fn only_a_file_of_sensible_size_is_read() {
        let (_root, host, volume) = empty_dir();
        let error = |path: &str| {
            let error = read(&host, path).unwrap_err();
            let DiskError::Io(error) = error else {
                panic!("{error}");
            };
            Errno::from_io_error(&error.source).unwrap()
        };
        fs::write(volume.join("most"), vec![b'#'; LIMIT]).unwrap();
        assert_eq!(read(&host, "most").unwrap().unwrap().content.len(), LIMIT);
        fs::write(volume.join("more"), vec![b'#'; LIMIT + 1]).unwrap();
        assert_eq!(error("more"), Errno::FBIG);
        fs::create_dir(volume.join("directory")).unwrap();
        assert_eq!(error("directory"), Errno::ISDIR);
        let fifo = volume.join("pipe");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(error("pipe"), Errno::INVAL);
    }
}
