//! The documentation of the configuration file, generated from [`FIELDS`]. `UPDATE_EXPECT=1 cargo test` writes it.

use std::fmt::Write as _;

use expect_test::expect_file;

use super::*;

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
