//! How the binary is linked.

use std::{env, process::Command};

/// The first C library that reads packed relocations; an older one refuses a binary that has them.
const GLIBC: (u32, u32) = (2, 36);

/// Functions that an agent runs; made by `.ci/link-order`.
const AGENT: &str = "link/agent.ld";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={AGENT}");
    let here = env::var("HOST").is_ok_and(|host| env::var("TARGET") == Ok(host));
    if here && glibc().is_some_and(|version| version >= GLIBC) {
        // The dynamic linker reads the table of relocations whole, and what was read stays resident. Packed, it has 15 KiB
        // instead of 1.3 MiB.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    if is("CARGO_CFG_TARGET_OS", "linux") && is("PROFILE", "release") && is_usual_linker() {
        // The kernel maps 64 KiB of code around each page that runs, and that stays resident. Side by side, what an agent runs takes
        // some 6 MiB instead of 11. Crates and names that the script does not know are linked as ever.
        let directory = env::var("CARGO_MANIFEST_DIR").expect("Cargo sets it");
        println!("cargo::rustc-link-arg-bins=-T{directory}/{AGENT}");
    }
}

fn is(variable: &str, value: &str) -> bool {
    env::var(variable).is_ok_and(|found| found == value)
}

/// Whether nobody has chosen a linker: LLD, which rustc brings, and GNU ld read scripts that add to their own; not all do.
fn is_usual_linker() -> bool {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let chosen = ["linker", "fuse-ld"];
    env::var_os("RUSTC_LINKER").is_none() && !chosen.iter().any(|word| flags.contains(word))
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
