//! What only a running pod has is the same on both sides as long as nothing differs that is known to make it.

use super::truth::{check, container, pod};

/// A pod that reads a field or resource, in which something is said of it.
fn reading(source: &str, said: &str) -> String {
    pod(
        &format!("env: [{{name: X, valueFrom: {{{source}}}}}]"),
        said,
    )
}

#[test]
fn node_and_network_make_addresses() {
    let field = |path: &str| format!("fieldRef: {{fieldPath: {path}}}");
    let pod_address = field("status.podIP");
    let host_address = field("status.hostIP");
    let processors = "resourceFieldRef: {resource: limits.cpu}";
    for (source, from, to, deciding) in [
        (&*pod_address, "", "hostNetwork: true", "status.podIP"),
        (
            &*host_address,
            "nodeName: n1",
            "nodeName: n2",
            "status.hostIP",
        ),
        (processors, "nodeName: n1", "nodeName: n2", "limits.cpu"),
    ] {
        let (from, to) = (reading(source, from), reading(source, to));
        check(&from, &to, "unknown", &[deciding]);
        check(&to, &to, "same", &[]);
    }
    let (alone, placed) = ("nodeName: n1", "nodeName: n1\n  priority: 1");
    check(
        &reading(&host_address, alone),
        &reading(&host_address, placed),
        "same",
        &[],
    );
}

#[test]
fn name_of_a_workload_begins_those_of_its_pods() {
    let side = |variable: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w, namespace: ns}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec:\n      containers:\n      - {{name: c, image: i, env: [{{name: X, {variable}}}]}}\n"
        )
    };
    let name = side("valueFrom: {fieldRef: {fieldPath: metadata.name}}");
    for value in ["w", "w-", "web-1"] {
        check(
            &side(&format!("value: {value}")),
            &name,
            "restart",
            &["metadata.name"],
        );
    }
    check(&side("value: w-1-a"), &name, "unknown", &["metadata.name"]);
}

#[test]
fn template_makes_its_hash() {
    let workload = |kind: &str, label: &str, image: &str| {
        format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: w, namespace: ns}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec:\n      containers:\n      - {{name: c, image: {image}, env: [{{name: X, valueFrom: {{fieldRef: {{fieldPath: \"metadata.labels['{label}']\"}}}}}}]}}\n"
        )
    };
    for (kind, label) in [
        ("Deployment", "pod-template-hash"),
        ("StatefulSet", "controller-revision-hash"),
        ("DaemonSet", "controller-revision-hash"),
    ] {
        let (from, to) = (workload(kind, label, "i"), workload(kind, label, "j"));
        let named = format!("metadata.labels['{label}']");
        check(&from, &to, "unknown", &[&named]);
        // Its default.
        let with_default = to.replace(
            "spec:\n      containers",
            "spec:\n      restartPolicy: Always\n      containers",
        );
        check(&to, &with_default, "same", &[]);
    }
}

#[test]
fn account_and_key_type_make_a_certificate() {
    let side = |account: &str, key_type: &str| {
        pod(
            "volumeMounts: [{name: v, mountPath: /v}]",
            &format!(
                "serviceAccountName: {account}\n  automountServiceAccountToken: false\n  volumes: [{{name: v, projected: {{sources: [{{podCertificate: {{signerName: example.com/a, keyType: {key_type}, credentialBundlePath: all.pem}}}}]}}}}]"
            ),
        )
    };
    let named = "pod certificate of example.com/a";
    check(
        &side("a", "ED25519"),
        &side("b", "ED25519"),
        "unknown",
        &["ServiceAccount b", named],
    );
    check(
        &side("a", "ED25519"),
        &side("a", "RSA3072"),
        "unknown",
        &[named],
    );
    check(&side("a", "ED25519"), &side("a", "ED25519"), "same", &[]);
}

#[test]
fn account_makes_the_token_of_a_secret() {
    let reader = pod(
        "env: [{name: X, valueFrom: {secretKeyRef: {name: t, key: token}}}]",
        "",
    );
    let side = |account: &str| {
        format!(
            "{reader}---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {{name: t, namespace: ns, annotations: {{kubernetes.io/service-account.name: {account}}}}}\n"
        )
    };
    check(&side("a"), &side("b"), "unknown", &["secret t"]);
    check(&side("a"), &side("a"), "same", &[]);
    // The controller keeps what it finds.
    let with_data = |account: &str| side(account) + "stringData: {own: x}\n";
    check(&with_data("a"), &with_data("b"), "unknown", &["secret t"]);
}

#[test]
fn service_may_be_a_part_of_a_path() {
    let side = |path: &str| {
        pod(
            &format!("volumeMounts: [{{name: v, mountPath: /v, {path}}}]"),
            "volumes: [{name: v, emptyDir: {}}]",
        )
    };
    let of = |name: &str| side(&format!("subPathExpr: $({name})"));
    let literal = side("subPath: x");
    // Every cluster has the API server.
    check(
        &literal,
        &of("KUBERNETES_SERVICE_HOST"),
        "unknown",
        &["service kubernetes"],
    );
    check(&of("DB_SERVICE_HOST"), &of("DB_SERVICE_HOST"), "same", &[]);
    let found = container(&literal, &of("DB_SERVICE_HOST"));
    assert_eq!(found["unless"][0]["what"], "service db", "{found:#}");
    check(&literal, &of("OTHER"), "fails", &[]);
}

#[test]
fn condition_of_a_path_is_what_suffices() {
    let side = |env: &str, path: &str| {
        pod(
            &format!("{env}, volumeMounts: [{{name: v, mountPath: /v, {path}}}]"),
            "volumes: [{name: v, emptyDir: {}}]",
        )
    };
    let optional = |object: &str| format!("{{{object}, optional: true}}");
    let key = format!("secretKeyRef: {}", optional("name: s, key: k"));
    let of_key = format!("{{name: k, valueFrom: {{{key}}}}}");
    let sources = [
        format!("{{configMapRef: {}}}", optional("name: c")),
        format!("{{secretRef: {}}}", optional("name: s")),
    ];
    for (env, what) in [
        (format!("env: [{of_key}]"), "a path in secret s key k"),
        (
            format!("envFrom: [{}]", sources.join(", ")),
            "a path in configmap c key k or secret s key k",
        ),
        (
            format!("env: [{{name: k, value: a}}, {of_key}]"),
            "a path in secret s key k, if that exists",
        ),
        (
            "env: [{name: k, valueFrom: {secretKeyRef: {name: s, key: k}}}]".to_owned(),
            "a path in secret s key k",
        ),
    ] {
        let (from, to) = (side(&env, "subPath: x"), side(&env, "subPathExpr: $(k)"));
        let found = container(&from, &to);
        assert_eq!(found["unless"][0]["what"], what, "{found:#}");
    }
}

#[test]
fn file_is_no_directory_of_a_path() {
    let side = |path: &str| {
        let reader = pod(
            &format!("volumeMounts: [{{name: v, mountPath: /v, subPath: {path}}}]"),
            "volumes: [{name: v, configMap: {name: m}}]",
        );
        reader + &super::truth::map("m", "{a: x}")
    };
    let found = container(&side("b"), &side("a/b"));
    assert_eq!(found["verdict"], "fails", "{found:#}");
    let error = "subPath \"a/b\" of volume v: \"a\" is a file, not a directory";
    assert_eq!(found["error"], error, "{found:#}");
    check(&side("a"), &side("./a/"), "same", &[]);
}
