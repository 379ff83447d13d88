//! What only a cluster knows, in `larder render`, `larder diff` and `larder exec`: addresses of Services, and what
//! controllers set in pods.

use serde_json::{Value, json};

use crate::{Desk, exec::may_mount};

const POD: &str = web_pod!(
    r#"    env: [{name: URL, value: "http://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)"}, {name: PORT, value: "$(DB_SERVICE_PORT)"}]
"#
);

const SERVICE: &str =
    "---\n{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {ports: [{port: 5432}]}}\n";

#[track_caller]
fn json_of(desk: &Desk, args: &str, code: i32) -> Value {
    let run = desk.run(args);
    assert_eq!(run.code, code, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// The container of the only pod of `text`.
#[track_caller]
fn rendered(text: &str) -> Value {
    let desk = Desk::with([("app.yaml", text)]);
    json_of(&desk, "render -f app.yaml -o json", 0)["pods"][0]["containers"]["web"].take()
}

#[test]
fn address_of_a_service_is_known_when_it_runs() {
    let with = |spec: &str| [POD, &SERVICE.replace("ports", &format!("{spec}, ports"))].concat();
    let addressed = rendered(&with("clusterIP: 10.0.0.9"));
    for spec in ["type: ClusterIP", "type: LoadBalancer", "clusterIP: ''"] {
        let found = rendered(&with(spec));
        assert_eq!(found.get("warnings"), None, "{found}");
        assert_eq!(found["env"]["PORT"], "5432");
        let names = |found: &Value| -> Vec<String> {
            let names = found["env"].as_object().unwrap().keys();
            names.cloned().collect()
        };
        assert_eq!(names(&found), names(&addressed));
        let unknown = json!({
            "URL": "http://$(clusterIP of service db):5432",
            "DB_SERVICE_HOST": "clusterIP of service db",
            "DB_PORT": "tcp://$(clusterIP of service db):5432",
            "DB_PORT_5432_TCP": "tcp://$(clusterIP of service db):5432",
            "DB_PORT_5432_TCP_ADDR": "clusterIP of service db",
        });
        assert_eq!(found["unknown"], unknown);
    }
    for spec in [
        "clusterIP: None",
        "type: ExternalName, externalName: db.example",
    ] {
        let found = rendered(&with(spec));
        assert_eq!(found.get("unknown"), None, "{found}");
    }
    let desk = Desk::with([("app.yaml", &with("type: NodePort"))]);
    for format in ["tree", "html"] {
        let run = desk.run(&format!("render -f app.yaml -o {format}"));
        let text = run.stdout.replace("&lt;", "<").replace("&gt;", ">");
        assert!(text.contains("<known when it runs: clusterIP>"), "{text}");
    }
    if !may_mount() {
        return;
    }
    let run = desk.run("exec -f app.yaml -- env");
    for line in ["DB_SERVICE_PORT=5432\n", "DB_SERVICE_HOST=\n"] {
        assert!(run.stdout.contains(line), "{run:?}");
    }
    assert!(
        run.stderr
            .contains("DB_SERVICE_HOST (clusterIP of service db)"),
        "{run:?}"
    );
}

#[test]
fn other_port_of_a_service_needs_a_restart() {
    let with = [POD, SERVICE].concat();
    let other = with.replace("5432", "5433");
    let restart = Value::from("restart");
    for (from, to, expected) in [
        (&*with, &*other, restart.clone()),
        // The documents are what makes it.
        (POD, &with, restart),
        (&with, &with, Value::Null),
    ] {
        let code = i32::from(!expected.is_null());
        let desk = Desk::with([("from.yaml", from), ("to.yaml", to)]);
        let report = json_of(
            &desk,
            "diff --from-file from.yaml --to-file to.yaml -o json",
            code,
        );
        let verdict = &report["pods"][0]["containers"]["web"]["verdict"];
        assert_eq!(*verdict, expected, "{report:#}");
        assert_eq!(report["unknown"][0]["what"], "clusterIP of service db");
    }
}

/// A workload whose container has each of `fields` as a variable and as a file, named by their index.
fn workload(kind: &str, spec: &str, fields: &[&str]) -> String {
    let fields = fields.iter().enumerate();
    let (variables, files): (Vec<_>, Vec<_>) = fields
        .map(|(index, path)| {
            let field = format!("fieldRef: {{fieldPath: \"{path}\"}}");
            (
                format!("{{name: V{index}, valueFrom: {{{field}}}}}"),
                format!("{{path: f{index}, {field}}}"),
            )
        })
        .unzip();
    let (variables, files) = (variables.join(", "), files.join(", "));
    let (group, policy) = if kind.ends_with("Job") {
        ("batch", "Never")
    } else {
        ("apps", "Always")
    };
    let template = format!(
        "{{metadata: {{labels: {{app: web}}}}, spec: {{restartPolicy: {policy}, volumes: [{{name: d, downwardAPI: {{items: \
         [{files}, {{path: all, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}], containers: [{{name: web, image: i, \
         command: [a, $(JOB_COMPLETION_INDEX)], env: [{variables}], volumeMounts: [{{name: d, mountPath: /d}}]}}]}}}}"
    );
    let spec = match kind {
        "CronJob" => format!(
            "{{schedule: '* * * * *', jobTemplate: {{spec: {{{spec} template: {template}}}}}}}"
        ),
        _ => format!("{{{spec} selector: {{matchLabels: {{app: web}}}}, template: {template}}}"),
    };
    format!("{{apiVersion: {group}/v1, kind: {kind}, metadata: {{name: web}}, spec: {spec}}}")
}

#[test]
fn what_controllers_set_in_pods_is_their_value_or_unknown() {
    let label = |key: &str| format!("metadata.labels['{key}']");
    for (kind, spec, key, expected) in [
        ("Deployment", "", "pod-template-hash", None),
        ("Deployment", "", "job-name", Some("")),
        ("ReplicaSet", "", "pod-template-hash", Some("")),
        ("DaemonSet", "", "controller-revision-hash", None),
        ("DaemonSet", "", "pod-template-generation", None),
        ("StatefulSet", "", "controller-revision-hash", None),
        (
            "StatefulSet",
            "",
            "statefulset.kubernetes.io/pod-name",
            Some("web-0"),
        ),
        ("StatefulSet", "", "apps.kubernetes.io/pod-index", Some("0")),
        (
            "StatefulSet",
            "ordinals: {start: 3},",
            "apps.kubernetes.io/pod-index",
            Some("3"),
        ),
        ("Job", "", "job-name", Some("web")),
        ("Job", "", "batch.kubernetes.io/job-name", Some("web")),
        ("Job", "", "controller-uid", None),
        (
            "Job",
            "",
            "batch.kubernetes.io/job-completion-index",
            Some(""),
        ),
        (
            "Job",
            "completionMode: Indexed,",
            "batch.kubernetes.io/job-completion-index",
            None,
        ),
        ("Job", "manualSelector: true,", "controller-uid", Some("")),
        ("CronJob", "", "batch.kubernetes.io/job-name", None),
        ("CronJob", "", "batch.kubernetes.io/controller-uid", None),
    ] {
        let what = label(key);
        let desk = Desk::with([("app.yaml", &workload(kind, spec, &[&what]))]);
        let report = json_of(&desk, "render -f app.yaml -o json", 0);
        let (web, volume) = (
            &report["pods"][0]["containers"]["web"],
            &report["pods"][0]["volumes"]["d"],
        );
        let value = &web["env"]["V0"];
        assert_eq!(*value, expected.unwrap_or_default(), "{kind} {key}");
        let is_unknown = json!(expected.is_none().then_some(&what));
        assert_eq!(web["unknown"]["V0"], is_unknown, "{kind} {key}: {report:#}");
        assert_eq!(
            volume["unknown"]["f0"], is_unknown,
            "{kind} {key}: {report:#}"
        );
        // All labels in one file.
        let all = volume["unknown"]["all"].as_str();
        let is_named = all.is_some_and(|all| all.contains(&format!("{key}=\"$({what})\"")));
        assert_eq!(is_named, expected.is_none(), "{kind} {key}: {report:#}");
    }
}

#[test]
fn command_is_told_which_files_are_empty() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", &workload("Deployment", "", &["metadata.name"]))]);
    let run = desk.run("exec -f app.yaml -- true");
    assert_eq!(run.code, 0, "{run:?}");
    let note = "not known here, so empty: V0 (metadata.name), all of volume d (metadata.labels['pod-template-hash']), \
        f0 of volume d (metadata.name); --env";
    assert!(run.stderr.contains(note), "{run:?}");
}

#[test]
fn index_of_an_indexed_job_is_a_variable_that_is_known_when_it_runs() {
    let (label, annotation) = (
        "metadata.labels['batch.kubernetes.io/job-completion-index']",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    );
    let stays =
        "the command has $(JOB_COMPLETION_INDEX), which stays as it is: no variable has this name";
    for kind in ["Job", "CronJob"] {
        let found = rendered(&workload(
            kind,
            "completionMode: Indexed, completions: 3,",
            &[annotation],
        ));
        assert_eq!(found["env"]["JOB_COMPLETION_INDEX"], "");
        let unknown = json!({"V0": annotation, "JOB_COMPLETION_INDEX": label});
        assert_eq!(found["unknown"], unknown);
        assert_eq!(found.get("warnings"), None, "{found}");
        let found = rendered(&workload(kind, "", &[annotation]));
        assert_eq!(found["warnings"], json!([stays]));
        assert_eq!(found["env"].get("JOB_COMPLETION_INDEX"), None);
    }
}
