//! Objects without values in the documents: what makes them decides whether they differ.

use serde_json::Value;

use super::{
    run,
    truth::{check, container, map, object, pod},
};
use crate::Desk;

const SEALED: &str = "---\napiVersion: bitnami.com/v1alpha1\nkind: SealedSecret\nmetadata: {name: db, namespace: ns}\nspec: {encryptedData: {url: AgA, user: AgB}}\n";

#[test]
fn maker_of_an_object_is_what_makes_it_differ() {
    let reads = pod(
        "env: [{name: URL, valueFrom: {secretKeyRef: {name: db, key: url}}}]",
        "",
    );
    let with = |maker: &str| [reads.as_str(), maker].concat();
    let sealed = with(SEALED);
    check(&sealed, &sealed, "same", &[]);
    check(
        &sealed,
        &with(&SEALED.replace("AgA", "AgC")),
        "unknown",
        &["secret db"],
    );
    // It reads another key.
    check(&sealed, &with(&SEALED.replace("AgB", "AgC")), "same", &[]);
    let found = container(&sealed, &reads);
    assert_eq!(found["verdict"], "fails");
    let error = "secret \"db\" not found; no longer made by SealedSecret db";
    assert_eq!(found["error"], error);
    let renamed = with(&SEALED.replace("name: db", "name: db-2"));
    assert_eq!(container(&sealed, &renamed)["verdict"], "fails");
    assert_eq!(
        container(&sealed, &with(&SEALED.replace("url:", "uri:")))["verdict"],
        "fails"
    );
    // A Secret becomes one.
    let plain = with(&object("Secret", "db", "{url: x, user: z}"));
    check(&plain, &sealed, "unknown", &["secret db"]);
    let text = run(&sealed, &with(&SEALED.replace("AgA", "AgC")), "").stdout;
    let why = "secret db, made by SealedSecret db, which differs (key url)";
    assert!(text.contains(why), "{text}");
    let certificate = "---\napiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: c, namespace: ns}\nspec: {secretName: db, dnsNames: [a]}\n";
    let reads_key = with(certificate).replace("key: url", "key: tls.key");
    check(&reads_key, &reads_key, "same", &[]);
    check(
        &reads_key,
        &reads_key.replace("[a]", "[b]"),
        "unknown",
        &["secret db"],
    );
}

#[test]
fn encrypted_values_are_their_ciphertext() {
    let secret = |url: &str| {
        format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: db, namespace: ns}}\ndata: {{url: '{url}', user: 'ENC[z]'}}\nsops: {{mac: m}}\n"
        )
    };
    let reads = pod(
        "env: [{name: URL, valueFrom: {secretKeyRef: {name: db, key: url}}}]",
        "",
    );
    let with = |url: &str| [reads.as_str(), &secret(url)].concat();
    check(&with("ENC[x]"), &with("ENC[x]"), "same", &[]);
    check(&with("ENC[x]"), &with("ENC[y]"), "unknown", &["secret db"]);
    let desk = Desk::with([("app.yaml", &with("ENC[x]"))]);
    let rendered = desk.run("render -f app.yaml -o json");
    let report: Value = serde_json::from_str(&rendered.stdout).expect(&rendered.stderr);
    let found = &report["pods"][0]["containers"]["c"];
    assert_eq!(found["env"]["URL"], "");
    assert_eq!(found["unknown"]["URL"], "secret db key url");
    let run = desk.run("exec -f app.yaml -- env");
    assert_ne!(run.code, 0, "{run:?}");
    assert!(
        run.stderr.contains("sops -d") && !run.stdout.contains("ENC"),
        "{run:?}"
    );
}

/// A pod that reads a key of the Secret `db`.
fn reads(key: &str) -> String {
    pod(
        &format!("env: [{{name: U, valueFrom: {{secretKeyRef: {{name: db, key: {key}}}}}}}]"),
        "",
    )
}

fn external(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: external-secrets.io/v1\nkind: ExternalSecret\nmetadata: {{name: {name}, namespace: ns}}\nspec: {{{spec}}}\n"
    )
}

fn from_key(key: &str) -> String {
    format!("data: [{{secretKey: url, remoteRef: {{key: {key}}}}}]")
}

#[test]
fn template_is_made_of_all_values() {
    let sealed = |url: &str| {
        let template = "url: AgA, user: AgB}, template: {data: {cfg: 'u={{ .url }}'}}}";
        let sealed = SEALED.replace("url: AgA, user: AgB}}", template);
        reads("cfg") + &sealed.replace("AgA", url)
    };
    check(&sealed("AgA"), &sealed("AgA"), "same", &[]);
    check(&sealed("AgA"), &sealed("AgC"), "unknown", &["secret db"]);
    let text = run(&sealed("AgA"), &sealed("AgC"), "").stdout;
    assert!(text.contains("which differs (key cfg, url)"), "{text}");
    let made = |key: &str| {
        let template = "target: {name: db, template: {data: {cfg: 'u={{ .url }}'}}}";
        reads("cfg") + &external("e", &format!("{template}, {}", from_key(key)))
    };
    check(&made("a"), &made("b"), "unknown", &["secret db"]);
    // The template has all keys.
    let other = made("a").replace("key: cfg}", "key: url}");
    assert_eq!(container(&made("a"), &other)["verdict"], "fails");
}

#[test]
fn maker_may_add_keys_to_an_object_of_something_else() {
    let plain = object("Secret", "db", "{other: x}");
    let merged = |key: &str| {
        external(
            "m",
            &format!(
                "target: {{name: db, creationPolicy: Merge}}, {}",
                from_key(key)
            ),
        )
    };
    let side = |key: &str, rest: &[&str]| [&*reads(key), &rest.concat()].concat();
    let [a, b] = ["a", "b"].map(merged);
    // Beside a Secret that is listed.
    check(
        &side("url", &[&plain, &a]),
        &side("url", &[&plain, &b]),
        "unknown",
        &["secret db"],
    );
    check(
        &side("other", &[&plain, &a]),
        &side("other", &[&plain, &b]),
        "same",
        &[],
    );
    let changed = plain.replace("{other: x}", "{other: z}");
    check(
        &side("other", &[&plain, &a]),
        &side("other", &[&changed, &a]),
        "restart",
        &[],
    );
    assert_eq!(
        container(&side("url", &[&plain, &a]), &side("gone", &[&plain, &a]))["verdict"],
        "fails"
    );
    // It is not known which of the two counts.
    let both = plain.replace("other", "url");
    check(
        &side("url", &[&both, &a]),
        &side("url", &[&both.replace("x}", "z}"), &a]),
        "unknown",
        &["secret db"],
    );
    // Beside one that is outside.
    check(
        &side("url", &[&a]),
        &side("url", &[&b]),
        "unknown",
        &["secret db"],
    );
    check(&side("other", &[&a]), &side("other", &[&b]), "same", &[]);
    // Beside another maker.
    let owner = external("o", "target: {name: db}, data: [{secretKey: own}]");
    check(
        &side("url", &[&owner, &a]),
        &side("url", &[&owner, &b]),
        "unknown",
        &["secret db"],
    );
    check(
        &side("own", &[&owner, &a]),
        &side("own", &[&owner, &b]),
        "same",
        &[],
    );
    let text = run(&side("url", &[&owner, &a]), &side("url", &[&owner, &b]), "").stdout;
    let words = "made by ExternalSecret o and ExternalSecret m, which differs (key url)";
    assert!(text.contains(words), "{text}");
    // Keys that are not known may be any, but those that are listed are there.
    let vault = |path: &str| {
        format!(
            "---\napiVersion: secrets.hashicorp.com/v1beta1\nkind: VaultStaticSecret\nmetadata: {{name: v, namespace: ns}}\nspec: {{path: {path}, destination: {{name: db, create: false}}}}\n"
        )
    };
    let [a, b] = ["a", "b"].map(vault);
    for key in ["url", "other"] {
        check(
            &side(key, &[&plain, &a]),
            &side(key, &[&plain, &b]),
            "unknown",
            &["secret db"],
        );
    }
    let found = container(&side("other", &[&plain, &a]), &side("other", &[&plain, &b]));
    assert_eq!(found.get("unless"), None, "{found:#}");
    let all = |rest: &[&str]| pod("envFrom: [{secretRef: {name: db}}]", "") + &rest.concat();
    check(
        &all(&[&plain]),
        &all(&[&plain, &a]),
        "unknown",
        &["secret db"],
    );
    check(&all(&[&plain, &a]), &all(&[&plain, &a]), "same", &[]);
}

#[test]
fn rendered_pod_starts_with_the_keys_that_makers_add() {
    let merged = external(
        "m",
        &format!(
            "target: {{name: db, creationPolicy: Merge}}, {}",
            from_key("a")
        ),
    );
    let rendered = |text: &str| {
        Desk::with([("app.yaml", text)])
            .run("render -f app.yaml")
            .stdout
    };
    let plain = object("Secret", "db", "{other: x}");
    let text = rendered(&[&reads("url"), &plain, &*merged].concat());
    assert!(text.contains("ready to start"), "{text}");
    // The Secret itself is outside.
    let text = rendered(&[&*reads("url"), &merged].concat());
    assert!(
        text.contains("starts if these are there") && text.contains("secret db"),
        "{text}"
    );
    let volume = pod(
        "volumeMounts: [{name: v, mountPath: /v}]",
        "volumes: [{name: v, secret: {secretName: db}}]",
    );
    let text = rendered(&[&volume, &plain, &*merged].concat());
    assert!(
        text.contains("ready to start")
            && text.contains("other  0644  1 B")
            && text.contains("url    0644  <not known"),
        "{text}"
    );
}

#[test]
fn maker_that_does_not_own_an_object_leaves_it_behind() {
    let made = |policy: &str| {
        reads("url")
            + &external(
                "e",
                &format!(
                    "target: {{name: db, creationPolicy: {policy}}}, {}",
                    from_key("a")
                ),
            )
    };
    let without = reads("url");
    for policy in ["Orphan", "Merge"] {
        check(&made(policy), &without, "same", &[]);
    }
    assert_eq!(container(&made("Owner"), &without)["verdict"], "fails");
    // This one made nothing.
    check(&made("None"), &without, "same", &[]);
    check(
        &made("None"),
        &made("None").replace("key: a}", "key: b}"),
        "same",
        &[],
    );
    // It makes the object from now on.
    assert_ne!(container(&without, &made("Orphan")), Value::Null);
}

#[test]
fn certificate_is_in_all_its_keys() {
    let side = |key: &str, host: &str| {
        let spec = format!(
            "{{secretName: db, dnsNames: [{host}], keystores: {{pkcs12: {{create: true}}}}, additionalOutputFormats: [{{type: CombinedPEM}}]}}"
        );
        reads(key)
            + &format!(
                "---\napiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {{name: c, namespace: ns}}\nspec: {spec}\n"
            )
    };
    for key in ["keystore.p12", "tls-combined.pem"] {
        check(&side(key, "a"), &side(key, "b"), "unknown", &["secret db"]);
    }
    let found = container(&side("tls.key", "a"), &side("keystore.jks", "a"));
    assert_eq!(found["verdict"], "fails");
}

#[test]
fn maker_may_be_in_another_namespace() {
    let side = |project: &str| {
        reads("url")
            + &format!(
                "---\napiVersion: secrets.doppler.com/v1alpha1\nkind: DopplerSecret\nmetadata: {{name: x, namespace: doppler-operator-system}}\nspec: {{project: {project}, managedSecret: {{name: db, namespace: ns}}}}\n"
            )
    };
    check(&side("a"), &side("a"), "same", &[]);
    check(&side("a"), &side("b"), "unknown", &["secret db"]);
}

#[test]
fn renamed_maker_makes_the_same() {
    let side = |name: &str| {
        let two = "target: {name: db}, data: [{secretKey: url}, {secretKey: user}]";
        reads("url") + &external(name, two)
    };
    let text = run(&side("one"), &side("two"), "").stdout;
    assert!(text.contains("No container sees a difference"), "{text}");
    assert!(
        text.contains("made by ExternalSecret two (") && !text.contains("differs"),
        "{text}"
    );
    // A new certificate is issued.
    let side = |name: &str| {
        reads("tls.key")
            + &format!(
                "---\napiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {{name: {name}, namespace: ns}}\nspec: {{secretName: db}}\n"
            )
    };
    check(&side("one"), &side("two"), "unknown", &["secret db"]);
}

#[test]
fn immutable_object_of_a_maker_needs_a_restart() {
    let volume = pod(
        "volumeMounts: [{name: v, mountPath: /v}]",
        "volumes: [{name: v, secret: {secretName: db}}]",
    );
    let side = |key: &str, rest: &str| {
        volume.clone()
            + &external(
                "e",
                &format!("target: {{name: db{rest}}}, {}", from_key(key)),
            )
    };
    for (rest, words) in [
        ("", "without a restart"),
        (", immutable: true", "needs a restart"),
    ] {
        let text = run(&side("a", rest), &side("b", rest), "").stdout;
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn content_that_a_maker_reads_is_part_of_what_it_makes() {
    let side = |template: &str| {
        let from = "target: {name: db, template: {templateFrom: [{configMap: {name: tpl}}]}}";
        let made = external("e", &format!("{from}, {}", from_key("a")));
        reads("cfg") + &made + &map("tpl", &format!("{{cfg: {template}}}"))
    };
    check(&side("a"), &side("a"), "same", &[]);
    check(&side("a"), &side("b"), "unknown", &["secret db"]);
}

#[test]
fn bundle_is_in_the_namespace_of_each_pod() {
    let side = |key: &str, source: &str| {
        pod(
            &format!(
                "env: [{{name: U, valueFrom: {{configMapKeyRef: {{name: ca, key: {key}}}}}}}]"
            ),
            "",
        ) + &format!(
            "---\napiVersion: trust.cert-manager.io/v1alpha1\nkind: Bundle\nmetadata: {{name: ca}}\nspec: {{sources: [{{inLine: {source}}}], target: {{configMap: {{key: ca.pem}}}}}}\n"
        )
    };
    check(&side("ca.pem", "a"), &side("ca.pem", "a"), "same", &[]);
    check(
        &side("ca.pem", "a"),
        &side("ca.pem", "b"),
        "unknown",
        &["configmap ca"],
    );
    assert_eq!(
        container(&side("ca.pem", "a"), &side("ca.crt", "a"))["verdict"],
        "fails"
    );
    let text = run(&side("ca.pem", "a"), &side("ca.pem", "b"), "").stdout;
    assert!(
        text.contains("configmap ca, made by Bundle ca, which differs"),
        "{text}"
    );
}
