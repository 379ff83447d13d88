//! The known kinds of makers, as their controllers document them.

use serde_json::Value;

use super::{
    Kind, MadeObject, ObjectKey, Origin, Ownership,
    rule::{Keys, MakerKind, NONE, objects_of},
};

/// All of the document.
const WHOLE: &str = "";
const OWN_NAME: &str = "/metadata/name";

const NO_KEYS: Keys = Keys {
    fixed: &[],
    maps: &[],
    lists: &[],
    open: &[],
    template: NONE,
    replaces: false,
    named: &[],
    closed: (NONE, "true"),
};

/// A kind that makes one Secret of its own name, with keys that are kept elsewhere.
const SECRET: MakerKind = MakerKind {
    group: "",
    kind: "",
    each: NONE,
    names: &[OWN_NAME],
    namespace: NONE,
    ownership: (NONE, &[]),
    immutable: NONE,
    generates: false,
    of: Kind::Secret,
    is_everywhere: false,
    reads: NONE,
    keys: Keys {
        open: &[WHOLE],
        ..NO_KEYS
    },
};

/// A kind of the Vault Secrets Operator.
const VAULT: MakerKind = MakerKind {
    group: "secrets.hashicorp.com",
    names: &["/spec/destination/name"],
    ownership: (
        "/spec/destination/create",
        &[
            ("", Some(Ownership::Added)),
            ("false", Some(Ownership::Added)),
        ],
    ),
    ..SECRET
};

/// A kind of Infisical's operator.
const INFISICAL: MakerKind = MakerKind {
    group: "secrets.infisical.com",
    kind: "InfisicalSecret",
    ..SECRET
};

/// A kind of trust-manager. The namespaces that it selects are those of the pods that refer to it.
const BUNDLE: MakerKind = MakerKind {
    group: "trust.cert-manager.io",
    kind: "Bundle",
    is_everywhere: true,
    reads: "/spec/sources",
    ..SECRET
};
const JKS: &str = "/spec/target/additionalFormats/jks/key";
const PKCS12: &str = "/spec/target/additionalFormats/pkcs12/key";

const ORPHANS: &[(&str, Option<Ownership>)] = &[
    ("", Some(Ownership::Left)),
    ("Orphan", Some(Ownership::Left)),
];

/// The known kinds of makers, as their controllers document them.
const MAKERS: [MakerKind; 18] = [
    MakerKind {
        group: "bitnami.com",
        kind: "SealedSecret",
        immutable: "/spec/template/immutable",
        keys: Keys {
            maps: &["/spec/encryptedData"],
            open: &["/spec/data"],
            template: "/spec/template",
            ..NO_KEYS
        },
        ..SECRET
    },
    MakerKind {
        group: "external-secrets.io",
        kind: "ExternalSecret",
        names: &["/spec/target/name", OWN_NAME],
        ownership: (
            "/spec/target/creationPolicy",
            &[
                ("Orphan", Some(Ownership::Left)),
                ("Merge", Some(Ownership::Added)),
                ("None", None),
            ],
        ),
        immutable: "/spec/target/immutable",
        reads: "/spec/target/template/templateFrom",
        keys: Keys {
            lists: &[("/spec/data", "secretKey")],
            open: &["/spec/dataFrom"],
            template: "/spec/target/template",
            replaces: true,
            ..NO_KEYS
        },
        ..SECRET
    },
    MakerKind {
        group: "kubernetes-client.io",
        kind: "ExternalSecret",
        keys: Keys {
            lists: &[("/spec/data", "name")],
            open: &["/spec/dataFrom", "/spec/template"],
            ..NO_KEYS
        },
        ..SECRET
    },
    MakerKind {
        group: "cert-manager.io",
        kind: "Certificate",
        names: &["/spec/secretName"],
        generates: true,
        keys: CERTIFICATE,
        ..SECRET
    },
    MakerKind {
        group: "secrets-store.csi.x-k8s.io",
        kind: "SecretProviderClass",
        each: "/spec/secretObjects",
        names: &["/secretName"],
        keys: Keys {
            lists: &[("/data", "key")],
            ..NO_KEYS
        },
        ..SECRET
    },
    MakerKind {
        group: "isindir.github.com",
        kind: "SopsSecret",
        each: "/spec/secretTemplates",
        names: &["/name"],
        keys: Keys {
            maps: &["/data", "/stringData"],
            ..NO_KEYS
        },
        ..SECRET
    },
    MakerKind {
        kind: "VaultStaticSecret",
        ..VAULT
    },
    MakerKind {
        kind: "VaultDynamicSecret",
        generates: true,
        ..VAULT
    },
    MakerKind {
        kind: "VaultPKISecret",
        generates: true,
        ..VAULT
    },
    MakerKind {
        kind: "HCPVaultSecretsApp",
        ..VAULT
    },
    MakerKind {
        group: "onepassword.com",
        kind: "OnePasswordItem",
        ..SECRET
    },
    MakerKind {
        names: &["/spec/managedSecretReference/secretName"],
        namespace: "/spec/managedSecretReference/secretNamespace",
        ownership: ("/spec/managedSecretReference/creationPolicy", ORPHANS),
        ..INFISICAL
    },
    MakerKind {
        each: "/spec/managedKubeSecretReferences",
        names: &["/secretName"],
        namespace: "/secretNamespace",
        ownership: ("/creationPolicy", ORPHANS),
        ..INFISICAL
    },
    MakerKind {
        group: "secrets.doppler.com",
        kind: "DopplerSecret",
        names: &["/spec/managedSecret/name"],
        namespace: "/spec/managedSecret/namespace",
        ownership: (NONE, ORPHANS),
        ..SECRET
    },
    MakerKind {
        group: "k8s.bitwarden.com",
        kind: "BitwardenSecret",
        names: &["/spec/secretName"],
        keys: Keys {
            lists: &[("/spec/map", "secretKeyName")],
            open: &[WHOLE],
            closed: ("/spec/onlyMappedSecrets", "true"),
            ..NO_KEYS
        },
        ..SECRET
    },
    MakerKind {
        of: Kind::ConfigMap,
        ownership: ("/spec/target/configMap/key", &[("", None)]),
        keys: Keys {
            named: &["/spec/target/configMap/key", JKS, PKCS12],
            ..NO_KEYS
        },
        ..BUNDLE
    },
    MakerKind {
        ownership: ("/spec/target/secret/key", &[("", None)]),
        keys: Keys {
            named: &["/spec/target/secret/key", JKS, PKCS12],
            ..NO_KEYS
        },
        ..BUNDLE
    },
    MakerKind {
        group: "ricoberger.de",
        kind: "VaultSecret",
        ..SECRET
    },
];

/// The keys of a certificate.
const CERTIFICATE: Keys = Keys {
    fixed: &[
        (NONE, "", &["tls.crt", "tls.key", "ca.crt"]),
        (
            "/spec/keystores/jks/create",
            "true",
            &["keystore.jks", "truststore.jks"],
        ),
        (
            "/spec/keystores/pkcs12/create",
            "true",
            &["keystore.p12", "truststore.p12"],
        ),
        ("/spec/additionalOutputFormats", "DER", &["key.der"]),
        (
            "/spec/additionalOutputFormats",
            "CombinedPEM",
            &["tls-combined.pem"],
        ),
    ],
    ..NO_KEYS
};

/// The objects that are made of `document`, whose `key` it is; `None` if it is no maker.
pub(in crate::manifest) fn made_of(
    document: &Value,
    group: &str,
    kind: &str,
    key: &ObjectKey,
    origin: &dyn Fn() -> Origin,
) -> Option<Vec<MadeObject>> {
    objects_of(&MAKERS, document, (group, kind), key, origin)
}
