//! Pods that were right, mutated at random.
//!
//! The seed is printed; `LARDER_MUTATION_SEED` repeats it, and `LARDER_MUTATION_INPUTS` sets the number of inputs.

use std::{env, fs, time::Duration};

use fastrand::Rng;
use larder_objects::manifest::{Loader, Manifest};
use serde_json::{Map, Value, json};

use crate::{
    attacks::is_internal,
    limits::{Limits, Meter},
};

/// The vectors whose expected results Kubernetes itself computed.
const VECTORS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../testdata/vectors/render.json"
);
/// Keys and texts that mean something to one of the parsers.
const WORDS: [&str; 32] = [
    "",
    "[",
    "]",
    "[]",
    "[0]",
    ".",
    "..",
    "a[0].b",
    "a.b",
    "<<",
    "*a",
    "&a",
    "!!binary",
    "---",
    "~",
    "null",
    "yes",
    "0644",
    "-1",
    "1e400",
    "\0",
    "\u{feff}",
    "é",
    "\u{1f600}",
    "$(A)",
    "$$",
    "../..",
    "/",
    "name",
    "metadata",
    "kind",
    "-009998-01-02T03:04:05Z",
];
/// Mutations never make an input larger than this.
const MAX_INPUT: usize = 64 << 10;

/// All documents of the vectors: pods, and the objects beside them.
fn documents() -> Vec<Value> {
    let vectors = fs::read_to_string(VECTORS).unwrap();
    let vectors: Vec<Value> = serde_json::from_str(&vectors).unwrap();
    let mut documents = Vec::new();
    for mut vector in vectors {
        documents.push(vector["pod"].take());
        let Value::Array(objects) = vector["objects"].take() else {
            panic!("a vector has a list of objects")
        };
        documents.extend(objects);
    }
    documents.retain(Value::is_object);
    documents
}

/// A value of another type.
fn other_value(rng: &mut Rng) -> Value {
    match rng.u8(..9) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i64(..)),
        3 => json!(rng.f64() * 1e300),
        4 => json!([]),
        5 => json!({}),
        6 => json!({word(rng): word(rng)}),
        7 => json!([word(rng), rng.i32(..)]),
        _ => json!(word(rng)),
    }
}

fn word(rng: &mut Rng) -> String {
    WORDS[rng.usize(..WORDS.len())].to_owned()
}

/// Changes one place of `value`, chosen on the way down.
fn mutate(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Object(entries) if !entries.is_empty() && rng.u8(..8) > 0 => {
            let index = rng.usize(..entries.len());
            let key = entries.keys().nth(index).unwrap().clone();
            match rng.u8(..8) {
                0 => drop(entries.remove(&key)),
                1 => {
                    let value = entries.remove(&key).unwrap();
                    entries.insert(word(rng), value);
                }
                2 => {
                    let copy = entries[&key].clone();
                    entries.insert(format!("{key}{}", word(rng)), copy);
                }
                _ => mutate(&mut entries[&key], rng),
            }
        }
        Value::Array(items) if !items.is_empty() && rng.u8(..8) > 0 => {
            let index = rng.usize(..items.len());
            match rng.u8(..8) {
                0 => drop(items.remove(index)),
                1 => items.push(items[index].clone()),
                _ => mutate(&mut items[index], rng),
            }
        }
        Value::String(text) if rng.bool() => *text = mutated_text(text, rng),
        _ if rng.u8(..4) == 0 => *value = nested(value.take(), rng),
        _ => *value = other_value(rng),
    }
}

/// `value` within some mappings and sequences.
fn nested(mut value: Value, rng: &mut Rng) -> Value {
    for _ in 0..rng.usize(..150) {
        value = if rng.bool() {
            json!([value])
        } else {
            Value::Object(Map::from_iter([(word(rng), value)]))
        };
    }
    value
}

/// `text` cut, doubled or with a word in it.
fn mutated_text(text: &str, rng: &mut Rng) -> String {
    let at = text.floor_char_boundary(rng.usize(..=text.len()));
    let (before, after) = text.split_at(at);
    match rng.u8(..5) {
        0 => before.to_owned(),
        1 => after.to_owned(),
        2 => [before, &word(rng), after].concat(),
        3 => [before, after, after].concat(),
        _ => word(rng),
    }
}

/// An input: a few documents, mutated as values and as text.
fn input(documents: &[Value], rng: &mut Rng) -> String {
    let mut document = documents[rng.usize(..documents.len())].clone();
    for _ in 0..rng.usize(..4) {
        mutate(&mut document, rng);
    }
    if rng.u8(..8) == 0 {
        document = json!({"apiVersion": "v1", "kind": "List", "items": [document, documents[0]]});
    }
    let mut text = if rng.bool() {
        document.to_string()
    } else {
        // YAML that is no JSON.
        format!("# no JSON\n{document}\n")
    };
    for _ in 0..rng.usize(..3) {
        text = mutated_text(&text, rng);
    }
    text.truncate(text.floor_char_boundary(MAX_INPUT));
    text
}

#[test]
fn mutated_pods_cost_little_and_panic_nowhere() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("LARDER_MUTATION_SEED").unwrap_or(14);
    let inputs = number("LARDER_MUTATION_INPUTS").unwrap_or(1000);
    println!("LARDER_MUTATION_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let documents = documents();
    let limits = Limits {
        cpu: Duration::from_secs(10),
        bytes: 64 << 20,
    };
    let meter = Meter::new();
    let mut pods = 0;
    for number in 0..inputs {
        let text = input(&documents, &mut rng);
        let name = format!("input {number} of seed {seed}");
        let (manifests, _) = meter.check(&name, limits, || {
            let mut loader = Loader::new("default");
            loader.text("mutated", &text);
            loader.finish()
        });
        for error in manifests.errors.iter().chain(&manifests.warnings) {
            assert!(!is_internal(error), "{name}: {error}: {text}");
            assert!(error.to_string().len() < 1 << 20, "{name}: {text}");
        }
        for document in &manifests.documents {
            let Manifest::Pod(pod) = &document.manifest else {
                continue;
            };
            let json = serde_json::to_string(pod).unwrap();
            let again = serde_json::from_str::<k8s_openapi::api::core::v1::Pod>(&json);
            assert!(again.is_ok_and(|again| again == **pod), "{name}: {text}");
            pods += 1;
        }
    }
    // Most inputs are rejected; enough of them reach the end.
    assert!(pods > inputs / 20, "{pods} of {inputs} inputs are pods");
}
