//! Results that Kubernetes itself computed for random pods, and, if available, for the pods of public manifests.
//!
//! `testdata/vectors/README.md` describes the format. `LARDER_VECTORS` names another folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use larder_objects::{ConfigMap, Kind, Object, Secret, SecretBytes, defaults};
use larder_projection::{
    ContainerView, Inputs, Need, NodeFacts, ServiceFacts, Unavailable, VolumeKind, containers,
    env_file_value, environment, expand, project,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Reads a vector file; `None` when the folder lacks it.
fn read<T: serde::de::DeserializeOwned>(name: &str) -> Option<T> {
    let folder = std::env::var_os("LARDER_VECTORS").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../testdata/vectors"
            ))
        },
        PathBuf::from,
    );
    let json = match std::fs::read(folder.join(name)) {
        Ok(json) => json,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{name}: {error}"),
    };
    Some(serde_json::from_slice(&json).unwrap_or_else(|error| panic!("{name}: {error}")))
}

#[derive(Deserialize)]
struct ExpandVectors {
    env: BTreeMap<String, String>,
    cases: Vec<ExpandCase>,
}

#[derive(Deserialize)]
struct ExpandCase {
    input: String,
    output: String,
}

#[test]
fn references_expand_as_in_kubernetes() {
    let vectors: ExpandVectors = read("expand.json").unwrap();
    assert!(!vectors.cases.is_empty());
    for case in vectors.cases {
        let expanded = expand(&case.input, |name| {
            vectors.env.get(name).map(String::as_bytes)
        });
        assert_eq!(
            String::from_utf8_lossy(&expanded),
            case.output,
            "{}",
            case.input
        );
    }
}

#[derive(Deserialize)]
struct EnvFileCase {
    content: String,
    key: String,
    value: Option<String>,
    error: Option<String>,
}

#[test]
fn env_files_read_as_in_kubernetes() {
    let cases: Vec<EnvFileCase> = read("envfile.json").unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let value = env_file_value(case.content.as_bytes(), &case.key)
            .map(|value| String::from_utf8(value).unwrap());
        let expected = match (case.value, case.error) {
            (Some(value), None) => Ok(value),
            (None, Some(error)) => Err(error),
            other => panic!("neither value nor error: {other:?}"),
        };
        let value = value.map_err(|error| error.to_string());
        assert_eq!(value, expected, "{} in {:?}", case.key, case.content);
    }
}

#[derive(Deserialize)]
struct RenderCase {
    name: String,
    pod: Value,
    objects: Vec<Value>,
    expect: Rendered,
}

#[derive(Deserialize)]
struct Rendered {
    containers: BTreeMap<String, Value>,
    volumes: BTreeMap<String, Value>,
}

#[test]
fn random_pods_see_what_kubernetes_shows_them() {
    assert_ne!(check_rendered("render.json"), Some(0));
}

#[test]
fn pods_of_public_manifests_see_what_kubernetes_shows_them() {
    // Third-party text, so the project has no copy; there is nothing to check where it is not at hand.
    assert_ne!(check_rendered("real.json"), Some(0));
}

/// Checks all cases of a file and returns their number.
fn check_rendered(file: &str) -> Option<usize> {
    let cases: Vec<RenderCase> = read(file)?;
    let count = cases.len();
    let failures: Vec<String> = cases.into_iter().flat_map(check_case).collect();
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
    Some(count)
}

/// Renders one pod and returns each difference.
fn check_case(case: RenderCase) -> Vec<String> {
    let mut pod: Pod = serde_json::from_value(case.pod).unwrap();
    defaults::pod(&mut pod);
    let inputs = inputs(&pod, &case.objects);
    let containers = containers(&pod)
        .map(|container| {
            (
                container.name.to_owned(),
                render_container(&pod, container, &inputs),
            )
        })
        .collect();
    let spec = pod.spec.as_ref().unwrap();
    let volumes = spec.volumes.iter().flatten();
    let volumes = volumes
        .filter(|volume| VolumeKind::of(volume).is_some())
        .map(|volume| (volume.name.clone(), render_volume(&pod, volume, &inputs)))
        .collect();
    let name = &case.name;
    let mut failures = differences(name, case.expect.containers, containers);
    failures.extend(differences(name, case.expect.volumes, volumes));
    failures
}

fn differences(
    case: &str,
    expected: BTreeMap<String, Value>,
    mut actual: BTreeMap<String, Value>,
) -> Vec<String> {
    let mut failures = Vec::new();
    for (name, mut expected) in expected {
        let mut actual = actual.remove(&name).unwrap_or(Value::Null);
        for side in [&mut expected, &mut actual] {
            if let Some(error) = side.get_mut("error") {
                // Only the failing is compared.
                *error = Value::Null;
            }
        }
        mask_tokens(&expected, &mut actual);
        if expected != actual {
            failures.push(format!("{case}/{name}: expected {expected}, not {actual}"));
        }
    }
    failures.extend(actual.keys().map(|name| format!("{case}/{name}: surplus")));
    failures
}

/// Data of `*` stands for any content.
fn mask_tokens(expected: &Value, actual: &mut Value) {
    for (path, file) in expected["files"].as_object().into_iter().flatten() {
        if file["data"] == "*" {
            actual["files"][path]["data"] = json!("*");
        }
    }
}

fn render_container(pod: &Pod, container: ContainerView<'_>, inputs: &Inputs) -> Value {
    match environment(pod, container, inputs) {
        Ok(environment) => {
            let variables = environment.iter();
            let variables: BTreeMap<_, _> = variables
                .map(|(name, variable)| (name, String::from_utf8_lossy(&variable.value)))
                .collect();
            json!({ "env": variables })
        }
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn render_volume(pod: &Pod, volume: &k8s_openapi::api::core::v1::Volume, inputs: &Inputs) -> Value {
    match project(pod, volume, inputs) {
        Ok(projection) => {
            let files = projection.payload.iter();
            let files: BTreeMap<_, _> = files
                .map(|(path, file)| {
                    let data = BASE64.encode(&*file.data);
                    let mode = format!("{:04o}", file.mode);
                    (path.to_string(), json!({ "data": data, "mode": mode }))
                })
                .collect();
            json!({ "files": files })
        }
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// What all containers and volumes of `pod` need, also volumes that no container mounts.
fn needs(pod: &Pod) -> BTreeSet<Need> {
    let volumes = pod.spec.as_ref().unwrap().volumes.iter().flatten();
    let of_volumes = volumes.flat_map(Need::of_volume);
    of_volumes.chain(Need::of_pod(pod)).collect()
}

/// The inputs of `pod` out of `objects`: what is not among them does not exist.
fn inputs(pod: &Pod, objects: &[Value]) -> Inputs {
    let mut inputs = Inputs::default();
    for need in needs(pod) {
        let missing = Unavailable::NotFound;
        match need {
            Need::Object(Kind::ConfigMap, name) => {
                inputs.config_maps.insert(name.into(), Err(missing));
            }
            Need::Object(Kind::Secret, name) => {
                inputs.secrets.insert(name.into(), Err(missing));
            }
            Need::Token(request) => {
                let token = Arc::new(SecretBytes::new(b"token".to_vec()));
                inputs.tokens.insert(request, Ok(token));
            }
            Need::PodCertificate(_) | Need::Services | Need::Node | Need::TrustBundles => {}
        }
    }
    let namespace = pod.metadata.namespace.as_deref();
    let mut services = Vec::new();
    for object in objects {
        let json = serde_json::to_vec(object).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let is_local = object["metadata"]["namespace"].as_str() == namespace;
        match object["kind"].as_str().unwrap() {
            "ConfigMap" if is_local => {
                let config_map = ConfigMap::from_json(&json).unwrap();
                inputs.config_maps.insert(name, Ok(Arc::new(config_map)));
            }
            "Secret" if is_local => {
                let secret = Secret::from_json(&json).unwrap();
                inputs.secrets.insert(name, Ok(Arc::new(secret)));
            }
            "Service" => {
                let service: Service = serde_json::from_slice(&json).unwrap();
                services.extend(ServiceFacts::new(&service));
            }
            "Node" => {
                let node: Node = serde_json::from_slice(&json).unwrap();
                inputs.node = Some(Arc::new(NodeFacts::new(&node)));
            }
            _ => {}
        }
    }
    inputs.services = Some(services.into());
    inputs
}
