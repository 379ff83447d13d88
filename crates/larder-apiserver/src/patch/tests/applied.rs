//! Random manifests, applied three-way and compared with what `kubectl diff` sends for them.
//!
//! `testdata/applied.json` has its recorded patches: `null` where kubectl sends none. Where kubectl is installed, a sample
//! is asked again, and `LARDER_RECORD=1` asks for all and replaces the record.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

use fastrand::Rng;
use larder_objects::patch::{ListRules, applied, strategic_merge, without_directives};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Random, has_kubectl};

const CASES: u64 = 250;
const SAMPLE: usize = 6;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Clone, Debug, Deserialize, Serialize)]
struct AppliedCase {
    live: Value,
    /// Null where nothing was applied.
    original: Value,
    modified: Value,
    patch: Option<Value>,
}

impl AppliedCase {
    /// Three objects of one kind. What is there has most of what was applied, as after an edit by others.
    fn random(seed: u64) -> Self {
        let mut random = Random(Rng::with_seed(seed));
        let original = random.object();
        let mut other = || loop {
            let other = random.object();
            if other["kind"] == original["kind"] {
                break other;
            }
        };
        let (modified, edits) = (other(), other());
        let live = strategic_merge(original.clone(), &edits).unwrap();
        let original = if random.chance(20) {
            Value::Null
        } else {
            original
        };
        Self {
            live,
            original,
            modified,
            patch: None,
        }
    }

    /// The patch that kubectl sends to a server that has the object.
    fn theirs(&self) -> Option<Value> {
        let mut live = self.live.clone();
        live["metadata"]["namespace"] = "default".into();
        if !self.original.is_null() {
            live["metadata"]["annotations"] = json!({LAST_APPLIED: self.original.to_string()});
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, patches) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (live, sender) = (live.clone(), sender.clone());
                thread::spawn(move || answer(stream.unwrap(), &live, &sender));
            }
        });
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new("kubectl")
            .args(["--server", &format!("http://{address}"), "diff", "-f", "-"])
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let manifest = self.modified.to_string();
        let mut input = child.stdin.take().unwrap();
        input.write_all(manifest.as_bytes()).unwrap();
        drop(input);
        child.wait().unwrap();
        patches.try_recv().ok()
    }

    fn expected(&self) -> Value {
        let patched = match &self.patch {
            Some(patch) => strategic_merge(self.live.clone(), patch).unwrap(),
            None => self.live.clone(),
        };
        without_namespace(without_directives(patched))
    }

    fn ours(&self) -> Value {
        let (live, lists) = (self.live.clone(), ListRules::Keyed);
        without_namespace(applied(live, &self.original, &self.modified, lists).unwrap())
    }
}

/// kubectl adds it, and empty annotations; an empty list is none.
fn without_namespace(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("namespace");
    if metadata.get("annotations") == Some(&json!({})) {
        metadata.remove("annotations");
    }
    without_empty(&mut object);
    object
}

fn without_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(without_empty);
            fields.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
        }
        Value::Array(items) => items.iter_mut().for_each(without_empty),
        _ => {}
    }
}

/// Answers what kubectl asks on one connection, with the object for everything that is not discovery.
fn answer(stream: TcpStream, live: &Value, patches: &mpsc::Sender<Value>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut text = String::new();
            if reader.read_line(&mut text).unwrap_or(0) == 0 {
                return;
            }
            if let Some(given) = text.to_lowercase().strip_prefix("content-length:") {
                length = given.trim().parse().unwrap();
            }
            if text == "\r\n" {
                break;
            }
            head += &text;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let path = head.split([' ', '?']).nth(1).unwrap_or_default();
        if head.starts_with("PATCH") {
            patches
                .send(serde_json::from_slice(&body).unwrap())
                .unwrap();
        }
        let (status, body) = match path {
            "/api" => ("200 OK", json!({"kind": "APIVersions", "versions": ["v1"]})),
            "/apis" => (
                "200 OK",
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
            ),
            "/api/v1" => ("200 OK", resources()),
            path if path.starts_with("/api/v1/") => ("200 OK", live.clone()),
            _ => (
                "404 Not Found",
                json!({"kind": "Status", "apiVersion": "v1", "code": 404}),
            ),
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn resources() -> Value {
    let kinds = [
        ("configmaps", "ConfigMap"),
        ("pods", "Pod"),
        ("services", "Service"),
        ("serviceaccounts", "ServiceAccount"),
    ];
    let resources = kinds.map(|(name, kind)| {
        json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get", "patch", "create"]})
    });
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
}

fn record() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/applied.json")
}

fn recorded() -> Vec<AppliedCase> {
    serde_json::from_slice(&fs::read(record()).unwrap()).unwrap()
}

#[test]
fn manifests_make_of_objects_what_kubectl_makes_of_them() {
    if std::env::var_os("LARDER_RECORD").is_some() {
        let cases = (0..CASES).map(|seed| {
            let mut case = AppliedCase::random(seed);
            case.patch = case.theirs();
            serde_json::to_string(&case).unwrap()
        });
        let lines: Vec<_> = cases.collect();
        fs::write(record(), format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    }
    let recorded = recorded();
    let different = recorded
        .iter()
        .filter(|case| case.ours() != case.expected());
    let different: Vec<_> = different
        .map(|case| {
            let (ours, theirs) = (case.ours(), case.expected());
            format!(
                "{}\nover {}\non {}\n{theirs}, not\n{ours}\n",
                case.modified, case.original, case.live
            )
        })
        .collect();
    let (count, shown) = (different.len(), &different[..different.len().min(5)]);
    assert!(
        count == 0,
        "{count} of {}:\n{}",
        recorded.len(),
        shown.join("\n")
    );
    let patched = recorded.iter().filter(|case| case.patch.is_some()).count();
    assert!(patched > 200, "{patched} are patched");
}

#[test]
fn recorded_patches_are_those_of_kubectl() {
    if !has_kubectl() {
        return;
    }
    let recorded = recorded();
    for case in recorded.iter().step_by(recorded.len() / SAMPLE) {
        assert_eq!(case.theirs(), case.patch, "{case:?}");
    }
}
