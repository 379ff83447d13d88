//! Manifests as users write them, good and bad.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod files;
mod kubectl;

use std::fs;

use expect_test::{Expect, expect};
use larder_objects::manifest::{Loader, Manifest, Manifests};
use serde_json::{Value, json};

fn load(text: &str) -> Manifests {
    let mut loader = Loader::new("default");
    loader.text("app.yaml", text);
    loader.finish()
}

/// Shows every object, every error and what was skipped.
fn show(manifests: &Manifests) -> String {
    let objects = manifests.documents.iter().map(|document| {
        let field = |pointer| {
            document
                .object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or("-")
        };
        let workload = document.workload.as_ref().map(|name| format!(" of {name}"));
        let [kind, namespace, name] = ["/kind", "/metadata/namespace", "/metadata/name"].map(field);
        let workload = workload.unwrap_or_default();
        format!("{kind} {namespace}/{name}{workload} at {}", document.origin)
    });
    let errors = manifests
        .errors
        .iter()
        .map(|error| format!("error: {error}"));
    let skipped = manifests
        .skipped
        .iter()
        .map(|(kind, count)| format!("skipped: {count} {kind}"));
    let warnings = manifests
        .warnings
        .iter()
        .map(|warning| format!("warning: {warning}"));
    let lines: Vec<_> = objects
        .chain(errors)
        .chain(warnings)
        .chain(skipped)
        .collect();
    lines.join("\n") + "\n"
}

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&show(&load(text)));
}

#[test]
fn many_documents_lists_and_namespaces() {
    check(
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: prod}
---
# nothing here
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: s}}
- {apiVersion: v1, kind: Node, metadata: {name: node-1}}
---
apiVersion: v1
kind: ConfigMapList
items:
- metadata: {name: b}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: t}}
- apiVersion: v1
  kind: ConfigMapList
  items:
  - metadata: {name: c}
  - metadata: {name: d}
    data:
      k: 1
- {apiVersion: v1, kind: List, items: []}
",
        expect![[r#"
            ConfigMap prod/a at app.yaml: document 1, line 2
            Secret default/s at app.yaml: document 2, item 1, line 11
            Node -/node-1 at app.yaml: document 2, item 2, line 12
            ConfigMap default/b at app.yaml: document 3, item 1, line 17
            Secret default/t at app.yaml: document 4, item 1, line 22
            ConfigMap default/c at app.yaml: document 4, item 2, line 26
            error: app.yaml: document 4, item 2, line 29: ConfigMap "d": data[k]: expected a string, found a number (quote it)
            error: app.yaml: document 4, item 3, line 30: List: a List cannot be an item of a list
        "#]],
    );
}

#[test]
fn unknown_fields_of_lists_are_named() {
    check(
        "
apiVersion: v1
kind: List
itms:
- {apiVersion: v1, kind: Secret, metadata: {name: s}}
---
apiVersion: v1
kind: SecretList
Items: []
---
apiVersion: v1
kind: ConfigMapList
metadta: {}
items:
- metadata: {name: a}
---
apiVersion: v1
kind: SecretList
metadata: {resourceVersion: ''}
",
        expect![[r#"
            ConfigMap default/a at app.yaml: document 3, item 1, line 15
            warning: app.yaml: document 1, line 5: List: unknown field "itms", ignored; did you mean "items"?
            warning: app.yaml: document 2, line 9: SecretList: unknown field "Items", ignored; did you mean "items"?
            warning: app.yaml: document 3, line 13: ConfigMapList: unknown field "metadta", ignored; did you mean "metadata"?
        "#]],
    );
}

#[test]
fn every_workload_gives_the_pod_of_its_template() {
    let workload = |api_version: &str, kind: &str| {
        format!(
            "---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {}, namespace: prod}}\nspec:\n  template:\n    metadata: {{labels: {{app: x}}}}\n    spec:\n      containers: [{{name: c, image: i}}]\n",
            kind.to_lowercase()
        )
    };
    let mut text = String::new();
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"] {
        text += &workload("apps/v1", kind);
    }
    text += &workload("v1", "ReplicationController");
    text += &workload("batch/v1", "Job");
    text += "---\napiVersion: batch/v1\nkind: CronJob\nmetadata: {name: cronjob, namespace: prod}\nspec: {jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}}\n";
    check(
        &text,
        expect![[r#"
            Pod prod/deployment of Deployment deployment at app.yaml: document 1, line 2
            Pod prod/statefulset-0 of StatefulSet statefulset at app.yaml: document 2, line 11
            Pod prod/daemonset of DaemonSet daemonset at app.yaml: document 3, line 20
            Pod prod/replicaset of ReplicaSet replicaset at app.yaml: document 4, line 29
            Pod prod/replicationcontroller of ReplicationController replicationcontroller at app.yaml: document 5, line 38
            Pod prod/job of Job job at app.yaml: document 6, line 47
            Pod prod/cronjob of CronJob cronjob at app.yaml: document 7, line 56
            warning: app.yaml: document 1, line 6: Deployment "deployment": spec.selector: Required value; the API server rejects it
            warning: app.yaml: document 2, line 15: StatefulSet "statefulset": spec.selector: Required value; the API server rejects it
            warning: app.yaml: document 3, line 24: DaemonSet "daemonset": spec.selector: Required value; the API server rejects it
            warning: app.yaml: document 4, line 33: ReplicaSet "replicaset": spec.selector: Required value; the API server rejects it
            warning: app.yaml: document 6, line 54: Job "job": spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"; the API server rejects it
            warning: app.yaml: document 7, line 59: CronJob "cronjob": spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"; the API server rejects it
        "#]],
    );
    let manifests = load(&text);
    let pod = manifests.pods().next().unwrap();
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["app"], "x");
    assert!(pod.metadata.uid.is_some());
    assert_eq!(
        pod.spec.as_ref().unwrap().restart_policy.as_deref(),
        Some("Always")
    );
}

#[test]
fn workloads_that_the_api_server_rejects_are_read_with_a_warning() {
    check(
        "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: api}
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}
",
        expect![[r#"
            Pod default/web of Deployment web at app.yaml: document 1, line 1
            Pod default/nightly of CronJob nightly at app.yaml: document 2, line 13
            warning: app.yaml: document 1, line 10: Deployment "web": spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"; the API server rejects it
            warning: app.yaml: document 1, line 8: Deployment "web": spec.template.metadata.labels: Invalid value: {"app": "api"}: `selector` does not match template `labels`; the API server rejects it
            warning: app.yaml: document 2, line 17: CronJob "nightly": spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"; the API server rejects it
        "#]],
    );
}

#[test]
fn binary_value_that_is_not_base64_is_named_by_its_key() {
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nbinaryData:\n  good: YQ==\n  bad: '!'\n",
        expect![[r#"
            error: app.yaml: document 1, line 6: ConfigMap "a": binaryData[bad]: value is not base64
        "#]],
    );
}

#[test]
fn a_name_that_yaml_takes_for_a_boolean_is_named() {
    check(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n",
        expect![[r#"
            error: app.yaml: document 1, line 3: Node: metadata.name: expected a string, found a boolean (quote it)
        "#]],
    );
}

#[test]
fn claim_templates_of_a_stateful_set_are_volumes() {
    let manifests = load(
        "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  ordinals: {start: 3}
  volumeClaimTemplates: [{metadata: {name: data}}]
  template:
    spec:
      containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /d}]}]
",
    );
    assert!(manifests.errors.is_empty(), "{}", show(&manifests));
    let spec = manifests.pods().next().unwrap().spec.as_ref().unwrap();
    let claim = spec.volumes.as_ref().unwrap()[0]
        .persistent_volume_claim
        .as_ref()
        .unwrap();
    assert_eq!(claim.claim_name, "data-db-3");
}

#[test]
fn one_bad_document_costs_itself_only() {
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: [}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n",
        expect![[r#"
            ConfigMap default/b at app.yaml: document 2, line 6
            error: app.yaml: document 1, line 4: mismatched bracket '[' closed by '}'
        "#]],
    );
}

#[test]
fn values_of_the_wrong_type_are_named_by_their_field_and_not_shown() {
    check(
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data:
  GOOD: 'yes'
  PORT: 8080
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b}
data:
  tls.on: yes
---
apiVersion: v1
kind: Secret
metadata: {name: c}
data:
  p: not base64 hunter2!
---
apiVersion: v1
kind: Secret
metadata: {name: d}
stringData:
  p: 12345
---
apiVersion: v1
kind: Pod
metadata: {name: e}
spec:
  containers:
  - name: c
    image: i
    env:
    - name: A
      value: 1
---
apiVersion: v1
kind: Secret
metadata: {name: f, labels: {a: 1}}
---
apiVersion: v1
kind: Secret
metadata: {name: g}
data: {p: hunter2!}
stringData: {p: text}
---
apiVersion: v1
kind: Secret
metadata: {name: h}
data: {p: [256]}
",
        expect![[r#"
            error: app.yaml: document 1, line 7: ConfigMap "a": data[PORT]: expected a string, found a number (quote it)
            error: app.yaml: document 2, line 13: ConfigMap "b": data[tls.on]: expected a string, found a boolean (quote it)
            error: app.yaml: document 3, line 19: Secret "c": data[p]: value is not base64; text belongs in stringData
            error: app.yaml: document 4, line 25: Secret "d": stringData[p]: expected a string, found a number (quote it)
            error: app.yaml: document 5, line 36: Pod "e": spec.containers[0].env[0].value: expected a string, found a number (quote it)
            error: app.yaml: document 6, line 40: Secret "f": metadata.labels[a]: expected a string, found a number (quote it)
            error: app.yaml: document 7, line 45: Secret "g": data[p]: value is not base64; text belongs in stringData
            error: app.yaml: document 8, line 51: Secret "h": data[p]: expected base64 text, found a sequence
        "#]],
    );
}

#[test]
fn invalid_objects_are_rejected_with_every_invalid_field() {
    check(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      containers:
      - name: c
        volumeMounts: [{name: nope, mountPath: /x}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: Bad_Name}
data: {../../etc/passwd: x}
",
        expect![[r#"
            error: app.yaml: document 1, line 9: Deployment "web": [spec.template.spec.containers[0].image: Required value, spec.template.spec.containers[0].volumeMounts[0].name: Not found: "nope"]
            error: app.yaml: document 2, line 14: ConfigMap "Bad_Name": [metadata.name: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), data[../../etc/passwd]: Invalid value: "../../etc/passwd": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+'), data[../../etc/passwd]: Invalid value: "../../etc/passwd": must not start with '..']
        "#]],
    );
}

#[test]
fn kinds_that_do_not_exist_are_errors_and_those_of_others_are_counted() {
    check(
        "
apiVersion: v1
kind: Configmap
metadata: {name: a}
---
apiVersion: extensions/v1beta1
kind: Deployment
metadata: {name: a}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a}
---
apiVersion: example.com/v1
kind: AllowList
metadata: {name: a}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: a}
",
        expect![[r#"
            error: app.yaml: document 1, line 3: Configmap "a": no matches for kind "Configmap" in version "v1"; did you mean ConfigMap of v1?
            error: app.yaml: document 2, line 7: Deployment "a": no matches for kind "Deployment" in version "extensions/v1beta1"; did you mean Deployment of apps/v1?
            skipped: 1 AllowList.example.com
            skipped: 1 PersistentVolumeClaim
            skipped: 1 Role.rbac.authorization.k8s.io
        "#]],
    );
}

#[test]
fn objects_without_type_or_name_are_errors() {
    check(
        "kind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {generateName: ''}\n---\n- a\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
        expect![[r#"
            error: app.yaml: document 1, line 1: ConfigMap "a": apiVersion: Required value
            error: app.yaml: document 2, line 4: "a": kind: Required value
            error: app.yaml: document 3, line 9: Pod: metadata.name: Required value
            error: app.yaml: document 4, line 11: a document must be a mapping with apiVersion, kind and metadata
            error: app.yaml: document 5, line 15: Pod: metadata.name: expected a string, found a number (quote it)
            error: app.yaml: document 6, line 17: Deployment "d": spec.template: Required value
        "#]],
    );
}

#[test]
fn of_two_objects_with_one_name_the_first_stays() {
    let mut loader = Loader::new("default");
    let map = |value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{k: '{value}'}}\n")
    };
    loader.text("one.yaml", &map("1"));
    loader.text("two.yaml", &map("2"));
    loader.text(
        "three.yaml",
        &map("3").replace("name: a", "name: a, namespace: other"),
    );
    let manifests = loader.finish();
    expect![[r#"
        ConfigMap default/a at one.yaml: document 1, line 1
        ConfigMap other/a at three.yaml: document 1, line 1
        error: two.yaml: document 1, line 1: ConfigMap "a": already defined in one.yaml: document 1, line 1
    "#]]
    .assert_eq(&show(&manifests));
    assert!(
        matches!(&manifests.documents[0].manifest, Manifest::ConfigMap(map) if map.data["k"] == "1")
    );
}

#[test]
fn workloads_whose_pods_would_share_a_name_are_both_named() {
    let workload = |kind: &str| {
        format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}\n"
        )
    };
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
    let mut loader = Loader::new("default");
    loader.text("a.yaml", &workload("Deployment"));
    loader.text(
        "b.yaml",
        &[
            workload("ReplicaSet"),
            pod.to_owned(),
            workload("Deployment"),
        ]
        .join("---\n"),
    );
    // Its pod is web-0.
    loader.text("b2.yaml", &workload("StatefulSet"));
    loader.text("c.yaml", &pod.replace("name: web", "name: other"));
    loader.text(
        "d.yaml",
        &workload("DaemonSet").replace("name: web", "name: other"),
    );
    expect![[r#"
        Pod default/web of Deployment web at a.yaml: document 1, line 1
        Pod default/web-0 of StatefulSet web at b2.yaml: document 1, line 1
        Pod default/other at c.yaml: document 1, line 1
        error: b.yaml: document 1, line 1: ReplicaSet "web": the pod default/web is already made from Deployment web in a.yaml: document 1, line 1; give one of the two another name
        error: b.yaml: document 2, line 6: Pod "web": the pod default/web is already made from Deployment web in a.yaml: document 1, line 1; give one of the two another name
        error: b.yaml: document 3, line 11: Deployment "web": already defined in a.yaml: document 1, line 1
        error: d.yaml: document 1, line 1: DaemonSet "other": the pod default/other is already made from Pod other in c.yaml: document 1, line 1; give one of the two another name
        warning: a.yaml: document 1, line 4: Deployment "web": spec.selector: Required value; the API server rejects it
        warning: b.yaml: document 1, line 4: ReplicaSet "web": spec.selector: Required value; the API server rejects it
        warning: b.yaml: document 3, line 14: Deployment "web": spec.selector: Required value; the API server rejects it
        warning: b2.yaml: document 1, line 4: StatefulSet "web": spec.selector: Required value; the API server rejects it
        warning: d.yaml: document 1, line 4: DaemonSet "other": spec.selector: Required value; the API server rejects it
    "#]]
    .assert_eq(&show(&loader.finish()));
}

#[test]
fn a_name_is_made_as_the_api_server_makes_it_but_always_the_same() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {generateName: job-}\nspec: {containers: [{name: c, image: i}]}\n";
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: job-}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n";
    let text = [pod, pod, job].join("---\n");
    let names = |name: &str, text: &str| {
        let mut loader = Loader::new("default");
        loader.text(name, text);
        let manifests = loader.finish();
        assert!(manifests.errors.is_empty(), "{:?}", manifests.errors);
        let name = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.name.clone().unwrap();
        manifests.pods().map(name).collect::<Vec<_>>()
    };
    let expected = ["job-kfqjp", "job-mhd4b", "job-n28vh"];
    assert_eq!(names("jobs.yaml", &text), expected);
    // Neither the way to the file nor an edit of something else matters.
    assert_eq!(
        names("/m/jobs.yaml", &text.replace("image: i", "image: j")),
        expected
    );
    let before = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n";
    assert_eq!(names("./m/jobs.yaml", &format!("{before}{text}")), expected);
    // Another file has other pods.
    assert_ne!(names("other.yaml", &text), expected);
    // A caller that names objects itself gets none named.
    let mut loader = Loader::new("default").without_uids();
    loader.text("jobs.yaml", pod);
    assert_eq!(loader.finish().errors.len(), 1);
}

#[test]
fn bytes_may_be_listed_as_numbers() {
    let manifests = load(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: [104, 105]}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\nbinaryData: {a: [0, 255]}\n",
    );
    let objects: Vec<_> = manifests
        .documents
        .iter()
        .map(|document| &document.object)
        .collect();
    assert_eq!(objects[0]["data"]["a"], "aGk=");
    assert_eq!(objects[1]["binaryData"]["a"], "AP8=");
}

#[test]
fn string_data_is_folded_into_data_and_wins() {
    let manifests = load(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: b2xk, b: a2VlcA==}\nstringData: {a: new, c: }\n",
    );
    let Manifest::Secret(secret) = &manifests.documents[0].manifest else {
        panic!("{manifests:?}")
    };
    let values: Vec<_> = secret
        .data
        .iter()
        .map(|(key, value)| (key, &**value))
        .collect();
    assert_eq!(values, [("a", &b"new"[..]), ("b", b"keep"), ("c", b"")]);
    assert_eq!(secret.type_, "Opaque");
    let object = &manifests.documents[0].object;
    assert!(object.get("stringData").is_none());
    assert_eq!(object["data"]["a"], "bmV3");
}

#[test]
fn a_key_without_value_is_an_empty_text() {
    let manifests = load(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: }\ndata:\n  empty:\n",
    );
    let Manifest::ConfigMap(map) = &manifests.documents[0].manifest else {
        panic!("{}", show(&manifests))
    };
    assert_eq!(map.data["empty"], "");
}

#[test]
fn json_is_taken_as_well_and_says_where_it_is_wrong() {
    check(
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"\ud83d\ude00"}}
{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"},
 "data":{"k":
 5}}
"#,
        expect![[r#"
            ConfigMap default/a at app.yaml: document 1, line 1
            error: app.yaml: document 2, line 4: ConfigMap "b": data[k]: expected a string, found a number (quote it)
        "#]],
    );
    check(
        "{\"apiVersion\":\"v1\",\n\"kind\" \"ConfigMap\"}",
        expect![[r#"
            error: app.yaml: document 1, line 2: expected `:`
        "#]],
    );
    check(
        "{\"apiVersion\":\"v1\",\n\"kind\":\"ConfigMap\",\n\"kind\":\"Secret\"}",
        expect![[r#"
            error: app.yaml: document 1, line 3: key "kind" is already set
        "#]],
    );
    check(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n",
        expect![[r#"
            ConfigMap default/a at app.yaml: document 1, line 1
        "#]],
    );
}

#[test]
fn json_documents_may_stand_between_separators() {
    check(
        "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"a\"}}\n---\n{\n\"apiVersion\":\"v1\",\"kind\":\"Node\",\n\"metadata\":{\"name\":5}}\n--- # YAML again\napiVersion: v1\nkind: Node\nmetadata: {name: c}\n",
        expect![[r#"
            Node -/a at app.yaml: document 1, line 1
            Node -/c at app.yaml: document 3, line 7
            error: app.yaml: document 2, line 5: Node: metadata.name: expected a string, found a number (quote it)
        "#]],
    );
}

#[test]
fn what_kubectl_takes_for_no_document_is_an_error() {
    let node = |name: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n");
    let [a, b, c] = ["a", "b", "c"].map(node);
    check(
        &format!("{a}--- {{x: y}}\n{b}--- # a comment\n{c}"),
        expect![[r#"
            Node -/c at app.yaml: document 2, line 9
            error: app.yaml: document 1, line 4: nothing but a comment may follow --- on its line
        "#]],
    );
    check(
        &format!("{a}...\n{b}---\n{c}"),
        expect![[r#"
            Node -/a at app.yaml: document 1, line 1
            Node -/c at app.yaml: document 3, line 9
            error: app.yaml: document 2, line 5: kubectl reads no document below `...`: begin it with ---
        "#]],
    );
}

#[test]
fn fields_that_do_not_exist_are_named_and_do_no_harm() {
    check(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      containers:
      - name: c
        image: i
        evn: [{name: A}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
Data: {}
",
        expect![[r#"
            Pod default/web of Deployment web at app.yaml: document 1, line 2
            ConfigMap default/a at app.yaml: document 2, line 13
            warning: app.yaml: document 1, line 11: Deployment "web": unknown field "spec.template.spec.containers[0].evn", ignored; did you mean "env"?
            warning: app.yaml: document 1, line 6: Deployment "web": spec.selector: Required value; the API server rejects it
            warning: app.yaml: document 2, line 16: ConfigMap "a": unknown field "Data", ignored; did you mean "data"?
        "#]],
    );
}

#[test]
fn modes_may_be_octal() {
    let manifests = load(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n  volumes:\n  - name: a\n    secret: {secretName: s, defaultMode: 0400}\n  - name: b\n    secret: {secretName: s, defaultMode: 0o440}\n",
    );
    let spec = manifests.pods().next().unwrap().spec.clone().unwrap();
    let modes: Vec<_> = spec
        .volumes
        .unwrap()
        .into_iter()
        .map(|volume| volume.secret.unwrap().default_mode.unwrap())
        .collect();
    assert_eq!(modes, [0o400, 0o440]);
}

#[test]
fn directories_are_read_in_order_without_strangers() {
    let dir = tempfile::tempdir().unwrap();
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    fs::write(dir.path().join("b.yml"), map("b")).unwrap();
    fs::write(dir.path().join("a.yaml"), map("a")).unwrap();
    fs::write(
        dir.path().join("c.json"),
        r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"c"}}"#,
    )
    .unwrap();
    // kubectl reads it, too.
    fs::write(dir.path().join(".hidden.yaml"), map("hidden")).unwrap();
    for stranger in ["a.yaml~", "a.yaml.bak", "notes.txt"] {
        fs::write(dir.path().join(stranger), map("stranger")).unwrap();
    }
    fs::create_dir(dir.path().join("sub.yaml")).unwrap();
    fs::write(dir.path().join("sub.yaml/d.yaml"), map("d")).unwrap();
    let mut loader = Loader::new("default");
    loader.path(dir.path());
    let manifests = loader.finish();
    let names: Vec<_> = manifests
        .documents
        .iter()
        .map(|document| document.object["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["hidden", "a", "b", "c"], "{}", show(&manifests));
    assert!(manifests.errors.is_empty());
}

#[test]
fn sockets_and_dangling_links_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("a.yaml")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", dir.path().join("b.yaml")).unwrap();
    let mut loader = Loader::new("default");
    loader.path(dir.path());
    let errors = loader.finish().errors;
    let [socket, link] = &errors[..] else {
        panic!("{errors:?}")
    };
    assert!(socket.to_string().ends_with("/a.yaml"), "{socket}");
    assert!(link.to_string().ends_with("/b.yaml"), "{link}");
}

#[test]
fn a_uid_that_is_no_text_is_refused() {
    let errors = load("{apiVersion: v1, kind: Pod, metadata: {name: p, uid: 1}, spec: {containers: [{name: c, image: i}]}}").errors;
    assert!(
        errors[0]
            .to_string()
            .ends_with("metadata.uid: expected a string, found a number (quote it)"),
        "{errors:?}"
    );
}

#[test]
fn unreadable_input_differs_from_invalid_input() {
    let mut loader = Loader::new("default");
    loader.path("/nonexistent/app.yaml".as_ref());
    let manifests = loader.finish();
    assert_eq!(
        manifests.errors[0].to_string(),
        "cannot read /nonexistent/app.yaml"
    );
    assert!(manifests.nothing_read());

    let mut loader = Loader::new("default");
    loader.stdin(&b"a: 1\nb: \xff\n"[..]);
    let manifests = loader.finish();
    assert_eq!(
        manifests.errors[0].to_string(),
        "standard input: line 2: not UTF-8 text"
    );
    assert!(manifests.nothing_read());

    assert!(!load("a: [").nothing_read());
    assert!(!load("").nothing_read());
}

#[test]
fn debug_of_everything_that_was_read_shows_no_secret() {
    let manifests = load(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: aHVudGVyMg==}\nstringData: {b: hunter2}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {b: hunter2}\n",
    );
    let shown = format!("{manifests:?}");
    assert!(
        !shown.contains("hunter2") && !shown.contains("aHVudGVy"),
        "{shown}"
    );
}

#[test]
fn objects_beyond_the_accepted_number_are_rejected() {
    let map = |name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [map("a"), map("b"), map("c")]});
    let mut loader = Loader::new("default").at_most(2);
    loader.text("f.yaml", &list.to_string());
    loader.text("g.yaml", &map("d").to_string());
    let manifests = loader.finish();
    assert_eq!(manifests.documents.len(), 2);
    let errors: Vec<_> = manifests.errors.iter().map(ToString::to_string).collect();
    let problem = "expected at most 2 objects";
    assert_eq!(
        errors,
        [
            format!("f.yaml: document 1, item 3, line 1: {problem}"),
            format!("g.yaml: document 1, line 1: {problem}"),
        ]
    );
}
