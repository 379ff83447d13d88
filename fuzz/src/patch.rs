//! Patches sent to the embedded API server: the first byte chooses the type of the patch, the second the object.

use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use larder_apiserver::ApiKind;
use serde_json::Value;

use crate::{block_on, server};

const CONFIG_MAP: &str =
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o"},"data":{"a":"1"}}"#;
const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"o","labels":{"a/b":"c"},"finalizers":["a/b"]},
    "spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}]}],"volumes":[{"name":"v","emptyDir":{}}]}}"#;

/// Reads an input; `None` if the server does not take it.
pub fn run(input: &[u8]) -> Option<()> {
    let &[media_type, object, ref patch @ ..] = input else {
        return None;
    };
    let media_type = match media_type {
        b'j' => "application/json-patch+json",
        b'm' => "application/merge-patch+json",
        b's' => "application/strategic-merge-patch+json",
        _ => return None,
    };
    let (kind, resource, object) = match object {
        b'c' => (ApiKind::ConfigMap, "configmaps", CONFIG_MAP),
        b'p' => (ApiKind::Pod, "pods", POD),
        _ => return None,
    };
    let server = server();
    let object: Value = serde_json::from_str(object).expect("the object is JSON");
    server.apply(&object).expect("the object is valid");
    block_on(async {
        let uri = format!("/api/v1/namespaces/default/{resource}/o");
        let client = Client::new(server.service(), "default");
        let (status, answer) = send(&client, &uri, media_type, patch).await;
        let message = answer["message"].as_str().unwrap_or_default();
        match status {
            200 => assert_eq!(answer["metadata"]["name"], "o"),
            400 | 409 | 413 | 422 => assert!(!message.is_empty(), "{answer}"),
            other => panic!("{other}: {answer}"),
        }
        let stored = server.get(kind, "default", "o").unwrap_or_default();
        assert_eq!(stored["metadata"]["name"], "o", "{stored}");
        (status == 200).then_some(())
    })
}

async fn send(client: &Client, uri: &str, media_type: &str, patch: &[u8]) -> (u16, Value) {
    let request = Request::patch(uri)
        .header("content-type", media_type)
        .body(Body::from(patch.to_vec()))
        .expect("all parts are of the right form");
    let answer = client.send(request).await;
    let (head, body) = answer.expect("the server is in this process").into_parts();
    let body = body.collect().await.expect("the answer ends").to_bytes();
    let answer = serde_json::from_slice(&body).expect("every answer is JSON");
    (head.status.as_u16(), answer)
}
