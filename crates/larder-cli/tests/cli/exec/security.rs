//! The security context of a container, applied to a command.

use super::*;

/// A desk whose container has this security context.
fn secured(context: &str) -> Desk {
    let text = manifest("one", "1", "").replace(
        "image: example",
        &format!("image: example\n    securityContext: {context}"),
    );
    Desk::with([("app.yaml", text.as_str())])
}

#[test]
fn run_as_non_root_rejects_root() {
    if !may_mount() {
        return;
    }
    let run = secured("{runAsNonRoot: true, runAsUser: 0}").run("exec -f app.yaml -- true");
    assert_eq!(run.code, 125);
    let expected = "larder: container's runAsUser breaks non-root policy (pod: \"web_default(";
    assert!(run.stderr.starts_with(expected), "{}", run.stderr);
    assert!(
        run.stderr.ends_with(")\", container: web)\n"),
        "{}",
        run.stderr
    );
    if geteuid().is_root() {
        let run = secured("{runAsNonRoot: true}").run("exec -f app.yaml -- true");
        assert_eq!(run.code, 125);
        let expected = "larder: container has runAsNonRoot and image will run as root (pod: ";
        assert!(run.stderr.starts_with(expected), "{}", run.stderr);
    }
    let allowed = printed(
        &secured("{runAsNonRoot: true, runAsUser: 1000}"),
        callers()[0],
        "id -u",
    );
    assert_eq!(allowed, "1000\n");
}

/// Prints the bounding, permitted, effective, inheritable and ambient capabilities, and whether privileges may grow.
const PRIVILEGES: &str = "for name in CapBnd CapPrm CapEff CapInh CapAmb NoNewPrivs; do
    sed -n \"s/^$name:[[:space:]]*0*\\(.\\)/\\1/p\" /proc/self/status; done | tr '\\n' ' '";

#[test]
fn capabilities_and_no_new_privs_are_applied() {
    if !may_mount() {
        return;
    }
    for (context, expected) in [
        (
            "{runAsUser: 0, capabilities: {drop: [ALL]}}",
            "0 0 0 0 0 0 ",
        ),
        (
            "{runAsUser: 0, capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}",
            "400 400 400 0 0 0 ",
        ),
        (
            "{runAsUser: 1000, capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}",
            "400 0 0 0 0 0 ",
        ),
        (
            "{runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}",
            "0 0 0 0 0 1 ",
        ),
        (
            "{runAsUser: 0, allowPrivilegeEscalation: false, capabilities: {drop: [CHOWN, MKNOD, NET_RAW, SETFCAP, SYS_CHROOT, AUDIT_WRITE, FSETID, FOWNER, DAC_OVERRIDE, SETPCAP]}}",
            "4e0 4e0 4e0 0 0 1 ",
        ),
    ] {
        for &caller in callers() {
            let printed = printed(&secured(context), caller, PRIVILEGES);
            assert_eq!(printed, expected, "{context} {caller:?}");
        }
    }
}

#[test]
fn user_that_is_named_as_root_has_the_capabilities_of_a_container() {
    if !may_mount() {
        return;
    }
    // Those that a runtime gives (containerd 2.2); the machine may have fewer.
    let default = 0xa804_25fb;
    for &caller in callers() {
        let printed = printed(&secured("{runAsUser: 0}"), caller, PRIVILEGES);
        let mut sets = printed
            .split(' ')
            .map(|set| u64::from_str_radix(set, 16).unwrap_or(u64::MAX));
        let (bounding, _, effective) = (sets.next().unwrap(), sets.next(), sets.next().unwrap());
        assert_eq!(bounding & !default, 0, "{caller:?}: {printed}");
        assert_eq!(effective & !default, 0, "{caller:?}: {printed}");
        assert_ne!(effective, 0, "{caller:?}: {printed}");
    }
}

#[test]
fn set_user_id_programs_gain_nothing_without_privilege_escalation() {
    if !may_mount() || !geteuid().is_root() {
        return;
    }
    for (allowed, expected) in [(true, "0\n"), (false, "1000\n")] {
        let desk = secured(&format!(
            "{{runAsUser: 1000, allowPrivilegeEscalation: {allowed}}}"
        ));
        fs::set_permissions(desk.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let id = desk.path().join("id");
        let copied = Command::new("cp").arg("/usr/bin/id").arg(&id).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
        let script = format!("{} -u", id.display());
        assert_eq!(printed(&desk, Caller::Root, &script), expected, "{allowed}");
    }
}

#[test]
fn read_only_root_leaves_only_volumes_writable() {
    if !may_mount() {
        return;
    }
    let script = "for dir in / /tmp /etc /etc/larder-test /larder-test /run . ; do
            (echo no > $dir/larder-test-file) 2>/dev/null && echo wrote $dir; done
        echo kept > /larder-test/scratch/file && cat /larder-test/scratch/file; echo > /dev/null && echo device";
    for context in [
        "{readOnlyRootFilesystem: true}",
        "{readOnlyRootFilesystem: true, runAsUser: 0}",
    ] {
        for &caller in callers() {
            let printed = printed(&secured(context), caller, script);
            assert_eq!(printed, "kept\ndevice\n", "{context} {caller:?}");
        }
    }
}

/// As the kubelet leaves one behind a `subPath`, when the object has changed.
#[test]
fn mount_of_a_removed_file_is_no_obstacle_to_a_read_only_root() {
    if !may_mount() {
        return;
    }
    let desk = secured("{readOnlyRootFilesystem: true}");
    let script =
        "touch old new; mount --bind old new; rm old; exec \"$0\" exec -f app.yaml -- true";
    let mut command = Command::new("unshare");
    command.args(if geteuid().is_root() { "-m" } else { "-rm" }.split(' '));
    command.args(["sh", "-c", script, env!("CARGO_BIN_EXE_larder")]);
    let run = Run::from(command.current_dir(desk.path()).output().unwrap());
    assert_eq!((run.code, &*run.stderr), (0, ""), "{run:?}");
}

#[test]
fn fields_that_cannot_be_applied_are_named_once() {
    if !may_mount() {
        return;
    }
    let context = "{seccompProfile: {type: RuntimeDefault}, seLinuxOptions: {level: s0}, appArmorProfile: {type: Unconfined}, procMount: Default}";
    let run = secured(context).run("exec -f app.yaml -- true");
    assert_eq!(
        (run.code, &*run.stderr),
        (
            0,
            "larder: securityContext: seccompProfile, seLinuxOptions, procMount cannot be applied here, ignored\n"
        )
    );
}
