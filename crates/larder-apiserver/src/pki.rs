//! The server's own certificate authority, and the users that it authenticates over TLS.
//!
//! Invariant: a client is identified by a certificate that this server issued, compared as a whole. Every other client
//! gets 401.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// `system:admin`, `system:node:n1`, ...
    pub name: String,
    /// `system:masters`, `system:nodes`, ...
    pub groups: Vec<String>,
}

impl User {
    /// The user that may do everything.
    pub fn admin() -> Self {
        Self {
            name: "system:admin".to_owned(),
            groups: vec!["system:masters".to_owned()],
        }
    }
}

/// A server could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Making a key or a certificate, or signing with a key. Holds the error of the cryptographic library.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// Using the certificates for TLS. Holds the error of the TLS library.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// The listener has no address.
    #[error("cannot read the listener's address")]
    Address(#[source] io::Error),
}

/// A certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The users by their certificates. The lock is held for a lookup.
    clients: Mutex<HashMap<CertificateDer<'static>, User>>,
}

impl Authority {
    pub(crate) fn generate() -> Result<Self, SetupError> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name = subject("larder-ca", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let key = KeyPair::generate()?;
        let issuer = CertifiedIssuer::self_signed(params, key)?;
        Ok(Self {
            issuer,
            clients: Mutex::default(),
        })
    }

    /// The authority's certificate, as PEM.
    pub(crate) fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate of this authority, and its key.
    fn issue(
        &self,
        names: Vec<String>,
        subject: DistinguishedName,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(Certificate, KeyPair), SetupError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = subject;
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }

    /// The subject of a certificate.
    pub(crate) fn user(&self, certificate: &CertificateDer<'_>) -> Option<User> {
        self.clients.lock().get(certificate).cloned()
    }

    /// Forgets every certificate of the user of this name.
    pub(crate) fn revoke(&self, name: &str) {
        self.clients.lock().retain(|_, user| user.name != name);
    }

    /// TLS for a server that is reached as `address`, and by the names that a cluster's API server has.
    pub(crate) fn server_config(&self, address: IpAddr) -> Result<ServerConfig, SetupError> {
        let mut names = vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
        ];
        let address_text = address.to_string();
        if !address.is_unspecified() && !names.contains(&address_text) {
            names.push(address_text);
        }
        let subject = subject("larder-apiserver", &[]);
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let (certificate, key) = self.issue(names, subject, usage)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                // A client without a certificate gets 401, which it can read.
                .allow_unauthenticated()
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// A kubeconfig for `server` (an URL) with a certificate for `user`.
    pub(crate) fn kubeconfig(&self, server: &str, user: User) -> Result<String, SetupError> {
        let subject = subject(&user.name, &user.groups);
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let (certificate, key) = self.issue(Vec::new(), subject, usage)?;
        let name = user.name.clone();
        self.clients.lock().insert(certificate.der().clone(), user);
        let pems = [self.certificate(), certificate.pem(), key.serialize_pem()];
        let [authority, certificate, key] = pems.map(|pem| STANDARD.encode(pem));
        Ok(format!(
            "apiVersion: v1
kind: Config
clusters:
- name: larder
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: \"{name}\"
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: larder
  context:
    cluster: larder
    user: \"{name}\"
    namespace: default
current-context: larder
"
        ))
    }
}

fn subject(name: &str, groups: &[String]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    // One group: rcgen holds a type of name once.
    if let Some(group) = groups.first() {
        subject.push(DnType::OrganizationName, group.as_str());
    }
    subject
}
