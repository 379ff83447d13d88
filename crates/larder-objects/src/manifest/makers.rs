//! Documents of which something makes a Secret or a ConfigMap: a controller in the cluster, or a decryption.
//!
//! The values of such an object are in no document. What is known is what makes them: as long as that is the same, so are
//! they. A new kind is a line of [`MAKERS`].

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

use super::{ManifestError, Origin, Problem, error::Subject};
use crate::{Kind, ObjectKey};

/// An object that is made of a document.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MadeObject {
    /// ConfigMap or Secret.
    pub kind: Kind,
    /// Its namespace and name.
    pub key: ObjectKey,
    /// What makes it.
    pub maker: Maker,
    /// The place of the document.
    pub origin: Origin,
    /// What its values depend on besides their entries.
    pub recipe: Recipe,
    /// The entry of each key; `None` if the keys are not known.
    pub keys: Option<BTreeMap<Arc<str>, Recipe>>,
}

/// What makes an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Maker {
    /// A controller, of a document: `SealedSecret web-db`.
    Controller(String),
    /// The values in the document are encrypted by sops.
    Sops,
}

/// A part of a document, which is only compared. It may hold secrets, so it shows its length.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recipe(Arc<str>);

impl Recipe {
    /// Two of equal texts are equal.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    fn of(part: &Value) -> Self {
        Self::new(part.to_string())
    }
}

impl std::fmt::Debug for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl MadeObject {
    /// The error that only its key opens it, for programs that deliver values; `None` if it is not encrypted.
    pub fn encrypted(&self) -> Option<ManifestError> {
        (self.maker == Maker::Sops).then(|| ManifestError::Document {
            origin: self.origin.clone(),
            subject: Subject {
                kind: Some(self.kind.object_type().kind.to_owned()),
                namespace: Some(self.key.namespace.to_string()),
                name: Some(self.key.name.to_string()),
            },
            problem: Problem::Encrypted,
            beside: Vec::new(),
        })
    }
}

/// A kind of document, and the objects that are made of one.
struct MakerKind {
    group: &'static str,
    kind: &'static str,
    /// A list of objects in it; empty if it makes one.
    each: &'static str,
    /// The name of the object; the document's own if it is not there.
    name: &'static str,
    keys: Keys,
}

/// Where the keys of an object are.
enum Keys {
    /// Nowhere.
    Any,
    /// Always these.
    Fixed(&'static [&'static str]),
    /// The names in `maps`, and the texts in the field `key` of the entries of `lists`. If something is at a place of
    /// `open`, there are others as well.
    Listed {
        maps: &'static [&'static str],
        lists: &'static [(&'static str, &'static str)],
        open: &'static [&'static str],
    },
}

const NONE: &str = "";

/// The known kinds of makers, as their controllers document them.
const MAKERS: [MakerKind; 14] = [
    MakerKind {
        group: "bitnami.com",
        kind: "SealedSecret",
        each: NONE,
        name: NONE,
        keys: Keys::Listed {
            maps: &["/spec/encryptedData", "/spec/template/data"],
            lists: &[],
            open: &["/spec/data"],
        },
    },
    MakerKind {
        group: "external-secrets.io",
        kind: "ExternalSecret",
        each: NONE,
        name: "/spec/target/name",
        keys: Keys::Listed {
            maps: &[],
            lists: &[("/spec/data", "secretKey")],
            open: &["/spec/dataFrom", "/spec/target/template"],
        },
    },
    MakerKind {
        group: "kubernetes-client.io",
        kind: "ExternalSecret",
        each: NONE,
        name: NONE,
        keys: Keys::Listed {
            maps: &[],
            lists: &[("/spec/data", "name")],
            open: &["/spec/dataFrom", "/spec/template"],
        },
    },
    MakerKind {
        group: "cert-manager.io",
        kind: "Certificate",
        each: NONE,
        name: "/spec/secretName",
        keys: Keys::Fixed(&["tls.crt", "tls.key", "ca.crt"]),
    },
    MakerKind {
        group: "secrets-store.csi.x-k8s.io",
        kind: "SecretProviderClass",
        each: "/spec/secretObjects",
        name: "/secretName",
        keys: Keys::Listed {
            maps: &[],
            lists: &[("/data", "key")],
            open: &[],
        },
    },
    MakerKind {
        group: "isindir.github.com",
        kind: "SopsSecret",
        each: "/spec/secretTemplates",
        name: "/name",
        keys: Keys::Listed {
            maps: &["/data", "/stringData"],
            lists: &[],
            open: &[],
        },
    },
    any_keys(
        "secrets.hashicorp.com",
        "VaultStaticSecret",
        "/spec/destination/name",
    ),
    any_keys(
        "secrets.hashicorp.com",
        "VaultDynamicSecret",
        "/spec/destination/name",
    ),
    any_keys(
        "secrets.hashicorp.com",
        "VaultPKISecret",
        "/spec/destination/name",
    ),
    any_keys(
        "secrets.hashicorp.com",
        "HCPVaultSecretsApp",
        "/spec/destination/name",
    ),
    any_keys("onepassword.com", "OnePasswordItem", NONE),
    any_keys(
        "secrets.infisical.com",
        "InfisicalSecret",
        "/spec/managedSecretReference/secretName",
    ),
    any_keys(
        "secrets.doppler.com",
        "DopplerSecret",
        "/spec/managedSecret/name",
    ),
    any_keys("ricoberger.de", "VaultSecret", NONE),
];

/// A kind that makes one Secret, with keys that are kept elsewhere.
const fn any_keys(group: &'static str, kind: &'static str, name: &'static str) -> MakerKind {
    MakerKind {
        group,
        kind,
        each: NONE,
        name,
        keys: Keys::Any,
    }
}

/// Parts of a specification on which no value depends.
const WITHOUT_EFFECT: [&str; 3] = ["refreshInterval", "refreshPolicy", "metadata"];

/// The objects that are made of `document`, whose `key` it is; `None` if it is no maker.
pub(super) fn made_of(
    document: &Value,
    group: &str,
    kind: &str,
    key: &ObjectKey,
    origin: &dyn Fn() -> Origin,
) -> Option<Vec<MadeObject>> {
    let rule = MAKERS
        .iter()
        .find(|rule| (rule.group, rule.kind) == (group, kind))?;
    let parts = match document.pointer(rule.each) {
        _ if rule.each.is_empty() => std::slice::from_ref(document),
        Some(Value::Array(parts)) => parts,
        _ => &[],
    };
    let mut rest = document.get("spec").cloned().unwrap_or_default();
    if !rule.each.is_empty() {
        remove(&mut rest, rule.each.trim_start_matches("/spec"));
    }
    let made = parts.iter().filter_map(|part| {
        let name = part.pointer(rule.name).filter(|_| !rule.name.is_empty());
        let name = match name.and_then(Value::as_str) {
            Some(name) => name,
            None if rule.each.is_empty() => &key.name,
            None => return None,
        };
        let mut own = part.clone();
        let keys = keys(&rule.keys, part, &mut own);
        // Of a document that makes one object, only the specification counts.
        let own = match rule.each {
            "" => own.get("spec").cloned().unwrap_or_default(),
            _ => Value::Array(vec![own, rest.clone()]),
        };
        Some(MadeObject {
            kind: Kind::Secret,
            key: ObjectKey::new(key.namespace.clone(), name),
            maker: Maker::Controller(format!("{kind} {}", key.name)),
            origin: origin(),
            recipe: Recipe::of(&without_effect(own)),
            keys,
        })
    });
    Some(made.collect())
}

/// The keys of `part`, which are taken out of `rest`; `None` if not all of them are known.
fn keys(keys: &Keys, part: &Value, rest: &mut Value) -> Option<BTreeMap<Arc<str>, Recipe>> {
    let mut found = BTreeMap::<Arc<str>, Recipe>::new();
    match keys {
        Keys::Any => return None,
        Keys::Fixed(keys) => {
            found.extend(keys.iter().map(|key| ((*key).into(), Recipe::default())));
        }
        Keys::Listed { maps, lists, open } => {
            let is_there = |place: &&&str| {
                part.pointer(place).is_some_and(|value| {
                    !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty())
                })
            };
            if open.iter().any(|place| is_there(&place)) {
                return None;
            }
            for place in *maps {
                let entries = part
                    .pointer(place)
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten();
                found.extend(entries.map(|(key, entry)| (key.as_str().into(), Recipe::of(entry))));
                remove(rest, place);
            }
            for (place, field) in *lists {
                let entries = part
                    .pointer(place)
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten();
                let named = entries.filter_map(|entry| Some((entry.get(*field)?.as_str()?, entry)));
                found.extend(named.map(|(key, entry)| (key.into(), Recipe::of(entry))));
                remove(rest, place);
            }
        }
    }
    Some(found)
}

fn remove(value: &mut Value, place: &str) {
    if let Some(found) = value.pointer_mut(place) {
        *found = Value::Null;
    }
}

/// A specification without what no value depends on.
fn without_effect(mut spec: Value) -> Value {
    fn strip(fields: &mut Map<String, Value>) {
        fields.retain(|field, _| !WITHOUT_EFFECT.contains(&field.as_str()));
    }
    if let Some(fields) = spec.as_object_mut() {
        strip(fields);
        if let Some(template) = fields.get_mut("template").and_then(Value::as_object_mut) {
            strip(template);
        }
    }
    spec
}

/// The object that a ConfigMap or Secret is before sops encrypted it; `None` if it is not encrypted.
pub(super) fn encrypted(
    document: &Value,
    kind: Kind,
    key: &ObjectKey,
    origin: &dyn Fn() -> Origin,
) -> Option<MadeObject> {
    document.get("sops").filter(|block| block.is_object())?;
    let mut keys = BTreeMap::<Arc<str>, Recipe>::new();
    for field in ["binaryData", "data", "stringData"] {
        let entries = document
            .get(field)
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        keys.extend(entries.map(|(key, entry)| (key.as_str().into(), Recipe::of(entry))));
    }
    Some(MadeObject {
        kind,
        key: key.clone(),
        maker: Maker::Sops,
        origin: origin(),
        recipe: Recipe::default(),
        keys: Some(keys),
    })
}

#[cfg(test)]
mod tests {
    use crate::manifest::{Loader, Maker, Manifests};

    fn load(text: &str) -> Manifests {
        let mut loader = Loader::new("prod");
        loader.text("app.yaml", text);
        let manifests = loader.finish();
        assert!(manifests.errors.is_empty(), "{:?}", manifests.errors);
        manifests
    }

    /// The objects that a document makes: `name: key, key`, or `name: ?` if its keys are not known.
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let made = load(text).made.into_iter().map(|made| {
            let keys = made.keys.map(|keys| keys.into_keys().collect::<Vec<_>>());
            let keys = keys.map_or_else(|| "?".to_owned(), |keys| keys.join(", "));
            assert_eq!(&*made.key.namespace, "prod");
            format!("{}: {keys}", made.key.name)
        });
        assert_eq!(made.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn makers_name_their_objects_and_keys() {
        let head = |version: &str, kind: &str| {
            format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: own}}\nspec: ")
        };
        let sealed = head("bitnami.com/v1alpha1", "SealedSecret");
        check(
            &(sealed.clone()
                + "{encryptedData: {url: AgA, b: AgB}, template: {data: {c: '{{ .b }}'}}}"),
            &["own: b, c, url"],
        );
        check(&(sealed + "{data: AgC}"), &["own: ?"]);
        let external = head("external-secrets.io/v1", "ExternalSecret");
        check(
            &(external.clone() + "{target: {name: db}, data: [{secretKey: url}]}"),
            &["db: url"],
        );
        check(
            &(external.clone() + "{data: [{secretKey: url}], dataFrom: []}"),
            &["own: url"],
        );
        check(
            &(external + "{dataFrom: [{extract: {key: k}}]}"),
            &["own: ?"],
        );
        let certificate = head("cert-manager.io/v1", "Certificate") + "{secretName: tls}";
        check(&certificate, &["tls: ca.crt, tls.crt, tls.key"]);
        let class = head("secrets-store.csi.x-k8s.io/v1", "SecretProviderClass");
        check(
            &(class
                + "{secretObjects: [{secretName: a, data: [{key: x}]}, {secretName: b, data: [{key: z}]}]}"),
            &["a: x", "b: z"],
        );
        check(
            &(head("onepassword.com/v1", "OnePasswordItem") + "{itemPath: p}"),
            &["own: ?"],
        );
        let vault = head("secrets.hashicorp.com/v1beta1", "VaultStaticSecret");
        check(
            &(vault + "{destination: {name: v, create: true}}"),
            &["v: ?"],
        );
    }

    #[test]
    fn encrypted_object_has_its_keys_and_no_values() {
        let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\ndata: {url: 'ENC[AES256_GCM,data:x]'}\nsops: {mac: y}\n";
        check(text, &["db: url"]);
        let made = &load(text).made[0];
        assert_eq!(made.maker, Maker::Sops);
        let error = made.encrypted().unwrap().to_string();
        assert!(error.contains("sops -d"), "{error}");
        assert!(!format!("{made:?}").contains("AES256"), "{made:?}");
        // Without the block, it is what it looks like.
        let mut loader = Loader::new("prod");
        loader.text("app.yaml", text.split("sops:").next().unwrap());
        assert_eq!(loader.finish().errors.len(), 1);
    }

    #[test]
    fn recipe_is_what_values_depend_on() {
        let sealed = |spec: &str| {
            let text = format!(
                "apiVersion: bitnami.com/v1alpha1\nkind: SealedSecret\nmetadata: {{name: own}}\nspec: {spec}\n"
            );
            load(&text).made.remove(0)
        };
        let one = sealed("{encryptedData: {a: x, b: y}, template: {metadata: {labels: {l: '1'}}}}");
        let other =
            sealed("{encryptedData: {a: x, b: z}, template: {metadata: {labels: {l: '2'}}}}");
        let (before, after) = (one.keys.unwrap(), other.keys.unwrap());
        assert_eq!(one.recipe, other.recipe);
        assert_eq!(before["a"], after["a"]);
        assert_ne!(before["b"], after["b"]);
    }
}
