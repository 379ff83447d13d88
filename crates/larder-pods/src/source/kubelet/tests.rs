//! The source beside a fake kubelet, and the API server behind it.

use std::{convert::Infallible, sync::Arc};

use http::{HeaderValue, Response};
use kube::{Client, client::Body};
use larder_apiserver::{ApiServer, Options};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::mpsc};
use tower::service_fn;

use super::*;
use crate::{
    identity::PodSource,
    merge::SourcePods,
    source::{ApiSource, SourceEvent, SourceReport},
};

/// A field with these bytes.
fn bytes_field(number: u64, bytes: &[u8]) -> Vec<u8> {
    [
        &varint(number << 3 | 2)[..],
        &varint(bytes.len() as u64),
        bytes,
    ]
    .concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

/// The protobuf form of an object, as Go writes it.
fn encoded(message: &str, object: &Value) -> Vec<u8> {
    let (_, declared) = SCHEMA
        .messages
        .iter()
        .find(|(name, _)| *name == message)
        .unwrap();
    let mut bytes = Vec::new();
    for field in declared.split(", ") {
        let [number, name, kind] = field.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let number = number.parse().unwrap();
        let inner = kind.trim_matches(['[', ']', '{', '}', '<', '>']);
        let mut put = |value: &Value| bytes.extend(encoded_field(number, inner, value));
        match (&object[name], &kind[..1]) {
            (_, "<") => put(object),
            (Value::Null, _) => {}
            (Value::Array(items), "[") => items.iter().for_each(put),
            (Value::Object(entries), "{") => {
                for (key, value) in entries {
                    let entry = [
                        bytes_field(1, key.as_bytes()),
                        encoded_field(2, inner, value),
                    ];
                    bytes.extend(bytes_field(number, &entry.concat()));
                }
            }
            (value, _) => put(value),
        }
    }
    bytes
}

fn encoded_field(number: u64, kind: &str, value: &Value) -> Vec<u8> {
    match (kind, value) {
        ("Quantity", Value::String(text)) => bytes_field(number, &bytes_field(1, text.as_bytes())),
        ("Time", Value::String(text)) => {
            let time: k8s_openapi::jiff::Timestamp = text.parse().unwrap();
            let seconds = [vec![8], varint(time.as_second().cast_unsigned())];
            bytes_field(number, &seconds.concat())
        }
        (_, Value::String(text)) => bytes_field(number, text.as_bytes()),
        (_, Value::Bool(flag)) => [varint(number << 3), vec![u8::from(*flag)]].concat(),
        (_, Value::Number(value)) => {
            let value = value.as_i64().unwrap().cast_unsigned();
            [varint(number << 3), varint(value)].concat()
        }
        (message, value) => bytes_field(number, &encoded(message, value)),
    }
}

/// A message of the watch.
fn event(kind: u8, pod: &Value) -> Bytes {
    let mut message = vec![8, kind];
    if !pod.is_null() {
        message.extend(bytes_field(2, &encoded("Pod", pod)));
    }
    framed(&message)
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

fn synced() -> Bytes {
    event(4, &Value::Null)
}

fn pod(name: &str, source: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("u-{name}"), "annotations": {"kubernetes.io/config.source": source}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

/// The root directory of a kubelet, and the socket in it.
fn kubelet() -> (TempDir, UnixListener) {
    let root = tempfile::tempdir().unwrap();
    let listener = listen(root.path());
    (root, listener)
}

fn listen(root: &Path) -> UnixListener {
    let socket = root.join(SOCKET);
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _ = std::fs::remove_file(&socket);
    UnixListener::bind(socket).unwrap()
}

/// Answers one call with these bytes, and this status; without one the watch stays open until the client ends it.
async fn answer(listener: &UnixListener, messages: Vec<Bytes>, status: Option<&str>) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    assert_eq!(request.uri().path(), "/v1alpha1.Pods/WatchPods");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(request.headers()["te"], "trailers");
    let mut send = respond.send_response(Response::new(()), false).unwrap();
    for message in messages {
        // In pieces that end anywhere.
        let (head, tail) = message.split_at(message.len() / 2);
        send.send_data(Bytes::copy_from_slice(head), false).unwrap();
        send.send_data(Bytes::copy_from_slice(tail), false).unwrap();
    }
    if let Some(status) = status {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_str(status).unwrap());
        trailers.insert("grpc-message", HeaderValue::from_static("no"));
        send.send_trailers(trailers).unwrap();
    }
    while connection.accept().await.is_some() {}
}

/// The first answer to a call that is answered so.
async fn opened(
    messages: Vec<Bytes>,
    status: Option<&str>,
) -> Result<CollectionEvent<StoredPod>, String> {
    let (root, listener) = kubelet();
    let socket = root.path().join(SOCKET);
    tokio::select! {
        biased;
        opened = PodsApi::open(&socket) => opened.map(|(_, all)| all).map_err(|error| error.to_string()),
        () = answer(&listener, messages, status) => unreachable!("the client holds the connection"),
    }
}

#[tokio::test]
async fn a_pod_of_the_kubelet_is_that_of_the_api_server() {
    // beside-kubelet 42
    let whole = json!({
        "metadata": {"namespace": "ns", "name": "web", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
            "deletionTimestamp": "2026-01-02T03:04:06Z", "deletionGracePeriodSeconds": 0, "labels": {"a": "1", "b": ""},
            "annotations": {"kubernetes.io/config.source": "api"}, "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "o", "controller": true}]},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "sa", "enableServiceLinks": false, "hostNetwork": true, "priority": -1,
            "terminationGracePeriodSeconds": 0, "imagePullSecrets": [{"name": "pull"}],
            "securityContext": {"runAsUser": 0, "fsGroup": 7, "supplementalGroups": [1, 2]},
            "containers": [{
                "name": "c", "image": "i", "args": ["a", ""], "lifecycle": {"stopSignal": "SIGUSR1"},
                "ports": [{"name": "web", "containerPort": 80, "protocol": "TCP"}],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": false}}},
                    {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
                ],
                "envFrom": [{"prefix": "p_", "configMapRef": {"name": "m", "optional": true}}],
                "resources": {"limits": {"cpu": "250m", "memory": "1Gi"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "subPath": "x", "bindMountOptions": ["noexec"]}],
                "securityContext": {"runAsUser": 5},
            }],
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "e", "targetContainerName": "c"}],
            "volumes": [
                {"name": "v", "configMap": {"name": "m", "defaultMode": 420, "defaultUser": 0, "items": [{"key": "k", "path": "p", "mode": 0, "user": 7}]}},
                {"name": "e", "emptyDir": {}},
                {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}}]}},
                {"name": "p", "projected": {"defaultMode": 420, "sources": [
                    {"secret": {"name": "s"}}, {"configMap": {"name": "m", "optional": true}},
                    {"serviceAccountToken": {"audience": "a", "expirationSeconds": 3607, "path": "t"}},
                    {"clusterTrustBundle": {"signerName": "s/s", "path": "c", "labelSelector": {"matchLabels": {"a": "b"},
                        "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}}},
                    {"podCertificate": {"signerName": "s/s", "keyType": "ED25519", "keyPath": "k", "maxExpirationSeconds": 3600}},
                ]}},
                {"name": "c", "csi": {"driver": "d"}},
            ],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "startTime": "2026-01-02T03:04:05Z",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 3, "image": "i", "imageID": "x", "containerID": "containerd://1",
                "state": {"waiting": {"reason": "CreateContainerConfigError"}}}],
        },
    });
    let expected: StoredPod = serde_json::from_value(whole.clone()).unwrap();
    let all = opened(vec![event(1, &whole), synced()], None)
        .await
        .unwrap();
    let CollectionEvent::All(mut pods) = all else {
        panic!("{all:?}")
    };
    let found = pods.pop().unwrap();
    assert_eq!(found.metadata.resource_version.as_str(), "7");
    assert_eq!(found.object.unwrap().decode(), expected.decode());
}

#[tokio::test]
async fn an_answer_that_is_not_understood_is_an_error() {
    // beside-kubelet 44
    let error = async |messages, status| opened(messages, status).await.unwrap_err();
    let not_ready = "the kubelet answered with status 9: \"no\"";
    assert_eq!(error(vec![], Some("9")).await, not_ready);
    assert_eq!(
        error(vec![event(1, &pod("a", "api"))], Some("8")).await,
        not_ready.replace('9', "8")
    );
    for (bytes, expected) in [
        (
            Bytes::from_static(&[1, 0, 0, 0, 0]),
            "the kubelet sent a compressed message",
        ),
        (
            Bytes::from_static(&[0, 0x7f, 0, 0, 0]),
            "the kubelet sent a message of more than 4 MiB",
        ),
        (framed(&[8]), "the kubelet sent a malformed pod"),
        (
            framed(&[8, 1, 0x12, 2, 0x0a, 9]),
            "the kubelet sent a malformed pod",
        ),
        // No name.
        (framed(&[8, 1]), "the kubelet sent a malformed pod"),
        // A list that grows in memory.
        (
            framed(
                &[
                    vec![8, 1],
                    bytes_field(2, &bytes_field(2, &[0x0a, 0].repeat(30_000))),
                ]
                .concat(),
            ),
            "the kubelet sent a malformed pod",
        ),
    ] {
        assert_eq!(error(vec![bytes], None).await, expected);
    }
    let nothing = error(vec![], Some("none")).await;
    assert_eq!(nothing, "the kubelet sent no status at the end");
}

#[tokio::test(start_paused = true)]
async fn a_silent_kubelet_is_not_waited_for() {
    // beside-kubelet 44: paused time passes while nobody sends
    let (root, _listener) = kubelet();
    let opened = PodsApi::open(&root.path().join(SOCKET)).await;
    assert!(matches!(opened, Err(PodsApiError::Timeout)));
}

#[test]
fn only_root_and_the_own_user_are_the_kubelet() {
    // beside-kubelet 45
    assert!(may_answer(0, 1000) && may_answer(1000, 1000) && may_answer(0, 0));
    assert!(!may_answer(1000, 0) && !may_answer(1000, 1001));
}

/// The next report of a source.
async fn next(reports: &mut mpsc::Receiver<SourceReport>) -> String {
    let report = reports.recv().await.unwrap();
    assert_eq!(report.source, PodSource::Api);
    match report.event {
        SourceEvent::Pods(SourcePods::All(pods)) => {
            let names: Vec<_> = pods.iter().map(|pod| pod.key().name).collect();
            format!("all [{}]", names.join(" "))
        }
        SourceEvent::Pods(SourcePods::One(pod)) => format!("one {}", pod.key().name),
        SourceEvent::Pods(SourcePods::Gone(name, uid)) => format!("gone {name} {uid}"),
        SourceEvent::Problems(problems) => format!("{} problems", problems.len()),
    }
}

/// A client of an API server that has the pod `server`, and the number of its requests.
fn api_server() -> (Client, Arc<Mutex<usize>>) {
    let requests = Arc::new(Mutex::new(0));
    let count = Arc::clone(&requests);
    let service = service_fn(move |request: Request<Body>| {
        *count.lock() += 1;
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
        async move {
            if is_watch {
                std::future::pending::<()>().await;
            }
            let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": [pod("server", "api")]});
            Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
        }
    });
    (Client::new(service, "default"), requests)
}

#[tokio::test]
async fn pods_come_from_the_kubelet_and_nothing_is_asked_of_the_api_server() {
    // beside-kubelet 42
    let (root, listener) = kubelet();
    let (client, requests) = api_server();
    let (sender, mut reports) = mpsc::channel(16);
    let source = ApiSource::new(client, "n1").beside_kubelet(root.path());
    let deleted = json!({"metadata": {"namespace": "ns", "name": "a", "uid": "u-a"}});
    let messages = vec![
        event(1, &pod("a", "api")),
        event(1, &pod("static", "file")),
        synced(),
        event(2, &pod("b", "api")),
        event(0, &Value::Null),
        event(2, &pod("static", "file")),
        event(3, &deleted),
    ];
    let script = async {
        for expected in ["all [a]", "one b", "gone a_ns u-a"] {
            assert_eq!(next(&mut reports).await, expected);
        }
    };
    tokio::select! {
        biased;
        () = script => {}
        () = answer(&listener, messages, None) => {}
        () = source.run(sender) => {}
    }
    assert_eq!(*requests.lock(), 0);
}

#[tokio::test]
async fn without_the_kubelet_pods_come_from_the_api_server() {
    // beside-kubelet 43
    let server = ApiServer::new(Options::default());
    let mut bound = pod("server", "api");
    bound["apiVersion"] = json!("v1");
    bound["kind"] = json!("Pod");
    bound["spec"]["nodeName"] = json!("n1");
    server
        .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}))
        .unwrap();
    server.apply(&bound).unwrap();
    let root = tempfile::tempdir().unwrap();
    let (sender, mut reports) = mpsc::channel(16);
    let source = ApiSource::new(Client::new(server.service(), "default"), "n1")
        .asking_kubelet(root.path(), Duration::from_millis(5));
    let script = async {
        assert_eq!(next(&mut reports).await, "all [server]");
        // It has been updated, and starts: first it does not know its pods.
        let listener = listen(root.path());
        let starting = answer(&listener, vec![], Some("9"));
        starting.await;
        let watch = answer(
            &listener,
            vec![event(1, &pod("a", "api")), synced()],
            Some("14"),
        );
        watch.await;
        assert_eq!(next(&mut reports).await, "all [a]");
        // It restarts at once.
        answer(
            &listener,
            vec![event(1, &pod("b", "api")), synced()],
            Some("14"),
        )
        .await;
        assert_eq!(next(&mut reports).await, "all [b]");
        // It is gone, as after a downgrade. Nobody was removed meanwhile.
        drop(listener);
        std::fs::remove_dir_all(root.path().join("pods-api")).unwrap();
        assert_eq!(next(&mut reports).await, "all [server]");
    };
    tokio::select! {
        biased;
        () = script => {}
        () = source.run(sender) => {}
    }
}
