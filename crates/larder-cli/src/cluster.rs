//! What an API server has of some manifests: their pods and workloads, the ConfigMaps and Secrets that these reference,
//! and facts of their nodes.
//!
//! | module | purpose |
//! | --- | --- |
//! | `applied` | manifests applied to what the API server has, as by `kubectl apply` |
//! | `facts` | facts of a pod's node: which ones it reads, and where they are |
//! | `reader` | requests objects by name, and reports those that cannot be read |
//!
//! Invariants:
//! 1. Each object is requested by its name. Nothing is listed, nothing is written.
//! 2. A manifest is applied to the object as `kubectl apply` does: what was not applied before, and the manifest lacks,
//!    stays as it is. So does an object that no manifest has.
//! 3. What only the API server sets in a pod does not count as a difference. Its node is a fact of both sides.
//! 4. An object is missing if the API server says so (404). What could not be read is named, and not known.

mod applied;
mod facts;
mod reader;

use std::collections::{BTreeSet, HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::{
    Kind, ObjectKey,
    manifest::{Document, Loader, Manifest, ManifestError, Manifests, Rollout},
};
use larder_transport::{ClusterSource, path::Resource};

pub(crate) use self::reader::NotRead;
use self::{
    applied::{LiveObject, apply},
    facts::{node_name, reads_node, reads_node_name, share_nodes},
    reader::{ClusterReader, Purpose, Wanted, path},
};
use crate::{
    offline::{bind_to_only_node, needs},
    outcome::Failure,
    output::{self, references::of_pods},
};

/// What the API server has, and what `kubectl apply` would make of it.
pub(crate) struct ClusterSides {
    pub(crate) from: Manifests,
    pub(crate) to: Manifests,
    /// Number of objects of the manifests that no container in them sees.
    pub(crate) unseen: usize,
    /// Objects of the manifests that could not be read: what applying makes of them is not known.
    pub(crate) not_applied: HashSet<(Kind, ObjectKey)>,
}

/// What the API server has, and `to` applied to it. Each document of `to` has the object as written.
///
/// # Errors
///
/// The API server cannot be reached, or rejects the credentials.
pub(crate) fn sides(
    source: ClusterSource,
    mut from: Loader,
    mut to: Manifests,
) -> Result<(ClusterSides, NotRead), Failure> {
    ClusterReader::with(source, async |reader| {
        let wanted = to.documents.iter().filter_map(wanted_side);
        let mut live = HashMap::new();
        for (name, object) in reader.read(wanted.collect()).await? {
            let object = LiveObject::of(&object)?;
            from.text(&name, &object.text());
            live.insert(name, object);
        }
        let mut from = from.finish();
        take_workloads(&mut from, &mut to);
        let mut errors = Vec::new();
        to.documents.retain_mut(|document| {
            let live = wanted_side(document).and_then(|wanted| live.get(&wanted.name));
            let is_applied = applies(document, live, &mut errors);
            if let Manifest::Pod(pod) = &mut document.manifest {
                pod.status = None;
            }
            is_applied
        });
        share_nodes(&mut from, &mut to);
        let references = projected(to.pods().chain(from.pods()));
        let mut objects = Objects::read(reader, references.iter()).await?;

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
        let not_read = reader.not_read();
        let mut not_applied = HashSet::new();
        to.documents.retain_mut(|document| {
            let Some(key) = object_key(document) else {
                return true;
            };
            let live = objects.live.remove(&key);
            let is_applied =
                applies(document, live.as_ref(), &mut errors) && !not_read.contains(&key);
            if !is_applied {
                not_applied.insert(key);
            }
            is_applied
        });
        let is_kept = |one: &&Document| object_key(one).is_some_and(|key| !given.contains(&key));
        let kept = objects.manifests.documents.iter().filter(is_kept);
        to.documents.extend(kept.cloned());
        to.errors.extend(errors);
        let nodes = nodes(reader, from.pods().chain(to.pods()), &[]).await?;
        to.documents.extend(nodes.iter().cloned());
        from.documents.extend(objects.manifests.documents);
        from.documents.extend(nodes);
        from.errors.extend(objects.manifests.errors);
        Ok(ClusterSides {
            from,
            to,
            unseen,
            not_applied,
        })
    })
}

/// Makes a document what applying it makes of `live`. Returns whether that can be done.
fn applies(
    document: &mut Document,
    live: Option<&LiveObject>,
    errors: &mut Vec<ManifestError>,
) -> bool {
    let applied = live.map_or(Ok(()), |live| apply(document, live));
    let is_applied = applied.is_ok();
    errors.extend(applied.err().map(|error| *error));
    is_applied
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
            pods.text(&name, &LiveObject::of(&pod)?.text());
        }
        share_nodes(&mut pods.finish(), &mut manifests);
        bind_to_only_node(&mut manifests);

        let given: BTreeSet<_> = manifests.documents.iter().filter_map(object_key).collect();
        let wanted = projected(manifests.pods());
        let objects = Objects::read(reader, wanted.difference(&given))
            .await?
            .manifests;
        let nodes = nodes(reader, manifests.pods(), &manifests.documents).await?;
        manifests.documents.extend(objects.documents);
        manifests.documents.extend(nodes);
        manifests.errors.extend(objects.errors);
        Ok(manifests)
    })
}

/// Names the workloads of pods that stand for them: the embedded API server has no workloads, and nothing that replaces
/// their pods.
fn take_workloads(from: &mut Manifests, to: &mut Manifests) {
    let mut own: HashMap<_, _> = from
        .documents
        .iter_mut()
        .filter(|one| matches!(one.manifest, Manifest::Pod(_)) && one.workload.is_none())
        .map(|one| (one.object.key(), one))
        .collect();
    for document in &mut to.documents {
        if let Some(workload) = &mut document.workload
            && let Some(pod) = own.remove(&document.object.key())
        {
            workload.rollout = Rollout::Leaves;
            pod.workload = Some(workload.clone());
        }
    }
}

/// ConfigMaps and Secrets of the API server.
struct Objects {
    live: HashMap<(Kind, ObjectKey), LiveObject>,
    manifests: Manifests,
}

impl Objects {
    async fn read(
        reader: &ClusterReader,
        wanted: impl Iterator<Item = &(Kind, ObjectKey)>,
    ) -> Result<Self, Failure> {
        let wanted = wanted.map(|(kind, key)| {
            let purpose = Purpose::Object(*kind, key.clone());
            let of = kind.object_type();
            Wanted::at(of.kind, Resource::core(of.resource), key, purpose)
        });
        let mut loader = Loader::new("default");
        let mut live = HashMap::new();
        for (name, object) in reader.read(wanted.collect()).await? {
            let object = LiveObject::of(&object)?;
            loader.text(&name, &object.text());
            let kind = match object.object.text("/kind") {
                "Secret" => Kind::Secret,
                _ => Kind::ConfigMap,
            };
            live.insert((kind, object.object.key()), object);
        }
        let manifests = loader.finish();
        Ok(Self { live, manifests })
    }
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
    let given: BTreeSet<_> = given
        .iter()
        .filter(is_node)
        .map(|document| document.object.key())
        .collect();
    let wanted = keys
        .difference(&given)
        .map(|key| Wanted::at("Node", Resource::core("nodes"), key, Purpose::Node));
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
    let pod = document.object.key();
    let Some(workload) = &document.workload else {
        return Some(Wanted::at("Pod", Resource::PODS, &pod, Purpose::Side));
    };
    let key = ObjectKey::new(pod.namespace.clone(), workload.name.as_str());
    let resource = match &*workload.kind {
        "Deployment" => Resource::new("apps", "v1", "deployments"),
        "StatefulSet" => Resource::new("apps", "v1", "statefulsets"),
        "DaemonSet" => Resource::new("apps", "v1", "daemonsets"),
        "ReplicaSet" => Resource::new("apps", "v1", "replicasets"),
        "Job" => Resource::new("batch", "v1", "jobs"),
        "CronJob" => Resource::new("batch", "v1", "cronjobs"),
        "ReplicationController" => Resource::core("replicationcontrollers"),
        _ => {
            return Some(Wanted {
                name: format!("{} {key}", workload.kind),
                paths: custom_path(document, &key).into_iter().collect(),
                purpose: Purpose::Side,
            });
        }
    };
    let mut wanted = Wanted::at(&workload.kind, resource, &key, Purpose::Side);
    // The embedded API server has the pod that its manifests make of a workload.
    wanted.paths.extend(path(Resource::PODS, &pod));
    Some(wanted)
}

/// The path of a custom resource, whose name in paths is the plural of its kind: so it is for the known ones. `None` if no
/// object can have such a path.
fn custom_path(document: &Document, key: &ObjectKey) -> Option<String> {
    let written = document.written.as_ref()?;
    let (version, kind) = (
        written.text("/apiVersion"),
        written.text("/kind").to_lowercase(),
    );
    let is_part = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
            && !text.starts_with('.')
    };
    let is_path = version
        .split('/')
        .chain([&*key.namespace, &*key.name, &*kind])
        .all(is_part);
    let (namespace, name) = (&key.namespace, &key.name);
    is_path.then(|| format!("/apis/{version}/namespaces/{namespace}/{kind}s/{name}"))
}

/// The pod of `document`, if it reads facts of its node and does not name it. Of a workload's pods, no name is known.
fn wanted_facts(document: &Document) -> Option<Wanted> {
    let Manifest::Pod(pod) = &document.manifest else {
        return None;
    };
    let is_wanted = node_name(pod).is_none() && reads_node_name(pod) && document.workload.is_none();
    let key = document.object.key();
    let purpose = Purpose::PodFacts;
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
