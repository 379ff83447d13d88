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
    let of_key = |optional: bool| {
        let key = format!("{{name: outside, key: a, optional: {optional}}}");
        let env = format!("env: [{{name: A, valueFrom: {{secretKeyRef: {key}}}}}]");
        let from = "envFrom: [{secretRef: {name: outside, optional: true}}]";
        side(true).replace(from, &env)
    };
    check(&of_key(true), &of_key(false), "same", &[]);
    check(&of_key(false), &of_key(true), "same", &[]);
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
fn what_differs_in_a_volume_counts_where_its_mounted_part_may_show_it() {
    let side = |path: &str, data: &str| {
        let number = "{name: NUM, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}";
        let mount = format!("{{name: v, mountPath: /v, {path}}}");
        pod(
            &format!(
                "env: [{number}], envFrom: [{{secretRef: {{name: outside}}}}], volumeMounts: [{mount}]"
            ),
            "volumes: [{name: v, configMap: {name: c}}]",
        ) + &map("c", data)
    };
    let of_parts = |from: &str, to: &str, data: &str, verdict: &str| {
        let found = container(&side(from, "{ab: '1'}"), &side(to, data));
        // One that is the same is not listed.
        let is = found["verdict"].as_str().unwrap_or("same");
        assert_eq!(is, verdict, "{from} {to} {data}: {found:#}");
    };
    for part in ["$(X)", "a$(X)", "'$(X).$(Y)'"] {
        let part = format!("subPathExpr: {part}");
        of_parts(&part, &part, "{ab: '1'}", "same");
        of_parts(&part, &part, "{ab: '1', a.c: '2'}", "unknown");
    }
    for part in ["d/$(X)", "d$(X)", "$(NUM)"] {
        let part = format!("subPathExpr: {part}");
        of_parts(&part, &part, "{ab: '2'}", "same");
    }
    // Either it is another part, or the same one with another content.
    of_parts("subPath: ab", "subPathExpr: $(X)", "{ab: '1'}", "unknown");
    of_parts("subPath: ab", "subPathExpr: $(X)", "{ab: '2'}", "restart");
}

#[test]
fn file_that_both_sides_have_is_replaced_whatever_part_is_mounted() {
    let side = |data: &str, rest: &str| {
        let mounts = "{name: v, mountPath: /whole}, {name: v, mountPath: /part, subPathExpr: $(X)}";
        let pod = pod(
            &format!("envFrom: [{{secretRef: {{name: outside}}}}], volumeMounts: [{mounts}{rest}]"),
            "volumes: [{name: v, configMap: {name: c}}]",
        );
        let asks = "{name: p, annotations: {larder.dev/subpath-updates: 'true'}";
        pod.replace("{name: p", asks) + &map("c", data)
    };
    for (data, rest, verdict) in [
        ("{ab: '2'}", "", "live"),
        // A mount of a file that comes, and one that holds another one, stay as they are.
        ("{ab: '1', b: '2'}", "", "unknown"),
        ("{ab: '2'}", ", {name: v, mountPath: /part/x}", "unknown"),
    ] {
        let found = container(&side("{ab: '1'}", rest), &side(data, rest));
        assert_eq!(found["verdict"], verdict, "{data} {rest}: {found:#}");
    }
}

#[test]
fn what_makes_one_variable_the_same_makes_another_one_different() {
    let side = |a: &str, b: &str| {
        let of_key = |name: &str, key: &str| {
            format!("{{name: {name}, valueFrom: {{secretKeyRef: {{name: outside, key: {key}}}}}}}")
        };
        let env = [&of_key("V", "v"), &of_key("W", "w"), a, b];
        pod(&format!("env: [{}]", env.join(", ")), "")
    };
    let verdict = |b: &str| {
        let from = side("{name: A, value: $(V)}", "{name: B, value: $(V)}");
        let to = side("{name: A, value: $(W)}", b);
        container(&from, &to)["verdict"].clone()
    };
    assert_eq!(verdict("{name: B, value: $(W)}"), "unknown");
    assert_eq!(verdict("{name: B, value: 'a$(W)'}"), "restart");
}

#[test]
fn key_that_a_text_asks_for_is_a_variable_itself() {
    let from = pod("env: [{name: A, value: $(B)}]", "");
    let to = pod(
        "env: [{name: A, value: $(B)x}], envFrom: [{secretRef: {name: outside, optional: true}}]",
        "",
    );
    // Either nothing is in the place of `B`, or `B` is new.
    assert_eq!(container(&from, &to)["verdict"], "restart");
    let to = to.replace("$(B)x", "$(B)");
    assert_eq!(container(&from, &to)["verdict"], "unknown");
}

#[test]
fn address_is_no_number() {
    let side = |source: &str| pod(&format!("env: [{{name: A, valueFrom: {{{source}}}}}]"), "");
    let found = container(
        &side("fieldRef: {fieldPath: status.hostIP}"),
        &side("resourceFieldRef: {resource: limits.cpu}"),
    );
    assert_eq!(found["verdict"], "restart", "{found:#}");
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
