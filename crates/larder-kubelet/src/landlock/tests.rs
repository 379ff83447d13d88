use std::os::unix::fs::symlink;

use super::*;

/// Runs `test` on a thread of its own, which alone is restricted.
fn on_a_thread(test: impl FnOnce() + Send + 'static) {
    let ended = std::thread::spawn(test).join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn nothing_is_written_outside_the_named_directories() {
    // beside-kubelet 29 Removed by the outer thread, which is not restricted.
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [kubelet, own] = directories
        .each_ref()
        .map(|directory| directory.path().to_owned());
    on_a_thread(move || {
        let at = |name: &str| kubelet.join(name);
        let file = at("a");
        fs::write(&file, "1").unwrap();
        fs::create_dir(at("d")).unwrap();
        let protection = restrict_thread(&[&own]).unwrap();
        if protection == WriteProtection::Unavailable {
            assert!(std::env::var_os("CI").is_none(), "CI must have Landlock");
            return;
        }
        let denied = |result: io::Result<()>| {
            let kind = result.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::PermissionDenied);
        };
        denied(fs::write(at("b"), ""));
        denied(fs::write(&file, ""));
        denied(fs::OpenOptions::new().append(true).open(&file).map(drop));
        denied(fs::remove_file(&file));
        denied(fs::create_dir(at("e")));
        denied(fs::remove_dir(at("d")));
        denied(fs::rename(&file, at("c")));
        denied(symlink("a", at("link")));
        if protection == WriteProtection::Full {
            let read = fs::File::open(&file).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&read));
            denied(
                fs::OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(path)
                    .map(drop),
            );
        }
        // Reading still works, also of new files.
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        assert_eq!(fs::read_dir(&kubelet).unwrap().count(), 2);
        // Its own directory stays writable.
        fs::write(own.join("a"), "").unwrap();
        fs::rename(own.join("a"), own.join("b")).unwrap();
        fs::remove_file(own.join("b")).unwrap();
        fs::write(DISCARD, "").unwrap();
    });
}

#[test]
fn process_with_other_threads_is_not_restricted() {
    // A test runs beside the main thread.
    let error = forbid_writes(&[], 0).unwrap_err();
    assert!(
        matches!(error, WriteProtectionError::Threads(2..)),
        "{error}"
    );
    fs::write(tempfile::tempdir().unwrap().path().join("a"), "").unwrap();
}

#[test]
fn missing_directory_is_named() {
    on_a_thread(|| {
        let error = restrict_thread(&[Path::new("/nonexistent")]).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /nonexistent");
    });
}
