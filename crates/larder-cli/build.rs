//! How the binary is linked.

use std::{env, process::Command};

/// The first C library that reads packed relocations; an older one refuses a binary that has them.
const GLIBC: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let here = env::var("HOST").is_ok_and(|host| env::var("TARGET") == Ok(host));
    if here && glibc().is_some_and(|version| version >= GLIBC) {
        // The dynamic linker reads the table of relocations whole, and what was read stays resident. Packed, it has 15 KiB
        // instead of 1.3 MiB.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's glibc, if it has one.
fn glibc() -> Option<(u32, u32)> {
    let answer = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .output()
        .ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
