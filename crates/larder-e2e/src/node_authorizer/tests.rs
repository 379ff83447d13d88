//! The rules over the embedded server. The texts are those of kube-apiserver 1.36.

mod certificates;

use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, WatchParams},
};
use larder_apiserver::{ApiKind, ApiServer, Options, User};
use serde_json::{Value, json};

use super::NodeAuthorizer;

fn node(name: &str) -> User {
    User {
        name: format!("system:node:{name}"),
        groups: vec!["system:nodes".to_owned()],
    }
}

/// The message of the rejection.
#[track_caller]
fn rejected<T: std::fmt::Debug>(result: kube::Result<T>, code: u16) -> String {
    match result.unwrap_err() {
        kube::Error::Api(status) if status.code == code => status.message,
        other => panic!("{other:?}"),
    }
}

fn guarded() -> ApiServer {
    let server = ApiServer::new(Options::default().authorization(NodeAuthorizer));
    for object in [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "uid": "node-uid"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p0"}, "spec": {"nodeName": "n0",
            "containers": [{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "mine"}}, {"configMapRef": {"name": "map"}}]}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1"}, "spec": {"nodeName": "n1",
            "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "secret": {"secretName": "theirs"}}]}}),
    ] {
        server.apply(&object).unwrap();
    }
    server
}

#[tokio::test(start_paused = true)]
async fn a_node_reads_only_the_objects_its_pods_name() {
    // managers 80
    let server = guarded();
    let client = Client::new(server.service_as(node("n0")), "default");
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let mine = "metadata.name=mine";
    secrets.get("mine").await.unwrap();
    secrets
        .list(&ListParams::default().fields(mine))
        .await
        .unwrap();
    secrets
        .watch(&WatchParams::default().fields(mine), "0")
        .await
        .map(|_| ())
        .unwrap();
    let message = rejected(secrets.list(&ListParams::default()).await, 403);
    assert!(message.ends_with("No Object name found"), "{message}");
    let everywhere: Api<Secret> = Api::all(client.clone());
    let message = rejected(
        everywhere.list(&ListParams::default().fields(mine)).await,
        403,
    );
    assert!(
        message.ends_with("can only read namespaced object of this type"),
        "{message}"
    );
    let message = rejected(secrets.get("theirs").await, 403);
    assert!(
        message.ends_with("no relationship found between node 'n0' and this object"),
        "{message}"
    );
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
    rejected(secrets.create(&PostParams::default(), &secret).await, 403);
    rejected(
        secrets
            .replace("mine", &PostParams::default(), &secret)
            .await,
        403,
    );

    let pods: Api<Pod> = Api::all(client.clone());
    let own = ListParams::default().fields("spec.nodeName=n0");
    assert_eq!(pods.list(&own).await.unwrap().items.len(), 1);
    rejected(pods.list(&ListParams::default()).await, 403);
    let pods: Api<Pod> = Api::default_namespaced(client);
    rejected(pods.delete("p1", &DeleteParams::default()).await, 403);
    pods.delete("p0", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    rejected(secrets.get("mine").await, 403);
    let stranger = User {
        name: "eve".to_owned(),
        groups: Vec::new(),
    };
    let stranger: Api<Secret> =
        Api::default_namespaced(Client::new(server.service_as(stranger), "default"));
    rejected(stranger.get("mine").await, 403);
}

#[tokio::test(start_paused = true)]
async fn a_node_creates_only_mirror_pods_that_it_owns() {
    // managers 81
    let server = guarded();
    let pods: Api<Pod> =
        Api::default_namespaced(Client::new(server.service_as(node("n0")), "default"));
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "node-uid", "controller": true});
    let mirror = |owners: Value, spec: Value| -> Pod {
        let mut pod = json!({
            "metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "hash"}, "ownerReferences": owners},
            "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}]},
        });
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    };
    let with = |field: &str, value: Value| {
        let mut owner = owner.clone();
        owner[field] = value;
        json!([owner])
    };
    let post = PostParams::default();
    for (owners, why) in [
        (json!([]), "owner reference set to itself"),
        (json!([owner, owner]), "single owner reference"),
        (with("name", json!("n1")), "owner reference set to itself"),
        (with("kind", json!("Pod")), "owner reference set to itself"),
        (
            with("apiVersion", json!("v2")),
            "owner reference set to itself",
        ),
        (with("uid", json!("other")), "UID mismatch"),
        (
            with("controller", json!(null)),
            "controller owner reference set to itself",
        ),
        (
            with("controller", json!(false)),
            "controller owner reference set to itself",
        ),
        (
            with("blockOwnerDeletion", json!(true)),
            "must not set blockOwnerDeletion",
        ),
    ] {
        let message = rejected(pods.create(&post, &mirror(owners, json!({}))).await, 403);
        assert!(message.contains(why), "{message}");
    }
    let volumes = json!({"volumes": [{"name": "v", "secret": {"secretName": "theirs"}}]});
    let message = rejected(
        pods.create(&post, &mirror(json!([owner]), volumes)).await,
        403,
    );
    assert!(
        message.contains("can not create pods that reference secrets"),
        "{message}"
    );
    pods.create(&post, &mirror(json!([owner]), json!({})))
        .await
        .unwrap();
}

/// The message with which a request of the node n0 is rejected, without what it is about; empty when it is not.
async fn attempt(server: &ApiServer, method: &str, path: &str, body: Value) -> String {
    let media_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media_type)
        .body(body.to_string().into_bytes());
    let client = Client::new(server.service_as(node("n0")), "default");
    match client.request::<Value>(request.unwrap()).await {
        Ok(_) => String::new(),
        Err(kube::Error::Api(status)) => {
            let rule = status.message.split_once(" is forbidden: ");
            rule.map_or(status.message.clone(), |(_, rule)| rule.to_owned())
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_holds_its_own_lease_alone() {
    let server = guarded();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str, seconds: i64| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": seconds}});
    let foreign = "can only access node lease with the same name as the requesting node";
    let mut answers = Vec::new();
    for (method, path, body) in [
        ("POST", leases.to_owned(), lease("n1", 40)),
        ("POST", leases.to_owned(), lease("n0", 40)),
        ("GET", format!("{leases}/n0"), Value::Null),
        ("GET", format!("{leases}/n1"), Value::Null),
        ("PATCH", format!("{leases}/n0"), lease("n0", 0)),
    ] {
        answers.push(attempt(&server, method, &path, body).await);
    }
    assert_eq!(answers[..3], [foreign, "", ""]);
    assert!(answers[3].ends_with(foreign), "{}", answers[3]);
    let invalid = "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0";
    assert!(answers[4].ends_with(invalid), "{}", answers[4]);
    let elsewhere = leases.replace("kube-node-lease", "default");
    let rule = "can only access leases in the \"kube-node-lease\" system namespace";
    let answer = attempt(&server, "POST", &elsewhere, lease("n0", 40)).await;
    assert!(answer.ends_with(rule), "{answer}");
    let answer = attempt(&server, "GET", leases, Value::Null).await;
    let rule = "can only get, create, update, patch, or delete a node lease";
    assert!(answer.ends_with(rule), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_node_reads_csi_drivers() {
    let server = guarded();
    let path = "/apis/storage.k8s.io/v1/csidrivers";
    assert_eq!(attempt(&server, "GET", path, Value::Null).await, "");
    let one = format!("{path}/csi.example.com");
    let answer = attempt(&server, "DELETE", &one, Value::Null).await;
    assert!(answer.contains("cannot delete resource"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_patch_meant_for_another_pod_of_the_name_is_invalid() {
    // beside-kubelet 19: the answer of a real API server.
    let server = guarded();
    server
        .apply(
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u1"},
            "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}]}}),
        )
        .unwrap();
    let path = "/api/v1/namespaces/default/pods/p/status";
    let touch =
        |uid: &str| json!({"metadata": {"uid": uid, "annotations": {"larder.dev/refresh": "t"}}});
    assert_eq!(attempt(&server, "PATCH", path, touch("u1")).await, "");
    assert_eq!(
        attempt(&server, "PATCH", path, touch("u2")).await,
        "Pod \"p\" is invalid: metadata.uid: Invalid value: \"u2\": field is immutable"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_tokens_of_its_own_pods_alone() {
    // managers 80
    let server = guarded();
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here", "uid": "here"},
            "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "t",
                "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "a"}}]}}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there", "uid": "there"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}}),
    ] {
        server.apply(&object).unwrap();
    }
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let bound = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    let uid_of_another = "the UID in the bound object reference (there) does not match the UID in record. \
                          The object might have been deleted and then recreated";
    for (reference, expected) in [
        (bound("here", "here"), ""),
        (Value::Null, "node requested token not bound to a pod"),
        (
            json!({"apiVersion": "v1", "kind": "Node", "name": "n0"}),
            "node requested token not bound to a pod",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Secret", "name": "mine"}),
            "node requested token not bound to a pod",
        ),
        (bound("", "here"), "node requested token not bound to a pod"),
        (
            bound("here", ""),
            "node requested token with a pod binding without a uid",
        ),
        (bound("here", "there"), uid_of_another),
        (
            bound("there", "there"),
            "node requested token bound to a pod scheduled on a different node",
        ),
        (bound("nowhere", "here"), "pods \"nowhere\" not found"),
    ] {
        let body = json!({"spec": {"audiences": ["a"], "boundObjectRef": reference}});
        assert_eq!(
            attempt(&server, "POST", path, body.clone()).await,
            expected,
            "{body}"
        );
    }
    let unknown = |audience: &str| {
        format!(
            "audience {audience:?} not found in pod spec volume, system:node:n0 is not authorized to request tokens for this audience"
        )
    };
    for (audiences, expected) in [
        (
            json!(["a", "b"]),
            "node may only request 0 or 1 audiences".to_owned(),
        ),
        (json!(["b"]), unknown("b")),
        (json!([]), unknown("")),
    ] {
        let body =
            json!({"spec": {"audiences": audiences, "boundObjectRef": bound("here", "here")}});
        assert_eq!(attempt(&server, "POST", path, body).await, expected);
    }
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let cannot = |verb: &str, why: &str| {
        format!(
            "User \"system:node:n0\" cannot {verb} resource \"serviceaccounts\" in API group \"\" in the namespace \"default\": {why}"
        )
    };
    let individual = "can only create tokens for individual service accounts";
    for (method, path, expected) in [
        ("GET", format!("{accounts}/default"), String::new()),
        ("GET", accounts.to_owned(), cannot("list", individual)),
        ("POST", accounts.to_owned(), cannot("create", individual)),
        (
            "DELETE",
            format!("{accounts}/default"),
            cannot("delete", individual),
        ),
    ] {
        assert_eq!(attempt(&server, method, &path, json!({})).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_changes_its_own_node_without_steering_labels() {
    let server = guarded();
    server
        .apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}))
        .unwrap();
    let labelled = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let other = r#"node "n0" is not allowed to modify node "n1""#;
    for (method, path, body, expected) in [
        (
            "PATCH",
            "nodes/n0",
            labelled("topology.kubernetes.io/zone"),
            "",
        ),
        (
            "PATCH",
            "nodes/n0",
            labelled("feature.node.kubernetes.io/x"),
            "",
        ),
        ("PATCH", "nodes/n0", labelled("example.com/x"), ""),
        (
            "PATCH",
            "nodes/n0/status",
            json!({"status": {"phase": "Running"}}),
            "",
        ),
        ("PATCH", "nodes/n1", labelled("example.com/x"), other),
        ("PATCH", "nodes/n1/status", json!({}), other),
        (
            "PUT",
            "nodes/n1",
            json!({"metadata": {"name": "n1"}}),
            other,
        ),
        (
            "POST",
            "nodes",
            json!({"metadata": {"name": "n2"}}),
            r#"node "n0" is not allowed to modify node "n2""#,
        ),
        (
            "PATCH",
            "nodes/n0",
            labelled("a.node-restriction.kubernetes.io/x"),
            "is not allowed to modify labels: a.node-restriction.kubernetes.io/x",
        ),
        (
            "PATCH",
            "nodes/n0",
            labelled("x.k8s.io/x"),
            "is not allowed to modify labels: x.k8s.io/x",
        ),
        (
            "PATCH",
            "nodes/n0",
            json!({"metadata": {"labels": {"kubernetes.io/x": "1", "kubernetes.io/y": "1"}}}),
            "is not allowed to modify labels: kubernetes.io/x, kubernetes.io/y",
        ),
        (
            "PATCH",
            "nodes/n0",
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            r#"node "n0" is not allowed to modify taints"#,
        ),
        (
            "PATCH",
            "nodes/n0",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "1"}]}}),
            r#"node "n0" is not allowed to modify ownerReferences"#,
        ),
        (
            "GET",
            "nodes/n1",
            Value::Null,
            "User \"system:node:n0\" cannot get resource \"nodes\" in API group \"\" at the cluster scope: \
             node 'n0' cannot read 'n1', only its own Node object",
        ),
        (
            "DELETE",
            "nodes/n0",
            json!({}),
            "User \"system:node:n0\" cannot delete resource \"nodes\" in API group \"\" at the cluster scope",
        ),
    ] {
        let path = format!("/api/v1/{path}");
        assert_eq!(
            attempt(&server, method, &path, body.clone()).await,
            expected,
            "{method} {path} {body}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_itself_without_steering_labels() {
    let server = guarded();
    server.delete(ApiKind::Node, "", "n0").unwrap();
    let create = |label: &str| json!({"metadata": {"name": "n0", "labels": {label: "x"}}});
    assert_eq!(
        attempt(
            &server,
            "POST",
            "/api/v1/nodes",
            create("kubernetes.io/role")
        )
        .await,
        r#"node "n0" is not allowed to set the following labels: kubernetes.io/role"#
    );
    assert_eq!(
        attempt(
            &server,
            "POST",
            "/api/v1/nodes",
            create("kubernetes.io/hostname")
        )
        .await,
        ""
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_touches_no_pod_of_another_node() {
    let server = guarded();
    let pods = "/api/v1/namespaces/default/pods";
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    for (method, path, body, expected) in [
        (
            "PATCH",
            "p1/status",
            json!({"status": {"phase": "Failed"}}),
            r#"node "n0" can only update pod status for pods with spec.nodeName set to itself"#,
        ),
        (
            "DELETE",
            "p1",
            json!({}),
            r#"node "n0" can only delete pods with spec.nodeName set to itself"#,
        ),
        (
            "POST",
            "p1/eviction",
            eviction("p1"),
            "node n0 can only evict pods with spec.nodeName set to itself",
        ),
        (
            "PATCH",
            "p0/status",
            json!({"metadata": {"labels": {"a": "b"}}}),
            r#"node "n0" cannot update labels through pod status"#,
        ),
        (
            "PATCH",
            "p0/status",
            json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": []}}}),
            r#"node "n0" cannot update extended resource claim status"#,
        ),
        (
            "PATCH",
            "p0/status",
            json!({"status": {"phase": "Running"}}),
            "",
        ),
        ("POST", "p0/eviction", eviction("p0"), ""),
    ] {
        let path = format!("{pods}/{path}");
        assert_eq!(
            attempt(&server, method, &path, body.clone()).await,
            expected,
            "{method} {path}"
        );
    }
    for (method, path) in [("PATCH", "p0"), ("POST", "p0/binding")] {
        let message = attempt(&server, method, &format!("{pods}/{path}"), json!({})).await;
        assert!(
            message.starts_with("User \"system:node:n0\" cannot"),
            "{message}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn reviews_agree_with_the_authorizer() {
    let server = guarded();
    let ask = async |user: User, attributes: Value| {
        let client = Client::new(server.service_as(user), "default");
        let review: SelfSubjectAccessReview = serde_json::from_value(
            json!({"metadata": {}, "spec": {"resourceAttributes": attributes}}),
        )
        .unwrap();
        let review = Api::all(client)
            .create(&PostParams::default(), &review)
            .await
            .unwrap();
        review.status.unwrap().allowed
    };
    let namespace = json!({"verb": "list", "resource": "secrets", "namespace": "default"});
    assert!(!ask(node("n0"), namespace.clone()).await);
    assert!(ask(User::admin(), namespace).await);
    let one = json!({"verb": "get", "resource": "secrets", "namespace": "default", "name": "mine"});
    assert!(ask(node("n0"), one.clone()).await);
    assert!(!ask(node("n1"), one).await);
}
