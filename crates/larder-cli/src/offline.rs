//! The objects of a cluster, taken from manifests.
//!
//! An object without a manifest does not exist. Content that only a running cluster provides is one of:
//! - an obvious placeholder: service account tokens, and, if assumed, the ConfigMap `kube-root-ca.crt`;
//! - not known: pod certificates. A command that runs here cannot have them, which is an error.

mod made;
mod missing;
mod names;
mod pods;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::args::PodName;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{
    ConfigMap, Kind, ObjectKey, ObjectMeta, Secret, SecretBytes,
    manifest::{
        self, MadeObject, Maker, Manifest, ManifestError, Manifests, Ownership, RawObject, Recipe,
    },
    stable_pod_uid,
};
use larder_projection::{
    Assumptions, Existence, Inputs, Keyed, Need, NodeFacts, OtherKeys, ServiceFacts, TrustBundle,
    TrustBundles, Unavailable, UnknownObject, containers, env_files, pod_volumes,
};

use self::{
    made::{joined, made_object},
    missing::{refuse_made, refuse_unread, take_empty, take_missing},
    pods::{fields_of, name_prefix, not_before_it_exists, set_service_account},
};
pub(crate) use self::{
    missing::assume_all,
    names::{did_you_mean, find_container, likely_name, with_hint},
    pods::bind_to_only_node,
};

/// Content of every service account token.
const PLACEHOLDER_TOKEN: &str = "placeholder.of-a-service-account-token.larder-renders-offline";

/// The ConfigMap that a cluster publishes in every namespace (kubernetes v1.36,
/// `pkg/controller/certificates/rootcacertpublisher/publisher.go`).
const ROOT_CA: &str = "kube-root-ca.crt";
/// Its only key.
const ROOT_CA_KEY: &str = "ca.crt";
/// The value in place of the cluster's certificate authorities.
const PLACEHOLDER_CA: &str =
    "placeholder of the cluster's certificate authorities (larder works offline)\n";

/// The prefix of the annotations that are kept of ConfigMaps and Secrets.
const OBJECT_MARKS: &str = "reloader.stakater.com/";

/// Kinds that pods are made from.
const POD_KINDS: [&str; 8] = [
    "Pod",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ReplicationController",
    "Job",
    "CronJob",
];

/// The annotation of a Secret that a controller fills with a token of this account.
const TOKEN_ACCOUNT: &str = "/metadata/annotations/kubernetes.io~1service-account.name";

/// Whether objects that every cluster has are assumed where the manifests lack them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterObjects {
    /// The manifests are all there is.
    FromManifests,
    /// Every namespace has the ConfigMap `kube-root-ca.crt`, and every pod a service account.
    Assumed,
}

/// What a reference to an object means that the documents lack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outside<'o> {
    /// It is there, with keys that are not known.
    Assumed,
    /// Whether it is there is not known, unless `other` has it: then the documents are what makes it.
    Perhaps { other: &'o Offline },
}

/// The objects of some manifests, ready for projections.
#[derive(Debug, Default)]
pub(crate) struct Offline {
    /// The pods, in the order of the manifests.
    pub(crate) pods: Vec<OfflinePod>,
    config_maps: HashMap<ObjectKey, Arc<ConfigMap>>,
    secrets: HashMap<ObjectKey, Arc<Secret>>,
    services: Arc<[ServiceFacts]>,
    nodes: HashMap<String, Arc<NodeFacts>>,
    trust_bundles: Arc<[TrustBundle]>,
    /// Kind and name of each document that was rejected, with its place.
    rejected: HashMap<(String, String), String>,
    /// Stands in for `kube-root-ca.crt`, if assumed.
    root_ca: Option<Arc<ConfigMap>>,
    /// Annotations of ConfigMaps and Secrets that begin with [`OBJECT_MARKS`].
    marks: HashMap<(Kind, ObjectKey), BTreeMap<String, String>>,
    /// The accounts whose token a controller puts into a Secret.
    token_accounts: HashMap<ObjectKey, Recipe>,
    /// Objects without values in the documents, with what makes them.
    made: HashMap<(Kind, ObjectKey), MadeObject>,
    /// Objects that the other side makes and this one does not, with what makes them there.
    no_longer_made: HashMap<(Kind, ObjectKey), Maker>,
    /// Whether each service account of the documents has its token mounted, as far as it says so.
    accounts: HashMap<ObjectKey, Option<bool>>,
    claims: BTreeSet<ObjectKey>,
    /// Those of StatefulSets, without the ordinals of their pods.
    claims_of_sets: BTreeSet<ObjectKey>,
    /// Namespaces and names of all Services of the documents, and of those that only the other side has.
    listed_services: Arc<BTreeSet<(String, String)>>,
    /// Whether objects that the documents lack are taken as unknown, not as missing.
    pub(crate) takes_outside: bool,
    /// Whether the documents are those of an API server, which has more than was asked for.
    pub(crate) is_of_cluster: bool,
}

/// A pod, its place in the manifests, and what its projections read.
#[derive(Debug)]
pub(crate) struct OfflinePod {
    pub(crate) pod: Pod,
    /// Its name; `DaemonSet/web` if another workload of the namespace has that name or a pod of that name. No pod has one
    /// with a slash.
    pub(crate) label: String,
    /// `app.yaml: document 2, line 14`, preceded by the workload it is made from.
    pub(crate) source: String,
    pub(crate) workload: Workload,
    /// The document of the workload, if it is not the pod's own.
    pub(crate) made_by: Option<manifest::Workload>,
    /// Whether the document says on which node it runs.
    pub(crate) states_node: bool,
    pub(crate) inputs: Inputs,
}

impl OfflinePod {
    /// The namespace and name of its workload.
    pub(crate) fn place(&self) -> ObjectKey {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        ObjectKey::new(namespace, self.workload.name.as_str())
    }

    /// Its namespace and label, as `--pod` takes it.
    pub(crate) fn called(&self) -> String {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}", self.label)
    }
}

/// The workload whose pod it is; one of its own is its own workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) kind: String,
}

impl Workload {
    /// `DaemonSet web`; `None` for a pod of its own.
    pub(crate) fn in_words(&self) -> Option<String> {
        (self.kind != "Pod").then(|| format!("{} {}", self.kind, self.name))
    }

    /// That of the pod with this key.
    fn new(made_by: Option<&manifest::Workload>, pod: &ObjectKey) -> Self {
        let (kind, name) = match made_by {
            Some(workload) => (&*workload.kind, &*workload.name),
            None => ("Pod", &*pod.name),
        };
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
        }
    }
}

impl Offline {
    /// Takes the objects of `manifests`. A pod without a node is bound to the only Node, if there is exactly one.
    pub(crate) fn new(mut manifests: Manifests, cluster: ClusterObjects) -> Self {
        bind_to_only_node(&mut manifests);
        Self::default().with(manifests, cluster)
    }

    /// Takes the objects of `manifests`, which have all that an API server has for them, except the objects `not_read`.
    /// A pod without a node has none.
    pub(crate) fn of_cluster(manifests: Manifests, not_read: &HashSet<(Kind, ObjectKey)>) -> Self {
        Self::of_applied(manifests, not_read, &HashSet::new())
    }

    /// The same, and except what applying makes of the objects that are `not_applied`.
    pub(crate) fn of_applied(
        manifests: Manifests,
        not_read: &HashSet<(Kind, ObjectKey)>,
        not_applied: &HashSet<(Kind, ObjectKey)>,
    ) -> Self {
        let cluster = Self {
            is_of_cluster: true,
            ..Self::default()
        };
        let mut offline = cluster.with(manifests, ClusterObjects::FromManifests);
        let bundles = TrustBundles::Partial(Arc::clone(&offline.trust_bundles), Existence::Unsure);
        let unseen = |kind, key: &ObjectKey| {
            let object = (kind, key.clone());
            if not_applied.contains(&object) {
                return Some(UnknownObject {
                    // Not those of the API server, which are not known either.
                    others: OtherKeys::Any(Recipe::new("applied")),
                    ..UnknownObject::unseen(Existence::Certain)
                });
            }
            let is_unknown = not_read.contains(&object);
            is_unknown.then(|| UnknownObject::unseen(Existence::Unsure))
        };
        for OfflinePod { pod, inputs, .. } in &mut offline.pods {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            take_missing(&mut inputs.config_maps, namespace, &unseen);
            take_missing(&mut inputs.secrets, namespace, &unseen);
            inputs.trust_bundles = bundles.clone();
        }
        offline
    }

    fn with(self, manifests: Manifests, cluster: ClusterObjects) -> Self {
        let mut offline = Self {
            root_ca: (cluster == ClusterObjects::Assumed).then(root_ca),
            rejected: manifests.errors.iter().filter_map(rejected).collect(),
            ..self
        };
        let (mut pods, mut services, mut trust_bundles) = (Vec::new(), Vec::new(), Vec::new());
        let mut listed_services = BTreeSet::new();
        offline.made = joined(manifests.made);
        offline.claims = manifests.claims;
        for document in manifests.documents {
            let key = document.object.key();
            match document.manifest {
                Manifest::Pod(mut pod) => {
                    let fields = fields_of(&mut pod, document.set_fields);
                    if cluster == ClusterObjects::Assumed {
                        set_service_account(&mut pod);
                    }
                    let made_by = document.workload;
                    offline.note_claims(&key.namespace, made_by.as_ref());
                    let source = match &made_by {
                        Some(workload) => format!("{workload}, {}", document.origin),
                        None => document.origin.to_string(),
                    };
                    let template = made_by
                        .as_ref()
                        .map(|workload| workload.template.to_string());
                    let assumptions = Assumptions {
                        fields,
                        template: Recipe::new(template.unwrap_or_default()),
                        name_prefix: name_prefix(&pod, made_by.as_ref()),
                        ..Assumptions::default()
                    };
                    pods.push(OfflinePod {
                        label: key.name.to_string(),
                        inputs: Inputs {
                            assumptions,
                            ..Inputs::default()
                        },
                        pod: *pod,
                        source,
                        workload: Workload::new(made_by.as_ref(), &key),
                        made_by,
                        states_node: !document.object.text("/spec/nodeName").is_empty(),
                    });
                }
                Manifest::ConfigMap(map) => {
                    offline.note_marks(Kind::ConfigMap, &key, &document.object);
                    offline.config_maps.insert(key, Arc::new(map));
                }
                Manifest::Secret(secret) => {
                    offline.note_marks(Kind::Secret, &key, &document.object);
                    let account = document.object.text(TOKEN_ACCOUNT);
                    if !account.is_empty() {
                        let account = Recipe::new(account);
                        offline.token_accounts.insert(key.clone(), account);
                    }
                    offline.secrets.insert(key, Arc::new(secret));
                }
                Manifest::Service(service) => {
                    listed_services.insert((key.namespace.to_string(), key.name.to_string()));
                    services.extend(ServiceFacts::of_manifest(&service));
                }
                Manifest::Node(node) => {
                    let facts = Arc::new(NodeFacts::new(&node));
                    offline.nodes.insert(key.name.into(), facts);
                }
                Manifest::ClusterTrustBundle(bundle) => trust_bundles.push((*bundle).into()),
                Manifest::ServiceAccount(account) => {
                    let mounts = account.automount_service_account_token;
                    offline.accounts.insert(key, mounts);
                }
                Manifest::Namespace(_) => {}
            }
        }
        offline.services = services.into();
        offline.listed_services = Arc::new(listed_services);
        offline.trust_bundles = trust_bundles.into();
        label_namesakes(&mut pods);
        offline.complete_made(&pods);
        for OfflinePod { pod, inputs, .. } in &mut pods {
            let known = std::mem::take(&mut inputs.assumptions);
            *inputs = offline.inputs(pod);
            inputs.assumptions.fields = known.fields;
            inputs.assumptions.template = known.template;
            inputs.assumptions.name_prefix = known.name_prefix;
        }
        Self { pods, ..offline }
    }

    /// Keeps the claims that the controller of a workload makes.
    fn note_claims(&mut self, namespace: &str, made_by: Option<&manifest::Workload>) {
        let Some(workload) = made_by else { return };
        for claim in &workload.claims {
            if workload.kind == "StatefulSet" {
                let stem = without_ordinal(claim);
                self.claims_of_sets.insert(ObjectKey::new(namespace, stem));
            } else {
                self.claims.insert(ObjectKey::new(namespace, &**claim));
            }
        }
    }

    /// Keeps the annotations of an object by which controllers know what to act on.
    fn note_marks(&mut self, kind: Kind, key: &ObjectKey, object: &RawObject) {
        let annotations = object
            .pointer("/metadata/annotations")
            .and_then(serde_json::Value::as_object);
        for (name, value) in annotations.into_iter().flatten() {
            if let (true, Some(value)) = (name.starts_with(OBJECT_MARKS), value.as_str()) {
                self.marks
                    .entry((kind, key.clone()))
                    .or_default()
                    .insert(name.clone(), value.to_owned());
            }
        }
    }

    /// The annotation `name` of an object, if it begins with [`OBJECT_MARKS`].
    pub(crate) fn mark(&self, kind: Kind, key: &ObjectKey, name: &str) -> Option<&str> {
        self.marks
            .get(&(kind, key.clone()))?
            .get(name)
            .map(String::as_str)
    }

    /// What may be wrong with a reference to an object that is missing in `namespace`; empty if nothing is known.
    pub(crate) fn why_missing(&self, kind: Kind, namespace: &str, name: &str) -> String {
        let keys = self
            .objects()
            .filter(|(of, _)| *of == kind)
            .map(|(_, key)| (&*key.namespace, &*key.name))
            .collect();
        let key = (kind, ObjectKey::new(namespace, name));
        if let Some(maker) = self.no_longer_made.get(&key) {
            return format!("no longer made by {maker}");
        }
        let elsewhere = |namespaces: &[&str]| {
            let namespaces = namespaces.join(", ");
            format!("exists only in namespace {namespaces}; pods can't cross namespaces")
        };
        self.hint(kind.object_type().kind, (namespace, name), keys, elsewhere)
    }

    /// Where an object is that is missing under its namespace and name: in a document that was rejected, `elsewhere`, or
    /// under a similar name; empty if nothing is known. `known` are the namespaces and names of its kind.
    fn hint(
        &self,
        kind: &str,
        (namespace, name): (&str, &str),
        known: BTreeSet<(&str, &str)>,
        elsewhere: impl Fn(&[&str]) -> String,
    ) -> String {
        if let Some(place) = self.rejected.get(&(kind.to_owned(), name.to_owned())) {
            return format!("rejected: {place}");
        }
        let namesakes = known.iter().filter(|known| known.1 == name);
        let namespaces: Vec<_> = namesakes.map(|known| known.0).collect();
        if !namespaces.is_empty() {
            return elsewhere(&namespaces);
        }
        let near = known.iter().filter(|known| known.0 == namespace);
        did_you_mean(name, near.map(|known| known.1))
    }

    /// The position of a pod, by its own name or that of its workload; it is in `namespace` unless the name says another one.
    ///
    /// # Errors
    ///
    /// The manifests lack it, or have several of that name.
    pub(crate) fn position(&self, wanted: &PodName, namespace: &str) -> anyhow::Result<usize> {
        let (namespace, name) = (wanted.namespace(namespace), &*wanted.name);
        let is_wanted = |pod: &OfflinePod| {
            let OfflinePod { workload, pod, .. } = pod;
            let kind = wanted.kind.as_ref();
            pod.metadata.namespace.as_deref() == Some(namespace)
                && (workload.name == name || pod.metadata.name.as_deref() == Some(name))
                && kind.is_none_or(|kind| kind.eq_ignore_ascii_case(&workload.kind))
        };
        let found: Vec<_> = (0..self.pods.len())
            .filter(|index| is_wanted(&self.pods[*index]))
            .collect();
        if let [only] = *found {
            return Ok(only);
        }
        if !found.is_empty() {
            let found = found.iter().map(|index| self.pods[*index].called());
            let found = found.collect::<Vec<_>>().join(" or ");
            anyhow::bail!("several workloads are called {namespace}/{name}: name one, {found}");
        }
        let pods = self.pods.iter().map(|pod| &pod.pod.metadata);
        let pods = pods.filter_map(|pod| Some((pod.namespace.as_deref()?, pod.name.as_deref()?)));
        let elsewhere = |namespaces: &[&str]| {
            let pods = namespaces
                .iter()
                .map(|namespace| format!("{namespace}/{name}"));
            format!("did you mean {}?", pods.collect::<Vec<_>>().join(" or "))
        };
        let rejected = POD_KINDS.iter().find_map(|kind| {
            let rejected = self.rejected.get(&((*kind).to_owned(), name.to_owned()))?;
            Some(format!("rejected: {rejected}"))
        });
        let advice = || self.hint("Pod", (namespace, name), pods.collect(), elsewhere);
        let advice = rejected.unwrap_or_else(advice);
        let problem = format!("no pod {} in the manifests", wanted.in_namespace(namespace));
        anyhow::bail!(with_hint(problem, &advice))
    }

    /// Whether the manifests have this Secret, or what makes it.
    pub(crate) fn has_secret(&self, namespace: &str, name: &str) -> bool {
        self.has_object(Kind::Secret, &ObjectKey::new(namespace, name))
    }

    /// Whether the object is a placeholder, because no manifest has it.
    pub(crate) fn is_assumed(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        let key = ObjectKey::new(namespace, name);
        (kind, name) == (Kind::ConfigMap, ROOT_CA)
            && self.root_ca.is_some()
            && !self.config_maps.contains_key(&key)
    }

    /// The ConfigMaps and Secrets of the manifests.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Kind, &ObjectKey)> {
        let maps = self.config_maps.keys();
        let secrets = self.secrets.keys();
        let maps = maps.map(|key| (Kind::ConfigMap, key));
        maps.chain(secrets.map(|key| (Kind::Secret, key)))
    }

    /// The objects that have no values in the manifests.
    pub(crate) fn made(&self) -> impl Iterator<Item = &MadeObject> {
        self.made.values()
    }

    /// What makes an object.
    pub(crate) fn maker(&self, kind: Kind, key: &ObjectKey) -> Option<&MadeObject> {
        self.made.get(&(kind, key.clone()))
    }

    /// Whether the manifests have the service account; every namespace has `default`.
    pub(crate) fn has_account(&self, namespace: &str, name: &str) -> bool {
        let key = ObjectKey::new(namespace, name);
        name == "default" || self.accounts.contains_key(&key)
    }

    /// Whether pods of the service account get its token, as far as the account says so.
    pub(crate) fn mounts_token(&self, namespace: &str, account: &str) -> Option<bool> {
        let key = ObjectKey::new(namespace, account);
        self.accounts.get(&key).copied().flatten()
    }

    /// Whether the manifests have the PersistentVolumeClaim, or the StatefulSet that makes it.
    pub(crate) fn has_claim(&self, namespace: &str, name: &str) -> bool {
        let stem = without_ordinal(name);
        self.claims.contains(&ObjectKey::new(namespace, name))
            || stem != name
                && self
                    .claims_of_sets
                    .contains(&ObjectKey::new(namespace, stem))
    }

    /// The names of the service accounts of a namespace.
    pub(crate) fn accounts_in(&self, namespace: &str) -> Vec<&str> {
        names_in(namespace, self.accounts.keys())
    }

    /// The names of the PersistentVolumeClaims of a namespace.
    pub(crate) fn claims_in(&self, namespace: &str) -> Vec<&str> {
        names_in(namespace, &self.claims)
    }

    /// Whether `other` has the same content for this object, or both have none.
    pub(crate) fn has_same_object(&self, other: &Self, kind: Kind, key: &ObjectKey) -> bool {
        let made = |side: &Self| {
            side.maker(kind, key)
                .map(|made| (made.keys.clone(), made.others.clone()))
        };
        if made(self) != made(other) {
            return false;
        }
        match kind {
            Kind::ConfigMap => {
                let one = self.config_maps.get(key);
                let two = other.config_maps.get(key);
                one.map(|map| (&map.data, &map.binary_data))
                    == two.map(|map| (&map.data, &map.binary_data))
            }
            Kind::Secret => {
                let (one, two) = (self.secrets.get(key), other.secrets.get(key));
                one.map(|secret| &secret.data) == two.map(|secret| &secret.data)
            }
        }
    }

    /// Whether the object is immutable, and `other` has other content for it or none.
    pub(crate) fn is_immutable_change(&self, other: &Self, kind: Kind, key: &ObjectKey) -> bool {
        let is_made_so = self.maker(kind, key).is_some_and(|made| made.immutable);
        let is_immutable = match kind {
            Kind::ConfigMap => self.config_maps.get(key).is_some_and(|map| map.immutable),
            Kind::Secret => self.secrets.get(key).is_some_and(|secret| secret.immutable),
        };
        (is_immutable || is_made_so) && !self.has_same_object(other, kind, key)
    }

    /// Says what objects are that the documents lack, or that have no data: a controller may fill them.
    pub(crate) fn take_outside(&mut self, outside: Outside<'_>) {
        self.takes_outside = true;
        if let Outside::Perhaps { other } = outside {
            self.no_longer_made = other
                .made
                .iter()
                .filter(|((kind, key), _)| !self.has_object(*kind, key))
                .map(|(key, made)| (key.clone(), made.maker.clone()))
                .collect();
            let services = other.listed_services.iter();
            // Every cluster has this one.
            let services = services.filter(|(_, name)| name != "kubernetes");
            let listed = Arc::make_mut(&mut self.listed_services);
            listed.extend(services.cloned());
        }
        let unseen = |kind, key: &ObjectKey| match outside {
            Outside::Assumed => Some(UnknownObject::unseen(Existence::Certain)),
            Outside::Perhaps { other } if other.provides(kind, key) => None,
            Outside::Perhaps { .. } => Some(UnknownObject::unseen(Existence::Unsure)),
        };
        let others = match outside {
            Outside::Assumed => Existence::Certain,
            Outside::Perhaps { .. } => Existence::Unsure,
        };
        let bundles = TrustBundles::Partial(Arc::clone(&self.trust_bundles), others);
        for OfflinePod { pod, inputs, .. } in &mut self.pods {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            take_missing(&mut inputs.config_maps, namespace, &unseen);
            take_missing(&mut inputs.secrets, namespace, &unseen);
            inputs.trust_bundles = bundles.clone();
            inputs.assumptions.other_services = Some(Arc::clone(&self.listed_services));
            if let Outside::Perhaps { other } = outside {
                let bundles = other.trust_bundles.iter();
                let names = bundles.flat_map(|one| [one.name.clone(), one.signer_name.clone()]);
                inputs.assumptions.missing_bundles.extend(names);
            }
            let is_empty = |map: &ConfigMap| map.data.is_empty() && map.binary_data.is_empty();
            take_empty(&mut inputs.config_maps, |map| {
                (is_empty(map) && !map.immutable).then(Recipe::default)
            });
            take_empty(&mut inputs.secrets, |secret| {
                let account = || self.token_accounts.get(&secret.metadata.key());
                // A controller adds its keys to those that a document has.
                let is_filled = secret.data.is_empty() || account().is_some();
                let is_open = is_filled && !secret.immutable;
                is_open.then(|| account().cloned().unwrap_or_default())
            });
        }
    }

    /// Whether the manifests have the object, or what makes it.
    pub(crate) fn has_object(&self, kind: Kind, key: &ObjectKey) -> bool {
        self.is_listed(kind, key) || self.maker(kind, key).is_some()
    }

    fn is_listed(&self, kind: Kind, key: &ObjectKey) -> bool {
        match kind {
            Kind::ConfigMap => self.config_maps.contains_key(key),
            Kind::Secret => self.secrets.contains_key(key),
        }
    }

    /// Whether the manifests are what makes the object: something that only adds keys to it does not.
    fn provides(&self, kind: Kind, key: &ObjectKey) -> bool {
        let is_added = |made: &MadeObject| made.ownership == Ownership::Added;
        self.is_listed(kind, key) || self.maker(kind, key).is_some_and(|made| !is_added(made))
    }

    /// Everything that the projections of `pod` read; see [`needs`].
    pub(crate) fn inputs(&self, pod: &Pod) -> Inputs {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let key = |name: &str| ObjectKey::new(namespace, name);
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| self.nodes.get(spec.node_name.as_deref()?));
        let mut inputs = Inputs {
            services: Some(Arc::clone(&self.services)),
            node: node.cloned(),
            trust_bundles: TrustBundles::Synced(Arc::clone(&self.trust_bundles)),
            assumptions: Assumptions {
                facts: true,
                written_later: true,
                other_services: Some(Arc::clone(&self.listed_services)),
                ..Assumptions::default()
            },
            ..Inputs::default()
        };
        for need in needs(pod) {
            match need {
                Need::Object(Kind::ConfigMap, name) => {
                    let listed = self.config_maps.get(&key(&name));
                    let assumed = self.root_ca.as_ref().filter(|_| name == ROOT_CA);
                    let found = self.listed_or_made(listed.or(assumed), &key(&name));
                    inputs.config_maps.insert(name.into(), found);
                }
                Need::Object(Kind::Secret, name) => {
                    let listed = self.secrets.get(&key(&name));
                    let found = self.listed_or_made(listed, &key(&name));
                    inputs.secrets.insert(name.into(), found);
                }
                Need::Token(request) => {
                    let token = SecretBytes::new(PLACEHOLDER_TOKEN.into());
                    inputs.tokens.insert(request, Ok(Arc::new(token)));
                }
                Need::PodCertificate(key) => {
                    let why = Unavailable::failed("pod certificates are issued by a cluster only");
                    inputs.pod_certificates.insert(key, Err(why));
                }
                // Every pod has them.
                Need::Services | Need::Node | Need::TrustBundles => {}
            }
        }
        for file in env_files(containers(pod)) {
            // Its volume is an empty directory until a container writes to it.
            inputs.env_files.insert(file, Err(Unavailable::NotFound));
        }
        inputs
    }

    /// What is known of an object that may be `listed`, and made of documents.
    fn listed_or_made<K: Keyed>(
        &self,
        listed: Option<&Arc<K>>,
        key: &ObjectKey,
    ) -> Result<Arc<K>, Unavailable> {
        match (self.maker(K::KIND, key), listed) {
            (None, Some(listed)) => Ok(Arc::clone(listed)),
            (None, None) => Err(Unavailable::NotFound),
            (Some(made), listed) => {
                let object = made_object(made, listed.map(|one| &**one), self.is_of_cluster);
                Err(Unavailable::Unknown(Arc::new(object)))
            }
        }
    }

    /// Makes objects that could not be read from an API server unavailable, with their `reasons`.
    pub(crate) fn refuse_unread(&mut self, reasons: &BTreeSet<(String, String)>) {
        for OfflinePod { pod, inputs, .. } in &mut self.pods {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            refuse_unread(&mut inputs.config_maps, namespace, reasons);
            refuse_unread(&mut inputs.secrets, namespace, reasons);
        }
    }

    /// Takes the pods as those that run here: they have the UIDs that they got, and nothing else sets their annotations.
    /// Objects without values in the documents cannot be had.
    pub(crate) fn run_here(&mut self) {
        for OfflinePod { pod, inputs, .. } in &mut self.pods {
            let assumptions = &mut inputs.assumptions;
            assumptions.written_later = false;
            let made_up = not_before_it_exists().map(|(field, _)| field).into_iter();
            let made_up = made_up.filter(|field| assumptions.fields.remove(field).is_some());
            assumptions.made_up = made_up.collect();
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            let live = self.is_of_cluster;
            let (maps, secrets) = (
                live.then_some(&self.config_maps),
                live.then_some(&self.secrets),
            );
            refuse_made(&mut inputs.config_maps, namespace, &self.made, maps);
            refuse_made(&mut inputs.secrets, namespace, &self.made, secrets);
        }
    }
}

/// Makes the labels of pods with a namesake, and the UIDs that are made of them, their own.
fn label_namesakes(pods: &mut [OfflinePod]) {
    let names = |pod: &OfflinePod| {
        let own = pod.pod.metadata.name.clone().unwrap_or_default();
        let place = pod.place();
        let own = ObjectKey::new(place.namespace.clone(), own);
        BTreeSet::from([own, place])
    };
    let mut counts = HashMap::<_, usize>::new();
    for name in pods.iter().flat_map(names) {
        *counts.entry(name).or_default() += 1;
    }
    for pod in pods {
        if names(pod).iter().any(|name| counts[name] > 1) {
            let Workload { kind, name } = &pod.workload;
            pod.label = format!("{kind}/{name}");
            let fields = &pod.inputs.assumptions.fields;
            if fields.contains_key("metadata.uid") {
                let uid = stable_pod_uid(&pod.place().namespace, &pod.label);
                pod.pod.metadata.uid = Some(uid);
            }
        }
    }
}

fn names_in<'k>(namespace: &str, keys: impl IntoIterator<Item = &'k ObjectKey>) -> Vec<&'k str> {
    let keys = keys.into_iter().filter(|key| key.namespace == namespace);
    keys.map(|key| &*key.name).collect()
}

/// `data-db-` of `data-db-0`
fn without_ordinal(claim: &str) -> &str {
    claim.trim_end_matches(|byte: char| byte.is_ascii_digit())
}

/// What the projections of `pod` read, including volumes that no container mounts.
pub(crate) fn needs(pod: &Pod) -> BTreeSet<Need> {
    pod_volumes(pod)
        .flat_map(Need::of_volume)
        .chain(Need::of_pod(pod))
        .collect()
}

fn rejected(error: &ManifestError) -> Option<((String, String), String)> {
    let ManifestError::Document {
        origin, subject, ..
    } = error
    else {
        return None;
    };
    let key = (subject.kind.clone()?, subject.name.clone()?);
    Some((key, format!("{} line {}", origin.file, origin.line)))
}

fn root_ca() -> Arc<ConfigMap> {
    Arc::new(ConfigMap {
        metadata: ObjectMeta {
            name: ROOT_CA.into(),
            ..ObjectMeta::default()
        },
        data: [(ROOT_CA_KEY, PLACEHOLDER_CA.into())].into(),
        ..ConfigMap::default()
    })
}
