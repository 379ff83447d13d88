//! Documents of which something makes a Secret or a ConfigMap: a controller in the cluster, or a decryption.
//!
//! The values of such an object are in no document. What is known is what makes them: as long as that is the same, so are
//! they. A new kind is an entry of `kinds`.

mod kinds;
mod rule;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde_json::Value;

pub(super) use self::kinds::made_of;
use self::rule::text;
use super::{ManifestError, Origin, Problem, error::Subject};
use crate::{Kind, ObjectKey};

/// Most makers of one object of which each key is told apart.
const MAX_MAKERS: usize = 8;

/// An object that is made of a document.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MadeObject {
    /// ConfigMap or Secret.
    pub kind: Kind,
    /// Its namespace and name. Without a namespace, it is in each.
    pub key: ObjectKey,
    /// What makes it.
    pub maker: Maker,
    /// The place of the document.
    pub origin: Origin,
    /// What each of its keys is made of.
    pub keys: BTreeMap<Arc<str>, Recipe>,
    /// What its other keys are made of, if it may have any.
    pub others: Option<Recipe>,
    /// Whose it is.
    pub ownership: Ownership,
    /// Whether its data cannot be changed.
    pub immutable: bool,
    /// Objects, by name, whose content is part of what all of its keys are made of.
    pub reads: BTreeSet<(Kind, String)>,
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ownership {
    /// It is made by something else; the maker adds keys, which stay without the maker.
    Added,
    /// The maker makes it, and it stays without the maker.
    Left,
    /// The maker makes it, and without the maker there is none.
    Owned,
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

    /// What is made of all of `parts`.
    pub fn joined(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: BTreeSet<_> = parts.into_iter().collect();
        let texts: Vec<_> = parts.iter().map(|part| &*part.0).collect();
        Self::new(texts.join("\n"))
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

/// `SealedSecret web-db`, or `sops`.
impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Controller(document) => document,
            Self::Sops => "sops",
        })
    }
}

impl MadeObject {
    /// What several makers make of one object; `None` without any. Of many, each key is made of all that they say, so that
    /// the cost grows no faster than what they say.
    pub fn joined(mut all: Vec<Self>) -> Option<Self> {
        if all.len() <= MAX_MAKERS {
            return all.into_iter().reduce(|mut first, other| {
                first.join(other);
                first
            });
        }
        let recipes = all.iter();
        let recipes = recipes.flat_map(|made| made.keys.values().chain(&made.others).cloned());
        let whole = Recipe::joined(recipes);
        let count = all.len() - 1;
        let mut first = all.swap_remove(0);
        first.maker = Maker::Controller(format!("{} and {count} others", first.maker));
        for other in all {
            first.keys.extend(other.keys);
            first.others = first.others.or(other.others);
            first.ownership = first.ownership.max(other.ownership);
            first.immutable |= other.immutable;
            first.reads.extend(other.reads);
        }
        for recipe in first.keys.values_mut().chain(&mut first.others) {
            *recipe = whole.clone();
        }
        Some(first)
    }

    /// Takes what another maker makes of the object, too: each key may be that of either.
    fn join(&mut self, other: Self) {
        let sides = [&*self, &other];
        let all = sides.iter().flat_map(|side| side.keys.keys());
        let keys = all.map(|key| {
            let of_key = |side: &&Self| side.keys.get(key).or(side.others.as_ref()).cloned();
            (
                Arc::clone(key),
                Recipe::joined(sides.iter().filter_map(of_key)),
            )
        });
        let keys = keys.collect();
        let others: Vec<_> = sides
            .iter()
            .filter_map(|side| side.others.clone())
            .collect();
        self.keys = keys;
        self.others = (!others.is_empty()).then(|| Recipe::joined(others));
        self.maker = Maker::Controller(format!("{} and {}", self.maker, other.maker));
        self.ownership = self.ownership.max(other.ownership);
        self.immutable |= other.immutable;
        self.reads.extend(other.reads);
    }

    /// Takes what all of its keys are made of besides.
    pub fn depend_on(&mut self, content: &Recipe) {
        for recipe in self.keys.values_mut().chain(&mut self.others) {
            *recipe = Recipe::joined([recipe.clone(), content.clone()]);
        }
    }

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
        let entries = entries.map(|(key, entry)| (key.as_str().into(), entry.to_string()));
        keys.extend(entries.map(|(key, entry)| (key, Recipe::new(entry))));
    }
    Some(MadeObject {
        kind,
        key: key.clone(),
        maker: Maker::Sops,
        origin: origin(),
        keys,
        others: None,
        ownership: Ownership::Owned,
        immutable: text(document, "/immutable") == "true",
        reads: BTreeSet::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, MadeObject, Ownership};
    use crate::manifest::{Loader, Maker, Manifests};

    fn load(text: &str) -> Manifests {
        let mut loader = Loader::new("prod");
        loader.text("app.yaml", text);
        let manifests = loader.finish();
        assert!(manifests.errors.is_empty(), "{:?}", manifests.errors);
        manifests
    }

    fn document(version: &str, kind: &str, spec: &str) -> String {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: own}}\nspec: {spec}\n")
    }

    fn sealed(spec: &str) -> String {
        document("bitnami.com/v1alpha1", "SealedSecret", spec)
    }

    fn external(spec: &str) -> String {
        document("external-secrets.io/v1", "ExternalSecret", spec)
    }

    fn certificate(spec: &str) -> String {
        document("cert-manager.io/v1", "Certificate", spec)
    }

    fn words(made: &MadeObject) -> String {
        let namespace = match &*made.key.namespace {
            "prod" => String::new(),
            other => format!("{other}/"),
        };
        let keys = made.keys.keys().map(|key| &**key);
        let keys: Vec<_> = keys.chain(made.others.is_some().then_some("?")).collect();
        let ownership = match made.ownership {
            Ownership::Owned => "",
            Ownership::Left => ", left",
            Ownership::Added => ", added",
        };
        let immutable = if made.immutable { ", immutable" } else { "" };
        let (name, keys) = (&made.key.name, keys.join(" "));
        format!("{namespace}{name}: {keys}{ownership}{immutable}")
    }

    /// The objects that a document makes, with their keys; `?` stands for others.
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let made = load(text).made;
        let made: Vec<_> = made.iter().map(words).collect();
        assert_eq!(made, expected, "{text}");
    }

    #[test]
    fn makers_name_their_objects_and_keys() {
        check(
            &sealed(
                "{encryptedData: {url: AgA, b: AgB}, template: {immutable: true, data: {c: '{{ .b }}'}}}",
            ),
            &["own: b c url, immutable"],
        );
        check(&sealed("{data: AgC}"), &["own: ?"]);
        for (spec, expected) in [
            ("{target: {name: db}, data: [{secretKey: url}]}", "db: url"),
            ("{data: [{secretKey: url}], dataFrom: []}", "own: url"),
            ("{dataFrom: [{extract: {key: k}}]}", "own: ?"),
            (
                "{data: [{secretKey: url}], dataFrom: [{extract: {key: k}}]}",
                "own: url ?",
            ),
            (
                "{target: {creationPolicy: Merge}, data: [{secretKey: url}]}",
                "own: url, added",
            ),
            (
                "{target: {creationPolicy: Orphan}, data: [{secretKey: url}]}",
                "own: url, left",
            ),
            (
                "{target: {immutable: true}, data: [{secretKey: url}]}",
                "own: url, immutable",
            ),
            // A template with data makes all keys, unless they are merged.
            (
                "{target: {template: {type: Opaque}}, data: [{secretKey: url}]}",
                "own: url",
            ),
            (
                "{target: {template: {data: {c: x}}}, data: [{secretKey: url}]}",
                "own: c",
            ),
            (
                "{target: {template: {data: {c: x}}}, dataFrom: [{extract: {key: k}}]}",
                "own: c",
            ),
            (
                "{target: {template: {mergePolicy: Merge, data: {c: x}}}, data: [{secretKey: url}]}",
                "own: c url",
            ),
            (
                "{target: {template: {templateFrom: [{configMap: {name: t}}]}}, data: [{secretKey: url}]}",
                "own: ?",
            ),
        ] {
            check(&external(spec), &[expected]);
        }
        check(
            &external("{target: {creationPolicy: None}, data: [{secretKey: url}]}"),
            &[],
        );
        let vault =
            |spec: &str| document("secrets.hashicorp.com/v1beta1", "VaultStaticSecret", spec);
        check(&vault("{destination: {name: v, create: true}}"), &["v: ?"]);
        check(&vault("{destination: {name: v}}"), &["v: ?, added"]);
        check(&vault("{}"), &[]);
        let bitwarden = |spec: &str| document("k8s.bitwarden.com/v1", "BitwardenSecret", spec);
        let map = "secretName: db, map: [{bwSecretId: i, secretKeyName: url}]";
        check(
            &bitwarden(&format!("{{{map}, onlyMappedSecrets: true}}")),
            &["db: url"],
        );
        check(&bitwarden(&format!("{{{map}}}")), &["db: url ?"]);
        check(
            &document("onepassword.com/v1", "OnePasswordItem", "{itemPath: p}"),
            &["own: ?"],
        );
        check(
            &document(
                "secrets-store.csi.x-k8s.io/v1",
                "SecretProviderClass",
                "{secretObjects: [{secretName: a, data: [{key: x}]}, {secretName: b, data: [{key: z}]}]}",
            ),
            &["a: x", "b: z"],
        );
    }

    #[test]
    fn maker_needs_a_name() {
        let text = external("{target: {name: db}}").replace("name: own", "name: y");
        let mut loader = Loader::new("prod");
        loader.text("app.yaml", &text);
        let manifests = loader.finish();
        assert!(manifests.made.is_empty());
        let error = manifests.errors[0].to_string();
        assert!(
            error.contains("metadata.name: expected a string"),
            "{error}"
        );
    }

    #[test]
    fn certificate_has_the_keys_of_its_formats() {
        check(
            &certificate("{secretName: tls}"),
            &["tls: ca.crt tls.crt tls.key"],
        );
        check(
            &certificate(
                "{secretName: tls, keystores: {jks: {create: false}, pkcs12: {create: true}}}",
            ),
            &["tls: ca.crt keystore.p12 tls.crt tls.key truststore.p12"],
        );
        check(
            &certificate(
                "{secretName: tls, keystores: {jks: {create: true}}, additionalOutputFormats: [{type: DER}, {type: CombinedPEM}]}",
            ),
            &["tls: ca.crt key.der keystore.jks tls-combined.pem tls.crt tls.key truststore.jks"],
        );
    }

    #[test]
    fn object_may_be_in_another_namespace() {
        check(
            &document(
                "secrets.doppler.com/v1alpha1",
                "DopplerSecret",
                "{managedSecret: {name: db, namespace: ns}}",
            ),
            &["ns/db: ?, left"],
        );
        let infisical =
            |spec: &str| document("secrets.infisical.com/v1alpha1", "InfisicalSecret", spec);
        check(
            &infisical(
                "{managedSecretReference: {secretName: db, secretNamespace: ns, creationPolicy: Owner}}",
            ),
            &["ns/db: ?"],
        );
        check(
            &infisical(
                "{managedKubeSecretReferences: [{secretName: a, secretNamespace: ns}, {secretName: b}]}",
            ),
            &["ns/a: ?, left", "b: ?, left"],
        );
    }

    #[test]
    fn object_may_be_in_several_namespaces() {
        let bundle = |target: &str| {
            let text = document(
                "trust.cert-manager.io/v1alpha1",
                "Bundle",
                &format!("{{target: {target}}}"),
            );
            let made = load(&text).made.into_iter();
            made.map(|made| (made.kind, words(&made)))
                .collect::<Vec<_>>()
        };
        let own = |keys: &str| format!("/own: {keys}");
        assert_eq!(
            bundle("{configMap: {key: ca.pem}, additionalFormats: {jks: {key: ca.jks}}}"),
            [(Kind::ConfigMap, own("ca.jks ca.pem"))]
        );
        assert_eq!(
            bundle("{secret: {key: ca.pem}}"),
            [(Kind::Secret, own("ca.pem"))]
        );
        let cluster = |places: &str| {
            let spec = "externalSecretSpec: {target: {name: db}, data: [{secretKey: url}]}";
            document(
                "external-secrets.io/v1",
                "ClusterExternalSecret",
                &format!("{{{places}, {spec}}}"),
            )
        };
        check(&cluster("namespaces: [a, b]"), &["a/db: url", "b/db: url"]);
        check(
            &cluster("namespaceSelectors: [{matchLabels: {kubernetes.io/metadata.name: a}}]"),
            &["a/db: url"],
        );
        check(
            &cluster("namespaceSelectors: [{matchLabels: {tier: web}}]"),
            &[],
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

    /// The keys that may have other values if `before` becomes `after`.
    #[track_caller]
    fn differing(before: &str, after: &str) -> Vec<String> {
        let made = |text: &str| load(text).made.remove(0);
        let (before, after) = (made(before), made(after));
        let others = (before.others != after.others).then(|| "?".to_owned());
        let differing = before
            .keys
            .into_iter()
            .filter(|(key, recipe)| after.keys.get(key) != Some(recipe));
        differing
            .map(|(key, _)| key.to_string())
            .chain(others)
            .collect()
    }

    #[test]
    fn recipe_is_what_values_depend_on() {
        let text = |b: &str, label: &str| {
            sealed(&format!(
                "{{encryptedData: {{a: x, b: {b}}}, template: {{metadata: {{labels: {{l: '{label}'}}}}}}}}"
            ))
        };
        assert_eq!(differing(&text("y", "1"), &text("z", "2")), ["b"]);
        // A template may be made of all values; no value is made of a template.
        let text = |a: &str, c: &str| {
            sealed(&format!(
                "{{encryptedData: {{a: {a}, b: y}}, template: {{data: {{c: {c}}}}}}}"
            ))
        };
        assert_eq!(differing(&text("x", "u"), &text("z", "u")), ["a", "c"]);
        assert_eq!(differing(&text("x", "u"), &text("x", "v")), ["c"]);
        let text = |key: &str, policy: &str| {
            external(&format!(
                "{{target: {{name: db, creationPolicy: {policy}, template: {{data: {{c: u}}}}}}, data: [{{secretKey: a, remoteRef: {{key: {key}}}}}]}}"
            ))
        };
        assert_eq!(differing(&text("k", "Owner"), &text("l", "Owner")), ["c"]);
        assert!(differing(&text("k", "Owner"), &text("k", "Orphan")).is_empty());
        // Labels of the object are no values, nor is when they are made.
        let (bare, labeled) = (
            external("{target: {name: db}, data: [{secretKey: a}]}"),
            external(
                "{refreshInterval: 1h, target: {name: db, template: {metadata: {labels: {a: b}}}}, data: [{secretKey: a}]}",
            ),
        );
        assert!(differing(&bare, &labeled).is_empty());
        // What is made up for a document depends on its name.
        let renamed = |text: String| text.replace("name: own", "name: other");
        let made_up = certificate("{secretName: tls}");
        assert_eq!(differing(&made_up, &renamed(made_up.clone())).len(), 3);
        let kept = text("k", "Owner");
        assert!(differing(&kept, &renamed(kept.clone())).is_empty());
    }

    #[test]
    fn keys_of_many_makers_are_made_by_all() {
        let joined = |last: &str| {
            let keys = (0..20).map(|number| format!("k{number}"));
            let specs = keys.map(|key| format!("{{data: [{{secretKey: {key}}}]}}"));
            let specs = specs.chain([format!("{{data: [{{secretKey: k, remoteRef: {last}}}]}}")]);
            let all = specs.map(|spec| load(&external(&spec)).made.remove(0));
            MadeObject::joined(all.collect()).unwrap()
        };
        let (before, after) = (joined("x"), joined("y"));
        assert_eq!(before.keys.len(), 21);
        assert!(
            before
                .keys
                .iter()
                .all(|(key, recipe)| after.keys[key] != *recipe)
        );
        assert_eq!(before.keys, joined("x").keys);
        assert_eq!(before.maker.to_string(), "ExternalSecret own and 20 others");
    }

    #[test]
    fn key_of_two_makers_is_made_by_both() {
        let joined = |one: &str, other: &str| {
            let made = |spec: &str| load(&external(spec)).made.remove(0);
            let mut joined = made(one);
            joined.join(made(other));
            joined
        };
        let url = |key: &str| {
            format!("{{data: [{{secretKey: url, remoteRef: {{key: {key}}}}}, {{secretKey: own}}]}}")
        };
        let other = "{target: {creationPolicy: Merge}, data: [{secretKey: url}, {secretKey: tok}]}";
        let (before, after) = (joined(&url("k"), other), joined(&url("l"), other));
        assert_eq!(words(&before), "own: own tok url");
        assert_ne!(before.keys["url"], after.keys["url"]);
        assert_eq!(before.keys["tok"], after.keys["tok"]);
        assert_eq!(joined(other, &url("k")).keys, before.keys);
        // Keys that are not known may be any.
        let any = |key: &str| {
            format!(
                "{{target: {{creationPolicy: Merge}}, dataFrom: [{{extract: {{key: {key}}}}}]}}"
            )
        };
        let (before, after) = (joined(&url("k"), &any("k")), joined(&url("k"), &any("l")));
        assert_eq!(words(&before), "own: own url ?");
        assert_ne!(before.keys["own"], after.keys["own"]);
    }
}
