//! The TLS configuration of connections: trusted authorities, and the client's certificate with its key.

use std::{path::PathBuf, sync::Arc};

use kube::client::ConfigExt as _;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use zeroize::Zeroizing;

use super::file;
use crate::setup_error::SetupError;

/// Certificates or a key, or the file with them. PEM.
#[derive(Clone)]
pub(super) enum Material {
    Data(Zeroizing<Vec<u8>>),
    File(PathBuf),
}

impl Material {
    pub(super) fn read(&self, part: &'static str) -> Result<Zeroizing<Vec<u8>>, SetupError> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(path) => file::read(path).map_err(|source| SetupError::Unreadable {
                part,
                path: path.clone(),
                source,
            }),
        }
    }

    /// The file, if it is one.
    pub(super) fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Data(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

/// A client certificate and its key. PEM.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) certificate: Zeroizing<Vec<u8>>,
    pub(super) key: Zeroizing<Vec<u8>>,
}

/// Everything that TLS depends on, not yet read.
#[derive(Clone, Default)]
pub(super) struct TlsSettings {
    /// The authorities that may sign the server's certificate; `None` stands for those that the system trusts.
    pub(super) authority: Option<Material>,
    pub(super) accept_invalid_certs: bool,
    /// The client's certificate and key.
    pub(super) identity: Option<(Material, Material)>,
}

impl TlsSettings {
    /// Files on which the configuration depends.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let authority = self.authority.as_ref().and_then(Material::path);
        let identity = self
            .identity
            .iter()
            .flat_map(|(certificate, key)| [certificate.path(), key.path()]);
        authority.into_iter().chain(identity.flatten()).cloned()
    }

    /// Reads the files. `issued` is an identity that takes the place of a missing one. Blocks.
    ///
    /// # Errors
    ///
    /// A file or its content is unusable. Content is never quoted.
    pub(super) fn load(&self, issued: Option<&Identity>) -> Result<ClientConfig, SetupError> {
        // Of kube's configuration only what has no file and no secret in it.
        let mut kube = kube::Config::new(http::Uri::from_static("https://localhost"));
        kube.accept_invalid_certs = self.accept_invalid_certs;
        kube.root_cert = self.authorities()?;
        let mut config = kube
            .rustls_client_config()
            .map_err(|_| SetupError::SystemAuthorities)?;
        let provider = Arc::clone(config.crypto_provider());
        let identity = match &self.identity {
            Some((certificate, key)) => Some(Identity {
                certificate: certificate.read("client certificate")?,
                key: key.read("client key")?,
            }),
            None => issued.cloned(),
        };
        if let Some(identity) = identity {
            let key = certified_key(&identity, &provider)?;
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
        }
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// The authorities in DER, without those that cannot be read: as in Go's clients, one odd certificate in a bundle
    /// leaves the others usable. `None` stands for those of the system.
    fn authorities(&self) -> Result<Option<Vec<Vec<u8>>>, SetupError> {
        let part = "certificate authority";
        let Some(material) = &self.authority else {
            return Ok(None);
        };
        let pem = material.read(part)?;
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        let usable: Vec<_> = certificates
            .filter(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok())
            .map(|certificate| certificate.to_vec())
            .collect();
        if usable.is_empty() && !self.accept_invalid_certs {
            let problem = "it has no usable certificate";
            return Err(SetupError::invalid(part, problem));
        }
        Ok(Some(usable))
    }
}

fn certified_key(
    identity: &Identity,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, SetupError> {
    let invalid = SetupError::invalid;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&identity.certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| invalid("client certificate", "malformed PEM"))?;
    if chain.is_empty() {
        return Err(invalid("client certificate", "it has no certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|_| invalid("client key", "malformed PEM, or no private key"))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            invalid("client key", "it does not belong to the client certificate")
        }
        rustls::Error::InvalidCertificate(_) => {
            invalid("client certificate", "malformed certificate")
        }
        _ => invalid("client key", "unsupported private key"),
    })
}
