//! Random patches, compared with what `kubectl patch --local` makes of them.
//!
//! `testdata/patches.json` has its recorded answers: `null` where kubectl rejects the patch. Where kubectl is installed, a
//! sample is asked again, and `LARDER_RECORD=1` asks for all and replaces the record.

mod applied;

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use fastrand::Rng;
use larder_objects::patch::{merge, strategic_merge, without_directives};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{PatchType, json};

/// Number of recorded cases, and of those that each run asks kubectl again.
const CASES: u64 = 400;
const SAMPLE: usize = 12;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct PatchCase {
    #[serde(rename = "type")]
    patch_type: String,
    object: Value,
    patch: Value,
    answer: Option<Value>,
}

impl PatchCase {
    fn random(seed: u64) -> Self {
        let mut random = Random(Rng::with_seed(seed));
        let object = random.object();
        let patch_type = ["strategic", "strategic", "merge", "json"][random.0.usize(..4)];
        let patch = match patch_type {
            "json" => random.operations(&object),
            "merge" => random.changed(&object, false),
            _ => random.changed(&object, true),
        };
        Self {
            patch_type: patch_type.to_owned(),
            object,
            patch,
            answer: None,
        }
    }

    fn ours(&self) -> Option<Value> {
        let object = self.object.clone();
        let patch = &self.patch;
        match PatchType::of_media_type(&format!("application/{}", self.media_type()))? {
            PatchType::Json => json::apply(object, patch).ok(),
            PatchType::Merge => Some(merge(object, patch)),
            PatchType::StrategicMerge => strategic_merge(object, patch).ok(),
        }
    }

    fn media_type(&self) -> &str {
        match &*self.patch_type {
            "json" => "json-patch+json",
            "merge" => "merge-patch+json",
            _ => "strategic-merge-patch+json",
        }
    }

    /// The answer of kubectl. `None` if it rejects the patch.
    fn theirs(&self) -> Option<Value> {
        let mut command = Command::new("kubectl");
        command
            .args(["patch", "--local", "-f", "-", "-o", "json", "--type"])
            .args([&self.patch_type, "-p", &self.patch.to_string()]);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::null()).spawn().unwrap();
        let object = self.object.to_string();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(object.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).unwrap())
    }
}

fn record() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/patches.json")
}

fn has_kubectl() -> bool {
    let asked = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    let found = asked.is_ok_and(|output| output.status.success());
    assert!(
        found || std::env::var_os("CI").is_none(),
        "CI must have kubectl"
    );
    found
}

#[test]
fn patches_do_what_kubectl_makes_of_them() {
    if std::env::var_os("LARDER_RECORD").is_some() {
        let mut lines = Vec::new();
        for seed in 0..CASES {
            let mut case = PatchCase::random(seed);
            case.answer = case.theirs();
            lines.push(serde_json::to_string(&case).unwrap());
        }
        fs::write(record(), format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    }
    let recorded: Vec<PatchCase> = serde_json::from_slice(&fs::read(record()).unwrap()).unwrap();
    let mut different = Vec::new();
    for case in &recorded {
        // An API server decodes the result, so it keeps no directive and no null.
        let is_strategic = case.patch_type == "strategic";
        let stored = |answer: Option<Value>| match answer {
            Some(answer) if is_strategic => Some(without_directives(answer)),
            answer => answer,
        };
        let [ours, theirs] = [case.ours(), case.answer.clone()].map(stored);
        if ours != theirs {
            let [ours, theirs] = [&ours, &theirs].map(|answer| json!(answer).to_string());
            different.push(format!(
                "{} {}\nof {}\n{theirs}, not\n{ours}\n",
                case.patch_type, case.patch, case.object
            ));
        }
    }
    let (count, shown) = (different.len(), &different[..different.len().min(12)]);
    assert!(
        count == 0,
        "{count} of {}:\n{}",
        recorded.len(),
        shown.join("\n")
    );
    let accepted = recorded.iter().filter(|case| case.answer.is_some()).count();
    assert!((250..380).contains(&accepted), "{accepted} are accepted");
}

#[test]
fn recorded_answers_are_those_of_kubectl() {
    if !has_kubectl() {
        return;
    }
    let recorded: Vec<PatchCase> = serde_json::from_slice(&fs::read(record()).unwrap()).unwrap();
    for case in recorded.iter().step_by(recorded.len() / SAMPLE) {
        assert_eq!(case.theirs(), case.answer, "{case:?}");
    }
}

/// Makes objects and patches of the same shape.
struct Random(Rng);

impl Random {
    fn chance(&mut self, percent: u8) -> bool {
        self.0.u8(..100) < percent
    }

    fn one_of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.0.usize(..words.len())]
    }

    fn object(&mut self) -> Value {
        let mut metadata = json!({"name": "o"});
        self.metadata(&mut metadata);
        match self.0.u8(..6) {
            0 => {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self.words()})
            }
            1 => {
                let ports =
                    self.items(&[80, 443, 8080].map(Value::from), "port", |random, item| {
                        item["name"] = random.one_of(&["a", "b", "c"]).into();
                    });
                json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                    "spec": {"type": "ClusterIP", "ports": ports, "selector": self.words()}})
            }
            2 => {
                let names = ["a", "b", "c", "d"].map(Value::from);
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata,
                    "secrets": self.items(&names, "name", |_, _| {}),
                    "imagePullSecrets": self.items(&names, "name", |_, _| {})})
            }
            _ => {
                let spec = self.pod_spec();
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
            }
        }
    }

    fn metadata(&mut self, metadata: &mut Value) {
        if self.chance(60) {
            metadata["labels"] = self.words();
        }
        if self.chance(50) {
            metadata["finalizers"] = self.values(&["f/a", "f/b", "f/c", "f/d"]);
        }
        if self.chance(30) {
            let uids = ["1", "2", "3"].map(Value::from);
            metadata["ownerReferences"] = self.items(&uids, "uid", |random, item| {
                item["name"] = random.one_of(&["x", "y"]).into();
            });
        }
    }

    fn pod_spec(&mut self) -> Value {
        let names = ["a", "b", "c"].map(Value::from);
        let mut spec = json!({"containers": self.items(&names, "name", Self::container)});
        if self.chance(60) {
            spec["volumes"] = self.items(
                &["v", "w", "x"].map(Value::from),
                "name",
                |random, item| match random.0.u8(..3) {
                    0 => item["emptyDir"] = json!({}),
                    1 => {
                        item["configMap"] =
                            json!({"name": "m", "items": [{"key": "k", "path": "p"}]});
                    }
                    _ => item["secret"] = json!({"secretName": "s", "defaultMode": 256}),
                },
            );
        }
        if self.chance(30) {
            spec["tolerations"] = json!([{"key": self.one_of(&["a", "b"]), "operator": "Exists"}]);
        }
        if self.chance(30) {
            spec["imagePullSecrets"] =
                self.items(&["p", "q", "r"].map(Value::from), "name", |_, _| {});
        }
        if self.chance(30) {
            let ips = ["10.0.0.1", "10.0.0.2"].map(Value::from);
            spec["hostAliases"] = self.items(&ips, "ip", |random, item| {
                item["hostnames"] = random.values(&["h", "i", "j"]);
            });
        }
        if self.chance(30) {
            spec["securityContext"] =
                json!({"runAsUser": self.0.u8(..4), "seLinuxOptions": {"user": "u"}});
        }
        if self.chance(20) {
            spec["nodeName"] = "n".into();
        }
        spec
    }

    fn container(&mut self, item: &mut Value) {
        item["image"] = self.one_of(&["i:1", "i:2"]).into();
        if self.chance(70) {
            let names = ["A", "B", "C", "D", "E"].map(Value::from);
            item["env"] = self.items(&names, "name", |random, item| {
                if random.chance(80) {
                    item["value"] = random.one_of(&["1", "2"]).into();
                } else {
                    item["valueFrom"] = json!({"configMapKeyRef": {"name": "m", "key": "k"}});
                }
            });
        }
        if self.chance(40) {
            item["ports"] = self.items(
                &[1, 2, 3].map(Value::from),
                "containerPort",
                |random, item| {
                    item["protocol"] = random.one_of(&["TCP", "UDP"]).into();
                },
            );
        }
        if self.chance(40) {
            item["volumeMounts"] = self.items(
                &["/a", "/b"].map(Value::from),
                "mountPath",
                |random, item| {
                    item["name"] = random.one_of(&["v", "w"]).into();
                },
            );
        }
        if self.chance(30) {
            item["args"] = self.values(&["x", "y", "z"]);
        }
    }

    fn words(&mut self) -> Value {
        let words = self.values(&["a", "b", "c", "d"]);
        let fields = words.as_array().unwrap().iter();
        let fields = fields.map(|word| {
            (
                word.as_str().unwrap().to_owned(),
                self.0.u8(..3).to_string().into(),
            )
        });
        Value::Object(fields.collect())
    }

    /// Some of `words`, in any order.
    fn values(&mut self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        self.0.shuffle(&mut words);
        words.truncate(self.0.usize(1..=words.len()));
        json!(words)
    }

    /// Items with some of `ids` as their key, in any order.
    fn items(
        &mut self,
        ids: &[Value],
        key: &str,
        mut fill: impl FnMut(&mut Self, &mut Value),
    ) -> Value {
        let mut ids = ids.to_vec();
        self.0.shuffle(&mut ids);
        ids.truncate(self.0.usize(1..=ids.len()));
        let item = |id| {
            let mut item = json!({key: id});
            fill(self, &mut item);
            item
        };
        ids.into_iter().map(item).collect()
    }

    /// A patch of `object`: a random object of the same kind, thinned out, with nulls and, if it is to have them,
    /// directives.
    fn changed(&mut self, object: &Value, has_directives: bool) -> Value {
        let mut other = loop {
            let other = self.object();
            if other["kind"] == object["kind"] {
                break other;
            }
        };
        for field in ["apiVersion", "kind"] {
            other.as_object_mut().unwrap().remove(field);
        }
        other["metadata"].as_object_mut().unwrap().remove("name");
        self.thin(&mut other, "", has_directives, true);
        other
    }

    fn thin(&mut self, value: &mut Value, field: &str, has_directives: bool, is_top: bool) {
        let is_text_map = ["labels", "data", "selector"].contains(&field);
        match value {
            Value::Object(fields) => {
                let mut made = Map::new();
                for (name, mut value) in std::mem::take(fields) {
                    let is_key = ["name", "containerPort", "mountPath", "port", "uid", "ip"]
                        .contains(&&*name);
                    if !is_key && !is_top && self.chance(25) {
                        continue;
                    }
                    if !is_key && !is_top && self.chance(8) {
                        made.insert(name, Value::Null);
                        continue;
                    }
                    if has_directives && !is_text_map {
                        self.add_list_directives(&mut made, &name, &value);
                    }
                    self.thin(&mut value, &name, has_directives, false);
                    made.insert(name, value);
                }
                if has_directives && !is_text_map && !is_top && self.chance(3) {
                    let word = self.one_of(&["replace", "delete", "merge", "nonsense"]);
                    made.insert("$patch".to_owned(), word.into());
                }
                if has_directives && !is_text_map && !is_top && self.chance(6) {
                    let mut names: Vec<_> = made
                        .keys()
                        .filter(|name| !name.starts_with('$'))
                        .cloned()
                        .collect();
                    if self.chance(15) {
                        names.pop();
                    }
                    made.insert("$retainKeys".to_owned(), json!(names));
                }
                *fields = made;
            }
            Value::Array(items) => {
                for item in items.iter_mut() {
                    self.thin(item, field, has_directives, false);
                    if has_directives && item.is_object() && self.chance(10) {
                        item["$patch"] = self.one_of(&["delete", "delete", "replace"]).into();
                    }
                }
                if has_directives && items.iter().all(Value::is_object) && self.chance(4) {
                    let at = self.0.usize(..=items.len());
                    items.insert(at, json!({"$patch": "replace"}));
                }
            }
            _ => {}
        }
    }

    /// `$setElementOrder` of the list `name`: most often one that fits.
    fn add_list_directives(&mut self, fields: &mut Map<String, Value>, name: &str, value: &Value) {
        let key = match name {
            "containers" | "env" | "volumes" | "imagePullSecrets" | "secrets" => "name",
            "ports" => "containerPort",
            "finalizers" => "",
            _ => return,
        };
        let (Value::Array(items), true) = (value, self.chance(25)) else {
            return;
        };
        if key.is_empty() && self.chance(40) {
            // It removes what the patch does not add, or the order of both would matter.
            let foreign = ["f/a", "f/b", "f/c", "f/d"];
            let foreign = foreign.iter().filter(|word| !items.contains(&json!(word)));
            let foreign: Vec<_> = foreign.take(2).collect();
            fields.insert(format!("$deleteFromPrimitiveList/{name}"), json!(foreign));
            return;
        }
        let id = |item: &Value| match key {
            "" => item.clone(),
            key => json!({key: item.get(key).or(item.get("port")).cloned()}),
        };
        let mut order: Vec<_> = items.iter().map(id).collect();
        if self.chance(30) {
            self.0.shuffle(&mut order);
        }
        if self.chance(30) {
            let at = self.0.usize(..=order.len());
            let more = self.one_of(&["a", "b", "A", "B", "v"]);
            order.insert(
                at,
                if key.is_empty() {
                    json!("f/a")
                } else {
                    json!({key: more})
                },
            );
        }
        fields.insert(format!("$setElementOrder/{name}"), order.into());
    }

    fn operations(&mut self, object: &Value) -> Value {
        let mut paths = Vec::new();
        collect_paths(object, "", &mut paths);
        let paths: Vec<_> = paths
            .into_iter()
            .filter(|path| !["/apiVersion", "/kind"].contains(&&**path))
            .collect();
        let count = self.0.usize(1..3);
        let operation = |_| {
            let mut path = paths[self.0.usize(..paths.len())].clone();
            match self.0.u8(..12) {
                0 => path += "/x",
                1 => path += "/-",
                2 => path += "/0",
                3 => path += "/-1",
                4 => path += "/01",
                5 => path += "~1y",
                _ => {}
            }
            let from = paths[self.0.usize(..paths.len())].clone();
            let value = [
                json!(1),
                json!("x"),
                json!(null),
                json!({"name": "z"}),
                json!(["l"]),
            ];
            let value = value[self.0.usize(..value.len())].clone();
            match self.0.u8(..10) {
                0..3 => json!({"op": "add", "path": path, "value": value}),
                3..5 => json!({"op": "replace", "path": path, "value": value}),
                5..7 => json!({"op": "remove", "path": path}),
                7 => json!({"op": "move", "from": from, "path": path}),
                8 => json!({"op": "copy", "from": from, "path": path}),
                _ => {
                    let value = object.pointer(&path).cloned().unwrap_or_default();
                    json!({"op": "test", "path": path, "value": value})
                }
            }
        };
        (0..count).map(operation).collect()
    }
}

fn collect_paths(value: &Value, path: &str, paths: &mut Vec<String>) {
    let mut add = |token: &str, value: &Value| {
        let path = format!("{path}/{}", token.replace('~', "~0").replace('/', "~1"));
        collect_paths(value, &path, paths);
        paths.push(path);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| add(name, value)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| add(&index.to_string(), value));
        }
        _ => {}
    }
}
