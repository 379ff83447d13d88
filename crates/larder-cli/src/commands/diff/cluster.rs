//! What an API server has of some manifests: their pods and workloads, and the ConfigMaps and Secrets that these
//! reference.
//!
//! Invariants:
//! 1. Each object is requested by its name. Nothing is listed, nothing is written.
//! 2. The second side is the first one with the manifests applied: what they lack stays.
//! 3. What only the API server sets in a pod does not count as a difference.

use std::{cell::RefCell, collections::BTreeSet};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use larder_objects::{
    Kind, ObjectKey, SecretBytes, chain,
    manifest::{Document, Loader, Manifest, Manifests},
};
use larder_transport::path::Resource;
use larder_watch::request_secret;
use serde_json::Value;

use crate::{
    agent::{connect, origin},
    args::DiffArgs,
    outcome::Failure,
    output::{self, references::referenced},
    runtime::block_on,
};

/// Number of requests at a time.
const PARALLEL: usize = 8;
/// The annotation in which `kubectl apply` keeps the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Prefix of the volume with a token that the API server adds to each pod.
const ADDED_VOLUME: &str = "kube-api-access-";

/// What the API server has, the manifests applied to it, and the objects that could not be read.
type Read = (Manifests, Manifests, BTreeSet<(String, String)>);

/// What the API server has, `manifests` applied to it, and the objects that could not be read.
///
/// # Errors
///
/// The API server cannot be reached, or rejects the credentials.
pub(super) fn load(args: &DiffArgs, loader: Loader, manifests: Manifests) -> Result<Read, Failure> {
    let source = origin(args.kubeconfig.as_deref(), args.context.as_deref());
    block_on(async {
        let (client, _transport) = connect(source).await?;
        let not_read = RefCell::default();
        let reader = ClusterReader { client, not_read };
        reader.load(loader, manifests).await
    })
}

/// An object to read.
struct Wanted {
    /// `Secret prod/db`
    name: String,
    /// The paths at which it may be, the likeliest first.
    paths: Vec<String>,
}

struct ClusterReader {
    client: kube::Client,
    /// Objects that could not be read, and why.
    not_read: RefCell<BTreeSet<(String, String)>>,
}

impl ClusterReader {
    async fn load(&self, loader: Loader, mut to: Manifests) -> Result<Read, Failure> {
        let mut pods = loader;
        let wanted = to.documents.iter().filter_map(wanted_pod).collect();
        for (name, pod) in self.read(wanted).await? {
            pods.text(&name, &without_server_fields(&pod)?);
        }
        let mut from = pods.finish();
        let pods = to.pods().chain(from.pods());
        let references = referenced(pods);
        let mut objects = Loader::new("default");
        let wanted = references.iter();
        let wanted = wanted.map(|(kind, key)| wanted_object(*kind, key));
        for (name, object) in self.read(wanted.collect()).await? {
            objects.text(&name, str::from_utf8(&object).unwrap_or_default());
        }
        let objects = objects.finish();

        let count = to.documents.len();
        to.documents.retain(|document| match &document.manifest {
            // The addresses of Services, and the node of a pod, are only in the cluster.
            Manifest::Service(_) | Manifest::Node(_) => false,
            Manifest::ConfigMap(_) | Manifest::Secret(_) => {
                object_key(document).is_some_and(|key| references.contains(&key))
            }
            _ => true,
        });
        if let left @ 1.. = count - to.documents.len() {
            let (is, it) = match left {
                1 => ("is", "it"),
                _ => ("are", "these"),
            };
            let objects = output::count(left, "object");
            output::note(format_args!(
                "{objects} of the manifests {is} not compared: no pod in them references {it}"
            ));
        }
        let given: BTreeSet<_> = to.documents.iter().filter_map(object_key).collect();
        let is_kept = |one: &&Document| object_key(one).is_some_and(|key| !given.contains(&key));
        let kept = objects.documents.iter().filter(is_kept);
        to.documents.extend(kept.cloned());
        from.documents.extend(objects.documents);
        from.errors.extend(objects.errors);
        Ok((from, to, self.not_read.take()))
    }

    /// Reads the objects, those that exist.
    async fn read(&self, wanted: Vec<Wanted>) -> Result<Vec<(String, SecretBytes)>, Failure> {
        let requests = wanted.into_iter().map(|Wanted { name, paths }| async move {
            for path in &paths {
                let body = None::<&()>;
                match request_secret(&self.client, Method::GET, path, body).await {
                    Ok(object) => return Ok(Some((name, object))),
                    Err(error) if error.is_not_found() => {}
                    Err(error) if error.is_outage() => {
                        let error = chain(&error);
                        return Err(Failure::unreadable(format!("cannot read {name}: {error}")));
                    }
                    Err(error) => {
                        let reason = chain(&error);
                        output::note(format_args!("cannot read {name}: {reason}"));
                        self.not_read.borrow_mut().insert((name.clone(), reason));
                    }
                }
            }
            Ok(None)
        });
        let answers = stream::iter(requests).buffered(PARALLEL);
        let answers: Vec<Option<_>> = answers.try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }
}

/// The pod of `document`, or the workload that it is made from.
fn wanted_pod(document: &Document) -> Option<Wanted> {
    let Manifest::Pod(pod) = &document.manifest else {
        return None;
    };
    let namespace = pod.metadata.namespace.as_deref()?;
    let name = pod.metadata.name.as_deref()?;
    let path = |resource: Resource, name: &str| {
        let collection = resource.in_namespace(namespace).ok()?;
        Some(collection.object(name).ok()?.as_str().to_owned())
    };
    let workload = document.workload.as_deref().unwrap_or_default();
    let workload = workload.split_once(' ').and_then(|(kind, name)| {
        let resource = match kind {
            "Deployment" => Resource::new("apps", "v1", "deployments"),
            "StatefulSet" => Resource::new("apps", "v1", "statefulsets"),
            "DaemonSet" => Resource::new("apps", "v1", "daemonsets"),
            "ReplicaSet" => Resource::new("apps", "v1", "replicasets"),
            "Job" => Resource::new("batch", "v1", "jobs"),
            "CronJob" => Resource::new("batch", "v1", "cronjobs"),
            _ => Resource::core("replicationcontrollers"),
        };
        path(resource, name)
    });
    // The embedded API server has the pod that its manifests make of a workload.
    let paths = workload
        .into_iter()
        .chain(path(Resource::core("pods"), name));
    Some(Wanted {
        name: format!("Pod {namespace}/{name}"),
        paths: paths.collect(),
    })
}

fn wanted_object(kind: Kind, key: &ObjectKey) -> Wanted {
    let resource = Resource::core(kind.object_type().resource);
    let collection = resource.in_namespace(&key.namespace);
    let path = collection.and_then(|collection| collection.object(&key.name));
    Wanted {
        name: format!("{} {key}", kind.object_type().kind),
        paths: path
            .into_iter()
            .map(|path| path.as_str().to_owned())
            .collect(),
    }
}

fn object_key(document: &Document) -> Option<(Kind, ObjectKey)> {
    let kind = match &document.manifest {
        Manifest::ConfigMap(_) => Kind::ConfigMap,
        Manifest::Secret(_) => Kind::Secret,
        _ => return None,
    };
    Some((kind, document.object.key()))
}

/// A pod or workload as a manifest: without the fields that only the API server sets.
fn without_server_fields(object: &[u8]) -> Result<String, Failure> {
    let object = serde_json::from_slice(object);
    let mut object: Value = object.context("cannot read an answer of the API server")?;
    if object["kind"] == "Pod" {
        for (parent, field) in [
            ("", "status"),
            ("/metadata", "uid"),
            ("/metadata/annotations", LAST_APPLIED),
            ("/spec", "nodeName"),
        ] {
            let parent = object.pointer_mut(parent);
            if let Some(parent) = parent.and_then(Value::as_object_mut) {
                parent.remove(field);
            }
        }
        let is_kept = |entry: &Value| {
            let name = entry["name"].as_str();
            !name.is_some_and(|name| name.starts_with(ADDED_VOLUME))
        };
        let retain = |list: Option<&mut Value>| {
            if let Some(list) = list.and_then(Value::as_array_mut) {
                list.retain(is_kept);
            }
        };
        retain(object.pointer_mut("/spec/volumes"));
        for containers in ["/spec/initContainers", "/spec/containers"] {
            let containers = object.pointer_mut(containers).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                retain(container.get_mut("volumeMounts"));
            }
        }
    }
    Ok(object.to_string())
}
