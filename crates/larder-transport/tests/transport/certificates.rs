//! An authority with certificates for servers and clients.

use std::{path::Path, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::PrivateKeyDer;

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) struct Identity {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    pub(crate) certificate_der: Vec<u8>,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }

    /// A certificate for `name`, good for servers at that name or at 127.0.0.1, and for clients.
    pub(crate) fn issue(&self, name: &str) -> Identity {
        self.issue_with(name, |_| {})
    }

    /// The same with other parameters.
    fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names = [name.to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            certificate_der: certificate.der().to_vec(),
            key,
        }
    }

    /// TLS for a server that accepts this authority's clients, and those without a certificate.
    pub(crate) fn server(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        self.server_with(alpn, |_| {})
    }

    /// The same with a certificate with other parameters.
    pub(crate) fn server_with(
        &self,
        alpn: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder(Arc::new(roots))
            .allow_unauthenticated()
            .build()
            .unwrap();
        let identity = self.issue_with("localhost", change);
        let mut config = ServerConfig::builder()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![identity.certificate_der.into()],
                PrivateKeyDer::Pkcs8(identity.key.serialize_der().into()),
            )
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl Identity {
    /// Puts certificate and key in one file each, replacing what is there at once, as the kubelet does.
    pub(crate) fn write(&self, directory: &Path) {
        for (name, content) in [
            ("client.crt", &self.certificate_pem),
            ("client.key", &self.key_pem),
        ] {
            let new = directory.join("new");
            std::fs::write(&new, content).unwrap();
            std::fs::rename(&new, directory.join(name)).unwrap();
        }
    }
}
