//! The memory that a difference takes.

use std::{fs, process::Command};

use super::{POD, map};
use crate::Desk;

/// Of its own, in KiB. The objects are 1 MiB; what their differences would take all at once, more than 50 MiB.
const MEMORY: usize = 32 << 10;

#[test]
fn memory_does_not_grow_with_the_pods_that_see_a_large_object() {
    let desk = Desk::with([]);
    let pods = (0..20).map(|number| POD.replacen("name: web", &format!("name: web-{number}"), 1));
    let pods = pods.collect::<Vec<_>>().join("---");
    for (name, letter) in [("from.yaml", "a"), ("to.yaml", "b")] {
        let data = format!("{{large: '{}'}}", letter.repeat(512 << 10));
        fs::write(desk.path().join(name), map(&data) + "---" + &pods).unwrap();
    }
    for output in ["json", "html"] {
        let script = format!(
            "ulimit -d {MEMORY} && exec \"$0\" diff --from-file from.yaml --to-file to.yaml -o {output} >out"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_larder")]);
        let ended = command.current_dir(desk.path()).output().unwrap();
        let error = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{output}: {error}");
    }
}
