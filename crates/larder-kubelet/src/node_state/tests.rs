use larder_apiserver::{ApiKind, ApiServer, Options};
use serde_json::json;

use super::*;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_second(secs).unwrap()
}

fn node(status: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "n"},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": status, "lastTransitionTime": "1970-01-01T00:01:00Z"},
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.36.2", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "",
                "osImage": "", "systemUUID": "",
            },
        },
    }))
    .unwrap()
}

#[test]
fn readiness_and_version_are_read_from_the_node() {
    for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
        let expected = NodeState {
            ready,
            since: Some(at(60)),
            ttl: Some(Duration::from_mins(1)),
            kubelet_version: "v1.36.2".to_owned(),
        };
        assert_eq!(
            NodeState::new(&node(status), Some(Duration::from_mins(1))),
            expected
        );
    }
    assert_eq!(NodeState::new(&Node::default(), None), NodeState::default());
    assert!(!NodeState::default().ready);
}

#[test]
fn kubelet_that_is_not_ready_or_silent_gets_no_touch() {
    // beside-kubelet 10
    let (ready, not_ready) = (
        NodeState::new(&node("True"), None),
        NodeState::new(&node("False"), None),
    );
    let since = |secs| Err(Some(at(secs)));
    assert_eq!(not_ready.check(Some(at(100)), at(100)), since(60));
    assert_eq!(ready.check(Some(at(100)), at(140)), Ok(()));
    assert_eq!(ready.check(Some(at(100)), at(141)), since(100));
    // No lease, or one that may not be read.
    assert_eq!(ready.check(None, at(100)), Ok(()));
    // The clock was set back.
    assert_eq!(ready.check(Some(at(10_000)), at(100)), Ok(()));
    let unknown = NodeState::default().check(Some(at(100)), at(100));
    assert_eq!(unknown, Err(None));
}

#[test]
fn volumes_of_republishing_drivers_are_found() {
    // beside-kubelet 40
    let pod = |volumes| -> Pod {
        let spec = json!({"containers": [], "volumes": volumes});
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    };
    let drivers = BTreeSet::from(["csi.example.com".to_owned()]);
    let csi = |driver: &str| json!([{"name": "a", "emptyDir": {}}, {"name": "b", "csi": {"driver": driver}}]);
    assert!(has_volume_of(&pod(csi("csi.example.com")), &drivers));
    assert!(!has_volume_of(&pod(csi("other")), &drivers));
    assert!(!has_volume_of(&pod(json!([])), &drivers));
}

#[tokio::test]
async fn lease_is_read_and_a_missing_one_is_none() {
    let server = ApiServer::new(Options::default());
    let client = Client::new(server.service(), "default");
    assert!(lease_renewed(&client, "..").await.is_err());
    assert_eq!(lease_renewed(&client, "n").await.unwrap(), None);
    let lease = |spec| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": LEASE_NAMESPACE, "name": "n"}, "spec": spec,
        })
    };
    server
        .apply(&lease(json!({"holderIdentity": "n"})))
        .unwrap();
    assert_eq!(lease_renewed(&client, "n").await.unwrap(), None);
    let renewed = json!({"renewTime": "1970-01-01T00:01:40.000000Z"});
    server.apply(&lease(renewed)).unwrap();
    assert_eq!(lease_renewed(&client, "n").await.unwrap(), Some(at(100)));
}

#[tokio::test(start_paused = true)]
async fn drivers_that_require_republishing_are_followed() {
    // beside-kubelet 40
    let server = ApiServer::new(Options::default());
    let apply = |name: &str, republishes: bool| {
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": name}, "spec": {"requiresRepublish": republishes},
        });
        server.apply(&driver).unwrap();
    };
    apply("a", true);
    apply("b", false);
    let client = Client::new(server.service(), "default");
    let (sender, mut drivers) = watch::channel(BTreeSet::new());
    let mut is = async |names: &[&str]| {
        let found = drivers.wait_for(|drivers| drivers.iter().eq(names));
        drop(found.await.unwrap());
    };
    let check = async {
        is(&["a"]).await;
        apply("b", true);
        is(&["a", "b"]).await;
        server.delete(ApiKind::CsiDriver, "", "a").unwrap();
        is(&["b"]).await;
        apply("b", false);
        is(&[]).await;
    };
    tokio::select! {
        () = follow_republishing_drivers(client, sender, NodeContext::with_seed(1)) => unreachable!("it has no end"),
        () = check => {}
    }
}

#[test]
fn driver_that_cannot_be_decoded_counts_as_republishing() {
    let found = |object| Found {
        metadata: larder_objects::ObjectMeta {
            name: "d".into(),
            ..Default::default()
        },
        object,
    };
    let driver = |requires: Option<bool>| {
        let driver = serde_json::from_value::<CSIDriver>(
            json!({"metadata": {"name": "d"}, "spec": {"requiresRepublish": requires}}),
        );
        Ok(driver.unwrap())
    };
    assert!(republishes(&found(driver(Some(true)))));
    assert!(!republishes(&found(driver(Some(false)))));
    assert!(!republishes(&found(driver(None))));
    let error = serde_json::from_str::<CSIDriver>("1").unwrap_err();
    let error = larder_objects::DecodeError::new("CSIDriver", &error);
    assert!(republishes(&found(Err(error))));
}
