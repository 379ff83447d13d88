//! Decodes the JSON of one object into the typed object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta as FullMetadata;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    Document, MadeObject, Manifest, Origin, Problem, RawObject, SetFields, Workload, controllers,
    custom,
    kind::ObjectKind,
    makers,
    misplaced::{merge, misplaced},
    normalize,
    typed::{decode, wrong_type},
    unknown::{UnknownField, unknown_keys},
};
use crate::{
    Kind, ObjectKey, defaults,
    validation::{self, FieldErrors},
};

/// The fields that all kinds have in common.
const COMMON_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
/// Number of keys that are compared with the common fields when one of these is missing.
const MAX_COMPARED_KEYS: usize = 20;
/// The fields of its own that a ConfigMap has.
const CONFIG_MAP_FIELDS: [&str; 3] = ["binaryData", "data", "immutable"];
const SECRET_FIELDS: [&str; 4] = ["data", "immutable", "stringData", "type"];

/// What an object is.
pub(super) enum Recognized {
    /// One that larder uses, and why the API server rejects it all the same.
    Object(Box<Document>, FieldErrors),
    /// Objects that are made of it, and whose values it does not have.
    Makes(Vec<MadeObject>),
    /// An object of a kind that larder does not use, such as `ClusterRole.rbac.authorization.k8s.io`.
    Skipped(String),
}

/// How objects are completed.
#[derive(Clone, Copy)]
pub(super) struct Completion<'a> {
    /// Makes their place.
    pub(super) origin: &'a dyn Fn() -> Origin,
    /// The namespace of objects that name none.
    pub(super) namespace: &'a str,
    /// Whether pods without UID get one.
    pub(super) uids: bool,
    /// Whether pods are made of the templates of custom resources.
    pub(super) any_template: bool,
}

/// Decodes `object`, and adds its unknown fields to `unknown`.
pub(super) fn recognize(
    object: RawObject,
    completion: Completion<'_>,
    unknown: &mut Vec<UnknownField>,
) -> Result<Recognized, Problem> {
    let Value::Object(fields) = &*object else {
        return Err(Problem::NotAnObject);
    };
    let api_version = top_level_text(fields, "apiVersion", unknown)?;
    let kind_name = top_level_text(fields, "kind", unknown)?;
    let kind = ObjectKind::of(api_version, kind_name);
    match kind {
        ObjectKind::Unknown => {
            return Err(Problem::UnknownKind {
                kind: kind_name.to_owned(),
                api_version: api_version.to_owned(),
            });
        }
        ObjectKind::List if kind_name == "List" => {
            return Err(Problem::Syntax(
                "a List cannot be an item of a list".to_owned(),
            ));
        }
        ObjectKind::Other | ObjectKind::List => {
            let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
            let key = object_key(&object, completion.namespace);
            if let Some(made) = makers::made_of(&object, group, kind_name, &key, completion.origin)
            {
                check_named(fields, unknown)?;
                return Ok(Recognized::Makes(made));
            }
            let dot = if group.is_empty() { "" } else { "." };
            let skipped = format!("{kind_name}{dot}{group}");
            if completion.any_template && custom::has_template(&object) {
                let pod = custom_workload(object, &skipped, completion);
                return Ok(pod.unwrap_or(Recognized::Skipped(skipped)));
            }
            return Ok(Recognized::Skipped(skipped));
        }
        _ => {}
    }
    check_named(fields, unknown)?;
    let encrypted = match kind {
        ObjectKind::ConfigMap => Some(Kind::ConfigMap),
        ObjectKind::Secret => Some(Kind::Secret),
        _ => None,
    };
    if let Some(kind) = encrypted {
        let key = object_key(&object, completion.namespace);
        if let Some(made) = makers::encrypted(&object, kind, &key, completion.origin) {
            return Ok(Recognized::Makes(vec![made]));
        }
    }
    let misplaced = match kind {
        ObjectKind::Workload(template) => misplaced(&object, template),
        ObjectKind::Pod => misplaced(&object, ""),
        _ => Vec::new(),
    };
    let recognized = typed(object.into_value(), kind, completion, unknown);
    merge(unknown, misplaced);
    recognized
}

fn check_named(
    fields: &Map<String, Value>,
    unknown: &mut Vec<UnknownField>,
) -> Result<(), Problem> {
    match fields.get("metadata") {
        Some(metadata @ Value::Object(fields)) => {
            let name = required_text(fields, "name", "metadata.name");
            if name.is_err() {
                // Its unknown fields may say why there is no name.
                let _ = full_metadata(metadata, unknown);
            }
            name.map(drop)
        }
        None | Some(Value::Null) => Err(Problem::Missing {
            field: "metadata.name".into(),
        }),
        Some(other) => Err(wrong_type("metadata", "a mapping", other)),
    }
}

/// The namespace and name of an object; `namespace` if it names none.
fn object_key(object: &RawObject, namespace: &str) -> ObjectKey {
    let mut key = object.key();
    if key.namespace.is_empty() {
        key.namespace = namespace.into();
    }
    key
}

fn top_level_text<'a>(
    fields: &'a Map<String, Value>,
    name: &'static str,
    unknown: &mut Vec<UnknownField>,
) -> Result<&'a str, Problem> {
    let text = required_text(fields, name, name);
    if text.is_err() {
        // The fields of this object are not known; a similar name is likely to be meant for a common one.
        let keys = fields
            .keys()
            .filter(|key| !COMMON_FIELDS.contains(&key.as_str()));
        for key in keys.take(MAX_COMPARED_KEYS) {
            UnknownField::note_similar(unknown, key, &COMMON_FIELDS);
        }
    }
    text
}

fn required_text<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
    field: &'static str,
) -> Result<&'a str, Problem> {
    match fields.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        None | Some(Value::Null | Value::String(_)) => Err(Problem::Missing {
            field: field.into(),
        }),
        Some(other) => Err(wrong_type(field, "a string", other)),
    }
}

fn typed(
    mut value: Value,
    kind: ObjectKind,
    completion: Completion<'_>,
    unknown: &mut Vec<UnknownField>,
) -> Result<Recognized, Problem> {
    normalize::drop_nulls(&mut value);
    if kind.is_namespaced()
        && let Some(metadata) = metadata_mut(&mut value)
    {
        normalize::set_namespace(metadata, completion.namespace);
    }
    if let ObjectKind::Workload(template) = kind {
        return workload(value, template, completion, unknown);
    }
    complete(&mut value, kind, completion.uids)?;
    let object = RawObject::new(value);
    let mut raw = Undecoded {
        object: &object,
        unknown,
    };
    let manifest = raw.manifest(kind)?;
    let document = Document {
        origin: (completion.origin)(),
        workload: None,
        set_fields: SetFields::new(),
        object,
        manifest,
        written: None,
    };
    let rejected = FieldErrors::default();
    Ok(Recognized::Object(Box::new(document), rejected))
}

/// Puts into an object what its kind has in its stored form; with `uids`, a UID into a pod that has none.
fn complete(value: &mut Value, kind: ObjectKind, uids: bool) -> Result<(), Problem> {
    match (kind, value.as_object_mut()) {
        (ObjectKind::ConfigMap, Some(fields)) => normalize::encode_bytes(fields, "binaryData"),
        (ObjectKind::Secret, Some(fields)) => {
            normalize::encode_bytes(fields, "data");
            normalize::fold_string_data(fields)?;
        }
        (ObjectKind::Pod, Some(_)) if uids => {
            if let Some(metadata) = metadata_mut(value) {
                normalize::set_uid(metadata);
            }
        }
        // One form in all versions of the API.
        (ObjectKind::ClusterTrustBundle, Some(fields)) => {
            fields.insert(
                "apiVersion".to_owned(),
                "certificates.k8s.io/v1beta1".into(),
            );
        }
        _ => {}
    }
    Ok(())
}

/// An object that waits to be decoded, and the list that takes its unknown fields.
struct Undecoded<'a> {
    object: &'a Value,
    unknown: &'a mut Vec<UnknownField>,
}

impl Undecoded<'_> {
    fn manifest(&mut self, kind: ObjectKind) -> Result<Manifest, Problem> {
        Ok(match kind {
            ObjectKind::Pod => Manifest::Pod(self.read(defaults::pod, validation::pod)?),
            ObjectKind::ConfigMap => {
                let check = validation::config_map;
                Manifest::ConfigMap(self.read_data(&CONFIG_MAP_FIELDS, |_| {}, check)?)
            }
            ObjectKind::Secret => {
                let (default, check) = (defaults::secret, validation::secret);
                Manifest::Secret(self.read_data(&SECRET_FIELDS, default, check)?)
            }
            ObjectKind::Service => {
                Manifest::Service(self.read(defaults::service, validation::service)?)
            }
            ObjectKind::Node => Manifest::Node(self.read(defaults::node, validation::node)?),
            ObjectKind::Namespace => {
                Manifest::Namespace(self.read(defaults::namespace, validation::namespace)?)
            }
            ObjectKind::ServiceAccount => {
                Manifest::ServiceAccount(self.read(|_| {}, validation::service_account)?)
            }
            ObjectKind::ClusterTrustBundle => {
                Manifest::ClusterTrustBundle(self.read(|_| {}, validation::cluster_trust_bundle)?)
            }
            ObjectKind::Workload(_)
            | ObjectKind::List
            | ObjectKind::Other
            | ObjectKind::Unknown => unreachable!("handled before the object is decoded"),
        })
    }

    /// An object of a type of the API's own.
    fn read<K: DeserializeOwned>(
        &mut self,
        default: fn(&mut K),
        check: fn(&K) -> FieldErrors,
    ) -> Result<Box<K>, Problem> {
        let mut read = decode(self.object, self.unknown)?;
        default(&mut read);
        checked(check(&read))?;
        Ok(Box::new(read))
    }

    /// A ConfigMap or a Secret, of which we keep less than the API has.
    fn read_data<K: DeserializeOwned>(
        &mut self,
        fields: &[&'static str],
        default: fn(&mut K),
        check: fn(&K) -> FieldErrors,
    ) -> Result<K, Problem> {
        let known = [&COMMON_FIELDS, fields].concat();
        self.unknown.extend(unknown_keys(self.object, &known));
        let metadata = full_metadata(&self.object["metadata"], self.unknown)?;
        let mut read = decode(self.object, &mut Vec::new())?;
        default(&mut read);
        let errors = validation::metadata(&metadata, validation::Scope::Namespaced);
        checked(errors.and(check(&read)))?;
        Ok(read)
    }
}

/// The pod of a workload. Its errors name the fields of the workload.
fn workload(
    value: Value,
    template: &'static str,
    completion: Completion<'_>,
    unknown: &mut Vec<UnknownField>,
) -> Result<Recognized, Problem> {
    let made_by = Workload::of(&value, template);
    let set_fields = controllers::set_fields(&value);
    let rejected = validation::workload(&value, template);
    let mut pod_value = normalize::pod_of_workload(value, template)?;
    if let Some(metadata) = metadata_mut(&mut pod_value) {
        normalize::set_uid(metadata);
    }
    let object = RawObject::new(pod_value);
    let pod = within(template, unknown, |unknown| {
        let object = &object;
        Undecoded { object, unknown }.read(defaults::pod, validation::pod)
    })?;
    let document = Document {
        origin: (completion.origin)(),
        workload: Some(made_by),
        set_fields,
        object,
        manifest: Manifest::Pod(pod),
        written: None,
    };
    Ok(Recognized::Object(Box::new(document), rejected))
}

/// The pod of a custom resource of this `kind`, with its group.
fn custom_workload(
    object: RawObject,
    kind: &str,
    completion: Completion<'_>,
) -> Result<Recognized, Problem> {
    let mut value = object.into_value();
    normalize::drop_nulls(&mut value);
    if let Some(metadata) = metadata_mut(&mut value) {
        normalize::set_namespace(metadata, completion.namespace);
    }
    let (workload, mut pod_value) = custom::pod(value, kind)?;
    if let Some(metadata) = metadata_mut(&mut pod_value) {
        normalize::set_uid(metadata);
    }
    let object = RawObject::new(pod_value);
    let mut undecoded = Undecoded {
        object: &object,
        // The kind may have more fields than a pod.
        unknown: &mut Vec::new(),
    };
    let pod = undecoded.read(defaults::pod, validation::pod)?;
    let document = Document {
        origin: (completion.origin)(),
        workload: Some(workload),
        set_fields: SetFields::from([("metadata.name".to_owned(), None)]),
        object,
        manifest: Manifest::Pod(pod),
        written: None,
    };
    let rejected = FieldErrors::default();
    Ok(Recognized::Object(Box::new(document), rejected))
}

fn checked(errors: FieldErrors) -> Result<(), Problem> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::Invalid(errors))
    }
}

/// The metadata in full: ConfigMap and Secret keep a part of it.
fn full_metadata(
    metadata: &Value,
    unknown: &mut Vec<UnknownField>,
) -> Result<FullMetadata, Problem> {
    within("metadata", unknown, |unknown| decode(metadata, unknown))
}

/// Reads a part of an object, whose unknown fields and problem name their fields from the object on.
fn within<T>(
    part: &'static str,
    unknown: &mut Vec<UnknownField>,
    read: impl FnOnce(&mut Vec<UnknownField>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    let prefix = part.into();
    let mut of_part = Vec::new();
    let read = read(&mut of_part);
    unknown.extend(of_part.into_iter().map(|field| field.within(&prefix)));
    read.map_err(|problem| problem.within(&prefix))
}

fn metadata_mut(value: &mut Value) -> Option<&mut Map<String, Value>> {
    value.get_mut("metadata").and_then(Value::as_object_mut)
}
