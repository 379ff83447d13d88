//! Worlds: a workload with the objects that it refers to, on two sides, and what their documents say.

use std::{collections::BTreeMap, fmt};

use serde_json::{Value, json};

use crate::draw::Draw;

/// Data of an object.
pub(super) type Data = BTreeMap<String, String>;

/// The ConfigMaps and Secrets of every world: kind and name.
pub(super) const OBJECTS: [(&str, &str); 5] = [
    ("ConfigMap", "c0"),
    ("ConfigMap", "c1"),
    ("Secret", "s0"),
    ("Secret", "s1"),
    ("Secret", "s2"),
];

/// The service accounts besides `default`.
pub(super) const ACCOUNTS: [&str; 2] = ["robot", "clerk"];

/// The annotation by which larder replaces what is mounted by `subPath`.
pub(super) const UPDATES_SUB_PATHS: &str = "larder.dev/subpath-updates";

/// The keys that a Certificate makes.
pub(super) const CERTIFICATE_KEYS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// What the documents of a side say of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Listing {
    /// Nothing.
    Outside,
    /// Exactly these keys.
    Data(Data),
    /// Exactly these keys, for as long as it exists.
    Immutable(Data),
    /// It has no data, so a controller may fill it.
    Empty,
    /// A controller makes it from another document; with the keys, and a version of what each one is made of.
    Sealed(Versions),
    /// sops encrypted its values; with a version of each ciphertext.
    Encrypted(Versions),
    /// The keys of another store, all of them: which ones they are is not known. With a version.
    External(u8),
    /// Three known keys. With a version.
    Certificate(u8),
}

pub(super) type Versions = BTreeMap<&'static str, u8>;

/// What the documents of a side say of the Service `db`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ServiceListing {
    /// Nothing.
    Outside,
    /// It has this address.
    At(&'static str),
    /// It gets an address when it is created.
    New,
    /// It has none.
    Headless,
}

/// The kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WorkloadKind {
    Pod,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
}

/// Whether an account has a document, and what that says of mounting tokens.
#[derive(Clone, Copy, Debug)]
pub(super) enum AccountListing {
    Outside,
    Silent,
    Mounts(bool),
}

/// The node that a pod is on, as far as its spec says: `n1`, `n2` or, without a number, any.
pub(super) type Node = Option<u8>;

#[derive(Clone, Debug)]
pub(super) struct Side {
    /// In the order of [`OBJECTS`].
    pub(super) objects: Vec<Listing>,
    pub(super) service: ServiceListing,
    /// In the order of [`ACCOUNTS`].
    pub(super) accounts: [AccountListing; 2],
    /// Whether there is a document of the ClusterTrustBundle `ca`.
    pub(super) has_bundle: bool,
    pub(super) kind: WorkloadKind,
    /// Labels and annotations of the pod.
    pub(super) metadata: Value,
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
        let mut draw = Draw::of(seed);
        let from = draw.side();
        let mut to = from.clone();
        // Without an edit both sides are the same.
        for _ in 0..draw.number(4) {
            draw.edit(&mut to);
        }
        Self { seed, from, to }
    }

    pub(super) fn containers() -> [&'static str; 2] {
        ["web", "side"]
    }
}

impl Side {
    /// All documents, as one text.
    pub(super) fn text(&self) -> String {
        let objects = OBJECTS.iter().zip(&self.objects);
        let objects = objects.filter_map(|((kind, name), listing)| listing.document(kind, name));
        let accounts = ACCOUNTS.iter().zip(&self.accounts);
        let accounts = accounts.filter_map(|(name, listing)| listing.document(name));
        let documents = objects.chain(accounts).chain(self.service.document());
        let documents = documents.chain(self.has_bundle.then(bundle));
        let documents = documents.chain([self.workload()]);
        let documents: Vec<_> = documents.map(|one| one.to_string()).collect();
        documents.join("\n---\n")
    }

    /// The place of its pod's account in [`ACCOUNTS`]; `None` for `default`, which is always there.
    pub(super) fn account(&self) -> Option<usize> {
        let name = self.pod["serviceAccountName"].as_str()?;
        ACCOUNTS.iter().position(|account| *account == name)
    }

    /// The template of its pods.
    pub(super) fn template(&self) -> String {
        format!("{} {}", self.metadata, self.pod)
    }

    /// The node that the spec names.
    pub(super) fn node(&self) -> Node {
        self.pod["nodeName"]
            .as_str()
            .map(|name| if name == "n1" { 1 } else { 2 })
    }

    /// Whether the pod has the network of its node.
    pub(super) fn is_on_host_network(&self) -> bool {
        self.pod["hostNetwork"] == true
    }

    fn workload(&self) -> Value {
        let metadata = json!({"name": "web", "namespace": "ns"});
        let mut spec = self.pod.clone();
        let restarts = match self.kind {
            WorkloadKind::Job | WorkloadKind::CronJob => "Never",
            _ => "Always",
        };
        spec["restartPolicy"] = restarts.into();
        let template = json!({"metadata": self.metadata, "spec": spec});
        let selector = json!({"matchLabels": {"app": "web"}});
        let apps = |kind: &str, rest: Value| {
            let mut spec = json!({"selector": selector, "template": template});
            spec.as_object_mut()
                .unwrap()
                .extend(rest.as_object().unwrap().clone());
            json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        match self.kind {
            WorkloadKind::Pod => {
                let mut metadata = self.metadata.clone();
                metadata["name"] = "web".into();
                metadata["namespace"] = "ns".into();
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
            }
            WorkloadKind::Deployment => apps("Deployment", json!({})),
            WorkloadKind::StatefulSet => apps("StatefulSet", json!({"serviceName": "web"})),
            WorkloadKind::DaemonSet => apps("DaemonSet", json!({})),
            WorkloadKind::Job => {
                json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}})
            }
            WorkloadKind::CronJob => {
                let job = json!({"spec": {"template": template}});
                json!({
                    "apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata,
                    "spec": {"schedule": "@daily", "jobTemplate": job},
                })
            }
        }
    }
}

impl Listing {
    fn document(&self, kind: &str, name: &str) -> Option<Value> {
        let metadata = json!({"name": name, "namespace": "ns"});
        let of_group = |version: &str, kind: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
        let ciphertext = |versions: &Versions, form: fn(&str) -> String| -> BTreeMap<_, _> {
            let entries = versions.iter();
            entries
                .map(|(key, version)| (*key, form(&format!("{name}{key}{version}"))))
                .collect()
        };
        let field = match kind {
            "Secret" => "stringData",
            _ => "data",
        };
        Some(match self {
            Self::Outside => return None,
            Self::Data(data) => {
                json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, field: data})
            }
            Self::Immutable(data) => {
                json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, field: data, "immutable": true})
            }
            Self::Empty => json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}),
            Self::Sealed(versions) => of_group(
                "bitnami.com/v1alpha1",
                "SealedSecret",
                json!({"encryptedData": ciphertext(versions, |text| format!("AgB{text}"))}),
            ),
            Self::Encrypted(versions) => json!({
                "apiVersion": "v1", "kind": kind, "metadata": metadata, "sops": {"mac": "x"},
                field: ciphertext(versions, |text| format!("ENC[AES256_GCM,data:{text}]")),
            }),
            Self::External(version) => of_group(
                "external-secrets.io/v1",
                "ExternalSecret",
                json!({
                    "secretStoreRef": {"name": "vault"},
                    "dataFrom": [{"extract": {"key": format!("{name}-{version}")}}],
                }),
            ),
            Self::Certificate(version) => of_group(
                "cert-manager.io/v1",
                "Certificate",
                json!({"secretName": name, "dnsNames": [format!("host-{version}")]}),
            ),
        })
    }
}

impl Listing {
    /// The data that its document has.
    pub(super) fn data(&self) -> Option<&Data> {
        match self {
            Self::Data(data) | Self::Immutable(data) => Some(data),
            _ => None,
        }
    }
}

impl ServiceListing {
    fn document(&self) -> Option<Value> {
        let mut spec = json!({"ports": [{"port": 80}]});
        match self {
            Self::Outside => return None,
            Self::At(address) => spec["clusterIP"] = (*address).into(),
            Self::New => {}
            Self::Headless => spec["clusterIP"] = "None".into(),
        }
        Some(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "ns"}, "spec": spec,
        }))
    }
}

impl AccountListing {
    pub(super) fn is_listed(self) -> bool {
        !matches!(self, Self::Outside)
    }

    fn document(self, name: &str) -> Option<Value> {
        let mut account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "ns"},
        });
        match self {
            Self::Outside => return None,
            Self::Silent => {}
            Self::Mounts(mounts) => account["automountServiceAccountToken"] = mounts.into(),
        }
        Some(account)
    }

    /// What it says of mounting tokens.
    pub(super) fn mounts_token(self) -> Option<bool> {
        match self {
            Self::Outside | Self::Silent => None,
            Self::Mounts(mounts) => Some(mounts),
        }
    }
}

/// The document of the ClusterTrustBundle `ca`.
fn bundle() -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle", "metadata": {"name": "ca"},
        "spec": {"trustBundle": PEM},
    })
}

/// A certificate.
pub(super) const PEM: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBMDCB46ADAgECAhRQGJInvmSSajyHUm57tXk6xuVo7DAFBgMrZXAwDTELMAkG\n\
A1UEAwwCY2EwIBcNMjYxMTI4MjEwNjI0WhgPMjEyNjExMDQyMTA2MjRaMA0xCzAJ\n\
BgNVBAMMAmNhMCowBQYDK2VwAyEAEnZjPSnw3xTdrJDcJfLcswZWh1TP4evuP4Ro\n\
m56E8eOjUzBRMB0GA1UdDgQWBBRTzKW8/6aR/tkSY7O2ExkmWqvwhDAfBgNVHSME\n\
GDAWgBRTzKW8/6aR/tkSY7O2ExkmWqvwhDAPBgNVHRMBAf8EBTADAQH/MAUGAytl\n\
cANBAI2+si0ljm0doK2HLc3FDIjpIXhvuFbSsaTZdIUiuIDFk++Ihxm3VjiLQUD+\n\
tJnMOdkS6GWk/JNbyhj3EbTqiQA=\n\
-----END CERTIFICATE-----\n";

impl fmt::Display for World {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, side) in [("from", &self.from), ("to", &self.to)] {
            let listed = OBJECTS.iter().zip(&side.objects);
            let listed = listed.filter(|(_, listing)| **listing != Listing::Outside);
            let listed: Vec<_> = listed
                .map(|((_, name), listing)| format!("{name} {listing:?}"))
                .collect();
            writeln!(
                out,
                "{name}: {:?}, {}, db {:?}, accounts {:?}, bundle {}\n  {}\n  {}",
                side.kind,
                listed.join(", "),
                side.service,
                side.accounts,
                side.has_bundle,
                side.metadata,
                side.pod
            )?;
        }
        Ok(())
    }
}
