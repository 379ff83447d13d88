//! The known kinds of makers, as their controllers document them.

use super::{
    Ownership,
    rule::{Keys, MakerKind},
};

/// No place.
pub(super) const NONE: &str = "\0";
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

const ORPHANS: &[(&str, Option<Ownership>)] = &[
    ("", Some(Ownership::Left)),
    ("Orphan", Some(Ownership::Left)),
];

/// The known kinds of makers, as their controllers document them.
pub(super) const MAKERS: [MakerKind; 15] = [
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
