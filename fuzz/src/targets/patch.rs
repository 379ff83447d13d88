//! Patches sent to the embedded API server: the first byte chooses the type of the patch, the second the object.

use std::cell::OnceCell;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use larder_apiserver::{ApiServer, Options};
use serde_json::Value;

use super::{Target, block_on};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target::new("patch", run, Structure::Tree { prefix: 2 }, 8 << 10);

const CONFIG_MAP: &str =
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o"},"data":{"a":"1"}}"#;
const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"o","labels":{"a/b":"c"},"finalizers":["a/b"]},
    "spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}]}],"volumes":[{"name":"v","emptyDir":{}}]}}"#;

fn run(input: &[u8]) -> Outcome {
    let &[media_type, object, ref patch @ ..] = input else {
        return Outcome::rejected(&"no patch");
    };
    let media_type = match media_type {
        b'j' => "application/json-patch+json",
        b'm' => "application/merge-patch+json",
        b's' => "application/strategic-merge-patch+json",
        _ => return Outcome::rejected(&"no media type"),
    };
    let (resource, object) = match object {
        b'c' => ("configmaps", CONFIG_MAP),
        b'p' => ("pods", POD),
        _ => return Outcome::rejected(&"no object"),
    };
    thread_local! {
        static SERVER: OnceCell<ApiServer> = const { OnceCell::new() };
    }
    let server = SERVER.with(|server| {
        let server = server.get_or_init(|| ApiServer::new(Options::default()));
        // Nothing stays from the input before.
        server.emptied().expect("the machine gives random numbers")
    });
    block_on(async {
        let client = Client::new(server.service(), "default");
        let collection = format!("/api/v1/namespaces/default/{resource}");
        let (status, _) = send(
            &client,
            Method::POST,
            &collection,
            "application/json",
            object.as_bytes(),
        )
        .await;
        assert_eq!(status, 201);
        let object_path = format!("{collection}/o");
        let (status, answer) = send(&client, Method::PATCH, &object_path, media_type, patch).await;
        let message = answer["message"].as_str().unwrap_or_default();
        match status {
            200 => assert_eq!(answer["metadata"]["name"], "o"),
            400 | 409 | 413 | 422 => assert!(!message.is_empty(), "{answer}"),
            other => panic!("{other}: {answer}"),
        }
        let (_, stored) = send(&client, Method::GET, &object_path, "application/json", b"").await;
        assert_eq!(stored["metadata"]["name"], "o", "{stored}");
        Outcome::new(status == 200)
            .with(&media_type)
            .with(&resource)
            .with(&status)
            .with(&message)
    })
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    media_type: &str,
    body: &[u8],
) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media_type)
        .body(Body::from(body.to_vec()))
        .expect("all parts are of the right form");
    let answer = client
        .send(request)
        .await
        .expect("the server is in this process");
    let status = answer.status().as_u16();
    let body = answer
        .into_body()
        .collect()
        .await
        .expect("the answer ends")
        .to_bytes();
    (
        status,
        serde_json::from_slice(&body).expect("every answer is JSON"),
    )
}
