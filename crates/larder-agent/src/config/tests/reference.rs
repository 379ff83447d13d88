//! The documentation of the configuration file, generated from [`FIELDS`]. `UPDATE_EXPECT=1 cargo test` writes it.

use std::{fmt::Write as _, fs};

use expect_test::expect_file;
use larder_on_change::parse::HookFields;
use serde_json::{Map, Value, json};

use super::{
    super::written::{BesideFields, CheckpointFields},
    *,
};

/// `docs/configuration.md`.
fn reference() -> String {
    let mut text = "# Configuration

`larder run --config FILE` reads YAML with the kubelet's field names where the kubelet has the setting.
`apiVersion: larder.dev/v1alpha1` and `kind: AgentConfiguration` are optional. A `KubeletConfiguration` is accepted as
well; one warning names its fields that have no effect here. A flag overrides the file, paths are relative to it, and
durations are written as in `1m30s`.

SIGHUP reloads the file: `systemctl reload larder`. A file that cannot be used changes nothing. Of the fields that have
changed, those marked *reload* take effect at once, and one warning names those that need a restart. No watch is lost.
[packaging/agent.yaml](../packaging/agent.yaml) has every field with an example.

| field | holds | default | change |
| --- | --- | --- | --- |
"
    .to_owned();
    for field in FIELDS {
        let reloads = RELOADED_FIELDS.contains(&field.name);
        let change = if reloads { "reload" } else { "restart" };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {change} |",
            field.name, field.form, field.default
        );
    }
    for field in FIELDS {
        let _ = write!(
            text,
            "\n## `{}`\n\n{}\n",
            field.name,
            wrapped(field.about, "", 120)
        );
    }
    text
}

/// `packaging/agent.yaml`: the file that the package installs. Some fields are set, the others show an example.
fn example() -> String {
    let mut text = "# The configuration of `larder run`. All fields are optional; docs/configuration.md describes them.
# After an edit: systemctl reload larder. A warning in the log names fields that need a restart.
apiVersion: larder.dev/v1alpha1
kind: AgentConfiguration
"
    .to_owned();
    for field in FIELDS {
        let is_set = ["manifests", "rootDir", "checkpointDir"].contains(&field.name);
        let about = format!("{} Default: {}.", field.about, field.default);
        let mark = if is_set { "" } else { "# " };
        let _ = write!(
            text,
            "\n{}\n{mark}{}: {}\n",
            wrapped(&about, "# ", 100),
            field.name,
            field.example
        );
    }
    text
}

/// `text` in lines of at most `width` columns that begin with `prefix`.
fn wrapped(text: &str, prefix: &str, width: usize) -> String {
    let mut lines = vec![prefix.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("begins with one");
        if line.chars().count() + 1 + word.chars().count() > width && line != prefix {
            lines.push(format!("{prefix}{word}"));
        } else {
            if line != prefix {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[test]
fn reference_has_every_field() {
    expect_file!["../../../../../docs/configuration.md"].assert_eq(&reference());
}

#[test]
fn packaged_file_has_every_field_and_is_valid() {
    expect_file!["../../../../../packaging/agent.yaml"].assert_eq(&example());
    let host = Host {
        name: "box-1".to_owned(),
        uid: 0,
        runtime_dir: None,
        temp_dir: "/tmp".into(),
    };
    let parse = |text: &str| Config::parse(text, Path::new("/etc/larder/agent.yaml"), &host);
    let (config, _) = parse(&example()).unwrap();
    assert_eq!(config.root_dir, Path::new("/run/larder"));
    assert_eq!(
        config.manifests.as_deref(),
        Some(Path::new("/etc/larder/manifests"))
    );
    // Each example is valid, too.
    for field in FIELDS {
        parse(&format!("{}: {}", field.name, field.example)).unwrap();
    }
}

/// What the chart's `values.schema.json` says of `config`: its fields are those of the file. The chart itself sets
/// some.
fn chart_schema() -> Value {
    let closed = |names: &[&str]| {
        let fields = names.iter().map(|name| ((*name).to_owned(), json!({})));
        let fields: Map<_, _> = fields.collect();
        json!({"type": "object", "additionalProperties": false, "properties": fields})
    };
    let fields = FIELDS.iter().map(|field| {
        let example = YamlDocument::parse(field.example, 0).unwrap();
        let schema = match (field.name, example.value()) {
            ("nodeName" | "mode", _) => json!(false),
            ("onChange", _) => {
                json!({"type": "array", "items": closed(field_names::<HookFields>())})
            }
            ("checkpoint", _) => closed(field_names::<CheckpointFields>()),
            ("beside", _) => {
                let mut beside = closed(field_names::<BesideFields>());
                beside["properties"]["kubeletRootDir"] = json!(false);
                beside
            }
            (_, Value::String(_)) => json!({"type": "string"}),
            (_, Value::Bool(_)) => json!({"type": "boolean"}),
            (_, Value::Number(_)) => json!({"type": "integer"}),
            (_, Value::Array(_)) => json!({"type": "array"}),
            (_, _) => json!({"type": "object"}),
        };
        (field.name.to_owned(), schema)
    });
    json!({
        "type": "object",
        "description": "`base`, `nodeName` and `beside` of the chart set the fields that are refused here.",
        "additionalProperties": false,
        "properties": fields.collect::<Map<_, _>>(),
    })
}

#[test]
fn chart_refuses_what_is_no_field() {
    let text = include_str!("../../../../../deploy/chart/values.schema.json");
    let schema: Value = serde_json::from_str(text).unwrap();
    assert_eq!(
        schema["properties"]["config"],
        chart_schema(),
        "values.schema.json takes `config` from here:\n{:#}",
        chart_schema()
    );
}

#[test]
fn configuration_in_the_documents_is_valid() {
    let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut checked = 0;
    for entry in fs::read_dir(documents).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        let blocks = page.split("\n```yaml\n").skip(1);
        for block in blocks.map(|block| block.split("```").next().unwrap()) {
            let first = block.split(':').next().unwrap();
            if FIELDS.iter().any(|field| field.name == first) {
                let warning = parse(block)
                    .unwrap_or_else(|error| panic!("{path:?}: {error}"))
                    .1;
                assert_eq!(warning, None, "{path:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 3, "{checked}");
}
