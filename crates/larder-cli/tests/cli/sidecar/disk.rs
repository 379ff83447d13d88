//! A file that never answers, as on a disk that hangs: here a pipe that nobody writes.

use std::{fs, os::unix::fs::PermissionsExt as _};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};

use super::{Sidecar, World};
use crate::run::until;

// Attack: a disk that does not answer (rule H8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_that_hangs_silences_neither_health_nor_the_end() {
    let world = World::new().await;
    let script = world.path().join("script");
    mknodat(CWD, &script, FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let variables = [("LABEL", "l"), ("SCRIPT", script.to_str().unwrap())];
    let mut sidecar = Sidecar::start(world.sidecar(&[], &variables));
    let body = || sidecar.ask("/healthz").map(|(_, body)| body);
    let says = || body().is_some_and(|body| body.contains("waits for a disk since"));
    until("health says what is waited for", says).await;
    assert_eq!(sidecar.ask("/healthz").unwrap().0, "503");
    assert!(
        sidecar
            .ask("/metrics")
            .is_some_and(|(status, _)| status == "200")
    );
    assert_eq!(sidecar.signal(Signal::TERM), Some(0));
}
