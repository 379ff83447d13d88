//! The copies to write, from the managers' known state.
//!
//! Invariants:
//! 1. Only objects that pods on this node reference are copied: a manager knows no others. 2. An object whose state is
//!    unknown keeps its copy. An object that the API server denies loses it.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use larder::{KnownObject, ObjectState};
use larder_objects::{ConfigMap, Object, ObjectMeta, Secret};
use larder_pods::{
    PodUid, Pods, StoredPod,
    identity::{is_mirror_pod, is_static_pod},
};
use larder_projection::{NodeFacts, ServiceFacts};

use super::{
    codec::{CopyContent, CopyId, CopyKind, encode_pod},
    index::Version,
    seal::digest,
    store::{Store, StoreError, WantedCopy, WantedState, Written},
};
use crate::reconcile::AgentContext;

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
    pub(super) fn of(context: &AgentContext, pods: &Pods) -> Self {
        let mut pods = pods.pods();
        pods.retain(|pod| {
            let metadata = &pod.metadata;
            // Manifests have copies of their own, and a terminated pod needs none.
            !is_static_pod(metadata) && !is_mirror_pod(metadata) && !pod.is_terminal()
        });
        let facts = context.facts.borrow();
        Self {
            pods,
            config_maps: context.config_maps.known(),
            secrets: context.secrets.known(),
            node: facts.node.clone(),
            services: facts.services.clone(),
        }
    }
}

/// Writes snapshots.
#[derive(Debug)]
pub(super) struct Recorder {
    store: Store,
    /// The copy of each pod as last seen, since making one requires decoding the pod.
    versions: HashMap<PodUid, (Arc<StoredPod>, Version)>,
}

impl Recorder {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            versions: HashMap::new(),
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
        refresh: bool,
    ) -> Result<Written, StoreError> {
        let mut wanted = Vec::new();
        let before = std::mem::take(&mut self.versions);
        for pod in snapshot.pods {
            let uid = PodUid::of(&pod.metadata);
            let known = before
                .get(&uid)
                .filter(|(known, _)| Arc::ptr_eq(known, &pod));
            let version = match known {
                Some((_, version)) => *version,
                None => short_digest(&encode_pod(&pod)),
            };
            self.versions.insert(uid, (Arc::clone(&pod), version));
            wanted.push(wanted_pod(pod, version));
        }
        let objects = snapshot.config_maps.into_iter();
        wanted.extend(objects.filter_map(|known| {
            wanted_object(CopyKind::ConfigMap, known, now, CopyContent::ConfigMap)
        }));
        let objects = snapshot.secrets.into_iter();
        wanted.extend(
            objects.filter_map(|known| {
                wanted_object(CopyKind::Secret, known, now, CopyContent::Secret)
            }),
        );
        wanted.push(wanted_facts(
            CopyKind::Node,
            snapshot.node.map(CopyContent::Node),
        ));
        let services = snapshot.services.map(CopyContent::Services);
        wanted.push(wanted_facts(CopyKind::Services, services));
        self.store.write(&wanted, now, refresh)
    }
}

fn wanted_pod(pod: Arc<StoredPod>, version: Version) -> WantedCopy {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    WantedCopy {
        id: CopyId {
            kind: CopyKind::Pod,
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
        },
        state: WantedState::Present {
            version,
            content: Box::new(move || encode_pod(&pod)),
        },
        proven: None,
    }
}

fn wanted_facts(kind: CopyKind, facts: Option<CopyContent>) -> WantedCopy {
    WantedCopy {
        id: CopyId {
            kind,
            namespace: String::new(),
            name: String::new(),
        },
        state: match facts {
            None => WantedState::Unknown,
            Some(content) => WantedState::Present {
                version: short_digest(&content.encode()),
                content: Box::new(move || content.encode()),
            },
        },
        proven: None,
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
    let proven = (!age.is_zero()).then(|| now.checked_sub(age).unwrap_or(Timestamp::MIN));
    let state = match (known.state, known.object) {
        (ObjectState::Synced | ObjectState::Immutable, Some(object)) => WantedState::Present {
            version: version_of(object.metadata()),
            content: Box::new(move || content(Arc::clone(&object)).encode()),
        },
        (ObjectState::Absent, _) => WantedState::Absent,
        _ => WantedState::Unknown,
    };
    Some(WantedCopy {
        id: CopyId {
            kind,
            namespace: known.key.namespace.to_string(),
            name: known.key.name.to_string(),
        },
        state,
        proven,
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
    fn a_denied_object_loses_its_copy() {
        // offline 6
        assert!(known(ObjectState::Synced, Duration::ZERO, true).is_none());
        assert!(known(ObjectState::Pending, Duration::ZERO, true).is_none());
    }

    #[test]
    fn freshness_dates_from_the_end_of_the_last_watch() {
        let proven = |age| known(ObjectState::Synced, age, false).unwrap().proven;
        assert_eq!(proven(Duration::ZERO), None);
        let earlier = Timestamp::from_second(700).unwrap();
        assert_eq!(proven(Duration::from_mins(5)), Some(earlier));
    }
}
