//! The own form beside an agent.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::Path};

use serde_json::json;

use super::{World, stderr};
use crate::run::{Agent, desk, put};

/// What each path below `directory` is: kind, mode, and target or content. Names of sets are all `..set`.
fn entries(directory: &Path) -> BTreeMap<String, String> {
    let set = fs::read_link(directory.join("..data"));
    let set = set.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let set = set.to_str().unwrap();
    let mut found = BTreeMap::new();
    let mut levels = vec![directory.to_owned()];
    while let Some(level) = levels.pop() {
        for entry in fs::read_dir(level).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_dir() {
                levels.push(path.clone());
                Vec::new()
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                target.into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let content = String::from_utf8_lossy(&content).replace(set, "..set");
            let name = path.strip_prefix(directory).unwrap().to_str().unwrap();
            let name = name.replace(set, "..set");
            found.insert(name, format!("{:o} {content:?}", metadata.mode()));
        }
    }
    found
}

// sidecar 4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_those_of_an_agent_for_the_same_volumes() {
    let app = json!({
        "metadata": {"name": "app"},
        "data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAEC"},
    });
    let tls = json!({
        "metadata": {"name": "tls"}, "data": {"a": "aHVudGVyMg==", "key": "AP8="},
    });
    let items = json!([{"key": "a", "path": "x/y", "mode": 0o400}, {"key": "c", "path": "c"}]);
    let sources = json!([
        {"configMap": {"name": "app"}},
        {"secret": {"name": "tls", "items": [{"key": "a", "path": "a"}]}},
    ]);
    let volumes = json!([
        {"name": "plain", "configMap": {"name": "app"}},
        {"name": "picked", "configMap": {"name": "app", "defaultMode": 0o440, "items": items}},
        {"name": "none", "configMap": {"name": "none", "optional": true}},
        {"name": "tls", "secret": {"secretName": "tls", "defaultMode": 0o440}},
        {"name": "joined", "projected": {"sources": sources}},
    ]);
    // A volume that no container mounts is not delivered.
    let names = ["plain", "picked", "none", "tls", "joined"];
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "image": "i", "volumeMounts": &mounts[..]}]},
    });
    let agents = desk();
    put(&agents, "web.yaml", &pod.to_string());
    let world = World::new().await;
    for (file, kind, object) in [("app.yaml", "ConfigMap", app), ("tls.yaml", "Secret", tls)] {
        let mut manifest = object.clone();
        manifest["apiVersion"] = "v1".into();
        manifest["kind"] = kind.into();
        put(&agents, file, &manifest.to_string());
        world.create(kind, object).await;
    }
    let mut agent = Agent::start(&agents);
    agent.summary();
    let flags = [
        ["--config-map", "default/app:plain"],
        [
            "--config-map",
            "default/app:picked,mode=0440,item=a:x/y:0400,item=c:c",
        ],
        ["--config-map", "default/none:none,optional"],
        ["--secret", "default/tls:tls,mode=0440"],
        ["--config-map", "default/app:joined"],
        ["--secret", "default/tls:joined,item=a:a"],
        ["--kubeconfig", &world.kubeconfig],
        ["--state-dir", "state"],
    ];
    let args = [flags.as_flattened(), &["--once"]].concat();
    let output = world.sidecar(&args, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let delivered = agents.path().join("root/by-name/default/web/volumes");
    for (name, kind) in [
        ("plain", "configmap"),
        ("picked", "configmap"),
        ("none", "configmap"),
        ("tls", "secret"),
        ("joined", "projected"),
    ] {
        let expected = entries(&delivered.join(format!("kubernetes.io~{kind}")).join(name));
        let found = entries(&world.path().join(name));
        assert_eq!(found, expected, "{name}");
        assert!(expected.len() >= 2);
    }
}
