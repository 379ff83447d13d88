//! Texts made to be slow, large or deep.

use std::fmt::Write as _;

/// A text with the name of what is in it.
type Attack = (&'static str, String);

/// All attacks, each of about `size` bytes.
pub(crate) fn attacks(size: usize) -> Vec<Attack> {
    [depth, copies, scalars, documents, lists, objects, pods]
        .map(|attacks| attacks(size))
        .concat()
}

/// `text` as often as it fits into `size` bytes, and at least once.
fn fill(text: &str, size: usize) -> String {
    text.repeat((size / text.len()).max(1))
}

/// As [`fill`], with the number of each repetition.
fn fill_numbered(size: usize, part: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for number in 0.. {
        text += &part(number);
        if text.len() >= size {
            break;
        }
    }
    text
}

pub(crate) fn object(kind: &str, rest: &str) -> String {
    format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n{rest}")
}

fn pod(spec: &str) -> String {
    object(
        "Pod",
        &format!("spec:\n  containers: [{{name: c, image: i}}]\n{spec}"),
    )
}

fn container(fields: &str) -> String {
    object(
        "Pod",
        &format!("spec:\n  containers:\n  - name: c\n    image: i\n{fields}"),
    )
}

/// Anchors of which each contains the one before `copies` times.
pub(crate) fn bomb(levels: usize, copies: usize) -> String {
    let mut text = "a0: &a0 [x]\n".to_owned();
    for level in 1..=levels {
        let below = vec![format!("*a{}", level - 1); copies].join(", ");
        let _ = writeln!(text, "a{level}: &a{level} [{below}]");
    }
    text
}

/// Text that nests deeply.
fn depth(size: usize) -> Vec<Attack> {
    vec![
        ("open brackets", fill("[", size)),
        ("open braces", fill("{", size)),
        ("open JSON objects", fill("{\"a\":", size)),
        ("open JSON arrays", format!("{{\"a\":{}", fill("[", size))),
        ("sequences on one line", fill("- ", size)),
        ("complex keys", fill("? ", size)),
        ("mappings on one line", fill("a: ", size)),
        ("growing indentation", {
            fill_numbered(size, |depth| format!("{}a:\n", " ".repeat(depth)))
        }),
        ("chained anchors", bomb(size / 20, 1)),
        (
            "nested anchors",
            fill_numbered(size, |number| format!("[&a{number} ")),
        ),
        ("closing brackets", fill("]", size)),
        ("empty documents of one chunk", fill("...\n", size)),
    ]
}

/// Aliases and merge keys.
fn copies(size: usize) -> Vec<Attack> {
    vec![
        ("bomb", bomb(20, 10)),
        ("bombs", fill(&format!("---\n{}", bomb(9, 10)), size)),
        ("wide bomb", {
            let wide = fill("x, ", size / 2);
            let aliases = fill("*a, ", size / 2);
            format!("a: &a [{wide}]\nb: [{aliases}]\n")
        }),
        ("merged bomb", {
            let wide = fill_numbered(size / 2, |number| format!("k{number}: v, "));
            let merges = fill("- {<<: *a}\n", size / 2);
            format!("a: &a {{{wide}}}\nb:\n{merges}")
        }),
        ("merge keys of one mapping", {
            let merges = fill("  <<: *a\n", size);
            format!("a: &a {{k: v}}\nb:\n{merges}")
        }),
        (
            "anchors of one name",
            fill("- &a [*a]\n", size).replacen("[*a]", "x", 1),
        ),
        ("unknown aliases", fill("- *a\n", size)),
    ]
}

/// Scalars and keys.
fn scalars(size: usize) -> Vec<Attack> {
    let digits = "9".repeat(size);
    let base64 = fill("QUJD", size);
    vec![
        ("plain scalar", fill("x", size)),
        ("plain scalar of many words", fill("x ", size)),
        ("plain scalar of many lines", fill("x\n", size)),
        ("single quotes", fill("'", size)),
        ("open single quote", format!("a: '{}", fill("x\n", size))),
        ("open double quote", format!("a: \"{}", fill("\\\"", size))),
        ("escapes", format!("a: \"{}\"", fill("\\u00e4", size))),
        (
            "open JSON string",
            format!("{{\"a\": \"{}", fill("\\\\", size)),
        ),
        (
            "JSON surrogates",
            format!("{{\"a\": \"{}\"}}", fill("\\ud83d\\ude00", size)),
        ),
        ("block scalar", format!("a: |\n{}", fill("  x\n", size))),
        ("folded scalar", format!("a: >\n{}", fill("  x\n\n", size))),
        (
            "blank lines of a block scalar",
            format!("a: |\n{}", fill("\n", size)),
        ),
        ("integer", format!("a: {digits}\n")),
        ("hexadecimal integer", format!("a: 0x{digits}\n")),
        ("float", format!("a: 1.{digits}\n")),
        ("exponent", format!("a: 1e{digits}\n")),
        ("JSON integer", format!("{{\"a\": {digits}}}")),
        ("JSON float", format!("{{\"a\": 0.{digits}e-{digits}}}")),
        ("underscores", format!("a: 1{}\n", fill("_", size))),
        ("umlauts", fill("ä", size)),
        (
            "emoji keys",
            fill_numbered(size, |number| format!("😀{number}: x\n")),
        ),
        ("byte order marks", fill("\u{feff}", size)),
        ("line separators", fill("\u{2028}", size)),
        ("null bytes", fill("\0", size)),
        ("tabs", fill("\t", size)),
        ("carriage returns", fill("\r", size)),
        ("blanks", fill(" ", size)),
        ("comments", fill("#\n", size)),
        ("long comment", fill("#", size)),
        ("tags", fill("- !a x\n", size)),
        ("long tag", format!("a: !{} x\n", fill("t", size))),
        (
            "tag directives",
            format!(
                "{}---\na: 1\n",
                fill_numbered(size, |number| format!("%TAG !{number}! tag:x\n"))
            ),
        ),
        ("binary", format!("a: !!binary {base64}\n")),
        ("commas", format!("[{}", fill(",", size))),
        ("colons", fill(":", size)),
        ("colon lines", fill(":\n", size)),
        ("possible keys", format!("[{}]", fill("a, ", size))),
        ("long key", format!("{}: x\n", fill("k", size))),
        (
            "quoted keys",
            fill_numbered(size, |number| format!("\"k{number}\": x\n")),
        ),
        ("equal keys", fill("a: 1\n", size)),
        (
            "keys",
            fill_numbered(size, |number| format!("k{number}: x\n")),
        ),
    ]
}

/// Many documents.
fn documents(size: usize) -> Vec<Attack> {
    vec![
        ("separators", fill("---\n", size)),
        ("documents", fill("---\na\n", size)),
        ("bad documents", fill("---\n[\n", size)),
        ("documents of one chunk", fill("a\n...\n", size)),
        ("JSON documents", fill("{}\n", size)),
        ("JSON documents on one line", fill("{\"a\":1}", size)),
        (
            "unknown kinds",
            fill_numbered(size, |number| {
                format!("---\n{{apiVersion: x/v1, kind: K{number}, metadata: {{name: a}}}}\n")
            }),
        ),
        (
            "equal objects",
            fill(&format!("---\n{}", object("ConfigMap", "")), size),
        ),
        (
            "generated names",
            fill(
                "---\n{apiVersion: v1, kind: Node, metadata: {generateName: a}}\n",
                size,
            ),
        ),
    ]
}

/// Many objects in a list.
fn lists(size: usize) -> Vec<Attack> {
    vec![
        ("list of bad ConfigMaps", {
            let items = fill_numbered(size, |number| {
                format!(
                    "- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: c{number}}}, data: {{k: 1}}}}\n"
                )
            });
            format!("apiVersion: v1\nkind: List\nitems:\n{items}")
        }),
        ("JSON list of bad ConfigMaps", {
            let items = fill_numbered(size, |number| {
                let comma = if number == 0 { "" } else { ",\n" };
                format!(
                    r#"{comma}{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c{number}"}},"data":{{"k":1}}}}"#
                )
            });
            format!(r#"{{"apiVersion":"v1","kind":"List","items":[{items}]}}"#)
        }),
        (
            "list of nothing",
            format!(
                "apiVersion: v1\nkind: List\nitems: [{}]\n",
                fill("~,", size)
            ),
        ),
        (
            "list of lists",
            format!(
                "apiVersion: v1\nkind: List\nitems: [{}]\n",
                fill("{apiVersion: v1, kind: List},", size)
            ),
        ),
    ]
}

/// Objects with one large part.
#[expect(clippy::too_many_lines, reason = "a table")]
fn objects(size: usize) -> Vec<Attack> {
    let base64 = fill("QUJD", size);
    vec![
        (
            "bad keys of a ConfigMap",
            object(
                "ConfigMap",
                &format!(
                    "data:\n{}",
                    fill_numbered(size, |number| format!("  /{number}: x\n"))
                ),
            ),
        ),
        (
            "binary data",
            object("ConfigMap", &format!("binaryData: {{a: {base64}}}\n")),
        ),
        (
            "bad binary data",
            object("ConfigMap", &format!("binaryData: {{a: {base64}=}}\n")),
        ),
        (
            "data of a Secret",
            object("Secret", &format!("data: {{a: {base64}}}\n")),
        ),
        (
            "string data of a Secret",
            object(
                "Secret",
                &format!(
                    "stringData:\n{}",
                    fill_numbered(size, |number| format!("  k{number}: x\n"))
                ),
            ),
        ),
        (
            "bytes as numbers",
            object("Secret", &format!("data: {{a: [{}]}}\n", fill("0,", size))),
        ),
        (
            "unknown fields",
            object(
                "ConfigMap",
                &fill_numbered(size, |number| format!("k{number}: x\n")),
            ),
        ),
        (
            "unknown fields of containers",
            pod(&format!(
                "  initContainers:\n{}",
                fill("  - {imag: x}\n", size)
            )),
        ),
        (
            "labels",
            format!(
                "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels:\n{}",
                fill_numbered(size, |number| format!("    k{number}: x y\n"))
            ),
        ),
        (
            "finalizers",
            format!(
                "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  finalizers: [{}]\n",
                fill("a, ", size)
            ),
        ),
        (
            "long name",
            format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: {}}}\n",
                fill("a.", size)
            ),
        ),
        ("claims and volumes of a StatefulSet", {
            let claims = fill_numbered(size / 2, |number| {
                format!("  - metadata: {{name: v{number}}}\n")
            });
            let volumes = fill_numbered(size / 2, |number| format!("      - name: v{number}\n"));
            format!(
                "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: a}}\nspec:\n  volumeClaimTemplates:\n{claims}  template:\n    spec:\n      containers: [{{name: c, image: i}}]\n      volumes:\n{volumes}"
            )
        }),
        ("trust anchors", {
            let block =
                "    -----BEGIN CERTIFICATE-----\n    MA==\n    -----END CERTIFICATE-----\n";
            format!(
                "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {{name: a}}\nspec:\n  trustBundle: |\n{}",
                fill(block, size)
            )
        }),
        ("open trust anchors", {
            format!(
                "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {{name: a}}\nspec:\n  trustBundle: |\n{}",
                fill("    -----BEGIN CERTIFICATE-----\n", size)
            )
        }),
        ("long trust anchor", {
            format!(
                "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {{name: a}}\nspec:\n  trustBundle: |\n    -----BEGIN CERTIFICATE-----\n    {base64}\n    -----END CERTIFICATE-----\n"
            )
        }),
    ]
}

/// Pods with one long list.
#[expect(clippy::too_many_lines, reason = "a table")]
fn pods(size: usize) -> Vec<Attack> {
    let digits = "9".repeat(size);
    vec![
        (
            "containers",
            object(
                "Pod",
                &format!(
                    "spec:\n  containers:\n{}",
                    fill_numbered(size, |number| format!(
                        "  - {{name: c{number}, image: i}}\n"
                    ))
                ),
            ),
        ),
        ("volumes and mounts", {
            let volumes = fill_numbered(size / 2, |number| {
                format!("  - {{name: v{number}, emptyDir: {{}}}}\n")
            });
            let mounts = fill_numbered(size / 2, |number| {
                format!("    - {{name: v{number}, mountPath: /{number}}}\n")
            });
            format!(
                "{}  volumes:\n{volumes}",
                container(&format!("    volumeMounts:\n{mounts}"))
            )
        }),
        ("file references and volumes", {
            let volumes = fill_numbered(size / 2, |number| {
                format!("  - {{name: v{number}, emptyDir: {{}}}}\n")
            });
            let variables = fill(
                "    - {name: A, valueFrom: {fileKeyRef: {volumeName: w, path: p, key: k}}}\n",
                size / 2,
            );
            format!(
                "{}  volumes:\n{volumes}",
                container(&format!("    env:\n{variables}"))
            )
        }),
        (
            "variables",
            container(&format!(
                "    env:\n{}",
                fill_numbered(size, |number| format!(
                    "    - {{name: V{number}, value: $(V{})}}\n",
                    number + 1
                ))
            )),
        ),
        (
            "ports",
            container(&format!(
                "    ports:\n{}",
                fill("    - {containerPort: 80, hostPort: 80, name: a}\n", size)
            )),
        ),
        (
            "quantity",
            container(&format!(
                "    resources: {{limits: {{cpu: \"{digits}\"}}}}\n"
            )),
        ),
        (
            "fraction of a quantity",
            container(&format!(
                "    resources: {{limits: {{cpu: \"0.{digits}\"}}}}\n"
            )),
        ),
        (
            "exponent of a quantity",
            container(&format!(
                "    resources: {{limits: {{cpu: \"1e{digits}\"}}}}\n"
            )),
        ),
        (
            "resources",
            container(&format!(
                "    resources:\n      limits:\n{}",
                fill_numbered(size, |number| format!("        x.com/r{number}: 1\n"))
            )),
        ),
        (
            "resources of containers",
            object(
                "Pod",
                &format!(
                    "spec:\n  resources: {{limits: {{cpu: 1}}}}\n  containers:\n{}",
                    fill_numbered(size, |number| format!(
                        "  - {{name: c{number}, image: i, resources: {{limits: {{x.com/r{number}: 1}}}}}}\n"
                    ))
                ),
            ),
        ),
        (
            "items of a volume",
            pod(&format!(
                "  volumes:\n  - name: v\n    configMap:\n      name: m\n      items:\n{}",
                fill("      - {key: k, path: a/b}\n", size)
            )),
        ),
        (
            "path of an item",
            pod(&format!(
                "  volumes:\n  - name: v\n    configMap: {{name: m, items: [{{key: k, path: \"{}\"}}]}}\n",
                fill("a/../", size)
            )),
        ),
        (
            "sources of a volume",
            pod(&format!(
                "  volumes:\n  - name: v\n    projected:\n      sources:\n{}",
                fill(
                    "      - {configMap: {name: m, items: [{key: k, path: p}]}}\n",
                    size
                )
            )),
        ),
        (
            "label selector",
            pod(&format!(
                "  volumes:\n  - name: v\n    projected:\n      sources:\n      - clusterTrustBundle:\n          path: p\n          signerName: a.b/c\n          labelSelector:\n            matchExpressions:\n{}",
                fill(
                    "            - {key: a, operator: In, values: [a, b]}\n",
                    size
                )
            )),
        ),
        (
            "tolerations",
            pod(&format!(
                "  tolerations:\n{}",
                fill("  - {key: a b, operator: X}\n", size)
            )),
        ),
    ]
}
