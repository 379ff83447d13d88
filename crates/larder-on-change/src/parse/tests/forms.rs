//! One list of hooks in every form that YAML has for it, and mistakes whose values no error may show.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::*;

/// How a list is printed.
#[derive(Clone, Debug)]
struct Style {
    /// Before the list.
    head: &'static str,
    /// Columns before the outermost dash.
    margin: usize,
    /// Columns that each level adds.
    indent: usize,
    /// Whether a comment and an empty line stand before each item.
    has_comments: bool,
    /// Whether mappings and lists below this level are in flow style.
    flow_from: usize,
    line_end: &'static str,
    tail: &'static str,
}

fn styles() -> impl Strategy<Value = Style> {
    let head = prop::sample::select(vec![
        "",
        "\n\n",
        "# hooks\n",
        "---\n",
        "%YAML 1.2\n---\n",
        "\n# a\n\n  # b\n",
        "--- # hooks\n",
    ]);
    let line_end = prop::sample::select(vec!["\n", "\r\n"]);
    let tail = prop::sample::select(vec!["", "# end\n", "\n\n", "...\n"]);
    let numbers = (0..4_usize, 1..5_usize, any::<bool>(), 1..6_usize);
    (head, numbers, line_end, tail).prop_map(
        |(head, (margin, indent, has_comments, flow_from), line_end, tail)| Style {
            head,
            margin,
            indent,
            has_comments,
            flow_from,
            line_end,
            tail,
        },
    )
}

impl Style {
    fn print(&self, hooks: &Value) -> String {
        let mut text = self.head.to_owned();
        self.node(hooks, self.margin, 0, &mut text);
        text.push_str(self.tail);
        text.replace('\n', self.line_end)
    }

    /// Prints `value` from a line's beginning on, `column` columns in.
    fn node(&self, value: &Value, column: usize, level: usize, text: &mut String) {
        let blank = " ".repeat(column);
        let inner = column + self.indent.max(if value.is_array() { 2 } else { 1 });
        match value {
            Value::Array(items) if !items.is_empty() && level < self.flow_from => {
                for item in items {
                    if self.has_comments {
                        let _ = write!(text, "{blank}# - not: [an item\n\n");
                    }
                    if is_nested(item) && level + 1 < self.flow_from {
                        let _ = writeln!(text, "{blank}-");
                        self.node(item, inner, level + 1, text);
                    } else {
                        let _ = writeln!(text, "{blank}- {item}");
                    }
                }
            }
            Value::Object(fields) if !fields.is_empty() && level < self.flow_from => {
                for (name, value) in fields {
                    if is_nested(value) && level + 1 < self.flow_from {
                        let _ = writeln!(text, "{blank}{name}:");
                        self.node(value, inner, level + 1, text);
                    } else {
                        let _ = writeln!(text, "{blank}{name}: {value} # {name}");
                    }
                }
            }
            // JSON is YAML in flow style.
            other => {
                let _ = writeln!(text, "{blank}{other}");
            }
        }
    }
}

fn is_nested(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

/// A hook of the agent's configuration or of a command, with some of its fields.
fn hook() -> impl Strategy<Value = Value> {
    let pick = |values: Vec<Value>| prop::sample::select(values);
    let step = pick(vec![
        json!({"signal": "HUP"}),
        json!({"signal": {"name": "SIGUSR1", "process": "nginx: master"}}),
        json!({"exec": ["/bin/reload", "- a", "# b", "'", "\"", "é\n", ""]}),
        json!({"exec": {"command": ["a"], "env": {"A": "1", "B": "- x"}, "logOutput": true}}),
        json!({"http": "9090/-/reload"}),
        json!({"http": {"port": "http", "path": "/x?y=%20", "headers": {"X-A": "b: c"}, "body": "[", "expect": [204, "3xx"]}}),
        json!({"http": {"url": "https://u:p@h:1/x", "tls": {"insecureSkipVerify": true}, "auth": {"volume": "tls", "bearer": "t"}}}),
    ]);
    let others = pick(vec![
        json!({}),
        json!({"volumes": ["config", "tls"], "paths": ["*.conf", "d/**"]}),
        json!({"debounce": "1s", "splay": "0s", "timeout": "1m30s"}),
        json!({"debounce": {"min": "1s", "max": "2s"}, "retry": {"min": "2s", "attempts": 3}}),
        json!({"environment": true, "container": "web", "onFailure": "Ignore", "initial": true}),
    ]);
    let steps = prop::collection::vec(step, 1..4);
    (steps, others, any::<bool>()).prop_map(|(steps, others, has_list)| {
        let mut hook: Map<_, _> = others.as_object().unwrap().clone();
        match &*steps {
            [one] if !has_list => hook.extend(one.as_object().unwrap().clone()),
            _ => {
                hook.insert("steps".to_owned(), Value::Array(steps));
            }
        }
        Value::Object(hook)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The oracle is the list as JSON on one line, which has one form.
    #[test]
    fn a_list_is_read_alike_in_every_form(
        list in prop::collection::vec(hook(), 1..4).prop_map(Value::Array),
        style in styles(),
    ) {
        let outline = outline("Always");
        for origin in [HookOrigin::Configuration, POD] {
            let plain = hooks(&list.to_string(), origin, Some(&outline));
            let text = style.print(&list);
            let found = hooks(&text, origin, Some(&outline));
            // A line is where the form puts it.
            let found = found.map_err(|error| (error.field, error.problem));
            let plain = plain.map_err(|error| (error.field, error.problem));
            prop_assert_eq!(found, plain, "{}", text);
        }
    }
}

#[test]
fn a_list_in_an_annotation_may_begin_anyhow() {
    let expected = hooks("[{signal: HUP}]", POD, None).unwrap();
    for text in [
        "  - signal: HUP\n",
        "# reload\n- signal: HUP\n",
        "\n\n- signal: HUP",
        "%YAML 1.2\n---\n- signal: HUP\n",
        "---\n- signal: HUP\n...\n",
        "signal: HUP\n",
        "# reload\nsignal:HUP\n",
        "\"signal:HUP\"",
    ] {
        assert_eq!(hooks(text, POD, None), Ok(expected.clone()), "{text}");
    }
}

#[test]
fn an_error_has_its_line() {
    let text = "# hooks\n\n  - signal: HUP\n  -\n    http:\n      port: 80\n      path: x\n";
    let error = hooks(text, HookOrigin::CommandLine, None).unwrap_err();
    assert_eq!(error.line, Some(7));
    assert_eq!(
        error.in_file("hooks.yaml"),
        "hooks.yaml:7: [0].http.path: expected a path that begins with / and has no blanks and no fragment"
            .replace("[0]", "[1]")
    );
    let text = "signal: HUP\nretry:\n  min: 5s\n  max: 1s\n";
    let error = hooks(text, HookOrigin::CommandLine, None).unwrap_err();
    assert_eq!(error.in_file("f"), "f:3: [0].retry: min is more than max");
    let error = hooks("- [", HookOrigin::CommandLine, None).unwrap_err();
    assert!(error.in_file("f").starts_with("f: line 1: "), "{error}");
}

/// Every value of a whole hook is replaced by each of many others.
#[test]
fn no_error_shows_a_value() {
    let whole = json!([{
        "name": "n", "volumes": ["config"], "paths": ["*"], "environment": true, "container": "web",
        "steps": [
            {"exec": {"command": ["a"], "user": "u", "workingDirectory": "/", "env": {"A": "b"}, "logOutput": true}},
            {"exec": ["a", "b"]},
            {"http": {"url": "http://h/"}},
            {"http": {
                "port": 80, "path": "/", "scheme": "http", "method": "PUT", "headers": {"A": "b"}, "body": "b",
                "expect": [204], "auth": {"volume": "tls", "username": "a", "password": "b"},
                "tls": {"ca": "/c", "serverName": "h", "insecureSkipVerify": true},
            }},
            {"signal": {"name": "HUP", "process": "p"}},
            {"restart": {"signal": "HUP", "grace": "1s"}},
        ],
        "debounce": {"min": "1s", "max": "2s"}, "splay": "1s", "timeout": "1s",
        "retry": {"min": "1s", "max": "1m", "attempts": 1}, "onFailure": "Retry", "initial": true,
    }]);
    let wrong = [
        json!("hunter2"),
        json!("hunter2\nhunter2"),
        json!("http://user:hunter2@[h/"),
        json!(["hunter2", "hunter2\0"]),
        json!({"X": "hunter2"}),
        json!([["hunter2"]]),
        json!([{"X": "hunter2"}]),
        json!(4711.4711),
        json!(47_114_711_471_147_u64),
    ];
    let (mut errors, outline) = (0, outline("Always"));
    for pointer in pointers(&whole, String::new()) {
        // Names are shown: they say which of several is meant.
        let is_name = [
            "/name",
            "/volumes",
            "/volumes/0",
            "/container",
            "/port",
            "/volume",
            "/http",
        ]
        .iter()
        .any(|name| pointer.ends_with(name));
        for value in wrong.iter().filter(|value| !is_name || !value.is_string()) {
            let mut hook = whole.clone();
            *hook.pointer_mut(&pointer).unwrap() = value.clone();
            let text = hook.to_string();
            for origin in [HookOrigin::Configuration, POD] {
                let outline = Some(&outline).filter(|_| !is_name);
                let Err(error) = hooks(&text, origin, outline) else {
                    continue;
                };
                errors += 1;
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains("hunter2"), "{pointer} {value}: {shown}");
                assert!(!shown.contains("4711"), "{pointer} {value}: {shown}");
            }
        }
    }
    assert!(errors > 500, "{errors}");
    for text in [
        "Bearer hunter2",
        "password: hunter2",
        "hunter2",
        "hunter2:x",
        "- hunter2",
        "[hunter2",
    ] {
        let error = hooks(text, POD, None).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

/// Where everything is, within and including `value`.
fn pointers(value: &Value, at: String) -> Vec<String> {
    let below: Vec<(String, &Value)> = match value {
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| (index.to_string(), item))
                .collect()
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), value))
            .collect(),
        _ => Vec::new(),
    };
    let below = below
        .into_iter()
        .flat_map(|(name, value)| pointers(value, format!("{at}/{name}")));
    let below: Vec<_> = below.collect();
    [vec![at], below].concat()
}
