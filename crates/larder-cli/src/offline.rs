//! What a cluster would know, taken from manifests.
//!
//! An object that no manifest has does not exist; there is nowhere else to look. What only a running cluster could give is either a
//! placeholder that nobody can mistake (service account tokens) or an error that says so (pod certificates).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::{
    ConfigMap, Kind, ObjectKey, Secret, SecretBytes,
    manifest::{Document, Manifest, Manifests},
};
use larder_projection::{
    Inputs, Needs, NodeFacts, ServiceFacts, TrustBundle, TrustBundles, Unavailable,
};

/// Content of every service account token.
pub(crate) const PLACEHOLDER_TOKEN: &str =
    "placeholder.of-a-service-account-token.larder-renders-offline";

/// The objects of some manifests, ready for projections.
#[derive(Debug, Default)]
pub(crate) struct Offline {
    /// The pods, in the order of the manifests.
    pub(crate) pods: Vec<OfflinePod>,
    config_maps: HashMap<ObjectKey, Arc<ConfigMap>>,
    secrets: HashMap<ObjectKey, Arc<Secret>>,
    services: Arc<[ServiceFacts]>,
    nodes: HashMap<String, Arc<NodeFacts>>,
    trust_bundles: Arc<[TrustBundle]>,
}

/// A pod and where it was written.
#[derive(Debug)]
pub(crate) struct OfflinePod {
    pub(crate) pod: Pod,
    /// `app.yaml: document 2, line 14`, with the workload if it is of one.
    pub(crate) source: String,
}

impl Offline {
    /// Takes the objects of `manifests`. A pod that names no node is put on the only one, if there is only one.
    pub(crate) fn new(manifests: Manifests) -> Self {
        let mut offline = Self::default();
        let mut services = Vec::new();
        let mut trust_bundles = Vec::new();
        for document in manifests.documents {
            let key = key_of(&document);
            match document.manifest {
                Manifest::Pod(pod) => {
                    let workload = document.workload.map(|name| format!("{name}, "));
                    offline.pods.push(OfflinePod {
                        pod: *pod,
                        source: format!("{}{}", workload.unwrap_or_default(), document.origin),
                    });
                }
                Manifest::ConfigMap(map) => {
                    offline.config_maps.insert(key, Arc::new(map));
                }
                Manifest::Secret(secret) => {
                    offline.secrets.insert(key, Arc::new(secret));
                }
                Manifest::Service(service) => services.extend(ServiceFacts::new(&service)),
                Manifest::Node(node) => {
                    offline
                        .nodes
                        .insert(key.name.into(), Arc::new(NodeFacts::new(&node)));
                }
                Manifest::ClusterTrustBundle(bundle) => trust_bundles.push((*bundle).into()),
                Manifest::Namespace(_) | Manifest::ServiceAccount(_) => {}
            }
        }
        offline.services = services.into();
        offline.trust_bundles = trust_bundles.into();
        offline.bind_to_only_node();
        offline
    }

    /// Namespaces that have an object of this name, sorted.
    pub(crate) fn namespaces_with(&self, kind: Kind, name: &str) -> BTreeSet<&str> {
        let maps = self.config_maps.keys().filter(|_| kind == Kind::ConfigMap);
        let secrets = self.secrets.keys().filter(|_| kind == Kind::Secret);
        maps.chain(secrets)
            .filter(|key| key.name == name)
            .map(|key| key.namespace.as_str())
            .collect()
    }

    fn bind_to_only_node(&mut self) {
        let mut names = self.nodes.keys();
        let (Some(only), None) = (names.next(), names.next()) else {
            return;
        };
        for spec in self.pods.iter_mut().filter_map(|pod| pod.pod.spec.as_mut()) {
            spec.node_name.get_or_insert_with(|| only.clone());
        }
    }

    /// Everything that the projections of `pod` read, those of volumes that no container mounts included.
    pub(crate) fn inputs(&self, pod: &Pod) -> Inputs {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let key = |name: &str| ObjectKey::new(namespace, name);
        let spec = pod.spec.as_ref();
        let node = spec.and_then(|spec| self.nodes.get(spec.node_name.as_deref()?));
        let mut needs = Needs::of_pod(pod);
        for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            needs.add_volume(volume);
        }
        let mut inputs = Inputs {
            services: Some(Arc::clone(&self.services)),
            node: node.cloned(),
            trust_bundles: TrustBundles::Synced(Arc::clone(&self.trust_bundles)),
            ..Inputs::default()
        };
        for name in needs.config_maps {
            let found = self.config_maps.get(&key(name)).cloned();
            let found = found.ok_or(Unavailable::NotFound);
            inputs.config_maps.insert(name.to_owned(), found);
        }
        for name in needs.secrets {
            let found = self.secrets.get(&key(name)).cloned();
            let found = found.ok_or(Unavailable::NotFound);
            inputs.secrets.insert(name.to_owned(), found);
        }
        for request in needs.tokens {
            let token = SecretBytes::new(PLACEHOLDER_TOKEN.into());
            inputs.tokens.insert(request, Ok(Arc::new(token)));
        }
        for (key, _) in needs.pod_certificates {
            let why = "a pod certificate is issued by a cluster only";
            inputs
                .pod_certificates
                .insert(key, Err(Unavailable::failed(why)));
        }
        for file in needs.env_files {
            // Its volume is an empty directory until some container writes to it.
            inputs.env_files.insert(file, Err(Unavailable::NotFound));
        }
        inputs
    }
}

fn key_of(document: &Document) -> ObjectKey {
    let text = |pointer| {
        document
            .object
            .pointer(pointer)
            .and_then(|value| value.as_str())
            .unwrap_or("")
    };
    ObjectKey::new(text("/metadata/namespace"), text("/metadata/name"))
}
