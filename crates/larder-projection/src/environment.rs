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
//! 4. What is not known is computed with: a name that is perhaps there has a value of which layers may be missing, and
//!    what the container needs to start is in [`Environment::needs`] (see `unknown`).
//! 5. Names and values together have at most [`MAX_ENVIRONMENT_BYTES`], whatever the references. (The kubelet has no
//!    limit.)

mod error;
mod perhaps;
mod variable;

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
};

use indexmap::IndexMap;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, FileKeySelector, Pod};
use larder_objects::{ConfigMap, Kind, ObjectKey, Secret, SecretBytes};
use smallvec::SmallVec;

use self::perhaps::check_depth;
pub use self::{
    error::{EnvFileUnavailable, EnvironmentError, ExpansionError},
    variable::Variable,
};
use crate::{
    Absent, AnyKeys, ContainerView, EnvFileRef, Inputs, Origin, Question, ResourceError,
    ServiceFacts, Unavailable, Unknown, UnknownSource, Value,
    container::{pod_volumes, used_volumes},
    downward::{variable_field, variable_resource},
    env_file::EnvFileReader,
    expand::{Piece, pieces},
    inputs::{Found, KeyState, Keyed},
    service_links::{self, OtherServices},
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
    /// Objects of `envFrom` whose keys are not known, in list order.
    any_keys: Vec<AnyKeys<'a>>,
    needs: BTreeSet<Question>,
    /// Variables that are perhaps set, where one of a Service counts otherwise: without that one.
    above_services: BTreeMap<Cow<'a, str>, Variable<'a>>,
    /// Those that are not listed, and may exist; `None` if all are listed.
    other_services: Option<OtherServices>,
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
    let (environment, errors) = partial_environment(pod, container, inputs)?;
    errors.into_iter().next().map_or(Ok(environment), Err)
}

/// The variables of `container` without those that have an error, and all errors.
///
/// # Errors
///
/// Nothing can be computed.
pub fn partial_environment<'a>(
    pod: &'a Pod,
    container: ContainerView<'a>,
    inputs: &'a Inputs,
) -> Result<(Environment<'a>, Vec<EnvironmentError>), EnvironmentError> {
    let links = pod
        .spec
        .as_ref()
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
        environment: Environment {
            other_services: OtherServices::of(&inputs.assumptions, namespace, links),
            ..Environment::default()
        },
        bytes: 0,
        services: service_variables(services, namespace, links),
        volumes: OnceCell::new(),
        env_files: HashMap::new(),
    };
    let mut errors = Vec::new();
    for source in container.env_from {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let added = if let Some(found) = &source.config_map_ref {
            builder.all_keys::<ConfigMap>(prefix, &found.name, found.optional)
        } else if let Some(found) = &source.secret_ref {
            builder.all_keys::<Secret>(prefix, &found.name, found.optional)
        } else {
            Ok(())
        };
        errors.extend(added.err());
    }
    for variable in container.env {
        errors.extend(builder.variable(variable).err());
    }
    errors.extend(builder.add_services().err());
    Ok((builder.environment, errors))
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
                fallback: None,
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
    fn object<K: Keyed>(
        &mut self,
        name: &'a str,
        optional: Option<bool>,
    ) -> Result<Found<'a, K>, EnvironmentError> {
        let object = self.inputs.object::<K>(name, optional)?;
        if matches!(object, Found::Absent) {
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
        check_depth(&name, &variable)?;
        let room = MAX_ENVIRONMENT_BYTES - self.bytes;
        let bytes = name.len() + variable.value.size();
        let freed = self
            .environment
            .variables
            .get(&name)
            .map_or(0, |old| name.len() + old.value.size());
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
        let object = match self.object::<K>(name, optional)? {
            Found::Known(object) => object,
            Found::Absent => return Ok(()),
            Found::Unknown(part) => return self.unknown_keys(prefix, name, part, optional),
        };
        let keys = object.variables();
        // Room for all that is still to come, so that the map grows once.
        let to_come = self.container.env.len() + self.services.len();
        self.environment
            .variables
            .reserve(keys.size_hint().0 + to_come);
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

    /// Sets `variable`.
    fn variable(&mut self, variable: &'a EnvVar) -> Result<(), EnvironmentError> {
        let name = Cow::Borrowed(&*variable.name);
        let text = variable.value.as_deref().unwrap_or_default();
        if text.is_empty()
            && let Some(source) = &variable.value_from
        {
            return match self.value_from(source)? {
                VariableSource::Nothing => Ok(()),
                VariableSource::Value(value) => self.set(name, value),
                VariableSource::Perhaps(question, value) => self.set_perhaps(name, question, value),
            };
        }
        let resolved = resolve(text, |name, whole| self.refer(name, whole));
        let (value, secret) = resolved.map_err(|ExpansionError| EnvironmentError::TooLarge {
            name: variable.name.clone(),
        })?;
        let origin = Origin::Value { text };
        self.set(
            name,
            Variable {
                value,
                origin,
                secret,
                fallback: None,
            },
        )
    }

    fn value_from(
        &mut self,
        source: &'a EnvVarSource,
    ) -> Result<VariableSource<'a>, EnvironmentError> {
        let node = self.inputs.node.as_deref();
        let (text, origin) = if let Some(field) = &source.field_ref {
            let path = &field.field_path;
            let assumptions = &self.inputs.assumptions;
            if let Some(unknown) = assumptions.field(self.pod, node, path) {
                return Ok(of_unknown(unknown, Origin::Field(path)).into());
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
                    let of_pod = self
                        .pod
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.resources.as_ref());
                    let unknown = self
                        .inputs
                        .assumptions
                        .resource(self.pod, of_pod, field)
                        .filter(|_| error == ResourceError::NoNode)
                        .ok_or(error)?;
                    return Ok(of_unknown(unknown, origin).into());
                }
            }
        } else if let Some(key) = &source.config_map_key_ref {
            return self.one_key::<ConfigMap>(&key.name, &key.key, key.optional);
        } else if let Some(key) = &source.secret_key_ref {
            return self.one_key::<Secret>(&key.name, &key.key, key.optional);
        } else if let Some(key) = &source.file_key_ref {
            return self.file_key(key);
        } else {
            (String::new(), Origin::Value { text: "" })
        };
        Ok(VariableSource::Value(Variable {
            value: Value::Owned(text.into_bytes()),
            origin,
            secret: false,
            fallback: None,
        }))
    }

    fn one_key<K: Keyed>(
        &mut self,
        name: &'a str,
        key: &'a str,
        optional: Option<bool>,
    ) -> Result<VariableSource<'a>, EnvironmentError> {
        match self.object::<K>(name, optional)? {
            Found::Absent => return Ok(VariableSource::Nothing),
            Found::Known(object) => {
                if let Some(value) = object.variable(key) {
                    return Ok(of_key(object, key, value).into());
                }
            }
            Found::Unknown(part) => match part.key(key) {
                KeyState::Present(value, origin) => return Ok(of_unknown(value, origin).into()),
                KeyState::Perhaps(question, value, origin) => {
                    let value = of_unknown(value, origin);
                    if optional == Some(true) {
                        return Ok(VariableSource::Perhaps(question, value));
                    }
                    self.environment.needs.insert(question);
                    return Ok(value.into());
                }
                KeyState::Missing => {}
            },
        }
        if optional == Some(true) {
            self.environment.absent.push(Absent {
                kind: K::KIND,
                name,
                key: Some(key),
            });
            return Ok(VariableSource::Nothing);
        }
        Err(EnvironmentError::MissingKey {
            kind: K::KIND,
            object: ObjectKey::new(self.namespace, name),
            key: key.to_owned(),
        })
    }

    /// On purpose different from the kubelet in one point: `optional` covers a missing file as well, as the API says it
    /// does.
    fn file_key(
        &mut self,
        selector: &'a FileKeySelector,
    ) -> Result<VariableSource<'a>, EnvironmentError> {
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
                if self.inputs.assumptions.facts {
                    return Ok(self.written_later(selector, origin));
                }
                return if optional {
                    Ok(VariableSource::Nothing)
                } else {
                    unreadable("no such file")
                };
            }
            Some(Err(Unavailable::Failed(message))) => return unreadable(message),
            Some(Err(Unavailable::Unknown(_))) | None => return unreadable("was not gathered"),
        };
        let reader = self
            .env_files
            .entry(reference)
            .or_insert_with(|| EnvFileReader::new(&file.content));
        let value = reader
            .value(key)
            .map_err(EnvironmentError::MalformedEnvFile)?;
        match value {
            value if value.is_empty() && optional => Ok(VariableSource::Nothing),
            value if value.is_empty() => Err(EnvironmentError::MissingFileKey {
                key: key.clone(),
                path: file.host_path.clone(),
            }),
            value => Ok(VariableSource::Value(Variable {
                value: Value::Secret(SecretBytes::new(value)),
                origin,
                secret: true,
                fallback: None,
            })),
        }
    }

    /// Adds the variables of Services, where no other variable has their name.
    fn add_services(&mut self) -> Result<(), EnvironmentError> {
        for (name, variable) in std::mem::take(&mut self.services) {
            let is_set = self
                .environment
                .variables
                .get(&name)
                .is_some_and(|set| !set.value.may_be_absent());
            if is_set {
                continue;
            }
            let Some(perhaps) = self.environment.look_up(&name) else {
                self.environment.variables.insert(name, variable);
                continue;
            };
            let mut perhaps = perhaps.into_owned();
            self.environment
                .above_services
                .insert(name.clone(), perhaps.clone());
            perhaps.fallback = Some(Box::new(variable.origin));
            if let Value::Unknown(unknown) = perhaps.value {
                perhaps.value = unknown.or(variable.value.into_term()).into();
            }
            self.set(name, perhaps)?;
        }
        Ok(())
    }
}

/// What a source sets a variable to.
enum VariableSource<'a> {
    Nothing,
    Value(Variable<'a>),
    /// The value, if the answer is yes.
    Perhaps(Question, Variable<'a>),
}

impl<'a> From<Variable<'a>> for VariableSource<'a> {
    fn from(variable: Variable<'a>) -> Self {
        Self::Value(variable)
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
        fallback: None,
    }
}

fn of_unknown<'a>(value: impl Into<Value<'a>>, origin: Origin<'a>) -> Variable<'a> {
    Variable {
        value: value.into(),
        secret: origin.is_secret(),
        origin,
        fallback: None,
    }
}

/// What a reference stands for.
struct Referred<'v> {
    value: Piecewise<'v>,
    secret: bool,
}

enum Piecewise<'v> {
    Known(&'v [u8]),
    Unknown(Cow<'v, Unknown>),
}

impl<'v> Referred<'v> {
    fn to(variable: &'v Variable<'_>) -> Self {
        let value = match variable.value.unknown() {
            Some(unknown) => Piecewise::Unknown(Cow::Borrowed(unknown)),
            None => Piecewise::Known(&variable.value),
        };
        let secret = variable.secret;
        Self { value, secret }
    }

    fn literal(text: &'v str) -> Self {
        Self {
            value: Piecewise::Known(text.as_bytes()),
            secret: false,
        }
    }

    fn into_term(self) -> Unknown {
        match self.value {
            Piecewise::Known(text) => Unknown::of_text(text),
            Piecewise::Unknown(unknown) => unknown.into_owned(),
        }
    }
}

/// Expands `text`, whose references stand for what `refer` returns; returns whether anything secret is in the result.
///
/// The parts are collected before they are copied, into memory of the final size: a growing buffer would leave pieces
/// of a secret behind (invariant 2).
fn resolve<'t, 'v>(
    text: &'t str,
    refer: impl Fn(&str, &'t str) -> Referred<'v>,
) -> Result<(Value<'t>, bool), ExpansionError>
where
    't: 'v,
{
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
            Piece::Reference { name, whole } => {
                let referred = refer(name, whole);
                secret |= referred.secret;
                match referred.value {
                    Piecewise::Known(bytes) => bytes,
                    Piecewise::Unknown(unknown) => {
                        length += unknown.len();
                        unknowns.push((parts.len(), unknown));
                        b""
                    }
                }
            }
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
                origin: Origin::Value { text: "" },
                secret: true,
                fallback: None,
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

    /// The objects of `envFrom` whose keys are not known, in list order.
    pub fn any_keys(&self) -> &[AnyKeys<'a>] {
        &self.any_keys
    }

    /// All keys of objects whose keys are not known, as `PREFIX*`.
    pub fn opaque(&self) -> BTreeMap<String, Unknown> {
        let mut all = BTreeMap::<String, Unknown>::new();
        for keys in &self.any_keys {
            let name = format!("{}*", keys.prefix);
            let object =
                Unknown::of(UnknownSource::object(&keys.object)).listed_after(all.get(&name));
            all.insert(name, object);
        }
        all
    }

    /// What must be true for the container to start, as far as its variables decide it, and is not known.
    pub fn needs(&self) -> &BTreeSet<Question> {
        &self.needs
    }

    /// The sources of what is not known.
    pub fn unknown_sources(&self) -> impl Iterator<Item = UnknownSource> {
        let sources = self
            .iter()
            .filter_map(|(_, one)| one.value.unknown())
            .flat_map(Unknown::sources)
            .cloned();
        let objects = self
            .any_keys
            .iter()
            .map(|keys| UnknownSource::object(&keys.object));
        sources.chain(objects)
    }

    /// The variable `name`, which is perhaps there.
    pub fn look_up(&self, name: &str) -> Option<Cow<'_, Variable<'a>>> {
        if let Some(variable) = self.get(name) {
            return Some(Cow::Borrowed(variable));
        }
        let value = AnyKeys::look_up(&self.any_keys, name, None)?;
        let mut of_name = self.any_keys.iter().rev();
        let top = of_name.find(|keys| keys.layer(name).is_some())?;
        Some(Cow::Owned(Variable {
            secret: value.is_secret(),
            value: value.into(),
            origin: top.origin(),
            fallback: None,
        }))
    }

    /// The variable `name` without what only Services set.
    pub fn own(&self, name: &str) -> Option<Cow<'_, Variable<'a>>> {
        if let Some(above) = self.above_services.get(name) {
            return Some(Cow::Borrowed(above));
        }
        let found = self.look_up(name)?;
        (!matches!(found.origin, Origin::Service { .. })).then_some(found)
    }

    /// What a variable is, where it counts whether it is set, if a Service may give it that is not listed.
    pub(crate) fn perhaps_service(&self, variable: &str) -> Option<Unknown> {
        self.other_services.as_ref()?.perhaps(variable)
    }

    /// What a reference to such a variable is: its value, or the reference.
    fn other_service(&self, variable: &str) -> Option<UnknownSource> {
        self.other_services.as_ref()?.source(variable)
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
        let refer = |name: &str, whole| match self.get(name) {
            Some(variable) => Referred::to(variable),
            None => Referred::literal(whole),
        };
        resolve(text, refer).map(|(value, _)| value)
    }
}
