use http::StatusCode;
use larder_apiserver::{ApiServer, Options};
use larder_objects::ResourceVersion;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn pod() -> ObjectMeta {
    ObjectMeta {
        namespace: "n".into(),
        name: "web".into(),
        uid: "u1".into(),
        resource_version: ResourceVersion::new("0"),
        ..ObjectMeta::default()
    }
}

/// A server with the pod of [`pod`], a client, and the pod as the server has it.
async fn server() -> (ApiServer, Client, ObjectMeta) {
    let server = ApiServer::new(Options::default());
    let created = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "n", "name": "web", "uid": "u1", "annotations": {"a": "1"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]},
    });
    server.apply(&created).unwrap();
    let client = Client::new(server.service(), "n");
    let mut pod = pod();
    let version = &current(&client).await["metadata"]["resourceVersion"];
    pod.resource_version = ResourceVersion::new(version.as_str().unwrap());
    (server, client, pod)
}

async fn current(client: &Client) -> Value {
    let path = Resource::PODS
        .in_namespace("n")
        .unwrap()
        .object("web")
        .unwrap();
    let get = larder_watch::request(client, http::Method::GET, path.as_str(), None::<&()>);
    get.await.unwrap()
}

#[tokio::test]
async fn touch_sets_the_annotation_and_nothing_else() {
    let (_server, client, pod) = server().await;
    let value = next_value(at("2026-11-22T04:34:06.987Z"), None);
    let mut before = current(&client).await;
    let answer = send(&client, &pod, &value).await;
    let TouchAnswer::Touched { resource_version } = answer else {
        panic!("{answer:?}");
    };
    let mut after = current(&client).await;
    assert_eq!(
        after["metadata"]["annotations"],
        json!({"a": "1", REFRESH: "2026-11-22T04:34:06.987Z"})
    );
    assert_eq!(
        after["metadata"]["resourceVersion"],
        resource_version.as_str()
    );
    for pod in [&mut before, &mut after] {
        let metadata = pod["metadata"].as_object_mut().unwrap();
        for field in ["annotations", "resourceVersion", "managedFields"] {
            metadata.remove(field);
        }
    }
    assert_eq!(before, after);
}

#[test]
fn body_is_uid_and_annotation() {
    // beside-kubelet 20
    let value = next_value(at("2026-11-22T04:34:06.9871Z"), None);
    assert_eq!(
        body(&pod(), &value).to_string(),
        r#"{"metadata":{"annotations":{"larder.dev/refresh":"2026-11-22T04:34:06.987Z"},"uid":"u1"}}"#
    );
}

#[tokio::test]
async fn unchanged_value_is_a_no_op() {
    let (_server, client, mut pod) = server().await;
    let now = at("2026-11-22T04:34:06.987Z");
    let value = next_value(now, None);
    let TouchAnswer::Touched { resource_version } = send(&client, &pod, &value).await else {
        panic!("the first touch changes the pod");
    };
    pod.resource_version = resource_version;
    let answer = send(&client, &pod, &value).await;
    assert!(matches!(answer, TouchAnswer::NoOp), "{answer:?}");
    let later = next_value(now, Some(&value));
    let answer = send(&client, &pod, &later).await;
    assert!(matches!(answer, TouchAnswer::Touched { .. }), "{answer:?}");
}

#[test]
fn value_differs_from_the_last_one_whatever_the_clock_shows() {
    // beside-kubelet 35
    let now = at("2026-11-22T04:34:06.987Z");
    let first = next_value(now, None);
    assert_eq!(first, "2026-11-22T04:34:06.987Z");
    let again = next_value(now, Some(&first));
    assert_eq!(again, "2026-11-22T04:34:06.988Z");
    // The clock was set back by an hour.
    let back = next_value(now - SignedDuration::from_hours(1), Some(&again));
    assert_eq!(back, "2026-11-22T03:34:06.987Z");
    for end in [Timestamp::MAX, Timestamp::MIN] {
        let last = next_value(end, None);
        let other = next_value(end, Some(&last));
        assert_ne!(last, other);
    }
}

#[tokio::test]
async fn pod_that_is_gone_or_replaced_is_recognized() {
    // beside-kubelet 19
    let (server, client, pod) = server().await;
    let value = next_value(Timestamp::UNIX_EPOCH, None);
    let other = ObjectMeta {
        uid: "u2".into(),
        ..pod.clone()
    };
    let answer = send(&client, &other, &value).await;
    assert!(matches!(answer, TouchAnswer::Gone { .. }), "{answer:?}");
    server
        .delete(larder_apiserver::ApiKind::Pod, "n", "web")
        .unwrap();
    let answer = send(&client, &pod, &value).await;
    assert!(matches!(answer, TouchAnswer::Gone { .. }), "{answer:?}");
    let hostile = ObjectMeta {
        name: "..".into(),
        ..pod
    };
    let answer = send(&client, &hostile, &value).await;
    assert!(matches!(answer, TouchAnswer::Failed { .. }), "{answer:?}");
}

/// The result of a touch that an API server answers so, whose reviews grant the permission, deny it, or fail.
async fn answered_to(
    code: u16,
    retry_after: Option<&'static str>,
    body: Value,
    granted: Option<bool>,
) -> TouchAnswer {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let is_review = request.uri().path().ends_with("accessreviews");
        let (code, body) = match (is_review, granted) {
            (false, _) => (code, body.clone()),
            (true, Some(allowed)) => (201, json!({"status": {"allowed": allowed}})),
            (true, None) => (500, json!({})),
        };
        let body = kube::client::Body::from(body.to_string().into_bytes());
        let mut answer = http::Response::new(body);
        *answer.status_mut() = StatusCode::from_u16(code).unwrap();
        if let Some(retry_after) = retry_after {
            let value = http::HeaderValue::from_static(retry_after);
            answer.headers_mut().insert("Retry-After", value);
        }
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let client = Client::new(service, "n");
    let value = next_value(Timestamp::UNIX_EPOCH, None);
    send(&client, &pod(), &value).await
}

async fn answered(code: u16, retry_after: Option<&'static str>, body: Value) -> TouchAnswer {
    answered_to(code, retry_after, body, Some(true)).await
}

fn status(message: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "message": message})
}

#[tokio::test]
async fn missing_permission_is_distinguished_from_admission() {
    // beside-kubelet 22
    for message in [
        r#"pods "web" is forbidden: User "u" cannot patch resource "pods/status" in API group "" in the namespace "n""#,
        r#"admission webhook "w" denied the request: is forbidden: User "u" cannot patch"#,
        "",
    ] {
        let answer = answered_to(403, None, status(message), Some(false)).await;
        let TouchAnswer::Forbidden { permission } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(permission, "patch pods/status in the namespace \"n\"");
        let answer = answered_to(403, None, status(message), Some(true)).await;
        let TouchAnswer::Refused { message: shown } = answer else {
            panic!("{answer:?}");
        };
        assert!(shown == message || message.is_empty());
        let answer = answered_to(403, None, status(message), None).await;
        let TouchAnswer::Forbidden { permission } = answer else {
            panic!("{answer:?}");
        };
        let start = format!("patch pods/status in the namespace \"n\" (not reviewed: {shown}");
        assert!(permission.starts_with(&start), "{permission}");
    }
    for (code, message) in [
        (
            422,
            r#"pods "web" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: is invalid: metadata.uid: no"#,
        ),
        (400, r#"admission webhook "w" denied the request: no"#),
    ] {
        let answer = answered(code, None, status(message)).await;
        let TouchAnswer::Refused { message: shown } = &answer else {
            panic!("{message}: {answer:?}");
        };
        assert_eq!(shown, message);
    }
}

#[tokio::test]
async fn uid_of_another_pod_is_recognized_by_the_field() {
    let causes = |fields: &[&str]| {
        let causes = fields
            .iter()
            .map(|field| json!({"reason": "FieldValueInvalid", "field": field}));
        let causes: Vec<_> = causes.collect();
        json!({"kind": "Status", "reason": "Invalid", "message": "m", "details": {"name": "web", "causes": causes}})
    };
    for fields in [&["metadata.uid"][..], &["spec", "metadata.uid"]] {
        let answer = answered(422, None, causes(fields)).await;
        let TouchAnswer::Gone { message } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(message, "m");
    }
    let answer = answered(422, None, causes(&["metadata.annotations"])).await;
    assert!(matches!(answer, TouchAnswer::Refused { .. }), "{answer:?}");
    // If it is about the UID, the watch says so soon.
    let answer = answered(
        409,
        None,
        status("Precondition failed: UID in precondition"),
    )
    .await;
    assert!(matches!(answer, TouchAnswer::Conflict), "{answer:?}");
}

#[tokio::test]
async fn throttling_and_outages_are_distinguished() {
    // beside-kubelet 23
    for (header, expected) in [
        (Some("2"), Duration::from_secs(2)),
        (Some("3600"), Duration::from_mins(5)),
        (None, DEFAULT_RETRY_AFTER),
    ] {
        let answer = answered(429, header, status("too many")).await;
        let TouchAnswer::Throttled { retry_after } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(retry_after, expected);
    }
    for (code, body, expected) in [
        (500, "no status", "the API server has an error of its own"),
        (503, "no status", "the API server has an error of its own"),
        (
            401,
            "no status",
            "the API server does not accept the credentials",
        ),
        (200, "no pod", "the API server's answer cannot be read"),
    ] {
        let answer = answered(code, None, json!(body)).await;
        assert_eq!(answer, TouchAnswer::Failed { why: expected });
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_does_not_come_is_not_awaited_for_ever() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>(
        )
    });
    let client = Client::new(service, "n");
    let value = next_value(Timestamp::UNIX_EPOCH, None);
    let answer = send(&client, &pod(), &value).await;
    assert_eq!(answer, TouchAnswer::Failed { why: NO_ANSWER });
}

#[tokio::test]
async fn text_of_admission_is_bounded_and_has_no_control_characters() {
    let message = format!("no\u{1b}[2J\r\n{}", "é".repeat(10_000));
    let answer = answered(403, None, status(&message)).await;
    let TouchAnswer::Refused { message } = answer else {
        panic!("{answer:?}");
    };
    assert!(message.starts_with("no\\u{1b}[2J\\r\\n"), "{message}");
    assert!(message.ends_with('…') && message.len() <= MAX_TEXT + '…'.len_utf8());
    assert!(!message.contains(char::is_control));
}
