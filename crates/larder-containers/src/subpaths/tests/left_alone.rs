//! Mounts that are left alone: what a container covers, moves or doubles, and what it replaces meanwhile.

use super::*;

// subpath 12
#[tokio::test]
async fn what_a_container_covers_moves_or_doubles_is_left_alone() {
    let cases = [
        (
            "mount -t tmpfs none /etc; echo own > /etc/app.conf",
            "/etc/app.conf",
            ELSEWHERE,
        ),
        (
            "mount --bind /etc/app.conf /etc/own",
            "/etc/own",
            "the container has mounted the file more than once",
        ),
        ("mount --move /etc/app.conf /etc/own", "/etc/own", ELSEWHERE),
        (
            "mount --make-rshared /",
            "/etc/app.conf",
            "it lies in a mount that is shared with other namespaces",
        ),
        ("umount /etc/app.conf", "/etc/app.conf", ELSEWHERE),
    ];
    for (command, path, reason) in cases {
        let mounts = format!("{KEY}\n{WHOLE}");
        let Some(mut pod) = Pod::with(&mounts, &[("/etc/app.conf", "key")]) else {
            return;
        };
        assert_eq!(pod.state().await, MountState::Live);
        let prepared = pod.web.run("echo own > /etc/own; mount --make-rprivate /");
        assert_eq!(prepared, "");
        assert_eq!(pod.web.run(command), "", "{command}");
        let cat = format!("cat {path}");
        let (before, text) = (pod.web.mounts_at(path), pod.web.run(&cat));
        pod.write("two");
        // The third failure with this reason is reported, once.
        assert_eq!(pod.reported(4).await, [0, 0, 1, 0]);
        assert_eq!(pod.reason().await, reason, "{command}");
        let after = pod.web.mounts_at(path);
        assert_eq!(before.len(), after.len(), "{command}: {after:?}");
        assert_eq!(pod.web.run(&cat), text, "{command}");
        assert!(pod.sub_paths.retry_at().is_some());
    }
}

// subpath 12
#[tokio::test]
async fn mount_that_its_path_does_not_lead_to_is_not_live() {
    for command in [
        "mount --move /etc/app.conf /etc/moved; echo own > /etc/app.conf",
        "mount -t tmpfs none /etc; echo own > /etc/app.conf",
    ] {
        let mounts = format!("{KEY}\n{WHOLE}");
        let Some(mut pod) = Pod::with(&mounts, &[("/etc/app.conf", "key")]) else {
            return;
        };
        // Before the first look.
        let prepared = pod.web.run("touch /etc/moved; mount --make-rprivate /");
        assert_eq!(prepared, "");
        assert_eq!(pod.web.run(command), "", "{command}");
        assert_eq!(pod.reason().await, ELSEWHERE, "{command}");
        pod.write("two");
        assert_eq!(pod.reason().await, ELSEWHERE, "{command}");
        assert_eq!(pod.sees(), "own");
    }
}

// subpath 12
#[tokio::test]
async fn mount_over_it_is_a_reason_until_the_old_file_goes_and_takes_it_along() {
    let Some(mut pod) = Pod::new() else { return };
    assert_eq!(pod.state().await, MountState::Live);
    let over = "echo own > /etc/own; mount --bind /etc/own /etc/app.conf";
    assert_eq!(pod.web.run(over), "");
    let reason = "the container has mounted something over it";
    assert_eq!(pod.reason().await, reason);
    assert_eq!(pod.sees(), "own");
    // Linux unmounts what is mounted on a file that is removed.
    pod.write("two");
    pod.check_live("two").await;
    assert_eq!(pod.web.run("cat /etc/own"), "own");
    assert_eq!(pod.web.mounts_at("/etc/app.conf").len(), 1);
}

// subpath S3: a process that may write to the volume has put it there
#[tokio::test]
async fn set_that_was_not_written_by_larder_is_not_shown() {
    let Some(mut pod) = Pod::new() else { return };
    let now = Timestamp::UNIX_EPOCH;
    pod.sub_paths.written("v", Some("..written"), Some(now));
    pod.write("two");
    assert_eq!(pod.reason().await, "the volume has changed meanwhile");
    assert_eq!(pod.sees(), "one");
    assert!(pod.sub_paths.retry_at().is_some());
    let written = fs::read_link(pod.node.volume("v").join("..data")).unwrap();
    pod.sub_paths.written("v", written.to_str(), None);
    pod.check_live("two").await;
}

/// Replaces the parent of the mount point by a link and back, in a loop, and lists what is below the directory that the
/// link leads to.
const RACE: &str = r#"mkdir -p /etc/a /other; echo mine > /other/app.conf; mount --bind /other/app.conf /other/app.conf;
perl -e 'symlink("/other", "/etc/link"); while (! -e "/stop") { rename("/etc/a", "/etc/b"); rename("/etc/link", "/etc/a");
    rename("/etc/a", "/etc/link"); rename("/etc/b", "/etc/a") } print "stopped\n"' &"#;

// subpath 13
#[tokio::test]
async fn parent_that_is_replaced_by_a_link_leads_nowhere_else() {
    let rounds = 300;
    let mounts = format!(
        "{WHOLE}; mkdir -p root/etc/a; touch root/etc/a/app.conf
        mount --bind agent/pods/1/volumes/v/key root/etc/a/app.conf"
    );
    let Some(mut pod) = Pod::with(&mounts, &[("/etc/a/app.conf", "key")]) else {
        return;
    };
    let whole = |web: &Container| {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", web.pid())).unwrap();
        table.lines().count()
    };
    assert_eq!(pod.state().await, MountState::Live);
    pod.web.run(RACE);
    let before = whole(&pod.web);
    for number in 0..rounds {
        pod.write(&number.to_string());
        let state = pod.state().await;
        assert_ne!(state, MountState::Unknown, "after {number}");
        assert_eq!(whole(&pod.web), before, "after {number}");
    }
    assert!(pod.web.run("touch /stop; wait").contains("stopped"));
    assert_eq!(pod.web.run("cat /other/app.conf"), "mine");
    assert_eq!(pod.web.mounts_at("/other/app.conf").len(), 1);
    // It is live again when the container leaves the directory alone.
    assert_eq!(pod.state().await, MountState::Live);
    let last = pod.web.run("cat /etc/a/app.conf");
    assert_eq!(last, (rounds - 1).to_string());
    // The machine has no mount of it. It has others, which come and go.
    assert_eq!(pod.node.mounts_of_machine(), [""; 0]);
}
