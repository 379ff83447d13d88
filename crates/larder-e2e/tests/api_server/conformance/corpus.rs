//! The corpus: requests, the answers of a real kube-apiserver, and the comparison of two answers.
//!
//! The comparison covers status, structure, and every value except those that no two servers share (UIDs, versions,
//! times).

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use http::{Request, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use larder_objects::yaml::{COPIED_BYTES, YamlDocument};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One request of the corpus.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    /// Name, unique; later requests refer to fields of the answer by it.
    pub(super) name: String,
    /// Method and path with query.
    pub(super) request: String,
    /// Body as structure.
    #[serde(default)]
    body: Option<Value>,
    /// Body as text, where it is not JSON.
    #[serde(default)]
    raw: Option<String>,
    #[serde(default = "json")]
    content_type: String,
    #[serde(default = "json")]
    accept: String,
    /// How many events of a watch to read.
    #[serde(default)]
    events: Option<usize>,
    /// Fields that may differ (dotted path, "" for the whole answer), and why.
    #[serde(default)]
    differs: BTreeMap<String, String>,
    /// Why the causes of a rejection may come in any order.
    #[serde(default)]
    unordered: Option<String>,
    /// The API server's name of an etcd feature without which it rejects the request.
    #[serde(default)]
    storage_feature: Option<String>,
}

/// How long one answer, or the expected events of a watch, may take.
const PATIENCE: Duration = Duration::from_secs(5);

fn json() -> String {
    "application/json".to_owned()
}

/// A server's answer, with the values replaced that no two servers share.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct Answer {
    /// HTTP status.
    pub(super) status: u16,
    /// Media type, without parameters.
    pub(super) content_type: String,
    /// The body: one document, or the events of a watch, in order.
    pub(super) documents: Vec<Value>,
}

impl Answer {
    /// Placeholder for a missing answer, or for a watch without the expected events.
    fn none(why: &str) -> Self {
        Self {
            status: 0,
            content_type: String::new(),
            documents: vec![why.into()],
        }
    }
}

/// The requests in their order.
///
/// # Errors
///
/// The file is not readable as such a list.
pub(super) fn requests(yaml: &str) -> anyhow::Result<Vec<Step>> {
    Ok(YamlDocument::parse(yaml, COPIED_BYTES)?.decode()?)
}

/// Sends all requests in order and returns the answers by name; one that did not come has status 0.
pub(super) async fn play(client: &kube::Client, steps: &[Step]) -> BTreeMap<String, Answer> {
    let mut raw: BTreeMap<&str, Value> = BTreeMap::new();
    let mut answers = BTreeMap::new();
    for step in steps {
        let answer = match tokio::time::timeout(PATIENCE, send(client, step, &raw)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::none(&format!("{error:#}")),
            Err(_) => Answer::none("no answer, or fewer events than expected, in time"),
        };
        raw.insert(
            &step.name,
            answer.documents.first().cloned().unwrap_or_default(),
        );
        answers.insert(step.name.clone(), normalised(answer));
    }
    answers
}

/// Whether `got` says that its server's etcd is too old for the request: the release before the recorded one's cannot
/// report the progress of a watch, so that no list can be streamed.
pub(super) fn lacks_storage(step: &Step, got: &Answer) -> bool {
    let Some(feature) = &step.storage_feature else {
        return false;
    };
    let why = format!("required storage feature {feature} is disabled");
    let refusal = got
        .documents
        .first()
        .map(|event| &event["object"]["message"]);
    refusal
        .and_then(Value::as_str)
        .is_some_and(|text| text.ends_with(&why))
}

/// The differences between `got` and the recorded answer, one line each.
pub(super) fn differences(step: &Step, recorded: &Answer, got: &Answer) -> Vec<String> {
    if step.differs.contains_key("") {
        return Vec::new();
    }
    let mut found = Vec::new();
    if recorded.status != got.status {
        found.push(format!(
            "status: recorded {}, got {}",
            recorded.status, got.status
        ));
    }
    if recorded.content_type != got.content_type {
        found.push(format!(
            "type: recorded {}, got {}",
            recorded.content_type, got.content_type
        ));
    }
    if recorded.documents.len() != got.documents.len() {
        let (recorded, got) = (recorded.documents.len(), got.documents.len());
        found.push(format!("documents: recorded {recorded}, got {got}"));
    }
    for (recorded, got) in recorded.documents.iter().zip(&got.documents) {
        if step.unordered.is_some() {
            let (recorded, got) = (in_order(recorded), in_order(got));
            compare(&step.differs, "", &recorded, &got, &mut found);
        } else {
            compare(&step.differs, "", recorded, got, &mut found);
        }
    }
    found
}

/// A rejection with its causes sorted, in its text as well.
fn in_order(refusal: &Value) -> Value {
    let mut refusal = refusal.clone();
    let Some(causes) = refusal["details"]["causes"].as_array_mut() else {
        return refusal;
    };
    causes.sort_by_key(ToString::to_string);
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let mut told: Vec<_> = causes
        .iter()
        .map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message")))
        .collect();
    told.dedup();
    let mut message = text(&refusal, "message");
    for cause in &told {
        message = message.replacen(cause, "<cause>", 1);
    }
    refusal["message"] = message.into();
    refusal
}

fn compare(
    allowed: &BTreeMap<String, String>,
    path: &str,
    recorded: &Value,
    got: &Value,
    found: &mut Vec<String>,
) {
    if is_allowed(allowed, path) {
        return;
    }
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match (recorded, got) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let at = below(key);
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => compare(allowed, &at, a, b, found),
                    (Some(a), None) if !is_allowed(allowed, &at) => {
                        found.push(format!("{at}: recorded {a}, missing"));
                    }
                    (None, Some(b)) if !is_allowed(allowed, &at) => {
                        found.push(format!("{at}: not recorded, got {b}"));
                    }
                    _ => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(allowed, &below(&index.to_string()), a, b, found);
            }
        }
        _ if recorded == got => {}
        _ => found.push(format!("{path}: recorded {recorded}, got {got}")),
    }
}

/// Whether `path` may differ; `*` in a name stands for any index.
fn is_allowed(allowed: &BTreeMap<String, String>, path: &str) -> bool {
    let elements = || path.split('.');
    allowed.keys().any(|name| {
        name.split('.').count() == elements().count()
            && name.split('.').zip(elements()).all(|(name, element)| {
                name == element || (name == "*" && element.parse::<usize>().is_ok())
            })
    })
}

async fn send(
    client: &kube::Client,
    step: &Step,
    earlier: &BTreeMap<&str, Value>,
) -> anyhow::Result<Answer> {
    let (method, path) = step.request.split_once(' ').context("no method")?;
    let body = match (&step.raw, &step.body) {
        (Some(raw), _) => raw.clone(),
        (None, Some(body)) => filled(&body.to_string(), earlier)?,
        (None, None) => String::new(),
    };
    let request = Request::builder()
        .method(method)
        .uri(filled(path, earlier)?)
        .header(header::ACCEPT, &step.accept)
        .header(header::CONTENT_TYPE, &step.content_type)
        .body(Body::from(body.into_bytes()))?;
    let answer = client.send(request).await?;
    let status = answer.status().as_u16();
    let content_type = answer
        .headers()
        .get(header::CONTENT_TYPE)
        .map_or("", |v| v.to_str().unwrap_or("?"));
    let content_type = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut body = answer.into_body();
    let mut text = Vec::new();
    let enough = |text: &[u8]| match step.events {
        Some(events) if status == 200 => text.split(|byte| *byte == b'\n').count() > events,
        _ => false,
    };
    while !enough(&text) {
        match body.frame().await {
            Some(frame) => text.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data)),
            None => break,
        }
    }
    let text = String::from_utf8(text)?;
    let documents = if content_type == "application/json" {
        serde_json::Deserializer::from_str(&text)
            .into_iter()
            .collect::<Result<Vec<Value>, _>>()
            .with_context(|| format!("answer {text:?}"))?
    } else {
        vec![Value::String(text)]
    };
    Ok(Answer {
        status,
        content_type,
        documents,
    })
}

/// Replaces `{step.path}` by the field of the answer to that step.
fn filled(text: &str, earlier: &BTreeMap<&str, Value>) -> anyhow::Result<String> {
    let mut out = text.to_owned();
    for (name, answer) in earlier {
        let mark = format!("{{{name}.");
        while let Some(start) = out.find(&mark) {
            let end = start + out[start..].find('}').context("no closing brace")?;
            let pointer = format!("/{}", out[start + mark.len()..end].replace('.', "/"));
            let Some(Value::String(value)) = answer.pointer(&pointer) else {
                bail!("the answer to {name:?} has no text at {pointer}");
            };
            out.replace_range(start..=end, value);
        }
    }
    Ok(out)
}

/// Metadata that a server makes up, by the field's name.
const MADE_UP: &[&str] = &[
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "continue",
    "clusterIP",
    "expirationTimestamp",
    "lastTransitionTime",
    "token",
    "k8s.io/initial-events-end-version",
];

fn normalised(mut answer: Answer) -> Answer {
    answer.documents.iter_mut().for_each(normalise);
    answer
}

fn normalise(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            normalise_table(fields);
            let prefix = fields.get("generateName").and_then(Value::as_str);
            if let Some(prefix) = prefix.map(str::to_owned)
                && let Some(Value::String(name)) = fields.get_mut("name")
                && name.len() == prefix.len() + 5
                && name.starts_with(&prefix)
            {
                *name = format!("{prefix}<random>");
            }
            // The owners of fields: no client on a node reads them, so the embedded server does not track them.
            fields.remove("managedFields");
            for (name, value) in fields.iter_mut() {
                match value {
                    // The order of permissions has no meaning.
                    Value::Array(rules) if name.ends_with("Rules") => {
                        rules.sort_by_key(ToString::to_string);
                    }
                    Value::String(text)
                        if MADE_UP.contains(&name.as_str())
                            && !text.is_empty()
                            && text != "None" =>
                    {
                        *text = format!("<{name}>");
                    }
                    Value::Array(items)
                        if name == "clusterIPs" && items.first() != Some(&"None".into()) =>
                    {
                        *items = vec!["<clusterIP>".into()];
                    }
                    _ => normalise(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::String(text) => normalise_text(text),
        _ => {}
    }
}

/// In a table, ages and addresses are those of the run, and descriptions of columns are each server's own
/// documentation.
fn normalise_table(table: &mut Map<String, Value>) {
    let Some(Value::Array(columns)) = table.get_mut("columnDefinitions") else {
        return;
    };
    let mut made_up = Vec::new();
    for (index, column) in columns.iter_mut().enumerate() {
        if let Some(column) = column.as_object_mut() {
            column.remove("description");
        }
        if matches!(
            column["name"].as_str(),
            Some("Age" | "Last Seen" | "First Seen" | "Cluster-IP")
        ) {
            made_up.push(index);
        }
    }
    let rows = table.get_mut("rows").and_then(Value::as_array_mut);
    for row in rows.into_iter().flatten() {
        for index in &made_up {
            if row["cells"][index]
                .as_str()
                .is_some_and(|cell| cell != "None" && cell != "<unknown>")
            {
                row["cells"][index] = "<made up>".into();
            }
        }
    }
}

/// Replaces values that differ between runs and builds: UIDs, versions, and the beginning of source paths.
fn normalise_text(text: &mut String) {
    let is_uid = |part: &str| {
        part.len() == 36
            && part.bytes().enumerate().all(|(index, c)| match index {
                8 | 13 | 18 | 23 => c == b'-',
                _ => c.is_ascii_hexdigit(),
            })
    };
    let no_uid = |c: char| !c.is_ascii_hexdigit() && c != '-';
    let uids: Vec<_> = text
        .split(no_uid)
        .filter(|part| is_uid(part))
        .map(str::to_owned)
        .collect();
    for uid in uids {
        *text = text.replace(&uid, "<uid>");
    }
    for before in ["current: ", "in record ("] {
        if let Some(start) = text.find(before).map(|at| at + before.len()) {
            let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
            if digits > 0 {
                text.replace_range(start..start + digits, "<resourceVersion>");
            }
        }
    }
    // Go's build flags decide how the path of a source file begins.
    let scheme = "in scheme \"";
    if let Some(start) = text.find(scheme).map(|at| at + scheme.len())
        && let Some(prefix) = text[start..].find("pkg/")
    {
        text.replace_range(start..start + prefix, "");
    }
}
