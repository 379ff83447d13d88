//! The expected files on disk, from the API server's content alone.
//!
//! A second opinion: it knows only the features that the pods of the soak use, and shares no code with the agent.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume,
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use larder_e2e::NODE;

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedFile {
    pub(crate) mode: u32,
    pub(crate) content: Content,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    /// A token that is bound to this pod.
    TokenOf {
        pod_uid: String,
    },
}

/// A pod that the agent serves.
#[derive(Debug)]
pub(crate) struct ExpectedPod {
    /// Names its directory.
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether the API server has a mirror pod of it only.
    pub(crate) is_static: bool,
    /// Files by `PLUGIN/VOLUME`, then by their paths in it.
    pub(crate) volumes: BTreeMap<String, BTreeMap<String, ExpectedFile>>,
    /// Variables by container. Those that the kubelet adds for the API server's Service are not among them.
    pub(crate) environments: BTreeMap<String, BTreeMap<String, String>>,
}

/// The ConfigMaps and Secrets of the namespace, as bytes by key.
struct Objects {
    config_maps: BTreeMap<String, Data>,
    secrets: BTreeMap<String, Data>,
}

type Data = BTreeMap<String, Vec<u8>>;
type Files = BTreeMap<String, ExpectedFile>;

/// What the pods of `namespace` on the node must have, as the API server has it now.
///
/// # Errors
///
/// The API server cannot be asked, or a pod wants something that is not there.
pub(crate) async fn expected(client: &Client, namespace: &str) -> anyhow::Result<Vec<ExpectedPod>> {
    let all = ListParams::default();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let on_node = all.clone().fields(&format!("spec.nodeName={NODE}"));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let objects = Objects {
        config_maps: maps
            .list(&all)
            .await?
            .into_iter()
            .map(config_map_data)
            .collect(),
        secrets: secrets
            .list(&all)
            .await?
            .into_iter()
            .map(secret_data)
            .collect(),
    };
    let pods = pods.list(&on_node).await?;
    pods.iter().map(|pod| objects.pod(pod)).collect()
}

fn config_map_data(map: ConfigMap) -> (String, Data) {
    let text = map.data.clone().unwrap_or_default().into_iter();
    let binary = map.binary_data.clone().unwrap_or_default().into_iter();
    let data = text.map(|(key, text)| (key, text.into_bytes()));
    let data = data.chain(binary.map(|(key, bytes)| (key, bytes.0)));
    (map.name_any(), data.collect())
}

fn secret_data(secret: Secret) -> (String, Data) {
    let data = secret.data.clone().unwrap_or_default().into_iter();
    (
        secret.name_any(),
        data.map(|(key, bytes)| (key, bytes.0)).collect(),
    )
}

impl Objects {
    fn pod(&self, pod: &Pod) -> anyhow::Result<ExpectedPod> {
        // A mirror pod stands for a static pod, which has this UID on the node.
        let mirrored = pod.annotations().get("kubernetes.io/config.mirror");
        let uid = mirrored.cloned().or_else(|| pod.uid()).unwrap_or_default();
        let spec = pod.spec.clone().unwrap_or_default();
        let volumes = spec.volumes.iter().flatten();
        let volumes: BTreeMap<_, _> = volumes
            .map(|volume| self.volume(pod, &uid, volume))
            .collect::<anyhow::Result<_>>()?;
        let environments = spec.containers.iter();
        let environments = environments
            .map(|container| Ok((container.name.clone(), self.environment(pod, container)?)))
            .collect::<anyhow::Result<_>>()?;
        Ok(ExpectedPod {
            uid,
            is_static: mirrored.is_some(),
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            volumes,
            environments,
        })
    }

    fn volume(&self, pod: &Pod, uid: &str, volume: &Volume) -> anyhow::Result<(String, Files)> {
        let mut files = Files::new();
        let plugin = if let Some(source) = &volume.config_map {
            let data = find(&self.config_maps, &source.name, source.optional)?;
            select(
                &mut files,
                data,
                source.items.as_deref(),
                source.default_mode,
            )?;
            "kubernetes.io~configmap"
        } else if let Some(source) = &volume.secret {
            let name = source.secret_name.clone().unwrap_or_default();
            let data = find(&self.secrets, &name, source.optional)?;
            select(
                &mut files,
                data,
                source.items.as_deref(),
                source.default_mode,
            )?;
            "kubernetes.io~secret"
        } else if let Some(source) = &volume.downward_api {
            labels(
                &mut files,
                pod,
                source.items.iter().flatten(),
                source.default_mode,
            );
            "kubernetes.io~downward-api"
        } else if let Some(source) = &volume.projected {
            let mode = source.default_mode;
            for source in source.sources.iter().flatten() {
                if let Some(source) = &source.config_map {
                    let data = find(&self.config_maps, &source.name, source.optional)?;
                    select(&mut files, data, source.items.as_deref(), mode)?;
                }
                if let Some(source) = &source.secret {
                    let data = find(&self.secrets, &source.name, source.optional)?;
                    select(&mut files, data, source.items.as_deref(), mode)?;
                }
                if let Some(source) = &source.downward_api {
                    labels(&mut files, pod, source.items.iter().flatten(), mode);
                }
                if let Some(source) = &source.service_account_token {
                    let content = Content::TokenOf {
                        pod_uid: uid.to_owned(),
                    };
                    // Only a pod with a user or group of its own has it closed to others.
                    let file = ExpectedFile {
                        content,
                        ..file(mode, Vec::new())
                    };
                    files.insert(source.path.clone(), file);
                }
            }
            "kubernetes.io~projected"
        } else {
            anyhow::bail!("the soak knows no volume such as {}", volume.name);
        };
        Ok((format!("{plugin}/{}", volume.name), files))
    }

    fn environment(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        for source in container.env_from.iter().flatten() {
            let mut data = Data::new();
            if let Some(source) = &source.config_map_ref {
                data.extend(find(&self.config_maps, &source.name, source.optional)?.clone());
            }
            if let Some(source) = &source.secret_ref {
                data.extend(find(&self.secrets, &source.name, source.optional)?.clone());
            }
            let prefix = source.prefix.clone().unwrap_or_default();
            // What is binary is no variable; the soak says so by the key.
            let keys = data.iter().filter(|(key, _)| !key.ends_with("binary"));
            variables.extend(keys.map(|(key, value)| (format!("{prefix}{key}"), text(value))));
        }
        for variable in container.env.iter().flatten() {
            let from = variable.value_from.clone().unwrap_or_default();
            let value = if let Some(from) = from.config_map_key_ref {
                find(&self.config_maps, &from.name, from.optional)?
                    .get(&from.key)
                    .map(text)
            } else if let Some(from) = from.secret_key_ref {
                find(&self.secrets, &from.name, from.optional)?
                    .get(&from.key)
                    .map(text)
            } else if from.field_ref.is_some() {
                Some(pod.name_any())
            } else {
                variable.value.clone()
            };
            variables.extend(value.map(|value| (variable.name.clone(), value)));
        }
        Ok(variables)
    }
}

fn find<'a>(
    objects: &'a BTreeMap<String, Data>,
    name: &str,
    optional: Option<bool>,
) -> anyhow::Result<&'a Data> {
    static NOTHING: Data = Data::new();
    match objects.get(name) {
        Some(data) => Ok(data),
        None if optional == Some(true) => Ok(&NOTHING),
        None => anyhow::bail!("{name} is wanted and not there"),
    }
}

/// The keys of `data` as files, or those that `items` name.
fn select(
    files: &mut Files,
    data: &Data,
    items: Option<&[KeyToPath]>,
    default_mode: Option<i32>,
) -> anyhow::Result<()> {
    let Some(items) = items else {
        let all = data.iter();
        files.extend(all.map(|(key, bytes)| (key.clone(), file(default_mode, bytes.clone()))));
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(bytes) => {
                let file = file(item.mode.or(default_mode), bytes.clone());
                files.insert(item.path.clone(), file);
            }
            None if data.is_empty() => {}
            None => anyhow::bail!("key {} is wanted and not there", item.key),
        }
    }
    Ok(())
}

/// Every field of the downward API that the soak uses is `metadata.labels`.
fn labels<'a>(
    files: &mut Files,
    pod: &Pod,
    items: impl Iterator<Item = &'a DownwardAPIVolumeFile>,
    default_mode: Option<i32>,
) {
    let lines: BTreeSet<_> = pod
        .labels()
        .iter()
        .map(|(name, value)| format!("{name}={value:?}"))
        .collect();
    let text = lines.into_iter().collect::<Vec<_>>().join("\n");
    for item in items {
        let file = file(item.mode.or(default_mode), text.clone().into_bytes());
        files.insert(item.path.clone(), file);
    }
}

fn file(mode: Option<i32>, bytes: Vec<u8>) -> ExpectedFile {
    ExpectedFile {
        // The API server sets the default.
        mode: mode
            .and_then(|mode| u32::try_from(mode).ok())
            .unwrap_or_default(),
        content: Content::Bytes(bytes),
    }
}
