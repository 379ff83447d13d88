//! The memory of hooks at rest, in allocated bytes, so the result depends neither on the machine nor on its allocator.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use allocation_counter::measure;
use fastrand::Rng;
use larder_containers::processes::Processes;
use larder_objects::Kind;
use larder_on_change::{ItemObjects, LeftOut, ObjectTag, PartKey, PodHooks, parse::HookList};
use larder_pods::StoredPod;
use larder_projection::{File, Value, VolumeKind, VolumePath, disk::VolumeHost};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{HookNode, OnChange, OnChangeConfig};
use larder_inputs::clock::Clock;

/// Most bytes that a hook of a pod may take: its budget (`docs/spec/on-change.md`, section 11) without the 16 bytes that
/// the system's allocator adds at most to each allocation.
const BUDGET: i64 = 1024 - 16 * ALLOCATIONS;
const ALLOCATIONS: i64 = 11;
const PODS: usize = 1000;

fn stored_pod(number: usize) -> Arc<StoredPod> {
    let pod = json!({
        "metadata": {
            "namespace": "bench",
            "name": format!("hooked-{number}"),
            "uid": format!("00000000-0000-4000-8000-{number:012}"),
        },
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}]}],
            "volumes": [{"name": "config", "configMap": {"name": "c"}}],
        },
    });
    Arc::new(StoredPod::new(serde_json::from_value(pod).unwrap()).unwrap())
}

pub(super) fn on_change(root: &Path) -> OnChange {
    let hook = json!({"pods": ["bench/hooked-*"], "signal": "SIGHUP"});
    let mut hooks = HookList::default();
    hooks.add(serde_json::from_value(hook).unwrap()).unwrap();
    OnChange::new(
        OnChangeConfig {
            hooks: hooks.into_hooks(),
            ..OnChangeConfig::default()
        },
        Vec::new(),
        HookNode {
            host: Arc::new(VolumeHost::open_without_mounts(root).unwrap()),
            kubelet: None,
            processes: Processes::new("/proc", "/"),
            serves_manifests: false,
            clock: Clock::system(),
            events: None,
            changed: Arc::new(|_| {}),
        },
        &mut Registry::default(),
        Rng::with_seed(1),
    )
}

/// A pass over the pod, which has delivered `text`.
fn deliver(on_change: &OnChange, pod: &Arc<StoredPod>, hooks: &Arc<PodHooks>, text: &str) {
    let (name, kind) = ("config", VolumeKind::ConfigMap);
    let file = File {
        data: Value::Borrowed(text.as_bytes()),
        mode: 0o644,
        owner: None,
    };
    let payload = BTreeMap::from([(VolumePath::parse("app.conf").unwrap(), file)]);
    let is_new = on_change
        .statuses(pod.metadata.uid.as_deref().unwrap())
        .is_empty();
    let mut observer = on_change.observer(pod, hooks, is_new);
    let part = PartKey::Volume(name.into(), kind);
    observer.begin(std::iter::once(part.clone()));
    let object = ObjectTag::of((Kind::ConfigMap, "app"));
    let (left_out, of) = (LeftOut::default(), move |_: &str| Some(object));
    let objects = ItemObjects {
        left_out: &left_out,
        of: &of,
    };
    let files = payload.iter();
    let files = files.map(|(path, file)| (path.as_str(), &*file.data));
    observer.add(part, files, &objects, true);
    observer.finish();
}

#[test]
fn hook_at_rest_takes_less_than_its_budget() {
    let root = tempfile::tempdir().unwrap();
    let on_change = on_change(root.path());
    let pods: Vec<_> = (0..PODS).map(stored_pod).collect();
    on_change.key();
    let mut all = Vec::with_capacity(PODS);
    let counted = measure(|| {
        for pod in &pods {
            let hooks = on_change.hooks(pod, None, None).unwrap();
            deliver(&on_change, pod, &hooks, "1");
            all.push(hooks);
        }
    });
    let pods = i64::try_from(PODS).unwrap();
    let (bytes, allocations) = (counted.bytes_current / pods, counted.count_current / pods);
    assert!(
        bytes < BUDGET && allocations < ALLOCATIONS,
        "a hook takes {bytes} bytes in {allocations} allocations"
    );
}
