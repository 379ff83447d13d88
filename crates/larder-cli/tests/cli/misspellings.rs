//! Mistakes whose first error hides the cause: what larder says about the cause, in every format.

use serde_json::Value;

use crate::Desk;

const MAP: &str = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: NAME}, data: {a: b}}\n";
const POD: &str = web_pod!("    envFrom: [{configMapRef: {name: REFERENCE}}]\n");

#[test]
fn name_without_the_hash_of_kustomize_is_explained() {
    for (reference, name, is_meant) in [
        ("app", "app-bm6m88fk92", true),
        ("app-bm6m88fk92", "app", true),
        ("app-bm6m88fk92", "app-k2tmdt8h4c", true),
        ("app", "app-bm6m88fk9", false),
        ("app", "app-application", false),
        ("app", "other-bm6m88fk92", false),
    ] {
        let text = [
            POD.replace("REFERENCE", reference),
            MAP.replace("NAME", name),
        ]
        .concat();
        let desk = Desk::with([("app.yaml", &text)]);
        let error = format!("configmap \"{reference}\" not found");
        for output in ["tree", "json"] {
            let run = desk.run(&format!("render -f app.yaml -o {output}"));
            let shown = run.stdout.replace('\\', "");
            assert!(shown.contains(&error), "{run:?}");
            let hint = format!("did you mean \"{name}\"?");
            assert_eq!(shown.contains(&hint), is_meant, "{hint}: {run:?}");
        }
    }
    // A diff says so where a change brings such a name.
    let plain = POD.replace("    envFrom: [{configMapRef: {name: REFERENCE}}]\n", "");
    let map = MAP.replace("NAME", "app-bm6m88fk92");
    let from = [&*plain, &map].concat();
    let to = [&*POD.replace("REFERENCE", "app"), &map].concat();
    let desk = Desk::with([("from.yaml", &*from), ("to.yaml", &to)]);
    let run = desk.run("diff --from-file from.yaml --to-file to.yaml -o json");
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    let unless = &json["pods"][0]["containers"]["web"]["unless"][0];
    assert_eq!(unless["hint"], "app-bm6m88fk92", "{json}");
}

#[test]
fn quotes_that_an_env_file_left_in_a_value_deserve_a_look() {
    let value = |value: &str, kind: &str, data: &str| {
        let object = format!(
            "---\n{{apiVersion: v1, kind: {kind}, metadata: {{name: o}}, {data}: {{A: '{}'}}}}\n",
            value.replace('\'', "''")
        );
        let source = if kind == "Secret" {
            "secretRef"
        } else {
            "configMapRef"
        };
        let pod = POD.replace(
            "configMapRef: {name: REFERENCE}",
            &format!("{source}: {{name: o}}"),
        );
        Desk::with([("app.yaml", &[&*pod, &object].concat())])
    };
    for (text, deserves) in [
        ("\"abc\"", true),
        ("'a b'", true),
        ("\"\"", true),
        ("\"", false),
        ("abc", false),
        ("\"a\" \"b\"", false),
        ("\"a'", false),
        ("{\"a\": \"b\"}", false),
    ] {
        for (kind, data) in [("ConfigMap", "data"), ("Secret", "stringData")] {
            let desk = value(text, kind, data);
            for output in ["tree", "json"] {
                let run = desk.run(&format!("render -f app.yaml -o {output}"));
                let warning = format!("A: the value in {kind} o has quotes around it");
                assert_eq!(run.stdout.contains(&warning), deserves, "{text}: {run:?}");
            }
            let code = desk.run("render -f app.yaml --strict").code;
            assert_eq!(code, i32::from(deserves), "{text}");
        }
    }
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  volumes: [{name: v, emptyDir: {}}]
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: i, volumeMounts: [{name: v, mountPath: /v}]}
";

#[test]
fn rejection_for_what_is_a_level_too_high_says_so_in_every_format() {
    let rejected = "volumeMounts[0].name: Not found: \"v\"";
    let moved = |place: &str| {
        let volumes = "  volumes: [{name: v, emptyDir: {}}]\n";
        let without = DEPLOYMENT.replace(volumes, "");
        match place {
            "spec.volumes" => DEPLOYMENT.to_owned(),
            "spec.template.volumes" => {
                without.replace("    spec:", &format!("  {volumes}    spec:"))
            }
            _ => without + volumes.trim_start(),
        }
    };
    for place in ["spec.volumes", "spec.template.volumes", "volumes"] {
        let cause = format!("unknown field \"{place}\", ignored; it belongs in spec.template.spec");
        let both = |text: &str| {
            let text = text.replace('\\', "").replace("&quot;", "\"");
            let line = text
                .lines()
                .find(|line| line.contains(rejected))
                .unwrap_or_default();
            assert!(line.contains(&cause), "{place}: {text}");
        };
        let desk = Desk::with([("app.yaml", &*moved(place)), ("none.yaml", "")]);
        let run = desk.run("render -f app.yaml");
        both(&run.stderr);
        assert!(!run.stderr.contains("warning:"), "said once: {run:?}");
        both(&desk.run("render -f app.yaml -o json").stdout);
        both(&desk.run("render -f app.yaml -o html").stdout);
        for output in ["tree", "json", "markdown"] {
            let diff = "diff --from-file none.yaml --to-file app.yaml";
            let run = desk.run(&format!("{diff} -o {output}"));
            assert_eq!(run.code, 2, "{run:?}");
            both(&run.stdout.replace('\'', "\""));
        }
        // Its pod is not there, because of that.
        let run = desk.run("render -f app.yaml --pod web");
        assert!(
            run.stderr
                .contains("no pod default/web in the manifests; rejected: app.yaml"),
            "{run:?}"
        );
    }
    let plain = DEPLOYMENT.replace("  volumes: [{name: v, emptyDir: {}}]\n", "");
    let run = Desk::with([("app.yaml", &*plain)]).run("render -f app.yaml");
    assert!(
        run.stderr.contains(rejected) && !run.stderr.contains("unknown field"),
        "{run:?}"
    );
}

#[test]
fn unknown_field_of_a_list_is_a_problem_everywhere() {
    let item = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}"#;
    for (kind, fields, unknown) in [
        (
            "List",
            r#""itms":[ITEM]"#,
            "\"itms\", ignored; did you mean \"items\"?",
        ),
        (
            "SecretList",
            r#""Items":[ITEM]"#,
            "\"Items\", ignored; did you mean \"items\"?",
        ),
        ("List", r#""items":[],"itms":[ITEM]"#, "\"itms\""),
        (
            "SecretList",
            r#""items":[ITEM],"metadta":{}"#,
            "\"metadta\"",
        ),
    ] {
        let fields = fields.replace("ITEM", item);
        let list = format!(r#"{{"apiVersion":"v1","kind":"{kind}",{fields}}}"#);
        let desk = Desk::with([("list.json", &*list)]);
        let problem = format!("line 1: {kind}: unknown field {unknown}");
        for (command, code) in [
            ("render -f list.json --strict", 1),
            ("run --check --manifests . --root-dir root", 1),
            ("render -f list.json", 0),
        ] {
            let run = desk.run(command);
            assert_eq!(run.code, code, "{command}: {run:?}");
            assert!(run.stderr.contains(&problem), "{command}: {run:?}");
        }
    }
}
