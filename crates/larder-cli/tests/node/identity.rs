//! The agent with the rights of a node, which both servers grant as NodeRestriction and the node authorizer do.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use larder_e2e::{Identity, NODE, Server};

use crate::{
    agent::Agent,
    disk,
    world::{NAMESPACE, World},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_serves_its_node_with_node_permissions() {
    // managers 80
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let mut agent = Agent::prepare(server.kubeconfig(Identity::Node).unwrap());
    let mut world = World::new(admin.clone(), agent.static_pods(), 1);
    world.begin().await.unwrap();
    agent.start();
    disk::at_rest(&server, &agent, world.static_pods()).await;

    // Those of new pods may be rejected for a moment, until the authorizer knows that the pods are on the node.
    for _ in 0..10 {
        world.create_pod().await.unwrap();
    }
    let pods = disk::at_rest(&server, &agent, world.static_pods()).await;
    assert!(pods.iter().any(|pod| pod.is_static) && pods.len() > 10);

    let node = Api::<Node>::all(admin.clone()).get(NODE).await.unwrap();
    let in_namespace = Api::<Pod>::namespaced(admin, NAMESPACE);
    let mirrors = in_namespace.list(&ListParams::default()).await.unwrap();
    for pod in mirrors
        .iter()
        .filter(|pod| pod.name_any().starts_with("static-"))
    {
        let [owner] = pod.owner_references() else {
            panic!("{:?}", pod.metadata);
        };
        assert_eq!(
            (owner.kind.as_str(), Some(&owner.uid)),
            ("Node", node.uid().as_ref())
        );
    }

    let requests = server.node_requests().unwrap();
    let of_objects = requests.iter().filter(|request| {
        let path = request.uri.split('?').next().unwrap_or_default();
        path.ends_with("/configmaps") || path.ends_with("/secrets")
    });
    for request in of_objects {
        let named = request.uri.contains("fieldSelector=metadata.name%3D");
        assert!(named, "{} {}", request.verb, request.uri);
    }
}
