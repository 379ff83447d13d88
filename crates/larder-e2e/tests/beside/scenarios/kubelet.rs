//! A kubelet's reaction to a touch, on which everything else rests. Without larder.

use std::{fs, os::unix::fs::symlink, time::Duration};

use crate::bed::{Bed, container, content, until, until_content};

pub(crate) async fn a_touch_makes_the_kubelet_write_at_once(bed: &mut Bed) {
    let (ns, web) = bed.web_with_app("1").await;
    let file = bed.app_file(&web);
    assert_eq!(content(&file).as_deref(), Some("1"));
    let inside = container(&web).path("/app/k");
    bed.set_config_map(&ns, "app", "2").await;
    let admin = bed.admin.clone();
    bed.touch(&admin, &web).await.unwrap();
    let took = until_content(&file, "2").await;
    assert_eq!(
        content(&inside).as_deref(),
        Some("2"),
        "the container sees what the host sees"
    );
    // By itself the kubelet takes 36 s at least; half of that leaves no doubt on the slowest machine.
    assert!(took < Duration::from_secs(18), "{took:?}");
}

/// Section 1.3: why larder writes nothing, and the case of `Detached`.
pub(crate) async fn torn_down_volume_leaves_the_container_without_its_files(bed: &mut Bed) {
    let (ns, web) = bed.web_with_app("1").await;
    let volume = bed.volume(&web, "kubernetes.io~configmap", "app");
    let inside = container(&web).path("/app/k");
    let before = fs::metadata(&volume).unwrap();
    // The state that a second writer leaves between two system calls.
    symlink("nowhere", volume.join("..data_tmp")).unwrap();
    let admin = bed.admin.clone();
    bed.set_config_map(&ns, "app", "2").await;
    until("the volume is set up again", async || {
        bed.touch(&admin, &web).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        content(&volume.join("k")).as_deref() == Some("2")
    })
    .await;
    let after = fs::metadata(&volume).unwrap();
    let identity = |metadata: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt as _;
        (metadata.dev(), metadata.ino())
    };
    assert_ne!(identity(&before), identity(&after), "another directory");
    assert_eq!(content(&inside), None, "the container has lost its files");
}
