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
    ConfigMap, Kind, ObjectMeta, Secret, SecretBytes,
    manifest::{Loader, Manifest},
};
use larder_projection::{
    EnvFile, EnvFileRef, Inputs, NodeFacts, Origin, RuntimeFeatures, ServiceFacts,
    ServicePortFacts, TokenRequest, TrustBundle, TrustBundles, Unavailable, containers,
    environment, fs_group, mounts, project, used_volumes,
};

use super::{
    completion::{Completion, Fact},
    world::{ACCOUNTS, Listing, OBJECTS, PEM, Side, WorkloadKind, World},
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

/// The documents of a world as pods.
pub(super) struct Templates {
    from: Pod,
    pub(super) to: Pod,
}

impl Templates {
    pub(super) fn of(world: &World) -> Self {
        Self {
            from: template(&world.from),
            to: template(&world.to),
        }
    }
}

/// The pod of the documents, with the defaults of the API server.
fn template(side: &Side) -> Pod {
    let mut loader = Loader::new("ns");
    loader.text("side", &side.text());
    let manifests = loader.finish();
    assert!(manifests.errors.is_empty(), "{:?}", manifests.errors);
    let mut pods = manifests.documents.into_iter().filter_map(|document| {
        let Manifest::Pod(pod) = document.manifest else {
            return None;
        };
        Some(*pod)
    });
    pods.next().expect("each side has one workload")
}

/// A pod of one side in a completion, as its node has it.
pub(super) struct RunningPod<'w> {
    side: &'w Side,
    pod: Pod,
    inputs: Inputs,
    /// What its immutable objects are on the other side is the same.
    pinned: BTreeSet<(Kind, &'static str)>,
}

/// Both sides of a world in a completion; the first one only if the second one is the same workload.
pub(super) fn running<'w>(
    world: &'w World,
    templates: &Templates,
    completion: &Completion,
) -> (Option<RunningPod<'w>>, RunningPod<'w>) {
    let is_same_workload = world.from.kind == world.to.kind;
    let from = is_same_workload
        .then(|| RunningPod::new(&world.from, &world.to, &templates.from, completion));
    let to = RunningPod::new(&world.to, &world.from, &templates.to, completion);
    (from, to)
}

impl<'w> RunningPod<'w> {
    pub(super) fn new(
        side: &'w Side,
        other: &'w Side,
        template: &Pod,
        completion: &Completion,
    ) -> Self {
        let mut pod = template.clone();
        set_facts(&mut pod, side.kind, completion);
        let pinned = OBJECTS.iter().enumerate().filter(|(object, _)| {
            let listing = &side.objects[*object];
            matches!(listing, Listing::Immutable(_))
                && data(listing) != data(&other.objects[*object])
        });
        let pinned = pinned.map(|(_, (kind, name))| (of_kind(kind), *name));
        Self {
            inputs: inputs(side, other, &pod, completion),
            pinned: pinned.collect(),
            side,
            pod,
        }
    }
}

/// The data that a document has.
fn data(listing: &Listing) -> Option<&super::world::Data> {
    match listing {
        Listing::Data(data) | Listing::Immutable(data) => Some(data),
        _ => None,
    }
}

fn of_kind(kind: &str) -> Kind {
    match kind {
        "Secret" => Kind::Secret,
        _ => Kind::ConfigMap,
    }
}

/// Sets what controllers, the API server and the node set.
fn set_facts(pod: &mut Pod, kind: WorkloadKind, completion: &Completion) {
    let fact = |fact| completion.fact(fact).unwrap_or_default().to_owned();
    let label = || fact(Fact::Label);
    let (name, labels) = match kind {
        WorkloadKind::Pod => ("web".to_owned(), vec![]),
        WorkloadKind::Deployment => (fact(Fact::PodName), vec![("pod-template-hash", label())]),
        WorkloadKind::DaemonSet => (
            fact(Fact::PodName),
            vec![
                ("controller-revision-hash", label()),
                ("pod-template-generation", label()),
            ],
        ),
        WorkloadKind::StatefulSet => (
            "web-0".to_owned(),
            vec![
                ("apps.kubernetes.io/pod-index", "0".to_owned()),
                ("controller-revision-hash", label()),
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
    spec.node_name = Some(fact(Fact::NodeName));
    let account = spec.service_account_name.get_or_insert_default();
    if account.is_empty() {
        "default".clone_into(account);
    }
    let (pod_address, host_address) = (fact(Fact::PodAddress), fact(Fact::HostAddress));
    pod.status = Some(PodStatus {
        pod_ip: Some(pod_address.clone()),
        pod_ips: Some(vec![PodIP { ip: pod_address }]),
        host_ip: Some(host_address.clone()),
        host_ips: Some(vec![HostIP { ip: host_address }]),
        ..PodStatus::default()
    });
}

/// Everything that the projections of the pod read.
fn inputs(side: &Side, other: &Side, pod: &Pod, completion: &Completion) -> Inputs {
    let mut inputs = Inputs::default();
    for (object, (kind, name)) in OBJECTS.iter().enumerate() {
        let data = completion.data(object, side, other);
        let data = data.ok_or(Unavailable::NotFound);
        let metadata = ObjectMeta {
            namespace: "ns".into(),
            name: (*name).into(),
            ..ObjectMeta::default()
        };
        let name = (*name).to_owned();
        if *kind == "Secret" {
            let secret = data.map(|data| {
                let data = data.into_iter();
                let data = data.map(|(key, value)| (key, SecretBytes::new(value.into_bytes())));
                Arc::new(Secret {
                    metadata,
                    data: data.collect(),
                    ..Secret::default()
                })
            });
            inputs.secrets.insert(name, secret);
        } else {
            let map = data.map(|data| {
                let data = data.into_iter().map(|(key, value)| (key, value.into()));
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
    let services = completion.service(side).into_iter();
    let services = services.map(|address| service("ns", "db", address));
    let api_server = completion.fact(Fact::ApiServer).into_iter();
    let api_server = api_server.map(|address| service("default", "kubernetes", address));
    inputs.services = Some(services.chain(api_server).collect());
    let processors = completion.fact(Fact::Processors).unwrap_or_default();
    inputs.node = Some(Arc::new(NodeFacts {
        name: "node".to_owned(),
        allocatable: [("cpu".to_owned(), Quantity(processors.to_owned()))].into(),
        addresses: completion
            .fact(Fact::HostAddress)
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
    inputs.env_files.insert(file, Ok(Arc::new(written)));
    inputs
}

/// A container that starts.
pub(super) struct Seen<'p> {
    pub(super) variables: BTreeMap<String, Vec<u8>>,
    /// Those that only Services set.
    pub(super) of_services: BTreeSet<String>,
    /// By path: the volume, and what is mounted of it; of the token that the API server adds, the account.
    pub(super) mounts: BTreeMap<String, (Option<&'p Volume>, String)>,
    /// By path in the container.
    pub(super) files: BTreeMap<String, SeenFile>,
}

#[derive(PartialEq)]
pub(super) struct SeenFile {
    pub(super) data: Vec<u8>,
    permissions: (u32, Option<u32>, Option<u32>),
    /// It is mounted by `subPath`, so a running container keeps it.
    is_fixed: bool,
    is_token: bool,
    object: Option<(Kind, String)>,
}

/// Which volumes must be filled for a container to start.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NeededVolumes {
    /// Every volume that a container of the pod mounts, as in a cluster.
    OfPod,
    /// Those that it mounts itself.
    Own,
}

impl RunningPod<'_> {
    /// What the container sees, unless it would not start.
    pub(super) fn see(&self, name: &str, needed: NeededVolumes) -> Option<Seen<'_>> {
        let (pod, inputs) = (&self.pod, &self.inputs);
        let container = containers(pod).find(|one| one.name == name)?;
        let own: BTreeSet<_> = container.volumes().collect();
        let used = used_volumes(pod);
        let volumes = pod.spec.as_ref()?.volumes.iter().flatten();
        let filled = volumes.filter(|volume| {
            let is_needed = match needed {
                NeededVolumes::OfPod => used.contains(&*volume.name),
                NeededVolumes::Own => own.contains(&*volume.name),
            };
            is_needed && volume.empty_dir.is_none()
        });
        let mut projections = BTreeMap::new();
        for volume in filled {
            projections.insert(&*volume.name, project(pod, volume, inputs).ok()?);
        }
        let environment = environment(pod, container, inputs).ok()?;
        let runtime = RuntimeFeatures {
            recursive_read_only: true,
        };
        let table = mounts(pod, container, &environment, runtime).ok()?;
        let variables = || environment.iter();
        let of_services =
            variables().filter(|(_, one)| matches!(one.origin, Origin::Service { .. }));
        let mut seen = Seen {
            of_services: of_services.map(|(name, _)| name.to_owned()).collect(),
            variables: variables()
                .map(|(name, one)| (name.to_owned(), one.value.to_vec()))
                .collect(),
            mounts: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        for mount in &table {
            let part = mount.sub_path.as_deref().unwrap_or_default().to_owned();
            if let Some(projection) = projections.get(&*mount.volume.name) {
                for (path, file) in &projection.payload {
                    let below = match &*part {
                        "" => Some(path.as_str()),
                        part => path
                            .as_str()
                            .strip_prefix(part)
                            .filter(|rest| rest.is_empty() || rest.starts_with('/')),
                    };
                    let Some(below) = below else { continue };
                    let origin = projection.origins.get(path);
                    let object = match origin {
                        Some(Origin::Key { kind, name, .. }) => Some((*kind, (*name).to_owned())),
                        _ => None,
                    };
                    let file = SeenFile {
                        data: file.data.to_vec(),
                        permissions: (file.mode, file.owner, fs_group(pod)),
                        is_fixed: !part.is_empty(),
                        is_token: matches!(origin, Some(Origin::Token { .. })),
                        object,
                    };
                    let below = below.trim_start_matches('/');
                    seen.files
                        .insert(format!("{}/{below}", mount.mount_path), file);
                }
            }
            seen.mounts
                .insert(mount.mount_path.clone(), (Some(mount.volume), part));
        }
        if let Some(account) = self.mounted_account() {
            seen.mounts
                .insert("token".to_owned(), (None, account.to_owned()));
        }
        Some(seen)
    }

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

/// What becomes of a container.
pub(super) fn outcome(
    from: Option<&RunningPod<'_>>,
    to: &RunningPod<'_>,
    container: &str,
) -> Outcome {
    let before = from.and_then(|from| from.see(container, NeededVolumes::OfPod));
    let after = to.see(container, NeededVolumes::OfPod);
    match (before, after) {
        (None, None) if from.is_some() => Outcome::Neither,
        (_, None) => Outcome::Fails,
        (None, Some(_)) => Outcome::Starts,
        (Some(before), Some(after)) => {
            let pinned = from.map(|from| &from.pinned);
            difference(&before, &after, &|file| {
                let object = file.object.as_ref();
                object.is_some_and(|(kind, name)| {
                    pinned.is_some_and(|pinned| pinned.contains(&(*kind, &**name)))
                })
            })
        }
    }
}

fn difference(
    before: &Seen<'_>,
    after: &Seen<'_>,
    is_pinned: &dyn Fn(&SeenFile) -> bool,
) -> Outcome {
    let names: BTreeSet<_> = before
        .variables
        .keys()
        .chain(after.variables.keys())
        .collect();
    let has_other_variables = names.into_iter().any(|name| {
        let value = |seen: &Seen<'_>| seen.variables.get(name).cloned();
        // New pods get other variables of Services; no container restarts for them.
        let is_own = |seen: &Seen<'_>| value(seen).is_some() && !seen.of_services.contains(name);
        (is_own(before) || is_own(after)) && value(before) != value(after)
    });
    if has_other_variables || before.mounts != after.mounts {
        return Outcome::Restart;
    }
    let paths: BTreeSet<_> = before.files.keys().chain(after.files.keys()).collect();
    let mut outcome = Outcome::Same;
    for path in paths {
        let sides = [before.files.get(path), after.files.get(path)];
        let mut files = sides.into_iter().flatten();
        let needs_start = files.any(|file| file.is_fixed || file.is_token || is_pinned(file));
        let is_same = match sides {
            [Some(before), Some(after)] => {
                if before.permissions != after.permissions {
                    return Outcome::Restart;
                }
                before.data == after.data
            }
            _ => false,
        };
        if !is_same && needs_start {
            return Outcome::Restart;
        }
        if !is_same {
            outcome = Outcome::Live;
        }
    }
    outcome
}
