//! The difference of two worlds, applied to what the containers of the first see, gives what those of the second see.
//!
//! What a container sees is computed here a second time, from `larder render -o json` and the mounts.

use std::collections::BTreeMap;

use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};

use crate::Desk;

/// Data of an object.
type Texts = BTreeMap<String, String>;

/// A namespace with one pod.
#[derive(Clone, Debug)]
struct World {
    map: Option<Texts>,
    secret: Option<Texts>,
    /// Name, kind, key, and whether it is optional.
    variables: Vec<(String, &'static str, String, bool)>,
    mounts: Vec<(&'static str, &'static str, &'static str)>,
    mode: Option<u32>,
}

/// Volume, path and `subPath`.
const MOUNTS: [(&str, &str, &str); 7] = [
    ("map", "/etc/m", ""),
    ("map", "/etc/m/d", "d"),
    ("secret", "/etc/m/d/b", ""),
    ("secret", "/s", "a"),
    ("all", "/etc/all", ""),
    ("empty", "/etc/all/d", ""),
    ("all", "/etc/m-2", "d/"),
];

fn texts(prefix: &'static str) -> impl Strategy<Value = Texts> {
    let key = select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let value = "[xy\u{fc}\n]{0,3}".prop_map(move |text| format!("{prefix}{text}"));
    // An object without data may be filled by a controller.
    btree_map(key, value, 1..4)
}

fn world() -> impl Strategy<Value = World> {
    let kind = select(vec!["configMapKeyRef", "secretKeyRef", "value", "fieldRef"]);
    let key = select(vec!["a", "b", "c", "text-$(A)"]).prop_map(str::to_owned);
    let variable = ("[ABC]", kind, key, prop::bool::weighted(0.8));
    let mounts = prop::sample::subsequence(MOUNTS.to_vec(), 0..=MOUNTS.len());
    let mode = option::weighted(0.3, select(vec![0o400, 0o440]));
    (
        option::weighted(0.9, texts("")),
        option::weighted(0.9, texts("hunter2")),
        vec(variable, 0..4),
        mounts,
        mode,
    )
        .prop_map(|(map, secret, variables, mounts, mode)| World {
            map,
            secret,
            variables,
            mounts,
            mode,
        })
}

/// Two worlds that share most of their parts.
fn pair() -> impl Strategy<Value = (World, World)> {
    let differs = || prop::bool::weighted(0.3);
    let parts = (differs(), differs(), differs(), differs(), differs());
    (world(), world(), parts).prop_map(|(mut one, mut other, differs)| {
        if !differs.0 {
            other.map.clone_from(&one.map);
        }
        if !differs.1 {
            other.secret.clone_from(&one.secret);
        }
        if !differs.2 {
            other.variables.clone_from(&one.variables);
        }
        if !differs.3 {
            other.mounts.clone_from(&one.mounts);
        }
        if !differs.4 {
            other.mode = one.mode;
        }
        // What both lack is not known; that is another property.
        complete(&mut one.map, &mut other.map);
        complete(&mut one.secret, &mut other.secret);
        (one, other)
    })
}

/// All keys that pods refer to.
const KEYS: [&str; 4] = ["a", "b", "c", "t"];

/// Gives `one` the keys that both lack.
fn complete(one: &mut Option<Texts>, other: &mut Option<Texts>) {
    let theirs = other.clone().unwrap_or_default();
    if one.is_none() && other.is_some() && theirs.len() == KEYS.len() {
        return;
    }
    let one = one.get_or_insert_default();
    for key in KEYS {
        if !theirs.contains_key(key) {
            one.entry(key.to_owned()).or_default();
        }
    }
}

impl World {
    fn objects(&self, namespace: &str) -> Vec<Value> {
        let metadata = |name: &str| json!({"name": name, "namespace": namespace});
        let mut objects = Vec::new();
        if let Some(data) = &self.map {
            objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("m"), "data": data}));
        }
        if let Some(data) = &self.secret {
            objects.push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("s"), "stringData": data}));
        }
        let variables = self.variables.iter().map(|(name, kind, key, optional)| {
            if *kind == "value" {
                return json!({"name": name, "value": key});
            }
            if *kind == "fieldRef" {
                let field = if key == "a" { "status.podIP" } else { "spec.nodeName" };
                return json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
            }
            let object = if *kind == "secretKeyRef" { "s" } else { "m" };
            let key = &key[..1];
            json!({"name": name, "valueFrom": {*kind: {"name": object, "key": key, "optional": optional}}})
        });
        let mounts = self.mounts.iter().map(
            |(name, path, sub_path)| json!({"name": name, "mountPath": path, "subPath": sub_path}),
        );
        let items = json!([{"key": "a", "path": "d/a"}, {"key": "b", "path": "d/b"}, {"key": "c", "path": "c"}]);
        let optional_map = json!({"name": "m", "optional": true, "items": items});
        let mut map = optional_map.clone();
        let mut secret = json!({"secretName": "s"});
        if let Some(mode) = self.mode {
            map["defaultMode"] = mode.into();
            secret["defaultMode"] = mode.into();
        }
        objects.push(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata("web"),
            "spec": {
                "containers": [{
                    "name": "c", "image": "i",
                    "env": variables.collect::<Vec<_>>(), "volumeMounts": mounts.collect::<Vec<_>>(),
                }],
                "volumes": [
                    {"name": "map", "configMap": map},
                    {"name": "secret", "secret": secret},
                    {"name": "all", "projected": {"sources": [{"configMap": optional_map}, {"secret": {"name": "s", "optional": true}}]}},
                    {"name": "empty", "emptyDir": {}},
                ],
            },
        }));
        objects
    }

    /// Variables, and files with their modes, from the output of `render`; `None` if the container does not start.
    fn seen(&self, rendered: &Value) -> Option<(Value, BTreeMap<String, Value>)> {
        let container = &rendered["containers"]["c"];
        let mut variables = container.get("env")?.clone();
        for (name, source) in container["unknown"].as_object().into_iter().flatten() {
            variables[name] = json!({"unknown": source});
        }
        let mut mounts = self.mounts.clone();
        mounts.sort_by_key(|(_, path, _)| path.len());
        let mut files = BTreeMap::new();
        for (volume, at, sub_path) in mounts {
            files.retain(|path: &String, _| path != at && !path.starts_with(&format!("{at}/")));
            if volume == "empty" {
                continue;
            }
            let content = rendered["volumes"][volume]["files"].as_object()?;
            let sub_path = sub_path.trim_end_matches('/');
            for (path, file) in content {
                if sub_path.is_empty() {
                    files.insert(format!("{at}/{path}"), file.clone());
                } else if path == sub_path {
                    files.insert(at.to_owned(), file.clone());
                } else if let Some(rest) = path.strip_prefix(&format!("{sub_path}/")) {
                    files.insert(format!("{at}/{rest}"), file.clone());
                }
            }
        }
        Some((variables, files))
    }
}

/// The manifests of worlds, each in a namespace of its own.
fn manifests<'w>(worlds: impl Iterator<Item = &'w World>) -> String {
    let objects = worlds.enumerate();
    let objects = objects.flat_map(|(number, world)| world.objects(&format!("n{number}")));
    json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()}).to_string()
}

fn check(pairs: &[(World, World)]) {
    let from = manifests(pairs.iter().map(|(from, _)| from));
    let to = manifests(pairs.iter().map(|(_, to)| to));
    let desk = Desk::with([("from.json", &from), ("to.json", &to)]);
    let read = |args: &str| -> Value {
        let run = desk.run(args);
        serde_json::from_str(&run.stdout).expect(&run.stderr)
    };
    let by_namespace = |report: &Value| -> BTreeMap<String, Value> {
        let pods = report["pods"].as_array().unwrap().iter();
        pods.map(|pod| (pod["namespace"].as_str().unwrap().to_owned(), pod.clone()))
            .collect()
    };
    let rendered_from = by_namespace(&read("render -f from.json -o json"));
    let rendered_to = by_namespace(&read("render -f to.json -o json"));
    let sides = "diff --from-file from.json --to-file to.json -o json";
    let shown = by_namespace(&read(&format!("{sides} --show-secrets")));
    let hidden = desk.run(sides).stdout;
    assert!(!hidden.contains("hunter2") && !hidden.contains("aHVudGVyM"));
    let hidden = by_namespace(&serde_json::from_str(&hidden).unwrap());
    assert!(shown.keys().eq(hidden.keys()));

    for (number, (from, to)) in pairs.iter().enumerate() {
        let namespace = format!("n{number}");
        let before = from.seen(&rendered_from[&namespace]);
        let after = to.seen(&rendered_to[&namespace]);
        let container = shown.get(&namespace).map(|pod| &pod["containers"]["c"]);
        let verdict = container.map_or("same", |found| found["verdict"].as_str().unwrap());
        let (mut variables, mut files) = before.clone().unwrap_or((json!({}), BTreeMap::new()));
        // What would start on neither side has differences of what it does not see.
        if let Some(found) = container.filter(|_| after.is_some()) {
            apply(variables.as_object_mut().unwrap(), &found["env"]);
            apply_files(&mut files, &found["files"]);
        }
        let expected = match (&before, &after) {
            (_, None) => {
                let expected: &[_] = match &before {
                    Some(_) => &["fails"],
                    None => &["same", "neither"],
                };
                assert!(expected.contains(&verdict), "{verdict}: {from:?} {to:?}");
                continue;
            }
            (None, Some(_)) => "starts",
            (Some((env, _)), Some((new_env, _))) if env != new_env => {
                // A fact of the cluster may be what a literal is.
                let is_known =
                    |env: &Value| env.as_object().unwrap().values().all(Value::is_string);
                let may_be_same = !is_known(env) || !is_known(new_env);
                if may_be_same && verdict == "unknown" {
                    "unknown"
                } else {
                    "restart"
                }
            }
            (Some((_, files)), Some((_, new_files))) => match verdict {
                // A mount or the definition of a volume.
                "restart" if from.mounts != to.mounts || from.mode != to.mode => "restart",
                "restart" => {
                    let fixed = MOUNTS.iter().filter(|mount| !mount.2.is_empty());
                    let is_fixed =
                        |path: &str| fixed.clone().any(|mount| path.starts_with(mount.1));
                    let mut paths = files.keys().chain(new_files.keys());
                    assert!(paths.any(|path| is_fixed(path)), "{from:?} {to:?}");
                    "restart"
                }
                _ if files == new_files => "same",
                _ => "live",
            },
        };
        assert_eq!(verdict, expected, "{from:?} {to:?}");
        // An unknown variable that is new is empty.
        if let Some((env, _)) = &after {
            for (name, value) in env.as_object().unwrap() {
                if variables[name] == "" && value.get("unknown").is_some() {
                    variables[name] = value.clone();
                }
            }
        }
        assert_eq!(Some((variables, files)), after, "{from:?} {to:?}");
    }
}

fn apply(variables: &mut serde_json::Map<String, Value>, changes: &Value) {
    for name in changes["removed"].as_array().unwrap() {
        assert!(variables.remove(name.as_str().unwrap()).is_some());
    }
    for (name, value) in changes["added"].as_object().unwrap() {
        assert_eq!(variables.insert(name.clone(), value.clone()), None);
    }
    for (name, change) in changes["changed"].as_object().unwrap() {
        // With unknown values as values.
        let side = |side: &str| match &change["unknown"][side] {
            Value::Null => change[side].clone(),
            source => json!({"unknown": source}),
        };
        let before = variables.insert(name.clone(), side("to"));
        assert_eq!(before, Some(side("from")), "{name}: {changes}");
    }
}

fn apply_files(files: &mut BTreeMap<String, Value>, changes: &Value) {
    for path in changes["removed"].as_array().unwrap() {
        assert!(files.remove(path.as_str().unwrap()).is_some());
    }
    for (path, file) in changes["added"].as_object().unwrap() {
        assert_eq!(files.insert(path.clone(), file.clone()), None);
    }
    for (path, change) in changes["changed"].as_object().unwrap() {
        let file = files.get_mut(path).unwrap();
        assert_eq!(file["data"], change["from"]);
        file["data"] = change["to"].clone();
        if let Some(mode) = change.get("mode") {
            assert_eq!(file["mode"], mode["from"]);
            file["mode"] = mode["to"].clone();
        }
    }
}

#[test]
fn difference_applied_to_the_first_world_gives_the_second() {
    let mut runner = TestRunner::new(Config {
        cases: 3,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&vec(pair(), 40), |pairs| {
            check(&pairs);
            Ok(())
        })
        .unwrap();
}
