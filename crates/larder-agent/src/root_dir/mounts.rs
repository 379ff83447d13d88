//! Whether containers see what this process mounts.
//!
//! The runtime of the containers is outside of this process. It sees a mount if both are in one mount namespace, or if
//! the mount below it is shared.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd as _},
};

/// The first mount namespace of the machine, in Linux 6.18 and before.
const FIRST_NAMESPACES: [&str; 3] = ["mnt:[4026531832]", "mnt:[4026531840]", "mnt:[4026531841]"];
/// The first PID namespace of the machine.
const FIRST_PIDS: &str = "pid:[4026531836]";

/// Whether containers see a file system that is mounted below `directory`.
///
/// # Errors
///
/// `/proc` cannot be read.
pub(super) fn are_seen(directory: impl AsFd) -> io::Result<bool> {
    let fd = directory.as_fd().as_raw_fd();
    let found = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let id = found
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .unwrap_or_default()
        .trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut mounts = mounts.lines();
    let mount = mounts.find(|line| line.split(' ').next() == Some(id));
    let namespace = |path| fs::read_link(path).map(|name| name.to_string_lossy().into_owned());
    let own = namespace("/proc/self/ns/mnt")?;
    let is_first = FIRST_NAMESPACES.contains(&&*own);
    let is_of_init = is_first || namespace("/proc/1/ns/mnt").is_ok_and(|first| first == own);
    let owner = if !is_of_init {
        NamespaceOwner::Process
    } else if is_first || namespace("/proc/self/ns/pid")? == FIRST_PIDS {
        NamespaceOwner::Machine
    } else {
        NamespaceOwner::Container
    };
    Ok(is_seen(mount.unwrap_or_default(), owner))
}

/// Whose mount namespace this process is in.
#[derive(Clone, Copy, Debug)]
enum NamespaceOwner {
    /// That of the machine's process 1.
    Machine,
    /// That of a container's process 1.
    Container,
    /// Another one.
    Process,
}

/// Whether others see what is mounted below a directory on `mount`, a line of `mountinfo`.
fn is_seen(mount: &str, owner: NamespaceOwner) -> bool {
    let (fields, _) = mount.split_once(" - ").unwrap_or((mount, ""));
    let mut fields = fields.split(' ');
    let mount_point = fields.nth(4);
    let is_shared = fields.any(|field| field.starts_with("shared:"));
    // A container's own root is closed to others. What else is mounted in one comes from outside, and is read there.
    is_shared
        || match owner {
            NamespaceOwner::Machine => true,
            NamespaceOwner::Container => mount_point == Some("/"),
            NamespaceOwner::Process => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: &str = "41 30 8:1 /var/lib/larder /var/lib/larder rw,relatime - ext4 /dev/sda1 rw";
    const SLAVE: &str = "41 30 8:1 /a /var/lib/larder rw master:1 - ext4 /dev/sda1 rw";
    const SHARED: &str = "41 30 8:1 /a /var/lib/larder rw shared:7 master:1 - ext4 /dev/sda1 rw";
    const ROOT: &str = "30 1 0:29 / / rw,relatime - overlay overlay rw";

    #[test]
    fn containers_see_mounts_of_the_machine_and_shared_ones() {
        for (mount, owner, expected) in [
            (BOUND, NamespaceOwner::Machine, true),
            (BOUND, NamespaceOwner::Container, false),
            (BOUND, NamespaceOwner::Process, false),
            (SLAVE, NamespaceOwner::Container, false),
            (SHARED, NamespaceOwner::Process, true),
            (ROOT, NamespaceOwner::Container, true),
            (ROOT, NamespaceOwner::Process, false),
        ] {
            assert_eq!(is_seen(mount, owner), expected, "{mount}");
        }
    }
}
