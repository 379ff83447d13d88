//! The memory of the checkpoint while the API server answers, in allocated bytes, so the result depends neither on the
//! machine nor on its allocator.

use std::path::Path;

use allocation_counter::{AllocationInfo, measure};
use larder::{KnownObject, ObjectState};
use larder_checkpoint::{CheckpointDir, Found, KeySource, Keyring, Owner};
use larder_objects::{ResourceVersion, SecretBytes};
use serde_json::json;

use super::super::*;

/// Most bytes that the checkpoint may take (`docs/spec/offline.md`, section 6).
const BUDGET: u64 = 1 << 20;
/// Bytes that the system's allocator adds at most to each allocation.
const OVERHEAD: u64 = 16;
const PODS: usize = 110;
const OBJECTS: usize = 500;
/// One in this many objects is a Secret.
const SECRETS: usize = 5;
const VALUE_BYTES: usize = 1024;

fn pod(index: usize) -> Arc<StoredPod> {
    let volumes: Vec<_> = (index..OBJECTS)
        .step_by(PODS)
        .map(|object| json!({"name": format!("object-{object}"), "configMap": {"name": format!("object-{object}")}}))
        .collect();
    let pod = json!({
        "metadata": {
            "namespace": "prod",
            "name": format!("pod-{index}"),
            "uid": format!("00000000-0000-4000-8000-{index:012}"),
            "resourceVersion": "7",
        },
        "spec": {"containers": [{"name": "app", "image": "app:1"}], "volumes": volumes},
    });
    Arc::new(StoredPod::new(serde_json::from_value(pod).unwrap()).unwrap())
}

fn metadata(index: usize, version: u32) -> ObjectMeta {
    ObjectMeta {
        namespace: "prod".into(),
        name: format!("object-{index}").into(),
        uid: format!("10000000-0000-4000-8000-{index:012}")
            .as_str()
            .into(),
        resource_version: ResourceVersion::new(version.to_string()),
        ..ObjectMeta::default()
    }
}

/// What an agent with 110 pods and 500 objects of 1 KiB serves. Other parts of the agent hold it, so it is no memory of
/// the checkpoint.
#[derive(Clone)]
struct Served {
    pods: Vec<Arc<StoredPod>>,
    config_maps: Vec<Arc<ConfigMap>>,
    secrets: Vec<Arc<Secret>>,
}

impl Served {
    fn new() -> Self {
        let (secrets, config_maps): (Vec<_>, Vec<_>) =
            (0..OBJECTS).partition(|index| index.is_multiple_of(SECRETS));
        Self {
            pods: (0..PODS).map(pod).collect(),
            config_maps: config_maps
                .into_iter()
                .map(|index| config_map(index, 1))
                .collect(),
            secrets: secrets.into_iter().map(secret).collect(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            pods: self.pods.clone(),
            config_maps: self.config_maps.iter().map(known).collect(),
            secrets: self.secrets.iter().map(known).collect(),
            node: None,
            services: None,
        }
    }
}

fn config_map(index: usize, version: u32) -> Arc<ConfigMap> {
    Arc::new(ConfigMap {
        metadata: metadata(index, version),
        data: [("value", "x".repeat(VALUE_BYTES).into())].into(),
        ..ConfigMap::default()
    })
}

fn secret(index: usize) -> Arc<Secret> {
    Arc::new(Secret {
        metadata: metadata(index, 1),
        data: [("value", SecretBytes::new(vec![b'x'; VALUE_BYTES]))].into(),
        ..Secret::default()
    })
}

fn known<K: Object>(object: &Arc<K>) -> KnownObject<K> {
    KnownObject {
        key: object.metadata().key(),
        state: ObjectState::Synced,
        object: Some(Arc::clone(object)),
        age: std::time::Duration::ZERO,
        is_forbidden: false,
    }
}

fn open(root: &Path) -> Store {
    let place = CheckpointDir::new(root.join("checkpoint"));
    let owner = Owner {
        cluster: [1; 32],
        node: "node-1".to_owned(),
    };
    let keys = Keyring::load(&[KeySource::File(root.join("key"))], None).unwrap();
    let Found {
        store, rejected, ..
    } = Store::open(&place, keys, owner, CopyContent::decode).unwrap();
    assert!(rejected.is_empty(), "{rejected:?}");
    store
}

/// Fails if the highest use of memory exceeds the budget: what is freed may stay with the allocator.
#[track_caller]
fn check(what: &str, used: &AllocationInfo) {
    let bytes = used.bytes_max + OVERHEAD * used.count_max;
    assert!(
        0 < used.bytes_current && bytes <= BUDGET,
        "{what}: {used:?}"
    );
}

#[test]
fn checkpoint_takes_less_than_its_budget_beside_an_api_server_that_answers() {
    let root = tempfile::tempdir().unwrap();
    let now = Timestamp::from_second(1_772_366_400).unwrap();
    let served = Served::new();
    let mut first = None;
    let used = measure(|| {
        let mut recorder = Recorder::new(open(root.path()));
        recorder
            .write(served.snapshot(), now, IndexWrite::IfDifferent)
            .unwrap();
        first = Some(recorder);
    });
    check("empty directory", &used);
    drop(first);

    let mut changed = served.clone();
    changed.config_maps[0] = config_map(1, 2);
    let mut second = None;
    let used = measure(|| {
        let mut recorder = Recorder::new(open(root.path()));
        recorder
            .write(served.snapshot(), now, IndexWrite::IfDifferent)
            .unwrap();
        let written = recorder
            .write(changed.snapshot(), now, IndexWrite::IfDifferent)
            .unwrap();
        // The copy and the index.
        assert_eq!(written.files, 2);
        second = Some(recorder);
    });
    check("existing checkpoint", &used);
}
