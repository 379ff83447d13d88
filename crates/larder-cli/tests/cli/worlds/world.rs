//! Worlds: a pod and the objects that it refers to, on two sides, drawn from a seed.

use std::{collections::BTreeMap, fmt};

use serde_json::{Value, json};

/// Data of an object.
pub(super) type Data = BTreeMap<&'static str, String>;

pub(super) const KEYS: [&str; 3] = ["A", "B", "LEVEL"];

const VALUES: [&str; 3] = ["1", "2", "three"];

/// The objects of every world: kind and name.
pub(super) const OBJECTS: [(&str, &str); 5] = [
    ("ConfigMap", "c0"),
    ("ConfigMap", "c1"),
    ("Secret", "s0"),
    ("Secret", "s1"),
    ("Secret", "s2"),
];

/// What the documents of a side say of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Listing {
    /// Nothing.
    Outside,
    /// Exactly these keys.
    Data(Data),
    /// It has no data, so a controller may fill it.
    Empty,
    /// A controller makes it from another document; with the keys, and a version of what each one is made of.
    Sealed(BTreeMap<&'static str, u8>),
    /// The keys of another store, all of them: which ones they are is not known. With a version.
    External(u8),
}

#[derive(Clone, Debug)]
pub(super) struct Side {
    /// In the order of [`OBJECTS`].
    pub(super) objects: Vec<Listing>,
    /// The pod's spec.
    pub(super) pod: Value,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) from: Side,
    pub(super) to: Side,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random(fastrand::Rng::with_seed(seed));
        let from = random.side();
        let mut to = from.clone();
        // Without an edit both sides are the same.
        for _ in 0..random.0.u8(0..3) {
            random.edit(&mut to);
        }
        Self { seed, from, to }
    }

    pub(super) fn namespace(&self) -> String {
        format!("w{}", self.seed)
    }

    pub(super) fn containers() -> [&'static str; 2] {
        ["web", "side"]
    }
}

impl Side {
    pub(super) fn documents(&self, world: &World) -> Vec<Value> {
        let namespace = world.namespace();
        let objects = OBJECTS.iter().zip(&self.objects);
        let objects =
            objects.filter_map(|((kind, name), listing)| listing.document(kind, &namespace, name));
        let mut documents: Vec<_> = objects.collect();
        documents.push(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": self.pod,
            }},
        }));
        documents
    }
}

impl Listing {
    fn document(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let metadata = json!({"name": name, "namespace": namespace});
        match self {
            Self::Outside => None,
            Self::Data(data) => Some(object(kind, namespace, name, data)),
            Self::Empty => Some(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata})),
            Self::Sealed(versions) => {
                let encrypted = versions.iter();
                let encrypted =
                    encrypted.map(|(key, version)| (*key, format!("AgB{name}{key}{version}")));
                Some(json!({
                    "apiVersion": "bitnami.com/v1alpha1", "kind": "SealedSecret", "metadata": metadata,
                    "spec": {"encryptedData": encrypted.collect::<BTreeMap<_, _>>()},
                }))
            }
            Self::External(version) => Some(json!({
                "apiVersion": "external-secrets.io/v1", "kind": "ExternalSecret", "metadata": metadata,
                "spec": {
                    "secretStoreRef": {"name": "vault"},
                    "dataFrom": [{"extract": {"key": format!("{name}-{version}")}}],
                },
            })),
        }
    }
}

/// A ConfigMap or Secret with exactly these keys.
pub(super) fn object(kind: &str, namespace: &str, name: &str, data: &Data) -> Value {
    let field = if kind == "Secret" {
        "stringData"
    } else {
        "data"
    };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, field: data})
}

impl fmt::Display for World {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [("from", &self.from), ("to", &self.to)] {
            let listed = OBJECTS.iter().zip(&side.objects);
            let listed = listed.filter(|(_, listing)| **listing != Listing::Outside);
            let listed: Vec<_> = listed
                .map(|((_, name), listing)| format!("{name} {listing:?}"))
                .collect();
            writeln!(out, "{name}: {}\n  {}", listed.join(", "), side.pod)?;
        }
        Ok(())
    }
}

/// What a seed draws.
pub(super) struct Random(pub(super) fastrand::Rng);

impl Random {
    pub(super) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.usize(0..of.len())]
    }

    /// Whether something happens that happens once in so many times.
    fn once_in(&mut self, times: u8) -> bool {
        self.0.u8(0..times) == 0
    }

    pub(super) fn data(&mut self) -> Data {
        let keys = KEYS
            .into_iter()
            .filter(|_| self.0.bool())
            .collect::<Vec<_>>();
        let data = keys
            .into_iter()
            .map(|key| (key, self.one_of(&VALUES).to_owned()));
        data.collect()
    }

    fn listing(&mut self, kind: &str) -> Listing {
        match self.0.u8(0..10) {
            0..=3 => {
                let mut data = self.data();
                data.insert("B", "1".to_owned());
                Listing::Data(data)
            }
            4 => Listing::Empty,
            5 | 6 if kind == "Secret" => {
                let keys = KEYS
                    .into_iter()
                    .filter(|_| self.0.bool())
                    .collect::<Vec<_>>();
                let mut versions: BTreeMap<_, _> =
                    keys.into_iter().map(|key| (key, self.0.u8(0..2))).collect();
                versions.insert("A", self.0.u8(0..2));
                Listing::Sealed(versions)
            }
            7 if kind == "Secret" => Listing::External(self.0.u8(0..2)),
            _ => Listing::Outside,
        }
    }

    fn side(&mut self) -> Side {
        let objects = OBJECTS.iter().map(|(kind, _)| self.listing(kind)).collect();
        let volumes = self.0.usize(0..3);
        let volumes: Vec<_> = (0..volumes).map(|number| self.volume(number)).collect();
        let containers = ["web", "side"].map(|name| self.container(name, volumes.len()));
        Side {
            objects,
            pod: json!({"containers": containers, "volumes": volumes}),
        }
    }

    fn container(&mut self, name: &str, volumes: usize) -> Value {
        let env: Vec<_> = (0..self.0.u8(0..4)).map(|_| self.variable()).collect();
        let env_from: Vec<_> = (0..self.0.u8(0..3)).map(|_| self.env_from()).collect();
        let mounts: Vec<_> = (0..volumes)
            .filter_map(|number| self.mount(number))
            .collect();
        json!({"name": name, "image": "i", "env": env, "envFrom": env_from, "volumeMounts": mounts})
    }

    /// The name of an object of the kind.
    fn name(&mut self, kind: &str) -> &'static str {
        let names: Vec<_> = OBJECTS
            .iter()
            .filter(|(one, _)| *one == kind)
            .map(|(_, name)| *name)
            .collect();
        self.one_of(&names)
    }

    fn variable(&mut self) -> Value {
        let name = self.one_of(&["A", "B", "LEVEL", "X", "URL"]);
        let optional = self.once_in(2);
        let key = self.one_of(&KEYS);
        match self.0.u8(0..8) {
            0..=2 => {
                let value = self.one_of(&["1", "2", "$(A)", "$(LEVEL)-x", "$(P_A)", "$(X)$(B)"]);
                json!({"name": name, "value": value})
            }
            3 | 4 => {
                let of = self.name("ConfigMap");
                json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": of, "key": key, "optional": optional}}})
            }
            5 | 6 => {
                let of = self.name("Secret");
                json!({"name": name, "valueFrom": {"secretKeyRef": {"name": of, "key": key, "optional": optional}}})
            }
            _ => {
                json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}})
            }
        }
    }

    fn env_from(&mut self) -> Value {
        let kind = self.one_of(&["ConfigMap", "Secret"]);
        let field = if kind == "Secret" {
            "secretRef"
        } else {
            "configMapRef"
        };
        let (name, optional) = (self.name(kind), self.once_in(2));
        let prefix = self.one_of(&["", "", "P_"]);
        json!({"prefix": prefix, field: {"name": name, "optional": optional}})
    }

    /// The source of a volume; a projected one names its objects in another way.
    fn source(&mut self, is_projected: bool) -> Value {
        let kind = self.one_of(&["ConfigMap", "Secret"]);
        let (name, optional) = (self.name(kind), self.once_in(2));
        let (source, field) = match (kind, is_projected) {
            ("Secret", false) => ("secret", "secretName"),
            ("Secret", true) => ("secret", "name"),
            _ => ("configMap", "name"),
        };
        let mut selected = json!({field: name, "optional": optional});
        if self.once_in(3) {
            let key = self.one_of(&KEYS);
            let path = self.one_of(&["A", "B", "d/f"]);
            selected["items"] = json!([{"key": key, "path": path}]);
        }
        json!({source: selected})
    }

    fn volume(&mut self, number: usize) -> Value {
        let mut volume = if self.once_in(3) {
            let mut sources: Vec<_> = (0..self.0.u8(1..3)).map(|_| self.source(true)).collect();
            if let [first, second] = &mut sources[..]
                && path(first).is_some()
                && path(first) == path(second)
            {
                // The API server rejects two of one path.
                for source in second.as_object_mut().unwrap().values_mut() {
                    source.as_object_mut().unwrap().remove("items");
                }
            }
            json!({"projected": {"sources": sources}})
        } else {
            self.source(false)
        };
        volume["name"] = format!("v{number}").into();
        volume
    }

    fn mount(&mut self, volume: usize) -> Option<Value> {
        let mut mount = json!({"name": format!("v{volume}"), "mountPath": format!("/m{volume}")});
        match self.0.u8(0..6) {
            0 => return None,
            1 => mount["subPath"] = self.one_of(&["A", "d"]).into(),
            2 => mount["subPathExpr"] = self.one_of(&["$(A)", "$(LEVEL)"]).into(),
            _ => {}
        }
        Some(mount)
    }

    /// Changes one thing.
    fn edit(&mut self, side: &mut Side) {
        let object = self.0.usize(0..OBJECTS.len());
        match self.0.u8(0..9) {
            0 => {
                side.objects[object] = match &side.objects[object] {
                    Listing::Data(data) => {
                        let mut data = data.clone();
                        let (key, value) = (self.one_of(&KEYS), self.one_of(&VALUES));
                        if self.once_in(4) {
                            data.remove(key);
                        } else {
                            data.insert(key, value.to_owned());
                        }
                        if data.is_empty() {
                            Listing::Empty
                        } else {
                            Listing::Data(data)
                        }
                    }
                    Listing::Sealed(versions) => {
                        let mut versions = versions.clone();
                        versions.insert(self.one_of(&KEYS), 2);
                        Listing::Sealed(versions)
                    }
                    Listing::External(version) => Listing::External(version + 1),
                    _ => self.listing(OBJECTS[object].0),
                };
            }
            1 => side.objects[object] = self.listing(OBJECTS[object].0),
            2 => side.objects[object] = Listing::Outside,
            3 => {
                let container = self.one_of(&[0, 1]);
                let variable = self.variable();
                let env = side.pod["containers"][container]["env"]
                    .as_array_mut()
                    .unwrap();
                if env.is_empty() || self.once_in(2) {
                    env.push(variable);
                } else {
                    let at = self.0.usize(0..env.len());
                    env[at] = variable;
                }
            }
            4 => {
                let container = self.one_of(&[0, 1]);
                let source = self.env_from();
                let sources = side.pod["containers"][container]["envFrom"]
                    .as_array_mut()
                    .unwrap();
                match self.0.u8(0..3) {
                    0 => sources.reverse(),
                    1 => drop(sources.pop()),
                    _ => sources.insert(0, source),
                }
            }
            5 => {
                // What is optional is needed, or the other way round.
                let container = self.one_of(&[0, 1]);
                let part = self.one_of(&["env", "envFrom"]);
                flip(&mut side.pod["containers"][container][part]);
            }
            6 => {
                flip(&mut side.pod["volumes"]);
            }
            7 => {
                let volumes = side.pod["volumes"].as_array().unwrap().len();
                if volumes > 0 {
                    let container = self.one_of(&[0, 1]);
                    let number = self.0.usize(0..volumes);
                    let mount = self.mount(number);
                    let mounts = side.pod["containers"][container]["volumeMounts"]
                        .as_array_mut()
                        .unwrap();
                    mounts.retain(|one| one["name"] != format!("v{number}"));
                    mounts.extend(mount);
                }
            }
            _ => {
                let volumes = side.pod["volumes"].as_array().unwrap().len();
                if volumes > 0 {
                    let number = self.0.usize(0..volumes);
                    side.pod["volumes"][number] = self.volume(number);
                }
            }
        }
    }
}

/// The path of the item that a source selects.
fn path(source: &Value) -> Option<&str> {
    let mut sources = source.as_object()?.values();
    sources.find_map(|source| source["items"][0]["path"].as_str())
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
