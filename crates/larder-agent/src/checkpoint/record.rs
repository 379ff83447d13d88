//! The copies to write, from the managers' known state.
//!
//! Invariants:
//! 1. Only objects that pods on this node reference are copied, and Services that such a pod gets variables for.
//! 2. An object whose state is unknown keeps its copy. An object that the API server denies loses it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use larder::{KnownObject, ObjectState};
use larder_checkpoint::{
    IndexWrite, Store, StoreError, Version, WantedCopy, WantedState, Written, digest,
};
use larder_objects::{ConfigMap, Object, ObjectKey, ObjectMeta, Secret};
use larder_pods::{
    PodUid, Pods, StoredPod,
    identity::{is_mirror_pod, is_static_pod},
};
use larder_projection::{NodeFacts, ServiceFacts};
use smol_str::SmolStr;

use super::codec::{CopyContent, CopyKind, encode_decoded_pod, encode_pod};
use crate::delivery::inputs::NodeInputs;

/// The known state at one time.
pub(super) struct Snapshot {
    pods: Vec<Arc<StoredPod>>,
    config_maps: Vec<KnownObject<ConfigMap>>,
    secrets: Vec<KnownObject<Secret>>,
    node: Option<Arc<NodeFacts>>,
    services: Option<Arc<[ServiceFacts]>>,
}

impl Snapshot {
    /// The state known now. Takes no longer than one read of each object.
    pub(super) fn of(inputs: &NodeInputs, pods: &Pods) -> Self {
        let mut pods = pods.pods();
        pods.retain(|pod| {
            let metadata = &pod.metadata;
            // A terminated pod needs no copy.
            !is_mirror_pod(metadata) && !pod.is_terminal()
        });
        let cluster = inputs.cluster.borrow();
        Self {
            pods,
            config_maps: inputs.config_maps.known(),
            secrets: inputs.secrets.known(),
            node: cluster.node.clone(),
            services: cluster.services.clone(),
        }
    }
}

/// What is known of a pod that was decoded.
#[derive(Clone, Debug)]
struct SeenPod {
    pod: Arc<StoredPod>,
    version: Version,
    /// Its containers get variables for the Services of its namespace.
    has_service_links: bool,
}

impl SeenPod {
    fn new(pod: Arc<StoredPod>) -> Self {
        let decoded = pod.decode();
        let links = decoded
            .spec
            .as_ref()
            .and_then(|spec| spec.enable_service_links);
        Self {
            // Without the field, no environment is computed: the API server sets it.
            has_service_links: links.unwrap_or_default(),
            version: short_digest(&encode_decoded_pod(decoded)),
            pod,
        }
    }
}

/// Writes snapshots.
#[derive(Debug)]
pub(super) struct Recorder {
    store: Store,
    /// Each pod as last seen, since reading it requires decoding.
    seen: HashMap<PodUid, SeenPod>,
}

impl Recorder {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            seen: HashMap::new(),
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Makes the checkpoint hold `snapshot`; see [`Store::write`].
    pub(super) fn write(
        &mut self,
        snapshot: Snapshot,
        now: Timestamp,
        index: IndexWrite,
    ) -> Result<Written, StoreError> {
        let (config_maps, secrets) = (snapshot.config_maps.len(), snapshot.secrets.len());
        // Growing would take twice as much.
        let mut wanted = Vec::with_capacity(snapshot.pods.len() + config_maps + secrets + 2);
        let mut before = std::mem::take(&mut self.seen);
        let mut namespaces = BTreeSet::new();
        for pod in snapshot.pods {
            let uid = PodUid::of(&pod.metadata);
            let seen = before
                .remove(&uid)
                .filter(|known| Arc::ptr_eq(&known.pod, &pod))
                .unwrap_or_else(|| SeenPod::new(pod));
            if seen.has_service_links {
                let namespace = seen.pod.metadata.namespace.clone();
                namespaces.insert(namespace.unwrap_or_default());
            }
            // Manifests have copies of their own.
            if !is_static_pod(&seen.pod.metadata) {
                wanted.push(wanted_pod(Arc::clone(&seen.pod), seen.version));
            }
            self.seen.insert(uid, seen);
        }
        for known in snapshot.config_maps {
            let copy = wanted_object(CopyKind::ConfigMap, known, now, CopyContent::ConfigMap);
            wanted.extend(copy);
        }
        for known in snapshot.secrets {
            let copy = wanted_object(CopyKind::Secret, known, now, CopyContent::Secret);
            wanted.extend(copy);
        }
        let node = snapshot.node.map(CopyContent::Node);
        wanted.push(wanted_facts(CopyKind::Node, node));
        let services = snapshot.services.map(|services| {
            let needed = services_of(&namespaces, &services);
            CopyContent::Services(needed.cloned().collect())
        });
        wanted.push(wanted_facts(CopyKind::Services, services));
        self.store.write(&wanted, now, index)
    }
}

/// The Services that pods with service links in `namespaces`, and all pods, get variables for.
fn services_of<'a>(
    namespaces: &BTreeSet<String>,
    services: &'a [ServiceFacts],
) -> impl Iterator<Item = &'a ServiceFacts> {
    services
        .iter()
        .filter(|service| service.is_api_server() || namespaces.contains(&*service.namespace))
}

fn wanted_pod(pod: Arc<StoredPod>, version: Version) -> WantedCopy {
    let ObjectKey { namespace, name } = pod.key();
    WantedCopy {
        id: CopyKind::Pod.id(namespace, name),
        state: WantedState::Present {
            version,
            content: Box::new(move || encode_pod(&pod)),
        },
        verified_at: None,
    }
}

fn wanted_facts(kind: CopyKind, facts: Option<CopyContent>) -> WantedCopy {
    WantedCopy {
        id: kind.id(SmolStr::default(), SmolStr::default()),
        state: match facts {
            None => WantedState::Unknown,
            Some(content) => WantedState::Present {
                version: short_digest(&content.encode()),
                content: Box::new(move || content.encode()),
            },
        },
        verified_at: None,
    }
}

fn wanted_object<K: Object>(
    kind: CopyKind,
    known: KnownObject<K>,
    now: Timestamp,
    content: fn(Arc<K>) -> CopyContent,
) -> Option<WantedCopy> {
    if known.is_forbidden {
        return None;
    }
    let age = SignedDuration::try_from(known.age).unwrap_or(SignedDuration::MAX);
    let verified_at = (!age.is_zero()).then(|| now.checked_sub(age).unwrap_or(Timestamp::MIN));
    let state = match (known.state, known.object) {
        (ObjectState::Synced | ObjectState::Immutable, Some(object)) => WantedState::Present {
            version: version_of(object.metadata()),
            content: Box::new(move || content(Arc::clone(&object)).encode()),
        },
        (ObjectState::Absent, _) => WantedState::Absent,
        _ => WantedState::Unknown,
    };
    Some(WantedCopy {
        id: kind.id(known.key.namespace, known.key.name),
        state,
        verified_at,
    })
}

/// A UID and a version identify the content of an object.
fn version_of(metadata: &ObjectMeta) -> Version {
    let text = format!("{} {}", metadata.uid, metadata.resource_version);
    short_digest(text.as_bytes())
}

fn short_digest(bytes: &[u8]) -> Version {
    let mut version = [0; 16];
    version.copy_from_slice(&digest(bytes)[..16]);
    version
}

#[cfg(test)]
mod tests {
    mod memory;

    use std::time::Duration;

    use larder_objects::ObjectKey;

    use super::*;

    fn known(state: ObjectState, age: Duration, is_forbidden: bool) -> Option<WantedCopy> {
        let object = matches!(state, ObjectState::Synced | ObjectState::Stale(_));
        let known = KnownObject {
            key: ObjectKey::new("prod", "tls"),
            state,
            object: object.then(|| Arc::new(Secret::default())),
            age,
            is_forbidden,
        };
        let now = Timestamp::from_second(1000).unwrap();
        wanted_object(CopyKind::Secret, known, now, CopyContent::Secret)
    }

    #[test]
    fn only_a_known_state_replaces_a_copy() {
        let state = |state| known(state, Duration::ZERO, false).unwrap().state;
        assert!(matches!(
            state(ObjectState::Synced),
            WantedState::Present { .. }
        ));
        assert!(matches!(state(ObjectState::Absent), WantedState::Absent));
        for unknown in [
            ObjectState::Pending,
            ObjectState::Idle,
            ObjectState::Stale(Timestamp::UNIX_EPOCH),
        ] {
            assert!(
                matches!(state(unknown), WantedState::Unknown),
                "{unknown:?}"
            );
        }
    }

    #[test]
    fn services_that_no_pod_gets_variables_for_are_not_copied() {
        // offline 33
        let service = |namespace: &str, name: &str| ServiceFacts {
            namespace: namespace.into(),
            name: name.into(),
            cluster_ip: "10.96.0.1".into(),
            ports: [].into(),
        };
        let services = [
            service("default", "kubernetes"),
            service("default", "db"),
            service("other", "db"),
            service("prod", "db"),
        ];
        let namespaces = ["prod".to_owned()].into();
        let copied = services_of(&namespaces, &services);
        let copied: Vec<_> = copied
            .map(|service| format!("{}/{}", service.namespace, service.name))
            .collect();
        assert_eq!(copied, ["default/kubernetes", "prod/db"]);
    }

    #[test]
    fn a_denied_object_loses_its_copy() {
        // offline 6
        assert!(known(ObjectState::Synced, Duration::ZERO, true).is_none());
        assert!(known(ObjectState::Pending, Duration::ZERO, true).is_none());
    }

    #[test]
    fn freshness_dates_from_the_end_of_the_last_watch() {
        let verified_at = |age| known(ObjectState::Synced, age, false).unwrap().verified_at;
        assert_eq!(verified_at(Duration::ZERO), None);
        let earlier = Timestamp::from_second(700).unwrap();
        assert_eq!(verified_at(Duration::from_mins(5)), Some(earlier));
    }
}
