//! Verification of a server's certificate (rule H5).

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;

use super::{Files, HttpError};
use larder_on_change::HttpTls;

/// The connector for one request, and the name that the certificate must have. Reads files.
pub(super) async fn connector(
    tls: &HttpTls,
    host: &str,
    files: Files<'_>,
) -> Result<(TlsConnector, ServerName<'static>), HttpError> {
    let name = tls.server_name.as_deref().unwrap_or(host);
    let server = ServerName::try_from(name.to_owned()).map_err(|_| HttpError::ServerName {
        name: name.to_owned(),
    })?;
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    let config = if tls.insecure_skip_verify {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else {
        builder.with_root_certificates(authorities(tls, files).await?)
    };
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsConnector::from(Arc::new(config)), server))
}

async fn authorities(tls: &HttpTls, files: Files<'_>) -> Result<RootCertStore, HttpError> {
    let mut store = RootCertStore::empty();
    if let Some(path) = &tls.ca {
        let text = files.authorities(path)?;
        // As in Go's clients, an odd certificate leaves the others usable.
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(&text).flatten());
        if store.is_empty() {
            return Err(HttpError::NoCaCertificates { path: path.clone() });
        }
    } else {
        // Hundreds of files on some systems.
        let found = spawn_blocking(|| rustls_native_certs::load_native_certs().certs).await;
        store.add_parsable_certificates(found.unwrap_or_default());
        if store.is_empty() {
            return Err(HttpError::NoSystemCaCertificates);
        }
    }
    Ok(store)
}

/// Accepts every certificate, if the server has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
