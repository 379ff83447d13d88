//! Rights of the roles of `deploy/sidecar`, and a client that has these only.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use larder_apiserver::ApiServer;
use larder_objects::yaml::YamlDocument;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

/// Verb, resource, and name if there is one.
pub(crate) type Right = (String, String, Option<String>);

/// The rights of a role, one for each verb, resource and name.
pub(crate) fn rights(file: &str) -> BTreeSet<Right> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/sidecar")
        .join(file);
    let role = YamlDocument::parse(&fs::read_to_string(path).unwrap(), 0).unwrap();
    let role = role.value();
    let texts = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let names = texts(&rule["resourceNames"]);
        let names: Vec<_> = if names.is_empty() {
            vec![None]
        } else {
            names.into_iter().map(Some).collect()
        };
        for verb in texts(&rule["verbs"]) {
            for resource in texts(&rule["resources"]) {
                for name in &names {
                    all.insert((verb.clone(), resource.clone(), name.clone()));
                }
            }
        }
    }
    all
}

/// A client that has these rights only, as a real API server would decide; and the rights that it used.
pub(crate) fn client(
    api: &ApiServer,
    granted: BTreeSet<Right>,
    streams_lists: bool,
) -> (kube::Client, Arc<Mutex<BTreeSet<Right>>>) {
    let client = kube::Client::new(api.service(), "default");
    let used = Arc::new(Mutex::new(BTreeSet::new()));
    let log = Arc::clone(&used);
    let guarded = service_fn(move |request: Request<Body>| {
        let (client, granted, log) = (client.clone(), granted.clone(), Arc::clone(&log));
        async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let resource = request.uri().path().rsplit('/').next().unwrap().to_owned();
            let verb = if query.contains("watch=true") {
                "watch"
            } else {
                "list"
            };
            let names = query
                .split('&')
                .find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
            let right = (verb.to_owned(), resource.clone(), names.map(str::to_owned));
            let general = (verb.to_owned(), resource.clone(), None);
            let status = |code: StatusCode, text: String| {
                let body = json!({"kind": "Status", "code": code.as_u16(), "message": text});
                let mut response = Response::new(Body::from(body.to_string().into_bytes()));
                *response.status_mut() = code;
                response
            };
            if !streams_lists && query.contains("sendInitialEvents") {
                return Ok::<_, kube::Error>(status(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    String::new(),
                ));
            }
            if !granted.contains(&right) && !granted.contains(&general) {
                let text =
                    format!("{resource} is forbidden: cannot {verb} resource \"{resource}\"");
                return Ok(status(StatusCode::FORBIDDEN, text));
            }
            log.lock().insert(if granted.contains(&right) {
                right
            } else {
                general
            });
            client.send(request).await
        }
    });
    (kube::Client::new(guarded, "default"), used)
}
