//! Kubelets that cache, are stopped or are down, and API servers that reject.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use larder_e2e::NODE;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    bed::{Bed, content, until, until_content},
    node::{MountView, Strategy},
};

async fn restart_kubelet(bed: &mut Bed, strategy: Strategy) {
    bed.node.kubelet.stop().unwrap();
    bed.node.kubelet.settings.strategy = strategy;
    bed.node.kubelet.start().unwrap();
    let admin = bed.admin.clone();
    bed.node.kubelet.ready(&admin).await.unwrap();
}

// beside-kubelet 8
pub(crate) async fn kubelet_that_caches_delivers_after_the_ttl(bed: &mut Bed) {
    restart_kubelet(bed, Strategy::Cache).await;
    let (ns, web) = bed.web_beside_larder("1").await;
    bed.change_app(&ns, &web, "2").await;
    let touches = bed.touches(&web).len();
    assert!((1..=4).contains(&touches), "{touches}");
    restart_kubelet(bed, Strategy::Watch).await;
}

// beside-kubelet 8
pub(crate) async fn kubelet_that_asks_each_time_delivers_at_once(bed: &mut Bed) {
    restart_kubelet(bed, Strategy::Get).await;
    let (ns, web) = bed.web_beside_larder("1").await;
    bed.change_app(&ns, &web, "2").await;
    assert_eq!(bed.touches(&web).len(), 1);
    restart_kubelet(bed, Strategy::Watch).await;
}

// beside-kubelet 9
pub(crate) async fn kubelet_that_stands_still_is_touched_three_times_at_most(bed: &mut Bed) {
    let (ns, web) = bed.web_beside_larder("1").await;
    bed.node.kubelet.pause().unwrap();
    bed.set_config_map(&ns, "app", "2").await;
    // At 0, 1.5 and 4.5 s; the next one would be after the TTL.
    until("it was touched three times", async || {
        bed.touches(&web).len() == 3
    })
    .await;
    let file = bed.app_file(&web);
    assert_eq!(content(&file).as_deref(), Some("1"));
    assert_eq!(bed.phase(&web, "app").0, "Waiting");
    bed.node.kubelet.resume().unwrap();
    bed.until_app_is(&web, "2").await;
    assert_eq!(bed.touches(&web).len(), 3);
}

// beside-kubelet 10
pub(crate) async fn kubelet_that_is_down_is_not_touched(bed: &mut Bed) {
    let (ns, web) = bed.web_beside_larder("1").await;
    bed.node.kubelet.stop().unwrap();
    // As the node lifecycle controller does, which does not run here.
    let nodes: Api<Node> = Api::all(bed.admin.clone());
    let condition = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    nodes
        .patch_status(NODE, &PatchParams::default(), &patch)
        .await
        .unwrap();
    until("larder knows", async || {
        let status = bed.larder().status().unwrap().unwrap_or_default();
        status["beside"]["problem"]
            .as_str()
            .is_some_and(|problem| !problem.is_empty())
    })
    .await;
    bed.set_config_map(&ns, "app", "2").await;
    bed.until_phase(&web, "app", "Waiting").await;
    assert_eq!(bed.touches(&web).len(), 0);
    bed.node.kubelet.start().unwrap();
    until_content(&bed.app_file(&web), "2").await;
    let admin = bed.admin.clone();
    bed.node.kubelet.ready(&admin).await.unwrap();
    bed.until_phase(&web, "app", "Delivered").await;
    let touches = bed.touches(&web).len();
    assert!(touches <= 1, "{touches}");
}

// beside-kubelet 22
pub(crate) async fn policy_that_refuses_is_shown_and_asked_once(bed: &mut Bed) {
    let (ns, web) = bed.web_with_app("1").await;
    let name = "no-touches";
    let api = "admissionregistration.k8s.io/v1";
    bed.create(&json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"],
            }]},
            "validations": [{
                "expression": format!("object.metadata.namespace != '{ns}' || !has(object.metadata.annotations) \
                    || !('larder.dev/refresh' in object.metadata.annotations)"),
                "message": "no touches in this namespace",
            }],
        },
    }))
    .await;
    bed.create(&json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .await;
    let admin = bed.admin.clone();
    until("the policy is in effect", async || {
        bed.touch(&admin, &web).await.is_err()
    })
    .await;
    bed.start_larder().await;
    bed.until_phase(&web, "app", "Delivered").await;
    // So that the kubelet does not find the change by itself.
    bed.node.kubelet.pause().unwrap();
    bed.set_config_map(&ns, "app", "2").await;
    until("its text is shown", async || {
        let (phase, reason) = bed.phase(&web, "app");
        phase == "Waiting" && reason.contains("no touches in this namespace")
    })
    .await;
    // The second attempt of a touch that was not verified would be due after 1.5 s.
    sleep(Duration::from_secs(3)).await;
    let codes: Vec<_> = bed.touches(&web).iter().map(|touch| touch.code).collect();
    assert!(codes == [422] || codes == [403], "{codes:?}");
    bed.node.kubelet.resume().unwrap();
    for plural in [
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicies",
    ] {
        let request = http::Request::delete(format!("/apis/{api}/{plural}/{name}"))
            .body(Vec::new())
            .unwrap();
        bed.admin
            .request::<serde_json::Value>(request)
            .await
            .unwrap();
    }
}

// beside-kubelet 37
pub(crate) async fn rotated_certificate_costs_no_watch_and_shows_no_error(bed: &mut Bed) {
    let (ns, web) = bed.web_with_app("0").await;
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let pki = folder.path().join("pki");
    fs::create_dir(&pki).unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(
        &kubeconfig,
        bed.real()
            .rotate_certificate(&pki)
            .await
            .unwrap()
            .to_string(),
    )
    .unwrap();
    bed.start_larder_as(&kubeconfig, MountView::Host).await;
    bed.until_phase(&web, "app", "Delivered").await;
    let watches = bed.real().watches_of("larder/").unwrap();
    for change in 1..=5 {
        bed.real().rotate_certificate(&pki).await.unwrap();
        bed.change_app(&ns, &web, &change.to_string()).await;
    }
    assert_eq!(
        bed.real().watches_of("larder/").unwrap(),
        watches,
        "no watch was lost"
    );
    let log = bed.larder().log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    let status = bed.larder().status().unwrap().unwrap_or_default();
    assert_eq!(status["problems"], json!([]));
}
