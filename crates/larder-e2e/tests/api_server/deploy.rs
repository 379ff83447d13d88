//! The kustomizations of `deploy/` are applied unchanged, each base with each component.
//!
//! A real API server takes every object, with strict validation of its fields. The embedded one has no apps/v1 and no
//! RBAC, so there a workload is created as the pod of its template, and of roles only the bindings are checked. On
//! both, the pod of the template must be admitted, and the agent must accept its configuration. `rbac.rs` compares the
//! roles with what the agent requests.

#![expect(clippy::print_stdout, reason = "says what was not created")]

use std::{fs, path::Path, process::Command};

use http::Request;
use kube::Client;
use larder_agent::config::{Config, Flags, Host};
use larder_e2e::{Server, deploy};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder of `deploy/` and its kustomization.
struct Kustomization {
    name: String,
    content: Value,
}

impl Kustomization {
    /// All of them, by name.
    fn all() -> Vec<Self> {
        Self::within("")
    }

    /// Those in the subfolders of a folder, by name.
    fn within(folder: &str) -> Vec<Self> {
        let folders = fs::read_dir(deploy::folder().join(folder)).unwrap();
        let paths = folders.map(|folder| folder.unwrap().path());
        let mut all: Vec<_> = paths
            .filter(|path| path.join("kustomization.yaml").exists())
            .map(|path| Self {
                name: path
                    .strip_prefix(deploy::folder())
                    .unwrap()
                    .display()
                    .to_string(),
                content: deploy::documents(path.join("kustomization.yaml")).remove(0),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn is_component(&self) -> bool {
        self.content["kind"] == "Component"
    }

    /// The objects of a component, which kustomize adds to those of a base.
    fn resources(&self) -> Vec<Value> {
        let files = self.content["resources"].as_array().unwrap().iter();
        let paths = files.map(|file| Path::new(&self.name).join(file.as_str().unwrap()));
        paths.flat_map(deploy::documents).collect()
    }
}

/// What `kubectl apply -k` would send for an overlay of a base with components that patch it; `None` without kubectl,
/// which CI must have.
fn rendered(base: &str, components: &[&Kustomization]) -> Option<Vec<Value>> {
    let overlay = TempDir::with_prefix("larder-e2e-").unwrap();
    let path = overlay.path().canonicalize().unwrap();
    // kustomize takes no absolute paths.
    let up = "../".repeat(path.components().count() - 1);
    let deploy = deploy::folder().canonicalize().unwrap();
    let place = |name: &str| {
        format!(
            "{up}{}",
            deploy.join(name).strip_prefix("/").unwrap().display()
        )
    };
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [place(base)],
        "components": components.iter().map(|component| place(&component.name)).collect::<Vec<_>>(),
    });
    fs::write(path.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let output = Command::new("kubectl").arg("kustomize").arg(&path).output();
    let Ok(output) = output else {
        assert!(std::env::var_os("CI").is_none(), "CI must have kubectl");
        println!("skipped: kubectl renders the bases");
        return None;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{base}: {error}");
    Some(deploy::documents_of(
        str::from_utf8(&output.stdout).unwrap(),
    ))
}

/// Creates `object`, on a path made from its kind.
pub(crate) async fn create(admin: &Client, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let (kind, version) = (text("/kind").unwrap(), text("/apiVersion").unwrap());
    let group = if version.contains('/') {
        format!("/apis/{version}")
    } else {
        format!("/api/{version}")
    };
    let namespace = text("/metadata/namespace")
        .map(|namespace| format!("/namespaces/{namespace}"))
        .unwrap_or_default();
    let plural = match kind.to_lowercase() {
        kind if kind.ends_with('y') => format!("{}ies", kind.trim_end_matches('y')),
        kind => format!("{kind}s"),
    };
    let path = format!("{group}{namespace}/{plural}?fieldValidation=Strict");
    let request = Request::post(path).body(object.to_string().into_bytes());
    let answer = admin.request::<Value>(request.unwrap()).await;
    if let Err(error) = answer {
        panic!("{kind} {:?}: {error}", text("/metadata/name"));
    }
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let objects = objects.iter();
    objects.filter(|object| object["kind"] == kind).collect()
}

/// Kinds that run pods from a template.
const WORKLOADS: [&str; 2] = ["Deployment", "DaemonSet"];

/// Kinds that grant and limit permissions.
const PERMISSIONS: [&str; 6] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Whether the embedded API server has the kind.
fn is_embedded_kind(kind: &str) -> bool {
    larder_apiserver::ApiKind::of_name(kind).is_some()
}

/// The pod that a controller would create from the template of a workload.
fn pod_of(workload: &Value) -> Value {
    let template = &workload["spec"]["template"];
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": template["metadata"], "spec": template["spec"],
    });
    pod["metadata"]["name"] = json!("of-template");
    pod["metadata"]["namespace"] = workload["metadata"]["namespace"].clone();
    pod
}

/// Checks that every binding names a role and a service account among `objects`, and that every role is bound.
fn check_bindings(objects: &[Value]) {
    let name = |object: &Value| {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
        (
            text("/metadata/namespace").unwrap_or_default().to_owned(),
            text("/metadata/name").unwrap().to_owned(),
        )
    };
    let accounts: Vec<_> = of_kind(objects, "ServiceAccount")
        .into_iter()
        .map(name)
        .collect();
    let mut bound = Vec::new();
    for (kind, role_kinds) in [
        ("RoleBinding", &["Role", "ClusterRole"][..]),
        ("ClusterRoleBinding", &["ClusterRole"]),
    ] {
        for binding in of_kind(objects, kind) {
            let role = &binding["roleRef"];
            let role_kind = role["kind"].as_str().unwrap();
            assert!(role_kinds.contains(&role_kind), "{binding}");
            let namespace = match role_kind {
                "Role" => name(binding).0,
                _ => String::new(),
            };
            bound.push((
                role_kind,
                (namespace, role["name"].as_str().unwrap().to_owned()),
            ));
            let subjects = binding["subjects"].as_array().unwrap();
            assert!(!subjects.is_empty(), "{binding}");
            for subject in subjects {
                let text = |field: &str| subject[field].as_str().unwrap().to_owned();
                assert!(
                    accounts.contains(&(text("namespace"), text("name"))),
                    "{binding}"
                );
            }
        }
    }
    let kinds = ["Role", "ClusterRole"];
    let roles = kinds.map(|kind| {
        of_kind(objects, kind)
            .into_iter()
            .map(move |role| (kind, name(role)))
    });
    let mut roles: Vec<_> = roles.into_iter().flatten().collect();
    roles.sort_unstable();
    bound.sort_unstable();
    assert_eq!(bound, roles);
}

/// Checks that the workload runs under a service account of `objects`, with a configuration that the agent accepts.
fn check_workload(workload: &Value, objects: &[Value]) {
    let spec = &workload["spec"]["template"]["spec"];
    let mut accounts = of_kind(objects, "ServiceAccount").into_iter();
    assert!(
        accounts.any(
            |account| account["metadata"]["name"] == spec["serviceAccountName"]
                && account["metadata"]["namespace"] == workload["metadata"]["namespace"]
        ),
        "{spec}"
    );
    let volumes = spec["volumes"].as_array().unwrap();
    let mut maps = volumes
        .iter()
        .filter_map(|volume| volume["configMap"]["name"].as_str());
    let name = maps.next().expect("the configuration is a volume");
    let mut maps = of_kind(objects, "ConfigMap").into_iter();
    let map = maps.find(|map| map["metadata"]["name"] == name).unwrap();
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let path = folder.path().join("agent.yaml");
    fs::write(&path, map["data"]["agent.yaml"].as_str().unwrap()).unwrap();
    let (config, warning) = Config::load(Some(&path), Flags::default(), &Host::current()).unwrap();
    assert_eq!(warning, None);
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    let is_writable = |mount: &Value| {
        let path = mount["mountPath"].as_str().unwrap();
        config.root_dir.starts_with(path) && mount["readOnly"] != true
    };
    assert!(
        mounts.iter().any(is_writable),
        "{}: {mounts:?}",
        config.root_dir.display()
    );
}

/// Applies `base` with all `components`; returns the kinds that the API server does not have.
async fn apply(base: &Kustomization, components: &[&Kustomization]) -> Option<Vec<String>> {
    let mut objects = rendered(&base.name, &[])?;
    objects.extend(
        components
            .iter()
            .flat_map(|component| component.resources()),
    );
    Some(create_all(objects).await)
}

/// Creates `objects`; returns the kinds that the API server does not have.
async fn create_all(mut objects: Vec<Value>) -> Vec<String> {
    check_bindings(&objects);
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let is_real = matches!(server, Server::Real(_));
    let mut unknown = Vec::new();
    // Namespaces come first, as with kubectl.
    objects.sort_by_key(|object| object["kind"] != "Namespace");
    for object in &objects {
        let kind = object["kind"].as_str().unwrap();
        if is_real || is_embedded_kind(kind) {
            create(&admin, object).await;
        } else {
            unknown.push(kind.to_owned());
        }
        if WORKLOADS.contains(&kind) {
            check_workload(object, &objects);
            create(&admin, &pod_of(object)).await;
        }
    }
    unknown.sort_unstable();
    unknown.dedup();
    unknown
}

#[tokio::test(flavor = "multi_thread")]
async fn every_base_is_applied_with_every_component() {
    let (components, bases): (Vec<_>, Vec<_>) = Kustomization::all()
        .into_iter()
        .partition(Kustomization::is_component);
    let components: Vec<_> = components.iter().collect();
    // The Deployment that others build on is not complete without their roles. `clean` runs no agent.
    let bases = bases.iter();
    let bases: Vec<_> = bases
        .filter(|base| !["agent", "clean"].contains(&base.name.as_str()))
        .collect();
    assert!(bases.len() >= 2 && components.len() >= 2);
    for base in bases {
        let Some(unknown) = apply(base, &components).await else {
            return;
        };
        println!("{}: not created, only checked: {unknown:?}", base.name);
        let known = |kind: &String| {
            let kind = kind.as_str();
            PERMISSIONS.contains(&kind) || WORKLOADS.contains(&kind) || kind == "NetworkPolicy"
        };
        assert!(unknown.iter().all(known), "{unknown:?}");
    }
}

/// The container of the DaemonSet among `objects`.
fn container(objects: &[Value]) -> &Value {
    let sets = of_kind(objects, "DaemonSet");
    assert_eq!(sets.len(), 1);
    &sets[0]["spec"]["template"]["spec"]["containers"][0]
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_removes_what_agents_keep_on_the_host() {
    let Some(objects) = rendered("clean", &[]) else {
        return;
    };
    let set = of_kind(&objects, "DaemonSet")[0];
    let pod = pod_of(set);
    let hooks = deploy::documents("beside/hooks/agent.yaml").remove(0);
    let clean = &pod["spec"]["initContainers"][0];
    assert_eq!(
        clean["args"],
        json!(["clean", "--root-dir", hooks["rootDir"]])
    );
    let root_dir = hooks["rootDir"].as_str().unwrap();
    let mount = clean["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert!(root_dir.starts_with(mount) && pod["spec"]["volumes"][0]["hostPath"]["path"] == mount);
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    for object in of_kind(&objects, "Namespace").into_iter().chain([&pod]) {
        create(&admin, object).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_component_of_beside_is_applied_alone_and_with_the_others() {
    let components = Kustomization::within("beside");
    let names: Vec<_> = components.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(
        names,
        ["beside/hooks", "beside/node-identity", "beside/subpaths"]
    );
    let sets = [
        vec![&components[0]],
        vec![&components[1]],
        vec![&components[2]],
        components.iter().collect(),
    ];
    for set in sets {
        let Some(objects) = rendered("beside", &set) else {
            return;
        };
        let has = |name: &str| set.iter().any(|component| component.name == name);
        // The node has its own permissions, and its kubelet's credentials instead of a token.
        for kind in PERMISSIONS {
            let found = of_kind(&objects, kind).len();
            assert_eq!(found == 0, has("beside/node-identity"), "{kind}");
        }
        let container = container(&objects);
        let args = container["args"].to_string();
        assert_eq!(
            args.contains("--kubeconfig="),
            has("beside/node-identity"),
            "{args}"
        );
        let mut mounts = container["volumeMounts"].as_array().unwrap().iter();
        let mounts_kubeconfig = mounts.any(|mount| mount["name"] == "kubeconfig");
        assert_eq!(mounts_kubeconfig, has("beside/node-identity"));
        let added = container["securityContext"]["capabilities"]["add"].to_string();
        let may_signal = has("beside/hooks") || has("beside/subpaths");
        assert_eq!(added.contains("KILL"), may_signal, "{added}");
        assert_eq!(
            added.contains("SYS_ADMIN"),
            has("beside/subpaths"),
            "{added}"
        );
        create_all(objects).await;
    }
}
