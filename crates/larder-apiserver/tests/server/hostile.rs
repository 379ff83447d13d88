//! Hostile requests: each is answered, none stops the server, and no answer quotes a Secret.

use std::{collections::HashSet, convert::Infallible, fs::File, io::Read as _, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};
use larder_apiserver::{ApiKind, ApiServer, AuditLog, Body, Options};
use serde_json::{Value, json};
use tower_service::Service as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Enough for a cost that grows with the square to show: above the bounds of the history.
const PODS_IN_STORE: usize = 2000;

fn server() -> ApiServer {
    let server = ApiServer::new(Options::default());
    for object in [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"k": "v"}}, "data": {"k": "v"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": {"k": "hunter2"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}),
    ] {
        server.apply(&object).unwrap();
    }
    server
}

async fn call(
    server: &ApiServer,
    request: http::request::Builder,
    body: impl Into<Bytes>,
) -> (StatusCode, String) {
    let request: Request<Full<Bytes>> = request.body(Full::new(body.into())).unwrap();
    let response = server.service().call(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get(server: &ApiServer, path: &str) -> (StatusCode, String) {
    call(server, Request::get(path), "").await
}

async fn post(server: &ApiServer, path: &str, body: impl Into<Bytes>) -> (StatusCode, String) {
    call(server, Request::post(path), body).await
}

async fn patch(
    server: &ApiServer,
    path: &str,
    kind: &str,
    body: impl Into<Bytes>,
) -> (StatusCode, String) {
    let media_type = format!("application/{kind}+json");
    call(
        server,
        Request::patch(path).header("content-type", media_type),
        body,
    )
    .await
}

fn nested(opening: &str, middle: &str, closing: &str, depth: usize) -> String {
    format!("{}{middle}{}", opening.repeat(depth), closing.repeat(depth))
}

#[tokio::test(start_paused = true)]
async fn deep_bodies_are_rejected() {
    let server = server();
    for depth in [65, 127, 128, 100_000] {
        let deep = [
            nested("[", "", "]", depth),
            nested(r#"{"a":"#, "1", "}", depth),
            "[".repeat(depth),
        ];
        for text in deep {
            let object = format!(r#"{{"metadata": {{"name": "b"}}, "data": {text}}}"#);
            for (status, body) in [
                post(&server, MAPS, object.clone()).await,
                post(
                    &server,
                    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                    object.clone(),
                )
                .await,
                post(&server, &format!("{PODS}/a/binding"), object.clone()).await,
                call(&server, Request::put(format!("{MAPS}/a")), object.clone()).await,
                call(
                    &server,
                    Request::delete(format!("{MAPS}/a")),
                    object.clone(),
                )
                .await,
                patch(&server, &format!("{MAPS}/a"), "merge-patch", object.clone()).await,
                patch(
                    &server,
                    &format!("{MAPS}/a"),
                    "strategic-merge-patch",
                    object.clone(),
                )
                .await,
                patch(&server, &format!("{MAPS}/a"), "json-patch", text.clone()).await,
            ] {
                assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
                assert!(body.contains("exceeded max depth"), "{body}");
            }
        }
    }
    assert!(server.get(ApiKind::ConfigMap, "default", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn bodies_and_parts_that_are_no_object_are_bad_requests() {
    let server = server();
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let reviews = [
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
    ];
    let binding = format!("{PODS}/a/binding");
    let creating = [MAPS, PODS, token, &binding].into_iter().chain(reviews);
    for wrong in ["[]", "1", "\"text\"", "true", "[[]]"] {
        for path in creating.clone() {
            let mut bodies = vec![wrong.to_owned()];
            // A binding has only a target.
            if path != binding {
                bodies.push(format!(r#"{{"metadata": {wrong}}}"#));
            }
            if path == token || reviews[1..].contains(&path) {
                bodies.push(format!(r#"{{"spec": {wrong}}}"#));
            }
            for body in bodies {
                let (status, answer) = post(&server, path, body.clone()).await;
                assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}: {answer}");
            }
        }
        for request in [
            Request::put(format!("{MAPS}/a")),
            Request::delete(format!("{MAPS}/a")),
        ] {
            let (status, answer) = call(&server, request, wrong).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {answer}");
        }
    }
    assert!(server.get(ApiKind::ConfigMap, "default", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_copies_without_end_is_rejected() {
    let server = server();
    let doubling: Value = (0..40)
        .map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/{n}")}))
        .collect();
    let (status, body) = patch(
        &server,
        &format!("{MAPS}/a"),
        "json-patch",
        doubling.to_string(),
    )
    .await;
    assert!(matches!(status.as_u16(), 400 | 422), "{body}");
    let many: Value = (0..10_001)
        .map(|_| json!({"op": "test", "path": "/kind", "value": "ConfigMap"}))
        .collect();
    let (status, body) = patch(
        &server,
        &format!("{MAPS}/a"),
        "json-patch",
        many.to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        body.contains("The allowed maximum operations in a JSON patch is 10000, got 10001"),
        "{body}"
    );
}

#[tokio::test(start_paused = true)]
async fn bodies_and_objects_have_a_largest_size() {
    let server = server();
    let (status, body) = post(&server, MAPS, vec![b' '; (3 << 20) + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{body}");
    let pod = json!({"metadata": {"name": "b"}, "spec": {"containers": [
        {"name": "c", "image": "i", "args": ["x".repeat(2 << 20)]}]}});
    let (status, body) = post(&server, PODS, pod.to_string()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(body.contains("etcdserver: request is too large"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn no_number_is_too_large_for_a_time() {
    let server = server();
    for seconds in ["9223372036854775807", "31536001", "100000000000"] {
        let watch = format!("{MAPS}?watch=true&timeoutSeconds={seconds}");
        let request = Request::get(watch).body(Full::new(Bytes::new())).unwrap();
        let response = server.service().call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{seconds}");
        assert_eq!(
            get(&server, &format!("{MAPS}?timeoutSeconds={seconds}"))
                .await
                .0,
            StatusCode::OK
        );
    }
    let options = json!({"gracePeriodSeconds": i64::MAX});
    let (status, body) = call(
        &server,
        Request::delete(format!("{PODS}/a")),
        options.to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let pod = json!({"metadata": {"name": "b"}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": i64::MAX,
        "containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(
        post(&server, PODS, pod.to_string()).await.0,
        StatusCode::CREATED
    );
    assert_eq!(
        call(&server, Request::delete(format!("{PODS}/b")), "")
            .await
            .0,
        StatusCode::OK
    );
    let token = json!({"spec": {"expirationSeconds": i64::MAX}});
    server
        .apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}))
        .unwrap();
    let (status, body) = post(
        &server,
        "/api/v1/namespaces/default/serviceaccounts/a/token",
        token.to_string(),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
}

#[tokio::test(start_paused = true)]
async fn odd_versions_and_tokens_get_an_error() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    let server = server();
    for (version, expected) in [
        ("18446744073709551615", 504),
        ("18446744073709551616", 400),
        ("%2B5", 400),
        ("-1", 400),
        ("0x10", 400),
    ] {
        let (status, body) = get(&server, &format!("{MAPS}?resourceVersion={version}")).await;
        assert_eq!(status.as_u16(), expected, "{version} {body}");
    }
    for (token, expected) in [
        (json!({"rv": i64::MAX, "namespace": "", "name": ""}), 504),
        (json!({"rv": 1, "namespace": "", "name": ""}), 410),
        (json!({"rv": "1", "namespace": "", "name": ""}), 400),
        (json!([]), 400),
    ] {
        let token = URL_SAFE_NO_PAD.encode(token.to_string());
        let (status, body) = get(&server, &format!("{MAPS}?limit=1&continue={token}")).await;
        assert_eq!(status.as_u16(), expected, "{body}");
    }
    assert_eq!(
        get(&server, &format!("{MAPS}?limit=1&continue=%00%FF"))
            .await
            .0,
        400
    );
    assert_eq!(
        get(&server, &format!("{MAPS}?limit=99999999999999999999"))
            .await
            .0,
        400
    );
    assert_eq!(
        get(&server, &format!("{MAPS}?limit=9223372036854775807"))
            .await
            .0,
        200
    );
    assert_eq!(
        get(&server, &format!("{MAPS}?limit=-9223372036854775808"))
            .await
            .0,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn long_selectors_are_answered() {
    let server = server();
    for n in 0..2000 {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n}")}});
        server.apply(&map).unwrap();
    }
    let values: Vec<_> = (0..8_000).map(|n| format!("v{n}")).collect();
    let (status, body) = get(
        &server,
        &format!("{MAPS}?labelSelector=k%20notin%20({})", values.join(",")),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let fields = "metadata.name!=b,".repeat(3000);
    assert_eq!(
        get(&server, &format!("{MAPS}?fieldSelector={fields}"))
            .await
            .0,
        StatusCode::OK
    );
    for selector in [
        "((((((",
        "a%20in%20(",
        "a%20in%20((((",
        "%00",
        "a%0Ab",
        "!!!!a",
        ",,,,",
        "a===b",
        "a%3E999999999999999999999",
    ] {
        let (status, _) = get(&server, &format!("{MAPS}?labelSelector={selector}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{selector}");
    }
}

#[tokio::test(start_paused = true)]
async fn odd_names_in_paths_are_not_found() {
    let server = server();
    for name in [
        "%2E%2E",
        "..%2F..%2Fsecrets%2Fa",
        "%00",
        "a%0D%0Ab",
        "%F0%9F%92%A9",
        "a%20b",
        "%22%7D%5D",
    ] {
        let (status, body) = get(&server, &format!("{MAPS}/{name}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{name}");
        assert!(serde_json::from_str::<Value>(&body).is_ok(), "{body}");
        let (status, _) = get(&server, &format!("/api/v1/namespaces/{name}/configmaps")).await;
        assert_eq!(status, StatusCode::OK, "{name}");
    }
    assert_eq!(
        get(&server, &format!("{MAPS}/%FF")).await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        get(&server, &"/a".repeat(30_000)).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test(start_paused = true)]
async fn no_answer_quotes_a_secret() {
    let server = server();
    let canary = "hunter2";
    for body in [
        r#"{"metadata": {"name": "b"}, "data": {"k": "hunter2"#.to_owned(),
        r#"{"metadata": {"name": "b"}, "data": {"k": "hunter2!"}}"#.to_owned(),
        r#"{"metadata": {"name": "b"}, "data": "hunter2"}"#.to_owned(),
        r#"{"metadata": {"name": "b"}, "data": ["hunter2"]}"#.to_owned(),
        r#"{"metadata": {"name": "b"}, "stringData": {"k": ["hunter2"]}}"#.to_owned(),
        r#"{"metadata": {"name": "b"}, "immutable": "hunter2"}"#.to_owned(),
        r#"{"metadata": {"name": "b"}, "stringData": {"k": "hunter2"} "hunter2"}"#.to_owned(),
        "\u{feff}hunter2".to_owned(),
        r#"{"metadata": {"name": "b", "finalizers": "hunter2"}, "stringData": {"k": "hunter2"}}"#
            .to_owned(),
    ] {
        for (status, answer) in [
            post(&server, SECRETS, body.clone()).await,
            post(
                &server,
                &format!("{SECRETS}?fieldValidation=Strict"),
                body.clone(),
            )
            .await,
            call(&server, Request::put(format!("{SECRETS}/a")), body.clone()).await,
            call(
                &server,
                Request::delete(format!("{SECRETS}/a")),
                body.clone(),
            )
            .await,
            patch(
                &server,
                &format!("{SECRETS}/a"),
                "merge-patch",
                body.clone(),
            )
            .await,
            patch(
                &server,
                &format!("{SECRETS}/a"),
                "strategic-merge-patch",
                body.clone(),
            )
            .await,
            patch(&server, &format!("{SECRETS}/a"), "json-patch", body.clone()).await,
            patch(
                &server,
                &format!("{SECRETS}/a"),
                "json-patch",
                format!(r#"[{{"op": "add", "path": "/data", "value": {body}}}]"#),
            )
            .await,
            post(&server, &format!("{PODS}/a/binding"), body.clone()).await,
            post(&server, &format!("{PODS}/a/eviction"), body.clone()).await,
            // A Secret that was sent to the wrong place.
            post(&server, MAPS, body.clone()).await,
            post(&server, PODS, body.replace("data", "spec")).await,
        ] {
            let quoted = answer.contains(canary) && !status.is_success();
            assert!(!quoted, "{status} {answer} to {body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_json_are_rejected() {
    let server = server();
    for body in [
        &b"\xff\xfe"[..],
        b"{\"a\":\"\xc3\x28\"}",
        b"",
        b"nul",
        b"{}{}",
        b"1e99999",
        b"\"\\ud800\"",
    ] {
        assert_eq!(
            post(&server, MAPS, body.to_vec()).await.0,
            StatusCode::BAD_REQUEST,
            "{body:?}"
        );
    }
    // The last of two equal keys counts, as in Go.
    let twice = r#"{"metadata": {"name": "twice"}, "data": {"k": "1", "k": "2"}}"#;
    assert_eq!(post(&server, MAPS, twice).await.0, StatusCode::CREATED);
    assert_eq!(
        server.get(ApiKind::ConfigMap, "default", "twice").unwrap()["data"]["k"],
        "2"
    );
}

#[tokio::test(start_paused = true)]
async fn an_audit_record_is_one_line_whatever_the_request() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let audit = AuditLog::to_writer(File::create(&path).unwrap());
    let server = ApiServer::new(Options::default().audit(audit));
    let request = Request::get(format!("{MAPS}/a%0A%7B%7D?x=%0A\u{2028}")).header(
        "user-agent",
        http::HeaderValue::from_bytes(b"\xff\"}\t\xc2\x85{").unwrap(),
    );
    call(&server, request, "").await;
    call(&server, Request::get("/version"), "").await;
    let mut text = String::new();
    File::open(&path)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{text:?}");
    assert_eq!(lines[1]["path"], "/version");
}

#[tokio::test(start_paused = true)]
async fn an_audit_log_that_is_not_read_does_not_stop_the_server() {
    use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    assert!(AuditLog::to_file(&path).is_err(), "no process reads it");
    let reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let audit = AuditLog::to_file(&path).unwrap();
    let server = ApiServer::new(Options::default().audit(audit));
    // More than a pipe holds, in lines longer than it takes at once.
    let long = "x".repeat(10_000);
    for n in 0..20 {
        assert_eq!(
            get(&server, &format!("/version?n={n}&{long}")).await.0,
            StatusCode::OK
        );
    }
    let mut reader = File::from(reader);
    let mut bytes = Vec::new();
    // The pipe stays open, so that an error ends the reading.
    assert!(reader.read_to_end(&mut bytes).is_err());
    assert_eq!(get(&server, "/version?n=last").await.0, StatusCode::OK);
    assert!(reader.read_to_end(&mut bytes).is_err());
    let text = String::from_utf8(bytes).unwrap();
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.last().unwrap()["query"], "n=last");
    assert!((3..20).contains(&records.len()), "{}", records.len());
}

#[tokio::test(start_paused = true)]
async fn thousands_of_pods_and_watches_are_served() {
    let server = ApiServer::new(Options::default());
    for n in 0..PODS_IN_STORE {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{n}"), "uid": format!("u{n}")},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        server.apply(&pod).unwrap();
    }
    // A thousand watches of one name each, which are never read, and ten of all pods.
    let mut watches = Vec::new();
    for n in 0..1010 {
        let name = if n < 1000 {
            format!("&fieldSelector=metadata.name%3Dp{n}")
        } else {
            String::new()
        };
        let watch = format!(
            "{PODS}?watch=true&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan{name}"
        );
        let request = Request::get(watch).body(Full::new(Bytes::new())).unwrap();
        watches.push(server.service().call(request).await.unwrap());
    }
    let (mut seen, mut path) = (0, format!("{PODS}?limit=500"));
    loop {
        let (_, page) = get(&server, &path).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        seen += page["items"].as_array().unwrap().len();
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        path = format!("{PODS}?limit=500&continue={token}");
    }
    assert_eq!(seen, PODS_IN_STORE);
    for n in 0..PODS_IN_STORE {
        let binding = json!({"metadata": {"name": format!("p{n}")}, "target": {"kind": "Node", "name": format!("n{}", n % 100)}});
        let (status, _) = post(
            &server,
            &format!("{PODS}/p{n}/binding"),
            binding.to_string(),
        )
        .await;
        assert_eq!(status, StatusCode::CREATED);
    }
    let (_, bound) = get(&server, &format!("{PODS}?fieldSelector=spec.nodeName%3Dn7")).await;
    let bound: Value = serde_json::from_str(&bound).unwrap();
    assert_eq!(
        bound["items"].as_array().unwrap().len(),
        PODS_IN_STORE / 100
    );
    // A watch that was never read ends with 410 instead of holding the past.
    let late = watches.pop().unwrap().into_body();
    let frames = tokio::time::timeout(Duration::from_secs(5), late.collect())
        .await
        .unwrap()
        .unwrap()
        .to_bytes();
    assert!(
        String::from_utf8_lossy(&frames).contains("\"code\":410"),
        "{} bytes",
        frames.len()
    );
}

/// A response that its client does not read.
async fn unread(server: &ApiServer, path: &str, accept: &str) -> Response<Body> {
    let request = Request::get(path).header("accept", accept);
    let request = request.body(Full::new(Bytes::new())).unwrap();
    server.service().call(request).await.unwrap()
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// Adds `number` `ConfigMaps` of this many bytes, and changes each.
fn put_maps(server: &ApiServer, number: usize, bytes: usize) {
    for value in ["1", "2"] {
        for n in 0..number {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n}")},
                "data": {"k": value.repeat(bytes)}});
            server.apply(&map).unwrap();
        }
    }
}

// Attack: 40 connections with 100 streams of HTTP/2 each, whose windows are closed.
#[tokio::test(start_paused = true)]
async fn streams_without_a_window_share_one_copy_of_a_list() {
    const OBJECTS: usize = 20;
    const LARGE: usize = 16 << 10;
    let server = server();
    put_maps(&server, OBJECTS, LARGE);
    let watch = format!("{MAPS}?watch=true");
    for (path, streams) in [(MAPS, 4000), (&watch, 400)] {
        let mut responses = Vec::new();
        for _ in 0..streams {
            let response = unread(&server, path, "*/*").await;
            assert_eq!(response.status(), StatusCode::OK);
            responses.push(response.into_body());
        }
        let mut places = HashSet::new();
        for body in &mut responses {
            let mut seen = 0;
            while seen < OBJECTS {
                let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
                if frame.len() >= LARGE {
                    places.insert(frame.as_ptr());
                    seen += 1;
                } else {
                    assert!(frame.len() < LARGE / 2, "a copy of {} bytes", frame.len());
                }
            }
        }
        assert_eq!(places.len(), OBJECTS, "{path}");
    }
}

// The same attack with documents that are made for each client.
#[tokio::test(start_paused = true)]
async fn tables_that_nobody_reads_take_bounded_memory() {
    let server = server();
    put_maps(&server, 10, 500 << 10);
    let path = format!("{MAPS}?includeObject=Object");
    let mut responses = Vec::new();
    let rejected = loop {
        let response = unread(&server, &path, TABLE).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        responses.push(response);
        assert!(responses.len() < 20, "more than 64 MiB");
    };
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["retry-after"], "1");
    // Others are served meanwhile, and a watch of tables ends with the same error.
    assert_eq!(get(&server, MAPS).await.0, StatusCode::OK);
    let watch = unread(&server, &format!("{path}&watch=true"), TABLE).await;
    let mut watched = Vec::new();
    let mut body = watch.into_body();
    let error = loop {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        if frame.starts_with(br#"{"type":"ERROR""#) {
            break frame;
        }
        watched.push(frame);
    };
    assert!(String::from_utf8_lossy(&error).contains(r#""code":429"#));
    assert!(body.frame().await.is_none());
    drop((watched, responses));
    let response = unread(&server, &path, TABLE).await;
    assert_eq!(response.status(), StatusCode::OK);
}

// Attack: clients that begin bodies and do not finish them.
#[tokio::test(start_paused = true)]
async fn unfinished_bodies_take_bounded_memory() {
    let server = server();
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}).to_string();
    let mut unfinished = Vec::new();
    let rejected = loop {
        let begun = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![
            b' ';
            3 << 20
        ])))]);
        let request = Request::post(MAPS).body(StreamBody::new(begun.chain(stream::pending())));
        let mut response = server.service().call(request.unwrap());
        match (&mut response).now_or_never() {
            Some(response) => break response.unwrap(),
            None => unfinished.push(response),
        }
        assert!(unfinished.len() < 22, "more than 64 MiB");
    };
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["retry-after"], "1");
    // Reads need no body, and what is small has room.
    assert_eq!(get(&server, MAPS).await.0, StatusCode::OK);
    assert_eq!(post(&server, MAPS, map).await.0, StatusCode::CREATED);
    let ended = unfinished.pop().unwrap().await.unwrap();
    assert_eq!(ended.status(), StatusCode::GATEWAY_TIMEOUT);
    let large = post(&server, MAPS, vec![b' '; 3 << 20]).await;
    assert_eq!(large.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn lists_state_their_length_whatever_their_items_are() {
    for (objects, bytes) in [
        (0, 0),
        (1, 10),
        (1, 1 << 20),
        (300, 100),
        (30, 5000),
        (9, 9000),
    ] {
        let server = ApiServer::new(Options::default());
        put_maps(&server, objects, bytes);
        for path in [MAPS, &format!("{MAPS}?limit=7")] {
            let response = unread(&server, path, "*/*").await;
            let stated = response.body().size_hint().exact().unwrap();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len() as u64, stated);
            let list: Value = serde_json::from_slice(&body).unwrap();
            let items = list["items"].as_array().unwrap();
            let wanted = if path == MAPS {
                objects
            } else {
                objects.min(7)
            };
            assert_eq!(items.len(), wanted);
            for item in items {
                assert_eq!(item["data"]["k"].as_str().map(str::len), Some(bytes));
            }
        }
    }
}
