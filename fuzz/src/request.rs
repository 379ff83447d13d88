//! Requests to the embedded API server: the method, the path with its query, and after a line end the body.

use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use larder_apiserver::ApiKind;
use serde_json::{Value, json};

use crate::{block_on, server};

/// Reads an input; `None` if the server does not do what is asked.
pub fn run(input: &[u8]) -> Option<()> {
    let (head, body) = match input.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (input, &[][..]),
    };
    let (method, uri) = str::from_utf8(head).ok()?.split_once(' ')?;
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()));
    let request = request.ok()?;
    let server = server();
    let metadata = json!({"name": "o", "namespace": "default"});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    server.apply(&object).expect("the object is valid");
    let status = block_on(async {
        let client = Client::new(server.service(), "default");
        let answer = client.send(request).await;
        let answer = answer.expect("the server answers every request");
        let status = answer.status().as_u16();
        // A watch goes on.
        if status >= 400 {
            let body = answer.into_body().collect().await;
            let body = body.expect("an error is answered whole").to_bytes();
            let told: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = told["message"].as_str().unwrap_or_default();
            // As kube-apiserver answers a version that is no number.
            let is_version = status == 500 && message.starts_with("resourceVersion: Invalid value");
            assert!(
                status < 500 || status == 504 || is_version,
                "{status}: {told}"
            );
            assert!(
                method == "HEAD" || !body.is_empty(),
                "{status} without a reason"
            );
        }
        status
    });
    // It still serves.
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p", "namespace": "other"}});
    server.apply(&other).expect("the object is valid");
    assert!(server.get(ApiKind::ConfigMap, "other", "p").is_some());
    (status < 300).then_some(())
}
