//! What the reader of a comparison sees: the headline, what was not looked at, and each difference once.

use std::fs;

use serde_json::{Value, json};

use super::{Checkout, diff, run};
use crate::Desk;

fn map(name: &str, value: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: ns}}\ndata: {{app.conf: {value}, level: {value}}}\n"
    )
}

/// A Deployment whose container mounts ConfigMap app at `path`, and has its key `level` as a variable.
fn deployment(name: &str, path: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: ns}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      \
         containers:\n      - name: c\n        image: i\n        env: [{{name: LEVEL, valueFrom: {{configMapKeyRef: {{name: app, key: level}}}}}}]\n        \
         volumeMounts: [{{name: v, mountPath: {path}}}]\n      volumes: [{{name: v, configMap: {{name: app, items: [{{key: app.conf, path: app.conf}}]}}}}]\n"
    )
}

#[test]
fn difference_that_many_containers_see_is_shown_once() {
    let text = |word: &str| json!(format!("{word}\n").repeat(200)).to_string();
    let side = |value: &str| {
        let names = (0..60).map(|number| format!("web-{number}"));
        // Where the file is does not matter.
        let pods = names.map(|name| deployment(&name, &format!("/etc/{name}")));
        pods.collect::<Vec<_>>().concat() + &map("app", value)
    };
    let (from, to) = (side(&text("one")), side(&text("two")));
    for format in ["tree", "markdown", "html"] {
        let run = run(&from, &to, &format!("-o {format}"));
        let hunks = run.stdout.matches("-1,200 ").count();
        // One of the file, and one of the variable.
        assert_eq!(hunks, 2, "{format}");
        assert!(run.stdout.contains("60 containers see it"), "{format}");
        assert!(run.stdout.contains("ns/web-59"), "{format}: all are named");
    }
    let markdown = run(&from, &to, "-o markdown");
    assert!(!markdown.stdout.contains("Left out"), "{}", markdown.stdout);
    assert!(markdown.stdout.len() < 16_000, "{}", markdown.stdout.len());
    let verdicts = markdown
        .stdout
        .lines()
        .filter(|line| line.contains("needs a restart: variables"));
    assert_eq!(verdicts.count(), 60, "a verdict for each container");
    let report = diff(&from, &to);
    let pods = report["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 60);
    for pod in pods {
        let container = &pod["containers"]["c"];
        assert_eq!(
            container["files"]["changed"].as_object().unwrap().len(),
            1,
            "JSON has all"
        );
    }
}

#[test]
fn difference_of_one_container_stays_in_its_tree() {
    let side = |value: &str, own: &str| {
        let other = deployment("other", "/etc").replace("name: app", "name: own");
        [
            deployment("web", "/etc"),
            other,
            map("app", value),
            map("own", own),
        ]
        .concat()
    };
    let run = run(&side("a", "a"), &side("b", "c"), "");
    assert!(!run.stdout.contains("shared"), "{}", run.stdout);
    for hunk in ["+b", "+c"] {
        assert!(run.stdout.contains(hunk), "{}", run.stdout);
    }
}

#[test]
fn same_name_in_another_namespace_is_another_object() {
    let side = |value: &str| {
        let own = [deployment("web", "/etc"), map("app", value)].concat();
        let other = own.replace("namespace: ns", "namespace: other");
        [own, other].concat()
    };
    let run = run(&side("a"), &side("b"), "");
    assert!(!run.stdout.contains("shared"), "{}", run.stdout);
}

#[test]
fn page_begins_with_what_would_not_start_and_has_no_list_of_links() {
    let side = |value: &str, key: &str| {
        let names = (0..300).map(|number| format!("web-{number}"));
        let pods = names.map(|name| deployment(&name, "/etc"));
        let failing =
            deployment("zz-failing", "/etc").replace("key: level", &format!("key: {key}"));
        pods.collect::<Vec<_>>().concat() + &failing + &map("app", value)
    };
    let page = run(&side("a", "level"), &side("b", "lvel"), "-o html").stdout;
    let first = page.split("<article").nth(1).unwrap();
    assert!(
        first.contains("ns/zz-failing") && first.contains("would not start"),
        "{first}"
    );
    assert!(!page.contains("href="));
    // Buttons select by these.
    assert_eq!(
        page.matches("data-state=\"keeps the old value\"").count(),
        300
    );
}

/// A directory of manifests on the desk, and its differences to another one.
fn directories(files: &[(&str, &str)]) -> Desk {
    let desk = Desk::with([("before.yaml", &map("app", "a"))]);
    for (path, text) in files {
        let path = desk.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    desk
}

#[test]
fn subdirectories_that_are_not_searched_are_said_in_the_headline() {
    let desk = directories(&[
        ("k8s/a.yaml", &map("app", "a")),
        ("k8s/sub/b.yaml", &map("app", "b")),
    ]);
    let args = "diff --from-file before.yaml --to-file k8s";
    let run = desk.run(&format!("{args} -o markdown"));
    assert_eq!(run.code, 0, "{run:?}");
    let headline = "No container sees a difference; not compared: subdirectories of k8s\n";
    assert!(run.stdout.starts_with(headline), "{run:?}");
    assert!(run.stderr.contains("(-R searches them)"), "{run:?}");
    let report: Value = serde_json::from_str(&desk.run(&format!("{args} -o json")).stdout).unwrap();
    assert_eq!(
        report["notCompared"].as_array().unwrap().len(),
        1,
        "{report:#}"
    );
    // Subdirectories without manifests are none, and neither are those whose manifests are left out.
    for (path, exclude) in [
        ("k8s/doc/a.md", ""),
        ("k8s/sub/b.yaml", "--exclude sub"),
        ("k8s/sub/deep/b.yaml", "--exclude **/b.yaml"),
    ] {
        let desk = directories(&[("k8s/a.yaml", &map("app", "a")), (path, "")]);
        let run = desk.run(&format!("{args} -o markdown {exclude}"));
        let headline = "No container sees a difference.\n";
        assert!(run.stdout.starts_with(headline), "{run:?}");
    }
}

#[test]
fn subdirectories_of_a_revision_are_said_too() {
    let checkout = Checkout::new();
    fs::create_dir(checkout.path().join("k8s/sub")).unwrap();
    checkout.write("k8s/sub/a.yaml", &map("app", "a"));
    checkout.commit("a");
    checkout.write("k8s/sub/a.yaml", &map("app", "b"));
    checkout.commit("b");
    let args = ["-f", "k8s", "--from", "a", "--to", "b", "-o", "markdown"];
    let run = checkout.diff(".", &args);
    let headline = "No container sees a difference; not compared: subdirectories of k8s\n";
    assert!(run.stdout.starts_with(headline), "{run:?}");
    let excluding = [&args[..], &["--exclude", "sub"]].concat();
    let without = checkout.diff(".", &excluding);
    let headline = "No container sees a difference.\n";
    assert!(without.stdout.starts_with(headline), "{without:?}");
    // The revisions are named, with their commits.
    let sides = run.stdout.lines().nth(2).unwrap();
    assert!(
        sides.starts_with("`from a (")
            && sides.contains(") to b (")
            && sides.contains(") of k8s, compared on 2"),
        "{sides}"
    );
}

#[test]
fn headline_never_hides_a_refusal() {
    let bad = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndata: {a: 1}\n";
    let desk = directories(&[("k8s/a.yaml", &map("app", "a")), ("k8s/bad.yaml", bad)]);
    for format in ["tree", "markdown", "html"] {
        let run = desk.run(&format!(
            "diff --from-file before.yaml --to-file k8s -o {format}"
        ));
        assert_eq!(run.code, 2, "{run:?}");
        assert!(
            !run.stdout.contains("No container sees a difference"),
            "{run:?}"
        );
        assert!(
            run.stdout
                .contains("Compared in part, without a difference; 1 not read"),
            "{run:?}"
        );
    }
}

#[test]
fn objects_of_other_kinds_are_said_in_the_headline() {
    let role = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\n";
    let side = |value: &str| {
        [
            deployment("web", "/etc"),
            map("app", value),
            role.to_owned(),
        ]
        .concat()
    };
    let changed = run(&side("a"), &side("b"), "-o markdown");
    let headline = changed.stdout.lines().next().unwrap();
    assert!(
        headline.ends_with("; not compared: 1 object of other kinds**"),
        "{headline}"
    );
    let same = run(&side("a"), &side("a"), "-o markdown");
    assert!(
        same.stdout
            .starts_with("No container sees a difference; not compared: 1 object of other kinds\n"),
        "{same:?}"
    );
}

#[test]
fn pods_of_custom_kinds_with_a_template_are_compared() {
    let check = |text: &str, name: &str| {
        let side = |value: &str| [text, &map("app", value)].concat();
        let report = diff(&side("a"), &side("b"));
        let container = &report["pods"][0]["containers"][name];
        assert_eq!(
            container["env"]["changed"]["level"],
            json!({"from": "a", "to": "b"}),
            "{report:#}"
        );
        assert_eq!(report["notCompared"], Value::Null, "{report:#}");
    };
    let env_from = "envFrom: [{configMapRef: {name: app}}]";
    for (version, kind, more) in [
        ("argoproj.io/v1alpha1", "Rollout", "strategy: {canary: {}},"),
        (
            "apps.kruise.io/v1alpha1",
            "CloneSet",
            "updateStrategy: {type: InPlaceIfPossible},",
        ),
        ("example.com/v1", "Anything", ""),
    ] {
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web, namespace: ns}}\n\
             spec: {{{more} template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, image: i, {env_from}}}]}}}}}}\n"
        );
        check(&text, "c");
    }
    // Knative names containers itself, and has fields of its own. Its Service is another one than that of its name.
    let knative = format!(
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {{name: web, namespace: ns}}\n\
         spec: {{template: {{spec: {{containerConcurrency: 3, timeoutSeconds: 9, containers: [{{image: i, {env_from}}}]}}}}}}\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: ns}}\nspec: {{ports: [{{port: 80}}]}}\n"
    );
    check(&knative, "user-container");
}

#[test]
fn template_without_containers_is_no_pod() {
    let sealed = "apiVersion: example.com/v1\nkind: Machines\nmetadata: {name: m}\nspec: {template: {spec: {cpus: 3}}}\n";
    let report = diff(sealed, sealed);
    assert_eq!(report["pods"], json!([]));
    assert_eq!(
        report["notCompared"][0],
        "skipped 1 object of other kinds: 1 Machines.example.com"
    );
}

#[test]
fn directory_of_kustomize_gets_the_pipe() {
    let kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    let desk = directories(&[
        ("k8s/a.yaml", &map("app", "a")),
        ("k8s/kustomization.yaml", kustomization),
    ]);
    let run = desk.run("diff --from-file before.yaml --to-file k8s");
    let pipe = "kubectl kustomize k8s | larder diff --from-file BEFORE.yaml --to-file -";
    assert!(
        run.stderr.contains(pipe) && run.stdout.contains(pipe),
        "{run:?}"
    );
}

#[test]
fn new_service_is_one_line_for_its_namespace_and_no_difference_of_a_container() {
    let pods: Vec<_> = (0..15)
        .map(|number| deployment(&format!("web-{number}"), "/etc"))
        .collect();
    let from = pods.concat() + &map("app", "a");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: ns}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n";
    let to = [&from, service].concat();
    let report = diff(&from, &to);
    assert_eq!(report["pods"], json!([]));
    assert_eq!(
        report["services"]["ns"]["added"].as_array().unwrap().len(),
        7
    );
    let markdown = run(&from, &to, "-o markdown");
    assert_eq!(markdown.code, 0);
    let line = "new pods of namespace ns get 7 variables of Services";
    assert_eq!(
        markdown.stdout.matches(line).count(),
        1,
        "{}",
        markdown.stdout
    );
    // Neither do those of a new pod show them.
    let report = diff(&map("app", "a"), &to);
    let container = &report["pods"][0]["containers"]["c"];
    assert_eq!(container["verdict"], "starts", "{report:#}");
    let added = container["env"]["added"].as_object().unwrap();
    assert!(
        added.keys().all(|name| !name.starts_with("DB_")),
        "{report:#}"
    );
    // A container that refers to one differs.
    let refers =
        |text: &str| text.replace("env: [", "env: [{name: URL, value: $(DB_SERVICE_HOST)}, ");
    let report = diff(&refers(&from), &refers(&to));
    let container = &report["pods"][0]["containers"]["c"];
    assert!(
        container["env"]["changed"].get("URL").is_some(),
        "{report:#}"
    );
}
