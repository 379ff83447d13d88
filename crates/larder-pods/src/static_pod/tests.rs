//! Derivation, identity and the vectors of Kubernetes itself.

use std::{env, fs, path::PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::json;

use larder_objects::chain;

use super::*;
use crate::FullName;

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: c, image: 'i:1'}
";

fn on(node_name: &str) -> StaticPods {
    StaticPods::new(node_name, ApiReferences::Refuse)
}

#[track_caller]
fn from_file(node_name: &str, path: &str, text: &str) -> Pod {
    let read = on(node_name).from_file(Path::new(path), text).unwrap();
    assert!(read.more.is_none(), "{:?}", read.more);
    read.pod.decode()
}

#[track_caller]
fn refused(text: &str) -> String {
    let error = on("n1")
        .from_file(Path::new("/m/web.yaml"), text)
        .unwrap_err();
    error.to_string()
}

fn uid(metadata: &ObjectMeta) -> &str {
    metadata.uid.as_deref().unwrap()
}

#[test]
fn a_static_pod_equals_the_kubelets() {
    // managers 62
    let text = WEB.replace(
        "{name: web}",
        "{name: test, uid: '12345', namespace: mynamespace}",
    );
    let node_name = "random-test-hostname";
    let pod = from_file(node_name, "/m/web.yaml", &text);
    assert_eq!(
        FullName::of(&pod.metadata).to_string(),
        "test-random-test-hostname_mynamespace"
    );
    assert_eq!(uid(&pod.metadata), "12345");
    assert_eq!(annotation(&pod.metadata, CONFIG_HASH), Some("12345"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some(node_name));
    assert_eq!(
        spec.restart_policy.as_deref(),
        Some("Always"),
        "API defaults"
    );
    assert_eq!(
        serde_json::to_value(spec.tolerations).unwrap(),
        json!([{"operator": "Exists", "effect": "NoExecute"}])
    );
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));

    let pods = on(node_name).from_url("http://h/m", &text).unwrap();
    let [UrlPod { pod, .. }] = &pods[..] else {
        panic!("{pods:?}")
    };
    assert_eq!(uid(&pod.metadata), "12345");
    assert_eq!(pod.decode().spec.unwrap().tolerations, None);
}

#[test]
fn only_the_pods_name_has_the_node_name_lowercased() {
    // managers 63: as in the kubelet, whose validation then rejects the name of such a node.
    let mut pod = Pod::default();
    pod.metadata.name = Some("static-pod1".to_owned());
    on("Node1").derive(ManifestPlace::Url("u"), &json!({}), &mut pod);
    assert_eq!(pod.metadata.name.as_deref(), Some("static-pod1-node1"));
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("Node1"));
    let error = on("Node1")
        .from_file(Path::new("/m/web.yaml"), WEB)
        .unwrap_err();
    assert!(
        error.to_string().contains("spec.nodeName: Invalid value"),
        "{error}"
    );

    let error = refused(&WEB.replace("{name: web}", "{name: static-pod1-NODE1}"));
    assert!(error.contains("metadata.name: Invalid value"), "{error}");
}

#[test]
fn an_equal_toleration_loses_its_seconds_and_another_stays() {
    let tolerations = "
  tolerations:
  - {key: k, operator: Exists, effect: NoExecute}
  - {operator: Exists, effect: NoExecute, tolerationSeconds: 5}
";
    let pod = from_file(
        "n1",
        "/m/web.yaml",
        &format!("{}{tolerations}", WEB.trim_end()),
    );
    assert_eq!(
        serde_json::to_value(pod.spec.unwrap().tolerations).unwrap(),
        json!([
            {"key": "k", "operator": "Exists", "effect": "NoExecute"},
            {"operator": "Exists", "effect": "NoExecute"},
        ])
    );
}

#[test]
fn the_uid_depends_on_content_node_and_place_only() {
    // managers 64
    let at = |node_name: &str, path: &str, text: &str| {
        let pod = from_file(node_name, path, text);
        assert_eq!(uid(&pod.metadata).len(), 32);
        assert_eq!(
            annotation(&pod.metadata, CONFIG_HASH),
            Some(uid(&pod.metadata))
        );
        uid(&pod.metadata).to_owned()
    };
    let here = at("n1", "/m/web.yaml", WEB);
    assert_ne!(at("n1", "/m/other.yaml", WEB), here);
    assert_ne!(at("n2", "/m/web.yaml", WEB), here);
    assert_ne!(at("n1", "/m/web.yaml", &WEB.replace("i:1", "i:2")), here);
    for same in [
        format!("# a comment\n{WEB}"),
        WEB.replace("{name: web}", "\n  namespace: default\n  labels:\n  name: web"),
        r#"{"kind":"Pod","spec":{"containers":[{"image":"i:1","name":"c"}]},"apiVersion":"v1","metadata":{"name":"web"}}"#
            .to_owned(),
    ] {
        assert_eq!(at("n1", "/m/web.yaml", &same), here, "{same}");
    }
    let by_url = |url: &str| uid(&on("n1").from_url(url, WEB).unwrap()[0].pod.metadata).to_owned();
    assert_ne!(by_url("http://a/m"), by_url("http://b/m"));
}

#[test]
fn the_format_behind_the_uid_is_version_1() {
    // Fails when the format changes, which restarts every static pod: then increment the version.
    let canonical = json!({"b": [1, {"z": null, "y": "\"\n"}], "a": true, "é": 0.5});
    assert_eq!(
        canonical_json(&canonical),
        r#"{"a":true,"b":[1,{"y":"\"\n"}],"é":0.5}"#
    );
    let expected = StableHash::EMPTY
        .with("larder/static-pod/1")
        .with(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default"},"#)
        .with(r#""spec":{"containers":[{"image":"i:1","name":"c"}]}}"#)
        .with("host:Node-afile:/etc/kubernetes/manifests/web.yaml");
    let manifest = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "default", "name": "web"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    let place = ManifestPlace::File(Path::new("/etc/kubernetes/manifests/web.yaml"));
    assert_eq!(on("Node-a").uid(place, &manifest), expected.to_string());
    let node = on("node-a")
        .from_file(Path::new("/m/web.yaml"), WEB)
        .unwrap()
        .pod;
    let url = on("node-a").from_url("http://h/m", WEB).unwrap();
    let through_text = StableHash::EMPTY
        .with("larder/static-pod/1")
        .with(canonical_json(&manifest));
    assert_eq!(
        uid(&node.metadata),
        through_text.with("host:node-afile:/m/web.yaml").to_string()
    );
    assert_eq!(
        uid(&url[0].pod.metadata),
        through_text.with("url:http://h/m").to_string()
    );
}

#[test]
fn the_hash_gives_the_known_answers() {
    // managers 64
    for (text, digest) in [
        ("", "6c62272e07bb014262b821756295c58d"),
        ("a", "d228cb696f1a8caf78912b704e4a8964"),
        ("foobar", "343e1662793c64bf6f0d3597ba446f18"),
        (
            "host:node-afile:/etc/kubernetes/manifests/web.yaml",
            "7508c8b4d78e1691102d2e9e281d01f0",
        ),
    ] {
        assert_eq!(StableHash::EMPTY.with(text).to_string(), digest);
    }
}

#[test]
fn a_second_document_in_a_file_is_reported() {
    let two = format!("{WEB}---\n{}", WEB.replace("name: web", "name: second"));
    let FilePod { pod, more, .. } = on("n1").from_file(Path::new("/m/web.yaml"), &two).unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
    assert_eq!(
        more.unwrap().to_string(),
        "/m/web.yaml: document 2, line 10: only the first document of a static pod's file is read"
    );
    // A broken second document does not matter; a broken first one does.
    let broken = "apiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n";
    assert!(
        on("n1")
            .from_file(Path::new("/m/web.yaml"), &format!("{WEB}---\n{broken}"))
            .is_ok()
    );
    let error = refused(&format!("{broken}---\n{WEB}"));
    assert!(
        error.starts_with("/m/web.yaml: document 1, line 3: "),
        "{error}"
    );
}

#[test]
fn a_field_that_pods_lack_is_named_of_the_first_document_alone() {
    let misspelled = WEB.replace("image: 'i:1'", "image: 'i:1', imgePullPolicy: Never");
    let read = |text: &str| on("n1").from_file(Path::new("/m/web.yaml"), text).unwrap();
    let unknown_field = read(&misspelled).unknown_field.unwrap().to_string();
    assert!(
        unknown_field.contains("imgePullPolicy") && unknown_field.contains("/m/web.yaml"),
        "{unknown_field}"
    );
    assert!(read(WEB).unknown_field.is_none());
    let second = format!("{WEB}---\n{misspelled}");
    assert!(read(&second).unknown_field.is_none());
}

#[test]
fn other_documents_are_rejected_with_their_place() {
    let list = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n";
    for (text, part) in [
        ("", "/m/web.yaml: no pod found"),
        ("# nothing\n", "/m/web.yaml: no pod found"),
        (list, "a static pod's file cannot hold a list"),
        ("{\"kind\":\"Pod\"", "/m/web.yaml: document 1, line 1: "),
        (
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\n",
            "Role",
        ),
        (
            &WEB.replace(
                "{name: web}",
                "{name: web, annotations: {kubernetes.io/config.mirror: ''}}",
            ),
            "must not have the annotation kubernetes.io/config.mirror",
        ),
    ] {
        let error = refused(text);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_url_gives_one_pod_or_a_whole_list() {
    let item =
        |name: &str, spec: &str| format!("- metadata: {{name: {name}}}\n  spec: {{{spec}}}\n");
    let containers = "containers: [{name: c, image: i}]";
    let list = |items: &str| format!("apiVersion: v1\nkind: PodList\nitems:\n{items}");
    let from_url = |text: &str| on("n1").from_url("http://h/m", text);

    let two = list(&(item("a", containers) + &item("b", containers)));
    let names: Vec<_> = from_url(&two)
        .unwrap()
        .iter()
        .map(|one| FullName::of(&one.pod.metadata).to_string())
        .collect();
    assert_eq!(names, ["a-n1_default", "b-n1_default"]);
    assert!(
        from_url("apiVersion: v1\nkind: PodList\nitems: []\n")
            .unwrap()
            .is_empty()
    );
    assert!(from_url("# nothing").is_err());

    let reference = format!("{containers}, serviceAccountName: sa");
    let one_bad = list(&(item("a", containers) + &item("b", &reference)));
    let error = from_url(&one_bad).unwrap_err().to_string();
    assert!(
        error.ends_with("static pods may not reference serviceaccounts"),
        "{error}"
    );
    assert!(error.contains("item 2"), "{error}");
}

#[test]
fn references_are_rejected_unless_allowed() {
    // managers 65
    let with = |spec: &str| format!("{}\n{spec}", WEB.trim_end());
    let secret = with("  volumes: [{name: v, secret: {secretName: s}}]\n");
    let error = refused(&secret);
    assert!(
        error.ends_with("static pods may not reference secrets"),
        "{error}"
    );
    let allowing = StaticPods::new("n1", ApiReferences::Allow);
    assert!(
        allowing
            .from_file(Path::new("/m/web.yaml"), &secret)
            .is_ok()
    );
    let claim = with("  resourceClaims: [{name: r, resourceClaimName: r}]\n");
    assert!(
        allowing
            .from_file(Path::new("/m/web.yaml"), &claim)
            .is_err()
    );
}

#[test]
fn an_impossible_time_is_an_error_of_the_pod() {
    let text = format!("{WEB}status: {{startTime: '-009998-01-02T03:04:05Z'}}\n");
    let error = on("n1")
        .from_file(Path::new("/m/web.yaml"), &text)
        .unwrap_err();
    let text = chain(&error);
    assert!(text.contains("/m/web.yaml: document 1"), "{text}");
    assert!(text.contains("status.startTime"), "{text}");
    assert!(on("n1").from_url("http://h/m", &text).is_err());
}

#[test]
fn a_parser_panic_is_an_error_of_the_manifest() {
    let error = guarded::<()>("/m/web.yaml", || panic!("a bug")).unwrap_err();
    assert_eq!(
        chain(&error),
        "/m/web.yaml: the parser failed, which is a bug in larder"
    );
}

#[test]
fn ten_mebibytes_of_brackets_are_an_error() {
    let text = "[".repeat((10 << 20) - 1);
    assert!(on("n1").from_file(Path::new("/m/web.yaml"), &text).is_err());
    assert!(on("n1").from_url("http://h/m", &text).is_err());
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vector {
    manifest: Value,
    node_name: String,
    source: String,
    expect: Option<Value>,
    error: Option<String>,
}

/// The cause in upstream's text, which ours must contain too.
fn cause(error: &str) -> &str {
    if let Some(field) = error.strip_prefix("invalid pod: [") {
        return field.split(':').next().unwrap();
    }
    if error.starts_with("static pods may not reference") {
        return error;
    }
    if error.starts_with("no kind \"Deployment\"") {
        return "Deployment";
    }
    match error {
        "invalid pod: name is needed for the pod" => "metadata.name",
        // A ConfigMap, printed as Go has it.
        text if text.starts_with("invalid pod: &core.ConfigMap") => "ConfigMap",
        text if text.starts_with("Object 'Kind' is missing") => "kind",
        text => panic!("an error of a new sort: {text}"),
    }
}

#[test]
fn static_pods_are_those_of_kubernetes() {
    let folder = env::var_os("LARDER_VECTORS").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../testdata/vectors"
            ))
        },
        PathBuf::from,
    );
    let text = fs::read_to_string(folder.join("static.json")).unwrap();
    let vectors: Vec<Vector> = serde_json::from_str(&text).unwrap();
    assert!(vectors.len() >= 100, "{} vectors", vectors.len());
    for vector in vectors {
        let manifest = vector.manifest.to_string();
        let static_pods = on(&vector.node_name);
        let result = match vector.source.as_str() {
            "file" => static_pods
                .from_file(Path::new("/etc/kubernetes/manifests/pod.yaml"), &manifest)
                .map(|read| read.pod),
            "http" => static_pods
                .from_url("http://localhost/pod", &manifest)
                .map(|mut pods| pods.remove(0).pod),
            source => panic!("unknown source {source}"),
        };
        match (result, vector.expect, vector.error) {
            (Ok(pod), Some(expected), _) => {
                assert_eq!(summary(&pod.decode(), &expected), expected, "{manifest}");
            }
            (Err(error), _, Some(expected)) => {
                let error = error.to_string();
                assert!(
                    error.contains(cause(&expected)),
                    "{error}\n{expected}\n{manifest}"
                );
            }
            (result, expected, error) => panic!("{result:?}\n{expected:?}\n{error:?}\n{manifest}"),
        }
    }
}

/// `pod` in the form of a vector's expectation.
fn summary(pod: &Pod, expected: &Value) -> Value {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref().unwrap();
    let keys: Vec<_> = metadata
        .annotations
        .iter()
        .flatten()
        .map(|(key, _)| key)
        .collect();
    let mut summary = json!({
        "annotationKeys": keys,
        "configHashEqualsUID": annotation(&pod.metadata, CONFIG_HASH) == metadata.uid.as_deref(),
        "name": metadata.name,
        "namespace": metadata.namespace,
        "nodeName": spec.node_name,
        "phase": pod.status.as_ref().unwrap().phase,
        "tolerations": spec.tolerations,
    });
    if expected.get("uid").is_some() {
        summary["uid"] = json!(metadata.uid);
    } else {
        summary["uidLength"] = json!(uid(&pod.metadata).len());
    }
    summary
}

#[test]
fn urls_lose_their_credentials() {
    for (url, shown) in [
        (
            "https://u:p@example.com/pods?token=t#f",
            "https://example.com/pods",
        ),
        ("http://a@b@example.com:8080", "http://example.com:8080/"),
        ("http:// example.com", "<masked>"),
        ("example.com/pods", "<masked>"),
        ("https://example.com/a@b", "https://example.com/a@b"),
        ("https://example.com?x=@/", "https://example.com/"),
    ] {
        assert_eq!(shown_url(url), shown);
    }
}
