//! What ends or changes while a mount is being replaced.

use super::{
    super::updates::MountState,
    container::{KEY, Node, may_contain},
    *,
};

// subpath 17
#[tokio::test]
async fn attempt_that_ended_halfway_leaves_one_mount_with_the_newest_content() {
    for edits in [&["two"][..], &["two", "three"]] {
        let Some(mut pod) = Pod::new() else { return };
        pod.write(edits[0]);
        let attached = pod.inside(("v", "key"), |inside, mount, new, _| {
            inside.attach(&inside.open_mount(&mount.record)?, new, false)
        });
        assert!(attached.await.unwrap());
        assert_eq!(pod.web.mounts_at("/etc/app.conf").len(), 2);
        // The old one stays visible.
        assert_eq!(pod.sees(), "one");
        edits[1..].iter().for_each(|text| pod.write(text));
        pod.check_live(edits[edits.len() - 1]).await;
        assert_eq!(pod.web.mounts_at("/etc/app.conf").len(), 1);
    }
}

// subpath 12
#[tokio::test]
async fn mount_that_the_container_puts_over_it_at_the_last_moment_is_a_failure() {
    let Some(mut pod) = Pod::new() else { return };
    // The old file is still there: on one that was removed, nothing can be mounted.
    let done = pod.inside(("w", "whole"), |inside, mount, new, web| {
        let target = inside.open_mount(&mount.record)?;
        assert!(inside.attach(&target, new, false)?);
        let over = "echo own > /etc/own; mount --bind /etc/own /etc/app.conf 2>&1";
        assert_eq!(web.run(over), "");
        inside.unmount(&mount.record, &target)
    });
    let done = done.await;
    assert_eq!(done, Err(OTHER_MOUNT));
    assert_eq!(pod.sees(), "one");
}

// subpath 12
#[tokio::test]
async fn mount_that_moves_at_the_last_moment_is_not_live() {
    let Some(mut pod) = Pod::new() else { return };
    // The old file is still there: one that was removed cannot be moved.
    let done = pod.inside(("w", "whole"), |inside, mount, new, web| {
        let target = inside.open_mount(&mount.record)?;
        let away = "touch /etc/away; mount --move /etc/app.conf /etc/away 2>&1";
        assert_eq!(web.run(away), "");
        assert!(inside.attach(&target, new, false)?);
        inside.detach(&mount.record, &target, new)
    });
    let done = done.await;
    assert_eq!(done, Err(OTHER_MOUNT));
    // It took the new one along, and is not there any more.
    assert_eq!(pod.web.run("cat /etc/away"), "w");
    assert_eq!(pod.web.mounts_at("/etc/away").len(), 1);
    assert_eq!(pod.web.mounts_at("/etc/app.conf").len(), 0);
}

// subpath 17
#[tokio::test]
async fn left_over_that_cannot_be_removed_hinders_that_mount_only() {
    if !may_contain() {
        return;
    }
    let node = Node::new();
    node.write("v", &[("key", "one"), ("other", "one")]);
    let other = KEY
        .replace("v/key", "v/other")
        .replace("/etc/app", "/run/other");
    let mounts = format!("{KEY}\n{other}");
    let wanted = [("/etc/app.conf", "key"), ("/run/other.conf", "other")];
    let mut pod = Pod::of(node, &mounts, &wanted);
    assert_eq!(pod.state().await, MountState::Live);
    pod.node.write("v", &[("key", "two"), ("other", "two")]);
    let attached = pod.inside(("v", "key"), |inside, mount, new, web| {
        let target = inside.open_mount(&mount.record)?;
        assert!(inside.attach(&target, new, false)?);
        // Its mount point is in the list, but the path leads elsewhere.
        assert_eq!(web.run("mount -t tmpfs none /etc 2>&1"), "");
        Ok(())
    });
    attached.await.unwrap();
    assert_eq!(pod.reason().await, ELSEWHERE);
    assert_eq!(pod.web.run("cat /run/other.conf"), "two");
    assert_eq!(pod.web.run("umount /etc 2>&1"), "");
    pod.check_live("two").await;
}
