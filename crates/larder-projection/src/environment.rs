//! The variables of a container.
//!
//! Kubelet 1.36, `makeEnvironmentVariables` in `pkg/kubelet/kubelet_pods.go`: first `envFrom`, then `env`, both in list
//! order, where later values replace earlier ones; Service variables last, where no other variable has their name.
//!
//! Invariants:
//! 1. The order is deterministic: a variable has the place where its name was first set, the keys of one object are
//!    sorted, Service variables follow sorted by Service. (The kubelet's order is random.)
//! 2. A variable that contains any part of a Secret is marked secret, even through a reference; bytes copied for such a
//!    variable are zeroized.
//! 3. No name or value contains a NUL byte, which cannot be passed to a process. (The kubelet leaves this to the
//!    runtime to reject.)
//! 4. Names and values together have at most [`MAX_ENVIRONMENT_BYTES`], whatever the references. (The kubelet has no
//!    limit.)

mod error;
mod variable;

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{HashMap, HashSet},
};

use indexmap::IndexMap;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, FileKeySelector, Pod};
use larder_objects::{ConfigMap, Kind, ObjectKey, Secret, SecretBytes};
use smallvec::SmallVec;

pub use self::{
    error::{EnvFileUnavailable, EnvironmentError, ExpansionError},
    variable::Variable,
};
use crate::{
    Absent, ContainerView, EnvFileRef, Inputs, Origin, ResourceError, ServiceFacts, Unavailable,
    Unknown, Value,
    container::{pod_volumes, used_volumes},
    downward::{variable_field, variable_resource},
    env_file::EnvFileReader,
    expand::{Piece, pieces},
    inputs::Keyed,
    service_links,
};

/// Most bytes that the names and values of one container's variables may have. A kubelet's request to its container
/// runtime has this limit (Kubernetes 1.36, `staging/src/k8s.io/cri-client`: `maxMsgSize`), so a larger environment
/// never starts.
pub const MAX_ENVIRONMENT_BYTES: usize = 16 << 20;

/// The variables of one container, in order, and what was absent.
#[derive(Clone, Debug, Default)]
pub struct Environment<'a> {
    variables: Variables<'a>,
    absent: Vec<Absent<'a>>,
    /// All keys of objects that are not known, as `PREFIX*`.
    opaque: IndexMap<String, Variable<'a>, foldhash::fast::RandomState>,
}

/// Variables by name, in the order of their first setting. Hashed as in hashbrown, seeded, which is faster than the
/// standard hash.
type Variables<'a> = IndexMap<Cow<'a, str>, Variable<'a>, foldhash::fast::RandomState>;

/// Computes the variables of `container`, which is one of `pod`.
///
/// # Errors
///
/// The first thing that a required variable lacks.
pub fn environment<'a>(
    pod: &'a Pod,
    container: ContainerView<'a>,
    inputs: &'a Inputs,
) -> Result<Environment<'a>, EnvironmentError> {
    let spec = pod.spec.as_ref();
    let links = spec
        .and_then(|spec| spec.enable_service_links)
        .ok_or(EnvironmentError::NoServiceLinks)?;
    let services = match &inputs.services {
        Some(services) => services,
        None if is_static(pod) => &[][..],
        None => return Err(EnvironmentError::NoServices),
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut builder = Builder {
        pod,
        namespace,
        container,
        inputs,
        environment: Environment::default(),
        bytes: 0,
        services: service_variables(services, namespace, links),
        volumes: OnceCell::new(),
        env_files: HashMap::new(),
    };
    for source in container.env_from {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(found) = &source.config_map_ref {
            builder.all_keys::<ConfigMap>(prefix, &found.name, found.optional)?;
        } else if let Some(found) = &source.secret_ref {
            builder.all_keys::<Secret>(prefix, &found.name, found.optional)?;
        }
    }
    for variable in container.env {
        if let Some(value) = builder.variable(variable)? {
            builder.set(Cow::Borrowed(&variable.name), value)?;
        }
    }
    Ok(builder.finish())
}

/// Whether the pod came from a file or URL of its node.
fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get("kubernetes.io/config.source"))
        .is_some_and(|source| source != "api")
}

fn service_variables<'a>(
    services: &'a [ServiceFacts],
    namespace: &str,
    links: bool,
) -> Variables<'a> {
    let mut variables = Variables::default();
    for service in service_links::visible(services, namespace, links).values() {
        let origin = Origin::Service {
            namespace: &service.namespace,
            name: &service.name,
        };
        service_links::variables(service, |name, value| {
            let value = Variable {
                value,
                origin: origin.clone(),
                secret: false,
            };
            variables.insert(Cow::Owned(name), value);
        });
    }
    variables
}

struct Builder<'a> {
    pod: &'a Pod,
    namespace: &'a str,
    container: ContainerView<'a>,
    inputs: &'a Inputs,
    environment: Environment<'a>,
    /// Length of all names and values in `environment`.
    bytes: usize,
    services: Variables<'a>,
    /// Names of the volumes that a container uses; computed for the first variable that needs them.
    volumes: OnceCell<HashSet<&'a str>>,
    /// Each file is read once, whatever the number of its variables.
    env_files: HashMap<EnvFileRef, EnvFileReader<'a>>,
}

impl<'a> Builder<'a> {
    /// Whether the object of `envFrom` is unknown, which is noted.
    fn assumes_all<K: Keyed>(&mut self, prefix: &str, name: &'a str) -> bool {
        let Some(unknown) = self.inputs.assumed::<K>(name, None) else {
            return false;
        };
        let opaque = &mut self.environment.opaque;
        let before = opaque.get(&format!("{prefix}*"));
        let unknown = unknown.listed_after(before.and_then(|before| before.value.unknown()));
        let secret = K::KIND == Kind::Secret || before.is_some_and(|before| before.secret);
        let variable = Variable {
            secret,
            ..of_unknown(unknown, missing::<K>(name, None))
        };
        opaque.insert(format!("{prefix}*"), variable);
        true
    }

    /// The variable `name` from an object of `envFrom` that is not known.
    fn opaque_key(&self, name: &str) -> Option<Unknown> {
        let mut opaque = self.environment.opaque.iter().rev();
        let key = |prefix: &str| name.strip_prefix(prefix.strip_suffix('*')?);
        opaque.find_map(|(prefix, variable)| match variable.origin {
            Origin::Missing { kind, name, .. } => {
                self.inputs
                    .assumptions
                    .object(kind, name, Some(key(prefix)?))
            }
            _ => None,
        })
    }

    fn object<K: Keyed>(
        &mut self,
        name: &'a str,
        optional: Option<bool>,
    ) -> Result<Option<&'a K>, EnvironmentError> {
        let object = self.inputs.object::<K>(name, optional)?;
        if object.is_none() {
            let (kind, key) = (K::KIND, None);
            self.environment.absent.push(Absent { kind, name, key });
        }
        Ok(object)
    }

    fn set(&mut self, name: Cow<'a, str>, variable: Variable<'a>) -> Result<(), EnvironmentError> {
        if variable.value.contains(&0) || name.contains('\0') {
            return Err(EnvironmentError::Nul {
                name: name.into_owned(),
            });
        }
        let room = MAX_ENVIRONMENT_BYTES - self.bytes;
        let bytes = name.len() + variable.value.size();
        let replaced = self.environment.variables.get(&name);
        let freed = replaced.map_or(0, |old| name.len() + old.value.size());
        if bytes > room + freed {
            return Err(EnvironmentError::TooLarge {
                name: name.into_owned(),
            });
        }
        self.bytes = self.bytes + bytes - freed;
        self.environment.variables.insert(name, variable);
        Ok(())
    }

    fn all_keys<K: Keyed>(
        &mut self,
        prefix: &'a str,
        name: &'a str,
        optional: Option<bool>,
    ) -> Result<(), EnvironmentError> {
        if self.assumes_all::<K>(prefix, name) {
            return Ok(());
        }
        let Some(object) = self.object::<K>(name, optional)? else {
            return Ok(());
        };
        let keys = object.variables();
        // Room for all that is still to come, so that the map grows once.
        let to_come = self.container.env.len() + self.services.len();
        let variables = &mut self.environment.variables;
        variables.reserve(keys.size_hint().0 + to_come);
        for (key, value) in keys {
            let name = if prefix.is_empty() {
                Cow::Borrowed(key)
            } else {
                Cow::Owned([prefix, key].concat())
            };
            self.set(name, of_key(object, key, value))?;
        }
        Ok(())
    }

    /// The value that `variable` sets; `None` if it has no effect.
    fn variable(&mut self, variable: &'a EnvVar) -> Result<Option<Variable<'a>>, EnvironmentError> {
        let value = variable.value.as_deref().unwrap_or_default();
        if value.is_empty()
            && let Some(source) = &variable.value_from
        {
            return self.value_from(source);
        }
        let resolved = resolve(
            value,
            |name| {
                let known = self.environment.variables.get(name);
                known.or_else(|| self.services.get(name))
            },
            |name| self.opaque_key(name),
        );
        let (value, secret) = resolved.map_err(|ExpansionError| EnvironmentError::TooLarge {
            name: variable.name.clone(),
        })?;
        Ok(Some(Variable {
            value,
            origin: Origin::Value,
            secret,
        }))
    }

    fn value_from(
        &mut self,
        source: &'a EnvVarSource,
    ) -> Result<Option<Variable<'a>>, EnvironmentError> {
        let node = self.inputs.node.as_deref();
        let (text, origin) = if let Some(field) = &source.field_ref {
            let path = &field.field_path;
            let assumptions = &self.inputs.assumptions;
            if let Some(unknown) = assumptions.field(self.pod, node, path) {
                return Ok(Some(of_unknown(unknown, Origin::Field(path))));
            }
            let version = field.api_version.as_deref();
            let text = match assumptions.set_field(path) {
                Some(text) => text,
                None => variable_field(self.pod, node, version, path)?,
            };
            (text, Origin::Field(path))
        } else if let Some(field) = &source.resource_field_ref {
            let name = field.container_name.as_deref();
            let origin = Origin::Resource {
                container: name
                    .filter(|name| !name.is_empty())
                    .unwrap_or(self.container.name),
                resource: &field.resource,
            };
            match variable_resource(self.pod, self.container, node, field) {
                Ok(text) => (text, origin),
                Err(error) => {
                    let unknown = self.inputs.assumptions.resource(self.pod, field);
                    let unknown = unknown.filter(|_| error == ResourceError::NoNode);
                    let unknown = unknown.ok_or(error)?;
                    return Ok(Some(of_unknown(unknown, origin)));
                }
            }
        } else if let Some(key) = &source.config_map_key_ref {
            return self.one_key::<ConfigMap>(&key.name, &key.key, key.optional);
        } else if let Some(key) = &source.secret_key_ref {
            return self.one_key::<Secret>(&key.name, &key.key, key.optional);
        } else if let Some(key) = &source.file_key_ref {
            return self.file_key(key);
        } else {
            (String::new(), Origin::Value)
        };
        Ok(Some(Variable {
            value: Value::Owned(text.into_bytes()),
            origin,
            secret: false,
        }))
    }

    fn one_key<K: Keyed>(
        &mut self,
        name: &'a str,
        key: &'a str,
        optional: Option<bool>,
    ) -> Result<Option<Variable<'a>>, EnvironmentError> {
        if let Some(unknown) = self.inputs.assumed::<K>(name, Some(key)) {
            return Ok(Some(of_unknown(unknown, missing::<K>(name, Some(key)))));
        }
        let Some(object) = self.object::<K>(name, optional)? else {
            return Ok(None);
        };
        if let Some(value) = object.variable(key) {
            return Ok(Some(of_key(object, key, value)));
        }
        let name = &object.metadata().name;
        if optional == Some(true) {
            self.environment.absent.push(Absent {
                kind: K::KIND,
                name,
                key: Some(key),
            });
            return Ok(None);
        }
        Err(EnvironmentError::MissingKey {
            kind: K::KIND,
            object: ObjectKey::new(self.namespace, name.clone()),
            key: key.to_owned(),
        })
    }

    /// On purpose different from the kubelet in one point: `optional` covers a missing file as well, as the API says it
    /// does.
    fn file_key(
        &mut self,
        selector: &'a FileKeySelector,
    ) -> Result<Option<Variable<'a>>, EnvironmentError> {
        let FileKeySelector {
            key,
            optional,
            path,
            volume_name,
        } = selector;
        let pod = self.pod;
        let volumes = self.volumes.get_or_init(|| {
            let used = used_volumes(pod);
            let names = pod_volumes(pod).map(|volume| volume.name.as_str());
            names.filter(|name| used.contains(name)).collect()
        });
        if !volumes.contains(volume_name.as_str()) {
            return Err(EnvironmentError::NoVolume(volume_name.clone()));
        }
        let reference = EnvFileRef::new(selector);
        let unreadable = |problem: &str| {
            Err(EnvironmentError::UnreadableEnvFile(EnvFileUnavailable {
                volume: volume_name.clone(),
                path: path.clone(),
                problem: problem.to_owned(),
            }))
        };
        let optional = *optional == Some(true);
        let origin = Origin::EnvFile {
            volume: volume_name,
            path,
            key,
        };
        let file = match self.inputs.env_files.get(&reference) {
            Some(Ok(file)) => file,
            Some(Err(Unavailable::NotFound)) => {
                let what = format!("{path} of volume {volume_name} key {key}");
                return match self.inputs.assumptions.env_file(what) {
                    Some(unknown) => Ok(Some(of_unknown(unknown, origin))),
                    None if optional => Ok(None),
                    None => unreadable("no such file"),
                };
            }
            Some(Err(Unavailable::Failed(message))) => return unreadable(message),
            None => return unreadable("was not gathered"),
        };
        let reader = self.env_files.entry(reference);
        let reader = reader.or_insert_with(|| EnvFileReader::new(&file.content));
        let value = reader
            .value(key)
            .map_err(EnvironmentError::MalformedEnvFile)?;
        match value {
            value if value.is_empty() && optional => Ok(None),
            value if value.is_empty() => Err(EnvironmentError::MissingFileKey {
                key: key.clone(),
                path: file.host_path.clone(),
            }),
            value => Ok(Some(Variable {
                value: Value::Secret(SecretBytes::new(value)),
                origin,
                secret: true,
            })),
        }
    }

    fn finish(mut self) -> Environment<'a> {
        for (name, variable) in self.services {
            self.environment.variables.entry(name).or_insert(variable);
        }
        self.environment
    }
}

fn of_key<'a, K: Keyed>(object: &'a K, key: &'a str, value: &'a [u8]) -> Variable<'a> {
    let metadata = object.metadata();
    Variable {
        value: Value::Borrowed(value),
        origin: Origin::Key {
            kind: K::KIND,
            name: &metadata.name,
            key,
            resource_version: &metadata.resource_version,
        },
        secret: K::KIND == Kind::Secret,
    }
}

fn of_unknown(unknown: Unknown, origin: Origin<'_>) -> Variable<'_> {
    Variable {
        value: unknown.into(),
        secret: origin.is_secret(),
        origin,
    }
}

fn missing<'a, K: Keyed>(name: &'a str, key: Option<&'a str>) -> Origin<'a> {
    let kind = K::KIND;
    Origin::Missing { kind, name, key }
}

/// Expands `text`; returns whether anything secret is in the result.
///
/// The parts are collected before they are copied, into memory of the final size: a growing buffer would leave pieces
/// of a secret behind (invariant 2).
fn resolve<'t, 'v, 'a: 'v>(
    text: &'t str,
    variable: impl Fn(&str) -> Option<&'v Variable<'a>>,
    opaque: impl Fn(&str) -> Option<Unknown>,
) -> Result<(Value<'t>, bool), ExpansionError> {
    if !text.as_bytes().contains(&b'$') {
        return Ok((Value::Borrowed(text.as_bytes()), false));
    }
    let mut secret = false;
    let mut length = 0;
    let mut parts = SmallVec::<[&[u8]; 16]>::new();
    // Where unknown values go, by the number of parts before them.
    let mut unknowns = Vec::<(usize, Cow<'_, Unknown>)>::new();
    for piece in pieces(text) {
        let part = match piece {
            Piece::Text(text) => text.as_bytes(),
            Piece::Reference { name, whole } => match variable(name) {
                Some(variable) => {
                    secret |= variable.secret;
                    if let Some(unknown) = variable.value.unknown() {
                        length += unknown.len();
                        unknowns.push((parts.len(), Cow::Borrowed(unknown)));
                    }
                    &variable.value
                }
                None => match opaque(name) {
                    Some(unknown) => {
                        secret |= unknown.is_secret();
                        unknowns.push((parts.len(), Cow::Owned(unknown)));
                        b""
                    }
                    None => whole.as_bytes(),
                },
            },
        };
        length += part.len();
        if length > MAX_ENVIRONMENT_BYTES {
            return Err(ExpansionError);
        }
        parts.push(part);
    }
    if !unknowns.is_empty() {
        let (mut mixed, mut done) = (Vec::new(), 0);
        for (at, unknown) in &unknowns {
            mixed.extend(parts[done..*at].iter().map(|part| Ok(*part)));
            mixed.push(Err(&**unknown));
            done = *at;
        }
        mixed.extend(parts[done..].iter().map(|part| Ok(*part)));
        let unknown = Unknown::joined(mixed.into_iter());
        return Ok((unknown.into(), secret));
    }
    let mut value = Vec::with_capacity(length);
    for part in parts {
        value.extend_from_slice(part);
    }
    let value = if secret {
        Value::Secret(SecretBytes::new(value))
    } else {
        Value::Owned(value)
    };
    Ok((value, secret))
}

impl<'a> Environment<'a> {
    /// An environment that was computed elsewhere, such as by an agent. Where its values came from is not known, so all
    /// count as secret.
    pub fn of_values(values: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let variables = values.into_iter().map(|(name, value)| {
            let variable = Variable {
                value: Value::Borrowed(value),
                origin: Origin::Value,
                secret: true,
            };
            (Cow::Borrowed(name), variable)
        });
        Self {
            variables: variables.collect(),
            ..Self::default()
        }
    }

    /// Names and variables, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Variable<'a>)> {
        self.variables
            .iter()
            .map(|(name, variable)| (&**name, variable))
    }

    /// All keys of an object that is not known, as `PREFIX*`.
    pub fn opaque(&self) -> impl Iterator<Item = (&str, &Variable<'a>)> {
        self.opaque
            .iter()
            .map(|(name, variable)| (&**name, variable))
    }

    /// The unknown values, those of whole objects included.
    pub fn unknown(&self) -> impl Iterator<Item = &Unknown> {
        let variables = self.iter().chain(self.opaque());
        variables.filter_map(|(_, variable)| variable.value.unknown())
    }

    /// The variable `name`.
    pub fn get(&self, name: &str) -> Option<&Variable<'a>> {
        self.variables.get(name)
    }

    /// How many variables there are.
    pub fn len(&self) -> usize {
        self.variables.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty()
    }

    /// Optional objects and keys that are not there, in the order in which they were looked for.
    pub fn absent(&self) -> &[Absent<'a>] {
        &self.absent
    }

    /// Expands the references of an entry of `command` or `args`; unknown names stay as they are.
    ///
    /// # Errors
    ///
    /// The result is longer than [`MAX_ENVIRONMENT_BYTES`].
    pub fn expand<'t>(&self, text: &'t str) -> Result<Value<'t>, ExpansionError> {
        resolve(text, |name| self.get(name), |_| None).map(|(value, _)| value)
    }
}
