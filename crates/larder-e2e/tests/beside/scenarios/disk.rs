//! The kubelet's disk as larder sees it, and larder's restrictions on it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
    time::Duration,
};

use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use larder_e2e::Identity;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    bed::{Bed, container, content, pod, secret_volume, until, until_content},
    node::MountView,
};

// beside-kubelet 27
pub(crate) async fn volume_that_is_not_visible_is_unverified(bed: &mut Bed) {
    let (ns, web) = bed.web_with_login_seen_as(MountView::None).await;
    bed.until_phase(&web, "login", "Held").await;
    let (_, reason) = bed.phase(&web, "login");
    assert!(reason.contains("Unverified"), "{reason}");
    // Whether it has the present content is not known, either.
    until("the first touch", async || !bed.touches(&web).is_empty()).await;
    let sent_before = bed.touches(&web).len();
    bed.change_login(&ns, &web, "2").await;
    assert_eq!(bed.phase(&web, "login").0, "Held", "nothing was verified");
    let sent = bed.touches(&web).len() - sent_before;
    assert_eq!(sent, 1, "one for each change");
    assert_eq!(
        bed.larder()
            .metric("larder_beside_volumes", "Delivered")
            .unwrap(),
        0
    );
}

pub(crate) async fn later_mounts_are_visible_with_propagation(bed: &mut Bed) {
    let (ns, web) = bed.web_with_login_seen_as(MountView::HostToContainer).await;
    bed.until_phase(&web, "login", "Delivered").await;
    bed.change_login(&ns, &web, "2").await;
    bed.until_phase(&web, "login", "Delivered").await;
}

// beside-kubelet 28
pub(crate) async fn verification_never_keeps_a_volume_from_being_unmounted(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_secret(&ns, "login", "0").await;
    // The namespace of larder receives the host's mounts: the host cannot unmount a volume that larder holds open.
    bed.start_larder_with(MountView::HostToContainer).await;
    for round in 0..8 {
        let web = bed
            .run_pod(
                &ns,
                &pod(&format!("web-{round}"), json!([secret_volume("login")])),
            )
            .await;
        bed.until_phase(&web, "login", "Delivered").await;
        let name = web.metadata.name.clone().unwrap();
        bed.pods(&ns)
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
        let (pods, mut change) = (bed.pods(&ns), 0);
        until("the pod is gone", async || {
            change += 1;
            bed.set_secret(&ns, "login", &format!("{round}-{change}"))
                .await;
            pods.get_opt(&name).await.unwrap().is_none()
        })
        .await;
        let volume = bed.volume(&web, "kubernetes.io~secret", "login");
        until("its volume is gone", async || !volume.exists()).await;
    }
    let log = bed.node.kubelet.log();
    assert!(
        !log.contains("device or resource busy"),
        "the kubelet could not unmount"
    );
}

// beside-kubelet 30
pub(crate) async fn volume_that_was_torn_down_under_its_container_is_detached(bed: &mut Bed) {
    let (ns, web) = bed.web_beside_larder("1").await;
    let volume = bed.volume(&web, "kubernetes.io~configmap", "app");
    symlink("nowhere", volume.join("..data_tmp")).unwrap();
    bed.set_config_map(&ns, "app", "2").await;
    until_content(&volume.join("k"), "2").await;
    bed.until_phase(&web, "app", "Held").await;
    let (_, reason) = bed.phase(&web, "app");
    assert!(reason.contains("Detached"), "{reason}");
    assert_eq!(content(&container(&web).path("/app/k")), None);
    let events: Api<Event> = Api::namespaced(bed.admin.clone(), &ns);
    until("the event is there", async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        events
            .items
            .iter()
            .any(|event| event.reason.as_deref() == Some("VolumeDetached"))
    })
    .await;
    let touches = bed.touches(&web).len();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(bed.touches(&web).len(), touches, "none after that");
}

/// A credential plugin, which larder starts, so that larder's restrictions apply to it. It returns the token of a file
/// for a second. If a file `probe` beside it names a volume and a file for the result, it tries to write to the volume.
const PLUGIN: &str = r#"#!/bin/sh
if [ -f "$1/probe" ]; then
    { read -r volume; read -r result; } < "$1/probe"
    can=
    (echo x > "$volume/written") 2> /dev/null && can="$can write"
    ln -s x "$volume/linked" 2> /dev/null && can="$can link"
    mv "$volume/k" "$volume/moved" 2> /dev/null && can="$can rename"
    cat "$volume/k" "$volume/moved" > /dev/null 2>&1; [ -r "$volume/..data" ] && can="$can read"
    echo "$can" >> "$result"
fi
token=$(cat "$1/token")
end=$(date --utc --date='+1 second' +%Y-%m-%dT%H:%M:%SZ)
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
echo '"status":{"token":"'"$token"'","expirationTimestamp":"'"$end"'"}}'
"#;

// beside-kubelet 29
pub(crate) async fn larder_cannot_write_to_volumes_that_were_mounted_later(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_secret(&ns, "login", "1").await;
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let path = |name: &str| folder.path().join(name);
    let kubeconfig = fs::read(bed.server.kubeconfig(Identity::Node).unwrap()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    let user = &mut kubeconfig["users"][0]["user"];
    fs::copy(user["tokenFile"].as_str().unwrap(), path("token")).unwrap();
    fs::write(path("plugin"), PLUGIN).unwrap();
    fs::set_permissions(path("plugin"), Permissions::from_mode(0o755)).unwrap();
    *user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": path("plugin"), "args": [folder.path()],
    }});
    fs::write(path("kubeconfig"), kubeconfig.to_string()).unwrap();
    bed.start_larder_as(&path("kubeconfig"), MountView::Host)
        .await;
    let web = bed
        .run_pod(&ns, &pod("web", json!([secret_volume("login")])))
        .await;
    bed.until_phase(&web, "login", "Delivered").await;
    let volume = bed.volume(&web, "kubernetes.io~secret", "login");
    let result = bed.larder().lock_dir().join("result");
    fs::write(
        path("probe"),
        format!("{}\n{}\n", volume.display(), result.display()),
    )
    .unwrap();
    let mut change = 1;
    until("the plugin has run again", async || {
        change += 1;
        bed.set_secret(&ns, "login", &change.to_string()).await;
        sleep(Duration::from_millis(500)).await;
        result.exists()
    })
    .await;
    assert_eq!(content(&result).unwrap().lines().next(), Some(" read"));
    // Started by the test, the same plugin may do everything: only larder's own restriction prevented it.
    bed.stop_larder();
    fs::remove_file(&result).ok();
    let own = path("result");
    fs::write(
        path("probe"),
        format!("{}\n{}\n", volume.display(), own.display()),
    )
    .unwrap();
    assert!(
        Command::new(path("plugin"))
            .arg(folder.path())
            .output()
            .unwrap()
            .status
            .success()
    );
    assert_eq!(content(&own).as_deref(), Some(" write link rename read\n"));
}
