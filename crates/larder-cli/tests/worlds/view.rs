//! What the containers of completed worlds see, by the projection that Kubernetes' own results verify, and how the sides
//! differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{HostIP, Pod, PodIP, PodStatus, Volume},
    apimachinery::pkg::api::resource::Quantity,
};
use larder_objects::{
    ConfigMap, Kind, ObjectMeta, Secret, SecretBytes, SourceKind, manifest::Manifests,
};
use larder_projection::{
    EnvFile, EnvFileRef, Environment, Inputs, Need, NodeFacts, Origin, PodCertificate, Projection,
    RuntimeFeatures, ServiceFacts, ServicePortFacts, SourceKey, TokenRequest, TrustBundle,
    TrustBundles, Unavailable, containers, environment, fs_group, mounts, project, used_volumes,
};

use super::{
    Loaded,
    completion::Completion,
    draw::SIGNERS,
    facts::Fact,
    keys::has_unknown_keys,
    world::{ACCOUNTS, Listing, OBJECTS, PEM, Side, UPDATES_SUB_PATHS, WorkloadKind, World},
};

/// How what a container sees on the second side differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Same,
    /// Files of a mounted volume differ, and nothing else.
    Live,
    /// A running container cannot see the difference.
    Restart,
    Starts,
    Fails,
    Neither,
}

/// The documents of a world as pods, with the defaults of the API server.
pub(super) struct Templates<'m> {
    from: Template<'m>,
    pub(super) to: Template<'m>,
}

/// The pod of a side, and the places in [`OBJECTS`] of what it reads.
pub(super) struct Template<'m> {
    pod: &'m Pod,
    objects: Vec<usize>,
}

impl<'m> Templates<'m> {
    pub(super) fn of(loaded: &'m Loaded) -> Self {
        Self {
            from: Template::of(&loaded.from),
            to: Template::of(&loaded.to),
        }
    }
}

impl<'m> Template<'m> {
    fn of(side: &'m Manifests) -> Self {
        let pod = side.pods().next().expect("each side has a workload");
        let needs = Need::of_pod(pod);
        let objects = OBJECTS.iter().enumerate().filter(|(_, (kind, name))| {
            let need = Need::Object(of_kind(kind), (*name).into());
            needs.contains(&need)
        });
        Self {
            pod,
            objects: objects.map(|(place, _)| place).collect(),
        }
    }
}

/// A pod of one side in a completion, as its node has it.
pub(super) struct RunningPod<'w> {
    /// Whether its account is missing.
    lacks_account: bool,
    side: &'w Side,
    pod: Pod,
    inputs: Inputs,
    /// What its immutable objects are on the other side is the same.
    pinned: BTreeSet<(Kind, &'static str)>,
    /// Files that are mounted by `subPath` follow, as far as they can.
    updates_sub_paths: bool,
}

/// Both sides of a world in a completion; the first one only if the second one is the same workload.
pub(super) fn running<'w>(
    world: &'w World,
    templates: &Templates<'_>,
    completion: &Completion<'_>,
) -> (Option<RunningPod<'w>>, RunningPod<'w>) {
    let is_same_workload = world.from.kind == world.to.kind;
    let from = is_same_workload
        .then(|| RunningPod::new(&world.from, &world.to, &templates.from, completion));
    let mut to = RunningPod::new(&world.to, &world.from, &templates.to, completion);
    to.lacks_account = completion.lacks_account(&world.to, &world.from);
    (from, to)
}

impl<'w> RunningPod<'w> {
    pub(super) fn new(
        side: &'w Side,
        other: &'w Side,
        template: &Template<'_>,
        completion: &Completion<'_>,
    ) -> Self {
        let mut pod = template.pod.clone();
        set_facts(&mut pod, side, other, completion);
        let pinned = OBJECTS.iter().enumerate().filter(|(object, _)| {
            let listing = &side.objects[*object];
            matches!(listing, Listing::Immutable(_))
                && listing.data() != other.objects[*object].data()
        });
        let pinned = pinned.map(|(_, (kind, name))| (of_kind(kind), *name));
        Self {
            inputs: inputs(side, other, &pod, &template.objects, completion),
            pinned: pinned.collect(),
            updates_sub_paths: side.metadata["annotations"][UPDATES_SUB_PATHS] == "true",
            lacks_account: false,
            side,
            pod,
        }
    }
}

fn of_kind(kind: &str) -> Kind {
    match kind {
        "Secret" => Kind::Secret,
        _ => Kind::ConfigMap,
    }
}

/// Sets what controllers, the API server and the node set.
fn set_facts(pod: &mut Pod, side: &Side, other: &Side, completion: &Completion<'_>) {
    let kind = side.kind;
    let fact = |fact| completion.fact(fact).unwrap_or_default().to_owned();
    let label = || fact(Fact::Label);
    let hash = || fact(Fact::TemplateHash(side.template() > other.template()));
    let (name, labels) = match kind {
        WorkloadKind::Pod => ("web".to_owned(), vec![]),
        WorkloadKind::Deployment => (fact(Fact::PodName), vec![("pod-template-hash", hash())]),
        WorkloadKind::DaemonSet => (
            fact(Fact::PodName),
            vec![
                ("controller-revision-hash", hash()),
                ("pod-template-generation", label()),
            ],
        ),
        WorkloadKind::StatefulSet => (
            "web-0".to_owned(),
            vec![
                ("apps.kubernetes.io/pod-index", "0".to_owned()),
                ("controller-revision-hash", hash()),
                ("statefulset.kubernetes.io/pod-name", "web-0".to_owned()),
            ],
        ),
        WorkloadKind::Job | WorkloadKind::CronJob => {
            let job = match kind {
                WorkloadKind::Job => "web".to_owned(),
                _ => label(),
            };
            let labels = vec![
                ("batch.kubernetes.io/controller-uid", label()),
                ("batch.kubernetes.io/job-name", job.clone()),
                ("controller-uid", label()),
                ("job-name", job),
            ];
            (fact(Fact::PodName), labels)
        }
    };
    let labels = labels.into_iter();
    let metadata = &mut pod.metadata;
    metadata.name = Some(name);
    metadata.uid = Some(fact(Fact::Uid));
    let own = metadata.labels.get_or_insert_default();
    own.extend(labels.map(|(label, value)| (label.to_owned(), value)));
    let annotations = [
        (
            "kubernetes.io/config.seen".to_owned(),
            fact(Fact::FirstSeen),
        ),
        ("kubernetes.io/config.source".to_owned(), "api".to_owned()),
    ];
    metadata
        .annotations
        .get_or_insert_default()
        .extend(annotations);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name.get_or_insert_with(|| fact(Fact::NodeName));
    let account = spec.service_account_name.get_or_insert_default();
    if account.is_empty() {
        "default".clone_into(account);
    }
    let of_host = side.is_on_host_network().then(|| side.node());
    let (pod_address, host_address) = (
        fact(Fact::PodAddress(of_host)),
        fact(Fact::HostAddress(side.node())),
    );
    pod.status = Some(PodStatus {
        pod_ip: Some(pod_address.clone()),
        pod_ips: Some(vec![PodIP { ip: pod_address }]),
        host_ip: Some(host_address.clone()),
        host_ips: Some(vec![HostIP { ip: host_address }]),
        ..PodStatus::default()
    });
}

/// Everything that the projections of the pod read.
fn inputs(
    side: &Side,
    other: &Side,
    pod: &Pod,
    objects: &[usize],
    completion: &Completion<'_>,
) -> Inputs {
    let mut inputs = Inputs::default();
    for &object in objects {
        let (kind, name) = OBJECTS[object];
        let data = completion.data(object, side, other);
        let data = data.ok_or(Unavailable::NotFound);
        let metadata = ObjectMeta {
            namespace: "ns".into(),
            name: name.into(),
            ..ObjectMeta::default()
        };
        let name = name.to_owned();
        if kind == "Secret" {
            let secret = data.map(|data| {
                let data = data.into_iter();
                let data = data.map(|(key, value)| (key, SecretBytes::new(value.into())));
                Arc::new(Secret {
                    metadata,
                    data: data.collect(),
                    ..Secret::default()
                })
            });
            inputs.secrets.insert(name, secret);
        } else {
            let map = data.map(|data| {
                let data = data.into_iter();
                let data = data.map(|(key, value)| (key, value.into()));
                Arc::new(ConfigMap {
                    metadata,
                    data: data.collect(),
                    ..ConfigMap::default()
                })
            });
            inputs.config_maps.insert(name, map);
        }
    }
    let service = |namespace: &str, name: &str, address: &str| ServiceFacts {
        namespace: namespace.into(),
        name: name.into(),
        cluster_ip: address.into(),
        ports: [ServicePortFacts {
            name: "".into(),
            port: 80,
            protocol: "TCP".into(),
        }]
        .into(),
    };
    let services = completion.service(side, other).into_iter();
    let services = services.map(|address| service("ns", "db", address));
    let api_server = completion.fact(Fact::ApiServer).into_iter();
    let api_server = api_server.map(|address| service("default", "kubernetes", address));
    inputs.services = Some(services.chain(api_server).collect());
    let processors = completion
        .fact(Fact::Processors(side.node()))
        .unwrap_or_default();
    inputs.node = Some(Arc::new(NodeFacts {
        name: "node".to_owned(),
        allocatable: [("cpu".to_owned(), Quantity(processors.to_owned()))].into(),
        addresses: completion
            .fact(Fact::HostAddress(side.node()))
            .and_then(|address| address.parse().ok())
            .into_iter()
            .collect(),
    }));
    let account = pod
        .spec
        .iter()
        .find_map(|spec| spec.service_account_name.clone());
    let account = account.unwrap_or_default();
    for audience in [None, Some("vault".to_owned())] {
        let token = format!("token of {account} for {audience:?}");
        let request = TokenRequest {
            audience,
            expiration_secs: 3600,
        };
        let token = SecretBytes::new(token.into_bytes());
        inputs.tokens.insert(request, Ok(Arc::new(token)));
    }
    let bundle = completion.has_bundle(side, other).then(|| TrustBundle {
        name: "ca".to_owned(),
        trust_bundle: PEM.to_owned(),
        ..TrustBundle::default()
    });
    inputs.trust_bundles = TrustBundles::Synced(bundle.into_iter().collect());
    for (key, signer) in certificate_sources(pod) {
        let signer = SIGNERS.iter().position(|one| *one == signer);
        let fact = Fact::CertificateKey(signer.expect("it is drawn"), side.account());
        let text = completion.fact(fact).unwrap_or_default();
        let certificate = PodCertificate {
            private_key_pem: SecretBytes::new(text.into()),
            chain_pem: PEM.to_owned(),
        };
        let issued = Ok(Arc::new(certificate));
        inputs.pod_certificates.insert(key, issued);
    }
    let (file, written) = env_file(completion);
    inputs.env_files.insert(file, Ok(Arc::new(written)));
    inputs
}

/// The env file that the pod reads, as it was written.
fn env_file(completion: &Completion<'_>) -> (EnvFileRef, EnvFile) {
    let keys = super::draw::KEYS.into_iter();
    let lines = keys.filter_map(|key| Some((key, completion.fact(Fact::Written(key))?)));
    let lines = lines.map(|(key, value)| format!("{key}='{value}'\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    let file = EnvFileRef {
        volume: "files".to_owned(),
        path: "e.env".to_owned(),
    };
    let written = EnvFile {
        host_path: "/e.env".to_owned(),
        content: SecretBytes::new(lines.into_bytes()),
    };
    (file, written)
}

/// The places of `podCertificate` sources, each with its signer.
fn certificate_sources(pod: &Pod) -> impl Iterator<Item = (SourceKey, &str)> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.flat_map(|volume| {
        let sources = volume
            .projected
            .iter()
            .flat_map(|one| one.sources.iter().flatten());
        let certificates = sources.enumerate();
        certificates.filter_map(|(index, source)| {
            let signer = &*source.pod_certificate.as_ref()?.signer_name;
            let key = SourceKey {
                volume: volume.name.clone(),
                index,
            };
            Some((key, signer))
        })
    })
}

/// A pod with the volumes that its containers mount: each filled, or not to be filled.
pub(super) struct FilledPod<'p> {
    pub(super) pod: &'p RunningPod<'p>,
    volumes: BTreeMap<&'p str, Option<Projection<'p>>>,
}

/// A container that starts.
pub(super) struct Seen<'p> {
    pub(super) environment: Environment<'p>,
    /// By path: the volume, and what is mounted of it; of the token that the API server adds, the account.
    pub(super) mounts: BTreeMap<&'p str, (Option<&'p Volume>, String)>,
    /// By path in the container.
    pub(super) files: BTreeMap<String, SeenFile<'p>>,
    /// Whether variables are keys of an object whose keys no document has.
    has_unknown_names: bool,
    /// The objects of which all keys are shown, each with what stands before the key in a name or path.
    pub(super) all_keys: Vec<(&'p str, String)>,
}

pub(super) struct SeenFile<'p> {
    pub(super) data: &'p [u8],
    permissions: (u32, Option<u32>, Option<u32>),
    /// The path of its mount.
    mount: &'p str,
    /// The same, if that is by `subPath`: a running container keeps the file, unless larder replaces it.
    sub_mount: Option<&'p str>,
    is_token: bool,
    /// Whether it shows the pod itself.
    is_of_pod: bool,
    pub(super) object: Option<(Kind, &'p str)>,
}

impl Seen<'_> {
    /// Whether only Services set the variable.
    pub(super) fn is_of_service(&self, name: &str) -> bool {
        let found = self.environment.get(name);
        found.is_some_and(|one| matches!(one.origin, Origin::Service { .. }))
    }

    pub(super) fn value(&self, name: &str) -> Option<&[u8]> {
        self.environment.get(name).map(|one| &*one.value)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.environment.iter().map(|(name, _)| name)
    }

    /// The names that may differ. A longer key, which no completion has, may be what a name with two prefixes is on the other
    /// side.
    pub(super) fn compared_names(&self, other: &Self) -> impl Iterator<Item = &str> {
        let may_have_longer = other.has_unknown_names;
        self.names()
            .filter(move |name| !may_have_longer || !name.starts_with("P_P_"))
    }
}

/// Which volumes must be filled for a container to start.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NeededVolumes {
    /// Every volume that a container of the pod mounts, as in a cluster.
    OfPod,
    /// Those that it mounts itself.
    Own,
}

impl<'p> FilledPod<'p> {
    pub(super) fn new(pod: &'p RunningPod<'p>) -> Self {
        let used = used_volumes(&pod.pod);
        let volumes = pod.pod.spec.iter();
        let volumes = volumes.flat_map(|spec| spec.volumes.iter().flatten());
        let used = volumes.filter(|one| one.empty_dir.is_none() && used.contains(&*one.name));
        let filled = used.map(|volume| {
            let projection = project(&pod.pod, volume, &pod.inputs);
            (&*volume.name, projection.ok())
        });
        Self {
            volumes: filled.collect(),
            pod,
        }
    }

    /// What the container sees, unless it would not start.
    pub(super) fn see(&'p self, name: &str, needed: NeededVolumes) -> Option<Seen<'p>> {
        let RunningPod { pod, inputs, .. } = self.pod;
        let container = containers(pod).find(|one| one.name == name)?;
        if self.pod.lacks_account {
            return None;
        }
        let own: BTreeSet<_> = container.volumes().collect();
        let mut volumes = self.volumes.iter();
        if volumes.any(|(volume, filled)| {
            filled.is_none() && (needed == NeededVolumes::OfPod || own.contains(volume))
        }) {
            return None;
        }
        let environment = environment(pod, container, inputs).ok()?;
        let runtime = RuntimeFeatures {
            recursive_read_only: true,
        };
        let table = mounts(pod, container, &environment, runtime).ok()?;
        let (mut mounts, mut files) = (BTreeMap::new(), BTreeMap::new());
        let env_from = container.env_from.iter();
        let env_from = env_from.filter_map(|source| {
            let map = source.config_map_ref.as_ref().map(|found| &*found.name);
            let secret = source.secret_ref.as_ref().map(|found| &*found.name);
            Some((map.or(secret)?, source.prefix.clone().unwrap_or_default()))
        });
        let mut all_keys: Vec<_> = env_from.collect();
        let objects = OBJECTS.iter().zip(&self.pod.side.objects);
        let mut unknown = objects.filter(|(_, listing)| has_unknown_keys(listing));
        let has_unknown_names =
            unknown.any(|((_, name), _)| all_keys.iter().any(|(own, _)| own == name));
        let declared = container.volume_mounts.iter();
        let paths: BTreeSet<_> = declared.map(|mount| &*mount.mount_path).collect();
        for mount in &table {
            let at = *paths
                .get(&*mount.mount_path)
                .expect("it is one of the container's");
            let part = mount.sub_path.as_deref().unwrap_or_default().to_owned();
            if let Some(Some(projection)) = self.volumes.get(&*mount.volume.name) {
                if leads_through_file(&part, projection) {
                    return None;
                }
                files.extend(files_of(pod, at, &part, projection));
            }
            if part.is_empty() {
                let shown = whole_objects(mount.volume);
                all_keys.extend(shown.map(|name| (name, format!("{at}/"))));
            }
            mounts.insert(at, (Some(mount.volume), part));
        }
        if let Some(account) = self.pod.mounted_account() {
            mounts.insert("token", (None, account.to_owned()));
        }
        Some(Seen {
            environment,
            mounts,
            files,
            has_unknown_names,
            all_keys,
        })
    }
}

/// The names of the objects of which a volume has all keys.
fn whole_objects(volume: &Volume) -> impl Iterator<Item = &str> {
    let map = volume.config_map.iter();
    let map = map.filter(|map| map.items.is_none());
    let secret = volume.secret.iter();
    let secret = secret.filter(|secret| secret.items.is_none());
    let projected = SourceKind::of_volume(volume).filter_map(|(_, source)| match source {
        SourceKind::ConfigMap(map) if map.items.is_none() => Some(&*map.name),
        SourceKind::Secret(secret) if secret.items.is_none() => Some(&*secret.name),
        _ => None,
    });
    let own = map.map(|map| &*map.name);
    let own = own.chain(secret.filter_map(|secret| secret.secret_name.as_deref()));
    own.chain(projected)
}

/// A path as the runtime takes it: without what counts for nothing in it.
fn clean(path: &str) -> String {
    let elements = path.split('/');
    let elements = elements.filter(|element| !matches!(*element, "" | "."));
    elements.collect::<Vec<_>>().join("/")
}

/// Whether a file is where a `subPath` needs a directory.
fn leads_through_file(part: &str, projection: &Projection<'_>) -> bool {
    let path = clean(part);
    let mut parents = path.match_indices('/').map(|(at, _)| &path[..at]);
    parents.any(|parent| projection.payload.contains_key(parent))
}

/// The files of a mount, by their paths in the container.
fn files_of<'p>(
    pod: &Pod,
    at: &'p str,
    part: &str,
    projection: &'p Projection<'p>,
) -> Vec<(String, SeenFile<'p>)> {
    let selected = clean(part);
    let files = projection.payload.iter().filter_map(|(path, file)| {
        let below = match &*selected {
            "" => Some(path.as_str()),
            part => path
                .as_str()
                .strip_prefix(part)
                .filter(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        let below = below?.trim_start_matches('/');
        let path_in_container = match below {
            "" => at.to_owned(),
            below => format!("{at}/{below}"),
        };
        let origin = projection.origins.get(path);
        let seen = SeenFile {
            data: &file.data,
            permissions: (file.mode, file.owner, fs_group(pod)),
            mount: at,
            sub_mount: (!part.is_empty()).then_some(at),
            is_token: matches!(origin, Some(Origin::Token { .. })),
            is_of_pod: matches!(origin, Some(Origin::Field(_) | Origin::Resource { .. })),
            object: match origin {
                Some(Origin::Key { kind, name, .. }) => Some((*kind, *name)),
                _ => None,
            },
        };
        Some((path_in_container, seen))
    });
    files.collect()
}

impl RunningPod<'_> {
    /// The account whose token the API server mounts. An account that no document has says nothing of it.
    fn mounted_account(&self) -> Option<&str> {
        let spec = self.pod.spec.as_ref()?;
        let account = spec.service_account_name.as_deref()?;
        let place = ACCOUNTS.iter().position(|one| *one == account);
        let of_account = place.and_then(|place| self.side.accounts[place].mounts_token());
        let mounts = spec.automount_service_account_token.or(of_account);
        (mounts != Some(false)).then_some(account)
    }
}

/// A container on both sides: what it sees, if it starts.
pub(super) struct BothSides<'p> {
    pub(super) before: Option<Seen<'p>>,
    pub(super) after: Option<Seen<'p>>,
    from: Option<&'p RunningPod<'p>>,
    to: &'p RunningPod<'p>,
}

impl<'p> BothSides<'p> {
    pub(super) fn of(
        from: Option<&'p FilledPod<'p>>,
        to: &'p FilledPod<'p>,
        container: &str,
    ) -> Self {
        Self {
            before: from.and_then(|from| from.see(container, NeededVolumes::OfPod)),
            after: to.see(container, NeededVolumes::OfPod),
            from: from.map(|from| from.pod),
            to: to.pod,
        }
    }

    /// What becomes of the container.
    pub(super) fn outcome(&self) -> Outcome {
        match (&self.before, &self.after) {
            (None, None) if self.from.is_some() => Outcome::Neither,
            (_, None) => Outcome::Fails,
            (None, Some(_)) => Outcome::Starts,
            (Some(before), Some(after)) => self.difference(before, after),
        }
    }

    fn difference(&self, before: &Seen<'_>, after: &Seen<'_>) -> Outcome {
        let names = before
            .compared_names(after)
            .chain(after.compared_names(before));
        let names: BTreeSet<_> = names.collect();
        let links = |pod: &RunningPod<'_>| pod.pod.spec.as_ref()?.enable_service_links;
        let has_other_links = self.from.is_some_and(|from| links(from) != links(self.to));
        let has_other_variables = names.into_iter().any(|name| {
            // New pods get other variables of Services; no container restarts for them.
            let is_own = |seen: &Seen<'_>| seen.value(name).is_some() && !seen.is_of_service(name);
            (has_other_links || is_own(before) || is_own(after))
                && before.value(name) != after.value(name)
        });
        // A container sees the files of a volume, not how it is filled.
        let places = |seen: &Seen<'_>| -> Vec<_> {
            let mounts = seen.mounts.iter();
            let places = mounts.map(|(path, (volume, part))| {
                let name = volume.map(|volume| volume.name.clone());
                ((*path).to_owned(), name, part.clone())
            });
            places.collect()
        };
        if has_other_variables || places(before) != places(after) {
            return Outcome::Restart;
        }
        let is_filled_otherwise =
            |file: &SeenFile<'_>| before.mounts[file.mount].0 != after.mounts[file.mount].0;
        let paths: BTreeSet<_> = before.files.keys().chain(after.files.keys()).collect();
        let mut outcome = Outcome::Same;
        for path in paths {
            let sides = [before.files.get(path), after.files.get(path)];
            let is_same = match sides {
                [Some(before), Some(after)] => {
                    if before.permissions != after.permissions {
                        return Outcome::Restart;
                    }
                    before.data == after.data
                }
                _ => false,
            };
            if is_same {
                continue;
            }
            let mut files = sides.into_iter().flatten();
            let needs_start = files.any(|file| {
                let is_of_template = file.is_of_pod && self.has_other_template();
                let is_kept = self.is_pinned(file) || is_filled_otherwise(file);
                file.is_token || is_of_template || is_kept
            });
            if needs_start || self.stays(path, sides, after) {
                return Outcome::Restart;
            }
            outcome = Outcome::Live;
        }
        outcome
    }

    /// Whether another template is the only difference of a pod: it changes none that runs.
    fn has_other_template(&self) -> bool {
        let template = |pod: &RunningPod<'_>| pod.side.template();
        let is_made = self.to.side.kind != WorkloadKind::Pod;
        is_made && self.from.map(template) != Some(template(self.to))
    }

    /// Whether running containers keep what they see of the file's object.
    fn is_pinned(&self, file: &SeenFile<'_>) -> bool {
        let pinned = self.from.map(|from| &from.pinned);
        let object = file.object;
        pinned.is_some_and(|pinned| object.is_some_and(|object| pinned.contains(&object)))
    }

    /// Whether a running container keeps what it sees at a path, since it is mounted by `subPath`. A mount is replaced if
    /// it shows a file on both sides or a directory on both.
    fn stays(&self, path: &str, sides: [Option<&SeenFile<'_>>; 2], after: &Seen<'_>) -> bool {
        let mut files = sides.iter().flatten();
        let Some(mount) = files.find_map(|file| file.sub_mount) else {
            return false;
        };
        let comes_or_goes = path == mount && sides.iter().any(Option::is_none);
        let is_of_mount = |other: &String| {
            other
                .strip_prefix(mount)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_gone = !after.files.keys().any(is_of_mount);
        !self.to.updates_sub_paths || comes_or_goes || is_gone
    }
}
