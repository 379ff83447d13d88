//! What an API server has of some manifests: their pods and workloads, the ConfigMaps and Secrets that these reference,
//! and facts of their nodes.
//!
//! | module | purpose |
//! | --- | --- |
//! | `facts` | facts of a pod's node: which ones it reads, and where they are |
//! | `reader` | requests objects by name, and reports those that cannot be read |
//!
//! Invariants:
//! 1. Each object is requested by its name. Nothing is listed, nothing is written.
//! 2. What the manifests have counts; what they lack stays as it is in the API server.
//! 3. What only the API server sets in a pod does not count as a difference. Its node is a fact of both sides.
//! 4. An object is missing if the API server says so (404). What could not be read is named, and not known.

mod facts;
mod reader;

use std::collections::{BTreeSet, HashMap};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{
    Kind, ObjectKey,
    manifest::{Document, Loader, Manifest, Manifests},
};
use larder_transport::{ClusterSource, path::Resource};
use serde_json::Value;

pub(crate) use self::reader::NotRead;
use self::{
    facts::{node_name, reads_node, reads_node_name, share_nodes},
    reader::{ClusterReader, Purpose, Wanted, path},
};
use crate::{
    offline::{bind_to_only_node, needs},
    outcome::Failure,
    output::{self, references::of_pods},
};

/// The annotation in which `kubectl apply` keeps the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Prefix of the volume with a token that the API server adds to each pod.
const ADDED_VOLUME: &str = "kube-api-access-";

/// What the API server has, and `to` applied to it; and the number of objects of `to` that no container in it sees.
///
/// # Errors
///
/// The API server cannot be reached, or rejects the credentials.
pub(crate) fn sides(
    source: ClusterSource,
    mut from: Loader,
    mut to: Manifests,
) -> Result<((Manifests, Manifests, usize), NotRead), Failure> {
    ClusterReader::with(source, async |reader| {
        let wanted = to.documents.iter().filter_map(wanted_side);
        for (name, pod) in reader.read(wanted.collect()).await? {
            from.text(&name, &without_server_fields(&pod)?);
        }
        let mut from = from.finish();
        take_workloads(&mut from, &to);
        for document in &mut to.documents {
            if let Manifest::Pod(pod) = &mut document.manifest {
                pod.status = None;
            }
        }
        share_nodes(&mut from, &mut to);
        let references = projected(to.pods().chain(from.pods()));
        let objects = objects(reader, references.iter()).await?;

        let count = to.documents.len();
        to.documents.retain(|document| match &document.manifest {
            // The addresses of Services, and the node of a pod, are only in the cluster.
            Manifest::Service(_) | Manifest::Node(_) => false,
            Manifest::ConfigMap(_) | Manifest::Secret(_) => {
                object_key(document).is_some_and(|key| references.contains(&key))
            }
            _ => true,
        });
        let unseen = count - to.documents.len();
        let given: BTreeSet<_> = to.documents.iter().filter_map(object_key).collect();
        let is_kept = |one: &&Document| object_key(one).is_some_and(|key| !given.contains(&key));
        let kept = objects.documents.iter().filter(is_kept);
        to.documents.extend(kept.cloned());
        let nodes = nodes(reader, from.pods().chain(to.pods()), &[]).await?;
        to.documents.extend(nodes.iter().cloned());
        from.documents.extend(objects.documents);
        from.documents.extend(nodes);
        from.errors.extend(objects.errors);
        Ok((from, to, unseen))
    })
}

/// `manifests`, with the objects that their pods read and that they lack.
///
/// # Errors
///
/// As of [`sides`].
pub(crate) fn complete(
    source: ClusterSource,
    mut manifests: Manifests,
) -> Result<(Manifests, NotRead), Failure> {
    ClusterReader::with(source, async |reader| {
        let wanted = manifests.documents.iter().filter_map(wanted_facts);
        let mut pods = Loader::new("default");
        for (name, pod) in reader.read(wanted.collect()).await? {
            pods.text(&name, &without_server_fields(&pod)?);
        }
        share_nodes(&mut pods.finish(), &mut manifests);
        bind_to_only_node(&mut manifests);

        let given: BTreeSet<_> = manifests.documents.iter().filter_map(object_key).collect();
        let wanted = projected(manifests.pods());
        let objects = objects(reader, wanted.difference(&given)).await?;
        let nodes = nodes(reader, manifests.pods(), &manifests.documents).await?;
        manifests.documents.extend(objects.documents);
        manifests.documents.extend(nodes);
        manifests.errors.extend(objects.errors);
        Ok(manifests)
    })
}

/// Names the workloads of pods that stand for them: the embedded API server has no workloads.
fn take_workloads(from: &mut Manifests, to: &Manifests) {
    let named = to.documents.iter();
    let named = named.filter_map(|other| Some((other.object.key(), other.workload.as_ref()?)));
    let named: HashMap<_, _> = named.collect();
    for document in &mut from.documents {
        let is_own = matches!(document.manifest, Manifest::Pod(_)) && document.workload.is_none();
        let workload = named.get(&document.object.key()).filter(|_| is_own);
        document.workload = workload
            .map(|name| (*name).clone())
            .or(document.workload.take());
    }
}

async fn objects(
    reader: &ClusterReader,
    wanted: impl Iterator<Item = &(Kind, ObjectKey)>,
) -> Result<Manifests, Failure> {
    let wanted = wanted.map(|(kind, key)| {
        let purpose = Purpose::Object(*kind, key.clone());
        let of = kind.object_type();
        Wanted::at(of.kind, Resource::core(of.resource), key, purpose)
    });
    manifests(reader, wanted.collect()).await
}

/// The Nodes that `pods` read, except those that are `given`.
async fn nodes<'p>(
    reader: &ClusterReader,
    pods: impl Iterator<Item = &'p Pod>,
    given: &[Document],
) -> Result<Vec<Document>, Failure> {
    let names = pods.filter(|pod| reads_node(pod)).filter_map(node_name);
    let keys: BTreeSet<_> = names.map(|name| ObjectKey::new("", name)).collect();
    let is_node = |one: &&Document| matches!(one.manifest, Manifest::Node(_));
    let given = given.iter().filter(is_node);
    let given: BTreeSet<_> = given.map(|document| document.object.key()).collect();
    let wanted = keys.difference(&given);
    let wanted = wanted.map(|key| Wanted::at("Node", Resource::core("nodes"), key, Purpose::Node));
    let nodes = manifests(reader, wanted.collect()).await?;
    for error in &nodes.errors {
        output::error(error);
    }
    Ok(nodes.documents)
}

async fn manifests(reader: &ClusterReader, wanted: Vec<Wanted>) -> Result<Manifests, Failure> {
    let mut loader = Loader::new("default");
    for (name, object) in reader.read(wanted).await? {
        loader.text(&name, str::from_utf8(&object).unwrap_or_default());
    }
    Ok(loader.finish())
}

/// The ConfigMaps and Secrets that containers see: without those for image pulls.
fn projected<'p>(pods: impl Iterator<Item = &'p Pod>) -> BTreeSet<(Kind, ObjectKey)> {
    of_pods(pods, |pod| needs(pod).into())
}

/// The pod of `document`, or the workload that it is made from.
fn wanted_side(document: &Document) -> Option<Wanted> {
    if !matches!(document.manifest, Manifest::Pod(_)) {
        return None;
    }
    let key = document.object.key();
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
        path(resource, &ObjectKey::new(key.namespace.clone(), name))
    });
    // The embedded API server has the pod that its manifests make of a workload.
    let mut wanted = Wanted::at("Pod", Resource::PODS, &key, Purpose::Side);
    wanted.paths.splice(..0, workload);
    Some(wanted)
}

/// The pod of `document`, if it reads facts of its node and does not name it. Of a workload's pods, no name is known.
fn wanted_facts(document: &Document) -> Option<Wanted> {
    let Manifest::Pod(pod) = &document.manifest else {
        return None;
    };
    let is_wanted = node_name(pod).is_none() && reads_node_name(pod) && document.workload.is_none();
    let (key, purpose) = (document.object.key(), Purpose::PodFacts);
    is_wanted.then(|| Wanted::at("Pod", Resource::PODS, &key, purpose))
}

fn object_key(document: &Document) -> Option<(Kind, ObjectKey)> {
    let kind = match &document.manifest {
        Manifest::ConfigMap(_) => Kind::ConfigMap,
        Manifest::Secret(_) => Kind::Secret,
        _ => return None,
    };
    Some((kind, document.object.key()))
}

/// A pod or workload as a manifest: without the fields that only the API server sets, except what says where it runs.
fn without_server_fields(object: &[u8]) -> Result<String, Failure> {
    let object = serde_json::from_slice(object);
    let mut object: Value = object.context("cannot read an answer of the API server")?;
    if object["kind"] == "Pod" {
        let mut retain = |place: &str, is_kept| retain(object.pointer_mut(place), is_kept);
        retain("/metadata", |field| field != "uid");
        retain("/metadata/annotations", |field| field != LAST_APPLIED);
        retain("/status", |field| matches!(field, "hostIP" | "hostIPs"));
        retain("/spec/volumes", is_own_volume);
        for containers in ["/spec/initContainers", "/spec/containers"] {
            let containers = object.pointer_mut(containers).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                self::retain(container.get_mut("volumeMounts"), is_own_volume);
            }
        }
    }
    Ok(object.to_string())
}

/// Whether no component of the API server has added the volume.
fn is_own_volume(name: &str) -> bool {
    !name.starts_with(ADDED_VOLUME)
}

/// Keeps the fields of an object, or the entries of a list, whose name `is_kept`.
fn retain(part: Option<&mut Value>, is_kept: fn(&str) -> bool) {
    match part {
        Some(Value::Object(fields)) => fields.retain(|name, _| is_kept(name)),
        Some(Value::Array(entries)) => {
            entries.retain(|entry| is_kept(entry["name"].as_str().unwrap_or_default()));
        }
        _ => {}
    }
}
