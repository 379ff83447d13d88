//! What is certain, however much is not known. The smallest inputs.

use super::truth::{check, container, map, pod};

const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: ns}\nspec: {ports: [{port: 80}, {port: 81, name: x}]}\n";

#[test]
fn many_questions_are_no_reason_to_doubt() {
    // Each variable of the Service may be a key of each object.
    let sources = "{configMapRef: {name: a}}, {configMapRef: {name: b}}, {secretRef: {name: c, optional: true}}";
    let side = pod(&format!("envFrom: [{sources}]"), "");
    check(&side, &(side.clone() + SERVICE), "same", &[]);
    // So may each of these variables be missing.
    let variable = |name: &str| {
        format!(
            "{{name: {name}, valueFrom: {{secretKeyRef: {{name: c, key: {name}, optional: true}}}}}}"
        )
    };
    let variables: Vec<_> = (0..40)
        .map(|number| variable(&format!("K{number}")))
        .collect();
    let many = |last: &str| {
        let env = variables.join(", ");
        pod(&format!("env: [{env}, {{name: X, value: {last}}}]"), "")
    };
    check(&many("'1'"), &many("'2'"), "restart", &["secret c"]);
    // Here one text depends on all of them, and there are more answers than are tried.
    let joined = |last: &str| {
        let all: Vec<_> = (0..40).map(|number| format!("$(K{number})")).collect();
        many(&format!("'{}{last}'", all.concat()))
    };
    check(&joined("1"), &joined("1"), "same", &[]);
    check(&joined("1"), &joined("2"), "unknown", &["secret c"]);
}

#[test]
fn path_of_a_mount_implies_what_it_is_made_of() {
    let side = |optional: bool| {
        pod(
            &format!(
                "envFrom: [{{secretRef: {{name: outside, optional: {optional}}}}}], volumeMounts: [{{name: v, mountPath: /v, subPathExpr: $(A)}}]"
            ),
            "volumes: [{name: v, emptyDir: {}}]",
        )
    };
    check(&side(true), &side(false), "same", &[]);
    check(&side(false), &side(true), "same", &[]);
    // Another variable may be the path, too.
    let with_default = |optional: bool| {
        side(optional).replace(
            "envFrom",
            "env: [{name: A, value: $(B)}, {name: B, value: x}], envFrom",
        )
    };
    check(
        &with_default(true),
        &with_default(false),
        "unknown",
        &["secret outside"],
    );
}

#[test]
fn texts_around_what_is_not_known_decide_the_path_of_a_mount() {
    let side = |path: &str| {
        pod(
            &format!(
                "envFrom: [{{secretRef: {{name: outside}}}}], volumeMounts: [{{name: v, mountPath: /v, subPathExpr: {path}}}]"
            ),
            "volumes: [{name: v, emptyDir: {}}]",
        )
    };
    let found = container(&side("d"), &side("d/$(X)"));
    assert_eq!(found["verdict"], "restart", "{found:#}");
    let found = container(&side("a$(X)"), &side("a$(Y)"));
    assert_eq!(found["verdict"], "unknown", "{found:#}");
    check(&side("a$(X)"), &side("a$(X)"), "same", &[]);
}

#[test]
fn text_in_the_documents_is_shown_where_a_secret_is_not_known() {
    let secret = "{name: HOST, valueFrom: {secretKeyRef: {name: outside, key: host}}}";
    let url = |scheme: &str| {
        pod(
            &format!("env: [{secret}, {{name: URL, value: '{scheme}://$(HOST)'}}]"),
            "",
        )
    };
    let text = super::run(&url("http"), &url("https"), "").stdout;
    assert!(
        text.contains("\"http://$(HOST)\" → \"https://$(HOST)\""),
        "{text}"
    );
    let optional =
        "{name: LEVEL, valueFrom: {secretKeyRef: {name: outside, key: LEVEL, optional: true}}}";
    let from_map = "{name: LEVEL, valueFrom: {configMapKeyRef: {name: defaults, key: LEVEL}}}";
    let level = |level: &str| {
        pod(&format!("env: [{from_map}, {optional}]"), "")
            + &map("defaults", &format!("{{LEVEL: {level}}}"))
    };
    let text = super::run(&level("info"), &level("debug"), "").stdout;
    assert!(text.contains("else \"info\" → \"debug\""), "{text}");
    let sources = "{configMap: {name: defaults}}, {secret: {name: outside, optional: true, items: [{key: k, path: LEVEL}]}}";
    let file = |level: &str| {
        let volumes = format!("volumes: [{{name: v, projected: {{sources: [{sources}]}}}}]");
        pod("volumeMounts: [{name: v, mountPath: /v}]", &volumes)
            + &map("defaults", &format!("{{LEVEL: {level}}}"))
    };
    let text = super::run(&file("info"), &file("debug"), "").stdout;
    assert!(text.contains("-info") && text.contains("+debug"), "{text}");
    // A Secret that any name may be of has a name itself.
    let any = |env: &str| {
        pod(
            &format!("envFrom: [{{secretRef: {{name: outside, optional: true}}}}], {env}"),
            "",
        )
    };
    let text = super::run(&any("env: [{name: A, value: x}]"), &any("env: []"), "").stdout;
    assert!(
        text.contains("from the pod → Secret outside, which is not known"),
        "{text}"
    );
}
