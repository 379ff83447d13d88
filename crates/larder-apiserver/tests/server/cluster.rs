//! The features that make the server resemble a cluster: tokens, allocated addresses, and filled
//! namespaces.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{ConfigMap, Service, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use larder_apiserver::{ApiKind, ApiServer, Options};
use serde_json::{Value, json};

/// The message of the rejection.
#[track_caller]
fn rejected<T: std::fmt::Debug>(result: kube::Result<T>, code: u16) -> String {
    match result.unwrap_err() {
        kube::Error::Api(status) if status.code == code => status.message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_bound_to_its_pod_and_expires() {
    let server = ApiServer::new(Options::default().fill_namespaces(true));
    let client = Client::new(server.service(), "default");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.apply(&pod).unwrap();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client);
    let request = |seconds: i64, uid: &str| -> TokenRequest {
        serde_json::from_value(json!({"metadata": {}, "spec": {
            "audiences": ["vault"],
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid},
        }}))
        .unwrap()
    };
    let post = PostParams::default();
    let answer = accounts
        .create_token_request("default", &post, &request(600, "u1"))
        .await
        .unwrap();
    let status = answer.status.unwrap();
    let token = status.token.unwrap();
    let parts: Vec<_> = token.split('.').collect();
    assert_eq!(parts.len(), 3);
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    assert_eq!(claims["aud"], json!(["vault"]));
    assert_eq!(claims["sub"], "system:serviceaccount:default:default");
    assert_eq!(
        claims["kubernetes.io"]["pod"],
        json!({"name": "p", "uid": "u1"})
    );
    let issued = claims["iat"].as_i64().unwrap();
    assert_eq!(claims["exp"], issued + 600);
    assert_eq!(
        status.expiration_timestamp.unwrap().0.as_second(),
        issued + 600
    );

    rejected(
        accounts
            .create_token_request("default", &post, &request(599, "u1"))
            .await,
        422,
    );
    rejected(
        accounts
            .create_token_request("default", &post, &request(600, "u2"))
            .await,
        409,
    );
    rejected(
        accounts
            .create_token_request("nobody", &post, &request(600, "u1"))
            .await,
        404,
    );
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_filled_when_the_options_say_so() {
    let server = ApiServer::new(Options::default().fill_namespaces(true));
    let map = server
        .get(ApiKind::ConfigMap, "kube-system", "kube-root-ca.crt")
        .unwrap();
    assert!(
        map["data"]["ca.crt"]
            .as_str()
            .unwrap()
            .starts_with("-----BEGIN CERTIFICATE-----")
    );
    assert!(
        server
            .get(ApiKind::ServiceAccount, "default", "default")
            .is_some()
    );
    let plain = ApiServer::new(Options::default());
    assert!(
        plain
            .get(ApiKind::ServiceAccount, "default", "default")
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_and_keep_them() {
    let server = ApiServer::new(Options::default());
    let services: Api<Service> = Api::default_namespaced(Client::new(server.service(), "default"));
    let service = |name: &str, spec: Value| -> Service {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    };
    let post = PostParams::default();
    let ports = json!([{"port": 80}]);
    let a = services
        .create(&post, &service("a", json!({"ports": ports})))
        .await
        .unwrap();
    let b = services
        .create(
            &post,
            &service("b", json!({"ports": ports, "type": "NodePort"})),
        )
        .await
        .unwrap();
    let (a, b) = (a.spec.unwrap(), b.spec.unwrap());
    assert!(a.cluster_ip.as_deref().unwrap().starts_with("10.96."));
    assert_ne!(a.cluster_ip, b.cluster_ip);
    assert_eq!(b.ports.as_ref().unwrap()[0].node_port, Some(30_000));
    // A replacement that names neither keeps both.
    let kept = services
        .replace(
            "b",
            &post,
            &service("b", json!({"ports": ports, "type": "NodePort"})),
        )
        .await
        .unwrap();
    assert_eq!(kept.spec.unwrap(), b);
    let headless = services
        .create(
            &post,
            &service("h", json!({"clusterIP": "None", "ports": ports})),
        )
        .await
        .unwrap();
    assert_eq!(headless.spec.unwrap().cluster_ip.as_deref(), Some("None"));
    let taken = service("t", json!({"clusterIP": a.cluster_ip, "ports": ports}));
    assert!(rejected(services.create(&post, &taken).await, 422).contains("already allocated"));
    // What a Service held that is gone is free again, also when nothing else is left.
    for name in ["a", "b"] {
        let gone = services.delete(name, &DeleteParams::default()).await;
        gone.unwrap();
    }
    let t = services.create(&post, &taken).await.unwrap();
    assert_eq!(t.spec.unwrap().cluster_ip, a.cluster_ip);
    let many: Vec<_> = (30_001..=32_767)
        .map(|port| json!({"name": format!("p{port}"), "port": port, "nodePort": port}))
        .collect();
    let all = service("all", json!({"ports": many, "type": "NodePort"}));
    services.create(&post, &all).await.unwrap();
    let last = service("last", json!({"ports": ports, "type": "NodePort"}));
    let last = services.create(&post, &last).await.unwrap();
    assert_eq!(last.spec.unwrap().ports.unwrap()[0].node_port, Some(30_000));
}

#[tokio::test(start_paused = true)]
async fn patches_of_three_kinds_are_taken_and_the_fourth_is_rejected() {
    let server = ApiServer::new(Options::default());
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service(), "default"));
    server.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}})).unwrap();
    let params = PatchParams::default();
    let merge = Patch::Merge(json!({"data": {"x": "1"}}));
    let strategic = Patch::Strategic(json!({"data": {"k": null}}));
    let before = maps.patch("a", &params, &merge).await.unwrap();
    let after = maps.patch("a", &params, &strategic).await.unwrap();
    assert_eq!(
        after.data.as_ref().unwrap().keys().collect::<Vec<_>>(),
        ["x"]
    );
    // A patch that changes nothing makes no version; one of an old version is a conflict.
    let again = maps.patch("a", &params, &strategic).await.unwrap();
    assert_eq!(again, after);
    let stale = Patch::Merge(
        json!({"metadata": {"resourceVersion": before.metadata.resource_version}, "data": {"z": "1"}}),
    );
    rejected(maps.patch("a", &params, &stale).await, 409);
    let apply =
        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    rejected(
        maps.patch("a", &PatchParams::apply("me"), &apply).await,
        415,
    );
    rejected(maps.patch("b", &params, &merge).await, 404);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once() {
    let server = ApiServer::new(Options::default());
    let client = Client::new(server.service(), "default");
    server.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})).unwrap();
    let bind = || {
        let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
        http::Request::post("/api/v1/namespaces/default/pods/p/binding")
            .body(binding.to_string().into_bytes())
            .unwrap()
    };
    client.request::<Value>(bind()).await.unwrap();
    assert_eq!(
        server.get(ApiKind::Pod, "default", "p").unwrap()["spec"]["nodeName"],
        "n1"
    );
    rejected(client.request::<Value>(bind()).await, 409);
}

#[test]
fn csi_drivers_have_their_defaults() {
    let server = ApiServer::new(Options::default());
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "csi.example.com"},
        "spec": {"requiresRepublish": true}});
    server.apply(&driver).unwrap();
    let stored = server
        .get(ApiKind::CsiDriver, "", "csi.example.com")
        .unwrap();
    let expected = json!({"attachRequired": true, "fsGroupPolicy": "ReadWriteOnceWithFSType", "podInfoOnMount": false,
        "requiresRepublish": true, "seLinuxMount": false, "storageCapacity": false, "volumeLifecycleModes": ["Persistent"]});
    assert_eq!(stored["spec"], expected);
}
