//! What a seed draws: a side of a world, and one thing in it that is edited.

use serde_json::{Value, json};

use super::world::{
    ACCOUNTS, AccountListing, CERTIFICATE_KEYS, Data, Listing, OBJECTS, ServiceListing, Side,
    UPDATES_SUB_PATHS, Versions, WorkloadKind,
};

pub(super) const KEYS: [&str; 3] = ["A", "B", "LEVEL"];
/// The signers of pod certificates.
pub(super) const SIGNERS: [&str; 2] = ["example.com/a", "example.com/b"];
const VALUES: [&str; 4] = ["1", "2", "three", "10.0.0.1"];
const PREFIXES: [&str; 3] = ["", "", "P_"];

/// Fields of a pod that a variable can be made of.
const FIELDS: [&str; 8] = [
    "spec.serviceAccountName",
    "metadata.name",
    "metadata.uid",
    "metadata.labels['tier']",
    "metadata.annotations['note']",
    "spec.nodeName",
    "status.podIP",
    "status.hostIP",
];

/// Those that a file can be made of.
const FILE_FIELDS: [&str; 5] = [
    "metadata.name",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
    "metadata.labels['tier']",
];

/// Random choices.
pub(super) struct Draw(fastrand::Rng);

impl Draw {
    pub(super) fn of(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A number below `most`.
    pub(super) fn number(&mut self, most: u8) -> u8 {
        self.0.u8(0..most)
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        self.0.usize(0..length)
    }

    pub(super) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Whether something happens that happens once in so many times.
    pub(super) fn once_in(&mut self, times: u8) -> bool {
        self.number(times) == 0
    }

    fn data(&mut self) -> Data {
        let keys: Vec<_> = KEYS.into_iter().filter(|_| self.once_in(2)).collect();
        let data = keys.into_iter();
        data.map(|key| (key.to_owned(), self.one_of(&VALUES).to_owned()))
            .collect()
    }

    fn versions(&mut self) -> Versions {
        let keys: Vec<_> = KEYS.into_iter().filter(|_| self.once_in(2)).collect();
        let mut versions: Versions = keys.into_iter().map(|key| (key, self.number(2))).collect();
        versions.insert("A", self.number(2));
        versions
    }

    fn listing(&mut self, kind: &str) -> Listing {
        let is_secret = kind == "Secret";
        match self.number(14) {
            0..=4 => {
                let mut data = self.data();
                data.insert("B".to_owned(), "1".to_owned());
                if self.once_in(6) {
                    Listing::Immutable(data)
                } else {
                    Listing::Data(data)
                }
            }
            5 => Listing::Empty,
            6 => Listing::Encrypted(self.versions()),
            7 | 8 if is_secret => Listing::Sealed(self.versions()),
            9 if is_secret => Listing::External(self.number(2)),
            10 if is_secret => Listing::Certificate(self.number(2)),
            _ => Listing::Outside,
        }
    }

    fn service(&mut self) -> ServiceListing {
        match self.number(6) {
            0 => ServiceListing::At(self.one_of(&["10.0.0.1", "10.0.0.2"])),
            1 => ServiceListing::New,
            2 => ServiceListing::Headless,
            _ => ServiceListing::Outside,
        }
    }

    fn account(&mut self) -> AccountListing {
        self.one_of(&[
            AccountListing::Outside,
            AccountListing::Outside,
            AccountListing::Silent,
            AccountListing::Mounts(true),
            AccountListing::Mounts(false),
        ])
    }

    fn kind(&mut self) -> WorkloadKind {
        self.one_of(&[
            WorkloadKind::Deployment,
            WorkloadKind::Deployment,
            WorkloadKind::StatefulSet,
            WorkloadKind::DaemonSet,
            WorkloadKind::Job,
            WorkloadKind::CronJob,
            WorkloadKind::Pod,
        ])
    }

    fn metadata(&mut self) -> Value {
        let tier = self.one_of(&["1", "2"]);
        let mut metadata = json!({"labels": {"app": "web", "tier": tier}});
        if self.once_in(3) {
            metadata["annotations"]["note"] = self.one_of(&VALUES).into();
        }
        if self.once_in(2) {
            let asks = self.one_of(&["true", "true", "false"]);
            metadata["annotations"][UPDATES_SUB_PATHS] = asks.into();
        }
        metadata
    }

    pub(super) fn side(&mut self) -> Side {
        let objects = OBJECTS.iter().map(|(kind, _)| self.listing(kind)).collect();
        let volumes = self.index(3);
        let mut volumes: Vec<_> = (0..volumes).map(|number| self.volume(number)).collect();
        let mut containers = ["web", "side"].map(|name| self.container(name, volumes.len()));
        if self.once_in(4) {
            volumes.push(json!({"name": "files", "emptyDir": {}}));
            let mounts = containers[1]["volumeMounts"].as_array_mut().unwrap();
            mounts.push(json!({"name": "files", "mountPath": "/files"}));
        } else {
            for container in &mut containers {
                let env = container["env"].as_array_mut().unwrap();
                env.retain(|one| one["valueFrom"].get("fileKeyRef").is_none());
            }
        }
        let mut pod = json!({"containers": containers, "volumes": volumes});
        if self.once_in(4) {
            self.place(&mut pod);
        }
        if self.once_in(4) {
            pod["enableServiceLinks"] = false.into();
        }
        if self.once_in(3) {
            pod["serviceAccountName"] = self.one_of(&ACCOUNTS).into();
        }
        Side {
            objects,
            service: self.service(),
            accounts: [self.account(), self.account()],
            has_bundle: self.once_in(2),
            kind: self.kind(),
            metadata: self.metadata(),
            pod,
        }
    }

    /// Says where the pod runs, and whether it has the network of its node.
    fn place(&mut self, pod: &mut Value) {
        if self.once_in(2) {
            pod["nodeName"] = self.one_of(&["n1", "n2"]).into();
        }
        if self.once_in(2) {
            pod["hostNetwork"] = true.into();
        } else if let Some(fields) = pod.as_object_mut() {
            fields.remove("hostNetwork");
        }
    }

    fn container(&mut self, name: &str, volumes: usize) -> Value {
        let env: Vec<_> = (0..self.number(4)).map(|_| self.variable()).collect();
        let env_from: Vec<_> = (0..self.number(3)).map(|_| self.env_from()).collect();
        let mounts: Vec<_> = (0..volumes)
            .filter_map(|number| self.mount(number))
            .collect();
        let mut container = json!({
            "name": name, "image": "i", "env": env, "envFrom": env_from, "volumeMounts": mounts,
        });
        if self.once_in(3) {
            container["resources"] = json!({"limits": {"cpu": self.one_of(&["1", "2"])}});
        }
        container
    }

    /// The name of an object of the kind.
    fn name(&mut self, kind: &str) -> &'static str {
        let names = OBJECTS.iter().filter(|(one, _)| *one == kind);
        let names: Vec<_> = names.map(|(_, name)| *name).collect();
        self.one_of(&names)
    }

    /// A key of an object of the kind.
    fn key(&mut self, kind: &str) -> &'static str {
        if kind == "Secret" && self.once_in(8) {
            self.one_of(&CERTIFICATE_KEYS)
        } else {
            self.one_of(&KEYS)
        }
    }

    fn variable(&mut self) -> Value {
        let name = self.one_of(&["A", "B", "LEVEL", "X", "URL"]);
        let optional = self.once_in(2);
        let source = match self.number(12) {
            0..=3 => {
                let value = self.one_of(&[
                    "1",
                    "2",
                    "$(A)",
                    "$(LEVEL)-x",
                    "$(P_A)",
                    "$(X)$(B)",
                    "$(DB_SERVICE_HOST)",
                    "$(KUBERNETES_SERVICE_HOST)",
                    "$$(A)$(B",
                ]);
                return json!({"name": name, "value": value});
            }
            4 | 5 => {
                let (of, key) = (self.name("ConfigMap"), self.key("ConfigMap"));
                json!({"configMapKeyRef": {"name": of, "key": key, "optional": optional}})
            }
            6..=8 => {
                let (of, key) = (self.name("Secret"), self.key("Secret"));
                json!({"secretKeyRef": {"name": of, "key": key, "optional": optional}})
            }
            9 => {
                json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}})
            }
            10 => json!({"fileKeyRef": {
                "volumeName": "files", "path": "e.env", "key": self.one_of(&KEYS), "optional": optional,
            }}),
            _ => json!({"fieldRef": {"fieldPath": self.one_of(&FIELDS)}}),
        };
        json!({"name": name, "valueFrom": source})
    }

    fn env_from(&mut self) -> Value {
        let kind = self.one_of(&["ConfigMap", "Secret", "Secret"]);
        let field = match kind {
            "Secret" => "secretRef",
            _ => "configMapRef",
        };
        let (name, optional) = (self.name(kind), self.once_in(2));
        let prefix = self.one_of(&PREFIXES);
        json!({"prefix": prefix, field: {"name": name, "optional": optional}})
    }

    fn mode(&mut self, selected: &mut Value, field: &str) {
        if self.once_in(5) {
            selected[field] = self.one_of(&[0o400, 0o644]).into();
        }
    }

    /// The source of files of an object; a projected one names its object in another way.
    fn object_source(&mut self, is_projected: bool) -> Value {
        let kind = self.one_of(&["ConfigMap", "Secret"]);
        let (name, optional) = (self.name(kind), self.once_in(2));
        let (source, field) = match (kind, is_projected) {
            ("Secret", false) => ("secret", "secretName"),
            ("Secret", true) => ("secret", "name"),
            _ => ("configMap", "name"),
        };
        let mut selected = json!({field: name, "optional": optional});
        if self.once_in(3) {
            let mut item = json!({"key": self.key(kind), "path": self.one_of(&["A", "B", "d/f"])});
            self.mode(&mut item, "mode");
            selected["items"] = json!([item]);
        }
        json!({source: selected})
    }

    fn downward(&mut self) -> Value {
        let mut item = json!({"path": self.one_of(&["A", "labels", "d/f"])});
        if self.once_in(4) {
            item["resourceFieldRef"] =
                json!({"containerName": "web", "resource": "limits.cpu", "divisor": "1"});
        } else {
            item["fieldRef"] = json!({"fieldPath": self.one_of(&FILE_FIELDS)});
        }
        self.mode(&mut item, "mode");
        json!({"downwardAPI": {"items": [item]}})
    }

    fn projected_source(&mut self) -> Value {
        match self.number(9) {
            0 => self.downward(),
            8 => self.certificate(),
            1 => {
                let mut token = json!({"path": "token"});
                if self.once_in(2) {
                    token["audience"] = "vault".into();
                }
                json!({"serviceAccountToken": token})
            }
            2 => json!({"clusterTrustBundle": {
                "name": "ca", "path": "ca.pem", "optional": self.once_in(2),
            }}),
            _ => self.object_source(true),
        }
    }

    fn certificate(&mut self) -> Value {
        let mut certificate = json!({
            "signerName": self.one_of(&SIGNERS), "keyType": "ED25519",
        });
        if self.once_in(2) {
            certificate["credentialBundlePath"] = self.one_of(&["A", "bundle.pem"]).into();
        } else {
            certificate["keyPath"] = "key.pem".into();
            certificate["certificateChainPath"] = "chain.pem".into();
        }
        json!({"podCertificate": certificate})
    }

    fn volume(&mut self, number: usize) -> Value {
        let (mut volume, field) = match self.number(6) {
            0 | 1 => {
                let sources: Vec<_> = (0..=self.number(3))
                    .map(|_| self.projected_source())
                    .collect();
                (
                    json!({"projected": {"sources": with_own_paths(sources)}}),
                    "projected",
                )
            }
            2 => (self.downward(), "downwardAPI"),
            _ => {
                let source = self.object_source(false);
                let field = if source.get("secret").is_some() {
                    "secret"
                } else {
                    "configMap"
                };
                (source, field)
            }
        };
        self.mode(&mut volume[field], "defaultMode");
        volume["name"] = format!("v{number}").into();
        volume
    }

    fn mount(&mut self, volume: usize) -> Option<Value> {
        let mut mount = json!({"name": format!("v{volume}"), "mountPath": format!("/m{volume}")});
        match self.number(6) {
            0 => return None,
            1 => mount["subPath"] = self.one_of(&["A", "d"]).into(),
            2 => {
                mount["subPathExpr"] = self.one_of(&["$(A)", "$(LEVEL)", "d/$(X)", "A"]).into();
            }
            _ => {}
        }
        Some(mount)
    }

    /// Changes one thing.
    pub(super) fn edit(&mut self, side: &mut Side) {
        let object = self.index(OBJECTS.len());
        let container = self.index(2);
        let of_container = |part: &str| format!("/containers/{container}/{part}");
        match self.number(24) {
            0..=2 => self.edit_object(&mut side.objects[object], OBJECTS[object].0),
            3 => side.objects[object] = self.listing(OBJECTS[object].0),
            4 => side.objects[object] = Listing::Outside,
            5 | 6 => {
                let has_files = side.pod["volumes"].to_string().contains("emptyDir");
                let variable = self.variable();
                let env = list(&mut side.pod, &of_container("env"));
                if variable["valueFrom"].get("fileKeyRef").is_some() && !has_files {
                    return;
                }
                if env.is_empty() || self.once_in(2) {
                    env.push(variable);
                } else {
                    let at = self.index(env.len());
                    env[at] = variable;
                }
            }
            7 => {
                let env = list(&mut side.pod, &of_container("env"));
                if !env.is_empty() {
                    let at = self.index(env.len());
                    env.remove(at);
                }
            }
            8 | 9 => {
                let source = self.env_from();
                let sources = list(&mut side.pod, &of_container("envFrom"));
                match self.number(3) {
                    0 => sources.reverse(),
                    1 => drop(sources.pop()),
                    _ => sources.insert(0, source),
                }
            }
            10 | 11 => {
                // What is optional is needed, or the other way round.
                let part = self.one_of(&["env", "envFrom"]);
                flip(&mut side.pod["containers"][container][part]);
            }
            12 => {
                flip(&mut side.pod["volumes"]);
            }
            13 | 14 => {
                let volumes = list(&mut side.pod, "/volumes").len();
                let number = self.index(3);
                if number < volumes && side.pod["volumes"][number]["name"] != "files" {
                    let mount = self.mount(number);
                    let mounts = list(&mut side.pod, &of_container("volumeMounts"));
                    mounts.retain(|one| one["name"] != format!("v{number}"));
                    mounts.extend(mount);
                }
            }
            15 => {
                let volumes = list(&mut side.pod, "/volumes");
                let number = self.index(3);
                if volumes
                    .get(number)
                    .is_some_and(|one| one["name"] != "files")
                {
                    volumes[number] = self.volume(number);
                }
            }
            16 => side.service = self.service(),
            17 => side.accounts[object % 2] = self.account(),
            18 => side.has_bundle = !side.has_bundle,
            19 => side.metadata = self.metadata(),
            20 => {
                side.pod["serviceAccountName"] = self.one_of(&ACCOUNTS).into();
                if self.once_in(2) {
                    side.pod["automountServiceAccountToken"] = self.once_in(2).into();
                }
            }
            21 => side.kind = self.kind(),
            22 => {
                let image = &mut side.pod["containers"][container]["image"];
                *image = self.one_of(&["i", "j"]).into();
            }
            _ => self.place(&mut side.pod),
        }
    }

    fn edit_object(&mut self, listing: &mut Listing, kind: &str) {
        match listing {
            Listing::Data(data) => {
                let (key, value) = (self.one_of(&KEYS), self.one_of(&VALUES));
                if self.once_in(4) {
                    data.remove(key);
                } else {
                    data.insert(key.to_owned(), value.to_owned());
                }
                if data.is_empty() {
                    *listing = Listing::Empty;
                }
            }
            Listing::Sealed(versions) | Listing::Encrypted(versions) => {
                versions.insert(self.one_of(&KEYS), 2);
            }
            Listing::External(version) | Listing::Certificate(version) => *version += 1,
            _ => *listing = self.listing(kind),
        }
    }
}

/// The list at this place of a spec.
fn list<'s>(pod: &'s mut Value, place: &str) -> &'s mut Vec<Value> {
    let found = pod.pointer_mut(place).and_then(Value::as_array_mut);
    found.expect("every spec has it")
}

/// Sources of which no two state one path: the API server rejects them.
fn with_own_paths(sources: Vec<Value>) -> Vec<Value> {
    let mut seen = Vec::new();
    let mut kept = Vec::new();
    for source in sources {
        let paths = stated_paths(&source);
        if !paths.iter().any(|path| seen.contains(path)) {
            seen.extend(paths);
            kept.push(source);
        }
    }
    kept
}

/// The paths that a source states.
fn stated_paths(source: &Value) -> Vec<String> {
    let fields = [
        "/items/0/path",
        "/path",
        "/credentialBundlePath",
        "/keyPath",
        "/certificateChainPath",
    ];
    let sources = source.as_object().into_iter().flat_map(|all| all.values());
    let paths = sources.flat_map(|source| fields.iter().filter_map(|field| source.pointer(field)));
    paths
        .filter_map(|path| path.as_str().map(str::to_owned))
        .collect()
}

/// Inverts the first `optional` in the value.
fn flip(value: &mut Value) -> bool {
    match value {
        Value::Array(all) => all.iter_mut().any(flip),
        Value::Object(fields) => {
            if let Some(Value::Bool(optional)) = fields.get_mut("optional") {
                *optional = !*optional;
                return true;
            }
            fields.values_mut().any(flip)
        }
        _ => false,
    }
}
